/* One partition: pushes and duplicates, words and fences, pulls, and what partition 0 decides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cores/partition_bench.h"
#include "tests/lib/suite.h"

KELP_CASE("other partitions", .setup = bench_open_other, .teardown = bench_close)

/* The order in which lanes come does not change how they are associated. */
KELP_LOOP_TEST(association_is_by_position, 0, 4)
{
    static const uint32_t orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};
    static const char *const names[] = {"0", "1", "2", "3"};

    for (size_t i = 0; i < 4; i++) {
        bench_push(orders[_i][i], 1, names[orders[_i][i]]);
    }
    bench_finish_merges();
    ck_assert_uint_eq(bench.apply_count, 1);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "((0+1)+(2+3))");
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().step, 1);
}

/* A node under one that is there, or the same again, is dropped and counted. */
KELP_TEST(covered_nodes_are_duplicates)
{
    bench_push(0, 2, "01");
    bench_push(0, 1, "0");
    bench_push(1, 1, "1");
    bench_push(0, 2, "01");
    ck_assert_uint_eq(bench_view().duplicates, 3);
    ck_assert_uint_eq(bench_view().pending, 1);
    bench_push(2, 2, "23");
    bench_push(2, 1, "2"); /* while the root is being merged */
    ck_assert_uint_eq(bench_view().duplicates, 4);
    bench_finish_merges();
    bench_push(3, 1, "3"); /* while it is being applied */
    ck_assert_uint_eq(bench_view().duplicates, 5);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "(01+23)");
    bench_finish_apply(true);
}

/* The addition of all lanes says so, and no other one does: its result is only read. */
KELP_TEST(the_last_addition_is_known)
{
    for (uint32_t lane = 0; lane < 4; lane++) {
        bench_push(lane, 1, "g");
    }
    ck_assert_uint_eq(bench.merge_count, 2);
    ck_assert(!bench.merges[0].merge.is_root);
    ck_assert(!bench.merges[1].merge.is_root);
    bench_finish_merge(0);
    bench_finish_merge(0);
    ck_assert_uint_eq(bench.merge_count, 1);
    ck_assert(bench.merges[0].merge.is_root);
    bench_finish_merges();
    bench_finish_apply(true);
}

/* A larger node takes the place of what it contains, merges under way included. */
KELP_TEST(superset_replaces_what_it_contains)
{
    bench_push(0, 1, "0");
    bench_push(1, 1, "1"); /* asks for 0+1 */
    bench_push(2, 1, "2");
    ck_assert_uint_eq(bench.merge_count, 1);
    bench_push(0, 4, "all");
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
    bench_finish_merges(); /* the late result is released */
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "all");
    ck_assert_uint_eq(bench_live_handles(), 2); /* "2" is kept, to be compared */
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_live_handles(), 1);
}

/* A late merge result of a replaced node never lands in a newer merge of the same place. */
KELP_TEST(late_merge_of_an_older_entry_is_released)
{
    bench_push(0, 1, "0");
    bench_push(1, 1, "1");
    bench_push(0, 4, "all");
    bench_finish_apply(true);
    bench_push(0, 1, "a");
    bench_push(1, 1, "b"); /* same place, next step */
    ck_assert_uint_eq(bench.merge_count, 2);
    bench_finish_merge(0); /* 0+1, of the step before */
    ck_assert_uint_eq(bench_view().pending, 1);
    bench_push(2, 2, "cd");
    bench_finish_merges();
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "((a+b)+cd)");
    bench_finish_apply(true);
}

/* Empty nodes are the identity: what they meet moves up untouched, without a merge. */
KELP_TEST(empty_nodes_are_the_identity)
{
    struct kelp_control_word word = bench_train_word(0, 0);

    word.sample_count = 1; /* lane 3 alone has it */
    bench_push_as(&word, 0, 1, NULL, 0);
    bench_push_as(&word, 1, 1, NULL, 0);
    bench_push_as(&word, 3, 1, "3", 1);
    bench_push_as(&word, 2, 1, NULL, 0);
    ck_assert_uint_eq(bench.merge_count, 0);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "3");
    bench_finish_apply(true);
}

/* Nodes whose gradient is missing, or there without samples, are refused: a root is never empty. */
KELP_TEST(gradient_must_match_the_samples)
{
    struct kelp_control_word word = bench_train_word(0, 0);

    bench_push_as(&word, 0, 2, NULL, 0);
    ck_assert_uint_eq(bench.refusal_count, 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
    word = bench_train_word(0, 0);
    word.sample_count = 0;
    bench_push_as(&word, 0, 4, NULL, 0);
    ck_assert_uint_eq(bench.refusal_count, 2);
}

KELP_LOOP_TEST(lane_ranges_are_checked, 0, 8)
{
    static const uint32_t bad[][2] = {{1, 2}, {0, 3}, {0, 0},          {4, 1},
                                      {0, 8}, {3, 2}, {UINT32_MAX, 1}, {0, UINT32_MAX}};

    bench_push(bad[_i][0], bad[_i][1], "x");
    ck_assert_uint_eq(bench.refusal_count, 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
    ck_assert_uint_eq(bench_live_handles(), 0);
}

/* Fences: older is refused by name, newer waits for the map. */
KELP_LOOP_TEST(fences, 0, 5)
{
    struct kelp_control_word word = bench_train_word(0, 0);
    static const struct {
        uint64_t generation, map_epoch;
        kelp_status status;
    } cases[] = {{2, 7, KELP_ERR_OLD_GENERATION},
                 {4, 7, KELP_ERR_BUSY},
                 {3, 6, KELP_ERR_OLD_MAP_EPOCH},
                 {3, 8, KELP_ERR_BUSY},
                 {0, 0, KELP_ERR_OLD_GENERATION}};
    struct kelp_push request = {.requester = 5,
                                .generation = cases[_i].generation,
                                .map_epoch = cases[_i].map_epoch,
                                .word = &word,
                                .lane_count = 4,
                                .handle = bench_new_handle("x")};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &request, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_int_eq(bench.refusal.status, cases[_i].status);
    ck_assert_uint_eq(bench.refusal.map_epoch, 7);
    ck_assert_uint_eq(bench.refusal.requester, 5);

    struct kelp_pull asked = {.requester = 6,
                              .generation = cases[_i].generation,
                              .map_epoch = cases[_i].map_epoch,
                              .mode = KELP_PULL_CURRENT};
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &asked, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_int_eq(bench.answers[0].status, cases[_i].status);
    ck_assert_uint_eq(bench.answers[0].requester, 6);
    ck_assert_uint_eq(bench_view().pending, 0);
}

/* Late pushes are dropped silently; pushes from the future cannot be and are refused. */
KELP_TEST(steps_before_and_after)
{
    bench_train_step();
    struct kelp_control_word word = bench_train_word(0, 0);
    bench_push_as(&word, 0, 4, "late", 1);
    ck_assert_uint_eq(bench.refusal_count, 0);
    ck_assert_uint_eq(bench_view().duplicates, 1);
    word = bench_train_word(9, 9);
    bench_push_as(&word, 0, 4, "early", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
}

/* Two words for one version: the second is refused. */
KELP_TEST(words_must_agree)
{
    struct kelp_control_word word = bench_train_word(4, 0);
    bench_push_as(&word, 0, 1, "0", 1);
    ck_assert_uint_eq(bench_view().version, 4);
    word.lr = 0.25;
    bench_push_as(&word, 1, 1, "1", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_CONTROL_WORD);
    word = bench_train_word(5, 0); /* another training entry for the same weights */
    bench_push_as(&word, 1, 1, "1", 1);
    ck_assert_uint_eq(bench.refusal_count, 2);
    word = bench_train_word(3, 0);
    bench_push_as(&word, 1, 1, "1", 1);
    ck_assert_uint_eq(bench.refusal_count, 3);
    word = bench_train_word(4, 0);
    bench_push_as(&word, 1, 1, "1", 1);
    ck_assert_uint_eq(bench.refusal_count, 3);
}

KELP_CASE("what is skipped", .setup = bench_open_skipping, .teardown = bench_close)

/* One step that is skipped; the partition is the only one. */
static void skip_step(void)
{
    static const struct kelp_decision_share bad = {.count = 1, .values = {0}};
    struct kelp_control_word word = bench_view().word;

    bench_push_as(&word, 0, 4, "nan", 1);
    ck_assert_int_eq(
        kelp_partition_measured(bench.partition, bench.measure.apply.token, &bad, &bench.actions),
        KELP_OK);
    bench_take_actions();
}

/* At the end of an epoch of which more was skipped than applied nothing goes on, and no snapshot is
 * taken. */
KELP_TEST(gives_up)
{
    skip_step();
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
    ck_assert_uint_eq(bench.repeat_count, 1);
    ck_assert_uint_eq(bench.give_up_count, 0);
    bench_pull(1, KELP_PULL_VERSION, 2, false, 0);
    skip_step();
    ck_assert_uint_eq(bench.record_count, 2);
    ck_assert(bench.record.epoch_end);
    ck_assert_uint_eq(bench.give_up_count, 1);
    ck_assert_uint_eq(bench.give_up.give_up.steps, 2);
    ck_assert_uint_eq(bench.give_up.give_up.skipped, 2);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
    ck_assert_uint_eq(bench.answer_count, 0);
    struct kelp_snapshot_order order = {.serial = 1, .generation = 3, .step = 2};
    ck_assert_int_eq(kelp_partition_snapshot(bench.partition, &order, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_uint_eq(bench.snapshot_count, 0);
}

KELP_CASE("partition 0", .setup = bench_open_control, .teardown = bench_close)

/* Partition 0 compares with its own word. */
KELP_TEST(control_checks_the_word)
{
    struct kelp_control_word word = bench_view().word;
    word.sample_count--;
    bench_push_as(&word, 0, 4, "x", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_CONTROL_WORD);
    word = bench_view().word;
    word.version++;
    bench_push_as(&word, 0, 4, "x", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
    ck_assert_uint_eq(bench.refusal_count, 2);
}

KELP_CASE("other partitions", .setup = bench_open_other, .teardown = bench_close)

/* The other partitions pass evaluation entries when the word of the training entry arrives. */
KELP_TEST(evaluation_entries_pass)
{
    bench_train_step(); /* version 0; the next it hears of is 3: 1 and 2 were evaluations */
    ck_assert_uint_eq(bench_view().version, 1);
    ck_assert(!bench_view().has_word);

    struct kelp_control_word seen = {.version = 2, .step = 1, .kind = KELP_STEP_EVALUATE_TEST};
    struct kelp_pull asked = {
        .requester = 1, .generation = 3, .map_epoch = 7, .word = &seen, .mode = KELP_PULL_CURRENT};
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &asked, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_int_eq(bench.answers[0].status, KELP_OK);
    ck_assert(!bench_view().has_word);
    seen.version = 0; /* of the step before, it says */
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &asked, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_int_eq(bench.answers[1].status, KELP_ERR_CONTROL_WORD);

    struct kelp_control_word word = bench_train_word(3, 1);
    bench_push_as(&word, 0, 4, "r", 1);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().version, 4);
    ck_assert_uint_eq(bench_view().step, 2);

    seen.version = 4; /* they carry no gradient anywhere but on partition 0 */
    seen.step = 2;
    bench_push_as(&seen, 0, 4, NULL, 0);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
}

/* Pulls by step: current and older at once, later ones wait, older ones are gone. */
KELP_TEST(pulls_by_step)
{
    bench_pull(1, KELP_PULL_STEP, 0, false, 0);
    ck_assert_uint_eq(bench.answers[0].send, KELP_WEIGHTS_CURRENT);
    bench_pull(2, KELP_PULL_STEP, 1, false, 0);
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_uint_eq(bench_view().waiting, 1);
    bench_train_step();
    ck_assert_uint_eq(bench.answer_count, 2);
    ck_assert_uint_eq(bench.answers[1].requester, 2);
    ck_assert_uint_eq(bench.answers[1].step, 1);
    bench_pull(3, KELP_PULL_STEP, 0, false, 0);
    ck_assert_uint_eq(bench.answers[2].send, KELP_WEIGHTS_OLDER);
    ck_assert_uint_eq(bench.answers[2].step, 0);
    ck_assert_uint_eq(bench.answers[2].current_step, 1);
    bench_train_step();
    bench_pull(4, KELP_PULL_STEP, 0, false, 0);
    ck_assert_int_eq(bench.answers[3].status, KELP_ERR_NOT_FOUND);
    ck_assert_uint_eq(bench.answers[3].current_step, 2);
    bench_pull(5, KELP_PULL_CURRENT, 0, true, 2);
    ck_assert_uint_eq(bench.answers[4].send, KELP_WEIGHTS_NONE);
    ck_assert_uint_eq(bench.answers[4].step, 2);
    ck_assert(!bench.answers[4].has_word);
}

/* The older weights go when the apply begins: their buffer takes the next ones. */
KELP_TEST(older_weights_end_with_the_apply)
{
    bench_train_step();
    bench_push(0, 4, "r");
    bench_pull(1, KELP_PULL_STEP, 0, false, 0);
    ck_assert_int_eq(bench.answers[0].status, KELP_ERR_NOT_FOUND);
    bench_pull(1, KELP_PULL_STEP, 1, false, 0);
    ck_assert_int_eq(bench.answers[1].status, KELP_OK);
    bench_finish_apply(true);
    bench_pull(1, KELP_PULL_STEP, 1, false, 0);
    ck_assert_uint_eq(bench.answers[2].send, KELP_WEIGHTS_OLDER);
}

/* One waiting pull for each requester and mode; a requester that left is not answered. */
KELP_TEST(waiting_pulls)
{
    bench_pull(1, KELP_PULL_STEP, 1, false, 0);
    bench_pull(1, KELP_PULL_STEP, 1, true, 0);
    bench_pull(2, KELP_PULL_STEP, 1, false, 0);
    bench_pull(3, KELP_PULL_STEP, 2, false, 0);
    ck_assert_uint_eq(bench_view().waiting, 3);
    kelp_partition_drop(bench.partition, 2);
    ck_assert_uint_eq(bench_view().waiting, 2);
    bench_train_step();
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_uint_eq(bench.answers[0].requester, 1);
    bench_train_step();
    ck_assert_uint_eq(bench.answer_count, 2);
    ck_assert_uint_eq(bench.answers[1].requester, 3);
    bench_pull(4, KELP_PULL_VERSION, 1, false, 0);
    ck_assert_int_eq(bench.answers[2].status, KELP_ERR_INVALID); /* not partition 0 */
    bench_pull(4, (enum kelp_pull_mode)9, 1, false, 0);
    ck_assert_int_eq(bench.answers[3].status, KELP_ERR_INVALID);
}

/* A generation's end answers those who wait, and releases what is pending. */
KELP_TEST(unload_and_load)
{
    bench_pull(1, KELP_PULL_STEP, 1, false, 0);
    bench_push(0, 1, "0");
    bench_push(2, 1, "2");
    bench_push(3, 1, "3"); /* merge under way */
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_int_eq(bench.answers[0].status, KELP_ERR_OLD_GENERATION);
    struct kelp_partition_start start = {.generation = 4, .map_epoch = 8};
    kelp_partition_load(bench.partition, &start);
    bench_finish_merges();
    ck_assert_uint_eq(bench_live_handles(), 0);
    ck_assert_uint_eq(bench_view().pending, 0);
    ck_assert_uint_eq(bench_view().generation, 4);
    bench_push(0, 4, "x");
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_OLD_GENERATION);
}

/* Nothing is loaded: everyone is asked to come back. */
KELP_TEST(absent_is_busy)
{
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    struct kelp_control_word word = bench_train_word(0, 0);
    bench_push_as(&word, 0, 4, "x", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_BUSY);
    bench_pull(1, KELP_PULL_CURRENT, 0, false, 0);
    ck_assert_int_eq(bench.answers[0].status, KELP_ERR_BUSY);
}

/* A gradient that is not finite: nothing is applied, and nothing more is. */
KELP_TEST(not_finite_stops)
{
    bench_pull(1, KELP_PULL_STEP, 1, false, 0);
    bench_push(0, 4, "nan");
    bench_finish_apply(false);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
    ck_assert_uint_eq(bench_view().step, 0);
    ck_assert_uint_eq(bench_view().waiting, 1);
    ck_assert_uint_eq(bench_live_handles(), 0);
    bench_push(0, 4, "again");
    ck_assert_uint_eq(bench.apply_count, 1);
    bench_pull(2, KELP_PULL_CURRENT, 0, false, 0);
    ck_assert_int_eq(bench.answers[0].status, KELP_OK);
}

/* The apply of a generation that ended meanwhile changes nothing. */
KELP_TEST(late_apply_is_ignored)
{
    bench_push(0, 4, "r");
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    bench_take_actions();
    struct kelp_partition_start start = {.generation = 4, .map_epoch = 7};
    kelp_partition_load(bench.partition, &start);
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().step, 0);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
}

static void complete_control(double loss)
{
    struct kelp_control_word word = bench_view().word;
    bench_push_as(&word, 0, 4, word.kind == KELP_STEP_TRAIN ? "r" : NULL, loss);
    if (word.kind == KELP_STEP_TRAIN) {
        bench_finish_apply(true);
    }
}

KELP_CASE("partition 0", .setup = bench_open_control, .teardown = bench_close)

/* Partition 0 walks through the whole schedule; versions count entries, steps training steps. */
KELP_TEST(whole_schedule)
{
    static const enum kelp_step_kind kinds[] = {
        KELP_STEP_TRAIN,  KELP_STEP_TRAIN, KELP_STEP_EVALUATE_VAL, KELP_STEP_EVALUATE_TEST,
        KELP_STEP_TRAIN,  KELP_STEP_TRAIN, KELP_STEP_EVALUATE_VAL, KELP_STEP_EVALUATE_TEST,
        KELP_STEP_FINISH, KELP_STEP_DONE};
    static const uint64_t steps[] = {0, 1, 2, 2, 2, 3, 4, 4, 4, 4};

    for (uint64_t v = 0; v < KELP_ARRAY_COUNT(kinds); v++) {
        ck_assert_uint_eq(bench_view().version, v);
        ck_assert_uint_eq(bench_view().word.kind, kinds[v]);
        ck_assert_uint_eq(bench_view().step, steps[v]);
        bench.answer_count = 0;
        if (kinds[v] == KELP_STEP_DONE) {
            complete_control(0);
            ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
            break;
        }
        bench_pull(1, KELP_PULL_VERSION, v + 1, true, steps[v]);
        ck_assert_uint_eq(bench.answer_count, 0);
        if (kinds[v] == KELP_STEP_TRAIN && bench_view().word.step_in_epoch == 1) {
            struct kelp_control_word word = bench_view().word; /* one sample, lane 3's */
            bench_push_as(&word, 0, 2, NULL, 0);
            bench_push_as(&word, 2, 1, NULL, 0);
            bench_push_as(&word, 3, 1, "3", 1);
            bench_finish_apply(true);
        } else {
            complete_control(1);
        }
        ck_assert_uint_eq(bench.record_count, v + 1);
        ck_assert_uint_eq(bench.record.word.version, v);
        ck_assert_uint_eq(bench.answer_count, 1);
        ck_assert_uint_eq(bench.answers[0].word.version, v + 1);
        ck_assert_uint_eq(bench.answers[0].send,
                          kinds[v] == KELP_STEP_TRAIN ? KELP_WEIGHTS_CURRENT : KELP_WEIGHTS_NONE);
    }
    ck_assert_uint_eq(bench.refusal_count, 1);
}

/* The older weights go with the TRAIN word that consumed them, also across evaluations. */
KELP_TEST(older_weights_have_their_word)
{
    struct kelp_control_word word = bench_view().word;
    complete_control(1);
    bench_pull(1, KELP_PULL_STEP, 0, false, 0);
    ck_assert(bench.answers[0].has_word);
    ck_assert(kelp_control_word_equal(&bench.answers[0].word, &word));
    word = bench_view().word;
    bench_push_as(&word, 0, 2, NULL, 0);
    bench_push_as(&word, 2, 2, "23", 1);
    bench_finish_apply(true);
    complete_control(1); /* an evaluation: the weights stay, and so does what can be read */
    bench_pull(1, KELP_PULL_STEP, 1, false, 0);
    ck_assert_int_eq(bench.answers[1].status, KELP_OK);
    ck_assert(kelp_control_word_equal(&bench.answers[1].word, &word));
    bench_pull(1, KELP_PULL_VERSION, 1, true, 2); /* long passed: answered with the current word */
    ck_assert_uint_eq(bench.answers[2].word.version, 3);
    ck_assert_uint_eq(bench.answers[2].send, KELP_WEIGHTS_NONE);
}

/* Sums are added along the tree; the record of an entry is made of them. */
KELP_TEST(sums_go_along_the_tree)
{
    struct kelp_control_word word = bench_view().word;
    bench_push_as(&word, 3, 1, "3", 1e-17);
    bench_push_as(&word, 0, 1, "0", 1.0);
    bench_push_as(&word, 2, 1, "2", 1e-17);
    bench_push_as(&word, 1, 1, "1", -1.0);
    bench_finish_merges();
    bench_finish_apply(true);
    /* ((1 - 1) + (1e-17 + 1e-17)) / 4 samples; any other association loses the small ones */
    ck_assert_double_eq(bench.record.metrics.of[KELP_METRIC_LOSS], 2e-17 / 4);
}

/* An evaluation node with a gradient, sums missing, a digest missing: refused. */
KELP_TEST(control_content_is_checked)
{
    struct kelp_control_word word = bench_view().word;
    struct kelp_push request = {.generation = 3,
                                .map_epoch = 7,
                                .word = &word,
                                .lane_count = 4,
                                .handle = bench_new_handle("x")};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &request, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_uint_eq(bench.refusal_count, 1); /* no sums */

    complete_control(1);
    word = bench_view().word;
    bench_push_as(&word, 0, 2, NULL, 0);
    bench_push_as(&word, 2, 2, "23", 1);
    bench_finish_apply(true);
    word = bench_view().word;
    ck_assert_uint_eq(word.kind, KELP_STEP_EVALUATE_VAL);
    bench_push_as(&word, 0, 4, "gradient", 1);
    ck_assert_uint_eq(bench.refusal_count, 2);

    while (bench_view().word.kind != KELP_STEP_FINISH) {
        word = bench_view().word;
        if (word.kind == KELP_STEP_TRAIN && word.sample_count == 1) {
            bench_push_as(&word, 0, 2, NULL, 0);
            bench_push_as(&word, 2, 2, "23", 1);
            bench_finish_apply(true);
        } else {
            complete_control(1);
        }
    }
    word = bench_view().word;
    ck_assert(word.digest_due);
    double sums[KELP_METRIC_SUM_COUNT] = {0};
    static const char *const digests[] = {NULL, "", "0011", "00112233445566778899AABBCCDDEEFF",
                                          "00112233445566778899aabbccddeefff"};
    request = (struct kelp_push){
        .generation = 3, .map_epoch = 7, .word = &word, .lane_count = 4, .sums = sums};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(digests); i++) {
        request.digest = digests[i];
        ck_assert_int_eq(kelp_partition_push(bench.partition, &request, &bench.actions), KELP_OK);
        bench_take_actions();
        ck_assert_uint_eq(bench.refusal_count, 3 + i);
    }
    complete_control(0);
    ck_assert_str_eq(bench.record.digest, "00112233445566778899aabbccddeeff");
    ck_assert_uint_eq(bench_view().word.kind, KELP_STEP_DONE);
}

KELP_CASE("hollow", .setup = bench_open_hollow, .teardown = bench_close)

/* A partition without elements goes along with the others, without gradients. */
KELP_TEST(hollow_partition_steps)
{
    bench_push(0, 2, "something");
    ck_assert_uint_eq(bench.refusal_count, 1);
    bench_push(0, 2, NULL);
    bench_push(2, 1, NULL);
    bench_push(3, 1, NULL);
    ck_assert_uint_eq(bench.merge_count, 0);
    ck_assert_uint_eq(bench.apply.apply.root, KELP_HANDLE_NONE);
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().step, 1);
}
