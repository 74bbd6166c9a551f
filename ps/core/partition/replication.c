#include "ps/core/partition/replication.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FOLLOWERS 2
#define BACKUP    0
#define JOINER    1

struct kelp_replication {
    struct kelp_follower followers[FOLLOWERS];
    struct kelp_root kept;
    struct kelp_root queue[KELP_PS_FORWARDS_QUEUED_MAX]; /* in any order */
};

/* ---- life ---- */

static bool root_create(struct kelp_root *root, bool with_sums, uint32_t decision_max)
{
    root->sums = with_sums ? calloc(KELP_METRIC_SUM_COUNT, sizeof(*root->sums)) : NULL;
    root->decision = decision_max > 0 ? calloc(decision_max, sizeof(*root->decision)) : NULL;
    return (!with_sums || root->sums) && (decision_max == 0 || root->decision);
}

static void root_destroy(struct kelp_root *root)
{
    free(root->sums);
    free(root->decision);
}

kelp_status kelp_replication_create(bool with_sums, uint32_t decision_max,
                                    struct kelp_replication **ret_replication)
{
    struct kelp_replication *replication = calloc(1, sizeof(*replication));
    bool created = replication && root_create(&replication->kept, with_sums, decision_max);

    for (uint32_t i = 0; created && i < KELP_PS_FORWARDS_QUEUED_MAX; i++) {
        created = root_create(&replication->queue[i], with_sums, decision_max);
    }
    if (!created) {
        kelp_replication_destroy(replication);
        return KELP_ERR_NO_MEMORY;
    }
    *ret_replication = replication;
    return KELP_OK;
}

void kelp_replication_destroy(struct kelp_replication *replication)
{
    if (replication) {
        root_destroy(&replication->kept);
        for (uint32_t i = 0; i < KELP_PS_FORWARDS_QUEUED_MAX; i++) {
            root_destroy(&replication->queue[i]);
        }
        free(replication);
    }
}

static void root_release(struct kelp_root *root, struct kelp_actions *actions)
{
    if (root->there) {
        kelp__actions_add_release(actions, root->handle);
        root->there = false;
    }
}

void kelp_replication_clear(struct kelp_replication *replication, struct kelp_actions *actions)
{
    kelp_replication_enter(replication, 0, 0);
    kelp_replication_drop_kept(replication, actions);
    kelp_replication_forget_queue(replication, actions);
}

/* ---- the primary ---- */

void kelp_replication_enter(struct kelp_replication *replication, uint64_t backup, uint64_t joiner)
{
    replication->followers[BACKUP] = (struct kelp_follower){.process = backup, .counts = true};
    replication->followers[JOINER] = (struct kelp_follower){.process = joiner};
}

bool kelp_replication_alone(const struct kelp_replication *replication)
{
    return replication->followers[BACKUP].process == 0 &&
           replication->followers[JOINER].process == 0;
}

const struct kelp_follower *kelp_replication_follower(const struct kelp_replication *replication,
                                                      uint32_t which)
{
    for (uint32_t i = 0; i < FOLLOWERS; i++) {
        if (replication->followers[i].process != 0 && which-- == 0) {
            return &replication->followers[i];
        }
    }
    return NULL;
}

static struct kelp_follower *find(struct kelp_replication *replication, uint64_t process)
{
    for (uint32_t i = 0; i < FOLLOWERS; i++) {
        if (process != 0 && replication->followers[i].process == process) {
            return &replication->followers[i];
        }
    }
    return NULL;
}

static void stop_streaming(struct kelp_follower *follower)
{
    follower->streams = false;
    follower->sent = false;
    follower->wants_copy = false;
    follower->may_copy = false;
}

bool kelp_replication_linked(struct kelp_replication *replication, uint64_t process)
{
    struct kelp_follower *follower = find(replication, process);

    if (!follower) {
        return false;
    }
    follower->stated = false;
    stop_streaming(follower);
    return true;
}

/* Does the follower lack at most the newest root? */
static bool is_near(const struct kelp_replication *replication, uint64_t held, uint64_t applied)
{
    const struct kelp_root *kept = &replication->kept;

    return held >= (kept->there ? kept->held : applied);
}

bool kelp_replication_stated(struct kelp_replication *replication,
                             const struct kelp_acknowledgement *said, uint64_t applied)
{
    struct kelp_follower *follower = find(replication, said->process);

    if (!follower) {
        return false;
    }
    assert(!replication->kept.there || applied <= replication->kept.held + 1);
    if (said->holds && (!follower->holds || follower->held < said->held)) {
        follower->holds = true;
        follower->held = said->held;
        follower->digest = said->digest;
    }
    follower->stated = true;
    if (!follower->streams && said->holds && is_near(replication, said->held, applied)) {
        stop_streaming(follower);
        follower->streams = true;
        follower->stream_from = said->held;
    }
    return true;
}

bool kelp_replication_covers(const struct kelp_replication *replication, uint64_t held)
{
    for (uint32_t i = 0; i < FOLLOWERS; i++) {
        const struct kelp_follower *follower = &replication->followers[i];
        if (follower->process != 0 && follower->counts &&
            !(follower->holds && follower->held >= held)) {
            return false;
        }
    }
    return true;
}

bool kelp_replication_may_forward(const struct kelp_replication *replication, uint64_t held)
{
    const struct kelp_follower *joiner = &replication->followers[JOINER];
    uint64_t from = joiner->stream_from;

    if (joiner->process == 0 || !joiner->streams) {
        return true;
    }
    if (joiner->holds && joiner->held > from) {
        from = joiner->held;
    }
    return held < from + KELP_PS_FORWARDS_QUEUED_MAX;
}

const struct kelp_follower *kelp_replication_serve(struct kelp_replication *replication)
{
    const struct kelp_root *kept = &replication->kept;

    for (uint32_t i = 0; kept->there && i < FOLLOWERS; i++) {
        struct kelp_follower *follower = &replication->followers[i];
        if (follower->process != 0 && follower->streams && !follower->sent &&
            kept->held >= follower->stream_from) {
            follower->sent = true;
            return follower;
        }
    }
    return NULL;
}

const struct kelp_follower *kelp_replication_count_in(struct kelp_replication *replication,
                                                      uint64_t applied)
{
    for (uint32_t i = 0; i < FOLLOWERS; i++) {
        struct kelp_follower *follower = &replication->followers[i];
        if (follower->process != 0 && !follower->in_sync && follower->holds &&
            follower->held >= applied) {
            follower->in_sync = true;
            follower->counts = true;
            return follower;
        }
    }
    return NULL;
}

const struct kelp_follower *kelp_replication_want_copy(struct kelp_replication *replication)
{
    struct kelp_follower *joiner = &replication->followers[JOINER];

    if (joiner->process == 0 || !joiner->stated || joiner->streams || joiner->wants_copy) {
        return NULL;
    }
    joiner->wants_copy = true;
    return joiner;
}

void kelp_replication_permit_copy(struct kelp_replication *replication, uint64_t process)
{
    struct kelp_follower *joiner = &replication->followers[JOINER];

    joiner->may_copy = joiner->process == process && joiner->wants_copy && !joiner->streams;
}

const struct kelp_follower *kelp_replication_begin_copy(struct kelp_replication *replication,
                                                        uint64_t held)
{
    struct kelp_follower *joiner = &replication->followers[JOINER];

    if (!joiner->may_copy) {
        return NULL;
    }
    joiner->may_copy = false;
    joiner->streams = true;
    joiner->stream_from = held;
    return joiner;
}

/* ---- roots ---- */

static void root_set(struct kelp_root *root, uint64_t held, const struct kelp_forward *from)
{
    root->there = true;
    root->held = held;
    root->word = from->word;
    root->handle = from->handle;
    root->skipped = from->skipped;
    root->digest[0] = '\0';
    if (from->digest && strlen(from->digest) < sizeof(root->digest)) {
        memcpy(root->digest, from->digest, strlen(from->digest) + 1);
    }
    if (root->sums) {
        assert(from->sum_count <= KELP_METRIC_SUM_COUNT);
        memset(root->sums, 0, KELP_METRIC_SUM_COUNT * sizeof(*root->sums));
        if (from->sum_count > 0) {
            memcpy(root->sums, from->sums, from->sum_count * sizeof(*root->sums));
        }
    }
    root->decision_count = from->decision.count;
    if (root->decision_count > 0) {
        assert(root->decision);
        memcpy(root->decision, from->decision.values,
               root->decision_count * sizeof(*root->decision));
    }
}

void kelp_replication_keep(struct kelp_replication *replication, uint64_t held,
                           const struct kelp_forward *root, struct kelp_actions *actions)
{
    root_release(&replication->kept, actions);
    root_set(&replication->kept, held, root);
    for (uint32_t i = 0; i < FOLLOWERS; i++) {
        replication->followers[i].sent = false;
    }
}

void kelp_replication_drop_kept(struct kelp_replication *replication, struct kelp_actions *actions)
{
    root_release(&replication->kept, actions);
}

const struct kelp_root *kelp_replication_kept(const struct kelp_replication *replication)
{
    return replication->kept.there ? &replication->kept : NULL;
}

bool kelp_replication_queue(struct kelp_replication *replication, uint64_t held,
                            const struct kelp_forward *root)
{
    struct kelp_root *free_one = NULL;

    for (uint32_t i = 0; i < KELP_PS_FORWARDS_QUEUED_MAX; i++) {
        if (!replication->queue[i].there) {
            free_one = &replication->queue[i];
        } else if (replication->queue[i].held == held) {
            return false;
        }
    }
    if (!free_one) {
        return false;
    }
    root_set(free_one, held, root);
    return true;
}

bool kelp_replication_unqueue(struct kelp_replication *replication, uint64_t held,
                              struct kelp_actions *actions)
{
    bool found = false;

    for (uint32_t i = 0; i < KELP_PS_FORWARDS_QUEUED_MAX; i++) {
        struct kelp_root *queued = &replication->queue[i];
        if (queued->there && queued->held < held) {
            root_release(queued, actions);
        } else if (queued->there && queued->held == held) {
            struct kelp_root root = *queued;
            root_release(&replication->kept, actions);
            *queued = replication->kept;
            replication->kept = root;
            found = true;
        }
    }
    return found;
}

void kelp_replication_forget_queue(struct kelp_replication *replication,
                                   struct kelp_actions *actions)
{
    for (uint32_t i = 0; i < KELP_PS_FORWARDS_QUEUED_MAX; i++) {
        root_release(&replication->queue[i], actions);
    }
}

/* ---- for reports, status pages and tests ---- */

void kelp_replication_view(const struct kelp_replication *replication,
                           struct kelp_replication_view *ret_view)
{
    const struct kelp_follower *backup = &replication->followers[BACKUP];
    const struct kelp_follower *joiner = &replication->followers[JOINER];

    *ret_view = (struct kelp_replication_view){.has_backup = backup->process != 0,
                                               .has_joiner = joiner->process != 0,
                                               .backup_in_sync = backup->in_sync,
                                               .joiner_in_sync = joiner->in_sync,
                                               .backup_held = backup->held,
                                               .joiner_held = joiner->held};
}
