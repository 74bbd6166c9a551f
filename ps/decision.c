#include "ps/decision.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct kelp_decision {
    uint32_t partition_count;
    uint32_t missing;
    struct {
        bool known;
        struct kelp_step_part part;
    } of[]; /* by partition */
};

struct kelp_decision *kelp_decision_create(uint32_t partition_count)
{
    struct kelp_decision *decision =
        calloc(1, sizeof(*decision) + (size_t)partition_count * sizeof(decision->of[0]));

    assert(partition_count > 0);
    if (decision) {
        decision->partition_count = partition_count;
        kelp_decision_begin(decision);
    }
    return decision;
}

void kelp_decision_destroy(struct kelp_decision *decision)
{
    free(decision);
}

void kelp_decision_begin(struct kelp_decision *decision)
{
    decision->missing = decision->partition_count;
    for (uint32_t i = 0; i < decision->partition_count; i++) {
        decision->of[i].known = false;
    }
}

static bool well_formed(const struct kelp_step_part *part)
{
    return part->count == 1 && (part->values[0] == 0.0 || part->values[0] == 1.0);
}

kelp_status kelp_decision_add(struct kelp_decision *decision, uint32_t partition,
                              const struct kelp_step_part *part)
{
    if (partition >= decision->partition_count || !well_formed(part)) {
        return KELP_ERR_INVALID;
    }
    if (decision->of[partition].known) {
        return memcmp(decision->of[partition].part.values, part->values,
                      part->count * sizeof(part->values[0])) == 0
                   ? KELP_OK
                   : KELP_ERR_INVALID;
    }
    decision->of[partition].known = true;
    decision->of[partition].part = *part;
    decision->missing--;
    return KELP_OK;
}

bool kelp_decision_made(const struct kelp_decision *decision, bool *ret_skip)
{
    bool finite = true;

    if (decision->missing > 0) {
        return false;
    }
    for (uint32_t i = 0; i < decision->partition_count; i++) {
        finite = finite && decision->of[i].part.values[KELP_STEP_PART_FINITE] != 0.0;
    }
    *ret_skip = !finite;
    return true;
}
