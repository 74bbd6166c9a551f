/* metrics.jsonl as a table, and CSV fields. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/metrics_log.h"
#include "cli/runs/metrics_compare.h"
#include "cli/verb/csv_text.h"
#include "common/base/files.h"
#include "tests/lib/suite.h"

static char folder[64];
static struct kelp_error error;
static struct kelp_metrics_log metrics;

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-metrics-log-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    memset(&error, 0, sizeof(error));
    memset(&metrics, 0, sizeof(metrics));
}

static void teardown(void)
{
    kelp_metrics_log_fini(&metrics);
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

static void write_log(const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    ck_assert_int_eq(kelp_files_write(path, text, strlen(text), NULL), KELP_OK);
}

KELP_CASE("metrics_log", .setup = setup, .teardown = teardown)

/* Each line is a row with its place and its numbers, null is NaN, and a line that is being written
 * is not there yet. */
KELP_TEST(rows_and_cells)
{
    write_log("{\"version\":3,\"step\":4,\"epoch\":1,\"train/loss\":1.5,\"lr\":0.5}\n"
              "{\"version\":4,\"step\":4,\"epoch\":1,\"val/loss\":2,\"val/auc\":null}\n"
              "{\"version\":9,\"step\":8");
    ck_assert_msg(kelp_metrics_log_read(folder, &metrics, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(metrics.row_count, 2);
    ck_assert_uint_eq(metrics.name_count, 4);
    ck_assert_uint_eq(metrics.rows[1].version, 4);
    ck_assert_uint_eq(metrics.rows[1].step, 4);
    ck_assert_uint_eq(metrics.rows[1].epoch, 1);
    ck_assert_double_eq(kelp_metrics_log_cell(&metrics, &metrics.rows[0], "lr")->value, 0.5);
    ck_assert(isnan(kelp_metrics_log_cell(&metrics, &metrics.rows[1], "val/auc")->value));
    ck_assert_ptr_null(kelp_metrics_log_cell(&metrics, &metrics.rows[1], "lr"));
}

/* A damaged line is named; a glance leaves it out. */
KELP_TEST(damaged_lines)
{
    write_log("{\"step\":4,\"train/loss\":1.5}\nnonsense\n{\"step\":5,\"train/loss\":[1]}\n"
              "{\"step\":-1}\n{\"step\":8,\"train/loss\":0.5}\n");
    ck_assert_int_eq(kelp_metrics_log_read(folder, &metrics, &error), KELP_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "/metrics.jsonl:2: "));
    ck_assert_int_eq(kelp_metrics_log_read_end(folder, &metrics, &error), KELP_OK);
    ck_assert_uint_eq(metrics.row_count, 3);
    ck_assert_uint_eq(metrics.rows[1].cell_count, 0);
    ck_assert_double_eq(kelp_metrics_log_cell(&metrics, &metrics.rows[2], "train/loss")->value,
                        0.5);
}

/* There are limits: of names, and of their length. */
KELP_TEST(limits)
{
    char text[8192];
    size_t used = (size_t)snprintf(text, sizeof(text), "{\"step\":1");

    for (unsigned i = 0; i <= KELP_METRICS_LOG_NAMES_MAX; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, ",\"m%u\":1", i);
    }
    (void)snprintf(text + used, sizeof(text) - used, "}\n");
    write_log(text);
    ck_assert_int_eq(kelp_metrics_log_read(folder, &metrics, &error), KELP_ERR_LIMIT);
    write_log("{\"step\":1,\"a-name-that-is-too-long-to-be-one\":1}\n");
    ck_assert_int_eq(kelp_metrics_log_read(folder, &metrics, &error), KELP_ERR_LIMIT);
    ck_assert_int_eq(kelp_metrics_log_read("/nowhere", &metrics, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_metrics_log_read_end("/nowhere", &metrics, &error), KELP_ERR_NOT_FOUND);
}

/* A glance reads the end alone, from the first whole line on. */
KELP_TEST(end_of_a_long_file)
{
    size_t lines = 4000;
    char *text = malloc(lines * 64);
    size_t used = 0;

    for (size_t i = 1; i <= lines; i++) {
        used += (size_t)snprintf(text + used, 64, "{\"step\":%zu,\"train/loss\":%zu}\n", i, i);
    }
    write_log(text);
    free(text);
    ck_assert_int_eq(kelp_metrics_log_read_end(folder, &metrics, &error), KELP_OK);
    ck_assert_uint_lt(metrics.row_count, lines);
    ck_assert_uint_gt(metrics.row_count, 1000);
    ck_assert_uint_eq(metrics.rows[metrics.row_count - 1].step, lines);
    kelp_metrics_log_fini(&metrics);
    ck_assert_int_eq(kelp_metrics_log_read(folder, &metrics, &error), KELP_OK);
    ck_assert_uint_eq(metrics.row_count, lines);
}

/* The first value of the same step and name that differs; NaN is NaN, and what one has alone does
 * not count. */
KELP_TEST(first_difference)
{
    static const char *const texts[] = {
        "{\"version\":3,\"step\":4,\"epoch\":1,\"train/loss\":1.5,\"lr\":0.5}\n"
        "{\"version\":4,\"step\":4,\"epoch\":1,\"val/loss\":null}\n"
        "{\"version\":9,\"step\":8,\"epoch\":2,\"train/loss\":1,\"lr\":0.25}\n",
        /* Evaluations less often. */
        "{\"version\":3,\"step\":4,\"epoch\":1,\"train/loss\":1.5,\"lr\":0.5}\n"
        "{\"version\":8,\"step\":8,\"epoch\":2,\"train/loss\":1,\"lr\":0.25}\n",
        "{\"version\":3,\"step\":4,\"epoch\":1,\"train/loss\":1.5,\"lr\":0.5}\n"
        "{\"version\":4,\"step\":4,\"epoch\":1,\"val/loss\":null}\n"
        "{\"version\":9,\"step\":8,\"epoch\":2,\"train/loss\":1,\"lr\":0.125}\n",
        "{\"version\":4,\"step\":4,\"epoch\":1,\"val/loss\":2}\n"};
    static const struct {
        int other;
        size_t common;
        const char *name; /* NULL: none */
        uint64_t step;
    } cases[] = {{0, 5, NULL, 0}, {1, 4, NULL, 0}, {2, 5, "lr", 8}, {3, 1, "val/loss", 4}};
    struct kelp_metrics_log other;
    struct kelp_metrics_difference difference;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        write_log(texts[0]);
        ck_assert_int_eq(kelp_metrics_log_read(folder, &metrics, &error), KELP_OK);
        write_log(texts[cases[i].other]);
        ck_assert_int_eq(kelp_metrics_log_read(folder, &other, &error), KELP_OK);
        kelp_metrics_log_compare(&metrics, &other, &difference);
        ck_assert_uint_eq(difference.common, cases[i].common);
        ck_assert_int_eq(difference.found, cases[i].name != NULL);
        ck_assert_str_eq(difference.name, cases[i].name ? cases[i].name : "");
        ck_assert_uint_eq(difference.step, cases[i].step);
        kelp_metrics_log_fini(&metrics);
        kelp_metrics_log_fini(&other);
    }
}

/* Fields of CSV are quoted where they must be. */
KELP_TEST(csv_fields)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    kelp_csv_print_text(out, "plain");
    kelp_csv_print_text(out, "a,b \"c\"\n");
    kelp_csv_print_double(out, 0.1);
    kelp_csv_print_double(out, (double)NAN);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, "plain\"a,b \"\"c\"\"\n\"0.10000000000000001");
    free(text);
}
