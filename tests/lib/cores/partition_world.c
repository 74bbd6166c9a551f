#include "tests/lib/cores/partition_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct orders_world orders_world;

static uint64_t next_random(void)
{
    orders_world.state ^= orders_world.state << 13;
    orders_world.state ^= orders_world.state >> 7;
    orders_world.state ^= orders_world.state << 17;
    return orders_world.state;
}

uint64_t world_pick(uint64_t below)
{
    return next_random() % below;
}

/* ---- the tree ----------------------------------------------------------------------------------
 */

uint64_t world_samples_of(const struct kelp_control_word *word, uint32_t first, uint32_t end)
{
    return end * word->sample_count / orders_world.lanes -
           first * word->sample_count / orders_world.lanes;
}

void world_expression(const struct kelp_control_word *word, uint32_t first, uint32_t count,
                      char *text)
{
    char left[WORLD_TEXT_MAX];
    char right[WORLD_TEXT_MAX];

    if (count == 1) {
        text[0] = '\0';
        if (world_samples_of(word, first, first + 1) > 0) {
            (void)snprintf(text, WORLD_TEXT_MAX, "%u", first);
        }
        return;
    }
    world_expression(word, first, count / 2, left);
    world_expression(word, first + count / 2, count / 2, right);
    bool both = left[0] != '\0' && right[0] != '\0';
    int length = snprintf(text, WORLD_TEXT_MAX, both ? "(%s+%s)" : "%s%s", left, right);
    world_must(length < WORLD_TEXT_MAX);
}

uint64_t world_new_handle(const char *text)
{
    for (uint64_t handle = 1; handle < WORLD_HANDLES_MAX; handle++) {
        if (!orders_world.texts[handle]) {
            orders_world.texts[handle] = strdup(text);
            return handle;
        }
    }
    ck_abort_msg("gradients are not released");
    return 0;
}

static void release(uint64_t handle)
{
    world_must(handle > 0 && handle < WORLD_HANDLES_MAX);
    world_must(orders_world.texts[handle]);
    free(orders_world.texts[handle]);
    orders_world.texts[handle] = NULL;
}

/* ---- the shell ---------------------------------------------------------------------------------
 */

struct kelp_partition_view world_view(uint32_t partition)
{
    struct kelp_partition_view result;
    kelp_partition_view(orders_world.partitions[partition], &result);
    return result;
}

/* Is the gradient finite? The same whenever it is computed. */
static bool finite_at(uint32_t partition, uint64_t step)
{
    if (orders_world.job.failure.on_nan != KELP_NAN_SKIP) {
        return true; /* the job would fail */
    }
    /* At most half of the steps, or the job would fail at an epoch's end. */
    return step % 2 == 0 || (step * 2654435761u + partition * 40503u + orders_world.seed) % 5 > 1;
}

static bool skipped_at(uint64_t step)
{
    bool finite = true;
    for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
        finite = finite && finite_at(p, step);
    }
    return !finite && orders_world.job.failure.on_nan == KELP_NAN_SKIP;
}

void world_share_at(uint32_t partition, uint64_t step, struct kelp_decision_share *ret_share)
{
    world_must(kelp_decision_share_count(&orders_world.job, &orders_world.plan, partition,
                                         &ret_share->count, NULL) == KELP_OK);
    ret_share->values[KELP_DECISION_SHARE_FINITE] = finite_at(partition, step) ? 1 : 0;
    for (uint32_t i = 1; i < ret_share->count; i++) {
        ret_share->values[i] = (double)((step * 31 + partition * 7 + i) % 97) / 7.0;
    }
}

uint32_t world_decided_at(uint64_t step, double *values)
{
    struct kelp_decision_share parts[WORLD_PARTITIONS];
    const struct kelp_decision_share *pointers[WORLD_PARTITIONS];

    for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
        world_share_at(p, step, &parts[p]);
        pointers[p] = &parts[p];
    }
    bool skip = kelp_step_decide(&orders_world.job, &orders_world.plan, pointers, values);
    world_must(skip == skipped_at(step));
    return skip ? 0 : kelp_step_decision_count(&orders_world.job, &orders_world.plan);
}

/* Partition 0's word has the decision about the step before. */
static void check_decision(const struct kelp_control_word *word, const double *values,
                           uint32_t count)
{
    double decided[1];

    if (count > 0) {
        world_must(word->step > 0 && count == world_decided_at(word->step - 1, decided));
        world_must(memcmp(values, decided, sizeof(decided)) == 0);
    }
}

static void check_apply(const struct kelp_action *action)
{
    char text[WORLD_TEXT_MAX];
    double decided[1];

    world_must(action->kind == KELP_ACTION_MEASURE || !skipped_at(action->apply.word.step));
    if (action->kind == KELP_ACTION_APPLY && kelp_control_decides(&orders_world.job)) {
        uint32_t count = world_decided_at(action->apply.word.step, decided);
        world_must(action->apply.decision.count == count);
        world_must(count == 0 || action->apply.decision.values[0] == decided[0]);
        orders_world.decisions += count;
    }

    world_expression(&action->apply.word, 0, orders_world.lanes, text);
    world_must(orders_world.texts[action->apply.root]);
    if (strcmp(orders_world.texts[action->apply.root], text) != 0) {
        ck_abort_msg("seed %llu: applied %s, not %s", (unsigned long long)orders_world.seed,
                     orders_world.texts[action->apply.root], text);
    }
}

static void check_answer(uint32_t partition, const struct kelp_answer *answer)
{
    struct world_expectation *expected = &orders_world.expected[partition][answer->requester];
    struct kelp_partition_view now = world_view(partition);

    if (answer->is_share) {
        world_must(answer->status == KELP_OK && answer->step <= now.step);
        struct kelp_decision_share share;
        world_share_at(partition, answer->step, &share);
        world_must(answer->value_count == 0 || answer->value_count == share.count);
        world_must(memcmp(answer->values, share.values, answer->value_count * sizeof(double)) ==
                       0 ||
                   answer->value_count == 0);
        return;
    }
    world_must(answer->has_word || answer->value_count == 0);
    if (answer->has_word) {
        check_decision(&answer->word, answer->values, answer->value_count);
    }
    world_must(expected->waiting); /* one answer for each pull */
    expected->waiting = false;
    if (answer->status == KELP_ERR_NOT_FOUND) {
        world_must(expected->step < now.step);
        world_must(answer->current_step == now.step);
        return;
    }
    world_must(answer->status == KELP_OK);
    world_must(answer->step == expected->step);
    world_must(answer->step == now.step || answer->step + 1 == now.step);
    world_must((answer->send == KELP_WEIGHTS_OLDER) == (answer->step != now.step));
}

static void check_record(const struct kelp_record *record)
{
    double lanes_once = (double)((UINT64_C(1) << orders_world.lanes) - 1);

    world_must(record->word.version == orders_world.records); /* versions are consecutive */
    world_must(record->skipped ==
               (record->word.kind == KELP_STEP_TRAIN && skipped_at(record->word.step)));
    orders_world.skips += record->skipped;
    orders_world.records++;
    if (record->word.sample_count > 0) { /* each lane's bit was added exactly once */
        world_must(record->metrics.of[KELP_METRIC_LOSS] ==
                   lanes_once / (double)record->word.sample_count);
    }
    if (orders_world.history_count == WORLD_HISTORY_MAX) {
        memmove(orders_world.history, orders_world.history + 1,
                sizeof(orders_world.history) - sizeof(orders_world.history[0]));
        orders_world.history_count--;
    }
    orders_world.history[orders_world.history_count++] = record->word;
}

/* A snapshot is taken exactly at its boundary: `step` training steps are complete, and the next
 * is not applied. */
static void check_snapshot(uint32_t partition, const struct kelp_action *action)
{
    struct kelp_snapshot_order *order = &orders_world.orders[partition];

    world_must(order->serial == action->snapshot.serial);
    world_must(order->step == action->snapshot.step);
    world_must(action->snapshot.step == world_view(partition).step);
    world_must(world_view(partition).phase != KELP_PARTITION_APPLYING);
    world_must(action->snapshot.has_control == (partition == 0));
    if (partition == 0) {
        world_must(action->snapshot.control.step == order->step);
        world_must(action->snapshot.control.version == action->snapshot.version);
        world_must(action->snapshot.word.version == action->snapshot.version);
        world_must(action->snapshot.version == orders_world.records);
    }
    order->serial = 0;
    orders_world.snapshots++;
}

/* Only missing lanes are offered, and only to workers that wait for the next entry. */
static void take_offer(uint32_t partition, const struct kelp_offer *offer)
{
    world_must(offer->lane_count > 0 && offer->lane_first % offer->lane_count == 0);
    world_must(offer->lane_first + offer->lane_count <= orders_world.lanes);
    world_must(offer->word.step == world_view(partition).step);
    world_must(partition == 0 || offer->word.kind == KELP_STEP_TRAIN);
    bool spare =
        offer->requester >= WORLD_REQUESTERS && offer->requester < WORLD_REQUESTERS + WORLD_HELPERS;
    world_must(spare ||
               (orders_world.expected[partition][offer->requester].waiting &&
                orders_world.expected[partition][offer->requester].step == offer->word.step + 1));
    world_must(spare || world_view(partition).phase == KELP_PARTITION_COLLECTING);
    orders_world.offers++;
    orders_world.offered = true;
    orders_world.offer_partition = partition;
    orders_world.offer = *offer;
}

struct kelp_content world_content_of(const char *text)
{
    struct kelp_content content = {.low = UINT64_C(0xcbf29ce484222325), .high = 1};

    for (; *text != '\0'; text++) {
        content.low = (content.low ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return content;
}

static void compare(uint32_t partition, const struct kelp_action *action)
{
    world_must(orders_world.texts[action->compare.handle]);
    const struct kelp_content content =
        world_content_of(orders_world.texts[action->compare.handle]);
    world_must(kelp_partition_compared(orders_world.partitions[partition], action->compare.token,
                                       &content, &orders_world.actions) == KELP_OK);
    orders_world.comparisons++;
}

void world_take_actions(uint32_t partition)
{
    for (size_t i = 0; i < orders_world.actions.count; i++) {
        const struct kelp_action copy = orders_world.actions.items[i]; /* the list may move */
        const struct kelp_action *action = &copy;
        switch (action->kind) {
        case KELP_ACTION_REPEAT:
            world_must(skipped_at(orders_world.steps[partition]));
            break;
        case KELP_ACTION_MEASURE:
        case KELP_ACTION_APPLY:
            check_apply(action);
            /* fall through */
        case KELP_ACTION_MERGE:
            world_must(orders_world.work_count < WORLD_WORKS_MAX);
            orders_world.works[orders_world.work_count++] =
                (struct world_work){.partition = partition, .action = *action};
            break;
        case KELP_ACTION_ANSWER:
            check_answer(partition, &action->answer);
            break;
        case KELP_ACTION_REFUSE:
            ck_abort_msg("seed %llu: refused: %s", (unsigned long long)orders_world.seed,
                         action->refuse.why);
            break;
        case KELP_ACTION_RELEASE:
            release(action->release);
            break;
        case KELP_ACTION_RECORD:
            world_must(partition == 0);
            check_record(&action->record);
            break;
        case KELP_ACTION_GIVE_UP:
            world_must(false);
            break;
        case KELP_ACTION_SNAPSHOT:
            check_snapshot(partition, action);
            break;
        case KELP_ACTION_PAST:
            world_must(orders_world.orders[partition].serial == action->past.serial);
            world_must(orders_world.orders[partition].step < action->past.step);
            orders_world.orders[partition].serial = 0;
            orders_world.pasts++;
            break;
        case KELP_ACTION_OFFER:
            take_offer(partition, &action->offer);
            break;
        case KELP_ACTION_COMPARE:
            compare(partition, action);
            break;
        case KELP_ACTION_CONFLICT: /* honest workers never differ, in any order */
            world_must(false);
            break;
        case KELP_ACTION_FORWARD:
        case KELP_ACTION_ASK:
        case KELP_ACTION_ACKNOWLEDGE:
        case KELP_ACTION_WANT_COPY:
        case KELP_ACTION_COPY:
        case KELP_ACTION_IN_SYNC:
        case KELP_ACTION_DIVERGES:
        case KELP_ACTION_DIFFERS:
            world_must(false); /* there are no followers */
            break;
        }
    }
    orders_world.actions.count = 0;
    uint64_t step = world_view(partition).step;
    world_must(step == orders_world.steps[partition] || step == orders_world.steps[partition] + 1);
    orders_world.steps[partition] = step;
    /* A kept order is always for a later step. */
    const struct kelp_snapshot_order *order = &orders_world.orders[partition];
    world_must(order->serial == 0 || order->step > step);
}

void world_finish_work(size_t which)
{
    struct world_work work = orders_world.works[which];
    struct kelp_partition *partition = orders_world.partitions[work.partition];
    char text[WORLD_TEXT_MAX];

    orders_world.works[which] = orders_world.works[--orders_world.work_count];
    if (work.action.kind == KELP_ACTION_APPLY) {
        world_must(kelp_partition_applied(partition, work.action.apply.token, true,
                                          &orders_world.actions) == KELP_OK);
    } else if (work.action.kind == KELP_ACTION_MEASURE) {
        struct kelp_decision_share share;
        world_share_at(work.partition, work.action.apply.word.step, &share);
        world_must(kelp_partition_measured(partition, work.action.apply.token, &share,
                                           &orders_world.actions) == KELP_OK);
    } else {
        uint64_t left = work.action.merge.left;
        uint64_t right = work.action.merge.right;
        world_must(orders_world.texts[left] && orders_world.texts[right]);
        int length = snprintf(text, sizeof(text), "(%s+%s)", orders_world.texts[left],
                              orders_world.texts[right]);
        world_must(length < WORLD_TEXT_MAX);
        release(left);
        release(right);
        world_must(kelp_partition_merged(partition, work.action.merge.token, world_new_handle(text),
                                         &orders_world.actions) == KELP_OK);
    }
    world_take_actions(work.partition);
}
