/*
 * What the files of the arrangement share: arrangement.c (what to do next) asks
 * arrangement_seats.c (which shards are used, what lies on them), arrangement_goal.c (where
 * replicas are to lie) and arrangement_roles.c (which of them leads).
 */
#ifndef KELP_COORDINATOR_CORE_ARRANGEMENT_ARRANGEMENT_INTERNAL_H
#define KELP_COORDINATOR_CORE_ARRANGEMENT_ARRANGEMENT_INTERNAL_H

#include "coordinator/core/arrangement/arrangement.h"

/* Copies that a partition has at a time: primary, backup, joiner. */
#define KELP__COPIES_MAX 3

/* Where each partition is, and is to lie. Seats are the shards that are used, in the order of
 * their names. Everything that is no seat is KELP_MAP_NOBODY. */
struct kelp__goal {
    uint32_t partition_count;
    uint32_t seat_count;
    uint32_t replicas;    /* of a partition: 1 or 2, at most seat_count */
    uint32_t group_count; /* 1, or 2: a zone has more than half of the seats */
    uint32_t *shard;      /* of each seat: index into the input's shards */
    uint32_t *zone;       /* of each seat: two replicas are never in one; below seat_count */
    uint32_t *group;      /* of each seat: loads within one differ by at most one */
    uint32_t *load;       /* of each seat: replicas in `at` */
    struct kelp_arrangement_entry *entries;        /* as the map has them, but of input's shards */
    uint32_t (*has)[KELP__COPIES_MAX];             /* seats that have a copy: primary first */
    uint32_t (*at)[KELP_ARRANGEMENT_REPLICAS_MAX]; /* the goal: seats, who leads first */
};

/* ---- arrangement_seats.c ---- */

/* Choose the seats, and take in what lies on them (input->map NULL: nothing). Errors:
 * KELP_ERR_INVALID (no seat), KELP_ERR_NO_MEMORY. */
kelp_status kelp__goal_init(struct kelp__goal *goal, const struct kelp_arrangement_input *input,
                            uint32_t partition_count) KELP_MUST_USE;
void kelp__goal_fini(struct kelp__goal *goal);

/* ---- arrangement_goal.c ---- */

/* Fill `at` and `load`, with the fewest copies that are not there. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp__goal_solve(struct kelp__goal *goal) KELP_MUST_USE;

/* ---- arrangement_roles.c ---- */

/* Let the seat lead that comes first in `has`, where it is in `at`. */
void kelp__goal_lead(struct kelp__goal *goal);
/* Exchange who leads in `at` until primaries and backups are balanced, along shortest ways; end
 * after the way with which `most` partitions have changed. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp__goal_balance(struct kelp__goal *goal, uint32_t most) KELP_MUST_USE;

#endif
