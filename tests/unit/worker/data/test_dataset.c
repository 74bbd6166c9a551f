/* Data sets of series: the ETT protocol on a small file, the generated series, and each mistake a
 * file can hold. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/suite.h"
#include "worker/data/dataset.h"
#include "worker/data/dataset_series.h"

static char folder[64];
static char data_path[128];

static void make_folder(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-dataset-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(data_path, sizeof(data_path), "%s/data.csv", folder);
}

static void remove_folder(void)
{
    (void)unlink(data_path);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void write_text(const char *text, size_t bytes)
{
    FILE *file = fopen(data_path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* 12 rows: 6 training, 3 validation, 3 test; windows of 2 to 1. */
static void small_job(struct kelp_job *job)
{
    memset(job, 0, sizeof(*job));
    job->seed = 7;
    job->data.kind = KELP_DATA_CSV;
    (void)snprintf(job->data.path, sizeof(job->data.path), "%s", data_path);
    (void)snprintf(job->data.target, sizeof(job->data.target), "OT");
    job->data.features = KELP_FEATURES_S;
    job->data.seq_len = 2;
    job->data.pred_len = 1;
    job->data.split[KELP_SPLIT_TRAIN] = 6;
    job->data.split[KELP_SPLIT_VAL] = 3;
    job->data.split[KELP_SPLIT_TEST] = 3;
}

static const char small_text[] = "date,A,OT\n"
                                 "d0,10,1\nd1,20,3\nd2,10,5\nd3,20,1\nd4,10,3\nd5,20,5\n"
                                 "d6,30,7\nd7,40,-1\nd8,50,2\nd9,60,4\nd10,70,6\nd11,80,8\n";

/* Scaled by the training rows of OT: mean 3, population variance 8/3. */
static float scaled_ot(double value)
{
    return (float)((value - 3.0) / sqrt(8.0 / 3.0));
}

static struct kelp_dataset *open_or_fail(const struct kelp_job *job)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(job, &dataset, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return dataset;
}

KELP_CASE("dataset", .timeout_s = 60, .setup = make_folder, .teardown = remove_folder)

/* Windows start where the protocol says, validation and test seq_len rows earlier, and are scaled
 * by the training rows alone. */
KELP_TEST(windows_of_a_small_file)
{
    struct kelp_job job;
    small_job(&job);
    write_text(small_text, strlen(small_text));
    struct kelp_dataset *dataset = open_or_fail(&job);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 4);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 3);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 3);
    ck_assert_uint_eq(kelp_sample_input_count(&info->shape), 2);
    ck_assert_uint_eq(kelp_sample_target_count(&info->shape), 1);

    float input[6];
    float target[3];
    const uint64_t train[] = {3, 0};
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, train, 2, input, target),
                     KELP_OK);
    const double train_expected[] = {1, 3, 1, 3};
    for (int i = 0; i < 4; i++) {
        ck_assert_float_eq(input[i], scaled_ot(train_expected[i]));
    }
    ck_assert_float_eq(target[0], scaled_ot(5));
    ck_assert_float_eq(target[1], scaled_ot(5));

    const uint64_t first[] = {0};
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_VAL, first, 1, input, target), KELP_OK);
    ck_assert_float_eq(input[0], scaled_ot(3));
    ck_assert_float_eq(input[1], scaled_ot(5));
    ck_assert_float_eq(target[0], scaled_ot(7));
    const uint64_t last[] = {2};
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TEST, last, 1, input, target), KELP_OK);
    ck_assert_float_eq(input[1], scaled_ot(6));
    ck_assert_float_eq(target[0], scaled_ot(8));
    struct kelp_target_scale scale;
    kelp_dataset_target_scales(dataset, KELP_SPLIT_TEST, 2, &scale);
    ck_assert_double_eq_tol((double)target[0] * scale.factor + scale.shift, 8.0, 1e-6);
    ck_assert_str_eq(kelp_dataset_target_name(dataset, 0), "OT");
    char time[KELP_DATASET_LABEL_BYTES];
    kelp_dataset_time(dataset, KELP_SPLIT_TEST, 2, 0, time);
    ck_assert_str_eq(time, ""); /* "d0" is no date */

    /* An index past the end is refused, and nothing is written. */
    const uint64_t past[] = {0, 3};
    input[0] = 42.0f;
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TEST, past, 2, input, target),
                     KELP_ERR_INVALID);
    ck_assert_float_eq(input[0], 42.0f);
    kelp_dataset_close(dataset);
}

/* Features M takes all columns but the first, in file order, each with its own scale. */
KELP_TEST(all_columns)
{
    struct kelp_job job;
    small_job(&job);
    job.data.features = KELP_FEATURES_M;
    write_text(small_text, strlen(small_text));
    struct kelp_dataset *dataset = open_or_fail(&job);
    float input[4];
    float target[2];
    const uint64_t first[] = {0};
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, first, 1, input, target),
                     KELP_OK);
    ck_assert_float_eq(input[0], -1.0f); /* A: mean 15, deviation 5 */
    ck_assert_float_eq(input[1], scaled_ot(1));
    ck_assert_float_eq(input[2], 1.0f);
    ck_assert_float_eq(input[3], scaled_ot(3));
    ck_assert_float_eq(target[0], -1.0f);
    ck_assert_float_eq(target[1], scaled_ot(5));
    kelp_dataset_close(dataset);
}

static void check_error(const struct kelp_job *job, kelp_status expected_status,
                        const char *expected);

/* Features MS: all columns in, the target moved behind the others, and the target alone out. */
KELP_TEST(all_columns_to_the_target)
{
    static const char text[] = "date,OT,A\n"
                               "d0,1,10\nd1,3,20\nd2,5,10\nd3,1,20\nd4,3,10\nd5,5,20\n"
                               "d6,7,30\nd7,-1,40\nd8,2,50\nd9,4,60\nd10,6,70\nd11,8,80\n";
    struct kelp_job job;
    struct kelp_target_scale scale;
    float input[4];
    float target;
    const uint64_t first[] = {0};
    small_job(&job);
    job.data.features = KELP_FEATURES_MS;
    write_text(text, strlen(text));
    struct kelp_dataset *dataset = open_or_fail(&job);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->shape.inputs[0].dims[1], 2);
    ck_assert_uint_eq(info->shape.target.dims[0], 1);
    ck_assert_uint_eq(info->shape.target.dims[1], 1);
    ck_assert_uint_eq(info->target_columns, 1);
    ck_assert_str_eq(kelp_dataset_target_name(dataset, 0), "OT");
    kelp_dataset_target_scales(dataset, KELP_SPLIT_TRAIN, 0, &scale);
    ck_assert_double_eq(scale.shift, 3.0);
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, first, 1, input, &target),
                     KELP_OK);
    ck_assert_float_eq(input[0], -1.0f); /* A: mean 15, deviation 5 */
    ck_assert_float_eq(input[1], scaled_ot(1));
    ck_assert_float_eq(input[2], 1.0f);
    ck_assert_float_eq(input[3], scaled_ot(3));
    ck_assert_float_eq(target, scaled_ot(5));
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TEST, first, 1, input, &target),
                     KELP_OK);
    ck_assert_float_eq(input[3], scaled_ot(2));
    ck_assert_float_eq(target, scaled_ot(4));
    kelp_dataset_close(dataset);
    (void)snprintf(job.data.target, sizeof(job.data.target), "B");
    check_error(&job, KELP_ERR_INVALID, "data.csv: column B: no such column");
}

/* Byte order mark, CRLF, quotes, spaces, signs, exponents, no last line end, blank lines at the
 * end: the same data. */
KELP_TEST(spellings)
{
    static const char spelled[] =
        "\xef\xbb\xbf\"date\",\"A\",\"OT\"\r\n"
        "\"d,0\",10,+1\r\n\"d\"\"1\",20,\"3\"\r\nd2,10, 5.0 \r\nd3,20,1e0\r\nd4,10,.3E+1\r\n"
        "d5,20,5.\r\nd6,30,700e-2\r\nd7,40,-1.000\r\nd8,50,0002\r\n"
        "d9,60,4.00000000000000000000000000000\r\nd10,70,0.06e2\r\n"
        "d11,80,8000000000000000000000e-21\r\n\r\n  \r\n";
    struct kelp_job job;
    small_job(&job);
    write_text(small_text, strlen(small_text));
    struct kelp_dataset *plain = open_or_fail(&job);
    uint64_t fingerprint = kelp_dataset_info(plain)->fingerprint;
    kelp_dataset_close(plain);
    write_text(spelled, strlen(spelled));
    struct kelp_dataset *dataset = open_or_fail(&job);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);
    write_text(small_text, strlen(small_text) - 1);
    dataset = open_or_fail(&job);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);
}

/* Another value or border in use is another fingerprint; a row that is not used is not. */
KELP_TEST(fingerprint_tells_data_apart)
{
    struct kelp_job job;
    small_job(&job);
    write_text(small_text, strlen(small_text));
    struct kelp_dataset *dataset = open_or_fail(&job);
    uint64_t fingerprint = kelp_dataset_info(dataset)->fingerprint;
    kelp_dataset_close(dataset);

    char text[sizeof(small_text) + 16];
    (void)snprintf(text, sizeof(text), "%sd12,1,1\n", small_text);
    write_text(text, strlen(text));
    dataset = open_or_fail(&job);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);

    memcpy(strstr(text, "d9,60,4"), "d9,60,5", 7);
    write_text(text, strlen(text));
    dataset = open_or_fail(&job);
    ck_assert_uint_ne(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);

    write_text(small_text, strlen(small_text));
    job.data.split[KELP_SPLIT_VAL] = 4;
    job.data.split[KELP_SPLIT_TEST] = 2;
    dataset = open_or_fail(&job);
    ck_assert_uint_ne(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);
}

struct mistake {
    const char *text;
    kelp_status status;
    const char *expected; /* the error's text holds each of these, separated by '|' */
};

#define HEADER "date,A,OT\n"
#define DAY(n) "2016-07-0" #n "," #n "," #n "\n"
static const struct mistake mistakes[] = {
    {"", KELP_ERR_FORMAT, ":1: |empty|must name the columns"},
    {"\n1,2,3\n", KELP_ERR_FORMAT, ":1: |blank"},
    {"date;A;OT\n", KELP_ERR_INVALID, ":1: column OT: no such column|one of: date;A;OT"},
    {"date,A,B\nd,1,2\n", KELP_ERR_INVALID, ":1: column OT: no such column|one of: date, A, B"},
    {"date,OT,OT\nd,1,2\n", KELP_ERR_FORMAT, ":1: column OT: stands twice|columns 2 and 3"},
    {HEADER "d,1,2\nd,1\n", KELP_ERR_FORMAT, ":3: column OT: missing|2 of 3 fields"},
    {HEADER "d,1,2\nd,1,2,3\n", KELP_ERR_FORMAT, ":3: |more than the 3 fields"},
    {HEADER "d,1,2\n\nd,1,2\n", KELP_ERR_FORMAT, ":3: |blank"},
    {HEADER "d,1,2\nd,1,abc\n", KELP_ERR_FORMAT, ":3: column OT: 'abc' is not a number|-12.5"},
    {HEADER "d,1,1.5x\n", KELP_ERR_FORMAT, ":2: column OT: '1.5x' is not a number"},
    {HEADER "d,1,0x10\n", KELP_ERR_FORMAT, "'0x10' is not a number"},
    {HEADER "d,1,1 2\n", KELP_ERR_FORMAT, "'1 2' is not a number"},
    {HEADER "d,1,\"1,5\"\n", KELP_ERR_FORMAT, "'1,5' is not a number"},
    {HEADER "d,1,1e\n", KELP_ERR_FORMAT, "'1e' is not a number"},
    {HEADER "d,1,.\n", KELP_ERR_FORMAT, "'.' is not a number"},
    {HEADER "d,1,-\n", KELP_ERR_FORMAT, "'-' is not a number"},
    {HEADER "d,1,\n", KELP_ERR_FORMAT, ":2: column OT: '' is empty"},
    {HEADER "d,1,NaN\n", KELP_ERR_FORMAT, ":2: column OT: 'NaN' is not finite"},
    {HEADER "d,1,-inf\n", KELP_ERR_FORMAT, ":2: column OT: '-inf' is not finite"},
    {HEADER "d,1,1e999\n", KELP_ERR_FORMAT, ":2: column OT: '1e999' is out of range"},
    {HEADER "d,1,\"2\n", KELP_ERR_FORMAT, ":2: field 3: the quote is not closed"},
    {HEADER "d,1,\"2\"2\n", KELP_ERR_FORMAT, ":2: field 3: text follows the closing quote"},
    {HEADER "d,1,2\"2\n", KELP_ERR_FORMAT, ":2: field 3: a quote stands inside"},
    {HEADER "d,1,\x01\xff\n", KELP_ERR_FORMAT,
     "'?"
     "?' is not a number"},
    {HEADER "d,1,2\nd,1,3\n", KELP_ERR_INVALID, "has 2 rows, too few|[6, 3, 3]|needs 12"},
    {HEADER "d,1,2\nd,1,2\nd,1,2\nd,1,2\nd,1,2\nd,1,2\n"
            "d,1,3\nd,1,3\nd,1,3\nd,1,3\nd,1,3\nd,1,3\n",
     KELP_ERR_INVALID, "column OT: is constant in the training rows"},
    {HEADER "d,1,0\nd,1,1\nd,1,0\nd,1,1\nd,1,0\nd,1,1\n"
            "d,1,3\nd,1,1e300\nd,1,3\nd,1,3\nd,1,3\nd,1,3\n",
     KELP_ERR_FORMAT, ":9: column OT: |out of range once scaled"},
    {HEADER "d,1,1e308\nd,1,-1e308\nd,1,1e308\nd,1,1e308\nd,1,0\nd,1,1\n"
            "d,1,3\nd,1,3\nd,1,3\nd,1,3\nd,1,3\nd,1,3\n",
     KELP_ERR_INVALID, "column OT: is too large"},
    {HEADER DAY(1) DAY(2) DAY(3) DAY(4) DAY(5) DAY(6) DAY(7) DAY(9) DAY(8) DAY(7) DAY(6) DAY(5),
     KELP_ERR_FORMAT,
     ":10: 2016-07-08 00:00:00 does not follow the row before it (|"
     "data.csv:9: 2016-07-09 00:00:00); the rows of a series must be in the order of time"},
    {HEADER DAY(1) DAY(2) DAY(3) DAY(4) DAY(4) DAY(5) DAY(6) DAY(7) DAY(8) DAY(9) DAY(9) DAY(9),
     KELP_ERR_FORMAT, ":6: 2016-07-04 00:00:00 is the same time as in the row before it"},
};

static void check_error(const struct kelp_job *job, kelp_status expected_status,
                        const char *expected)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(job, &dataset, &error);
    ck_assert_msg(status == expected_status, "status %s for %s: %s", kelp_status_name(status),
                  expected, error.text);
    ck_assert_ptr_null(dataset);
    ck_assert_ptr_null(strchr(error.text, '\n'));
    while (*expected != '\0') {
        char part[128] = "";
        size_t bytes = strcspn(expected, "|");
        memcpy(part, expected, bytes);
        ck_assert_msg(strstr(error.text, part) != NULL, "'%s' is not in: %s", part, error.text);
        expected += bytes + (expected[bytes] == '|' ? 1 : 0);
    }
}

/* Each mistake in a file is one line that names file, line, column, and what would be right. */
KELP_LOOP_TEST(mistake_in_a_file, 0, KELP_ARRAY_COUNT(mistakes))
{
    struct kelp_job job;
    small_job(&job);
    const struct mistake *mistake = &mistakes[_i];
    write_text(mistake->text, strlen(mistake->text));
    check_error(&job, mistake->status, mistake->expected);
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    ck_assert_int_ne(kelp_dataset_open(&job, &dataset, &error), KELP_OK);
    if (mistake->status == KELP_ERR_FORMAT) {
        ck_assert_int_eq(strncmp(error.text, data_path, strlen(data_path)), 0);
    }
}

KELP_TEST(mistake_outside_the_file)
{
    struct kelp_job job;
    small_job(&job);
    check_error(&job, KELP_ERR_NOT_FOUND, "data.csv|No such file");
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s", folder);
    check_error(&job, KELP_ERR_INVALID, "a folder");
    job.data.path[0] = '\0';
    check_error(&job, KELP_ERR_INVALID, "data.path: is not set");

    small_job(&job);
    write_text(small_text, strlen(small_text));
    job.data.seq_len = 6;
    check_error(&job, KELP_ERR_INVALID, "data.split|training split has 6 rows|at least 7");
    job.data.seq_len = 2;
    job.data.pred_len = 4;
    check_error(&job, KELP_ERR_INVALID, "data.split|validation split has 3 rows|at least 4");
    job.data.split[KELP_SPLIT_VAL] = 0;
    job.data.split[KELP_SPLIT_TEST] = 0;
    struct kelp_dataset *dataset = open_or_fail(&job);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_VAL], 0);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TEST], 0);
    kelp_dataset_close(dataset);
}

/* Zero bytes, over-long lines, and too many columns are refused, not cut. */
KELP_TEST(limits)
{
    struct kelp_job job;
    small_job(&job);
    write_text("date,OT\nd,\0001\n", 13);
    check_error(&job, KELP_ERR_FORMAT, ":2: |zero byte");

    size_t bytes = KELP_CSV_LINE_MAX + 64;
    char *text = malloc(bytes);
    ck_assert_ptr_nonnull(text);
    memset(text, 'x', bytes);
    write_text(text, bytes);
    check_error(&job, KELP_ERR_LIMIT, ":1: the line is longer");
    memset(text, ',', 2000);
    text[2000] = '\n';
    write_text(text, 2001);
    check_error(&job, KELP_ERR_LIMIT, ":1: |more than 1024 columns");
    memset(text, 'x', 100);
    write_text(text, 2001);
    check_error(&job, KELP_ERR_LIMIT, ":1: |longer than 63 bytes");
    free(text);
}

/* Any decimal text gives the double that strtod gives. */
KELP_TEST(numbers_round_correctly)
{
    static const char *const numbers[] = {"0.1",
                                          "30.5310001373291",
                                          "9007199254740993",
                                          "9007199254740992",
                                          "1e22",
                                          "1e23",
                                          "123456789012345678901234567890",
                                          "0.000000000000000000000000000123",
                                          "2.2250738585072014e-308",
                                          "4.9e-324",
                                          "1e-400",
                                          "179769313486231570000e288",
                                          "-8.41",
                                          "0.30000000000000004",
                                          "7.038531e-26"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        char text[128];
        int bytes = snprintf(text, sizeof(text), "OT\n%s\n", numbers[i]);
        struct kelp_series series;
        struct kelp_error error = {0};
        ck_assert_int_eq(kelp_series_parse("t", text, (size_t)bytes, "OT", &series, &error),
                         KELP_OK);
        ck_assert_uint_eq(series.row_count, 1);
        ck_assert_msg(series.values[0] == strtod(numbers[i], NULL), "%s became %.17g", numbers[i],
                      series.values[0]);
        kelp_series_fini(&series);
    }
}

/* The series that is generated does not depend on the machine, and its CSV file is the same data.
 */
KELP_TEST(synthetic_series)
{
    struct kelp_job job;
    small_job(&job);
    job.data.kind = KELP_DATA_SYNTHETIC;
    job.data.features = KELP_FEATURES_M;
    job.data.seq_len = 96;
    job.data.pred_len = 24;
    job.data.rows = 2000;
    job.data.split[KELP_SPLIT_TRAIN] = 1200;
    job.data.split[KELP_SPLIT_VAL] = 400;
    job.data.split[KELP_SPLIT_TEST] = 400;
    struct kelp_dataset *dataset = open_or_fail(&job);
    uint64_t fingerprint = kelp_dataset_info(dataset)->fingerprint;
    kelp_dataset_close(dataset);

    struct kelp_error error = {0};
    kelp_status status = kelp_dataset_write_synthetic(data_path, job.data.rows, job.seed, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    job.data.kind = KELP_DATA_CSV;
    dataset = open_or_fail(&job);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[0].dims[1], 7);
    char time[KELP_DATASET_LABEL_BYTES];
    kelp_dataset_time(dataset, KELP_SPLIT_VAL, 0, 23, time);
    ck_assert_str_eq(time, "2016-08-20 23:00:00"); /* row 1223 */
    kelp_dataset_close(dataset);

    job.data.kind = KELP_DATA_SYNTHETIC;
    job.seed++;
    dataset = open_or_fail(&job);
    kelp_dataset_time(dataset, KELP_SPLIT_VAL, 0, 23, time);
    ck_assert_str_eq(time, "2016-08-20 23:00:00");
    ck_assert_uint_ne(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);
    (void)snprintf(job.data.target, sizeof(job.data.target), "XX");
    job.data.features = KELP_FEATURES_S;
    check_error(&job, KELP_ERR_INVALID, "column XX: no such column|HUFL");
}

/* The first row that seed 2021 gives is this on every machine; a change of it changes the digest of
 * every job on generated data. */
KELP_TEST(synthetic_series_is_fixed)
{
    struct kelp_series series;
    struct kelp_error error = {0};
    ck_assert_int_eq(kelp_synthetic_generate(1000, 2021, NULL, &series, &error), KELP_OK);
    static const double first[7] = {5.324, 1.629, 3.218, 0.557, 3.010, 0.757, 16.614};
    static const double last[7] = {10.311, 3.214, 7.394, 1.689, 1.690, 0.558, 27.640};
    for (int i = 0; i < 7; i++) {
        ck_assert_msg(series.values[i] == first[i], "first %d: %.3f", i, series.values[i]);
        ck_assert_msg(series.values[999 * 7 + i] == last[i], "last %d: %.3f", i,
                      series.values[999 * 7 + i]);
    }
    kelp_series_fini(&series);
    ck_assert_int_eq(kelp_synthetic_generate(0, 1, NULL, &series, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_synthetic_generate(KELP_SYNTHETIC_ROWS_MAX + 1, 1, NULL, &series, &error),
                     KELP_ERR_INVALID);
}

/* A place that cannot be written is one line, and nothing is left there. */
KELP_TEST(synthetic_file_mistakes)
{
    struct kelp_error error = {0};
    ck_assert_int_eq(kelp_dataset_write_synthetic("/tmp/no-such-folder/x/data.csv", 10, 1, &error),
                     KELP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "/tmp/no-such-folder/x/data.csv: cannot be created"));
    ck_assert_int_eq(kelp_dataset_write_synthetic("/dev/null", 10, 1, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_dataset_write_synthetic(folder, 10, 1, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_dataset_write_synthetic(data_path, 0, 1, &error), KELP_ERR_INVALID);
    ck_assert_int_ne(access(data_path, F_OK), 0);
}
