/*
 * Panels of small CSV files: windows of several series, their scales, and each mistake a file or a
 * job can hold.
 */
#include <string.h>

#include "tests/lib/models/table_bench.h"
#include "tests/lib/suite.h"

static struct kelp_job *const job = &table_bench.job;

/* Two series of 8 hours, b first, mixed and out of order; y is 10 * hour in a, 100 + hour in b. */
static const char panel_text[] = "series,t,y,k,c\n"
                                 "b,2020-01-01 00:00:00,100,0,5\n"
                                 "a,2020-01-01 01:00:00,10,1,6\na,2020-01-01 00:00:00,0,0,6\n"
                                 "b,2020-01-01 01:00:00,101,1,5\nb,2020-01-01 02:00:00,102,2,5\n"
                                 "a,2020-01-01 02:00:00,20,2,6\na,2020-01-01 03:00:00,30,3,6\n"
                                 "b,2020-01-01 03:00:00,103,3,5\nb,2020-01-01 04:00:00,104,4,5\n"
                                 "a,2020-01-01 04:00:00,40,4,6\na,2020-01-01 05:00:00,50,5,6\n"
                                 "b,2020-01-01 05:00:00,105,5,5\nb,2020-01-01 06:00:00,106,6,5\n"
                                 "a,2020-01-01 06:00:00,60,6,6\na,2020-01-01 07:00:00,70,7,6\n"
                                 "b,2020-01-01 07:00:00,107,7,5\n";

static void panel_job(void)
{
    job->data.kind = KELP_DATA_PANEL;
    TABLE_SET(job->data.columns, "c");
    TABLE_SET(job->data.known, "k");
    TABLE_SET(job->data.time, "t");
    TABLE_SET(job->data.group, "series");
    job->data.seq_len = 2;
    job->data.pred_len = 2;
    job->data.split[KELP_SPLIT_TRAIN] = 5;
    job->data.split[KELP_SPLIT_VAL] = 3;
}

KELP_CASE("panel", .timeout_s = 60, .setup = table_setup, .teardown = table_teardown)

KELP_TEST(windows_of_a_panel)
{
    panel_job();
    table_write("data.csv", panel_text);
    struct kelp_dataset *dataset = table_open();
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 4);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 4);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 0);
    ck_assert_uint_eq(info->shape.input_count, 4);
    ck_assert_uint_eq(info->shape.inputs[0].vocab[0], 2);
    ck_assert_uint_eq(info->shape.inputs[2].dims[1], 2);
    ck_assert_uint_eq(info->shape.target.rank, 1);
    /* Series, known, observed (target, column), known ahead, target. */
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 0,
                    (const double[]){0, 0, 1, 100, 5, 101, 5, 2, 3, 102, 103});
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 3,
                    (const double[]){1, 1, 2, 10, 6, 20, 6, 3, 4, 30, 40});
    table_sample_is(dataset, KELP_SPLIT_VAL, 0,
                    (const double[]){0, 3, 4, 103, 5, 104, 5, 5, 6, 105, 106});
    table_sample_is(dataset, KELP_SPLIT_VAL, 3,
                    (const double[]){1, 4, 5, 40, 6, 50, 6, 6, 7, 60, 70});
    char text[KELP_DATASET_LABEL_BYTES];
    kelp_dataset_time(dataset, KELP_SPLIT_VAL, 3, 1, text);
    ck_assert_str_eq(text, "2020-01-01 07:00:00");
    kelp_dataset_group(dataset, KELP_SPLIT_VAL, 3, text);
    ck_assert_str_eq(text, "a");
    kelp_dataset_close(dataset);
    /* The first samples are of all series. */
    job->data.limit = 2;
    dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 1,
                    (const double[]){1, 0, 1, 0, 6, 10, 6, 2, 3, 20, 30});
    kelp_dataset_close(dataset);
}

/* Targets by their series' own training rows, inputs by those of all. */
KELP_TEST(scales_of_a_panel)
{
    panel_job();
    TABLE_SET(job->data.columns, "");
    table_write("data.csv", panel_text);
    job->data.normalize = KELP_NORMALIZE_MINMAX;
    job->data.normalize_target = KELP_NORMALIZE_MINMAX;
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[2].rank, 1);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 0,
                    (const double[]){0, 0, 0.25, 0, 0.25, 0.5, 0.75, 0.5, 0.75});
    table_sample_is(dataset, KELP_SPLIT_VAL, 3,
                    (const double[]){1, 1, 1.25, 1, 1.25, 1.5, 1.75, 1.5, 1.75});
    struct kelp_target_scale scale;
    kelp_dataset_target_scales(dataset, KELP_SPLIT_VAL, 2, &scale);
    ck_assert(scale.factor == 4.0 && scale.shift == 100.0);
    kelp_dataset_target_scales(dataset, KELP_SPLIT_VAL, 3, &scale);
    ck_assert(scale.factor == 40.0 && scale.shift == 0.0);
    kelp_dataset_close(dataset);
}

/* One series, times that are numbers, nothing known ahead. */
KELP_TEST(single_series)
{
    panel_job();
    table_write("data.csv", "t,y\n3,30\n1,10\n2,20\n0,0\n");
    TABLE_SET(job->data.group, "");
    TABLE_SET(job->data.known, "");
    TABLE_SET(job->data.columns, "");
    job->data.split[KELP_SPLIT_TRAIN] = 4;
    job->data.split[KELP_SPLIT_VAL] = 0;
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.input_count, 2);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){0, 0, 10, 20, 30});
    char text[KELP_DATASET_LABEL_BYTES];
    kelp_dataset_time(dataset, KELP_SPLIT_TRAIN, 0, 1, text);
    ck_assert_str_eq(text, "3");
    kelp_dataset_close(dataset);
}

KELP_TEST(mistakes_in_a_panel)
{
    panel_job();
    table_write("data.csv", panel_text);
    job->data.split[KELP_SPLIT_VAL] = 4;
    table_refused(KELP_ERR_INVALID, "series b has 8 rows, too few for data.split, which needs 9");
    job->data.split[KELP_SPLIT_VAL] = 1;
    table_refused(KELP_ERR_INVALID, "data.split: the validation split has 1 rows|at least 2");
    job->data.split[KELP_SPLIT_VAL] = 3;
    job->data.pred_len = 4;
    table_refused(KELP_ERR_INVALID, "data.split: the training split has 5 rows|at least 6");
    job->data.pred_len = 2;
    job->data.vocab[0] = 1;
    job->data.vocab_count = 1;
    table_refused(KELP_ERR_INVALID, "data.vocab|2 of them");
    job->data.vocab_count = 0;
    TABLE_SET(job->data.time, "");
    table_refused(KELP_ERR_INVALID, "data.time: is empty");
    TABLE_SET(job->data.time, "t");

    char text[sizeof(panel_text)];
    memcpy(text, panel_text, sizeof(text));
    memcpy(strstr(text, "06:00:00"), "05:00:00", 8);
    table_write("data.csv", text);
    table_refused(KELP_ERR_FORMAT, "data.csv:14: series b: has the same time|data.csv:13");
    memcpy(text, panel_text, sizeof(text));
    memcpy(strstr(text, "06:00:00"), "06:30:00", 8);
    table_write("data.csv", text);
    table_refused(KELP_ERR_FORMAT, "data.csv:14: series b: does not follow|data.csv:13");
    memcpy(text, panel_text, sizeof(text));
    memcpy(strstr(text, "06:00:00"), "06:77:00", 8);
    table_write("data.csv", text);
    table_refused(KELP_ERR_FORMAT, "data.csv:14: column t: '2020-01-01 06:77:00' is not a time");
}
