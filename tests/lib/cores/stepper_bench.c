#include "tests/lib/cores/stepper_bench.h"

#include <check.h>
#include <string.h>

struct stepper_bench stepper_bench;

void stepper_setup(void)
{
    memset(&stepper_bench.actions, 0, sizeof(stepper_bench.actions));
    stepper_bench.job = (struct kelp_job){.name = "job"};
    stepper_bench.job.cluster.lanes = 4;
    stepper_bench.job.train.batch_size = 4;
    stepper_bench.job.train.epochs = 1;
    stepper_bench.job.transport.piece_bytes = 2 * STEPPER_BLOCK * (uint32_t)sizeof(float);
    stepper_bench.plan = (struct kelp_plan){.partition_count = STEPPER_PARTITIONS,
                                            .flat_count = STEPPER_PARTITIONS * STEPPER_BLOCK};
    stepper_bench.plan.samples[KELP_SPLIT_TRAIN] = 100;
    stepper_bench.stepper = kelp_stepper_create(&stepper_bench.job, &stepper_bench.plan);
    ck_assert_ptr_nonnull(stepper_bench.stepper);
}

void stepper_teardown(void)
{
    kelp_stepper_destroy(stepper_bench.stepper);
    kelp_stepper_actions_fini(&stepper_bench.actions);
}

void stepper_take(const struct kelp_stepper_event *event)
{
    ck_assert_int_eq(kelp_stepper_event(stepper_bench.stepper, event, &stepper_bench.actions),
                     KELP_OK);
}

void stepper_turn(void)
{
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_TURN});
}

const struct kelp_stepper_action *stepper_find(enum kelp_stepper_action_kind kind, size_t nth)
{
    for (size_t i = 0; i < stepper_bench.actions.count; i++) {
        if (stepper_bench.actions.items[i].kind == kind && nth-- == 0) {
            return &stepper_bench.actions.items[i];
        }
    }
    return NULL;
}

size_t stepper_count(enum kelp_stepper_action_kind kind)
{
    size_t count = 0;
    while (stepper_find(kind, count)) {
        count++;
    }
    return count;
}

const struct kelp_place stepper_shards[STEPPER_SHARDS] = {
    {.shard = "shard-0", .address = "127.0.0.1:10", .incarnation = 10},
    {.shard = "shard-1", .address = "127.0.0.1:11", .incarnation = 11},
    {.shard = "shard-1", .address = "127.0.0.1:12", .incarnation = 12},
};

void stepper_map(uint64_t generation, uint64_t serial,
                 const struct stepper_entry entries[STEPPER_PARTITIONS],
                 const struct kelp_news *news)
{
    uint32_t primary[STEPPER_PARTITIONS];
    uint64_t map_epoch[STEPPER_PARTITIONS];
    for (uint32_t p = 0; p < STEPPER_PARTITIONS; p++) {
        primary[p] = entries[p].primary;
        map_epoch[p] = entries[p].map_epoch;
    }
    const struct kelp_places places = {.generation = generation,
                                       .serial = serial,
                                       .shard_count = KELP_ARRAY_COUNT(stepper_shards),
                                       .partition_count = STEPPER_PARTITIONS,
                                       .shards = stepper_shards,
                                       .primary = primary,
                                       .map_epoch = map_epoch};
    stepper_take(&(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS,
                                              .news = {.news = news, .places = &places}});
}

void stepper_get_news(uint64_t generation, uint32_t lane_first, uint32_t lane_count)
{
    const struct stepper_entry entries[STEPPER_PARTITIONS] = {
        {0, generation}, {0, generation}, {1, generation}};
    const struct kelp_news news = {
        .has_assignment = true, .lane_first = lane_first, .lane_count = lane_count};
    stepper_map(generation, 1, entries, &news);
}

void stepper_change_map(uint64_t serial, const struct stepper_entry entries[STEPPER_PARTITIONS])
{
    stepper_map(1, serial, entries, &(const struct kelp_news){.any = true});
}

const struct stepper_entry stepper_begun[STEPPER_PARTITIONS] = {{0, 1}, {0, 1}, {1, 1}};

uint32_t stepper_link_of(uint32_t partition)
{
    uint32_t link;
    uint64_t map_epoch;
    kelp_stepper_route(stepper_bench.stepper, partition, &link, &map_epoch);
    return link;
}

struct kelp_control_word stepper_word_of(uint64_t step)
{
    return (struct kelp_control_word){
        .version = step, .step = step, .kind = KELP_STEP_TRAIN, .sample_count = 4, .lr = 0.5};
}

void stepper_answer_all(uint64_t generation, uint64_t step)
{
    struct kelp_control_word word = stepper_word_of(step);
    for (uint32_t p = 0; p < STEPPER_PARTITIONS; p++) {
        struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
        event.answer.link = stepper_link_of(p);
        event.answer.generation = generation;
        event.answer.answer = (struct kelp_sync_answer){.partition = p,
                                                        .step = step,
                                                        .current_step = step,
                                                        .has_weights = true,
                                                        .word = p == 0 ? &word : NULL};
        stepper_take(&event);
    }
}

void stepper_push(uint32_t first, uint32_t count, void *content)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_COMPUTED};
    event.computed.lane_first = first;
    event.computed.lane_count = count;
    event.computed.present = true;
    event.computed.content = content;
    stepper_take(&event);
}

void stepper_push_first_step(void *content)
{
    stepper_get_news(1, 0, 2);
    stepper_answer_all(1, 0);
    stepper_turn();
    const struct kelp_stepper_action *work = stepper_find(KELP_STEPPER_COMPUTE, 0);
    ck_assert_ptr_nonnull(work);
    ck_assert(stepper_find(KELP_STEPPER_BEGIN, 0)->begin.swap);
    ck_assert_uint_eq(work->compute.lane_first, 0);
    ck_assert_uint_eq(work->compute.lane_count, 2);
    stepper_push(0, 2, content);
    stepper_turn();
}

void stepper_refuse(uint32_t partition, kelp_status status, uint64_t map_epoch,
                    const struct kelp_place *primary)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_REFUSED};
    event.refused.link = stepper_link_of(partition);
    event.refused.generation = 1;
    event.refused.partition = partition;
    event.refused.status = status;
    event.refused.map_epoch = map_epoch;
    event.refused.primary = primary;
    stepper_take(&event);
}
