/*
 * The event loop: one completion queue, timers, and what all of rpc shares.
 *
 * The timers are a sorted list: kelp_rpc_loop_run() waits in the queue at most until the first one
 * is due. So a timer needs no other thread, and stopping one takes effect at once.
 */
#include <assert.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/rpc/rpc_internal.h"
#include "common/rpc/rpc_shared_internal.h"

#define NEVER INT64_MAX

int64_t kelp__rpc_now_us(void)
{
    return (int64_t)kelp_clock_us();
}

/* gRPC's monotonic clock is the same clock. */
static gpr_timespec to_timespec(int64_t at_us)
{
    if (at_us == NEVER) {
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    }
    return (gpr_timespec){.tv_sec = at_us / 1000000,
                          .tv_nsec = (int32_t)(at_us % 1000000) * 1000,
                          .clock_type = GPR_CLOCK_MONOTONIC};
}

/* ---- operations ---- */

void kelp__rpc_start(grpc_call *call, const grpc_op *ops, size_t op_count, struct kelp__rpc_op *op)
{
    bool was_armed = atomic_exchange_explicit(&op->armed, true, memory_order_acq_rel);
    assert(!was_armed);

    grpc_call_error error = grpc_call_start_batch(call, ops, op_count, op, NULL);
    assert(error == GRPC_CALL_OK);
    (void)was_armed;
    (void)error;
}

struct kelp__rpc_op *kelp__rpc_completed(const grpc_event *event)
{
    struct kelp__rpc_op *op = event->tag;
    const bool is_armed = atomic_load_explicit(&op->armed, memory_order_acquire);

    assert(is_armed);
    (void)is_armed;
    return op;
}

/* A post is an operation of its own. */
struct post {
    struct kelp__rpc_op op;
    void (*function)(void *user);
    void *user;
};

static void post_done(struct kelp__rpc_op *op, bool success)
{
    struct post *post = KELP_CONTAINER_OF(op, struct post, op);

    (void)success;
    post->function(post->user);
    free(post);
}

kelp_status kelp_rpc_loop_post(struct kelp_rpc_loop *loop, void (*function)(void *user), void *user)
{
    struct post *post = calloc(1, sizeof(*post));

    if (!post) {
        return KELP_ERR_NO_MEMORY;
    }
    post->op.done = post_done;
    post->function = function;
    post->user = user;
    kelp__rpc_start(loop->post_call, NULL, 0, &post->op);
    return KELP_OK;
}

static void wake_done(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_loop *loop = KELP_CONTAINER_OF(op, struct kelp_rpc_loop, wake_op);

    (void)success;
    atomic_store(&loop->wake_pending, false);
}

void kelp_rpc_loop_wake(struct kelp_rpc_loop *loop)
{
    if (!atomic_exchange(&loop->wake_pending, true)) {
        kelp__rpc_start(loop->post_call, NULL, 0, &loop->wake_op);
    }
}

/* ---- timers ---- */

static void timer_insert_locked(struct kelp_rpc_loop *loop, struct kelp_rpc_timer *timer)
{
    /* Search from the end: the newest deadline is nearly always the latest. */
    struct kelp_rpc_timer *before = loop->last;
    while (before && before->deadline_us > timer->deadline_us) {
        before = before->previous;
    }
    timer->previous = before;
    timer->next = before ? before->next : loop->first;
    *(timer->next ? &timer->next->previous : &loop->last) = timer;
    *(before ? &before->next : &loop->first) = timer;
    timer->queued = true;
    atomic_store(&loop->next_due_us, loop->first->deadline_us);
}

static void timer_remove_locked(struct kelp_rpc_loop *loop, struct kelp_rpc_timer *timer)
{
    assert(timer->queued);
    *(timer->next ? &timer->next->previous : &loop->last) = timer->previous;
    *(timer->previous ? &timer->previous->next : &loop->first) = timer->next;
    timer->queued = false;
    atomic_store(&loop->next_due_us, loop->first ? loop->first->deadline_us : NEVER);
}

static void timer_add(struct kelp_rpc_loop *loop, struct kelp_rpc_timer *timer, int64_t deadline_us)
{
    (void)pthread_mutex_lock(&loop->timers_lock);
    timer->loop = loop;
    timer->deadline_us = deadline_us;
    timer_insert_locked(loop, timer);
    bool is_first = loop->first == timer;
    (void)pthread_mutex_unlock(&loop->timers_lock);

    /* A thread that already waits was given a later deadline. It counted itself before it read
     * next_due_us, and we wrote that before we read the count, so one of us sees the other's
     * change. */
    if (is_first && atomic_load(&loop->waiters) > 0) {
        kelp_rpc_loop_wake(loop);
    }
}

/* When a timer that repeats is due next. */
static int64_t next_deadline(const struct kelp_rpc_timer *timer, int64_t now_us)
{
    const int64_t due_us = timer->deadline_us + timer->period_us;

    if (timer->together) {
        return (now_us / timer->period_us + 1) * timer->period_us;
    }
    return due_us > now_us ? due_us : now_us + timer->period_us; /* missed periods are skipped */
}

/* Run the first timer if it is due. */
static bool timer_fire(struct kelp_rpc_loop *loop)
{
    int64_t due_us = atomic_load(&loop->next_due_us);
    if (due_us == NEVER || due_us > kelp__rpc_now_us()) {
        return false;
    }
    (void)pthread_mutex_lock(&loop->timers_lock);
    struct kelp_rpc_timer *timer = loop->first;
    int64_t now_us = kelp__rpc_now_us();
    if (!timer || timer->deadline_us > now_us) {
        (void)pthread_mutex_unlock(&loop->timers_lock); /* another thread took it */
        return false;
    }
    timer_remove_locked(loop, timer);
    timer->running = true;
    bool repeats = timer->period_us > 0;
    (void)pthread_mutex_unlock(&loop->timers_lock);

    timer->function(timer->user);
    if (!repeats) {
        return true; /* its owner may have freed it */
    }
    (void)pthread_mutex_lock(&loop->timers_lock);
    timer->running = false;
    bool stopped = timer->stopped;
    if (!stopped) {
        timer->deadline_us = next_deadline(timer, now_us);
        timer_insert_locked(loop, timer);
    }
    (void)pthread_mutex_unlock(&loop->timers_lock);
    if (stopped) {
        free(timer);
    }
    return true;
}

void kelp__rpc_timer_set(struct kelp_rpc_loop *loop, struct kelp_rpc_timer *timer, uint32_t in_ms,
                         void (*function)(void *user), void *user)
{
    *timer = (struct kelp_rpc_timer){.function = function, .user = user};
    timer_add(loop, timer, kelp__rpc_now_us() + (int64_t)in_ms * 1000);
}

bool kelp__rpc_timer_unset(struct kelp_rpc_timer *timer)
{
    struct kelp_rpc_loop *loop = timer->loop;
    bool removed = false;

    if (!loop) {
        return false; /* was never set */
    }
    (void)pthread_mutex_lock(&loop->timers_lock);
    if (timer->queued) {
        timer_remove_locked(loop, timer);
        removed = true;
    }
    (void)pthread_mutex_unlock(&loop->timers_lock);
    return removed;
}

static kelp_status start_timer(struct kelp_rpc_loop *loop, uint32_t period_ms, bool together,
                               void (*function)(void *user), void *user,
                               struct kelp_rpc_timer **ret_timer)
{
    const int64_t now_us = kelp__rpc_now_us();
    if (period_ms == 0) {
        return KELP_ERR_INVALID;
    }
    struct kelp_rpc_timer *timer = calloc(1, sizeof(*timer));
    if (!timer) {
        return KELP_ERR_NO_MEMORY;
    }
    timer->period_us = (int64_t)period_ms * 1000;
    timer->together = together;
    timer->function = function;
    timer->user = user;
    timer->deadline_us = now_us;
    timer_add(loop, timer, next_deadline(timer, now_us));
    *ret_timer = timer;
    return KELP_OK;
}

kelp_status kelp_rpc_timer_start(struct kelp_rpc_loop *loop, uint32_t period_ms,
                                 void (*function)(void *user), void *user,
                                 struct kelp_rpc_timer **ret_timer)
{
    return start_timer(loop, period_ms, false, function, user, ret_timer);
}

kelp_status kelp_rpc_timer_start_together(struct kelp_rpc_loop *loop, uint32_t period_ms,
                                          void (*function)(void *user), void *user,
                                          struct kelp_rpc_timer **ret_timer)
{
    return start_timer(loop, period_ms, true, function, user, ret_timer);
}

void kelp_rpc_timer_stop(struct kelp_rpc_timer *timer)
{
    if (!timer) {
        return;
    }
    struct kelp_rpc_loop *loop = timer->loop;
    (void)pthread_mutex_lock(&loop->timers_lock);
    if (timer->queued) {
        timer_remove_locked(loop, timer);
    }
    timer->stopped = true;
    bool running = timer->running;
    (void)pthread_mutex_unlock(&loop->timers_lock);
    if (!running) {
        free(timer);
    }
}

/* ---- loop ---- */

grpc_call *kelp__rpc_post_call_create(struct kelp_rpc_loop *loop, grpc_completion_queue *queue)
{
    return grpc_channel_create_call(loop->post_channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
                                    grpc_slice_from_static_string("/post"), NULL,
                                    gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

bool kelp__rpc_thread_start(pthread_t *thread, void *(*run)(void *user), void *user)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(thread, NULL, run, user) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

kelp_status kelp_rpc_loop_create(struct kelp_rpc_loop **ret_loop, struct kelp_error *reterr)
{
    struct kelp_rpc_loop *loop = calloc(1, sizeof(*loop));

    if (!loop) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for an event loop");
    }
    loop->wake_op.done = wake_done;
    atomic_init(&loop->next_due_us, NEVER);
    atomic_init(&loop->keepalive_ms, KELP_RPC_KEEPALIVE_MS);
    atomic_init(&loop->keepalive_timeout_ms, KELP_RPC_KEEPALIVE_TIMEOUT_MS);
    (void)pthread_mutex_init(&loop->timers_lock, NULL);
    loop->queue = grpc_completion_queue_create_for_next(NULL);
    loop->post_channel =
        grpc_lame_client_channel_create("loop", GRPC_STATUS_UNAVAILABLE, "never called");
    loop->post_call = kelp__rpc_post_call_create(loop, loop->queue);
    *ret_loop = loop;
    return KELP_OK;
}

void kelp_rpc_loop_keepalive(struct kelp_rpc_loop *loop, uint32_t time_ms, uint32_t timeout_ms)
{
    assert(time_ms > 0 && time_ms <= INT32_MAX);
    assert(timeout_ms > 0 && timeout_ms <= INT32_MAX);
    atomic_store(&loop->keepalive_ms, time_ms);
    atomic_store(&loop->keepalive_timeout_ms, timeout_ms);
}

void kelp_rpc_loop_credentials(struct kelp_rpc_loop *loop, struct kelp_credentials *credentials)
{
    loop->credentials = credentials;
}

void kelp_rpc_loop_shm_folder(struct kelp_rpc_loop *loop, const char *folder)
{
    loop->shm_folder = folder;
}

void kelp__rpc_dispatch(struct kelp__rpc_op *op, bool success)
{
    bool was_armed = atomic_exchange_explicit(&op->armed, false, memory_order_acq_rel);

    assert(was_armed); /* a tag comes back once */
    (void)was_armed;
    op->done(op, success);
}

static void dispatch(const grpc_event *event)
{
    kelp__rpc_dispatch(event->tag, event->success != 0);
}

void kelp_rpc_loop_destroy(struct kelp_rpc_loop *loop)
{
    if (!loop) {
        return;
    }
    kelp__rpc_shared_end(loop);
    grpc_call_unref(loop->post_call);
    grpc_channel_destroy(loop->post_channel);
    grpc_completion_queue_shutdown(loop->queue);
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(loop->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            break;
        }
        dispatch(&event);
    }
    assert(!loop->first); /* a timer was not stopped */
    grpc_completion_queue_destroy(loop->queue);
    (void)pthread_mutex_destroy(&loop->timers_lock);
    kelp__rpc_fetches_free(loop);
    free(loop);
}

/* The same if there are other sources than gRPC to wait for. */
static bool run_shared(struct kelp_rpc_loop *loop, struct kelp__rpc_shared *shared,
                       int64_t until_us)
{
    for (bool last = false;;) {
        if (timer_fire(loop) || kelp__rpc_shared_run(shared)) {
            return true;
        }
        if (last) {
            return false;
        }
        atomic_fetch_add(&loop->waiters, 1);
        int64_t due_us = atomic_load(&loop->next_due_us);
        (void)kelp__rpc_shared_wait(shared, due_us < until_us ? due_us : until_us);
        atomic_fetch_sub(&loop->waiters, 1);
        last = until_us == 0 || (until_us != NEVER && kelp__rpc_now_us() >= until_us);
    }
}

bool kelp_rpc_loop_run(struct kelp_rpc_loop *loop, int timeout_ms)
{
    struct kelp__rpc_shared *shared = atomic_load(&loop->shared);
    int64_t until_us = timeout_ms < 0    ? NEVER
                       : timeout_ms == 0 ? 0
                                         : kelp__rpc_now_us() + (int64_t)timeout_ms * 1000;
    if (shared) {
        return run_shared(loop, shared, until_us);
    }
    for (;;) {
        if (timer_fire(loop)) {
            return true;
        }
        atomic_fetch_add(&loop->waiters, 1);
        int64_t due_us = atomic_load(&loop->next_due_us);
        grpc_event event = grpc_completion_queue_next(
            loop->queue, to_timespec(due_us < until_us ? due_us : until_us), NULL);
        atomic_fetch_sub(&loop->waiters, 1);
        if (event.type == GRPC_OP_COMPLETE) {
            dispatch(&event);
            return true;
        }
        if (until_us <= due_us && (until_us == 0 || kelp__rpc_now_us() >= until_us)) {
            return false;
        }
    }
}

/* Poll shared memory without system calls: a process that writes a message wakes this thread only
 * if it sleeps. gRPC has no such polling. */
static bool look_once(struct kelp_rpc_loop *loop)
{
    struct kelp__rpc_shared *shared = atomic_load(&loop->shared);

    return shared ? timer_fire(loop) || kelp__rpc_shared_run(shared) : kelp_rpc_loop_run(loop, 0);
}

/* Yield the processor between polls: the awaited process may have no other. */
static bool look(struct kelp_rpc_loop *loop, uint32_t look_us, uint64_t begin_us,
                 uint64_t *ret_looked_us)
{
    bool found = look_once(loop);

    *ret_looked_us = 0;
    while (!found && *ret_looked_us < look_us) {
        (void)sched_yield();
        found = look_once(loop);
        *ret_looked_us = kelp_clock_us() - begin_us;
    }
    return found;
}

bool kelp_rpc_loop_run_spin(struct kelp_rpc_loop *loop, struct kelp_spin *spin, int timeout_ms)
{
    const uint64_t begin_us = kelp_clock_us();
    const uint32_t look_us = kelp_spin_begin(spin, begin_us);

    if (look_us > 0) {
        uint64_t looked_us = 0;
        const bool found = look(loop, look_us, begin_us, &looked_us);
        kelp_spin_end(spin, looked_us, found);
        if (found) {
            return true;
        }
    }
    return kelp_rpc_loop_run(loop, timeout_ms);
}

/* ---- what both sides share ---- */

void kelp__rpc_args_add(struct kelp__rpc_args *args, const char *key, int value)
{
    assert(args->count < KELP__RPC_ARGS_MAX);
    args->list[args->count++] = (grpc_arg){.type = GRPC_ARG_INTEGER,
                                           .key = (char *)key, /* only read */
                                           .value.integer = value};
}

void kelp__rpc_args_change(struct kelp__rpc_args *args, const char *key, int value)
{
    size_t i = 0;

    while (i < args->count && strcmp(args->list[i].key, key) != 0) {
        i++;
    }
    assert(i < args->count && args->list[i].type == GRPC_ARG_INTEGER);
    args->list[i].value.integer = value;
}

void kelp__rpc_args_add_text(struct kelp__rpc_args *args, const char *key, const char *text)
{
    assert(args->count < KELP__RPC_ARGS_MAX);
    args->list[args->count++] = (grpc_arg){.type = GRPC_ARG_STRING,
                                           .key = (char *)key, /* only read, as is the text */
                                           .value.string = (char *)(uintptr_t)text};
}

void kelp__rpc_args_add_pointer(struct kelp__rpc_args *args, const char *key, void *pointer,
                                const grpc_arg_pointer_vtable *vtable)
{
    assert(args->count < KELP__RPC_ARGS_MAX);
    args->list[args->count++] = (grpc_arg){.type = GRPC_ARG_POINTER,
                                           .key = (char *)key, /* only read */
                                           .value.pointer = {.p = pointer, .vtable = vtable}};
}

void kelp__rpc_args_common(struct kelp__rpc_args *args, const struct kelp_rpc_loop *loop,
                           size_t message_bytes_max)
{
    int bytes_max = message_bytes_max < KELP_RPC_MESSAGE_BYTES_MAX
                        ? (int)message_bytes_max
                        : (int)KELP_RPC_MESSAGE_BYTES_MAX;

    args->count = 0;
    kelp__rpc_args_add(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, bytes_max);
    kelp__rpc_args_add(args, GRPC_ARG_HTTP2_MAX_FRAME_SIZE, KELP_RPC_FRAME_BYTES);
    kelp__rpc_args_add(args, GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, KELP_RPC_LOOKAHEAD_BYTES);
    kelp__rpc_args_add(args, GRPC_ARG_TCP_READ_CHUNK_SIZE, KELP_RPC_READ_BYTES);
    kelp__rpc_args_add(args, GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, KELP_RPC_READ_BYTES_MAX);
    kelp__rpc_args_add(args, GRPC_ARG_KEEPALIVE_TIME_MS, (int)atomic_load(&loop->keepalive_ms));
    kelp__rpc_args_add(args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                       (int)atomic_load(&loop->keepalive_timeout_ms));
    kelp__rpc_args_add(args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    kelp__rpc_args_add(args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    kelp__rpc_args_add(args, GRPC_ARG_ENABLE_RETRIES, 0);
    kelp__rpc_args_add(args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    kelp__rpc_args_add(args, GRPC_ARG_ENABLE_CENSUS, 0);
    kelp__rpc_args_add(args, GRPC_ARG_ENABLE_CHANNELZ, 0);
    kelp__rpc_args_add(args, GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
    kelp__rpc_args_add(args, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

/* gRPC reports everything to us as a status, so its own log lines on stderr are switched off. Only
 * a failed handshake is not reported on the server. */
static void take_log(gpr_log_func_args *args)
{
    static const char failed[] = "Handshake failed";

    if (args->severity == GPR_LOG_SEVERITY_ERROR &&
        strncmp(args->message, failed, strlen(failed)) == 0) {
        kelp__rpc_log_handshake(args->message);
    }
}

void kelp_rpc_global_several_loops(void)
{
    /* gRPC reads its settings only from the environment; a setting that is there stays. */
    (void)setenv("GRPC_POLL_STRATEGY", "poll", 0);
}

void kelp_rpc_global_init(void)
{
    /* Without it, the memory for received messages is returned and faulted in again each time: a
     * factor of 1.3 to 1.75 at 1 MiB. */
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 2000000000);
    gpr_set_log_function(take_log);
    grpc_init();
}

void kelp_rpc_global_fini(void)
{
    /* It does not wait for a connection that a gRPC thread still takes down and that holds gRPC
     * too, which may still read memory lent to it. */
    grpc_shutdown_blocking();
    const size_t left = kelp__rpc_borrowed_await(KELP_RPC_GIVE_BACK_MS);
    if (left > 0) {
        kelp_log_error("memory lent to connections is not given back segments=%zu", left);
    }
}
