/* `kelp bench optimizer`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/bench_clock.h"
#include "cli/bench/bench_samples.h"
#include "cli/bench/bench_verbs.h"
#include "cli/preflight/machine.h"
#include "common/base/json.h"
#include "common/job/job.h"
#include "kernels/optimizer.h"

#define ALIGN       4096u
#define APART       320u /* arrays of equal alignment cost a factor 2 to 3 */
#define ARRAYS_MAX  (3 + KELP_OPTIMIZER_SLOTS_MAX)
#define WARM_PASSES 2
#define PASSES      3    /* at least */
#define STEP_NUMBER 7    /* any but the first, whose momentum is only copied */
#define RATE        1e-6 /* so small that values stay finite, however often */

static const struct kelp_option options[] = {
    KELP_BENCH_SIZE_OPTION("size", "LIST", "64KiB,16MiB",
                           "bytes of the weights, 4KiB to 256MiB, such as 64KiB,256MiB"),
    KELP_VERB_NUMBER("time", DURATION, 10, 600000, "300ms", NULL, "how long each line is measured"),
    KELP_VERB_OUTPUT("a table, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp bench optimizer",
    .summary = "measures the updates of optimizers in one thread, beside what memory does",
    .examples = "  kelp bench optimizer\n"
                "  kelp bench optimizer --size 256MiB --time 2s -o json\n",
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
    double time_us;
    bool json;
    uint32_t printed; /* rows */
    uint8_t *memory;  /* ARRAYS_MAX arrays of the largest size */
    struct kelp_bench_samples samples;
};

/* One pass over arrays of so many elements. */
struct pass {
    const struct subject *subject;
    uint64_t count;
    uint32_t slots;
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers;
};

static float *array(const struct bench *bench, uint64_t bytes, uint32_t number)
{
    return (float *)(void *)(bench->memory + number * (bytes + APART));
}

static void prepare(const struct bench *bench, const struct subject *subject, uint64_t bytes,
                    struct pass *pass)
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
                          .slots = subject->what == UPDATE ? kelp_optimizer_slot_count(&job) : 0};
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
}

static void run(const struct pass *pass)
{
    switch (pass->subject->what) {
    case COPY:
        memcpy(pass->buffers.weights_next, pass->buffers.weights, pass->count * sizeof(float));
        break;
    case SUM:
        kelp_vector_add(pass->buffers.weights_next, pass->buffers.gradient, pass->count);
        break;
    case UPDATE:
        (void)kelp_optimizer_apply(&pass->step, &pass->buffers, pass->count); /* all are finite */
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

/* Microseconds of a pass, half of them take less. */
static double measure(struct bench *bench, const struct pass *pass)
{
    bench->samples.count = 0;
    bench->samples.seen = 0;
    bench->samples.thinned = 0;
    for (int i = 0; i < WARM_PASSES; i++) {
        run(pass);
    }
    const double begin_us = kelp_bench_now_us();
    for (double at_us = begin_us;
         at_us < begin_us + bench->time_us || bench->samples.seen < PASSES;) {
        run(pass);
        const double then_us = kelp_bench_now_us();
        kelp_bench_samples_add(&bench->samples, then_us - at_us);
        at_us = then_us;
    }
    return kelp_bench_quantile(bench->samples.us, bench->samples.count, 0.5);
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

static void measure_kinds(struct bench *bench, bool limits)
{
    struct pass pass;

    for (uint32_t size = 0; size < bench->sizes.count; size++) {
        for (size_t i = 0; i < KELP_ARRAY_COUNT(subjects); i++) {
            if ((subjects[i].what != UPDATE) == limits) {
                prepare(bench, &subjects[i], bench->sizes.bytes[size], &pass);
                print_row(bench, &pass, bench->sizes.bytes[size], measure(bench, &pass));
            }
        }
    }
}

static void measure_all(struct bench *bench)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (bench->json) {
        (void)printf("{\"bench\":\"optimizer\",\"processors\":%ld,\"rows\":[", processors);
    } else {
        (void)printf("processors %ld, one thread; GB/s read and written\n\n", processors);
    }
    print_head(bench, "LIMIT");
    measure_kinds(bench, true);
    if (!bench->json) {
        (void)printf("\n");
    }
    print_head(bench, "KELP");
    measure_kinds(bench, false);
    if (bench->json) {
        (void)printf("\n]}\n");
    }
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
    return bench->memory ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static int optimizer(const struct kelp_options *given)
{
    struct bench *bench = calloc(1, sizeof(*bench));
    struct kelp_error error;

    if (!bench) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    bench->time_us = 1e3 * (double)kelp_options_duration_ms(given, "time");
    bench->json = kelp_verb_json(given);
    kelp_status status =
        kelp_bench_sizes(kelp_options_text(given, "size"), "size", &bench->sizes, &error);
    if (status == KELP_OK) {
        status = allocate(bench, &error);
    }
    if (status == KELP_OK) {
        measure_all(bench);
    }
    free(bench->memory);
    free(bench);
    return status == KELP_OK ? KELP_EXIT_OK : kelp_bench_failed(status, &error, 0);
}

const struct kelp_verb kelp_bench_verb_optimizer = {
    "optimizer", "updates of optimizers, beside copying and adding", &program, optimizer, NULL};
