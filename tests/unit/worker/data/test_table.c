/*
 * Tables of small CSV files: what becomes of each column, how missing values, categories, splits
 * and scales work, the cache, and each mistake a file or a job can hold.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/lib/models/table_bench.h"
#include "tests/lib/suite.h"

static struct kelp_job *const job = &table_bench.job;

/* ---- tables -------------------------------------------------------------------------------- */

KELP_CASE("table", .timeout_s = 60, .setup = table_setup, .teardown = table_teardown)

static void count_rows(void *user, const char *path, uint64_t rows)
{
    uint64_t *told = user;

    ck_assert_str_eq(path, table_bench.data_path);
    ck_assert_uint_eq(rows, *told + KELP_DATASET_WATCH_ROWS);
    *told = rows;
}

/* Whoever waits for a long file hears how far reading is; what is prepared already is not read. */
KELP_TEST(progress_is_told)
{
    uint64_t told = 0;
    const struct kelp_dataset_watch watch = {.rows = count_rows, .user = &told};
    FILE *file = fopen(table_bench.data_path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_gt(fprintf(file, "x,y\n"), 0);
    for (unsigned i = 0; i < 2 * KELP_DATASET_WATCH_ROWS + 5; i++) {
        ck_assert_int_gt(fprintf(file, "%u,%u\n", i % 7, i % 3), 0);
    }
    ck_assert_int_eq(fclose(file), 0);
    for (int again = 0; again < 2; again++) {
        struct kelp_dataset *dataset = NULL;
        ck_assert_int_eq(kelp_dataset_open_watched(job, &watch, &dataset, NULL), KELP_OK);
        kelp_dataset_close(dataset);
        ck_assert_uint_eq(told, 2 * KELP_DATASET_WATCH_ROWS);
    }
}

/* Categories first, then numbers in the job's order, then targets; derived columns are columns. */
KELP_TEST(columns_of_all_kinds)
{
    table_write("data.csv", "when,kind,x,y,z\n"
                            "2020-01-06 07:30:00,\"b, c\",1,10,0\n"
                            "2020-01-12 23:00:00,a,2,20,1\n"
                            "2020-01-07 00:00:00,\"b, c\",3,30,0\n");
    TABLE_SET(job->data.derive, "day = weekday(when)\nsum = x + y\nodd = `x` - 2 * floor(x / 2)");
    TABLE_SET(job->data.columns, "sum\nx");
    TABLE_SET(job->data.categories, "kind\nday");
    TABLE_SET(job->data.targets, "y\nodd");
    struct kelp_dataset *dataset = table_open();
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 3);
    ck_assert_uint_eq(info->shape.input_count, 2);
    ck_assert_uint_eq(info->shape.inputs[0].vocab_count, 2);
    ck_assert_uint_eq(info->shape.inputs[0].vocab[0], 2);
    ck_assert_uint_eq(info->shape.inputs[0].vocab[1], 3);
    ck_assert_uint_eq(info->target_columns, 2);
    ck_assert_str_eq(kelp_dataset_target_name(dataset, 1), "odd");
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){0, 0, 11, 1, 10, 1});
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){1, 1, 22, 2, 20, 0});
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 2, (const double[]){0, 2, 33, 3, 30, 1});
    kelp_dataset_close(dataset);
}

/* A filter that is not met, or cannot be told, leaves the row out, before data.missing asks. */
KELP_TEST(filters)
{
    table_write("data.csv", "x,y,name\n1,1,a\n,2,a\n3,3,b\n4,,a\n5,5,\n");
    TABLE_SET(job->data.filter, "x > 0\nnot missing(y)\nname != 'b'");
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 1);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){1, 1});
    kelp_dataset_close(dataset);
    TABLE_SET(job->data.filter, "x > 100");
    table_refused(KELP_ERR_INVALID, "data.csv: no rows: the file has none");
}

static const char holes[] = "x,y\n1,1\n,2\nNA,3\n4,nan\n6,6\n";

KELP_TEST(missing_values)
{
    table_write("data.csv", holes);
    table_refused(KELP_ERR_FORMAT, "data.csv:3: column x: has no value|data.missing");
    job->data.missing = KELP_MISSING_DROP;
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){6, 6});
    kelp_dataset_close(dataset);
    job->data.missing = KELP_MISSING_ZERO;
    dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 5);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 2, (const double[]){0, 3});
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 3, (const double[]){4, 0});
    kelp_dataset_close(dataset);
    /* The mean of the training split: the first four rows. */
    job->data.missing = KELP_MISSING_MEAN;
    job->data.fractions[0] = 0.8;
    job->data.fractions[1] = 0.2;
    job->data.fraction_count = 2;
    dataset = table_open();
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){2.5, 2});
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 3, (const double[]){4, 2});
    table_sample_is(dataset, KELP_SPLIT_VAL, 0, (const double[]){6, 6});
    kelp_dataset_close(dataset);
}

/* Categories that the training split does not have are the number behind its own where data.vocab
 * has room, else 0; 7, 7.0 and 07 are one. */
KELP_TEST(categories)
{
    table_write("data.csv", "c,x,y\n7,1,1\nred,1,1\n7.0,1,1\n07,1,1\nblue,1,1\nred,2,2\n");
    TABLE_SET(job->data.categories, "c");
    job->data.fractions[0] = 4.0 / 6.0;
    job->data.fractions[1] = 2.0 / 6.0;
    job->data.fraction_count = 2;
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[0].vocab[0], 2);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 3, (const double[]){0, 1, 1});
    table_sample_is(dataset, KELP_SPLIT_VAL, 0, (const double[]){0, 1, 1});
    table_sample_is(dataset, KELP_SPLIT_VAL, 1, (const double[]){1, 2, 2});
    kelp_dataset_close(dataset);
    job->data.vocab[0] = 5;
    job->data.vocab_count = 1;
    dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[0].vocab[0], 5);
    table_sample_is(dataset, KELP_SPLIT_VAL, 0, (const double[]){2, 1, 1});
    kelp_dataset_close(dataset);
    job->data.vocab[0] = 1;
    table_refused(KELP_ERR_INVALID, "column c: has 2 categories|data.vocab gives it 1");
    job->data.vocab_count = 2;
    table_refused(KELP_ERR_INVALID, "data.vocab: has 2 sizes");
}

/* Fitted on the training rows alone; predictions are turned back by what the data set says. */
KELP_TEST(scales)
{
    table_write("data.csv", "x,y\n1,100\n3,300\n5,500\n");
    job->data.normalize = KELP_NORMALIZE_STANDARD;
    job->data.normalize_target = KELP_NORMALIZE_MINMAX;
    job->data.test_every = 3;
    struct kelp_dataset *dataset = table_open();
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){-1, 0});
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){1, 1});
    table_sample_is(dataset, KELP_SPLIT_TEST, 0, (const double[]){3, 2});
    struct kelp_target_scale scale;
    kelp_dataset_target_scales(dataset, KELP_SPLIT_TEST, 0, &scale);
    ck_assert_double_eq(2.0 * scale.factor + scale.shift, 500.0);
    kelp_dataset_close(dataset);
    table_write("data.csv", "x,y\n1,100\n1,300\n5,500\n");
    table_refused(KELP_ERR_INVALID, "column x: is constant in the training split");
}

/* Parts of files of their own, patterns in the order of their names, gzip. */
KELP_TEST(files_of_parts)
{
    table_write("a2.csv", "x,y\n2,2\n");
    table_write("a10.csv", "y,x\n10,11\n");
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/t.csv.gz", table_bench.folder);
    gzFile zipped = gzopen(path, "wb");
    ck_assert_ptr_nonnull(zipped);
    ck_assert_int_eq(gzputs(zipped, "x,y\r\n7,8\r\n"), 10);
    ck_assert_int_eq(gzclose(zipped), Z_OK);
    TABLE_SET(job->data.test_path, path);
    (void)snprintf(job->data.path, sizeof(job->data.path), "%s/a*.csv", table_bench.folder);
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 0, (const double[]){11, 10});
    table_sample_is(dataset, KELP_SPLIT_TRAIN, 1, (const double[]){2, 2});
    table_sample_is(dataset, KELP_SPLIT_TEST, 0, (const double[]){7, 8});
    kelp_dataset_close(dataset);
    char odd[128]; /* the folder's own name is no pattern */
    (void)snprintf(odd, sizeof(odd), "%s/[x]?", table_bench.folder);
    ck_assert_int_eq(mkdir(odd, 0777), 0);
    table_write("[x]?/a1.csv", "x,y\n3,4\n");
    (void)snprintf(job->data.path, sizeof(job->data.path), "%s/[x]?/a*.csv", table_bench.folder);
    kelp_dataset_close(table_open());
    (void)snprintf(job->data.path, sizeof(job->data.path), "%s/b*.csv", table_bench.folder);
    table_refused(KELP_ERR_NOT_FOUND, "data.path: |b*.csv: no such file, and as a pattern");
    (void)snprintf(job->data.path, sizeof(job->data.path), "%s/b.csv", table_bench.folder);
    table_refused(KELP_ERR_NOT_FOUND, "data.path|b.csv");
    TABLE_SET(job->data.path, table_bench.folder);
    table_refused(KELP_ERR_INVALID, "a folder");
    TABLE_SET(job->data.path, path);
    ck_assert_int_eq(truncate(path, 20), 0);
    TABLE_SET(job->data.test_path, "");
    table_refused(KELP_ERR_FORMAT, "t.csv.gz: is cut off");
}

KELP_TEST(classes)
{
    table_write("data.csv", "x,y\n1,2\n2,0\n");
    job->train.loss = KELP_LOSS_CROSS_ENTROPY;
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab_count, 1);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 3);
    kelp_dataset_close(dataset);
    table_write("data.csv", "x,y\n1,2\n2,0.5\n");
    table_refused(KELP_ERR_INVALID, "column y: 0.5 is not a class");
    table_write("data.csv", "x,y\n1,-2\n2,0\n");
    table_refused(KELP_ERR_INVALID, "column y: -2 is not a class");
}

/* As soon as one is no number they are names, numbered by their bytes, whatever order and splits
 * the rows have; a missing one is none. */
KELP_TEST(named_classes)
{
    job->train.loss = KELP_LOSS_CROSS_ENTROPY;
    job->data.fraction_count = 2;
    job->data.fractions[0] = job->data.fractions[1] = 0.5;
    table_write("data.csv", "x,y\n1,b\n2, 3+ \n3,2.0\n4,\"B\"\n5,02\n6,\xc3\xa9\n");
    struct kelp_dataset *dataset = table_open();
    static const char *const names[] = {"2", "3+", "B", "b", "\xc3\xa9", ""};
    static const double train[][2] = {{1, 3}, {2, 1}, {3, 0}}, val[][2] = {{4, 2}, {5, 0}, {6, 4}};
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 5);
    for (uint64_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        ck_assert_str_eq(kelp_dataset_class_name(dataset, i), names[i]);
    }
    for (uint64_t i = 0; i < KELP_ARRAY_COUNT(train); i++) {
        table_sample_is(dataset, KELP_SPLIT_TRAIN, i, train[i]);
        table_sample_is(dataset, KELP_SPLIT_VAL, i, val[i]);
    }
    ck_assert_str_eq(kelp_dataset_untrained_class(dataset, 0), "B");
    ck_assert_str_eq(kelp_dataset_untrained_class(dataset, 1), "\xc3\xa9");
    ck_assert_str_eq(kelp_dataset_untrained_class(dataset, 2), "");
    kelp_dataset_close(dataset);
    /* Another loss does not find them in the cache. */
    job->train.loss = KELP_LOSS_MSE;
    table_refused(KELP_ERR_FORMAT, "data.csv:2: column y: 'b' is not a number");
    job->train.loss = KELP_LOSS_NLL;
    dataset = table_open(); /* out of the cache */
    ck_assert_str_eq(kelp_dataset_class_name(dataset, 4), "\xc3\xa9");
    uint64_t before = kelp_dataset_info(dataset)->fingerprint;
    kelp_dataset_close(dataset);
    table_write("data.csv", "x,y\n1,b\n2, 3+ \n3,2.0\n4,\"B\"\n5,02\n6,\xc3\xaa\n");
    ck_assert_uint_ne(table_fingerprint(), before); /* another name of the same number */
    table_write("val.csv", "x,y\n1,b\n7,c\n");
    (void)snprintf(job->data.val_path, sizeof(job->data.val_path), "%s/val.csv",
                   table_bench.folder);
    table_refused(KELP_ERR_INVALID,
                  "val.csv:3: column y: 'c' is not one of the classes in data.path: 2, 3+, B, b");
}

KELP_TEST(missing_classes)
{
    job->train.loss = KELP_LOSS_CROSS_ENTROPY;
    table_write("data.csv", "x,y\n1,b\n2,\n3,a\n4,NA\n");
    table_refused(KELP_ERR_FORMAT,
                  "data.csv:3: column y: has no value in this row; fill it in, or set data.missing "
                  "to drop");
    job->data.missing = KELP_MISSING_MEAN;
    table_refused(KELP_ERR_INVALID, "data.csv:3: column y: has no value|not missing(y)");
    job->data.missing = KELP_MISSING_DROP;
    struct kelp_dataset *dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    kelp_dataset_close(dataset);
    job->data.missing = KELP_MISSING_ERROR;
    TABLE_SET(job->data.filter, "not missing(y)");
    dataset = table_open();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    ck_assert_str_eq(kelp_dataset_class_name(dataset, 1), "b");
    kelp_dataset_close(dataset);
    table_write("data.csv", "x,y\n1,b\n2,a\001c\n");
    table_refused(KELP_ERR_FORMAT, "data.csv:3: column y: 'a?c' cannot name a class");
    table_write("data.csv",
                "x,y\n1,b\n2,"
                "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrst\n");
    table_refused(KELP_ERR_LIMIT, "data.csv:3: column y: |is too long; at most 63 bytes fit");
    job->data.normalize_target = KELP_NORMALIZE_STANDARD;
    table_refused(KELP_ERR_INVALID, "data.targets: the loss takes classes");
}

struct mistake {
    const char *text;
    const char *derive;
    kelp_status status;
    const char *expected;
};
static const struct mistake mistakes[] = {
    {"", "", KELP_ERR_FORMAT, "data.csv:1: the file is empty"},
    {"x,y\n", "", KELP_ERR_INVALID, "no rows: "},
    {"x,y\r1,2\r3,4\r", "", KELP_ERR_FORMAT, "data.csv:1: the lines end with carriage returns"},
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
    table_write("data.csv", mistake->text);
    TABLE_SET(job->data.derive, mistake->derive);
    if (mistake->status == KELP_OK) {
        kelp_dataset_close(table_open());
    } else {
        table_refused(mistake->status, mistake->expected);
    }
}

/* However far down: the line is named. */
KELP_TEST(mistake_far_down)
{
    FILE *file = fopen(table_bench.data_path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs("x,y\r\n", file);
    for (int line = 2; line <= 20000; line++) {
        (void)fprintf(file, line == 10000 ? "%d\r\n" : "%d,1\r\n", line);
    }
    ck_assert_int_eq(fclose(file), 0);
    table_refused(KELP_ERR_FORMAT, "data.csv:10000: column y: missing, the row has 1 of 2 fields");
}

KELP_TEST(mistakes_in_a_job)
{
    table_write("data.csv", "x,y\n1,2\n3,4\n");
    TABLE_SET(job->data.targets, "");
    table_refused(KELP_ERR_INVALID, "data.targets: is empty");
    TABLE_SET(job->data.targets, "y");
    TABLE_SET(job->data.columns, "");
    table_refused(KELP_ERR_INVALID, "data.columns: is empty");
    TABLE_SET(job->data.columns, "x");
    TABLE_SET(job->data.filter, "x >");
    table_refused(KELP_ERR_INVALID, "data.filter: 'x >'|at the end");
    TABLE_SET(job->data.filter, "");
    TABLE_SET(job->data.cache, "/proc/no/such/place");
    table_refused(KELP_ERR_NOT_FOUND, "data.cache");
}

/* ---- cache --------------------------------------------------------------------------------- */

/* Files in the cache, the last one's path in ret_path. Nothing else is ever left there. */
static int count_cached(char ret_path[512])
{
    DIR *entries = opendir(job->data.cache);
    ck_assert_ptr_nonnull(entries);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] == '.') {
            ck_assert(strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
            continue;
        }
        ck_assert_ptr_nonnull(strstr(entry->d_name, ".prepared"));
        (void)snprintf(ret_path, 512, "%.200s/%.200s", job->data.cache, entry->d_name);
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
    table_write("data.csv", "x,y\n1,2\n3,4\n5,7\n");
    uint64_t value = table_fingerprint();
    ck_assert_int_eq(count_cached(path), 1);
    ck_assert_int_eq(stat(path, &first), 0);
    ck_assert_uint_eq(table_fingerprint(), value);
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
        ck_assert_uint_eq(table_fingerprint(), value);
    }
    for (off_t bytes = 0; bytes < first.st_size; bytes += 61) {
        ck_assert_int_eq(truncate(path, bytes), 0);
        ck_assert_uint_eq(table_fingerprint(), value);
    }
    ck_assert_int_eq(count_cached(path), 1);

    table_write("data.csv", "x,y\n1,2\n3,4\n5,8\n");
    ck_assert_uint_ne(table_fingerprint(), value);
    ck_assert_int_eq(count_cached(path), 2);
    TABLE_SET(job->data.derive, "x = 2 * x");
    ck_assert_uint_ne(table_fingerprint(), value);
    ck_assert_int_eq(count_cached(path), 3);
}

/* What others may have written is not believed: it is made again, for nobody else to write. */
KELP_TEST(cache_of_others)
{
    char path[512];
    struct stat first, second;
    table_write("data.csv", "x,y\n1,2\n3,4\n5,7\n");
    uint64_t value = table_fingerprint();
    ck_assert_int_eq(count_cached(path), 1);
    ck_assert_int_eq(stat(path, &first), 0);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_uint_eq(table_fingerprint(), value);
    ck_assert_int_eq(stat(path, &second), 0);
    ck_assert(first.st_ino != second.st_ino);
    ck_assert_uint_eq(second.st_mode & 022, 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, 65534, 65534), 0);
        ck_assert_uint_eq(table_fingerprint(), value);
        ck_assert_int_eq(stat(path, &second), 0);
        ck_assert_uint_eq(second.st_uid, 0);
    }
}

/* Without a folder that can be written, data are prepared in memory, to the same. */
KELP_TEST(no_cache)
{
    table_write("data.csv", "x,y\n1,2\n3,4\n5,7\n");
    uint64_t value = table_fingerprint();
    job->data.cache[0] = '\0';
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", "/proc/none", 1), 0);
    ck_assert_uint_eq(table_fingerprint(), value);
    ck_assert_int_eq(unsetenv("XDG_CACHE_HOME"), 0);
    ck_assert_int_eq(unsetenv("HOME"), 0);
    ck_assert_uint_eq(table_fingerprint(), value);
}
