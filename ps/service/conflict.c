/* Two workers that differ: their names, and what follows from it (failure.on_conflict). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "ps/service/shard_service_internal.h"

/* ---- names ---- */

uint32_t kelp__service_author(struct kelp_service *service, const char *id, const char *peer)
{
    (void)pthread_mutex_lock(&service->names_lock);
    const uint32_t author = kelp_roster_enter(service->roster, id, peer);
    (void)pthread_mutex_unlock(&service->names_lock);
    return author;
}

uint32_t kelp__service_author_told(struct kelp_service *service, const char *id, const char *shard)
{
    (void)pthread_mutex_lock(&service->names_lock);
    const uint32_t author = kelp_roster_enter(service->roster, id, shard);
    kelp_roster_leave(service->roster, author); /* naming it opens no stream */
    (void)pthread_mutex_unlock(&service->names_lock);
    return author;
}

bool kelp__service_author_name(struct kelp_service *service, uint32_t author,
                               char ret_id[KELP_JOB_NAME_MAX + 1])
{
    (void)pthread_mutex_lock(&service->names_lock);
    const char *name = kelp_roster_name(service->roster, author);
    if (name) {
        (void)snprintf(ret_id, KELP_JOB_NAME_MAX + 1, "%s", name);
    }
    (void)pthread_mutex_unlock(&service->names_lock);
    return name != NULL;
}

void kelp__service_author_leaves(struct kelp_service *service, uint32_t author)
{
    (void)pthread_mutex_lock(&service->names_lock);
    kelp_roster_leave(service->roster, author);
    (void)pthread_mutex_unlock(&service->names_lock);
}

void kelp__service_worked(const struct kelp_shard_work *work, void *user)
{
    struct kelp_service *service = user;

    if (work->lanes > 0) {
        kelp_roster_worked(service->roster, work->author, work->lanes);
    }
    if (work->timed) {
        kelp_roster_pushed(service->roster, work->author, work->version, work->behind_us);
    }
}

size_t kelp__service_take_work(struct kelp_service *service, struct kelp_roster_work *ret_work,
                               size_t max)
{
    (void)pthread_mutex_lock(&service->names_lock);
    const size_t count = kelp_roster_take_work(service->roster, ret_work, max);
    (void)pthread_mutex_unlock(&service->names_lock);
    return count;
}

/* "worker-1", or "worker-1/worker-2/…" of nodes that were merged. */
static void name_authors(struct kelp_service *service, const struct kelp_authors *authors,
                         char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    (void)pthread_mutex_lock(&service->names_lock);
    for (uint32_t i = 0; i < authors->count && used < bytes; i++) {
        const char *name = kelp_roster_name(service->roster, authors->of[i]);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? "/" : "",
                                 name ? name : "an unnamed worker");
    }
    (void)pthread_mutex_unlock(&service->names_lock);
    if (authors->more && used < bytes) {
        (void)snprintf(text + used, bytes - used, "/…");
    }
}

/* ---- conflicts ---- */

/* "different gradients of lanes 0 to 3 in step 12" */
static void describe(const struct kelp_conflict *conflict, char *text, size_t bytes)
{
    const uint32_t lane_last = conflict->lane_first + conflict->lane_count - 1;

    switch (conflict->kind) {
    case KELP_CONFLICT_GRADIENT:
    case KELP_CONFLICT_SUMS:
        (void)snprintf(text, bytes, "%s of lanes %u to %u in step %" PRIu64,
                       conflict->kind == KELP_CONFLICT_SUMS ? "metric sums" : "gradients",
                       conflict->lane_first, lane_last, conflict->step);
        break;
    case KELP_CONFLICT_DIGEST:
        (void)snprintf(text, bytes, "digests of the weights of step %" PRIu64, conflict->step);
        break;
    case KELP_CONFLICT_SHARE:
        (void)snprintf(text, bytes, "shares of partition %u in step %" PRIu64, conflict->share,
                       conflict->step);
        break;
    case KELP_CONFLICT_DECISION:
        (void)snprintf(text, bytes, "decisions before step %" PRIu64, conflict->step);
        break;
    case KELP_CONFLICT_WORD:
    case KELP_CONFLICT_OPEN_WORD:
        (void)snprintf(text, bytes, "control words of step %" PRIu64, conflict->step);
        break;
    }
}

uint64_t kelp__service_conflicts(struct kelp_service *service, char *text, size_t bytes)
{
    (void)pthread_mutex_lock(&service->names_lock);
    const uint64_t count = service->conflicts;
    (void)snprintf(text, bytes, "%s", service->conflict);
    (void)pthread_mutex_unlock(&service->names_lock);
    return count;
}

/* Keep the text for the leader's next report. True: log it, at most once a second; *ret_held:
 * how many were not logged before. */
static bool note(struct kelp_service *service, const char *text, unsigned *ret_held)
{
    const uint64_t now_ms = kelp_clock_ms();

    (void)pthread_mutex_lock(&service->names_lock);
    service->conflicts++;
    (void)snprintf(service->conflict, sizeof(service->conflict), "%s", text);
    const bool passes = now_ms >= service->warn_after_ms;
    *ret_held = service->warnings_held;
    service->warnings_held = passes ? 0 : service->warnings_held + 1;
    service->warn_after_ms = passes ? now_ms + 1000 : service->warn_after_ms;
    (void)pthread_mutex_unlock(&service->names_lock);
    return passes;
}

void kelp__service_conflict(uint32_t partition, const struct kelp_conflict *conflict, void *user)
{
    struct kelp_service *service = user;
    const bool stops = service->options.job->failure.on_conflict == KELP_CONFLICT_STOP;
    char first[2 * KELP_JOB_NAME_MAX];
    char second[2 * KELP_JOB_NAME_MAX];
    char what[96];
    char text[480];
    unsigned held = 0;

    name_authors(service, &conflict->first, first, sizeof(first));
    name_authors(service, &conflict->second, second, sizeof(second));
    describe(conflict, what, sizeof(what));
    (void)snprintf(text, sizeof(text),
                   "%s and %s sent different %s (partition %u), so one of them is wrong: check "
                   "both, and resume without it from a checkpoint up to step %" PRIu64,
                   first, second, what, partition, conflict->step);
    if (conflict->kind == KELP_CONFLICT_OPEN_WORD) {
        kelp__service_control_failed(partition, KELP_ERR_CONTROL_WORD, text, user);
    } else if (stops) {
        kelp__service_control_failed(partition, KELP_ERR_MISMATCH, text, user);
    } else if (note(service, text, &held)) {
        kelp_log_warn("workers differ, the first one counts first=%s second=%s what=\"%s\" "
                      "partition=%u more_before=%u",
                      first, second, what, partition, held);
    }
}
