/* What the files of the etcd in memory share. */
#ifndef KELP_TESTS_SIM_OUTSIDE_ETCD_INTERNAL_H
#define KELP_TESTS_SIM_OUTSIDE_ETCD_INTERNAL_H

#include "tests/sim/outside/etcd.h"

#define SIM_ETCD_KEYS_MAX 64

struct sim__lease {
    uint64_t id;
    uint64_t ttl_us;
    uint64_t until_us;
};

struct sim__seen {
    char name[SIM_ETCD_KEY_MAX + 1];
    int64_t mod_revision;
};

struct sim__watch {
    bool open;
    bool due; /* an event will look */
    struct sim_process *process;
    uint64_t incarnation;
    char prefix[SIM_ETCD_KEY_MAX + 1];
    const struct sim_watch_events *events;
    struct sim__seen seen[SIM_ETCD_KEYS_MAX];
    size_t seen_count;
};

struct sim_etcd {
    bool away;
    uint64_t away_since;
    int64_t revision;
    struct sim_key keys[SIM_ETCD_KEYS_MAX]; /* in order of names */
    size_t key_count;
    struct sim__lease *leases;
    size_t lease_count;
    size_t lease_capacity;
    uint64_t lease_ids;
    struct sim__watch **watches; /* watch n is watches[n - 1] */
    size_t watch_count;
    size_t watch_capacity;
};

struct sim_outcome sim__etcd_apply(struct sim *sim, const struct sim_transaction *transaction);
/* The key has changed: who watches it looks soon. */
void sim__etcd_notify(struct sim *sim, const char *key);

#endif
