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
/* Stop leading, if we do. */
void kelp_leading_end(struct kelp_coordinator *coordinator, const char *why);

#endif
