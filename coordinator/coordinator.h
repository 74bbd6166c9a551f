/*
 * The coordinator process. What leads and decides is pure and in term/ (leadership.h, term.h); the
 * rest of this folder carries its effects out and tells it what happens:
 *
 *     effects.c             the table of effects, by the parts below
 *     etcd_events.c         what etcd/ reports, told to the leadership and its term
 *     worker_streams.c      streams of workers, and calls: the Coordinator service
 *     shard_streams.c       streams to shards
 *     follower_streams.c    streams of coordinators that stand by
 *     leader_streams.c      our stream to who leads
 *     record_files.c        records on file (journal.c)
 *     checkpoint_folders.c  checkpoints' folders and manifests
 *
 * Each part owns its state; nobody else writes it.
 *
 * Threads: everything belongs to the one thread that runs the loop.
 */
#ifndef KELP_COORDINATOR_COORDINATOR_H
#define KELP_COORDINATOR_COORDINATOR_H

#include "common/base/status.h"
#include "coordinator/coordinator_options.h"

struct kelp_coordinator;

/* Only the loop, so that kelp_coordinator_stop() may be called from now on. options is copied, its
 * texts are borrowed. */
kelp_status kelp_coordinator_create(const struct kelp_coordinator_options *options,
                                    struct kelp_coordinator **ret_coordinator,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Bind the address and start waiting for the spec. Errors: as kelp_rpc_server_open(), and
 * KELP_ERR_INVALID. */
kelp_status kelp_coordinator_open(struct kelp_coordinator *coordinator,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Returns when kelp_coordinator_stop() was called, or something is wrong that waiting cannot mend;
 * gives the process's exit code. */
int kelp_coordinator_run(struct kelp_coordinator *coordinator);
/* Ask run() to return once it is not needed any more: a leader without a standby sees shards off
 * that are told to end too, in the time of its grace. Any thread. */
void kelp_coordinator_end(struct kelp_coordinator *coordinator);
/* Ask run() to return. Any thread. */
void kelp_coordinator_stop(struct kelp_coordinator *coordinator);
/* Closes everything. NULL does nothing. */
void kelp_coordinator_destroy(struct kelp_coordinator *coordinator);

#endif
