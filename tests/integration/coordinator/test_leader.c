/* The leader's writes against a real etcd: what waits behind another write must not do what that
 * one has made wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "coordinator/etcd/leader_internal.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define ANSWER_MS 20000

/* What was answered. */
struct answers {
    int64_t elected; /* 0: not yet */
    int specs;
    int reads;
    kelp_status read; /* the latest, and what it said */
    char plan[16];
    bool empty;
    uint64_t last_generation;
    char missing[192];
    uint32_t checkpoints;
    uint32_t damaged;
    char folders[512]; /* to be removed, each with a blank */
    int maps;
    enum kelp_placement_written map; /* the latest */
    int commits;
    enum kelp_checkpointer_result commit; /* the latest */
    uint64_t refused;                     /* serial of the latest commit that was, 0: none */
    int shards;                           /* registered */
    int states;
    bool taken; /* the latest state that was written */
};

static struct etcd_fixture fixture;
static struct kelp_etcd *etcd;
static struct kelp_rpc_loop *loop;
static struct kelp_task_thread *tasks;
static struct kelp_leader *leader;
static struct kelp_job_file *job_file;
static struct answers answers;

static void on_spec(const char *text, size_t text_bytes, void *user)
{
    (void)user;
    ck_assert_uint_eq(text_bytes, strlen("the job"));
    ck_assert_str_eq(text, "the job");
    answers.specs++;
}

static void on_elected(int64_t revision, void *user)
{
    (void)user;
    answers.elected = revision;
}

static void on_text(const char *text, void *user)
{
    (void)text;
    (void)user;
}

static void on_read(kelp_status status, struct kelp_found *found, const char *text, void *user)
{
    (void)text;
    (void)user;
    answers.read = status;
    answers.empty = found->empty;
    (void)snprintf(answers.plan, sizeof(answers.plan), "%s", found->plan ? found->plan : "");
    answers.last_generation = found->last_generation;
    (void)snprintf(answers.missing, sizeof(answers.missing), "%s", found->missing);
    answers.checkpoints = found->checkpoint_count;
    answers.damaged = 0;
    for (uint32_t i = 0; i < found->checkpoint_count; i++) {
        answers.damaged += found->checkpoints[i].damaged ? 1 : 0;
    }
    answers.folders[0] = '\0';
    for (size_t i = 0; i < found->folders.count; i++) {
        size_t used = strlen(answers.folders);
        (void)snprintf(answers.folders + used, sizeof(answers.folders) - used, "%s ",
                       found->folders.names[i]);
    }
    answers.reads++;
}

static void on_plan(kelp_status status, const char *plan, const char *text, void *user)
{
    (void)status;
    (void)plan;
    (void)text;
    (void)user;
}

static void on_map(enum kelp_placement_written result, const char *text, void *user)
{
    (void)text;
    (void)user;
    answers.maps++;
    answers.map = result;
}

static void on_committed(const struct kelp_commit_answer *answer, void *user)
{
    (void)user;
    answers.commits++;
    answers.commit = answer->result;
    if (answer->result == KELP_CHECKPOINTER_REFUSED) {
        answers.refused = answer->serial;
    }
}

static void on_removed(enum kelp_checkpointer_result result, const char *text, void *user)
{
    (void)result;
    (void)text;
    (void)user;
}

static void on_state(bool taken, void *user)
{
    (void)user;
    answers.states++;
    answers.taken = taken;
}

static void on_shard(const struct kelp_map_shard *shard, void *user)
{
    (void)shard;
    (void)user;
    answers.shards++;
}

static void on_superseded(const struct kelp_holder *holder, void *user)
{
    (void)holder;
    (void)user;
}

static void on_vacant(void *user)
{
    (void)user;
}

static const struct kelp_leader_events events = {
    .spec = on_spec,
    .elected = on_elected,
    .deposed = on_text,
    .superseded = on_superseded,
    .vacant = on_vacant,
    .read = on_read,
    .plan_written = on_plan,
    .map_written = on_map,
    .map_read = on_read,
    .committed = on_committed,
    .removed = on_removed,
    .state_written = on_state,
    .shard_registered = on_shard,
    .shard_gone = on_text,
    .trouble = on_text,
};

/* Run the loop until the number is there. */
static void await_count(const int *count, int wanted)
{
    for (int i = 0; *count < wanted; i++) {
        ck_assert_msg(i < ANSWER_MS / 10, "no answer");
        (void)kelp_rpc_loop_run(loop, 10);
    }
}

/* A write that was not taken is tried again, as a term does. */
static void write_state(const char *name)
{
    struct kelp_job_state state = {.reason = ""};
    (void)snprintf(state.state, sizeof(state.state), "%s", name);
    do {
        int before = answers.states;
        ck_assert_int_eq(kelp_leader_write_state(leader, &state), KELP_OK);
        await_count(&answers.states, before + 1);
    } while (!answers.taken);
}

static void setup(void)
{
    memset(&answers, 0, sizeof(answers));
    etcd_fixture_start(&fixture);
    etcd = etcd_fixture_client(&fixture);
    kelp_rpc_global_init();
    job_file = kelp_job_file_create();
    ck_assert_ptr_nonnull(job_file);
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, NULL), KELP_OK);
    ck_assert_int_eq(kelp_task_thread_start(loop, &tasks, NULL), KELP_OK);
    struct kelp_leader_options options = {.loop = loop,
                                          .tasks = tasks,
                                          .endpoints = fixture.url,
                                          .job = "job",
                                          .id = "coordinator-0",
                                          .run_folder = fixture.folder,
                                          .incarnation = 7,
                                          .proof_digest = "0123"};
    ck_assert_int_eq(kelp_leader_open(&options, &events, NULL, &leader, NULL), KELP_OK);
    ck_assert_int_eq(kelp_leader_stand(leader, "127.0.0.1:1", job_file, "the job", NULL), KELP_OK);
    for (int i = 0; answers.elected == 0; i++) {
        ck_assert_msg(i < ANSWER_MS / 10, "not elected");
        (void)kelp_rpc_loop_run(loop, 10);
    }
    ck_assert_int_eq(kelp_leader_read(leader), KELP_OK);
    await_count(&answers.reads, 1);
    ck_assert_int_eq(answers.read, KELP_OK);
}

static void teardown(void)
{
    kelp_task_thread_stop(tasks);
    kelp_leader_close(leader);
    kelp_rpc_loop_destroy(loop);
    kelp_leader_destroy(leader);
    kelp_task_thread_destroy(tasks);
    kelp_job_file_destroy(job_file);
    kelp_etcd_close(etcd);
    etcd_fixture_stop(&fixture);
    kelp_rpc_global_fini();
}

/* Ask for a generation; its answer comes later. */
static void open_generation(uint64_t generation)
{
    struct kelp_map before = {.generation = generation - 1};
    struct kelp_map_shard shard = {.id = "shard-0", .address = "127.0.0.1:2", .incarnation = 9};
    struct kelp_map map;
    ck_assert_int_eq(kelp_map_spread(&before, &shard, 1, 2, &map, NULL), KELP_OK);
    (void)snprintf(map.nonce, sizeof(map.nonce), "nonce-%llu", (unsigned long long)generation);
    const struct kelp_opening opening = {.map = &map};
    ck_assert_int_eq(kelp_leader_write_map(leader, &opening), KELP_OK);
    kelp_map_fini(&map);
}

/* The map of generation 1 under another serial. */
static void change_map(uint64_t serial)
{
    struct kelp_map before = {.generation = 0};
    struct kelp_map_shard shard = {.id = "shard-0", .address = "127.0.0.1:2", .incarnation = 9};
    struct kelp_map map;
    ck_assert_int_eq(kelp_map_spread(&before, &shard, 1, 2, &map, NULL), KELP_OK);
    map.serial = serial;
    (void)snprintf(map.nonce, sizeof(map.nonce), "change-%llu", (unsigned long long)serial);
    ck_assert_int_eq(kelp_leader_change_map(leader, &map), KELP_OK);
    kelp_map_fini(&map);
}

/* The order's serial is the version. */
static void commit(uint64_t version, uint64_t generation, int64_t election)
{
    struct kelp_commit wanted = {.version = version,
                                 .generation = generation,
                                 .election = election,
                                 .serial = version,
                                 .manifest = "{\"nonce\":\"7-1\"}"};
    ck_assert_int_eq(kelp_leader_commit(leader, &wanted), KELP_OK);
}

static size_t manifests(void)
{
    struct kelp_etcd_range range;
    ck_assert_int_eq(kelp_etcd_get_prefix(etcd, "/kelp/job/checkpoint/", ANSWER_MS, &range, NULL),
                     KELP_OK);
    size_t count = range.count;
    kelp_etcd_range_fini(&range);
    return count;
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("writes", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* A commit that waits behind the opening of a generation is of the one before: its data goes. The
 * answer says which order's commit it was. */
KELP_TEST(commit_behind_an_opening)
{
    open_generation(1);
    await_count(&answers.maps, 1);
    ck_assert_int_eq(answers.map, KELP_WRITTEN_OK);
    open_generation(2);
    commit(5, 1, answers.elected);
    commit(6, 2, answers.elected); /* before the one in front of it has its answer */
    await_count(&answers.commits, 2);
    ck_assert_int_eq(answers.map, KELP_WRITTEN_OK);
    ck_assert_uint_eq(answers.refused, 5);
    ck_assert_int_eq(answers.commit, KELP_CHECKPOINTER_OK);
    ck_assert_uint_eq(manifests(), 1);
}

/* The map alone changes: a commit of its generation still succeeds, one behind a change too. A
 * change by a leader whose key is gone does not. */
KELP_TEST(change_within_the_generation)
{
    struct kelp_etcd_range range;
    struct kelp_map map;
    open_generation(1);
    await_count(&answers.maps, 1);
    change_map(2);
    commit(5, 1, answers.elected);
    await_count(&answers.commits, 1);
    ck_assert_int_eq(answers.map, KELP_WRITTEN_OK);
    ck_assert_int_eq(answers.commit, KELP_CHECKPOINTER_OK);
    ck_assert_int_eq(kelp_etcd_delete_prefix(etcd, "/kelp/job/coordinator", ANSWER_MS, NULL),
                     KELP_OK);
    change_map(3); /* before we hear of it */
    await_count(&answers.maps, 3);
    ck_assert_int_ne(answers.map, KELP_WRITTEN_OK);
    ck_assert_int_eq(kelp_etcd_get(etcd, "/kelp/job/map", ANSWER_MS, &range, NULL), KELP_OK);
    ck_assert_int_eq(kelp_map_parse(range.pairs[0].value, range.pairs[0].value_bytes, &map, NULL),
                     KELP_OK);
    ck_assert_uint_eq(map.generation, 1);
    ck_assert_uint_eq(map.serial, 2);
    kelp_map_fini(&map);
    kelp_etcd_range_fini(&range);
}

static void put(const char *key, const char *value)
{
    ck_assert_int_eq(kelp_etcd_put(etcd, key, value, 0, ANSWER_MS, NULL), KELP_OK);
}

static void expect_value(const char *key, const char *value)
{
    struct kelp_etcd_range range;
    ck_assert_int_eq(kelp_etcd_get(etcd, key, ANSWER_MS, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    ck_assert_str_eq(range.pairs[0].value, value);
    kelp_etcd_range_fini(&range);
}

/* Somebody empties etcd: the job's text and its plan are there again once we lead again, so that
 * processes that start find them, and no worker says what the plan is. */
KELP_TEST(etcd_was_emptied)
{
    int64_t before = answers.elected;
    put("/kelp/job/spec", "the job");
    put("/kelp/job/plan", "the plan");
    await_count(&answers.specs, 1);
    ck_assert_int_eq(kelp_leader_read(leader), KELP_OK);
    await_count(&answers.reads, 2);
    ck_assert_int_eq(kelp_etcd_delete_prefix(etcd, "/kelp/job/", ANSWER_MS, NULL), KELP_OK);
    for (int i = 0; answers.specs < 2; i++) {
        ck_assert_msg(i < ANSWER_MS / 10, "the job's text is not put back");
        kelp_leader_tick(leader);
        (void)kelp_rpc_loop_run(loop, 10);
    }
    ck_assert_int_gt(answers.elected, before);
    expect_value("/kelp/job/spec", "the job");
    ck_assert_int_eq(kelp_leader_read(leader), KELP_OK);
    await_count(&answers.reads, 3);
    expect_value("/kelp/job/plan", "the plan");
    ck_assert_str_eq(answers.plan, "the plan");
}

/* What was ordered by an election that is over does not count; what it committed does. */
KELP_TEST(commit_of_another_election)
{
    open_generation(1);
    await_count(&answers.maps, 1);
    commit(5, 1, answers.elected - 1);
    await_count(&answers.commits, 1);
    ck_assert_int_eq(answers.commit, KELP_CHECKPOINTER_REFUSED);
    ck_assert_uint_eq(manifests(), 0);
    commit(5, 1, answers.elected);
    await_count(&answers.commits, 2);
    ck_assert_int_eq(answers.commit, KELP_CHECKPOINTER_OK);
    commit(5, 1, answers.elected - 1);
    await_count(&answers.commits, 3);
    ck_assert_int_eq(answers.commit, KELP_CHECKPOINTER_OK);
}

/* Who is not elected any more may not say which folders nobody names: a successor may be writing
 * them. */
KELP_TEST(read_of_another_election)
{
    ck_assert_int_eq(kelp_etcd_delete_prefix(etcd, "/kelp/job/coordinator", ANSWER_MS, NULL),
                     KELP_OK);
    ck_assert_int_eq(kelp_leader_read(leader), KELP_OK); /* before we hear of it */
    await_count(&answers.reads, 2);
    ck_assert_int_eq(answers.read, KELP_ERR_NOT_LEADER);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/* glibc's own allocator, under the name that it keeps for programs that replace malloc(). The size
 * that fails is that of one event alone. */
extern void *__libc_malloc(size_t bytes);
#define VALUE_BYTES 4099
static atomic_bool starves;

void *malloc(size_t bytes)
{
    bool event = bytes == sizeof(struct kelp__leader_post) + VALUE_BYTES + 1;
    return event && atomic_load(&starves) ? NULL : __libc_malloc(bytes);
}

/* No memory for an event of etcd: that is told, and watching anew brings what was lost. */
KELP_TEST(an_event_without_memory)
{
    char value[VALUE_BYTES + 1];
    (void)snprintf(value, sizeof(value), "{\"address\":\"127.0.0.1:2\",\"incarnation\":\"9\"%*s",
                   VALUE_BYTES - 42, "}");
    ck_assert_uint_eq(strlen(value), VALUE_BYTES);
    ck_assert_int_eq(kelp_leader_watch_shards(leader, NULL), KELP_OK);
    atomic_store(&starves, true);
    ck_assert_int_eq(kelp_etcd_put(etcd, "/kelp/job/ps/shard-0", value, 0, ANSWER_MS, NULL),
                     KELP_OK);
    for (int i = 0; !kelp_leader_lost_event(leader); i++) {
        ck_assert_msg(i < ANSWER_MS / 10, "the loss is not told");
        (void)kelp_rpc_loop_run(loop, 10);
    }
    ck_assert(!kelp_leader_lost_event(leader));
    ck_assert_int_eq(answers.shards, 0);
    atomic_store(&starves, false);
    kelp_leader_step_down(leader);
    ck_assert_int_eq(kelp_leader_watch_shards(leader, NULL), KELP_OK);
    await_count(&answers.shards, 1);
}

#endif

/* A folder of the run, with a file in it, unless that is NULL. */
static void lay(const char *folder, const char *name, const char *text)
{
    char path[512];
    struct kelp_error error = {.text = ""};
    (void)snprintf(path, sizeof(path), "%s/checkpoints/%s", fixture.folder, folder);
    ck_assert_msg(kelp_files_make_folder(path, &error) == KELP_OK, "%s", error.text);
    if (name != NULL) {
        (void)snprintf(path, sizeof(path), "%s/checkpoints/%s/%s", fixture.folder, folder, name);
        ck_assert_msg(kelp_files_write(path, text, strlen(text), &error) == KELP_OK, "%s",
                      error.text);
    }
}

static void read_again(void)
{
    int reads = answers.reads;
    ck_assert_int_eq(kelp_leader_read(leader), KELP_OK);
    await_count(&answers.reads, reads + 1);
    ck_assert_int_eq(answers.read, KELP_OK);
}

/* What an empty etcd does not take in is not removed: neither then, nor by the leader after. */
KELP_TEST(removes_what_is_ours)
{
    lay("step-100.g1", "manifest.json", "{\"damaged\":");
    lay("step-200.g6", NULL, NULL);
    read_again();
    ck_assert(answers.empty);
    ck_assert_str_eq(answers.folders, "");
    ck_assert_uint_eq(answers.last_generation, 6); /* its names are taken */
    lay("step-100.g1.bak", NULL, NULL);
    lay("step-300.g1-1f", "job.yaml", "name: job\n");
    lay("step-400.g1", "job.yaml", "name: another\n");
    lay("step-500.g1", "job.yaml", "name: [\n");
    lay("backup", NULL, NULL);
    open_generation(1);
    await_count(&answers.maps, 1);
    read_again();
    ck_assert(!answers.empty);
    ck_assert_str_eq(answers.folders, "step-200.g6 step-300.g1-1f ");
}

/* A committed checkpoint that another text of this job made. */
static void put_manifest(uint64_t version)
{
    struct kelp_manifest manifest;
    char *text = NULL;
    char key[64];
    ck_assert_int_eq(kelp_manifest_init(&manifest, 1, 1, NULL), KELP_OK);
    (void)snprintf(manifest.job, sizeof(manifest.job), "job");
    (void)snprintf(manifest.nonce, sizeof(manifest.nonce), "7-1");
    (void)snprintf(manifest.folder, sizeof(manifest.folder), "step-%llu.g1",
                   (unsigned long long)version);
    (void)snprintf(manifest.storages[0], sizeof(manifest.storages[0]), "shard-0.1");
    memset(manifest.parts[0].digest, 'a', sizeof(manifest.parts[0].digest) - 1);
    manifest.spec_digest = kelp_job_file_digest(job_file) + 1;
    manifest.version = version;
    manifest.step = version;
    manifest.generation = 1;
    ck_assert_int_eq(kelp_manifest_print(&manifest, &text, NULL), KELP_OK);
    (void)snprintf(key, sizeof(key), "/kelp/job/checkpoint/%llu", (unsigned long long)version);
    ck_assert_int_eq(kelp_etcd_put(etcd, key, text, 0, ANSWER_MS, NULL), KELP_OK);
    free(text);
    kelp_manifest_fini(&manifest);
}

/* Which job a checkpoint is of is waited for by name; when it cannot be read, the one before it is
 * looked at. */
KELP_TEST(jobs_of_checkpoints)
{
    put_manifest(5);
    put_manifest(10);
    ck_assert_int_eq(kelp_leader_read(leader), KELP_OK);
    await_count(&answers.reads, 2);
    ck_assert_int_eq(answers.read, KELP_ERR_NOT_FOUND);
    ck_assert_str_eq(answers.missing, "storage checkpoints/step-10.g1/job.yaml");
    lay("step-10.g1", "job.yaml", "name: [\n");
    ck_assert_int_eq(kelp_leader_read(leader), KELP_OK);
    await_count(&answers.reads, 3);
    ck_assert_int_eq(answers.read, KELP_ERR_NOT_FOUND);
    ck_assert_str_eq(answers.missing, "storage checkpoints/step-5.g1/job.yaml");
    lay("step-5.g1", "job.yaml", "name: 3: 4\n");
    read_again();
    ck_assert_str_eq(answers.missing, "");
    ck_assert_uint_eq(answers.checkpoints, 2);
    ck_assert_uint_eq(answers.damaged, 2);
}

/* A write that was sent before and comes after is not applied, since each compares the revision;
 * and one that stands there all the same is written over. */
KELP_TEST(state_that_comes_late)
{
    struct kelp_etcd_range range;
    write_state("running");
    ck_assert_int_eq(kelp_etcd_put(etcd, "/kelp/job/state",
                                   "{\"state\":\"starting\",\"reason\":\"\",\"version\":0}", 0,
                                   ANSWER_MS, NULL),
                     KELP_OK);
    write_state("done");
    ck_assert_int_eq(kelp_etcd_get(etcd, "/kelp/job/state", ANSWER_MS, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    ck_assert_ptr_nonnull(strstr(range.pairs[0].value, "\"done\""));
    ck_assert_int_eq(range.pairs[0].version, 3); /* each of the three was put once */
    kelp_etcd_range_fini(&range);
}
