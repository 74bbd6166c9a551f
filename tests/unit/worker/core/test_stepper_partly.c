/* A node is sent while the rest of it is computed: what goes, in which order, and what is not sent
 * twice or too early. */
#include "tests/lib/cores/stepper_bench.h"
#include "tests/lib/suite.h"

#define BLOCK_BYTES (STEPPER_BLOCK * (uint32_t)sizeof(float))

static int content;

/* Lanes [0, 2) of the first step are handed out. */
static void hand_out(uint32_t piece_blocks)
{
    stepper_bench.job.transport.piece_bytes = piece_blocks * BLOCK_BYTES;
    stepper_get_news(1, 0, 2);
    stepper_answer_all(1, 0);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.lane_count, 2);
}

static struct kelp_stepper_event partly(uint32_t partition_first)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_PARTLY};
    event.computed.lane_count = 2;
    event.computed.present = true;
    event.computed.content = &content;
    event.computed.partition_first = partition_first;
    return event;
}

static void take_partly(uint32_t partition_first)
{
    const struct kelp_stepper_event event = partly(partition_first);
    stepper_take(&event);
}

/* The nth message of the latest event has this one push and so many pulls. */
static void check_message(size_t nth, uint32_t partition, size_t pulls)
{
    const struct kelp_stepper_action *action = stepper_find(KELP_STEPPER_SEND, nth);
    ck_assert_ptr_nonnull(action);
    ck_assert_uint_eq(action->send.link, stepper_link_of(partition));
    ck_assert_uint_eq(action->send.push_count, 1);
    ck_assert_uint_eq(action->send.pushes[0].partition, partition);
    ck_assert_ptr_eq(action->send.pushes[0].node->content, &content);
    ck_assert_uint_eq(action->send.push_bytes, BLOCK_BYTES);
    ck_assert_uint_eq(action->send.pull_count, pulls);
    ck_assert(action->send.has_word);
}

KELP_CASE("stepper, partly", .setup = stepper_setup, .teardown = stepper_teardown)

/* The last partitions first; a shard's last message takes its pulls along, that of partition 0
 * comes with the whole node. Each event gives a reference, and one is kept. */
KELP_TEST(pushes_leave_as_partitions_are_complete)
{
    hand_out(1);
    take_partly(2);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    check_message(0, 2, 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 0);
    take_partly(1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    check_message(0, 1, 0);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
    stepper_push(0, 2, &content);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    check_message(0, 0, 2);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
    stepper_answer_all(1, 1);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
}

/* A push is never there before its partition is complete, and with any size of messages there are
 * as many of them as when all go at the end. */
KELP_LOOP_TEST(there_are_no_more_messages, 1, 4)
{
    size_t messages = 0, pushes = 0, pulls = 0;
    hand_out((uint32_t)_i);
    for (uint32_t first = STEPPER_PARTITIONS; first-- > 0;) {
        if (first > 0) {
            take_partly(first);
        } else {
            stepper_push(0, 2, &content);
            stepper_turn();
        }
        for (size_t m = 0; stepper_find(KELP_STEPPER_SEND, m); m++) {
            const struct kelp_stepper_message *message = &stepper_find(KELP_STEPPER_SEND, m)->send;
            messages++;
            pulls += message->pull_count;
            for (size_t i = 0; i < message->push_count; i++) {
                ck_assert_uint_ge(message->pushes[i].partition, first);
                pushes++;
            }
        }
    }
    ck_assert_uint_eq(pushes, STEPPER_PARTITIONS);
    ck_assert_uint_eq(pulls, STEPPER_PARTITIONS);
    ck_assert_uint_eq(messages, _i == 1 ? 3 : 2);
}

/* Of several nodes the last decides: they go in one message, as ever. */
KELP_TEST(earlier_nodes_go_along)
{
    int other;
    struct kelp_stepper_event last = partly(2);
    stepper_bench.job.transport.piece_bytes = 4 * BLOCK_BYTES;
    stepper_get_news(1, 1, 2);
    stepper_answer_all(1, 0);
    stepper_turn();
    stepper_push(1, 1, &other);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
    last.computed.lane_first = 2;
    last.computed.lane_count = 1;
    stepper_take(&last);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    const struct kelp_stepper_message *message = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->push_count, 2);
    ck_assert_ptr_eq(message->pushes[0].node->content, &other);
    ck_assert_ptr_eq(message->pushes[1].node->content, &content);
    ck_assert_uint_eq(message->pushes[1].partition, 2);
}

/* What a stream may have lost is sent again, what is not complete is not. */
KELP_TEST(a_new_stream_gets_what_was_sent_early)
{
    hand_out(1);
    take_partly(1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 2);
    for (uint32_t link = 0; link < 2; link++) {
        stepper_take(
            &(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream.link = link});
        stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = link});
        ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
        const struct kelp_stepper_message *again = &stepper_find(KELP_STEPPER_SEND, 0)->send;
        ck_assert_uint_eq(again->push_count, 1);
        ck_assert_uint_eq(again->pushes[0].partition, link == stepper_link_of(2) ? 2 : 1);
    }
    stepper_push(0, 2, &content);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pushes[0].partition, 0);
}

/* Its primary changes in the middle of the node: the new one gets it, and the rest at the end. */
KELP_TEST(a_partition_that_moves_gets_it_again)
{
    const struct stepper_entry moved[STEPPER_PARTITIONS] = {{0, 1}, {0, 1}, {0, 2}};
    hand_out(1);
    take_partly(2);
    stepper_change_map(2, moved);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CLOSE), 1);
    check_message(0, 2, 3);
    take_partly(1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pushes[0].partition, 1);
    stepper_push(0, 2, &content);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    check_message(0, 0, 0);
}

/* A refusal of an early push is answered as any other. */
KELP_TEST(a_busy_shard_gets_it_again)
{
    hand_out(1);
    take_partly(2);
    stepper_refuse(2, KELP_ERR_BUSY, 0, NULL);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_ASK_LATER), 1);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    check_message(0, 2, 1);
}

/* A new generation: what is computed is of no use, and each reference comes back. */
KELP_TEST(it_is_overtaken)
{
    hand_out(1);
    take_partly(2);
    stepper_get_news(2, 0, 2);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
    take_partly(1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
    stepper_push(0, 2, &content);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
    stepper_answer_all(2, 0);
    stepper_turn();
    ck_assert_ptr_nonnull(stepper_find(KELP_STEPPER_COMPUTE, 0));
    take_partly(2);
    check_message(0, 2, 1);
}

/* Its owner gave the node up: it is not sent as if it were whole. */
KELP_TEST(it_is_given_up)
{
    hand_out(1);
    take_partly(2);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 1);
    for (size_t m = 0; stepper_find(KELP_STEPPER_SEND, m); m++) {
        ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, m)->send.push_count, 0);
    }
}

/* More lanes of the version follow: before they begin all partitions have what was sent to some. */
KELP_TEST(more_lanes_follow)
{
    const struct kelp_news news = {.has_assignment = true, .lane_count = 3};
    struct kelp_stepper_event more = partly(2);
    hand_out(1);
    take_partly(2);
    stepper_push(0, 2, &content);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &news}});
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.lane_first, 2);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 2);
    check_message(0, 0, 2);
    check_message(1, 1, 0);
    more.computed.lane_first = 2;
    more.computed.lane_count = 1;
    more.computed.content = &more;
    stepper_take(&more);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    ck_assert_ptr_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pushes[0].node->content, &more);
}

/* Offered lanes of which some partitions got their part early: the step is over before they are
 * whole, and the others get theirs all the same, so that a lie of another worker shows. */
KELP_TEST(the_step_is_over_before_the_node)
{
    struct kelp_stepper_event offer = {.kind = KELP_STEPPER_OFFER};
    struct kelp_stepper_event event = partly(1);
    int own;
    stepper_bench.job.transport.piece_bytes = BLOCK_BYTES;
    stepper_push_first_step(&own);
    offer.offer.generation = 1;
    offer.offer.word = stepper_word_of(0);
    offer.offer.lane_first = 2;
    offer.offer.lane_count = 2;
    stepper_take(&offer);
    stepper_turn();
    ck_assert(stepper_find(KELP_STEPPER_COMPUTE, 0)->compute.offered);
    event.computed.lane_first = 2;
    stepper_take(&event);
    check_message(0, 1, 0);
    stepper_answer_all(1, 1);
    event.kind = KELP_STEPPER_COMPUTED;
    stepper_take(&event);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    check_message(0, 0, 0);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.word.step, 0);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
}

/* Without lanes of its own any more, the worker asks for nothing, but sends. */
KELP_TEST(a_worker_without_lanes_asks_for_nothing)
{
    const struct kelp_news news = {.has_assignment = true};
    hand_out(1);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &news}});
    take_partly(1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    check_message(0, 1, 0);
}

KELP_LOOP_TEST(what_cannot_be_is_refused, 0, 6)
{
    struct kelp_stepper_event event = partly(2);
    hand_out(1);
    switch (_i) {
    case 0:
        event.computed.partition_first = 0; /* that is COMPUTED */
        break;
    case 1:
        event.computed.partition_first = STEPPER_PARTITIONS;
        break;
    case 2:
        event.computed.lane_count = 1; /* not the last node */
        break;
    case 3:
        event.computed.present = false;
        break;
    case 4: /* another one is there in part */
        take_partly(2);
        event.computed.content = &event;
        break;
    default: /* parts were sent, so it is over */
        take_partly(2);
        stepper_push(0, 2, &content);
        event.kind = KELP_STEPPER_COMPUTED;
    }
    ck_assert_int_eq(kelp_stepper_event(stepper_bench.stepper, &event, &stepper_bench.actions),
                     KELP_ERR_INVALID);
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
}

/* Sizes alone decide. */
KELP_TEST(large_models_overlap)
{
    struct kelp_plan plan = {.partition_count = 2, .flat_count = 1u << 20};
    ck_assert(kelp_stepper_overlaps(&plan));
    plan.flat_count--;
    ck_assert(!kelp_stepper_overlaps(&plan));
    plan.flat_count = 1u << 24;
    plan.partition_count = 1;
    ck_assert(!kelp_stepper_overlaps(&plan));
}
