#include "cli/chaos_target.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/chaos_run.h"

#define STATUS_FRESH_MS 1000 /* older answers of the coordinator say nothing about now */
#define ETCD_GRACE_MS   2000 /* for etcd to end by itself */

/* ---- whom -------------------------------------------------------------------------------------
 */

static const Kelp__V1__StatusReply *fresh_status(const struct kelp_chaos_target *target,
                                                 uint64_t now_ms)
{
    return target->status && now_ms - target->status_ms <= STATUS_FRESH_MS ? target->status : NULL;
}

/* Was the process there while the last step was made? */
static bool has_worked(const struct kelp_chaos_target *target, uint64_t age_ms, uint64_t now_ms)
{
    return age_ms >= KELP_CHAOS_SETTLED_MS && target->progress_ms > 0 &&
           now_ms - target->progress_ms < age_ms;
}

/* A worker that has not joined yet and a shard without partitions do no work. */
static bool takes_part(const struct kelp_chaos_target *target, enum kelp_chaos_role role,
                       const char *id, uint64_t now_ms)
{
    const Kelp__V1__StatusReply *status = fresh_status(target, now_ms);

    if (!status) {
        return true; /* nobody tells */
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

/* Is it stopped by a fault that is not over? */
static bool is_paused(const struct kelp_chaos_target *target, pid_t pid)
{
    for (uint32_t i = 0; i < target->undo_count; i++) {
        if (target->undos[i].kind == KELP_CHAOS_UNDO_RESUME &&
            target->undos[i].process.pid == pid) {
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
    bool paused = is_paused(target, ret_process->pid);
    if (!has_worked(target, ret_process->age_ms, now_ms) ||
        (paused && fault->kind != KELP_CHAOS_KILL)) {
        kelp_chaos_process_close(ret_process);
        return false;
    }
    return true;
}

static bool find_standby(const struct kelp_chaos_target *target,
                         const struct kelp_chaos_fault *fault, const char *leader, uint64_t now_ms,
                         char ret_name[32], struct kelp_chaos_process *ret_process)
{
    for (uint32_t i = 0; i < target->coordinators; i++) {
        (void)snprintf(ret_name, 32, "coordinator-%" PRIu32, i);
        if (strcmp(ret_name, leader) != 0 &&
            find_one(target, fault, ret_name, now_ms, ret_process)) {
            return true;
        }
    }
    return false;
}

/* The process that the fault is for, held; false when it is not there, or not at work. */
static bool find_process(const struct kelp_chaos_target *target,
                         const struct kelp_chaos_fault *fault, uint64_t now_ms, char ret_name[32],
                         struct kelp_chaos_process *ret_process)
{
    char name[KELP_CHAOS_TEXT_MAX];
    const Kelp__V1__StatusReply *status = fresh_status(target, now_ms);

    switch (fault->role) {
    case KELP_CHAOS_WORKER:
    case KELP_CHAOS_SHARD:
    case KELP_CHAOS_COORDINATOR:
        kelp_chaos_target_print(fault, name);
        (void)snprintf(ret_name, 32, "%.31s", name);
        return find_one(target, fault, ret_name, now_ms, ret_process);
    case KELP_CHAOS_LEADER:
        if (!status || status->leader[0] == '\0') {
            return false;
        }
        (void)snprintf(ret_name, 32, "%.31s", status->leader);
        return find_one(target, fault, ret_name, now_ms, ret_process);
    case KELP_CHAOS_STANDBY:
        return status && find_standby(target, fault, status->leader, now_ms, ret_name, ret_process);
    case KELP_CHAOS_ETCD:
    case KELP_CHAOS_EVERYTHING:
    case KELP_CHAOS_ROLE_COUNT:
        break;
    }
    return false;
}

/* ---- doing ------------------------------------------------------------------------------------
 */

static void add_undo(struct kelp_chaos_target *target, enum kelp_chaos_undo_kind kind,
                     uint64_t at_ms, const struct kelp_chaos_process *process)
{
    assert(target->undo_count < KELP_CHAOS_UNDO_MAX);
    struct kelp_chaos_undo *undo = &target->undos[target->undo_count++];
    *undo = (struct kelp_chaos_undo){.kind = kind, .at_ms = at_ms, .process = {.pidfd = -1}};
    if (process) {
        undo->process = *process;
    }
}

/* A process of `kelp train`; what was held goes to the undo, or is let go. */
static bool do_to_process(struct kelp_chaos_target *target, const struct kelp_chaos_fault *fault,
                          struct kelp_chaos_process *process, uint64_t now_ms)
{
    int number = fault->kind == KELP_CHAOS_PAUSE  ? SIGSTOP
                 : fault->kind == KELP_CHAOS_KILL ? SIGKILL
                                                  : SIGTERM;

    bool done = kelp_chaos_process_signal(process, number);
    if (done && fault->kind == KELP_CHAOS_PAUSE) {
        add_undo(target, KELP_CHAOS_UNDO_RESUME, now_ms + fault->for_ms, process);
        process->pidfd = -1;
    }
    kelp_chaos_process_close(process);
    return done;
}

kelp_status kelp_chaos_target_start_etcd(struct kelp_chaos_target *target,
                                         struct kelp_error *reterr)
{
    kelp_status status = kelp_etcd_server_start(&target->etcd_options, &target->etcd, reterr);

    if (status == KELP_OK) {
        target->etcd_options.client_port = kelp_etcd_server_port(target->etcd);
    }
    return status;
}

static kelp_status do_to_etcd(struct kelp_chaos_target *target,
                              const struct kelp_chaos_fault *fault, uint64_t now_ms, bool *ret_done,
                              struct kelp_error *reterr)
{
    struct kelp_chaos_process process = {.pidfd = -1};

    *ret_done = false;
    if (!target->etcd || target->progress_ms == 0) {
        return KELP_OK;
    }
    pid_t pid = kelp_process_pid(kelp_etcd_server_process(target->etcd));
    if (is_paused(target, pid) && fault->kind != KELP_CHAOS_KILL) {
        return KELP_OK;
    }
    *ret_done = true;
    if (fault->kind == KELP_CHAOS_PAUSE) {
        kelp_status status = kelp_chaos_process_hold(pid, &process);
        if (status != KELP_OK) {
            return kelp_fail(reterr, status, "etcd cannot be paused: %s", kelp_status_text(status));
        }
        *ret_done = do_to_process(target, fault, &process, now_ms);
        return KELP_OK;
    }
    kelp_etcd_server_stop(target->etcd, fault->kind == KELP_CHAOS_KILL ? 0 : ETCD_GRACE_MS);
    target->etcd = NULL;
    if (fault->for_ms > 0) {
        add_undo(target, KELP_CHAOS_UNDO_ETCD, now_ms + fault->for_ms, NULL);
        return KELP_OK;
    }
    return kelp_chaos_target_start_etcd(target, reterr);
}

kelp_status kelp_chaos_target_do(struct kelp_chaos_target *target,
                                 const struct kelp_chaos_fault *fault, uint64_t now_ms,
                                 bool *ret_done, char ret_name[32], struct kelp_error *reterr)
{
    struct kelp_chaos_process process;

    assert(fault->role != KELP_CHAOS_EVERYTHING);
    *ret_done = false;
    if (target->undo_count == KELP_CHAOS_UNDO_MAX) {
        return KELP_OK;
    }
    if (fault->role == KELP_CHAOS_ETCD) {
        (void)snprintf(ret_name, 32, "etcd");
        return do_to_etcd(target, fault, now_ms, ret_done, reterr);
    }
    if (find_process(target, fault, now_ms, ret_name, &process)) {
        *ret_done = do_to_process(target, fault, &process, now_ms);
    }
    return KELP_OK;
}

/* ---- undoing ----------------------------------------------------------------------------------
 */

static void remove_undo(struct kelp_chaos_target *target, uint32_t index)
{
    kelp_chaos_process_close(&target->undos[index].process);
    target->undos[index] = target->undos[--target->undo_count];
}

kelp_status kelp_chaos_target_tend(struct kelp_chaos_target *target, uint64_t now_ms,
                                   struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; status == KELP_OK && i < target->undo_count;) {
        const struct kelp_chaos_undo *undo = &target->undos[i];
        if (undo->at_ms > now_ms) {
            i++;
            continue;
        }
        if (undo->kind == KELP_CHAOS_UNDO_RESUME) {
            (void)kelp_chaos_process_signal(&undo->process, SIGCONT); /* dead by now: as good */
        } else if (!target->etcd) {
            status = kelp_chaos_target_start_etcd(target, reterr);
        }
        remove_undo(target, i);
    }
    return status;
}

int kelp_chaos_target_wait_ms(const struct kelp_chaos_target *target, uint64_t now_ms, int most)
{
    for (uint32_t i = 0; i < target->undo_count; i++) {
        uint64_t at_ms = target->undos[i].at_ms;
        if (at_ms <= now_ms) {
            return 0;
        }
        most = at_ms - now_ms < (uint64_t)most ? (int)(at_ms - now_ms) : most;
    }
    return most;
}

/* ---- everything -------------------------------------------------------------------------------
 */

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

    while (target->undo_count > 0) {
        remove_undo(target, target->undo_count - 1);
    }
    if (target->etcd) {
        kelp_process_signal(kelp_etcd_server_process(target->etcd), SIGKILL);
    }
    kelp_status status = kelp_chaos_kill_family(kelp_process_pid(target->train.process),
                                                KELP_CHAOS_KILLED_MS, &count, reterr);
    kelp_chaos_train_kill(&target->train);
    kelp_etcd_server_stop(target->etcd, 0);
    target->etcd = NULL;
    return status;
}

void kelp_chaos_target_fini(struct kelp_chaos_target *target)
{
    while (target->undo_count > 0) { /* what is stopped dies of SIGKILL all the same */
        remove_undo(target, target->undo_count - 1);
    }
    kelp_chaos_train_kill(&target->train);
    kelp_etcd_server_stop(target->etcd, 0);
    target->etcd = NULL;
}
