/* `kelp bench optimizer`. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/bench_clock.h"
#include "cli/bench/bench_plan.h"
#include "cli/bench/bench_samples.h"
#include "cli/bench/bench_verbs.h"
#include "cli/preflight/machine.h"
#include "common/base/json.h"
#include "common/job/job.h"
#include "kernels/update.h"

#define ALIGN       4096u
#define PART_STEP   64u  /* bytes: threads share no cache line */
#define APART       320u /* arrays of equal alignment cost a factor 2 to 3 */
#define ARRAYS_MAX  (3 + KELP_OPTIMIZER_SLOTS_MAX)
#define THREADS_MAX 64
#define WARM_PASSES 2
#define PASSES      3    /* at least */
#define STEP_NUMBER 7    /* any but the first, whose momentum is only copied */
#define RATE        1e-6 /* so small that values stay finite, however often */

static const struct kelp_option options[] = {
    KELP_BENCH_SIZE_OPTION("size", "LIST", "64KiB,16MiB",
                           "sizes of the weights, 4KiB to 256MiB, such as 64KiB,256MiB"),
    KELP_VERB_NUMBER("threads", INTEGER, 1, THREADS_MAX, "1", NULL,
                     "threads, each of which updates a part of the weights"),
    KELP_VERB_NUMBER("time", DURATION, 10, 600000, "300ms", NULL,
                     "how long to measure for each line of the table"),
    KELP_VERB_OUTPUT("a table, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp bench optimizer",
    .summary = "measures the updates of optimizers, and the speed of memory",
    .examples = "  kelp bench optimizer\n"
                "  kelp bench optimizer --size 256MiB --threads 2 --time 2s -o json\n",
    KELP_VERB_OPTIONS(options),
};

/* What is measured; kind says nothing of the first two. */
static const struct subject {
    const char *way;
    enum { COPY, SUM, UPDATE } what;
    enum kelp_optimizer_kind kind;
    double momentum;
} subjects[] = {
    {"copy", COPY, KELP_OPTIMIZER_SGD, 0},
    {"sum", SUM, KELP_OPTIMIZER_SGD, 0},
    {"sgd", UPDATE, KELP_OPTIMIZER_SGD, 0},
    {"momentum", UPDATE, KELP_OPTIMIZER_SGD, 0.9},
    {"adam", UPDATE, KELP_OPTIMIZER_ADAM, 0},
    {"adamw", UPDATE, KELP_OPTIMIZER_ADAMW, 0},
    {"adagrad", UPDATE, KELP_OPTIMIZER_ADAGRAD, 0},
    {"rmsprop", UPDATE, KELP_OPTIMIZER_RMSPROP, 0},
    {"adadelta", UPDATE, KELP_OPTIMIZER_ADADELTA, 0},
};

struct bench {
    struct kelp_bench_sizes sizes;
    uint32_t threads;
    double time_us;
    bool json;
    uint32_t printed;     /* rows */
    uint8_t *memory;      /* ARRAYS_MAX arrays of the largest size */
    struct part *parts;   /* one for each thread */
    pthread_barrier_t go; /* all threads begin at once */
};

/* One pass over arrays of so many elements. */
struct pass {
    const struct subject *subject;
    uint64_t count;
    uint32_t slots;
    struct kelp_job job;
    struct kelp_plan plan; /* one tensor */
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers;
};

/* What one thread passes over, again and again. */
struct part {
    struct bench *bench;
    pthread_t thread;
    const struct pass *pass;
    uint64_t count; /* elements from where the buffers begin */
    struct kelp_optimizer_buffers buffers;
    struct kelp_update update;
    double p50_us;
    struct kelp_bench_samples samples;
};

static float *array(const struct bench *bench, uint64_t bytes, uint32_t number)
{
    return (float *)(void *)(bench->memory + number * (bytes + APART));
}

/* pass->plan is owned, also after an error. */
static kelp_status prepare(const struct bench *bench, const struct subject *subject, uint64_t bytes,
                           struct pass *pass, struct kelp_error *reterr)
{
    const struct kelp_job job = {.train = {.optimizer = subject->kind,
                                           .momentum = subject->momentum,
                                           .lr = RATE,
                                           .weight_decay = 0,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999,
                                           .alpha = 0.99,
                                           .rho = 0.9,
                                           .eps = 1e-8}};

    *pass = (struct pass){.subject = subject,
                          .count = bytes / sizeof(float),
                          .slots = subject->what == UPDATE ? kelp_optimizer_slot_count(&job) : 0,
                          .job = job};
    kelp_status status = kelp_bench_plan_make(bytes, 1, &pass->plan, reterr);
    pass->buffers.weights = array(bench, bytes, 0);
    pass->buffers.gradient = array(bench, bytes, 1);
    pass->buffers.weights_next = array(bench, bytes, 2);
    for (uint32_t s = 0; s < pass->slots; s++) {
        pass->buffers.slots[s] = array(bench, bytes, 3 + s);
        memset(pass->buffers.slots[s], 0, bytes);
    }
    for (uint64_t i = 0; i < pass->count; i++) {
        array(bench, bytes, 0)[i] = (float)(i % 1000) * 1e-3f;
        array(bench, bytes, 1)[i] = (float)(i % 1000) * 1e-5f;
        array(bench, bytes, 2)[i] = 0;
    }
    kelp_optimizer_prepare(&pass->step, &job, RATE, STEP_NUMBER);
    return status;
}

static void run(const struct part *part)
{
    static const struct kelp_step_decision none = {.count = 0};
    const struct kelp_optimizer_buffers *buffers = &part->buffers;

    switch (part->pass->subject->what) {
    case COPY:
        memcpy(buffers->weights_next, buffers->weights, part->count * sizeof(float));
        break;
    case SUM:
        kelp_vector_add(buffers->weights_next, buffers->gradient, part->count);
        break;
    case UPDATE: /* all gradients are finite */
        (void)kelp_update_apply(&part->update, &part->pass->step, &none, buffers);
        break;
    }
}

/* How often it passes over an array's memory: what it reads and what it writes. */
static double arrays_of(const struct pass *pass)
{
    switch (pass->subject->what) {
    case COPY:
        return 2;
    case SUM:
        return 3;
    case UPDATE:
        break;
    }
    return 3 + 2.0 * pass->slots;
}

static uint64_t border(const struct pass *pass, uint32_t threads, uint32_t number)
{
    const uint64_t step = PART_STEP / sizeof(float);

    return number == threads ? pass->count : pass->count / step * number / threads * step;
}

/* A thread's share of a pass, as a shard has a partition. */
static kelp_status cut(const struct pass *pass, uint32_t threads, uint32_t number,
                       struct part *part, struct kelp_error *reterr)
{
    const uint64_t begin = border(pass, threads, number);

    part->pass = pass;
    part->count = border(pass, threads, number + 1) - begin;
    part->buffers = pass->buffers;
    part->buffers.weights += begin;
    part->buffers.gradient += begin;
    part->buffers.weights_next += begin;
    for (uint32_t i = 0; i < pass->slots; i++) {
        part->buffers.slots[i] += begin;
    }
    return kelp_update_init(&part->update, &pass->job, &pass->plan,
                            (struct kelp_slice_range){.first = begin, .count = part->count},
                            reterr);
}

static void *measure_part(void *user)
{
    struct part *part = user;

    part->samples.count = 0;
    part->samples.seen = 0;
    part->samples.thinned = 0;
    for (int i = 0; i < WARM_PASSES; i++) {
        run(part);
    }
    (void)pthread_barrier_wait(&part->bench->go);
    const double begin_us = kelp_bench_now_us();
    for (double at_us = begin_us;
         at_us < begin_us + part->bench->time_us || part->samples.seen < PASSES;) {
        run(part);
        const double then_us = kelp_bench_now_us();
        kelp_bench_samples_add(&part->samples, then_us - at_us);
        at_us = then_us;
    }
    part->p50_us = kelp_bench_quantile(part->samples.us, part->samples.count, 0.5);
    return NULL;
}

/* All threads, this one for the last part. */
static kelp_status measure_parts(struct bench *bench, struct kelp_error *reterr)
{
    const uint32_t last = bench->threads - 1;
    uint32_t started = 0;
    int failed = pthread_barrier_init(&bench->go, NULL, bench->threads);

    while (failed == 0 && started < last) {
        struct part *part = &bench->parts[started];
        failed = pthread_create(&part->thread, NULL, measure_part, part);
        started += failed == 0;
    }
    if (failed != 0) { /* those that wait for the others end with the process */
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot start %u threads: %s", bench->threads,
                         strerror(failed));
    }
    (void)measure_part(&bench->parts[last]);
    for (uint32_t i = 0; i < last; i++) {
        (void)pthread_join(bench->parts[i].thread, NULL);
    }
    (void)pthread_barrier_destroy(&bench->go);
    return KELP_OK;
}

/* Microseconds of a pass: half of the slowest thread's take less. */
static kelp_status measure(struct bench *bench, const struct pass *pass, double *ret_us,
                           struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    uint32_t ready = 0;

    *ret_us = 0;
    while (status == KELP_OK && ready < bench->threads) {
        status = cut(pass, bench->threads, ready, &bench->parts[ready], reterr);
        ready += status == KELP_OK;
    }
    if (status == KELP_OK) {
        status = measure_parts(bench, reterr);
    }
    for (uint32_t i = 0; i < ready; i++) {
        *ret_us = bench->parts[i].p50_us > *ret_us ? bench->parts[i].p50_us : *ret_us;
        kelp_update_fini(&bench->parts[i].update);
    }
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_number(const char *name, double value)
{
    (void)printf(",\"%s\":", name);
    kelp_json_print_double(stdout, value);
}

static void print_row(struct bench *bench, const struct pass *pass, uint64_t bytes, double us)
{
    const double elements_per_s = 1e6 * (double)pass->count / us;
    const double gb_per_s = 1e-9 * sizeof(float) * arrays_of(pass) * elements_per_s;
    char size[KELP_VALUE_TEXT_MAX];

    if (bench->json) {
        kelp_json_print_member(stdout, bench->printed++ > 0 ? ",\n  {" : "\n  {", "way",
                               pass->subject->way);
        (void)printf(",\"limit\":%s,\"bytes\":%" PRIu64,
                     pass->subject->what == UPDATE ? "false" : "true", bytes);
        print_number("p50_us", us);
        print_number("elements_per_s", elements_per_s);
        print_number("gb_per_s", gb_per_s);
        (void)printf("}");
        return;
    }
    kelp_value_print_size(bytes, size);
    (void)printf("%-10s %9s %12.1f %14.1f %8.2f\n", pass->subject->way, size, us,
                 1e-6 * elements_per_s, gb_per_s);
    (void)fflush(stdout);
}

static void print_head(const struct bench *bench, const char *of_what)
{
    if (!bench->json) {
        (void)printf("%-10s %9s %12s %14s %8s\n", of_what, "size", "p50 us", "M elements/s",
                     "GB/s");
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

static kelp_status measure_kinds(struct bench *bench, bool limits, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    struct pass pass;
    double us;

    for (uint32_t size = 0; size < bench->sizes.count; size++) {
        for (size_t i = 0; i < KELP_ARRAY_COUNT(subjects) && status == KELP_OK; i++) {
            if ((subjects[i].what != UPDATE) == limits) {
                status = prepare(bench, &subjects[i], bench->sizes.bytes[size], &pass, reterr);
                if (status == KELP_OK) {
                    status = measure(bench, &pass, &us, reterr);
                }
                if (status == KELP_OK) {
                    print_row(bench, &pass, bench->sizes.bytes[size], us);
                }
                kelp_plan_fini(&pass.plan);
            }
        }
    }
    return status;
}

static kelp_status measure_all(struct bench *bench, struct kelp_error *reterr)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (bench->json) {
        (void)printf("{\"bench\":\"optimizer\",\"processors\":%ld,\"threads\":%u,\"rows\":[",
                     processors, bench->threads);
    } else {
        (void)printf("processors %ld, threads %u; GB/s read and written\n\n", processors,
                     bench->threads);
    }
    print_head(bench, "LIMIT");
    kelp_status status = measure_kinds(bench, true, reterr);
    if (!bench->json) {
        (void)printf("\n");
    }
    print_head(bench, "KELP");
    if (status == KELP_OK) {
        status = measure_kinds(bench, false, reterr);
    }
    if (bench->json) {
        (void)printf("\n]}\n");
    }
    return status;
}

static kelp_status allocate(struct bench *bench, struct kelp_error *reterr)
{
    uint64_t largest = 0;
    struct kelp_machine machine;

    for (uint32_t i = 0; i < bench->sizes.count; i++) {
        largest = bench->sizes.bytes[i] > largest ? bench->sizes.bytes[i] : largest;
    }
    kelp_machine_read(&machine);
    kelp_status status = kelp_bench_sizes_fit(&bench->sizes, 1, machine.memory_bytes, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const uint64_t bytes = (ARRAYS_MAX * (largest + APART) + ALIGN - 1) / ALIGN * ALIGN;
    bench->memory = aligned_alloc(ALIGN, (size_t)bytes);
    bench->parts = calloc(bench->threads, sizeof(*bench->parts));
    for (uint32_t i = 0; bench->parts && i < bench->threads; i++) {
        bench->parts[i].bench = bench;
    }
    return bench->memory && bench->parts ? KELP_OK
                                         : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static int optimizer(const struct kelp_options *given)
{
    struct bench *bench = calloc(1, sizeof(*bench));
    struct kelp_error error;

    if (!bench) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    bench->threads = (uint32_t)kelp_options_integer(given, "threads");
    bench->time_us = 1e3 * (double)kelp_options_duration_ms(given, "time");
    bench->json = kelp_verb_json(given);
    kelp_status status =
        kelp_bench_sizes(kelp_options_text(given, "size"), "size", &bench->sizes, &error);
    if (status == KELP_OK) {
        status = allocate(bench, &error);
    }
    if (status == KELP_OK) {
        status = measure_all(bench, &error);
    }
    free(bench->parts);
    free(bench->memory);
    free(bench);
    return status == KELP_OK ? KELP_EXIT_OK : kelp_bench_failed(status, &error, 0);
}

const struct kelp_verb kelp_bench_verb_optimizer = {
    "optimizer", "updates of optimizers, beside copying and adding", &program, optimizer, NULL};
