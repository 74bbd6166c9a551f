#include "cli/launch/children/supervise.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/value.h"
#include "common/program/options/options.h"

kelp_status kelp_failures_init(struct kelp_failures *failures,
                               const struct kelp_supervise_policy *policy,
                               struct kelp_error *reterr)
{
    *failures = (struct kelp_failures){.capacity = 0};
    if (policy->max_failures <= 0 || policy->window_ms == 0) {
        return KELP_OK;
    }
    failures->capacity = (uint32_t)policy->max_failures;
    failures->times_ms = calloc(failures->capacity, sizeof(*failures->times_ms));
    return failures->times_ms ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

void kelp_failures_fini(struct kelp_failures *failures)
{
    free(failures->times_ms);
    *failures = (struct kelp_failures){.capacity = 0};
}

/* One more: false when that is one too many. */
static bool count_failure(const struct kelp_supervise_policy *policy,
                          struct kelp_failures *failures, uint64_t now_ms)
{
    if (policy->max_failures >= 0 && failures->total >= (uint32_t)policy->max_failures) {
        if (!failures->times_ms) {
            return false;
        }
        /* The ring is full; in its next place is the oldest of those that may be in the window. */
        uint64_t oldest_ms = failures->times_ms[failures->total % failures->capacity];
        if (now_ms - oldest_ms < policy->window_ms) {
            return false;
        }
    }
    if (failures->times_ms) {
        failures->times_ms[failures->total % failures->capacity] = now_ms;
    }
    failures->total++;
    return true;
}

static uint32_t backoff_ms(const struct kelp_supervise_policy *policy, uint32_t young_deaths)
{
    if (young_deaths == 0) {
        return 0;
    }
    uint32_t doublings = young_deaths - 1 < KELP_SUPERVISE_DOUBLINGS_MAX
                             ? young_deaths - 1
                             : KELP_SUPERVISE_DOUBLINGS_MAX;
    uint64_t most = policy->backoff_ms > KELP_SUPERVISE_BACKOFF_MAX_MS
                        ? policy->backoff_ms
                        : KELP_SUPERVISE_BACKOFF_MAX_MS;
    uint64_t delay = (uint64_t)policy->backoff_ms << doublings;
    return (uint32_t)(delay < most ? delay : most);
}

/* Has it ended for one reason too often? With endless restarts it never has. */
static bool is_stuck(const struct kelp_supervise_policy *policy,
                     const struct kelp_supervise_end *end, struct kelp_supervise_child *child)
{
    bool again =
        end->cause != 0 && end->cause == child->cause && end->lived_ms < KELP_SUPERVISE_SETTLED_MS;

    child->same = again ? child->same + 1 : 1;
    child->cause = end->cause;
    return child->same >= KELP_SUPERVISE_SAME_MAX && policy->max_failures >= 0;
}

/* Does the same input come to the same end again? */
static bool is_mistake(const struct kelp_supervise_end *end)
{
    return end->exit_status == KELP_EXIT_USAGE ||
           (end->program && (end->exit_status == 126 || end->exit_status == 127)) ||
           (end->python && !end->joined && end->exit_status == 1);
}

/* Has it lost its GPU, or not found it again? */
static bool lacks_device(const struct kelp_supervise_end *end, struct kelp_supervise_child *child)
{
    if (end->lived_ms >= KELP_SUPERVISE_SETTLED_MS) {
        child->lost = false;
    }
    return child->worker && end->exited &&
           (end->exit_status == KELP_EXIT_DEVICE ||
            (child->lost && end->exit_status == KELP_EXIT_USAGE));
}

enum kelp_supervise_verdict kelp_supervise(const struct kelp_supervise_policy *policy,
                                           const struct kelp_supervise_end *end,
                                           struct kelp_supervise_child *child,
                                           struct kelp_failures *failures, uint32_t *ret_delay_ms)
{
    const bool in_order = end->exited && (end->exit_status == 0 || end->over);
    const bool lacks = !in_order && lacks_device(end, child);

    if (!in_order && !lacks && end->exited && is_mistake(end)) {
        return KELP_SUPERVISE_FAIL;
    }
    if (lacks && child->lost && end->goes_on) {
        return KELP_SUPERVISE_LEAVE;
    }
    child->lost = child->lost || lacks;
    if (end->program && end->early && in_order && ++child->idle >= KELP_SUPERVISE_EARLY_MAX) {
        return KELP_SUPERVISE_FAIL;
    }
    if (!policy->restart || (in_order && child->worker && end->enough_left)) {
        return KELP_SUPERVISE_LEAVE;
    }
    if (in_order && (child->worker || child->shard)) {
        /* No failure, so it is not counted as one. */
        bool at_once = child->shard && end->lived_ms >= KELP_SUPERVISE_SETTLED_MS;
        *ret_delay_ms = at_once ? 0 : KELP_SUPERVISE_LEFT_MS;
        return KELP_SUPERVISE_RESTART;
    }
    if (is_stuck(policy, end, child)) {
        return KELP_SUPERVISE_STUCK;
    }
    if (end->program && end->early && child->same >= KELP_SUPERVISE_EARLY_MAX) {
        return KELP_SUPERVISE_FAIL;
    }
    if (!count_failure(policy, failures, end->now_ms)) {
        return KELP_SUPERVISE_GIVE_UP;
    }
    if (end->lived_ms >= KELP_SUPERVISE_SETTLED_MS) {
        child->young_deaths = 0;
    }
    *ret_delay_ms = backoff_ms(policy, child->young_deaths);
    child->young_deaths++;
    return KELP_SUPERVISE_RESTART;
}

void kelp_supervise_limit_text(const struct kelp_supervise_policy *policy, char *text,
                               size_t text_bytes)
{
    char window[KELP_VALUE_TEXT_MAX];

    if (policy->window_ms == 0) {
        (void)snprintf(text, text_bytes, "failure.max_failures=%d restarts are used up",
                       policy->max_failures);
        return;
    }
    kelp_value_print_duration(policy->window_ms, window);
    (void)snprintf(text, text_bytes,
                   "failure.max_failures=%d restarts within failure.window=%s are used up",
                   policy->max_failures, window);
}
