/* Which parameters weight decay excludes. */
#include <inttypes.h>
#include <string.h>

#include "common/training/plan.h"

/* `*` matches any characters, `?` one. Each `*` first takes as few characters as possible;
 * backtracking to the latest one suffices. */
static bool matches(const char *pattern, size_t pattern_bytes, const char *name)
{
    const char *end = pattern + pattern_bytes, *star = NULL, *resume = NULL;

    while (*name != '\0') {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            resume = name;
        } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*') {
        pattern++;
    }
    return pattern == end;
}

/* Exclude parameters that match the pattern from decay; false: none does. */
static bool exclude(struct kelp_plan *plan, const char *pattern, size_t pattern_bytes)
{
    bool found = false;

    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        struct kelp_tensor *tensor = &plan->tensors[i];
        if (!tensor->statistic && matches(pattern, pattern_bytes, tensor->name)) {
            tensor->decays = false;
            found = true;
        }
    }
    return found;
}

kelp_status kelp_plan_mark_decays(struct kelp_plan *plan, const struct kelp_job *job,
                                  struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        plan->tensors[i].decays = !plan->tensors[i].statistic;
    }
    for (const char *pattern = job->train.decay_exclude; *pattern != '\0';) {
        size_t bytes = strcspn(pattern, "\n");
        if (!exclude(plan, pattern, bytes)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "train.decay_exclude: no parameter's name matches %.*s; the first of "
                             "%" PRIu32 " is %s",
                             (int)bytes, pattern, plan->tensor_count, plan->tensors[0].name);
        }
        pattern += bytes;
        pattern += *pattern == '\n' ? 1 : 0;
    }
    return KELP_OK;
}
