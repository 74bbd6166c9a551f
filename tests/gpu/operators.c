/*
 * gpu_operators: every operator on this machine's GPU against the CPU, then again and again, which
 * must give the same bits, beside a stream that keeps the GPU busy. Then what a device says of work
 * that it cannot do, and the known answer.
 *
 * usage: gpu_operators [--repeats N] [--large-repeats N] [--large 0|1] [--load 0|1] [--seed N]
 *                      [--jobs N] [--precision NAME] [--cudnn 0|1] [GROUP ...]
 *
 * --repeats: runs of each case after the first one (100). --large-repeats: of cases of a MiB and
 * more, which copies make slow (as --repeats). --large 0: without sizes that fill a GPU (1).
 * --load 0: with nothing beside them, for tools that make a kernel a thousand times slower (1).
 * --jobs: cases at once, each on streams of its own (4). --precision tf32|bfloat16: of operands
 * that are read so; what need not be equal may differ by more then. --cudnn 1: convolutions by
 * cuDNN, of aligned operands (0). GROUP: of these alone ("sums"), and nothing of what follows the
 * cases.
 *
 * Exit status: 0; 1: a line says what is wrong, for each case; 2: usage; 77: there is no such GPU,
 * or no cuDNN.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kernels/device.h"
#include "tests/lib/cuda/operator_cases.h"
#include "tests/lib/cuda/operator_faults.h"
#include "tests/lib/cuda/operator_norm.h"
#include "tests/lib/models/channels_last.h"

#define EXIT_SKIPPED 77
#define JOBS_MAX     64u
#define LARGE_BYTES  (1u << 20)

struct group {
    const char *name;
    void (*add)(struct operator_cases *cases, bool large);
    struct operator_cases cases;
    uint32_t taken, done, failed; /* cases */
    double worst;
    uint64_t begin_us;
};
#define GROUP(group) {.name = #group, .add = cases_##group},
static struct group groups[] = {OPERATOR_GROUPS(GROUP)};

static struct {
    uint32_t repeats, large_repeats, large, load, jobs, cudnn;
    uint64_t seed;
    bool chosen[KELP_ARRAY_COUNT(groups)];
    bool some; /* groups are chosen */
    enum kelp_product_precision precision;
} options = {
    .repeats = 100, .large_repeats = UINT32_MAX, .large = 1, .load = 1, .jobs = 4, .seed = 1};

static struct kelp_device *cpu, *gpu;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the groups, failed, and lines */
static uint32_t failed;
static atomic_bool enough; /* of the load */

static void say_failed(const char *what, const struct kelp_error *error)
{
    (void)pthread_mutex_lock(&lock);
    failed++;
    printf("FAILED %s: %s\n", what, error->text);
    (void)fflush(stdout);
    (void)pthread_mutex_unlock(&lock);
}

/* ---- the load -------------------------------------------------------------------------------- */

#define LOAD_SIDE  1024u
#define LOAD_COUNT (16u << 20)

struct load {
    struct kelp_stream *stream;
    void *memory; /* float32[LOAD_COUNT] */
    uint64_t rounds;
};

/* Fills that take the memory's whole width, and products that take all multiprocessors. The queue
 * stays short: freeing memory waits for all of the device. */
static kelp_status load_round(const struct load *load, struct kelp_error *reterr)
{
    float *a = load->memory, *b = a + LOAD_SIDE * LOAD_SIDE, *c = b + LOAD_SIDE * LOAD_SIDE;
    const struct kelp_matmul product = {.m = LOAD_SIDE,
                                        .n = LOAD_SIDE,
                                        .k = LOAD_SIDE,
                                        .a = a,
                                        .lda = LOAD_SIDE,
                                        .b = b,
                                        .ldb = LOAD_SIDE,
                                        .c = c,
                                        .ldc = LOAD_SIDE};
    for (uint32_t i = 0; i < 4; i++) {
        load->stream->table->fill(load->stream, load->memory, 0.5f, LOAD_COUNT);
        load->stream->table->matmul(load->stream, &product);
    }
    return load->stream->table->wait(load->stream, reterr);
}

static void *load_main(void *argument)
{
    struct load *load = argument;
    struct kelp_error error = {KELP_OK, ""};
    while (options.load != 0 && !atomic_load(&enough)) {
        if (load_round(load, &error) != KELP_OK) {
            say_failed("the load", &error);
            break;
        }
        load->rounds++;
    }
    return NULL;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static bool is_large(const struct operator_case *one)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        elements += one->buffers[i].count;
    }
    return elements * sizeof(float) >= LARGE_BYTES;
}

/* The next case that nobody has taken; NULL: there is none. */
static struct group *take(uint32_t *ret_case)
{
    struct group *found = NULL;
    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(groups) && !found; i++) {
        if (groups[i].taken < groups[i].cases.count) {
            found = &groups[i];
            found->begin_us = found->taken == 0 ? kelp_clock_us() : found->begin_us;
            *ret_case = found->taken++;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

static void count_done(struct group *group, kelp_status status, double worst)
{
    (void)pthread_mutex_lock(&lock);
    group->done++;
    group->failed += status != KELP_OK;
    group->worst = worst > group->worst ? worst : group->worst;
    if (group->done == group->cases.count) {
        printf("%-10s %4u cases, %u failed, %u runs more of each (large ones: %u), largest "
               "difference %.1e, %.1f s\n",
               group->name, group->done, group->failed, options.repeats, options.large_repeats,
               group->worst, 1e-6 * (double)(kelp_clock_us() - group->begin_us));
        (void)fflush(stdout);
    }
    (void)pthread_mutex_unlock(&lock);
}

static void check_case(struct group *group, uint32_t number, struct case_devices *devices)
{
    const struct operator_case *one = &group->cases.cases[number];
    const uint32_t repeats = is_large(one) ? options.large_repeats : options.repeats;
    struct kelp_error error = {KELP_OK, ""};
    double worst = 0.0;
    devices->worst = &worst;
    const kelp_status status = operator_case_check(one, devices, options.seed, repeats, &error);
    if (status != KELP_OK) {
        say_failed(group->name, &error);
    }
    count_done(group, status, worst);
}

static kelp_status open_streams(struct case_devices *devices, struct kelp_error *reterr)
{
    *devices = (struct case_devices){.cpu = cpu, .other = gpu};
    const kelp_status status = cpu->table->stream_create(cpu, &devices->cpu_stream, reterr);
    return status == KELP_OK ? gpu->table->stream_create(gpu, &devices->other_stream, reterr)
                             : status;
}

static void close_streams(struct case_devices *devices)
{
    cpu->table->stream_destroy(devices->cpu_stream);
    gpu->table->stream_destroy(devices->other_stream);
}

static void *job_main(void *argument)
{
    struct case_devices devices;
    struct kelp_error error = {KELP_OK, ""};
    uint32_t number = 0;
    (void)argument;
    if (open_streams(&devices, &error) != KELP_OK) {
        say_failed("streams", &error);
    } else {
        for (struct group *group = take(&number); group; group = take(&number)) {
            check_case(group, number, &devices);
        }
    }
    close_streams(&devices);
    return NULL;
}

static void start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    if (pthread_create(thread, NULL, run, argument) != 0) {
        fprintf(stderr, "gpu_operators: cannot start a thread\n");
        exit(1);
    }
}

static void check_cases(void)
{
    pthread_t jobs[JOBS_MAX];
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(groups); i++) {
        operator_cases_init(&groups[i].cases, options.seed + i);
        if (!options.some || options.chosen[i]) {
            groups[i].add(&groups[i].cases, options.large != 0);
            cases_set_precision(&groups[i].cases, options.precision);
            if (options.cudnn != 0) {
                cases_align(&groups[i].cases);
            }
        }
    }
    for (uint32_t i = 0; i < options.jobs; i++) {
        start(&jobs[i], job_main, NULL);
    }
    for (uint32_t i = 0; i < options.jobs; i++) {
        (void)pthread_join(jobs[i], NULL);
    }
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(groups); i++) {
        operator_cases_fini(&groups[i].cases);
    }
}

/* ---- what is not a case ---------------------------------------------------------------------- */

static void report(const char *what, kelp_status status, const struct kelp_error *error)
{
    if (status != KELP_OK) {
        say_failed(what, error);
    } else {
        printf("%s: as on the cpu\n", what);
    }
}

static void check_faults(void)
{
    struct case_devices devices;
    struct kelp_error error = {KELP_OK, ""};
    kelp_status status = open_streams(&devices, &error);
    if (status != KELP_OK) {
        say_failed("streams", &error);
    } else {
        status = operator_faults_check(&devices, &error);
        report("bad ids and classes", status, &error);
        status = operator_memory_check(&devices, &error);
        report("after too large an allocation", status, &error);
        double worst = 0.0;
        status = operator_norm_check(&devices, &worst, &error);
        report("norms far from zero", status, &error);
        printf("their largest difference from float64: %.1e\n", worst);
        status = operator_marks_check(&devices, &error);
        report("marks", status, &error);
        status = operator_after_check(&devices, &error);
        report("streams after each other", status, &error);
    }
    close_streams(&devices);
}

static char kind[KELP_COMPUTE_KIND_SIZE]; /* "": not known yet */
static uint64_t known_answer;

/* As it was before, if it was asked for. */
static void check_answer(const char *what)
{
    char text[KELP_COMPUTE_KIND_SIZE] = "";
    uint64_t answer = 0;
    struct kelp_error error = {KELP_OK, ""};
    if (kelp_compute_kind(gpu, text, &answer, &error) != KELP_OK) {
        say_failed(what, &error);
        return;
    }
    printf("%s, %s %016llx\n", text, what, (unsigned long long)answer);
    if (kind[0] != '\0' && (strcmp(text, kind) != 0 || answer != known_answer)) {
        (void)kelp_fail(&error, KELP_ERR_MISMATCH, "differs");
        say_failed(what, &error);
    }
    memcpy(kind, text, sizeof(kind));
    known_answer = answer;
}

static kelp_status check_all(struct kelp_error *reterr)
{
    struct load load = {.rounds = 0};
    pthread_t thread;
    kelp_status status = gpu->table->stream_create(gpu, &load.stream, reterr);
    if (status == KELP_OK) {
        status = gpu->table->alloc(gpu, LOAD_COUNT * sizeof(float), &load.memory, reterr);
    }
    if (status == KELP_OK) {
        start(&thread, load_main, &load);
        check_cases();
        if (!options.some) {
            check_faults();
            check_answer("known answer");
            check_answer("known answer");
        }
        atomic_store(&enough, true);
        (void)pthread_join(thread, NULL);
        printf("the load beside it: %llu rounds\n", (unsigned long long)load.rounds);
    }
    gpu->table->free(gpu, load.memory);
    gpu->table->stream_destroy(load.stream);
    return status;
}

/* ---- the program ----------------------------------------------------------------------------- */

static bool parse_number(const char *text, uint32_t *ret)
{
    char *end = NULL;
    const unsigned long number = strtoul(text, &end, 10);
    *ret = (uint32_t)number;
    return *text >= '0' && *text <= '9' && *end == '\0' && number < UINT32_MAX;
}

static bool parse_group(const char *name)
{
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(groups); i++) {
        if (strcmp(groups[i].name, name) == 0) {
            options.chosen[i] = options.some = true;
            return true;
        }
    }
    return false;
}

static bool parse_option(const char *name, const char *value)
{
    uint32_t number = 0;
    if (strcmp(name, "--precision") == 0) {
        options.precision = strcmp(value, "tf32") == 0 ? KELP_PRODUCT_TF32 : KELP_PRODUCT_BFLOAT16;
        return strcmp(value, "tf32") == 0 || strcmp(value, "bfloat16") == 0;
    }
    if (!parse_number(value, &number)) {
        return false;
    }
    if (strcmp(name, "--repeats") == 0) {
        options.repeats = number;
    } else if (strcmp(name, "--large-repeats") == 0) {
        options.large_repeats = number;
    } else if (strcmp(name, "--large") == 0 && number <= 1) {
        options.large = number;
    } else if (strcmp(name, "--cudnn") == 0 && number <= 1) {
        options.cudnn = number;
    } else if (strcmp(name, "--load") == 0 && number <= 1) {
        options.load = number;
    } else if (strcmp(name, "--seed") == 0) {
        options.seed = number;
    } else if (strcmp(name, "--jobs") == 0 && number > 0 && number <= JOBS_MAX) {
        options.jobs = number;
    } else {
        return false;
    }
    return true;
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            if (!parse_group(argv[i])) {
                return false;
            }
        } else if (i + 1 == argc || !parse_option(argv[i], argv[i + 1])) {
            return false;
        } else {
            i++;
        }
    }
    if (options.large_repeats == UINT32_MAX) {
        options.large_repeats = options.repeats;
    }
    return true;
}

static kelp_status open_gpu(struct kelp_error *reterr)
{
    kelp_status status = kelp_device_cuda_create(0, &gpu, reterr);
    return status == KELP_OK ? gpu->table->set_precision(gpu, options.precision, reterr) : status;
}

/* A process that has left the GPU may come back. */
static void check_return(void)
{
    struct kelp_error error = {KELP_OK, ""};
    gpu->table->destroy(gpu);
    gpu = NULL;
    kelp_device_cuda_leave();
    if (open_gpu(&error) != KELP_OK) {
        say_failed("a device after the process has left the GPU", &error);
    } else {
        check_answer("known answer after a return");
    }
}

int main(int argc, char **argv)
{
    struct kelp_error error = {KELP_OK, ""};
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: gpu_operators [--repeats N] [--large-repeats N] [--seed N] "
                        "[--jobs N] [--precision tf32|bfloat16] [--cudnn 0|1] [GROUP ...]\n");
        return 2;
    }
    kelp_status status = open_gpu(&error);
    if (status == KELP_ERR_NOT_FOUND || status == KELP_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", error.text);
        return EXIT_SKIPPED;
    }
    if (status == KELP_OK && options.cudnn != 0) {
        status = gpu->table->set_cudnn(gpu, KELP_CUDNN_ALWAYS, &error);
        if (status == KELP_ERR_NOT_FOUND) {
            printf("skipped: %s\n", error.text);
            return EXIT_SKIPPED;
        }
    }
    if (status == KELP_OK) {
        status = channels_last_cpu_create(&cpu, &error);
    }
    if (status == KELP_OK) {
        status = check_all(&error);
    }
    if (status != KELP_OK) {
        say_failed("devices", &error);
    } else if (!options.some && options.load != 0) { /* tools have states of their own */
        check_return();
    }
    if (cpu) {
        cpu->table->destroy(cpu);
    }
    if (gpu) {
        gpu->table->destroy(gpu);
    }
    printf("%u failed\n", failed);
    return failed == 0 ? 0 : 1;
}
