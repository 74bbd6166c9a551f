/* Invariants of snapshots that are ordered; the list is in invariants.c. */
#include <string.h>

#include "tests/sim/invariants_internal.h"

/* NULL: nobody was ever told of it. */
static struct order *find(struct sim *sim, uint64_t generation, uint64_t serial)
{
    struct sim_invariants *all = sim->invariants;
    for (size_t i = all->order_count; i > 0; i--) {
        struct order *order = &all->orders[i - 1];
        if (order->of.serial == serial && order->of.generation == generation) {
            return order;
        }
    }
    return NULL;
}

static struct order *find_or_add(struct sim *sim, const struct kelp_snapshot_order *of)
{
    struct sim_invariants *all = sim->invariants;
    struct order *order = find(sim, of->generation, of->serial);
    if (order) {
        return order;
    }
    all->orders =
        sim_grow(all->orders, all->order_count, &all->order_capacity, sizeof(*all->orders));
    order = &all->orders[all->order_count++];
    *order = (struct order){.of = *of};
    return order;
}

void sim_invariants_named(struct sim *sim, const struct kelp_snapshot_order *order,
                          uint32_t partition, uint64_t process)
{
    struct order *known = find_or_add(sim, order);
    if (known->captures[partition] != 0 && known->captures[partition] != process) {
        sim_fail(sim, "one process captures", "order %llx of generation %llu names two for %u",
                 (unsigned long long)order->serial, (unsigned long long)order->generation,
                 partition);
    }
    known->captures[partition] = process;
}

void sim_invariants_ordered(const struct sim_process *process,
                            const struct kelp_snapshot_order *order, const char *folder)
{
    struct order *known = find_or_add(process->sim, order);
    if (known->folder[0] == '\0') {
        (void)snprintf(known->folder, sizeof(known->folder), "%s", folder);
    } else if (known->of.step != order->step || strcmp(known->folder, folder) != 0) {
        sim_fail(process->sim, "one order", "order %llx to %s is of %s; another is of %s",
                 (unsigned long long)order->serial, process->id, folder, known->folder);
    }
}

void sim_invariants_kept(const struct sim_process *process, const struct kelp_snapshot_order *order,
                         uint32_t partition)
{
    struct order *known = find(process->sim, order->generation, order->serial);
    if (!known || known->captures[partition] != process->incarnation) {
        sim_fail(process->sim, "captures come from the process that the order names",
                 "%s captures partition %u", process->id, partition);
    }
    known->captured[partition] = true;
}

static uint64_t leader_of(const struct kelp_map *map, uint32_t partition)
{
    return map->shards[map->partitions[partition].primary].incarnation;
}

void sim_invariants_moving(struct sim *sim, const struct kelp_snapshot_order *order,
                           const struct kelp_map *before, const struct kelp_map *after)
{
    const struct order *known = find(sim, order->generation, order->serial);
    for (uint32_t p = 0; known && p < after->partition_count; p++) {
        const uint64_t leads = leader_of(before, p);
        if (leads != leader_of(after, p) && known->captures[p] == leads && !known->captured[p]) {
            sim_fail(sim, "a planned promotion waits for the capture",
                     "partition %u moves, and its primary is to capture step %llu of it", p,
                     (unsigned long long)order->step);
        }
    }
}

void sim_invariants_stored(struct sim *sim, const struct kelp_snapshot_order *order,
                           uint32_t partition, const char *storage)
{
    char suffix[24];
    const struct order *known = find(sim, order->generation, order->serial);
    (void)snprintf(suffix, sizeof(suffix), ".%016llx",
                   known ? (unsigned long long)known->captures[partition] : 0);
    if (!strstr(storage, suffix)) {
        sim_fail(sim, "captures come from the process that the order names",
                 "partition %u is in %s", partition, storage);
    }
}
