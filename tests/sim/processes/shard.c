#include "tests/sim/processes/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"
#include "tests/sim/invariants.h"
#include "tests/sim/processes/shard_control.h"
#include "tests/sim/processes/supervisor.h"

#define LEASE_US  (5 * SIM_SECOND) /* ps/etcd_registration.c */
#define RETRY_US  (500 * SIM_MS)
#define GRACE_US  (15 * SIM_SECOND)
#define PLACE_MAX SIM_ETCD_KEY_MAX

struct sim_shard *sim_shard_of(const struct sim_process *process)
{
    return process->state;
}

uint64_t sim_shard_generation(const struct sim_shard *shard)
{
    return shard->hosting ? shard->hosting->generation : 0;
}

/* ---- replies: one for each stream and turn ---- */

static struct sim_reply *reply_to(struct sim_shard *shard, uint64_t stream)
{
    for (size_t i = 0; i < shard->outbox_count; i++) {
        if (shard->outboxes[i].stream == stream) {
            return shard->outboxes[i].reply;
        }
    }
    shard->outboxes = sim_grow(shard->outboxes, shard->outbox_count, &shard->outbox_capacity,
                               sizeof(*shard->outboxes));
    struct sim_reply *reply = sim_message_create(SIM_REPLY, sizeof(*reply));
    shard->outboxes[shard->outbox_count++] = (struct sim_outbox){.stream = stream, .reply = reply};
    return reply;
}

/* Who asked by an older map is told the newer entry. */
static void tell_entry(const struct sim_shard *shard, uint32_t partition, kelp_status status,
                       uint64_t *map_epoch, struct sim_told *told)
{
    const struct kelp_map *map = shard->map ? &shard->map->map : NULL;
    if (!map || map->generation != sim_shard_generation(shard) ||
        (status != KELP_ERR_NOT_PRIMARY && status != KELP_ERR_OLD_MAP_EPOCH)) {
        return;
    }
    const struct kelp_map_partition *entry = &map->partitions[partition];
    if (entry->map_epoch >= *map_epoch) {
        *map_epoch = entry->map_epoch;
        told->incarnation = map->shards[entry->primary].incarnation;
        (void)snprintf(told->shard, sizeof(told->shard), "%s", map->shards[entry->primary].id);
    }
}

void sim_shard_answer(struct sim_shard *shard, const struct sim_answer *answer)
{
    struct sim_reply *reply = reply_to(shard, answer->core.requester);
    reply->answers = sim_grow(reply->answers, reply->answer_count, &reply->answer_capacity,
                              sizeof(*reply->answers));
    struct sim_answer *to = &reply->answers[reply->answer_count++];
    *to = *answer;
    tell_entry(shard, to->partition, to->core.status, &to->map_epoch, &to->told);
}

void sim_shard_refuse(struct sim_shard *shard, uint32_t partition,
                      const struct kelp_refusal *refusal)
{
    struct sim_reply *reply = reply_to(shard, refusal->requester);
    sim_say(shard->sim, shard->process, "refuses a push of version %llu to partition %u: %s",
            (unsigned long long)refusal->version, partition, refusal->why);
    reply->refusals = sim_grow(reply->refusals, reply->refusal_count, &reply->refusal_capacity,
                               sizeof(*reply->refusals));
    struct sim_refusal *to = &reply->refusals[reply->refusal_count++];
    *to = (struct sim_refusal){.partition = partition, .core = *refusal};
    tell_entry(shard, partition, refusal->status, &to->core.map_epoch, &to->told);
}

void sim_shard_offer(struct sim_shard *shard, uint32_t partition, const struct kelp_offer *offer)
{
    struct sim_reply *reply = reply_to(shard, offer->requester);
    shard->sim->counts[SIM_COUNT_OFFER] += offer->lane_count;
    sim_say(shard->sim, shard->process,
            "offers lanes [%u, +%u) of version %llu, which partition %u lacks, to %s",
            offer->lane_first, offer->lane_count, (unsigned long long)offer->word.version,
            partition, sim_stream_peer(shard->sim, offer->requester, SIM_SERVER)->id);
    reply->offers =
        sim_grow(reply->offers, reply->offer_count, &reply->offer_capacity, sizeof(*reply->offers));
    reply->offers[reply->offer_count++] =
        (struct sim_offer){.partition = partition, .core = *offer};
}

void sim_shard_end_turn(struct sim_shard *shard)
{
    for (size_t i = 0; i < shard->outbox_count; i++) {
        shard->outboxes[i].reply->generation = sim_shard_generation(shard);
        sim_stream_send(shard->sim, shard->outboxes[i].stream, SIM_SERVER,
                        shard->outboxes[i].reply);
    }
    shard->outbox_count = 0;
}

/* ---- the data path ---- */

static void refuse(struct sim_shard *shard, uint32_t partition, uint64_t stream,
                   const struct sim_request *request)
{
    struct kelp_refusal refusal = kelp_refusal_not_hosted(
        sim_shard_generation(shard), request->generation, stream, request->word.version);
    sim_shard_refuse(shard, partition, &refusal);
}

static void push_node(struct sim_shard *shard, uint64_t stream, const struct sim_request *request,
                      const struct sim_push *push)
{
    if (shard->hosting && shard->hosting->by_index[push->partition]) {
        sim_hosting_push(shard->hosting, stream, request, push);
        return;
    }
    refuse(shard, push->partition, stream, request);
}

static void push_share(struct sim_shard *shard, uint64_t stream, const struct sim_request *request,
                       const struct sim_share_push *share)
{
    if (shard->hosting && shard->hosting->by_index[0]) {
        sim_hosting_share(shard->hosting, stream, request, share);
        return;
    }
    refuse(shard, 0, stream, request);
}

static void pull_weights(struct sim_shard *shard, uint64_t stream,
                         const struct sim_request *request, const struct sim_pull *pull)
{
    if (shard->hosting && shard->hosting->by_index[pull->pull.partition]) {
        sim_hosting_pull(shard->hosting, stream, request, pull);
        return;
    }
    struct kelp_pull core = {
        .requester = stream, .generation = request->generation, .step = pull->pull.step};
    struct sim_answer answer = {.partition = pull->pull.partition,
                                .core = kelp_answer_not_hosted(sim_shard_generation(shard), &core)};
    sim_shard_answer(shard, &answer);
}

/* ---- what is late ---- */

static void on_tick(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

static void start_ticking(struct sim_shard *shard)
{
    sim_after(
        shard->sim, shard->ticker.period_ms * SIM_MS,
        &(struct sim_call){.process = shard->process, .run = on_tick, .number = shard->tick_timer});
}

static void follow_ticker(struct sim_shard *shard, bool changed)
{
    if (changed) {
        shard->tick_timer++;
        if (shard->ticker.period_ms > 0) {
            start_ticking(shard);
        }
    }
}

void sim_shard_heard(struct sim_shard *shard)
{
    follow_ticker(shard, kelp_ticker_heard(&shard->ticker));
}

/* number: the timer's setting. */
static void on_tick(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    uint64_t next_us = UINT64_MAX;
    (void)data;
    if (shard->tick_timer != number) {
        return;
    }
    kelp_ticker_look(&shard->ticker);
    if (shard->hosting) {
        sim_hosting_tick(shard->hosting, &next_us);
        sim_shard_end_turn(shard);
    }
    bool changed = kelp_ticker_looked(&shard->ticker, sim->now, next_us);
    if (!changed) {
        start_ticking(shard); /* it is periodic */
    }
    follow_ticker(shard, changed);
}

static void set_spare(struct sim_shard *shard, uint64_t stream, const struct sim_request *request)
{
    struct kelp_cover_candidate spare = {.requester = stream, .rank = request->rank};
    if (!request->helps) {
        kelp_spares_remove(&shard->spares, stream);
    } else if (kelp_spares_add(&shard->spares, &spare) != KELP_OK) {
        abort();
    }
}

/* ---- streams of workers ---- */

static void on_accept(struct sim *sim, struct sim_process *process, uint64_t stream)
{
    struct sim_shard *shard = sim_shard_of(process);
    (void)sim;
    (void)reply_to(shard, stream); /* the first message is answered, if only by nothing */
    sim_shard_end_turn(shard);
}

static void on_message(struct sim *sim, struct sim_process *process, uint64_t stream,
                       struct sim_message *message, bool stray)
{
    struct sim_shard *shard = sim_shard_of(process);
    const struct sim_request *request = (const struct sim_request *)message;
    (void)sim;
    if (!stray) {
        set_spare(shard, stream, request);
        sim_shard_heard(shard);
    }
    for (size_t i = 0; i < request->push_count; i++) {
        push_node(shard, stream, request, &request->pushes[i]);
    }
    for (size_t i = 0; i < request->share_count; i++) {
        push_share(shard, stream, request, &request->shares[i]);
    }
    for (size_t i = 0; i < request->pull_count && !stray; i++) {
        pull_weights(shard, stream, request, &request->pulls[i]);
    }
    sim_shard_end_turn(shard);
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct sim_shard *shard = sim_shard_of(process);
    (void)sim;
    (void)broken;
    kelp_spares_remove(&shard->spares, stream);
    if (shard->hosting) {
        sim_hosting_drop(shard->hosting, stream);
    }
}

const struct sim_stream_events sim_exchange_server = {
    .accept = on_accept, .message = on_message, .closed = on_closed};

/* ---- registration ---- */

static void register_soon(struct sim_shard *shard, uint64_t delay_us);

/* Another process runs under our name: this one ends. */
static void replaced(struct sim *sim, struct sim_process *process)
{
    sim_say(sim, process, "ends: another process has registered under its name");
    sim_supervisor_ended(sim, process);
}

static void keep_lease(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    (void)data;
    if (shard->lease != number) {
        return;
    }
    bool reached =
        sim_etcd_reachable(sim, process) && !sim_chance(sim, sim->profile.etcd_rate, 2000);
    bool gone = reached ? !sim_etcd_keep_alive(sim, number) : sim->now - shard->kept_us >= LEASE_US;
    if (gone) {
        sim_say(sim, process, "finds that its lease is gone");
        shard->lease = 0;
        register_soon(shard, 0);
        return;
    }
    if (reached) {
        shard->kept_us = sim->now;
    }
    sim_after(sim, LEASE_US / 3,
              &(struct sim_call){.process = process, .run = keep_lease, .number = number});
}

static void on_changed(struct sim *sim, struct sim_process *process, const struct sim_key *key)
{
    if (strcmp(key->name + 3, process->id) == 0 && key->value->holder != process->incarnation) {
        replaced(sim, process);
    }
}

static void on_removed(struct sim *sim, struct sim_process *process, const char *key)
{
    struct sim_shard *shard = sim_shard_of(process);
    (void)sim;
    if (strcmp(key + 3, process->id) == 0 && shard->lease != 0) {
        shard->lease = 0;
        register_soon(shard, 0);
    }
}

static const struct sim_watch_events watch_events = {.changed = on_changed, .removed = on_removed};

static void on_put(struct sim *sim, struct sim_process *process, void *data,
                   const struct sim_outcome *outcome)
{
    struct sim_shard *shard = sim_shard_of(process);
    uint64_t lease = (uint64_t)(uintptr_t)data;
    if (outcome->status != KELP_OK || !outcome->succeeded) {
        register_soon(shard, RETRY_US);
        return;
    }
    sim_say(sim, process, "is registered");
    shard->lease = lease;
    shard->kept_us = sim->now;
    shard->registered_before = true;
    if (shard->watch == 0) {
        char key[PLACE_MAX + 1];
        (void)snprintf(key, sizeof(key), "ps/%s", process->id);
        shard->watch = sim_etcd_watch(sim, process, key, &watch_events);
    }
    sim_after(sim, LEASE_US / 3,
              &(struct sim_call){.process = process, .run = keep_lease, .number = lease});
}

static void put_entry(struct sim_shard *shard)
{
    struct sim *sim = shard->sim;
    struct sim_transaction transaction = {.operation_count = 1};
    struct sim_operation *put = &transaction.operations[0];
    put->value = sim_value_create();
    put->value->holder = shard->process->incarnation;
    put->value->place = shard->process->place;
    put->value->nonce = ++sim->incarnations;
    put->lease = sim_etcd_grant(sim, LEASE_US);
    (void)snprintf(put->key, sizeof(put->key), "ps/%s", shard->process->id);
    sim_etcd_submit(sim, shard->process, &transaction, on_put, (void *)(uintptr_t)put->lease);
}

/* After a lost lease somebody else may have come. */
static void look_for_entry(struct sim *sim, struct sim_process *process)
{
    char name[PLACE_MAX + 1];
    (void)snprintf(name, sizeof(name), "ps/%s", process->id);
    const struct sim_key *key = sim_etcd_look(sim, name);
    sim_shard_of(process)->is_replaced = key && key->value->holder != process->incarnation;
}

static void on_checked(struct sim *sim, struct sim_process *process, void *data,
                       const struct sim_outcome *outcome)
{
    struct sim_shard *shard = sim_shard_of(process);
    (void)data;
    if (outcome->status != KELP_OK) {
        register_soon(shard, RETRY_US);
        return;
    }
    if (shard->is_replaced) {
        replaced(sim, process);
        return;
    }
    put_entry(shard);
}

static void register_now(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    (void)data;
    (void)number;
    if (shard->registered_before) {
        sim_etcd_read(sim, process, look_for_entry, on_checked);
    } else {
        put_entry(shard);
    }
}

static void register_soon(struct sim_shard *shard, uint64_t delay_us)
{
    sim_after(shard->sim, delay_us,
              &(struct sim_call){.process = shard->process, .run = register_now});
}

/* ---- the end ---- */

void sim_shard_leave(struct sim_shard *shard, const char *why)
{
    struct sim *sim = shard->sim;
    sim_say(sim, shard->process, "leaves: %s", why);
    if (shard->lease != 0 && sim_etcd_reachable(sim, shard->process)) {
        sim_etcd_revoke(sim, shard->lease);
    }
    sim_supervisor_ended(sim, shard->process);
}

static void give_up(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)data;
    (void)number;
    sim_shard_leave(sim_shard_of(process), "it has waited long enough");
}

/* What it has made until then is to be saved where nobody takes over. */
static void note_asked(struct sim_shard *shard)
{
    struct kelp_partition_view view;
    if (shard->hosting && shard->hosting->by_index[0]) {
        kelp_partition_view(shard->hosting->hosted[0].core, &view);
        if (view.place == KELP_REPLICA_PRIMARY && view.has_word) {
            shard->asked_generation = shard->hosting->generation;
            shard->asked_step = view.word.step;
        }
    }
}

void sim_shard_ask_to_end(struct sim_process *process)
{
    struct sim_shard *shard = sim_shard_of(process);
    if (!shard->leaving) {
        sim_say(shard->sim, process, "is asked to end");
        shard->leaving = true;
        note_asked(shard);
        sim_after(shard->sim, GRACE_US, &(struct sim_call){.process = process, .run = give_up});
    }
}

/* ---- life ---- */

void sim_shard_start(struct sim *sim, struct sim_process *process)
{
    struct sim_shard *shard = sim_alloc(sizeof(*shard));
    shard->sim = sim;
    shard->process = process;
    process->state = shard;
    sim_control_open(shard);
    sim_storage_remove_leftovers(sim, process->id);
    register_soon(shard, sim_draw(sim, 20 * SIM_MS));
}

void sim_shard_forget(struct sim_process *process)
{
    struct sim_shard *shard = sim_shard_of(process);
    for (size_t i = 0; i < shard->outbox_count; i++) {
        sim_message_unref(shard->outboxes[i].reply);
    }
    if (shard->watch != 0) {
        sim_etcd_unwatch(shard->sim, shard->watch);
    }
    if (shard->hosting) {
        sim_hosting_lose_evidence(shard->hosting);
    }
    sim_hosting_destroy(shard->hosting);
    sim_control_close(shard);
    free(shard->outboxes);
    kelp_spares_fini(&shard->spares);
    free(shard);
    process->state = NULL;
}
