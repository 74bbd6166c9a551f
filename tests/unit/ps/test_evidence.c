/* Two workers that differ: found in whatever sizes and order their nodes come, and never claimed of
 * workers that agree. */
#include <stdio.h>
#include <string.h>

#include "ps/core/limits.h"
#include "tests/lib/cores/partition_bench.h"
#include "tests/lib/suite.h"

enum { HONEST = 1, OTHER = 2, LIAR = 7 };

static void open_comparing(void)
{
    bench_open_other();
    bench.compares = true;
}

static void push_by(uint32_t author, uint32_t first, uint32_t count, const char *text)
{
    bench.author = author;
    bench_push(first, count, text);
    bench_finish_merges();
}

/* Of the step before the current one. */
static void push_late(uint32_t author, uint32_t first, uint32_t count, const char *text)
{
    struct kelp_control_word word =
        bench_train_word(bench_view().version - 1, bench_view().step - 1);

    bench.author = author;
    bench_push_as(&word, first, count, text, 1);
    bench_finish_merges();
}

static void expect_conflict(uint32_t first, uint32_t second, uint32_t lane_first,
                            uint32_t lane_count)
{
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_uint_eq(bench.conflict.first.of[0], first);
    ck_assert_uint_eq(bench.conflict.second.of[0], second);
    ck_assert_uint_eq(bench.conflict.lane_first, lane_first);
    ck_assert_uint_eq(bench.conflict.lane_count, lane_count);
}

KELP_CASE("gradients", .setup = open_comparing, .teardown = bench_close)

/* A node sent again, whole or in parts, from anybody and at any time, is no conflict. */
KELP_TEST(agreement)
{
    push_by(HONEST, 0, 2, "01");
    push_by(OTHER, 0, 2, "01");
    push_by(OTHER, 0, 1, "0");
    push_by(HONEST, 1, 1, "1");
    push_by(OTHER, 0, 4, "0123"); /* takes the place of 0 to 1 */
    push_by(OTHER, 2, 2, "23");
    bench_finish_apply(true);
    push_late(OTHER, 2, 1, "2");
    push_late(HONEST, 3, 1, "3");
    push_late(HONEST, 0, 2, "01");
    ck_assert_uint_eq(bench.conflict_count, 0);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
}

/* It is told once the root is known to be finite: sums of what is not a number have no bits of
 * their own. The partition then stays where it is. */
KELP_TEST(same_node)
{
    push_by(LIAR, 0, 2, "zero");
    push_by(HONEST, 0, 2, "01");
    push_by(HONEST, 2, 2, "23");
    ck_assert_uint_eq(bench.conflict_count, 0);
    bench_finish_apply(true);
    expect_conflict(LIAR, HONEST, 0, 2);
    ck_assert_int_eq(bench.conflict.kind, KELP_CONFLICT_GRADIENT);
    ck_assert_uint_eq(bench.conflict.step, 0);
    ck_assert_uint_eq(bench.conflict.second.count, 1);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}

KELP_TEST(first_goes_on)
{
    bench.job.failure.on_conflict = KELP_CONFLICT_FIRST;
    push_by(LIAR, 0, 4, "zero");
    bench_finish_apply(true);
    push_late(HONEST, 0, 4, "0123");
    push_late(OTHER, 0, 4, "0123"); /* once for an entry */
    expect_conflict(LIAR, HONEST, 0, 4);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
    ck_assert_uint_eq(bench_view().step, 1);
}

/* One push for all lanes, then the two right ones: too late for the step, not for the comparison.
 */
KELP_TEST(covering_node)
{
    push_by(LIAR, 0, 4, "zero");
    bench_finish_apply(true);
    push_late(HONEST, 0, 2, "01");
    ck_assert_uint_eq(bench.conflict_count, 0); /* perhaps it is part of it */
    push_late(OTHER, 2, 2, "23");
    expect_conflict(LIAR, HONEST, 0, 4);
    ck_assert_uint_eq(bench.conflict.second.count, 2); /* the other one too */
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}

/* It comes in the middle of the step, and takes the place of a right one. */
KELP_TEST(covering_node_replaces)
{
    push_by(HONEST, 0, 1, "0");
    push_by(HONEST, 1, 1, "1");
    push_by(LIAR, 0, 4, "zero");
    bench_finish_apply(true);
    push_late(OTHER, 2, 2, "23");
    expect_conflict(LIAR, HONEST, 0, 4);
    ck_assert_uint_eq(bench.conflict.second.count, 2); /* the other one too */
}

/* Small nodes first, which are taken: whoever pushes them as one node is compared with their sum.
 */
KELP_TEST(small_nodes)
{
    push_by(OTHER, 0, 1, "0");
    push_by(LIAR, 1, 1, "zero");
    push_by(OTHER, 2, 2, "23");
    bench_finish_apply(true);
    push_late(HONEST, 0, 2, "01");
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_uint_eq(bench.conflict.lane_count, 2);
    ck_assert_uint_eq(bench.conflict.first.count, 2);
    ck_assert_uint_eq(bench.conflict.first.of[0], OTHER);
    ck_assert_uint_eq(bench.conflict.first.of[1], LIAR);
    ck_assert_uint_eq(bench.conflict.second.of[0], HONEST);
}

/* Whoever lies also sends what would agree with the lie, in pieces of whatever size, before the
 * right ones come. */
KELP_LOOP_TEST(false_evidence, 0, 3)
{
    static const struct {
        uint32_t first, count;
        const char *text;
    } lies[][4] = {{{0, 1, "ze"}, {1, 1, "r"}, {2, 2, "o"}, {0, 0, NULL}},
                   {{0, 2, "zer"}, {2, 2, "o"}, {0, 0, NULL}, {0, 0, NULL}},
                   {{0, 1, "z"}, {1, 1, "e"}, {2, 1, "r"}, {3, 1, "o"}}};

    push_by(LIAR, 0, 4, "zero");
    bench_finish_apply(true);
    for (int i = 0; i < 4 && lies[_i][i].text; i++) {
        push_late(LIAR, lies[_i][i].first, lies[_i][i].count, lies[_i][i].text);
    }
    ck_assert_uint_eq(bench.conflict_count, 0);
    push_late(HONEST, 0, 1, "0");
    push_late(HONEST, 1, 1, "1");
    push_late(OTHER, 2, 2, "23");
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_uint_eq(bench.conflict.first.of[0], LIAR);
}

/* What was skipped, or ended the job, is not compared: the digests may differ by nature. */
KELP_TEST(not_finite)
{
    push_by(HONEST, 0, 4, "nan");
    push_by(OTHER, 0, 4, "NaN");
    bench_finish_apply(false);
    ck_assert_uint_eq(bench.conflict_count, 0);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}

/* What duplicates are kept does not grow: steps go on, and nothing adds up. */
KELP_TEST(memory_is_bounded)
{
    for (uint32_t i = 0; i < 2 * KELP_PS_EVIDENCE_HELD_MAX; i++) {
        push_by(HONEST, 0, 4, "0123");
        bench_finish_apply(true);
        push_late(OTHER, 1, 1, "1");
        ck_assert_uint_le(bench_live_handles(), KELP_PS_EVIDENCE_HELD_MAX);
    }
    ck_assert_uint_eq(bench.conflict_count, 0);
}

/* A worker that was suspended for very long is not compared. */
KELP_TEST(window)
{
    struct kelp_control_word first = bench_train_word(0, 0);

    push_by(LIAR, 0, 4, "zero");
    bench_finish_apply(true);
    for (uint32_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES - 1; i++) {
        push_by(HONEST, 0, 4, "0123");
        bench_finish_apply(true);
    }
    bench.job.failure.on_conflict = KELP_CONFLICT_FIRST;
    bench_push_as(&first, 0, 4, "0123", 1);
    expect_conflict(LIAR, HONEST, 0, 4); /* the oldest one that is kept */
    push_by(HONEST, 0, 4, "0123");
    bench_finish_apply(true);
    bench_push_as(&first, 0, 4, "other", 1);
    ck_assert_uint_eq(bench.conflict_count, 1);
}

KELP_CASE("words", .setup = open_comparing, .teardown = bench_close)

/* Words alone teach nothing: the right push is taken after any number of forged pulls. */
KELP_TEST(pulls_teach_nothing)
{
    struct kelp_control_word forged = bench_train_word(5, 0);
    struct kelp_pull pull = {.requester = 1,
                             .generation = 3,
                             .map_epoch = 7,
                             .word = &forged,
                             .mode = KELP_PULL_CURRENT};

    ck_assert_int_eq(kelp_partition_pull(bench.partition, &pull, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert(!bench_view().has_word);
    push_by(HONEST, 0, 4, "0123");
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
}

/* Nor does a push that is refused. */
KELP_TEST(refused_pushes_teach_nothing)
{
    struct kelp_control_word forged = bench_train_word(0, 0);

    forged.lr = 0;
    bench_push_as(&forged, 0, 4, NULL, 1);
    ck_assert_uint_eq(bench.refusal_count, 1);
    push_by(HONEST, 0, 4, "0123");
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
}

/* A word that came with content stands, so the partition cannot go on: it says so, once. Nothing
 * was applied, so another generation mends it. */
KELP_TEST(open_word)
{
    struct kelp_control_word forged = bench_train_word(0, 0);

    forged.lr = 0;
    bench.author = LIAR;
    bench_push_as(&forged, 0, 1, "x", 1);
    push_by(HONEST, 0, 2, "01");
    push_by(OTHER, 2, 2, "23");
    ck_assert_uint_eq(bench.refusal_count, 2);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_CONTROL_WORD);
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_int_eq(bench.conflict.kind, KELP_CONFLICT_OPEN_WORD);
    ck_assert_uint_eq(bench.conflict.first.of[0], LIAR);
    ck_assert_uint_eq(bench.conflict.second.of[0], HONEST);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
}

/* The entry was applied by the false word before the right one came. */
KELP_TEST(past_word)
{
    struct kelp_control_word forged = bench_train_word(0, 0);

    forged.lr = 0;
    bench.author = LIAR;
    bench_push_as(&forged, 0, 4, "0123", 1);
    bench_finish_apply(true);
    push_late(HONEST, 0, 4, "0123");
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_int_eq(bench.conflict.kind, KELP_CONFLICT_WORD);
    ck_assert_uint_eq(bench.conflict.first.of[0], LIAR);
    ck_assert_uint_eq(bench.conflict.second.of[0], HONEST);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}

static void open_control(void)
{
    bench_open_control();
    bench.compares = true;
}

KELP_CASE("partition 0", .setup = open_control, .teardown = bench_close)

/* Metric sums are compared like gradients: of the same node, and of those that it adds up. */
KELP_LOOP_TEST(sums, 0, 2)
{
    struct kelp_control_word word = bench_view().word;

    bench.author = LIAR;
    bench_push_as(&word, 0, 4, "0123", 9);
    bench_finish_apply(true);
    bench.author = HONEST;
    if (_i == 0) {
        bench_push_as(&word, 0, 4, "0123", 4);
    } else {
        bench_push_as(&word, 0, 2, "01", 2);
        bench_push_as(&word, 2, 2, "23", 2);
        bench_finish_merges();
    }
    expect_conflict(LIAR, HONEST, 0, 4);
    ck_assert_int_eq(bench.conflict.kind, KELP_CONFLICT_SUMS);
}

KELP_TEST(sums_agree)
{
    struct kelp_control_word word = bench_view().word;

    bench_push_as(&word, 0, 4, "0123", 4);
    bench_finish_apply(true);
    bench_push_as(&word, 0, 2, "01", 1.5);
    bench_push_as(&word, 2, 2, "23", 2.5);
    bench_finish_merges();
    ck_assert_uint_eq(bench.conflict_count, 0);
}

static void finish_measure(void)
{
    const struct kelp_decision_share share = {.count = 1,
                                              .values = {[KELP_DECISION_SHARE_FINITE] = 1.0}};

    ck_assert_int_eq(
        kelp_partition_measured(bench.partition, bench.measure.apply.token, &share, &bench.actions),
        KELP_OK);
    bench_take_actions();
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_DECIDING);
}

static void open_deciding(void)
{
    bench_open_deciding(0);
    bench.compares = true;
}

KELP_CASE("decisions", .setup = open_deciding, .teardown = bench_close)

static void bring_share(uint32_t author, double finite)
{
    struct kelp_control_word word = bench_view().word;
    struct kelp_share_push push = {.requester = 11,
                                   .author = author,
                                   .generation = 3,
                                   .map_epoch = 7,
                                   .word = &word,
                                   .partition = 1,
                                   .share = {.count = 1, .values = {finite}}};

    ck_assert_int_eq(kelp_partition_share(bench.partition, &push, &bench.actions), KELP_OK);
    bench_take_actions();
}

/* What another partition is said to have told. */
KELP_TEST(shares)
{
    bring_share(LIAR, 0.0);
    bring_share(LIAR, 0.0);
    ck_assert_uint_eq(bench.conflict_count, 0);
    bring_share(HONEST, 1.0);
    expect_conflict(LIAR, HONEST, 0, 0);
    ck_assert_int_eq(bench.conflict.kind, KELP_CONFLICT_SHARE);
    ck_assert_uint_eq(bench.conflict.share, 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}

static void open_other_deciding(void)
{
    bench_open_deciding(1);
    bench.compares = true;
}

KELP_CASE("other decisions", .setup = open_other_deciding, .teardown = bench_close)

static void pull_with(uint32_t author, uint64_t version, bool skipped)
{
    struct kelp_control_word word = bench_train_word(version, 1);
    struct kelp_pull pull = {.requester = 11,
                             .author = author,
                             .generation = 3,
                             .map_epoch = 7,
                             .word = &word,
                             .mode = KELP_PULL_CURRENT};

    word.skipped = skipped;
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &pull, &bench.actions), KELP_OK);
    bench_take_actions();
}

/* What partition 0 is said to have decided: each partition hears it from one worker, and compares
 * what the others say. */
KELP_LOOP_TEST(decisions, 1, 3)
{
    push_by(HONEST, 0, 4, "0123");
    finish_measure();
    pull_with(LIAR, (uint64_t)_i, true);
    ck_assert_uint_eq(bench.repeat_count, 1); /* it is skipped */
    pull_with(LIAR, (uint64_t)_i, true);
    ck_assert_uint_eq(bench.conflict_count, 0);
    pull_with(HONEST, 1, false);
    expect_conflict(LIAR, HONEST, 0, 0);
    ck_assert_int_eq(bench.conflict.kind, KELP_CONFLICT_DECISION);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}
