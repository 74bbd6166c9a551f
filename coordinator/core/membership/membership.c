#include "coordinator/core/membership/membership.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/process_name.h"

_Static_assert(KELP_PROCESS_NAME_MAX == KELP_COORDINATOR_ID_MAX, "names fit");

kelp_status kelp_membership_init(struct kelp_membership *membership, uint32_t lanes,
                                 uint32_t detect_ms, struct kelp_error *reterr)
{
    *membership = (struct kelp_membership){
        .detect_ms = detect_ms,
        .next_key = 1,
        .capacity = KELP_COORDINATOR_WORKERS_MAX + KELP_COORDINATOR_SHARDS_MAX,
    };
    kelp_status status =
        kelp_assignment_init(&membership->assignment, lanes, KELP_COORDINATOR_WORKERS_MAX, reterr);
    if (status != KELP_OK) {
        return status;
    }
    membership->members = calloc(membership->capacity, sizeof(*membership->members));
    membership->rows = calloc(KELP_COORDINATOR_WORKERS_MAX, sizeof(*membership->rows));
    membership->scratch = calloc(KELP_COORDINATOR_WORKERS_MAX, sizeof(*membership->scratch));
    if (!membership->members || !membership->rows || !membership->scratch) {
        kelp_membership_fini(membership);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the member table");
    }
    return KELP_OK;
}

void kelp_membership_fini(struct kelp_membership *membership)
{
    kelp_assignment_fini(&membership->assignment);
    free(membership->members);
    free(membership->rows);
    free(membership->scratch);
    *membership = (struct kelp_membership){0};
}

/* Keys ascend in the table: a member that joins gets a larger key and goes to the end. */
static struct kelp_member *find(const struct kelp_membership *membership, uint64_t key)
{
    uint32_t first = 0;
    uint32_t end = membership->count;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (membership->members[middle].key < key) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first < membership->count && membership->members[first].key == key
               ? &membership->members[first]
               : NULL;
}

const struct kelp_member *kelp_membership_find(const struct kelp_membership *membership,
                                               uint64_t key)
{
    return find(membership, key);
}

/* NULL: there is no member of this id. */
static const struct kelp_member *find_id(const struct kelp_membership *membership,
                                         enum kelp_member_kind kind, const char *id)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (member->kind == kind && strcmp(member->id, id) == 0) {
            return member;
        }
    }
    return NULL;
}

struct kelp_member *kelp__membership_worker(struct kelp_membership *membership, const char *id)
{
    const struct kelp_member *member = find_id(membership, KELP_MEMBER_WORKER, id);
    return member ? find(membership, member->key) : NULL;
}

/* Shards are told apart by their registrations in etcd. */
static bool gives_way(const struct kelp_membership *membership, const struct kelp_member *older,
                      const struct kelp_member_joined *joined)
{
    if (older->kind == KELP_MEMBER_SHARD || (joined->named && !older->named)) {
        return true;
    }
    if (joined->named < older->named) {
        return false;
    }
    return joined->incarnation == older->incarnation ||
           kelp__membership_is_idler(membership, older);
}

kelp_status kelp_membership_may_join(const struct kelp_membership *membership,
                                     const struct kelp_member_joined *joined,
                                     struct kelp_error *reterr)
{
    bool worker = joined->kind == KELP_MEMBER_WORKER;
    if (!kelp_process_name_valid(joined->id)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "id is not 1 to %d letters, digits, '-', '_' or '.'",
                         KELP_COORDINATOR_ID_MAX);
    }
    const struct kelp_member *older = find_id(membership, joined->kind, joined->id);
    if (older && !gives_way(membership, older, joined)) {
        return kelp_fail(reterr, KELP_ERR_EXISTS, "another process has the id %s", joined->id);
    }
    uint32_t max = worker ? KELP_COORDINATOR_WORKERS_MAX : KELP_COORDINATOR_SHARDS_MAX;
    if (!older && membership->counts[joined->kind] >= max) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "no room for %s: there are %u %ss already",
                         joined->id, max, worker ? "worker" : "shard");
    }
    return KELP_OK;
}

kelp_status kelp_membership_join(struct kelp_membership *membership,
                                 const struct kelp_member_joined *joined, uint64_t now_ms,
                                 uint64_t *ret_key, uint64_t *ret_replaced,
                                 struct kelp_error *reterr)
{
    kelp_status status = kelp_membership_may_join(membership, joined, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_member *older = find_id(membership, joined->kind, joined->id);
    uint32_t patience_ms = KELP_COORDINATOR_PROBE_MS;
    *ret_replaced = 0;
    if (older) {
        patience_ms = 2 * older->patience_ms < KELP_COORDINATOR_PROBE_MAX_MS
                          ? 2 * older->patience_ms
                          : KELP_COORDINATOR_PROBE_MAX_MS;
        *ret_replaced = older->key;
        kelp_membership_remove(membership, older->key, false);
    }
    assert(membership->count < membership->capacity);
    struct kelp_member *member = &membership->members[membership->count];
    *member = (struct kelp_member){
        .key = membership->next_key++,
        .kind = joined->kind,
        .incarnation = joined->incarnation,
        .named = joined->named,
        .patience_ms = patience_ms,
        .joined_ms = now_ms,
        .heard_ms = now_ms,
    };
    (void)snprintf(member->id, sizeof(member->id), "%s", joined->id);
    bool rested = kelp_membership_rests(membership);
    membership->count++;
    membership->counts[joined->kind]++;
    if (rested && !kelp_membership_rests(membership)) {
        kelp__membership_wake(membership, now_ms);
    }
    if (joined->kind == KELP_MEMBER_WORKER) {
        kelp__membership_place(membership, member, now_ms);
    }
    *ret_key = member->key;
    return KELP_OK;
}

uint32_t kelp_membership_beat_ms(const struct kelp_membership *membership)
{
    const uint32_t most_ms = membership->detect_ms * KELP_COORDINATOR_BEAT_PERCENT / 100;
    const uint64_t workers = membership->counts[KELP_MEMBER_WORKER];
    uint32_t beat_ms = KELP_COORDINATOR_BEAT_MS;
    while (beat_ms < most_ms && workers * 1000 > (uint64_t)beat_ms * KELP_COORDINATOR_BEATS_S) {
        beat_ms *= 2;
    }
    return beat_ms < most_ms ? beat_ms : most_ms;
}

void kelp_membership_heard(struct kelp_membership *membership, uint64_t key,
                           const struct kelp_member_heard *heard, uint64_t now_ms)
{
    struct kelp_member *member = find(membership, key);
    if (!member) {
        return;
    }
    if (now_ms > member->heard_ms) {
        member->heard_ms = now_ms;
    }
    if (!heard) {
        return;
    }
    kelp__membership_measure(member, heard, now_ms);
    if (heard->times) {
        kelp__membership_time(member, heard->times, now_ms);
    }
    member->lanes_computed = heard->lanes_computed;
    member->busy_us = heard->busy_us;
    member->version = heard->version;
    member->generation = heard->generation;
    member->assignment_epoch = heard->assignment_epoch;
    (void)snprintf(member->trouble, sizeof(member->trouble), "%s",
                   heard->trouble ? heard->trouble : "");
    if (member->kind == KELP_MEMBER_WORKER && member->troubled != (member->trouble[0] != '\0')) {
        kelp__membership_relieve(membership, now_ms);
    }
}

static void remember(struct kelp_membership *membership, const struct kelp_member *member)
{
    struct kelp_member_gone *gone =
        &membership->gone[membership->gone_count++ % KELP_COORDINATOR_GONE_MAX];
    memcpy(gone->id, member->id, sizeof(gone->id));
    gone->incarnation = member->incarnation;
    gone->lanes_computed = member->lanes_computed;
}

void kelp_membership_remove(struct kelp_membership *membership, uint64_t key, bool counted)
{
    struct kelp_member *member = find(membership, key);
    if (!member) {
        return;
    }
    enum kelp_member_kind kind = member->kind;
    assert(membership->counts[kind] > 0);
    membership->counts[kind]--;
    membership->losses[kind] += counted ? 1 : 0;
    kelp__membership_leave(membership, member);
    if (kind == KELP_MEMBER_WORKER) {
        remember(membership, member);
    }
    size_t index = (size_t)(member - membership->members);
    membership->count--;
    memmove(member, member + 1, (membership->count - index) * sizeof(*member));
    if (kind == KELP_MEMBER_WORKER) {
        kelp_assignment_remove(&membership->assignment, key);
        kelp__membership_relieve(membership, membership->ticked_ms);
        kelp__membership_fill(membership, membership->ticked_ms);
    }
    assert(membership->assignment.count <= membership->counts[KELP_MEMBER_WORKER]);
}

uint32_t kelp_membership_tick(struct kelp_membership *membership, uint64_t now_ms, uint64_t *lost,
                              uint32_t lost_max)
{
    uint64_t gap_ms = membership->ticked_ms == 0 || now_ms < membership->ticked_ms
                          ? 0
                          : now_ms - membership->ticked_ms;
    bool slept =
        gap_ms > 2 * (uint64_t)KELP_COORDINATOR_TICK_MS && gap_ms > membership->detect_ms / 2;
    uint32_t count = 0;
    membership->ticked_ms = now_ms;
    for (uint32_t i = 0; i < membership->count; i++) {
        struct kelp_member *member = &membership->members[i];
        if (slept) {
            member->heard_ms = now_ms;
        }
        if (now_ms > member->heard_ms && now_ms - member->heard_ms > membership->detect_ms &&
            count < lost_max) {
            lost[count++] = member->key;
        }
    }
    return count;
}
