/*
 * The leader's streams to the shards (Control of kelp.proto): spec, plan and map out, reports in,
 * heartbeats both ways. A stream that breaks is opened again every 100 ms.
 */
#ifndef KELP_COORDINATOR_SHARD_LINK_H
#define KELP_COORDINATOR_SHARD_LINK_H

#include "coordinator/coordinator.h"

/* A shard registered, maybe as another incarnation or at another address. */
void kelp_link_set(struct kelp_coordinator *coordinator, const struct kelp_map_shard *shard);
/* Plan or map changed: to every shard that does not have it. */
void kelp_link_update(struct kelp_coordinator *coordinator);
/* The order for a snapshot has changed: to every shard. */
void kelp_link_order(struct kelp_coordinator *coordinator);
/* Heartbeats and reconnection. */
void kelp_link_tick(struct kelp_coordinator *coordinator);
/* A member that was silent for too long. */
void kelp_link_lose(struct kelp_coordinator *coordinator, uint64_t key);
/* We do not lead any more: close all streams. Links are freed as their streams report it. */
void kelp_link_close_all(struct kelp_coordinator *coordinator);

#endif
