#include "cli/chaos/report/chaos_judge.h"

#include <inttypes.h>
#include <string.h>

/* With replicas nothing is computed again while one of each partition lives. */
static bool keeps_its_state(struct kelp_chaos_report *report, uint32_t replicas)
{
    const struct kelp_chaos_restore *needless = kelp_chaos_report_needless(report);

    if (replicas < 2) {
        return true;
    }
    if (needless) {
        (void)snprintf(report->verdict, sizeof(report->verdict),
                       "equal, but generation %" PRIu64 " went back to step %" PRIu64
                       " though each partition had a replica that lived",
                       needless->generation, needless->to_step);
        return false;
    }
    if (!kelp_chaos_report_alone(report) && report->steps_recomputed > 0) {
        (void)snprintf(report->verdict, sizeof(report->verdict),
                       "equal, but %" PRIu64
                       " steps were computed again though each partition had a replica that lived",
                       report->steps_recomputed);
        return false;
    }
    return true;
}

static const char *plural(uint32_t count)
{
    return count == 1 ? "" : "s";
}

bool kelp_chaos_judge(struct kelp_chaos_report *report, const char *digest,
                      const char *first_different, uint32_t replicas)
{
    (void)snprintf(report->digest, sizeof(report->digest), "%s", digest);
    report->equal =
        report->quiet_digest[0] != '\0' && strcmp(report->digest, report->quiet_digest) == 0;
    if (!report->equal || first_different[0] != '\0') {
        (void)snprintf(report->verdict, sizeof(report->verdict),
                       "DIFFERENT: the quiet run ends with %s, the run with %" PRIu32
                       " fault%s with %s%s",
                       report->quiet_digest, report->event_count, plural(report->event_count),
                       report->digest, first_different);
        report->equal = false;
        return false;
    }
    const struct kelp_chaos_restore *far = kelp_chaos_report_too_far(report);
    if (far) {
        (void)snprintf(report->verdict, sizeof(report->verdict),
                       "equal, but generation %" PRIu64 " went back to step %" PRIu64
                       " where the checkpoint of step %" PRIu64 " was committed",
                       far->generation, far->to_step, report->events[far->event].checkpoint_step);
        return false;
    }
    if (!keeps_its_state(report, replicas)) {
        return false;
    }
    if (report->event_count < report->planned) {
        (void)snprintf(report->verdict, sizeof(report->verdict),
                       "equal, but the run ended before %" PRIu32 " of %" PRIu32
                       " faults found something to hit: give it more --epochs",
                       report->planned - report->event_count, report->planned);
        return false;
    }
    (void)snprintf(report->verdict, sizeof(report->verdict),
                   "equal: both runs end with %s; %" PRIu32 " fault%s", report->digest,
                   report->event_count, plural(report->event_count));
    return true;
}
