/*
 * Hosts of one job, each a `kelp node` of this machine that serves at ports of loopback with
 * certificates, and an etcd that has its own. Everything here fails the running test when it cannot
 * do its work.
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

/* A new folder with certificates for that job, and etcd; etcd_fixture_require() was called. */
void kelp_certified_hosts_init(struct kelp_certified_hosts *cluster, const char *job);
void kelp_certified_hosts_fini(struct kelp_certified_hosts *cluster);

/* `kelp submit FILE --run RUN ARGS…`; args: NULL-terminated, or NULL. */
void kelp_certified_hosts_submit(struct kelp_certified_hosts *cluster, const char *file,
                                 const char *run, const char *const *args);
/* `kelp free`: the job's name may be submitted again. */
void kelp_certified_hosts_free(struct kelp_certified_hosts *cluster);
/* A host with so many shards and one worker, and ARGS. The first one has the coordinator. */
void kelp_certified_hosts_start(struct kelp_certified_hosts *cluster, size_t host,
                                const char *shards, const char *const *args);
/* Its end, with that exit status. */
void kelp_certified_hosts_end(struct kelp_certified_hosts *cluster, size_t host, int exit_code);

/* How often the log of a process ("a.worker-0") in RUN says it. */
unsigned kelp_certified_hosts_said(const struct kelp_certified_hosts *cluster, const char *run,
                                   const char *id, const char *words);

#endif
