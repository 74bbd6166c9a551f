/*
 * A worker's link to its job: streams to the coordinator and the shards, the weights, what is to be
 * computed, and what was.
 *
 *     kelp_job_link_open()   find etcd and the job
 *     kelp_job_link_join()   tell the coordinator the plan derived from the job's data and model
 *     loop:
 *         kelp_job_link_next()   blocks until there are lanes to compute, with the weights they
 * need kelp_job_link_push()   hands over the sum of an aligned range of those lanes
 *
 * worker/lane_feed.h is above it: lane by lane, which is what a program wants. A worker keeps no
 * state that matters: it can be killed at any moment, and what it pushes twice is dropped. All
 * functions are called from one thread. Everything else (streams, reconnection, maps, generations,
 * resending) happens inside kelp_job_link_next(), and on a thread of the link while the caller
 * computes for long.
 */
#ifndef KELP_WORKER_JOB_LINK_H
#define KELP_WORKER_JOB_LINK_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/program/daemon.h"
#include "common/tls/credentials.h"
#include "common/training/control.h"
#include "common/training/plan.h"

struct kelp_job_link;
struct kelp_gradient; /* worker/compute/gradients.h */
struct kelp_figures;  /* common/scrape/figures.h */
struct kelp_trace;    /* common/log/trace.h */

struct kelp_job_link_options {
    const char *etcd; /* endpoints, "http://127.0.0.1:2379" */
    const char *job;
    const char *id; /* unique in the job; a second one of the same id replaces the first */
    /* Mutual TLS on every port; borrowed until close. NULL: none. */
    struct kelp_credentials *credentials;
    const char *spec_sha256; /* of the job's text in etcd: another one is refused; NULL: any */
    /* After stop was raised, kelp_job_link_next() sends what was pushed, and waits for so long
     * until all shards have used it. */
    uint32_t grace_ms;
    struct kelp_figures *figures; /* what whoever watches it is told; borrowed. NULL: nobody does */
    struct kelp_trace *trace;     /* of some steps; borrowed. NULL: none is made */
    /* Files of the job that lie elsewhere on this host, borrowed until the worker is open; NULL:
     * none do. */
    const struct kelp_path_map *paths;
    /* Where shards of this host that serve at ports are met for shared memory; borrowed until
     * close. NULL: nowhere. */
    const char *shm_folder;
};

/*
 * Connect to etcd and read the job's specification; waits until both are there and says so in the
 * log. Raising stop ends the wait with KELP_ERR_TIMEOUT.
 * Errors: KELP_ERR_INVALID (the specification), KELP_ERR_MISMATCH (another one than is meant),
 * KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_job_link_open(const struct kelp_job_link_options *options, struct kelp_stop *stop,
                               struct kelp_job_link **ret_link,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* Leave the job. NULL does nothing. */
void kelp_job_link_close(struct kelp_job_link *job_link);

/* Borrowed until close. */
const struct kelp_job_file *kelp_job_link_file(const struct kelp_job_link *job_link);
const struct kelp_job *kelp_job_link_job(const struct kelp_job_link *job_link);

/* As in the options. */
struct kelp_figures *kelp_job_link_figures(const struct kelp_job_link *job_link);
struct kelp_trace *kelp_job_link_trace(const struct kelp_job_link *job_link);

/* Memory for weights, aligned to KELP_TENSOR_ALIGN, which is freed by close: so that a device
 * copies from it. Of malloc()'s unless this is called, before join. */
struct kelp_job_link_memory {
    void *(*alloc)(void *user, size_t bytes); /* NULL: there is none */
    void (*free)(void *user, void *memory);
    void *user; /* borrowed until close */
};
void kelp_job_link_memory(struct kelp_job_link *job_link,
                          const struct kelp_job_link_memory *memory);

/*
 * plan is borrowed until close. Called once, before kelp_job_link_next(). Errors: KELP_ERR_INVALID
 * (the job has cluster.compute: portable, and the plan another compute kind), KELP_ERR_NO_MEMORY.
 * Deriving the plan of such a job needs a program that was started with OPENBLAS_CORETYPE=Haswell.
 */
kelp_status kelp_job_link_join(struct kelp_job_link *job_link, const struct kelp_plan *plan,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Lanes [lane_first, lane_first + lane_count) of the entry `word`, to be computed from weights. */
struct kelp_work {
    struct kelp_control_word word;
    /* float32[plan->flat_count], w_v; until the next kelp_job_link_next(). All of it is there,
     * unless kelp_job_link_go_ahead() was called. */
    const float *weights;
    uint32_t weights_index; /* which of kelp_job_link_weights() */
    uint32_t lane_first;
    uint32_t lane_count;
};

/* The vectors that weights are in, 0 and 1, once it has joined; until close. */
const float *kelp_job_link_weights(const struct kelp_job_link *job_link, uint32_t which);

/*
 * Wait for work. When the coordinator wants this worker to end (kelp drain), stop is raised here.
 * Errors: KELP_ERR_CLOSED (the job is over), KELP_ERR_TIMEOUT (stop was raised, and
 * kelp_job_link_wake() called; what was pushed is in, or grace_ms are over), KELP_ERR_MISMATCH and
 * others (the coordinator refuses this worker; the text says why).
 */
kelp_status kelp_job_link_next(struct kelp_job_link *job_link, struct kelp_stop *stop,
                               struct kelp_work *ret_work, struct kelp_error *reterr) KELP_MUST_USE;

/* While lanes are computed: hear what came. When the coordinator wants this worker to end, stop is
 * raised here. Errors: as of kelp_job_link_next(), which reports them again. */
kelp_status kelp_job_link_poll(struct kelp_job_link *job_link, struct kelp_stop *stop,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* stop was raised: a blocked kelp_job_link_next() looks at it, and the coordinator gives this
 * worker no more lanes. Any thread, not a signal handler. */
void kelp_job_link_wake(struct kelp_job_link *job_link);

/* A buffer for a lane's or node's gradient; NULL: out of memory. Transferred to
 * kelp_job_link_push(), or given back with kelp_gradient_unref(). */
struct kelp_gradient *kelp_job_link_gradient(struct kelp_job_link *job_link);

struct kelp_node {
    uint32_t lane_first; /* aligned: a multiple of lane_count, which is a power of two */
    uint32_t lane_count;
    struct kelp_gradient *gradient; /* transferred, also on an error */
    const char *digest; /* of the weights, when word.digest_due and lane_first is 0; else NULL */
};

/*
 * From now on kelp_job_link_next() may give lanes of a training step of which weights are still
 * coming: before it reads weights, the caller waits for them with kelp_job_link_await(). Does
 * nothing where kelp_job_link_overlaps() says no. After kelp_job_link_join().
 */
void kelp_job_link_go_ahead(struct kelp_job_link *job_link);
/* Wait for elements [first, first + count) of the weights of the work returned last. False: they
 * are not to come, nor is the work of use: call kelp_job_link_next(). */
bool kelp_job_link_await(struct kelp_job_link *job_link, uint64_t first, uint64_t count);

/*
 * Of the last node of the work returned last, the gradient's elements from `first` on are complete:
 * they may be sent while the rest is computed, and must not be written again. With falling numbers,
 * for a training step whose last lane has samples; kelp_job_link_push() of the same node and
 * gradient follows, unless kelp_job_link_await() says no. Only for speed: where
 * kelp_job_link_overlaps() says no it does nothing.
 */
void kelp_job_link_ready(struct kelp_job_link *job_link, const struct kelp_node *node,
                         uint64_t first);
/* Is the model so large that communication is to go on while lanes are computed? It follows from
 * the plan alone. */
bool kelp_job_link_overlaps(const struct kelp_job_link *job_link);

/* Hand over a node of the work returned last. It is sent by the next kelp_job_link_next(), and not
 * at all when kelp_job_link_await() says no to that work; weights that are still coming are waited
 * for. Lanes that are added before (kelp_gradient_merge()) go through kelp_gradient_round() first,
 * each of them. */
kelp_status kelp_job_link_push(struct kelp_job_link *job_link, const struct kelp_node *node,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Of the time since kelp_job_link_next() gave work, so many microseconds went into reading samples:
 * for whoever looks for a worker that is slow, and in what. The rest counts as computing. */
void kelp_job_link_spent_reading(struct kelp_job_link *job_link, uint64_t us);

/* Send what was pushed to the first shard alone, now: fault injection, to die with a step half
 * sent. */
void kelp_job_link_send_half(struct kelp_job_link *job_link);

#endif
