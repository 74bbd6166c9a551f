/*
 * Contents of duplicates that wait for their siblings (ps/core/evidence/evidence.h), and their
 * metric sums.
 */
#ifndef KELP_PS_CORE_EVIDENCE_EVIDENCE_HELD_H
#define KELP_PS_CORE_EVIDENCE_EVIDENCE_HELD_H

#include "ps/core/limits.h"
#include "ps/core/partition_events.h"

enum held_state {
    HELD_NONE,
    HELD_READY,   /* of a claimed node, waits for its sibling */
    HELD_MERGING, /* its children are being added up; no handle */
    HELD_COMPARING
};

/* The content of a duplicate, or a sum of them. */
struct held {
    enum held_state state;
    uint64_t serial; /* of the entry */
    uint32_t node;
    uint32_t author; /* who sent the last part of it */
    uint64_t handle;
    double
        *sums; /* KELP_METRIC_SUM_COUNT of them, kept with the slot; NULL: there were never any */
    uint32_t sum_count;
};

struct held_list {
    bool is_used; /* since it was emptied */
    struct held items[KELP_PS_EVIDENCE_HELD_MAX];
};

void kelp__held_fini(struct held_list *list);

/* In this state; another one than `but`, which may be NULL. */
struct held *kelp__held_find(struct held_list *list, uint64_t serial, uint32_t node,
                             enum held_state state, const struct held *but);
/* A slot for something of this entry; those of older ones give way. NULL: there is none. */
struct held *kelp__held_make_room(struct held_list *list, uint64_t serial,
                                  struct kelp_actions *actions);
/* Its handle is released. */
void kelp__held_discard(struct held *held, struct kelp_actions *actions);
/* All of an entry; serial 0: of all entries. */
void kelp__held_discard_all(struct held_list *list, uint64_t serial, struct kelp_actions *actions);

/* False: out of memory. */
bool kelp__held_keep_sums(struct held *held, const double *sums, uint32_t count);
/* Into `sum`, which is one of the two; false: out of memory. */
bool kelp__held_add_sums(struct held *sum, const struct held *left, const struct held *right);

#endif
