#include "tests/sim/outside/disk.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"

struct entry {
    bool there;
    bool synced;
    bool finish;
    uint64_t step; /* complete with it */
};

struct sim_disk {
    struct entry journal[SIM_VERSIONS_MAX]; /* by version */
    struct sim_storage **storages;          /* storage n is storages[n - 1]; never reused */
    uint32_t storage_count;
    size_t storage_capacity;
    uint64_t away_until_us;
};

struct sim_disk *sim_disk_create(void)
{
    return sim_alloc(sizeof(struct sim_disk));
}

void sim_disk_destroy(struct sim_disk *disk)
{
    if (disk) {
        for (uint32_t i = 0; i < disk->storage_count; i++) {
            free(disk->storages[i]);
        }
        free(disk->storages);
        free(disk);
    }
}

/* ---- power ---- */

static void tear(struct sim *sim, struct sim_storage *storage)
{
    sim->counts[SIM_COUNT_FILE_TORN]++;
    for (uint32_t p = 0; p < SIM_PARTITIONS_MAX; p++) {
        uint64_t dice = sim_draw(sim, 3);
        storage->parts[p].there = storage->parts[p].there && dice > 0;
        storage->parts[p].garbled = storage->parts[p].garbled || dice == 1;
    }
    storage->state = sim_draw(sim, 2) == 0 ? SIM_STORAGE_WRITING : SIM_STORAGE_GONE;
}

static void lose_unsynced(struct sim *sim, struct sim_storage *storage)
{
    switch (storage->state) {
    case SIM_STORAGE_WRITING:
        tear(sim, storage);
        break;
    case SIM_STORAGE_SYNCED: /* its own folder's name was not synced either */
        storage->state = sim_draw(sim, 2) == 0 ? SIM_STORAGE_WRITING : SIM_STORAGE_GONE;
        break;
    case SIM_STORAGE_RENAMED: {
        static const enum sim_storage_state after[] = {SIM_STORAGE_GONE, SIM_STORAGE_WRITING,
                                                       SIM_STORAGE_DURABLE};
        storage->state = after[sim_draw(sim, 3)];
        break;
    }
    case SIM_STORAGE_DURABLE:
    case SIM_STORAGE_GONE:
        break;
    }
}

void sim_disk_power_loss(struct sim *sim, unsigned host, bool all)
{
    struct sim_disk *disk = sim->disk;
    for (uint32_t i = 0; i < disk->storage_count; i++) {
        if (all || disk->storages[i]->host == host) {
            lose_unsynced(sim, disk->storages[i]);
        }
    }
    for (size_t i = 0; i < SIM_VERSIONS_MAX && all; i++) {
        struct entry *entry = &disk->journal[i];
        entry->there = entry->synced || (entry->there && sim_draw(sim, 2) == 0);
    }
}

/* ---- the journal ---- */

void sim_journal_append(struct sim *sim, const struct kelp_record *record)
{
    sim_invariants_filed(sim, record);
    sim->disk->journal[record->word.version].there = true;
    sim->disk->journal[record->word.version].finish = record->word.kind == KELP_STEP_FINISH;
    sim->disk->journal[record->word.version].step =
        record->word.step + (record->word.kind == KELP_STEP_TRAIN ? 1 : 0);
}

bool sim_journal_has(const struct sim *sim, uint64_t version)
{
    return sim->disk->journal[version].there;
}

uint64_t sim_journal_step(const struct sim *sim)
{
    uint64_t step = 0;
    for (size_t i = 0; i < SIM_VERSIONS_MAX; i++) {
        const struct entry *entry = &sim->disk->journal[i];
        step = entry->there && entry->step > step ? entry->step : step;
    }
    return step;
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

/* ---- storages ---- */

void sim_part_digest(struct sim_part *part)
{
    uint64_t a = part->garbled ? 99 : 1;
    uint64_t b = part->has_control ? part->control.version + 7 : 3;
    for (size_t i = 0; i < SIM_SLICE_MAX; i++) {
        uint32_t bits[2];
        memcpy(&bits[0], &part->weights[i], sizeof(bits[0]));
        memcpy(&bits[1], &part->momentum[i], sizeof(bits[1]));
        a = sim_mix(a + bits[0] + i);
        b = sim_mix(b + bits[1] + a);
    }
    (void)snprintf(part->digest, sizeof(part->digest), "%016llx%016llx", (unsigned long long)a,
                   (unsigned long long)b);
}

static struct sim_storage *storage_of(struct sim *sim, uint32_t storage)
{
    return sim->disk->storages[storage - 1];
}

static kelp_status disk_error(struct sim *sim)
{
    if (!sim_chance(sim, sim->profile.disk_rate, 1000)) {
        return KELP_OK;
    }
    sim->counts[SIM_COUNT_DISK_FAILED]++;
    return sim_draw(sim, 2) == 0 ? KELP_ERR_IO : KELP_ERR_NO_SPACE;
}

uint32_t sim_storage_begin(struct sim *sim, const struct sim_process *process, const char *folder,
                           const char *name)
{
    struct sim_disk *disk = sim->disk;
    struct sim_storage *storage = sim_alloc(sizeof(*storage));
    disk->storages = sim_grow(disk->storages, disk->storage_count, &disk->storage_capacity,
                              sizeof(struct sim_storage *));
    disk->storages[disk->storage_count++] = storage;
    storage->state = SIM_STORAGE_WRITING;
    storage->host = process->host;
    (void)snprintf(storage->folder, sizeof(storage->folder), "%s", folder);
    (void)snprintf(storage->name, sizeof(storage->name), "%s", name);
    return disk->storage_count;
}

kelp_status sim_storage_write(struct sim *sim, uint32_t storage, uint32_t partition,
                              const struct sim_part *part)
{
    kelp_status status = disk_error(sim);
    if (status == KELP_OK) {
        storage_of(sim, storage)->parts[partition] = *part;
    }
    return status;
}

/* Renaming takes the place of an older storage of the same name. */
static void take_place(struct sim *sim, const struct sim_storage *storage)
{
    for (uint32_t i = 0; i < sim->disk->storage_count; i++) {
        struct sim_storage *other = sim->disk->storages[i];
        if (other != storage && other->state >= SIM_STORAGE_RENAMED &&
            strcmp(other->folder, storage->folder) == 0 &&
            strcmp(other->name, storage->name) == 0) {
            other->state = SIM_STORAGE_GONE;
        }
    }
}

kelp_status sim_storage_finish(struct sim *sim, uint32_t number, bool *ret_durable)
{
    struct sim_storage *storage = storage_of(sim, number);
    kelp_status status = disk_error(sim);
    *ret_durable = false;
    if (status != KELP_OK) {
        return status;
    }
    if (storage->state == SIM_STORAGE_GONE) {
        return KELP_ERR_IO; /* somebody has removed the folder */
    }
    if (storage->state == SIM_STORAGE_SYNCED) {
        take_place(sim, storage);
    }
    if (storage->state < SIM_STORAGE_DURABLE) {
        storage->state++;
    }
    *ret_durable = storage->state == SIM_STORAGE_DURABLE;
    return KELP_OK;
}

void sim_storage_remove(struct sim *sim, uint32_t storage)
{
    struct sim_storage *gone = storage_of(sim, storage);
    sim_invariants_removing(sim, gone);
    gone->state = SIM_STORAGE_GONE;
}

static bool belongs_to(const struct sim_storage *storage, const char *shard)
{
    size_t bytes = strlen(shard);
    return strncmp(storage->name, shard, bytes) == 0 && storage->name[bytes] == '.';
}

void sim_storage_remove_leftovers(struct sim *sim, const char *shard)
{
    for (uint32_t i = 0; i < sim->disk->storage_count; i++) {
        struct sim_storage *storage = sim->disk->storages[i];
        if ((storage->state == SIM_STORAGE_WRITING || storage->state == SIM_STORAGE_SYNCED) &&
            belongs_to(storage, shard)) {
            sim_storage_remove(sim, i + 1);
        }
    }
}

void sim_checkpoint_remove(struct sim *sim, const char *folder)
{
    for (uint32_t i = 0; i < sim->disk->storage_count; i++) {
        struct sim_storage *storage = sim->disk->storages[i];
        if (storage->state != SIM_STORAGE_GONE && strcmp(storage->folder, folder) == 0) {
            sim_storage_remove(sim, i + 1);
        }
    }
}

const char *sim_checkpoint_folder(const struct sim *sim, size_t index)
{
    const struct sim_disk *disk = sim->disk;
    for (uint32_t i = 0; i < disk->storage_count; i++) {
        bool first = disk->storages[i]->state != SIM_STORAGE_GONE;
        for (uint32_t k = 0; k < i && first; k++) {
            first = disk->storages[k]->state == SIM_STORAGE_GONE ||
                    strcmp(disk->storages[k]->folder, disk->storages[i]->folder) != 0;
        }
        if (first && index-- == 0) {
            return disk->storages[i]->folder;
        }
    }
    return NULL;
}

const struct sim_storage *sim_storage_look(const struct sim *sim, const char *folder,
                                           const char *name)
{
    const struct sim_disk *disk = sim->disk;
    for (uint32_t i = 0; i < disk->storage_count; i++) {
        const struct sim_storage *storage = disk->storages[i];
        if (storage->state >= SIM_STORAGE_RENAMED && strcmp(storage->folder, folder) == 0 &&
            strcmp(storage->name, name) == 0) {
            return storage;
        }
    }
    return NULL;
}

const struct sim_storage *sim_storage_find(const struct sim *sim, const char *folder,
                                           const char *name)
{
    return sim->now < sim->disk->away_until_us ? NULL : sim_storage_look(sim, folder, name);
}

/* ---- faults ---- */

bool sim_disk_damage(struct sim *sim)
{
    struct sim_disk *disk = sim->disk;
    for (int i = 0; i < 10 && disk->storage_count > 0; i++) {
        struct sim_storage *storage = disk->storages[sim_draw(sim, disk->storage_count)];
        struct sim_part *part = &storage->parts[sim_draw(sim, sim->plan.partition_count)];
        if (storage->state == SIM_STORAGE_DURABLE && part->there) {
            part->garbled = true;
            sim_say(sim, NULL, "a bit flips in %s/%s", storage->folder, storage->name);
            return true;
        }
    }
    return false;
}

void sim_disk_away(struct sim *sim, uint64_t until_us)
{
    sim->disk->away_until_us = until_us;
}
