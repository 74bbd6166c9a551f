#include "ps/core/partition/decision.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct known {
    bool known;
    uint32_t count; /* values that the share must have */
    struct kelp_decision_share share;
};

struct kelp_decision {
    const struct kelp_job *job;
    const struct kelp_plan *plan;
    uint32_t missing;
    const struct kelp_decision_share **shares; /* owned array of pointers into of[] */
    struct known of[];                         /* by partition */
};

static kelp_status prepare(struct kelp_decision *decision, struct kelp_error *reterr)
{
    uint32_t count = decision->plan->partition_count;
    kelp_status status = KELP_OK;

    decision->shares = calloc(count, sizeof(decision->shares[0]));
    if (!decision->shares) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for %u shares of a decision",
                         count);
    }
    for (uint32_t i = 0; status == KELP_OK && i < count; i++) {
        decision->shares[i] = &decision->of[i].share;
        status = kelp_decision_share_count(decision->job, decision->plan, i, &decision->of[i].count,
                                           reterr);
    }
    kelp_decision_begin(decision);
    return status;
}

kelp_status kelp_decision_create(const struct kelp_job *job, const struct kelp_plan *plan,
                                 struct kelp_decision **ret_decision, struct kelp_error *reterr)
{
    struct kelp_decision *decision =
        calloc(1, sizeof(*decision) + (size_t)plan->partition_count * sizeof(decision->of[0]));

    assert(plan->partition_count > 0);
    if (!decision) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for decisions over %u partitions",
                         plan->partition_count);
    }
    decision->job = job;
    decision->plan = plan;
    kelp_status status = prepare(decision, reterr);
    if (status != KELP_OK) {
        kelp_decision_destroy(decision);
        return status;
    }
    *ret_decision = decision;
    return KELP_OK;
}

void kelp_decision_destroy(struct kelp_decision *decision)
{
    if (decision) {
        free(decision->shares);
        free(decision);
    }
}

void kelp_decision_begin(struct kelp_decision *decision)
{
    decision->missing = decision->plan->partition_count;
    for (uint32_t i = 0; i < decision->plan->partition_count; i++) {
        decision->of[i].known = false;
    }
}

static bool well_formed(const struct known *of, const struct kelp_decision_share *share)
{
    const double finite = share->count > 0 ? share->values[KELP_DECISION_SHARE_FINITE] : -1.0;

    return share->count == of->count && (finite == 0.0 || finite == 1.0);
}

kelp_status kelp_decision_add(struct kelp_decision *decision, uint32_t partition,
                              const struct kelp_decision_share *share)
{
    if (partition >= decision->plan->partition_count ||
        !well_formed(&decision->of[partition], share)) {
        return KELP_ERR_INVALID;
    }
    struct known *of = &decision->of[partition];
    size_t bytes = share->count * sizeof(share->values[0]);
    if (of->known) {
        return memcmp(of->share.values, share->values, bytes) == 0 ? KELP_OK : KELP_ERR_MISMATCH;
    }
    of->known = true;
    of->share.count = share->count;
    memcpy(of->share.values, share->values, bytes);
    decision->missing--;
    return KELP_OK;
}

bool kelp_decision_made(const struct kelp_decision *decision, bool *ret_skip, double *ret_values)
{
    if (decision->missing > 0) {
        return false;
    }
    *ret_skip = kelp_step_decide(decision->job, decision->plan, decision->shares, ret_values);
    return true;
}
