#include "coordinator/core/membership/slowness.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/process_name.h"

/* Smaller differences are noise, as a part of a step and in microseconds: processes on one host
 * differ that much. */
#define LANE_RATIO_NUMERATOR   3u /* 1.5 times the median */
#define LANE_RATIO_DENOMINATOR 2u
#define LANE_STEP_PART         10u
#define LANE_US                200u
#define PUSH_STEP_PART         5u
#define PUSH_US                300u
#define LATE_STEP_PART         3u
#define LATE_US                2000u
#define ALONE_STEP_PART        4u
#define ALONE_US               1000u

bool kelp_worker_times_valid(const struct kelp_worker_times *times)
{
    const uint64_t parts[] = {times->length_us, times->read_us, times->compute_us,
                              times->push_us,   times->wait_us, times->alone_us};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i] > KELP_COORDINATOR_TIMES_US_MAX) {
            return false;
        }
    }
    return times->serial > 0 && times->steps > 0 &&
           times->steps <= KELP_COORDINATOR_TIMES_STEPS_MAX && times->lanes > 0 &&
           times->lanes <= KELP_COORDINATOR_TIMES_LANES_MAX && times->length_us > 0 &&
           times->alone_us <= times->wait_us &&
           (times->shard[0] == '\0' ? times->alone_us == 0 : kelp_process_name_valid(times->shard));
}

const char *kelp_slow_part_name(enum kelp_slow_part part)
{
    static const char *const names[KELP_SLOW_PART_COUNT] = {
        [KELP_SLOW_NOT] = "",
        [KELP_SLOW_READING] = "reading",
        [KELP_SLOW_COMPUTING] = "computing",
        [KELP_SLOW_PUSHING] = "pushing",
        [KELP_SLOW_SHARD] = "shard",
    };

    return names[part];
}

/* ---- means ---- */

enum measure { STEP, LANE, READ, COMPUTE, OWN, PUSH, WAIT, ALONE, BEHIND, MEASURE_COUNT };

_Static_assert(MEASURE_COUNT == KELP_SLOW_MEASURES, "a row has a median for each measure");

static uint64_t mean(const struct kelp_worker_times *times, enum measure measure)
{
    const uint64_t steps = times->steps;

    switch (measure) {
    case STEP:
        return times->length_us / steps;
    case LANE:
        return (times->read_us + times->compute_us) / times->lanes;
    case READ:
        return times->read_us / times->lanes;
    case COMPUTE:
        return times->compute_us / times->lanes;
    case OWN:
        return (times->read_us + times->compute_us + times->push_us) / steps;
    case PUSH:
        return times->push_us / steps;
    case WAIT:
        return times->wait_us / steps;
    case ALONE:
        return times->alone_us / steps;
    case BEHIND:
        return times->pushed_steps > 0 ? times->behind_us / times->pushed_steps : 0;
    case MEASURE_COUNT:
        break;
    }
    assert(false);
    return 0;
}

static int compare(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

static void sort(const struct kelp_slow_row *rows, size_t count, enum measure measure,
                 uint64_t *values)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = mean(rows[i].times, measure);
    }
    qsort(values, count, sizeof(*values), compare);
}

/* The lower median of a sorted array without one occurrence of value. */
static uint64_t median_without(const uint64_t *sorted, size_t count, uint64_t value)
{
    const size_t middle = (count - 2) / 2;

    assert(count >= 2);
    /* without it, later values move up by one */
    return sorted[middle] < value ? sorted[middle] : sorted[middle + 1];
}

/* ---- one worker ---- */

static uint64_t above(uint64_t value, uint64_t usual)
{
    return value > usual ? value - usual : 0;
}

static uint64_t at_least(uint64_t step_us, uint64_t part, uint64_t us)
{
    return step_us / part > us ? step_us / part : us;
}

static void take(struct kelp_slow *slow, const struct kelp_slow *found)
{
    if (found->excess_us > slow->excess_us) {
        *slow = *found;
    }
}

static void judge_lanes(struct kelp_slow_row *row)
{
    const struct kelp_worker_times *times = row->times;
    const uint64_t *usual_us = row->usual_us;
    const uint64_t read_us = mean(times, READ);
    const uint64_t compute_us = mean(times, COMPUTE);
    const bool reads = above(read_us, usual_us[READ]) > above(compute_us, usual_us[COMPUTE]);
    const struct kelp_slow found = {
        .part = reads ? KELP_SLOW_READING : KELP_SLOW_COMPUTING,
        .us = mean(times, LANE),
        .usual_us = usual_us[LANE],
        .part_us = reads ? read_us : compute_us,
        .excess_us = above(mean(times, LANE), usual_us[LANE]) * times->lanes / times->steps,
    };

    if (found.us * LANE_RATIO_DENOMINATOR >= found.usual_us * LANE_RATIO_NUMERATOR &&
        found.excess_us >= at_least(mean(times, STEP), LANE_STEP_PART, LANE_US)) {
        take(&row->slow, &found);
    }
}

static void judge_push(struct kelp_slow_row *row)
{
    const struct kelp_worker_times *times = row->times;
    const uint64_t *usual_us = row->usual_us;
    const uint64_t push_us = mean(times, PUSH);
    const struct kelp_slow found = {.part = KELP_SLOW_PUSHING,
                                    .us = push_us,
                                    .usual_us = usual_us[PUSH],
                                    .part_us = push_us,
                                    .excess_us = above(push_us, usual_us[PUSH])};

    if (push_us * LANE_RATIO_DENOMINATOR >= usual_us[PUSH] * LANE_RATIO_NUMERATOR &&
        found.excess_us >= at_least(mean(times, STEP), PUSH_STEP_PART, PUSH_US)) {
        take(&row->slow, &found);
    }
}

/* Is the worker later than its own work and its wait for one shard explain? least_us: the
 * shortest work of all workers. */
static void judge_late(struct kelp_slow_row *row, uint64_t least_us)
{
    const struct kelp_worker_times *times = row->times;
    const uint64_t *usual_us = row->usual_us;
    const uint64_t behind_us = mean(times, BEHIND);
    const uint64_t explained_us = above(mean(times, OWN), least_us) + mean(times, ALONE);
    const struct kelp_slow found = {.part = KELP_SLOW_PUSHING,
                                    .late = true,
                                    .us = behind_us,
                                    .usual_us = usual_us[BEHIND],
                                    .part_us = behind_us,
                                    .excess_us =
                                        above(above(behind_us, usual_us[BEHIND]), explained_us)};

    if (2 * times->pushed_steps >= times->steps &&
        found.excess_us >= at_least(mean(times, STEP), LATE_STEP_PART, LATE_US)) {
        take(&row->slow, &found);
    }
}

static bool waits_alone(const struct kelp_worker_times *times)
{
    return times->shard[0] != '\0' &&
           mean(times, ALONE) >= at_least(mean(times, STEP), ALONE_STEP_PART, ALONE_US);
}

static void judge_shard(struct kelp_slow_row *row)
{
    const struct kelp_worker_times *times = row->times;
    const struct kelp_slow found = {.part = KELP_SLOW_SHARD,
                                    .us = mean(times, ALONE),
                                    .part_us = mean(times, ALONE),
                                    .excess_us = mean(times, ALONE)};

    if (waits_alone(times)) {
        take(&row->slow, &found);
    }
}

/* ---- all workers ---- */

static size_t count_votes(const struct kelp_slow_row *rows, size_t count, const char *shard)
{
    size_t votes = 0;

    for (size_t i = 0; i < count; i++) {
        votes += waits_alone(rows[i].times) && strcmp(rows[i].times->shard, shard) == 0;
    }
    return votes;
}

/* The row that names the shard for which more than half of the workers wait. A majority remains
 * when pairs that differ are struck out (Boyer and Moore). */
static size_t find_shard(const struct kelp_slow_row *rows, size_t count)
{
    size_t candidate = count;
    size_t lead = 0;

    for (size_t i = 0; i < count; i++) {
        if (!waits_alone(rows[i].times)) {
            continue;
        }
        candidate = lead == 0 ? i : candidate;
        lead =
            strcmp(rows[i].times->shard, rows[candidate].times->shard) == 0 ? lead + 1 : lead - 1;
    }
    return candidate < count && 2 * count_votes(rows, count, rows[candidate].times->shard) > count
               ? candidate
               : count;
}

static uint64_t least_own_us(const struct kelp_slow_row *rows, size_t count)
{
    uint64_t least_us = UINT64_MAX;

    for (size_t i = 0; i < count; i++) {
        const uint64_t own_us = mean(rows[i].times, OWN);
        least_us = own_us < least_us ? own_us : least_us;
    }
    return least_us;
}

static void judge_workers(struct kelp_slow_row *rows, size_t count, const char *slow_shard,
                          uint64_t *scratch)
{
    const uint64_t least_us = least_own_us(rows, count);

    for (int measure = 0; measure < MEASURE_COUNT; measure++) {
        sort(rows, count, (enum measure)measure, scratch);
        for (size_t i = 0; i < count; i++) {
            rows[i].usual_us[measure] =
                median_without(scratch, count, mean(rows[i].times, (enum measure)measure));
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct kelp_slow_row *row = &rows[i];
        judge_lanes(row);
        judge_push(row);
        if (!slow_shard) {
            judge_late(row, least_us); /* otherwise the shard may make them late */
        }
        if (!slow_shard || strcmp(row->times->shard, slow_shard) != 0) {
            judge_shard(row);
        }
        row->slow.wait_us = row->usual_us[WAIT];
        row->slow.step_us = mean(row->times, STEP);
    }
}

size_t kelp_slow_judge(struct kelp_slow_row *rows, size_t count, uint64_t *scratch,
                       struct kelp_slow *ret_shard)
{
    const size_t shard = find_shard(rows, count);

    for (size_t i = 0; i < count; i++) {
        rows[i].slow = (struct kelp_slow){.part = KELP_SLOW_NOT};
    }
    if (count >= 2) {
        judge_workers(rows, count, shard < count ? rows[shard].times->shard : NULL, scratch);
    }
    *ret_shard = (struct kelp_slow){.part = KELP_SLOW_NOT};
    if (shard < count) {
        sort(rows, count, ALONE, scratch);
        const uint64_t alone_us = scratch[count / 2];
        sort(rows, count, STEP, scratch);
        *ret_shard = (struct kelp_slow){.part = KELP_SLOW_SHARD,
                                        .us = alone_us,
                                        .part_us = alone_us,
                                        .excess_us = alone_us,
                                        .wait_us = alone_us,
                                        .step_us = scratch[count / 2]};
    }
    return shard;
}
