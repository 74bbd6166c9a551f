/*
 * The shell of checkpoints.h: feeds it, and carries out what it says through leader.h (etcd),
 * shard_link.h (orders), checkpoint_files.h (on the disk's thread) and placement.
 */
#ifndef KELP_COORDINATOR_CHECKPOINTING_H
#define KELP_COORDINATOR_CHECKPOINTING_H

#include "coordinator/coordinator.h"

/* We begin to lead. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_checkpointing_init(struct kelp_coordinator *coordinator,
                                    struct kelp_error *reterr) KELP_MUST_USE;
void kelp_checkpointing_fini(struct kelp_coordinator *coordinator);

/* Hand in an event and do what follows. now_ms is filled in. */
void kelp_checkpointing_apply(struct kelp_coordinator *coordinator,
                              struct kelp_checkpointer_event event);

/* What etcd holds; begin: at the beginning of our time, when folders that no manifest names go. */
void kelp_checkpointing_found(struct kelp_coordinator *coordinator, struct kelp_leader_found *found,
                              bool begin);
/* The placement's map is this one from now on; opened: by us. */
void kelp_checkpointing_generation(struct kelp_coordinator *coordinator, bool opened);
/* The manifest that goes with the placement's map: text, borrowed; "": none. */
const char *kelp_checkpointing_manifest(const struct kelp_coordinator *coordinator);
/* Write the placement's next map. */
kelp_status kelp_checkpointing_open(struct kelp_coordinator *coordinator) KELP_MUST_USE;
/* A shard's answer to an order. */
void kelp_checkpointing_report(struct kelp_coordinator *coordinator,
                               const struct kelp_map_shard *shard,
                               const Kelp__V1__SnapshotReport *report);

/* Answers of leader.h; the user is the coordinator. */
void kelp_checkpointing_committed(uint64_t serial, enum kelp_checkpointer_result result,
                                  int64_t revision, const char *text, void *user);
void kelp_checkpointing_removed(enum kelp_checkpointer_result result, const char *text, void *user);

#endif
