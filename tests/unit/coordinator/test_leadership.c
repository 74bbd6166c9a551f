/* Leadership and terms: when a term begins and ends, and what it does not do before it may. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/cores/leadership_bench.h"
#include "tests/lib/suite.h"

KELP_SUITE(.fork_each = true)
KELP_CASE("leadership", .setup = leadership_setup, .teardown = leadership_teardown)

/* A stream breaks: the other shard leads its partitions, by a change of the map alone. Shards hear
 * of it first, and workers when that one has. Training is not sent back. */
KELP_TEST(fails_over)
{
    leadership_bench.job.cluster.shards = 2;
    leadership_bench.job.cluster.replicas = 2;
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_replicated();
    (void)leadership_join();
    leadership_connect_one("shard-0", 1);
    struct kelp_link *lost = leadership_bench.done.link;
    leadership_connect_one("shard-1", 1);
    struct kelp_link *left = leadership_bench.done.link;
    leadership_report_map(lost, 1);
    leadership_report_map(left, 1);
    ck_assert_int_eq(leadership_bench.machine.term->placement.state, KELP_PLACEMENT_RUNNING);
    ck_assert_uint_eq(leadership_bench.done.map_to_worker, 1);
    kelp_term_shard_closed(leadership_bench.machine.term, lost, true, KELP_ERR_CLOSED, "");
    ck_assert_int_eq(leadership_bench.done.changes, 1);
    ck_assert_uint_eq(leadership_bench.done.serial_written, 2);
    kelp_term_map_written(leadership_bench.machine.term, KELP_WRITTEN_OK, "");
    ck_assert_uint_eq(leadership_bench.done.map_to_shard, 2);
    ck_assert_uint_eq(leadership_bench.done.map_to_worker, 1);
    leadership_report_map(left, 2);
    ck_assert_uint_eq(leadership_bench.done.map_to_worker, 2);
    leadership_tick(100);
    ck_assert_int_eq(leadership_bench.machine.term->placement.state, KELP_PLACEMENT_RUNNING);
    ck_assert_int_eq(leadership_bench.done.maps, 0);
    ck_assert_uint_eq(leadership_bench.machine.term->shard_losses, 1);
    ck_assert_uint_eq(leadership_bench.machine.term->steps.recomputed, 0);
}

/* A term begins with an election, reads etcd, and ends when another coordinator leads. */
KELP_TEST(a_term)
{
    ck_assert_int_eq(leadership_bench.done.stands, 1);
    ck_assert_ptr_null(leadership_bench.machine.term);
    kelp_leadership_elected(&leadership_bench.machine, 10);
    ck_assert_ptr_nonnull(leadership_bench.machine.term);
    ck_assert_int_eq(leadership_bench.done.reads, 1);
    leadership_answer_read(0);
    leadership_join();
    ck_assert_int_gt(leadership_bench.done.session_sends, 0);
    leadership_connect_shard();
    ck_assert_int_eq(leadership_bench.done.maps, 1);
    kelp_leadership_superseded(&leadership_bench.machine, &leadership_other);
    ck_assert_ptr_null(leadership_bench.machine.term);
    ck_assert_int_eq(leadership_bench.done.closes, 1);
    leadership_tick(100);
    ck_assert_ptr_null(leadership_bench.machine.term);
}

static struct kelp_session *lead_with_worker(void)
{
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(0);
    return leadership_join();
}

/* Whoever asks for an id that is taken waits, is told why, and joins once it is free. */
KELP_TEST(a_taken_id_is_waited_for)
{
    struct kelp_session *first = lead_with_worker();
    struct kelp_session *second = leadership_greet(4);
    ck_assert_int_eq(second->state, KELP_SESSION_HELD);
    ck_assert_str_eq(leadership_bench.done.waits, "another process has the id worker-0");
    ck_assert_int_eq(first->state, KELP_SESSION_MEMBER);
    ck_assert_int_eq(leadership_bench.done.session_closes, 0);
    kelp_term_worker_closed(leadership_bench.machine.term, first, true, "died");
    ck_assert_int_eq(second->state, KELP_SESSION_MEMBER);
    ck_assert_uint_eq(leadership_bench.done.lanes.count, 4);
}

/* A first plan that the job cannot be done with turns away who brought it, and nobody else. */
KELP_TEST(a_plan_without_samples_is_nobodys)
{
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(0);
    leadership_bench.plan.samples[KELP_SPLIT_TRAIN] = 0;
    ck_assert_int_eq(leadership_greet(4)->state, KELP_SESSION_GONE);
    ck_assert_int_eq(leadership_bench.done.refusal, KELP_ERR_INVALID);
    ck_assert_int_eq(leadership_bench.machine.term->offer.state, KELP_PLAN_NONE);
    leadership_bench.plan.samples[KELP_SPLIT_TRAIN] = 100;
    ck_assert_int_eq(leadership_greet(5)->state, KELP_SESSION_MEMBER);
    ck_assert_int_eq(leadership_bench.machine.term->offer.state, KELP_PLAN_OFFERED);
}

/* Of those that wait, who has waited longest goes first. */
KELP_TEST(waiting_is_in_order)
{
    struct kelp_session *first = lead_with_worker();
    struct kelp_session *second = leadership_greet(4);
    leadership_tick(100);
    struct kelp_session *third = leadership_greet(5);
    kelp_term_worker_closed(leadership_bench.machine.term, first, false, "left");
    ck_assert_int_eq(second->state, KELP_SESSION_MEMBER);
    ck_assert_int_eq(third->state, KELP_SESSION_HELD);
}

/* One that waits and says nothing is let go. */
KELP_TEST(who_waits_silently_is_closed)
{
    leadership_bench.job.failure.detect_ms = 1000;
    struct kelp_session *first = lead_with_worker();
    struct kelp_session *second = leadership_greet(4);
    const struct kelp_member_heard heard = {.trouble = ""};
    for (int i = 0; i < 9; i++) {
        leadership_tick(100);
        kelp_term_worker_heard(leadership_bench.machine.term, first, &heard);
    }
    ck_assert_int_eq(leadership_bench.done.session_closes, 0);
    ck_assert_int_eq(second->state, KELP_SESSION_HELD);
    leadership_tick(300);
    ck_assert_int_eq(leadership_bench.done.session_closes, 1);
    ck_assert_int_eq(first->state, KELP_SESSION_MEMBER);
}

/* A worker is told with the first message how often it is to report, also one that waits. */
KELP_TEST(how_often_to_report_is_told_first)
{
    (void)lead_with_worker();
    ck_assert_uint_eq(leadership_bench.done.beat_ms, 100);
    leadership_bench.done.beat_ms = 0;
    (void)leadership_greet(4);
    ck_assert_uint_eq(leadership_bench.done.beat_ms, 100);
    leadership_bench.done.beat_ms = 0;
    int sends = leadership_bench.done.session_sends;
    leadership_tick(100);
    ck_assert_int_eq(leadership_bench.done.session_sends, sends); /* ticks say nothing */
}

/* With many workers: each hears once that reports are rarer, and of those who join by the tick, all
 * of them together. */
KELP_TEST(a_thousand_workers_join)
{
    char id[32];
    leadership_bench.job.cluster.lanes = 1024;
    (void)lead_with_worker();
    for (uint64_t i = 1; i < 1000; i++) {
        (void)snprintf(id, sizeof(id), "worker-%u", (unsigned)i);
        leadership_bench.done.lanes = (struct kelp_lane_range){0};
        struct kelp_session *session = leadership_greet_as(id, 100 + i);
        ck_assert_int_eq(session->state, KELP_SESSION_MEMBER);
        ck_assert_uint_ge(leadership_bench.done.lanes.count, 1); /* its own, at once */
        if (i % 100 == 0) {
            leadership_tick(0);
        }
    }
    leadership_tick(0);
    /* 64 joins told to all of them, then each its own, and ten ticks to all. */
    ck_assert_int_le(leadership_bench.done.session_sends, 64 * 65 / 2 + 1000 + 10 * 1000);
    ck_assert_uint_eq(leadership_bench.done.beat_ms, 400);
    int sends = leadership_bench.done.session_sends;
    leadership_tick(0);
    ck_assert_int_eq(leadership_bench.done.session_sends, sends);
    uint32_t lanes = 0;
    for (const struct kelp_session *session = leadership_bench.machine.term->sessions.first;
         session; session = session->next) {
        lanes += session->told.lanes.count;
        ck_assert_uint_eq(session->told.beat_ms, 400);
    }
    ck_assert_uint_eq(lanes, 1024);
}

/* A worker that reports and reads nothing could not be told anything: it is silent. */
KELP_TEST(who_does_not_read_is_lost)
{
    leadership_bench.job.failure.detect_ms = 1000;
    struct kelp_session *first = lead_with_worker();
    for (int i = 0; i < 12; i++) {
        leadership_tick(100);
        kelp_term_worker_heard(leadership_bench.machine.term, first, NULL);
    }
    ck_assert_int_eq(first->state, KELP_SESSION_MEMBER);
    leadership_bench.unread = true;
    for (int i = 0; i < 9; i++) {
        leadership_tick(100);
        kelp_term_worker_heard(leadership_bench.machine.term, first, NULL);
    }
    ck_assert_int_eq(first->state, KELP_SESSION_MEMBER);
    leadership_tick(100);
    kelp_term_worker_heard(leadership_bench.machine.term, first, NULL);
    leadership_tick(100);
    ck_assert_int_eq(leadership_bench.done.session_closes, 1);
    ck_assert_uint_eq(leadership_bench.machine.term->membership.counts[KELP_MEMBER_WORKER], 0);
}

/* An event of etcd that is lost because memory ran out: it resigns, and stands again with a new
 * term.
 */
KELP_TEST(out_of_memory_is_a_resignation)
{
    (void)lead_with_worker();
    int stands = leadership_bench.done.stands;
    kelp_leadership_starved(&leadership_bench.machine);
    ck_assert_ptr_null(leadership_bench.machine.term);
    ck_assert_int_eq(leadership_bench.done.resigns, 1);
    leadership_tick(KELP_COORDINATOR_RETRY_MS - 1);
    ck_assert_int_eq(leadership_bench.done.stands, stands);
    leadership_tick(1);
    ck_assert_int_eq(leadership_bench.done.stands, stands + 1);
    int reads = leadership_bench.done.reads;
    kelp_leadership_elected(&leadership_bench.machine, 20);
    ck_assert_ptr_nonnull(leadership_bench.machine.term);
    ck_assert_int_eq(leadership_bench.done.reads, reads + 1);
}

/* While etcd was away another coordinator may have led: elected again, a term writes no map before
 * it has compared what etcd holds. */
KELP_TEST(no_map_before_it_compares)
{
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(0);
    leadership_join();
    kelp_leadership_deposed(&leadership_bench.machine, "etcd is away");
    int reads = leadership_bench.done.reads;
    kelp_leadership_elected(&leadership_bench.machine, 20);
    ck_assert_int_eq(leadership_bench.done.reads, reads + 1);
    leadership_connect_shard();
    leadership_tick(10 * KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(leadership_bench.done.maps, 0);
    ck_assert_uint_eq(leadership_bench.machine.terms, 1);
    leadership_answer_read(0);
    leadership_tick(KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(leadership_bench.done.maps, 1);
    ck_assert_uint_eq(leadership_bench.machine.terms, 1);
}

static void expect_reason(const char *expected)
{
    char text[KELP_TERM_REASON_MAX + 1];
    kelp_term_reason(leadership_bench.machine.term, text);
    ck_assert_str_eq(text, expected);
}

/* Why a job waits: what the workers say when none of them computes, and which registered shard
 * cannot be reached, with the cause. */
KELP_TEST(reason)
{
    struct kelp_member_heard heard = {.trouble = "cannot reach shard-0 at a:1: timed out"};
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(1);
    struct kelp_session *worker = leadership_join();
    leadership_connect_one("shard-0", 1);
    struct kelp_link *link = leadership_bench.done.link;
    leadership_report(link, 5, 0);
    struct kelp_term *term = leadership_bench.machine.term;
    ck_assert_int_eq(term->placement.state, KELP_PLACEMENT_RUNNING);
    expect_reason("");
    kelp_term_worker_heard(term, worker, &heard);
    expect_reason("worker-0 cannot reach shard-0 at a:1: timed out");
    heard.trouble = "";
    kelp_term_worker_heard(term, worker, &heard);
    expect_reason("");
    kelp_term_shard_closed(term, link, true, KELP_ERR_UNREACHABLE, "connection refused");
    expect_reason("shard-0 cannot be reached at a:1: connection refused");
    kelp_term_shard_closed(term, link, true, KELP_ERR_TIMEOUT, "no message");
    expect_reason("shard-0 cannot be reached at a:1: timed out: it does not answer");
    leadership_tick(KELP_COORDINATOR_TICK_MS); /* another stream is opened */
    leadership_connect_one("shard-0", 1);
    leadership_report(link, 5, 0);
    expect_reason("");
}

static void commit_answered(enum kelp_checkpointer_result result)
{
    kelp_term_committed(leadership_bench.machine.term,
                        &(struct kelp_commit_answer){.serial = leadership_bench.done.serial,
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
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(1);
    leadership_join();
    leadership_connect_one("shard-0", 1);
    struct kelp_link *link = leadership_bench.done.link;
    leadership_report(link, 5, 0);
    ck_assert_int_eq(kelp_term_request(leadership_bench.machine.term, false, &request, NULL),
                     KELP_OK);
    const struct kelp_checkpointer_order *order =
        &leadership_bench.machine.term->keeper.machine.order;
    ck_assert_uint_gt(order->step, 0);
    leadership_report(link, order->step, order->serial);
    kelp_term_described(leadership_bench.machine.term, leadership_bench.done.serial, KELP_OK, "");
    ck_assert_int_eq(leadership_bench.done.commits, 1);
    commit_answered(KELP_CHECKPOINTER_AWAY);
    leadership_connect_one("shard-1", 0);
    uint64_t step = order->step;
    leadership_bench.now += KELP_COORDINATOR_RETRY_MS;
    kelp_leadership_touch(&leadership_bench.machine, leadership_bench.now);
    kelp_term_shard_registered(leadership_bench.machine.term, &again);
    ck_assert_int_eq(leadership_bench.done.commits, 2);
    ck_assert_int_eq(leadership_bench.done.maps, 0);
    leadership_tick(10 * KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(leadership_bench.done.maps, 0);
    commit_answered(KELP_CHECKPOINTER_OK);
    leadership_tick(KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(leadership_bench.done.maps, 1);
    ck_assert_uint_eq(leadership_bench.done.restored, step);
    ck_assert_uint_eq(leadership_bench.done.gone, 0);
}

/* Somebody did lead: another term begins, which knows nothing of the one before. */
KELP_TEST(starts_over)
{
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(0);
    leadership_join();
    kelp_leadership_deposed(&leadership_bench.machine, "etcd is away");
    kelp_leadership_elected(&leadership_bench.machine, 20);
    leadership_answer_read(3);
    ck_assert_uint_eq(leadership_bench.machine.terms, 2);
    ck_assert_int_eq(leadership_bench.done.closes, 1);
    ck_assert(!leadership_bench.machine.term->reading.done);
    ck_assert_ptr_null(leadership_bench.machine.term->sessions.first);
    ck_assert_int_eq(leadership_bench.done.gives_up, 0);
}

/* A read that failed is asked again, after a pause; not without an election. */
KELP_TEST(reads_again)
{
    struct kelp_found found = {.plan = NULL};
    kelp_leadership_elected(&leadership_bench.machine, 10);
    kelp_leadership_read(&leadership_bench.machine, KELP_ERR_TIMEOUT, &found, "no answer");
    leadership_tick(KELP_COORDINATOR_RETRY_MS - 1);
    ck_assert_int_eq(leadership_bench.done.reads, 1);
    kelp_leadership_deposed(&leadership_bench.machine, "etcd is away");
    leadership_tick(KELP_COORDINATOR_RETRY_MS);
    ck_assert_int_eq(leadership_bench.done.reads, 1);
    kelp_leadership_elected(&leadership_bench.machine, 20);
    ck_assert_int_eq(leadership_bench.done.reads, 2);
}

static bool record_at(const void *records, size_t index, struct kelp_record *ret_record)
{
    *ret_record = ((const struct kelp_record *)records)[index];
    return true;
}

static void report_kind(struct kelp_link *link, uint64_t generation, uint64_t version,
                        enum kelp_step_kind kind)
{
    const struct kelp_control_word word = {.version = version + 1,
                                           .kind = kind == KELP_STEP_FINISH ? KELP_STEP_DONE
                                                                            : KELP_STEP_TRAIN};
    const struct kelp_record record = {.word = {.version = version, .kind = kind},
                                       .epoch_end = kind == KELP_STEP_TRAIN};
    const struct kelp_link_report of = {.loaded_generation = generation,
                                        .error = "",
                                        .waiting = "",
                                        .word = &word,
                                        .record_count = 1,
                                        .record = record_at,
                                        .records = &record};
    kelp_term_shard_report(leadership_bench.machine.term, link, &of);
}

static void report_record_of(struct kelp_link *link, uint64_t generation, uint64_t version)
{
    report_kind(link, generation, version, KELP_STEP_TRAIN);
}

static void report_record(struct kelp_link *link, uint64_t version)
{
    report_record_of(link, 1, version);
}

/* Records go to the disk in batches, one after the other, once the run's folder is ours; what the
 * disk refuses waits, and is tried again. */
KELP_TEST(records_wait_for_the_disk)
{
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(1);
    leadership_join();
    leadership_connect_one("shard-0", 1);
    struct kelp_link *link = leadership_bench.done.link;
    report_record(link, 0);
    ck_assert_int_eq(leadership_bench.done.holds, 1);
    ck_assert_int_eq(leadership_bench.done.files, 0);
    kelp_term_held(leadership_bench.machine.term, 1, KELP_ERR_IO, "the disk is broken");
    ck_assert_int_eq(leadership_bench.done.files, 0);
    leadership_tick(KELP_COORDINATOR_APPEND_MS);
    ck_assert_int_eq(leadership_bench.done.holds, 2);
    kelp_term_held(leadership_bench.machine.term, 7, KELP_OK, ""); /* in another generation */
    ck_assert_int_eq(leadership_bench.done.files, 0);
    kelp_term_held(leadership_bench.machine.term, 1, KELP_OK, "");
    ck_assert_int_eq(leadership_bench.done.files, 1);
    report_record(link, 1);
    report_record(link, 2);
    ck_assert_int_eq(leadership_bench.done.files, 1);
    kelp_term_filed(leadership_bench.machine.term, &(struct kelp_filed){.count = 1});
    ck_assert_int_eq(leadership_bench.done.files, 2);
    ck_assert_uint_eq(leadership_bench.done.filed_version, 1);
    ck_assert_uint_eq(leadership_bench.done.filed_count, 2);
    ck_assert(leadership_bench.done.sync);
    kelp_term_filed(leadership_bench.machine.term,
                    &(struct kelp_filed){.count = 1, .status = KELP_ERR_NO_SPACE, .text = "full"});
    ck_assert_int_eq(leadership_bench.done.files, 2);
    leadership_tick(KELP_COORDINATOR_APPEND_MS);
    ck_assert_int_eq(leadership_bench.done.files, 3);
    ck_assert_uint_eq(leadership_bench.done.filed_version, 2);
    kelp_term_filed(leadership_bench.machine.term, &(struct kelp_filed){.count = 1});
    ck_assert_ptr_null(kelp_progress_peek(&leadership_bench.machine.term->progress));
}

/* A job that stands at its end since the disk is full says so; one that goes on meanwhile waits for
 * nothing. */
KELP_TEST(reason_of_a_full_disk)
{
    const struct kelp_filed full = {.status = KELP_ERR_NO_SPACE, .text = "m: no space is left"};
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(1);
    leadership_join();
    leadership_connect_one("shard-0", 1);
    struct kelp_link *link = leadership_bench.done.link;
    struct kelp_term *term = leadership_bench.machine.term;
    report_record(link, 0);
    kelp_term_held(term, 1, KELP_OK, "");
    kelp_term_filed(term, &full);
    expect_reason("");
    report_kind(link, 1, 1, KELP_STEP_FINISH);
    expect_reason(
        "all steps are made, and the last records cannot be written: m: no space is left");
    leadership_tick(KELP_COORDINATOR_APPEND_MS);
    ck_assert_int_eq(leadership_bench.done.files, 2);
    kelp_term_filed(term, &(struct kelp_filed){.count = 2});
    expect_reason("the job is over, and its end is being written to etcd");
}

/* Records wait in memory, up to a number: beyond that the job fails with the disk's own words. */
KELP_TEST(too_many_records_wait)
{
    const struct kelp_filed full = {.status = KELP_ERR_NO_SPACE, .text = "m: no space is left"};
    char expected[KELP_COORDINATOR_REASON_MAX + 1];
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(1);
    leadership_join();
    leadership_connect_one("shard-0", 1);
    struct kelp_link *link = leadership_bench.done.link;
    struct kelp_term *term = leadership_bench.machine.term;
    report_record(link, 0);
    kelp_term_held(term, 1, KELP_OK, "");
    kelp_term_filed(term, &full);
    for (uint64_t version = 1; version <= KELP_COORDINATOR_RECORDS_MAX; version++) {
        report_record(link, version);
    }
    int length =
        snprintf(expected, sizeof(expected),
                 "%d records wait for the disk, and no more are kept: m: no space is left; ",
                 KELP_COORDINATOR_RECORDS_MAX);
    ck_assert_int_eq(strncmp(term->placement.reason, expected, (size_t)length), 0);
}

/* A shard leads both partitions of generation 1, which nobody can bring together again. */
static struct kelp_link *drive_apart(enum kelp_conflict_policy policy)
{
    struct kelp_apart_step lowest = {.partition = 1, .step = 3};
    struct kelp_apart_step highest = {.partition = 0, .step = 9};

    leadership_bench.job.failure.on_conflict = policy;
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(1);
    leadership_join();
    leadership_connect_one("shard-0", 1);
    struct kelp_term *term = leadership_bench.machine.term;
    lowest.map_epoch = term->placement.map.partitions[1].map_epoch;
    highest.map_epoch = term->placement.map.partitions[0].map_epoch;
    report_record(leadership_bench.done.link, 0);
    for (uint32_t i = 0; i <= KELP_COORDINATOR_APART_BEATS + 1; i++) {
        ck_assert_int_eq(term->placement.state, KELP_PLACEMENT_RUNNING);
        leadership_tick(KELP_COORDINATOR_TICK_MS);
        const struct kelp_link_report of = {.heartbeat = term->heartbeat - 1,
                                            .loaded_generation = 1,
                                            .error = "",
                                            .waiting = "",
                                            .lowest = &lowest,
                                            .highest = &highest};
        kelp_term_shard_report(term, leadership_bench.done.link, &of);
    }
    ck_assert_int_eq(term->placement.state, KELP_PLACEMENT_WAITING);
    return leadership_bench.done.link;
}

/* Two workers that differ end the job also while another generation is about to be opened. */
KELP_TEST(a_conflict_is_not_hidden)
{
    struct kelp_link *link = drive_apart(KELP_CONFLICT_STOP);
    const struct kelp_link_report of = {.heartbeat = leadership_bench.machine.term->heartbeat,
                                        .loaded_generation = 1,
                                        .status = KELP_ERR_MISMATCH,
                                        .error = "worker-9 and worker-1 sent different gradients",
                                        .waiting = ""};

    kelp_term_shard_report(leadership_bench.machine.term, link, &of);
    ck_assert_int_eq(leadership_bench.machine.term->placement.state, KELP_PLACEMENT_FAILED);
    ck_assert_ptr_nonnull(strstr(leadership_bench.machine.term->placement.reason, "worker-9"));
}

/* What is computed again may differ where the first one counts: those lines are cut, and what waits
 * of them is not written. Where workers may not differ, it must be as before. */
KELP_LOOP_TEST(what_differed_is_forgotten, 0, 2)
{
    const bool first = _i == 1;
    struct kelp_link *link = drive_apart(first ? KELP_CONFLICT_FIRST : KELP_CONFLICT_STOP);
    struct kelp_term *term = leadership_bench.machine.term;

    ck_assert_int_eq(leadership_bench.done.holds, 1);
    ck_assert(!leadership_bench.done.forced);
    leadership_tick(KELP_COORDINATOR_LOAD_RETRY_MS);
    ck_assert_int_eq(leadership_bench.done.maps, 1);
    kelp_term_map_written(term, KELP_WRITTEN_OK, "");
    ck_assert_uint_eq(term->placement.map.generation, 2);
    ck_assert_int_eq(kelp_progress_peek(&term->progress) == NULL, first);
    report_record_of(link, 2, 0);
    ck_assert_int_eq(leadership_bench.done.holds, 2);
    ck_assert_int_eq(leadership_bench.done.forced, first);
}

/* No shard of the map is heard though its lease lives: resign, and stand again after a while. */
KELP_TEST(resigns_when_cut_off)
{
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_bench.machine.term->cut_off = true;
    leadership_tick(100);
    ck_assert_ptr_null(leadership_bench.machine.term);
    ck_assert_int_eq(leadership_bench.done.resigns, 1);
    ck_assert_int_eq(leadership_bench.done.stands, 1);
    leadership_tick(KELP_COORDINATOR_CUT_OFF_MS - 1);
    ck_assert_int_eq(leadership_bench.done.stands, 1);
    leadership_tick(1);
    ck_assert_int_eq(leadership_bench.done.stands, 2);
    leadership_tick(KELP_COORDINATOR_CUT_OFF_MS);
    ck_assert_int_eq(leadership_bench.done.stands, 2);
}

/* A shard beyond the placement's table is refused, and forgotten at the next tick. */
KELP_TEST(refuses_a_shard_too_many)
{
    struct kelp_map_shard shard = {.address = "a:1", .incarnation = 9};
    const struct kelp_link_hello hello = {.text = ""};
    kelp_leadership_elected(&leadership_bench.machine, 10);
    leadership_answer_read(0);
    for (uint32_t i = 0; i < KELP_COORDINATOR_SHARDS_MAX + 1; i++) {
        (void)snprintf(shard.id, sizeof(shard.id), "shard-%u", i);
        kelp_term_shard_registered(leadership_bench.machine.term, &shard);
    }
    struct kelp_link *last = leadership_bench.done.link;
    ck_assert_ptr_eq(leadership_bench.machine.term->links.first, last);
    ck_assert(!kelp_term_shard_hello(leadership_bench.machine.term, last, &hello));
    ck_assert_uint_eq(leadership_bench.machine.term->membership.counts[KELP_MEMBER_SHARD], 0);
    leadership_tick(100);
    ck_assert_ptr_ne(leadership_bench.machine.term->links.first, last);
    ck_assert_uint_eq(leadership_bench.machine.term->placement.shard_count,
                      KELP_COORDINATOR_SHARDS_MAX);
}
