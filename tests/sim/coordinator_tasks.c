/* What a simulated coordinator's two helper threads do, each one after the other: one asks etcd
 * (coordinator/etcd/leader_tasks.c, leader_checkpoints.c), one the disk. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/coordinator.h"
#include "tests/sim/disk.h"
#include "tests/sim/invariants.h"

static void run_first(struct sim_coordinator *coordinator, struct sim_helper *helper);

static void found_fini(struct sim_found *found)
{
    kelp_map_fini(&found->map);
    for (uint32_t i = 0; i < found->manifest_count; i++) {
        sim_manifest_unref(found->manifests[i]);
    }
    found->manifest_count = 0;
}

static void task_fini(struct sim_task *task)
{
    kelp_map_fini(&task->map);
    sim_manifest_unref(task->manifest);
    found_fini(&task->found);
}

void sim_leader_forget_tasks(struct sim_coordinator *coordinator)
{
    struct sim_helper *spares[2] = {&coordinator->helper, &coordinator->disk};
    for (int h = 0; h < 2; h++) {
        for (size_t i = 0; i < spares[h]->count; i++) {
            task_fini(&spares[h]->tasks[i]);
        }
        free(spares[h]->tasks);
    }
}

/* ---- the job's state ---------------------------------------------------------------------------
 */

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
    if (task->status == KELP_OK && task->succeeded) {
        sim_leading_state_written(coordinator, task->state);
        try_state(coordinator);
        return;
    }
    coordinator->state_dirty = true;
    coordinator->state_retry_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
}

void sim_leader_write_state(struct sim_coordinator *coordinator, const char *state)
{
    (void)snprintf(coordinator->state, sizeof(coordinator->state), "%s", state);
    coordinator->state_dirty = true;
    try_state(coordinator);
}

void sim_leader_tick(struct sim_coordinator *coordinator)
{
    if (coordinator->stand_at_ms != 0 && coordinator->now_ms >= coordinator->stand_at_ms) {
        sim_leader_open(coordinator);
    }
    try_state(coordinator);
}

/* ---- the end of a task -------------------------------------------------------------------------
 */

static void finish_first(struct sim_coordinator *coordinator, struct sim_helper *helper)
{
    struct sim_task task = helper->tasks[0];
    helper->count--;
    memmove(&helper->tasks[0], &helper->tasks[1], helper->count * sizeof(task));
    helper->busy = false;
    sim_coordinator_touch(coordinator);
    if (coordinator->leading && task.term == coordinator->term) {
        if (task.kind == SIM_TASK_STATE) {
            report_state(coordinator, &task);
        } else {
            sim_leading_task_done(coordinator, &task);
        }
    }
    task_fini(&task);
    run_first(coordinator, helper);
}

/* ---- reading etcd ------------------------------------------------------------------------------
 */

/* In this order; a read of the map alone begins at the map and leaves the state out. */
enum read_stage { READ_PLAN, READ_MAP, READ_STATE, READ_FENCE, READ_MANIFESTS, READ_STAGE_COUNT };

static int64_t revision_of(const struct sim_key *key)
{
    return key ? key->mod_revision : 0;
}

static void read_manifests(struct sim *sim, struct sim_found *found)
{
    const struct sim_key *key;
    const char *folder;
    for (size_t i = 0; (key = sim_etcd_list(sim, "checkpoint/", i)) != NULL; i++) {
        if (found->manifest_count == SIM_MANIFESTS_MAX) {
            sim_fail(sim, "retention", "%u checkpoints are in etcd", SIM_MANIFESTS_MAX);
        }
        found->manifests[found->manifest_count] = sim_manifest_ref(key->value->content);
        found->manifest_revisions[found->manifest_count++] = key->mod_revision;
    }
    for (size_t i = 0; i < SIM_FOLDERS_MAX && (folder = sim_checkpoint_folder(sim, i)) != NULL;
         i++) {
        (void)snprintf(found->folders[found->folder_count++], SIM_NAME_MAX + 1, "%s", folder);
    }
}

static int compare_versions(const struct sim_manifest *a, const struct sim_manifest *b)
{
    return a->version < b->version ? -1 : a->version > b->version;
}

/* Keys are in the order of texts. */
static void sort_manifests(struct sim_found *found)
{
    for (uint32_t i = 1; i < found->manifest_count; i++) {
        for (uint32_t k = i;
             k > 0 && compare_versions(found->manifests[k], found->manifests[k - 1]) < 0; k--) {
            struct sim_manifest *manifest = found->manifests[k];
            int64_t revision = found->manifest_revisions[k];
            found->manifests[k] = found->manifests[k - 1];
            found->manifest_revisions[k] = found->manifest_revisions[k - 1];
            found->manifests[k - 1] = manifest;
            found->manifest_revisions[k - 1] = revision;
        }
    }
}

static void read_part(struct sim_coordinator *coordinator, struct sim_task *task)
{
    struct sim *sim = coordinator->sim;
    struct sim_found *found = &task->found;
    const struct sim_key *key = NULL;
    switch ((enum read_stage)task->stage) {
    case READ_PLAN:
        found->plan = sim_etcd_look(sim, "plan") != NULL;
        break;
    case READ_MAP:
        key = sim_etcd_look(sim, "map");
        coordinator->map_revision = revision_of(key);
        coordinator->map_generation =
            key ? ((const struct sim_map *)key->value->content)->map.generation : 0;
        if (key && kelp_map_copy(&((const struct sim_map *)key->value->content)->map,
                                 &found->map) != KELP_OK) {
            abort();
        }
        break;
    case READ_STATE:
        key = sim_etcd_look(sim, "state");
        coordinator->state_revision = revision_of(key);
        (void)snprintf(found->state, sizeof(found->state), "%s", key ? key->value->text : "");
        break;
    case READ_FENCE:
        coordinator->fence_revision = revision_of(sim_etcd_look(sim, "fence"));
        break;
    case READ_MANIFESTS:
        read_manifests(sim, found);
        sort_manifests(found);
        break;
    case READ_STAGE_COUNT:
        break;
    }
}

static bool next_stage(struct sim_task *task)
{
    if (task->kind != SIM_TASK_READ && task->kind != SIM_TASK_READ_MAP) {
        return false;
    }
    task->stage++;
    if (task->stage == READ_STATE && task->kind == SIM_TASK_READ_MAP) {
        task->stage++;
    }
    return task->stage < READ_STAGE_COUNT;
}

static void was_read(struct sim *sim, struct sim_process *process, void *data,
                     const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->helper.tasks[0];
    (void)data;
    task->status = outcome->status;
    if (outcome->status == KELP_OK) {
        read_part(coordinator, task);
        if (next_stage(task)) {
            sim_etcd_read(sim, process, was_read, NULL);
            return;
        }
    }
    finish_first(coordinator, &coordinator->helper);
}

static void read_stage(struct sim_coordinator *coordinator, enum read_stage stage)
{
    coordinator->helper.tasks[0].stage = stage;
    sim_etcd_read(coordinator->sim, coordinator->process, was_read, NULL);
}

/* ---- writing etcd ------------------------------------------------------------------------------
 */

static void manifest_key(uint64_t version, char key[SIM_ETCD_KEY_MAX + 1])
{
    (void)snprintf(key, SIM_ETCD_KEY_MAX + 1, "checkpoint/%llu", (unsigned long long)version);
}

static void add_compare(struct sim_transaction *transaction, const char *key, bool create,
                        int64_t revision)
{
    struct sim_compare *compare = &transaction->compares[transaction->compare_count++];
    *compare = (struct sim_compare){.create = create, .revision = revision};
    (void)snprintf(compare->key, sizeof(compare->key), "%s", key);
}

/* value: a reference that is transferred, or NULL: delete. */
static void add_operation(struct sim_transaction *transaction, const char *key,
                          struct sim_value *value)
{
    struct sim_operation *operation = &transaction->operations[transaction->operation_count++];
    *operation = (struct sim_operation){.value = value};
    (void)snprintf(operation->key, sizeof(operation->key), "%s", key);
}

static struct sim_value *new_value(const struct sim_task *task)
{
    struct sim_value *value = sim_value_create();
    value->nonce = task->nonce;
    return value;
}

/* Ours may stand there since an earlier attempt whose answer was lost. */
static void looked_for_ours(struct sim *sim, struct sim_process *process, void *data,
                            const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->helper.tasks[0];
    char name[SIM_ETCD_KEY_MAX + 1];
    (void)data;
    task->status = outcome->status == KELP_OK ? KELP_OK : KELP_ERR_TIMEOUT;
    manifest_key(task->manifest->version, name);
    const struct sim_key *key = outcome->status == KELP_OK ? sim_etcd_look(sim, name) : NULL;
    if (key && key->value->content == task->manifest) {
        task->succeeded = true;
        task->key_revision = key->mod_revision;
    }
    finish_first(coordinator, &coordinator->helper);
}

static void note_revisions(struct sim_coordinator *coordinator, struct sim_task *task,
                           int64_t revision)
{
    if (task->kind == SIM_TASK_MAP) {
        coordinator->map_revision = revision;
        coordinator->map_generation = task->map.generation;
        coordinator->fence_revision = revision;
    } else if (task->kind == SIM_TASK_REMOVE) {
        coordinator->fence_revision = revision;
    } else if (task->kind == SIM_TASK_STATE) {
        coordinator->state_revision = revision;
    }
    task->key_revision = revision;
}

static void was_put(struct sim *sim, struct sim_process *process, void *data,
                    const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->helper.tasks[0];
    (void)data;
    task->status = outcome->status;
    task->succeeded = outcome->succeeded;
    bool answered = outcome->status == KELP_OK;
    if (outcome->succeeded) {
        note_revisions(coordinator, task, outcome->revision);
    }
    if (task->kind == SIM_TASK_PLAN && (answered || outcome->status == KELP_ERR_TIMEOUT)) {
        read_stage(coordinator, READ_PLAN); /* what counts is what stands there */
    } else if (task->kind == SIM_TASK_STATE && answered && !outcome->succeeded) {
        read_stage(coordinator, READ_STATE); /* who has changed it? */
    } else if (task->kind == SIM_TASK_COMMIT && answered && !outcome->succeeded) {
        sim_etcd_read(sim, process, looked_for_ours, NULL);
    } else {
        finish_first(coordinator, &coordinator->helper);
    }
}

static void no_election(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)data;
    (void)number;
    coordinator->helper.tasks[0].status = KELP_ERR_NOT_LEADER;
    finish_first(coordinator, &coordinator->helper);
}

static void too_late(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)data;
    (void)number;
    coordinator->helper.tasks[0].status = KELP_OK; /* and not succeeded */
    finish_first(coordinator, &coordinator->helper);
}

static void fill_state(const struct sim_coordinator *coordinator, const struct sim_task *task,
                       struct sim_transaction *transaction)
{
    struct sim_value *value = new_value(task);
    (void)snprintf(value->text, sizeof(value->text), "%s", task->state);
    add_compare(transaction, "state", false, coordinator->state_revision);
    add_operation(transaction, "state", value);
}

static void fill_map(const struct sim_coordinator *coordinator, const struct sim_task *task,
                     struct sim_transaction *transaction)
{
    char key[SIM_ETCD_KEY_MAX + 1];
    struct sim_value *value = new_value(task);
    value->content = sim_map_create(&task->map);
    value->unref = (void (*)(void *))sim_map_unref;
    add_compare(transaction, "fence", false, coordinator->fence_revision);
    add_compare(transaction, "map", false, coordinator->map_revision);
    if (task->version > 0) {
        manifest_key(task->version, key);
        add_compare(transaction, key, false, task->key_revision);
    }
    add_operation(transaction, "map", value);
    add_operation(transaction, "fence", new_value(task));
    for (uint32_t i = 0; i < task->gone_count; i++) {
        manifest_key(task->gone[i], key);
        add_operation(transaction, key, NULL);
    }
    (void)snprintf(transaction->nonce_key, sizeof(transaction->nonce_key), "map");
}

static void fill_commit(const struct sim_coordinator *coordinator, const struct sim_task *task,
                        struct sim_transaction *transaction)
{
    char key[SIM_ETCD_KEY_MAX + 1];
    struct sim_value *value = new_value(task);
    value->content = sim_manifest_ref(task->manifest);
    value->unref = (void (*)(void *))sim_manifest_unref;
    manifest_key(task->manifest->version, key);
    add_compare(transaction, "fence", false, coordinator->fence_revision);
    add_compare(transaction, "map", false, coordinator->map_revision);
    add_compare(transaction, key, false, 0);
    add_operation(transaction, key, value);
    memcpy(transaction->nonce_key, key, sizeof(transaction->nonce_key));
}

static void fill_remove(const struct sim_coordinator *coordinator, const struct sim_task *task,
                        struct sim_transaction *transaction)
{
    char key[SIM_ETCD_KEY_MAX + 1];
    manifest_key(task->version, key);
    add_compare(transaction, "fence", false, coordinator->fence_revision);
    add_compare(transaction, "map", false, coordinator->map_revision);
    add_operation(transaction, key, NULL);
    add_operation(transaction, "fence", new_value(task));
    (void)snprintf(transaction->nonce_key, sizeof(transaction->nonce_key), "fence");
}

static void write_etcd(struct sim_coordinator *coordinator, const struct sim_task *task)
{
    struct sim_transaction transaction = {.compare_count = 0};
    bool late =
        task->kind == SIM_TASK_COMMIT && task->manifest->generation != coordinator->map_generation;
    if (late) { /* another generation was opened since it was asked for */
        sim_after(coordinator->sim, 1,
                  &(struct sim_call){.process = coordinator->process, .run = too_late});
        return;
    }
    if (task->revision == 0) {
        sim_after(coordinator->sim, 1,
                  &(struct sim_call){.process = coordinator->process, .run = no_election});
        return;
    }
    if (task->kind == SIM_TASK_COMMIT && task->election != task->revision) {
        sim_etcd_read(coordinator->sim, coordinator->process, looked_for_ours, NULL);
        return;
    }
    add_compare(&transaction, "coordinator", true, task->revision);
    if (task->kind == SIM_TASK_PLAN) {
        add_compare(&transaction, "plan", false, 0);
        add_operation(&transaction, "plan", new_value(task));
    } else if (task->kind == SIM_TASK_STATE) {
        fill_state(coordinator, task, &transaction);
    } else if (task->kind == SIM_TASK_MAP) {
        fill_map(coordinator, task, &transaction);
    } else if (task->kind == SIM_TASK_COMMIT) {
        fill_commit(coordinator, task, &transaction);
    } else {
        fill_remove(coordinator, task, &transaction);
    }
    sim_etcd_submit(coordinator->sim, coordinator->process, &transaction, was_put, NULL);
}

/* ---- the disk ----------------------------------------------------------------------------------
 */

static void disk_done(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    const struct sim_task *task = &coordinator->disk.tasks[0];
    (void)data;
    (void)number;
    if (task->kind == SIM_TASK_SYNC) {
        sim_journal_sync(sim);
    } else if (task->kind == SIM_TASK_REMOVE_FOLDER) {
        sim_checkpoint_remove(sim, task->folder);
    }
    finish_first(coordinator, &coordinator->disk);
}

/* ---- queues ------------------------------------------------------------------------------------
 */

static void run_first(struct sim_coordinator *coordinator, struct sim_helper *helper)
{
    if (helper->count == 0 || helper->busy) {
        return;
    }
    const struct sim_task *task = &helper->tasks[0];
    helper->busy = true;
    if (task->kind >= SIM_TASK_SYNC) {
        struct sim *sim = coordinator->sim;
        bool slow = sim->profile.sluggish && sim_chance(sim, 1, 3);
        sim_after(sim, sim_between(sim, SIM_MS, slow ? SIM_SECOND : 20 * SIM_MS),
                  &(struct sim_call){.process = coordinator->process, .run = disk_done});
    } else if (task->kind == SIM_TASK_READ) {
        read_stage(coordinator, READ_PLAN);
    } else if (task->kind == SIM_TASK_READ_MAP) {
        read_stage(coordinator, READ_MAP);
    } else {
        write_etcd(coordinator, task);
    }
}

static struct sim_task *add_task(struct sim_coordinator *coordinator, enum sim_task_kind kind)
{
    struct sim_helper *helper = kind >= SIM_TASK_SYNC ? &coordinator->disk : &coordinator->helper;
    helper->tasks =
        sim_grow(helper->tasks, helper->count, &helper->capacity, sizeof(*helper->tasks));
    struct sim_task *task = &helper->tasks[helper->count++];
    *task = (struct sim_task){.kind = kind,
                              .term = coordinator->term,
                              .revision = coordinator->revision,
                              .nonce = ++coordinator->sim->incarnations};
    memcpy(task->state, coordinator->state, sizeof(task->state));
    return task;
}

void sim_leader_submit(struct sim_coordinator *coordinator, enum sim_task_kind kind)
{
    (void)add_task(coordinator, kind);
    run_first(coordinator, &coordinator->helper);
}

void sim_leader_write_map(struct sim_coordinator *coordinator, const struct kelp_map *map,
                          int64_t restored_revision, const uint64_t *gone, uint32_t gone_count)
{
    struct sim_task *task = add_task(coordinator, SIM_TASK_MAP);
    if (kelp_map_copy(map, &task->map) != KELP_OK) {
        abort();
    }
    task->version = map->restore_version;
    task->key_revision = restored_revision;
    memcpy(task->gone, gone, gone_count * sizeof(*gone));
    task->gone_count = gone_count;
    run_first(coordinator, &coordinator->helper);
}

void sim_leader_commit(struct sim_coordinator *coordinator)
{
    struct sim_task *task = add_task(coordinator, SIM_TASK_COMMIT);
    task->manifest = sim_manifest_ref(coordinator->manifest);
    task->election = coordinator->order_election;
    task->serial = coordinator->checkpointer.order.serial;
    run_first(coordinator, &coordinator->helper);
}

void sim_leader_remove(struct sim_coordinator *coordinator, uint64_t version)
{
    add_task(coordinator, SIM_TASK_REMOVE)->version = version;
    run_first(coordinator, &coordinator->helper);
}

void sim_disk_sync_journal(struct sim_coordinator *coordinator, bool finish)
{
    add_task(coordinator, SIM_TASK_SYNC)->finish = finish;
    run_first(coordinator, &coordinator->disk);
}

void sim_disk_describe(struct sim_coordinator *coordinator)
{
    add_task(coordinator, SIM_TASK_DESCRIBE)->serial = coordinator->checkpointer.order.serial;
    run_first(coordinator, &coordinator->disk);
}

void sim_disk_remove(struct sim_coordinator *coordinator, const char *folder)
{
    if (folder[0] != '\0') {
        struct sim_task *task = add_task(coordinator, SIM_TASK_REMOVE_FOLDER);
        (void)snprintf(task->folder, sizeof(task->folder), "%s", folder);
        run_first(coordinator, &coordinator->disk);
    }
}
