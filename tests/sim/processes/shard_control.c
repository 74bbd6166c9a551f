#include "tests/sim/processes/shard_control.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/processes/shard_replicas.h"
#include "tests/sim/processes/shard_snapshot.h"

#define REPORT_RECORDS_MAX 16 /* few, so that records need more than one report */

/* ---- reports ---- */

static void send_report(struct sim_shard *shard, const struct kelp_shard_action *action)
{
    struct sim_shard_report *report = sim_message_create(SIM_SHARD_REPORT, sizeof(*report));
    const size_t count = action->report.record_count;
    struct kelp_shard_control_view view;
    kelp_shard_control_view(shard->control, &view);
    report->incarnation = action->report.hello ? shard->process->incarnation : 0;
    report->heartbeat = action->report.heartbeat;
    report->loaded_generation = view.generation;
    report->status = view.status;
    (void)snprintf(report->error, sizeof(report->error), "%s", view.error);
    (void)snprintf(report->waiting, sizeof(report->waiting), "%s", view.waiting);
    sim_snapshot_report(shard, &view.snapshot, &report->snapshot);
    report->has_word = view.word != NULL;
    if (view.word) {
        report->word = *view.word;
    }
    if (count > 0) {
        report->records = sim_alloc(count * sizeof(*report->records));
        memcpy(report->records, &view.records[action->report.record_first],
               count * sizeof(*report->records));
    }
    report->record_count = count;
    report->map_generation = view.map_generation;
    report->map_serial = view.map_serial;
    report->replica_count = sim_replicas_report(shard, report->replicas);
    report->peer_count = sim_replicas_peers(shard, report->peers);
    report->standing = action->report.standing;
    report->leaving = shard->leaving;
    report->workers = shard->worked;
    shard->worked = 0;
    if (!sim_stream_open_for(shard->sim, action->report.stream, SIM_SERVER)) {
        struct kelp_shard_event event = {
            .kind = KELP_SHARD_ON_UNSENT,
            .unsent = {action->report.stream, action->report.record_first}};
        (void)sim_control_apply(shard, &event);
    }
    sim_stream_send(shard->sim, action->report.stream, SIM_SERVER, report);
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
    (void)sim_control_apply(shard, &(struct kelp_shard_event){.kind = KELP_SHARD_ON_TIMER});
    if (shard->timer) {
        start_timer(shard);
    }
}

/* ---- generations ---- */

static void free_load(struct sim_load *load)
{
    if (load) {
        sim_map_unref(load->map);
        sim_manifest_unref(load->manifest);
        free(load);
    }
}

static void load_now(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

static void load_later(struct sim_shard *shard, uint64_t delay_us)
{
    sim_after(shard->sim, delay_us, &(struct sim_call){.process = shard->process, .run = load_now});
}

static void load_over(struct sim_shard *shard, const struct kelp_shard_loaded *loaded)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_LOADED, .loaded = *loaded};
    free_load(shard->loading);
    shard->loading = NULL;
    (void)sim_control_apply(shard, &event);
    sim_shard_end_turn(shard);
}

/* The newest map, if it is of the generation that is served. */
static void enter_map(struct sim_shard *shard)
{
    uint32_t partitions[SIM_PARTITIONS_MAX];
    struct kelp_partition_view view;
    if (!shard->map || sim_shard_generation(shard) != shard->map->map.generation) {
        return;
    }
    sim_hosting_enter(shard->hosting, &shard->map->map);
    sim_shard_heard(shard); /* perhaps a version is visible now */
    sim_replicas_connect(shard);
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_ENTERED,
        .entered = {shard->map->map.generation, shard->map->map.serial,
                    sim_hosting_led(shard->hosting, partitions, &view)}};
    (void)sim_control_apply(shard, &event);
}

static void begin_generation(struct sim_shard *shard, struct sim_hosting *hosting)
{
    struct sim_hosting *before = shard->hosting;
    struct kelp_partition_view view;
    uint32_t partitions[SIM_PARTITIONS_MAX];
    struct kelp_shard_loaded loaded = {.led = sim_hosting_led(hosting, partitions, &view)};
    shard->hosting = hosting;
    if (before) {
        sim_hosting_retire(before);
    }
    sim_invariants_loaded(shard->process, hosting);
    sim_say(shard->sim, shard->process, "has loaded generation %llu: leads %u partitions",
            (unsigned long long)hosting->generation, loaded.led.partition_count);
    load_over(shard, &loaded);
    for (uint32_t p = 0; p < hosting->partition_count; p++) {
        if (hosting->by_index[p]) {
            sim_replicas_name_links(hosting, &hosting->hosted[p]);
        }
    }
    enter_map(shard);
    sim_shard_end_turn(shard);
}

static bool waits_for_storage(struct sim_shard *shard, const char *text)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_STORAGE_MISSING,
                                     .missing = {text, sim_ms(shard->sim)}};
    return sim_control_apply(shard, &event) == KELP_OK;
}

static void load_now(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    struct sim_load *load = shard->loading;
    kelp_status status = KELP_OK;
    char text[80] = "";
    (void)data;
    (void)number;
    struct sim_hosting *hosting =
        sim_hosting_create(shard, &load->map->map, load->manifest, &status, text);
    if (hosting) {
        begin_generation(shard, hosting);
    } else if (status == KELP_ERR_NOT_FOUND && !load->cancelled && waits_for_storage(shard, text)) {
        load_later(shard, KELP_PS_STORAGE_LOOK_MS * SIM_MS);
    } else {
        sim_say(sim, process, "cannot load %s: %s", text, kelp_status_text(status));
        load_over(shard, &(struct kelp_shard_loaded){.status = status, .text = text});
    }
}

static void start_load(struct sim_shard *shard)
{
    shard->loading = shard->wanted;
    shard->wanted = NULL;
    load_later(shard, sim_between(shard->sim, SIM_MS, 60 * SIM_MS));
}

/* ---- what follows ---- */

static void log_news(struct sim_shard *shard, enum kelp_shard_news news)
{
    struct kelp_shard_control_view view;
    kelp_shard_control_view(shard->control, &view);
    switch (news) {
    case KELP_SHARD_NEWS_FAILED:
        sim_say(shard->sim, shard->process, "cannot go on: %s", view.error);
        break;
    case KELP_SHARD_NEWS_MISSING:
        sim_say(shard->sim, shard->process, "waits for %s", view.waiting);
        break;
    case KELP_SHARD_NEWS_SNAPSHOT:
        sim_snapshot_say(shard, &view.snapshot);
        break;
    }
}

static void carry_out(struct sim_shard *shard, const struct kelp_shard_action *action)
{
    switch (action->kind) {
    case KELP_SHARD_DO_REPORT:
        send_report(shard, action);
        break;
    case KELP_SHARD_DO_LOAD:
        start_load(shard);
        break;
    case KELP_SHARD_DO_CANCEL_LOAD:
        shard->loading->cancelled = true;
        break;
    case KELP_SHARD_DO_START_TIMER:
        start_timer(shard);
        break;
    case KELP_SHARD_DO_STOP_TIMER:
        shard->timer = false;
        break;
    case KELP_SHARD_DO_SNAPSHOT:
        sim_snapshot_act(shard, &action->snapshot);
        break;
    case KELP_SHARD_DO_LOG:
        log_news(shard, action->news);
        break;
    case KELP_SHARD_DO_GIVE_WAY:
        sim_stream_close(shard->sim, action->stream, SIM_SERVER);
        break;
    }
}

kelp_status sim_control_apply(struct sim_shard *shard, const struct kelp_shard_event *event)
{
    struct kelp_shard_actions actions;
    actions.count = 0;
    kelp_status status = kelp_shard_control_apply(shard->control, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        carry_out(shard, &actions.items[i]);
    }
    return status;
}

/* ---- streams ---- */

static bool names_another_of_us(const struct sim_shard *shard, const struct kelp_map *map)
{
    int32_t at = kelp_map_find(map, shard->process->id);
    return at >= 0 && map->shards[at].incarnation != shard->process->incarnation;
}

/* As primary or backup: joiners get copies of what others have. */
static bool reads_any(const struct sim_shard *shard, const struct kelp_map *map)
{
    int32_t at = kelp_map_find(map, shard->process->id);
    for (uint32_t p = 0; at >= 0 && p < map->partition_count; p++) {
        const struct kelp_map_partition *entry = &map->partitions[p];
        if (entry->primary == (uint32_t)at || entry->backup == (uint32_t)at) {
            return true;
        }
    }
    return false;
}

/* Its generation and serial go into the command when it is to be taken. */
static void take_map(struct sim_shard *shard, struct sim_map *map, struct sim_manifest *manifest,
                     struct kelp_shard_command *command)
{
    const uint64_t generation = map->map.generation;
    if (kelp_shard_control_judge(shard->control, generation, map->map.serial,
                                 names_another_of_us(shard, &map->map)) != KELP_OK) {
        return;
    }
    const bool reads = reads_any(shard, &map->map);
    const bool changes = kelp_shard_control_changes(shard->control, generation, reads);
    if (!changes && map->map.restore_version > 0 && !manifest && reads) {
        sim_fail(shard->sim, "a map comes with what it restores",
                 "%s gets no manifest with generation %llu", shard->process->id,
                 (unsigned long long)generation);
    }
    sim_say(shard->sim, shard->process, "takes the map of generation %llu, serial %llu",
            (unsigned long long)generation, (unsigned long long)map->map.serial);
    sim_map_unref(shard->map);
    shard->map = sim_map_ref(map);
    command->map_generation = generation;
    command->map_serial = map->map.serial;
    command->map_reads = reads;
    if (!changes) {
        free_load(shard->wanted);
        shard->wanted = sim_alloc(sizeof(*shard->wanted));
        *shard->wanted = (struct sim_load){
            .map = sim_map_ref(map), .manifest = manifest ? sim_manifest_ref(manifest) : NULL};
    }
}

static void on_accept(struct sim *sim, struct sim_process *process, uint64_t stream)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_CONNECT, .stream = stream};
    (void)sim;
    (void)sim_control_apply(sim_shard_of(process), &event);
}

/* ---- who leads ---- */

static void print_proof(uint64_t proof, char text[24])
{
    (void)snprintf(text, 24, "%llu", (unsigned long long)proof);
}

static kelp_status prove(struct sim_shard *shard, uint64_t stream, uint64_t proof)
{
    char text[24];
    print_proof(proof, text);
    return sim_control_apply(
        shard, &(struct kelp_shard_event){.kind = KELP_SHARD_ON_HELLO, .hello = {stream, text}});
}

/* Its first message is carried out once etcd says that it leads. */
static void hold(struct sim_shard *shard, uint64_t stream, const struct sim_shard_command *command)
{
    shard->held[shard->held_count++ % SIM_HELD_MAX] =
        (struct sim_held){.stream = stream,
                          .records_after = command->records_after,
                          .proof = command->proof,
                          .plan = command->plan};
    sim_say(shard->sim, shard->process, "lets a coordinator wait: etcd names another leader");
}

static void let_in(struct sim_shard *shard, const struct sim_held *held)
{
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_COMMAND,
        .command = {.stream = held->stream, .records_after = held->records_after}};
    shard->plan = shard->plan || held->plan;
    (void)sim_control_apply(shard, &event);
    sim_shard_end_turn(shard);
}

static void on_leader(struct sim *sim, struct sim_process *process, const struct sim_key *key)
{
    struct sim_shard *shard = sim_shard_of(process);
    char text[24];
    (void)sim;
    print_proof(key->value->holder, text);
    (void)sim_control_apply(
        shard, &(struct kelp_shard_event){.kind = KELP_SHARD_ON_LEADER, .leader = text});
    for (size_t i = 0; i < SIM_HELD_MAX; i++) {
        struct sim_held held = shard->held[i];
        if (held.stream != 0 && prove(shard, held.stream, held.proof) == KELP_OK) {
            shard->held[i].stream = 0;
            let_in(shard, &held);
        }
    }
}

static void on_leader_gone(struct sim *sim, struct sim_process *process, const char *key)
{
    (void)sim; /* the one before is obeyed until another one leads */
    (void)process;
    (void)key;
}

static const struct sim_watch_events leader_events = {.changed = on_leader,
                                                      .removed = on_leader_gone};

static void take_order(struct sim_shard *shard, uint64_t stream,
                       const struct sim_shard_command *command)
{
    const struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_ORDER,
        .order = {.stream = stream,
                  .order = &command->order,
                  .share = {.partitions = command->order_partitions,
                            .count = command->order_count,
                            .elsewhere = command->order_incarnation != shard->process->incarnation},
                  .give_up = command->give_up}};
    if (!command->give_up) {
        sim_invariants_ordered(shard->process, &command->order, command->folder);
    }
    memcpy(shard->folder, command->folder, sizeof(shard->folder));
    (void)sim_control_apply(shard, &event);
    sim_snapshot_hand_out(shard, command->order_partitions, command->order_count);
}

static void on_message(struct sim *sim, struct sim_process *process, uint64_t stream,
                       struct sim_message *message, bool stray)
{
    struct sim_shard *shard = sim_shard_of(process);
    const struct sim_shard_command *command = (const struct sim_shard_command *)message;
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_COMMAND,
                                     .command = {.stream = stream,
                                                 .heartbeat = command->heartbeat,
                                                 .records_after = command->records_after}};
    (void)stray; /* control streams are not doubled */
    if (command->hello && prove(shard, stream, command->proof) != KELP_OK) {
        hold(shard, stream, command);
        return;
    }
    if (!kelp_shard_control_obeys(shard->control, stream)) {
        sim_stream_close(sim, stream, SIM_SERVER);
        return;
    }
    shard->plan = shard->plan || command->plan;
    if (command->map && !shard->plan) {
        sim_fail(sim, "a map comes after the plan", "%s has none", process->id);
    }
    if (command->map) {
        take_map(shard, command->map, command->manifest, &event.command);
    }
    if (command->heartbeat != 0) {
        event.command.standing = sim_hosting_standing(shard->hosting);
    }
    (void)sim_control_apply(shard, &event);
    if (event.command.map_generation != 0) {
        enter_map(shard);
    }
    if (command->has_order) {
        take_order(shard, stream, command);
    }
    sim_shard_end_turn(shard);
    if (command->leave[0] != '\0') {
        sim_invariants_leaves(process, command->leave);
        sim_shard_leave(shard, command->leave); /* it is no more */
    }
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_CLOSE, .stream = stream};
    struct sim_shard *shard = sim_shard_of(process);
    (void)sim;
    (void)broken;
    for (size_t i = 0; i < SIM_HELD_MAX; i++) {
        shard->held[i].stream = shard->held[i].stream == stream ? 0 : shard->held[i].stream;
    }
    (void)sim_control_apply(shard, &event);
}

const struct sim_stream_events sim_control_server = {
    .accept = on_accept, .message = on_message, .closed = on_closed};

/* ---- life ---- */

void sim_control_open(struct sim_shard *shard)
{
    const struct kelp_shard_control_config config = {.report_records_max = REPORT_RECORDS_MAX,
                                                     .storage_wait_ms =
                                                         shard->sim->job.failure.storage_wait_ms};
    if (kelp_shard_control_create(&config, &shard->control, NULL) != KELP_OK) {
        abort();
    }
    shard->leader_watch = sim_etcd_watch(shard->sim, shard->process, "coordinator", &leader_events);
}

void sim_control_close(struct sim_shard *shard)
{
    sim_etcd_unwatch(shard->sim, shard->leader_watch);
    kelp_shard_control_destroy(shard->control);
    free_load(shard->loading);
    free_load(shard->wanted);
    sim_map_unref(shard->map);
}
