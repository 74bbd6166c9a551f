#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch/children/children_internal.h"
#include "cli/run/log_tail.h"
#include "cli/run/run_dir.h"
#include "common/base/clock.h"
#include "common/program/daemon.h"

const char *const kelp__child_kinds[] = {"coordinator", "shard", "worker"};

kelp_status kelp_children_init(struct kelp_children *children,
                               const struct kelp_children_options *options,
                               struct kelp_error *reterr)
{
    memset(children, 0, sizeof(*children));
    children->options = *options;
    children->run_folder = realpath(options->run_path, NULL);
    if (!children->run_folder) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s': %s", options->run_path,
                         strerror(errno));
    }
    return kelp_failures_init(&children->failures, &options->policy, reterr);
}

void kelp__child_log(const struct kelp_children *children, const struct kelp_child *child,
                     char *path, size_t path_bytes)
{
    (void)snprintf(path, path_bytes, "%s/logs/%s.log", children->options.run_path, child->id);
}

bool kelp__child_is_program(const struct kelp_children *children, const struct kelp_child *child)
{
    const struct kelp_worker_program *program = children->options.worker_program;

    return child->kind == KELP_CHILD_WORKER && program && kelp_worker_program_is(program);
}

void kelp_children_trace_path(const char *run, const char *id,
                              char path[KELP_CHILDREN_TRACE_PATH_MAX])
{
    (void)snprintf(path, KELP_CHILDREN_TRACE_PATH_MAX, "%s/" KELP_RUN_TRACE "/%s", run, id);
}

bool kelp_children_faulted(const struct kelp_children *children, const struct kelp_fault *fault)
{
    char path[KELP_RUN_PATH_MAX + 64];

    for (uint32_t i = 0; i < children->count; i++) {
        const struct kelp_child *child = &children->items[i];
        if (strcmp(child->id, fault->id) == 0 && child->starts > 0) {
            kelp__child_log(children, child, path, sizeof(path));
            return kelp_log_has(path, child->log_first, KELP_WORKER_FAILING);
        }
    }
    return false;
}

kelp_status kelp_children_add(struct kelp_children *children, enum kelp_child_kind kind,
                              struct kelp_error *reterr)
{
    if (children->count == KELP_CHILDREN_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "a run has at most %d processes",
                         KELP_CHILDREN_MAX);
    }
    struct kelp_child *items =
        realloc(children->items, (children->count + 1) * sizeof(*children->items));
    if (!items) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    children->items = items;
    struct kelp_child *child = &items[children->count];
    memset(child, 0, sizeof(*child));
    child->kind = kind;
    child->number = children->next_number[kind];
    child->supervise.worker = kind == KELP_CHILD_WORKER;
    child->supervise.shard = kind == KELP_CHILD_SHARD;
    const char *host = children->options.host;
    (void)snprintf(child->id, sizeof(child->id), "%s%s%s-%" PRIu32, host ? host : "",
                   host ? "." : "", kelp__child_kinds[kind], child->number);
    kelp_status status = kelp__child_start(children, child, reterr);
    if (status == KELP_OK) {
        children->next_number[kind]++;
        children->count++;
    }
    return status;
}

/* Does it run, or will it be started again? */
static bool is_wanted(const struct kelp_child *child)
{
    return !child->retired && (child->process || child->start_due || child->down);
}

/* SIGTERM lets it finish and send what it computes. */
static void retire(struct kelp_child *child)
{
    child->retired = true;
    child->start_due = false;
    child->down = false;
    if (child->process) {
        kelp_process_signal(child->process, SIGTERM);
    }
}

/* One of those that left before, or a new one. */
static kelp_status add_one(struct kelp_children *children, enum kelp_child_kind kind,
                           struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        if (child->kind == kind && !child->process && !is_wanted(child)) {
            child->retired = false;
            child->left = false;
            child->start_due = true;
            child->start_ms = kelp_clock_ms();
            return KELP_OK;
        }
    }
    return kelp_children_add(children, kind, reterr);
}

uint32_t kelp_children_wanted(const struct kelp_children *children, enum kelp_child_kind kind)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < children->count; i++) {
        count += children->items[i].kind == kind && is_wanted(&children->items[i]) ? 1 : 0;
    }
    return count;
}

kelp_status kelp_children_grow(struct kelp_children *children, enum kelp_child_kind kind,
                               uint32_t count, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (uint32_t there = kelp_children_wanted(children, kind); there < count && status == KELP_OK;
         there++) {
        status = add_one(children, kind, reterr);
    }
    return status;
}

bool kelp_children_retire(struct kelp_children *children, enum kelp_child_kind kind,
                          bool (*may_go)(const char *id, void *user), void *user)
{
    for (uint32_t i = children->count; i-- > 0;) {
        struct kelp_child *child = &children->items[i];
        if (child->kind == kind && is_wanted(child) && (!may_go || may_go(child->id, user))) {
            retire(child);
            return true;
        }
    }
    return false;
}

void kelp_children_need(struct kelp_children *children, uint32_t least)
{
    children->options.workers_min = least;
}

/* The child of that id when it runs, or NULL. */
static struct kelp_child *find_running(struct kelp_children *children, const char *id)
{
    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].process && strcmp(children->items[i].id, id) == 0) {
            return &children->items[i];
        }
    }
    return NULL;
}

bool kelp_children_kill(struct kelp_children *children, const char *id)
{
    const struct kelp_child *child = find_running(children, id);

    if (child) {
        kelp_process_signal(child->process, SIGKILL);
    }
    return child != NULL;
}

bool kelp_children_fence(struct kelp_children *children, const char *id, uint64_t asked_ms,
                         uint64_t silent_ms)
{
    struct kelp_child *child = find_running(children, id);

    if (!child || child->fenced || child->start_ms + silent_ms >= asked_ms) {
        return false;
    }
    child->fenced = true;
    kelp_process_signal(child->process, SIGKILL);
    return true;
}

void kelp_children_take_down(struct kelp_children *children, enum kelp_child_kind kind, bool hard)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        if (child->kind == kind && child->process) {
            kelp_process_signal(child->process, hard ? SIGKILL : SIGTERM);
        }
        child->down = child->down || (child->kind == kind && is_wanted(child));
        child->start_due = child->start_due && !child->down;
    }
}

bool kelp_children_any(const struct kelp_children *children, enum kelp_child_kind kind)
{
    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].kind == kind && children->items[i].process) {
            return true;
        }
    }
    return false;
}

void kelp_children_bring_up(struct kelp_children *children, uint64_t now)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        if (!child->retired && (child->down || child->left)) {
            child->start_due = true;
            child->start_ms = now;
        }
        child->down = false;
        child->left = false;
    }
}

uint32_t kelp_children_poll(const struct kelp_children *children, struct pollfd *items,
                            uint32_t room)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < children->count && used < room; i++) {
        if (children->items[i].process) {
            items[used++] = (struct pollfd){.fd = kelp_process_fd(children->items[i].process),
                                            .events = POLLIN};
        }
    }
    return used;
}

int kelp_children_wait_ms(const struct kelp_children *children, uint64_t now)
{
    int wait_ms = -1;

    for (uint32_t i = 0; i < children->count; i++) {
        const struct kelp_child *child = &children->items[i];
        if (child->start_due) {
            int own = child->start_ms <= now ? 0 : (int)(child->start_ms - now);
            wait_ms = wait_ms < 0 || own < wait_ms ? own : wait_ms;
        }
    }
    return wait_ms;
}

kelp_status kelp_children_tend(struct kelp_children *children, uint64_t now, bool *ret_gave_up,
                               struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        kelp_status status = KELP_OK;
        int wait_status = 0;
        if (child->process && kelp_process_wait(child->process, 0, &wait_status) == KELP_OK) {
            status = kelp__child_ended(children, child, wait_status, now, ret_gave_up, reterr);
        }
        if (status == KELP_OK && child->start_due && child->start_ms <= now) {
            status = kelp__child_start(children, child, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

void kelp_children_stop(struct kelp_children *children, uint32_t grace_ms)
{
    uint64_t end_ms = kelp_clock_ms() + grace_ms;

    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].process) {
            /* A shard is to end with what it has: SIGTERM would have it drained, and the
             * coordinator wait for that. */
            kelp_process_signal(children->items[i].process,
                                children->items[i].kind == KELP_CHILD_WORKER ? SIGTERM : SIGINT);
        }
    }
    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].process) {
            uint64_t now = kelp_clock_ms();
            uint32_t left_ms = now < end_ms ? (uint32_t)(end_ms - now) : 0;
            kelp_process_stop(children->items[i].process, left_ms);
            kelp__child_stopped(children, &children->items[i], grace_ms);
            kelp_process_destroy(children->items[i].process);
        }
    }
    free(children->items);
    free(children->run_folder);
    kelp_failures_fini(&children->failures);
    children->items = NULL;
    children->run_folder = NULL;
    children->count = 0;
}
