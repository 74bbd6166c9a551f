/*
 * What users are told of a job: its state and why it waits, which may be the placement, processes
 * that cannot reach each other, or the disk.
 */
#include <stdio.h>
#include <string.h>

#include "coordinator/term/term_internal.h"

/* A shard that is registered but cannot be reached; NULL: none. */
static const struct kelp_link *out_of_reach(const struct kelp_term *term)
{
    for (const struct kelp_link *link = term->links.first; link; link = link->next) {
        const struct kelp_placement_shard *placed =
            kelp_placement_find(&term->placement, link->shard.id);
        if (!link->greeted && link->cause[0] != '\0' && placed && placed->registered &&
            !placed->connected) {
            return link;
        }
    }
    return NULL;
}

/* The first worker if every worker is in trouble, so that none computes; otherwise NULL. */
static const struct kelp_member *stuck_worker(const struct kelp_term *term, uint32_t *ret_count)
{
    const struct kelp_membership *membership = &term->membership;
    const struct kelp_member *first = NULL;
    *ret_count = 0;
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (member->kind != KELP_MEMBER_WORKER) {
            continue;
        }
        if (member->trouble[0] == '\0') {
            return NULL;
        }
        first = first ? first : member;
        (*ret_count)++;
    }
    return first;
}

/* Why the disk does not take the last record, once all is computed; otherwise NULL. */
static const char *unfiled(const struct kelp_term *term)
{
    size_t count = 0;
    const struct kelp_record *waiting = kelp_progress_waiting(&term->progress, &count);

    return count > 0 && waiting[count - 1].word.kind == KELP_STEP_FINISH &&
                   term->records.trouble[0] != '\0'
               ? term->records.trouble
               : NULL;
}

static bool is_unwritten(const struct kelp_term *term)
{
    return kelp_placement_settled(&term->placement) && !term->end.ended;
}

enum kelp_placement_state kelp_term_state(const struct kelp_term *term)
{
    if (is_unwritten(term)) {
        return KELP_PLACEMENT_RUNNING;
    }
    return term->end.ended && !kelp_placement_settled(&term->placement)
               ? KELP_PLACEMENT_DONE /* its shards only load the final state again */
               : term->placement.state;
}

/* Does the reason say only that this shard does not answer? Then the cause says more. */
static bool says_silent(const char *reason, const struct kelp_link *link)
{
    const size_t length = strlen(link->shard.id);

    return strncmp(reason, link->shard.id, length) == 0 &&
           strcmp(reason + length, " does not answer") == 0;
}

void kelp_term_reason(const struct kelp_term *term, char text[KELP_TERM_REASON_MAX + 1])
{
    const struct kelp_placement *placement = &term->placement;
    const struct kelp_link *link = out_of_reach(term);
    uint32_t stuck = 0;
    const struct kelp_member *worker = stuck_worker(term, &stuck);
    (void)snprintf(text, KELP_TERM_REASON_MAX + 1, "%s", placement->reason);
    if (is_unwritten(term)) {
        (void)snprintf(text, KELP_TERM_REASON_MAX + 1,
                       "the job is over, and its end is being written to etcd%s%s",
                       placement->reason[0] ? ": " : "", placement->reason);
    }
    if (kelp_placement_settled(placement)) {
        return;
    }
    if (text[0] != '\0' && link) {
        const size_t used = says_silent(text, link) ? 0 : strlen(text);
        (void)snprintf(text + used, KELP_TERM_REASON_MAX + 1 - used,
                       "%s%s cannot be reached at %s: %s", used > 0 ? "; " : "", link->shard.id,
                       link->shard.address, link->cause);
    } else if (text[0] == '\0' && placement->state == KELP_PLACEMENT_RUNNING && unfiled(term)) {
        (void)snprintf(text, KELP_TERM_REASON_MAX + 1,
                       "all steps are made, and the last records cannot be written: %s",
                       unfiled(term));
    } else if (text[0] == '\0' && placement->state == KELP_PLACEMENT_RUNNING && worker) {
        char others[32] = "";
        if (stuck > 1) {
            (void)snprintf(others, sizeof(others), " (and %u more)", stuck - 1);
        }
        (void)snprintf(text, KELP_TERM_REASON_MAX + 1, "%s %s%s", worker->id, worker->trouble,
                       others);
    }
}
