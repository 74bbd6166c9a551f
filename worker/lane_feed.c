#include "worker/lane_feed.h"

#include <assert.h>
#include <stdlib.h>

#include "worker/compute/gradients.h"
#include "worker/compute/node_sum.h"

struct kelp_lane_feed {
    struct kelp_job_link *job_link;
    const struct kelp_plan *plan;
    struct kelp_work work; /* the fields below belong to it */
    struct kelp_schedule schedule;
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    uint32_t node_count;
    uint32_t node;                                /* index of the node being summed */
    bool begun;                                   /* sum and digest are started */
    struct kelp_node_sum sum;                     /* of nodes[node] */
    struct kelp_lane out[KELP_LANE_FEED_OUT_MAX]; /* ring of lanes handed out and not complete */
    uint32_t out_first, out_count;
    uint32_t next;        /* the next lane that may be handed out, */
    uint32_t next_node;   /* and its node */
    uint64_t ready_first; /* elements of the last lane from this one on are in the sum */
    char digest[33];      /* of the weights; "": not due */
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

static void drop(struct kelp_lane_feed *feed)
{
    for (; feed->out_count > 0; feed->out_count--) {
        kelp_gradient_unref(feed->out[feed->out_first].gradient);
        feed->out_first = (feed->out_first + 1) % KELP_LANE_FEED_OUT_MAX;
    }
    kelp_node_sum_drop(&feed->sum);
}

void kelp_lane_feed_destroy(struct kelp_lane_feed *feed)
{
    if (!feed) {
        return;
    }
    drop(feed);
    free(feed);
}

const struct kelp_schedule *kelp_lane_feed_schedule(const struct kelp_lane_feed *feed)
{
    return &feed->schedule;
}

kelp_status kelp_lane_feed_wait(struct kelp_lane_feed *feed, struct kelp_stop *stop,
                                const struct kelp_work **ret_work, struct kelp_error *reterr)
{
    assert(feed->node == feed->node_count && feed->out_count == 0);
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
    feed->next = feed->work.lane_first;
    feed->next_node = 0;
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

/* Add the next lane's gradient, which is transferred, to its node. */
static kelp_status add(struct kelp_lane_feed *feed, struct kelp_gradient *gradient, uint64_t count,
                       struct kelp_error *reterr)
{
    if (!feed->begun) {
        begin_node(feed);
    }
    struct kelp_gradient *whole = kelp_node_sum_add_rest(&feed->sum, gradient, count);
    return whole ? push(feed, whole, reterr) : KELP_OK;
}

/* The lane that must be added next. */
static uint32_t lane_due(const struct kelp_lane_feed *feed)
{
    return feed->node == feed->node_count
               ? feed->next
               : feed->nodes[feed->node].first + (feed->begun ? feed->sum.done : 0);
}

/* A lane without samples is an empty node, the identity of the tree. Add all empty lanes before
 * the first lane that is handed out, or else before the next lane. */
static kelp_status add_empty(struct kelp_lane_feed *feed, struct kelp_error *reterr)
{
    const uint32_t end = feed->out_count > 0 ? feed->out[feed->out_first].number : feed->next;
    kelp_status status = KELP_OK;
    while (status == KELP_OK && lane_due(feed) < end) {
        struct kelp_gradient *gradient = kelp_job_link_gradient(feed->job_link);
        if (!gradient) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a gradient");
        }
        status = add(feed, gradient, feed->plan->flat_count, reterr);
    }
    return status;
}

static const struct kelp_lane *last_out(const struct kelp_lane_feed *feed)
{
    assert(feed->out_count > 0);
    return &feed->out[(feed->out_first + feed->out_count - 1) % KELP_LANE_FEED_OUT_MAX];
}

bool kelp_lane_feed_sends_early(const struct kelp_lane_feed *feed)
{
    return kelp_job_link_overlaps(feed->job_link) && feed->work.word.kind == KELP_STEP_TRAIN &&
           last_out(feed)->number + 1 == feed->work.lane_first + feed->work.lane_count;
}

void kelp_lane_feed_ready(struct kelp_lane_feed *feed, uint64_t first)
{
    assert(kelp_lane_feed_sends_early(feed) && first <= feed->ready_first);
    assert(feed->out_count == 1 && feed->node + 1 == feed->node_count);
    if (!feed->begun) {
        begin_node(feed);
    }
    struct kelp_node node = {.lane_first = feed->sum.lane_first,
                             .lane_count = feed->sum.lane_count};
    node.gradient = kelp_node_sum_add_values(&feed->sum, last_out(feed)->gradient, first,
                                             feed->ready_first - first);
    feed->ready_first = first;
    kelp_job_link_ready(feed->job_link, &node, first);
}

void kelp_lane_feed_give_up(struct kelp_lane_feed *feed)
{
    drop(feed);
    feed->node = feed->node_count;
    feed->next_node = feed->node_count;
}

kelp_status kelp_lane_feed_submit(struct kelp_lane_feed *feed, struct kelp_error *reterr)
{
    assert(feed->out_count > 0 && lane_due(feed) == feed->out[feed->out_first].number);
    struct kelp_gradient *gradient = feed->out[feed->out_first].gradient;
    const uint64_t rest = feed->out_count == 1 ? feed->ready_first : feed->plan->flat_count;
    feed->out_first = (feed->out_first + 1) % KELP_LANE_FEED_OUT_MAX;
    feed->out_count--;
    const kelp_status status = add(feed, gradient, rest, reterr);
    return status == KELP_OK ? add_empty(feed, reterr) : status;
}

/* Advance to the next lane. */
static void go_on(struct kelp_lane_feed *feed)
{
    const struct kelp_schedule_node *node = &feed->nodes[feed->next_node];
    feed->next++;
    feed->next_node += feed->next == node->first + node->count;
}

kelp_status kelp_lane_feed_lane(struct kelp_lane_feed *feed, const struct kelp_lane **ret_lane,
                                struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    assert(feed->out_count < KELP_LANE_FEED_OUT_MAX);
    *ret_lane = NULL;
    while (feed->next_node < feed->node_count && status == KELP_OK) {
        const uint32_t place = (feed->out_first + feed->out_count) % KELP_LANE_FEED_OUT_MAX;
        struct kelp_lane *lane = &feed->out[place];
        *lane = (struct kelp_lane){.number = feed->next,
                                   .node = feed->nodes[feed->next_node],
                                   .samples = kelp_schedule_lane(&feed->schedule, feed->next)};
        if (feed->out_count == 0 && !feed->begun) {
            begin_node(feed);
        }
        if (lane->samples.count > 0) {
            lane->gradient = kelp_job_link_gradient(feed->job_link);
            if (!lane->gradient) {
                return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a gradient");
            }
            go_on(feed);
            feed->out_count++;
            feed->ready_first = feed->plan->flat_count;
            *ret_lane = lane;
            return KELP_OK;
        }
        go_on(feed);
        if (feed->out_count == 0) {
            status = add_empty(feed, reterr);
        }
    }
    return status;
}
