/*
 * From the shards' reports to a committed checkpoint, and the list of committed ones.
 */
#include "coordinator/core/checkpoints/checkpoints_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- reports ---- */

static bool is_digest(const char *text)
{
    return strlen(text) == KELP_DIGEST_HEX_BYTES - 1 &&
           strspn(text, "0123456789abcdef") == KELP_DIGEST_HEX_BYTES - 1;
}

/* Add the shard's parts. Returns what is wrong unless each partition it hosts is reported once. */
static const char *add_parts(struct kelp_checkpointer *checkpoints, uint32_t shard,
                             const struct kelp_checkpointer_report *report)
{
    const struct kelp_map *map = &checkpoints->map;
    if (report->part_count != kelp_map_load(map, shard)) {
        return "its parts are not those that it hosts";
    }
    if (!kelp_folder_name_valid(report->storage)) {
        return "the name of its storage is not valid";
    }
    for (uint32_t i = 0; i < report->part_count; i++) {
        const struct kelp_checkpointer_part *from = &report->parts[i];
        if (from->partition >= map->partition_count ||
            map->partitions[from->partition].primary != shard ||
            checkpoints->parts[from->partition].there || !is_digest(from->digest)) {
            return "its parts are not those that it hosts";
        }
        struct kelp_checkpointer_pending_part *part = &checkpoints->parts[from->partition];
        *part = (struct kelp_checkpointer_pending_part){
            .there = true, .shard = shard, .bytes = from->bytes};
        memcpy(part->digest, from->digest, sizeof(part->digest));
    }
    if (map->partitions[0].primary == shard) {
        if (!report->word || report->word->step != checkpoints->order.step) {
            return "it does not say which version it saved";
        }
        checkpoints->saved = *report->word;
    }
    return NULL;
}

static void on_durable(struct kelp_checkpointer *checkpoints, uint32_t index,
                       const struct kelp_checkpointer_report *report, uint64_t now_ms,
                       struct kelp_checkpointer_actions *actions)
{
    struct kelp_checkpointer_shard *shard = &checkpoints->shards[index];
    if (shard->durable) {
        return; /* every report repeats the answer */
    }
    const char *wrong = add_parts(checkpoints, index, report);
    if (wrong) {
        kelp__checkpointer_say_trouble(checkpoints, actions,
                                       "checkpoint of step %" PRIu64 ": %s: %s",
                                       checkpoints->order.step, report->shard, wrong);
        kelp__checkpointer_abandon(checkpoints, KELP__FAILED, now_ms, actions);
        return;
    }
    shard->durable = true;
    (void)snprintf(shard->storage, sizeof(shard->storage), "%s", report->storage);
}

static void on_past(struct kelp_checkpointer *checkpoints,
                    const struct kelp_checkpointer_report *report, uint64_t now_ms,
                    struct kelp_checkpointer_actions *actions)
{
    if (report->current_step > checkpoints->past_step &&
        report->current_step <= kelp__checkpointer_last_step(checkpoints)) {
        checkpoints->past_step = report->current_step;
    }
    if (checkpoints->margin < KELP_COORDINATOR_MARGIN_MAX) {
        checkpoints->margin *= 2;
    }
    kelp__checkpointer_abandon(checkpoints, KELP__LATE, now_ms, actions);
}

/* Another leader has ordered a checkpoint meanwhile, so ours will not be answered any more.
 * Serials above our own range are that leader's: the next order waits for the range of our next
 * election. */
static void on_overtaken(struct kelp_checkpointer *checkpoints,
                         const struct kelp_checkpointer_report *report, uint64_t now_ms,
                         struct kelp_checkpointer_actions *actions)
{
    kelp__checkpointer_say_trouble(checkpoints, actions,
                                   "checkpoint of step %" PRIu64
                                   " was abandoned: another leader ordered one",
                                   checkpoints->order.step);
    if (report->serial > checkpoints->overtaken) {
        checkpoints->overtaken = report->serial;
    }
    kelp__checkpointer_abandon(checkpoints, KELP__INTERRUPTED, now_ms, actions);
}

void kelp__checkpointer_on_report(struct kelp_checkpointer *checkpoints,
                                  const struct kelp_checkpointer_report *report, uint64_t now_ms,
                                  struct kelp_checkpointer_actions *actions)
{
    int32_t index = kelp_map_find(&checkpoints->map, report->shard);
    if (checkpoints->state != KELP_CHECKPOINTER_ORDERED || index < 0 ||
        report->incarnation != checkpoints->map.shards[index].incarnation ||
        report->serial < checkpoints->order.serial) {
        return;
    }
    if (report->serial > checkpoints->order.serial) {
        on_overtaken(checkpoints, report, now_ms, actions);
        return;
    }
    checkpoints->shards[index].heard = true;
    switch (report->answer) {
    case KELP_CHECKPOINTER_ANSWER_NONE:
    case KELP_CHECKPOINTER_ANSWER_TAKING:
        break;
    case KELP_CHECKPOINTER_ANSWER_CAPTURED:
        kelp__checkpointer_reach(checkpoints, now_ms);
        checkpoints->shards[index].captured = true;
        break;
    case KELP_CHECKPOINTER_ANSWER_DURABLE:
        kelp__checkpointer_reach(checkpoints, now_ms);
        checkpoints->shards[index].captured = true;
        on_durable(checkpoints, (uint32_t)index, report, now_ms, actions);
        break;
    case KELP_CHECKPOINTER_ANSWER_FAILED:
        kelp__checkpointer_say_trouble(checkpoints, actions,
                                       "checkpoint of step %" PRIu64 ": %s: %.300s",
                                       checkpoints->order.step, report->shard, report->error);
        kelp__checkpointer_abandon(checkpoints, KELP__FAILED, now_ms, actions);
        break;
    case KELP_CHECKPOINTER_ANSWER_PAST:
        on_past(checkpoints, report, now_ms, actions);
        break;
    }
}

/* ---- committing ---- */

uint32_t kelp_checkpointer_storages(const struct kelp_checkpointer *checkpoints,
                                    uint32_t ret_places[KELP_COORDINATOR_SHARDS_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < checkpoints->map.shard_count; i++) {
        ret_places[i] = kelp_map_load(&checkpoints->map, i) > 0 ? count++ : KELP_MAP_NOBODY;
    }
    return count;
}

const double *kelp_checkpointer_metric(const struct kelp_checkpointer *checkpoints, uint64_t step)
{
    for (uint32_t i = 0; i < checkpoints->evaluation_count; i++) {
        if (checkpoints->evaluations[i].step == step) {
            return checkpoints->evaluations[i].metric;
        }
    }
    return NULL;
}

/* Is an evaluation scheduled at the state's step? */
static bool is_evaluated(const struct kelp_checkpointer *checkpoints)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(checkpoints->schedule.evaluate_steps); i++) {
        uint64_t turn = checkpoints->schedule.evaluate_steps[i];
        if (turn > 0 && checkpoints->saved.step % turn == 0) {
            return true;
        }
    }
    return false;
}

/* Should the commit wait for the state's evaluation? Not if it is urgent. */
static bool wait_for_metric(struct kelp_checkpointer *checkpoints, uint64_t now_ms)
{
    if (checkpoints->for_end || checkpoints->for_request || !is_evaluated(checkpoints) ||
        kelp_checkpointer_metric(checkpoints, checkpoints->saved.step)) {
        return false;
    }
    if (checkpoints->evaluation_ms == 0) {
        checkpoints->evaluation_ms = now_ms + KELP_COORDINATOR_EVALUATION_MS;
    }
    return now_ms < checkpoints->evaluation_ms;
}

/* All parts are durable: commit the checkpoint. */
void kelp__checkpointer_conclude(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                                 struct kelp_checkpointer_actions *actions)
{
    const struct kelp_committed *found =
        kelp_committed_list_find(&checkpoints->list, checkpoints->saved.version);
    if (wait_for_metric(checkpoints, now_ms)) {
        return;
    }
    if (!found) {
        kelp__checkpointer_move(checkpoints, KELP_CHECKPOINTER_WRITING);
        return;
    }
    if (found->step != checkpoints->saved.step) {
        kelp__checkpointer_say_trouble(
            checkpoints, actions,
            "checkpoint of step %" PRIu64 ": its version, %" PRIu64
            ", is that of the final checkpoint of fewer epochs; a later step's is made",
            checkpoints->saved.step, found->version);
        /* LATE tries again at a later step; at a standstill there is no later step to wait for. */
        kelp__checkpointer_abandon(
            checkpoints,
            kelp__checkpointer_stands_still(checkpoints, now_ms) ? KELP__FAILED : KELP__LATE,
            now_ms, actions);
        return;
    }
    /* Nothing was completed since that checkpoint, so it answers this order. */
    uint64_t step = checkpoints->order.step;
    kelp__checkpointer_close_order(checkpoints, actions);
    checkpoints->last_ms = now_ms;
    if (checkpoints->for_request) {
        kelp__checkpointer_answer(checkpoints, checkpoints->for_serial, step, actions);
    }
    if (checkpoints->for_end) {
        kelp__checkpointer_end(checkpoints, actions);
    }
}

/* Fill in what the shell does not know of the committed checkpoint. */
static void fill(const struct kelp_checkpointer *checkpoints, struct kelp_committed *checkpoint)
{
    checkpoint->version = checkpoints->saved.version;
    checkpoint->step = checkpoints->saved.step;
    checkpoint->epochs = kelp_control_word_epochs(&checkpoints->saved);
    checkpoint->generation = checkpoints->order.generation;
    const double *metric = kelp_checkpointer_metric(checkpoints, checkpoint->step);
    checkpoint->has_metric = metric != NULL;
    if (checkpoint->has_metric) {
        memcpy(checkpoint->metric, metric, sizeof(checkpoint->metric));
    }
    memcpy(checkpoint->folder, checkpoints->order.folder, sizeof(checkpoint->folder));
    checkpoint->damaged = false;
    checkpoint->restored = false;
}

/* Add it to the list, and compare its digest with an earlier one of the same version. */
static kelp_status add(struct kelp_checkpointer *checkpoints, struct kelp_committed *checkpoint,
                       struct kelp_checkpointer_actions *actions, struct kelp_error *reterr)
{
    const struct kelp_committed_digest *other = NULL;
    kelp_status status = kelp_committed_list_add(&checkpoints->list, checkpoint, &other, reterr);
    if (status != KELP_OK) {
        return status;
    }
    checkpoint->manifest = NULL;
    if (other) {
        kelp__checkpointer_say_trouble(
            checkpoints, actions,
            "checkpoints of version %" PRIu64 " differ: state digest %s in generation %" PRIu64
            ", %s in generation %" PRIu64 ": the same steps gave different bits",
            checkpoint->version, other->state_digest, other->generation, checkpoint->state_digest,
            checkpoint->generation);
        kelp__checkpointer_add(actions,
                               (struct kelp_checkpointer_action){.kind = KELP_CHECKPOINTER_DO_FAIL,
                                                                 .text = checkpoints->trouble});
    }
    return KELP_OK;
}

static kelp_status on_taken(struct kelp_checkpointer *checkpoints,
                            struct kelp_committed *checkpoint, uint64_t now_ms,
                            struct kelp_checkpointer_actions *actions, struct kelp_error *reterr)
{
    fill(checkpoints, checkpoint);
    checkpoints->trouble[0] = '\0';
    kelp_status status = add(checkpoints, checkpoint, actions, reterr);
    if (status != KELP_OK) {
        return status;
    }
    checkpoints->order = (struct kelp_checkpointer_order){.serial = 0};
    kelp__checkpointer_move(checkpoints, KELP_CHECKPOINTER_IDLE);
    checkpoints->undecided = false;
    checkpoints->committed++;
    checkpoints->margin = checkpoints->margin > 1 ? checkpoints->margin / 2 : 1;
    checkpoints->pause_ms = 0;
    checkpoints->end_tries = 0;
    checkpoints->last_ms = now_ms;
    kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_RESTORE);
    if (checkpoints->for_request) {
        kelp__checkpointer_answer(checkpoints, checkpoints->for_serial, checkpoint->step, actions);
    }
    return KELP_OK; /* its version shows whether it is the final one */
}

bool kelp_checkpointer_awaits(const struct kelp_checkpointer *checkpoints, uint64_t serial)
{
    return checkpoints->state == KELP_CHECKPOINTER_WRITING && checkpoints->committing &&
           serial == checkpoints->order.serial;
}

kelp_status kelp__checkpointer_on_committed(struct kelp_checkpointer *checkpoints,
                                            const struct kelp_checkpointer_event *event,
                                            struct kelp_checkpointer_actions *actions,
                                            struct kelp_error *reterr)
{
    if (!kelp_checkpointer_awaits(checkpoints, event->committed.serial)) {
        return KELP_OK; /* of an earlier generation: opening the new one settled it */
    }
    checkpoints->committing = false;
    switch (event->committed.result) {
    case KELP_CHECKPOINTER_OK:
        return on_taken(checkpoints, event->committed.checkpoint, event->now_ms, actions, reterr);
    case KELP_CHECKPOINTER_AWAY:
        checkpoints->commit_ms = event->now_ms + KELP_COORDINATOR_RETRY_MS;
        break;
    case KELP_CHECKPOINTER_REFUSED:
        kelp__checkpointer_say_trouble(checkpoints, actions,
                                       "checkpoint of step %" PRIu64 " was not committed: %s",
                                       checkpoints->order.step, event->committed.text);
        kelp__checkpointer_abandon(checkpoints, KELP__FAILED, event->now_ms, actions);
        break;
    case KELP_CHECKPOINTER_UNKNOWN:
        checkpoints->unknown = true;
        checkpoints->commit_ms = event->now_ms + KELP_COORDINATOR_RETRY_MS;
        break;
    }
    if (checkpoints->undecided && !checkpoints->unknown) {
        checkpoints->undecided = false;
        kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_RESTORE);
    }
    return KELP_OK;
}

/* ---- the list ---- */

void kelp__checkpointer_try_remove(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                                   struct kelp_checkpointer_actions *actions)
{
    if (!checkpoints->running || !checkpoints->listed || checkpoints->removing_now ||
        now_ms < checkpoints->remove_ms) {
        return;
    }
    const struct kelp_committed *surplus = kelp_committed_list_surplus(&checkpoints->list);
    if (surplus) {
        checkpoints->removing_now = true;
        checkpoints->removing = surplus->version;
        memcpy(checkpoints->removing_folder, surplus->folder, sizeof(surplus->folder));
        kelp__checkpointer_add(
            actions, (struct kelp_checkpointer_action){.kind = KELP_CHECKPOINTER_DO_REMOVE,
                                                       .version = surplus->version});
    }
}

void kelp__checkpointer_on_removed(struct kelp_checkpointer *checkpoints,
                                   const struct kelp_checkpointer_event *event)
{
    checkpoints->removing_now = false;
    if (event->removed == KELP_CHECKPOINTER_OK) {
        kelp_committed_list_remove(&checkpoints->list, checkpoints->removing);
    } else {
        checkpoints->remove_ms = event->now_ms + KELP_COORDINATOR_PAUSE_MS;
    }
}

static bool in_list(const struct kelp_checkpointer_event *event, uint64_t version)
{
    for (uint32_t i = 0; i < event->listed.count; i++) {
        if (event->listed.entries[i].version == version) {
            return true;
        }
    }
    return false;
}

kelp_status kelp__checkpointer_on_list(struct kelp_checkpointer *checkpoints,
                                       const struct kelp_checkpointer_event *event,
                                       struct kelp_checkpointer_actions *actions,
                                       struct kelp_error *reterr)
{
    struct kelp_committed_list *list = &checkpoints->list;
    for (uint32_t i = list->count; i-- > 0;) {
        if (!in_list(event, list->entries[i].version)) {
            kelp_committed_list_remove(list, list->entries[i].version);
        }
    }
    for (uint32_t i = 0; i < event->listed.count; i++) {
        kelp_status status = add(checkpoints, &event->listed.entries[i], actions, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    checkpoints->listed = true;
    if (event->listed.first_serial > checkpoints->serial) {
        checkpoints->serial = event->listed.first_serial;
    }
    kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_RESTORE);
    return KELP_OK;
}
