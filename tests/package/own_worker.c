/*
 * A worker that looks at what the library hands out while it trains something of no use. OWN_WORKER
 * says what it does besides: "slow", one lane takes three seconds; "wait", each lane takes so long,
 * or until it is told that the worker is not wanted; "stop", it stops itself in a lane.
 */
#include <kelp/worker.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES  1000
#define BUFFERS  64
#define ELEMENTS 40 /* of two tensors: 24, and 16 behind padding */

static struct kelp_worker *worker;
static const char *mode = "";
static float *buffers[BUFFERS];
static const float *weights[2];
static char seen[SAMPLES]; /* samples of the epoch */
static uint64_t lanes;
static struct kelp_worker_ahead ahead; /* the lane that was said to come next; samples 0: none */
static uint64_t ahead_index, ahead_pieces;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "own_worker.c:%d: %s does not hold; %s\n", __LINE__, #condition,       \
                    kelp_worker_error());                                                          \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

static void expect_refused(int result, const char *words)
{
    if (result != KELP_WORKER_INVALID || !strstr(kelp_worker_error(), words)) {
        fprintf(stderr, "own_worker.c: expected '%s', got %d '%s'\n", words, result,
                kelp_worker_error());
        exit(2);
    }
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void expect_settings(void)
{
    char text[64];

    EXPECT(kelp_worker_setting(worker, "train.batch_size", text, sizeof(text)) == KELP_WORKER_OK);
    EXPECT(strcmp(text, "60") == 0);
    EXPECT(kelp_worker_setting(worker, "model.hidden", text, sizeof(text)) == KELP_WORKER_OK);
    EXPECT(strcmp(text, "[16, 16]") == 0);
    expect_refused(kelp_worker_setting(worker, "train.batch", text, sizeof(text)), "train.batch");
    expect_refused(kelp_worker_setting(worker, "train.loss", text, 3), "needs 4 bytes, not 3");
}

static int add_tensor(const char *name, uint64_t length, uint32_t rank, uint32_t init, float a)
{
    const struct kelp_worker_tensor tensor = {.size = sizeof(tensor),
                                              .name = name,
                                              .shape = &length,
                                              .rank = rank,
                                              .init = init,
                                              .init_a = a};
    return kelp_worker_plan_tensor(worker, &tensor);
}

static void expect_plan_refusals(void)
{
    struct kelp_worker_tensor tensor = {.size = 8};
    struct {
        struct kelp_worker_tensor known;
        uint64_t newer;
    } larger = {{.size = sizeof(larger)}, 1};
    struct kelp_worker_lane lane = {.size = sizeof(lane)};

    expect_refused(kelp_worker_join(worker), "the plan needs");
    expect_refused(kelp_worker_next_lane(worker, &lane), "kelp_worker_join() comes before");
    expect_refused(kelp_worker_plan_tensor(worker, &tensor), "size is 8");
    expect_refused(kelp_worker_plan_tensor(worker, &larger.known), "asks for more than");
    expect_refused(add_tensor("", 1, 1, 0, 0), "name is 1 to 127");
    expect_refused(add_tensor("tab\t", 1, 1, 0, 0), "printable");
    expect_refused(add_tensor("a", 1, 9, 0, 0), "rank is 9");
    expect_refused(add_tensor("a", 1, 1, 4, 0), "kelp_worker_init");
    expect_refused(add_tensor("a", 1, 1, 1, (float)(1e300 * 1e300)), "finite");
    expect_refused(kelp_worker_plan_compute(worker, "", 1), "kind is 1 to 127");
    expect_refused(kelp_worker_plan_block(worker, 0), "at least one");
    expect_refused(kelp_worker_plan_data(worker, UINT64_MAX, 0, 0, 1), "at most");
    EXPECT(kelp_worker_elements(worker) == 0);
    EXPECT(kelp_worker_offset(worker, 0) == UINT64_MAX);
    EXPECT(kelp_worker_weights(worker, 0) == NULL);
}

static void join(void)
{
    EXPECT(kelp_worker_plan_data(worker, SAMPLES, 100, 0, 7) == KELP_WORKER_OK);
    EXPECT(kelp_worker_plan_compute(worker, "own_worker.c", 1) == KELP_WORKER_OK);
    EXPECT(kelp_worker_plan_program(worker, kelp_worker_hash("own", 3)) == KELP_WORKER_OK);
    EXPECT(kelp_worker_plan_block(worker, 7) == KELP_WORKER_OK);
    EXPECT(add_tensor("first", 24, 1, KELP_WORKER_INIT_NORMAL, 0.5f) == KELP_WORKER_OK);
    EXPECT(add_tensor("second", 16, 1, KELP_WORKER_INIT_CONSTANT, 0.25f) == KELP_WORKER_OK);
    const int result = kelp_worker_join(worker);
    if (result != KELP_WORKER_OK) {
        fprintf(stderr, "own_worker: %s\n", kelp_worker_error());
        exit(kelp_worker_exit_status(result));
    }
    expect_refused(kelp_worker_join(worker), "the plan is complete");
    expect_refused(add_tensor("late", 1, 1, 0, 0), "the plan is complete");
    EXPECT(kelp_worker_elements(worker) == 48);
    EXPECT(kelp_worker_offset(worker, 0) == 0 && kelp_worker_offset(worker, 1) == 32);
    EXPECT(kelp_worker_offset(worker, 2) == UINT64_MAX);
    weights[0] = kelp_worker_weights(worker, 0);
    weights[1] = kelp_worker_weights(worker, 1);
    EXPECT(weights[0] && weights[1] && weights[0] != weights[1]);
    EXPECT(kelp_worker_weights(worker, 2) == NULL);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void *stop(void *unused)
{
    (void)unused;
    kelp_worker_stop(worker);
    return NULL;
}

/* Three seconds, or until the library says that the worker is to go. */
static void take_long(void)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    int result = KELP_WORKER_OK;

    fprintf(stderr, "own_worker: a long lane begins\n");
    for (int i = 0; i < 60 && result == KELP_WORKER_OK; i++) {
        (void)nanosleep(&pause, NULL); /* that it takes long is what is tried */
        result = kelp_worker_poll(worker);
    }
    if (result == KELP_WORKER_STOPPED) {
        fprintf(stderr, "own_worker: not wanted any more\n");
    } else {
        EXPECT(result == KELP_WORKER_OK);
    }
}

static void be_special(const struct kelp_worker_lane *lane)
{
    if ((strcmp(mode, "slow") == 0 && lanes == 40) || strcmp(mode, "wait") == 0) {
        take_long();
    }
    if (strcmp(mode, "stop") == 0 && lane->step >= 5) {
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, stop, NULL) == 0);
        EXPECT(pthread_join(thread, NULL) == 0);
        EXPECT(kelp_worker_poll(worker) == KELP_WORKER_STOPPED);
    }
}

static void expect_memory(const struct kelp_worker_lane *lane)
{
    EXPECT(lane->weights_index < 2 && lane->weights == weights[lane->weights_index]);
    EXPECT((lane->gradient != NULL) == (lane->kind == KELP_WORKER_TRAIN));
    if (lane->gradient) {
        EXPECT(lane->gradient_index < BUFFERS && (uintptr_t)lane->gradient % 64 == 0);
        EXPECT(!buffers[lane->gradient_index] || buffers[lane->gradient_index] == lane->gradient);
        buffers[lane->gradient_index] = lane->gradient;
        for (int i = 24; i < 32; i++) {
            EXPECT(lane->gradient[i] == 0 && lane->weights[i] == 0);
        }
    }
}

static void expect_lane_refusals(const struct kelp_worker_lane *lane)
{
    struct kelp_worker_lane other = {.size = sizeof(other)};
    uint64_t index;

    expect_refused(kelp_worker_next_lane(worker, &other), "was not submitted");
    expect_refused(kelp_worker_indices(worker, lane->samples, 1, &index), "of the lane");
    expect_refused(kelp_worker_add(worker, 1, 0), "none of enum kelp_worker_sum");
    expect_refused(kelp_worker_add(worker, 10, 0), "none of enum kelp_worker_sum");
    EXPECT(kelp_worker_piece(worker, lane->samples) == 0);
    EXPECT(kelp_worker_piece(worker, lane->samples + 1) == 0);
    EXPECT(kelp_worker_lane_seed(worker) == lane->seed && lane->seed != 0);
    EXPECT(kelp_worker_poll(worker) >= 0);
}

/* Each sample of an epoch comes once, where one worker has all lanes. */
static void expect_sample(const struct kelp_worker_lane *lane, uint64_t index)
{
    EXPECT(index < (lane->kind == KELP_WORKER_TRAIN ? SAMPLES : 100));
    if (lane->kind == KELP_WORKER_TRAIN && getenv("OWN_WORKER_ALONE")) {
        EXPECT(seen[index] == (char)lane->epoch);
        seen[index]++;
    }
}

static double add_samples(const struct kelp_worker_lane *lane)
{
    uint64_t indices[64], count, pieces = 0;
    double sum = 0;

    for (uint64_t done = 0; (count = kelp_worker_piece(worker, done)) > 0; done += count) {
        EXPECT(count <= (lane->kind == KELP_WORKER_TRAIN ? 4 : 7)); /* of 7 or 8, in two pieces */
        EXPECT(kelp_worker_indices(worker, done, count, indices) == KELP_WORKER_OK);
        for (uint64_t i = 0; i < count; i++) {
            expect_sample(lane, indices[i]);
            sum += (double)indices[i] / SAMPLES;
        }
        pieces++;
    }
    EXPECT(pieces > 0);
    return sum;
}

static uint64_t count_pieces(void)
{
    uint64_t count, pieces = 0;

    for (uint64_t done = 0; (count = kelp_worker_ahead_piece(worker, done)) > 0; done += count) {
        pieces++;
    }
    return pieces;
}

/* What was said of this lane before it came, and then the same of the next one. */
static void expect_ahead(const struct kelp_worker_lane *lane)
{
    struct kelp_worker_ahead small = {.size = 8};
    uint64_t index;

    if (ahead.samples > 0 && getenv("OWN_WORKER_ALONE")) {
        uint64_t pieces = 0, count;
        for (uint64_t done = 0; (count = kelp_worker_piece(worker, done)) > 0; done += count) {
            pieces++;
        }
        EXPECT(kelp_worker_indices(worker, 0, 1, &index) == KELP_WORKER_OK);
        EXPECT(ahead.kind == lane->kind && ahead.lane == lane->lane && ahead.step == lane->step);
        EXPECT(ahead.samples == lane->samples && ahead.seed == lane->seed);
        EXPECT(ahead_index == index && ahead_pieces == pieces);
    }
    EXPECT(kelp_worker_ahead_piece(worker, 0) == 0);
    expect_refused(kelp_worker_ahead_indices(worker, 0, 1, &index), "there is no lane");
    EXPECT(kelp_worker_ahead_begin(worker) == KELP_WORKER_OK);
    expect_refused(kelp_worker_ahead_next(worker, &small), "size is 8");
    ahead = (struct kelp_worker_ahead){.size = sizeof(ahead)};
    if (kelp_worker_ahead_next(worker, &ahead) == KELP_WORKER_OK) {
        EXPECT(kelp_worker_ahead_indices(worker, 0, 1, &ahead_index) == KELP_WORKER_OK);
        expect_refused(kelp_worker_ahead_indices(worker, ahead.samples, 1, &index), "of the lane");
        ahead_pieces = count_pieces();
    }
}

static void compute(const struct kelp_worker_lane *lane)
{
    expect_memory(lane);
    expect_ahead(lane);
    if (lanes < 100) {
        expect_lane_refusals(lane);
    }
    be_special(lane);
    const double sum = add_samples(lane);
    for (int i = 0; lane->gradient && i < ELEMENTS; i++) {
        const int at = i < 24 ? i : i + 8;
        lane->gradient[at] =
            (float)(sum / (double)lane->step_samples) * (lane->weights[at] - (float)i) +
            (float)(lane->seed >> 40) * 0x1p-40f;
    }
    EXPECT(kelp_worker_add(worker, KELP_WORKER_SUM_LOSS, sum) == KELP_WORKER_OK);
    kelp_worker_spent_reading(worker, 1);
    EXPECT(kelp_worker_submit(worker) == KELP_WORKER_OK);
    expect_refused(kelp_worker_submit(worker), "there is no lane");
    lanes++;
}

int main(int argc, char **argv)
{
    struct kelp_worker_options options = {.size = sizeof(options)};
    struct kelp_worker_lane lane = {.size = sizeof(lane)};

    mode = getenv("OWN_WORKER") ? getenv("OWN_WORKER") : "";
    EXPECT(kelp_worker_global_init() == KELP_WORKER_OK);
    EXPECT(kelp_worker_global_init() == KELP_WORKER_OK);
    int result = kelp_worker_options_read(&options, &argc, argv);
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_open(&options, &worker);
    }
    if (result != KELP_WORKER_OK) {
        fprintf(stderr, "own_worker: %s\n", kelp_worker_error());
        return kelp_worker_exit_status(result);
    }
    expect_settings();
    expect_plan_refusals();
    join();
    expect_refused(kelp_worker_submit(worker), "there is no lane");
    expect_refused(kelp_worker_poll(worker), "there is no lane");
    expect_refused(kelp_worker_ahead_begin(worker), "there is no lane");
    while ((result = kelp_worker_next_lane(worker, &lane)) == KELP_WORKER_OK) {
        compute(&lane);
    }
    EXPECT(kelp_worker_next_lane(worker, &lane) == result);
    fprintf(stderr, "own_worker: ends with %d%s%s\n", result, result < 0 ? ": " : "",
            result < 0 ? kelp_worker_error() : "");
    kelp_worker_close(worker);
    return kelp_worker_exit_status(result);
}
