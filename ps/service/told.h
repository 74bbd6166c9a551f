/*
 * What one coordinator was told of followers, so that a report names only what has changed since
 * the one before. control_lock guards it.
 */
#ifndef KELP_PS_SERVICE_TOLD_H
#define KELP_PS_SERVICE_TOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/training/plan.h"
#include "proto/kelp.pb-c.h"

struct kelp__service_told {
    uint64_t generation; /* of the newest map, as the reports said */
    uint64_t serial;
    /* By partition; map epoch 0: nothing. */
    struct {
        uint64_t map_epoch;
        uint64_t lag;
        uint64_t copied;
        uint64_t to_copy;
        bool backup_in_sync;
        bool joiner_in_sync;
    } rows[KELP_PARTITIONS_MAX];
};

/* All zero: nothing was told. A report was not sent, or its receiver has a newer map than we: it is
 * told everything again. */
void kelp__service_told_forget(struct kelp__service_told *told);
/* The next report says that this map is the newest: in it everything is told again. */
void kelp__service_told_map(struct kelp__service_told *told, uint64_t generation, uint64_t serial);
/* Is this not known? It is from now on. */
bool kelp__service_told_take(struct kelp__service_told *told, const Kelp__V1__ReplicaReport *row);

#endif
