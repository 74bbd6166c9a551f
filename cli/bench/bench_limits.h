/*
 * What pushing and pulling comes to without Kelp: the same bytes between as many workers and
 * shards, as threads of this process.
 *
 *     copy      memory alone: each worker copies what it pushes, and what it pulls
 *     sockets   each worker has a unix socket to each shard: it sends its part of the gradient and
 *               receives as much, once the shard has added those of all workers
 *     memory    the same where a shard reads the gradient in place, and a worker copies the sum;
 *               a word for each tells the other one, who looks for a moment before it sleeps
 */
#ifndef KELP_CLI_BENCH_BENCH_LIMITS_H
#define KELP_CLI_BENCH_BENCH_LIMITS_H

#include "cli/bench/bench_rate.h"
#include "cli/launch/guard.h"
#include "common/base/status.h"

#define KELP_BENCH_WORKERS_MAX 8
#define KELP_BENCH_SHARDS_MAX  4

enum kelp_bench_limit {
    KELP_BENCH_COPY,
    KELP_BENCH_SOCKETS,
    KELP_BENCH_MEMORY,
    KELP_BENCH_LIMIT_COUNT
};

/* Errors: KELP_ERR_NO_MEMORY, KELP_ERR_IO (no sockets), KELP_ERR_CLOSED (a signal asked for the
 * end). */
kelp_status kelp_bench_limit_measure(enum kelp_bench_limit limit,
                                     const struct kelp_bench_pattern *pattern,
                                     struct kelp_guard *guard, struct kelp_bench_rate *ret_rate,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif
