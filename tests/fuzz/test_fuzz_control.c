/* The control state of a checkpoint, damaged: refused, or training can go on from it. */
#include <string.h>

#include "common/training/control.h"
#include "tests/lib/fuzz.h"

#define INPUTS 50000

static struct kelp_job job;
static struct kelp_plan plan;
static uint8_t states[4][KELP_CONTROL_BYTES];
static const struct kelp_fuzz_seed seeds[] = {{states[0], KELP_CONTROL_BYTES},
                                              {states[1], KELP_CONTROL_BYTES},
                                              {states[2], KELP_CONTROL_BYTES},
                                              {states[3], KELP_CONTROL_BYTES}};
static const char *const words[] = {"\x01",     "\xff\xff\xff\xff\xff\xff\xff\xff",
                                    "\xf0\x7f", /* the end of an infinite number */
                                    "\xf8\x7f", "\x05",
                                    "\x80"};

/* The current entry is complete, with a loss of 1 a sample. */
static void complete(struct kelp_control_state *state)
{
    struct kelp_control_word word;
    struct kelp_record record;
    double sums[KELP_METRIC_SUM_COUNT] = {0};

    kelp_control_word(state, &job, &plan, &word);
    sums[KELP_METRIC_SUM_LOSS] = (double)word.sample_count;
    sums[KELP_METRIC_SUM_SAMPLES] = (double)word.sample_count;
    sums[KELP_METRIC_SUM_ELEMENTS] = 10;
    kelp_control_apply(state, &job, &plan, sums, "", &record);
}

static void setup(void)
{
    struct kelp_control_state state;

    job.train.epochs = 4;
    job.train.batch_size = 4;
    job.train.lr = 0.005;
    job.train.schedule = KELP_SCHEDULE_PLATEAU;
    job.train.evaluate = true;
    job.train.evaluate_epochs = 1;
    plan.samples[KELP_SPLIT_TRAIN] = 10;
    plan.samples[KELP_SPLIT_VAL] = 5;
    plan.samples[KELP_SPLIT_TEST] = 7;
    kelp_control_init(&state, &job, &plan);
    for (unsigned i = 0; i < KELP_ARRAY_COUNT(states); i++) {
        for (unsigned entry = 0; entry < i + 1; entry++) {
            complete(&state);
        }
        kelp_control_pack(&state, states[i]);
    }
}

/* Whatever was taken has an end: the job has 12 training steps, and few entries beside them. */
static const char *go_on(struct kelp_control_state *state)
{
    struct kelp_control_word word;

    for (unsigned entries = 0; entries < 100; entries++) {
        kelp_control_word(state, &job, &plan, &word);
        if (word.kind == KELP_STEP_DONE) {
            return NULL;
        }
        complete(state);
    }
    return "training never ends";
}

static const char *read_state(const uint8_t *bytes, size_t count)
{
    uint8_t whole[KELP_CONTROL_BYTES] = {0};
    struct kelp_control_state state;
    struct kelp_error error = {.text = ""};

    memcpy(whole, bytes, count < sizeof(whole) ? count : sizeof(whole));
    if (kelp_control_unpack(whole, &job, &plan, &state, &error) != KELP_OK) {
        return error.text[0] ? NULL : "refused without a word";
    }
    return go_on(&state);
}

KELP_CASE("control", .timeout_s = 120, .setup = setup)

KELP_FUZZ_TEST(state, INPUTS, seeds, words, read_state)
