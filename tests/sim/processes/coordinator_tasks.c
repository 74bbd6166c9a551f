/* What a simulated coordinator's two helper threads do, each one after the other: one asks etcd
 * (coordinator/etcd/leader_tasks.c, leader_checkpoints.c), one the disk. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/outside/disk.h"
#include "tests/sim/processes/coordinator.h"

static void run_first(struct sim_coordinator *coordinator, struct sim_thread *thread);

static void task_fini(struct sim_task *task)
{
    kelp_map_fini(&task->map);
    free(task->records);
    sim_manifest_unref(task->manifest);
    sim_coordinator_found_fini(&task->found);
}

void sim_coordinator_forget_tasks(struct sim_coordinator *coordinator)
{
    struct sim_thread *threads[2] = {&coordinator->etcd, &coordinator->disk};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < threads[t]->count; i++) {
            task_fini(&threads[t]->tasks[i]);
        }
        free(threads[t]->tasks);
    }
}

/* ---- the end of a task ---- */

static char plan_text[] = "the plan"; /* there is one alone */

static void map_written(struct sim_coordinator *coordinator, struct kelp_term *term,
                        const struct sim_task *task)
{
    enum kelp_placement_written result = kelp_written_of(task->status, task->succeeded);
    if (result == KELP_WRITTEN_OK) {
        coordinator->sim->counts[SIM_COUNT_GENERATION]++;
        coordinator->sim->counts[SIM_COUNT_RESTORE] += task->map.restore_version > 0 ? 1 : 0;
    }
    kelp_term_map_written(term, result, "as etcd says");
}

static void committed(struct sim_coordinator *coordinator, struct kelp_term *term,
                      const struct sim_task *task)
{
    const struct kelp_commit_answer answer = {
        .serial = task->serial,
        .result = kelp_checkpointer_result_of(task->status, task->succeeded),
        .revision = task->key_revision,
        .text = "as etcd says"};
    coordinator->sim->counts[SIM_COUNT_CHECKPOINT] += answer.result == KELP_CHECKPOINTER_OK ? 1 : 0;
    kelp_term_committed(term, &answer);
}

static void removed(struct sim_coordinator *coordinator, struct kelp_term *term,
                    const struct sim_task *task)
{
    enum kelp_checkpointer_result result =
        kelp_checkpointer_result_of(task->status, task->succeeded);
    coordinator->sim->counts[SIM_COUNT_CHECKPOINT_REMOVED] +=
        result == KELP_CHECKPOINTER_OK ? 1 : 0;
    kelp_term_removed(term, result, "as etcd says");
}

/* Of this term alone. */
static void task_done(struct sim_coordinator *coordinator, struct kelp_term *term,
                      struct sim_task *task)
{
    bool good = task->status == KELP_OK;
    task->found.plan = task->plan_there ? plan_text : NULL;
    switch (task->kind) {
    case SIM_TASK_READ:
        kelp_leadership_read(&coordinator->leadership, task->status, &task->found, "no answer");
        break;
    case SIM_TASK_READ_MAP:
        kelp_term_map_read(term, task->status, &task->found, "no answer");
        break;
    case SIM_TASK_PLAN:
        kelp_term_plan_written(term, good && !task->plan_there ? KELP_ERR_NOT_LEADER : task->status,
                               plan_text, "as etcd says");
        break;
    case SIM_TASK_MAP:
    case SIM_TASK_CHANGE:
        map_written(coordinator, term, task);
        break;
    case SIM_TASK_STATE:
        kelp_term_state_written(term, good && task->succeeded);
        break;
    case SIM_TASK_SCALE:
        kelp_term_scale_written(term, good && task->succeeded ? &task->scale.targets : NULL);
        break;
    case SIM_TASK_COMMIT:
        committed(coordinator, term, task);
        break;
    case SIM_TASK_REMOVE:
        removed(coordinator, term, task);
        break;
    case SIM_TASK_FILE:
        kelp_term_filed(term, &(struct kelp_filed){
                                  .count = task->record_count, .synced = task->sync, .text = ""});
        break;
    case SIM_TASK_HOLD:
        kelp_term_held(term, task->generation, KELP_OK, "");
        break;
    case SIM_TASK_DESCRIBE:
        kelp_term_described(term, task->serial, KELP_OK, "");
        break;
    case SIM_TASK_REMOVE_FOLDER:
        break;
    }
}

static void finish_first(struct sim_coordinator *coordinator, struct sim_thread *thread)
{
    struct sim_task task = thread->tasks[0];
    thread->count--;
    memmove(&thread->tasks[0], &thread->tasks[1], thread->count * sizeof(task));
    thread->busy = false;
    struct kelp_term *term = sim_coordinator_term(coordinator);
    if (term && task.term == coordinator->term) {
        task_done(coordinator, term, &task);
    }
    task_fini(&task);
    run_first(coordinator, thread);
}

/* ---- reading etcd ------------------------------------------------------------------------------
 */

static void was_read(struct sim *sim, struct sim_process *process, void *data,
                     const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->etcd.tasks[0];
    (void)data;
    task->status = outcome->status;
    if (outcome->status == KELP_OK) {
        if (sim_coordinator_use_part(sim, task)) {
            sim_etcd_read(sim, process, sim_coordinator_read_part, was_read);
            return;
        }
    }
    finish_first(coordinator, &coordinator->etcd);
}

static void read_stage(struct sim_coordinator *coordinator, enum sim_read_stage stage)
{
    coordinator->etcd.tasks[0].stage = stage;
    sim_etcd_read(coordinator->sim, coordinator->process, sim_coordinator_read_part, was_read);
}

/* ---- writing etcd ------------------------------------------------------------------------------
 */

/* Ours may stand there since an earlier attempt whose answer was lost. */
static void look_for_ours(struct sim *sim, struct sim_process *process)
{
    struct sim_task *task = &sim_coordinator_of(process)->etcd.tasks[0];
    char name[SIM_ETCD_KEY_MAX + 1];
    sim_coordinator_manifest_key(task->manifest->version, name);
    const struct sim_key *key = sim_etcd_look(sim, name);
    if (key && key->value->content == task->manifest) {
        task->succeeded = true;
        task->key_revision = key->mod_revision;
    }
}

static void looked_for_ours(struct sim *sim, struct sim_process *process, void *data,
                            const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)data;
    coordinator->etcd.tasks[0].status = outcome->status == KELP_OK ? KELP_OK : KELP_ERR_TIMEOUT;
    finish_first(coordinator, &coordinator->etcd);
}

static void note_revisions(struct sim_coordinator *coordinator, struct sim_task *task,
                           int64_t revision)
{
    if (task->kind == SIM_TASK_MAP) {
        coordinator->map_revision = revision;
        coordinator->map_generation = task->map.generation;
        coordinator->fence_revision = revision;
    } else if (task->kind == SIM_TASK_CHANGE) {
        coordinator->map_revision = revision;
    } else if (task->kind == SIM_TASK_REMOVE) {
        coordinator->fence_revision = revision;
    } else if (task->kind == SIM_TASK_STATE) {
        coordinator->state_revision = revision;
    } else if (task->kind == SIM_TASK_SCALE) {
        coordinator->scale_revision = revision;
    }
    task->key_revision = revision;
}

static void was_put(struct sim *sim, struct sim_process *process, void *data,
                    const struct sim_outcome *outcome)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->etcd.tasks[0];
    (void)data;
    task->status = outcome->status;
    task->succeeded = outcome->succeeded;
    bool answered = outcome->status == KELP_OK;
    if (outcome->succeeded) {
        note_revisions(coordinator, task, outcome->revision);
    }
    if (task->kind == SIM_TASK_PLAN && (answered || outcome->status == KELP_ERR_TIMEOUT)) {
        read_stage(coordinator, SIM_READ_PLAN); /* what counts is what stands there */
    } else if (task->kind == SIM_TASK_STATE && answered && !outcome->succeeded) {
        read_stage(coordinator, SIM_READ_STATE); /* who has changed it? */
    } else if (task->kind == SIM_TASK_SCALE && answered && !outcome->succeeded) {
        read_stage(coordinator, SIM_READ_SCALE); /* likewise */
    } else if (task->kind == SIM_TASK_COMMIT && answered && !outcome->succeeded) {
        sim_etcd_read(sim, process, look_for_ours, looked_for_ours);
    } else {
        finish_first(coordinator, &coordinator->etcd);
    }
}

static void no_election(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)data;
    (void)number;
    coordinator->etcd.tasks[0].status = KELP_ERR_NOT_LEADER;
    finish_first(coordinator, &coordinator->etcd);
}

static void too_late(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)data;
    (void)number;
    coordinator->etcd.tasks[0].status = KELP_OK; /* and not succeeded */
    finish_first(coordinator, &coordinator->etcd);
}

static void write_etcd(struct sim_coordinator *coordinator, const struct sim_task *task)
{
    struct sim_transaction transaction = {.compare_count = 0};
    bool late =
        task->kind == SIM_TASK_COMMIT && task->manifest->generation != coordinator->map_generation;
    bool blind = task->kind == SIM_TASK_MAP && task->map.restore_version > 0 &&
                 task->opening.restored_revision == 0;
    if (late || blind) { /* another generation was opened since; what it restores is not known */
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
        sim_etcd_read(coordinator->sim, coordinator->process, look_for_ours, looked_for_ours);
        return;
    }
    sim_coordinator_fill(coordinator, task, &transaction);
    sim_etcd_submit(coordinator->sim, coordinator->process, &transaction, was_put, NULL);
}

/* ---- the disk ----------------------------------------------------------------------------------
 */

static void file_now(struct sim *sim, const struct sim_task *task)
{
    for (size_t i = 0; i < task->record_count; i++) {
        sim_journal_append(sim, &task->records[i]);
    }
    if (task->sync) {
        sim_journal_sync(sim);
    }
}

static void disk_done(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    const struct sim_task *task = &coordinator->disk.tasks[0];
    (void)data;
    (void)number;
    if (task->kind == SIM_TASK_FILE) {
        file_now(sim, task);
    } else if (task->kind == SIM_TASK_DESCRIBE) {
        sim_journal_sync(sim);
    } else if (task->kind == SIM_TASK_REMOVE_FOLDER) {
        sim_checkpoint_remove(sim, task->folder);
    }
    finish_first(coordinator, &coordinator->disk);
}

/* ---- queues ------------------------------------------------------------------------------------
 */

static void run_first(struct sim_coordinator *coordinator, struct sim_thread *thread)
{
    if (thread->count == 0 || thread->busy) {
        return;
    }
    const struct sim_task *task = &thread->tasks[0];
    thread->busy = true;
    if (task->kind >= SIM_TASK_FILE) {
        struct sim *sim = coordinator->sim;
        bool slow = sim->profile.sluggish && sim_chance(sim, 1, 3);
        bool hangs = sim->profile.stuck || (slow && sim_chance(sim, 1, 10));
        uint64_t longest = hangs ? 8 * SIM_SECOND : slow ? SIM_SECOND : 20 * SIM_MS;
        sim_after(sim, sim_between(sim, SIM_MS, longest),
                  &(struct sim_call){.process = coordinator->process, .run = disk_done});
    } else if (task->kind == SIM_TASK_READ) {
        read_stage(coordinator, SIM_READ_PLAN);
    } else if (task->kind == SIM_TASK_READ_MAP) {
        read_stage(coordinator, SIM_READ_MAP);
    } else {
        write_etcd(coordinator, task);
    }
}

static struct sim_task *add_task(struct sim_coordinator *coordinator, enum sim_task_kind kind)
{
    struct sim_thread *thread = kind >= SIM_TASK_FILE ? &coordinator->disk : &coordinator->etcd;
    thread->tasks =
        sim_grow(thread->tasks, thread->count, &thread->capacity, sizeof(*thread->tasks));
    struct sim_task *task = &thread->tasks[thread->count++];
    *task = (struct sim_task){.kind = kind,
                              .term = coordinator->term,
                              .revision = coordinator->revision,
                              .asked_us = coordinator->sim->now,
                              .nonce = ++coordinator->sim->incarnations};
    return task;
}

/* ---- effects ---- */

static bool submit(struct sim_coordinator *coordinator, enum sim_task_kind kind)
{
    (void)add_task(coordinator, kind);
    run_first(coordinator, &coordinator->etcd);
    return true;
}

static bool read_everything(void *user)
{
    return submit(user, SIM_TASK_READ);
}

static bool read_map(void *user)
{
    return submit(user, SIM_TASK_READ_MAP);
}

static bool write_plan(void *user)
{
    return submit(user, SIM_TASK_PLAN);
}

static struct sim_task *add_map_task(struct sim_coordinator *coordinator, enum sim_task_kind kind,
                                     const struct kelp_map *map)
{
    struct sim_task *task = add_task(coordinator, kind);
    if (kelp_map_copy(map, &task->map) != KELP_OK) {
        abort();
    }
    return task;
}

static bool change_map(const struct kelp_map *map, void *user)
{
    struct sim_coordinator *coordinator = user;
    const struct kelp_term *term = coordinator->leadership.term;
    const struct kelp_checkpointer *checkpointer = &term->keeper.machine;
    if (checkpointer->state == KELP_CHECKPOINTER_ORDERED && !term->placement.loses) {
        sim_invariants_moving(
            coordinator->sim,
            &(struct kelp_snapshot_order){.serial = checkpointer->order.serial,
                                          .generation = checkpointer->order.generation,
                                          .step = checkpointer->order.step},
            &term->placement.map, map);
    }
    (void)add_map_task(coordinator, SIM_TASK_CHANGE, map);
    run_first(coordinator, &coordinator->etcd);
    return true;
}

static bool write_map(const struct kelp_opening *opening, void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_task *task = add_map_task(coordinator, SIM_TASK_MAP, opening->map);
    task->opening = *opening;
    task->opening.map = NULL;
    run_first(coordinator, &coordinator->etcd);
    return true;
}

static bool write_state(const struct kelp_job_state *state, void *user)
{
    struct sim_coordinator *coordinator = user;
    add_task(coordinator, SIM_TASK_STATE)->state = *state;
    run_first(coordinator, &coordinator->etcd);
    return true;
}

static bool write_scale(const struct kelp_scale *scale, void *user)
{
    struct sim_coordinator *coordinator = user;
    add_task(coordinator, SIM_TASK_SCALE)->scale = *scale;
    run_first(coordinator, &coordinator->etcd);
    return true;
}

static bool commit(const struct kelp_commit *wanted, void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_task *task = add_task(coordinator, SIM_TASK_COMMIT);
    task->manifest = sim_manifest_ref(sim_manifest_find(coordinator->sim, wanted->manifest));
    task->election = wanted->election;
    task->serial = wanted->serial;
    run_first(coordinator, &coordinator->etcd);
    return true;
}

static bool remove_manifest(uint64_t version, void *user)
{
    struct sim_coordinator *coordinator = user;
    add_task(coordinator, SIM_TASK_REMOVE)->version = version;
    run_first(coordinator, &coordinator->etcd);
    return true;
}

static bool file_records(const struct kelp_record *records, size_t count, bool sync, void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_task *task = add_task(coordinator, SIM_TASK_FILE);
    task->records = sim_alloc(count * sizeof(*records));
    memcpy(task->records, records, count * sizeof(*records));
    task->record_count = count;
    task->sync = sync;
    run_first(coordinator, &coordinator->disk);
    return true;
}

/* Nobody forces a job on another one's checkpoints, or makes it longer. */
static bool take_hold(const struct kelp_hold *hold, void *user)
{
    struct sim_coordinator *coordinator = user;
    add_task(coordinator, SIM_TASK_HOLD)->generation = hold->generation;
    run_first(coordinator, &coordinator->disk);
    return true;
}

static bool describe(const char *folder, uint64_t serial, void *user)
{
    struct sim_coordinator *coordinator = user;
    (void)folder;
    add_task(coordinator, SIM_TASK_DESCRIBE)->serial = serial;
    run_first(coordinator, &coordinator->disk);
    return true;
}

static bool remove_folder(const char *folder, void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_task *task = add_task(coordinator, SIM_TASK_REMOVE_FOLDER);
    (void)snprintf(task->folder, sizeof(task->folder), "%s", folder);
    run_first(coordinator, &coordinator->disk);
    return true;
}

/* Nobody finds it under its name any more. */
static bool set_aside(const char *folder, void *user)
{
    struct sim_coordinator *coordinator = user;
    coordinator->sim->counts[SIM_COUNT_CHECKPOINT_DAMAGED]++;
    return remove_folder(folder, user);
}

/* It is for an etcd that was emptied, which none is here. */
static bool write_manifest(const char *folder, const char *text, void *user)
{
    (void)folder;
    (void)text;
    (void)user;
    return true;
}

void sim_coordinator_task_effects(struct kelp_term_effects *effects)
{
    effects->read = read_everything;
    effects->read_map = read_map;
    effects->write_plan = write_plan;
    effects->write_map = write_map;
    effects->change_map = change_map;
    effects->write_state = write_state;
    effects->write_scale = write_scale;
    effects->commit = commit;
    effects->remove = remove_manifest;
    effects->file = file_records;
    effects->take_hold = take_hold;
    effects->describe = describe;
    effects->remove_folder = remove_folder;
    effects->set_aside = set_aside;
    effects->write_manifest = write_manifest;
    effects->make_manifest = sim_coordinator_make_manifest;
}
