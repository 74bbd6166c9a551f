#include "cli/bench/bench_limits.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/bench/bench_clock.h"
#include "cli/bench/bench_samples.h"
#include "common/base/clock.h"
#include "kernels/optimizer.h"

#define PAGE_BYTES    4096u
#define STAGGER_BYTES 320u /* arrays of equal alignment cost a factor 2 to 3 */
#define PIECE_BYTES   (256u << 10)
#define SPIN_US       40u        /* how long Kelp's own loops poll before they sleep */
#define GONE          UINT32_MAX /* a worker that pushes nothing more */
#define WARM          2u         /* operations of each worker that do not count */

struct vector {
    uint8_t *memory; /* NULL: none */
    size_t bytes;
    uint8_t *values;
};

struct side;

/* One measurement; workers and shards are its threads. */
struct run {
    struct kelp_bench_pattern pattern;
    enum kelp_bench_limit limit;
    atomic_bool stop;
    uint64_t end_us;
    struct side *workers, *shards;
    int sockets[KELP_BENCH_WORKERS_MAX][KELP_BENCH_SHARDS_MAX][2]; /* [0]: the worker's end */
    /* MEMORY: the newest operation that a worker has pushed and that a shard has summed. Apart, so
     * that no two share a cache line. */
    struct {
        _Alignas(64) _Atomic uint32_t number;
    } pushed[KELP_BENCH_WORKERS_MAX], summed[KELP_BENCH_SHARDS_MAX];
};

struct side {
    struct run *run;
    uint32_t number;
    pthread_t thread;
    bool started;
    struct vector out;    /* a worker's gradient; of a shard its sum */
    struct vector second; /* MEMORY: the sum of every second operation */
    struct vector in;     /* a worker: its weights; a shard: the piece that came */
    double begin_us, end_us;
    uint64_t operations;
    struct kelp_bench_samples samples;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static bool vector_make(struct vector *vector, uint64_t bytes, uint32_t number)
{
    const size_t stagger = (size_t)(number % 8) * STAGGER_BYTES;

    vector->bytes = (size_t)bytes + PAGE_BYTES;
    vector->memory = mmap(NULL, vector->bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (vector->memory == MAP_FAILED) {
        vector->memory = NULL;
        return false;
    }
    vector->values = vector->memory + stagger;
    return true;
}

static void vector_free(struct vector *vector)
{
    if (vector->memory) {
        (void)munmap(vector->memory, vector->bytes);
    }
}

/* The part of a vector that a shard holds, in bytes. */
static void part_of(const struct run *run, uint32_t shard, size_t *ret_first, size_t *ret_bytes)
{
    const uint64_t floats = run->pattern.bytes / sizeof(float);
    const uint64_t first = floats * shard / run->pattern.shards;
    const uint64_t end = floats * (shard + 1) / run->pattern.shards;

    *ret_first = (size_t)(first * sizeof(float));
    *ret_bytes = (size_t)((end - first) * sizeof(float));
}

static void add(uint8_t *sum, const uint8_t *other, size_t bytes)
{
    kelp_vector_add((float *)(void *)sum, other, bytes / sizeof(float));
}

/* ---- sockets --------------------------------------------------------------------------------- */

static bool send_all(int fd, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return false;
        }
        bytes += sent > 0 ? sent : 0;
        count -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

/* False: the other end has gone. */
static bool receive_all(int fd, uint8_t *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t got = recv(fd, bytes, count, 0);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        bytes += got > 0 ? got : 0;
        count -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

static bool receive_and_add(int fd, uint8_t *sum, size_t count, uint8_t *piece)
{
    for (size_t at = 0; at < count;) {
        const size_t bytes = count - at < PIECE_BYTES ? count - at : PIECE_BYTES;
        if (!receive_all(fd, piece, bytes)) {
            return false;
        }
        add(sum + at, piece, bytes);
        at += bytes;
    }
    return true;
}

static bool socket_operation(struct side *worker)
{
    const struct run *run = worker->run;
    size_t first, bytes;

    for (uint32_t s = 0; s < run->pattern.shards; s++) {
        part_of(run, s, &first, &bytes);
        if (!send_all(run->sockets[worker->number][s][0], worker->out.values + first, bytes)) {
            return false;
        }
    }
    for (uint32_t s = 0; s < run->pattern.shards; s++) {
        part_of(run, s, &first, &bytes);
        if (!receive_all(run->sockets[worker->number][s][0], worker->in.values + first, bytes)) {
            return false;
        }
    }
    return true;
}

/* A worker that has had enough closes its sockets; the others go on. */
static void serve_sockets(struct side *shard)
{
    const struct run *run = shard->run;
    bool gone[KELP_BENCH_WORKERS_MAX] = {false};
    uint32_t left = run->pattern.workers;
    size_t first, bytes;

    part_of(run, shard->number, &first, &bytes);
    while (left > 0) {
        bool any = false;
        for (uint32_t w = 0; w < run->pattern.workers; w++) {
            const int fd = run->sockets[w][shard->number][1];
            if (!gone[w] && !(any ? receive_and_add(fd, shard->out.values, bytes, shard->in.values)
                                  : receive_all(fd, shard->out.values, bytes))) {
                gone[w] = true;
                left--;
            }
            any = any || !gone[w];
        }
        for (uint32_t w = 0; w < run->pattern.workers; w++) {
            if (!gone[w] &&
                !send_all(run->sockets[w][shard->number][1], shard->out.values, bytes)) {
                gone[w] = true;
                left--;
            }
        }
    }
}

/* ---- shared memory --------------------------------------------------------------------------- */

static void tell(_Atomic uint32_t *word, uint32_t number)
{
    atomic_store(word, number);
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Wait until the word has reached this number; returns it. */
static uint32_t await(_Atomic uint32_t *word, uint32_t number)
{
    const uint64_t begin_us = kelp_clock_us();
    uint32_t now;

    while ((now = atomic_load(word)) < number) {
        if (kelp_clock_us() - begin_us >= SPIN_US) {
            (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
        }
    }
    return now;
}

static bool memory_operation(struct side *worker, uint32_t number)
{
    struct run *run = worker->run;
    size_t first, bytes;

    tell(&run->pushed[worker->number].number, number);
    for (uint32_t s = 0; s < run->pattern.shards; s++) {
        const struct side *shard = &run->shards[s];
        const uint8_t *sum = number % 2 ? shard->out.values : shard->second.values;
        (void)await(&run->summed[s].number, number);
        part_of(run, s, &first, &bytes);
        memcpy(worker->in.values + first, sum, bytes);
    }
    return true;
}

/* Two sums in turn: a worker may still copy the one while others push for the next. */
static void serve_memory(struct side *shard)
{
    struct run *run = shard->run;
    size_t first, bytes;
    bool any = true;

    part_of(run, shard->number, &first, &bytes);
    for (uint32_t number = 1; any; number++) {
        uint8_t *sum = number % 2 ? shard->out.values : shard->second.values;
        any = false;
        for (uint32_t w = 0; w < run->pattern.workers; w++) {
            const uint8_t *gradient = run->workers[w].out.values + first;
            if (await(&run->pushed[w].number, number) == GONE) {
                continue;
            }
            if (any) {
                add(sum, gradient, bytes);
            } else {
                memcpy(sum, gradient, bytes);
            }
            any = true;
        }
        tell(&run->summed[shard->number].number, number);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

static bool copy_operation(struct side *worker)
{
    const size_t bytes = (size_t)worker->run->pattern.bytes;
    uint8_t *pushed = worker->second.values;

    memcpy(pushed, worker->out.values, bytes);
    memcpy(worker->in.values, pushed, bytes);
    return true;
}

static bool operate(struct side *worker, uint32_t number)
{
    switch (worker->run->limit) {
    case KELP_BENCH_COPY:
        return copy_operation(worker);
    case KELP_BENCH_SOCKETS:
        return socket_operation(worker);
    case KELP_BENCH_MEMORY:
        return memory_operation(worker, number);
    case KELP_BENCH_LIMIT_COUNT:
        break;
    }
    return false;
}

static void leave(struct side *worker)
{
    struct run *run = worker->run;

    tell(&run->pushed[worker->number].number, GONE);
    for (uint32_t s = 0; run->limit == KELP_BENCH_SOCKETS && s < run->pattern.shards; s++) {
        (void)shutdown(run->sockets[worker->number][s][0], SHUT_RDWR);
    }
}

static void *work(void *user)
{
    struct side *worker = user;
    struct run *run = worker->run;
    double at_us = kelp_bench_now_us();

    for (uint32_t number = 1; number < GONE; number++) {
        if (!operate(worker, number)) {
            break;
        }
        const double then_us = kelp_bench_now_us();
        if (number == WARM) {
            worker->begin_us = then_us;
        } else if (number > WARM) {
            kelp_bench_samples_add(&worker->samples, then_us - at_us);
            worker->operations++;
            worker->end_us = then_us;
        }
        at_us = then_us;
        if (atomic_load(&run->stop) || (worker->operations > 0 && then_us >= (double)run->end_us)) {
            break;
        }
    }
    leave(worker);
    return NULL;
}

static void *serve(void *user)
{
    struct side *shard = user;

    if (shard->run->limit == KELP_BENCH_SOCKETS) {
        serve_sockets(shard);
    } else if (shard->run->limit == KELP_BENCH_MEMORY) {
        serve_memory(shard);
    }
    return NULL;
}

/* ---- a measurement --------------------------------------------------------------------------- */

static kelp_status open_sockets(struct run *run, struct kelp_error *reterr)
{
    for (uint32_t w = 0; w < run->pattern.workers; w++) {
        for (uint32_t s = 0; s < run->pattern.shards; s++) {
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, run->sockets[w][s]) != 0) {
                run->sockets[w][s][0] = run->sockets[w][s][1] = -1;
                return kelp_fail(reterr, KELP_ERR_IO, "socketpair: %s", strerror(errno));
            }
        }
    }
    return KELP_OK;
}

static kelp_status make_memory(struct run *run, struct kelp_error *reterr)
{
    const uint64_t bytes = run->pattern.bytes;
    bool made = true;

    for (uint32_t w = 0; w < run->pattern.workers && made; w++) {
        struct side *worker = &run->workers[w];
        made = vector_make(&worker->out, bytes, 3 * w) &&
               vector_make(&worker->in, bytes, 3 * w + 1) &&
               (run->limit != KELP_BENCH_COPY || vector_make(&worker->second, bytes, 3 * w + 2));
    }
    for (uint32_t s = 0; s < run->pattern.shards && made && run->limit != KELP_BENCH_COPY; s++) {
        struct side *shard = &run->shards[s];
        const bool pieces = run->limit == KELP_BENCH_SOCKETS;
        size_t first, part;
        part_of(run, s, &first, &part);
        made = vector_make(&shard->out, part, 2 * s + 5) &&
               (pieces ? vector_make(&shard->in, PIECE_BYTES, 0)
                       : vector_make(&shard->second, part, 2 * s + 6));
    }
    return made ? KELP_OK
                : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for vectors of %llu bytes",
                            (unsigned long long)bytes);
}

static kelp_status start_threads(struct run *run, struct side *sides, uint32_t count,
                                 void *(*function)(void *), struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < count; i++) {
        const int error = pthread_create(&sides[i].thread, NULL, function, &sides[i]);
        if (error != 0) {
            for (; i < count && sides == run->workers; i++) {
                leave(&sides[i]); /* shards must not wait for it */
            }
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "pthread_create: %s", strerror(error));
        }
        sides[i].started = true;
    }
    return KELP_OK;
}

static void join_threads(struct side *sides, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (sides[i].started) {
            (void)pthread_join(sides[i].thread, NULL);
        }
    }
}

/* Wait until the time is over, or a signal comes. */
static bool wait_for_end(struct run *run, struct kelp_guard *guard)
{
    struct pollfd item = {.fd = kelp_guard_fd(guard), .events = POLLIN};
    bool stopped = kelp_guard_stage(guard) == KELP_GUARD_STOP;

    for (uint64_t now_us = kelp_clock_us(); !stopped && now_us < run->end_us;
         now_us = kelp_clock_us()) {
        (void)poll(&item, 1, (int)((run->end_us - now_us) / 1000) + 1);
        stopped = kelp_guard_stage(guard) == KELP_GUARD_STOP;
    }
    atomic_store(&run->stop, stopped);
    return stopped;
}

static kelp_status measure(struct run *run, struct kelp_guard *guard, double *ret_cpu_s,
                           struct kelp_error *reterr)
{
    const double before_s = kelp_bench_own_cpu_s();

    run->end_us = kelp_clock_us() + run->pattern.time_us;
    kelp_status status = start_threads(run, run->shards, run->pattern.shards, serve, reterr);
    if (status == KELP_OK) {
        status = start_threads(run, run->workers, run->pattern.workers, work, reterr);
    } else {
        for (uint32_t w = 0; w < run->pattern.workers; w++) {
            leave(&run->workers[w]);
        }
    }
    if (status == KELP_OK && wait_for_end(run, guard)) {
        status = kelp_fail(reterr, KELP_ERR_CLOSED, "stopped by a signal");
    }
    atomic_store(&run->stop, status != KELP_OK);
    join_threads(run->workers, run->pattern.workers);
    join_threads(run->shards, run->pattern.shards);
    *ret_cpu_s = kelp_bench_own_cpu_s() - before_s;
    return status;
}

/* Warm-up operations do not count in the rates, but in the processor time of all. */
static kelp_status sum_up(const struct run *run, double cpu, struct kelp_bench_rate *rate,
                          struct kelp_error *reterr)
{
    const uint32_t workers = run->pattern.workers;
    float *all = malloc((size_t)workers * KELP_BENCH_SAMPLES_MAX * sizeof(*all));
    size_t count = 0;
    uint64_t operations = 0;

    if (!all) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    rate->operations_per_s = 0;
    for (uint32_t w = 0; w < workers; w++) {
        const struct side *worker = &run->workers[w];
        const double wall_us = worker->end_us - worker->begin_us;
        rate->operations_per_s += wall_us > 0 ? (double)worker->operations * 1e6 / wall_us : 0;
        operations += worker->operations + WARM;
        memcpy(all + count, worker->samples.us, worker->samples.count * sizeof(*all));
        count += worker->samples.count;
    }
    rate->gb_per_s = rate->operations_per_s * 2 * (double)run->pattern.bytes * 1e-9;
    rate->cpu_s_per_gb = cpu / (2e-9 * (double)operations * (double)run->pattern.bytes);
    rate->p50_us = kelp_bench_quantile(all, count, 0.5);
    rate->p99_us = kelp_bench_quantile(all, count, 0.99);
    free(all);
    return KELP_OK;
}

static void run_fini(struct run *run)
{
    for (uint32_t w = 0; w < KELP_BENCH_WORKERS_MAX; w++) {
        for (uint32_t s = 0; s < KELP_BENCH_SHARDS_MAX; s++) {
            for (int end = 0; end < 2; end++) {
                if (run->sockets[w][s][end] >= 0) {
                    (void)close(run->sockets[w][s][end]);
                }
            }
        }
    }
    struct side *lists[] = {run->workers, run->shards};
    const uint32_t counts[] = {run->pattern.workers, run->pattern.shards};
    for (int list = 0; list < 2; list++) {
        for (uint32_t i = 0; lists[list] && i < counts[list]; i++) {
            vector_free(&lists[list][i].out);
            vector_free(&lists[list][i].second);
            vector_free(&lists[list][i].in);
        }
        free(lists[list]);
    }
    free(run);
}

static kelp_status run_make(enum kelp_bench_limit limit, const struct kelp_bench_pattern *pattern,
                            struct run **ret_run, struct kelp_error *reterr)
{
    struct run *run = aligned_alloc(64, sizeof(*run)); /* its size is a multiple of that */

    if (!run) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    memset(run, 0, sizeof(*run));
    memset(run->sockets, 0xff, sizeof(run->sockets)); /* -1 */
    run->pattern = *pattern;
    run->limit = limit;
    run->workers = calloc(pattern->workers, sizeof(*run->workers));
    run->shards = calloc(pattern->shards, sizeof(*run->shards));
    *ret_run = run;
    if (!run->workers || !run->shards) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < pattern->workers; i++) {
        run->workers[i].run = run;
        run->workers[i].number = i;
    }
    for (uint32_t i = 0; i < pattern->shards; i++) {
        run->shards[i].run = run;
        run->shards[i].number = i;
    }
    return KELP_OK;
}

kelp_status kelp_bench_limit_measure(enum kelp_bench_limit limit,
                                     const struct kelp_bench_pattern *pattern,
                                     struct kelp_guard *guard, struct kelp_bench_rate *ret_rate,
                                     struct kelp_error *reterr)
{
    static const char *const names[KELP_BENCH_LIMIT_COUNT] = {"copy", "sockets", "memory"};
    struct kelp_bench_rate rate = {.way = names[limit], .limit = true, .bytes = pattern->bytes};
    struct run *run = NULL;
    double cpu = 0;

    kelp_status status = run_make(limit, pattern, &run, reterr);
    if (status == KELP_OK && limit == KELP_BENCH_SOCKETS) {
        status = open_sockets(run, reterr);
    }
    if (status == KELP_OK) {
        status = make_memory(run, reterr);
    }
    if (status == KELP_OK) {
        status = measure(run, guard, &cpu, reterr);
    }
    if (status == KELP_OK) {
        status = sum_up(run, cpu, &rate, reterr);
    }
    if (run) {
        run_fini(run);
    }
    if (status == KELP_OK) {
        *ret_rate = rate;
    }
    return status;
}
