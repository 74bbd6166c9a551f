/* Replicas of a partition that have come to different weights. */
#include <inttypes.h>
#include <stdio.h>

#include "ps/service/replicas/links_internal.h"

void kelp__service_differs(uint32_t partition, const struct kelp_difference *difference, void *user)
{
    struct kelp_service *service = user;
    const struct kelp_weights_digest *ours = &difference->ours;
    const uint64_t before =
        ours->step > KELP_PS_COMPARE_STEPS ? ours->step - KELP_PS_COMPARE_STEPS : 0;
    struct kelp__service_link *link = kelp__service_link_take(service, difference->process);
    char text[600];

    (void)snprintf(text, sizeof(text),
                   "replicas of partition %u have different weights after step %" PRIu64
                   ": %s has %016" PRIx64 "%016" PRIx64 ", %s has %016" PRIx64 "%016" PRIx64
                   "; one of the two computes wrongly, or a worker whose gradients a lost shard "
                   "took: check them, and resume without it from a checkpoint up to step %" PRIu64,
                   partition, ours->step, service->options.id, ours->content.high,
                   ours->content.low, link ? link->id : "its follower", difference->theirs.high,
                   difference->theirs.low, before);
    kelp__service_control_failed(partition, KELP_ERR_MISMATCH, text, user);
    if (link) {
        kelp__service_link_unref(link);
    }
}
