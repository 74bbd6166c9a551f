/*
 * Samples of lanes, read ahead by a thread or not: the same ones, whatever was guessed, and for a
 * worker that goes on with its lanes the guess is right.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"
#include "worker/compute/prefetch.h"
#include "worker/compute/sample_reader.h"

#define ROWS  2000u
#define WIDTH 40000u /* bytes of an input: the file is larger than what is kept in memory */

static struct kelp_test_folder folder;
static struct kelp_job job;
static struct kelp_dataset *dataset;

static void *take_memory(void *user, size_t bytes)
{
    (void)user;
    return malloc(bytes);
}

static void give_memory(void *user, void *bytes)
{
    (void)user;
    free(bytes);
}

static const struct kelp_sample_memory memory = {.alloc = take_memory, .free = give_memory};

/* Row r holds r in its first four bytes; all else is a hole. */
static void write_rows(void)
{
    FILE *file = fopen(job.data.path, "wb");
    ck_assert_ptr_nonnull(file);
    for (uint32_t row = 0; row < ROWS; row++) {
        const uint8_t bytes[] = {(uint8_t)row, (uint8_t)(row >> 8), (uint8_t)(row >> 16)};
        ck_assert_int_eq(fseek(file, (long)row * (WIDTH + 1), SEEK_SET), 0);
        ck_assert_uint_eq(fwrite(bytes, 1, sizeof(bytes), file), sizeof(bytes));
    }
    ck_assert_int_eq(fflush(file), 0);
    ck_assert_int_eq(ftruncate(fileno(file), (off_t)ROWS * (WIDTH + 1)), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    struct kelp_error error;
    kelp_test_folder_init(&folder);
    memset(&job, 0, sizeof(job));
    job.seed = 3;
    job.data.kind = KELP_DATA_BINARY;
    job.data.dtype = KELP_NUMBER_UINT8;
    job.data.input_shape[0] = WIDTH;
    job.data.input_shape_count = 1;
    job.data.shuffle = true;
    job.data.fraction_count = 2;
    job.data.fractions[0] = 0.9;
    job.data.fractions[1] = 0.1;
    job.train.batch_size = 50;
    job.train.accumulate = 3;
    job.train.epochs = 2;
    job.cluster.lanes = 8;
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s/rows", folder.path);
    (void)snprintf(job.data.cache, sizeof(job.data.cache), "%s/cache", folder.path);
    write_rows();
    ck_assert_msg(kelp_dataset_open(&job, &dataset, &error) == KELP_OK, "%s", error.text);
    ck_assert(kelp_dataset_info(dataset)->streamed);
}

static void teardown(void)
{
    kelp_dataset_close(dataset);
    kelp_test_folder_fini(&folder);
}

static uint32_t row_of(const float *input)
{
    return (uint32_t)input[0] + ((uint32_t)input[1] << 8) + ((uint32_t)input[2] << 16);
}

KELP_CASE("reader", .setup = setup, .teardown = teardown)

/* ---- the thread ---------------------------------------------------------------------------- */

KELP_TEST(taken_is_what_was_asked)
{
    struct kelp_prefetch *prefetch = NULL;
    float *input = calloc(4, WIDTH * sizeof(*input)), *target = calloc(4, sizeof(*target));
    ck_assert_ptr_nonnull(input);
    ck_assert_ptr_nonnull(target);
    ck_assert_int_eq(kelp_prefetch_create(dataset, 4, &memory, &prefetch, NULL), KELP_OK);
    for (uint64_t i = 0; i < 500; i++) {
        const uint64_t indices[] = {i, 1700 - i, 3 * i, 17}, others[] = {i, 1700 - i, 3 * i, 18};
        const struct kelp_prefetch_batch batch = {KELP_SPLIT_TRAIN, indices, 4},
                                         other = {KELP_SPLIT_TRAIN, others, 4},
                                         less = {KELP_SPLIT_TRAIN, indices, 3};
        kelp_status status = KELP_ERR_INTERNAL;
        float *before = input;
        ck_assert(!kelp_prefetch_take(prefetch, &batch, &input, &target, &status));
        kelp_prefetch_ask(prefetch, &batch);
        ck_assert(!kelp_prefetch_take(prefetch, &other, &input, &target, &status));
        ck_assert(!kelp_prefetch_take(prefetch, &less, &input, &target, &status));
        ck_assert_ptr_eq(input, before);
        if (i % 3 == 0) { /* it may be too late to change that, or not */
            kelp_prefetch_ask(prefetch, &other);
            if (kelp_prefetch_take(prefetch, &other, &input, &target, &status)) {
                ck_assert_uint_eq(row_of(input + 3 * WIDTH), 18);
                continue;
            }
        }
        ck_assert(kelp_prefetch_take(prefetch, &batch, &input, &target, &status));
        ck_assert_int_eq(status, KELP_OK);
        ck_assert_ptr_ne(input, before);
        for (size_t k = 0; k < 4; k++) {
            ck_assert_uint_eq(row_of(input + k * WIDTH), indices[k]);
        }
    }
    /* One that is never taken, and the end while it is read. */
    const uint64_t last[] = {1, 2, 3, 4};
    const struct kelp_prefetch_batch batch = {KELP_SPLIT_TRAIN, last, 4};
    kelp_prefetch_ask(prefetch, &batch);
    kelp_prefetch_destroy(prefetch);
    kelp_prefetch_destroy(NULL);
    free(input);
    free(target);
}

/* What reading comes to is told to whoever takes it. */
KELP_TEST(a_failed_read_is_told)
{
    struct kelp_prefetch *prefetch = NULL;
    float *input = calloc(1, WIDTH * sizeof(*input)), *target = calloc(1, sizeof(*target));
    const uint64_t index = 1500;
    const struct kelp_prefetch_batch batch = {KELP_SPLIT_TRAIN, &index, 1};
    kelp_status status = KELP_OK;
    ck_assert_ptr_nonnull(input);
    ck_assert_ptr_nonnull(target);
    ck_assert_int_eq(kelp_prefetch_create(dataset, 1, &memory, &prefetch, NULL), KELP_OK);
    ck_assert_int_eq(truncate(job.data.path, 1000), 0);
    kelp_prefetch_ask(prefetch, &batch);
    ck_assert(kelp_prefetch_take(prefetch, &batch, &input, &target, &status));
    ck_assert_int_eq(status, KELP_ERR_CORRUPT);
    kelp_prefetch_destroy(prefetch);
    free(input);
    free(target);
}

/* ---- the reader ---------------------------------------------------------------------------- */

static struct kelp_sample_reader *create_reader(void)
{
    struct kelp_sample_reader *reader = NULL;
    ck_assert_int_eq(kelp_sample_reader_create(&job, dataset, 7, &memory, &reader, NULL), KELP_OK);
    return reader;
}

static bool reads_ahead;
static uint64_t found_ahead; /* reads that got what was read ahead */

/* What comes next is read elsewhere; what is there stays. */
static const float *read_ahead(struct kelp_sample_reader *reader, uint32_t *ret_first)
{
    struct kelp_sample_batch ahead;
    if (!reads_ahead || !kelp_sample_reader_ahead(reader, &ahead)) {
        return NULL;
    }
    *ret_first = row_of(ahead.input);
    return ahead.input;
}

/* Read all of a lane, part by part, and compare with the schedule. Returns the number of parts. */
static uint64_t read_lane(struct kelp_sample_reader *reader, uint32_t lane)
{
    const struct kelp_schedule *schedule = kelp_sample_reader_schedule(reader);
    struct kelp_schedule_range samples = kelp_schedule_lane(schedule, lane);
    uint64_t parts = 0;
    const uint64_t width = job.data.input_shape[0];
    for (uint64_t done = 0; done < samples.count; parts++) {
        static const float *ahead;
        static uint32_t ahead_first;
        struct kelp_sample_batch batch;
        uint64_t indices[7];
        struct kelp_schedule_range part =
            kelp_sample_reader_piece(reader, schedule, lane, samples.first + done);
        ck_assert_uint_gt(part.count, 0);
        ck_assert_uint_le(part.count, 7);
        ck_assert_int_eq(kelp_sample_reader_read(reader, lane, part, &batch, NULL), KELP_OK);
        kelp_schedule_indices(schedule, part, indices);
        if (ahead && batch.input == ahead) {
            found_ahead++;
            ck_assert_uint_eq(row_of(batch.input), ahead_first);
        }
        ahead = read_ahead(reader, &ahead_first);
        ck_assert_ptr_ne(ahead, batch.input);
        ck_assert_uint_eq(batch.count, part.count);
        const uint64_t rows = kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN];
        uint64_t offset = schedule->split == KELP_SPLIT_TRAIN ? 0 : rows;
        for (uint64_t i = 0; i < part.count; i++) {
            ck_assert_uint_eq(row_of(batch.input + i * width), indices[i] + offset);
        }
        done += part.count;
    }
    return parts;
}

static void begin(struct kelp_sample_reader *reader, enum kelp_step_kind kind, uint64_t version,
                  uint32_t epoch, uint64_t first)
{
    bool training = kind == KELP_STEP_TRAIN;
    const struct kelp_control_word word = {.kind = kind,
                                           .version = version,
                                           .epoch = epoch,
                                           .sample_first = first,
                                           .sample_count = training ? 50 : ROWS / 10};
    ck_assert_int_eq(kelp_sample_reader_begin(reader, &word, NULL), KELP_OK);
}

/* From the second step on each part was there before it was wanted, over the end of an epoch too,
 * whichever lanes the worker has. */
KELP_LOOP_TEST(training_is_read_ahead, 0, 3)
{
    struct kelp_sample_reader *reader = create_reader();
    uint32_t lane_first = (uint32_t)_i, lane_end = _i == 0 ? 8 : lane_first + 2;
    uint64_t parts = 0, first_step = 0;
    for (uint64_t step = 0; step < 40; step++) {
        uint64_t at = (ROWS / 10 * 9 / 50 - 20 + step) * 50;
        begin(reader, KELP_STEP_TRAIN, step, at >= ROWS / 10 * 9 ? 1 : 0, at % (ROWS / 10 * 9));
        for (uint32_t lane = lane_first; lane < lane_end; lane++) {
            parts += read_lane(reader, lane);
        }
        first_step = step == 0 ? parts : first_step;
    }
    ck_assert_uint_eq(parts, 40u * 3 * (lane_end - lane_first));
    ck_assert_uint_ge(kelp_sample_reader_guessed(reader), parts - first_step);
    kelp_sample_reader_destroy(reader);
}

/* Lanes of other workers in between, evaluations, another order: all that changes is the guess. */
KELP_TEST(guesses_that_are_wrong)
{
    struct kelp_sample_reader *reader = create_reader();
    for (uint64_t step = 0; step < 20; step++) {
        begin(reader, KELP_STEP_TRAIN, step, 0, step * 50);
        (void)read_lane(reader, (uint32_t)(step * 5 % 8));
        (void)read_lane(reader, (uint32_t)(step * 3 % 8));
        if (step % 5 == 0) {
            begin(reader, KELP_STEP_EVALUATE_VAL, step, 0, 0);
            (void)read_lane(reader, 7);
        }
    }
    kelp_sample_reader_destroy(reader);
}

/* In memory nothing is read ahead. */
KELP_TEST(in_memory)
{
    kelp_dataset_close(dataset);
    job.data.input_shape[0] = 15;
    ck_assert_int_eq(truncate(job.data.path, 16 * 1000), 0);
    ck_assert_int_eq(kelp_dataset_open(&job, &dataset, NULL), KELP_OK);
    ck_assert(!kelp_dataset_info(dataset)->streamed);
    struct kelp_sample_reader *reader = create_reader();
    for (uint64_t step = 0; step < 4; step++) {
        struct kelp_sample_batch batch;
        begin(reader, KELP_STEP_TRAIN, step, 0, step * 50);
        ck_assert_int_eq(kelp_sample_reader_read(
                             reader, 0, (struct kelp_schedule_range){.count = 5}, &batch, NULL),
                         KELP_OK);
    }
    ck_assert_uint_eq(kelp_sample_reader_guessed(reader), 0);
    kelp_sample_reader_destroy(reader);
}

/* As the others, but small enough for memory. */
static void write_small_rows(void)
{
    FILE *file = fopen(job.data.path, "wb");
    ck_assert_ptr_nonnull(file);
    for (uint32_t row = 0; row < 1000; row++) {
        const uint8_t bytes[16] = {(uint8_t)row, (uint8_t)(row >> 8)};
        ck_assert_uint_eq(fwrite(bytes, 1, sizeof(bytes), file), sizeof(bytes));
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* Ahead of a caller that goes on with its lanes: each read but those behind a change of lanes. The
 * reader's thread may be late, the caller itself is not. */
KELP_LOOP_TEST(ahead_of_the_caller, 0, 2)
{
    const bool in_memory = _i == 1;
    uint64_t parts = 0;
    if (in_memory) {
        kelp_dataset_close(dataset);
        job.data.input_shape[0] = 15;
        write_small_rows();
        ck_assert_int_eq(kelp_dataset_open(&job, &dataset, NULL), KELP_OK);
    }
    reads_ahead = true;
    found_ahead = 0;
    struct kelp_sample_reader *reader = create_reader();
    for (uint64_t step = 0; step < 10; step++) {
        begin(reader, KELP_STEP_TRAIN, step, 0, step * 50);
        for (uint32_t lane = 2; lane < 5; lane++) {
            parts += read_lane(reader, lane);
        }
    }
    ck_assert_uint_le(found_ahead, parts);
    ck_assert(!in_memory || found_ahead >= parts - 10);
    begin(reader, KELP_STEP_TRAIN, 10, 0, 0); /* another guess would have been right */
    (void)read_lane(reader, 7);
    (void)read_lane(reader, 0);
    kelp_sample_reader_destroy(reader);
    reads_ahead = false;
}
