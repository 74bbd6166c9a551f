/* The lanes to come are those that the control state has come to, entry by entry. */
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/ahead.h"

struct place {
    uint64_t step;
    enum kelp_step_kind kind;
    uint32_t lane;
    uint64_t index; /* of its first sample */
};

#define PLACES_MAX 200

static void job_of(struct kelp_job *job, struct kelp_plan *plan)
{
    memset(job, 0, sizeof(*job));
    memset(plan, 0, sizeof(*plan));
    job->seed = 5;
    job->data.shuffle = true;
    job->train.batch_size = 6;
    job->train.epochs = 3;
    job->train.evaluate = true;
    job->train.evaluate_epochs = 1;
    job->train.evaluate_steps = 2;
    job->train.lr = 0.1;
    job->cluster.lanes = 4;
    plan->samples[KELP_SPLIT_TRAIN] = 19; /* the fourth step has one sample, in lane 3 */
    plan->samples[KELP_SPLIT_VAL] = 5;
    plan->samples[KELP_SPLIT_TEST] = 2; /* lanes 0 and 2 have none */
}

static struct place place_of(const struct kelp_control_word *word,
                             const struct kelp_schedule *schedule, uint32_t lane)
{
    const struct kelp_schedule_range first = {kelp_schedule_lane(schedule, lane).first, 1};
    struct place place = {.step = word->step, .kind = word->kind, .lane = lane};

    kelp_schedule_indices(schedule, first, &place.index);
    return place;
}

/* What lanes [first, first + count) of the job come to, one after the other, with their words. */
static uint32_t all_places(const struct kelp_job *job, const struct kelp_plan *plan, uint32_t first,
                           uint32_t count, struct place *places, struct kelp_control_word *words)
{
    struct kelp_control_state state;
    struct kelp_schedule schedule;
    uint32_t found = 0;

    kelp_control_init(&state, job, plan);
    while (state.kind != KELP_STEP_FINISH) {
        double sums[KELP_METRIC_SUM_COUNT] = {3.5, 1};
        struct kelp_control_word word;
        struct kelp_record record;
        kelp_control_word(&state, job, plan, &word);
        ck_assert_int_eq(kelp_schedule_init(&schedule, job, plan->samples, &word, NULL), KELP_OK);
        for (uint32_t lane = first; lane < first + count; lane++) {
            if (kelp_schedule_lane(&schedule, lane).count > 0) {
                ck_assert_uint_lt(found, PLACES_MAX);
                places[found] = place_of(&word, &schedule, lane);
                words[found++] = word;
            }
        }
        kelp_control_apply(&state, job, plan, sums, "", &record);
    }
    return found;
}

/* From every lane of the job to its end, for a worker with all lanes, and for one with lane 0. */
KELP_TEST(every_lane_to_come)
{
    static struct place places[PLACES_MAX];
    static struct kelp_control_word words[PLACES_MAX];
    struct kelp_job job;
    struct kelp_plan plan;

    job_of(&job, &plan);
    for (uint32_t count = 1; count <= 4; count += 3) {
        const uint32_t found = all_places(&job, &plan, 0, count, places, words);
        ck_assert_uint_gt(found, 10);
        for (uint32_t i = 0; i < found; i++) {
            struct kelp_ahead ahead;
            ck_assert(kelp_ahead_begin(&ahead, &job, &plan, &words[i], 0, count, places[i].lane));
            for (uint32_t j = i + 1; j < found; j++) {
                ck_assert(kelp_ahead_next(&ahead));
                const struct place place = place_of(&ahead.word, &ahead.schedule, ahead.lane);
                ck_assert_uint_eq(place.step, places[j].step);
                ck_assert_int_eq(place.kind, places[j].kind);
                ck_assert_uint_eq(place.lane, places[j].lane);
                ck_assert_uint_eq(place.index, places[j].index);
            }
            ck_assert(!kelp_ahead_next(&ahead));
            ck_assert(!kelp_ahead_next(&ahead));
        }
    }
}

/* Other entries have no lanes to come, and a word of another job is refused. */
KELP_TEST(other_words)
{
    struct kelp_job job;
    struct kelp_plan plan;
    struct kelp_ahead ahead;
    struct kelp_control_word word = {.kind = KELP_STEP_FINISH};

    job_of(&job, &plan);
    ck_assert(!kelp_ahead_begin(&ahead, &job, &plan, &word, 0, 4, 0));
    word = (struct kelp_control_word){.kind = KELP_STEP_TRAIN, .sample_count = 7};
    ck_assert(!kelp_ahead_begin(&ahead, &job, &plan, &word, 0, 4, 0));
}
