#include <stdlib.h>
#include <string.h>

#include "tests/sim/coordinator.h"
#include "tests/sim/disk.h"

#define LEASE_US   (KELP_COORDINATOR_LEASE_S * SIM_SECOND)
#define BACKOFF_US (100 * SIM_MS)

/* ---- election (common/etcd_election.c) ---------------------------------------------------------
 */

static void look(struct sim_coordinator *coordinator);

static void look_now(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)data;
    (void)number;
    look(sim_coordinator_of(process));
}

static void look_later(struct sim_coordinator *coordinator)
{
    sim_after(coordinator->sim, BACKOFF_US,
              &(struct sim_call){.process = coordinator->process, .run = look_now});
}

static void elected(struct sim_coordinator *coordinator, int64_t revision)
{
    coordinator->election = SIM_ELECTION_LEADING;
    coordinator->revision = revision;
    coordinator->last_revision = revision;
    sim_coordinator_touch(coordinator);
    sim_leading_elected(coordinator);
}

static void deposed(struct sim_coordinator *coordinator, const char *why)
{
    coordinator->election = SIM_ELECTION_WAITING;
    coordinator->revision = 0;
    sim_say(coordinator->sim, coordinator->process, "is deposed (%s) and advises on", why);
    look_later(coordinator);
}

static void keep_lease(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)data;
    if (coordinator->lease != number) {
        return;
    }
    bool reached =
        sim_etcd_reachable(sim, process) && !sim_chance(sim, sim->profile.etcd_rate, 2000);
    bool gone =
        reached ? !sim_etcd_keep_alive(sim, number) : sim->now - coordinator->kept_us >= LEASE_US;
    if (!gone) {
        coordinator->kept_us = reached ? sim->now : coordinator->kept_us;
        sim_after(sim, LEASE_US / 3,
                  &(struct sim_call){.process = process, .run = keep_lease, .number = number});
        return;
    }
    coordinator->lease = 0;
    if (sim_etcd_reachable(sim, process)) {
        sim_etcd_revoke(sim, number);
    }
    if (coordinator->election == SIM_ELECTION_LEADING) {
        deposed(coordinator, "its lease ran out");
    } else {
        coordinator->election = SIM_ELECTION_WAITING;
        look_later(coordinator);
    }
}

static void campaigned(struct sim *sim, struct sim_process *process, void *data,
                       const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    if (coordinator->election != SIM_ELECTION_CAMPAIGNING ||
        coordinator->lease != (uint64_t)(uintptr_t)data) {
        return; /* elected by what the watch showed, or the lease is gone */
    }
    coordinator->election = SIM_ELECTION_WAITING;
    if (outcome->status == KELP_OK && outcome->succeeded) {
        elected(coordinator, outcome->revision);
        return;
    }
    look_later(coordinator);
}

static void campaign(struct sim_coordinator *coordinator)
{
    struct sim_transaction transaction = {.compare_count = 1,
                                          .compares = {{.key = "coordinator", .create = true}},
                                          .operation_count = 1,
                                          .operations = {{.key = "coordinator"}}};
    struct sim_value *value = sim_value_create();
    value->holder = coordinator->process->incarnation;
    value->place = coordinator->process->place;
    transaction.operations[0].value = value;
    transaction.operations[0].lease = coordinator->lease;
    coordinator->election = SIM_ELECTION_CAMPAIGNING;
    sim_etcd_submit(coordinator->sim, coordinator->process, &transaction, campaigned,
                    (void *)(uintptr_t)coordinator->lease);
}

static void look(struct sim_coordinator *coordinator)
{
    struct sim *sim = coordinator->sim;
    if (coordinator->election != SIM_ELECTION_WAITING || !coordinator->synced ||
        coordinator->taken) {
        return;
    }
    if (coordinator->lease == 0) {
        if (!sim_etcd_reachable(sim, coordinator->process)) {
            look_later(coordinator);
            return;
        }
        coordinator->lease = sim_etcd_grant(sim, LEASE_US);
        coordinator->kept_us = sim->now;
        sim_after(sim, LEASE_US / 3,
                  &(struct sim_call){.process = coordinator->process,
                                     .run = keep_lease,
                                     .number = coordinator->lease});
    }
    campaign(coordinator);
}

static void key_changed(struct sim *sim, struct sim_process *process, const struct sim_key *key)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    bool ours = coordinator->lease != 0 && key->lease == coordinator->lease;
    coordinator->taken = true;
    if (coordinator->election == SIM_ELECTION_LEADING) {
        if (!ours && key->mod_revision > coordinator->revision) {
            deposed(coordinator, "somebody else wrote the key");
        }
    } else if (ours) { /* created by a transaction whose answer was lost or is on its way */
        elected(coordinator, key->create_revision);
    }
    if (key->value->holder != process->incarnation &&
        key->mod_revision > coordinator->last_revision) {
        sim_coordinator_touch(coordinator);
        sim_leading_superseded(coordinator, sim->processes[key->value->place].id);
    }
}

static void key_removed(struct sim *sim, struct sim_process *process, const char *key)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)key;
    coordinator->taken = false;
    if (coordinator->election == SIM_ELECTION_LEADING) {
        deposed(coordinator, "the key is gone");
    } else {
        look(coordinator);
    }
}

static void key_synced(struct sim *sim, struct sim_process *process)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    coordinator->synced = true;
    if (coordinator->election == SIM_ELECTION_LEADING && !sim_etcd_look(sim, "coordinator")) {
        deposed(coordinator, "the key is gone");
        return;
    }
    look(coordinator);
}

static const struct sim_watch_events election_events = {
    .changed = key_changed, .removed = key_removed, .synced = key_synced};

void sim_leader_open(struct sim_coordinator *coordinator)
{
    (void)sim_etcd_watch(coordinator->sim, coordinator->process, "coordinator", &election_events);
}

/* ---- shards ------------------------------------------------------------------------------------
 */

static void shard_registered(struct sim *sim, struct sim_process *process,
                             const struct sim_key *key)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct kelp_map_shard shard = {.incarnation = key->value->holder};
    (void)snprintf(shard.id, sizeof(shard.id), "%s", key->name + strlen("ps/"));
    (void)snprintf(shard.address, sizeof(shard.address), "host-%u",
                   sim->processes[key->value->place].host);
    sim_coordinator_touch(coordinator);
    sim_say(sim, process, "sees %s registered", shard.id);
    sim_coordinator_place(coordinator, (struct kelp_placement_event){
                                           .kind = KELP_PLACEMENT_REGISTERED, .shard = &shard});
    sim_links_set(coordinator, &shard);
}

static void shard_gone(struct sim *sim, struct sim_process *process, const char *key)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    sim_coordinator_touch(coordinator);
    sim_say(sim, process, "sees that the lease of %s is gone", key + strlen("ps/"));
    sim_coordinator_place(coordinator,
                          (struct kelp_placement_event){.kind = KELP_PLACEMENT_UNREGISTERED,
                                                        .id = key + strlen("ps/")});
}

static const struct sim_watch_events shard_events = {.changed = shard_registered,
                                                     .removed = shard_gone};

void sim_leader_watch_shards(struct sim_coordinator *coordinator)
{
    coordinator->shard_watch =
        sim_etcd_watch(coordinator->sim, coordinator->process, "ps/", &shard_events);
}

void sim_leader_step_down(struct sim_coordinator *coordinator)
{
    coordinator->term++;
    coordinator->state_dirty = false;
    coordinator->state_in_flight = false;
    sim_etcd_unwatch(coordinator->sim, coordinator->shard_watch);
    coordinator->shard_watch = 0;
}

/* ---- tasks: one after the other, as the helper thread does them --------------------------------
 */

static void run_first(struct sim_coordinator *coordinator);

static void task_fini(struct sim_task *task)
{
    kelp_map_fini(&task->map);
    kelp_map_fini(&task->found.map);
}

void sim_leader_forget_tasks(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < coordinator->task_count; i++) {
        task_fini(&coordinator->tasks[i]);
    }
    free(coordinator->tasks);
}

static void try_state(struct sim_coordinator *coordinator)
{
    if (coordinator->state_dirty && !coordinator->state_in_flight && coordinator->revision != 0 &&
        coordinator->now_ms >= coordinator->state_retry_ms) {
        coordinator->state_dirty = false;
        coordinator->state_in_flight = true;
        sim_leader_submit(coordinator, SIM_TASK_STATE);
    }
}

static void report_state(struct sim_coordinator *coordinator, const struct sim_task *task)
{
    coordinator->state_in_flight = false;
    if (task->status == KELP_OK) {
        coordinator->state_revision =
            task->succeeded ? task->key_revision : task->found.state_revision;
    }
    if (task->status == KELP_OK && task->succeeded) {
        sim_leading_state_written(coordinator, task->state);
        try_state(coordinator);
        return;
    }
    coordinator->state_dirty = true;
    coordinator->state_retry_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
}

static void finish_first(struct sim_coordinator *coordinator)
{
    struct sim_task task = coordinator->tasks[0];
    coordinator->task_count--;
    memmove(&coordinator->tasks[0], &coordinator->tasks[1], coordinator->task_count * sizeof(task));
    coordinator->task_busy = false;
    sim_coordinator_touch(coordinator);
    if (coordinator->leading && task.term == coordinator->term) {
        if (task.kind == SIM_TASK_STATE) {
            report_state(coordinator, &task);
        } else {
            sim_leading_task_done(coordinator, &task);
        }
    }
    task_fini(&task);
    run_first(coordinator);
}

static void read_part(struct sim *sim, struct sim_task *task)
{
    struct sim_found *found = &task->found;
    const struct sim_key *key = NULL;
    switch (task->stage) {
    case 0:
        found->plan = sim_etcd_look(sim, "plan") != NULL;
        break;
    case 1:
        key = sim_etcd_look(sim, "map");
        found->map_revision = key ? key->mod_revision : 0;
        if (key && kelp_map_copy(&((const struct sim_map *)key->value->content)->map,
                                 &found->map) != KELP_OK) {
            abort();
        }
        break;
    default:
        key = sim_etcd_look(sim, "state");
        (void)snprintf(found->state, sizeof(found->state), "%s", key ? key->value->text : "");
        found->state_revision = key ? key->mod_revision : 0;
        break;
    }
}

static void was_read(struct sim *sim, struct sim_process *process, void *data,
                     const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->tasks[0];
    (void)data;
    task->status = outcome->status;
    if (outcome->status == KELP_OK) {
        read_part(sim, task);
        if (task->kind == SIM_TASK_READ && task->stage < 2) {
            task->stage++;
            sim_etcd_read(sim, process, was_read, NULL);
            return;
        }
    }
    finish_first(coordinator);
}

static void was_put(struct sim *sim, struct sim_process *process, void *data,
                    const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->tasks[0];
    (void)data;
    task->status = outcome->status;
    task->succeeded = outcome->succeeded;
    if (outcome->succeeded) {
        task->key_revision = outcome->revision;
    }
    bool look_at_it = outcome->status == KELP_OK || outcome->status == KELP_ERR_TIMEOUT;
    if (task->kind == SIM_TASK_PLAN && look_at_it) { /* what counts is what stands there */
        task->stage = 0;
        sim_etcd_read(sim, process, was_read, NULL);
        return;
    }
    if (task->kind == SIM_TASK_STATE && look_at_it && !outcome->succeeded) {
        task->stage = 2; /* who has changed it? */
        sim_etcd_read(sim, process, was_read, NULL);
        return;
    }
    finish_first(coordinator);
}

static void no_election(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)data;
    (void)number;
    coordinator->tasks[0].status = KELP_ERR_NOT_LEADER;
    finish_first(coordinator);
}

static void put_if_leading(struct sim_coordinator *coordinator, const struct sim_task *task,
                           const char *name, int64_t key_revision)
{
    struct sim_transaction transaction = {.compare_count = 2, .operation_count = 1};
    struct sim_value *value = sim_value_create();
    if (task->revision == 0) {
        sim_value_unref(value);
        sim_after(coordinator->sim, 1,
                  &(struct sim_call){.process = coordinator->process, .run = no_election});
        return;
    }
    transaction.compares[0] =
        (struct sim_compare){.key = "coordinator", .create = true, .revision = task->revision};
    transaction.compares[1].revision = key_revision;
    (void)snprintf(transaction.compares[1].key, sizeof(transaction.compares[1].key), "%s", name);
    (void)snprintf(transaction.operations[0].key, sizeof(transaction.operations[0].key), "%s",
                   name);
    transaction.operations[0].value = value;
    value->nonce = task->nonce;
    (void)snprintf(value->text, sizeof(value->text), "%s", task->state);
    if (task->kind == SIM_TASK_MAP) {
        value->content = sim_map_create(&task->map);
        value->unref = (void (*)(void *))sim_map_unref;
        (void)snprintf(transaction.nonce_key, sizeof(transaction.nonce_key), "map");
    }
    sim_etcd_submit(coordinator->sim, coordinator->process, &transaction, was_put, NULL);
}

static void was_synced(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)data;
    (void)number;
    sim_journal_sync(sim);
    finish_first(sim_coordinator_of(process));
}

static void run_first(struct sim_coordinator *coordinator)
{
    struct sim *sim = coordinator->sim;
    if (coordinator->task_count == 0 || coordinator->task_busy) {
        return;
    }
    struct sim_task *task = &coordinator->tasks[0];
    coordinator->task_busy = true;
    switch (task->kind) {
    case SIM_TASK_READ:
        sim_etcd_read(sim, coordinator->process, was_read, NULL);
        break;
    case SIM_TASK_READ_MAP:
        task->stage = 1;
        sim_etcd_read(sim, coordinator->process, was_read, NULL);
        break;
    case SIM_TASK_PLAN:
        put_if_leading(coordinator, task, "plan", 0);
        break;
    case SIM_TASK_MAP:
        put_if_leading(coordinator, task, "map", task->key_revision);
        break;
    case SIM_TASK_STATE:
        put_if_leading(coordinator, task, "state", task->key_revision);
        break;
    case SIM_TASK_SYNC:
        sim_after(sim, sim_between(sim, SIM_MS, 20 * SIM_MS),
                  &(struct sim_call){.process = coordinator->process, .run = was_synced});
        break;
    }
}

static struct sim_task *add_task(struct sim_coordinator *coordinator, enum sim_task_kind kind)
{
    coordinator->tasks = sim_grow(coordinator->tasks, coordinator->task_count,
                                  &coordinator->task_capacity, sizeof(*coordinator->tasks));
    struct sim_task *task = &coordinator->tasks[coordinator->task_count++];
    *task = (struct sim_task){.kind = kind,
                              .term = coordinator->term,
                              .revision = coordinator->revision,
                              .key_revision = kind == SIM_TASK_STATE ? coordinator->state_revision
                                                                     : coordinator->map_revision,
                              .nonce = ++coordinator->sim->incarnations};
    memcpy(task->state, coordinator->state, sizeof(task->state));
    return task;
}

void sim_leader_submit(struct sim_coordinator *coordinator, enum sim_task_kind kind)
{
    (void)add_task(coordinator, kind);
    run_first(coordinator);
}

void sim_leader_write_map(struct sim_coordinator *coordinator, const struct kelp_map *map)
{
    struct sim_task *task = add_task(coordinator, SIM_TASK_MAP);
    if (kelp_map_copy(map, &task->map) != KELP_OK) {
        abort();
    }
    run_first(coordinator);
}

void sim_leader_sync_journal(struct sim_coordinator *coordinator, bool finish)
{
    add_task(coordinator, SIM_TASK_SYNC)->finish = finish;
    run_first(coordinator);
}

void sim_leader_write_state(struct sim_coordinator *coordinator, const char *state)
{
    (void)snprintf(coordinator->state, sizeof(coordinator->state), "%s", state);
    coordinator->state_dirty = true;
    try_state(coordinator);
}

void sim_leader_tick(struct sim_coordinator *coordinator)
{
    try_state(coordinator);
}
