#include <stdlib.h>
#include <string.h>

#include "tests/sim/processes/coordinator.h"

#define LEASE_US      (KELP_COORDINATOR_LEASE_S * SIM_SECOND)
#define BACKOFF_US    (100 * SIM_MS)
#define STAND_BACK_US SIM_SECOND /* who was deposed lets those who did it go first */

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
    kelp_leadership_elected(sim_coordinator_touch(coordinator), revision);
}

static void deposed(struct sim_coordinator *coordinator, const char *why)
{
    coordinator->election = SIM_ELECTION_WAITING;
    coordinator->revision = 0;
    kelp_leadership_deposed(sim_coordinator_touch(coordinator), why);
    look_later(coordinator);
}

/* Our lease lives, so somebody deleted the key: whoever it was goes first. */
static void lose_key(struct sim_coordinator *coordinator)
{
    coordinator->stand_back_us = coordinator->sim->now + STAND_BACK_US;
    deposed(coordinator, "the key is gone");
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

static void key_deleted(struct sim *sim, struct sim_process *process, void *data,
                        const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    if (coordinator->election != SIM_ELECTION_DEPOSING ||
        coordinator->lease != (uint64_t)(uintptr_t)data) {
        return;
    }
    coordinator->election = SIM_ELECTION_WAITING;
    if (outcome->status == KELP_OK && outcome->succeeded &&
        coordinator->taken_revision == coordinator->depose_revision) {
        coordinator->taken = false;
    }
    coordinator->depose_revision = 0;
    look(coordinator);
}

static void delete_key(struct sim_coordinator *coordinator)
{
    const struct sim_transaction transaction = {
        .compare_count = 1,
        .compares = {{.key = "coordinator",
                      .create = true,
                      .revision = coordinator->depose_revision}},
        .operation_count = 1,
        .operations = {{.key = "coordinator"}}};
    coordinator->election = SIM_ELECTION_DEPOSING;
    coordinator->sim->counts[SIM_COUNT_DEPOSED]++;
    sim_etcd_submit(coordinator->sim, coordinator->process, &transaction, key_deleted,
                    (void *)(uintptr_t)coordinator->lease);
}

static void look(struct sim_coordinator *coordinator)
{
    struct sim *sim = coordinator->sim;
    if (coordinator->election != SIM_ELECTION_WAITING || !coordinator->synced ||
        (coordinator->taken && coordinator->depose_revision == 0)) {
        return;
    }
    if (!coordinator->taken && sim->now < coordinator->stand_back_us) {
        look_later(coordinator);
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
    if (coordinator->taken) {
        delete_key(coordinator);
    } else {
        campaign(coordinator);
    }
}

static void key_changed(struct sim *sim, struct sim_process *process, const struct sim_key *key)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    bool ours = coordinator->lease != 0 && key->lease == coordinator->lease;
    coordinator->taken = true;
    coordinator->taken_revision = key->create_revision;
    if (coordinator->depose_revision != coordinator->taken_revision) {
        coordinator->depose_revision = 0;
    }
    if (coordinator->election == SIM_ELECTION_LEADING) {
        if (!ours && key->mod_revision > coordinator->revision) {
            deposed(coordinator, "somebody else wrote the key");
        } else if (ours && key->create_revision > coordinator->revision) {
            deposed(coordinator, "the key was deleted and created again");
            elected(coordinator, key->create_revision);
        }
    } else if (ours) { /* created by a transaction whose answer was lost or is on its way */
        elected(coordinator, key->create_revision);
    }
    if (key->value->holder != process->incarnation &&
        key->mod_revision > coordinator->last_revision) {
        struct kelp_holder holder = {.revision = key->create_revision,
                                     .incarnation = key->value->holder};
        (void)snprintf(holder.id, sizeof(holder.id), "%s", sim->processes[key->value->place].id);
        kelp_leadership_superseded(sim_coordinator_touch(coordinator), &holder);
    }
}

static void key_removed(struct sim *sim, struct sim_process *process, const char *key)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)key;
    coordinator->taken = false;
    if (coordinator->election == SIM_ELECTION_LEADING) {
        lose_key(coordinator);
    } else {
        look(coordinator);
    }
    kelp_leadership_vacant(sim_coordinator_touch(coordinator));
}

static void key_synced(struct sim *sim, struct sim_process *process)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    coordinator->synced = true;
    if (coordinator->election == SIM_ELECTION_LEADING && !sim_etcd_look(sim, "coordinator")) {
        lose_key(coordinator);
        return;
    }
    look(coordinator);
}

static const struct sim_watch_events election_events = {
    .changed = key_changed, .removed = key_removed, .synced = key_synced};

static kelp_status stand(struct kelp_error *reterr, void *user)
{
    struct sim_coordinator *coordinator = user;
    (void)reterr;
    coordinator->election_watch =
        sim_etcd_watch(coordinator->sim, coordinator->process, "coordinator", &election_events);
    return KELP_OK;
}

static void depose(int64_t revision, void *user)
{
    struct sim_coordinator *coordinator = user;
    if (coordinator->taken && coordinator->taken_revision == revision &&
        coordinator->election != SIM_ELECTION_LEADING) {
        coordinator->depose_revision = revision;
        look(coordinator);
    }
}

static void resign(void *user)
{
    struct sim_coordinator *coordinator = user;
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

/* ---- shards ---- */

static void shard_registered(struct sim *sim, struct sim_process *process,
                             const struct sim_key *key)
{
    struct kelp_term *term = sim_coordinator_term(sim_coordinator_of(process));
    struct kelp_map_shard shard = {.incarnation = key->value->holder};
    (void)snprintf(shard.id, sizeof(shard.id), "%s", key->name + strlen("ps/"));
    (void)snprintf(shard.address, sizeof(shard.address), "host-%u",
                   sim->processes[key->value->place].host);
    if (sim->profile.zones > 0) {
        (void)snprintf(shard.zone, sizeof(shard.zone), "zone-%u",
                       sim->processes[key->value->place].host % sim->profile.zones);
    }
    kelp_term_shard_registered(term, &shard);
}

static void shard_gone(struct sim *sim, struct sim_process *process, const char *key)
{
    struct kelp_term *term = sim_coordinator_term(sim_coordinator_of(process));
    (void)sim;
    kelp_term_shard_gone(term, key + strlen("ps/"));
}

static const struct sim_watch_events shard_events = {.changed = shard_registered,
                                                     .removed = shard_gone};

static kelp_status watch_shards(struct kelp_error *reterr, void *user)
{
    struct sim_coordinator *coordinator = user;
    (void)reterr;
    coordinator->shard_watch =
        sim_etcd_watch(coordinator->sim, coordinator->process, "ps/", &shard_events);
    return KELP_OK;
}

static void step_down(void *user)
{
    struct sim_coordinator *coordinator = user;
    coordinator->term++;
    sim_etcd_unwatch(coordinator->sim, coordinator->shard_watch);
    coordinator->shard_watch = 0;
}

void sim_coordinator_election_effects(struct sim_coordinator *coordinator)
{
    coordinator->leadership_effects.stand = stand;
    coordinator->leadership_effects.resign = resign;
    coordinator->leadership_effects.depose = depose;
    coordinator->leadership_effects.step_down = step_down;
    coordinator->term_effects.watch_shards = watch_shards;
}
