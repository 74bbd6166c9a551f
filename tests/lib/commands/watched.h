/*
 * A cluster of daemons started one by one, with an etcd, each with --metrics at its own socket. On
 * an error these functions fail the running test.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_WATCHED_H
#define KELP_TESTS_LIB_COMMANDS_WATCHED_H

#include "common/process/process.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/etcd/etcd_fixture.h"

#define WATCHED_PROCESSES 8

struct watched {
    struct etcd_fixture etcd;
    struct kelp_test_folder folder; /* for the run, the sockets and the logs */
    struct {
        char id[32];
        struct kelp_process *process;
    } daemons[WATCHED_PROCESSES];
    size_t count;
    unsigned replicas; /* replicas of each partition; 2 by default */
};

/* Make the folder and start only etcd. */
void watched_start(struct watched *watched);
/* Kill all daemons, and remove the folder. */
void watched_stop(struct watched *watched);

/* Put the job "watched" into etcd: two workers, two shards, and so many epochs. */
void watched_put_job(struct watched *watched, unsigned epochs);

/* Start kelp-KIND (ps, worker, coordinator) with that id. arguments: further ones,
 * NULL-terminated; NULL: none. */
void watched_daemon(struct watched *watched, const char *kind, const char *id,
                    const char *const *arguments);
/* Start two coordinators, shards and workers. */
void watched_daemons(struct watched *watched);
/* The process of that id. */
struct kelp_process *watched_process(const struct watched *watched, const char *id);

/* "unix:/…" of a daemon's --metrics; static storage, until the next call. */
const char *watched_address(const struct watched *watched, const char *id);
/* The status of GET path; 0: no answer. */
int watched_status(const struct watched *watched, const char *id, const char *path);
/* The body of GET path; static storage, until the next call. */
const char *watched_ask(const struct watched *watched, const char *id, const char *path);
/* A sample of its /metrics; -1: absent. */
double watched_sample(const struct watched *watched, const char *id, const char *name);

#endif
