/*
 * etcd in memory: keys with revisions, transactions, leases, watches, and answers that get lost.
 * Keys are short texts without the job's prefix: "map", "ps/shard-0", "checkpoint/12".
 *
 * A request has the outcomes of common/etcd/etcd.h: answered; certainly not applied
 * (KELP_ERR_UNREACHABLE); or unknown (KELP_ERR_TIMEOUT), and then it may be applied much later.
 */
#ifndef KELP_TESTS_SIM_OUTSIDE_ETCD_H
#define KELP_TESTS_SIM_OUTSIDE_ETCD_H

#include "tests/sim/world.h"

#define SIM_ETCD_KEY_MAX 31
#define SIM_ETCD_OPS_MAX 24

/* What a key holds. Counted, and never changed once it is put. */
struct sim_value {
    uint32_t refs;
    uint64_t nonce;  /* unique to the put: tells a lost answer from a failure */
    uint64_t holder; /* incarnation, of who leads or registers */
    unsigned place;  /* its process */
    char text[16];   /* a state */
    void *content;   /* a struct sim_map or sim_manifest; a reference */
    void (*unref)(void *content);
};
struct sim_value *sim_value_create(void);
struct sim_value *sim_value_ref(struct sim_value *value);
void sim_value_unref(struct sim_value *value);

struct sim_key {
    char name[SIM_ETCD_KEY_MAX + 1];
    int64_t create_revision;
    int64_t mod_revision;
    uint64_t lease;
    struct sim_value *value;
};

struct sim_compare {
    char key[SIM_ETCD_KEY_MAX + 1];
    bool create; /* the create revision; else the mod revision */
    int64_t revision;
};
struct sim_operation {
    char key[SIM_ETCD_KEY_MAX + 1];
    struct sim_value *value; /* a reference; NULL: delete */
    uint64_t lease;
};
struct sim_transaction {
    size_t compare_count;
    struct sim_compare compares[SIM_ETCD_OPS_MAX];
    size_t operation_count;
    struct sim_operation operations[SIM_ETCD_OPS_MAX];
    char nonce_key[SIM_ETCD_KEY_MAX + 1]; /* as in kelp_etcd_transaction(); empty: none */
};
void sim_transaction_fini(struct sim_transaction *transaction);

struct sim_etcd *sim_etcd_create(void);
void sim_etcd_destroy(struct sim_etcd *etcd);
/* Away: every request fails, leases stand still. Nothing is forgotten: it is a cluster with disks.
 */
void sim_etcd_away(struct sim *sim, bool away);
bool sim_etcd_reachable(const struct sim *sim, const struct sim_process *process);

/* What is there now; for the invariants, and for a read that reaches etcd. NULL: nothing. */
const struct sim_key *sim_etcd_look(const struct sim *sim, const char *key);
/* Keys that begin with prefix, in order, one for each call: index 0, 1, ... NULL: no more. */
const struct sim_key *sim_etcd_list(const struct sim *sim, const char *prefix, size_t index);
/* Is this the job's state there? */
bool sim_job_state(const struct sim *sim, const char *state);
int64_t sim_etcd_revision(const struct sim *sim);

/* ---- requests ----------------------------------------------------------------------------------
 */

/* The outcome of a request of `process`; revision is that of a transaction that was applied. */
struct sim_outcome {
    kelp_status status;
    bool succeeded;
    int64_t revision;
};
typedef void sim_etcd_done(struct sim *sim, struct sim_process *process, void *data,
                           const struct sim_outcome *outcome);

/* A read: take() is called when it reaches etcd and looks at what is there. done() is called in the
 * process, with KELP_OK or an error, when the answer has come: later, and much later when the
 * process was stopped meanwhile. */
typedef void sim_etcd_take(struct sim *sim, struct sim_process *process);
void sim_etcd_read(struct sim *sim, struct sim_process *process, sim_etcd_take *take,
                   sim_etcd_done *done);
/* The transaction is transferred. */
void sim_etcd_submit(struct sim *sim, struct sim_process *process,
                     const struct sim_transaction *transaction, sim_etcd_done *done, void *data);

/* ---- leases and watches ------------------------------------------------------------------------
 */

/* Granted at once, so that clients stay short: what can go wrong with it goes wrong with the
 * transaction that uses it. */
uint64_t sim_etcd_grant(struct sim *sim, uint64_t ttl_us);
/* False: it is gone. */
bool sim_etcd_keep_alive(struct sim *sim, uint64_t lease);
void sim_etcd_revoke(struct sim *sim, uint64_t lease);

/* Whenever a key with that prefix has changed, and at the beginning, changed() is called in the
 * process soon afterwards, later when etcd is out of reach, and only once for several changes: with
 * each key that is there in another revision than the process has seen, and removed() with each
 * that went. Ends with the process or sim_etcd_unwatch(). */
struct sim_watch_events {
    void (*changed)(struct sim *sim, struct sim_process *process, const struct sim_key *key);
    void (*removed)(struct sim *sim, struct sim_process *process, const char *key);
    void (*synced)(struct sim *sim, struct sim_process *process); /* may be NULL */
};
uint64_t sim_etcd_watch(struct sim *sim, struct sim_process *process, const char *prefix,
                        const struct sim_watch_events *events);
void sim_etcd_unwatch(struct sim *sim, uint64_t watch);

#endif
