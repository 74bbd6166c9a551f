#include "coordinator/term/parts/plan_offer.h"

#include <inttypes.h>

kelp_status kelp_plan_offer_keep(struct kelp_plan_offer *offer, const struct kelp_outside *outside,
                                 const char *text, enum kelp_plan_state state,
                                 struct kelp_error *reterr)
{
    kelp_status status = outside->effects->keep_plan(text, &offer->plan, reterr, outside->user);
    if (status == KELP_OK) {
        offer->state = state;
    }
    return status;
}

/* Refuse a plan that the job cannot use, such as one without samples: no honest worker derives
 * it, and once taken it would turn all honest workers away. */
static kelp_status offer_first(struct kelp_plan_offer *offer, const struct kelp_outside *outside,
                               const struct kelp_job *job, const char *text,
                               struct kelp_error *reterr)
{
    kelp_status status = kelp_plan_offer_keep(offer, outside, text, KELP_PLAN_OFFERED, reterr);
    if (status == KELP_OK) {
        status = kelp_control_check(job, offer->plan, reterr);
    }
    if (status != KELP_OK) {
        offer->plan = NULL;
        offer->state = KELP_PLAN_NONE;
        kelp_error_prefix(reterr, "the worker's plan");
        return status;
    }
    kelp_outside_log(
        outside, KELP_LOG_INFO, "plan offered partitions=%u tensors=%u elements=%" PRIu64,
        offer->plan->partition_count, offer->plan->tensor_count, offer->plan->flat_count);
    return KELP_OK;
}

kelp_status kelp_plan_offer_check(struct kelp_plan_offer *offer, const struct kelp_outside *outside,
                                  const struct kelp_job *job, const char *text,
                                  struct kelp_error *reterr)
{
    if (offer->state == KELP_PLAN_NONE) {
        return offer_first(offer, outside, job, text, reterr);
    }
    return outside->effects->compare_plan(text, reterr, outside->user);
}

void kelp_plan_offer_tick(struct kelp_plan_offer *offer, const struct kelp_outside *outside,
                          uint64_t now_ms)
{
    if (offer->state == KELP_PLAN_OFFERED && !offer->in_flight && now_ms >= offer->at_ms) {
        offer->in_flight = outside->effects->write_plan(outside->user);
        offer->at_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
    }
}

void kelp_plan_offer_answered(struct kelp_plan_offer *offer, bool taken, uint64_t now_ms)
{
    offer->in_flight = false;
    if (!taken) {
        offer->at_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
    }
}
