/*
 * A worker's link to its job: streams to the coordinator and the shards, the weights, lanes to
 * compute, and computed nodes.
 *
 *     kelp_job_link_open()       find etcd and the job
 *     kelp_job_link_join()       send the coordinator the plan derived from the job
 *     loop:
 *         kelp_job_link_next()   block until there are lanes to compute, with their weights
 *         kelp_job_link_push()   hand over the sum of an aligned range of those lanes
 *
 * Programs use worker/lane_feed.h, which hands out one lane at a time. A worker has no state that
 * must survive: it can be killed at any moment, and duplicate pushes are dropped. Everything else
 * (streams, reconnection, maps, generations, retransmission) happens inside kelp_job_link_next(),
 * and on a thread of the link during long computations.
 *
 * Threads: all functions on one thread, except kelp_job_link_wake().
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
    const char *id; /* unique in the job; a second one of the same id waits */
    /* Mutual TLS on every port; borrowed until close. NULL: none. */
    struct kelp_credentials *credentials;
    const char *spec_sha256; /* of the job's text in etcd: another one is refused; NULL: any */
    /* After stop was raised: how long kelp_job_link_next() sends what was pushed and waits until
     * all shards have used it. */
    uint32_t grace_ms;
    struct kelp_figures *figures; /* for --metrics; borrowed. NULL: none */
    struct kelp_trace *trace;     /* of some steps; borrowed. NULL: off */
    /* Maps paths of the job to this host's own; borrowed until open returns. NULL: none differ. */
    const struct kelp_path_map *paths;
    /* Folder of the shared-memory sockets of shards that listen at ports; borrowed until close.
     * NULL: none. */
    const char *shm_folder;
};

/*
 * Connect to etcd and read the job's specification. Waits until both are available, and says so in
 * the log. Raising stop ends the wait with KELP_ERR_TIMEOUT. *ret_link is owned.
 * Errors: KELP_ERR_INVALID (the specification), KELP_ERR_MISMATCH (another job than spec_sha256),
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

/* Allocator for the weights, aligned to KELP_TENSOR_ALIGN, so that a device can copy from them;
 * close frees them. Call before join; malloc() is the default. */
struct kelp_job_link_memory {
    void *(*alloc)(void *user, size_t bytes); /* returns NULL when out of memory */
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
    /* float32[plan->flat_count], w_v; valid until the next kelp_job_link_next(). Complete, unless
     * kelp_job_link_go_ahead() was called. */
    const float *weights;
    uint32_t weights_index; /* which of kelp_job_link_weights() */
    uint32_t lane_first;
    uint32_t lane_count;
};

/* The two vectors of weights, 0 and 1, after join; valid until close. */
const float *kelp_job_link_weights(const struct kelp_job_link *job_link, uint32_t which);

/*
 * Wait for work. Raises stop if the coordinator wants this worker to end (kelp drain).
 * Errors: KELP_ERR_CLOSED (the job is over), KELP_ERR_TIMEOUT (stop was raised, and
 * kelp_job_link_wake() called; pushes were accepted, or grace_ms have passed), KELP_ERR_MISMATCH
 * and others (the coordinator refuses this worker; the text says why).
 */
kelp_status kelp_job_link_next(struct kelp_job_link *job_link, struct kelp_stop *stop,
                               struct kelp_work *ret_work, struct kelp_error *reterr) KELP_MUST_USE;

/* Handle pending events while lanes are computed. Raises stop if the coordinator wants this worker
 * to end. Errors: as kelp_job_link_next(), which reports them again. */
kelp_status kelp_job_link_poll(struct kelp_job_link *job_link, struct kelp_stop *stop,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* After raising stop: wakes a blocked kelp_job_link_next(), and the coordinator gives this worker
 * no more lanes. Any thread, not a signal handler. */
void kelp_job_link_wake(struct kelp_job_link *job_link);

/* A buffer for a lane's or node's gradient; NULL: out of memory. Owned: transfer it to
 * kelp_job_link_push(), or release it with kelp_gradient_unref(). */
struct kelp_gradient *kelp_job_link_gradient(struct kelp_job_link *job_link);

struct kelp_node {
    uint32_t lane_first; /* aligned: a multiple of lane_count, which is a power of two */
    uint32_t lane_count;
    struct kelp_gradient *gradient; /* transferred, also on an error */
    const char *digest; /* of the weights, when word.digest_due and lane_first is 0; else NULL */
};

/*
 * From now on kelp_job_link_next() may return lanes of a training step whose weights are still
 * arriving; the caller then waits with kelp_job_link_await() before it reads weights. Does nothing
 * if kelp_job_link_overlaps() is false. Call after kelp_job_link_join().
 */
void kelp_job_link_go_ahead(struct kelp_job_link *job_link);
/* Wait for elements [first, first + count) of the weights of the last work. False: they will not
 * arrive, and the work is no longer of use; call kelp_job_link_next(). */
bool kelp_job_link_await(struct kelp_job_link *job_link, uint64_t first, uint64_t count);

/*
 * The gradient of the last node of the last work is complete from element `first` on: these
 * elements may be sent while the rest is computed, and must not be written again. Call with
 * decreasing `first`, for a training step whose last lane has samples; kelp_job_link_push() of the
 * same node and gradient must follow, unless kelp_job_link_await() returns false. Only for speed:
 * does nothing if kelp_job_link_overlaps() is false.
 */
void kelp_job_link_ready(struct kelp_job_link *job_link, const struct kelp_node *node,
                         uint64_t first);
/* Is the model large enough to communicate while lanes are computed? Follows from the plan alone.
 */
bool kelp_job_link_overlaps(const struct kelp_job_link *job_link);

/* Hand over a node of the last work. The next kelp_job_link_next() sends it, after waiting for
 * weights that are still arriving; it is dropped if kelp_job_link_await() returned false for that
 * work. Call kelp_gradient_round() on each lane before adding lanes (kelp_gradient_merge()). */
kelp_status kelp_job_link_push(struct kelp_job_link *job_link, const struct kelp_node *node,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Report how many microseconds since kelp_job_link_next() were spent reading samples, so that the
 * coordinator can say in what a worker is slow. The rest counts as computing. */
void kelp_job_link_spent_reading(struct kelp_job_link *job_link, uint64_t us);

/* Fault injection: send what was pushed to the first shard only, now, to die with a step half sent.
 */
void kelp_job_link_send_half(struct kelp_job_link *job_link);

#endif
