/*
 * Requests of users to a leader: checkpoints, another size, draining a process.
 */
#include <stdio.h>
#include <string.h>

#include "coordinator/term/term_internal.h"

#define NAMES_BYTES 160 /* of the names that a refusal lists */

/* Can requests be accepted now? */
static kelp_status check_open(const struct kelp_term *term, struct kelp_error *reterr)
{
    const struct kelp_placement *placement = &term->placement;
    if (!term->reading.done) {
        return kelp_fail(reterr, KELP_ERR_BUSY, "the leader has not read the job's state yet");
    }
    if (placement->state == KELP_PLACEMENT_FAILED || placement->state == KELP_PLACEMENT_PAUSED) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "the job is %s: %.300s",
                         kelp_placement_state_text(placement->state), placement->reason);
    }
    return KELP_OK;
}

kelp_status kelp_term_request(struct kelp_term *term, bool pause, uint64_t *ret_serial,
                              struct kelp_error *reterr)
{
    kelp_status status = check_open(term, reterr);
    if (status == KELP_OK && term->options.no_checkpoints) {
        status = kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                           "the hosts of this job share no folder: it has no checkpoints%s",
                           pause ? ", and cannot be paused" : "");
    }
    if (status != KELP_OK) {
        return status;
    }
    kelp__term_checkpoint(term, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_REQUEST,
                                                                 .request = {.pause = pause}});
    *ret_serial = term->keeper.machine.requested;
    return KELP_OK;
}

static kelp_status check_shards(const struct kelp_job *job, uint32_t shards,
                                struct kelp_error *reterr)
{
    return shards <= job->cluster.max_shards
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "%u shards: the job may have %u at most (cluster.max_shards)", shards,
                           job->cluster.max_shards);
}

kelp_status kelp_term_scale(struct kelp_term *term, const struct kelp_targets *request,
                            struct kelp_error *reterr)
{
    kelp_status status = check_open(term, reterr);
    if (status == KELP_OK) {
        status = check_shards(term->options.job, request->shards, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_size_ask(&term->size, request, reterr);
    }
    if (status == KELP_OK) {
        kelp__term_try_scale(term);
    }
    return status;
}

/* ---- draining ---- */

/* The next member in the order of names; NULL: none. */
static const struct kelp_member *next_member(const struct kelp_term *term,
                                             const struct kelp_member *before)
{
    const struct kelp_member *next = NULL;
    for (uint32_t i = 0; i < term->membership.count; i++) {
        const struct kelp_member *member = &term->membership.members[i];
        if ((!before || kelp_map_compare_ids(before->id, member->id) < 0) &&
            (!next || kelp_map_compare_ids(member->id, next->id) < 0)) {
            next = member;
        }
    }
    return next;
}

/* List the members that could be meant, cut if there are many. */
static void list_names(const struct kelp_term *term, char names[NAMES_BYTES])
{
    size_t used = 0;
    const struct kelp_member *member = NULL;
    names[0] = '\0';
    while (used < NAMES_BYTES && (member = next_member(term, member)) != NULL) {
        used += (size_t)snprintf(names + used, NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "",
                                 member->id);
    }
}

/* Members of a kind that stay, without the one of that id. */
static uint32_t count_others(const struct kelp_term *term, enum kelp_member_kind kind,
                             const char *id)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < term->membership.count; i++) {
        const struct kelp_member *member = &term->membership.members[i];
        const struct kelp_placement_shard *shard =
            kind == KELP_MEMBER_SHARD ? kelp_placement_find(&term->placement, member->id) : NULL;
        bool goes = (shard && shard->draining) ||
                    kelp_targets_drain(&term->size.now, member->id, member->incarnation) ||
                    kelp_targets_drain(&term->size.wanted, member->id, member->incarnation);
        count += member->kind == kind && !goes && strcmp(member->id, id) != 0 ? 1 : 0;
    }
    return count;
}

static kelp_status check_spare(const struct kelp_term *term, const struct kelp_member *member,
                               struct kelp_error *reterr)
{
    const uint32_t replicas = term->options.job->cluster.replicas;
    const uint32_t others = count_others(term, member->kind, member->id);
    if (member->kind == KELP_MEMBER_WORKER && others == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s is the last worker: start another one first (kelp scale --workers)",
                         member->id);
    }
    if (member->kind == KELP_MEMBER_SHARD && others == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s is the last shard, and its partitions have nowhere to go: start "
                         "another one first (kelp scale --shards)",
                         member->id);
    }
    if (member->kind == KELP_MEMBER_SHARD && others < replicas) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s cannot be spared: each partition has %u replicas (cluster.replicas), "
                         "but there is only %u other shard; start another one first (kelp "
                         "scale --shards)",
                         member->id, replicas, others);
    }
    return KELP_OK;
}

/* A shard before a worker; NULL: no member has that name. */
static const struct kelp_member *find_member(const struct kelp_term *term, const char *id)
{
    const struct kelp_member *found = NULL;
    for (uint32_t i = 0; i < term->membership.count; i++) {
        const struct kelp_member *member = &term->membership.members[i];
        if (strcmp(member->id, id) == 0 && (!found || member->kind == KELP_MEMBER_SHARD)) {
            found = member;
        }
    }
    return found;
}

kelp_status kelp_term_drain(struct kelp_term *term, const char *id, struct kelp_error *reterr)
{
    char names[NAMES_BYTES];
    kelp_status status = check_open(term, reterr);
    if (status == KELP_OK && kelp_placement_settled(&term->placement)) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, "the job is over: there is nothing to drain");
    }
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_member *member = find_member(term, id);
    if (!member) {
        list_names(term, names);
        return kelp_fail(reterr, KELP_ERR_INVALID, "there is no shard or worker '%.63s'; %s%s", id,
                         names[0] ? "there are " : "there is none", names);
    }
    if (kelp_targets_drain(&term->size.now, id, member->incarnation)) {
        return KELP_OK;
    }
    status = check_spare(term, member, reterr);
    if (status == KELP_OK) {
        status = kelp_size_drain(&term->size, id, member->incarnation, reterr);
    }
    if (status == KELP_OK) {
        kelp__term_try_scale(term);
    }
    return status;
}

/* The incarnation that has this name now; 0: none. */
static uint64_t holder_of(const struct kelp_term *term, const struct kelp_drain *drain)
{
    const struct kelp_placement_shard *shard = kelp_placement_find(&term->placement, drain->id);
    const struct kelp_session *worker = kelp_worker_sessions_find(&term->sessions, drain->id);
    uint64_t of_shard = 0;
    if (shard && (shard->registered || shard->connected)) {
        of_shard = shard->registered ? shard->at.incarnation : shard->connected_incarnation;
    }
    return of_shard == drain->incarnation || !worker ? of_shard : worker->incarnation;
}

void kelp__term_forget_drains(struct kelp_term *term)
{
    struct kelp_targets *now = &term->size.now;
    for (uint32_t i = 0; i < now->drain_count; i++) {
        struct kelp_drain *drain = &now->drains[i];
        uint64_t holder = holder_of(term, drain);
        if (holder == drain->incarnation || drain->seen_ms == 0) {
            drain->seen_ms = term->now_ms;
        }
        if ((holder != 0 && holder != drain->incarnation) ||
            term->now_ms >= drain->seen_ms + KELP_COORDINATOR_DRAIN_MS) {
            kelp_size_drained(&term->size, drain->id, drain->incarnation);
        }
    }
}
