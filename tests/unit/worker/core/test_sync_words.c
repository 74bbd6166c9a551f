/* A worker that waits for what follows, while partition 0 goes on without it: which words it
 * follows, and from which it asks every partition again where it stands. */
#include "tests/lib/suite.h"
#include "worker/core/sync.h"

#define PARTITIONS 2

static struct kelp_sync *sync;

static struct kelp_control_word word_of(uint64_t version, enum kelp_step_kind kind, uint64_t step)
{
    return (struct kelp_control_word){.version = version, .kind = kind, .step = step};
}

/* What a partition has, with its word if it is partition 0. */
static void answer(uint32_t partition, const struct kelp_control_word *word, uint64_t step)
{
    (void)kelp_sync_take(sync, &(struct kelp_sync_answer){.partition = partition,
                                                          .step = step,
                                                          .current_step = step,
                                                          .has_weights = true,
                                                          .word = word});
}

/* It holds that word, and asks for what follows. */
static void hold(const struct kelp_control_word *word)
{
    struct kelp_control_word held;
    bool swap;

    sync = kelp_sync_create(PARTITIONS);
    ck_assert_ptr_nonnull(sync);
    answer(0, word, word->step);
    answer(1, NULL, word->step);
    ck_assert(kelp_sync_complete(sync, &held, &swap));
    ck_assert_uint_eq(held.version, word->version);
    kelp_sync_next(sync);
    ck_assert_int_eq(kelp_sync_state(sync), KELP_SYNC_GATHERING);
}

static void teardown(void)
{
    kelp_sync_destroy(sync);
}

KELP_CASE("words", .teardown = teardown)

/* The training step that it holds is done: the others will have it too. */
KELP_TEST(next_step)
{
    struct kelp_control_word held = word_of(3, KELP_STEP_TRAIN, 1);
    struct kelp_control_word next = word_of(4, KELP_STEP_TRAIN, 2);

    hold(&held);
    answer(0, &next, 2);
    ck_assert_int_eq(kelp_sync_state(sync), KELP_SYNC_GATHERING);
}

/* Another evaluation of the same weights. */
KELP_TEST(next_evaluation)
{
    struct kelp_control_word held = word_of(1, KELP_STEP_EVALUATE_VAL, 1);
    struct kelp_control_word next = word_of(2, KELP_STEP_EVALUATE_TEST, 1), now;
    bool swap;

    hold(&held);
    answer(0, &next, 1);
    ck_assert(kelp_sync_complete(sync, &now, &swap));
    ck_assert_uint_eq(now.version, 2);
}

/* It held an evaluation, and partition 0 has done a training step since, of which it has not seen
 * the word. The other partition may lack that step, and nobody else may know of it: it goes back to
 * the weights before. */
KELP_TEST(missed_step)
{
    struct kelp_control_word held = word_of(1, KELP_STEP_EVALUATE_VAL, 1);
    struct kelp_control_word later = word_of(4, KELP_STEP_TRAIN, 2);
    struct kelp_control_word missed = word_of(3, KELP_STEP_TRAIN, 1), now;
    struct kelp_sync_pull pull;
    bool swap;

    hold(&held);
    answer(0, &later, 2);
    ck_assert_int_eq(kelp_sync_state(sync), KELP_SYNC_SCANNING);
    answer(0, &later, 2);
    answer(1, NULL, 1);
    ck_assert(kelp_sync_pull(sync, 0, &pull));
    ck_assert_int_eq(pull.mode, KELP_SYNC_PULL_STEP);
    ck_assert_uint_eq(pull.step, 1);
    answer(0, &missed, 1);
    ck_assert(kelp_sync_complete(sync, &now, &swap));
    ck_assert_uint_eq(now.version, 3);
    ck_assert_int_eq(now.kind, KELP_STEP_TRAIN);
}
