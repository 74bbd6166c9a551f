#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "common/training/control.h"
#include "tests/lib/suite.h"

/* A random job, small enough to run through all its entries. */
static void random_job(uint64_t seed, struct kelp_job *job, struct kelp_plan *plan)
{
    uint32_t words[8];

    kelp_philox(seed, KELP_PHILOX_TEST, 4, 0, words);
    kelp_philox(seed, KELP_PHILOX_TEST, 4, 1, words + 4);
    memset(job, 0, sizeof(*job));
    memset(plan, 0, sizeof(*plan));
    job->train.epochs = 1 + words[0] % 4;
    job->train.batch_size = 1 + words[1] % 40;
    job->train.drop_last = words[2] & 1;
    job->train.evaluate = (words[2] & 2) != 0;
    job->train.lr = 0.1;
    job->train.schedule = words[2] & 4 ? KELP_SCHEDULE_TYPE1 : KELP_SCHEDULE_CONSTANT;
    job->checkpoint.digest_steps = words[3] % 5;
    job->train.evaluate_epochs = words[7] % 4;
    job->train.evaluate_steps = words[7] & 16 ? words[7] / 32 % 9 : 0;
    job->train.max_steps = words[7] & 4096 ? words[7] / 8192 % 30 : 0;
    plan->samples[KELP_SPLIT_TRAIN] = words[4] % 200;
    plan->samples[KELP_SPLIT_VAL] = words[5] % 3;
    plan->samples[KELP_SPLIT_TEST] = words[6] % 3;
}

/* What one walk over all entries saw. */
struct seen {
    uint64_t steps;
    uint64_t samples;    /* trained on in this epoch */
    uint64_t epoch_ends; /* records with epoch_end */
    uint64_t evaluations[2];
    uint64_t digests; /* other than FINISH's */
    uint64_t last_digest_step;
    uint32_t epoch;
};

static void see_train(const struct kelp_control_word *word, const struct kelp_job *job,
                      const struct kelp_plan *plan, struct seen *seen)
{
    if (word->epoch != seen->epoch) {
        ck_assert_uint_eq(word->epoch, seen->epoch + 1);
        seen->epoch = word->epoch;
        seen->samples = 0;
    }
    ck_assert_uint_eq(word->sample_first, seen->samples);
    ck_assert_uint_ge(word->sample_count, 1);
    ck_assert_uint_le(word->sample_count, job->train.batch_size);
    if (job->train.drop_last) {
        ck_assert_uint_eq(word->sample_count, job->train.batch_size);
    }
    ck_assert_uint_le(word->sample_first + word->sample_count, plan->samples[KELP_SPLIT_TRAIN]);
    seen->samples += word->sample_count;
    seen->steps++;
}

static void see(const struct kelp_control_word *word, const struct kelp_job *job,
                const struct kelp_plan *plan, struct seen *seen)
{
    if (word->digest_due && word->kind != KELP_STEP_FINISH) {
        /* No weights are reported twice before the end. */
        ck_assert(seen->digests == 0 || word->step > seen->last_digest_step || word->step == 0);
        seen->digests++;
        seen->last_digest_step = word->step;
    }
    switch (word->kind) {
    case KELP_STEP_TRAIN:
        see_train(word, job, plan, seen);
        return;
    case KELP_STEP_EVALUATE_VAL:
    case KELP_STEP_EVALUATE_TEST:
        seen->evaluations[word->kind - KELP_STEP_EVALUATE_VAL]++;
        ck_assert_uint_gt(word->sample_count, 0);
        return;
    case KELP_STEP_FINISH:
        ck_assert(word->digest_due);
        return;
    case KELP_STEP_PREDICT:
    case KELP_STEP_DONE:
        ck_abort_msg("no entry of training");
    }
}

static uint64_t walk(const struct kelp_job *job, const struct kelp_plan *plan, struct seen *seen)
{
    struct kelp_control_state state;
    struct kelp_control_word word;
    struct kelp_record record;
    double sums[KELP_METRIC_SUM_COUNT] = {1, 1, 1, 1, 1};
    uint64_t version = 0;

    kelp_control_init(&state, job, plan);
    for (;; version++) {
        kelp_control_word(&state, job, plan, &word);
        ck_assert_uint_eq(word.version, version);
        ck_assert_uint_eq(word.step, seen->steps);
        if (word.kind == KELP_STEP_DONE) {
            return version;
        }
        see(&word, job, plan, seen);
        kelp_control_apply(&state, job, plan, sums, "", &record);
        ck_assert(kelp_control_word_equal(&record.word, &word));
        seen->epoch_ends += record.epoch_end;
    }
}

/* By counting one by one: is it the turn of evaluations after this step? */
static bool is_turn(const struct kelp_job *job, uint64_t steps_per_epoch, uint64_t step)
{
    uint64_t epochs = job->train.evaluate_epochs * steps_per_epoch;

    return step > 0 && ((job->train.evaluate_steps > 0 && step % job->train.evaluate_steps == 0) ||
                        (epochs > 0 && step % epochs == 0));
}

KELP_CASE("control entries", .timeout_s = 60)

/* Each epoch trains on each sample once (drop_last aside), each part is measured in its turn and at
 * the end; FINISH is last; versions and steps count up; digests fall due at least once an epoch. */
KELP_TEST(test_entries)
{
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct kelp_job job;
        struct kelp_plan plan;
        struct seen seen = {0};
        random_job(seed, &job, &plan);
        uint64_t versions = walk(&job, &plan, &seen);
        bool val = job.train.evaluate && plan.samples[KELP_SPLIT_VAL] > 0;
        bool test = job.train.evaluate && plan.samples[KELP_SPLIT_TEST] > 0;
        uint64_t steps = kelp_control_steps_per_epoch(&job, &plan);
        uint64_t total = kelp_control_total_steps(&job, &plan);
        uint64_t turns = 0;
        ck_assert_uint_eq(seen.steps, total);
        for (uint64_t step = 0; step <= total; step++) {
            bool turn = is_turn(&job, steps, step);
            turns += turn;
            ck_assert_int_eq(turn && (val || test), kelp_control_evaluation_due(&job, &plan, step));
            ck_assert_uint_eq(kelp_control_version_after(&job, &plan, step),
                              step + turns * ((uint64_t)val + test));
        }
        turns += !is_turn(&job, steps, total); /* the end */
        ck_assert_uint_eq(versions, total + turns * ((uint64_t)val + test) + 1);
        ck_assert_uint_eq(seen.evaluations[0], val ? turns : 0);
        ck_assert_uint_eq(seen.evaluations[1], test ? turns : 0);
        if (total > 0) {
            uint64_t epochs = (total + steps - 1) / steps;
            uint64_t dropped =
                job.train.drop_last ? plan.samples[KELP_SPLIT_TRAIN] % job.train.batch_size : 0;
            ck_assert_uint_eq(seen.epoch_ends, epochs);
            ck_assert_uint_ge(seen.digests + 1, epochs);
            if (total == job.train.epochs * steps) {
                ck_assert_uint_eq(epochs, job.train.epochs);
                ck_assert_uint_eq(seen.samples, plan.samples[KELP_SPLIT_TRAIN] - dropped);
            }
        }
    }
}
