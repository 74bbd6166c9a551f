/*
 * What runs on the hosts of a run under chaos: on each a member of etcd, and a `kelp node` with a
 * coordinator and its share of shards and workers.
 *
 * Threads: one, which lives as long as the processes may (common/process/process.h).
 */
#ifndef KELP_CLI_CHAOS_CHAOS_MACHINES_H
#define KELP_CLI_CHAOS_CHAOS_MACHINES_H

#include "cli/chaos/chaos_child.h"
#include "cli/chaos/network/network.h"
#include "cli/run/run_dir.h"

#define KELP_CHAOS_MACHINE_PATH_MAX (KELP_RUN_PATH_MAX + 64)
#define KELP_CHAOS_URLS_MAX         (KELP_NETWORK_HOSTS_MAX * 64)
#define KELP_CHAOS_HEALTH_MS        500 /* for a member of etcd to say how it is */

struct kelp_chaos_machine {
    char name[16]; /* "host-0" */
    char etcd_folder[KELP_CHAOS_MACHINE_PATH_MAX];
    char etcd_log[KELP_CHAOS_MACHINE_PATH_MAX];
    char node_log[KELP_CHAOS_MACHINE_PATH_MAX];
    uint32_t shards;
    uint32_t workers;
    struct kelp_process *etcd;    /* NULL: none runs */
    struct kelp_chaos_child node; /* likewise */
    struct kelp_etcd *health;     /* a client of that member only */
};

struct kelp_chaos_machines {
    struct kelp_network *network; /* borrowed, as are the next texts */
    const char *folder;           /* FOLDER/host-0.etcd, host-0.etcd.log and host-0.log */
    const char *bin_folder;
    const char *job;
    const char *certs; /* a folder for each role in it */
    const char *etcd_program;
    const char *log_level;
    uint32_t shards; /* over all of them */
    uint32_t workers;
    char operator_certs[KELP_CHAOS_MACHINE_PATH_MAX];
    char etcd[KELP_PROCESS_PATH_MAX];
    char urls[KELP_CHAOS_URLS_MAX]; /* of all members */
    struct kelp_chaos_machine list[KELP_NETWORK_HOSTS_MAX];
};

/* Fills what follows the fields that are set, and starts nothing. Errors: KELP_ERR_LIMIT (a path),
 * those of kelp_etcd_server_find() and kelp_etcd_open(). */
kelp_status kelp_chaos_machines_init(struct kelp_chaos_machines *machines,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Kills what runs. */
void kelp_chaos_machines_fini(struct kelp_chaos_machines *machines);

/* Errors of both: those of kelp_process_start() and kelp_network_enter(). */
kelp_status kelp_chaos_machines_start_etcd(struct kelp_chaos_machines *machines, uint32_t host,
                                           struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_chaos_machines_start_node(struct kelp_chaos_machines *machines, uint32_t host,
                                           struct kelp_error *reterr) KELP_MUST_USE;

/* SIGKILL to all that runs there; nothing does when it returns. Errors: those of
 * kelp_network_kill(), KELP_ERR_MISMATCH (there was not even etcd and kelp node). */
kelp_status kelp_chaos_machines_kill(struct kelp_chaos_machines *machines, uint32_t host,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* Has `kelp node` ended there, or is none to run? It must have ended with status 0, and etcd must
 * run: else errors that hold their last words. */
kelp_status kelp_chaos_machines_look(struct kelp_chaos_machines *machines, uint32_t host,
                                     bool *ret_ended, struct kelp_error *reterr) KELP_MUST_USE;

/* Does every member of etcd say that it is well? Blocks for KELP_CHAOS_HEALTH_MS at most for the
 * first one that does not. */
bool kelp_chaos_machines_healthy(struct kelp_chaos_machines *machines);

#endif
