#include "tests/sim/shard_control.h"

#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"
#include "tests/sim/invariants.h"
#include "tests/sim/shard_snapshot.h"

#define REPORT_RECORDS_MAX 16 /* few, so that records need more than one report */

/* ---- reports -----------------------------------------------------------------------------------
 */

static void send_report(struct sim_shard *shard, struct sim_leader_stream *leader, bool with_hello)
{
    struct sim_shard_report *report = sim_message_create(SIM_SHARD_REPORT, sizeof(*report));
    size_t left = shard->record_count - leader->cursor;
    size_t count = left < REPORT_RECORDS_MAX ? left : REPORT_RECORDS_MAX;
    report->incarnation = with_hello ? shard->process->incarnation : 0;
    report->heartbeat = leader->heartbeat;
    report->loaded_generation = sim_shard_generation(shard);
    report->status = shard->status;
    memcpy(report->error, shard->error, sizeof(report->error));
    memcpy(report->waiting, shard->waiting, sizeof(report->waiting));
    sim_snapshot_report(shard, &report->snapshot);
    report->has_word = shard->has_word;
    report->word = shard->word;
    if (count > 0) {
        report->records = sim_alloc(count * sizeof(*report->records));
        memcpy(report->records, &shard->records[leader->cursor], count * sizeof(*report->records));
    }
    report->record_count = count;
    if (sim_stream_open_for(shard->sim, leader->stream, SIM_SERVER)) {
        leader->cursor += count;
    }
    sim_stream_send(shard->sim, leader->stream, SIM_SERVER, report);
}

void sim_shard_report_all(struct sim_shard *shard)
{
    for (size_t i = 0; i < SIM_LEADERS_MAX; i++) {
        if (shard->leaders[i].stream != 0 && shard->leaders[i].greeted) {
            send_report(shard, &shard->leaders[i], false);
        }
    }
}

static void report_due(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

static void start_timer(struct sim_shard *shard)
{
    shard->timer = true;
    sim_after(shard->sim, KELP_PS_REPORT_MS * SIM_MS,
              &(struct sim_call){.process = shard->process, .run = report_due});
}

static void report_due(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    (void)sim;
    (void)data;
    (void)number;
    shard->timer = false;
    if (!shard->dirty) {
        return;
    }
    shard->dirty = false;
    for (size_t i = 0; i < SIM_LEADERS_MAX; i++) {
        struct sim_leader_stream *leader = &shard->leaders[i];
        if (leader->stream != 0 && leader->greeted) {
            send_report(shard, leader, false);
            shard->dirty = shard->dirty || leader->cursor < shard->record_count;
        }
    }
    start_timer(shard);
}

void sim_shard_mark_dirty(struct sim_shard *shard)
{
    shard->dirty = true;
    if (!shard->timer) {
        start_timer(shard);
    }
}

static bool is_for_the_files(const struct kelp_record *record)
{
    return record->epoch_end || record->digest[0] != '\0' ||
           record->word.kind == KELP_STEP_EVALUATE_VAL ||
           record->word.kind == KELP_STEP_EVALUATE_TEST;
}

void sim_shard_record(struct sim_shard *shard, const struct kelp_record *record,
                      const struct kelp_control_word *word)
{
    if (is_for_the_files(record)) {
        shard->records = sim_grow(shard->records, shard->record_count, &shard->record_capacity,
                                  sizeof(*shard->records));
        shard->records[shard->record_count++] = *record;
    }
    shard->has_word = true;
    shard->word = *word;
    sim_shard_mark_dirty(shard);
}

/* ---- generations -------------------------------------------------------------------------------
 */

static void begin_generation(struct sim_shard *shard, struct sim_hosting *hosting)
{
    struct kelp_partition_view view;
    struct sim_hosting *before = shard->hosting;
    shard->hosting = hosting;
    if (before) {
        sim_hosting_retire(before);
    }
    shard->record_count = 0;
    shard->has_word = hosting->by_index[0] != NULL;
    if (shard->has_word) {
        kelp_partition_view(hosting->by_index[0]->core, &view);
        shard->word = view.word;
    }
    shard->status = KELP_OK;
    shard->error[0] = '\0';
    for (size_t i = 0; i < SIM_LEADERS_MAX; i++) {
        shard->leaders[i].cursor = 0;
    }
    sim_invariants_loaded(shard->process, hosting);
    sim_snapshot_generation(shard);
    sim_say(shard->sim, shard->process, "has loaded generation %llu: %u partitions",
            (unsigned long long)hosting->generation, hosting->count);
}

static void load_now(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

static void load_later(struct sim_shard *shard, uint64_t delay_us)
{
    sim_after(shard->sim, delay_us, &(struct sim_call){.process = shard->process, .run = load_now});
}

/* A newer map takes the place of the one that is being loaded. */
static void load_wanted(struct sim_shard *shard)
{
    sim_map_unref(shard->loading);
    sim_manifest_unref(shard->loading_manifest);
    shard->loading = shard->wanted;
    shard->loading_manifest = shard->wanted_manifest;
    shard->wanted = NULL;
    shard->wanted_manifest = NULL;
    shard->waiting[0] = '\0';
    if (shard->loading) {
        load_later(shard, sim_between(shard->sim, SIM_MS, 60 * SIM_MS));
    }
}

static void fail(struct sim_shard *shard, kelp_status status, const char *text)
{
    if (shard->status == KELP_OK) { /* the first one is the cause */
        shard->status = status;
        (void)snprintf(shard->error, sizeof(shard->error), "%s: %s", text,
                       kelp_status_text(status));
    }
}

static void load_now(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    kelp_status status = KELP_OK;
    char text[80] = "";
    (void)sim;
    (void)data;
    (void)number;
    struct sim_hosting *hosting =
        sim_hosting_create(shard, &shard->loading->map, shard->loading_manifest, &status, text);
    if (status == KELP_ERR_NOT_FOUND && !shard->wanted) {
        if (shard->waiting[0] == '\0') {
            sim_say(sim, process, "waits for %s", text);
        }
        memcpy(shard->waiting, text, sizeof(text));
        sim_shard_mark_dirty(shard);
        load_later(shard, KELP_PS_STORAGE_LOOK_MS * SIM_MS);
        return;
    }
    if (hosting) {
        begin_generation(shard, hosting);
    } else if (!shard->wanted) {
        sim_say(sim, process, "cannot load %s: %s", text, kelp_status_text(status));
        fail(shard, status, text);
    }
    load_wanted(shard);
    sim_shard_report_all(shard);
    sim_shard_end_turn(shard);
}

static bool names_another_of_us(const struct sim_shard *shard, const struct kelp_map *map)
{
    int32_t at = kelp_map_find(map, shard->process->id);
    return at >= 0 && map->shards[at].incarnation != shard->process->incarnation;
}

static uint64_t newest_generation(const struct sim_shard *shard)
{
    if (shard->wanted) {
        return shard->wanted->map.generation;
    }
    return shard->loading ? shard->loading->map.generation : sim_shard_generation(shard);
}

static bool hosts_any(const struct sim_shard *shard, const struct kelp_map *map)
{
    int32_t at = kelp_map_find(map, shard->process->id);
    return at >= 0 && kelp_map_load(map, (uint32_t)at) > 0;
}

static void take_map(struct sim_shard *shard, struct sim_map *map, struct sim_manifest *manifest)
{
    if (names_another_of_us(shard, &map->map) ||
        kelp_fence_generation(newest_generation(shard), map->map.generation) != KELP_ERR_BUSY) {
        return;
    }
    if (map->map.restore_version > 0 && !manifest && hosts_any(shard, &map->map)) {
        sim_fail(shard->sim, "a map comes with what it restores",
                 "%s gets no manifest with generation %llu", shard->process->id,
                 (unsigned long long)map->map.generation);
    }
    sim_say(shard->sim, shard->process, "takes the map of generation %llu",
            (unsigned long long)map->map.generation);
    sim_map_unref(shard->wanted);
    sim_manifest_unref(shard->wanted_manifest);
    shard->wanted = sim_map_ref(map);
    shard->wanted_manifest = manifest ? sim_manifest_ref(manifest) : NULL;
    sim_snapshot_cancel(shard);
    shard->status = KELP_OK; /* what became of the generation before is not said of the new one */
    shard->error[0] = '\0';
    if (!shard->loading) {
        load_wanted(shard);
    }
}

/* ---- streams -----------------------------------------------------------------------------------
 */

static struct sim_leader_stream *find(struct sim_shard *shard, uint64_t stream)
{
    for (size_t i = 0; i < SIM_LEADERS_MAX; i++) {
        if (shard->leaders[i].stream == stream) {
            return &shard->leaders[i];
        }
    }
    return NULL;
}

static void on_accept(struct sim *sim, struct sim_process *process, uint64_t stream)
{
    struct sim_leader_stream *leader = find(sim_shard_of(process), 0);
    if (!leader) {
        sim_stream_close(sim, stream, SIM_SERVER);
        return;
    }
    *leader = (struct sim_leader_stream){.stream = stream};
}

static void greet(struct sim_shard *shard, struct sim_leader_stream *leader,
                  const struct sim_shard_command *command)
{
    leader->greeted = true;
    while (leader->cursor < shard->record_count &&
           shard->records[leader->cursor].word.version < command->records_after) {
        leader->cursor++;
    }
}

static void on_message(struct sim *sim, struct sim_process *process, uint64_t stream,
                       struct sim_message *message, bool stray)
{
    struct sim_shard *shard = sim_shard_of(process);
    struct sim_leader_stream *leader = find(shard, stream);
    const struct sim_shard_command *command = (const struct sim_shard_command *)message;
    (void)sim;
    (void)stray; /* control streams are not doubled */
    if (!leader) {
        return;
    }
    bool first = !leader->greeted;
    if (first) {
        greet(shard, leader, command);
    }
    shard->plan = shard->plan || command->plan;
    if (command->map && shard->plan) {
        take_map(shard, command->map, command->manifest);
    }
    leader->heartbeat = command->heartbeat;
    send_report(shard, leader, first);
    if (command->has_order && command->give_up) {
        sim_snapshot_give_up(shard, &command->order);
    } else if (command->has_order) {
        sim_snapshot_order(shard, &command->order, command->folder);
        sim_shard_end_turn(shard);
    }
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct sim_leader_stream *leader = find(sim_shard_of(process), stream);
    (void)sim;
    (void)broken;
    if (leader) {
        leader->stream = 0;
    }
}

const struct sim_stream_events sim_control_server = {
    .accept = on_accept, .message = on_message, .closed = on_closed};
