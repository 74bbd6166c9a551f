/*
 * Hosts of one job. Each is a `kelp node` on this machine that listens on loopback ports with
 * certificates; etcd has its own certificate. On an error these functions fail the running test.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_CERTIFIED_HOSTS_H
#define KELP_TESTS_LIB_CLUSTER_CERTIFIED_HOSTS_H

#include "tests/lib/commands/run_command.h"

#define KELP_CERTIFIED_HOSTS_MAX 2

struct kelp_certified_hosts {
    struct kelp_test_folder folder; /* in which all commands run */
    const char *job;                /* its name; borrowed */
    struct kelp_process *etcd;
    char etcd_url[64];
    struct kelp_test_command hosts[KELP_CERTIFIED_HOSTS_MAX]; /* "a", "b" */
};

/* Make a new folder with certificates for that job, and start etcd. etcd_fixture_require() must
 * have been called. */
void kelp_certified_hosts_init(struct kelp_certified_hosts *cluster, const char *job);
void kelp_certified_hosts_fini(struct kelp_certified_hosts *cluster);

/* `kelp submit FILE --run RUN ARGS…`; args: NULL-terminated, or NULL. */
void kelp_certified_hosts_submit(struct kelp_certified_hosts *cluster, const char *file,
                                 const char *run, const char *const *args);
/* Run `kelp free`, so that the job's name may be submitted again. */
void kelp_certified_hosts_free(struct kelp_certified_hosts *cluster);
/* Start a host with this many shards, one worker, and ARGS. The first host has the coordinator. */
void kelp_certified_hosts_start(struct kelp_certified_hosts *cluster, size_t host,
                                const char *shards, const char *const *args);
/* Wait for the host's end, and check its exit status. */
void kelp_certified_hosts_end(struct kelp_certified_hosts *cluster, size_t host, int exit_code);

/* How often the log of a process ("a.worker-0") in RUN has these words. */
unsigned kelp_certified_hosts_said(const struct kelp_certified_hosts *cluster, const char *run,
                                   const char *id, const char *words);

#endif
