/* Leadership and terms: when a term begins and ends, and what it does not do before it may. */
#include <stdio.h>
#include <string.h>

#include "coordinator/term/leadership.h"
#include "tests/lib/suite.h"

static struct kelp_job job;
static struct kelp_plan plan;
static struct kelp_leadership leadership;
static struct kelp_term_effects term_effects;
static uint64_t now;
static struct {
    int reads, maps, changes, states, opens, closes, stands, resigns, gives_up;
    char state[16];    /* written last */
    int session_sends; /* to workers */
    int session_closes;
    kelp_status refusal;          /* of the worker that was sent away for good last */
    char waits[160];              /* why a worker is no member yet */
    struct kelp_lane_range lanes; /* as a worker heard last */
    struct kelp_link *link;       /* newest */
    int commits;
    uint64_t restored;       /* by the map written last */
    uint32_t gone;           /* manifests that it takes out */
    uint64_t serial_written; /* of the map */
    uint64_t map_to_shard;   /* serial, sent last */
    uint64_t map_to_worker;
    uint64_t serial;  /* of the order whose folder was described */
    int holds, files; /* asked for */
    uint64_t filed_version;
    size_t filed_count;
    bool sync;
    int follows, unfollows, deposes;
    int64_t followed, deposed; /* revision of the newest */
} done;

/* ---- effects ---- */

static void give_up(const char *text, void *user)
{
    (void)text;
    (void)user;
    done.gives_up++;
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
    done.reads++;
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
    done.maps++;
    done.restored = opening->map->restore_version;
    done.gone = opening->gone_count;
    return true;
}

static bool change_map(const struct kelp_map *map, void *user)
{
    (void)user;
    done.changes++;
    done.serial_written = map->serial;
    return true;
}

static bool commit(const struct kelp_commit *wanted, void *user)
{
    (void)user;
    ck_assert_uint_eq(wanted->serial, done.serial);
    done.commits++;
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
    done.serial = serial;
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
    done.states++;
    (void)snprintf(done.state, sizeof(done.state), "%s", state->state);
    return true;
}

static kelp_status keep_plan(const char *text, const struct kelp_plan **ret_plan,
                             struct kelp_error *reterr, void *user)
{
    (void)text;
    (void)reterr;
    (void)user;
    *ret_plan = &plan;
    return KELP_OK;
}

static kelp_status compare_plan(const char *text, struct kelp_error *reterr, void *user)
{
    (void)text;
    (void)reterr;
    (void)user;
    return KELP_OK;
}

static bool take_hold(const struct kelp_hold *hold, void *user)
{
    (void)hold;
    (void)user;
    done.holds++;
    return true;
}

static bool file(const struct kelp_record *records, size_t count, bool sync, void *user)
{
    (void)user;
    ck_assert_uint_gt(count, 0);
    done.filed_version = records[0].word.version;
    done.filed_count = count;
    done.sync = sync;
    done.files++;
    return true;
}

static void *link_create(struct kelp_link *link, void *user)
{
    (void)user;
    done.link = link;
    return &done;
}

static void link_destroy(void *end, void *user)
{
    (void)end;
    (void)user;
    done.link = NULL;
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

static void link_send(void *end, const struct kelp_link_news *news, void *user)
{
    (void)end;
    (void)user;
    if (news->map) {
        done.map_to_shard = news->map->serial;
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
    done.session_sends++;
    if (news->map) {
        done.map_to_worker = news->map->serial;
    }
    if (news->waits) {
        (void)snprintf(done.waits, sizeof(done.waits), "%s", news->waits);
    }
    if (news->has_lanes) {
        done.lanes = news->lanes;
    }
}

static void session_close(void *end, kelp_status status, const char *text, void *user)
{
    (void)end;
    (void)status;
    (void)text;
    (void)user;
    done.session_closes++;
}

static void session_refuse(void *end, bool hello, kelp_status status, const char *text, void *user)
{
    (void)hello;
    session_close(end, status, text, user);
    done.refusal = status;
}

static void nothing(void *user)
{
    (void)user;
}

static void resign(void *user)
{
    (void)user;
    done.resigns++;
}

static kelp_status stand(struct kelp_error *reterr, void *user)
{
    (void)reterr;
    (void)user;
    done.stands++;
    return KELP_OK;
}

static kelp_status open_term(struct kelp_error *reterr, void *user)
{
    (void)reterr;
    (void)user;
    done.opens++;
    return KELP_OK;
}

static void close_term(void *user)
{
    (void)user;
    done.closes++;
}

static bool follow(const struct kelp_holder *holder, void *user)
{
    (void)user;
    done.followed = holder->revision;
    done.follows++;
    return true;
}

static void unfollow(void *user)
{
    (void)user;
    done.unfollows++;
}

static void depose(int64_t revision, void *user)
{
    (void)user;
    done.deposed = revision;
    done.deposes++;
}

/* Who leads while we do not. */
static const struct kelp_holder other = {
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

static void setup(void)
{
    memset(&done, 0, sizeof(done));
    memset(&job, 0, sizeof(job));
    now = 1000;
    job.cluster.shards = 1;
    job.cluster.replicas = 1;
    job.cluster.lanes = 4;
    job.cluster.workers.min = 1;
    job.failure.detect_ms = 1000000;
    job.failure.shard_wait_ms = 3000;
    job.checkpoint.keep_last = 1;
    job.run.mode = KELP_RUN_TRAIN;
    job.train.batch_size = 1;
    job.train.epochs = 1;
    plan = (struct kelp_plan){.partition_count = 2, .samples[KELP_SPLIT_TRAIN] = 100};
    term_effects = (struct kelp_term_effects){
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
        .file = file,
        .link_create = link_create,
        .link_destroy = link_destroy,
        .link_open = link_open,
        .link_full = is_full,
        .link_send = link_send,
        .link_close = close_end,
        .session_full = is_full,
        .session_send = session_send,
        .session_refuse = session_refuse,
        .session_close = session_close,
    };
    const struct kelp_leadership_options options = {.effects = &leadership_effects,
                                                    .outside = {.effects = &term_effects},
                                                    .id = "coordinator-0",
                                                    .incarnation = 7000};
    kelp_leadership_init(&leadership, &options);
    kelp_leadership_touch(&leadership, now);
    ck_assert_int_eq(kelp_leadership_stand(&leadership, &job, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_leadership_end(&leadership, "the test is over");
    ck_assert_int_eq(done.opens, done.closes);
    ck_assert_ptr_null(done.link);
}

static void tick(uint64_t ms)
{
    now += ms;
    kelp_leadership_touch(&leadership, now);
    kelp_leadership_tick(&leadership);
}

/* etcd's answer: the plan and a map of that generation, or nothing. */
static void answer_read(uint64_t generation)
{
    struct kelp_map before = {.generation = generation - 1};
    struct kelp_map_shard shard = {.id = "shard-0", .address = "a:1", .incarnation = 9};
    static char text[] = "plan";
    struct kelp_found found = {.plan = generation > 0 ? text : NULL};
    if (generation > 0) {
        ck_assert_int_eq(kelp_map_spread(&before, &shard, 1, 2, &found.map, NULL), KELP_OK);
    }
    kelp_leadership_read(&leadership, KELP_OK, &found, "");
    kelp_map_fini(&found.map);
}

static struct kelp_session *greet(uint64_t incarnation)
{
    struct kelp_session *session = kelp_term_worker_opened(leadership.term, &done);
    ck_assert_ptr_nonnull(session);
    const struct kelp_session_hello hello = {
        .id = "worker-0", .incarnation = incarnation, .plan = "plan", .peer = "here"};
    kelp_term_worker_hello(leadership.term, session, &hello);
    return session;
}

/* A worker joins, and its plan is written. */
static struct kelp_session *join(void)
{
    struct kelp_session *session = greet(3);
    kelp_term_plan_written(leadership.term, KELP_OK, "plan", "");
    return session;
}

/* A shard registers and answers: all is there to open a generation. */
static void connect_one(const char *id, uint64_t loaded_generation)
{
    struct kelp_map_shard shard = {.address = "a:1", .incarnation = 9};
    (void)snprintf(shard.id, sizeof(shard.id), "%s", id);
    kelp_term_shard_registered(leadership.term, &shard);
    ck_assert_ptr_nonnull(done.link);
    const struct kelp_link_hello hello = {.text = "", .loaded_generation = loaded_generation};
    ck_assert(kelp_term_shard_hello(leadership.term, done.link, &hello));
}

static void connect_shard(void)
{
    connect_one("shard-0", 0);
}

/* The shard has the whole model at that step; with a serial, its snapshot of it is durable. */
static void report(struct kelp_link *link, uint64_t step, uint64_t serial)
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
    kelp_term_shard_report(leadership.term, link, &of);
}

/* etcd has a map of generation 1 whose two shards are each other's backup. */
static void answer_replicated(void)
{
    struct kelp_map before = {.generation = 0};
    struct kelp_map_shard shards[2] = {{.id = "shard-0", .address = "a:1", .incarnation = 9},
                                       {.id = "shard-1", .address = "a:1", .incarnation = 9}};
    static char text[] = "plan";
    struct kelp_found found = {.plan = text};
    ck_assert_int_eq(kelp_map_spread(&before, shards, 2, 2, &found.map, NULL), KELP_OK);
    found.map.partitions[0].backup = 1;
    found.map.partitions[1].backup = 0;
    kelp_leadership_read(&leadership, KELP_OK, &found, "");
    kelp_map_fini(&found.map);
}

static void report_map(struct kelp_link *link, uint64_t serial)
{
    const struct kelp_link_report of = {.loaded_generation = 1,
                                        .map_generation = 1,
                                        .map_serial = serial,
                                        .error = "",
                                        .waiting = ""};
    kelp_term_shard_report(leadership.term, link, &of);
}

KELP_CASE("leadership", .setup = setup, .teardown = teardown)

/* A stream breaks: the other shard leads its partitions, by a change of the map alone. Shards hear
 * of it first, and workers when that one has. Training is not sent back. */
KELP_TEST(fails_over)
{
    job.cluster.shards = 2;
    job.cluster.replicas = 2;
    kelp_leadership_elected(&leadership, 10);
    answer_replicated();
    (void)join();
    connect_one("shard-0", 1);
    struct kelp_link *lost = done.link;
    connect_one("shard-1", 1);
    struct kelp_link *left = done.link;
    report_map(lost, 1);
    report_map(left, 1);
    ck_assert_int_eq(leadership.term->placement.state, KELP_PLACEMENT_RUNNING);
    ck_assert_uint_eq(done.map_to_worker, 1);
    kelp_term_shard_closed(leadership.term, lost, true, KELP_ERR_CLOSED, "");
    ck_assert_int_eq(done.changes, 1);
    ck_assert_uint_eq(done.serial_written, 2);
    kelp_term_map_written(leadership.term, KELP_WRITTEN_OK, "");
    ck_assert_uint_eq(done.map_to_shard, 2);
    ck_assert_uint_eq(done.map_to_worker, 1);
    report_map(left, 2);
    ck_assert_uint_eq(done.map_to_worker, 2);
    tick(100);
    ck_assert_int_eq(leadership.term->placement.state, KELP_PLACEMENT_RUNNING);
    ck_assert_int_eq(done.maps, 0);
    ck_assert_uint_eq(leadership.term->shard_losses, 1);
    ck_assert_uint_eq(leadership.term->steps.recomputed, 0);
}

/* A term begins with an election, reads etcd, and ends when another coordinator leads. */
KELP_TEST(a_term)
{
    ck_assert_int_eq(done.stands, 1);
    ck_assert_ptr_null(leadership.term);
    kelp_leadership_elected(&leadership, 10);
    ck_assert_ptr_nonnull(leadership.term);
    ck_assert_int_eq(done.reads, 1);
    answer_read(0);
    join();
    ck_assert_int_gt(done.session_sends, 0);
    connect_shard();
    ck_assert_int_eq(done.maps, 1);
    kelp_leadership_superseded(&leadership, &other);
    ck_assert_ptr_null(leadership.term);
    ck_assert_int_eq(done.closes, 1);
    tick(100);
    ck_assert_ptr_null(leadership.term);
}

static struct kelp_session *lead_with_worker(void)
{
    kelp_leadership_elected(&leadership, 10);
    answer_read(0);
    return join();
}

/* Whoever asks for an id that is taken waits, is told why, and joins once it is free. */
KELP_TEST(a_taken_id_is_waited_for)
{
    struct kelp_session *first = lead_with_worker();
    struct kelp_session *second = greet(4);
    ck_assert_int_eq(second->state, KELP_SESSION_HELD);
    ck_assert_str_eq(done.waits, "another process has the id worker-0");
    ck_assert_int_eq(first->state, KELP_SESSION_MEMBER);
    ck_assert_int_eq(done.session_closes, 0);
    kelp_term_worker_closed(leadership.term, first, true, "died");
    ck_assert_int_eq(second->state, KELP_SESSION_MEMBER);
    ck_assert_uint_eq(done.lanes.count, 4);
}

/* A first plan that the job cannot be done with turns away who brought it, and nobody else. */
KELP_TEST(a_plan_without_samples_is_nobodys)
{
    kelp_leadership_elected(&leadership, 10);
    answer_read(0);
    plan.samples[KELP_SPLIT_TRAIN] = 0;
    ck_assert_int_eq(greet(4)->state, KELP_SESSION_GONE);
    ck_assert_int_eq(done.refusal, KELP_ERR_INVALID);
    ck_assert_int_eq(leadership.term->offer.state, KELP_PLAN_NONE);
    plan.samples[KELP_SPLIT_TRAIN] = 100;
    ck_assert_int_eq(greet(5)->state, KELP_SESSION_MEMBER);
    ck_assert_int_eq(leadership.term->offer.state, KELP_PLAN_OFFERED);
}

/* Of those that wait, who has waited longest goes first. */
KELP_TEST(waiting_is_in_order)
{
    struct kelp_session *first = lead_with_worker();
    struct kelp_session *second = greet(4);
    tick(100);
    struct kelp_session *third = greet(5);
    kelp_term_worker_closed(leadership.term, first, false, "left");
    ck_assert_int_eq(second->state, KELP_SESSION_MEMBER);
    ck_assert_int_eq(third->state, KELP_SESSION_HELD);
}

/* One that waits and says nothing is let go. */
KELP_TEST(who_waits_silently_is_closed)
{
    job.failure.detect_ms = 1000;
    struct kelp_session *first = lead_with_worker();
    struct kelp_session *second = greet(4);
    const struct kelp_member_heard heard = {.trouble = ""};
    for (int i = 0; i < 9; i++) {
        tick(100);
        kelp_term_worker_heard(leadership.term, first, &heard);
    }
    ck_assert_int_eq(done.session_closes, 0);
    ck_assert_int_eq(second->state, KELP_SESSION_HELD);
    tick(300);
    ck_assert_int_eq(done.session_closes, 1);
    ck_assert_int_eq(first->state, KELP_SESSION_MEMBER);
}

/* An event of etcd that is lost for want of memory: it resigns, and stands again with a new term.
 */
KELP_TEST(out_of_memory_is_a_resignation)
{
    (void)lead_with_worker();
    int stands = done.stands;
    kelp_leadership_starved(&leadership);
    ck_assert_ptr_null(leadership.term);
    ck_assert_int_eq(done.resigns, 1);
    tick(KELP_COORDINATOR_RETRY_MS - 1);
    ck_assert_int_eq(done.stands, stands);
    tick(1);
    ck_assert_int_eq(done.stands, stands + 1);
    int reads = done.reads;
    kelp_leadership_elected(&leadership, 20);
    ck_assert_ptr_nonnull(leadership.term);
    ck_assert_int_eq(done.reads, reads + 1);
}

/* While etcd was away another coordinator may have led: elected again, a term writes no map before
 * it has compared what etcd holds. */
KELP_TEST(no_map_before_it_compares)
{
    kelp_leadership_elected(&leadership, 10);
    answer_read(0);
    join();
    kelp_leadership_deposed(&leadership, "etcd is away");
    int reads = done.reads;
    kelp_leadership_elected(&leadership, 20);
    ck_assert_int_eq(done.reads, reads + 1);
    connect_shard();
    tick(10 * KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(done.maps, 0);
    ck_assert_uint_eq(leadership.terms, 1);
    answer_read(0);
    tick(KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(done.maps, 1);
    ck_assert_uint_eq(leadership.terms, 1);
}

static void commit_answered(enum kelp_checkpointer_result result)
{
    kelp_term_committed(leadership.term, &(struct kelp_commit_answer){.serial = done.serial,
                                                                      .result = result,
                                                                      .revision = 30,
                                                                      .text = "as etcd says"});
}

/* The loss of a shard is the event that sends a commit again: no map is written before it is
 * answered. The generation that follows restores that checkpoint, and takes none out. */
KELP_TEST(no_map_while_a_commit_is_sent)
{
    const struct kelp_map_shard again = {.id = "shard-0", .address = "a:1", .incarnation = 10};
    uint64_t request = 0;
    kelp_leadership_elected(&leadership, 10);
    answer_read(1);
    join();
    connect_one("shard-0", 1);
    struct kelp_link *link = done.link;
    report(link, 5, 0);
    ck_assert_int_eq(kelp_term_request(leadership.term, false, &request, NULL), KELP_OK);
    const struct kelp_checkpointer_order *order = &leadership.term->keeper.machine.order;
    ck_assert_uint_gt(order->step, 0);
    report(link, order->step, order->serial);
    kelp_term_described(leadership.term, done.serial, KELP_OK, "");
    ck_assert_int_eq(done.commits, 1);
    commit_answered(KELP_CHECKPOINTER_AWAY);
    connect_one("shard-1", 0);
    uint64_t step = order->step;
    now += KELP_COORDINATOR_RETRY_MS;
    kelp_leadership_touch(&leadership, now);
    kelp_term_shard_registered(leadership.term, &again);
    ck_assert_int_eq(done.commits, 2);
    ck_assert_int_eq(done.maps, 0);
    tick(10 * KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(done.maps, 0);
    commit_answered(KELP_CHECKPOINTER_OK);
    tick(KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(done.maps, 1);
    ck_assert_uint_eq(done.restored, step);
    ck_assert_uint_eq(done.gone, 0);
}

/* Somebody did lead: another term begins, which knows nothing of the one before. */
KELP_TEST(starts_over)
{
    kelp_leadership_elected(&leadership, 10);
    answer_read(0);
    join();
    kelp_leadership_deposed(&leadership, "etcd is away");
    kelp_leadership_elected(&leadership, 20);
    answer_read(3);
    ck_assert_uint_eq(leadership.terms, 2);
    ck_assert_int_eq(done.closes, 1);
    ck_assert(!leadership.term->reading.done);
    ck_assert_ptr_null(leadership.term->sessions.first);
    ck_assert_int_eq(done.gives_up, 0);
}

/* A read that failed is asked again, after a pause; not without an election. */
KELP_TEST(reads_again)
{
    struct kelp_found found = {.plan = NULL};
    kelp_leadership_elected(&leadership, 10);
    kelp_leadership_read(&leadership, KELP_ERR_TIMEOUT, &found, "no answer");
    tick(KELP_COORDINATOR_RETRY_MS - 1);
    ck_assert_int_eq(done.reads, 1);
    kelp_leadership_deposed(&leadership, "etcd is away");
    tick(KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(done.reads, 1);
    kelp_leadership_elected(&leadership, 20);
    ck_assert_int_eq(done.reads, 2);
}

static bool record_at(const void *records, size_t index, struct kelp_record *ret_record)
{
    *ret_record = ((const struct kelp_record *)records)[index];
    return true;
}

static void report_record(struct kelp_link *link, uint64_t version)
{
    const struct kelp_control_word word = {.version = version + 1, .kind = KELP_STEP_TRAIN};
    const struct kelp_record record = {.word = {.version = version, .kind = KELP_STEP_TRAIN},
                                       .epoch_end = true};
    const struct kelp_link_report of = {.loaded_generation = 1,
                                        .error = "",
                                        .waiting = "",
                                        .word = &word,
                                        .record_count = 1,
                                        .record = record_at,
                                        .records = &record};
    kelp_term_shard_report(leadership.term, link, &of);
}

/* Records go to the disk in batches, one after the other, once the run's folder is ours; what the
 * disk refuses waits, and is tried again. */
KELP_TEST(records_wait_for_the_disk)
{
    kelp_leadership_elected(&leadership, 10);
    answer_read(1);
    join();
    connect_one("shard-0", 1);
    struct kelp_link *link = done.link;
    report_record(link, 0);
    ck_assert_int_eq(done.holds, 1);
    ck_assert_int_eq(done.files, 0);
    kelp_term_held(leadership.term, 1, KELP_ERR_IO, "the disk is broken");
    ck_assert_int_eq(done.files, 0);
    tick(KELP_COORDINATOR_APPEND_MS);
    ck_assert_int_eq(done.holds, 2);
    kelp_term_held(leadership.term, 7, KELP_OK, ""); /* in another generation */
    ck_assert_int_eq(done.files, 0);
    kelp_term_held(leadership.term, 1, KELP_OK, "");
    ck_assert_int_eq(done.files, 1);
    report_record(link, 1);
    report_record(link, 2);
    ck_assert_int_eq(done.files, 1);
    kelp_term_filed(leadership.term, &(struct kelp_filed){.count = 1});
    ck_assert_int_eq(done.files, 2);
    ck_assert_uint_eq(done.filed_version, 1);
    ck_assert_uint_eq(done.filed_count, 2);
    ck_assert(done.sync);
    kelp_term_filed(leadership.term,
                    &(struct kelp_filed){.count = 1, .status = KELP_ERR_NO_SPACE, .text = "full"});
    ck_assert_int_eq(done.files, 2);
    tick(KELP_COORDINATOR_APPEND_MS);
    ck_assert_int_eq(done.files, 3);
    ck_assert_uint_eq(done.filed_version, 2);
    kelp_term_filed(leadership.term, &(struct kelp_filed){.count = 1});
    ck_assert_ptr_null(kelp_progress_peek(&leadership.term->progress));
}

/* No shard of the map is heard though its lease lives: resign, and stand again after a while. */
KELP_TEST(resigns_when_cut_off)
{
    kelp_leadership_elected(&leadership, 10);
    leadership.term->cut_off = true;
    tick(100);
    ck_assert_ptr_null(leadership.term);
    ck_assert_int_eq(done.resigns, 1);
    ck_assert_int_eq(done.stands, 1);
    tick(KELP_COORDINATOR_CUT_OFF_MS - 1);
    ck_assert_int_eq(done.stands, 1);
    tick(1);
    ck_assert_int_eq(done.stands, 2);
    tick(KELP_COORDINATOR_CUT_OFF_MS);
    ck_assert_int_eq(done.stands, 2);
}

/* A shard beyond the placement's table is refused, and forgotten at the next tick. */
KELP_TEST(refuses_a_shard_too_many)
{
    struct kelp_map_shard shard = {.address = "a:1", .incarnation = 9};
    const struct kelp_link_hello hello = {.text = ""};
    kelp_leadership_elected(&leadership, 10);
    answer_read(0);
    for (uint32_t i = 0; i < KELP_COORDINATOR_SHARDS_MAX + 1; i++) {
        (void)snprintf(shard.id, sizeof(shard.id), "shard-%u", i);
        kelp_term_shard_registered(leadership.term, &shard);
    }
    struct kelp_link *last = done.link;
    ck_assert_ptr_eq(leadership.term->links.first, last);
    ck_assert(!kelp_term_shard_hello(leadership.term, last, &hello));
    ck_assert_uint_eq(leadership.term->membership.counts[KELP_MEMBER_SHARD], 0);
    tick(100);
    ck_assert_ptr_ne(leadership.term->links.first, last);
    ck_assert_uint_eq(leadership.term->placement.shard_count, KELP_COORDINATOR_SHARDS_MAX);
}
