#include "tests/lib/cores/checkpoint_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

struct checkpoint_bench checkpoint_bench = {
    .digests = {"00000000000000000000000000000000", "11111111111111111111111111111111",
                "22222222222222222222222222222222", "33333333333333333333333333333333"}};

uint32_t checkpoint_apply(struct kelp_checkpointer_event event)
{
    struct kelp_checkpointer_actions actions;
    uint32_t done = 0;
    event.now_ms = checkpoint_bench.now;
    ck_assert_int_eq(kelp_checkpointer_apply(&checkpoint_bench.machine, &event, &actions, NULL),
                     KELP_OK);
    for (uint32_t i = 0; i < actions.count; i++) {
        ck_assert_uint_lt(done, 1u << actions.items[i].kind);
        done |= 1u << actions.items[i].kind;
    }
    return done;
}

bool checkpoint_undecided(void)
{
    return kelp_checkpointer_restores(&checkpoint_bench.machine).undecided;
}

uint32_t checkpoint_simple(enum kelp_checkpointer_event_kind kind)
{
    struct kelp_checkpointer_event event = {.kind = kind};
    if (kind == KELP_CHECKPOINTER_STOPPED) {
        event.stopped = "shard-1 is lost";
    }
    return checkpoint_apply(event);
}

uint32_t checkpoint_tick(uint64_t ms)
{
    checkpoint_bench.now += ms;
    return checkpoint_simple(KELP_CHECKPOINTER_TICK);
}

/* Two shards with two partitions each. */
static void checkpoint_make_map(uint64_t generation, uint64_t restore_version)
{
    struct kelp_map before = {.generation = generation - 1};
    struct kelp_map_shard shards[2] = {{.id = "shard-0", .address = "a:1", .incarnation = 10},
                                       {.id = "shard-1", .address = "a:2", .incarnation = 11}};
    kelp_map_fini(&checkpoint_bench.map);
    ck_assert_int_eq(kelp_map_spread(&before, shards, 2, 4, &checkpoint_bench.map, NULL), KELP_OK);
    checkpoint_bench.map.restore_version = restore_version;
}

uint32_t checkpoint_open_generation(uint64_t generation, uint64_t restore_version)
{
    checkpoint_make_map(generation, restore_version);
    uint32_t actions = checkpoint_apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_GENERATION,
                                         .generation = {.map = &checkpoint_bench.map,
                                                        .opened = true,
                                                        .schedule = {.steps_per_epoch = 100,
                                                                     .total_steps = 1000,
                                                                     .evaluate_steps = {0, 100}}}});
    return actions | checkpoint_simple(KELP_CHECKPOINTER_RUNNING);
}

void checkpoint_begin(struct kelp_checkpointer_options options)
{
    options.first_serial = SERIAL;
    if (options.policy.keep_last == 0) {
        options.policy.keep_last = 2;
    }
    checkpoint_bench.now = 1000;
    memset(&checkpoint_bench.word, 0, sizeof(checkpoint_bench.word));
    checkpoint_bench.word.kind = KELP_STEP_TRAIN;
    ck_assert_int_eq(kelp_checkpointer_init(&checkpoint_bench.machine, &options, NULL), KELP_OK);
    (void)checkpoint_simple(KELP_CHECKPOINTER_LISTED);
    (void)checkpoint_open_generation(1, 0);
}

void checkpoint_teardown(void)
{
    kelp_checkpointer_fini(&checkpoint_bench.machine);
    kelp_map_fini(&checkpoint_bench.map);
}

uint32_t checkpoint_progress(uint64_t step)
{
    checkpoint_bench.word.step = step;
    checkpoint_bench.word.version = step + step / 100;
    return checkpoint_apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS,
                                                             .progress = &checkpoint_bench.word});
}

uint32_t checkpoint_run_to(uint64_t step, uint64_t step_ms)
{
    uint32_t actions = 0;
    while (checkpoint_bench.word.step < step) {
        checkpoint_bench.now += step_ms;
        actions |= checkpoint_progress(checkpoint_bench.word.step + 1);
    }
    return actions;
}

uint32_t checkpoint_report(int shard, enum kelp_checkpointer_answer answer)
{
    const char *names[] = {"shard-0", "shard-1"};
    const char *storages[] = {"shard-0.a", "shard-1.b"};
    struct kelp_control_word saved = checkpoint_bench.word;
    struct kelp_checkpointer_part parts[2];
    saved.step = checkpoint_bench.machine.order.step;
    saved.version = saved.step + saved.step / 100;
    for (uint32_t i = 0; i < 2; i++) {
        parts[i] =
            (struct kelp_checkpointer_part){.partition = (uint32_t)shard * 2 + i,
                                            .bytes = 7,
                                            .digest = checkpoint_bench.digests[shard * 2 + (int)i]};
    }
    struct kelp_checkpointer_report from = {
        .shard = names[shard],
        .incarnation = 10 + (uint64_t)shard,
        .serial = checkpoint_bench.machine.order.serial,
        .answer = answer,
        .error = "disk full",
        .storage = storages[shard],
        .parts = parts,
        .part_count = 2,
        .word = shard == 0 ? &saved : NULL,
        .current_step = checkpoint_bench.word.step + 3,
    };
    return checkpoint_apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_REPORT, .report = &from});
}

uint32_t checkpoint_all_durable(void)
{
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    return checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_DURABLE);
}

uint32_t checkpoint_committed_order(uint64_t serial, enum kelp_checkpointer_result result)
{
    struct kelp_committed checkpoint = {.unix_ms = 5, .revision = 6, .manifest = strdup("{}")};
    ck_assert_ptr_nonnull(checkpoint.manifest);
    (void)snprintf(checkpoint.state_digest, sizeof(checkpoint.state_digest), "%s",
                   checkpoint_bench.digest);
    uint32_t actions = checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_COMMITTED,
        .committed = {.serial = serial,
                      .result = result,
                      .text = "the checkpoint_bench.map has changed",
                      .checkpoint = &checkpoint}});
    free(checkpoint.manifest);
    return actions;
}

uint32_t checkpoint_committed(enum kelp_checkpointer_result result)
{
    return checkpoint_committed_order(checkpoint_bench.machine.order.serial, result);
}

void checkpoint_make(void)
{
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_ORDERED);
    (void)checkpoint_run_to(checkpoint_bench.machine.order.step, 10);
    ck_assert_uint_ne(checkpoint_all_durable() & DID(COMMIT), 0);
    (void)checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_IDLE);
}

void checkpoint_make_due(void)
{
    while (checkpoint_bench.machine.state == KELP_CHECKPOINTER_IDLE) {
        ck_assert_uint_lt(checkpoint_bench.word.step, 1000);
        (void)checkpoint_run_to(checkpoint_bench.word.step + 1, 10);
    }
}

uint32_t checkpoint_request(bool pause)
{
    return checkpoint_apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_REQUEST,
                                                             .request = {.pause = pause}});
}
