/* Which processes are slow: windows of times come in and are compared (slowness.h). */
#include <assert.h>
#include <string.h>

#include "coordinator/core/membership/membership.h"

void kelp__membership_time(struct kelp_member *member, const struct kelp_worker_times *times,
                           uint64_t now_ms)
{
    assert(kelp_worker_times_valid(times));
    if (times->serial == member->times.serial) {
        return; /* a worker repeats a window until the next one is complete */
    }
    member->times = *times;
    member->times.pushed_steps = member->pushed_steps;
    member->times.behind_us = member->behind_us;
    member->times_ms = now_ms;
    member->pushed_steps = 0;
    member->behind_us = 0;
}

static uint64_t add_up_to(uint64_t sum, uint64_t more, uint64_t max)
{
    return more > max - sum ? max : sum + more;
}

void kelp_membership_pushed(struct kelp_membership *membership, const char *id, uint64_t steps,
                            uint64_t behind_us)
{
    struct kelp_member *member = kelp__membership_worker(membership, id);
    if (member) {
        member->pushed_steps =
            add_up_to(member->pushed_steps, steps, KELP_COORDINATOR_TIMES_STEPS_MAX);
        member->behind_us = add_up_to(member->behind_us, behind_us, KELP_COORDINATOR_TIMES_US_MAX);
    }
}

static bool is_fresh(uint64_t then_ms, uint64_t length_us, uint64_t now_ms)
{
    const uint64_t lengths_ms = KELP_COORDINATOR_SLOW_LENGTHS * (length_us / 1000);
    return now_ms <= then_ms + (lengths_ms > KELP_COORDINATOR_SLOW_FRESH_MS
                                    ? lengths_ms
                                    : KELP_COORDINATOR_SLOW_FRESH_MS);
}

/* Only workers that compute their share are compared; others are late or idle for another
 * reason. */
static bool is_compared(const struct kelp_member *member, uint64_t now_ms)
{
    return member->kind == KELP_MEMBER_WORKER && member->has_lanes && !member->tried &&
           !member->troubled && member->times.serial > 0 &&
           is_fresh(member->times_ms, member->times.length_us, now_ms);
}

/* Count each window once. */
static void keep(struct kelp_member *member, const struct kelp_slow *slow)
{
    const bool again = slow->part != KELP_SLOW_NOT && slow->part == member->slow.part;

    if (member->compared_serial != member->times.serial) {
        member->slow_windows = again                         ? member->slow_windows + 1
                               : slow->part != KELP_SLOW_NOT ? 1
                                                             : 0;
        member->compared_serial = member->times.serial;
        member->slow = *slow;
    }
}

/* fresh: most workers have a new window since the last comparison. */
static void keep_shard(struct kelp_membership *membership, const char *id,
                       const struct kelp_slow *slow, bool fresh, uint64_t now_ms)
{
    if (slow->part == KELP_SLOW_NOT || strcmp(id, membership->slow_shard_id) != 0) {
        membership->slow_shard_windows = slow->part == KELP_SLOW_NOT ? 0 : 1;
        memset(membership->slow_shard_id, 0, sizeof(membership->slow_shard_id));
        memcpy(membership->slow_shard_id, id, strlen(id));
    } else if (fresh) {
        membership->slow_shard_windows++;
    }
    membership->slow_shard = *slow;
    membership->slow_shard_ms = now_ms;
}

void kelp_membership_compare(struct kelp_membership *membership, uint64_t now_ms)
{
    struct kelp_slow shard_slow;
    size_t count = 0;
    size_t fresh = 0;

    if (now_ms < membership->compared_ms + KELP_COORDINATOR_SLOW_LOOK_MS) {
        return;
    }
    membership->compared_ms = now_ms;
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (is_compared(member, now_ms)) {
            assert(count < KELP_COORDINATOR_WORKERS_MAX);
            membership->rows[count++].times = &member->times;
            fresh += member->compared_serial != member->times.serial;
        }
    }
    const size_t shard = kelp_slow_judge(membership->rows, count, membership->scratch, &shard_slow);
    keep_shard(membership, shard < count ? membership->rows[shard].times->shard : "", &shard_slow,
               2 * fresh > count, now_ms);
    for (uint32_t i = 0, row = 0; i < membership->count; i++) {
        struct kelp_member *member = &membership->members[i];
        if (is_compared(member, now_ms)) {
            keep(member, &membership->rows[row++].slow);
        } else {
            member->slow_windows = 0;
        }
    }
}

bool kelp_membership_slowest(const struct kelp_membership *membership, uint64_t now_ms,
                             struct kelp_membership_slow *ret_slow)
{
    *ret_slow = (struct kelp_membership_slow){.worker = NULL};
    if (membership->slow_shard_windows >= KELP_COORDINATOR_SLOW_WINDOWS &&
        is_fresh(membership->slow_shard_ms, 0, now_ms)) {
        ret_slow->slow = membership->slow_shard;
        ret_slow->shard = membership->slow_shard_id;
    }
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (member->slow_windows >= KELP_COORDINATOR_SLOW_WINDOWS && is_compared(member, now_ms) &&
            member->slow.excess_us > ret_slow->slow.excess_us) {
            ret_slow->slow = member->slow;
            ret_slow->worker = member;
            ret_slow->shard = member->slow.part == KELP_SLOW_SHARD ? member->times.shard : NULL;
        }
    }
    return ret_slow->slow.part != KELP_SLOW_NOT;
}
