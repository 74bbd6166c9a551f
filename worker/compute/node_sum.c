#include "worker/compute/node_sum.h"

#include <assert.h>
#include <string.h>

void kelp_node_sum_begin(struct kelp_node_sum *sum, uint32_t lane_first, uint32_t lane_count)
{
    assert(lane_count > 0 && lane_count <= 1u << KELP_NODE_SUM_LEVELS);
    assert((lane_count & (lane_count - 1)) == 0 && lane_first % lane_count == 0);
    memset(sum, 0, sizeof(*sum));
    sum->lane_first = lane_first;
    sum->lane_count = lane_count;
}

static void end_span(const struct kelp_node_sum *sum, uint64_t begin_ns, uint32_t lanes)
{
    const uint32_t lane = sum->lane_first + sum->done - lanes;

    kelp_trace_end(sum->trace, begin_ns,
                   &(struct kelp_trace_span){.name = "merge",
                                             .step = sum->step,
                                             .arguments = {{"lane", lane}, {"lanes", lanes}}});
}

struct kelp_gradient *kelp_node_sum_add_values(const struct kelp_node_sum *sum,
                                               struct kelp_gradient *gradient, uint64_t first,
                                               uint64_t count)
{
    struct kelp_gradient *whole = gradient;

    assert(sum->done + 1 == sum->lane_count);
    kelp_gradient_round(gradient, first, count);
    for (uint32_t level = 0; level < KELP_NODE_SUM_LEVELS && sum->waiting[level]; level++) {
        if (!sum->waiting[level]->apart) {
            kelp_gradient_merge_values(sum->waiting[level], whole, first, count);
            whole = sum->waiting[level];
        }
    }
    return whole;
}

struct kelp_gradient *kelp_node_sum_add(struct kelp_node_sum *sum, struct kelp_gradient *gradient)
{
    return kelp_node_sum_add_rest(sum, gradient, kelp_gradient_elements(gradient));
}

struct kelp_gradient *kelp_node_sum_add_rest(struct kelp_node_sum *sum,
                                             struct kelp_gradient *gradient, uint64_t count)
{
    uint32_t level = 0;

    assert(sum->done < sum->lane_count);
    sum->done++;
    if (gradient->present && !gradient->apart) {
        kelp_gradient_round(gradient, 0, count);
    }
    for (; level < KELP_NODE_SUM_LEVELS && sum->waiting[level]; level++) {
        struct kelp_gradient *left = sum->waiting[level];
        const uint64_t begin_ns = kelp_trace_begin(sum->trace);
        if (left->apart && gradient->present && !gradient->apart) {
            kelp_gradient_merge_apart(left, gradient);
            kelp_gradient_unref(left);
        } else {
            kelp_gradient_merge_rest(left, gradient, count);
            kelp_gradient_unref(gradient);
            gradient = left;
        }
        end_span(sum, begin_ns, 2u << level);
        sum->waiting[level] = NULL;
    }
    if (sum->done == sum->lane_count) {
        assert(!gradient->apart);
        return gradient;
    }
    assert(level < KELP_NODE_SUM_LEVELS);
    sum->waiting[level] = gradient;
    return NULL;
}

void kelp_node_sum_drop(struct kelp_node_sum *sum)
{
    for (uint32_t i = 0; i < KELP_NODE_SUM_LEVELS; i++) {
        kelp_gradient_unref(sum->waiting[i]);
        sum->waiting[i] = NULL;
    }
}
