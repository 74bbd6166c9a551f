/* How a worker shares the partitions of a shard among several streams to it. */
#include "tests/lib/cores/stepper_bench.h"
#include "tests/lib/suite.h"

static void set_up(void)
{
    stepper_setup();
    stepper_bench.job.transport.streams = 2;
}

KELP_CASE("streams", .setup = set_up, .teardown = stepper_teardown)

/* shard-0 has two partitions, and a stream for each; shard-1 has one, and no need of a second. */
KELP_TEST(partitions_share_the_streams)
{
    stepper_get_news(1, 0, 4);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CONNECT), 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct kelp_stepper_action *connect = stepper_find(KELP_STEPPER_CONNECT, i);
        ck_assert_uint_eq(connect->connect.link, i);
        ck_assert_uint_eq(connect->connect.stream, i == 1 ? 1 : 0);
        ck_assert_str_eq(connect->connect.place->shard, i < 2 ? "shard-0" : "shard-1");
        ck_assert_uint_eq(stepper_link_of(i), i);
    }
    ck_assert_uint_eq(kelp_stepper_first_link(stepper_bench.stepper, 1), 0);
    ck_assert_uint_eq(kelp_stepper_first_link(stepper_bench.stepper, 2), 2);
}

/* What concerns a partition goes its way. */
KELP_TEST(each_stream_has_its_partitions)
{
    stepper_push_first_step(&stepper_bench.job);
    stepper_answer_all(1, 1);
    stepper_turn();
    stepper_push(0, 2, &stepper_bench.plan);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct kelp_stepper_message *message = &stepper_find(KELP_STEPPER_SEND, i)->send;
        ck_assert_uint_eq(message->link, i);
        ck_assert_uint_eq(message->push_count, 1);
        ck_assert_uint_eq(message->pushes[0].partition, i);
        ck_assert_uint_eq(message->pull_count, 1);
        ck_assert_uint_eq(message->pulls[0].pull.partition, i);
    }
}

/* A stream breaks: its partition alone is sent again, on the next one. */
KELP_TEST(one_stream_breaks)
{
    stepper_push_first_step(&stepper_bench.job);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream = {.link = 1}});
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_RETRY_LATER, 0)->later.link, 1);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream = {.link = 1}});
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CONNECT), 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_CONNECT, 0)->connect.stream, 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    const struct kelp_stepper_message *message = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->push_count, 1);
    ck_assert_uint_eq(message->pushes[0].partition, 1);
}

/* All partitions come to shard-0, and leave it but for one: streams follow. */
KELP_TEST(streams_follow_the_map)
{
    const struct stepper_entry together[STEPPER_PARTITIONS] = {{0, 1}, {0, 1}, {0, 2}};
    const struct stepper_entry apart[STEPPER_PARTITIONS] = {{1, 2}, {0, 1}, {1, 3}};
    stepper_push_first_step(&stepper_bench.job);
    stepper_change_map(2, together);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CONNECT), 0);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CLOSE), 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_CLOSE, 0)->close, 2);
    ck_assert_uint_eq(stepper_link_of(2), 0);
    stepper_change_map(3, apart);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CLOSE), 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_CLOSE, 0)->close, 0);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CONNECT), 2);
    ck_assert_uint_eq(stepper_link_of(1), 1);
    ck_assert_uint_ne(stepper_link_of(0), stepper_link_of(2));
}

/* Entries change for the process that has them: no stream is left with nothing to do. */
KELP_TEST(no_stream_is_idle)
{
    const struct stepper_entry leaves[STEPPER_PARTITIONS] = {{1, 2}, {0, 2}, {1, 1}};
    stepper_push_first_step(&stepper_bench.job);
    stepper_change_map(2, leaves);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CLOSE), 1);
    const uint32_t closed = stepper_find(KELP_STEPPER_CLOSE, 0)->close;
    ck_assert_uint_ne(closed, stepper_link_of(1));
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CONNECT), 1);
    ck_assert_str_eq(stepper_find(KELP_STEPPER_CONNECT, 0)->connect.place->shard, "shard-1");
    stepper_answer_all(1, 1);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
}
