/* What a worker of a small job does next: one shard has partitions 0 and 1, the other has 2. */
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/stepper.h"

#define PARTITIONS 3u
#define BLOCK      16u

static struct kelp_job job;
static struct kelp_plan plan;
static struct kelp_stepper *stepper;
static struct kelp_stepper_actions actions;

static void setup(void)
{
    memset(&actions, 0, sizeof(actions));
    job = (struct kelp_job){.name = "job"};
    job.cluster.lanes = 4;
    job.train.batch_size = 4;
    job.train.epochs = 1;
    job.transport.piece_bytes = 2 * BLOCK * (uint32_t)sizeof(float);
    plan = (struct kelp_plan){.partition_count = PARTITIONS, .flat_count = PARTITIONS * BLOCK};
    plan.samples[KELP_SPLIT_TRAIN] = 100;
    stepper = kelp_stepper_create(&job, &plan);
    ck_assert_ptr_nonnull(stepper);
}

static void teardown(void)
{
    kelp_stepper_destroy(stepper);
    kelp_stepper_actions_fini(&actions);
}

static void take(const struct kelp_stepper_event *event)
{
    ck_assert_int_eq(kelp_stepper_event(stepper, event, &actions), KELP_OK);
}

static void turn(void)
{
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_TURN});
}

static const struct kelp_stepper_action *find(enum kelp_stepper_action_kind kind, size_t nth)
{
    for (size_t i = 0; i < actions.count; i++) {
        if (actions.items[i].kind == kind && nth-- == 0) {
            return &actions.items[i];
        }
    }
    return NULL;
}

static size_t count_of(enum kelp_stepper_action_kind kind)
{
    size_t count = 0;
    while (find(kind, count)) {
        count++;
    }
    return count;
}

static void get_news(uint64_t generation, uint32_t lane_first, uint32_t lane_count)
{
    static const uint32_t primary[PARTITIONS] = {0, 0, 1};
    const uint64_t map_epoch[PARTITIONS] = {generation, generation, generation};
    const struct kelp_places places = {.generation = generation,
                                       .shard_count = 2,
                                       .partition_count = PARTITIONS,
                                       .primary = primary,
                                       .map_epoch = map_epoch};
    const struct kelp_news news = {
        .has_assignment = true, .lane_first = lane_first, .lane_count = lane_count};
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS,
                                      .news = {.news = &news, .places = &places}});
}

static struct kelp_control_word word_of(uint64_t step)
{
    return (struct kelp_control_word){
        .version = step, .step = step, .kind = KELP_STEP_TRAIN, .sample_count = 4, .lr = 0.5};
}

/* Every partition has weights of `step`. */
static void answer_all(uint64_t generation, uint64_t step)
{
    struct kelp_control_word word = word_of(step);
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
        event.answer.generation = generation;
        event.answer.answer = (struct kelp_sync_answer){.partition = p,
                                                        .step = step,
                                                        .current_step = step,
                                                        .has_weights = true,
                                                        .word = p == 0 ? &word : NULL};
        take(&event);
    }
}

static void push(uint32_t first, uint32_t count, void *content)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_COMPUTED};
    event.computed.lane_first = first;
    event.computed.lane_count = count;
    event.computed.present = true;
    event.computed.content = content;
    take(&event);
}

/* Holds weights of step 0 and has pushed lanes [0, 2) to both shards. */
static void push_first_step(void *content)
{
    get_news(1, 0, 2);
    answer_all(1, 0);
    turn();
    const struct kelp_stepper_action *work = find(KELP_STEPPER_COMPUTE, 0);
    ck_assert_ptr_nonnull(work);
    ck_assert(find(KELP_STEPPER_BEGIN, 0)->begin.swap);
    ck_assert_uint_eq(work->compute.lane_first, 0);
    ck_assert_uint_eq(work->compute.lane_count, 2);
    push(0, 2, content);
    turn();
}

KELP_CASE("stepper", .setup = setup, .teardown = teardown)

KELP_TEST(a_map_opens_a_stream_to_each_shard)
{
    turn();
    ck_assert_uint_eq(actions.count, 0);
    get_news(1, 0, 2);
    ck_assert_uint_eq(count_of(KELP_STEPPER_ADOPT), 1);
    ck_assert_uint_eq(count_of(KELP_STEPPER_CONNECT), 2);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pull_count, 2);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 1)->send.pull_count, 1);
    get_news(1, 0, 2); /* a new leader sends it again */
    ck_assert_uint_eq(actions.count, 0);
}

/* A message holds at most piece_bytes, and the last partitions of a shard come first. */
KELP_LOOP_TEST(pushes_fill_messages, 1, 3)
{
    job.transport.piece_bytes = (uint32_t)_i * BLOCK * (uint32_t)sizeof(float);
    push_first_step(&job);
    const struct kelp_stepper_message *first = &find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(first->push_count, (unsigned)_i);
    ck_assert_uint_eq(first->pushes[0].partition, _i == 1 ? 1 : 0);
    ck_assert_uint_eq(first->push_bytes, (unsigned)_i * BLOCK * sizeof(float));
    ck_assert_ptr_eq(first->pushes[0].node->content, &job);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 0);
}

KELP_TEST(a_new_stream_gets_pushes_and_pulls_again)
{
    push_first_step(&job);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .shard = 1});
    ck_assert_uint_eq(find(KELP_STEPPER_RETRY_LATER, 0)->later.after_ms, 50);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 0);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .shard = 1});
    ck_assert_uint_eq(find(KELP_STEPPER_CONNECT, 0)->shard, 1);
    const struct kelp_stepper_message *again = &find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(again->shard, 1);
    ck_assert_uint_eq(again->push_count, 1);
    ck_assert_uint_eq(again->pushes[0].partition, 2);
    ck_assert_uint_eq(again->pull_count, 1);
}

/* The next version releases the nodes of the one before; a new generation too, at once. */
KELP_LOOP_TEST(nodes_are_kept_until_they_are_not_needed, 0, 2)
{
    push_first_step(&job);
    ck_assert_uint_eq(count_of(KELP_STEPPER_RELEASE), 0);
    if (_i == 0) {
        answer_all(1, 1);
        turn();
        ck_assert_uint_eq(find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
    } else {
        get_news(2, 0, 2);
        ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.push_count, 0);
    }
    ck_assert_ptr_eq(find(KELP_STEPPER_RELEASE, 0)->release, &job);
}

/* What an old generation says, and what a busy shard says, is not weights. */
KELP_TEST(old_and_busy_answers)
{
    get_news(2, 0, 2);
    answer_all(1, 0);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_BEGIN), 0);
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    event.answer.generation = 2;
    event.answer.answer.status = KELP_ERR_BUSY;
    take(&event);
    ck_assert_uint_eq(find(KELP_STEPPER_ASK_LATER, 0)->later.after_ms, 20);
    take(&event);
    ck_assert_uint_eq(actions.count, 0);
    event.answer.answer.status = KELP_ERR_OLD_MAP_EPOCH;
    take(&event);
    ck_assert_uint_eq(count_of(KELP_STEPPER_STALE), 1);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    turn();
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pull_count, 2);
}

/* A spare tells the shards that it helps, fetches weights for an offer, and computes it. */
KELP_TEST(a_spare_helps)
{
    get_news(1, 0, 0);
    turn();
    ck_assert(find(KELP_STEPPER_SEND, 0)->send.helps);
    ck_assert(find(KELP_STEPPER_SEND, 1)->send.helps);
    turn();
    ck_assert_uint_eq(actions.count, 0);
    struct kelp_stepper_event offer = {.kind = KELP_STEPPER_OFFER};
    offer.offer.generation = 1;
    offer.offer.word = word_of(5);
    offer.offer.lane_first = 2;
    offer.offer.lane_count = 1;
    take(&offer);
    turn();
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pull_count, 2);
    answer_all(1, 5);
    turn();
    const struct kelp_stepper_action *work = find(KELP_STEPPER_COMPUTE, 0);
    ck_assert_ptr_nonnull(work);
    ck_assert(work->compute.offered);
    ck_assert_uint_eq(work->compute.lane_first, 2);
}

KELP_TEST(lanes_that_do_not_exist)
{
    push_first_step(&job);
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_COMPUTED};
    event.computed.lane_first = 1;
    event.computed.lane_count = 2;
    ck_assert_int_eq(kelp_stepper_event(stepper, &event, &actions), KELP_ERR_INVALID);
    get_news(2, 3, 2);
    ck_assert_int_eq(find(KELP_STEPPER_FAIL, 0)->fail.status, KELP_ERR_FORMAT);
}

KELP_TEST(the_end_is_told)
{
    const struct kelp_news leave = {.leave = true};
    const struct kelp_news refused = {.refused = {.status = KELP_ERR_MISMATCH}};
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &leave}});
    ck_assert_uint_eq(count_of(KELP_STEPPER_LEAVE), 1);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &refused}});
    ck_assert_int_eq(find(KELP_STEPPER_FAIL, 0)->fail.status, KELP_ERR_MISMATCH);
}
