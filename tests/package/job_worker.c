/*
 * A worker for jobs that name their program (model.program): a line through samples that are made
 * here. Its arguments are the job's:
 *
 *     --sums WORDS     which sums evaluations have: "squared,absolute,correct", or fewer
 *     --refuse TEXT    say TEXT and end with status 2 before it joins
 *     --crash          end with status 1 before it joins
 *     --init           weights come from model.init, and no others are
 *     --hold           weight is -0 and stays so, which is looked at in each lane
 *     --differ         each worker has another answer
 *     --named          it adds up sums of its own: close, far and never
 *     --predict WIDTH  predictions of so many numbers, the first of which is the sample's
 */
#include <kelp/worker.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS 4

static const char *sums = "squared,absolute,correct";
static uint32_t init_kind = KELP_WORKER_INIT_UNIFORM;
static uint32_t held;
static int differs, names_sums;
static uint64_t width; /* of predictions; 0: there are none */

static int told(struct kelp_worker *worker, int result)
{
    if (result < 0) {
        fprintf(stderr, "job_worker: %s\n", kelp_worker_error());
    }
    kelp_worker_close(worker);
    return kelp_worker_exit_status(result);
}

/* Input `at` of a sample: a number in [-1, 1). */
static float input_of(uint32_t part, uint64_t sample, uint32_t at)
{
    const uint64_t place[3] = {part, sample, at};

    return (float)(int32_t)kelp_worker_hash(place, sizeof(place)) * 0x1p-31f;
}

static int plan_tensor(struct kelp_worker *worker, const char *name, uint64_t length)
{
    const uint32_t holds = held && strcmp(name, "weight") == 0;
    const struct kelp_worker_tensor tensor = {.size = sizeof(tensor),
                                              .name = name,
                                              .shape = &length,
                                              .rank = 1,
                                              .init = holds ? KELP_WORKER_INIT_CONSTANT : init_kind,
                                              .init_a = holds ? -0.0f : 0.5f,
                                              .held = holds};
    return kelp_worker_plan_tensor(worker, &tensor);
}

static int join(struct kelp_worker *worker, const char *id)
{
    int result = kelp_worker_plan_data(worker, 200, 40, 20, 1);

    if (result == KELP_WORKER_OK) {
        result = kelp_worker_plan_compute(worker, "job_worker.c",
                                          differs ? kelp_worker_hash(id, strlen(id)) : 1);
    }
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_plan_reasons(worker, "another loss, model or transforms");
    }
    if (result == KELP_WORKER_OK && names_sums) {
        result = kelp_worker_plan_sum(worker, "far");
    }
    if (result == KELP_WORKER_OK) {
        result = plan_tensor(worker, "weight", INPUTS);
    }
    if (result == KELP_WORKER_OK) {
        result = plan_tensor(worker, "bias", 1);
    }
    return result == KELP_WORKER_OK ? kelp_worker_join(worker) : result;
}

static void add(struct kelp_worker *worker, const char *word, uint32_t sum, double value)
{
    if (strstr(sums, word)) {
        (void)kelp_worker_add(worker, sum, value);
    }
}

/* Neither the weights nor the gradient of what is held are anything else, ever. */
static void look_at_held(struct kelp_worker *worker, const struct kelp_worker_lane *lane)
{
    static const float zeros[INPUTS] = {0};
    const uint64_t at = kelp_worker_offset(worker, 0);

    for (int i = 0; i < INPUTS; i++) {
        if (lane->weights[at + (uint64_t)i] != 0 || !signbit(lane->weights[at + (uint64_t)i])) {
            fprintf(stderr, "job_worker: weight %d is no longer -0\n", i);
            exit(2);
        }
    }
    if (lane->gradient && memcmp(lane->gradient + at, zeros, sizeof(zeros)) != 0) {
        fprintf(stderr, "job_worker: the gradient of what is held is not zero\n");
        exit(2);
    }
}

static void learn(struct kelp_worker *worker, const struct kelp_worker_lane *lane, uint64_t sample)
{
    const float *weight = lane->weights + kelp_worker_offset(worker, 0);
    const float *bias = lane->weights + kelp_worker_offset(worker, 1);
    float x[INPUTS], error = *bias;

    for (uint32_t i = 0; i < INPUTS; i++) {
        x[i] = input_of(lane->kind, sample, i);
        error += weight[i] * x[i];
    }
    const double target = (double)(2 * x[0] - x[3]) + 0.25;
    error -= (float)target;
    (void)kelp_worker_add(worker, KELP_WORKER_SUM_LOSS, (double)error * (double)error);
    if (names_sums && (kelp_worker_add_named(worker, "close", error < 0.5f && error > -0.5f) < 0 ||
                       kelp_worker_add_named(worker, "far", (double)fabsf(error)) < 0)) {
        fprintf(stderr, "job_worker: %s\n", kelp_worker_error());
        exit(2);
    }
    if (lane->kind == KELP_WORKER_TRAIN) {
        const float slope = 2 * error / (float)lane->step_samples;
        float *gradient = lane->gradient + kelp_worker_offset(worker, 0);
        for (uint32_t i = 0; i < INPUTS && !held; i++) {
            gradient[i] += slope * x[i];
        }
        lane->gradient[kelp_worker_offset(worker, 1)] += slope;
        return;
    }
    (void)kelp_worker_add(worker, KELP_WORKER_SUM_ELEMENTS, 1);
    add(worker, "squared", KELP_WORKER_SUM_SQUARED, (double)error * (double)error);
    add(worker, "absolute", KELP_WORKER_SUM_ABSOLUTE, error < 0 ? (double)-error : (double)error);
    add(worker, "correct", KELP_WORKER_SUM_CORRECT, error < 0.25f && error > -0.25f);
}

static int predict(struct kelp_worker *worker, uint64_t first, uint64_t count,
                   const uint64_t *indices)
{
    float *values = calloc(count * width, sizeof(*values));
    int result = KELP_WORKER_OK;

    for (uint64_t i = 0; i < count; i++) {
        values[i * width] = (float)indices[i];
    }
    /* It may come in parts. */
    for (uint64_t done = 0; done < count && result == KELP_WORKER_OK;) {
        const uint64_t now = count - done > 3 ? 3 : count - done;
        result = kelp_worker_predict(worker, first + done, now, values + done * width, width);
        done += now;
    }
    free(values);
    return result;
}

static int work(struct kelp_worker *worker)
{
    struct kelp_worker_lane lane = {.size = sizeof(lane)};
    uint64_t indices[256], count;
    int result;

    while ((result = kelp_worker_next_lane(worker, &lane)) == KELP_WORKER_OK) {
        if (held) {
            look_at_held(worker, &lane);
        }
        if (lane.gradient && !held) {
            memset(lane.gradient, 0, kelp_worker_elements(worker) * sizeof(float));
        } else if (lane.gradient) {
            lane.gradient[kelp_worker_offset(worker, 1)] = 0;
        }
        for (uint64_t done = 0; (count = kelp_worker_piece(worker, done)) > 0; done += count) {
            (void)kelp_worker_indices(worker, done, count, indices);
            if (lane.kind == KELP_WORKER_PREDICT && width > 0) {
                result = predict(worker, done, count, indices);
            }
            for (uint64_t i = 0; lane.kind != KELP_WORKER_PREDICT && i < count; i++) {
                learn(worker, &lane, indices[i]);
            }
        }
        if (result == KELP_WORKER_OK) {
            result = kelp_worker_submit(worker);
        }
        if (result != KELP_WORKER_OK) {
            break;
        }
    }
    return result;
}

int main(int argc, char **argv)
{
    struct kelp_worker_options options = {.size = sizeof(options)};
    struct kelp_worker *worker = NULL;

    int result = kelp_worker_global_init();
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_options_read(&options, &argc, argv);
    }
    if (result != KELP_WORKER_OK) {
        return told(NULL, result);
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--sums") == 0 && i + 1 < argc) {
            sums = argv[++i];
        } else if (strcmp(argv[i], "--init") == 0) {
            init_kind = KELP_WORKER_INIT_FILE;
        } else if (strcmp(argv[i], "--hold") == 0) {
            held = 1;
        } else if (strcmp(argv[i], "--predict") == 0 && i + 1 < argc) {
            width = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--differ") == 0) {
            differs = 1;
        } else if (strcmp(argv[i], "--named") == 0) {
            names_sums = 1;
        } else if (strcmp(argv[i], "--refuse") == 0 && i + 1 < argc) {
            fprintf(stderr, "job_worker: %s\n", argv[++i]);
            return 2;
        } else {
            fprintf(stderr, "job_worker: what is '%s'?\n", argv[i]);
            return strcmp(argv[i], "--crash") == 0 ? 1 : 2;
        }
    }
    result = kelp_worker_open(&options, &worker);
    if (result == KELP_WORKER_OK) {
        result = join(worker, options.id);
    }
    return told(worker, result == KELP_WORKER_OK ? work(worker) : result);
}
