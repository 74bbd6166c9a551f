/* What a worker of a small job does when partitions move within a generation. */
#include "tests/lib/cores/stepper_bench.h"
#include "tests/lib/suite.h"

KELP_CASE("maps of one generation", .setup = stepper_setup, .teardown = stepper_teardown)

/* What was under way to a process that is gone is pushed and asked for again, where the partition
 * is now. Nothing else moves. */
KELP_TEST(a_partition_moves)
{
    const struct stepper_entry moved[STEPPER_PARTITIONS] = {{0, 1}, {0, 1}, {2, 2}};
    stepper_push_first_step(&stepper_bench.job);
    stepper_change_map(2, moved);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_RELEASE), 0);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_CLOSE, 0)->close, 1);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CONNECT), 1);
    ck_assert_str_eq(stepper_find(KELP_STEPPER_CONNECT, 0)->connect.place->address, "127.0.0.1:12");
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    const struct kelp_stepper_message *message = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->link, stepper_find(KELP_STEPPER_CONNECT, 0)->connect.link);
    ck_assert_uint_eq(message->push_count, 1);
    ck_assert_uint_eq(message->pushes[0].partition, 2);
    ck_assert_uint_eq(message->pushes[0].map_epoch, 2);
    ck_assert_ptr_eq(message->pushes[0].node->content, &stepper_bench.job);
    ck_assert_uint_eq(message->pull_count, 1);
    ck_assert_uint_eq(message->pulls[0].map_epoch, 2);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
}

/* The same process in a new epoch (it has lost its backup): it refused what was sent to it. */
KELP_TEST(an_epoch_changes)
{
    const struct stepper_entry changed[STEPPER_PARTITIONS] = {{0, 1}, {0, 2}, {1, 1}};
    stepper_push_first_step(&stepper_bench.job);
    stepper_change_map(2, changed);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CLOSE) + stepper_count(KELP_STEPPER_CONNECT), 0);
    const struct kelp_stepper_message *message = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->link, stepper_link_of(1));
    ck_assert_uint_eq(message->push_count, 1);
    ck_assert_uint_eq(message->pushes[0].partition, 1);
    ck_assert_uint_eq(message->pushes[0].map_epoch, 2);
    ck_assert_uint_eq(message->pull_count, 1);
}

/* A shard may have any partitions, and one that is left with none has no stream. */
KELP_TEST(partitions_apart)
{
    const struct stepper_entry apart[STEPPER_PARTITIONS] = {{0, 1}, {1, 2}, {0, 2}};
    const struct stepper_entry together[STEPPER_PARTITIONS] = {{0, 1}, {0, 3}, {0, 2}};
    stepper_push_first_step(&stepper_bench.job);
    stepper_change_map(2, apart);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CLOSE) + stepper_count(KELP_STEPPER_CONNECT), 0);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 2);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pushes[0].partition, 2);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 1)->send.pushes[0].partition, 1);
    stepper_change_map(3, together);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_CLOSE), 1);
    stepper_answer_all(1, 1);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
    stepper_push(0, 2, &stepper_bench.plan);
    stepper_turn();
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 2); /* of two partitions, and of one */
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pushes[0].partition, 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.pushes[1].partition, 2);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 1)->send.pull_count, 3);
}

/* Of each partition the largest epoch counts, of maps the largest serial. */
KELP_TEST(old_maps_change_nothing)
{
    const struct stepper_entry newer[STEPPER_PARTITIONS] = {{0, 1}, {1, 3}, {1, 1}};
    const struct stepper_entry mixed[STEPPER_PARTITIONS] = {{0, 1}, {0, 2}, {0, 2}};
    stepper_push_first_step(&stepper_bench.job);
    stepper_change_map(3, newer);
    stepper_change_map(2, stepper_begun);
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    stepper_change_map(3, stepper_begun);
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    stepper_change_map(4, mixed);
    ck_assert_uint_eq(stepper_link_of(1), 1);
    ck_assert_uint_eq(stepper_link_of(2), 0);
    stepper_map(2, 1, stepper_begun, &(const struct kelp_news){.any = true});
    ck_assert_uint_eq(stepper_link_of(2), 1);
    ck_assert_ptr_eq(stepper_find(KELP_STEPPER_RELEASE, 0)->release, &stepper_bench.job);
}

/* To that partition alone, and after a while. */
KELP_LOOP_TEST(what_was_refused_is_sent_again, 0, 2)
{
    stepper_push_first_step(&stepper_bench.job);
    stepper_refuse(1, _i == 0 ? KELP_ERR_BUSY : KELP_ERR_NOT_PRIMARY, 0, NULL);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_ASK_LATER, 0)->later.after_ms, 20);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 0);
    stepper_refuse(1, KELP_ERR_BUSY, 0, NULL);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_ASK_LATER), 0);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 1);
    const struct kelp_stepper_message *message = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->push_count, 1);
    ck_assert_uint_eq(message->pushes[0].partition, 1);
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    stepper_refuse(1, KELP_ERR_INVALID, 0,
                   NULL); /* another reason: the same again would not help */
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
}

/* A worker that the leader does not reach follows what shards tell; it believes nothing older. */
KELP_TEST(a_refusal_tells_the_entry)
{
    const struct stepper_entry moved[STEPPER_PARTITIONS] = {{0, 1}, {0, 1}, {2, 2}};
    stepper_push_first_step(&stepper_bench.job);
    stepper_refuse(2, KELP_ERR_OLD_MAP_EPOCH, 1, &stepper_shards[0]);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_STALE), 1);
    stepper_refuse(2, KELP_ERR_OLD_MAP_EPOCH, 2, &stepper_shards[2]);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_CONNECT, 0)->connect.place->incarnation, 12);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    stepper_change_map(2, moved); /* the map comes after all */
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
}

/* An answer of a process that is not the primary any more says nothing. */
KELP_TEST(answers_of_the_one_before)
{
    const struct stepper_entry moved[STEPPER_PARTITIONS] = {{0, 1}, {1, 2}, {1, 1}};
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    stepper_push_first_step(&stepper_bench.job);
    stepper_change_map(2, moved);
    event.answer.link = 0;
    event.answer.generation = 1;
    event.answer.answer =
        (struct kelp_sync_answer){.partition = 1, .status = KELP_ERR_NOT_FOUND, .current_step = 9};
    stepper_take(&event);
    event.answer.answer = (struct kelp_sync_answer){
        .partition = 1, .step = 1, .current_step = 1, .has_weights = true};
    stepper_take(&event);
    ck_assert_uint_eq(stepper_bench.actions.count, 0);
    event.answer.link = stepper_link_of(1);
    stepper_take(&event);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_KEEP), 1);
}

/* ---- steps that are decided about ------------------------------------------------------------ */

static void setup_deciding(void)
{
    stepper_setup();
    kelp_stepper_destroy(stepper_bench.stepper);
    stepper_bench.job.failure.on_nan = KELP_NAN_SKIP;
    stepper_bench.stepper = kelp_stepper_create(&stepper_bench.job, &stepper_bench.plan);
    ck_assert_ptr_nonnull(stepper_bench.stepper);
}

static void answer_share(uint32_t partition)
{
    const double share = 1;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    event.answer.link = stepper_link_of(partition);
    event.answer.generation = 1;
    event.answer.answer = (struct kelp_sync_answer){
        .partition = partition, .is_share = true, .values = &share, .value_count = 1};
    stepper_take(&event);
}

KELP_CASE("stepper of a job that decides", .setup = setup_deciding, .teardown = stepper_teardown)

/* The shares that were lost with partition 0, or that it refused, are brought again. */
KELP_LOOP_TEST(shares_are_sent_again, 0, 2)
{
    const struct stepper_entry moved[STEPPER_PARTITIONS] = {{2, 2}, {0, 1}, {1, 1}};
    stepper_push_first_step(&stepper_bench.job);
    answer_share(1);
    answer_share(2);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.share_count, 2);
    if (_i == 0) {
        stepper_change_map(2, moved);
    } else {
        stepper_refuse(0, KELP_ERR_BUSY, 0, NULL);
        stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    }
    const struct kelp_stepper_message *again = &stepper_find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(again->link, stepper_link_of(0));
    ck_assert_uint_eq(again->push_count, 1);
    ck_assert_uint_eq(again->share_count, 2);
    ck_assert_uint_eq(again->shares[0].map_epoch, _i == 0 ? 2 : 1);
}

/* The word that follows tells the decision: a new primary hears it too. */
KELP_TEST(a_decision_is_told_again)
{
    const struct stepper_entry moved[STEPPER_PARTITIONS] = {{0, 1}, {0, 1}, {2, 2}};
    struct kelp_control_word word = stepper_word_of(1);
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    stepper_push_first_step(&stepper_bench.job);
    event.answer.generation = 1;
    event.answer.answer =
        (struct kelp_sync_answer){.step = 1, .current_step = 1, .has_weights = true, .word = &word};
    stepper_take(&event);
    stepper_turn();
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 1)->send.word.version, 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 1)->send.pulls[0].pull.partition, 2);
    stepper_change_map(2, moved);
    ck_assert_uint_eq(stepper_count(KELP_STEPPER_SEND), 2); /* the push has the step's own word */
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.word.version, 0);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 1)->send.word.version, 1);
    ck_assert_uint_eq(stepper_find(KELP_STEPPER_SEND, 1)->send.pull_count, 1);
}
