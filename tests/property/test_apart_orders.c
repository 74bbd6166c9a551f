/*
 * Partitions in a random world of honest workers: steps complete in any order, heartbeats and their
 * answers are late by any time, shards and training stand still, partitions move, and who led one
 * before says for a while what it was. None ever counts as apart. Then a worker rushes one, and two
 * do. A run is a function of its seed.
 */
#include <string.h>

#include "coordinator/core/placement/apart.h"
#include "tests/lib/suite.h"

#define SHARDS     3
#define PARTITIONS 7
#define BEATS      4000
#define SEEDS      40
#define FLIGHT     8 /* answers on their way from one shard */

struct answer {
    uint64_t heartbeat;
    bool led;
    struct kelp_apart_step lowest;
    struct kelp_apart_step highest;
};

struct shard {
    uint64_t heard;                 /* heartbeat */
    bool stopped;                   /* answers nothing */
    uint64_t epoch_of[PARTITIONS];  /* in which it leads, as it thinks; 0: it does not */
    uint64_t frozen_at[PARTITIONS]; /* what it has of those that it led before */
    struct answer flight[FLIGHT];   /* in order */
    uint32_t in_flight;
    struct kelp_apart_behind behind;
};

static struct world {
    uint64_t random;
    uint64_t heartbeat; /* sent last */
    uint64_t step_of[PARTITIONS];
    uint64_t epoch_of[PARTITIONS];
    uint32_t leader_of[PARTITIONS];
    struct shard shards[SHARDS];
    struct kelp_apart apart;
} world;

static uint64_t draw(uint64_t below)
{
    world.random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t z = world.random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

static void begin(uint64_t seed)
{
    memset(&world, 0, sizeof(world));
    world.random = seed;
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        world.leader_of[p] = p % SHARDS;
        world.epoch_of[p] = 1;
        world.shards[p % SHARDS].epoch_of[p] = 1;
    }
}

/* A step of a partition, by workers that have the weights of all: these are there in the step and
 * the one after it. */
static void complete(uint32_t partition)
{
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        if (world.step_of[p] < world.step_of[partition] ||
            world.step_of[p] > world.step_of[partition] + 1) {
            return;
        }
    }
    world.step_of[partition]++;
}

/* The one before hears of it later. */
static void move(uint32_t partition)
{
    const uint32_t to = (uint32_t)draw(SHARDS);
    struct shard *before = &world.shards[world.leader_of[partition]];

    before->frozen_at[partition] = world.step_of[partition];
    world.leader_of[partition] = to;
    world.epoch_of[partition]++;
    world.shards[to].epoch_of[partition] = world.epoch_of[partition];
}

static void learn(struct shard *shard, uint32_t index)
{
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        if (world.leader_of[p] != index) {
            shard->epoch_of[p] = 0;
        }
    }
}

static void look(const struct shard *shard, uint32_t index, struct answer *answer)
{
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        const bool leads = world.leader_of[p] == index;
        const struct kelp_apart_step at = {.partition = p,
                                           .map_epoch = shard->epoch_of[p],
                                           .step = leads ? world.step_of[p] : shard->frozen_at[p]};
        if (shard->epoch_of[p] == 0) {
            continue;
        }
        if (draw(4) == 0) { /* one after the other: training goes on meanwhile */
            complete((uint32_t)draw(PARTITIONS));
        }
        answer->lowest = !answer->led || at.step < answer->lowest.step ? at : answer->lowest;
        answer->highest = !answer->led || at.step > answer->highest.step ? at : answer->highest;
        answer->led = true;
    }
}

/* It hears a heartbeat, perhaps not the newest one, and answers. */
static void beat(uint32_t index)
{
    struct shard *shard = &world.shards[index];

    if (shard->stopped || shard->in_flight == FLIGHT || shard->heard >= world.heartbeat) {
        return;
    }
    shard->heard += 1 + draw(world.heartbeat - shard->heard);
    struct answer *answer = &shard->flight[shard->in_flight++];
    *answer = (struct answer){.heartbeat = shard->heard};
    look(shard, index, answer);
}

static bool is_led(uint32_t index, const struct kelp_apart_step *at)
{
    return world.leader_of[at->partition] == index &&
           world.epoch_of[at->partition] == at->map_epoch;
}

/* The leader of the job hears the oldest answer, as coordinator/core/placement does. */
static bool arrive(uint32_t index)
{
    struct shard *shard = &world.shards[index];

    if (shard->in_flight == 0) {
        return false;
    }
    const struct answer answer = shard->flight[0];
    shard->in_flight--;
    memmove(shard->flight, shard->flight + 1, shard->in_flight * sizeof(answer));
    if (!answer.led || !is_led(index, &answer.lowest) || !is_led(index, &answer.highest)) {
        return false;
    }
    const struct kelp_apart_said said = {.generation = 1,
                                         .heartbeat = answer.heartbeat,
                                         .next = world.heartbeat + 1,
                                         .lowest = answer.lowest,
                                         .highest = answer.highest};
    return kelp_apart_hear(&world.apart, &shard->behind, &said);
}

/* True: some partition counts as apart. */
static bool happens(uint64_t pace)
{
    const uint32_t index = (uint32_t)draw(SHARDS);

    switch (draw(40)) {
    case 0:
        world.shards[index].stopped = !world.shards[index].stopped;
        return false;
    case 1:
        move((uint32_t)draw(PARTITIONS));
        return false;
    case 2:
        learn(&world.shards[index], index);
        return false;
    default:
        break;
    }
    for (uint64_t i = draw(pace + 1); i > 0; i--) {
        complete((uint32_t)draw(PARTITIONS));
    }
    world.heartbeat += draw(3) == 0 ? 1 : 0;
    if (draw(2) == 0) {
        beat(index);
    }
    return draw(2) == 0 && arrive((uint32_t)draw(SHARDS));
}

KELP_CASE("apart")

KELP_LOOP_TEST(honest_workers_are_never_suspected, 0, SEEDS)
{
    uint64_t pace = 0;

    begin((uint64_t)_i + 1);
    for (uint32_t i = 0; i < BEATS; i++) {
        if (draw(100) == 0) {
            pace = draw(3) == 0 ? 0 : draw(60); /* training stands, or runs */
        }
        ck_assert_msg(!happens(pace), "seed %d: event %u", _i + 1, i);
    }
}

/* Whichever partition is rushed, and however far. */
KELP_LOOP_TEST(one_that_is_rushed_is_found, 0, SEEDS)
{
    begin((uint64_t)_i + 1);
    for (uint32_t i = 0; i < BEATS / 8; i++) {
        ck_assert(!happens(5));
    }
    world.step_of[draw(PARTITIONS)] += 3 + draw(9);
    for (uint32_t s = 0; s < SHARDS; s++) {
        world.shards[s].stopped = false;
        learn(&world.shards[s], s);
    }
    bool found = false;
    for (uint32_t n = 0; n < 4 * KELP_COORDINATOR_APART_BEATS && !found; n++) {
        world.heartbeat++;
        for (uint32_t s = 0; s < SHARDS && !found; s++) {
            beat(s);
            found = arrive(s);
        }
    }
    ck_assert_msg(found, "seed %d", _i + 1);
}
