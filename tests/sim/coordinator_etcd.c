#include <stdlib.h>
#include <string.h>

#include "tests/sim/coordinator.h"

#define LEASE_US   (KELP_COORDINATOR_LEASE_S * SIM_SECOND)
#define BACKOFF_US (100 * SIM_MS)

/* ---- election (common/etcd/etcd_election.c)
 * ---------------------------------------------------------
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
    coordinator->stand_at_ms = 0;
    coordinator->election_watch =
        sim_etcd_watch(coordinator->sim, coordinator->process, "coordinator", &election_events);
}

/* Give the key up, and do not stand for election for a while. */
void sim_leader_resign(struct sim_coordinator *coordinator)
{
    struct sim *sim = coordinator->sim;
    sim_etcd_unwatch(sim, coordinator->election_watch);
    if (coordinator->lease != 0 && sim_etcd_reachable(sim, coordinator->process)) {
        sim_etcd_revoke(sim, coordinator->lease);
    }
    coordinator->lease = 0;
    coordinator->revision = 0;
    coordinator->election = SIM_ELECTION_WAITING;
    coordinator->synced = false;
    coordinator->taken = false;
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
