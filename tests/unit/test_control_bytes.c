#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/control.h"

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
    plan.samples[KELP_PART_TRAIN] = 10;
    plan.samples[KELP_PART_VAL] = 5;
    plan.samples[KELP_PART_TEST] = 7;
}

/* Sums that differ from entry to entry, so that a lost field shows. */
static void walk(void)
{
    struct kelp_control_state state;
    struct kelp_record record;

    state_count = 0;
    kelp_control_init(&state, &job, &plan);
    for (;;) {
        double v = (double)(state.version + 1);
        double sums[KELP_METRIC_COUNT] = {1.5 / v, 4, 30 / v, 20 / v, 10};
        ck_assert_uint_lt(state_count, STATES_MAX);
        states[state_count++] = state;
        if (state.kind == KELP_STEP_DONE) {
            return;
        }
        kelp_control_apply(&state, &job, &plan, sums, "", &record);
    }
}

/* The shapes of a schedule: with and without evaluations, steps, a short last batch. */
static void shape(int which)
{
    job.train.evaluate = which != 1;
    job.train.drop_last = which == 2;
    plan.samples[KELP_PART_VAL] = which == 3 ? 0 : 5;
    plan.samples[KELP_PART_TEST] = which == 4 ? 0 : 7;
    plan.samples[KELP_PART_TRAIN] = which == 5 ? 3 : 10;
    job.train.drop_last = job.train.drop_last || which == 5; /* no steps at all */
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

/* Every state of a run comes back as it was, field by field. */
START_TEST(round_trip)
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
        ck_assert_double_eq(back.epoch_loss, state->epoch_loss);
        ck_assert_double_eq(back.epoch_samples, state->epoch_samples);
        ck_assert_mem_eq(back.last, state->last, sizeof(back.last));
        ck_assert_mem_eq(back.last_set, state->last_set, sizeof(back.last_set));
        ck_assert(back.best_val_mse == state->best_val_mse); /* infinite at first */
        ck_assert_uint_eq(back.best_epoch, state->best_epoch);
    }
}
END_TEST

/* The layout is fixed: what one program wrote, every later one reads. */
START_TEST(layout)
{
    struct kelp_control_state state = {.version = 0x0102030405060708u,
                                       .step = 2,
                                       .epoch = 4,
                                       .step_in_epoch = 3,
                                       .kind = KELP_STEP_EVALUATE_VAL,
                                       .epoch_loss = 1.0,
                                       .best_val_mse = -2.0,
                                       .best_epoch = 5};
    unsigned char bytes[KELP_CONTROL_BYTES];
    static const unsigned char begin[] = {1, 0, 0, 0, 2, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2,    1,
                                          2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0,    0,
                                          4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f};

    state.last_set[KELP_PART_VAL] = true;
    kelp_control_pack(&state, bytes);
    ck_assert_mem_eq(bytes, begin, sizeof(begin));
    ck_assert_uint_eq(bytes[128 + 7], 0xc0); /* best_val_mse */
    ck_assert_uint_eq(bytes[136], 5);
    for (size_t i = 140; i < sizeof(bytes); i++) {
        ck_assert_uint_eq(bytes[i], 0);
    }
}
END_TEST

/* A job with more epochs goes on exactly as if it had been the longer one from the start. */
START_TEST(more_epochs)
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
            uint64_t version = i - (states[i].kind == KELP_STEP_DONE ? 1 : 0);
            ck_assert_uint_eq(back.version, version);
            expect_same(&back, &longer[version]);
        }
    }
}
END_TEST

/* Another schedule is refused, not guessed at: fewer epochs, other batches, other evaluations. */
START_TEST(other_schedules)
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
    plan.samples[KELP_PART_VAL] = 0;
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_MISMATCH);
    job.train.evaluate = false;
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_MISMATCH);
}
END_TEST

/* One flipped bit: refused, or it is one of the numbers that may have any value; never a state with
 * another place in the schedule. */
START_TEST(flipped_bits)
{
    unsigned char bytes[KELP_CONTROL_BYTES];
    struct kelp_control_state back;
    unsigned accepted = 0;

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
END_TEST

static void put(unsigned char *bytes, size_t at, double value)
{
    memcpy(bytes + at, &value, sizeof(value));
}

/* Numbers that no run produces are refused; an infinite loss is one that it may produce. */
START_TEST(impossible_values)
{
    unsigned char good[KELP_CONTROL_BYTES], bytes[KELP_CONTROL_BYTES];
    struct kelp_control_state back;
    static const double samples[] = {-1, INFINITY, NAN};

    walk();
    kelp_control_pack(&states[7], good);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(samples); i++) {
        memcpy(bytes, good, sizeof(bytes));
        put(bytes, 48, samples[i]); /* epoch_samples */
        ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_CORRUPT);
    }
    memcpy(bytes, good, sizeof(bytes));
    put(bytes, 128, NAN); /* best_val_mse */
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_CORRUPT);
    memcpy(bytes, good, sizeof(bytes));
    bytes[136] = 9; /* best_epoch */
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_CORRUPT);
    memcpy(bytes, good, sizeof(bytes));
    put(bytes, 40, INFINITY); /* epoch_loss */
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_OK);
    bytes[0] = 2;
    ck_assert_int_eq(kelp_control_unpack(bytes, &job, &plan, &back, NULL), KELP_ERR_UNSUPPORTED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control bytes");
    TCase *tests = tcase_create("control bytes");
    SRunner *runner = srunner_create(suite);

    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_loop_test(tests, round_trip, 0, 6);
    tcase_add_test(tests, layout);
    tcase_add_loop_test(tests, more_epochs, 0, 6);
    tcase_add_test(tests, other_schedules);
    tcase_add_test(tests, flipped_bits);
    tcase_add_test(tests, impossible_values);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
