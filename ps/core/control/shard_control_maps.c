#include "ps/core/control/shard_control_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The newest generation that is served or will be: one that waits or is loading comes first. */
static uint64_t newest_generation(const struct kelp_shard_control *control)
{
    if (control->wanted != 0) {
        return control->wanted;
    }
    return control->loading != 0 ? control->loading : control->generation;
}

static bool is_newest(const struct kelp_shard_control *control, uint64_t generation)
{
    return kelp_fence_generation(newest_generation(control), generation) == KELP_OK;
}

bool kelp_shard_control_changes(const struct kelp_shard_control *control, uint64_t generation,
                                bool reads)
{
    return is_newest(control, generation) && (reads || control->loading == 0);
}

kelp_status kelp_shard_control_judge(const struct kelp_shard_control *control, uint64_t generation,
                                     uint64_t serial, bool names_another_incarnation)
{
    if (names_another_incarnation) {
        return KELP_ERR_MISMATCH;
    }
    if (is_newest(control, generation) && serial > control->serial) {
        return KELP_OK;
    }
    return kelp_fence_generation(newest_generation(control), generation) == KELP_ERR_BUSY
               ? KELP_OK
               : KELP_ERR_OLD_GENERATION;
}

void kelp__shard_control_cancel_load(struct kelp_shard_control *control,
                                     struct kelp_shard_actions *actions)
{
    if (control->loading != 0 && !control->cancelled) {
        control->cancelled = true;
        (void)kelp__shard_control_add(actions, KELP_SHARD_DO_CANCEL_LOAD);
    }
}

static void load(struct kelp_shard_control *control, uint64_t generation,
                 struct kelp_shard_actions *actions)
{
    assert(control->loading == 0);
    control->loading = generation;
    control->cancelled = false;
    control->missing = false;
    kelp__shard_control_add(actions, KELP_SHARD_DO_LOAD)->generation = generation;
}

void kelp__shard_control_on_map(struct kelp_shard_control *control,
                                const struct kelp_shard_command *command,
                                struct kelp_shard_actions *actions)
{
    const uint64_t generation = command->map_generation;
    struct kelp_snapshot_actions snapshot = {.count = 0};
    const bool changes = kelp_shard_control_changes(control, generation, command->map_reads);

    assert(kelp_shard_control_judge(control, generation, command->map_serial, false) == KELP_OK);
    control->serial = command->map_serial;
    if (changes) {
        return; /* the shell carries out the changes at once, or after the load */
    }
    kelp_snapshot_cancel(control->snapshot, KELP_ERR_OLD_GENERATION,
                         "a newer generation is being loaded", &snapshot);
    kelp__shard_control_snapshot(control, &snapshot, actions);
    /* From here on the status belongs to the new generation, so the result of the one before is
     * cleared. */
    control->status = KELP_OK;
    control->error[0] = '\0';
    if (control->loading == 0) {
        load(control, generation, actions);
    } else {
        control->wanted = generation;
        kelp__shard_control_cancel_load(control, actions);
    }
}

kelp_status kelp__shard_control_on_missing(struct kelp_shard_control *control, const char *text,
                                           uint64_t now_ms, struct kelp_shard_actions *actions)
{
    const uint32_t limit_ms = control->config.storage_wait_ms;

    assert(control->loading != 0);
    if (control->cancelled) {
        return KELP_ERR_OLD_GENERATION;
    }
    if (!control->missing) {
        control->missing = true;
        control->missing_since_ms = now_ms;
    }
    if (strncmp(control->waiting, text, sizeof(control->waiting) - 1) != 0) {
        (void)snprintf(control->waiting, sizeof(control->waiting), "%s", text); /* may be cut */
        kelp__shard_control_tell(actions, KELP_SHARD_NEWS_MISSING);
        kelp__shard_control_report(control, actions);
    }
    return limit_ms > 0 && now_ms - control->missing_since_ms >= limit_ms ? KELP_ERR_NOT_FOUND
                                                                          : KELP_OK;
}

static void lead(struct kelp_shard_control *control, const struct kelp_shard_led *led)
{
    control->has_word = led->word != NULL;
    /* A record that was applied meanwhile may already have set a newer word. */
    if (led->word && led->word->version >= control->word.version) {
        control->word = *led->word;
        control->best = led->best ? *led->best : (struct kelp_best){0};
    }
}

void kelp__shard_control_on_entered(struct kelp_shard_control *control,
                                    const struct kelp_shard_event *event,
                                    struct kelp_shard_actions *actions)
{
    struct kelp_snapshot_actions snapshot = {.count = 0};
    const struct kelp_shard_led *led = &event->entered.led;

    if (kelp_fence_generation(control->generation, event->entered.generation) != KELP_OK) {
        return;
    }
    control->map_generation = event->entered.generation;
    control->map_serial = event->entered.serial;
    lead(control, led);
    kelp_snapshot_lead(control->snapshot, led->partitions, led->partition_count, &snapshot);
    kelp__shard_control_snapshot(control, &snapshot, actions);
    kelp__shard_control_report(control, actions);
}

static void serve(struct kelp_shard_control *control, const struct kelp_shard_loaded *loaded,
                  struct kelp_shard_actions *actions)
{
    struct kelp_snapshot_actions snapshot = {.count = 0};

    control->generation = control->loading;
    control->record_count = 0;
    for (uint32_t i = 0; i < control->stream_count; i++) {
        control->streams[i].cursor = 0;
    }
    control->word = (struct kelp_control_word){0};
    control->best = (struct kelp_best){0};
    lead(control, &loaded->led);
    control->has_train = false;
    control->status = KELP_OK;
    control->error[0] = '\0';
    kelp_snapshot_generation(control->snapshot, control->generation, loaded->led.partitions,
                             loaded->led.partition_count, &snapshot);
    kelp__shard_control_snapshot(control, &snapshot, actions);
}

void kelp__shard_control_on_loaded(struct kelp_shard_control *control,
                                   const struct kelp_shard_loaded *loaded,
                                   struct kelp_shard_actions *actions)
{
    assert(control->loading != 0);
    control->waiting[0] = '\0';
    if (loaded->status == KELP_OK) {
        serve(control, loaded, actions);
        if (control->wanted == control->loading) {
            control->wanted = 0; /* the newest map only changes this one */
        }
    } else if (!control->cancelled) {
        kelp__shard_control_fail(control, loaded->status, loaded->text, actions);
    }
    kelp__shard_control_report(control, actions);
    control->loading = 0;
    uint64_t wanted = control->wanted;
    control->wanted = 0;
    if (wanted != 0) {
        load(control, wanted, actions);
    }
}
