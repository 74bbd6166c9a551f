/* How a loop waits if it has sources other than gRPC (rpc_shared_internal.h). */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/rpc/rpc_shared_internal.h"

#define EVENTS_NAME 0 /* of the descriptor for gRPC's events */

struct kelp__rpc_shared {
    struct kelp_rpc_loop *loop;
    int epoll;
    int bell; /* a private eventfd: there are events, or a source was kicked */
    pthread_t thread;
    struct kelp__rpc_op stop_op;
    pthread_mutex_t lock; /* guards the rest */
    struct kelp__rpc_op *first, *last;
    struct kelp__rpc_source *sources, *sources_last; /* the last one to run is last */
    uint64_t names;
};

/* ---- gRPC's events ---- */

static void ring(const struct kelp__rpc_shared *shared)
{
    const uint64_t one = 1;

    if (write(shared->bell, &one, sizeof(one)) < 0) {
        assert(errno == EAGAIN); /* it is signalled anyway */
    }
}

void kelp__rpc_shared_put(struct kelp__rpc_shared *shared, struct kelp__rpc_op *op, bool success)
{
    (void)pthread_mutex_lock(&shared->lock);
    op->next = NULL;
    op->success = success;
    *(shared->last ? &shared->last->next : &shared->first) = op;
    shared->last = op;
    (void)pthread_mutex_unlock(&shared->lock);
    ring(shared);
}

/* The lock is held. NULL: there is none. */
static struct kelp__rpc_op *take_event(struct kelp__rpc_shared *shared)
{
    struct kelp__rpc_op *op = shared->first;

    if (op) {
        shared->first = op->next;
        shared->last = shared->first ? shared->last : NULL;
    }
    return op;
}

static void *bring_events(void *user)
{
    struct kelp__rpc_shared *shared = user;

    for (;;) {
        const grpc_event event = grpc_completion_queue_next(
            shared->loop->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.tag == &shared->stop_op) {
            atomic_store(&shared->stop_op.armed, false);
            return NULL;
        }
        assert(event.type == GRPC_OP_COMPLETE);
        kelp__rpc_shared_put(shared, kelp__rpc_completed(&event), event.success != 0);
    }
}

/* ---- life ---- */

static bool watch(const struct kelp__rpc_shared *shared, int fd, uint64_t name, unsigned events,
                  int operation)
{
    struct epoll_event event = {.events = events, .data.u64 = name};

    return epoll_ctl(shared->epoll, operation, fd, &event) == 0;
}

static void shared_free(struct kelp__rpc_shared *shared)
{
    if (shared->epoll >= 0) {
        (void)close(shared->epoll);
    }
    if (shared->bell >= 0) {
        (void)close(shared->bell);
    }
    (void)pthread_mutex_destroy(&shared->lock);
    free(shared);
}

kelp_status kelp__rpc_shared_begin(struct kelp_rpc_loop *loop, struct kelp_error *reterr)
{
    if (atomic_load(&loop->shared)) {
        return KELP_OK;
    }
    struct kelp__rpc_shared *shared = calloc(1, sizeof(*shared));
    if (!shared) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for an event loop");
    }
    shared->loop = loop;
    (void)pthread_mutex_init(&shared->lock, NULL);
    shared->epoll = epoll_create1(EPOLL_CLOEXEC);
    shared->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (shared->epoll < 0 || shared->bell < 0 ||
        !watch(shared, shared->bell, EVENTS_NAME, EPOLLIN, EPOLL_CTL_ADD) ||
        !kelp__rpc_thread_start(&shared->thread, bring_events, shared)) {
        shared_free(shared);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "no descriptor or thread to wait for shared memory");
    }
    atomic_store(&loop->shared, shared);
    return KELP_OK;
}

void kelp__rpc_shared_end(struct kelp_rpc_loop *loop)
{
    struct kelp__rpc_shared *shared = atomic_load(&loop->shared);

    if (!shared) {
        return;
    }
    bool more = true;
    while (more) { /* ends streams whose server is gone */
        const bool came = kelp__rpc_shared_wait(shared, 0);
        more = kelp__rpc_shared_run(shared) || came;
    }
    assert(!shared->sources);
    kelp__rpc_carriers_end(loop);
    kelp__rpc_start(loop->post_call, NULL, 0, &shared->stop_op);
    (void)pthread_join(shared->thread, NULL);
    while (kelp__rpc_shared_run(shared)) {
    }
    atomic_store(&loop->shared, NULL);
    shared_free(shared);
}

/* ---- sources ---- */

/* The lock is held for all functions of this section. */
static void append(struct kelp__rpc_shared *shared, struct kelp__rpc_source *source)
{
    source->next = NULL;
    source->previous = shared->sources_last;
    *(source->previous ? &source->previous->next : &shared->sources) = source;
    shared->sources_last = source;
}

static void unlink_source(struct kelp__rpc_shared *shared, const struct kelp__rpc_source *source)
{
    *(source->previous ? &source->previous->next : &shared->sources) = source->next;
    *(source->next ? &source->next->previous : &shared->sources_last) = source->previous;
}

kelp_status kelp__rpc_source_add(struct kelp__rpc_shared *shared, struct kelp__rpc_source *source)
{
    (void)pthread_mutex_lock(&shared->lock);
    source->name = ++shared->names;
    source->state = KELP__RPC_AWAKE;
    source->kicked = true;
    const bool watched = watch(shared, source->fd, source->name, EPOLLONESHOT, EPOLL_CTL_ADD);
    if (watched) {
        append(shared, source);
    }
    (void)pthread_mutex_unlock(&shared->lock);
    ring(shared);
    return watched ? KELP_OK : KELP_ERR_NO_MEMORY;
}

void kelp__rpc_source_remove(struct kelp__rpc_shared *shared, struct kelp__rpc_source *source)
{
    (void)pthread_mutex_lock(&shared->lock);
    (void)epoll_ctl(shared->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    unlink_source(shared, source);
    (void)pthread_mutex_unlock(&shared->lock);
}

/* The lock is held. */
static void wake(struct kelp__rpc_source *source)
{
    source->kicked = true;
    if (source->state == KELP__RPC_ASLEEP) {
        source->state = KELP__RPC_AWAKE;
        if (source->wake) {
            source->wake(source);
        }
    }
}

void kelp__rpc_source_kick(struct kelp__rpc_shared *shared, struct kelp__rpc_source *source)
{
    (void)pthread_mutex_lock(&shared->lock);
    wake(source);
    (void)pthread_mutex_unlock(&shared->lock);
    ring(shared);
}

void kelp__rpc_source_each(struct kelp__rpc_shared *shared,
                           void (*visit)(struct kelp__rpc_source *source, void *user), void *user)
{
    (void)pthread_mutex_lock(&shared->lock);
    for (struct kelp__rpc_source *source = shared->sources; source; source = source->next) {
        visit(source, user);
        wake(source);
    }
    (void)pthread_mutex_unlock(&shared->lock);
    ring(shared);
}

/* The lock is held. NULL: no source has work. */
static struct kelp__rpc_source *take_source(struct kelp__rpc_shared *shared)
{
    for (struct kelp__rpc_source *source = shared->sources; source; source = source->next) {
        if (source->state == KELP__RPC_AWAKE &&
            (source->kicked || (source->ready && source->ready(source)))) {
            source->state = KELP__RPC_RUNNING;
            source->kicked = false;
            unlink_source(shared, source);
            append(shared, source);
            return source;
        }
    }
    return NULL;
}

bool kelp__rpc_shared_run(struct kelp__rpc_shared *shared)
{
    (void)pthread_mutex_lock(&shared->lock);
    struct kelp__rpc_op *op = take_event(shared);
    struct kelp__rpc_source *source = op ? NULL : take_source(shared);
    (void)pthread_mutex_unlock(&shared->lock);
    if (op) {
        kelp__rpc_dispatch(op, op->success);
        return true;
    }
    const enum kelp__rpc_ran ran = source ? source->run(source) : KELP__RPC_GONE;
    if (ran != KELP__RPC_GONE) {
        (void)pthread_mutex_lock(&shared->lock);
        source->state = KELP__RPC_AWAKE;
        source->kicked = source->kicked || ran == KELP__RPC_RAN;
        (void)pthread_mutex_unlock(&shared->lock);
    }
    return source != NULL;
}

/* ---- waiting ---- */

/* Let all sources sleep. False: there is work to do at once. The lock is held. */
static bool rest_all(struct kelp__rpc_shared *shared)
{
    bool may_wait = !shared->first;

    for (struct kelp__rpc_source *source = shared->sources; source; source = source->next) {
        if (source->state != KELP__RPC_AWAKE) {
            continue;
        }
        if (!source->kicked && (!source->rest || source->rest(source))) {
            source->state = KELP__RPC_ASLEEP;
            (void)watch(shared, source->fd, source->name, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
        } else {
            source->kicked = true;
            may_wait = false;
        }
    }
    return may_wait;
}

static int wait_ms(int64_t until_us)
{
    if (until_us == INT64_MAX) {
        return -1;
    }
    const int64_t left_us = until_us - kelp__rpc_now_us();
    return left_us <= 0 ? 0 : left_us > 3600000000 ? 3600000 : (int)((left_us + 999) / 1000);
}

/* The lock is held. */
static void wake_named(struct kelp__rpc_shared *shared, uint64_t name)
{
    for (struct kelp__rpc_source *source = shared->sources; source; source = source->next) {
        if (source->name == name && source->state == KELP__RPC_ASLEEP) {
            wake(source);
            return;
        }
    }
}

/* Takes one event at a time, so that other threads get the others. */
bool kelp__rpc_shared_wait(struct kelp__rpc_shared *shared, int64_t until_us)
{
    struct epoll_event event;
    uint64_t rung;

    (void)pthread_mutex_lock(&shared->lock);
    const bool may_wait = rest_all(shared);
    (void)pthread_mutex_unlock(&shared->lock);
    if (epoll_wait(shared->epoll, &event, 1, may_wait ? wait_ms(until_us) : 0) <= 0) {
        return false;
    }
    if (event.data.u64 == EVENTS_NAME) {
        if (read(shared->bell, &rung, sizeof(rung)) < 0) {
            assert(errno == EAGAIN); /* another thread was faster */
        }
        return true;
    }
    (void)pthread_mutex_lock(&shared->lock);
    wake_named(shared, event.data.u64);
    (void)pthread_mutex_unlock(&shared->lock);
    return true;
}
