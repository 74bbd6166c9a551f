/*
 * A cluster of daemons that are watched: started one by one beside an etcd, each with --metrics at
 * a socket of its own. Everything here fails the running test when it cannot do its work.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_WATCHED_H
#define KELP_TESTS_LIB_COMMANDS_WATCHED_H

#include "common/process/process.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/etcd/etcd_fixture.h"

#define WATCHED_PROCESSES 8

struct watched {
    struct etcd_fixture etcd;
    struct kelp_test_folder folder; /* of the run, the sockets and the logs */
    struct {
        char id[32];
        struct kelp_process *process;
    } daemons[WATCHED_PROCESSES];
    size_t count;
    unsigned replicas; /* of each partition, 2 unless a test sets it */
};

/* etcd alone, and a folder. */
void watched_start(struct watched *watched);
/* Kills all daemons, and removes the folder. */
void watched_stop(struct watched *watched);

/* The job "watched" comes into etcd: of two workers and two shards, and so many epochs. */
void watched_put_job(struct watched *watched, unsigned epochs);

/* Start kelp-KIND (ps, worker, coordinator) of that id; arguments: more of its own,
 * NULL-terminated; NULL: none. */
void watched_daemon(struct watched *watched, const char *kind, const char *id,
                    const char *const *arguments);
/* Two coordinators, shards and workers. */
void watched_daemons(struct watched *watched);
/* The process of that id. */
struct kelp_process *watched_process(const struct watched *watched, const char *id);

/* "unix:/…" of a daemon's --metrics; static storage, until the next call. */
const char *watched_address(const struct watched *watched, const char *id);
/* The status of GET path; 0: nobody answers. */
int watched_status(const struct watched *watched, const char *id, const char *path);
/* The body of GET path; static storage, until the next call. */
const char *watched_ask(const struct watched *watched, const char *id, const char *path);
/* A sample of its /metrics; -1: it is not told. */
double watched_sample(const struct watched *watched, const char *id, const char *name);

#endif
