/*
 * Computing lanes: data set, model and plan of a job, and the gradient of any node of an entry's
 * reduction tree. What a worker does between two messages; a replay (cli/replay/replay.h) uses the
 * same code, and so gets the same bits.
 *
 * Threads: one at a time.
 */
#ifndef KELP_WORKER_COMPUTE_LANES_H
#define KELP_WORKER_COMPUTE_LANES_H

#include "common/log/trace.h"
#include "common/training/control.h"
#include "worker/compute/gradients.h"
#include "worker/core/schedule.h"
#include "worker/model/footprint.h"

struct kelp_lanes;

/*
 * Open the job's data set, build its model, and derive the plan. job is borrowed.
 * Errors: those of the data set, the model and the plan; KELP_ERR_NO_MEMORY (others have taken what
 * the device would need).
 */
kelp_status kelp_lanes_create(const struct kelp_job *job, struct kelp_lanes **ret_lanes,
                              struct kelp_error *reterr) KELP_MUST_USE;
void kelp_lanes_destroy(struct kelp_lanes *lanes); /* NULL does nothing */

/* Trace what is computed from now on; borrowed. NULL: nothing. */
void kelp_lanes_trace(struct kelp_lanes *lanes, struct kelp_trace *trace);

/* Borrowed until kelp_lanes_destroy(). */
const struct kelp_plan *kelp_lanes_plan(const struct kelp_lanes *lanes);

/* The memory that a worker with these lanes takes (worker/model/footprint.h). */
void kelp_lanes_footprint(const struct kelp_lanes *lanes, struct kelp_footprint *ret_footprint);

/* Memory for weights, aligned to KELP_TENSOR_ALIGN, from which the device copies while the host
 * does other things. NULL: there is none. */
void *kelp_lanes_host_alloc(struct kelp_lanes *lanes, size_t bytes);
void kelp_lanes_host_free(struct kelp_lanes *lanes, void *memory); /* NULL: nothing */

/* Weights may still be coming when a training step begins: before elements [first, first + count)
 * are read, await() waits for them. False: they are not to come, and kelp_lanes_node() ends with
 * KELP_ERR_BUSY. NULL: they are there. */
void kelp_lanes_await(struct kelp_lanes *lanes,
                      bool (*await)(void *user, uint64_t first, uint64_t count), void *user);

/* What was done so far, for whoever watches. */
struct kelp_lanes_work {
    uint64_t read_us; /* with reading samples */
    uint64_t samples;
};
struct kelp_lanes_work kelp_lanes_work(const struct kelp_lanes *lanes);

/*
 * What the next nodes belong to: an entry of the schedule, whose word is copied and checked against
 * the job, and w_v (flat_count elements), borrowed until the next begin.
 * Errors: KELP_ERR_INVALID (the word asks for samples that are not there).
 */
kelp_status kelp_lanes_begin(struct kelp_lanes *lanes, const struct kelp_control_word *word,
                             const float *weights, struct kelp_error *reterr) KELP_MUST_USE;

/* Told while a lane of a training step is computed, with falling numbers: its gradient's elements
 * from `first` on are complete, and are not written again. If the lane fails, they are of no use.
 */
struct kelp_lanes_ready {
    void (*tell)(void *user, uint64_t first);
    void *user;
};

/* The lanes that come next are those of the node, in order, but for lanes without samples: where a
 * device has memory of its own their values are added up there, and all but the last one with
 * samples are apart (worker/compute/gradients.h). Until the next begin. */
void kelp_lanes_within(struct kelp_lanes *lanes, const struct kelp_schedule_node *node);

/*
 * One lane of that entry, into a buffer of kelp_gradient_get(). `present` stays false when the lane
 * has no samples, or is no training. ready: NULL is fine, and less work for a small model. Errors:
 * KELP_ERR_DEVICE, KELP_ERR_BUSY (kelp_lanes_await()), those of reading samples.
 */
kelp_status kelp_lanes_lane(struct kelp_lanes *lanes, uint32_t lane, struct kelp_gradient *gradient,
                            const struct kelp_lanes_ready *ready,
                            struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The same in two: where a device has memory of its own it computes lanes that were started while
 * the host sees to others. Up to kelp_lanes_ahead() may be started and not finished, elsewhere one.
 * They are finished in the order in which they were started, before the next begin; until then a
 * lane's gradient is not to be touched. ready is borrowed, and told by kelp_lanes_finish(). That a
 * sample cannot be computed may show when the last one is finished. After an error of either:
 * kelp_lanes_drop().
 */
uint32_t kelp_lanes_ahead(const struct kelp_lanes *lanes);
kelp_status kelp_lanes_start(struct kelp_lanes *lanes, uint32_t lane,
                             struct kelp_gradient *gradient, const struct kelp_lanes_ready *ready,
                             struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_lanes_finish(struct kelp_lanes *lanes, struct kelp_error *reterr) KELP_MUST_USE;
/* Lanes that were started are not wanted any more. */
void kelp_lanes_drop(struct kelp_lanes *lanes);

/* Gives what kelp_gradient_get() does. NULL: out of memory. */
struct kelp_lanes_buffers {
    struct kelp_gradient *(*get)(void *user);
    void *user;
};

/*
 * The sum of lanes [lane_first, lane_first + lane_count) in tree order, rounded at each node where
 * transport.precision says so; aligned, a power of two.
 * Takes as many buffers at once as the node has levels, and one for each lane that is started ahead
 * (kelp_lanes_ahead()) but the first. *ret_gradient is the caller's reference;
 * `present` is false when no lane of it has samples.
 * Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE, KELP_ERR_BUSY (kelp_lanes_await()), those of reading
 *         samples.
 */
kelp_status kelp_lanes_node(struct kelp_lanes *lanes, uint32_t lane_first, uint32_t lane_count,
                            const struct kelp_lanes_buffers *buffers,
                            struct kelp_gradient **ret_gradient,
                            struct kelp_error *reterr) KELP_MUST_USE;

#endif
