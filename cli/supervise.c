#include "cli/supervise.h"

enum kelp_verdict kelp_supervise(const struct kelp_supervise_policy *policy,
                                 const struct kelp_supervise_end *end,
                                 struct kelp_supervise_child *child, uint32_t *failures,
                                 uint32_t *ret_delay_ms)
{
    if (end->exited && end->exit_status == 2) {
        return KELP_VERDICT_FAIL;
    }
    if (!policy->restart ||
        (end->exited && end->exit_status == 0 && child->worker && end->enough_left)) {
        return KELP_VERDICT_LEAVE;
    }
    if (end->exited && end->exit_status == 0 && child->worker) {
        *ret_delay_ms = KELP_SUPERVISE_LEFT_MS; /* no failure, so it is not counted as one */
        return KELP_VERDICT_RESTART;
    }
    if (policy->max_failures >= 0 && *failures >= (uint32_t)policy->max_failures) {
        return KELP_VERDICT_GIVE_UP;
    }
    *failures += 1;
    if (end->lived_ms >= KELP_SUPERVISE_SETTLED_MS) {
        child->young_deaths = 0;
    }
    uint32_t doublings = child->young_deaths;
    if (doublings < KELP_SUPERVISE_DOUBLINGS_MAX) {
        child->young_deaths++;
    }
    uint64_t delay = (uint64_t)policy->backoff_ms << doublings;
    *ret_delay_ms =
        delay > KELP_SUPERVISE_BACKOFF_MAX_MS ? KELP_SUPERVISE_BACKOFF_MAX_MS : (uint32_t)delay;
    return KELP_VERDICT_RESTART;
}
