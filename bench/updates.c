/*
 * updates: throughput of the CPU's optimizers, compared with copies and sums of the same arrays.
 *
 *     usage: updates
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "common/training/plan.h"
#include "kernels/update.h"

/* Arrays start this far apart within a page: equal alignment makes a pass 2 to 3 times slower. */
#define STAGGER (4096 + 320)

#define UPDATE_THREADS 2
#define UPDATE_ROUNDS  5
#define UPDATE_SECONDS 0.01 /* of one round of a case, or one call */

enum update_way {
    WAY_COPY,   /* memcpy */
    WAY_SUM,    /* d += s */
    WAY_UPDATE, /* from a gradient in memory */
    WAY_APART,  /* of two terms: a pass that adds them, then an update */
    WAY_FUSED,  /* of two terms in one pass */
};

/* The cases are measured in turn within one run, because machines are noisy. */
struct update_case {
    const char *name;
    enum update_way way;
    struct kelp_job job;
    double best[UPDATE_THREADS]; /* seconds of a call */
};

/* One thread's slice. */
struct update_slice {
    const struct update_case *of;
    struct kelp_plan plan;
    struct kelp_tensor tensor;
    struct kelp_update update;
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers;
    struct kelp_gradient_terms terms;
    float *sum;
    char *memory;
    uint64_t count, repeat;
    pthread_barrier_t *barrier;
};

static void open_slice(struct update_slice *slice, uint64_t count)
{
    const uint64_t stride = count * sizeof(float) + STAGGER;
    float *arrays[5 + KELP_OPTIMIZER_SLOTS_MAX];

    *slice = (struct update_slice){.count = count};
    slice->memory = (char *)floats(KELP_ARRAY_COUNT(arrays) * (stride / sizeof(float)));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(arrays); i++) {
        arrays[i] = (float *)(void *)(slice->memory + i * stride);
    }
    slice->sum = arrays[2];
    slice->terms = (struct kelp_gradient_terms){.left = arrays[3], .right = arrays[4]};
    slice->buffers =
        (struct kelp_optimizer_buffers){.weights = arrays[0], .weights_next = arrays[1]};
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        slice->buffers.slots[s] = arrays[5 + s];
        memset(arrays[5 + s], 0, count * sizeof(float));
    }
}

static void set_case(struct update_slice *slice, const struct update_case *of)
{
    struct kelp_error error = {KELP_OK, ""};

    slice->of = of;
    slice->tensor = (struct kelp_tensor){.name = "w", .rank = 1, .shape = {slice->count}};
    slice->plan = (struct kelp_plan){.tensors = &slice->tensor, .tensor_count = 1};
    if (kelp_plan_lay_out(&slice->plan, 1, &error) != KELP_OK ||
        kelp_update_init(&slice->update, &of->job, &slice->plan,
                         (struct kelp_slice_range){.count = slice->count}, &error) != KELP_OK) {
        fail(&error);
    }
    kelp_optimizer_prepare(&slice->step, &of->job, of->job.train.lr, 7);
}

static void run_slice(struct update_slice *slice)
{
    const void *left = slice->terms.left, *right = slice->terms.right;
    const struct kelp_step_decision none = {.count = 0};
    struct kelp_optimizer_buffers buffers = slice->buffers;

    switch (slice->of->way) {
    case WAY_COPY:
        memcpy(slice->sum, left, slice->count * sizeof(float));
        return;
    case WAY_SUM:
        kelp_vector_add(slice->sum, left, slice->count);
        return;
    case WAY_UPDATE:
        buffers.gradient = left;
        break;
    case WAY_APART:
        memcpy(slice->sum, left, slice->count * sizeof(float));
        kelp_vector_add(slice->sum, right, slice->count);
        buffers.gradient = slice->sum;
        break;
    case WAY_FUSED:
        buffers.terms = slice->terms;
        break;
    }
    (void)kelp_update_apply(&slice->update, &slice->step, &none, &buffers);
}

static void *run_slices(void *user)
{
    struct update_slice *slice = user;

    (void)pthread_barrier_wait(slice->barrier);
    for (uint64_t i = 0; i < slice->repeat; i++) {
        run_slice(slice);
    }
    return NULL;
}

/* Seconds of one call by so many threads at once. */
static double time_case(struct update_slice *slices, uint32_t threads, uint64_t repeat)
{
    pthread_t others[UPDATE_THREADS];
    pthread_barrier_t barrier;

    (void)pthread_barrier_init(&barrier, NULL, threads);
    for (uint32_t t = 0; t < threads; t++) {
        slices[t].barrier = &barrier;
        slices[t].repeat = repeat;
        if (t > 0 && pthread_create(&others[t], NULL, run_slices, &slices[t]) != 0) {
            fprintf(stderr, "kernels: no thread\n");
            exit(1);
        }
    }
    const double begin = now();
    (void)run_slices(&slices[0]);
    for (uint32_t t = 1; t < threads; t++) {
        (void)pthread_join(others[t], NULL);
    }
    const double seconds = (now() - begin) / (double)repeat;
    (void)pthread_barrier_destroy(&barrier);
    return seconds;
}

static void run_cases(struct update_case *cases, size_t case_count, uint64_t count,
                      uint32_t threads)
{
    struct update_slice slices[UPDATE_THREADS];

    for (uint32_t t = 0; t < threads; t++) {
        open_slice(&slices[t], count / threads / 16 * 16);
    }
    for (uint32_t round = 0; round < UPDATE_ROUNDS; round++) {
        for (size_t i = 0; i < case_count; i++) {
            double *best = &cases[i].best[threads - 1];
            for (uint32_t t = 0; t < threads; t++) {
                set_case(&slices[t], &cases[i]);
            }
            const double once = time_case(slices, threads, 1);
            const double seconds =
                time_case(slices, threads, 1 + (uint64_t)(UPDATE_SECONDS / once));
            *best = round == 0 || seconds < *best ? seconds : *best;
            for (uint32_t t = 0; t < threads; t++) {
                kelp_update_fini(&slices[t].update);
            }
        }
    }
    for (uint32_t t = 0; t < threads; t++) {
        free(slices[t].memory);
    }
}

/* Bytes that a call reads and writes for each element, without reads that writing causes. */
static double traffic(const struct update_case *of)
{
    const double slots = 8.0 * kelp_optimizer_slot_count(&of->job);

    switch (of->way) {
    case WAY_COPY:
        return 8.0;
    case WAY_SUM:
        return 12.0;
    case WAY_UPDATE:
        return 12.0 + slots;
    case WAY_APART:
        return 8.0 + 12.0 + 12.0 + slots;
    case WAY_FUSED:
        return 16.0 + slots;
    }
    return 0.0;
}

/* Print the traffic: with one thread as a share of memcpy's, with two as a share of d += s. */
static void print_case(const struct update_case *of, const struct update_case *copy,
                       const struct update_case *sum, uint64_t count)
{
    const double bytes = traffic(of) * (double)count;
    const double one = bytes / of->best[0], two = bytes / of->best[1];

    printf("%-20s %10llu %10.2f us %6.1f GB/s %5.2f of memcpy   2 threads %10.2f us %6.1f GB/s "
           "%5.2f of d += s\n",
           of->name, (unsigned long long)count, of->best[0] * 1e6, 1e-9 * one,
           one / (8.0 * (double)count / copy->best[0]), of->best[1] * 1e6, 1e-9 * two,
           two / (12.0 * (double)count / sum->best[1]));
}

static struct kelp_job update_job(enum kelp_optimizer_kind optimizer, double momentum)
{
    return (struct kelp_job){.train = {.optimizer = optimizer,
                                       .momentum = momentum,
                                       .lr = 1e-6,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .alpha = 0.99,
                                       .rho = 0.9,
                                       .eps = 1e-8}};
}

static void bench_updates(void)
{
    static const uint64_t counts[] = {18624, 1u << 20, 16u << 20};
    const struct kelp_job sgd = update_job(KELP_OPTIMIZER_SGD, 0.0);
    const struct kelp_job momentum = update_job(KELP_OPTIMIZER_SGD, 0.9);
    const struct kelp_job adam = update_job(KELP_OPTIMIZER_ADAM, 0.0);
    struct update_case cases[] = {
        {.name = "memcpy", .way = WAY_COPY},
        {.name = "d += s", .way = WAY_SUM},
        {.name = "sgd", .way = WAY_UPDATE, .job = sgd},
        {.name = "momentum", .way = WAY_UPDATE, .job = momentum},
        {.name = "adam", .way = WAY_UPDATE, .job = adam},
        {.name = "adagrad", .way = WAY_UPDATE, .job = update_job(KELP_OPTIMIZER_ADAGRAD, 0.0)},
        {.name = "rmsprop", .way = WAY_UPDATE, .job = update_job(KELP_OPTIMIZER_RMSPROP, 0.0)},
        {.name = "adadelta", .way = WAY_UPDATE, .job = update_job(KELP_OPTIMIZER_ADADELTA, 0.0)},
        {.name = "sums, then sgd", .way = WAY_APART, .job = sgd},
        {.name = "sgd of sums", .way = WAY_FUSED, .job = sgd},
        {.name = "sums, then adam", .way = WAY_APART, .job = adam},
        {.name = "adam of sums", .way = WAY_FUSED, .job = adam},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(counts); i++) {
        for (uint32_t threads = 1; threads <= UPDATE_THREADS; threads++) {
            run_cases(cases, KELP_ARRAY_COUNT(cases), counts[i], threads);
        }
        for (size_t k = 0; k < KELP_ARRAY_COUNT(cases); k++) {
            print_case(&cases[k], &cases[0], &cases[1], counts[i]);
        }
    }
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "usage: updates\n");
        return 2;
    }
    bench_updates();
    return 0;
}
