/*
 * Tables and panels of small CSV files: what becomes of each column, how missing values,
 * categories, splits and scales work, the cache, and each mistake a file or a job can hold.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/files.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"

static char folder[64];
static char data_path[128];
static struct kelp_job job;

#define SET(field, text)                                                                           \
    ck_assert_int_lt(snprintf(field, sizeof(field), "%s", text), (int)sizeof(field))

static void set_up(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-table-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(data_path, sizeof(data_path), "%s/data.csv", folder);
    memset(&job, 0, sizeof(job));
    job.data.kind = KELP_DATA_TABLE;
    SET(job.data.path, data_path);
    (void)snprintf(job.data.cache, sizeof(job.data.cache), "%s/cache", folder);
    SET(job.data.columns, "x");
    SET(job.data.targets, "y");
}

static void tear_down(void)
{
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

static void write_file(const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, strlen(text), file), strlen(text));
    ck_assert_int_eq(fclose(file), 0);
}

static struct kelp_dataset *open_or_fail(void)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(&job, &dataset, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return dataset;
}

static void check_refused(kelp_status expected_status, const char *expected)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(&job, &dataset, &error);
    ck_assert_msg(status == expected_status, "%s for %s: %s", kelp_status_name(status), expected,
                  error.text);
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

static uint64_t fingerprint(void)
{
    struct kelp_dataset *dataset = open_or_fail();
    uint64_t value = kelp_dataset_info(dataset)->fingerprint;
    kelp_dataset_close(dataset);
    return value;
}

/* Sample `index` of a part is these numbers, inputs and then targets. */
static void check_sample(const struct kelp_dataset *dataset, enum kelp_split part, uint64_t index,
                         const double *expected)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    float input[64];
    float target[16];
    uint64_t inputs = kelp_sample_input_count(&info->shape);
    uint64_t targets = kelp_sample_target_count(&info->shape);
    ck_assert_uint_le(inputs, 64);
    ck_assert_uint_le(targets, 16);
    ck_assert_int_eq(kelp_dataset_read(dataset, part, &index, 1, input, target), KELP_OK);
    for (uint64_t i = 0; i < inputs + targets; i++) {
        float value = i < inputs ? input[i] : target[i - inputs];
        ck_assert_msg(value == (float)expected[i], "part %d sample %llu value %llu: %.9g, not %.9g",
                      (int)part, (unsigned long long)index, (unsigned long long)i, (double)value,
                      expected[i]);
    }
}

/* ---- tables -------------------------------------------------------------------------------- */

KELP_CASE("table", .timeout_s = 60, .setup = set_up, .teardown = tear_down)

static void count_rows(void *user, const char *path, uint64_t rows)
{
    uint64_t *told = user;

    ck_assert_str_eq(path, data_path);
    ck_assert_uint_eq(rows, *told + KELP_DATASET_WATCH_ROWS);
    *told = rows;
}

/* Whoever waits for a long file hears how far reading is; what is prepared already is not read. */
KELP_TEST(progress_is_told)
{
    uint64_t told = 0;
    const struct kelp_dataset_watch watch = {.rows = count_rows, .user = &told};
    FILE *file = fopen(data_path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_gt(fprintf(file, "x,y\n"), 0);
    for (unsigned i = 0; i < 2 * KELP_DATASET_WATCH_ROWS + 5; i++) {
        ck_assert_int_gt(fprintf(file, "%u,%u\n", i % 7, i % 3), 0);
    }
    ck_assert_int_eq(fclose(file), 0);
    for (int again = 0; again < 2; again++) {
        struct kelp_dataset *dataset = NULL;
        ck_assert_int_eq(kelp_dataset_open_watched(&job, &watch, &dataset, NULL), KELP_OK);
        kelp_dataset_close(dataset);
        ck_assert_uint_eq(told, 2 * KELP_DATASET_WATCH_ROWS);
    }
}

/* Categories first, then numbers in the job's order, then targets; derived columns are columns. */
KELP_TEST(columns_of_all_kinds)
{
    write_file("data.csv", "when,kind,x,y,z\n"
                           "2020-01-06 07:30:00,\"b, c\",1,10,0\n"
                           "2020-01-12 23:00:00,a,2,20,1\n"
                           "2020-01-07 00:00:00,\"b, c\",3,30,0\n");
    SET(job.data.derive, "day = weekday(when)\nsum = x + y\nodd = `x` - 2 * floor(x / 2)");
    SET(job.data.columns, "sum\nx");
    SET(job.data.categories, "kind\nday");
    SET(job.data.targets, "y\nodd");
    struct kelp_dataset *dataset = open_or_fail();
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 3);
    ck_assert_uint_eq(info->shape.input_count, 2);
    ck_assert_uint_eq(info->shape.inputs[0].vocab_count, 2);
    ck_assert_uint_eq(info->shape.inputs[0].vocab[0], 2);
    ck_assert_uint_eq(info->shape.inputs[0].vocab[1], 3);
    ck_assert_uint_eq(info->target_columns, 2);
    ck_assert_str_eq(kelp_dataset_target_name(dataset, 1), "odd");
    check_sample(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){0, 0, 11, 1, 10, 1});
    check_sample(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){1, 1, 22, 2, 20, 0});
    check_sample(dataset, KELP_SPLIT_TRAIN, 2, (const double[]){0, 2, 33, 3, 30, 1});
    kelp_dataset_close(dataset);
}

/* A filter that is not met, or cannot be told, leaves the row out, before data.missing asks. */
KELP_TEST(filters)
{
    write_file("data.csv", "x,y,name\n1,1,a\n,2,a\n3,3,b\n4,,a\n5,5,\n");
    SET(job.data.filter, "x > 0\nnot missing(y)\nname != 'b'");
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 1);
    check_sample(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){1, 1});
    kelp_dataset_close(dataset);
    SET(job.data.filter, "x > 100");
    check_refused(KELP_ERR_INVALID, "data.csv: no row is left");
}

static const char holes[] = "x,y\n1,1\n,2\nNA,3\n4,nan\n6,6\n";

KELP_TEST(missing_values)
{
    write_file("data.csv", holes);
    check_refused(KELP_ERR_FORMAT, "data.csv:3: column x: has no value|data.missing");
    job.data.missing = KELP_MISSING_DROP;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    check_sample(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){6, 6});
    kelp_dataset_close(dataset);
    job.data.missing = KELP_MISSING_ZERO;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 5);
    check_sample(dataset, KELP_SPLIT_TRAIN, 2, (const double[]){0, 3});
    check_sample(dataset, KELP_SPLIT_TRAIN, 3, (const double[]){4, 0});
    kelp_dataset_close(dataset);
    /* The mean of the training split: the first four rows. */
    job.data.missing = KELP_MISSING_MEAN;
    job.data.fractions[0] = 0.8;
    job.data.fractions[1] = 0.2;
    job.data.fraction_count = 2;
    dataset = open_or_fail();
    check_sample(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){2.5, 2});
    check_sample(dataset, KELP_SPLIT_TRAIN, 3, (const double[]){4, 2});
    check_sample(dataset, KELP_SPLIT_VAL, 0, (const double[]){6, 6});
    kelp_dataset_close(dataset);
}

/* Categories that the training split does not have are the number behind its own where data.vocab
 * has room, else 0; 7, 7.0 and 07 are one. */
KELP_TEST(categories)
{
    write_file("data.csv", "c,x,y\n7,1,1\nred,1,1\n7.0,1,1\n07,1,1\nblue,1,1\nred,2,2\n");
    SET(job.data.categories, "c");
    job.data.fractions[0] = 4.0 / 6.0;
    job.data.fractions[1] = 2.0 / 6.0;
    job.data.fraction_count = 2;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[0].vocab[0], 2);
    check_sample(dataset, KELP_SPLIT_TRAIN, 3, (const double[]){0, 1, 1});
    check_sample(dataset, KELP_SPLIT_VAL, 0, (const double[]){0, 1, 1});
    check_sample(dataset, KELP_SPLIT_VAL, 1, (const double[]){1, 2, 2});
    kelp_dataset_close(dataset);
    job.data.vocab[0] = 5;
    job.data.vocab_count = 1;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[0].vocab[0], 5);
    check_sample(dataset, KELP_SPLIT_VAL, 0, (const double[]){2, 1, 1});
    kelp_dataset_close(dataset);
    job.data.vocab[0] = 1;
    check_refused(KELP_ERR_INVALID, "column c: has 2 categories|data.vocab gives it 1");
    job.data.vocab_count = 2;
    check_refused(KELP_ERR_INVALID, "data.vocab: has 2 sizes");
}

/* Fitted on the training rows alone; predictions are turned back by what the data set says. */
KELP_TEST(scales)
{
    write_file("data.csv", "x,y\n1,100\n3,300\n5,500\n");
    job.data.normalize = KELP_NORMALIZE_STANDARD;
    job.data.normalize_target = KELP_NORMALIZE_MINMAX;
    job.data.test_every = 3;
    struct kelp_dataset *dataset = open_or_fail();
    check_sample(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){-1, 0});
    check_sample(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){1, 1});
    check_sample(dataset, KELP_SPLIT_TEST, 0, (const double[]){3, 2});
    struct kelp_target_scale scale;
    kelp_dataset_target_scales(dataset, KELP_SPLIT_TEST, 0, &scale);
    ck_assert_double_eq(2.0 * scale.factor + scale.shift, 500.0);
    kelp_dataset_close(dataset);
    write_file("data.csv", "x,y\n1,100\n1,300\n5,500\n");
    check_refused(KELP_ERR_INVALID, "column x: is constant in the training split");
}

/* Parts of files of their own, patterns in the order of their names, gzip. */
KELP_TEST(files_of_parts)
{
    write_file("a2.csv", "x,y\n2,2\n");
    write_file("a10.csv", "y,x\n10,11\n");
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/t.csv.gz", folder);
    gzFile zipped = gzopen(path, "wb");
    ck_assert_ptr_nonnull(zipped);
    ck_assert_int_eq(gzputs(zipped, "x,y\r\n7,8\r\n"), 10);
    ck_assert_int_eq(gzclose(zipped), Z_OK);
    SET(job.data.test_path, path);
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s/a*.csv", folder);
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    check_sample(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){11, 10});
    check_sample(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){2, 2});
    check_sample(dataset, KELP_SPLIT_TEST, 0, (const double[]){7, 8});
    kelp_dataset_close(dataset);
    char odd[128]; /* the folder's own name is no pattern */
    (void)snprintf(odd, sizeof(odd), "%s/[x]?", folder);
    ck_assert_int_eq(mkdir(odd, 0777), 0);
    write_file("[x]?/a1.csv", "x,y\n3,4\n");
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s/[x]?/a*.csv", folder);
    kelp_dataset_close(open_or_fail());
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s/b*.csv", folder);
    check_refused(KELP_ERR_NOT_FOUND, "data.path: |b*.csv: there is no such file, and none");
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s/b.csv", folder);
    check_refused(KELP_ERR_NOT_FOUND, "data.path|b.csv");
    SET(job.data.path, folder);
    check_refused(KELP_ERR_INVALID, "a folder");
    SET(job.data.path, path);
    ck_assert_int_eq(truncate(path, 20), 0);
    SET(job.data.test_path, "");
    check_refused(KELP_ERR_FORMAT, "t.csv.gz: is cut off");
}

KELP_TEST(classes)
{
    write_file("data.csv", "x,y\n1,2\n2,0\n");
    job.train.loss = KELP_LOSS_CROSS_ENTROPY;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab_count, 1);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 3);
    kelp_dataset_close(dataset);
    write_file("data.csv", "x,y\n1,2\n2,0.5\n");
    check_refused(KELP_ERR_INVALID, "column y: 0.5 is no class");
    write_file("data.csv", "x,y\n1,-2\n2,0\n");
    check_refused(KELP_ERR_INVALID, "column y: -2 is no class");
}

/* As soon as one is no number they are names, numbered by their bytes, whatever order and splits
 * the rows have; a missing one is none. */
KELP_TEST(named_classes)
{
    job.train.loss = KELP_LOSS_CROSS_ENTROPY;
    job.data.fraction_count = 2;
    job.data.fractions[0] = job.data.fractions[1] = 0.5;
    write_file("data.csv", "x,y\n1,b\n2, 3+ \n3,2.0\n4,\"B\"\n5,02\n6,\xc3\xa9\n");
    struct kelp_dataset *dataset = open_or_fail();
    static const char *const names[] = {"2", "3+", "B", "b", "\xc3\xa9", ""};
    static const double train[][2] = {{1, 3}, {2, 1}, {3, 0}}, val[][2] = {{4, 2}, {5, 0}, {6, 4}};
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 5);
    for (uint64_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        ck_assert_str_eq(kelp_dataset_class_name(dataset, i), names[i]);
    }
    for (uint64_t i = 0; i < KELP_ARRAY_COUNT(train); i++) {
        check_sample(dataset, KELP_SPLIT_TRAIN, i, train[i]);
        check_sample(dataset, KELP_SPLIT_VAL, i, val[i]);
    }
    ck_assert_str_eq(kelp_dataset_untrained_class(dataset, 0), "B");
    ck_assert_str_eq(kelp_dataset_untrained_class(dataset, 1), "\xc3\xa9");
    ck_assert_str_eq(kelp_dataset_untrained_class(dataset, 2), "");
    kelp_dataset_close(dataset);
    /* Another loss does not find them in the cache. */
    job.train.loss = KELP_LOSS_MSE;
    check_refused(KELP_ERR_FORMAT, "data.csv:2: column y: 'b' is not a number");
    job.train.loss = KELP_LOSS_NLL;
    dataset = open_or_fail(); /* out of the cache */
    ck_assert_str_eq(kelp_dataset_class_name(dataset, 4), "\xc3\xa9");
    uint64_t before = kelp_dataset_info(dataset)->fingerprint;
    kelp_dataset_close(dataset);
    write_file("data.csv", "x,y\n1,b\n2, 3+ \n3,2.0\n4,\"B\"\n5,02\n6,\xc3\xaa\n");
    ck_assert_uint_ne(fingerprint(), before); /* another name of the same number */
    write_file("val.csv", "x,y\n1,b\n7,c\n");
    (void)snprintf(job.data.val_path, sizeof(job.data.val_path), "%s/val.csv", folder);
    check_refused(
        KELP_ERR_INVALID,
        "val.csv:3: column y: 'c' is none of the classes that data.path has: 2, 3+, B, b");
}

KELP_TEST(missing_classes)
{
    job.train.loss = KELP_LOSS_CROSS_ENTROPY;
    write_file("data.csv", "x,y\n1,b\n2,\n3,a\n4,NA\n");
    check_refused(KELP_ERR_FORMAT,
                  "data.csv:3: column y: has no value in this row; fill it in, or set data.missing "
                  "to drop");
    job.data.missing = KELP_MISSING_MEAN;
    check_refused(KELP_ERR_INVALID, "data.csv:3: column y: has no value|not missing(y)");
    job.data.missing = KELP_MISSING_DROP;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    kelp_dataset_close(dataset);
    job.data.missing = KELP_MISSING_ERROR;
    SET(job.data.filter, "not missing(y)");
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    ck_assert_str_eq(kelp_dataset_class_name(dataset, 1), "b");
    kelp_dataset_close(dataset);
    write_file("data.csv", "x,y\n1,b\n2,a\001c\n");
    check_refused(KELP_ERR_FORMAT, "data.csv:3: column y: 'a?c' is no name of a class");
    write_file("data.csv",
               "x,y\n1,b\n2,"
               "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrst\n");
    check_refused(KELP_ERR_LIMIT, "data.csv:3: column y: |is too long; at most 63 bytes fit");
    job.data.normalize_target = KELP_NORMALIZE_STANDARD;
    check_refused(KELP_ERR_INVALID, "data.targets: the loss takes classes");
}

struct mistake {
    const char *text;
    const char *derive;
    kelp_status status;
    const char *expected;
};
static const struct mistake mistakes[] = {
    {"", "", KELP_ERR_FORMAT, "data.csv:1: the file is empty"},
    {"x,y\n", "", KELP_ERR_INVALID, "no row is left"},
    {"x,z\n1,2\n", "", KELP_ERR_INVALID, "data.csv:1: column y: no such column|data.targets"},
    {"x,x,y\n1,2,3\n", "", KELP_ERR_FORMAT, "data.csv:1: column x: stands twice"},
    {"x,y\n1,2\n1\n", "", KELP_ERR_FORMAT, "data.csv:3: column y: missing, the row has 1 of 2"},
    {"x,y\n1,2\n1,2,3\n", "", KELP_ERR_FORMAT, "data.csv:3: the row has more"},
    {"x,y\n1,2\nabc,2\n", "", KELP_ERR_FORMAT, "data.csv:3: column x: 'abc' is not a number"},
    {"x,y\n1,2\n1e99,2\n", "", KELP_ERR_FORMAT, "data.csv:3: column x: 1e+99 is out of range"},
    {"x,y\n1,2\n\"1,2\n", "", KELP_ERR_FORMAT, "data.csv:3: field 1: the quote is not closed"},
    {"x,y\n1,2\n", "z = ", KELP_ERR_INVALID, "data.derive: 'z = '|at the end"},
    {"x,y\n1,2\n", "z x", KELP_ERR_INVALID, "data.derive|name = expression"},
    {"x,y\n1,2\n", "z = q + 1", KELP_ERR_INVALID, "column q: no such column|data.derive"},
    {"x,y\n1,2\n", "z = hour(x) + hour(y)", KELP_OK, ""},
    {"x,y\n1,2/3\n", "z = hour(y)", KELP_ERR_FORMAT, "data.csv:2: column y: '2/3' is not a time"},
    {"x,y\n1,2\n", "z = x\nw = z == 'a'", KELP_ERR_INVALID, "column z: is derived"},
    {"x,y\n1,2\n0,2\n", "x = 1 / x", KELP_ERR_FORMAT, "data.csv:3: column x: has no value"},
};

KELP_LOOP_TEST(mistake_in_a_table, 0, (sizeof(mistakes) / sizeof(mistakes[0])))
{
    const struct mistake *mistake = &mistakes[_i];
    write_file("data.csv", mistake->text);
    SET(job.data.derive, mistake->derive);
    if (mistake->status == KELP_OK) {
        kelp_dataset_close(open_or_fail());
    } else {
        check_refused(mistake->status, mistake->expected);
    }
}

/* However far down: the line is named. */
KELP_TEST(mistake_far_down)
{
    FILE *file = fopen(data_path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs("x,y\r\n", file);
    for (int line = 2; line <= 20000; line++) {
        (void)fprintf(file, line == 10000 ? "%d\r\n" : "%d,1\r\n", line);
    }
    ck_assert_int_eq(fclose(file), 0);
    check_refused(KELP_ERR_FORMAT, "data.csv:10000: column y: missing, the row has 1 of 2 fields");
}

KELP_TEST(mistakes_in_a_job)
{
    write_file("data.csv", "x,y\n1,2\n3,4\n");
    SET(job.data.targets, "");
    check_refused(KELP_ERR_INVALID, "data.targets: is empty");
    SET(job.data.targets, "y");
    SET(job.data.columns, "");
    check_refused(KELP_ERR_INVALID, "data.columns: is empty");
    SET(job.data.columns, "x");
    SET(job.data.filter, "x >");
    check_refused(KELP_ERR_INVALID, "data.filter: 'x >'|at the end");
    SET(job.data.filter, "");
    SET(job.data.cache, "/proc/no/such/place");
    check_refused(KELP_ERR_NOT_FOUND, "data.cache");
}

/* ---- cache --------------------------------------------------------------------------------- */

/* Files in the cache, the last one's path in ret_path. Nothing else is ever left there. */
static int count_cached(char ret_path[512])
{
    DIR *entries = opendir(job.data.cache);
    ck_assert_ptr_nonnull(entries);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] == '.') {
            ck_assert(strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
            continue;
        }
        ck_assert_ptr_nonnull(strstr(entry->d_name, ".prepared"));
        (void)snprintf(ret_path, 512, "%.200s/%.200s", job.data.cache, entry->d_name);
        count++;
    }
    (void)closedir(entries);
    return count;
}

/* What is in the cache is used as it is (its time does not change), another content or key is
 * another file, and one that is damaged or cut off anywhere is made again, the same. */
KELP_TEST(cache)
{
    char path[512];
    char other[512];
    struct stat first;
    struct stat second;
    write_file("data.csv", "x,y\n1,2\n3,4\n5,7\n");
    uint64_t value = fingerprint();
    ck_assert_int_eq(count_cached(path), 1);
    ck_assert_int_eq(stat(path, &first), 0);
    ck_assert_uint_eq(fingerprint(), value);
    ck_assert_int_eq(count_cached(other), 1);
    ck_assert_int_eq(stat(path, &second), 0);
    ck_assert(first.st_ino == second.st_ino);

    for (off_t at = 0; at < first.st_size; at += 7) {
        FILE *file = fopen(path, "r+b");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_eq(fseeko(file, at, SEEK_SET), 0);
        int byte = fgetc(file);
        ck_assert_int_eq(fseeko(file, at, SEEK_SET), 0);
        ck_assert_int_ne(fputc(byte ^ 0x40, file), EOF);
        ck_assert_int_eq(fclose(file), 0);
        ck_assert_uint_eq(fingerprint(), value);
    }
    for (off_t bytes = 0; bytes < first.st_size; bytes += 61) {
        ck_assert_int_eq(truncate(path, bytes), 0);
        ck_assert_uint_eq(fingerprint(), value);
    }
    ck_assert_int_eq(count_cached(path), 1);

    write_file("data.csv", "x,y\n1,2\n3,4\n5,8\n");
    ck_assert_uint_ne(fingerprint(), value);
    ck_assert_int_eq(count_cached(path), 2);
    SET(job.data.derive, "x = 2 * x");
    ck_assert_uint_ne(fingerprint(), value);
    ck_assert_int_eq(count_cached(path), 3);
}

/* What others may have written is not believed: it is made again, for nobody else to write. */
KELP_TEST(cache_of_others)
{
    char path[512];
    struct stat first, second;
    write_file("data.csv", "x,y\n1,2\n3,4\n5,7\n");
    uint64_t value = fingerprint();
    ck_assert_int_eq(count_cached(path), 1);
    ck_assert_int_eq(stat(path, &first), 0);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_uint_eq(fingerprint(), value);
    ck_assert_int_eq(stat(path, &second), 0);
    ck_assert(first.st_ino != second.st_ino);
    ck_assert_uint_eq(second.st_mode & 022, 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, 65534, 65534), 0);
        ck_assert_uint_eq(fingerprint(), value);
        ck_assert_int_eq(stat(path, &second), 0);
        ck_assert_uint_eq(second.st_uid, 0);
    }
}

/* Without a folder that can be written, data are prepared in memory, to the same. */
KELP_TEST(no_cache)
{
    write_file("data.csv", "x,y\n1,2\n3,4\n5,7\n");
    uint64_t value = fingerprint();
    job.data.cache[0] = '\0';
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", "/proc/none", 1), 0);
    ck_assert_uint_eq(fingerprint(), value);
    ck_assert_int_eq(unsetenv("XDG_CACHE_HOME"), 0);
    ck_assert_int_eq(unsetenv("HOME"), 0);
    ck_assert_uint_eq(fingerprint(), value);
}

/* ---- panels -------------------------------------------------------------------------------- */

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
    job.data.kind = KELP_DATA_PANEL;
    SET(job.data.columns, "c");
    SET(job.data.known, "k");
    SET(job.data.time, "t");
    SET(job.data.group, "series");
    job.data.seq_len = 2;
    job.data.pred_len = 2;
    job.data.split[KELP_SPLIT_TRAIN] = 5;
    job.data.split[KELP_SPLIT_VAL] = 3;
}

KELP_TEST(windows_of_a_panel)
{
    panel_job();
    write_file("data.csv", panel_text);
    struct kelp_dataset *dataset = open_or_fail();
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 4);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 4);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 0);
    ck_assert_uint_eq(info->shape.input_count, 4);
    ck_assert_uint_eq(info->shape.inputs[0].vocab[0], 2);
    ck_assert_uint_eq(info->shape.inputs[2].dims[1], 2);
    ck_assert_uint_eq(info->shape.target.rank, 1);
    /* Series, known, observed (target, column), known ahead, target. */
    check_sample(dataset, KELP_SPLIT_TRAIN, 0,
                 (const double[]){0, 0, 1, 100, 5, 101, 5, 2, 3, 102, 103});
    check_sample(dataset, KELP_SPLIT_TRAIN, 3,
                 (const double[]){1, 1, 2, 10, 6, 20, 6, 3, 4, 30, 40});
    check_sample(dataset, KELP_SPLIT_VAL, 0,
                 (const double[]){0, 3, 4, 103, 5, 104, 5, 5, 6, 105, 106});
    check_sample(dataset, KELP_SPLIT_VAL, 3, (const double[]){1, 4, 5, 40, 6, 50, 6, 6, 7, 60, 70});
    char text[KELP_DATASET_LABEL_BYTES];
    kelp_dataset_time(dataset, KELP_SPLIT_VAL, 3, 1, text);
    ck_assert_str_eq(text, "2020-01-01 07:00:00");
    kelp_dataset_group(dataset, KELP_SPLIT_VAL, 3, text);
    ck_assert_str_eq(text, "a");
    kelp_dataset_close(dataset);
    /* The first samples are of all series. */
    job.data.limit = 2;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    check_sample(dataset, KELP_SPLIT_TRAIN, 1,
                 (const double[]){1, 0, 1, 0, 6, 10, 6, 2, 3, 20, 30});
    kelp_dataset_close(dataset);
}

/* Targets by their series' own training rows, inputs by those of all. */
KELP_TEST(scales_of_a_panel)
{
    panel_job();
    SET(job.data.columns, "");
    write_file("data.csv", panel_text);
    job.data.normalize = KELP_NORMALIZE_MINMAX;
    job.data.normalize_target = KELP_NORMALIZE_MINMAX;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[2].rank, 1);
    check_sample(dataset, KELP_SPLIT_TRAIN, 0,
                 (const double[]){0, 0, 0.25, 0, 0.25, 0.5, 0.75, 0.5, 0.75});
    check_sample(dataset, KELP_SPLIT_VAL, 3,
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
    write_file("data.csv", "t,y\n3,30\n1,10\n2,20\n0,0\n");
    SET(job.data.group, "");
    SET(job.data.known, "");
    SET(job.data.columns, "");
    job.data.split[KELP_SPLIT_TRAIN] = 4;
    job.data.split[KELP_SPLIT_VAL] = 0;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.input_count, 2);
    check_sample(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){0, 0, 10, 20, 30});
    char text[KELP_DATASET_LABEL_BYTES];
    kelp_dataset_time(dataset, KELP_SPLIT_TRAIN, 0, 1, text);
    ck_assert_str_eq(text, "3");
    kelp_dataset_close(dataset);
}

KELP_TEST(mistakes_in_a_panel)
{
    panel_job();
    write_file("data.csv", panel_text);
    job.data.split[KELP_SPLIT_VAL] = 4;
    check_refused(KELP_ERR_INVALID, "series b has 8 rows, too few for data.split, which needs 9");
    job.data.split[KELP_SPLIT_VAL] = 1;
    check_refused(KELP_ERR_INVALID, "data.split: the validation split has 1 rows|at least 2");
    job.data.split[KELP_SPLIT_VAL] = 3;
    job.data.pred_len = 4;
    check_refused(KELP_ERR_INVALID, "data.split: the training split has 5 rows|at least 6");
    job.data.pred_len = 2;
    job.data.vocab[0] = 1;
    job.data.vocab_count = 1;
    check_refused(KELP_ERR_INVALID, "data.vocab|2 of them");
    job.data.vocab_count = 0;
    SET(job.data.time, "");
    check_refused(KELP_ERR_INVALID, "data.time: is empty");
    SET(job.data.time, "t");

    char text[sizeof(panel_text)];
    memcpy(text, panel_text, sizeof(text));
    memcpy(strstr(text, "06:00:00"), "05:00:00", 8);
    write_file("data.csv", text);
    check_refused(KELP_ERR_FORMAT, "data.csv:14: series b: has the same time|data.csv:13");
    memcpy(text, panel_text, sizeof(text));
    memcpy(strstr(text, "06:00:00"), "06:30:00", 8);
    write_file("data.csv", text);
    check_refused(KELP_ERR_FORMAT, "data.csv:14: series b: does not follow|data.csv:13");
    memcpy(text, panel_text, sizeof(text));
    memcpy(strstr(text, "06:00:00"), "06:77:00", 8);
    write_file("data.csv", text);
    check_refused(KELP_ERR_FORMAT, "data.csv:14: column t: '2020-01-01 06:77:00' is not a time");
}
