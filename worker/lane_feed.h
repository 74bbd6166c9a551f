/*
 * What a worker computes, lane by lane: the lanes that the link to the job hands out, without those
 * that have no samples; the buffer for each; which samples it has, and in which pieces they are
 * computed; and from gradients of lanes the nodes of the reduction tree, with the digest of the
 * weights where one is due. Whoever brings gradients would write that again.
 *
 *     loop:
 *         kelp_lane_feed_wait()       blocks until there is work
 *         loop:
 *             kelp_lane_feed_lane()   the next lane of it, or none
 *             kelp_lane_feed_submit() its gradient and sums are complete
 *
 * Several lanes may be out at once; they are complete in the order in which they were handed out.
 *
 * Threads: that of the link.
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
/* A lane that is not complete is dropped: others compute it. The link may be closed already. NULL
 * does nothing. */
void kelp_lane_feed_destroy(struct kelp_lane_feed *feed);

/* kelp_job_link_next(), once all lanes of the work before are complete. The work is borrowed until
 * the next wait. Errors: those of kelp_job_link_next(); KELP_ERR_INVALID (kelp_schedule_init()). */
kelp_status kelp_lane_feed_wait(struct kelp_lane_feed *feed, struct kelp_stop *stop,
                                const struct kelp_work **ret_work,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* A lane with samples. The gradient is the feed's: values that the caller sets, with present, and
 * sums that it adds to. */
struct kelp_lane {
    uint32_t number;
    struct kelp_schedule_node node;     /* that it is of; its lanes come in order */
    struct kelp_schedule_range samples; /* positions in the entry; count is at least 1 */
    struct kelp_gradient *gradient;     /* from kelp_gradient_get() */
};

/*
 * The next lane of the work, while fewer than KELP_LANE_FEED_OUT_MAX are out; *ret_lane is borrowed
 * until it is complete. NULL: there are no more, and once none is out all were pushed. Errors:
 * KELP_ERR_NO_MEMORY, those of kelp_job_link_push().
 */
kelp_status kelp_lane_feed_lane(struct kelp_lane_feed *feed, const struct kelp_lane **ret_lane,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Is it worth telling kelp_lane_feed_ready() of the lane that was handed out last? It is the last
 * one of the work, and the model is large. */
bool kelp_lane_feed_sends_early(const struct kelp_lane_feed *feed);
/* No other one is out. Its gradient's elements from `first` on are complete, and sent while the
 * rest is computed. With falling numbers. */
void kelp_lane_feed_ready(struct kelp_lane_feed *feed, uint64_t first);

/* The work is of no use any more (kelp_job_link_await()): as if all of it were complete. */
void kelp_lane_feed_give_up(struct kelp_lane_feed *feed);

/* The first lane that is out is complete. A node that is whole with it is pushed. Errors:
 * KELP_ERR_NO_MEMORY, those of kelp_job_link_push(). */
kelp_status kelp_lane_feed_submit(struct kelp_lane_feed *feed,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Of the work: what kelp_schedule_indices() and kelp_schedule_next_piece() ask. */
const struct kelp_schedule *kelp_lane_feed_schedule(const struct kelp_lane_feed *feed);

#endif
