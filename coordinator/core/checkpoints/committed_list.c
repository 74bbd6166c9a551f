#include "coordinator/core/checkpoints/committed_list.h"

#include <stdlib.h>
#include <string.h>

kelp_status kelp_committed_list_init(struct kelp_committed_list *list,
                                     const struct kelp_retention *policy, struct kelp_error *reterr)
{
    *list = (struct kelp_committed_list){.policy = *policy};
    list->digests = calloc(KELP_COORDINATOR_DIGESTS_MAX, sizeof(*list->digests));
    if (!list->digests) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the list of checkpoints");
    }
    return KELP_OK;
}

void kelp_committed_list_fini(struct kelp_committed_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        free(list->entries[i].manifest);
    }
    free(list->entries);
    free(list->digests);
    *list = (struct kelp_committed_list){.count = 0};
}

/* Index of the first entry whose version is not below that one. */
static uint32_t index_of(const struct kelp_committed_list *list, uint64_t version)
{
    uint32_t at = 0;
    while (at < list->count && list->entries[at].version < version) {
        at++;
    }
    return at;
}

struct kelp_committed *kelp_committed_list_find(const struct kelp_committed_list *list,
                                                uint64_t version)
{
    uint32_t at = index_of(list, version);
    bool found = at < list->count && list->entries[at].version == version;
    return found ? &list->entries[at] : NULL;
}

struct kelp_committed *kelp_committed_list_newest(const struct kelp_committed_list *list)
{
    for (uint32_t i = list->count; i-- > 0;) {
        if (!list->entries[i].damaged) {
            return &list->entries[i];
        }
    }
    return NULL;
}

/* ---- adding ---- */

/* Note a digest. Returns an earlier, different digest of the same version, or NULL. */
static const struct kelp_committed_digest *agree(struct kelp_committed_list *list,
                                                 const struct kelp_committed *checkpoint)
{
    if (checkpoint->state_digest[0] == '\0') {
        return NULL; /* its manifest cannot be read */
    }
    for (uint32_t i = 0; i < list->digest_count; i++) {
        if (list->digests[i].version == checkpoint->version &&
            list->digests[i].step == checkpoint->step) {
            bool same = strcmp(list->digests[i].state_digest, checkpoint->state_digest) == 0;
            return same ? NULL : &list->digests[i];
        }
    }
    struct kelp_committed_digest *digest = &list->digests[list->digest_next];
    digest->version = checkpoint->version;
    digest->step = checkpoint->step;
    digest->generation = checkpoint->generation;
    memcpy(digest->state_digest, checkpoint->state_digest, sizeof(digest->state_digest));
    list->digest_next = (list->digest_next + 1) % KELP_COORDINATOR_DIGESTS_MAX;
    if (list->digest_count < KELP_COORDINATOR_DIGESTS_MAX) {
        list->digest_count++;
    }
    return NULL;
}

static kelp_status make_room(struct kelp_committed_list *list, struct kelp_error *reterr)
{
    if (list->count < list->capacity) {
        return KELP_OK;
    }
    if (list->count == KELP_COORDINATOR_CHECKPOINTS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d checkpoints",
                         KELP_COORDINATOR_CHECKPOINTS_MAX);
    }
    uint32_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
    struct kelp_committed *entries = realloc(list->entries, capacity * sizeof(*entries));
    if (!entries) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the list of checkpoints");
    }
    list->entries = entries;
    list->capacity = capacity;
    return KELP_OK;
}

/* The same checkpoint was listed again: keep what is known of it. */
static void replace(struct kelp_committed *entry, const struct kelp_committed *by)
{
    struct kelp_committed old = *entry;
    *entry = *by;
    if (old.generation == by->generation) {
        entry->damaged = old.damaged || by->damaged;
        entry->restored = old.restored || by->restored;
        if (old.has_metric) {
            entry->has_metric = true;
            memcpy(entry->metric, old.metric, sizeof(entry->metric));
        }
    }
    free(old.manifest);
}

kelp_status kelp_committed_list_add(struct kelp_committed_list *list,
                                    const struct kelp_committed *checkpoint,
                                    const struct kelp_committed_digest **ret_other,
                                    struct kelp_error *reterr)
{
    uint32_t at = index_of(list, checkpoint->version);
    if (at < list->count && list->entries[at].version == checkpoint->version) {
        replace(&list->entries[at], checkpoint);
    } else {
        kelp_status status = make_room(list, reterr);
        if (status != KELP_OK) {
            return status;
        }
        memmove(&list->entries[at + 1], &list->entries[at],
                (list->count - at) * sizeof(*list->entries));
        list->entries[at] = *checkpoint;
        list->count++;
    }
    const struct kelp_committed_digest *other = agree(list, checkpoint);
    if (ret_other) {
        *ret_other = other;
    }
    return KELP_OK;
}

void kelp_committed_list_remove(struct kelp_committed_list *list, uint64_t version)
{
    struct kelp_committed *entry = kelp_committed_list_find(list, version);
    if (!entry) {
        return;
    }
    free(entry->manifest);
    size_t at = (size_t)(entry - list->entries);
    list->count--;
    memmove(entry, entry + 1, (list->count - at) * sizeof(*entry));
}

bool kelp_committed_gone(const struct kelp_committed *entry, const struct kelp_committed *now,
                         uint32_t now_count)
{
    for (uint32_t i = 0; i < now_count; i++) {
        bool unreadable = now[i].version == entry->version && now[i].folder[0] == '\0';
        if (unreadable || strcmp(now[i].folder, entry->folder) == 0) {
            return false;
        }
    }
    return true;
}

void kelp_committed_list_evaluated(struct kelp_committed_list *list, uint64_t step,
                                   const double metric[KELP_CHECKPOINT_METRICS])
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->entries[i].step == step) {
            list->entries[i].has_metric = true;
            memcpy(list->entries[i].metric, metric, sizeof(list->entries[i].metric));
        }
    }
}

/* ---- retention ---- */

/* How many good entries are newer. */
static uint32_t newer_count(const struct kelp_committed_list *list, uint32_t index)
{
    uint32_t count = 0;
    for (uint32_t i = index + 1; i < list->count; i++) {
        count += list->entries[i].damaged ? 0 : 1;
    }
    return count;
}

static bool comparable(const struct kelp_committed_list *list, uint32_t index)
{
    const struct kelp_committed *entry = &list->entries[index];
    double value = entry->metric[list->policy.metric];
    return !entry->damaged && entry->has_metric && value == value; /* not NaN */
}

/* Is entry a better than entry b? A total order, so that retention is deterministic. */
static bool better(const struct kelp_committed_list *list, uint32_t a, uint32_t b)
{
    double left = list->entries[a].metric[list->policy.metric];
    double right = list->entries[b].metric[list->policy.metric];
    if (left == right) {
        return a < b;
    }
    return list->policy.order == KELP_ORDER_MIN ? left < right : left > right;
}

static bool among_best(const struct kelp_committed_list *list, uint32_t index)
{
    uint32_t ahead = 0;
    if (!comparable(list, index)) {
        return false;
    }
    for (uint32_t i = 0; i < list->count; i++) {
        ahead += i != index && comparable(list, i) && better(list, i, index) ? 1 : 0;
    }
    return ahead < list->policy.keep_best;
}

const struct kelp_committed *kelp_committed_list_surplus(const struct kelp_committed_list *list)
{
    const struct kelp_committed *newest = kelp_committed_list_newest(list);
    uint32_t keep = list->policy.keep_last;
    if (!newest) {
        return NULL;
    }
    if (keep < 2 && !newest->restored) {
        keep = 2;
    }
    for (uint32_t i = 0; i < list->count; i++) {
        const struct kelp_committed *entry = &list->entries[i];
        if (entry == newest) {
            continue;
        }
        if (entry->damaged || (newer_count(list, i) >= keep && !among_best(list, i))) {
            return entry;
        }
    }
    return NULL;
}
