#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/control/shard_control.h"
#include "tests/lib/suite.h"

#define DIGEST "00112233445566778899aabbccddeeff"

static struct kelp_shard_control *control;
static struct kelp_shard_actions actions;

static kelp_status apply(struct kelp_shard_event event)
{
    actions.count = 0;
    return kelp_shard_control_apply(control, &event, &actions);
}

/* etcd says that who shows this leads. */
static void lead(const char *proof)
{
    ck_assert_int_eq(
        apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_LEADER, .leader = proof}), KELP_OK);
}

static kelp_status show(uint64_t stream, const char *proof)
{
    return apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_HELLO, .hello = {stream, proof}});
}

static void open_control(void)
{
    struct kelp_shard_control_config config = {.report_records_max = 2, .storage_wait_ms = 1000};

    ck_assert_int_eq(kelp_shard_control_create(&config, &control, NULL), KELP_OK);
    actions.count = 0;
    lead("leader");
}

static void close_control(void)
{
    kelp_shard_control_destroy(control);
}

/* Exactly these actions came, as letters: Report, Load, Cancel, Timer, Halt of it, Snapshot; the
 * lines for the log: f(ailed), m(issing), s(napshot); gives Way. */
static void expect(const char *letters)
{
    char text[KELP_SHARD_ACTIONS_MAX + 1] = "";

    for (uint32_t i = 0; i < actions.count; i++) {
        const struct kelp_shard_action *action = &actions.items[i];
        text[i] =
            action->kind == KELP_SHARD_DO_LOG ? "fms"[action->news] : "RLCTHS.W"[action->kind];
    }
    ck_assert_str_eq(text, letters);
}

/* The n-th REPORT of the last event. */
static const struct kelp_shard_action *report(uint32_t n)
{
    for (uint32_t i = 0; i < actions.count; i++) {
        if (actions.items[i].kind == KELP_SHARD_DO_REPORT && n-- == 0) {
            return &actions.items[i];
        }
    }
    ck_abort_msg("no such report");
    return NULL;
}

static struct kelp_shard_control_view view(void)
{
    struct kelp_shard_control_view result;
    kelp_shard_control_view(control, &result);
    return result;
}

static void connect(uint64_t stream)
{
    ck_assert_int_eq(
        apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_CONNECT, .stream = stream}), KELP_OK);
    expect("");
    ck_assert_int_eq(show(stream, "leader"), KELP_OK);
    expect("");
}

static void command(uint64_t stream, uint64_t records_after, uint64_t map_generation)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_COMMAND,
                                     .command = {.stream = stream,
                                                 .heartbeat = 7,
                                                 .records_after = records_after,
                                                 .map_generation = map_generation,
                                                 .map_serial = map_generation ? 1 : 0}};

    ck_assert_int_eq(apply(event), KELP_OK);
}

static const uint32_t hosted[] = {0, 3};

static kelp_status order(uint64_t stream, uint64_t serial, uint64_t generation, bool give_up)
{
    struct kelp_snapshot_order wanted = {.serial = serial, .generation = generation, .step = 10};

    return apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_ORDER,
                                           .order = {.stream = stream,
                                                     .order = &wanted,
                                                     .share = {.partitions = hosted, .count = 2},
                                                     .give_up = give_up}});
}

static void loaded(void)
{
    struct kelp_control_word word = {.version = 4, .step = 4, .kind = KELP_STEP_TRAIN};

    (void)apply((struct kelp_shard_event){
        .kind = KELP_SHARD_ON_LOADED,
        .loaded = {.led = {.partitions = hosted, .partition_count = 2, .word = &word}}});
}

static void not_loaded(kelp_status status)
{
    (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_LOADED,
                                          .loaded = {.status = status, .text = "no such thing"}});
}

static void record(uint64_t version, enum kelp_step_kind kind, const char *digest)
{
    struct kelp_record record = {.word = {.version = version, .kind = kind}};
    struct kelp_control_word next = {.version = version + 1};

    (void)snprintf(record.digest, sizeof(record.digest), "%s", digest);
    ck_assert_int_eq(apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_RECORD,
                                                     .record = {&record, &next, NULL}}),
                     KELP_OK);
}

static void timer(void)
{
    (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_TIMER});
}

/* A coordinator on stream 1, and this generation is served. */
static void serve(uint64_t generation)
{
    connect(1);
    command(1, 0, generation);
    expect("LR");
    loaded();
    expect("R");
}

KELP_CASE("shard control", .setup = open_control, .teardown = close_control)

KELP_TEST(the_first_report_of_a_stream_carries_the_hello)
{
    connect(1);
    command(1, 0, 0);
    expect("R");
    ck_assert(report(0)->report.hello);
    ck_assert_uint_eq(report(0)->report.heartbeat, 7);
    command(1, 0, 0);
    ck_assert(!report(0)->report.hello);
    ck_assert_ptr_null(view().word);
    ck_assert_uint_eq(view().generation, 0);
}

/* How far apart partitions are is in the answer to the heartbeat that they were looked at for, and
 * in no other report: if that was in the generation that is served. */
KELP_TEST(the_standing_goes_with_its_heartbeat)
{
    struct kelp_shard_event beat = {.kind = KELP_SHARD_ON_COMMAND,
                                    .command = {.stream = 1, .heartbeat = 8}};

    connect(1);
    command(1, 0, 2);
    loaded();
    beat.command.standing = (struct kelp_standing){.generation = 2, .known = true};
    beat.command.standing.highest.step = 5;
    ck_assert_int_eq(apply(beat), KELP_OK);
    ck_assert(report(0)->report.standing.known);
    ck_assert_uint_eq(report(0)->report.standing.highest.step, 5);
    command(1, 0, 0);
    ck_assert(!report(0)->report.standing.known);
    beat.command.standing.generation = 1;
    ck_assert_int_eq(apply(beat), KELP_OK);
    ck_assert(!report(0)->report.standing.known);
}

static kelp_status forge(uint64_t stream)
{
    ck_assert_int_eq(order(stream, UINT64_MAX, 1, false), KELP_ERR_NOT_LEADER);
    return apply((struct kelp_shard_event){
        .kind = KELP_SHARD_ON_COMMAND,
        .command = {.stream = stream, .map_generation = (uint64_t)1 << 40, .map_serial = 1}});
}

/* Whatever number a stranger's map or order has, nothing of it is done, and the leader's count. */
KELP_TEST(who_does_not_lead_is_not_obeyed)
{
    serve(1);
    (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_CONNECT, .stream = 2});
    ck_assert(!kelp_shard_control_obeys(control, 2));
    ck_assert_int_eq(forge(2), KELP_ERR_NOT_LEADER);
    ck_assert_int_eq(show(2, "stranger"), KELP_ERR_NOT_LEADER);
    ck_assert_int_eq(forge(2), KELP_ERR_NOT_LEADER);
    expect("");
    ck_assert_int_eq(order(1, 5, 1, false), KELP_OK);
    ck_assert_uint_eq(view().snapshot.order.serial, 5);
    command(1, 0, 2);
    ck_assert_uint_eq(view().loading, 2);
}

/* Nobody is obeyed before etcd has said who leads; who leads next is obeyed at once, and the one
 * before no more. */
KELP_TEST(the_newest_leader_is_obeyed)
{
    serve(1);
    (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_CONNECT, .stream = 2});
    ck_assert_int_eq(show(2, "next"), KELP_ERR_NOT_LEADER);
    lead("next");
    ck_assert(kelp_shard_control_obeys(control, 2));
    ck_assert(!kelp_shard_control_obeys(control, 1));
    ck_assert_int_eq(forge(1), KELP_ERR_NOT_LEADER);
    command(2, 0, 2);
    ck_assert_uint_eq(view().loading, 2);
    lead("");
    ck_assert_int_eq(show(2, ""), KELP_ERR_NOT_LEADER);
}

/* Silent streams do not lock the leader out: the oldest of them gives way, never the leader's. */
KELP_TEST(strangers_give_way)
{
    connect(1);
    for (uint64_t i = 2; i <= KELP_PS_CONTROL_STREAMS_MAX; i++) {
        ck_assert_int_eq(
            apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_CONNECT, .stream = i}), KELP_OK);
        expect("");
    }
    for (uint64_t i = 90; i < 100; i++) {
        ck_assert_int_eq(
            apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_CONNECT, .stream = i}), KELP_OK);
        expect("W");
        ck_assert_uint_ne(actions.items[0].stream, 1);
    }
    ck_assert_int_eq(show(2, "leader"), KELP_ERR_CLOSED); /* it was the first to go */
    ck_assert_int_eq(show(99, "leader"), KELP_OK);
    command(1, 0, 0);
    expect("R");
}

/* The newest map is loaded, whatever becomes of those before it. */
KELP_TEST(a_newer_map_takes_the_place_of_one_that_is_loaded)
{
    connect(1);
    ck_assert_int_eq(kelp_shard_control_judge(control, 2, 1, false), KELP_OK);
    ck_assert_int_eq(kelp_shard_control_judge(control, 2, 1, true), KELP_ERR_MISMATCH);
    command(1, 0, 2);
    expect("LR");
    ck_assert_int_eq(kelp_shard_control_judge(control, 2, 1, false), KELP_ERR_OLD_GENERATION);
    command(1, 0, 3);
    expect("CR");
    command(1, 0, 5);
    expect("R");
    ck_assert_int_eq(kelp_shard_control_judge(control, 4, 1, false), KELP_ERR_OLD_GENERATION);
    not_loaded(KELP_ERR_NOT_FOUND);
    expect("RL"); /* what became of the cancelled one is nobody's failure */
    ck_assert_uint_eq(actions.items[1].generation, 5);
    ck_assert_int_eq(view().status, KELP_OK);
    loaded();
    expect("R");
    ck_assert_uint_eq(view().generation, 5);
    ck_assert_uint_eq(view().word->version, 4);
}

static void enter(uint64_t generation, uint64_t serial, const struct kelp_control_word *word)
{
    static const uint32_t led[] = {0, 3, 4};

    (void)apply((struct kelp_shard_event){
        .kind = KELP_SHARD_ON_ENTERED,
        .entered = {generation, serial, {.partitions = led, .partition_count = 3, .word = word}}});
}

/* A map of the same generation with a larger serial loads nothing; it is reported once it is
 * carried out. */
KELP_TEST(a_change_of_the_map_loads_nothing)
{
    const struct kelp_control_word word = {.version = 4, .step = 4, .kind = KELP_STEP_TRAIN};

    serve(2);
    ck_assert_int_eq(kelp_shard_control_judge(control, 2, 2, false), KELP_OK);
    ck_assert(kelp_shard_control_changes(control, 2, false));
    ck_assert(!kelp_shard_control_changes(control, 3, true));
    (void)apply(
        (struct kelp_shard_event){.kind = KELP_SHARD_ON_COMMAND,
                                  .command = {.stream = 1, .map_generation = 2, .map_serial = 4}});
    expect("R");
    ck_assert_uint_eq(view().map_serial, 0);
    ck_assert_int_eq(kelp_shard_control_judge(control, 2, 4, false), KELP_ERR_OLD_GENERATION);
    ck_assert_int_eq(kelp_shard_control_judge(control, 2, 3, false), KELP_ERR_OLD_GENERATION);
    ck_assert_int_eq(kelp_shard_control_judge(control, 2, 5, false), KELP_OK);
    enter(2, 4, &word);
    expect("R");
    ck_assert_uint_eq(view().map_generation, 2);
    ck_assert_uint_eq(view().map_serial, 4);
    enter(1, 9, &word); /* of a generation that has ended */
    expect("");
}

static void change(uint64_t generation, uint64_t serial, bool reads)
{
    const struct kelp_shard_command command = {
        .stream = 1, .map_generation = generation, .map_serial = serial, .map_reads = reads};

    ck_assert_int_eq(
        apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_COMMAND, .command = command}),
        KELP_OK);
}

/* Others have taken over what it was to load: its checkpoint may be damaged, or gone. */
KELP_TEST(a_load_that_nobody_needs_may_fail)
{
    connect(1);
    command(1, 0, 2);
    ck_assert(kelp_shard_control_changes(control, 2, true));
    ck_assert(!kelp_shard_control_changes(control, 2, false));
    change(2, 2, true);
    expect("R");
    change(2, 3, false);
    expect("CR");
    change(2, 4, false);
    expect("R");
    not_loaded(KELP_ERR_CORRUPT);
    expect("RL");
    ck_assert_uint_eq(actions.items[1].generation, 2);
    ck_assert_int_eq(view().status, KELP_OK);
    loaded();
    expect("R");
    ck_assert_uint_eq(view().generation, 2);
}

/* It went well all the same: the newest map is a change of it. */
KELP_TEST(a_load_that_nobody_needs_is_served)
{
    connect(1);
    command(1, 0, 2);
    change(2, 2, false);
    expect("CR");
    loaded();
    expect("R");
    ck_assert_uint_eq(view().generation, 2);
    ck_assert_uint_eq(view().loading, 0);
}

/* A follower of partition 0 keeps records, and hands them out once it is promoted. */
KELP_TEST(records_of_a_follower_wait)
{
    const struct kelp_control_word word = {.version = 6, .step = 6, .kind = KELP_STEP_TRAIN};

    serve(2);
    enter(2, 1, NULL);
    expect("R");
    record(5, KELP_STEP_EVALUATE_VAL, "");
    expect("");
    ck_assert_ptr_null(view().word);
    command(1, 0, 0);
    expect("R");
    ck_assert_uint_eq(actions.items[0].report.record_count, 0);
    enter(2, 2, &word);
    expect("R");
    ck_assert_uint_eq(actions.items[0].report.record_count, 1);
    ck_assert_uint_eq(view().word->version, 6);
}

/* Records that come with a copy are kept once, and only those that are not known. */
KELP_TEST(copied_records)
{
    const struct kelp_control_word word = {.version = 9, .step = 9, .kind = KELP_STEP_TRAIN};

    serve(2);
    enter(2, 1, NULL);
    for (int again = 0; again < 2; again++) {
        for (uint64_t version = 3; version < 6; version++) {
            const struct kelp_record copied = {
                .word = {.version = version, .kind = KELP_STEP_EVALUATE_VAL}};
            (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_COPIED_RECORD,
                                                  .record = {.record = &copied}});
        }
    }
    record(6, KELP_STEP_EVALUATE_VAL, "");
    ck_assert_uint_eq(view().record_count, 4);
    enter(2, 2, &word);
    ck_assert_uint_eq(actions.items[0].report.record_count, 2); /* of the most in one report */
}

KELP_TEST(a_load_that_fails_is_reported_until_the_next_map)
{
    serve(1);
    command(1, 0, 2);
    not_loaded(KELP_ERR_CORRUPT);
    expect("fTR");
    ck_assert_int_eq(view().status, KELP_ERR_CORRUPT);
    ck_assert_str_eq(view().error, "no such thing");
    ck_assert_uint_eq(view().generation, 1);
    struct kelp_shard_event failure = {.kind = KELP_SHARD_ON_FAILURE,
                                       .failure = {KELP_ERR_INVALID, "not finite"}};
    ck_assert_int_eq(apply(failure), KELP_OK);
    ck_assert_int_eq(view().status, KELP_ERR_CORRUPT); /* the first one is the cause */
    command(1, 0, 3);
    ck_assert_int_eq(view().status, KELP_OK);
    ck_assert_int_eq(apply(failure), KELP_ERR_OLD_GENERATION); /* of generation 1 */
    ck_assert_int_eq(view().status, KELP_OK);
}

KELP_TEST(missing_storage_is_waited_for_so_long)
{
    struct kelp_shard_event missing = {.kind = KELP_SHARD_ON_STORAGE_MISSING,
                                       .missing = {"shard-1", 5000}};

    connect(1);
    command(1, 0, 1);
    ck_assert_int_eq(apply(missing), KELP_OK);
    expect("mR");
    ck_assert_str_eq(view().waiting, "shard-1");
    ck_assert_uint_eq(view().loading, 1);
    missing.missing.now_ms = 5999;
    ck_assert_int_eq(apply(missing), KELP_OK);
    expect("");
    missing.missing.now_ms = 6000;
    ck_assert_int_eq(apply(missing), KELP_ERR_NOT_FOUND);
    not_loaded(KELP_ERR_NOT_FOUND);
    ck_assert_str_eq(view().waiting, "");
    ck_assert_uint_eq(view().loading, 0);
    command(1, 0, 2);
    ck_assert_int_eq(apply(missing), KELP_OK); /* a load of its own */
    (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_STOP});
    expect("C");
    ck_assert_int_eq(apply(missing), KELP_ERR_OLD_GENERATION);
}

/* What the leader has on disk is not kept: neither by who has sent it nor by a follower, and nobody
 * gets another record than before. */
KELP_TEST(records_on_disk_are_forgotten)
{
    serve(1);
    for (uint64_t version = 1; version < 7; version++) {
        record(version, KELP_STEP_EVALUATE_VAL, DIGEST);
    }
    timer(); /* two of them */
    connect(2);
    command(2, 0, 0);
    command(1, 5, 0);
    ck_assert_uint_eq(view().record_count, 2);
    ck_assert_uint_eq(view().records[0].word.version, 5);
    ck_assert_uint_eq(report(0)->report.record_first, 0); /* it has not had the fifth */
    command(1, 5, 0);
    command(1, 0, 0);
    ck_assert_uint_eq(view().record_count, 2);
    command(1, 100, 0);
    ck_assert_uint_eq(view().record_count, 0);
    record(7, KELP_STEP_EVALUATE_VAL, DIGEST);
    command(1, 0, 0);
    ck_assert_uint_eq(report(0)->report.record_count, 1);
    ck_assert_uint_eq(view().records[0].word.version, 7);
}

/* Each stream gets each record once, in order, and what it says it has it does not get. */
KELP_TEST(records_are_sent_once_and_in_order)
{
    serve(1);
    record(4, KELP_STEP_TRAIN, "");
    expect("T");
    ck_assert_uint_eq(view().record_count, 0); /* not for the files */
    ck_assert_uint_eq(view().latest_train->word.version, 4);
    for (uint64_t version = 5; version < 10; version++) {
        record(version, version < 7 ? KELP_STEP_EVALUATE_VAL : KELP_STEP_TRAIN, DIGEST);
        expect("");
    }
    timer();
    expect("R");
    ck_assert_uint_eq(report(0)->report.record_first, 0);
    ck_assert_uint_eq(report(0)->report.record_count, 2);
    ck_assert_uint_eq(view().word->version, 10);
    connect(2);
    command(2, 8, 0);
    ck_assert_uint_eq(report(0)->report.record_first, 3);
    ck_assert_uint_eq(view().records[3].word.version, 8);
    timer();
    expect("RR");
    ck_assert_uint_eq(report(0)->report.record_first, 2);
    ck_assert_uint_eq(report(1)->report.record_count, 0);
    (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_UNSENT, .unsent = {1, 2}});
    timer();
    ck_assert_uint_eq(report(0)->report.record_first, 2);
    ck_assert_uint_eq(report(0)->report.record_count, 2);
    timer();
    ck_assert_uint_eq(report(0)->report.record_first, 4);
    timer();
    expect("H"); /* nothing new */
}

KELP_TEST(another_generation_has_records_of_its_own)
{
    serve(1);
    record(4, KELP_STEP_EVALUATE_TEST, "");
    timer();
    command(1, 0, 2);
    loaded();
    ck_assert_uint_eq(view().record_count, 0);
    ck_assert_ptr_null(view().latest_train);
    record(4, KELP_STEP_EVALUATE_TEST, "");
    timer();
    ck_assert_uint_eq(report(0)->report.record_first, 0);
    ck_assert_uint_eq(report(0)->report.record_count, 1);
}

KELP_TEST(a_timer_that_cannot_be_started_is_tried_again)
{
    serve(1);
    record(4, KELP_STEP_TRAIN, "");
    expect("T");
    (void)apply((struct kelp_shard_event){.kind = KELP_SHARD_ON_NO_TIMER});
    record(5, KELP_STEP_TRAIN, "");
    expect("T");
}

KELP_TEST(a_snapshot_is_reported_to_everybody)
{
    serve(1);
    connect(2);
    command(2, 0, 0);
    ck_assert_int_eq(order(1, 9, 1, false), KELP_OK);
    expect("sRRS");
    ck_assert_int_eq(actions.items[3].snapshot.kind, KELP_SNAPSHOT_DO_ORDER);
    struct kelp_shard_event taken = {.kind = KELP_SHARD_ON_SNAPSHOT_TAKEN,
                                     .snapshot = {.ticket = actions.items[3].snapshot.ticket}};
    ck_assert_int_eq(apply(taken), KELP_OK);
    expect("S");
    ck_assert_int_eq(actions.items[0].snapshot.kind, KELP_SNAPSHOT_DO_WRITE);
    ck_assert_int_eq(order(1, 8, 1, false), KELP_ERR_OLD_GENERATION);
    expect("");
    ck_assert_int_eq(order(1, 9, 1, true), KELP_OK);
    expect("SsRR");
    ck_assert_int_eq(view().snapshot.state, KELP_SNAPSHOT_FAILED);
    taken.snapshot.partition = 3;
    ck_assert_int_eq(apply(taken), KELP_ERR_CLOSED);
}

KELP_TEST(a_map_ends_the_snapshot_of_the_generation_before)
{
    serve(1);
    ck_assert_int_eq(order(1, 9, 1, false), KELP_OK);
    command(1, 0, 2);
    expect("SsRLR");
    ck_assert_int_eq(view().snapshot.state, KELP_SNAPSHOT_FAILED);
    ck_assert_int_eq(view().snapshot.status, KELP_ERR_OLD_GENERATION);
    loaded();
    ck_assert_int_eq(order(1, 10, 1, false), KELP_ERR_OLD_GENERATION);
    ck_assert_int_eq(order(1, 11, 2, false), KELP_OK);
    ck_assert_int_eq(view().snapshot.state, KELP_SNAPSHOT_TAKING);
}
