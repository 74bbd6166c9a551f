/* Data sets of arrays in files (npy, binary): what they hand out, and each mistake they can
 * hold. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/worker/data/dataset_files.h"

/* ---- npy ----------------------------------------------------------------------------------- */

/* An NPY file of version 1 with this dictionary, padded as numpy does it. */
static void write_npy(const char *name, const char *dictionary, const void *data, size_t count)
{
    uint8_t bytes[1024] = "\x93NUMPY\x01";
    size_t length = strlen(dictionary), padded = (10 + length + 1 + 63) / 64 * 64 - 10;
    ck_assert_uint_lt(10 + padded + count, sizeof(bytes));
    bytes[8] = (uint8_t)padded;
    memset(bytes + 10, ' ', padded);
    memcpy(bytes + 10, dictionary, length);
    bytes[10 + padded - 1] = '\n';
    memcpy(bytes + 10 + padded, data, count);
    write_file(name, bytes, 10 + padded + count);
}

#define NPY(descr, shape) "{'descr': '" descr "', 'fortran_order': False, 'shape': (" shape "), }"

static void set_path(char *key, const char *name)
{
    (void)snprintf(key, KELP_JOB_PATH_MAX, "%s/%s", folder.path, name);
}

static const float four_rows[] = {1, 10, 2, 20, 3, 30, 6, 60};
static const int64_t four_classes[] = {0, 2, 1, 0};

static void npy_job(void)
{
    job.data.kind = KELP_DATA_NPY;
    set_path(job.data.path, "x.npy");
    set_path(job.data.target_path, "y.npy");
    write_npy("x.npy", NPY("<f4", "4, 2"), four_rows, sizeof(four_rows));
    write_npy("y.npy", NPY("<i8", "4,"), four_classes, sizeof(four_classes));
}

static void expect_sample(struct kelp_dataset *dataset, enum kelp_split part, uint64_t index,
                          const float *input, float target)
{
    float got_input[8], got_target[8];
    ck_assert_int_eq(kelp_dataset_read(dataset, part, &index, 1, got_input, got_target), KELP_OK);
    uint64_t count = kelp_sample_input_count(&kelp_dataset_info(dataset)->shape);
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_float_eq(got_input[i], input[i]);
    }
    ck_assert_float_eq(got_target[0], target);
}

KELP_CASE("rows", .setup = setup, .teardown = teardown)

/* Rows as they are; whole numbers are targets, or classes where the loss says so. */
KELP_TEST(numpy_arrays)
{
    npy_job();
    struct kelp_dataset *dataset = open_or_fail();
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 4);
    ck_assert_uint_eq(info->shape.inputs[0].rank, 1);
    ck_assert_uint_eq(info->shape.inputs[0].dims[0], 2);
    ck_assert_uint_eq(info->shape.target.rank, 0);
    ck_assert_uint_eq(info->shape.target.vocab_count, 0);
    for (uint64_t i = 0; i < 4; i++) {
        expect_sample(dataset, KELP_SPLIT_TRAIN, i, four_rows + 2 * i, (float)four_classes[i]);
    }
    kelp_dataset_close(dataset);
    job.train.loss = KELP_LOSS_CROSS_ENTROPY;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab_count, 1);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 3);
    kelp_dataset_close(dataset);
}

struct spelled {
    const char *dictionary;
    size_t bytes;
    uint8_t data[32];
};

/* Two rows of one number, 3 and 200 or 1 where a type has no 200, in every type and byte order. */
static const struct spelled spelled[] = {
    {NPY("|u1", "2, 1"), 2, {3, 200}},
    {NPY("|b1", "2, 1"), 2, {1, 1}},
    {NPY("|i1", "2, 1"), 2, {3, 0xff}},
    {NPY("<u2", "2, 1"), 4, {3, 0, 200, 0}},
    {NPY(">i2", "2, 1"), 4, {0, 3, 0, 200}},
    {NPY("<i4", "2, 1"), 8, {3, 0, 0, 0, 200, 0, 0, 0}},
    {NPY(">u4", "2, 1"), 8, {0, 0, 0, 3, 0, 0, 0, 200}},
    {NPY("<i8", "2, 1"), 16, {3, 0, 0, 0, 0, 0, 0, 0, 200}},
    {NPY(">u8", "2, 1"), 16, {0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 200}},
    {NPY(">f4", "2, 1"), 8, {0x40, 0x40, 0, 0, 0x43, 0x48, 0, 0}},
    {NPY("<f8", "2, 1"), 16, {0, 0, 0, 0, 0, 0, 8, 0x40, 0, 0, 0, 0, 0, 0, 0x69, 0x40}},
    {"{\"shape\":(2,1),\"fortran_order\":False,\"descr\":\"<f8\"}",
     16,
     {0, 0, 0, 0, 0, 0, 8, 0x40, 0, 0, 0, 0, 0, 0, 0x69, 0x40}},
};

KELP_LOOP_TEST(numpy_types, 0, KELP_ARRAY_COUNT(spelled))
{
    const struct spelled *as = &spelled[_i];
    const float one = 1.0f, three = 3.0f, many = 200.0f, less = -1.0f;
    bool is_bool = strstr(as->dictionary, "b1") != NULL;
    npy_job();
    write_npy("x.npy", as->dictionary, as->data, as->bytes);
    write_npy("y.npy", as->dictionary, as->data, as->bytes);
    struct kelp_dataset *dataset = open_or_fail();
    expect_sample(dataset, KELP_SPLIT_TRAIN, 0, is_bool ? &one : &three, is_bool ? one : three);
    const float *second = is_bool ? &one : strstr(as->dictionary, "i1") != NULL ? &less : &many;
    expect_sample(dataset, KELP_SPLIT_TRAIN, 1, second, *second);
    kelp_dataset_close(dataset);
}

/* Parts by shares, by every n-th row, and from files of their own. */
KELP_TEST(numpy_parts)
{
    npy_job();
    job.data.fraction_count = 3;
    job.data.fractions[0] = 0.5;
    job.data.fractions[1] = job.data.fractions[2] = 0.25;
    struct kelp_dataset *dataset = open_or_fail();
    expect_sample(dataset, KELP_SPLIT_VAL, 0, four_rows + 4, 1.0f);
    expect_sample(dataset, KELP_SPLIT_TEST, 0, four_rows + 6, 0.0f);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    kelp_dataset_close(dataset);
    job.data.fraction_count = 0;
    job.data.test_every = 3;
    dataset = open_or_fail();
    expect_sample(dataset, KELP_SPLIT_TEST, 0, four_rows + 4, 1.0f);
    expect_sample(dataset, KELP_SPLIT_TRAIN, 2, four_rows + 6, 0.0f);
    kelp_dataset_close(dataset);
    job.data.test_every = 0;
    set_path(job.data.test_path, "test.npy");
    set_path(job.data.test_target_path, "y.npy");
    write_npy("test.npy", NPY("<f4", "3, 2"), four_rows + 2, 24);
    expect_error(KELP_ERR_INVALID, "y.npy: has 4 rows, but", "test.npy has 3", NULL);
    job.data.test_target_path[0] = '\0';
    expect_error(KELP_ERR_INVALID, "data.test_target_path: is not set", "test.npy", NULL);
    job.run.mode = KELP_RUN_PREDICT;
    job.run.part = KELP_RUN_PART_TEST;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TEST], 3);
    expect_sample(dataset, KELP_SPLIT_TEST, 2, four_rows + 6, 0.0f);
    kelp_dataset_close(dataset);
    write_npy("test.npy", NPY("<f4", "2, 3"), four_rows + 2, 24);
    expect_error(KELP_ERR_INVALID, "test.npy: its rows have another shape", NULL);
}

/* Fitted on the training rows alone, as many as data.limit leaves, for each column; what does not
 * vary is only shifted. */
KELP_TEST(normalized)
{
    float rows[] = {1, 7, 3, 7, 5, 7, 100, 8};
    npy_job();
    write_npy("x.npy", NPY("<f4", "4, 2"), rows, sizeof(rows));
    job.data.fraction_count = 3;
    job.data.fractions[0] = 0.75;
    job.data.fractions[2] = 0.25;
    job.data.normalize = KELP_NORMALIZE_STANDARD;
    struct kelp_dataset *dataset = open_or_fail();
    const double deviation = sqrt(8.0 / 3.0);
    const float first[] = {(float)(-2.0 * (1.0 / deviation)), 0};
    const float last[] = {(float)(97.0 * (1.0 / deviation)), 1};
    expect_sample(dataset, KELP_SPLIT_TRAIN, 0, first, 0.0f);
    expect_sample(dataset, KELP_SPLIT_TEST, 0, last, 0.0f);
    kelp_dataset_close(dataset);
    job.data.normalize = KELP_NORMALIZE_MINMAX;
    dataset = open_or_fail();
    const float low[] = {0, 0}, high[] = {24.75f, 1};
    expect_sample(dataset, KELP_SPLIT_TRAIN, 0, low, 0.0f);
    expect_sample(dataset, KELP_SPLIT_TEST, 0, high, 0.0f);
    kelp_dataset_close(dataset);
    job.data.limit = 2;
    dataset = open_or_fail();
    const float limited[] = {49.5f, 1};
    expect_sample(dataset, KELP_SPLIT_TEST, 0, limited, 0.0f);
    kelp_dataset_close(dataset);
}

struct wrong_npy {
    const char *dictionary;
    const char *expected;
    kelp_status status;
};

static const struct wrong_npy wrong_npy[] = {
    {NPY("<f4", "5, 2"), "is cut off: 5 rows of 2 float32", KELP_ERR_FORMAT},
    {NPY("<f4", "3, 2"), "is longer than its header says", KELP_ERR_FORMAT},
    {NPY("<f4", "4, 0"), "has no numbers", KELP_ERR_FORMAT},
    {NPY("<f4", "4294967296, 4294967296"), "too large", KELP_ERR_FORMAT},
    {NPY("<f4", "4, 99999999999999999999"), "header is damaged", KELP_ERR_FORMAT},
    {NPY("<f4", "4 2"), "header is damaged", KELP_ERR_FORMAT},
    {NPY("<f4", ""), "is a single number", KELP_ERR_INVALID},
    {NPY("<f4", "1,1,1,1,1,1,1,1,1"), "more than 8 dimensions", KELP_ERR_LIMIT},
    {NPY("<f2", "4, 2"), "elements of type '<f2'; float32", KELP_ERR_INVALID},
    {NPY("|O", "4, 2"), "elements of type '|O'", KELP_ERR_INVALID},
    {NPY("", "4, 2"), "elements of type ''", KELP_ERR_INVALID},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4, 2)}", "array of records",
     KELP_ERR_INVALID},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (4, 2)}", "ascontiguousarray",
     KELP_ERR_INVALID},
    {"{'descr': '<f4', 'fortran_order': False}", "header is damaged", KELP_ERR_FORMAT},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (4, 2)}", "header is damaged", KELP_ERR_FORMAT},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4, 2)}",
     "header is damaged", KELP_ERR_FORMAT},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2)} x", "header is damaged",
     KELP_ERR_FORMAT},
    {"", "header is damaged", KELP_ERR_FORMAT},
};

KELP_LOOP_TEST(wrong_numpy_header, 0, KELP_ARRAY_COUNT(wrong_npy))
{
    npy_job();
    write_npy("x.npy", wrong_npy[_i].dictionary, four_rows, sizeof(four_rows));
    expect_error(wrong_npy[_i].status, "x.npy: ", wrong_npy[_i].expected, NULL);
}

KELP_TEST(wrong_numpy_contents)
{
    npy_job();
    write_file("x.npy", "x,y\n1,2\n", 8);
    expect_error(KELP_ERR_FORMAT, "x.npy: is not an NPY file", NULL);
    write_file("x.npy", "\x1f\x8b\x08\0\0\0\0\0\0", 9);
    expect_error(KELP_ERR_FORMAT, "x.npy: is not an NPY file: it is compressed", NULL);
    write_file("x.npy", "\x93NUMPY\x01\0\xff\xff", 10);
    expect_error(KELP_ERR_FORMAT, "x.npy: its NPY header is too long", NULL);
    write_file("x.npy", "\x93NUMPY\x09\0\x10\0", 10);
    expect_error(KELP_ERR_INVALID, "x.npy: is NPY version 9", NULL);
    float rows[8];
    memcpy(rows, four_rows, sizeof(rows));
    rows[5] = NAN;
    write_npy("x.npy", NPY("<f4", "4, 2"), rows, sizeof(rows));
    expect_error(KELP_ERR_FORMAT, "x.npy: row 2: element 1 is nan; numbers must be finite", NULL);
    const double large[] = {1, 2, 1e300, 4, 5, 6, 7, 8};
    write_npy("x.npy", NPY("<f8", "4, 2"), large, sizeof(large));
    expect_error(KELP_ERR_FORMAT, "x.npy: row 1: element 0 is 1e+300", NULL);
    npy_job();
    job.train.loss = KELP_LOSS_NLL;
    const int64_t classes[] = {0, 1, -1, 0};
    write_npy("y.npy", NPY("<i8", "4,"), classes, sizeof(classes));
    expect_error(KELP_ERR_INVALID, "y.npy: row 2: class -1; classes are whole numbers", NULL);
    const float shares[] = {0, 1, 2.5f, 0};
    write_npy("y.npy", NPY("<f4", "4,"), shares, sizeof(shares));
    expect_error(KELP_ERR_INVALID, "y.npy: row 2: class 2.5;", NULL);
    job.data.target_path[0] = '\0';
    expect_error(KELP_ERR_INVALID, "data.target_path: is not set", NULL);
    set_path(job.data.target_path, "none.npy");
    expect_error(KELP_ERR_NOT_FOUND, "none.npy", NULL);
}

/* ---- binary -------------------------------------------------------------------------------- */

static void binary_job(void)
{
    job.data.kind = KELP_DATA_BINARY;
    job.data.dtype = KELP_NUMBER_UINT8;
    job.data.input_shape[0] = 2;
    job.data.input_shape_count = 1;
    set_path(job.data.path, "rows");
}

/* A row's input stands first, its target behind it. */
KELP_TEST(binary_rows)
{
    static const uint8_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    binary_job();
    write_file("rows", rows, sizeof(rows));
    job.data.test_every = 2;
    struct kelp_dataset *dataset = open_or_fail();
    const float second[] = {4, 5}, third[] = {7, 8};
    expect_sample(dataset, KELP_SPLIT_TEST, 0, second, 6.0f);
    expect_sample(dataset, KELP_SPLIT_TRAIN, 1, third, 9.0f);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.rank, 0);
    kelp_dataset_close(dataset);
    job.train.loss = KELP_LOSS_CROSS_ENTROPY;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 13);
    kelp_dataset_close(dataset);
    job.train.loss = KELP_LOSS_MSE;
    job.data.test_every = 0;
    job.data.dtype = KELP_NUMBER_INT32;
    job.data.input_shape_count = 2;
    job.data.input_shape[0] = job.data.input_shape[1] = 1;
    job.data.target_shape_count = 1;
    job.data.target_shape[0] = 2;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 1);
    const float number = (float)0x04030201;
    expect_sample(dataset, KELP_SPLIT_TRAIN, 0, &number, (float)0x08070605);
    kelp_dataset_close(dataset);
}

#define SPLIT_ROWS 60u

/* In a random split each row of a file is one sample, whatever it is scaled by is fitted on the
 * training rows alone, and another seed gives another split. */
KELP_TEST(random_split)
{
    uint8_t rows[3 * SPLIT_ROWS];
    unsigned seen[SPLIT_ROWS] = {0}, late = 0, others = 0;
    for (uint8_t i = 0; i < SPLIT_ROWS; i++) {
        rows[3 * i] = rows[3 * i + 1] = rows[3 * i + 2] = i;
    }
    binary_job();
    write_file("rows", rows, sizeof(rows));
    job.seed = 3;
    job.data.random_split = true;
    job.data.fraction_count = 2;
    job.data.fractions[0] = 0.5;
    job.data.fractions[1] = 0.5;
    job.data.normalize = KELP_NORMALIZE_MINMAX;
    struct kelp_dataset *dataset = open_or_fail();
    job.seed = 4;
    struct kelp_dataset *other = open_or_fail();
    float least = 2.0f, most = -1.0f, input[2], target, other_target;
    for (int split = 0; split <= KELP_SPLIT_VAL; split++) {
        ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[split], SPLIT_ROWS / 2);
        for (uint64_t i = 0; i < SPLIT_ROWS / 2; i++) {
            ck_assert_int_eq(
                kelp_dataset_read(other, (enum kelp_split)split, &i, 1, input, &other_target),
                KELP_OK);
            ck_assert_int_eq(
                kelp_dataset_read(dataset, (enum kelp_split)split, &i, 1, input, &target), KELP_OK);
            ck_assert_uint_eq(seen[(unsigned)target]++, 0);
            others += target != other_target;
            late += split == KELP_SPLIT_VAL && target >= SPLIT_ROWS / 2;
            least = split == KELP_SPLIT_TRAIN && input[0] < least ? input[0] : least;
            most = split == KELP_SPLIT_TRAIN && input[0] > most ? input[0] : most;
        }
    }
    ck_assert_float_eq(least, 0.0f);
    ck_assert_float_eq_tol(most, 1.0f, 1e-6f);
    ck_assert_uint_gt(late, 5);
    ck_assert_uint_lt(late, 25);
    ck_assert_uint_gt(others, SPLIT_ROWS / 2);
    kelp_dataset_close(other);
    kelp_dataset_close(dataset);
}

/* Rows to predict need no targets: their file is told by its size where the job leaves it open, and
 * one that could be either is refused. */
KELP_TEST(unlabelled_binary_rows)
{
    static const uint8_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    binary_job();
    write_file("rows", rows, 9);
    write_file("new", rows, 8);
    set_path(job.data.test_path, "new");
    job.run.mode = KELP_RUN_PREDICT;
    job.run.part = KELP_RUN_PART_TEST;
    expect_error(KELP_ERR_FORMAT, "new: has 8 bytes", "a row has 3 uint8 elements", NULL);
    for (int how = KELP_TEST_ROWS_UNLABELLED; how <= KELP_TEST_ROWS_EITHER; how++) {
        job.data.test_rows = (enum kelp_test_rows)how;
        struct kelp_dataset *dataset = open_or_fail();
        const float last[] = {7, 8};
        ck_assert(kelp_dataset_info(dataset)->no_targets[KELP_SPLIT_TEST]);
        ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TEST], 4);
        expect_sample(dataset, KELP_SPLIT_TEST, 3, last, 0.0f);
        kelp_dataset_close(dataset);
    }
    write_file("new", rows, 9);
    struct kelp_dataset *labelled = open_or_fail();
    ck_assert(!kelp_dataset_info(labelled)->no_targets[KELP_SPLIT_TEST]);
    ck_assert_uint_eq(kelp_dataset_info(labelled)->samples[KELP_SPLIT_TEST], 3);
    kelp_dataset_close(labelled);
    write_file("new", rows, 12);
    expect_error(KELP_ERR_INVALID, "new: has 12 bytes, either 4 rows with targets or 6 without",
                 "set data.test_rows to labelled or unlabelled", NULL);
    write_file("new", rows, 7);
    expect_error(KELP_ERR_FORMAT, "new: has 7 bytes", "a row of uint8 has 3 bytes, 2 without",
                 NULL);
    write_file("new", rows, 8);
    job.run.mode = KELP_RUN_EVALUATE;
    expect_error(KELP_ERR_INVALID, "new: its rows have no targets", NULL);
}

KELP_TEST(wrong_binary_rows)
{
    binary_job();
    write_file("rows", "12345678", 8);
    expect_error(KELP_ERR_FORMAT, "rows: has 8 bytes, which is not a whole number of rows",
                 "a row has 3 uint8 elements, 3 bytes", NULL);
    write_file("rows", "", 0);
    expect_error(KELP_ERR_FORMAT, "rows: has 0 bytes", NULL);
    job.data.dtype = KELP_NUMBER_FLOAT32;
    const float rows[] = {1, 2, 3, 4, -INFINITY, 6};
    write_file("rows", rows, sizeof(rows));
    expect_error(KELP_ERR_FORMAT, "rows: row 1: element 1 is -inf", NULL);
    const float shares[] = {1, 2, 1, 3, 4, 1.5f, 5, 6, 0};
    write_file("rows", shares, sizeof(shares));
    job.train.loss = KELP_LOSS_BCE;
    expect_error(KELP_ERR_INVALID,
                 "rows: row 1: target 1.5; train.loss bce takes targets from 0 "
                 "to 1",
                 NULL);
    job.train.loss = KELP_LOSS_MSE;
    kelp_dataset_close(open_or_fail());
    job.data.input_shape[0] = job.data.input_shape[1] = 1u << 24;
    job.data.input_shape_count = 2;
    expect_error(KELP_ERR_LIMIT, "data.input_shape: makes over", NULL);
    job.data.input_shape_count = 0;
    expect_error(KELP_ERR_INVALID, "data.input_shape: is empty", NULL);
    job.data.input_shape_count = 8;
    expect_error(KELP_ERR_LIMIT, "data.input_shape: has 8 dimensions", NULL);
    job.data.input_shape_count = 1;
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s", folder.path);
    expect_error(KELP_ERR_INVALID, "is a folder", NULL);
}

/* ---- larger than memory -------------------------------------------------------------------- */

#define LARGE_ROWS  40000u
#define LARGE_WIDTH 4096u /* bytes of an input */

/* VmHWM of this process, in KiB: the most memory that it has had. */
static long peak_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) {
            break;
        }
    }
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_gt(kib, 0);
    return kib;
}

/* A file of 160 MB, most of it a hole: row r begins with r % 251 where that is a multiple of 16. */
static void write_large(void)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/large", folder.path);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (uint64_t row = 0; row < LARGE_ROWS; row += 16) {
        ck_assert_int_eq(fseek(file, (long)(row * (LARGE_WIDTH + 1)), SEEK_SET), 0);
        ck_assert_int_ne(fputc((int)(row % 251), file), EOF);
    }
    ck_assert_int_eq(fflush(file), 0);
    ck_assert_int_eq(ftruncate(fileno(file), (off_t)LARGE_ROWS * (LARGE_WIDTH + 1)), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* Opening and reading a large file takes a small part of its size, in any order; one that became
 * shorter meanwhile is an error. */
KELP_TEST(larger_than_memory)
{
    binary_job();
    set_path(job.data.path, "large");
    job.data.input_shape[0] = LARGE_WIDTH;
    job.data.normalize = KELP_NORMALIZE_MINMAX;
    write_large();
    long before = peak_kib();
    struct kelp_dataset *dataset = open_or_fail();
    float *input = malloc(LARGE_WIDTH * sizeof(*input)), target;
    ck_assert_ptr_nonnull(input);
    for (uint64_t i = 0; i < LARGE_ROWS; i++) {
        uint64_t index = i * 70001 % LARGE_ROWS; /* every row once, far from the one before */
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &index, 1, input, &target),
                         KELP_OK);
        float expected = index % 16 == 0 ? (float)((double)(index % 251) * (1.0 / 250.0)) : 0.0f;
        ck_assert_float_eq(input[0], expected);
        ck_assert_float_eq(input[1], 0.0f);
    }
    long grown = peak_kib() - before;
    ck_assert_msg(grown < 48 * 1024, "the data set takes %ld KiB", grown);
    ck_assert_int_eq(truncate(job.data.path, (off_t)LARGE_WIDTH * 1000), 0);
    const uint64_t index = LARGE_ROWS - 1;
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &index, 1, input, &target),
                     KELP_ERR_CORRUPT);
    free(input);
    kelp_dataset_close(dataset);
}

/* Give the file a time long ago, so that its next change will show in it. */
static void set_time(const char *path, time_t seconds)
{
    const struct timespec times[] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void change_byte(const char *path, long at, int byte)
{
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, at, SEEK_SET), 0);
    ck_assert_int_eq(fputc(byte, file), byte);
    ck_assert_int_eq(fclose(file), 0);
}

static uint64_t open_fingerprint(float *ret_first)
{
    const uint64_t index = 16;
    float *input = malloc(LARGE_WIDTH * sizeof(*input)), target;
    ck_assert_ptr_nonnull(input);
    struct kelp_dataset *dataset = open_or_fail();
    uint64_t fingerprint = kelp_dataset_info(dataset)->fingerprint;
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &index, 1, input, &target),
                     KELP_OK);
    *ret_first = input[0];
    kelp_dataset_close(dataset);
    free(input);
    return fingerprint;
}

/* A large file is looked through once: the next time its name, size and time are enough, unless
 * what was kept is damaged. Another time, or another job, is another look. */
KELP_TEST(looked_through_once)
{
    char kept[2048] = "";
    float first = 0, value = 0;
    binary_job();
    set_path(job.data.path, "large");
    job.data.input_shape[0] = LARGE_WIDTH;
    job.data.normalize = KELP_NORMALIZE_MINMAX;
    job.data.limit = 10000;
    write_large();
    set_time(job.data.path, 1000000000);
    uint64_t fingerprint = open_fingerprint(&first);
    ck_assert_float_eq(first, (float)(16.0 * (1.0 / 250.0)));

    change_byte(job.data.path, 0, 255); /* which would be the largest of its column */
    set_time(job.data.path, 1000000000);
    ck_assert_uint_eq(open_fingerprint(&value), fingerprint);
    ck_assert_float_eq(value, first);

    DIR *cache = opendir(job.data.cache);
    ck_assert_ptr_nonnull(cache);
    for (struct dirent *entry; (entry = readdir(cache)) != NULL;) {
        if (entry->d_name[0] != '.') {
            ck_assert_str_eq(kept, "");
            (void)snprintf(kept, sizeof(kept), "%s/%.200s", job.data.cache, entry->d_name);
        }
    }
    ck_assert_int_eq(closedir(cache), 0);
    change_byte(kept, 60, 77);
    uint64_t changed = open_fingerprint(&value);
    ck_assert_uint_ne(changed, fingerprint);
    ck_assert_float_eq(value, (float)(16.0 * (1.0 / 255.0)));

    change_byte(job.data.path, 0, 0);
    set_time(job.data.path, 1000000001);
    ck_assert_uint_eq(open_fingerprint(&value), fingerprint);
    job.data.normalize = KELP_NORMALIZE_NONE;
    (void)open_fingerprint(&value);
    ck_assert_float_eq(value, 16.0f);
}
