/*
 * Which members have lanes (membership.h, "seats").
 *
 * All workers wait for the lanes of a member that does not compute them. So a member keeps its seat
 * only by showing work: partition 0 accepted a lane that it pushed. A member that shows no work
 * while others do, and while training goes on without it, loses its seat. It is then tried: it gets
 * one lane that another member has too, so that nobody waits for it. Work on that lane earns the
 * seat back; each time it takes twice as much work.
 *
 * A member that lost its seat, or held up the start for long, must give its id to another process
 * that asks for it. That process then has twice as long.
 *
 * A worker that joins while others work gets a seat at once, but only one newcomer at a time. The
 * next newcomer gets one when the previous one has shown work or lost its seat; after a loss there
 * is a pause first, twice as long each time. Leaving without having worked counts as a loss. So
 * members that only report, however many and however often they join, hold up training less and
 * less.
 */
#include <assert.h>

#include "coordinator/core/membership/membership.h"

#define PROOFS_MAX 64u

static bool is_seated(const struct kelp_member *member)
{
    return member->kind == KELP_MEMBER_WORKER && !member->tried && !member->troubled;
}

static struct kelp_lane_range lanes_of(const struct kelp_membership *membership,
                                       const struct kelp_member *member)
{
    if (member->kind == KELP_MEMBER_WORKER && member->tried && !member->troubled) {
        uint32_t lane = (uint32_t)(member->key % membership->assignment.lanes);
        return (struct kelp_lane_range){.first = lane, .count = 1};
    }
    return kelp_assignment_of(&membership->assignment, member->key);
}

bool kelp_membership_rests(const struct kelp_membership *membership)
{
    return membership->counts[KELP_MEMBER_WORKER] < membership->workers_least;
}

struct kelp_lane_range kelp_membership_lanes(const struct kelp_membership *membership, uint64_t key)
{
    const struct kelp_member *member = kelp_membership_find(membership, key);
    return member && !kelp_membership_rests(membership) ? lanes_of(membership, member)
                                                        : (struct kelp_lane_range){0};
}

static void mark(const struct kelp_membership *membership, struct kelp_member *member,
                 uint64_t now_ms)
{
    member->since_ms = now_ms;
    member->since_version = membership->version;
}

/* Training rested, so no member could show work: start all their times anew. */
void kelp__membership_wake(struct kelp_membership *membership, uint64_t now_ms)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        mark(membership, &membership->members[i], now_ms);
    }
}

void kelp_membership_rest_below(struct kelp_membership *membership, uint32_t least, uint64_t now_ms)
{
    bool rested = kelp_membership_rests(membership);
    membership->workers_least = least;
    if (rested && !kelp_membership_rests(membership)) {
        kelp__membership_wake(membership, now_ms);
    }
}

static void seat(struct kelp_membership *membership, struct kelp_member *member, uint64_t now_ms)
{
    kelp_status status = kelp_assignment_add(&membership->assignment, member->key);
    assert(status == KELP_OK); /* the key is new, and the limit was checked */
    member->tried = false;
    mark(membership, member, now_ms);
}

/* Does a newcomer hold a seat without having shown work, although others have? */
static bool is_probing(const struct kelp_membership *membership)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (is_seated(member) && !member->worked && lanes_of(membership, member).count > 0) {
            return true;
        }
    }
    return false;
}

static bool any_works(const struct kelp_membership *membership)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        if (is_seated(&membership->members[i]) && membership->members[i].worked) {
            return true;
        }
    }
    return false;
}

void kelp__membership_place(struct kelp_membership *membership, struct kelp_member *member,
                            uint64_t now_ms)
{
    member->proofs_needed = 1;
    member->tried = true;
    if (!any_works(membership) || (!is_probing(membership) && now_ms >= membership->probe_ms)) {
        seat(membership, member, now_ms);
    }
}

void kelp__membership_fill(struct kelp_membership *membership, uint64_t now_ms)
{
    bool empty = membership->assignment.count == 0;
    for (uint32_t i = 0; empty && i < membership->count; i++) {
        struct kelp_member *member = &membership->members[i];
        if (member->kind == KELP_MEMBER_WORKER) {
            member->troubled = false;
            seat(membership, member, now_ms);
        }
    }
}

/* Does any member with a seat report no trouble? */
static bool any_relief(const struct kelp_membership *membership)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (is_seated(member) && member->trouble[0] == '\0') {
            return true;
        }
    }
    return false;
}

void kelp__membership_relieve(struct kelp_membership *membership, uint64_t now_ms)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        struct kelp_member *member = &membership->members[i];
        bool over = member->trouble[0] == '\0';
        if (member->kind != KELP_MEMBER_WORKER || member->troubled != over) {
            continue;
        }
        if (!over && any_relief(membership)) {
            kelp_assignment_remove(&membership->assignment, member->key);
            member->troubled = true;
        } else if (over) {
            member->troubled = false;
            if (!member->tried) {
                seat(membership, member, now_ms);
            }
        }
    }
}

bool kelp_membership_worked(struct kelp_membership *membership, const char *id, uint64_t now_ms)
{
    struct kelp_member *member = kelp__membership_worker(membership, id);
    if (!member) {
        return false;
    }
    mark(membership, member, now_ms);
    if (!member->worked && !member->tried) {
        membership->probe_ms = 0;
        membership->probe_wait_ms = 0;
    }
    member->worked = true;
    if (!member->tried || member->troubled || ++member->proofs < member->proofs_needed) {
        return false;
    }
    seat(membership, member, now_ms);
    return true;
}

/* A newcomer has shown no work: the next one waits, each time twice as long. */
static void postpone(struct kelp_membership *membership, uint64_t now_ms)
{
    uint32_t wait_ms =
        membership->probe_wait_ms == 0 ? KELP_COORDINATOR_PROBE_MS : 2 * membership->probe_wait_ms;
    membership->probe_wait_ms =
        wait_ms < KELP_COORDINATOR_PROBE_MAX_MS ? wait_ms : KELP_COORDINATOR_PROBE_MAX_MS;
    membership->probe_ms = now_ms + membership->probe_wait_ms;
}

void kelp__membership_leave(struct kelp_membership *membership, const struct kelp_member *member)
{
    if (is_seated(member) && !member->worked && any_works(membership)) {
        postpone(membership, membership->ticked_ms);
    }
}

static void withdraw(struct kelp_membership *membership, struct kelp_member *member,
                     uint64_t now_ms)
{
    if (!member->worked) {
        postpone(membership, now_ms);
    }
    kelp_assignment_remove(&membership->assignment, member->key);
    member->tried = true;
    member->worked = false;
    member->has_lanes = false;
    member->proofs = 0;
    member->proofs_needed =
        2 * member->proofs_needed < PROOFS_MAX ? 2 * member->proofs_needed : PROOFS_MAX;
}

/* Has another seat worked since then? If not, taking the seat away helps nobody. */
static bool others_work(const struct kelp_membership *membership, const struct kelp_member *idle)
{
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (member != idle && is_seated(member) && member->worked &&
            member->since_ms > idle->since_ms) {
            return true;
        }
    }
    return false;
}

/* The time of a spare starts when it gets lanes. */
static void look_at_lanes(struct kelp_membership *membership, uint64_t now_ms)
{
    if (membership->judged_epoch == membership->assignment.epoch) {
        return;
    }
    membership->judged_epoch = membership->assignment.epoch;
    for (uint32_t i = 0; i < membership->count; i++) {
        struct kelp_member *member = &membership->members[i];
        bool has_lanes = is_seated(member) && lanes_of(membership, member).count > 0;
        if (has_lanes && !member->has_lanes) {
            mark(membership, member, now_ms);
        }
        member->has_lanes = has_lanes;
    }
}

/* Is this long without any work? */
static bool is_long(uint64_t entries, uint64_t time_ms)
{
    return (entries >= KELP_COORDINATOR_IDLE_ENTRIES && time_ms > KELP_COORDINATOR_IDLE_MS) ||
           (entries >= KELP_COORDINATOR_IDLE_LONG_ENTRIES &&
            time_ms > KELP_COORDINATOR_IDLE_LONG_MS);
}

static bool is_idle(const struct kelp_membership *membership, struct kelp_member *member,
                    uint64_t now_ms)
{
    if (membership->version < member->since_version) { /* training was set back */
        member->since_version = membership->version;
    }
    return member->has_lanes && now_ms > member->since_ms &&
           is_long(membership->version - member->since_version, now_ms - member->since_ms) &&
           others_work(membership, member);
}

bool kelp__membership_is_idler(const struct kelp_membership *membership,
                               const struct kelp_member *member)
{
    bool lost_seat = member->tried && member->proofs_needed > 1;
    bool waited_long = membership->ticked_ms > member->joined_ms + member->patience_ms;
    return !member->worked && (lost_seat || (waited_long && !any_works(membership)));
}

/* The newcomer that has waited longest. NULL: there is none, or it is too early. */
static struct kelp_member *next_newcomer(const struct kelp_membership *membership, uint64_t now_ms)
{
    if (now_ms < membership->probe_ms || is_probing(membership)) {
        return NULL;
    }
    for (uint32_t i = 0; i < membership->count; i++) {
        struct kelp_member *member = &membership->members[i];
        if (member->kind == KELP_MEMBER_WORKER && member->tried && !member->troubled &&
            member->proofs_needed == 1) {
            return member;
        }
    }
    return NULL;
}

uint64_t kelp_membership_judge(struct kelp_membership *membership, uint64_t version,
                               uint64_t now_ms)
{
    uint64_t withdrawn = 0;
    membership->version = version;
    look_at_lanes(membership, now_ms);
    for (uint32_t i = 0; i < membership->count && withdrawn == 0; i++) {
        struct kelp_member *member = &membership->members[i];
        if (is_idle(membership, member, now_ms)) {
            withdraw(membership, member, now_ms);
            withdrawn = member->key;
        }
    }
    struct kelp_member *newcomer = next_newcomer(membership, now_ms);
    if (newcomer) {
        seat(membership, newcomer, now_ms);
    }
    if (!kelp_membership_rests(membership)) {
        kelp__membership_even_out(membership, now_ms);
    }
    return withdrawn;
}
