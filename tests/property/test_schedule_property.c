/* For random sizes: each sample exactly once per epoch, lanes cut as the design says, nodes aligned
 * and without gaps. A failure names the seed. */
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/suite.h"
#include "worker/core/schedule.h"

#define SEED_COUNT 400

/* All seeds in one process, and no ck_assert() where it holds, which tells the parent each time:
 * both cost minutes under the sanitizers. */
static uint64_t seed;
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ck_abort_msg("seed %llu: %s", (unsigned long long)seed, #condition);                   \
        }                                                                                          \
    } while (0)

static uint64_t pick(uint64_t index, uint64_t bound)
{
    uint32_t words[4];
    kelp_philox(seed, KELP_PHILOX_TEST, 0, index, words);
    return kelp_philox_below(words[0], words[1], bound);
}

static void random_job(struct kelp_job *job, struct kelp_plan *plan)
{
    memset(job, 0, sizeof(*job));
    memset(plan, 0, sizeof(*plan));
    job->seed = pick(0, UINT64_MAX);
    job->data.shuffle = pick(1, 4) != 0;
    job->train.batch_size = 1 + (uint32_t)pick(2, 200);
    job->train.drop_last = pick(3, 2) == 1;
    job->train.epochs = 1 + (uint32_t)pick(4, 3);
    job->train.evaluate = true;
    job->train.evaluate_epochs = 1;
    job->train.lr = 0.1;
    job->cluster.lanes = 1u << pick(5, 8);
    plan->samples[KELP_SPLIT_TRAIN] = 1 + pick(6, 3000);
    plan->samples[KELP_SPLIT_VAL] = pick(7, 500);
    plan->samples[KELP_SPLIT_TEST] = pick(8, 500);
}

/* Count each sample of the entry once per lane that takes it. */
static void count_entry(const struct kelp_job *job, const struct kelp_plan *plan,
                        const struct kelp_control_word *word, uint32_t *counts)
{
    struct kelp_schedule schedule;
    CHECK(kelp_schedule_init(&schedule, job, plan->samples, word, NULL) == KELP_OK);
    uint64_t next = 0;
    for (uint32_t lane = 0; lane < schedule.lanes; lane++) {
        struct kelp_schedule_range range = kelp_schedule_lane(&schedule, lane);
        CHECK(range.first == next);
        next += range.count;
        if (word->kind == KELP_STEP_TRAIN) {
            CHECK(range.count <= kelp_schedule_lane_samples_max(job));
        }
        uint64_t *indices = calloc((size_t)range.count + 1, sizeof(*indices));
        CHECK(indices != NULL);
        kelp_schedule_indices(&schedule, range, indices);
        for (uint64_t i = 0; i < range.count; i++) {
            CHECK(indices[i] < plan->samples[schedule.split]);
            counts[indices[i]]++;
        }
        free(indices);
    }
    CHECK(next == word->sample_count);
}

static void check_counts(const uint32_t *counts, uint64_t count, uint64_t expected_total)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < count; i++) {
        CHECK(counts[i] <= 1);
        total += counts[i];
    }
    CHECK(total == expected_total);
}

/* Through a whole job by its control words: every sample exactly once per epoch (with drop_last
 * those of whole batches), evaluations over all of their part. */
static void check_each_sample_once_per_epoch(void)
{
    struct kelp_job job;
    struct kelp_plan plan;
    random_job(&job, &plan);
    uint64_t n = plan.samples[KELP_SPLIT_TRAIN];
    uint64_t whole = job.train.drop_last ? n / job.train.batch_size * job.train.batch_size : n;
    uint32_t *counts = calloc(3500, sizeof(*counts));
    CHECK(counts != NULL);
    struct kelp_control_state state;
    kelp_control_init(&state, &job, &plan);
    const double sums[KELP_METRIC_SUM_COUNT] = {0};
    uint32_t epochs = 0;
    uint64_t steps = 0;
    for (;;) {
        struct kelp_control_word word;
        kelp_control_word(&state, &job, &plan, &word);
        if (word.kind == KELP_STEP_DONE) {
            break;
        }
        if (word.kind == KELP_STEP_TRAIN && word.step_in_epoch == 0) {
            memset(counts, 0, 3500 * sizeof(*counts));
        }
        if (word.kind == KELP_STEP_EVALUATE_VAL || word.kind == KELP_STEP_EVALUATE_TEST) {
            memset(counts, 0, 3500 * sizeof(*counts));
        }
        count_entry(&job, &plan, &word, counts);
        if (word.kind == KELP_STEP_TRAIN) {
            steps++;
            if (word.step_in_epoch + 1 == kelp_control_steps_per_epoch(&job, &plan)) {
                check_counts(counts, n, whole);
                epochs++;
            }
        } else if (word.kind != KELP_STEP_FINISH) {
            enum kelp_split part =
                word.kind == KELP_STEP_EVALUATE_VAL ? KELP_SPLIT_VAL : KELP_SPLIT_TEST;
            check_counts(counts, plan.samples[part], plan.samples[part]);
        }
        struct kelp_record record;
        kelp_control_apply(&state, &job, &plan, sums, "", &record);
    }
    CHECK(steps == kelp_control_total_steps(&job, &plan));
    CHECK(epochs == (whole > 0 ? job.train.epochs : 0));
    free(counts);
}

/* Borders are floor(i n / L) also where i n does not fit 64 bits. */
static void check_borders_of_huge_entries(void)
{
    struct kelp_job job;
    struct kelp_plan plan;
    random_job(&job, &plan);
    job.cluster.lanes = KELP_JOB_LANES_MAX;
    const uint64_t samples[KELP_SPLIT_COUNT] = {0, KELP_PERMUTATION_MAX - pick(9, 1u << 20), 0};
    const struct kelp_control_word word = {.kind = KELP_STEP_EVALUATE_VAL,
                                           .sample_count = samples[KELP_SPLIT_VAL]};
    struct kelp_schedule schedule;
    CHECK(kelp_schedule_init(&schedule, &job, samples, &word, NULL) == KELP_OK);
    uint32_t lane = (uint32_t)pick(10, KELP_JOB_LANES_MAX);
    unsigned __int128 exact =
        (unsigned __int128)word.sample_count * lane / (unsigned __int128)KELP_JOB_LANES_MAX;
    CHECK(kelp_schedule_lane(&schedule, lane).first == (uint64_t)exact);
}

/* Any range of lanes: nodes are aligned, follow one another, and no two neighbours are the halves
 * of a larger node. */
static void check_nodes_of_any_range(void)
{
    uint32_t first = (uint32_t)pick(11, KELP_JOB_LANES_MAX + 1);
    uint32_t count = (uint32_t)pick(12, KELP_JOB_LANES_MAX - first + 1);
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    uint32_t node_count = kelp_schedule_split(first, count, nodes);
    uint32_t next = first;
    for (uint32_t i = 0; i < node_count; i++) {
        CHECK(nodes[i].first == next);
        CHECK((nodes[i].count & (nodes[i].count - 1)) == 0);
        CHECK(nodes[i].first % nodes[i].count == 0);
        if (i > 0 && nodes[i].count == nodes[i - 1].count) {
            CHECK(nodes[i - 1].first % (2 * nodes[i].count) != 0);
        }
        next += nodes[i].count;
    }
    CHECK(next == first + count);
}

KELP_CASE("schedule", .timeout_s = 60)

KELP_TEST(each_sample_once_per_epoch)
{
    for (seed = 0; seed < SEED_COUNT; seed++) {
        check_each_sample_once_per_epoch();
    }
}

KELP_TEST(borders_of_huge_entries)
{
    for (seed = 0; seed < SEED_COUNT; seed++) {
        check_borders_of_huge_entries();
    }
}

KELP_TEST(nodes_of_any_range)
{
    for (seed = 0; seed < SEED_COUNT; seed++) {
        check_nodes_of_any_range();
    }
}
