#include "cli/chaos/report/chaos_report.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

kelp_status kelp_chaos_report_init(struct kelp_chaos_report *report, struct kelp_error *reterr)
{
    memset(report, 0, sizeof(*report));
    report->looks = calloc(KELP_CHAOS_KEPT_MAX, sizeof(*report->looks));
    report->events = calloc(KELP_CHAOS_FAULTS_MAX, sizeof(*report->events));
    if (!report->looks || !report->events) {
        kelp_chaos_report_fini(report);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    return KELP_OK;
}

void kelp_chaos_report_fini(struct kelp_chaos_report *report)
{
    free(report->looks);
    free(report->events);
    report->looks = NULL;
    report->events = NULL;
}

/* ---- taking in ----------------------------------------------------------------------------- */

static void keep(struct kelp_chaos_report *report, const struct kelp_chaos_look *look)
{
    if (report->skipped < report->thinned) {
        report->skipped++;
        return;
    }
    report->skipped = 0;
    if (report->look_count == KELP_CHAOS_KEPT_MAX) {
        for (uint32_t i = 0; i < KELP_CHAOS_KEPT_MAX / 2; i++) {
            report->looks[i] = report->looks[2 * (size_t)i];
        }
        report->look_count = KELP_CHAOS_KEPT_MAX / 2;
        report->thinned = 2 * report->thinned + 1;
    }
    report->looks[report->look_count++] = *look;
}

/* A loss of a shard is what rolls a run back: of several faults that are not over, that one. */
static bool loses_state(const struct kelp_chaos_event *event)
{
    enum kelp_chaos_role role = event->fault.role;
    enum kelp_chaos_kind kind = event->fault.kind;
    if (kind == KELP_CHAOS_DRAIN || kind == KELP_CHAOS_SCALE || kind == KELP_CHAOS_LEAVE) {
        return false;
    }
    return role == KELP_CHAOS_HOST || role == KELP_CHAOS_SHARD || role == KELP_CHAOS_PRIMARY ||
           role == KELP_CHAOS_BOTH || role == KELP_CHAOS_EVERYTHING;
}

static uint32_t cause_of_restore(const struct kelp_chaos_report *report)
{
    for (uint32_t i = report->event_count; i > 0; i--) {
        const struct kelp_chaos_event *event = &report->events[i - 1];
        if (!event->recovered && loses_state(event)) {
            return i - 1;
        }
    }
    return report->event_count > 0 ? report->event_count - 1 : UINT32_MAX;
}

static void add_restore(struct kelp_chaos_report *report, const struct kelp_chaos_look *look)
{
    if (report->restore_count == KELP_CHAOS_RESTORES_MAX) {
        return;
    }
    struct kelp_chaos_restore *restore = &report->restores[report->restore_count++];
    *restore = (struct kelp_chaos_restore){.at_ms = look->at_ms,
                                           .generation = look->generation,
                                           .from_step = report->newest.step,
                                           .to_step = look->step,
                                           .event = cause_of_restore(report)};
    if (restore->event != UINT32_MAX && restore->from_step > restore->to_step) {
        report->events[restore->event].steps_again += restore->from_step - restore->to_step;
    }
}

/* A step is new that no look has had before: one that is computed again is not. */
static void note_pauses(struct kelp_chaos_report *report, const struct kelp_chaos_look *look)
{
    if (look->step <= report->highest_step) {
        return;
    }
    for (uint32_t i = 0; i < report->event_count; i++) {
        struct kelp_chaos_event *event = &report->events[i];
        uint64_t since_ms = report->new_step_ms > event->at_ms ? report->new_step_ms : event->at_ms;
        if (event->fault.role == KELP_CHAOS_HOST && !event->recovered && look->at_ms > since_ms &&
            look->at_ms - since_ms > event->pause_ms) {
            event->pause_ms = look->at_ms - since_ms;
        }
    }
    report->highest_step = look->step;
    report->new_step_ms = look->at_ms;
}

/* Recovery counts from there on. A host's fault hit where it began, and not where it ended. */
static void stand_at(struct kelp_chaos_event *event, const struct kelp_chaos_look *look)
{
    event->version = look->version;
    event->step = event->fault.role == KELP_CHAOS_HOST ? event->step : look->step;
}

static bool look_at_event(struct kelp_chaos_event *event, const struct kelp_chaos_look *look)
{
    const bool host = event->fault.role == KELP_CHAOS_HOST;

    if (event->recovered || event->leaving) {
        return false;
    }
    /* The last look before a fault is older than the fault: steps were made in between. */
    if (look->at_ms <= event->at_ms + event->left_ms + KELP_CHAOS_SETTLE_MS &&
        look->generation == event->generation && look->version > event->version) {
        stand_at(event, look);
        return false;
    }
    /* A run that is asked to pause keeps working until it has: only resuming counts. */
    bool paused = event->fault.role == KELP_CHAOS_EVERYTHING &&
                  event->fault.kind == KELP_CHAOS_RESTART && look->generation == event->generation;
    /* The entry in progress when it hit may have been almost complete; the next one was not. */
    if (paused || look->version < event->version + (host ? KELP_CHAOS_GOES_ON : 2)) {
        return false;
    }
    event->recovered = true;
    event->recovery_ms = look->at_ms - event->at_ms;
    return true;
}

unsigned kelp_chaos_report_look(struct kelp_chaos_report *report,
                                const struct kelp_chaos_look *taken)
{
    struct kelp_chaos_look look = *taken;
    unsigned news = 0;

    look.at_ms = look.at_ms > report->start_ms ? look.at_ms - report->start_ms : 0;
    if (report->any && look.generation < report->newest.generation) {
        return 0; /* a shard that has not heard of the newer one */
    }
    if (report->any && look.generation > report->newest.generation) {
        add_restore(report, &look);
        news |= KELP_CHAOS_RESTORED;
    }
    if (!report->any || look.generation > report->newest.generation ||
        look.version > report->newest.version) {
        report->progress_ms = look.at_ms;
    }
    report->any = true;
    report->newest = look;
    note_pauses(report, &look);
    keep(report, &look);
    for (uint32_t i = 0; i < report->event_count; i++) {
        news |= look_at_event(&report->events[i], &look) ? KELP_CHAOS_RECOVERED : 0;
    }
    return news;
}

void kelp_chaos_report_restored(struct kelp_chaos_report *report, uint64_t generation,
                                uint64_t step)
{
    for (uint32_t i = 0; i < report->restore_count; i++) {
        struct kelp_chaos_restore *restore = &report->restores[i];
        if (restore->generation == generation) {
            restore->exact = true;
        }
        if (restore->generation != generation || step >= restore->to_step) {
            continue;
        }
        if (restore->event != UINT32_MAX && restore->from_step > step) {
            uint64_t least =
                restore->from_step < restore->to_step ? restore->from_step : restore->to_step;
            report->events[restore->event].steps_again += least - step;
        }
        restore->to_step = step;
    }
}

const struct kelp_chaos_restore *kelp_chaos_report_too_far(const struct kelp_chaos_report *report)
{
    for (uint32_t i = 0; i < report->restore_count; i++) {
        const struct kelp_chaos_restore *restore = &report->restores[i];
        if (restore->exact && restore->event != UINT32_MAX &&
            restore->to_step < report->events[restore->event].checkpoint_step) {
            return restore;
        }
    }
    return NULL;
}

bool kelp_chaos_report_alone(const struct kelp_chaos_report *report)
{
    for (uint32_t i = 0; i < report->event_count; i++) {
        if (report->events[i].alone) {
            return true;
        }
    }
    return false;
}

static bool is_explained(const struct kelp_chaos_report *report,
                         const struct kelp_chaos_restore *restore)
{
    for (uint32_t i = 0; i < report->event_count; i++) {
        const struct kelp_chaos_event *event = &report->events[i];
        uint64_t end_ms = event->at_ms + event->left_ms + event->fault.for_ms + KELP_CHAOS_ALONE_MS;
        if (event->alone && event->at_ms <= restore->at_ms && restore->at_ms <= end_ms) {
            return true;
        }
    }
    return false;
}

const struct kelp_chaos_restore *kelp_chaos_report_needless(const struct kelp_chaos_report *report)
{
    for (uint32_t i = 0; i < report->restore_count; i++) {
        if (!is_explained(report, &report->restores[i])) {
            return &report->restores[i];
        }
    }
    return NULL;
}

void kelp_chaos_report_fault(struct kelp_chaos_report *report, const struct kelp_chaos_fault *fault,
                             const char *target, bool alone, uint64_t now_ms)
{
    assert(report->event_count < KELP_CHAOS_FAULTS_MAX && report->any);
    struct kelp_chaos_event *event = &report->events[report->event_count++];
    *event = (struct kelp_chaos_event){.fault = *fault,
                                       .at_ms = now_ms - report->start_ms,
                                       .generation = report->newest.generation,
                                       .version = report->newest.version,
                                       .step = report->newest.step,
                                       .checkpoint_step = report->checkpoint_step};
    event->alone = alone;
    event->leaving = (fault->kind == KELP_CHAOS_RESTART && fault->role != KELP_CHAOS_EVERYTHING &&
                      fault->role != KELP_CHAOS_ETCD) ||
                     fault->kind == KELP_CHAOS_DRAIN || fault->role == KELP_CHAOS_HOST;
    (void)snprintf(event->target, sizeof(event->target), "%s", target);
}

void kelp_chaos_report_gone(struct kelp_chaos_report *report, uint32_t index, uint64_t now_ms)
{
    if (index >= report->event_count || !report->events[index].leaving) {
        return;
    }
    struct kelp_chaos_event *event = &report->events[index];
    event->leaving = false;
    event->left_ms = now_ms - report->start_ms - event->at_ms;
    event->generation = report->newest.generation;
    stand_at(event, &report->newest);
}

/* ---- text ---------------------------------------------------------------------------------- */

void kelp_chaos_event_line(const struct kelp_chaos_event *event, char text[KELP_CHAOS_LINE_MAX])
{
    char what[KELP_CHAOS_TEXT_MAX];
    char lasts[32] = "";
    char again[64] = "";
    char recovery[64] = "not recovered";

    (void)snprintf(what, sizeof(what), "%s %s", kelp_chaos_kind_name(event->fault.kind),
                   event->target);
    if (event->fault.for_ms > 0) {
        (void)snprintf(lasts, sizeof(lasts), "%.2f s", event->fault.for_ms / 1000.0);
    }
    if (event->steps_again > 0) {
        (void)snprintf(again, sizeof(again), ", %" PRIu64 " steps again", event->steps_again);
    }
    if (event->recovered) {
        bool host = event->fault.role == KELP_CHAOS_HOST;
        (void)snprintf(recovery, sizeof(recovery),
                       host ? "%.2f s without a step" : "recovered in %.2f s",
                       (double)(host ? event->pause_ms : event->recovery_ms) / 1000);
    }
    (void)snprintf(text, KELP_CHAOS_LINE_MAX, "%8.2f s  step %-8" PRIu64 " %-24s %7s  %s%s",
                   (double)event->at_ms / 1000, event->step, what, lasts, recovery, again);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

static void table_row(const struct kelp_chaos_report *report, enum kelp_chaos_kind kind,
                      enum kelp_chaos_role role, uint64_t *times, FILE *out)
{
    char what[KELP_CHAOS_TEXT_MAX];
    uint32_t count = 0;
    uint64_t again = 0;

    for (uint32_t i = 0; i < report->event_count; i++) {
        const struct kelp_chaos_event *event = &report->events[i];
        if (event->fault.kind == kind && event->fault.role == role) {
            times[count++] = role == KELP_CHAOS_HOST ? event->pause_ms : event->recovery_ms;
            again += event->steps_again;
        }
    }
    if (count == 0) {
        return;
    }
    qsort(times, count, sizeof(*times), compare_u64);
    uint32_t middle = count / 2;
    double median_s = (double)times[middle] / 1000;
    (void)snprintf(what, sizeof(what), "%s %s", kelp_chaos_kind_name(kind),
                   kelp_chaos_role_name(role));
    (void)fprintf(out, "%-24s %6" PRIu32 " %10.2f s %10.2f s %12" PRIu64 "\n", what, count,
                  median_s, (double)times[count - 1] / 1000, again);
}

void kelp_chaos_report_table(const struct kelp_chaos_report *report, FILE *out)
{
    uint64_t *times = calloc(KELP_CHAOS_FAULTS_MAX, sizeof(*times));

    if (!times) {
        return; /* the timeline has said it all */
    }
    /* Of hosts there is nothing else. */
    bool hosts = report->event_count > 0 && report->events[0].fault.role == KELP_CHAOS_HOST;
    (void)fprintf(out, "%-24s %6s %12s %12s %12s\n", "FAULT", "TIMES",
                  hosts ? "NO STEP FOR" : "RECOVERY", "LONGEST", "STEPS AGAIN");
    for (int kind = 0; kind < KELP_CHAOS_KIND_COUNT; kind++) {
        for (int role = 0; role < KELP_CHAOS_ROLE_COUNT; role++) {
            table_row(report, (enum kelp_chaos_kind)kind, (enum kelp_chaos_role)role, times, out);
        }
    }
    free(times);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_event(FILE *out, const struct kelp_chaos_event *event)
{
    kelp_json_print_member(out, "{", "kind", kelp_chaos_kind_name(event->fault.kind));
    kelp_json_print_member(out, ",", "role", kelp_chaos_role_name(event->fault.role));
    kelp_json_print_member(out, ",", "target", event->target);
    (void)fprintf(out,
                  ",\"planned_step\":%" PRIu32 ",\"for_ms\":%" PRIu32 ",\"at_ms\":%" PRIu64
                  ",\"generation\":%" PRIu64 ",\"version\":%" PRIu64 ",\"step\":%" PRIu64
                  ",\"recovery_ms\":",
                  event->fault.step, event->fault.for_ms, event->at_ms, event->generation,
                  event->version, event->step);
    if (event->recovered) {
        (void)fprintf(out, "%" PRIu64, event->recovery_ms);
    } else {
        (void)fputs("null", out);
    }
    if (event->fault.role == KELP_CHAOS_HOST) {
        (void)fprintf(out, ",\"pause_ms\":%" PRIu64, event->pause_ms);
    }
    (void)fprintf(out, ",\"checkpoint_step\":%" PRIu64 ",\"steps_again\":%" PRIu64 ",\"alone\":%s}",
                  event->checkpoint_step, event->steps_again, event->alone ? "true" : "false");
}

void kelp_chaos_report_json(const struct kelp_chaos_report *report, FILE *out)
{
    kelp_json_print_member(out, "{", "job", report->job);
    kelp_json_print_member(out, ",", "plan", report->plan);
    (void)fprintf(out,
                  ",\"seed\":%" PRIu64 ",\"total_steps\":%" PRIu64 ",\"planned\":%" PRIu32
                  ",\"left_out\":%" PRIu32 ",\"steps_recomputed\":%" PRIu64 ",\"equal\":%s,",
                  report->seed, report->total_steps, report->planned, report->left_out,
                  report->steps_recomputed, report->equal ? "true" : "false");
    kelp_json_print_member(out, "", "quiet_digest", report->quiet_digest);
    kelp_json_print_member(out, ",", "digest", report->digest);
    (void)fprintf(out, ",\"quiet_wall_s\":%.3f,\"wall_s\":%.3f,", report->quiet_wall_s,
                  report->wall_s);
    kelp_json_print_member(out, "", "verdict", report->verdict);
    (void)fputs(",\"faults\":[", out);
    for (uint32_t i = 0; i < report->event_count; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        json_event(out, &report->events[i]);
    }
    (void)fputs("],\"restores\":[", out);
    for (uint32_t i = 0; i < report->restore_count; i++) {
        const struct kelp_chaos_restore *restore = &report->restores[i];
        (void)fprintf(out,
                      "%s{\"at_ms\":%" PRIu64 ",\"generation\":%" PRIu64 ",\"from_step\":%" PRIu64
                      ",\"to_step\":%" PRIu64 "}",
                      i > 0 ? "," : "", restore->at_ms, restore->generation, restore->from_step,
                      restore->to_step);
    }
    (void)fputs("]}\n", out);
}
