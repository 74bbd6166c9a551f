/*
 * A worker of a small job under test: one shard has partitions 0 and 1, the other has 2.
 */
#ifndef KELP_TESTS_LIB_CORES_STEPPER_BENCH_H
#define KELP_TESTS_LIB_CORES_STEPPER_BENCH_H

#include "worker/core/stepper.h"

#define STEPPER_PARTITIONS 3u
#define STEPPER_BLOCK      16u
#define STEPPER_SHARDS     3

extern struct stepper_bench {
    struct kelp_job job;
    struct kelp_plan plan;
    struct kelp_stepper *stepper;
    struct kelp_stepper_actions actions; /* of the latest event */
} stepper_bench;

struct stepper_entry {
    uint32_t primary; /* index into stepper_shards */
    uint64_t map_epoch;
};

/* shard-1 was started twice. */
extern const struct kelp_place stepper_shards[STEPPER_SHARDS];
/* The entries in the first map of generation 1. */
extern const struct stepper_entry stepper_begun[STEPPER_PARTITIONS];

/* Fixtures of each test. */
void stepper_setup(void);
void stepper_teardown(void);

void stepper_take(const struct kelp_stepper_event *event);
void stepper_turn(void);
/* The nth action of that kind, from 0, or NULL; and their number. */
const struct kelp_stepper_action *stepper_find(enum kelp_stepper_action_kind kind, size_t nth);
size_t stepper_count(enum kelp_stepper_action_kind kind);

/* News with these places. */
void stepper_map(uint64_t generation, uint64_t serial,
                 const struct stepper_entry entries[STEPPER_PARTITIONS],
                 const struct kelp_news *news);
/* The first news of a generation, with lanes. */
void stepper_get_news(uint64_t generation, uint32_t lane_first, uint32_t lane_count);
/* News of generation 1 with other places. */
void stepper_change_map(uint64_t serial, const struct stepper_entry entries[STEPPER_PARTITIONS]);

uint32_t stepper_link_of(uint32_t partition);
struct kelp_control_word stepper_word_of(uint64_t step);
/* Every partition has weights of `step`. */
void stepper_answer_all(uint64_t generation, uint64_t step);
void stepper_push(uint32_t first, uint32_t count, void *content);
/* The worker holds weights of step 0 and has pushed lanes [0, 2) to both shards. */
void stepper_push_first_step(void *content);
/* The partition's shard refuses a message; primary: the present one, or NULL. */
void stepper_refuse(uint32_t partition, kelp_status status, uint64_t map_epoch,
                    const struct kelp_place *primary);

#endif
