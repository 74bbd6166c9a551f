/*
 * Hands out a worker's lanes one at a time, for every program that computes gradients: the lanes of
 * the link to the job, without those that have no samples; a gradient buffer for each; its samples,
 * and the pieces in which to compute them. It adds the lanes' gradients to nodes of the reduction
 * tree, and computes the digest of the weights if one is due.
 *
 *     loop:
 *         kelp_lane_feed_wait()       blocks until there is work
 *         loop:
 *             kelp_lane_feed_lane()   the next lane of it, or none
 *             kelp_lane_feed_submit() its gradient and sums are complete
 *
 * Several lanes may be in progress at once; they are submitted in the order in which they were
 * handed out.
 *
 * Threads: the link's thread.
 */
#ifndef KELP_WORKER_LANE_FEED_H
#define KELP_WORKER_LANE_FEED_H

#include "worker/core/schedule.h"
#include "worker/job_link.h"

#define KELP_LANE_FEED_OUT_MAX 16u

struct kelp_lane_feed;

/* job_link has joined with plan; both are borrowed. NULL: out of memory. */
struct kelp_lane_feed *kelp_lane_feed_create(struct kelp_job_link *job_link,
                                             const struct kelp_plan *plan);
/* Lanes that were not submitted are dropped: others compute them. The link may be closed already.
 * NULL does nothing. */
void kelp_lane_feed_destroy(struct kelp_lane_feed *feed);

/* kelp_job_link_next(), once all lanes of the previous work were submitted. The work is borrowed
 * until the next wait. Errors: those of kelp_job_link_next(); KELP_ERR_INVALID
 * (kelp_schedule_init()). */
kelp_status kelp_lane_feed_wait(struct kelp_lane_feed *feed, struct kelp_stop *stop,
                                const struct kelp_work **ret_work,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* A lane with samples. The gradient is the feed's: the caller writes its values, sets present, and
 * adds to its sums. */
struct kelp_lane {
    uint32_t number;
    struct kelp_schedule_node node;     /* that it belongs to; its lanes come in order */
    struct kelp_schedule_range samples; /* positions in the entry; count is at least 1 */
    struct kelp_gradient *gradient;     /* from kelp_gradient_get() */
};

/*
 * The next lane of the work; fewer than KELP_LANE_FEED_OUT_MAX may be in progress. *ret_lane is
 * borrowed until it is submitted. NULL: there are no more; once all are submitted, all were pushed.
 * Errors:
 * KELP_ERR_NO_MEMORY, those of kelp_job_link_push().
 */
kelp_status kelp_lane_feed_lane(struct kelp_lane_feed *feed, const struct kelp_lane **ret_lane,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Should the caller use kelp_lane_feed_ready() for the lane that was handed out last? True if it is
 * the last one of the work, and the model is large. */
bool kelp_lane_feed_sends_early(const struct kelp_lane_feed *feed);
/* The lane's gradient is complete from element `first` on, and may be sent while the rest is
 * computed. No other lane may be in progress. Call with decreasing `first`. */
void kelp_lane_feed_ready(struct kelp_lane_feed *feed, uint64_t first);

/* The work is no longer of use (kelp_job_link_await()): treat all of it as submitted. */
void kelp_lane_feed_give_up(struct kelp_lane_feed *feed);

/* Submit the oldest lane in progress. A node that it completes is pushed. Errors:
 * KELP_ERR_NO_MEMORY, those of kelp_job_link_push(). */
kelp_status kelp_lane_feed_submit(struct kelp_lane_feed *feed,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* The work's schedule, for kelp_schedule_indices() and kelp_schedule_next_piece(). */
const struct kelp_schedule *kelp_lane_feed_schedule(const struct kelp_lane_feed *feed);

#endif
