/*
 * Partitions of one job, the tree of lanes, and their shell, for random orders of events. Each
 * action of a partition is checked against what the step must be.
 */
#ifndef KELP_TESTS_LIB_CORES_PARTITION_WORLD_H
#define KELP_TESTS_LIB_CORES_PARTITION_WORLD_H

#include <check.h>

#include "ps/core/partition/partition.h"

#define WORLD_PARTITIONS  3
#define WORLD_HANDLES_MAX 4096
#define WORLD_WORKS_MAX   512
#define WORLD_REQUESTERS  6
#define WORLD_TEXT_MAX    256
#define WORLD_HISTORY_MAX 64
#define WORLD_HELPERS     2 /* the last requesters accept offers without waiting */

/* A merge or an apply under way in the shell. */
struct world_work {
    uint32_t partition;
    struct kelp_action action;
};

struct world_expectation {
    bool waiting;
    uint64_t step;
};

extern struct orders_world {
    uint64_t seed;
    uint64_t state; /* of the random numbers */
    struct kelp_job job;
    struct kelp_plan plan;
    uint32_t lanes;
    struct kelp_partition *partitions[WORLD_PARTITIONS];
    struct kelp_actions actions;
    char *texts[WORLD_HANDLES_MAX]; /* gradients by handle; NULL: free */
    struct world_work works[WORLD_WORKS_MAX];
    size_t work_count;
    /* Words of completed entries, newest last. */
    struct kelp_control_word history[WORLD_HISTORY_MAX];
    size_t history_count;
    uint64_t records;
    uint64_t steps[WORLD_PARTITIONS];
    struct world_expectation expected[WORLD_PARTITIONS][WORLD_REQUESTERS];
    struct kelp_snapshot_order orders[WORLD_PARTITIONS]; /* waiting */
    uint64_t serial;
    uint64_t snapshots;
    uint64_t pasts;
    uint64_t now_us;
    bool offered; /* `offer` is new */
    uint32_t offer_partition;
    struct kelp_offer offer;
    uint64_t offers;
    uint64_t comparisons; /* of sums of duplicates */
    uint64_t skips;
    uint64_t decisions; /* values that partitions applied */
} orders_world;

/* ck_assert() writes to a file for each success; this is called millions of times. */
#define world_must(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ck_abort_msg("seed %llu: %s", (unsigned long long)orders_world.seed, #condition);      \
        }                                                                                          \
    } while (0)

/* A random number less than `below`. */
uint64_t world_pick(uint64_t below);

/* Samples of the lanes [first, end). */
uint64_t world_samples_of(const struct kelp_control_word *word, uint32_t first, uint32_t end);
/* The expected value of the node; "": it has no samples. */
void world_expression(const struct kelp_control_word *word, uint32_t first, uint32_t count,
                      char *text);
uint64_t world_new_handle(const char *text);
struct kelp_content world_content_of(const char *text);

struct kelp_partition_view world_view(uint32_t partition);
/* A partition's share of a step: as many numbers as its slice has nodes. */
void world_share_at(uint32_t partition, uint64_t step, struct kelp_decision_share *ret_share);
/* The decision about a step that is not skipped: `count` values. */
uint32_t world_decided_at(uint64_t step, double *values);

/* Check and note the partition's actions. */
void world_take_actions(uint32_t partition);
/* Finish a merge or an apply. */
void world_finish_work(size_t which);

#endif
