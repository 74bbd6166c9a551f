/* The schedule on small numbers that can be worked out by hand; words that ask for too much. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/schedule.h"

static const uint64_t samples[KELP_SPLIT_COUNT] = {10, 5, 0};

static void small_job(struct kelp_job *job)
{
    memset(job, 0, sizeof(*job));
    job->seed = 3;
    job->train.batch_size = 6;
    job->cluster.lanes = 4;
}

static struct kelp_control_word train_word(uint64_t first, uint64_t count)
{
    return (struct kelp_control_word){
        .kind = KELP_STEP_TRAIN, .sample_first = first, .sample_count = count};
}

/* Lane i takes [floor(iB/L), floor((i+1)B/L)); the last batch of an epoch may be short, and lanes
 * empty. */
KELP_TEST(lanes_of_a_batch)
{
    struct kelp_job job;
    small_job(&job);
    struct kelp_schedule schedule;
    struct kelp_control_word word = train_word(0, 6);
    ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &word, NULL), KELP_OK);
    static const uint64_t borders[] = {0, 1, 3, 4, 6};
    for (uint32_t lane = 0; lane < 4; lane++) {
        struct kelp_schedule_range range = kelp_schedule_lane(&schedule, lane);
        ck_assert_uint_eq(range.first, borders[lane]);
        ck_assert_uint_eq(range.count, borders[lane + 1] - borders[lane]);
    }
    ck_assert_uint_eq(kelp_schedule_lane_samples_max(&job), 2);

    word = train_word(9, 1);
    ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &word, NULL), KELP_OK);
    ck_assert_uint_eq(kelp_schedule_lane(&schedule, 0).count, 0);
    ck_assert_uint_eq(kelp_schedule_lane(&schedule, 3).count, 1);
    uint64_t index = 0;
    kelp_schedule_indices(&schedule, kelp_schedule_lane(&schedule, 3), &index);
    ck_assert_uint_eq(index, 9);
}

/* Evaluation goes through its part in order even when training is shuffled. */
KELP_TEST(evaluation_in_order)
{
    struct kelp_job job;
    small_job(&job);
    job.data.shuffle = true;
    struct kelp_schedule schedule;
    const struct kelp_control_word word = {.kind = KELP_STEP_EVALUATE_VAL, .sample_count = 5};
    ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &word, NULL), KELP_OK);
    ck_assert_int_eq(schedule.split, KELP_SPLIT_VAL);
    uint64_t indices[5];
    kelp_schedule_indices(&schedule, (struct kelp_schedule_range){.count = 5}, indices);
    for (uint64_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(indices[i], i);
    }
}

/* Shuffled order depends on seed and epoch, and is the same each time. */
KELP_TEST(order_of_an_epoch)
{
    struct kelp_job job;
    small_job(&job);
    job.data.shuffle = true;
    job.train.batch_size = 1000;
    const uint64_t many[KELP_SPLIT_COUNT] = {1000, 0, 0};
    static uint64_t orders[4][1000];
    for (int i = 0; i < 4; i++) {
        struct kelp_control_word word = train_word(0, 1000);
        word.epoch = i == 1 ? 1 : 0;
        job.seed = i == 2 ? 4 : 3;
        struct kelp_schedule schedule;
        ck_assert_int_eq(kelp_schedule_init(&schedule, &job, many, &word, NULL), KELP_OK);
        kelp_schedule_indices(&schedule, (struct kelp_schedule_range){.count = 1000}, orders[i]);
    }
    ck_assert_int_eq(memcmp(orders[0], orders[3], sizeof(orders[0])), 0);
    ck_assert_int_ne(memcmp(orders[0], orders[1], sizeof(orders[0])), 0);
    ck_assert_int_ne(memcmp(orders[0], orders[2], sizeof(orders[0])), 0);
}

/* A word that asks for samples that are not there is refused, whatever its numbers. */
KELP_TEST(words_that_ask_for_too_much)
{
    struct kelp_job job;
    small_job(&job);
    struct kelp_schedule schedule;
    const struct kelp_control_word words[] = {
        train_word(5, 6),
        train_word(0, 7),
        train_word(11, 1),
        train_word(UINT64_MAX, 1),
        train_word(0, UINT64_MAX),
        train_word(UINT64_MAX, UINT64_MAX),
        {.kind = KELP_STEP_EVALUATE_VAL, .sample_count = 6},
        {.kind = KELP_STEP_EVALUATE_TEST, .sample_count = 1},
        {.kind = KELP_STEP_FINISH, .sample_count = 1},
        {.kind = KELP_STEP_DONE, .sample_count = 1},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(words); i++) {
        struct kelp_error error = {0};
        ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &words[i], &error),
                         KELP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, "control word"));
    }
    const struct kelp_control_word finish = {.kind = KELP_STEP_FINISH};
    ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &finish, NULL), KELP_OK);
    ck_assert_uint_eq(kelp_schedule_lane(&schedule, 0).count, 0);
}

/* A range of lanes splits into as few aligned nodes as there can be. */
KELP_TEST(split_into_nodes)
{
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    ck_assert_uint_eq(kelp_schedule_split(0, 0, nodes), 0);
    ck_assert_uint_eq(kelp_schedule_split(0, 8, nodes), 1);
    ck_assert_uint_eq(nodes[0].count, 8);
    ck_assert_uint_eq(kelp_schedule_split(3, 5, nodes), 2);
    ck_assert_uint_eq(nodes[0].first, 3);
    ck_assert_uint_eq(nodes[0].count, 1);
    ck_assert_uint_eq(nodes[1].first, 4);
    ck_assert_uint_eq(nodes[1].count, 4);
    ck_assert_uint_eq(kelp_schedule_split(1, 6, nodes), 4);
    ck_assert_uint_eq(kelp_schedule_split(1, KELP_JOB_LANES_MAX - 2, nodes), 18);
    ck_assert_uint_eq(kelp_schedule_split(KELP_JOB_LANES_MAX, 0, nodes), 0);
}

static uint64_t follow(const struct kelp_schedule *schedule, uint32_t lane,
                       const struct kelp_schedule_cut *cut, uint64_t counts[8])
{
    const struct kelp_schedule_range all = kelp_schedule_lane(schedule, lane);
    uint64_t parts = 0;
    for (uint64_t at = all.first;;) {
        const struct kelp_schedule_range piece = kelp_schedule_next_piece(schedule, lane, at, cut);
        ck_assert_uint_eq(piece.first, at);
        if (piece.count == 0) {
            ck_assert_uint_eq(at, all.first + all.count);
            return parts;
        }
        ck_assert_uint_lt(parts, 8);
        counts[parts++] = piece.count;
        at += piece.count;
    }
}

/* A training step's lane is cut into pieces as even as can be, without empty ones; an evaluation's
 * into blocks. */
KELP_TEST(pieces_of_a_lane)
{
    const struct kelp_schedule_cut cut = {.pieces = 3, .block = 4};
    struct kelp_schedule schedule;
    struct kelp_job job;
    uint64_t counts[8];

    small_job(&job);
    job.cluster.lanes = 1;
    struct kelp_control_word word = train_word(0, 5);
    ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &word, NULL), KELP_OK);
    ck_assert_uint_eq(follow(&schedule, 0, &cut, counts), 3);
    ck_assert(counts[0] == 1 && counts[1] == 2 && counts[2] == 2);
    word = train_word(0, 2);
    ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &word, NULL), KELP_OK);
    ck_assert_uint_eq(follow(&schedule, 0, &cut, counts), 2);
    ck_assert(counts[0] == 1 && counts[1] == 1);
    word = (struct kelp_control_word){.kind = KELP_STEP_EVALUATE_VAL, .sample_count = 5};
    ck_assert_int_eq(kelp_schedule_init(&schedule, &job, samples, &word, NULL), KELP_OK);
    ck_assert_uint_eq(follow(&schedule, 0, &cut, counts), 2);
    ck_assert(counts[0] == 4 && counts[1] == 1);
}

/* Seeds of lanes are for ever, and differ with each of what they are made of. */
KELP_TEST(seeds_of_lanes)
{
    uint32_t words[4];

    kelp_philox(3, (enum kelp_philox_use)7, 5, 11, words);
    const uint64_t seed = kelp_schedule_lane_seed(3, 11, 5);
    ck_assert_uint_eq(seed >> 32, words[0]);
    ck_assert_uint_eq((uint32_t)seed, words[1]);
    ck_assert_uint_ne(seed, kelp_schedule_lane_seed(4, 11, 5));
    ck_assert_uint_ne(seed, kelp_schedule_lane_seed(3, 12, 5));
    ck_assert_uint_ne(seed, kelp_schedule_lane_seed(3, 11, 6));
}
