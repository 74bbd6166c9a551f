/* A step begins with its first weights, while the others come: when it does, when it is given up,
 * and what the worker holds then. */
#include "tests/lib/cores/stepper_bench.h"
#include "tests/lib/suite.h"

static int content;

/* Holds weights of step 0, has pushed lanes [0, 2) to both shards, and waits for what follows. */
static void setup(void)
{
    stepper_setup();
    kelp_stepper_go_ahead(stepper_bench.stepper);
    stepper_push_first_step(&content);
}

static void answer(uint32_t partition, const struct kelp_control_word *word)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    event.answer.link = stepper_link_of(partition);
    event.answer.generation = 1;
    event.answer.answer = (struct kelp_sync_answer){.partition = partition,
                                                    .step = word->step,
                                                    .current_step = word->step,
                                                    .has_weights = true,
                                                    .word = partition == 0 ? word : NULL};
    stepper_take(&event);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_KEEP), 1);
}

/* Partition 0 has answered: lanes of step 1 are handed out. */
static void hand_out_ahead(void)
{
    const struct kelp_control_word word = stepper_word_of(1);
    answer(0, &word);
    stepper_turn();
    const struct kelp_stepper_action *work = stepper_find(KELP_STEPPER_COMPUTE, 0);
    ck_assert_ptr_nonnull(work);
    ck_assert(work->compute.ahead);
    ck_assert(!work->compute.offered);
    ck_assert_uint_eq(work->compute.word.step, 1);
    ck_assert_uint_eq(work->compute.lane_first, 0);
    ck_assert_uint_eq(work->compute.lane_count, 2);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_BEGIN), 0);
}

static struct kelp_stepper_event computed(void)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_COMPUTED};
    event.computed.lane_count = 2;
    event.computed.present = true;
    event.computed.content = &stepper_bench.plan;
    return event;
}

static void expect_refused(const struct kelp_stepper_event *event)
{
    ck_assert_int_eq(kelp_stepper_event(stepper_bench.stepper, event, &stepper_bench.actions),
                     KELP_ERR_INVALID);
}

static void offer(uint64_t step, uint32_t lane)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_OFFER};
    event.offer.generation = 1;
    event.offer.word = stepper_word_of(step);
    event.offer.lane_first = lane;
    event.offer.lane_count = 1;
    stepper_take(&event);
}

KELP_CASE("stepper, ahead", .setup = setup, .teardown = stepper_teardown)

/* Not before partition 0 with the word is there. The last weights are kept before the version
 * begins, and until then nothing of it is taken. */
KELP_TEST(begins_with_the_first_partition)
{
    const struct kelp_control_word word = stepper_word_of(1);
    struct kelp_stepper_event event = computed();
    answer(1, &word);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_COMPUTE), 0);
    hand_out_ahead();
    expect_refused(&event);
    event.kind = KELP_STEPPER_PARTLY;
    event.computed.partition_first = 2;
    expect_refused(&event);
    answer(2, &word);
    ck_assert_int_eq(stepper_bench.actions.items[0].kind, KELP_STEPPER_KEEP);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
    ck_assert(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.swap);
    ck_assert_ptr_eq(stepper_find(KELP_STEPPER_RELEASE, 0)->release, &content);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_COMPUTE), 0);
    stepper_take(&event);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.word.step, 1);
    event = computed();
    stepper_take(&event);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_COMPUTE), 0);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 2);
}

/* Whoever does not compute ahead waits for all; so does a step with a digest, and an evaluation. */
KELP_LOOP_TEST(waits_for_all, 0, 3)
{
    struct kelp_control_word word = stepper_word_of(1);
    if (_i == 0) {
        stepper_teardown();
        stepper_setup();
        stepper_push_first_step(&content);
    }
    word.digest_due = _i == 1;
    word.kind = _i == 2 ? KELP_STEP_EVALUATE_VAL : KELP_STEP_TRAIN;
    answer(0, &word);
    answer(1, &word);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_COMPUTE), 0);
    answer(2, &word);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_BEGIN), 0);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_BEGIN), 1);
    ck_assert(!stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.ahead);
}

/* Some partition lacks lanes of the step before, and offers them: its weights would never come.
 * Those lanes are computed from the weights that are held still, and then the step begins. */
KELP_LOOP_TEST(an_offer_comes_first, 0, 2)
{
    const struct kelp_control_word word = stepper_word_of(1);
    struct kelp_stepper_event event = computed();
    if (_i == 0) {
        hand_out_ahead();
        offer(0, 3);
        ck_assert_uint_eq(stepper_count(KELP_STEPPER_GIVE_UP), 1);
        ck_assert(!stepper_find(KELP_STEPPER_GIVE_UP, 0)->give_up_swap);
        stepper_take(&event); /* what is computed too late is of no use */
        ck_assert_ptr_eq(stepper_find(KELP_STEPPER_RELEASE, 0)->release, event.computed.content);
    } else { /* it was there before */
        offer(0, 3);
        answer(0, &word);
    }
    stepper_turn();
    const struct kelp_stepper_action *work = stepper_find(KELP_STEPPER_COMPUTE, 0);
    ck_assert(work->compute.offered);
    ck_assert(!work->compute.ahead);
    ck_assert_uint_eq(work->compute.word.step, 0);
    ck_assert_uint_eq(work->compute.lane_first, 3);
    stepper_push(3, 1, &stepper_bench.job);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 2);
    ck_assert(stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.ahead);
    answer(1, &word);
    answer(2, &word);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 2);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
}

/* An offer of another version, or of lanes that were computed, changes nothing. */
KELP_TEST(other_offers_wait)
{
    hand_out_ahead();
    offer(1, 3);
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    offer(0, 1);
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
}

/* A new generation, or a job that went on without this worker: nothing of it counts. What comes
 * then is kept where nobody reads. */
KELP_LOOP_TEST(the_job_goes_elsewhere, 0, 2)
{
    struct kelp_stepper_event event = computed();
    hand_out_ahead();
    if (_i == 0) {
        stepper_get_news(2, 0, 2);
    } else {
        struct kelp_stepper_event gone = {.kind = KELP_STEPPER_ANSWER};
        gone.answer.link = stepper_link_of(2);
        gone.answer.generation = 1;
        gone.answer.answer = (struct kelp_sync_answer){
            .partition = 2, .status = KELP_ERR_NOT_FOUND, .step = 5, .current_step = 5};
        stepper_take(&gone);
    }
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_GIVE_UP), 1);
    ck_assert(stepper_find(KELP_STEPPER_GIVE_UP, 0)->give_up_swap);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
    stepper_take(&event);
    ck_assert_ptr_eq(stepper_find(KELP_STEPPER_RELEASE, 0)->release, event.computed.content);
    stepper_turn();
    stepper_answer_all(_i == 0 ? 2 : 1, 5);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_BEGIN), 0);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 5);
    ck_assert(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.swap);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.lane_count, 2);
}

/* Its owner came back without it: the lanes are handed out again. */
KELP_TEST(the_owner_comes_back)
{
    hand_out_ahead();
    for (int i = 0; i < 2; i++) {
        stepper_turn();
        ck_assert(stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.ahead);
        ck_assert_uint_eq(stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.lane_count, 2);
    }
}

/* A stream that breaks meanwhile gets what it may lack of the step before. */
KELP_TEST(what_was_lost_is_sent_again)
{
    const uint32_t link = stepper_link_of(2);
    hand_out_ahead();
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream.link = link});
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_GIVE_UP), 0);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = link});
    const struct kelp_stepper_message *again = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(again->push_count, 1);
    ck_assert_ptr_eq(again->pushes[0].node->content, &content);
    ck_assert_uint_eq(again->word.step, 0);
    ck_assert_uint_eq(again->pull_count, 1);
}
