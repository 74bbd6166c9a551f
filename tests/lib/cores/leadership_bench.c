#include "tests/lib/cores/leadership_bench.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

struct leadership_bench leadership_bench;

/* ---- effects ---- */

static void give_up(const char *text, void *user)
{
    (void)text;
    (void)user;
    leadership_bench.done.gives_up++;
}

static kelp_status watch_shards(struct kelp_error *reterr, void *user)
{
    (void)reterr;
    (void)user;
    return KELP_OK;
}

static bool read_everything(void *user)
{
    (void)user;
    leadership_bench.done.reads++;
    return true;
}

static bool write_plan(void *user)
{
    (void)user;
    return true;
}

static bool write_map(const struct kelp_opening *opening, void *user)
{
    (void)user;
    leadership_bench.done.maps++;
    leadership_bench.done.restored = opening->map->restore_version;
    leadership_bench.done.gone = opening->gone_count;
    return true;
}

static bool change_map(const struct kelp_map *map, void *user)
{
    (void)user;
    leadership_bench.done.changes++;
    leadership_bench.done.serial_written = map->serial;
    return true;
}

static bool commit(const struct kelp_commit *wanted, void *user)
{
    (void)user;
    ck_assert_uint_eq(wanted->serial, leadership_bench.done.serial);
    leadership_bench.done.commits++;
    return true;
}

static kelp_status make_manifest(const struct kelp_checkpointer *from,
                                 struct kelp_committed *ret_committed, struct kelp_error *reterr,
                                 void *user)
{
    (void)reterr;
    (void)user;
    *ret_committed = (struct kelp_committed){.version = from->saved.version,
                                             .step = from->saved.step,
                                             .generation = from->order.generation,
                                             .manifest = strdup("a manifest")};
    ck_assert_ptr_nonnull(ret_committed->manifest);
    return KELP_OK;
}

static bool describe(const char *folder, uint64_t serial, void *user)
{
    (void)folder;
    (void)user;
    leadership_bench.done.serial = serial;
    return true;
}

static bool write_manifest(const char *folder, const char *text, void *user)
{
    (void)folder;
    (void)text;
    (void)user;
    return true;
}

static bool write_state(const struct kelp_job_state *state, void *user)
{
    (void)user;
    leadership_bench.done.states++;
    (void)snprintf(leadership_bench.done.state, sizeof(leadership_bench.done.state), "%s",
                   state->state);
    return true;
}

static kelp_status keep_plan(const char *text, const struct kelp_plan **ret_plan,
                             struct kelp_error *reterr, void *user)
{
    (void)text;
    (void)reterr;
    (void)user;
    *ret_plan = &leadership_bench.plan;
    return KELP_OK;
}

static kelp_status compare_plan(const char *text, struct kelp_error *reterr, void *user)
{
    (void)text;
    (void)reterr;
    (void)user;
    return KELP_OK;
}

static uint64_t recorded_step(void *user)
{
    (void)user;
    return 0;
}

static bool take_hold(const struct kelp_hold *hold, void *user)
{
    (void)user;
    leadership_bench.done.holds++;
    leadership_bench.done.forced = hold->force;
    return true;
}

static bool file(const struct kelp_record *records, size_t count, bool sync, void *user)
{
    (void)user;
    ck_assert_uint_gt(count, 0);
    leadership_bench.done.filed_version = records[0].word.version;
    leadership_bench.done.filed_count = count;
    leadership_bench.done.sync = sync;
    leadership_bench.done.files++;
    return true;
}

static void *link_create(struct kelp_link *link, void *user)
{
    (void)user;
    leadership_bench.done.link = link;
    return &leadership_bench.done;
}

static void link_destroy(void *end, void *user)
{
    (void)end;
    (void)user;
    leadership_bench.done.link = NULL;
}

static kelp_status link_open(void *end, const struct kelp_map_shard *shard,
                             const struct kelp_link_news *hello, struct kelp_error *reterr,
                             void *user)
{
    (void)end;
    (void)shard;
    (void)reterr;
    (void)user;
    ck_assert(hello->hello);
    return KELP_OK;
}

static bool is_full(void *end, void *user)
{
    (void)end;
    (void)user;
    return false;
}

static bool session_full(void *end, void *user)
{
    (void)end;
    (void)user;
    return leadership_bench.unread;
}

static void link_send(void *end, const struct kelp_link_news *news, void *user)
{
    (void)end;
    (void)user;
    if (news->map) {
        leadership_bench.done.map_to_shard = news->map->serial;
    }
}

static void close_end(void *end, kelp_status status, const char *text, void *user)
{
    (void)end;
    (void)status;
    (void)text;
    (void)user;
}

static void session_send(void *end, const struct kelp_session_news *news, void *user)
{
    (void)end;
    (void)user;
    leadership_bench.done.session_sends++;
    if (news->map) {
        leadership_bench.done.map_to_worker = news->map->serial;
    }
    if (news->waits) {
        (void)snprintf(leadership_bench.done.waits, sizeof(leadership_bench.done.waits), "%s",
                       news->waits);
    }
    if (news->beat_ms > 0) {
        leadership_bench.done.beat_ms = news->beat_ms;
    }
    if (news->has_lanes) {
        leadership_bench.done.lanes = news->lanes;
    }
}

static void session_close(void *end, kelp_status status, const char *text, void *user)
{
    (void)end;
    (void)status;
    (void)text;
    (void)user;
    leadership_bench.done.session_closes++;
}

static void session_refuse(void *end, bool hello, kelp_status status, const char *text, void *user)
{
    (void)hello;
    session_close(end, status, text, user);
    leadership_bench.done.refusal = status;
}

static void nothing(void *user)
{
    (void)user;
}

static void resign(void *user)
{
    (void)user;
    leadership_bench.done.resigns++;
}

static kelp_status stand(struct kelp_error *reterr, void *user)
{
    (void)reterr;
    (void)user;
    leadership_bench.done.stands++;
    return KELP_OK;
}

static kelp_status open_term(struct kelp_error *reterr, void *user)
{
    (void)reterr;
    (void)user;
    leadership_bench.done.opens++;
    return KELP_OK;
}

static void close_term(void *user)
{
    (void)user;
    leadership_bench.done.closes++;
}

static bool follow(const struct kelp_holder *holder, void *user)
{
    (void)user;
    leadership_bench.done.followed = holder->revision;
    leadership_bench.done.follows++;
    return true;
}

static void unfollow(void *user)
{
    (void)user;
    leadership_bench.done.unfollows++;
}

static void depose(int64_t revision, void *user)
{
    (void)user;
    leadership_bench.done.deposed = revision;
    leadership_bench.done.deposes++;
}

const struct kelp_holder leadership_other = {
    .revision = 70, .incarnation = 71, .id = "coordinator-1", .address = "a:7"};

static const struct kelp_leadership_effects leadership_effects = {
    .step_down = nothing,
    .resign = resign,
    .stand = stand,
    .follow = follow,
    .unfollow = unfollow,
    .depose = depose,
    .open = open_term,
    .close = close_term,
};

/* ---- what happens ---- */

void leadership_setup(void)
{
    memset(&leadership_bench.done, 0, sizeof(leadership_bench.done));
    memset(&leadership_bench.job, 0, sizeof(leadership_bench.job));
    leadership_bench.now = 1000;
    leadership_bench.job.cluster.shards = 1;
    leadership_bench.job.cluster.replicas = 1;
    leadership_bench.job.cluster.lanes = 4;
    leadership_bench.job.cluster.workers.min = 1;
    leadership_bench.job.failure.detect_ms = 1000000;
    leadership_bench.job.failure.shard_wait_ms = 3000;
    leadership_bench.job.checkpoint.keep_last = 1;
    leadership_bench.job.run.mode = KELP_RUN_TRAIN;
    leadership_bench.job.train.batch_size = 1;
    leadership_bench.job.train.epochs = 1;
    leadership_bench.plan =
        (struct kelp_plan){.partition_count = 2, .samples[KELP_SPLIT_TRAIN] = 100};
    leadership_bench.effects = (struct kelp_term_effects){
        .give_up = give_up,
        .watch_shards = watch_shards,
        .read = read_everything,
        .write_plan = write_plan,
        .write_map = write_map,
        .change_map = change_map,
        .write_state = write_state,
        .commit = commit,
        .make_manifest = make_manifest,
        .describe = describe,
        .write_manifest = write_manifest,
        .keep_plan = keep_plan,
        .compare_plan = compare_plan,
        .take_hold = take_hold,
        .recorded_step = recorded_step,
        .file = file,
        .link_create = link_create,
        .link_destroy = link_destroy,
        .link_open = link_open,
        .link_full = is_full,
        .link_send = link_send,
        .link_close = close_end,
        .session_full = session_full,
        .session_send = session_send,
        .session_refuse = session_refuse,
        .session_close = session_close,
    };
    const struct kelp_leadership_options options = {
        .effects = &leadership_effects,
        .outside = {.effects = &leadership_bench.effects},
        .id = "coordinator-0",
        .incarnation = 7000};
    kelp_leadership_init(&leadership_bench.machine, &options);
    kelp_leadership_touch(&leadership_bench.machine, leadership_bench.now);
    ck_assert_int_eq(kelp_leadership_stand(&leadership_bench.machine, &leadership_bench.job, NULL),
                     KELP_OK);
}

void leadership_teardown(void)
{
    kelp_leadership_end(&leadership_bench.machine, "the test is over");
    ck_assert_int_eq(leadership_bench.done.opens, leadership_bench.done.closes);
    ck_assert_ptr_null(leadership_bench.done.link);
}

void leadership_tick(uint64_t ms)
{
    leadership_bench.now += ms;
    kelp_leadership_touch(&leadership_bench.machine, leadership_bench.now);
    kelp_leadership_tick(&leadership_bench.machine);
}

void leadership_answer_read(uint64_t generation)
{
    struct kelp_map before = {.generation = generation - 1};
    struct kelp_map_shard shard = {.id = "shard-0", .address = "a:1", .incarnation = 9};
    static char text[] = "plan";
    struct kelp_found found = {.plan = generation > 0 ? text : NULL};
    if (generation > 0) {
        ck_assert_int_eq(kelp_map_spread(&before, &shard, 1, 2, &found.map, NULL), KELP_OK);
    }
    kelp_leadership_read(&leadership_bench.machine, KELP_OK, &found, "");
    kelp_map_fini(&found.map);
}

struct kelp_session *leadership_greet(uint64_t incarnation)
{
    return leadership_greet_as("worker-0", incarnation);
}

struct kelp_session *leadership_greet_as(const char *id, uint64_t incarnation)
{
    struct kelp_session *session =
        kelp_term_worker_opened(leadership_bench.machine.term, &leadership_bench.done);
    ck_assert_ptr_nonnull(session);
    const struct kelp_session_hello hello = {
        .id = id, .incarnation = incarnation, .plan = "plan", .peer = "here"};
    kelp_term_worker_hello(leadership_bench.machine.term, session, &hello);
    return session;
}

struct kelp_session *leadership_join(void)
{
    struct kelp_session *session = leadership_greet(3);
    kelp_term_plan_written(leadership_bench.machine.term, KELP_OK, "plan", "");
    return session;
}

void leadership_connect_one(const char *id, uint64_t loaded_generation)
{
    struct kelp_map_shard shard = {.address = "a:1", .incarnation = 9};
    (void)snprintf(shard.id, sizeof(shard.id), "%s", id);
    kelp_term_shard_registered(leadership_bench.machine.term, &shard);
    ck_assert_ptr_nonnull(leadership_bench.done.link);
    const struct kelp_link_hello hello = {.text = "", .loaded_generation = loaded_generation};
    ck_assert(
        kelp_term_shard_hello(leadership_bench.machine.term, leadership_bench.done.link, &hello));
}

void leadership_connect_shard(void)
{
    leadership_connect_one("shard-0", 0);
}

void leadership_report(struct kelp_link *link, uint64_t step, uint64_t serial)
{
    static const char digest[] = "00000000000000000000000000000000";
    const struct kelp_control_word word = {.version = step, .step = step, .kind = KELP_STEP_TRAIN};
    const struct kelp_checkpointer_part parts[2] = {{.partition = 0, .digest = digest},
                                                    {.partition = 1, .digest = digest}};
    const struct kelp_checkpointer_report snapshot = {.shard = "shard-0",
                                                      .incarnation = 9,
                                                      .serial = serial,
                                                      .answer = KELP_CHECKPOINTER_ANSWER_DURABLE,
                                                      .storage = "shard-0.9",
                                                      .parts = parts,
                                                      .part_count = 2,
                                                      .word = &word};
    const struct kelp_link_report of = {.loaded_generation = 1,
                                        .error = "",
                                        .waiting = "",
                                        .snapshot = serial == 0 ? NULL : &snapshot,
                                        .word = &word};
    kelp_term_shard_report(leadership_bench.machine.term, link, &of);
}

void leadership_answer_replicated(void)
{
    struct kelp_map before = {.generation = 0};
    struct kelp_map_shard shards[2] = {{.id = "shard-0", .address = "a:1", .incarnation = 9},
                                       {.id = "shard-1", .address = "a:1", .incarnation = 9}};
    static char text[] = "plan";
    struct kelp_found found = {.plan = text};
    ck_assert_int_eq(kelp_map_spread(&before, shards, 2, 2, &found.map, NULL), KELP_OK);
    found.map.partitions[0].backup = 1;
    found.map.partitions[1].backup = 0;
    kelp_leadership_read(&leadership_bench.machine, KELP_OK, &found, "");
    kelp_map_fini(&found.map);
}

void leadership_report_map(struct kelp_link *link, uint64_t serial)
{
    const struct kelp_link_report of = {.loaded_generation = 1,
                                        .map_generation = 1,
                                        .map_serial = serial,
                                        .error = "",
                                        .waiting = ""};
    kelp_term_shard_report(leadership_bench.machine.term, link, &of);
}
