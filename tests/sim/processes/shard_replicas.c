#include "tests/sim/processes/shard_replicas.h"

#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"
#include "tests/sim/invariants.h"
#include "tests/sim/processes/shard_control.h"

#define RETRY_US (50 * SIM_MS)
#define FIRST_MS 1000

/* ---- links ---- */

/* process 0: a free place. */
static struct sim_replica_link *find(struct sim_shard *shard, uint64_t process, bool is_primary)
{
    for (size_t i = 0; i < SIM_REPLICA_LINKS_MAX; i++) {
        struct sim_replica_link *link = &shard->links[i];
        if (link->process == process && (process == 0 || link->is_primary == is_primary)) {
            return link;
        }
    }
    return NULL;
}

static struct sim_replica_link *link_on(struct sim_shard *shard, uint64_t stream)
{
    for (size_t i = 0; i < SIM_REPLICA_LINKS_MAX; i++) {
        if (stream != 0 && shard->links[i].process != 0 && shard->links[i].stream == stream) {
            return &shard->links[i];
        }
    }
    return NULL;
}

static struct sim_replica_link *add_link(struct sim_shard *shard, uint64_t process, bool is_primary,
                                         uint32_t place)
{
    struct sim_replica_link *link = find(shard, 0, false);
    if (!link) {
        abort(); /* there are few processes */
    }
    *link = (struct sim_replica_link){
        .process = process, .is_primary = is_primary, .place = place, .heard_us = shard->sim->now};
    return link;
}

static void changed(struct sim_hosting *hosting, struct sim_hosted *hosted, uint64_t process,
                    bool is_up)
{
    sim_hosting_tell_time(hosting, hosted);
    sim_must(kelp_partition_linked(hosted->core, process, is_up, &hosting->actions));
    sim_hosting_run(hosting, hosted);
}

/* All partitions that this link is about. */
static void link_changed(struct sim_shard *shard, const struct sim_replica_link *link)
{
    const struct sim_replica_link now = *link;
    struct sim_hosting *hosting = shard->hosting;
    for (uint32_t p = 0; hosting && p < hosting->partition_count; p++) {
        struct sim_hosted *hosted = hosting->by_index[p];
        if (hosted && now.is_primary && hosted->primary == now.process) {
            hosted->filling = 0;
            changed(hosting, hosted, 0, now.is_up);
        } else if (hosted && !now.is_primary && hosted->primary == 0) {
            if (hosted->copying && hosted->copying_to == now.process) {
                sim_replicas_stop_copy(hosted);
            }
            changed(hosting, hosted, now.process, now.is_up);
        }
    }
    sim_shard_heard(shard);
}

void sim_replicas_name_links(struct sim_hosting *hosting, struct sim_hosted *hosted)
{
    for (size_t i = 0; i < SIM_REPLICA_LINKS_MAX; i++) {
        const struct sim_replica_link link = hosting->shard->links[i];
        if (link.process != 0 && link.is_up && link.is_primary == (hosted->primary != 0) &&
            (!link.is_primary || hosted->primary == link.process)) {
            changed(hosting, hosted, link.is_primary ? 0 : link.process, true);
        }
    }
}

static void open_link(struct sim_shard *shard, struct sim_replica_link *link)
{
    link->stream = sim_stream_open(shard->sim, shard->process, &shard->sim->processes[link->place],
                                   SIM_REPLICATE, FIRST_MS);
}

static bool is_wanted(const struct sim_shard *shard, uint64_t process)
{
    const struct kelp_map *map = &shard->map->map;
    for (uint32_t p = 0; p < map->partition_count; p++) {
        uint64_t primary;
        const struct kelp_replica_entry entry = sim_hosting_entry(shard, map, p, &primary);
        if (process != 0 && (entry.backup == process || entry.joiner == process)) {
            return true;
        }
    }
    return false;
}

static void retry(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    struct sim_replica_link *link = find(shard, number, false);
    (void)sim;
    (void)data;
    if (link && link->stream == 0) {
        if (is_wanted(shard, number)) {
            open_link(shard, link);
        } else {
            link->process = 0;
        }
    }
}

void sim_replicas_connect(struct sim_shard *shard)
{
    const struct kelp_map *map = &shard->map->map;
    for (uint32_t i = 0; i < map->shard_count; i++) {
        const struct kelp_map_shard *at = &map->shards[i];
        if (is_wanted(shard, at->incarnation) && !find(shard, at->incarnation, false)) {
            open_link(shard, add_link(shard, at->incarnation, false,
                                      sim_find_id(shard->sim, at->id)->place));
        }
    }
}

/* ---- what leaves ---- */

static struct sim_replica_message *message_of(const struct sim_hosting *hosting,
                                              const struct sim_hosted *hosted,
                                              enum sim_replica_kind kind, uint64_t map_epoch)
{
    struct sim_replica_message *message = sim_message_create(SIM_REPLICA, sizeof(*message));
    message->kind = kind;
    message->process = hosting->shard->process->incarnation;
    message->partition = hosted->index;
    message->generation = hosting->generation;
    message->map_epoch = map_epoch;
    return message;
}

static void send_to(struct sim_shard *shard, uint64_t process, bool is_primary, void *message)
{
    const struct sim_replica_link *link = find(shard, process, is_primary);
    if (link && link->is_up) {
        sim_stream_send(shard->sim, link->stream, is_primary ? SIM_SERVER : SIM_CLIENT, message);
    } else {
        sim_message_unref(message);
    }
}

static void forward(struct sim_hosting *hosting, const struct sim_hosted *hosted,
                    const struct kelp_action *action)
{
    const struct kelp_forward *root = &action->forward.forward;
    struct sim_replica_message *message =
        message_of(hosting, hosted, SIM_REPLICA_FORWARD, root->map_epoch);
    message->forward = *root;
    if (root->sums) {
        memcpy(message->sums, root->sums, root->sum_count * sizeof(root->sums[0]));
    }
    (void)snprintf(message->digest, sizeof(message->digest), "%s", root->digest);
    message->claim_count = kelp_partition_claims(hosted->core, &root->word, message->claims);
    message->values.count = root->decision.count;
    if (root->decision.count > 0) {
        memcpy(message->values.values, root->decision.values,
               root->decision.count * sizeof(root->decision.values[0]));
    }
    if (root->handle != KELP_HANDLE_NONE) {
        const struct sim_gradient *gradient = sim_hosting_values(hosting, root->handle);
        message->has_root = true;
        message->lanes = gradient->lanes;
        memcpy(message->root, gradient->values, sizeof(message->root));
    }
    send_to(hosting->shard, action->forward.process, false, message);
}

void sim_replicas_stop_copy(struct sim_hosted *hosted)
{
    if (hosted->copying) {
        sim_message_unref(hosted->copying);
        hosted->copying = NULL;
    }
}

/* number: partition * 2^32 + the low half of the partition's state. */
static void send_rest(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    struct sim_hosted *hosted = shard->hosting ? shard->hosting->by_index[number >> 32] : NULL;
    (void)sim;
    (void)data;
    if (hosted && hosted->copying &&
        (hosted->copying->map_epoch & UINT32_MAX) == (number & UINT32_MAX)) {
        struct sim_replica_message *rest = hosted->copying;
        hosted->copying = NULL;
        send_to(shard, hosted->copying_to, false, rest);
    }
}

/* Half of it at once, the rest later: steps go on meanwhile. */
static void put_known(const struct sim_hosted *hosted, struct sim_replica_message *message)
{
    struct sim_known *known = sim_alloc(KELP_PS_EVIDENCE_ENTRIES * sizeof(*known));
    message->known = known;
    for (uint32_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES; i++) {
        known[i].claim_count =
            kelp_partition_known(hosted->core, i, &known[i].word, known[i].claims);
    }
}

static void send_copy(struct sim_hosting *hosting, struct sim_hosted *hosted,
                      const struct kelp_action *action)
{
    struct sim_shard *shard = hosting->shard;
    const struct kelp_replica_state *state = &action->copy.state;
    struct kelp_shard_control_view view;
    struct sim_replica_message *rest =
        message_of(hosting, hosted, SIM_REPLICA_COPY, action->copy.map_epoch);
    struct sim_replica_message *piece =
        message_of(hosting, hosted, SIM_REPLICA_PIECE, action->copy.map_epoch);
    kelp_shard_control_view(shard->control, &view);
    piece->state.held = state->held;
    rest->state = *state;
    rest->values.count = state->decided.count;
    if (state->decided.count > 0) {
        memcpy(rest->values.values, state->decided.values,
               state->decided.count * sizeof(state->decided.values[0]));
    }
    put_known(hosted, rest);
    rest->step = hosted->step;
    memcpy(rest->weights[0], hosted->weights[hosted->current], sizeof(rest->weights[0]));
    memcpy(rest->weights[1], hosted->weights[1 - hosted->current], sizeof(rest->weights[1]));
    memcpy(rest->momentum, hosted->momentum, sizeof(rest->momentum));
    if (hosted->index == 0 && view.record_count > 0) {
        rest->records = sim_alloc(view.record_count * sizeof(*rest->records));
        memcpy(rest->records, view.records, view.record_count * sizeof(*rest->records));
        rest->record_count = view.record_count;
    }
    send_to(shard, action->copy.process, false, piece);
    sim_replicas_stop_copy(hosted);
    hosted->copying = rest;
    hosted->copying_to = action->copy.process;
    sim_after(shard->sim, sim_draw(shard->sim, 40 * SIM_MS),
              &(struct sim_call){.process = shard->process,
                                 .run = send_rest,
                                 .number = (uint64_t)hosted->index << 32 |
                                           (action->copy.map_epoch & UINT32_MAX)});
}

/* number: partition * 2^32 + the low half of the follower's name. */
static void permit(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    struct sim_hosted *hosted = shard->hosting ? shard->hosting->by_index[number >> 32] : NULL;
    (void)sim;
    (void)data;
    if (hosted) {
        sim_must(kelp_partition_copy(hosted->core, number & UINT32_MAX, &shard->hosting->actions));
        sim_hosting_run(shard->hosting, hosted);
        sim_shard_end_turn(shard);
    }
}

/* One primary applied a lie and was lost, the next one what the others had pushed. */
static void differs(struct sim_hosting *hosting, const struct sim_hosted *hosted)
{
    struct sim_shard *shard = hosting->shard;
    struct sim_lie *lie = &shard->sim->lie;
    if (!lie->told) {
        sim_fail(shard->sim, "replicas compute the same", "partition %u of %s", hosted->index,
                 shard->process->id);
    }
    shard->sim->counts[SIM_COUNT_REPLICAS_DIFFER]++;
    lie->found = true;
    lie->reported = true;
    (void)sim_control_apply(
        shard, &(struct kelp_shard_event){.kind = KELP_SHARD_ON_FAILURE,
                                          .failure = {KELP_ERR_MISMATCH, "two replicas differ"}});
}

void sim_replicas_act(struct sim_hosting *hosting, struct sim_hosted *hosted,
                      const struct kelp_action *action)
{
    struct sim_shard *shard = hosting->shard;
    struct sim_replica_message *message;
    if (hosting->retired) {
        return;
    }
    switch (action->kind) {
    case KELP_ACTION_FORWARD:
        forward(hosting, hosted, action);
        break;
    case KELP_ACTION_ASK:
        send_to(shard, action->ask.process, false,
                message_of(hosting, hosted, SIM_REPLICA_ASK, action->ask.map_epoch));
        break;
    case KELP_ACTION_ACKNOWLEDGE:
        message = message_of(hosting, hosted, SIM_REPLICA_STATE, action->acknowledge.map_epoch);
        message->said = action->acknowledge;
        message->said.process = shard->process->incarnation;
        send_to(shard, hosted->primary, true, message);
        break;
    case KELP_ACTION_WANT_COPY: /* a partition after the other, at a rate */
        sim_after(shard->sim, sim_draw(shard->sim, 20 * SIM_MS),
                  &(struct sim_call){.process = shard->process,
                                     .run = permit,
                                     .number = (uint64_t)hosted->index << 32 |
                                               (action->copy.process & UINT32_MAX)});
        break;
    case KELP_ACTION_COPY:
        shard->sim->counts[SIM_COUNT_COPY]++;
        send_copy(hosting, hosted, action);
        break;
    case KELP_ACTION_IN_SYNC:
        (void)sim_control_apply(shard, &(struct kelp_shard_event){.kind = KELP_SHARD_ON_REPLICAS});
        break;
    case KELP_ACTION_DIVERGES:
        sim_fail(shard->sim, "a follower has its primary's state", "partition %u of %s",
                 hosted->index, shard->process->id);
        break;
    case KELP_ACTION_DIFFERS:
        differs(hosting, hosted);
        break;
    default:
        break;
    }
}

/* ---- what comes in ---- */

static void take_forward(struct sim_hosting *hosting, struct sim_hosted *hosted,
                         const struct sim_replica_message *message)
{
    struct kelp_forward root = message->forward;
    root.handle = KELP_HANDLE_NONE;
    root.sums = hosted->index == 0 ? message->sums : NULL;
    root.digest = message->digest;
    root.claims = message->claims;
    root.claim_count = message->claim_count;
    root.decision = (struct kelp_step_decision){message->values.count, message->values.values};
    if (message->has_root) {
        root.handle =
            sim_hosting_gradient(hosting, message->root, hosted->range.count, message->lanes);
    }
    sim_must(kelp_partition_forwarded(hosted->core, &root, &hosting->actions));
}

static void take_records(struct sim_shard *shard, const struct sim_replica_message *message)
{
    struct kelp_partition_view view;
    kelp_partition_view(shard->hosting->hosted[0].core, &view);
    for (size_t i = 0; i < message->record_count; i++) {
        (void)sim_control_apply(
            shard, &(struct kelp_shard_event){
                       .kind = KELP_SHARD_ON_RECORD,
                       .record = {&message->records[i], &view.word,
                                  kelp_partition_best(shard->hosting->hosted[0].core)}});
    }
}

static void take_copy(struct sim_hosting *hosting, struct sim_hosted *hosted,
                      const struct sim_replica_message *message)
{
    struct kelp_replica_state state = message->state;
    const struct kelp_copy_piece piece = {.generation = message->generation,
                                          .map_epoch = message->map_epoch,
                                          .held = state.held,
                                          .stream = 1,
                                          .is_first = message->kind == SIM_REPLICA_PIECE};
    if (kelp_partition_fill(hosted->core, &piece, &hosting->actions) != KELP_OK) {
        return;
    }
    if (message->kind == SIM_REPLICA_PIECE) {
        hosted->filling = state.held + 1;
        return;
    }
    if (hosted->filling != state.held + 1) {
        return;
    }
    hosted->filling = 0;
    hosted->current = 0;
    hosted->step = message->step;
    memcpy(hosted->weights, message->weights, sizeof(hosted->weights));
    memcpy(hosted->momentum, message->momentum, sizeof(hosted->momentum));
    state.decided = (struct kelp_step_decision){message->values.count, message->values.values};
    struct kelp_forward known[KELP_PS_EVIDENCE_ENTRIES];
    state.known = known;
    state.known_count = 0;
    for (uint32_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES; i++) {
        known[i] = (struct kelp_forward){.word = message->known[i].word,
                                         .claims = message->known[i].claims,
                                         .claim_count = message->known[i].claim_count};
        state.known_count++;
    }
    sim_must(kelp_partition_filled(hosted->core, &piece, &state, &hosting->actions));
    sim_invariants_filled(hosting->shard->process, hosted, &state.control);
    if (hosted->index == 0) {
        take_records(hosting->shard, message);
    }
}

static void take(struct sim_shard *shard, const struct sim_replica_message *message)
{
    struct sim_hosting *hosting = shard->hosting;
    struct sim_hosted *hosted = hosting ? hosting->by_index[message->partition] : NULL;
    if (!hosted || message->kind == SIM_REPLICA_HELLO) {
        return;
    }
    sim_hosting_tell_time(hosting, hosted);
    switch (message->kind) {
    case SIM_REPLICA_FORWARD:
        take_forward(hosting, hosted, message);
        break;
    case SIM_REPLICA_ASK:
        sim_must(kelp_partition_asked(hosted->core, message->generation, message->map_epoch,
                                      &hosting->actions));
        break;
    case SIM_REPLICA_STATE:
        sim_must(kelp_partition_acknowledged(hosted->core, &message->said, &hosting->actions));
        break;
    case SIM_REPLICA_PIECE:
    case SIM_REPLICA_COPY:
        take_copy(hosting, hosted, message);
        break;
    case SIM_REPLICA_HELLO:
        break;
    }
    sim_hosting_run(hosting, hosted);
    sim_shard_heard(shard); /* perhaps a version is visible now */
    sim_shard_end_turn(shard);
}

/* ---- streams ---- */

static void on_accept(struct sim *sim, struct sim_process *process, uint64_t stream)
{
    struct sim_shard *shard = sim_shard_of(process);
    const struct sim_process *peer = sim_stream_peer(sim, stream, SIM_SERVER);
    struct sim_replica_message *hello = sim_message_create(SIM_REPLICA, sizeof(*hello));
    struct sim_replica_link *link = find(shard, peer->incarnation, true);
    if (!link) {
        link = add_link(shard, peer->incarnation, true, peer->place);
    } else if (link->stream != 0) {
        sim_stream_close(sim, link->stream, SIM_SERVER); /* a newer one takes its place */
    }
    link->stream = stream;
    link->is_up = true;
    hello->kind = SIM_REPLICA_HELLO;
    hello->process = process->incarnation;
    sim_stream_send(sim, stream, SIM_SERVER, hello);
    link_changed(shard, link);
    sim_shard_end_turn(shard);
}

static void on_message(struct sim *sim, struct sim_process *process, uint64_t stream,
                       struct sim_message *message, bool stray)
{
    struct sim_shard *shard = sim_shard_of(process);
    const struct sim_replica_message *replica = (const struct sim_replica_message *)message;
    struct sim_replica_link *link = link_on(shard, stream);
    (void)sim;
    if (stray) {
        if (replica->kind == SIM_REPLICA_FORWARD || replica->kind == SIM_REPLICA_STATE) {
            take(shard, replica);
        }
        return;
    }
    if (!link || replica->process != link->process) {
        return; /* of a stream before, or another incarnation answers: the map will say so */
    }
    if (!link->is_up && !link->is_primary) {
        link->is_up = true;
        link_changed(shard, link);
    }
    take(shard, replica);
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct sim_shard *shard = sim_shard_of(process);
    struct sim_replica_link *link = link_on(shard, stream);
    if (!link) {
        return;
    }
    const uint64_t peer = link->process;
    const bool was_up = link->is_up;
    link->broken = link->broken || broken;
    link->stream = 0;
    link->is_up = false;
    if (was_up) {
        link_changed(shard, link);
    }
    if (link->is_primary) {
        link->process = 0;
    } else {
        sim_after(sim, RETRY_US,
                  &(struct sim_call){.process = process, .run = retry, .number = peer});
    }
    sim_shard_end_turn(shard);
}

const struct sim_stream_events sim_replicate_server = {
    .accept = on_accept, .message = on_message, .closed = on_closed};
const struct sim_stream_events sim_replicate_client = {.message = on_message, .closed = on_closed};

/* ---- reports ---- */

/* Pings of a stream that is up are not simulated: what they would find is asked. */
size_t sim_replicas_peers(struct sim_shard *shard, struct sim_peer_report ret_peers[SIM_SHARDS_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < SIM_REPLICA_LINKS_MAX; i++) {
        struct sim_replica_link *link = &shard->links[i];
        const enum sim_side side = link->is_primary ? SIM_SERVER : SIM_CLIENT;
        if (link->process == 0) {
            continue;
        }
        if (link->stream != 0 && link->is_up && sim_stream_hears(shard->sim, link->stream, side)) {
            link->heard_us = shard->sim->now;
            link->broken = false;
        }
        const uint64_t silent_ms = (shard->sim->now - link->heard_us) / SIM_MS;
        if ((link->broken || silent_ms >= KELP_PS_PEER_SILENT_MS) && count < SIM_SHARDS_MAX) {
            ret_peers[count++] = (struct sim_peer_report){.place = link->place,
                                                          .incarnation = link->process,
                                                          .silent_ms = silent_ms,
                                                          .broken = link->broken};
        }
    }
    return count;
}

size_t sim_replicas_report(const struct sim_shard *shard,
                           struct kelp_replica_report ret_reports[SIM_PARTITIONS_MAX])
{
    size_t count = 0;
    for (uint32_t p = 0; shard->hosting && p < shard->hosting->partition_count; p++) {
        struct kelp_partition_view view;
        if (!shard->hosting->by_index[p]) {
            continue;
        }
        kelp_partition_view(shard->hosting->hosted[p].core, &view);
        if (view.place == KELP_REPLICA_PRIMARY &&
            (view.replication.has_backup || view.replication.has_joiner)) {
            ret_reports[count++] =
                (struct kelp_replica_report){.partition = p,
                                             .map_epoch = view.map_epoch,
                                             .backup_in_sync = view.replication.backup_in_sync,
                                             .joiner_in_sync = view.replication.joiner_in_sync};
        }
    }
    return count;
}
