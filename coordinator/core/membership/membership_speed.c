/*
 * How many lanes each worker has: in proportion to its speed (membership.h, "seats").
 *
 * A worker reports how many lanes it has computed and how long that took. The time for a lane is
 * smoothed; one very slow lane, as after the process was stopped, changes it little.
 *
 * Lanes are split anew when the last worker would finish a fifth earlier, and this has held for
 * some time, over several reports. After that, it takes a fifth in the other direction to change
 * anything again. So times that vary change nothing, while a worker that becomes slow or fast for
 * good does.
 */
#include "common/job/job.h"
#include "coordinator/core/membership/membership.h"

#define SMOOTHING   2u   /* a new time has weight 1/2 */
#define JUMP_MAX    2u   /* a new time counts at most as so many times the smoothed one */
#define SAMPLE_MS   500u /* a time is the mean over this long: processes may be slow in bursts */
#define LANE_US_MAX 3600000000u

void kelp__membership_measure(struct kelp_member *member, const struct kelp_member_heard *heard,
                              uint64_t now_ms)
{
    if (now_ms < member->sampled_ms + SAMPLE_MS || heard->lanes_computed <= member->sampled_lanes ||
        heard->busy_us <= member->sampled_us) {
        return;
    }
    uint64_t lanes = heard->lanes_computed - member->sampled_lanes;
    uint64_t lane_us = (heard->busy_us - member->sampled_us) / lanes;
    uint64_t usual_us = member->lane_us;
    if (usual_us > 0) {
        lane_us = lane_us < JUMP_MAX * usual_us ? lane_us : JUMP_MAX * usual_us;
        lane_us = ((SMOOTHING - 1) * usual_us + lane_us) / SMOOTHING;
    }
    lane_us = lane_us < LANE_US_MAX ? lane_us : LANE_US_MAX;
    member->lane_us = lane_us > 0 ? (uint32_t)lane_us : 1;
    member->sampled_ms = now_ms;
    member->sampled_lanes = heard->lanes_computed;
    member->sampled_us = heard->busy_us;
    member->samples++;
}

/* Times of the seats with lanes; *ret_last: when the last one finishes. False: not all are
 * known. */
static bool seat_times(const struct kelp_membership *membership,
                       uint32_t lane_us[KELP_JOB_LANES_MAX], const struct kelp_member **ret_last)
{
    const struct kelp_assignment *assignment = &membership->assignment;
    uint64_t latest = 0;
    for (uint32_t seat = 0; seat < kelp_assignment_seats(assignment); seat++) {
        const struct kelp_member *member =
            kelp_membership_find(membership, assignment->members[seat]);
        lane_us[seat] = member->lane_us;
        if (member->lane_us == 0) {
            return false;
        }
        uint64_t end = (uint64_t)member->lane_us * assignment->ranges[seat].count;
        if (end > latest) {
            latest = end;
            *ret_last = member;
        }
    }
    return latest > 0;
}

void kelp__membership_even_out(struct kelp_membership *membership, uint64_t now_ms)
{
    uint32_t lane_us[KELP_JOB_LANES_MAX];
    const struct kelp_member *last = NULL;
    if (!seat_times(membership, lane_us, &last) ||
        !kelp_assignment_is_uneven(&membership->assignment, lane_us)) {
        membership->slow_key = 0;
        return;
    }
    if (membership->slow_key != last->key) {
        membership->slow_key = last->key;
        membership->slow_since_ms = now_ms;
        membership->slow_samples = last->samples;
    }
    if (now_ms >= membership->slow_since_ms + KELP_COORDINATOR_UNEVEN_MS &&
        last->samples >= membership->slow_samples + KELP_COORDINATOR_UNEVEN_SAMPLES) {
        kelp_assignment_weigh(&membership->assignment, lane_us);
        membership->slow_key = 0;
    }
}
