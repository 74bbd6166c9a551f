/*
 * Becoming the leader, taking over what etcd holds, and ceasing to lead.
 *
 * After the spec has come we stand for election. Elected, we make fresh state, open the journal,
 * watch the shards, and read plan, map and state; until that answer is here, workers are held.
 *
 * etcd goes away: our election key may vanish with its lease, but nobody else can win it either. We
 * go on leading without writing. When etcd is back, we are elected again and read what it has; if
 * somebody else led in between (its map is newer, or its key stands there), we step down and start
 * over.
 */
#ifndef KELP_COORDINATOR_LEADING_H
#define KELP_COORDINATOR_LEADING_H

#include "coordinator/coordinator.h"

/* What etcd tells us; the user is the coordinator. */
extern const struct kelp_leader_events kelp_leading_events;

/* Try again what etcd did not answer. */
void kelp_leading_tick(struct kelp_coordinator *coordinator);
/* Stop leading, let another one lead, and stand for election again after a while. */
void kelp_leading_resign(struct kelp_coordinator *coordinator);
/* Now and then: whoever resigned stands again when it is time. If nobody else leads by then, we are
 * better than nobody. */
void kelp_leading_stand(struct kelp_coordinator *coordinator);
/* Stop leading, if we do. */
void kelp_leading_end(struct kelp_coordinator *coordinator, const char *why);

#endif
