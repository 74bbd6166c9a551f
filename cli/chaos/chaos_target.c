#include "cli/chaos/chaos_target.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS_FRESH_MS 1000 /* older answers of the coordinator say nothing about now */
#define KILLED_MS       5000 /* for processes to be gone after SIGKILL */
/* A process must have lived for this many steps, and this long, before it is hit. */
#define SETTLED_MS 100

/* ---- which process ------------------------------------------------------------------------- */

static const Kelp__V1__StatusReply *fresh_status(const struct kelp_chaos_target *target,
                                                 uint64_t now_ms)
{
    return target->status && now_ms - target->status_ms <= STATUS_FRESH_MS ? target->status : NULL;
}

/* Whether the process lived while the last step was made. */
static bool has_worked(const struct kelp_chaos_target *target, uint64_t age_ms, uint64_t now_ms)
{
    return age_ms >= SETTLED_MS && target->progress_ms > 0 && now_ms - target->progress_ms < age_ms;
}

/* A worker that has not joined yet, and a shard without partitions, do no work. */
static bool takes_part(const struct kelp_chaos_target *target, enum kelp_chaos_role role,
                       const char *id, uint64_t now_ms)
{
    const Kelp__V1__StatusReply *status = fresh_status(target, now_ms);

    if (!status) {
        return true; /* not known: it may */
    }
    for (size_t i = 0; role == KELP_CHAOS_WORKER && i < status->n_workers; i++) {
        if (strcmp(status->workers[i]->id, id) == 0) {
            return status->workers[i]->lane_count > 0;
        }
    }
    for (size_t i = 0; role == KELP_CHAOS_SHARD && i < status->n_shards; i++) {
        if (strcmp(status->shards[i]->shard, id) == 0) {
            return status->shards[i]->partitions > 0 && status->shards[i]->connected;
        }
    }
    return role != KELP_CHAOS_WORKER && role != KELP_CHAOS_SHARD;
}

/* Is it stopped or split off by a fault that is not over? */
static bool is_taken(const struct kelp_chaos_target *target, pid_t pid)
{
    for (uint32_t i = 0; i < target->undo_count; i++) {
        if (target->undos[i].process.pidfd >= 0 && target->undos[i].process.pid == pid) {
            return true;
        }
    }
    return false;
}

static bool find_one(const struct kelp_chaos_target *target, const struct kelp_chaos_fault *fault,
                     const char *id, uint64_t now_ms, struct kelp_chaos_process *ret_process)
{
    if (!takes_part(target, fault->role, id, now_ms) ||
        kelp_chaos_process_find(kelp_process_pid(target->train.process), id, ret_process) !=
            KELP_OK) {
        return false;
    }
    bool taken = is_taken(target, ret_process->pid);
    if (!has_worked(target, ret_process->age_ms, now_ms) ||
        (taken && fault->kind != KELP_CHAOS_KILL)) {
        kelp_chaos_process_close(ret_process);
        return false;
    }
    return true;
}

static bool find_standby(const struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                         const char *leader, struct kelp_chaos_process *ret_process)
{
    for (uint32_t i = 0; i < target->coordinators; i++) {
        (void)snprintf(attempt->name, sizeof(attempt->name), "coordinator-%" PRIu32, i);
        if (strcmp(attempt->name, leader) != 0 &&
            find_one(target, attempt->fault, attempt->name, attempt->now_ms, ret_process)) {
            return true;
        }
    }
    return false;
}

/* Its partitions moved to others while it was away for too long, and stay there; or fewer shards
 * are wanted by now. */
static bool is_idle(const Kelp__V1__StatusReply *status, enum kelp_chaos_role role, const char *id)
{
    for (size_t i = 0; status && role == KELP_CHAOS_SHARD && i < status->n_shards; i++) {
        if (strcmp(status->shards[i]->shard, id) == 0) {
            return status->shards[i]->connected && status->shards[i]->partitions == 0;
        }
    }
    for (size_t i = 0; status && role == KELP_CHAOS_WORKER && i < status->n_workers; i++) {
        if (strcmp(status->workers[i]->id, id) == 0) {
            return false;
        }
    }
    return status != NULL;
}

/* The target's name, "worker-1". If a drawn target is absent or idle, the next one that is not. */
static void name_target(const struct kelp_chaos_target *target,
                        const struct kelp_chaos_fault *fault, uint64_t now_ms, char ret_name[32])
{
    struct kelp_chaos_fault wanted = *fault;
    char name[KELP_CHAOS_TEXT_MAX];

    uint32_t count = fault->role == KELP_CHAOS_SHARD    ? target->shards
                     : fault->role == KELP_CHAOS_WORKER ? target->workers
                                                        : 0;
    kelp_chaos_target_print(&wanted, name);
    for (uint32_t i = 1;
         fault->drawn && i < count && is_idle(fresh_status(target, now_ms), fault->role, name);
         i++) {
        wanted.index = (fault->index + i) % count;
        kelp_chaos_target_print(&wanted, name);
    }
    (void)snprintf(ret_name, 32, "%.31s", name);
}

/* The primary of partition 0, or its backup; false if it is not known. */
static bool name_replica(const Kelp__V1__StatusReply *status, bool primary, char ret_name[32])
{
    const Kelp__V1__Map *map = status ? status->map : NULL;
    uint32_t index = primary ? kelp_chaos_replicas_primary(map) : kelp_chaos_replicas_backup(map);
    if (index == UINT32_MAX) {
        return false;
    }
    (void)snprintf(ret_name, 32, "%.31s", map->shards[index]->shard);
    return true;
}

/* The process that the fault is for, stopped; false if it is absent or idle. */
static bool find_process(const struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                         struct kelp_chaos_process *ret_process)
{
    const struct kelp_chaos_fault *fault = attempt->fault;
    const Kelp__V1__StatusReply *status = fresh_status(target, attempt->now_ms);

    switch (fault->role) {
    case KELP_CHAOS_WORKER:
    case KELP_CHAOS_SHARD:
    case KELP_CHAOS_COORDINATOR:
        name_target(target, fault, attempt->now_ms, attempt->name);
        break;
    case KELP_CHAOS_LEADER:
        if (!status || status->leader[0] == '\0') {
            return false;
        }
        (void)snprintf(attempt->name, sizeof(attempt->name), "%.31s", status->leader);
        break;
    case KELP_CHAOS_PRIMARY:
    case KELP_CHAOS_BACKUP:
        if (!name_replica(status, fault->role == KELP_CHAOS_PRIMARY, attempt->name)) {
            return false;
        }
        break;
    case KELP_CHAOS_STANDBY:
        return status && find_standby(target, attempt, status->leader, ret_process);
    default:
        return false;
    }
    return find_one(target, fault, attempt->name, attempt->now_ms, ret_process);
}

/* ---- doing --------------------------------------------------------------------------------- */

static struct kelp_chaos_undo *add_undo(struct kelp_chaos_target *target,
                                        enum kelp_chaos_undo_kind kind, uint64_t at_ms)
{
    assert(target->undo_count < KELP_CHAOS_UNDO_MAX);
    struct kelp_chaos_undo *undo = &target->undos[target->undo_count++];
    *undo = (struct kelp_chaos_undo){.kind = kind, .at_ms = at_ms, .process = {.pidfd = -1}};
    return undo;
}

/* The process goes to the undo. */
static kelp_status split_off(struct kelp_chaos_target *target, const struct kelp_chaos_fault *fault,
                             struct kelp_chaos_process *process, uint64_t now_ms,
                             struct kelp_error *reterr)
{
    struct kelp_chaos_split *split = calloc(1, sizeof(*split));

    if (!split) {
        kelp_chaos_process_close(process);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    struct kelp_chaos_undo *undo = add_undo(
        target, fault->kind == KELP_CHAOS_SPLIT ? KELP_CHAOS_UNDO_SPLIT : KELP_CHAOS_UNDO_LOSS,
        now_ms + fault->for_ms);
    undo->process = *process;
    process->pidfd = -1;
    undo->split = split;
    undo->renew_ms = now_ms + KELP_CHAOS_RENEW_MS;
    return kelp_chaos_split_renew(split, undo->process.pid, reterr);
}

/* Hit a stopped process; it is passed to the undo, or continued. */
static kelp_status do_to_process(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                                 struct kelp_chaos_process *process, struct kelp_error *reterr)
{
    const struct kelp_chaos_fault *fault = attempt->fault;
    int number = fault->kind == KELP_CHAOS_PAUSE  ? SIGSTOP
                 : fault->kind == KELP_CHAOS_KILL ? SIGKILL
                                                  : SIGTERM;

    if (fault->kind == KELP_CHAOS_SPLIT || fault->kind == KELP_CHAOS_LOSS) {
        attempt->done = true;
        return split_off(target, fault, process, attempt->now_ms, reterr);
    }
    attempt->done = kelp_chaos_process_signal(process, number);
    if (attempt->done && fault->kind != KELP_CHAOS_KILL) {
        bool paused = fault->kind == KELP_CHAOS_PAUSE;
        struct kelp_chaos_undo *undo =
            add_undo(target, paused ? KELP_CHAOS_UNDO_RESUME : KELP_CHAOS_UNDO_GONE,
                     attempt->now_ms + fault->for_ms);
        undo->process = *process;
        process->pidfd = -1;
        attempt->leaves = !paused;
    }
    kelp_chaos_process_close(process);
    return KELP_OK;
}

/* Whether so few processes are left that none can ever be spared. */
static bool none_to_spare(const struct kelp_chaos_target *target, const char *name, uint64_t now_ms)
{
    const Kelp__V1__StatusReply *status = fresh_status(target, now_ms);
    bool worker = strncmp(name, "worker", strlen("worker")) == 0;

    if (!status || !status->targets) {
        return false;
    }
    return worker ? status->targets->workers_max < 2
                  : status->targets->shards <= (target->replicas > 1 ? target->replicas : 1);
}

/* Ask a stopped process to leave; it is passed to the undo once asked, or continued. A refusal that
 * lasts as long as the size counts as done. */
static void drain(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                  struct kelp_chaos_process *process)
{
    struct kelp_error error;
    kelp_status status = kelp_chaos_ask_drain(&target->asks, attempt->name, &error);

    if (status == KELP_OK) {
        add_undo(target, KELP_CHAOS_UNDO_GONE, attempt->now_ms)->process = *process;
        process->pidfd = -1;
        attempt->done = true;
        attempt->leaves = true;
    } else if (status == KELP_ERR_INVALID &&
               none_to_spare(target, attempt->name, attempt->now_ms)) {
        char name[sizeof(attempt->name)];
        (void)snprintf(name, sizeof(name), "%.19s (refused)", attempt->name);
        memcpy(attempt->name, name, sizeof(name));
        attempt->done = true;
    }
    kelp_chaos_process_close(process);
}

static void scale(const struct kelp_chaos_target *target, struct kelp_chaos_try *attempt)
{
    struct kelp_error error;
    char name[KELP_CHAOS_TEXT_MAX];

    kelp_chaos_target_print(attempt->fault, name);
    (void)snprintf(attempt->name, sizeof(attempt->name), "%.31s", name);
    attempt->done = kelp_chaos_target_works(target, attempt->now_ms) &&
                    kelp_chaos_ask_scale(&target->asks, attempt->fault, &error) == KELP_OK;
}

static kelp_status do_to_etcd(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                              struct kelp_error *reterr)
{
    const struct kelp_chaos_fault *fault = attempt->fault;
    struct kelp_chaos_process process = {.pidfd = -1};
    pid_t pid = 0;

    kelp_status status = kelp_chaos_etcd_pid(target->etcd, &pid, reterr);
    if (status != KELP_OK || pid == 0 || !kelp_chaos_target_works(target, attempt->now_ms) ||
        (is_taken(target, pid) && fault->kind != KELP_CHAOS_KILL)) {
        return status;
    }
    if (fault->kind == KELP_CHAOS_KILL || fault->kind == KELP_CHAOS_RESTART) {
        kelp_chaos_etcd_take_away(target->etcd, fault->kind == KELP_CHAOS_RESTART, fault->for_ms);
        attempt->done = true;
        return KELP_OK;
    }
    status = kelp_chaos_process_hold(pid, &process);
    return status == KELP_OK ? do_to_process(target, attempt, &process, reterr)
                             : kelp_fail(reterr, status, "cannot stop etcd for a fault: %s",
                                         kelp_status_text(status));
}

/* One fault of the disk at a time: the control file holds one. */
static void do_to_disk(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt)
{
    const struct kelp_chaos_fault *fault = attempt->fault;
    struct kelp_faultdisk_fault how = {.mode = fault->kind == KELP_CHAOS_FULL ? KELP_FAULTDISK_FULL
                                                                              : KELP_FAULTDISK_SLOW,
                                       .slow_ms = KELP_CHAOS_SLOW_MS};

    for (uint32_t i = 0; i < target->undo_count; i++) {
        if (target->undos[i].kind == KELP_CHAOS_UNDO_DISK) {
            return;
        }
    }
    attempt->done = target->disk && kelp_chaos_target_works(target, attempt->now_ms);
    if (attempt->done) {
        kelp_faultdisk_set(target->disk, &how);
        (void)add_undo(target, KELP_CHAOS_UNDO_DISK, attempt->now_ms + fault->for_ms);
    }
}

/* Whether each partition keeps a replica when a shard is hit. */
static void note_hit(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt)
{
    const Kelp__V1__StatusReply *status = fresh_status(target, attempt->now_ms);
    const struct kelp_chaos_fault *fault = attempt->fault;
    bool heals = fault->kind != KELP_CHAOS_KILL && fault->kind != KELP_CHAOS_RESTART;
    bool alone = kelp_chaos_replicas_hit(&target->hits, status ? status->map : NULL, attempt->name,
                                         attempt->now_ms,
                                         heals ? attempt->now_ms + fault->for_ms : UINT64_MAX);
    attempt->alone = attempt->alone || alone;
}

static bool is_shard(enum kelp_chaos_role role)
{
    return role == KELP_CHAOS_SHARD || role == KELP_CHAOS_PRIMARY || role == KELP_CHAOS_BACKUP;
}

static kelp_status do_to_one(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                             struct kelp_error *reterr)
{
    struct kelp_chaos_process process;
    uint32_t before = target->undo_count;
    kelp_status status = KELP_OK;

    bool drains = attempt->fault->kind == KELP_CHAOS_DRAIN;
    if (find_process(target, attempt, &process)) {
        if (drains) {
            drain(target, attempt, &process);
        } else {
            status = do_to_process(target, attempt, &process, reterr);
        }
    }
    if (attempt->done && !drains && is_shard(attempt->fault->role)) {
        note_hit(target, attempt);
    }
    if (target->undo_count > before) {
        target->undos[before].event = attempt->event;
    }
    return status;
}

/* Primary and backup, if both are there. */
static kelp_status do_to_both(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                              struct kelp_error *reterr)
{
    struct kelp_chaos_fault faults[2] = {*attempt->fault, *attempt->fault};
    struct kelp_chaos_try tries[2] = {*attempt, *attempt};
    struct kelp_chaos_process process;

    faults[0].role = KELP_CHAOS_BACKUP;
    faults[1].role = KELP_CHAOS_PRIMARY;
    for (size_t i = 0; i < 2; i++) {
        tries[i].fault = &faults[i];
        if (!find_process(target, &tries[i], &process)) {
            return KELP_OK;
        }
        kelp_chaos_process_close(&process);
    }
    kelp_status status = do_to_one(target, &tries[0], reterr);
    if (status == KELP_OK && tries[0].done) {
        status = do_to_one(target, &tries[1], reterr);
    }
    attempt->done = tries[0].done;
    attempt->alone = tries[0].alone || tries[1].alone;
    (void)snprintf(attempt->name, sizeof(attempt->name), "%.14s+%.14s", tries[1].name,
                   tries[0].name);
    return status;
}

kelp_status kelp_chaos_target_do(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                                 struct kelp_error *reterr)
{
    const struct kelp_chaos_fault *fault = attempt->fault;

    assert(fault->role != KELP_CHAOS_EVERYTHING);
    attempt->done = false;
    attempt->alone = false;
    attempt->leaves = false;
    if (target->undo_count + 1 >= KELP_CHAOS_UNDO_MAX) { /* both may last */
        return KELP_OK;
    }
    if (fault->role == KELP_CHAOS_ETCD) {
        (void)snprintf(attempt->name, sizeof(attempt->name), "etcd");
        return do_to_etcd(target, attempt, reterr);
    }
    if (fault->role == KELP_CHAOS_DISK) {
        (void)snprintf(attempt->name, sizeof(attempt->name), "disk");
        do_to_disk(target, attempt);
        return KELP_OK;
    }
    if (fault->kind == KELP_CHAOS_SCALE) {
        scale(target, attempt);
        return KELP_OK;
    }
    return fault->role == KELP_CHAOS_BOTH ? do_to_both(target, attempt, reterr)
                                          : do_to_one(target, attempt, reterr);
}

/* ---- undoing ------------------------------------------------------------------------------- */

/* Release what the undo holds; the last undo takes its place. */
static kelp_status remove_undo(struct kelp_chaos_target *target, uint32_t index,
                               struct kelp_error *reterr)
{
    struct kelp_chaos_undo *undo = &target->undos[index];
    kelp_status status = KELP_OK;

    if (undo->kind == KELP_CHAOS_UNDO_DISK) {
        kelp_faultdisk_set(target->disk, &(struct kelp_faultdisk_fault){.mode = KELP_FAULTDISK_OK});
    }
    if (undo->kind == KELP_CHAOS_UNDO_GONE && target->gone_count < KELP_CHAOS_UNDO_MAX) {
        target->gone[target->gone_count++] = undo->event; /* killed with all others, maybe */
    }
    if (undo->split) {
        status = kelp_chaos_split_heal(undo->split, reterr);
        free(undo->split);
    }
    kelp_chaos_process_close(&undo->process);
    *undo = target->undos[--target->undo_count];
    return status;
}

static void remove_undos(struct kelp_chaos_target *target)
{
    while (target->undo_count > 0) {
        /* Ports that stay cut off belong to processes that are killed next. */
        kelp_status status = remove_undo(target, target->undo_count - 1, NULL);
        (void)status;
    }
}

static kelp_status undo_one(struct kelp_chaos_target *target, uint32_t index,
                            struct kelp_error *reterr)
{
    const struct kelp_chaos_undo *undo = &target->undos[index];

    if (undo->kind == KELP_CHAOS_UNDO_RESUME) {
        (void)kelp_chaos_process_signal(&undo->process, SIGCONT); /* dead by now: as good */
    }
    return remove_undo(target, index, reterr);
}

/* Split off: cut what connections were made since. Loss: on and off in turns. */
static kelp_status renew(struct kelp_chaos_undo *undo, uint64_t now_ms, struct kelp_error *reterr)
{
    if (!undo->split || undo->renew_ms > now_ms) {
        return KELP_OK;
    }
    undo->renew_ms = now_ms + KELP_CHAOS_RENEW_MS;
    if (undo->kind == KELP_CHAOS_UNDO_LOSS && undo->split->count > 0) {
        return kelp_chaos_split_heal(undo->split, reterr);
    }
    return kelp_chaos_split_renew(undo->split, undo->process.pid, reterr);
}

/* A fault of the disk that has hit no call yet lasts until it does. */
static bool is_over(const struct kelp_chaos_target *target, const struct kelp_chaos_undo *undo,
                    uint64_t now_ms)
{
    if (undo->kind == KELP_CHAOS_UNDO_GONE) {
        return kelp_chaos_process_ended(&undo->process);
    }
    return undo->at_ms <= now_ms &&
           (undo->kind != KELP_CHAOS_UNDO_DISK || kelp_faultdisk_hits(target->disk) > 0 ||
            undo->at_ms + KELP_CHAOS_DISK_MORE_MS <= now_ms);
}

kelp_status kelp_chaos_target_tend(struct kelp_chaos_target *target, uint64_t now_ms,
                                   struct kelp_error *reterr)
{
    pid_t pid = 0;
    kelp_status status = kelp_chaos_etcd_pid(target->etcd, &pid, reterr);

    for (uint32_t i = 0; status == KELP_OK && i < target->undo_count;) {
        if (is_over(target, &target->undos[i], now_ms)) {
            status = undo_one(target, i, reterr);
        } else {
            status = renew(&target->undos[i], now_ms, reterr);
            i++;
        }
    }
    return status;
}

int kelp_chaos_target_wait_ms(const struct kelp_chaos_target *target, uint64_t now_ms, int most)
{
    for (uint32_t i = 0; i < target->undo_count; i++) {
        const struct kelp_chaos_undo *undo = &target->undos[i];
        uint64_t at_ms = undo->split && undo->renew_ms < undo->at_ms ? undo->renew_ms : undo->at_ms;
        bool looked_at = undo->kind == KELP_CHAOS_UNDO_DISK || undo->kind == KELP_CHAOS_UNDO_GONE;
        if (at_ms <= now_ms) { /* how often the awaited state is checked */
            at_ms = looked_at ? now_ms + KELP_CHAOS_RENEW_MS : now_ms;
        }
        most = at_ms - now_ms < (uint64_t)most ? (int)(at_ms - now_ms) : most;
    }
    return most;
}

/* ---- everything ---------------------------------------------------------------------------- */

bool kelp_chaos_target_works(const struct kelp_chaos_target *target, uint64_t now_ms)
{
    struct kelp_chaos_process process;

    if (!target->train.process || kelp_chaos_process_find(kelp_process_pid(target->train.process),
                                                          NULL, &process) != KELP_OK) {
        return false;
    }
    kelp_chaos_process_close(&process);
    return has_worked(target, process.age_ms, now_ms);
}

kelp_status kelp_chaos_target_kill_all(struct kelp_chaos_target *target, struct kelp_error *reterr)
{
    uint32_t count = 0;

    remove_undos(target);
    kelp_chaos_etcd_kill(target->etcd);
    kelp_status status =
        kelp_chaos_kill_family(kelp_process_pid(target->train.process), KILLED_MS, &count, reterr);
    kelp_chaos_child_kill(&target->train);
    return status;
}

void kelp_chaos_target_fini(struct kelp_chaos_target *target)
{
    remove_undos(target); /* SIGKILL also ends what is stopped */
    kelp_chaos_child_kill(&target->train);
    kelp_chaos_etcd_close(target->etcd);
    target->etcd = NULL;
    kelp_faultdisk_close(target->disk);
    target->disk = NULL;
}
