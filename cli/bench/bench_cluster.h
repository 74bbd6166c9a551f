/*
 * Clusters to be measured: in a private folder an etcd of their own, and for each job a coordinator
 * and shards as processes, as `kelp train` starts them. What stands for workers is added by the
 * caller. Nothing is started again: a process that ends is an error.
 *
 * Threads: one, the work's thread of a guard (cli/launch/guard.h).
 */
#ifndef KELP_CLI_BENCH_BENCH_CLUSTER_H
#define KELP_CLI_BENCH_BENCH_CLUSTER_H

#include <stdint.h>

#include "cli/launch/guard.h"
#include "common/base/status.h"
#include "common/process/process.h"
#include "common/program/etcd_server.h"
#include "common/program/socket_folder.h"

#define KELP_BENCH_ID_MAX        31
#define KELP_BENCH_ARGUMENTS_MAX 24
#define KELP_BENCH_PROCESSES_MAX 16
#define KELP_BENCH_LOG_MAX       (KELP_SOCKET_FOLDER_MAX + 2 * KELP_BENCH_ID_MAX + 8)

/* The folder and etcd. */
struct kelp_bench_home {
    struct kelp_guard *guard;
    char bin_folder[KELP_PROCESS_PATH_MAX];
    char folder[KELP_SOCKET_FOLDER_MAX + 1]; /* "": none */
    int hold;                                /* -1: none */
    struct kelp_etcd_server *etcd;
    uint32_t jobs; /* so far */
};

/* The folder, without an etcd. Errors: KELP_ERR_NOT_FOUND (a program is missing), KELP_ERR_IO. */
kelp_status kelp_bench_home_open(struct kelp_bench_home *home, struct kelp_guard *guard,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* etcd_program: NULL for the one on PATH. Errors: those of kelp_etcd_server_start(). */
kelp_status kelp_bench_home_start_etcd(struct kelp_bench_home *home, const char *etcd_program,
                                       struct kelp_error *reterr) KELP_MUST_USE;
/* Ends etcd and removes the folder. Safe on all zero. */
void kelp_bench_home_close(struct kelp_bench_home *home);

struct kelp_bench_process {
    char id[KELP_BENCH_ID_MAX + 1];
    char log[KELP_BENCH_LOG_MAX + 1];
    struct kelp_process *process;
    int out; /* what it writes to standard output; -1: not read */
};

/* Start `kelp ARGS` (NULL-terminated, at most KELP_BENCH_ARGUMENTS_MAX - 1); what it prints goes to
 * a log of that name. ret_process->process is owned (kelp_process_destroy()). */
kelp_status kelp_bench_home_start(struct kelp_bench_home *home, const char *id,
                                  const char *const *args, struct kelp_bench_process *ret_process,
                                  struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_bench_cluster {
    struct kelp_bench_home *home;
    char job[KELP_BENCH_ID_MAX + 1];
    char folder[KELP_SOCKET_FOLDER_MAX + KELP_BENCH_ID_MAX + 2];
    struct kelp_bench_process processes[KELP_BENCH_PROCESSES_MAX]; /* the coordinator, shards, … */
    uint32_t count;
    uint32_t shards;
};

/*
 * Put a job into etcd and start its coordinator and shards; they are not waited for. keys: of a job
 * file, all but its name. Errors: KELP_ERR_INVALID (the keys), those of etcd and of starting.
 */
kelp_status kelp_bench_cluster_open(struct kelp_bench_cluster *cluster,
                                    struct kelp_bench_home *home, const char *keys, uint32_t shards,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Kills all of it. Safe on all zero. */
void kelp_bench_cluster_close(struct kelp_bench_cluster *cluster);

/*
 * Start `kelp bench MEMBER --etcd URL --job JOB --id ID ARGS` (NULL-terminated); what it prints is
 * read by kelp_bench_cluster_read(). environment: "NAME=value", NULL-terminated, may be NULL.
 * *ret_index is its place among the processes.
 */
kelp_status kelp_bench_cluster_add(struct kelp_bench_cluster *cluster, const char *member,
                                   const char *id, const char *const *args,
                                   const char *const *environment, uint32_t *ret_index,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* Until this process has printed something, or any of them: *ret_index did. Errors:
 * KELP_ERR_CLOSED (a signal asked for the end, or a process of the cluster has ended: the text has
 * its last words), KELP_ERR_TIMEOUT. */
#define KELP_BENCH_ANYBODY UINT32_MAX
kelp_status kelp_bench_cluster_await(struct kelp_bench_cluster *cluster, uint32_t only,
                                     uint64_t deadline_ms, uint32_t *ret_index,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Exactly so many bytes of what a process prints. Errors: as above.
 */
kelp_status kelp_bench_cluster_read(struct kelp_bench_cluster *cluster, uint32_t index, void *bytes,
                                    size_t count, uint64_t deadline_ms,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/* Let time pass, as long as nothing ends. Errors: KELP_ERR_CLOSED, as above. */
kelp_status kelp_bench_cluster_pass(struct kelp_bench_cluster *cluster, uint32_t ms,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/* Kill a process whose end is meant; it is none of the cluster any more. */
void kelp_bench_cluster_kill(struct kelp_bench_cluster *cluster, uint32_t index);

/* Processor time of the coordinator and the shards so far, seconds. */
double kelp_bench_cluster_cpu_s(const struct kelp_bench_cluster *cluster);

/* Processor time of a process so far, seconds; 0: there is none. */
double kelp_bench_process_cpu_s(const struct kelp_bench_process *process);

/* Its memory (resident), bytes; 0: there is none. */
uint64_t kelp_bench_process_memory(const struct kelp_bench_process *process);

#endif
