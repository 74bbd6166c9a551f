/*
 * What a table is made of, on damaged input: expressions, dates, prepared data out of a cache, and
 * whole files through a table and a panel. Whatever the bytes, the answer is finite numbers in the
 * promised shape or one line of error, and nothing outside the input is touched.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"
#include "worker/data/table/prepared.h"
#include "worker/data/text/calendar.h"
#include "worker/data/text/expression.h"

/* A run by hand may have more: KELP_FUZZ_INPUTS=1000000. */
static uint64_t input_count(uint64_t usual)
{
    const char *more = getenv("KELP_FUZZ_INPUTS");
    return more != NULL ? strtoull(more, NULL, 10) : usual;
}

static uint64_t accepted;

/* One input in so many is taken at least, and one refused: else they would not get far. */
static void run_counted(const struct kelp_fuzz *fuzz, uint64_t inputs, uint64_t one_in)
{
    uint64_t count = input_count(inputs);

    accepted = 0;
    if (kelp_fuzz_run(fuzz, 0, count)) {
        ck_assert_uint_gt(accepted, count / one_in);
        ck_assert_uint_lt(accepted, count - count / one_in);
    }
}

/* ---- expressions --------------------------------------------------------------------------- */

static const struct kelp_fuzz_seed expressions[] = {
    KELP_FUZZ_TEXT("a + 2 * (b - 1) / -c"),
    KELP_FUZZ_TEXT("a == 'text' and not missing(b) or hour(t) >= 7.5e0"),
    KELP_FUZZ_TEXT("min(abs(a), max(`b c`, log(sqrt(2)))) != weekday(a + 86400)"),
    KELP_FUZZ_TEXT("sin(2 * pi * floor(a) / 24) < cos(b)"),
};
static const char *const expression_words[] = {
    "(",     ")",     "and", "or", "not", "==", "!=",       "'x'",   "`",
    "hour(", "1e308", "*",   "/",  ",",   "a",  "missing(", "year(", " "};

static kelp_status any_slot(void *context, const struct kelp_expression_column *column,
                            uint32_t *ret_slot, struct kelp_error *reterr)
{
    (void)context;
    (void)reterr;
    *ret_slot = (uint32_t)strlen(column->name) % 4;
    return KELP_OK;
}

static const char *try_expression(const uint8_t *bytes, size_t count)
{
    const struct kelp_expression_columns columns = {.slot = any_slot};
    const double slots[4] = {1.5, -1e300, (double)NAN, 1e17};
    struct kelp_expression *expression = NULL;
    struct kelp_error error = {0};
    char *text = calloc(count + 1, 1);
    memcpy(text, bytes, count);
    kelp_status status = kelp_expression_compile(text, &columns, &expression, &error);
    free(text);
    if (status != KELP_OK) {
        return error.text[0] != '\0' && expression == NULL ? NULL : "no error text";
    }
    double value = kelp_expression_value(expression, slots);
    kelp_expression_destroy(expression);
    accepted++;
    return isinf(value) ? "an infinite value" : NULL;
}

KELP_CASE("table", .timeout_s = 300)

KELP_TEST(damaged_expressions)
{
    const struct kelp_fuzz fuzz = {.name = "expressions",
                                   .seeds = expressions,
                                   .seed_count = KELP_ARRAY_COUNT(expressions),
                                   .words = expression_words,
                                   .word_count = KELP_ARRAY_COUNT(expression_words),
                                   .target = try_expression};
    run_counted(&fuzz, 50000, 50);
}

/* ---- dates --------------------------------------------------------------------------------- */

static const struct kelp_fuzz_seed dates[] = {
    KELP_FUZZ_TEXT("2017-03-25 08:55:43"),
    KELP_FUZZ_TEXT(" 2000-02-29T23:59:59.125 "),
    KELP_FUZZ_TEXT("9999-12-31"),
};
static const char *const date_words[] = {"0", "9", "-", ":", " ", "T", "."};

/* A date that is read is in range, and printed it is read as the same second. */
static const char *try_date(const uint8_t *bytes, size_t count)
{
    int64_t seconds = 0;
    int64_t again = 0;
    char text[KELP_CALENDAR_TEXT_BYTES];
    if (!kelp_calendar_parse((const char *)bytes, count, &seconds)) {
        return NULL;
    }
    if (seconds < KELP_CALENDAR_MIN || seconds > KELP_CALENDAR_MAX) {
        return "out of range";
    }
    kelp_calendar_print(seconds, text);
    accepted++;
    return kelp_calendar_parse(text, strlen(text), &again) && again == seconds ? NULL
                                                                               : "another second";
}

KELP_TEST(damaged_dates)
{
    const struct kelp_fuzz fuzz = {.name = "dates",
                                   .seeds = dates,
                                   .seed_count = KELP_ARRAY_COUNT(dates),
                                   .words = date_words,
                                   .word_count = KELP_ARRAY_COUNT(date_words),
                                   .target = try_date};
    run_counted(&fuzz, 50000, 50);
}

/* ---- prepared data ------------------------------------------------------------------------- */

/* Its card has 16 bytes; a count stands before it and a digest behind it. */
#define CARD       "{\"format\": 1   }"
#define CARD_BYTES (sizeof(CARD) - 1 + 2 * sizeof(uint64_t))

static void make_digest(uint8_t *bytes, size_t first, size_t end)
{
    uint64_t digest = kelp_digest_bytes(bytes + first, end - first - sizeof(digest));
    memcpy(bytes + end - sizeof(digest), &digest, sizeof(digest));
}

/* What is damaged is refused; what passes (the digests are made right again) holds together. */
static const char *try_prepared(const uint8_t *bytes, size_t count)
{
    /* Mapped data are aligned; a heap block of the fuzzer's may be too, its digest is not right. */
    struct kelp_prepared prepared;
    size_t whole = count - count % 8;
    if (whole < CARD_BYTES + sizeof(uint64_t)) {
        return NULL;
    }
    uint8_t *copy = malloc(whole);
    memcpy(copy, bytes, whole);
    make_digest(copy, 0, whole - CARD_BYTES);
    make_digest(copy, whole - CARD_BYTES, whole);
    const char *problem = NULL;
    if (kelp_prepared_look(copy, whole, &prepared, NULL) == KELP_OK) {
        accepted++;
        const struct kelp_prepared_shape *shape = prepared.shape;
        const uint8_t *end = (const uint8_t *)(prepared.planes[1] + shape->rows * shape->widths[1]);
        const uint8_t *card_end = (const uint8_t *)prepared.card + prepared.card_bytes;
        problem =
            end <= copy + whole - CARD_BYTES - sizeof(uint64_t) ? NULL : "planes beyond the end";
        problem = card_end == copy + whole - sizeof(uint64_t) ? problem : "a card beyond the end";
        for (uint64_t i = 0; i < shape->series_count && problem == NULL; i++) {
            const struct kelp_prepared_series *series = &prepared.series[i];
            problem = strlen(series->name) < sizeof(series->name) &&
                              series->first_row + series->row_count <= shape->rows
                          ? NULL
                          : "a series beyond the end";
        }
    }
    free(copy);
    return problem;
}

KELP_TEST(damaged_prepared_data)
{
    const struct kelp_prepared_series series[2] = {{.name = "a", .row_count = 3},
                                                   {.name = "b", .first_row = 3, .row_count = 3}};
    const struct kelp_target_scale scales[2] = {{1, 0}, {2, 1}};
    const struct kelp_prepared_parts parts = {.shape = {.rows = 6,
                                                        .file_rows = {6, 0, 0},
                                                        .widths = {2, 1},
                                                        .series_count = 2,
                                                        .target_count = 1,
                                                        .scale_rows = 2},
                                              .series = series,
                                              .scales = scales};
    const float values[18] = {0};
    struct kelp_spool spool;
    struct kelp_prepared prepared;
    struct kelp_prepared_writer writer;
    ck_assert_int_eq(kelp_spool_open(&spool, NULL, false, NULL), KELP_OK);
    ck_assert_int_eq(kelp_prepared_begin(&writer, &spool, &parts, NULL), KELP_OK);
    ck_assert_int_eq(kelp_prepared_floats(&writer, values, 18, NULL), KELP_OK);
    ck_assert_int_eq(kelp_prepared_end(&writer, CARD, &prepared, NULL), KELP_OK);
    const struct kelp_fuzz_seed seed = {.bytes = spool.bytes, .count = spool.count};
    static const char *const words[] = {"\xff\xff\xff\xff\xff\xff\xff\x7f", "\x01"};
    const struct kelp_fuzz fuzz = {.name = "prepared",
                                   .seeds = &seed,
                                   .seed_count = 1,
                                   .words = words,
                                   .word_count = KELP_ARRAY_COUNT(words),
                                   .target = try_prepared};
    run_counted(&fuzz, 50000, 100);
    kelp_spool_fini(&spool);
}

/* ---- whole files --------------------------------------------------------------------------- */

static const struct kelp_fuzz_seed tables[] = {
    KELP_FUZZ_TEXT("t,g,x,y\n2020-01-01 00:00:00,a,1,10\n2020-01-01 01:00:00,a,2,20\n"
                   "2020-01-01 02:00:00,a,3,30\n2020-01-01 03:00:00,a,4.5,41\n"),
    KELP_FUZZ_TEXT("\xef\xbb\xbfy,\"x\",g,t\r\n1,2,b,0\r\n2,3,\"c\"\"d\",1\r\n3,,b,1\r\n4,4,b,2\r\n"
                   "5,NA,b,3\r\n6,6,c\"\"d,2\r\n"),
    KELP_FUZZ_TEXT("t,y,x,g\n0,1,1,b\n1,2,2,b\n2,1,1,b\n3,2,2,b\n4,1,1,b\n5,2,2,b\n"),
};
static const char *const table_words[] = {",", "\n", "\"", "nan", "1e300", "2020-01-01", ",,", "a"};

static const char *check_all(const struct kelp_dataset *dataset)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    uint64_t inputs = kelp_sample_input_count(&info->shape);
    uint64_t targets = kelp_sample_target_count(&info->shape);
    float *values = calloc((size_t)(inputs + targets), sizeof(*values));
    const char *problem = NULL;
    for (int part = 0; part < KELP_SPLIT_COUNT; part++) {
        for (uint64_t i = 0; i < info->samples[part] && problem == NULL; i++) {
            if (kelp_dataset_read(dataset, (enum kelp_split)part, &i, 1, values, values + inputs) !=
                KELP_OK) {
                problem = "a sample that cannot be read";
            }
            for (uint64_t v = 0; v < inputs + targets && problem == NULL; v++) {
                problem = isfinite(values[v]) ? NULL : "a value that is not finite";
            }
            if (problem == NULL && !(values[0] < (float)info->shape.inputs[0].vocab[0])) {
                problem = "a category out of range";
            }
        }
    }
    free(values);
    return problem;
}

static struct kelp_job table_job;

static const char *try_table(const uint8_t *bytes, size_t count)
{
    int fd = memfd_create("table", 0);
    if (fd < 0 || write(fd, bytes, count) != (ssize_t)count) {
        return "no file in memory";
    }
    (void)snprintf(table_job.data.path, sizeof(table_job.data.path), "/proc/self/fd/%d", fd);
    struct kelp_dataset *dataset = NULL;
    struct kelp_error error = {0};
    const char *problem = NULL;
    if (kelp_dataset_open(&table_job, &dataset, &error) == KELP_OK) {
        problem = check_all(dataset);
        accepted++;
    } else {
        problem =
            error.text[0] != '\0' && strchr(error.text, '\n') == NULL ? NULL : "no error text";
    }
    kelp_dataset_close(dataset);
    (void)close(fd);
    return problem;
}

static void run_tables(const char *name)
{
    const struct kelp_fuzz fuzz = {.name = name,
                                   .seeds = tables,
                                   .seed_count = KELP_ARRAY_COUNT(tables),
                                   .words = table_words,
                                   .word_count = KELP_ARRAY_COUNT(table_words),
                                   .target = try_table};
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", "/proc/none", 1), 0);
    run_counted(&fuzz, 5000, 100);
}

#define SET(field, text) (void)snprintf(field, sizeof(field), "%s", text)

KELP_TEST(damaged_tables)
{
    memset(&table_job, 0, sizeof(table_job));
    table_job.data.kind = KELP_DATA_TABLE;
    table_job.data.missing = KELP_MISSING_MEAN;
    table_job.data.test_every = 3;
    SET(table_job.data.categories, "g");
    SET(table_job.data.derive, "late = hour(t) > 0\nz = x / y");
    SET(table_job.data.filter, "not missing(y)");
    SET(table_job.data.columns, "x\nz\nlate");
    SET(table_job.data.targets, "y");
    run_tables("tables");
}

KELP_TEST(damaged_panels)
{
    memset(&table_job, 0, sizeof(table_job));
    table_job.data.kind = KELP_DATA_PANEL;
    table_job.data.missing = KELP_MISSING_ZERO;
    table_job.data.seq_len = 1;
    table_job.data.pred_len = 1;
    table_job.data.split[KELP_SPLIT_TRAIN] = 2;
    table_job.data.split[KELP_SPLIT_VAL] = 1;
    table_job.data.normalize_target = KELP_NORMALIZE_STANDARD;
    SET(table_job.data.group, "g");
    SET(table_job.data.time, "t");
    SET(table_job.data.known, "x");
    SET(table_job.data.targets, "y");
    SET(table_job.data.filter, "g != 'c\"d'");
    run_tables("panels");
}
