#include "tests/sim/disk.h"

#include <stdlib.h>

#include "tests/sim/invariants.h"

struct entry {
    bool there;
    bool synced;
    bool finish;
};

struct sim_disk {
    struct entry journal[SIM_VERSIONS_MAX]; /* by version */
};

struct sim_disk *sim_disk_create(void)
{
    return sim_alloc(sizeof(struct sim_disk));
}

void sim_disk_destroy(struct sim_disk *disk)
{
    free(disk);
}

void sim_disk_power_loss(struct sim *sim)
{
    for (size_t i = 0; i < SIM_VERSIONS_MAX; i++) {
        struct entry *entry = &sim->disk->journal[i];
        entry->there = entry->synced || (entry->there && sim_draw(sim, 2) == 0);
    }
}

void sim_journal_append(struct sim *sim, const struct kelp_record *record)
{
    sim_invariants_filed(sim, record);
    sim->disk->journal[record->word.version].there = true;
    sim->disk->journal[record->word.version].finish = record->word.kind == KELP_STEP_FINISH;
}

void sim_journal_sync(struct sim *sim)
{
    for (size_t i = 0; i < SIM_VERSIONS_MAX; i++) {
        sim->disk->journal[i].synced = sim->disk->journal[i].there;
    }
}

bool sim_journal_finished(const struct sim *sim)
{
    for (size_t i = 0; i < SIM_VERSIONS_MAX; i++) {
        const struct entry *entry = &sim->disk->journal[i];
        if (entry->finish && entry->synced) {
            return true;
        }
    }
    return false;
}
