#include "worker/lane_feed.h"

#include <assert.h>
#include <stdlib.h>

#include "worker/compute/gradients.h"
#include "worker/compute/node_sum.h"

struct kelp_lane_feed {
    struct kelp_job_link *job_link;
    const struct kelp_plan *plan;
    struct kelp_work work; /* what follows is of it */
    struct kelp_schedule schedule;
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    uint32_t node_count;
    uint32_t node;            /* that sum is of */
    bool begun;               /* sum, and the digest */
    struct kelp_node_sum sum; /* of nodes[node] */
    struct kelp_lane lane;    /* handed out; gradient NULL: none is */
    uint64_t ready_first;     /* elements of it from here on are in the sum */
    char digest[33];          /* of the weights; "": none is due */
};

struct kelp_lane_feed *kelp_lane_feed_create(struct kelp_job_link *job_link,
                                             const struct kelp_plan *plan)
{
    struct kelp_lane_feed *feed = calloc(1, sizeof(*feed));
    if (feed) {
        feed->job_link = job_link;
        feed->plan = plan;
    }
    return feed;
}

void kelp_lane_feed_destroy(struct kelp_lane_feed *feed)
{
    if (!feed) {
        return;
    }
    kelp_gradient_unref(feed->lane.gradient);
    kelp_node_sum_drop(&feed->sum);
    free(feed);
}

const struct kelp_schedule *kelp_lane_feed_schedule(const struct kelp_lane_feed *feed)
{
    return &feed->schedule;
}

kelp_status kelp_lane_feed_wait(struct kelp_lane_feed *feed, struct kelp_stop *stop,
                                const struct kelp_work **ret_work, struct kelp_error *reterr)
{
    assert(feed->node == feed->node_count);
    kelp_status status = kelp_job_link_next(feed->job_link, stop, &feed->work, reterr);
    if (status == KELP_OK) {
        status = kelp_schedule_init(&feed->schedule, kelp_job_link_job(feed->job_link),
                                    feed->plan->samples, &feed->work.word, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    feed->node_count =
        kelp_schedule_split(feed->work.lane_first, feed->work.lane_count, feed->nodes);
    feed->node = 0;
    feed->begun = false;
    feed->digest[0] = '\0';
    *ret_work = &feed->work;
    return KELP_OK;
}

static void begin_node(struct kelp_lane_feed *feed)
{
    const struct kelp_schedule_node *node = &feed->nodes[feed->node];

    kelp_node_sum_begin(&feed->sum, node->first, node->count);
    feed->sum.trace = kelp_job_link_trace(feed->job_link);
    feed->sum.step = feed->work.word.step;
    feed->begun = true;
    if (feed->work.word.digest_due && node->first == 0) {
        kelp_plan_digest(feed->plan, feed->work.weights, feed->digest);
    }
}

static kelp_status push(struct kelp_lane_feed *feed, struct kelp_gradient *gradient,
                        struct kelp_error *reterr)
{
    const struct kelp_node node = {
        .lane_first = feed->sum.lane_first,
        .lane_count = feed->sum.lane_count,
        .gradient = gradient,
        .digest = feed->sum.lane_first == 0 && feed->digest[0] ? feed->digest : NULL,
    };
    feed->node++;
    feed->begun = false;
    return kelp_job_link_push(feed->job_link, &node, reterr);
}

bool kelp_lane_feed_sends_early(const struct kelp_lane_feed *feed)
{
    return kelp_job_link_overlaps(feed->job_link) && feed->work.word.kind == KELP_STEP_TRAIN &&
           feed->node + 1 == feed->node_count && feed->sum.done + 1 == feed->sum.lane_count;
}

void kelp_lane_feed_ready(struct kelp_lane_feed *feed, uint64_t first)
{
    struct kelp_node node = {.lane_first = feed->sum.lane_first,
                             .lane_count = feed->sum.lane_count};

    assert(kelp_lane_feed_sends_early(feed) && first <= feed->ready_first);
    node.gradient =
        kelp_node_sum_add_values(&feed->sum, feed->lane.gradient, first, feed->ready_first - first);
    feed->ready_first = first;
    kelp_job_link_ready(feed->job_link, &node, first);
}

void kelp_lane_feed_give_up(struct kelp_lane_feed *feed)
{
    kelp_gradient_unref(feed->lane.gradient);
    feed->lane.gradient = NULL;
    kelp_node_sum_drop(&feed->sum);
    feed->node = feed->node_count;
}

kelp_status kelp_lane_feed_submit(struct kelp_lane_feed *feed, struct kelp_error *reterr)
{
    assert(feed->lane.gradient);
    struct kelp_gradient *whole =
        kelp_node_sum_add_rest(&feed->sum, feed->lane.gradient, feed->ready_first);
    feed->lane.gradient = NULL;
    return whole ? push(feed, whole, reterr) : KELP_OK;
}

/* A lane without samples is an empty node, the identity of the tree. */
kelp_status kelp_lane_feed_lane(struct kelp_lane_feed *feed, const struct kelp_lane **ret_lane,
                                struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    assert(!feed->lane.gradient);
    *ret_lane = NULL;
    while (feed->node < feed->node_count && status == KELP_OK) {
        if (!feed->begun) {
            begin_node(feed);
        }
        feed->lane.number = feed->sum.lane_first + feed->sum.done;
        feed->lane.node = feed->nodes[feed->node];
        feed->lane.samples = kelp_schedule_lane(&feed->schedule, feed->lane.number);
        feed->lane.gradient = kelp_job_link_gradient(feed->job_link);
        feed->ready_first = feed->plan->flat_count;
        if (!feed->lane.gradient) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a gradient");
        }
        if (feed->lane.samples.count > 0) {
            *ret_lane = &feed->lane;
            return KELP_OK;
        }
        status = kelp_lane_feed_submit(feed, reterr);
    }
    return status;
}
