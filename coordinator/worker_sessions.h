/*
 * What workers and `kelp status` talk to: the Coordinator service of kelp.proto.
 *
 * A worker's stream is first unidentified; after its hello it is held until etcd has been read, its
 * plan is compared, and it becomes a member with lanes. While we do not lead, streams are closed
 * with KELP_ERR_NOT_LEADER.
 */
#ifndef KELP_COORDINATOR_WORKER_SESSIONS_H
#define KELP_COORDINATOR_WORKER_SESSIONS_H

#include "coordinator/coordinator.h"

/* Borrowed for the life of the process. */
const struct kelp_rpc_method *kelp_service_methods(size_t *ret_count);

/* Bring every worker up to date: map, lanes, leave. beat: a heartbeat to each, news or not. */
void kelp_service_update(struct kelp_coordinator *coordinator, bool beat);
/* The map changed: workers get it (again) as soon as it is loaded. */
void kelp_service_map_changed(struct kelp_coordinator *coordinator);
/* etcd has been read, or the plan in it is another than the one compared before: look at each
 * stream again. */
void kelp_service_review(struct kelp_coordinator *coordinator);
/* A member that was silent for too long. */
void kelp_service_lose(struct kelp_coordinator *coordinator, uint64_t key);
/* Streams that never said who they are. */
void kelp_service_tick(struct kelp_coordinator *coordinator);
/* We do not lead any more. */
void kelp_service_close_all(struct kelp_coordinator *coordinator);

#endif
