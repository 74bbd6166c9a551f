/*
 * The run folder, on a disk that all hosts share: what is written is read back by everybody, but
 * only what was synced survives when the host that wrote it, or everything, loses power. Unsynced
 * files are torn then: each of their parts is there, or not, or garbled; unsynced names are there,
 * or not.
 */
#ifndef KELP_TESTS_SIM_OUTSIDE_DISK_H
#define KELP_TESTS_SIM_OUTSIDE_DISK_H

#include "tests/sim/model.h"

#define SIM_NAME_MAX 95 /* bytes of a folder's name, as in common/training/manifest.h */

struct sim_disk *sim_disk_create(void);
void sim_disk_destroy(struct sim_disk *disk);

/* The host (all: every host) is without power: forgets what was not synced. */
void sim_disk_power_loss(struct sim *sim, unsigned host, bool all);

/* ---- the journal: records of completed entries ---- */

/* A version that is there already must carry the same record. */
void sim_journal_append(struct sim *sim, const struct kelp_record *record);
void sim_journal_sync(struct sim *sim);
bool sim_journal_has(const struct sim *sim, uint64_t version);
/* Training steps that the records on file say are complete. */
uint64_t sim_journal_step(const struct sim *sim);
/* Is the job's last record on file, and synced? */
bool sim_journal_finished(const struct sim *sim);

/* ---- storages: what one shard wrote of one checkpoint (ps/storage/snapshot_store.h) ---- */

/* The state of one partition. */
struct sim_part {
    bool there;
    bool garbled; /* what is read is not what was written: its digest says so */
    bool has_control;
    struct kelp_control_state control;
    float weights[SIM_SLICE_MAX];
    float momentum[SIM_SLICE_MAX];
    char digest[33];
};
/* Fill digest from the rest, as a writer and a reader do. */
void sim_part_digest(struct sim_part *part);

enum sim_storage_state {
    SIM_STORAGE_GONE,
    SIM_STORAGE_WRITING, /* under "<name>.writing", nothing is synced */
    SIM_STORAGE_SYNCED,  /* still under that name, its files are synced */
    SIM_STORAGE_RENAMED, /* the parent folder is not synced */
    SIM_STORAGE_DURABLE
};

struct sim_storage {
    enum sim_storage_state state;
    unsigned host;
    char folder[SIM_NAME_MAX + 1]; /* of the checkpoint */
    char name[SIM_NAME_MAX + 1];   /* of the storage */
    struct sim_part parts[SIM_PARTITIONS_MAX];
};

/* A number for the storage, from 1. Errors of these calls (by the profile's rate): KELP_ERR_IO,
 * KELP_ERR_NO_SPACE. */
uint32_t sim_storage_begin(struct sim *sim, const struct sim_process *process, const char *folder,
                           const char *name);
kelp_status sim_storage_write(struct sim *sim, uint32_t storage, uint32_t partition,
                              const struct sim_part *part);
/* One thing more of: sync the files, rename, sync the folder. *ret_durable: that was the last. */
kelp_status sim_storage_finish(struct sim *sim, uint32_t storage, bool *ret_durable);
void sim_storage_remove(struct sim *sim, uint32_t storage);
/* What former starts of the shard left under ".writing". */
void sim_storage_remove_leftovers(struct sim *sim, const char *shard);
/* A whole checkpoint: of an order that came to nothing, or removed from etcd. */
void sim_checkpoint_remove(struct sim *sim, const char *folder);
/* Folders of checkpoints, without repetition, by index; NULL: no more. */
const char *sim_checkpoint_folder(const struct sim *sim, size_t index);

/* Under its own name; NULL: there is none. */
const struct sim_storage *sim_storage_look(const struct sim *sim, const char *folder,
                                           const char *name);
/* The same, or NULL while the file system is not there yet. */
const struct sim_storage *sim_storage_find(const struct sim *sim, const char *folder,
                                           const char *name);

/* ---- faults ---- */

/* A bit flips in a random durable storage; false: there is none. */
bool sim_disk_damage(struct sim *sim);
/* Storages are not there until then: whoever exports them still boots. */
void sim_disk_away(struct sim *sim, uint64_t until_us);

#endif
