/*
 * A term's reads and writes of etcd.
 */
#include <inttypes.h>
#include <string.h>

#include "coordinator/term/term_internal.h"

/* ---- requests ---- */

static void try_read(struct kelp_term *term)
{
    const struct kelp_outside *outside = &term->outside;
    if (kelp_reading_due(&term->reading, term->elected, term->now_ms)) {
        kelp_reading_sent(&term->reading, outside->effects->read(outside->user), term->now_ms);
    }
}

void kelp__term_ask_etcd(struct kelp_term *term)
{
    const struct kelp_outside *outside = &term->outside;
    try_read(term);
    if (kelp_reading_map_due(&term->reading, term->now_ms)) {
        kelp_reading_map_sent(&term->reading, outside->effects->read_map(outside->user));
    }
    if (term->placement.state != KELP_PLACEMENT_FAILED) {
        kelp_plan_offer_tick(&term->offer, outside, term->now_ms);
    }
}

void kelp_term_elected(struct kelp_term *term, int64_t election)
{
    term->elected = true;
    term->election = election;
    kelp_reading_restart(&term->reading);
    try_read(term);
}

void kelp_term_deposed(struct kelp_term *term)
{
    term->elected = false;
}

/* ---- what was read ---- */

/* etcd holds the plan: tell the processes that wait for it. */
static void plan_settled(struct kelp_term *term)
{
    const struct kelp_outside *outside = &term->outside;
    const struct kelp_plan *plan = term->offer.plan;
    kelp_outside_log(outside, KELP_LOG_INFO, "plan taken partitions=%u", plan->partition_count);
    kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_PLAN,
                                                         .partition_count = plan->partition_count});
    kelp__term_update_shards(term, false);
}

/* Errors: not a plan, or not the one that the map was made for. */
static kelp_status adopt_plan(struct kelp_term *term, const struct kelp_found *found,
                              struct kelp_error *reterr)
{
    if (!found->plan) {
        return KELP_OK;
    }
    kelp_status status =
        kelp_plan_offer_keep(&term->offer, &term->outside, found->plan, KELP_PLAN_WRITTEN, reterr);
    if (status == KELP_OK && found->map.generation > 0 &&
        found->map.partition_count != term->offer.plan->partition_count) {
        status =
            kelp_fail(reterr, KELP_ERR_CORRUPT, "the map in etcd has %u partitions, the plan %u",
                      found->map.partition_count, term->offer.plan->partition_count);
    }
    return status;
}

static void pass_list(struct kelp_term *term, struct kelp_found *found, bool begin)
{
    struct kelp__keeper_visit visit;
    kelp__term_keeper_begin(term, &visit);
    kelp_keeper_found(&term->keeper, &visit.call, found, begin);
    kelp__term_keeper_end(term, &visit);
}

/* Start from what etcd held at the beginning of the term. */
static void begin_from(struct kelp_term *term, struct kelp_found *found)
{
    const struct kelp_outside *outside = &term->outside;
    struct kelp_error error;
    if (adopt_plan(term, found, &error) != KELP_OK) {
        kelp_error_prefix(&error, "job %s", term->options.job->name);
        outside->effects->give_up(error.text, outside->user);
        return;
    }
    kelp_reading_answered(&term->reading, true, term->now_ms);
    kelp_outside_log(outside, KELP_LOG_INFO, "state read plan=%s generation=%" PRIu64 " state=%s",
                     found->plan ? "there" : "none", found->map.generation,
                     found->has_state ? found->state.state : "none");
    kelp_step_count_read(&term->steps, found->state.step, found->state.steps_recomputed);
    kelp_job_end_read(&term->end, &found->state, found->map.generation);
    term->sent_away = found->has_state && strcmp(found->state.state, "done") == 0;
    (void)kelp_size_read(&term->size, found);
    kelp__term_resize(term);
    if (found->plan) {
        plan_settled(term);
    }
    pass_list(term, found, true);
    if (found->foreign[0] != '\0' && term->options.force) {
        kelp_outside_log(outside, KELP_LOG_WARN, "taken because of --force: %s", found->foreign);
    } else if (found->foreign[0] != '\0') {
        kelp__term_fail_job(term, found->foreign);
    }
    kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_MAP_READ,
                                                         .map_read = &found->map});
    kelp__term_review_workers(term);
}

/* This coordinator was re-elected: did another one lead in between? */
static void compare_found(struct kelp_term *term, struct kelp_found *found)
{
    const struct kelp_placement *placement = &term->placement;
    bool same = found->map.generation == placement->map.generation &&
                strcmp(found->map.nonce, placement->map.nonce) == 0;
    bool writing =
        placement->state == KELP_PLACEMENT_OPENING || placement->change != KELP_CHANGE_NONE;
    bool opening = writing && found->map.generation == placement->next.generation &&
                   strcmp(found->map.nonce, placement->next.nonce) == 0;
    if (!same && !opening) {
        term->replaced = "the map in etcd is not ours";
        return;
    }
    kelp_outside_log(&term->outside, KELP_LOG_INFO, "going on leading generation=%" PRIu64,
                     placement->map.generation);
    pass_list(term, found, false);
    if (kelp_size_read(&term->size, found)) {
        kelp__term_resize(term);
    }
    kelp__term_report_state(term);
}

void kelp_term_read(struct kelp_term *term, kelp_status status, struct kelp_found *found,
                    const char *text)
{
    const struct kelp_outside *outside = &term->outside;
    bool first = !term->reading.done;
    if (status != KELP_OK) {
        kelp_reading_answered(&term->reading, false, term->now_ms);
    }
    if (status == KELP_OK && first) {
        begin_from(term, found);
    } else if (status == KELP_OK) {
        kelp_reading_answered(&term->reading, true, term->now_ms);
        compare_found(term, found);
    } else if (kelp_status_group(status) == KELP_GROUP_DATA) {
        outside->effects->give_up(text, outside->user);
    } else if (found->missing[0] != '\0' && first) {
        kelp_job_end_read(&term->end, &found->state, found->map.generation);
        kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_MISSING,
                                                             .missing = found->missing});
    } else {
        kelp_outside_log(outside, KELP_LOG_WARN, "the job's state cannot be read yet error=\"%s\"",
                         text);
    }
}

void kelp_term_map_read(struct kelp_term *term, kelp_status status, struct kelp_found *found,
                        const char *text)
{
    if (status != KELP_OK) {
        kelp_outside_log(&term->outside, KELP_LOG_WARN, "map cannot be read yet error=\"%s\"",
                         text);
        kelp_reading_map_failed(&term->reading, term->now_ms);
        return;
    }
    pass_list(term, found, false);
    kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_MAP_READ,
                                                         .map_read = &found->map});
}

/* ---- what was written ---- */

void kelp_term_plan_written(struct kelp_term *term, kelp_status status, const char *plan,
                            const char *text)
{
    const struct kelp_outside *outside = &term->outside;
    struct kelp_error error;
    kelp_plan_offer_answered(&term->offer, status == KELP_OK, term->now_ms);
    if (kelp_status_group(status) == KELP_GROUP_CALLER) { /* for example too large for etcd */
        kelp_outside_log(outside, KELP_LOG_ERROR, "plan refused by etcd error=\"%s\"", text);
        kelp__term_fail_job(term, text);
        return;
    }
    if (status != KELP_OK) {
        kelp_outside_log(outside, KELP_LOG_WARN, "plan not written yet error=\"%s\"", text);
        return;
    }
    if (kelp_plan_offer_keep(&term->offer, outside, plan, KELP_PLAN_WRITTEN, &error) != KELP_OK) {
        kelp_error_prefix(&error, "/kelp/%s/plan", term->options.job->name);
        outside->effects->give_up(error.text, outside->user);
        return;
    }
    plan_settled(term);
    kelp__term_review_workers(term);
}

void kelp_term_map_written(struct kelp_term *term, enum kelp_placement_written result,
                           const char *text)
{
    if (result != KELP_WRITTEN_OK) {
        kelp_outside_log(&term->outside, KELP_LOG_WARN, "map not written error=\"%s\"", text);
    }
    term->opened = result == KELP_WRITTEN_OK;
    kelp__term_place(
        term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN, .written = result});
}

void kelp_term_state_written(struct kelp_term *term, bool taken)
{
    if (kelp_job_end_written(&term->end, taken, term->now_ms)) {
        term->sent_away = true;
        kelp__term_resize(term);
        kelp__term_update_workers(term);
    }
    kelp__term_try_state(term); /* for one that came meanwhile */
}

/* Log the processes that are drained from now on. */
static void tell_drains(struct kelp_term *term, const struct kelp_targets *written)
{
    for (uint32_t i = 0; written && i < written->drain_count; i++) {
        const struct kelp_drain *drain = &written->drains[i];
        if (!kelp_targets_drain(&term->size.now, drain->id, drain->incarnation)) {
            kelp_outside_log(&term->outside, KELP_LOG_INFO, "process is drained id=%s", drain->id);
            kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_DRAINING,
                                                      .who = drain->id,
                                                      .why = "kelp drain"});
        }
    }
}

void kelp_term_scale_written(struct kelp_term *term, const struct kelp_targets *written)
{
    tell_drains(term, written);
    if (kelp_size_written(&term->size, written, term->now_ms)) {
        kelp__term_resize(term);
    }
    kelp__term_try_scale(term); /* for one that came meanwhile */
}

/* ---- checkpoints ---- */

/* After a refusal etcd holds something other than this term assumed: read it again. */
static void read_again(struct kelp_term *term, enum kelp_checkpointer_result result)
{
    if (result == KELP_CHECKPOINTER_REFUSED) {
        kelp_reading_want_map(&term->reading, term->now_ms);
    }
}

void kelp_term_committed(struct kelp_term *term, const struct kelp_commit_answer *answer)
{
    struct kelp__keeper_visit visit;
    kelp__term_keeper_begin(term, &visit);
    if (kelp_keeper_committed(&term->keeper, &visit.call, answer)) {
        read_again(term, answer->result);
    }
    kelp__term_keeper_end(term, &visit);
    kelp__term_depart(term);
    kelp__term_update_shards(term, false);
}

void kelp_term_removed(struct kelp_term *term, enum kelp_checkpointer_result result,
                       const char *text)
{
    struct kelp__keeper_visit visit;
    read_again(term, result);
    kelp__term_keeper_begin(term, &visit);
    kelp_keeper_removed(&term->keeper, &visit.call, result, text);
    kelp__term_keeper_end(term, &visit);
}

void kelp_term_described(struct kelp_term *term, uint64_t serial, kelp_status status,
                         const char *text)
{
    struct kelp__keeper_visit visit;
    kelp__term_keeper_begin(term, &visit);
    kelp_keeper_described(&term->keeper, &visit.call, serial, status, text);
    kelp__term_keeper_end(term, &visit);
}
