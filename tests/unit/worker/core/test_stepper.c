/* What a worker of a small job does next: steps, lanes, and the end. */
#include "tests/lib/cores/stepper_bench.h"
#include "tests/lib/suite.h"

KELP_CASE("stepper", .setup = stepper_setup, .teardown = stepper_teardown)

KELP_TEST(a_map_opens_a_stream_to_each_shard)
{
    stepper_turn();
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    stepper_get_news(1, 0, 2);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_ADOPT), 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CONNECT), 2);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pull_count, 2);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 1)->send.pull_count, 1);
    stepper_get_news(1, 0, 2); /* a new leader sends it again */
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
}

/* A message holds at most piece_bytes, and the last partitions of a shard come first. */
KELP_LOOP_TEST(pushes_fill_messages, 1, 3)
{
    stepper_bench.job.transport.piece_bytes =
        (uint32_t)_i * STEPPER_BLOCK * (uint32_t)sizeof(float);
    stepper_push_first_step(&stepper_bench.job);
    const struct kelp_stepper_message *first = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(first->push_count, (unsigned)_i);
    ck_assert_uint_eq(first->pushes[0].partition, _i == 1 ? 1 : 0);
    ck_assert_uint_eq(first->push_bytes, (unsigned)_i * STEPPER_BLOCK * sizeof(float));
    ck_assert_ptr_eq(first->pushes[0].node->content, &stepper_bench.job);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
}

/* As many elements are half the bytes, and twice as many fill a message. */
KELP_TEST(bfloat16_fills_messages_with_twice_as_many)
{
    stepper_bench.job.transport.precision = KELP_PRECISION_BFLOAT16;
    stepper_bench.job.transport.piece_bytes = STEPPER_BLOCK * (uint32_t)sizeof(float);
    stepper_push_first_step(&stepper_bench.job);
    const struct kelp_stepper_message *first = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(first->push_count, 2);
    ck_assert_uint_eq(first->pushes[0].bytes, STEPPER_BLOCK * 2u);
    ck_assert_uint_eq(first->push_bytes, STEPPER_BLOCK * 4u);
}

KELP_TEST(a_new_stream_gets_pushes_and_pulls_again)
{
    stepper_push_first_step(&stepper_bench.job);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream.link = 1});
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_RETRY_LATER, 0)->later.after_ms, 50);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = 1});
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_CONNECT, 0)->connect.link, 1);
    const struct kelp_stepper_message *again = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(again->link, 1);
    ck_assert_uint_eq(again->push_count, 1);
    ck_assert_uint_eq(again->pushes[0].partition, 2);
    ck_assert_uint_eq(again->pull_count, 1);
}

/* The next version releases the nodes of the one before; a new generation too, at once. */
KELP_LOOP_TEST(nodes_are_kept_until_they_are_not_needed, 0, 2)
{
    stepper_push_first_step(&stepper_bench.job);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 0);
    if (_i == 0) {
        stepper_answer_all(1, 1);
        stepper_turn();
        ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
    } else {
        stepper_get_news(2, 0, 2);
        ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 0);
    }
    ck_assert_ptr_eq(stepper_find(KELP_STEPPER_RELEASE, 0)->release, &stepper_bench.job);
}

/* What an old generation says, and what a busy shard says, is not weights. */
KELP_TEST(old_and_busy_answers)
{
    stepper_get_news(2, 0, 2);
    stepper_answer_all(1, 0);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_BEGIN), 0);
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    event.answer.generation = 2;
    event.answer.answer.status = KELP_ERR_BUSY;
    stepper_take(&event);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_ASK_LATER, 0)->later.after_ms, 20);
    stepper_take(&event);
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    event.answer.answer.status = KELP_ERR_OLD_MAP_EPOCH;
    stepper_take(&event);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_STALE), 1);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pull_count, 1);
    event.answer.answer.status = KELP_ERR_BUSY; /* again: a longer delay */
    stepper_take(&event);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_ASK_LATER, 0)->later.after_ms, 40);
}

/* A spare tells the shards that it helps, fetches weights for an offer, and computes it. */
KELP_TEST(a_spare_helps)
{
    stepper_get_news(1, 0, 0);
    stepper_turn();
    ck_assert(stepper_find(KELP_STEPPER_SEND, 0)->send.helps);
    ck_assert(stepper_find(KELP_STEPPER_SEND, 1)->send.helps);
    stepper_turn();
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    struct kelp_stepper_event offer = {.kind = KELP_STEPPER_OFFER};
    offer.offer.generation = 1;
    offer.offer.word = stepper_word_of(5);
    offer.offer.lane_first = 2;
    offer.offer.lane_count = 1;
    stepper_take(&offer);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pull_count, 2);
    stepper_answer_all(1, 5);
    stepper_turn();
    const struct kelp_stepper_action *work = stepper_find(KELP_STEPPER_COMPUTE, 0);
    ck_assert_ptr_nonnull(work);
    ck_assert(work->compute.offered);
    ck_assert_uint_eq(work->compute.lane_first, 2);
}

/* Where too few workers are, nobody computes what is offered either. */
KELP_TEST(who_rests_does_not_help)
{
    struct kelp_news news = {.has_assignment = true, .rests = true};
    stepper_get_news(1, 0, 0);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &news}});
    stepper_turn();
    struct kelp_stepper_event offer = {.kind = KELP_STEPPER_OFFER};
    offer.offer.generation = 1;
    offer.offer.word = stepper_word_of(5);
    offer.offer.lane_count = 1;
    stepper_take(&offer);
    stepper_turn();
    stepper_turn();
    ck_assert_ptr_null(stepper_find(KELP_STEPPER_COMPUTE, 0));
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
}

KELP_TEST(lanes_that_do_not_exist)
{
    stepper_push_first_step(&stepper_bench.job);
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_COMPUTED};
    event.computed.lane_first = 1;
    event.computed.lane_count = 2;
    ck_assert_int_eq(kelp_stepper_event(stepper_bench.stepper, &event, &stepper_bench.actions),
                     KELP_ERR_INVALID);
    stepper_get_news(2, 3, 2);
    ck_assert_int_eq(stepper_find(KELP_STEPPER_FAIL, 0)->fail.status, KELP_ERR_FORMAT);
}

/* A lane takes long: meanwhile another generation begins, and its lanes are handed out after it. */
KELP_TEST(work_is_overtaken)
{
    struct kelp_stepper_event again = {.kind = KELP_STEPPER_COMPUTED};
    stepper_push_first_step(&stepper_bench.job);
    stepper_get_news(2, 0, 2); /* nothing is being computed */
    ck_assert_ptr_eq(stepper_find(KELP_STEPPER_RELEASE, 0)->release, &stepper_bench.job);
    stepper_answer_all(2, 0);
    stepper_turn();
    ck_assert_ptr_nonnull(stepper_find(KELP_STEPPER_COMPUTE, 0));
    stepper_get_news(3, 0, 2);
    stepper_answer_all(3, 0);
    stepper_push(0, 2, &stepper_bench.plan);
    ck_assert_ptr_eq(stepper_find(KELP_STEPPER_RELEASE, 0)->release, &stepper_bench.plan);
    again.computed.lane_count = 3;
    ck_assert_int_eq(kelp_stepper_event(stepper_bench.stepper, &again, &stepper_bench.actions),
                     KELP_ERR_INVALID);
    stepper_turn();
    ck_assert_ptr_nonnull(stepper_find(KELP_STEPPER_COMPUTE, 0));
    stepper_push(0, 2, &stepper_bench.job);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 0);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Asked to end in the middle of a lane: the lane is sent, and seen through, and nothing is begun.
 */
KELP_TEST(lanes_are_finished)
{
    stepper_get_news(1, 0, 2);
    stepper_answer_all(1, 0);
    stepper_turn();
    ck_assert_ptr_nonnull(stepper_find(KELP_STEPPER_COMPUTE, 0));
    stepper_push(0, 2, &stepper_bench.job);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_FINISH});
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 2);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pull_count, 2);
    stepper_refuse(2, KELP_ERR_BUSY, 0, NULL);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_LEAVE), 0);
    stepper_answer_all(1, 1);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_LEAVE), 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_COMPUTE), 0);
}

/* Without anything to send, or anybody to send it to, it leaves at once. */
KELP_LOOP_TEST(there_is_nothing_to_finish, 0, 3)
{
    if (_i == 1) {
        stepper_get_news(1, 0, 2);
        stepper_answer_all(1, 0);
    } else if (_i == 2) {
        stepper_push_first_step(&stepper_bench.job);
        for (uint32_t link = 0; link < 2; link++) {
            stepper_take(
                &(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream.link = link});
        }
    }
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_FINISH});
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_LEAVE), 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_COMPUTE), 0);
}

static struct kelp_stepper_trouble trouble_at(uint64_t now_ms)
{
    struct kelp_stepper_trouble trouble;
    kelp_stepper_trouble(stepper_bench.stepper, now_ms, &trouble);
    return trouble;
}

static void close_at(uint32_t link, uint64_t now_ms)
{
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED,
                                              .stream = {.link = link, .now_ms = now_ms}});
}

/* Attempts that fail do not begin the time anew; the first message ends it. */
KELP_TEST(trouble_names_the_shard)
{
    stepper_push_first_step(&stepper_bench.job);
    ck_assert_ptr_null(trouble_at(5000).shard);
    close_at(1, 1000);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = 1});
    close_at(1, 3000);
    close_at(0, 3000);
    ck_assert_str_eq(trouble_at(3900).shard->shard, "shard-1");
    ck_assert(!trouble_at(3900).lasts);
    ck_assert(trouble_at(4000).lasts);
    ck_assert_uint_eq(trouble_at(4000).apart_ms, 3000);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_OPENED, .stream.link = 1});
    ck_assert_str_eq(trouble_at(4000).shard->shard, "shard-0");
    ck_assert(!trouble_at(4000).lasts);
}

KELP_TEST(the_end_is_told)
{
    const struct kelp_news leave = {.leave = true};
    const struct kelp_news refused = {.refused = {.status = KELP_ERR_MISMATCH}};
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &leave}});
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_LEAVE), 1);
    stepper_take(
        &(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &refused}});
    ck_assert_int_eq(stepper_find(KELP_STEPPER_FAIL, 0)->fail.status, KELP_ERR_MISMATCH);
}
