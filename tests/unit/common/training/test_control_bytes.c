#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/control.h"
#include "tests/lib/suite.h"

#define STATES_MAX 64

static struct kelp_job job;
static struct kelp_plan plan;
/* The states of a whole run, one for each version. */
static struct kelp_control_state states[STATES_MAX];
static size_t state_count;

static void setup(void)
{
    memset(&job, 0, sizeof(job));
    memset(&plan, 0, sizeof(plan));
    job.train.epochs = 3;
    job.train.batch_size = 4;
    job.train.lr = 0.005;
    job.train.evaluate = true;
    job.train.evaluate_epochs = 1;
    plan.samples[KELP_SPLIT_TRAIN] = 10;
    plan.samples[KELP_SPLIT_VAL] = 5;
    plan.samples[KELP_SPLIT_TEST] = 7;
}

/* Sums that differ from entry to entry, so that a lost field shows. */
static void walk(void)
{
    struct kelp_control_state state;
    struct kelp_record record;

    state_count = 0;
    kelp_control_init(&state, &job, &plan);
    for (;;) {
        double v = (double)(1 + state.version * 7 % 5) + 1 / (double)(state.version + 1);
        double sums[KELP_METRIC_SUM_COUNT] = {1.5 / v, 4, 30 / v, 20 / v, 10};
        ck_assert_uint_lt(state_count, STATES_MAX);
        states[state_count++] = state;
        if (state.kind == KELP_STEP_DONE) {
            return;
        }
        kelp_control_apply(&state, &job, &plan, sums, "", &record);
    }
}

/* The shapes of a schedule: with and without evaluations, steps, a short last batch; evaluations
 * that the end of training alone asks for; in the middle of epochs; ends that come early. */
enum { SHAPES = 11, SHAPES_OF_TRAINING = 9 };
static void shape(int which)
{
    job.train.evaluate = which != 1;
    job.train.drop_last = which == 2;
    plan.samples[KELP_SPLIT_VAL] = which == 3 ? 0 : 5;
    plan.samples[KELP_SPLIT_TEST] = which == 4 ? 0 : 7;
    plan.samples[KELP_SPLIT_TRAIN] = which == 5 ? 3 : 10;
    job.train.drop_last = job.train.drop_last || which == 5; /* no steps at all */
    job.train.evaluate_epochs = which == 6 ? 2 : which == 7 ? 0 : 1;
    job.train.evaluate_steps = which == 7 || which == 8 ? 4 : 0;
    job.train.max_steps = which == 8 ? 8 : 0;
    job.train.schedule = which == 0 ? KELP_SCHEDULE_PLATEAU : KELP_SCHEDULE_TYPE1;
    job.train.plateau_factor = 0.5;
    job.train.patience = which == 2 ? 2 : 0;
    job.run.mode = which == 9 ? KELP_RUN_EVALUATE : which == 10 ? KELP_RUN_PREDICT : KELP_RUN_TRAIN;
}

static void expect_same(const struct kelp_control_state *a, const struct kelp_control_state *b)
{
    unsigned char a_bytes[KELP_CONTROL_BYTES], b_bytes[KELP_CONTROL_BYTES];
    struct kelp_control_word a_word, b_word;

    kelp_control_pack(a, a_bytes);
    kelp_control_pack(b, b_bytes);
    ck_assert_mem_eq(a_bytes, b_bytes, KELP_CONTROL_BYTES);
    kelp_control_word(a, &job, &plan, &a_word);
    kelp_control_word(b, &job, &plan, &b_word);
    ck_assert(kelp_control_word_equal(&a_word, &b_word));
}

KELP_CASE("control bytes", .setup = setup)

/* Every state of a run comes back as it was, field by field. */
KELP_LOOP_TEST(round_trip, 0, SHAPES)
{
    shape(_i);
    walk();
    for (size_t i = 0; i < state_count; i++) {
        unsigned char bytes[KELP_CONTROL_BYTES];
        struct kelp_control_state back;
        const struct kelp_control_state *state = &states[i];
        kelp_control_pack(state, bytes);
        ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_OK);
        expect_same(&back, state);
        ck_assert_uint_eq(back.version, state->version);
        ck_assert_uint_eq(back.step, state->step);
        ck_assert_uint_eq(back.epoch, state->epoch);
        ck_assert_uint_eq(back.step_in_epoch, state->step_in_epoch);
        ck_assert_int_eq((int)back.kind, (int)state->kind);
        ck_assert_int_eq(back.skipped, state->skipped);
        ck_assert_int_eq(back.stopped, state->stopped);
        ck_assert_double_eq(back.epoch_loss, state->epoch_loss);
        ck_assert_double_eq(back.epoch_samples, state->epoch_samples);
        ck_assert_int_eq(back.best.known, state->best.known);
        ck_assert_uint_eq(back.best.epoch, state->best.epoch);
        ck_assert_uint_eq(back.best.step, state->best.step);
        ck_assert_mem_eq(&back.best.val, &state->best.val, sizeof(back.best.val));
        ck_assert_mem_eq(&back.best.test, &state->best.test, sizeof(back.best.test));
        ck_assert_int_eq(back.best_before.known, state->best_before.known);
        ck_assert(back.patience_best == state->patience_best); /* infinite at first */
        ck_assert_uint_eq(back.patience_count, state->patience_count);
        ck_assert(back.plateau_best == state->plateau_best);
        ck_assert_uint_eq(back.plateau_count, state->plateau_count);
        ck_assert_double_eq(back.plateau_lr, state->plateau_lr);
        ck_assert_uint_eq(back.steps_skipped, state->steps_skipped);
        ck_assert_double_eq(back.window_loss, state->window_loss);
        ck_assert_double_eq(back.window_samples, state->window_samples);
    }
    ck_assert_int_eq(states[state_count - 1].stopped, _i == 2);
    ck_assert_int_eq(states[state_count - 1].plateau_lr < job.train.lr, _i == 0);
}

/* The layout is fixed: what one program wrote, every later one reads. */
KELP_TEST(layout)
{
    struct kelp_control_state state = {.version = 0x0102030405060708u,
                                       .step = 2,
                                       .epoch = 4,
                                       .step_in_epoch = 3,
                                       .kind = KELP_STEP_EVALUATE_VAL,
                                       .stopped = true,
                                       .epoch_loss = 1.0,
                                       .best = {.known = true, .epoch = 3, .step = 9},
                                       .best_before = {.known = true, .epoch = 2},
                                       .patience_best = -2.0,
                                       .patience_count = 7,
                                       .plateau_count = 6,
                                       .plateau_best = -2.0,
                                       .plateau_lr = 1.0,
                                       .steps_skipped = 5,
                                       .window_loss = -2.0,
                                       .window_samples = 1.0};
    unsigned char bytes[KELP_CONTROL_BYTES];
    static const unsigned char begin[] = {
        2, 0, 0, 0, 2, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 2, 0, 0, 0, 0,    0,    0, 0, 3, 0,
        0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0,
        0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3,    2,    0, 0};

    kelp_metrics_set(&state.best.val, KELP_METRIC_LOSS, 1.0);
    kelp_metrics_set(&state.best.val, KELP_METRIC_MSE, -2.0);
    kelp_metrics_set(&state.best.val, KELP_METRIC_MAE_UNSCALED, 1.0);
    kelp_control_pack(&state, bytes);
    ck_assert_mem_eq(bytes, begin, sizeof(begin));
    ck_assert_uint_eq(bytes[80 + 7], 0x3f); /* val loss */
    ck_assert_uint_eq(bytes[88 + 7], 0xc0); /* val mse */
    ck_assert_uint_eq(bytes[224 + 4], 2);   /* best_before.epoch */
    ck_assert_uint_eq(bytes[392 + 7], 0xc0);
    ck_assert_uint_eq(bytes[400], 7);
    ck_assert_uint_eq(bytes[404], 6);
    ck_assert_uint_eq(bytes[416 + 7], 0x3f); /* plateau_lr */
    ck_assert_uint_eq(bytes[424], 5);
    ck_assert_uint_eq(bytes[432 + 7], 0xc0);
    ck_assert_uint_eq(bytes[440 + 7], 0x3f);
    ck_assert_uint_eq(bytes[448 + 7], 0x3f); /* of the best: val mae_unscaled */
    for (size_t i = 456; i < sizeof(bytes); i++) {
        ck_assert_uint_eq(bytes[i], 0);
    }
}

/* A state of a program that did not count what it skipped has zeros there, and is read. */
KELP_TEST(without_counts)
{
    unsigned char bytes[KELP_CONTROL_BYTES];
    struct kelp_control_state back;

    job.metrics.every = 2;
    shape(1);
    walk();
    states[1].skipped = true;
    kelp_control_pack(&states[1], bytes);
    memset(&bytes[424], 0, sizeof(bytes) - 424);
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_OK);
    ck_assert(back.skipped);
    ck_assert_uint_eq(back.steps_skipped, 0);
    bytes[424] = 2; /* of one step */
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_CORRUPT);
}

/* A job with more epochs goes on exactly as if it had been the longer one from the start. */
KELP_LOOP_TEST(more_epochs, 0, SHAPES_OF_TRAINING)
{
    static struct kelp_control_state longer[STATES_MAX];

    shape(_i);
    job.train.epochs = 5;
    walk();
    memcpy(longer, states, sizeof(longer));
    for (uint32_t epochs = 1; epochs < 5; epochs++) {
        job.train.epochs = epochs;
        walk();
        job.train.epochs = 5;
        for (size_t i = 0; i < state_count; i++) {
            unsigned char bytes[KELP_CONTROL_BYTES];
            struct kelp_control_state back;
            kelp_control_pack(&states[i], bytes);
            ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_OK);
            bool over = states[i].kind == KELP_STEP_DONE || states[i].kind == KELP_STEP_FINISH;
            if (!over && !states[i].best_before.known &&
                kelp_control_evaluates_after(&job, &plan, back.step)) {
                ck_assert_uint_eq(back.version, i);
            }
            ck_assert_uint_eq(back.step, states[i].step);
            expect_same(&back, &longer[back.version]);
        }
    }
}

/* Another schedule is refused, not guessed at: fewer epochs, other batches, other evaluations. */
KELP_TEST(other_schedules)
{
    unsigned char bytes[KELP_CONTROL_BYTES];
    struct kelp_control_state back;

    walk();
    kelp_control_pack(&states[14], bytes); /* EVALUATE_TEST of the last epoch */
    ck_assert_int_eq((int)states[14].kind, KELP_STEP_EVALUATE_TEST);
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_OK);
    job.train.epochs = 2;
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_MISMATCH);
    job.train.epochs = 3;
    job.train.batch_size = 5;
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_MISMATCH);
    job.train.batch_size = 4;
    plan.samples[KELP_SPLIT_VAL] = 0;
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_MISMATCH);
    job.train.evaluate = false;
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_MISMATCH);
}

/* One flipped bit (but for predict, whose version depends on nothing): refused, or it is one of the
 * numbers that may have any value; never a state with another place in the schedule. */
KELP_LOOP_TEST(flipped_bits, 0, SHAPES - 1)
{
    unsigned char bytes[KELP_CONTROL_BYTES];
    struct kelp_control_state back;
    unsigned accepted = 0;

    shape(_i);
    walk();
    for (size_t i = 0; i < state_count; i++) {
        for (unsigned bit = 0; bit < KELP_CONTROL_BYTES * 8; bit++) {
            kelp_control_pack(&states[i], bytes);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            struct kelp_error error = {.text = ""};
            kelp_status status = kelp_control_unpack(bytes, &job, &plan, &back, &error);
            if (status != KELP_OK) {
                ck_assert(status == KELP_ERR_CORRUPT || status == KELP_ERR_MISMATCH ||
                          status == KELP_ERR_UNSUPPORTED);
                ck_assert_uint_gt(strlen(error.text), 0);
                continue;
            }
            accepted++;
            ck_assert_uint_eq(back.version, states[i].version);
            ck_assert_uint_eq(back.step, states[i].step);
            ck_assert_uint_eq(back.epoch, states[i].epoch);
            ck_assert_uint_eq(back.step_in_epoch, states[i].step_in_epoch);
            ck_assert_int_eq((int)back.kind, (int)states[i].kind);
        }
    }
    ck_assert_uint_gt(accepted, 0);
}

/* No entry has the largest version, whatever kind it is said to be. */
KELP_LOOP_TEST(largest_version, 0, SHAPES - 1)
{
    enum { KIND = 4, VERSION = 8 };
    unsigned char bytes[KELP_CONTROL_BYTES];
    struct kelp_control_state back;

    shape(_i);
    walk();
    for (size_t i = 0; i < state_count; i++) {
        kelp_control_pack(&states[i], bytes);
        memset(bytes + VERSION, 0xff, sizeof(uint64_t));
        for (unsigned char kind = 0; kind <= KELP_STEP_KIND_MAX + 1; kind++) {
            bytes[KIND] = kind;
            ck_assert_int_ne(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_OK);
        }
    }
}

static void put(unsigned char *bytes, size_t at, double value)
{
    memcpy(bytes + at, &value, sizeof(value));
}

/* Numbers that no run produces are refused; an infinite loss is one that it may produce. */
KELP_TEST(impossible_values)
{
    enum { LOSS = 40, SAMPLES = 48, BEST = 56, VAL_MSE = 88, VAL_MAPE = 112, PATIENCE = 392 };
    unsigned char good[KELP_CONTROL_BYTES], bytes[KELP_CONTROL_BYTES];
    struct kelp_control_state back;
    static const struct {
        size_t at;
        double value;
        kelp_status status;
    } cases[] = {
        {SAMPLES, -1, KELP_ERR_CORRUPT},
        {SAMPLES, INFINITY, KELP_ERR_CORRUPT},
        {SAMPLES, (double)NAN, KELP_ERR_CORRUPT},
        {VAL_MAPE, 1, KELP_ERR_CORRUPT}, /* it is not present */
        {PATIENCE, (double)NAN, KELP_ERR_CORRUPT},
        {PATIENCE + 16, (double)NAN, KELP_ERR_CORRUPT}, /* plateau_best */
        {PATIENCE + 24, -1, KELP_ERR_CORRUPT},          /* plateau_lr */
        {PATIENCE + 24, 1, KELP_ERR_CORRUPT},           /* over the job's rate */
        {LOSS, INFINITY, KELP_OK},
        {VAL_MSE, INFINITY, KELP_OK},
    };
    static const struct {
        size_t at;
        unsigned char value;
    } bytes_of[] = {{BEST, 2},         {BEST + 4, 9}, {BEST + 8, 200}, {BEST + 17, 8},
                    {PATIENCE + 8, 1}, {36, 2},       {36, 4}};

    walk();
    kelp_control_pack(&states[7], good);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        memcpy(bytes, good, sizeof(bytes));
        put(bytes, cases[i].at, cases[i].value);
        ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), cases[i].status);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bytes_of); i++) {
        memcpy(bytes, good, sizeof(bytes));
        bytes[bytes_of[i].at] = bytes_of[i].value;
        ck_assert_int_ne(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_OK);
    }
    good[0] = 1;
    ck_assert_int_eq(kelp_control_unpack(good, &job, &plan, &back, NULL), KELP_ERR_UNSUPPORTED);
}
