/* Checkpoints with real kelp-coordinator processes and a real etcd; workers and shards are
 * scripted, a proxy loses answers. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/files.h"
#include "common/training/control.h"
#include "tests/lib/cluster/coordinator_peers.h"
#include "tests/lib/etcd/tcp_double.h"
#include "tests/lib/suite.h"

static struct peers peers;
static struct peer_shard shards[2];
static struct peer_worker workers[2];
static struct tcp_proxy proxy;
static bool proxied;

static void set_up(bool through_proxy)
{
    memset(&peers, 0, sizeof(peers));
    memset(shards, 0, sizeof(shards));
    memset(workers, 0, sizeof(workers));
    peers_start(&peers, "20s");
    proxied = through_proxy;
    if (proxied) {
        tcp_proxy_start(&proxy, peers.etcd.port, "/v3/kv/");
        peers.coordinators_etcd = proxy.server.url;
    }
    shards[0].id = "shard-0";
    shards[1].id = "shard-1";
    workers[0].id = "worker-0";
    workers[1].id = "worker-1";
}

static void setup(void)
{
    set_up(false);
}

static void setup_proxy(void)
{
    set_up(true);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        if (workers[i].timer != NULL) {
            peer_worker_stop(&workers[i]);
        }
        if (shards[i].server != NULL) {
            peer_shard_stop(&shards[i]);
        }
    }
    peers_stop(&peers);
    if (proxied) {
        tcp_proxy_stop(&proxy);
    }
}

/* ---- what tests wait for ----------------------------------------------------------------------
 */

static bool runs(void *user)
{
    const uint64_t *generation = user;
    return workers[0].generation == *generation && workers[1].generation == *generation;
}

static void start_all(void)
{
    uint64_t generation = 1;
    peers_coordinator(&peers, 0, NULL);
    for (int i = 0; i < 2; i++) {
        peer_shard_start(&peers, &shards[i]);
        peer_worker_start(&peers, &workers[i]);
    }
    peers_wait(&peers, runs, &generation, "both workers to have generation 1");
}

struct asked {
    Kelp__V1__StatusReply *reply; /* owned */
    uint64_t step;                /* of the checkpoint that is waited for; 0: any answer */
    uint64_t failed;
};

static bool status_says(void *user)
{
    struct asked *asked = user;
    char address[256];
    if (asked->reply != NULL) {
        kelp__v1__status_reply__free_unpacked(asked->reply, NULL);
    }
    peers_leader(&peers, address);
    asked->reply = address[0] == '\0' ? NULL : peers_status(&peers, address);
    return asked->reply != NULL && asked->reply->checkpoint != NULL &&
           asked->reply->checkpoint->step >= asked->step &&
           asked->reply->checkpoint->failed >= asked->failed;
}

static Kelp__V1__StatusReply *await(uint64_t step, uint64_t failed, const char *what)
{
    struct asked asked = {.step = step, .failed = failed};
    peers_wait(&peers, status_says, &asked, what);
    return asked.reply;
}

static void await_step(uint64_t step)
{
    kelp__v1__status_reply__free_unpacked(await(step, 0, "the checkpoint to be committed"), NULL);
}

static bool has_order(void *user)
{
    const struct peer_shard *shard = user;
    return shard->order_serial != 0;
}

struct path {
    char text[512];
    bool there; /* what is waited for */
};

static bool path_is(void *user)
{
    const struct path *path = user;
    struct stat info;
    return (stat(path->text, &info) == 0) == path->there;
}

static void await_path(const char *name, bool there)
{
    struct path path = {.there = there};
    (void)snprintf(path.text, sizeof(path.text), "%s/checkpoints/%s", peers.folder, name);
    peers_wait(&peers, path_is, &path, name);
}

static bool logged(void *user)
{
    return peers_logged(&peers, 0, user);
}

static bool reached_by_leader(void *user)
{
    (void)user;
    return shards[0].stream != NULL && shards[1].stream != NULL;
}

static bool leader_knows(void *user)
{
    const uint64_t *step = user;
    struct asked asked = {.reply = NULL};
    bool knows = status_says(&asked) && strcmp(asked.reply->state, "running") == 0 &&
                 asked.reply->word != NULL && asked.reply->word->step == *step;
    if (asked.reply != NULL) {
        kelp__v1__status_reply__free_unpacked(asked.reply, NULL);
    }
    return knows;
}

/* What was ordered last. */
struct made {
    uint64_t serial;
    uint64_t step;
    char folder[128];
    char key[64];
};

/* Training stands at a step, and a checkpoint is asked for: the order names a step ahead. */
static struct made order_from(uint64_t step, bool pause)
{
    struct made made = {.serial = 0};
    shards[1].stands = step;
    shards[0].order_serial = 0;
    shards[1].order_serial = 0;
    peers_wait(&peers, reached_by_leader, NULL, "the leader to reach both shards");
    peer_shard_word(&shards[0], step, step, KELP_STEP_TRAIN);
    peers_wait(&peers, leader_knows, &step, "the leader to know the step");
    made.serial = peers_checkpoint(&peers, pause);
    peers_wait(&peers, has_order, &shards[0], "an order");
    peers_wait(&peers, has_order, &shards[1], "an order");
    made.step = shards[0].order_step;
    ck_assert_uint_ge(made.step,
                      step); /* equal where training seems to stand still, on a slow machine */
    (void)snprintf(made.folder, sizeof(made.folder), "%s", shards[0].order_folder);
    (void)snprintf(made.key, sizeof(made.key), "checkpoint/%llu", (unsigned long long)made.step);
    return made;
}

/* Training comes to the step: both shards save it. */
static void reach(const struct made *made)
{
    for (int i = 0; i < 2; i++) {
        shards[i].stands = made->step;
        peer_shard_snapshot(&shards[i]);
    }
    peer_shard_word(&shards[0], made->step, made->step, KELP_STEP_TRAIN);
    peer_shard_report(&shards[1]);
}

static struct made make(uint64_t step)
{
    struct made made = order_from(step, false);
    reach(&made);
    await_step(made.step);
    return made;
}

static void await_file(const struct made *made, const char *name, bool there)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", made->folder, name);
    await_path(path, there);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("cluster", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* What is committed stands in etcd and beside the data; two are kept, and the third one that goes
 * leaves etcd first, then the disk. */
KELP_TEST(commits_and_keeps)
{
    char name[200];
    start_all();
    struct made first = make(4);
    Kelp__V1__StatusReply *reply = await(first.step, 0, "an answer");
    ck_assert_uint_eq(reply->checkpoint->answered, first.serial);
    ck_assert_uint_eq(reply->checkpoint->version, first.step);
    ck_assert_uint_eq(reply->checkpoint->committed, 1);
    ck_assert_str_eq(reply->checkpoint->error, "");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    await_file(&first, "manifest.json", true);
    char *stored = peers_get(&peers, first.key);
    (void)snprintf(name, sizeof(name), "checkpoints/%s/manifest.json", first.folder);
    char *file = peers_file(&peers, name);
    ck_assert_str_eq(stored, file);
    ck_assert_ptr_nonnull(strstr(stored, first.folder));
    free(stored);
    free(file);
    (void)snprintf(name, sizeof(name), "checkpoints/%s/job.yaml", first.folder);
    file = peers_file(&peers, name);
    ck_assert_str_eq(file, peers.spec);
    free(file);
    struct made second = make(first.step + 4);
    await_file(&first, "manifest.json", true);
    struct made third = make(second.step + 4);
    await_path(first.folder, false);
    stored = peers_get(&peers, first.key);
    ck_assert_str_eq(stored, "");
    free(stored);
    await_file(&second, "manifest.json", true);
    await_file(&third, "manifest.json", true);
}

/* One shard's disk is full: said, nothing of it stays, and the next one works. */
KELP_TEST(failed_snapshot)
{
    start_all();
    shards[1].answer = KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED;
    shards[1].disk_says = "no space left";
    struct made made = order_from(4, false);
    reach(&made);
    Kelp__V1__StatusReply *reply = await(0, 1, "the failure");
    ck_assert_uint_eq(reply->checkpoint->refused, made.serial);
    ck_assert_ptr_nonnull(strstr(reply->checkpoint->error, "shard-1: no space left"));
    ck_assert_str_eq(reply->state, "running");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    await_path(made.folder, false);
    shards[1].answer = 0;
    peers_run(&peers, 1200); /* the pause after a failure is not part of the next order's time */
    (void)make(made.step + 4);
    ck_assert_uint_eq(workers[0].closes, 0);
}

KELP_CASE("lossy", .timeout_s = 60, .setup = setup_proxy, .teardown = teardown)

/* The commit takes effect, but all answers are lost for longer than a call waits: the same one is
 * sent again, and found to be ours. */
KELP_TEST(lost_answers)
{
    start_all();
    struct made made = order_from(4, false);
    tcp_proxy_lose(&proxy, 100000, 0);
    reach(&made);
    peers_wait(&peers, logged, "checkpoint not committed", "a commit without answer");
    char *stored = peers_get(&peers, made.key);
    ck_assert_str_ne(stored, "");
    tcp_proxy_lose(&proxy, 0, 0);
    await_step(made.step);
    char *after = peers_get(&peers, made.key);
    ck_assert_str_eq(stored, after);
    free(stored);
    free(after);
    await_file(&made, "manifest.json", true);
}

static bool settled(void *user)
{
    struct asked asked = {.reply = NULL};
    uint64_t *committed = user;
    bool over = status_says(&asked) &&
                asked.reply->checkpoint->committed + asked.reply->checkpoint->failed > 0;
    if (over) {
        *committed = asked.reply->checkpoint->committed;
    }
    if (asked.reply != NULL) {
        kelp__v1__status_reply__free_unpacked(asked.reply, NULL);
    }
    return over;
}

KELP_CASE("cluster", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* etcd is away when everything is durable: nothing is decided and the data is kept. When it is back
 * the checkpoint is committed, or, if the election was lost meanwhile, given up, since another
 * leader might have removed it; and the next one works. */
KELP_TEST(etcd_is_away)
{
    uint64_t committed = 0;
    start_all();
    struct made made = order_from(4, false);
    etcd_fixture_kill(&peers.etcd);
    reach(&made);
    peers_wait(&peers, logged, "checkpoint not committed", "a commit that etcd did not take");
    await_path(made.folder, true);
    etcd_fixture_restart(&peers.etcd);
    peers_wait(&peers, settled, &committed, "the commit's end");
    await_path(made.folder, committed > 0);
    char *stored = peers_get(&peers, made.key);
    ck_assert((stored[0] != '\0') == (committed > 0));
    free(stored);
    (void)make(made.step + 4);
    ck_assert_uint_eq(shards[1].generation, 1);
}

static bool third_generation(void *user)
{
    (void)user;
    return shards[0].generation == 3 && shards[1].generation == 3;
}

static bool second_generation(void *user)
{
    (void)user;
    return shards[0].generation == 2 && shards[1].generation == 2;
}

/* A shard is lost: the newest checkpoint is restored, its manifest comes with the map. It is
 * damaged: the one before it, and the damaged one is gone from etcd and set aside on
 * the disk. */
KELP_TEST(restores_and_leaves_damage)
{
    uint64_t generation = 3;
    char text[200];
    start_all();
    struct made first = make(4);
    struct made second = make(first.step + 4);
    shards[0].slow = true;
    shards[1].slow = true;
    peer_shard_stop(&shards[1]);
    peer_shard_start(&peers, &shards[1]);
    peers_wait(&peers, second_generation, NULL, "the shards to have generation 2");
    (void)snprintf(text, sizeof(text), "\"folder\":\"%s\"", second.folder);
    ck_assert_ptr_nonnull(strstr(shards[0].manifest, text));
    shards[1].status = KELP_ERR_CORRUPT;
    (void)snprintf(shards[1].error, sizeof(shards[1].error), "chunk 3 has another digest");
    peers_wait(&peers, third_generation, NULL, "the shards to have generation 3");
    (void)snprintf(text, sizeof(text), "\"folder\":\"%s\"", first.folder);
    ck_assert_ptr_nonnull(strstr(shards[0].manifest, text));
    ck_assert(peers_logged(&peers, 0, "is damaged: shard-1: chunk 3"));
    shards[1].status = KELP_OK;
    for (int i = 0; i < 2; i++) {
        shards[i].loaded = 3;
        peer_shard_report(&shards[i]);
    }
    peers_wait(&peers, runs, &generation, "the workers to have generation 3");
    char *stored = peers_get(&peers, second.key);
    ck_assert_str_eq(stored, "");
    free(stored);
    await_path(second.folder, false);
    (void)snprintf(text, sizeof(text), ".damaged-%s", second.folder);
    await_path(text, true);
    await_path(first.folder, true);
    Kelp__V1__StatusReply *reply = await(0, 0, "an answer");
    ck_assert_uint_eq(reply->restore_step, first.step);
    ck_assert_uint_eq(reply->steps_recomputed, second.step - first.step);
    ck_assert_uint_eq(reply->map->restore_version, first.step);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

static bool waits_for_storage(void *user)
{
    struct asked asked = {.reply = NULL};
    (void)user;
    bool says =
        status_says(&asked) &&
        strcmp(asked.reply->reason, "waiting for storage step-10.g1/shard-1.3e9 (shard-0)") == 0;
    if (asked.reply != NULL) {
        kelp__v1__status_reply__free_unpacked(asked.reply, NULL);
    }
    return says;
}

/* Storage that is not there: people see what is waited for. */
KELP_TEST(names_missing_storage)
{
    start_all();
    (void)make(4);
    shards[0].slow = true;
    shards[1].slow = true;
    (void)snprintf(shards[0].waiting, sizeof(shards[0].waiting), "storage step-10.g1/shard-1.3e9");
    peer_shard_stop(&shards[1]);
    peer_shard_start(&peers, &shards[1]);
    peers_wait(&peers, waits_for_storage, NULL, "the storage to be named");
}

/* A leader dies with an order under way: the next one removes what no manifest names, keeps what
 * one does, and makes checkpoints of its own. */
KELP_TEST(next_leader)
{
    char path[256];
    struct kelp_error error = {.text = ""};
    start_all();
    struct made made = make(4);
    await_file(&made, "manifest.json", true);
    peers_coordinator_kill(&peers, 0);
    (void)snprintf(path, sizeof(path), "%s/checkpoints/%s/manifest.json", peers.folder,
                   made.folder);
    ck_assert_int_eq(remove(path), 0);
    (void)snprintf(path, sizeof(path), "%s/checkpoints/step-15.g1/shard-0.1", peers.folder);
    ck_assert_msg(kelp_files_make_folder(path, &error) == KELP_OK, "%s", error.text);
    peers_coordinator(&peers, 1, NULL);
    await_path("step-15.g1", false);
    await_step(made.step);                    /* the new leader knows it */
    await_file(&made, "manifest.json", true); /* as if the one before died too early for it */
    (void)make(made.step + 4);
    await_file(&made, "job.yaml", true);
}

static bool told_to_leave(void *user)
{
    (void)user;
    return workers[0].leave && workers[1].leave;
}

/* A request with pause: committed, then the state says so and workers leave. */
KELP_TEST(pauses)
{
    char expected[160];
    start_all();
    struct made made = order_from(4, true);
    reach(&made);
    await_step(made.step);
    peers_wait(&peers, told_to_leave, NULL, "the workers to be told to leave");
    Kelp__V1__StatusReply *reply = await(made.step, 0, "an answer");
    ck_assert_str_eq(reply->state, "paused");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    (void)snprintf(
        expected, sizeof(expected),
        "\"state\":\"paused\",\"reason\":\"paused at step %llu; kelp train --resume goes on",
        (unsigned long long)made.step);
    char *state = peers_get(&peers, "state");
    ck_assert_msg(strstr(state, expected) != NULL, "%s", state);
    free(state);
}
