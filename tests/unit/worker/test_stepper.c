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

/* shard-1 has been started twice. */
static const struct kelp_place shards[] = {
    {.shard = "shard-0", .address = "127.0.0.1:10", .incarnation = 10},
    {.shard = "shard-1", .address = "127.0.0.1:11", .incarnation = 11},
    {.shard = "shard-1", .address = "127.0.0.1:12", .incarnation = 12},
};

struct entry {
    uint32_t primary; /* index into shards */
    uint64_t map_epoch;
};

static void get_map(uint64_t generation, uint64_t serial, const struct entry entries[PARTITIONS],
                    const struct kelp_news *news)
{
    uint32_t primary[PARTITIONS];
    uint64_t map_epoch[PARTITIONS];
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        primary[p] = entries[p].primary;
        map_epoch[p] = entries[p].map_epoch;
    }
    const struct kelp_places places = {.generation = generation,
                                       .serial = serial,
                                       .shard_count = KELP_ARRAY_COUNT(shards),
                                       .partition_count = PARTITIONS,
                                       .shards = shards,
                                       .primary = primary,
                                       .map_epoch = map_epoch};
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS,
                                      .news = {.news = news, .places = &places}});
}

static void get_news(uint64_t generation, uint32_t lane_first, uint32_t lane_count)
{
    const struct entry entries[PARTITIONS] = {{0, generation}, {0, generation}, {1, generation}};
    const struct kelp_news news = {
        .has_assignment = true, .lane_first = lane_first, .lane_count = lane_count};
    get_map(generation, 1, entries, &news);
}

static void change_map(uint64_t serial, const struct entry entries[PARTITIONS])
{
    get_map(1, serial, entries, &(const struct kelp_news){.any = true});
}

/* The entries that a map of generation 1 begins with. */
static const struct entry begun[PARTITIONS] = {{0, 1}, {0, 1}, {1, 1}};

static uint32_t link_of(uint32_t partition)
{
    uint32_t link;
    uint64_t map_epoch;
    kelp_stepper_route(stepper, partition, &link, &map_epoch);
    return link;
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
        event.answer.link = link_of(p);
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
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream.link = 1});
    ck_assert_uint_eq(find(KELP_STEPPER_RETRY_LATER, 0)->later.after_ms, 50);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 0);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = 1});
    ck_assert_uint_eq(find(KELP_STEPPER_CONNECT, 0)->connect.link, 1);
    const struct kelp_stepper_message *again = &find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(again->link, 1);
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
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pull_count, 1);
    event.answer.answer.status = KELP_ERR_BUSY; /* again: a longer delay */
    take(&event);
    ck_assert_uint_eq(find(KELP_STEPPER_ASK_LATER, 0)->later.after_ms, 40);
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

/* Where too few workers are, nobody computes what is offered either. */
KELP_TEST(who_rests_does_not_help)
{
    struct kelp_news news = {.has_assignment = true, .rests = true};
    get_news(1, 0, 0);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS, .news = {.news = &news}});
    turn();
    struct kelp_stepper_event offer = {.kind = KELP_STEPPER_OFFER};
    offer.offer.generation = 1;
    offer.offer.word = word_of(5);
    offer.offer.lane_count = 1;
    take(&offer);
    turn();
    turn();
    ck_assert_ptr_null(find(KELP_STEPPER_COMPUTE, 0));
    ck_assert_uint_eq(actions.count, 0);
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

/* A lane takes long: meanwhile another generation begins, and its lanes are handed out after it. */
KELP_TEST(work_is_overtaken)
{
    struct kelp_stepper_event again = {.kind = KELP_STEPPER_COMPUTED};
    push_first_step(&job);
    get_news(2, 0, 2); /* nothing is being computed */
    ck_assert_ptr_eq(find(KELP_STEPPER_RELEASE, 0)->release, &job);
    answer_all(2, 0);
    turn();
    ck_assert_ptr_nonnull(find(KELP_STEPPER_COMPUTE, 0));
    get_news(3, 0, 2);
    answer_all(3, 0);
    push(0, 2, &plan);
    ck_assert_ptr_eq(find(KELP_STEPPER_RELEASE, 0)->release, &plan);
    again.computed.lane_count = 3;
    ck_assert_int_eq(kelp_stepper_event(stepper, &again, &actions), KELP_ERR_INVALID);
    turn();
    ck_assert_ptr_nonnull(find(KELP_STEPPER_COMPUTE, 0));
    push(0, 2, &job);
    ck_assert_uint_eq(count_of(KELP_STEPPER_RELEASE), 0);
}

/* ---- maps of one generation ------------------------------------------------------------------ */

/* What was under way to a process that is gone is pushed and asked for again, where the partition
 * is now. Nothing else moves. */
KELP_TEST(a_partition_moves)
{
    const struct entry moved[PARTITIONS] = {{0, 1}, {0, 1}, {2, 2}};
    push_first_step(&job);
    change_map(2, moved);
    ck_assert_uint_eq(count_of(KELP_STEPPER_RELEASE), 0);
    ck_assert_uint_eq(find(KELP_STEPPER_CLOSE, 0)->close, 1);
    ck_assert_uint_eq(count_of(KELP_STEPPER_CONNECT), 1);
    ck_assert_str_eq(find(KELP_STEPPER_CONNECT, 0)->connect.place->address, "127.0.0.1:12");
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 1);
    const struct kelp_stepper_message *message = &find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->link, find(KELP_STEPPER_CONNECT, 0)->connect.link);
    ck_assert_uint_eq(message->push_count, 1);
    ck_assert_uint_eq(message->pushes[0].partition, 2);
    ck_assert_uint_eq(message->pushes[0].map_epoch, 2);
    ck_assert_ptr_eq(message->pushes[0].node->content, &job);
    ck_assert_uint_eq(message->pull_count, 1);
    ck_assert_uint_eq(message->pulls[0].map_epoch, 2);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 0);
}

/* The same process in a new epoch (it has lost its backup): it refused what was sent to it. */
KELP_TEST(an_epoch_changes)
{
    const struct entry changed[PARTITIONS] = {{0, 1}, {0, 2}, {1, 1}};
    push_first_step(&job);
    change_map(2, changed);
    ck_assert_uint_eq(count_of(KELP_STEPPER_CLOSE) + count_of(KELP_STEPPER_CONNECT), 0);
    const struct kelp_stepper_message *message = &find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->link, link_of(1));
    ck_assert_uint_eq(message->push_count, 1);
    ck_assert_uint_eq(message->pushes[0].partition, 1);
    ck_assert_uint_eq(message->pushes[0].map_epoch, 2);
    ck_assert_uint_eq(message->pull_count, 1);
}

/* A shard may have any partitions, and one that is left with none has no stream. */
KELP_TEST(partitions_apart)
{
    const struct entry apart[PARTITIONS] = {{0, 1}, {1, 2}, {0, 2}};
    const struct entry together[PARTITIONS] = {{0, 1}, {0, 3}, {0, 2}};
    push_first_step(&job);
    change_map(2, apart);
    ck_assert_uint_eq(count_of(KELP_STEPPER_CLOSE) + count_of(KELP_STEPPER_CONNECT), 0);
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 2);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pushes[0].partition, 2);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 1)->send.pushes[0].partition, 1);
    change_map(3, together);
    ck_assert_uint_eq(count_of(KELP_STEPPER_CLOSE), 1);
    answer_all(1, 1);
    turn();
    ck_assert_uint_eq(find(KELP_STEPPER_BEGIN, 0)->begin.word.step, 1);
    push(0, 2, &plan);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 2); /* of two partitions, and of one */
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pushes[0].partition, 1);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pushes[1].partition, 2);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 1)->send.pull_count, 3);
}

/* Of each partition the largest epoch counts, of maps the largest serial. */
KELP_TEST(old_maps_change_nothing)
{
    const struct entry newer[PARTITIONS] = {{0, 1}, {1, 3}, {1, 1}};
    const struct entry mixed[PARTITIONS] = {{0, 1}, {0, 2}, {0, 2}};
    push_first_step(&job);
    change_map(3, newer);
    change_map(2, begun);
    ck_assert_uint_eq(actions.count, 0);
    change_map(3, begun);
    ck_assert_uint_eq(actions.count, 0);
    change_map(4, mixed);
    ck_assert_uint_eq(link_of(1), 1);
    ck_assert_uint_eq(link_of(2), 0);
    get_map(2, 1, begun, &(const struct kelp_news){.any = true});
    ck_assert_uint_eq(link_of(2), 1);
    ck_assert_ptr_eq(find(KELP_STEPPER_RELEASE, 0)->release, &job);
}

static void refuse(uint32_t partition, kelp_status status, uint64_t map_epoch,
                   const struct kelp_place *primary)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_REFUSED};
    event.refused.link = link_of(partition);
    event.refused.generation = 1;
    event.refused.partition = partition;
    event.refused.status = status;
    event.refused.map_epoch = map_epoch;
    event.refused.primary = primary;
    take(&event);
}

/* To that partition alone, and after a while. */
KELP_LOOP_TEST(what_was_refused_is_sent_again, 0, 2)
{
    push_first_step(&job);
    refuse(1, _i == 0 ? KELP_ERR_BUSY : KELP_ERR_NOT_PRIMARY, 0, NULL);
    ck_assert_uint_eq(find(KELP_STEPPER_ASK_LATER, 0)->later.after_ms, 20);
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 0);
    refuse(1, KELP_ERR_BUSY, 0, NULL);
    ck_assert_uint_eq(count_of(KELP_STEPPER_ASK_LATER), 0);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 1);
    const struct kelp_stepper_message *message = &find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(message->push_count, 1);
    ck_assert_uint_eq(message->pushes[0].partition, 1);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    ck_assert_uint_eq(actions.count, 0);
    refuse(1, KELP_ERR_INVALID, 0, NULL); /* another reason: the same again would not help */
    ck_assert_uint_eq(actions.count, 0);
}

/* A worker that the leader does not reach follows what shards tell; it believes nothing older. */
KELP_TEST(a_refusal_tells_the_entry)
{
    const struct entry moved[PARTITIONS] = {{0, 1}, {0, 1}, {2, 2}};
    push_first_step(&job);
    refuse(2, KELP_ERR_OLD_MAP_EPOCH, 1, &shards[0]);
    ck_assert_uint_eq(count_of(KELP_STEPPER_STALE), 1);
    refuse(2, KELP_ERR_OLD_MAP_EPOCH, 2, &shards[2]);
    ck_assert_uint_eq(find(KELP_STEPPER_CONNECT, 0)->connect.place->incarnation, 12);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    change_map(2, moved); /* the map comes after all */
    ck_assert_uint_eq(actions.count, 0);
}

/* An answer of a process that is not the primary any more says nothing. */
KELP_TEST(answers_of_the_one_before)
{
    const struct entry moved[PARTITIONS] = {{0, 1}, {1, 2}, {1, 1}};
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    push_first_step(&job);
    change_map(2, moved);
    event.answer.link = 0;
    event.answer.generation = 1;
    event.answer.answer =
        (struct kelp_sync_answer){.partition = 1, .status = KELP_ERR_NOT_FOUND, .current_step = 9};
    take(&event);
    event.answer.answer = (struct kelp_sync_answer){
        .partition = 1, .step = 1, .current_step = 1, .has_weights = true};
    take(&event);
    ck_assert_uint_eq(actions.count, 0);
    event.answer.link = link_of(1);
    take(&event);
    ck_assert_uint_eq(count_of(KELP_STEPPER_KEEP), 1);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Asked to end in the middle of a lane: the lane is sent, and seen through, and nothing is begun.
 */
KELP_TEST(lanes_are_finished)
{
    get_news(1, 0, 2);
    answer_all(1, 0);
    turn();
    ck_assert_ptr_nonnull(find(KELP_STEPPER_COMPUTE, 0));
    push(0, 2, &job);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_FINISH});
    turn();
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.push_count, 2);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.pull_count, 2);
    refuse(2, KELP_ERR_BUSY, 0, NULL);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_LEAVE), 0);
    answer_all(1, 1);
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_LEAVE), 1);
    ck_assert_uint_eq(count_of(KELP_STEPPER_COMPUTE), 0);
}

/* Without anything to send, or anybody to send it to, it leaves at once. */
KELP_LOOP_TEST(there_is_nothing_to_finish, 0, 3)
{
    if (_i == 1) {
        get_news(1, 0, 2);
        answer_all(1, 0);
    } else if (_i == 2) {
        push_first_step(&job);
        for (uint32_t link = 0; link < 2; link++) {
            take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream.link = link});
        }
    }
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_FINISH});
    turn();
    ck_assert_uint_eq(count_of(KELP_STEPPER_LEAVE), 1);
    ck_assert_uint_eq(count_of(KELP_STEPPER_COMPUTE), 0);
}

static struct kelp_stepper_trouble trouble_at(uint64_t now_ms)
{
    struct kelp_stepper_trouble trouble;
    kelp_stepper_trouble(stepper, now_ms, &trouble);
    return trouble;
}

static void close_at(uint32_t link, uint64_t now_ms)
{
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED,
                                      .stream = {.link = link, .now_ms = now_ms}});
}

/* Attempts that fail do not begin the time anew; the first message ends it. */
KELP_TEST(trouble_names_the_shard)
{
    push_first_step(&job);
    ck_assert_ptr_null(trouble_at(5000).shard);
    close_at(1, 1000);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = 1});
    close_at(1, 3000);
    close_at(0, 3000);
    ck_assert_str_eq(trouble_at(3900).shard->shard, "shard-1");
    ck_assert(!trouble_at(3900).lasts);
    ck_assert(trouble_at(4000).lasts);
    ck_assert_uint_eq(trouble_at(4000).apart_ms, 3000);
    take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_OPENED, .stream.link = 1});
    ck_assert_str_eq(trouble_at(4000).shard->shard, "shard-0");
    ck_assert(!trouble_at(4000).lasts);
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

/* ---- steps that are decided about ------------------------------------------------------------ */

static void setup_deciding(void)
{
    setup();
    kelp_stepper_destroy(stepper);
    job.failure.on_nan = KELP_NAN_SKIP;
    stepper = kelp_stepper_create(&job, &plan);
    ck_assert_ptr_nonnull(stepper);
}

static void answer_share(uint32_t partition)
{
    const double share = 1;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    event.answer.link = link_of(partition);
    event.answer.generation = 1;
    event.answer.answer = (struct kelp_sync_answer){
        .partition = partition, .is_share = true, .values = &share, .value_count = 1};
    take(&event);
}

KELP_CASE("stepper of a job that decides", .setup = setup_deciding, .teardown = teardown)

/* The shares that were lost with partition 0, or that it refused, are brought again. */
KELP_LOOP_TEST(shares_are_sent_again, 0, 2)
{
    const struct entry moved[PARTITIONS] = {{2, 2}, {0, 1}, {1, 1}};
    push_first_step(&job);
    answer_share(1);
    answer_share(2);
    turn();
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.share_count, 2);
    if (_i == 0) {
        change_map(2, moved);
    } else {
        refuse(0, KELP_ERR_BUSY, 0, NULL);
        take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    }
    const struct kelp_stepper_message *again = &find(KELP_STEPPER_SEND, 0)->send;
    ck_assert_uint_eq(again->link, link_of(0));
    ck_assert_uint_eq(again->push_count, 1);
    ck_assert_uint_eq(again->share_count, 2);
    ck_assert_uint_eq(again->shares[0].map_epoch, _i == 0 ? 2 : 1);
}

/* The word that follows tells the decision: a new primary hears it too. */
KELP_TEST(a_decision_is_told_again)
{
    const struct entry moved[PARTITIONS] = {{0, 1}, {0, 1}, {2, 2}};
    struct kelp_control_word word = word_of(1);
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    push_first_step(&job);
    event.answer.generation = 1;
    event.answer.answer =
        (struct kelp_sync_answer){.step = 1, .current_step = 1, .has_weights = true, .word = &word};
    take(&event);
    turn();
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 1)->send.word.version, 1);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 1)->send.pulls[0].pull.partition, 2);
    change_map(2, moved);
    ck_assert_uint_eq(count_of(KELP_STEPPER_SEND), 2); /* the push has the step's own word */
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.word.version, 0);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 0)->send.push_count, 1);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 1)->send.word.version, 1);
    ck_assert_uint_eq(find(KELP_STEPPER_SEND, 1)->send.pull_count, 1);
}
