/*
 * What etcd reports (etcd/leader.h), told to the leadership and its term.
 */
#ifndef KELP_COORDINATOR_ETCD_EVENTS_H
#define KELP_COORDINATOR_ETCD_EVENTS_H

#include "coordinator/etcd/leader.h"

/* The user is the coordinator. */
extern const struct kelp_leader_events kelp_coordinator_etcd_events;

#endif
