/* Progress: records come once, in order, again from the beginning after a restore, and wait. */
#include <stdio.h>
#include <string.h>

#include "coordinator/core/limits.h"
#include "coordinator/core/progress.h"
#include "tests/lib/suite.h"

static struct kelp_progress progress;

static void setup(void)
{
    memset(&progress, 0, sizeof(progress));
}

static void teardown(void)
{
    kelp_progress_fini(&progress);
}

static kelp_status put(uint64_t version, enum kelp_step_kind kind)
{
    struct kelp_record record = {.word = {.version = version, .step = version, .kind = kind},
                                 .metrics = {.present = 1, .of = {(double)version}}};
    return kelp_progress_record(&progress, &record);
}

static void put_digest(uint64_t version, const char *digest)
{
    struct kelp_record record = {
        .word = {.version = version, .step = version, .kind = KELP_STEP_TRAIN}};
    (void)snprintf(record.digest, sizeof(record.digest), "%s", digest);
    ck_assert_int_eq(kelp_progress_record(&progress, &record), KELP_OK);
}

static uint64_t take(void)
{
    const struct kelp_record *record = kelp_progress_peek(&progress);
    ck_assert_ptr_nonnull(record);
    uint64_t version = record->word.version;
    kelp_progress_pop(&progress);
    return version;
}

KELP_CASE("progress", .setup = setup, .teardown = teardown)

/* One that came before is dropped; version 0 is a record like any other. */
KELP_TEST(once_and_in_order)
{
    ck_assert_ptr_null(kelp_progress_peek(&progress));
    ck_assert_int_eq(put(0, KELP_STEP_TRAIN), KELP_OK);
    ck_assert_int_eq(put(3, KELP_STEP_TRAIN), KELP_OK);
    ck_assert_int_eq(put(0, KELP_STEP_TRAIN), KELP_OK);
    ck_assert_int_eq(put(3, KELP_STEP_TRAIN), KELP_OK);
    ck_assert_int_eq(put(4, KELP_STEP_EVALUATE_VAL), KELP_OK);
    ck_assert_uint_eq(progress.records_after, 5);
    ck_assert_uint_eq(take(), 0);
    ck_assert_uint_eq(take(), 3);
    ck_assert_uint_eq(take(), 4);
    ck_assert_ptr_null(kelp_progress_peek(&progress));
}

/* A new generation replays; the same one announced twice does not. */
KELP_TEST(generations)
{
    kelp_progress_restart(&progress, 1);
    ck_assert_int_eq(put(7, KELP_STEP_TRAIN), KELP_OK);
    kelp_progress_restart(&progress, 1);
    ck_assert_uint_eq(progress.records_after, 8);
    kelp_progress_restart(&progress, 2);
    ck_assert_uint_eq(progress.records_after, 0);
    ck_assert_int_eq(put(2, KELP_STEP_TRAIN), KELP_OK);
    ck_assert_uint_eq(take(), 7);
    ck_assert_uint_eq(take(), 2);
}

/* A shard that partition 0 moves to sends all of them once more: what is told does not go back for
 * that, but with training. The files may know a digest of a later step. */
KELP_TEST(told_goes_back_with_training_alone)
{
    kelp_progress_recall(&progress, "22222222222222222222222222222222", 2);
    ck_assert_uint_eq(progress.digest_step, 2);
    kelp_progress_restart(&progress, 1);
    put_digest(6, "66666666666666666666666666666666");
    kelp_progress_recall(&progress, "22222222222222222222222222222222", 2);
    kelp_progress_restart(&progress, 2);
    put_digest(4, "44444444444444444444444444444444");
    ck_assert_uint_eq(progress.digest_step, 6);
    ck_assert_str_eq(progress.digest, "66666666666666666666666666666666");
    kelp_progress_restart(&progress, 3);
    kelp_progress_go_back(&progress);
    put_digest(4, "44444444444444444444444444444444");
    ck_assert_uint_eq(progress.digest_step, 4);
    kelp_progress_recall(&progress, "77777777777777777777777777777777", 7);
    ck_assert_str_eq(progress.digest, "77777777777777777777777777777777");
}

/* A shard that led partition 0 before, and was cut off, goes on from where it stood then. */
KELP_TEST(stands_no_earlier_within_a_generation)
{
    const struct kelp_control_word at_4 = {.version = 4, .step = 4},
                                   at_7 = {.version = 7, .step = 5};
    ck_assert(kelp_progress_stand(&progress, 1, &at_4, NULL));
    ck_assert(kelp_progress_stand(&progress, 1, &at_7, NULL));
    ck_assert(!kelp_progress_stand(&progress, 1, &at_4, NULL));
    ck_assert_uint_eq(progress.word.version, 7);
    ck_assert(kelp_progress_stand(&progress, 1, &at_7, NULL));
    ck_assert(kelp_progress_stand(&progress, 2, &at_4, NULL));
    ck_assert(!kelp_progress_stand(&progress, 1, &at_7, NULL));
    ck_assert_uint_eq(progress.word.version, 4);
}

KELP_TEST(latest)
{
    struct kelp_record record = {.word = {.version = 5, .step = 5, .kind = KELP_STEP_TRAIN},
                                 .epoch_end = true,
                                 .epoch_loss = 0.5,
                                 .digest = "0123456789abcdef0123456789abcdef"};
    ck_assert_int_eq(kelp_progress_record(&progress, &record), KELP_OK);
    ck_assert_int_eq(put(6, KELP_STEP_EVALUATE_VAL), KELP_OK);
    ck_assert_int_eq(put(7, KELP_STEP_EVALUATE_TEST), KELP_OK);
    ck_assert_int_eq(put(8, KELP_STEP_FINISH), KELP_OK);
    ck_assert_double_eq(progress.epoch_loss, 0.5);
    ck_assert_uint_eq(progress.digest_step, 5);
    ck_assert_uint_eq(progress.latest[KELP_SPLIT_TRAIN].word.version, 5);
    ck_assert_uint_eq(progress.latest[KELP_SPLIT_VAL].word.version, 6);
    ck_assert_uint_eq(progress.latest[KELP_SPLIT_TEST].word.version, 7);
}

/* What is computed again need not be on file, unless it is on its way there. */
KELP_TEST(forgotten)
{
    for (uint64_t version = 0; version < 6; version++) {
        ck_assert_int_eq(put(version, KELP_STEP_TRAIN), KELP_OK);
    }
    kelp_progress_forget(&progress, 2, 4);
    ck_assert_uint_eq(progress.queue_count, 4);
    kelp_progress_forget(&progress, 2, 0);
    ck_assert_uint_eq(take(), 0);
    ck_assert_uint_eq(take(), 1);
    ck_assert_ptr_null(kelp_progress_peek(&progress));
    kelp_progress_forget(&progress, 0, 0);
}

/* The queue is bounded, and memory is used again while some come and some go. */
KELP_TEST(bounded)
{
    uint64_t version = 0;
    while (put(version, KELP_STEP_TRAIN) == KELP_OK) {
        version++;
    }
    ck_assert_uint_eq(version, KELP_COORDINATOR_RECORDS_MAX);
    ck_assert_int_eq(put(version, KELP_STEP_TRAIN), KELP_ERR_LIMIT);
    for (uint64_t i = 0; i < 1000; i++) {
        ck_assert_uint_eq(take(), i);
        ck_assert_int_eq(put(version + i, KELP_STEP_TRAIN), KELP_OK);
    }
}
