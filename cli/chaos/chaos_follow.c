#include "cli/chaos/chaos_follow.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/chaos/chaos_process.h"
#include "common/base/clock.h"

#define STATUS_FRESH_MS 2000 /* older answers say nothing about who is there */
#define WORKER          "worker-"

kelp_status kelp_chaos_follow_start(struct kelp_chaos_follow *follow, const char *etcd,
                                    const char *job, const char *certs, struct kelp_error *reterr)
{
    kelp_status status = kelp_chaos_watch_start(certs, &follow->watch, reterr);

    if (status == KELP_OK) {
        status = kelp_monitor_start(etcd, job, certs, &follow->monitor, reterr);
    }
    follow->report->start_ms = kelp_clock_ms();
    follow->alive_ms = follow->report->start_ms;
    return status;
}

void kelp_chaos_follow_stop(struct kelp_chaos_follow *follow)
{
    kelp_chaos_watch_stop(follow->watch);
    kelp_monitor_stop(follow->monitor);
    kelp_job_client_status_free(follow->status);
    follow->watch = NULL;
    follow->monitor = NULL;
    follow->status = NULL;
}

/* Lines in the order of the faults, each once it is known what the fault cost. */
static void say(struct kelp_chaos_follow *follow, bool all)
{
    char line[KELP_CHAOS_LINE_MAX];
    uint64_t now = kelp_clock_ms() - follow->report->start_ms;

    for (uint32_t i = 0; i < follow->report->event_count; i++) {
        const struct kelp_chaos_event *event = &follow->report->events[i];
        bool known =
            event->recovered && now >= event->at_ms + event->recovery_ms + KELP_CHAOS_SAY_MS;
        if (!follow->said[i] && (known || all)) {
            kelp_chaos_event_line(event, line);
            kelp_display_clear(follow->display);
            (void)printf("%s\n", line);
            (void)fflush(stdout);
            follow->said[i] = true;
        }
    }
}

static void read_looks(struct kelp_chaos_follow *follow)
{
    uint32_t count = kelp_chaos_watch_read(follow->watch, follow->looks);
    uint64_t before = follow->report->progress_ms;

    for (uint32_t i = 0; i < count; i++) {
        (void)kelp_chaos_report_look(follow->report, &follow->looks[i]);
    }
    if (follow->report->progress_ms != before) {
        follow->progress_ms = follow->report->start_ms + follow->report->progress_ms;
        follow->alive_ms = follow->progress_ms;
    }
}

static void read_status(struct kelp_chaos_follow *follow)
{
    struct kelp_chaos_report *report = follow->report;
    uint64_t asked_ms = 0;
    Kelp__V1__StatusReply *status = kelp_monitor_read(follow->monitor, &asked_ms);

    if (!status) {
        return;
    }
    kelp_job_client_status_free(follow->status);
    follow->status = status;
    follow->status_ms = asked_ms;
    kelp_chaos_watch_aim(follow->watch, status);
    /* A leader that took over does not know the step when that checkpoint is removed by now. */
    if (status->restore_step > 0 || (status->map && status->map->generation == status->generation &&
                                     status->map->restore_version == 0)) {
        kelp_chaos_report_restored(report, status->generation, status->restore_step);
    }
    /* A leader that has just taken over may not have read them yet: 0 says nothing. */
    if (status->checkpoint && status->checkpoint->step > report->checkpoint_step) {
        report->checkpoint_step = status->checkpoint->step;
    }
    if (status->steps_recomputed > report->steps_recomputed) {
        report->steps_recomputed = status->steps_recomputed;
    }
    if (status->total_steps > 0) {
        report->total_steps = status->total_steps;
    }
}

void kelp_chaos_follow_read(struct kelp_chaos_follow *follow)
{
    read_looks(follow);
    read_status(follow);
    say(follow, false);
}

void kelp_chaos_follow_finish(struct kelp_chaos_follow *follow)
{
    say(follow, true);
}

bool kelp_chaos_follow_unfinished(const struct kelp_chaos_follow *follow)
{
    const struct kelp_chaos_report *report = follow->report;
    return report->any && report->total_steps > 0 && report->newest.step < report->total_steps;
}

static bool has_joined(const Kelp__V1__StatusReply *status, const char *id)
{
    for (size_t i = 0; status && i < status->n_workers; i++) {
        if (strcmp(status->workers[i]->id, id) == 0) {
            return true;
        }
    }
    return false;
}

/* "worker-1", on hosts "host-0.worker-1". */
static bool is_new_worker(const char *id, const void *status)
{
    const char *dot = strrchr(id, '.');

    return strncmp(dot ? dot + 1 : id, WORKER, sizeof(WORKER) - 1) == 0 && !has_joined(status, id);
}

/* Does training rest, for all that is known, until more workers have joined? */
static bool lacks_workers(const Kelp__V1__StatusReply *status)
{
    size_t least = status && status->targets ? status->targets->workers_min : 1;

    return !status || status->n_workers < (least > 1 ? least : 1);
}

/* NULL: no coordinator answers. */
static const Kelp__V1__StatusReply *fresh_status(const struct kelp_chaos_follow *follow,
                                                 uint64_t now_ms)
{
    return now_ms <= follow->status_ms + STATUS_FRESH_MS ? follow->status : NULL;
}

static bool workers_start(const struct kelp_chaos_follow *follow,
                          const struct kelp_chaos_stall *stall, uint64_t now_ms)
{
    const Kelp__V1__StatusReply *status = fresh_status(follow, now_ms);
    const struct kelp_chaos_search search = {.parents = stall->parents,
                                             .parent_count = stall->parent_count,
                                             .wanted = is_new_worker,
                                             .user = status};

    return lacks_workers(status) && kelp_chaos_process_computes(&search);
}

kelp_status kelp_chaos_follow_stall(struct kelp_chaos_follow *follow,
                                    const struct kelp_chaos_stall *stall, struct kelp_error *reterr)
{
    uint64_t now = kelp_clock_ms();

    if (follow->still_from_ms != follow->alive_ms) {
        follow->still_from_ms = follow->alive_ms;
        follow->still_until_ms = follow->alive_ms;
        follow->still_ms = 0;
    }
    if (now < follow->still_until_ms + KELP_CHAOS_STILL_MS) {
        return KELP_OK;
    }
    const uint64_t elapsed_ms = now - follow->still_until_ms;
    if (!workers_start(follow, stall, now)) {
        follow->still_ms +=
            elapsed_ms < KELP_CHAOS_STILL_MOST_MS ? elapsed_ms : KELP_CHAOS_STILL_MOST_MS;
    }
    follow->still_until_ms = now;
    if (follow->still_ms < stall->limit_ms) {
        return KELP_OK;
    }
    const Kelp__V1__StatusReply *status = fresh_status(follow, now);
    return kelp_fail(reterr, KELP_ERR_TIMEOUT,
                     "no step was made for %" PRIu32 " s after step %" PRIu64 ": %.255s; see "
                     "%s/logs",
                     stall->limit_ms / 1000, follow->report->newest.step,
                     !status             ? "no coordinator answers"
                     : status->reason[0] ? status->reason
                                         : "no reason is known",
                     stall->run_path);
}
