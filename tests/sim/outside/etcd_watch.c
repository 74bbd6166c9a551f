/* Watches of the etcd in memory. */
#include <assert.h>
#include <string.h>

#include "tests/sim/outside/etcd_internal.h"

#define RELIST_US (500 * SIM_MS) /* a watch that was cut off lists again */

static bool begins(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static void report_removed(struct sim *sim, struct sim__watch *watch)
{
    size_t kept = 0;
    for (size_t i = 0; i < watch->seen_count; i++) {
        if (sim_etcd_look(sim, watch->seen[i].name)) {
            watch->seen[kept++] = watch->seen[i];
            continue;
        }
        struct sim__seen gone = watch->seen[i];
        watch->events->removed(sim, watch->process, gone.name);
        if (!watch->open) {
            return;
        }
    }
    watch->seen_count = kept;
}

/* True if the revision is new to the watch. */
static bool see(struct sim__watch *watch, const struct sim_key *key)
{
    for (size_t i = 0; i < watch->seen_count; i++) {
        if (strcmp(watch->seen[i].name, key->name) == 0) {
            bool changed = watch->seen[i].mod_revision != key->mod_revision;
            watch->seen[i].mod_revision = key->mod_revision;
            return changed;
        }
    }
    assert(watch->seen_count < SIM_ETCD_KEYS_MAX);
    struct sim__seen *seen = &watch->seen[watch->seen_count++];
    memcpy(seen->name, key->name, sizeof(seen->name));
    seen->mod_revision = key->mod_revision;
    return true;
}

/* number: the watch. */
static void look_at(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim__watch *watch = sim->etcd->watches[number - 1];
    (void)data;
    watch->due = false;
    if (!watch->open) {
        return;
    }
    if (!sim_etcd_reachable(sim, process)) {
        watch->due = true;
        sim_after(sim, RELIST_US,
                  &(struct sim_call){.process = process, .run = look_at, .number = number});
        return;
    }
    report_removed(sim, watch);
    for (size_t i = 0; watch->open && i < sim->etcd->key_count; i++) {
        const struct sim_key *key = &sim->etcd->keys[i];
        if (begins(key->name, watch->prefix) && see(watch, key)) {
            watch->events->changed(sim, process, key);
        }
    }
    if (watch->open && watch->events->synced) {
        watch->events->synced(sim, process);
    }
}

static void look_soon(struct sim *sim, uint64_t number)
{
    struct sim__watch *watch = sim->etcd->watches[number - 1];
    if (watch->open && !watch->due && sim_lives(watch->process, watch->incarnation)) {
        watch->due = true;
        sim_after(sim, sim_between(sim, 100, 5 * SIM_MS),
                  &(struct sim_call){.process = watch->process, .run = look_at, .number = number});
    }
}

void sim__etcd_notify(struct sim *sim, const char *key)
{
    for (size_t i = 0; i < sim->etcd->watch_count; i++) {
        if (begins(key, sim->etcd->watches[i]->prefix)) {
            look_soon(sim, i + 1);
        }
    }
}

uint64_t sim_etcd_watch(struct sim *sim, struct sim_process *process, const char *prefix,
                        const struct sim_watch_events *events)
{
    struct sim_etcd *etcd = sim->etcd;
    struct sim__watch *watch = sim_alloc(sizeof(*watch));
    watch->open = true;
    watch->process = process;
    watch->incarnation = process->incarnation;
    watch->events = events;
    (void)snprintf(watch->prefix, sizeof(watch->prefix), "%s", prefix);
    etcd->watches =
        sim_grow(etcd->watches, etcd->watch_count, &etcd->watch_capacity, sizeof(*etcd->watches));
    etcd->watches[etcd->watch_count++] = watch;
    look_soon(sim, etcd->watch_count);
    return etcd->watch_count;
}

void sim_etcd_unwatch(struct sim *sim, uint64_t number)
{
    if (number != 0) {
        sim->etcd->watches[number - 1]->open = false;
    }
}
