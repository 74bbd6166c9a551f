/*
 * Models of the other kinds of data carry what was fitted, as those of tables do
 * (test_model_card): the same bytes without the training data, and without targets.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"
#include "worker/data/text/csv.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS

/* ---- the other kinds ------------------------------------------------------------------------- */

KELP_CASE("other kinds", .timeout_s = 2 * KELP_TEST_HANG_S)

static void train_in(struct kelp_run *run, const char *job)
{
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", job), NULL, TIMEOUT_MS / 1000);
    ck_assert_msg(run->exit_code == 0, "exit %d; output:\n%s", run->exit_code, run->output);
    kelp_test_copy(run->folder, "run/model.safetensors", "m.safetensors");
}

/* `kelp predict WHAT ARGS --out OUT.csv` with a run folder of its own. */
static void predict(const struct kelp_run *run, const char *what, const char *option,
                    const char *value, const char *out)
{
    char folder[64];
    (void)snprintf(folder, sizeof(folder), "of-%s", out);
    const char *const args[] = {"predict", what,   "--out", out, "--run",
                                folder,    option, value,   NULL};
    kelp_test_run_ok(run->folder, args);
}

static void expect_begins(const char *folder, const char *name, const char *beginning)
{
    size_t count = 0, less = 0;
    char *bytes = kelp_test_read(folder, name, &count);
    char *first = kelp_test_read(folder, beginning, &less);
    ck_assert_uint_gt(less, 100);
    ck_assert_msg(count > less && memcmp(bytes, first, less) == 0,
                  "%s does not begin as %s:\n%.300s\n%.300s", name, beginning, bytes, first);
    free(bytes);
    free(first);
}

#define SERIES_ROWS 400u

static double level(uint32_t row, uint32_t of)
{
    return 10.0 * of + (double)(row % 24) + 0.25 * (double)((row * 2654435761u) >> 28);
}

static void write_series(const char *folder, const char *name, uint32_t first, bool other_order)
{
    struct kelp_test_text table = {.text = malloc(KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    kelp_test_add(&table, other_order ? "date,more,b,a\n" : "date,a,b\n");
    for (uint32_t row = first; row < SERIES_ROWS; row++) {
        kelp_test_add(&table, "2020-%02u-%02u %02u:00:00", row / 24 / 28 + 1, row / 24 % 28 + 1,
                      row % 24);
        if (other_order) {
            kelp_test_add(&table, ",x,%.2f,%.2f\n", level(row, 2), level(row, 1));
        } else {
            kelp_test_add(&table, ",%.2f,%.2f\n", level(row, 1), level(row, 2));
        }
    }
    (void)kelp_test_write(folder, name, table.text);
    free(table.text);
}

/* The rows of the test split in a file of their own, whose columns stand in another order: the same
 * forecasts, and then those that go beyond its end. */
KELP_TEST(series)
{
    struct kelp_run run;
    kelp_run_prepare(&run);
    write_series(run.folder, "series.csv", 0, false);
    train_in(&run, "name: series\n"
                   "model: {kind: dlinear}\n"
                   "data: {kind: csv, path: series.csv, features: M, seq_len: 12, pred_len: 4,"
                   " split: [240, 80, 80]}\n"
                   "train: {epochs: 1, batch_size: 32}\n"
                   "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    predict(&run, "run", NULL, NULL, "before.csv");
    write_series(run.folder, "new.csv", 320 - 12, true);
    kelp_test_remove(run.folder, "series.csv");
    predict(&run, "m.safetensors", "--data", "new.csv", "after.csv");
    expect_begins(run.folder, "after.csv", "before.csv");
    size_t count = 0;
    char *text = kelp_test_read(run.folder, "after.csv", &count);
    ck_assert_ptr_nonnull(strstr(text, "\n80,4,2020-01-17 19:00:00,")); /* row 403 */
    free(text);
    (void)kelp_test_write(run.folder, "bad.csv", "date,a,B\n2020-01-01 00:00:00,1,2\n");
    const char *const bad[] = {"predict", "m.safetensors", "--data", "bad.csv",
                               "--out",   "bad-out.csv",   NULL};
    kelp_test_command_says(run.folder, bad, 2,
                           "bad.csv:1: column b: no such column; the model takes these: a, b");
    kelp_run_fini(&run);
}

/* The generated series, and the rows of its test split in a file. */
KELP_TEST(generated_series)
{
    struct kelp_run run;
    size_t count = 0;
    kelp_run_prepare(&run);
    train_in(&run, "name: generated\n"
                   "model: {kind: dlinear}\n"
                   "data: {kind: synthetic, features: M, seq_len: 12, pred_len: 4, rows: 400,"
                   " split: [240, 80, 80]}\n"
                   "train: {epochs: 1, batch_size: 32}\n"
                   "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    predict(&run, "m.safetensors", NULL, NULL, "before.csv");
    const char *const generate[] = {"data", "generate", "--rows", "400", "--out", "all.csv", NULL};
    kelp_test_run_ok(run.folder, generate);
    char *text = kelp_test_read(run.folder, "all.csv", &count), *from = text;
    for (uint32_t row = 0; row < 320 - 12 + 1; row++) {
        from = strchr(from, '\n') + 1;
    }
    memmove(strchr(text, '\n') + 1, from, strlen(from) + 1);
    (void)kelp_test_write(run.folder, "new.csv", text);
    free(text);
    predict(&run, "m.safetensors", "--data", "new.csv", "after.csv");
    expect_begins(run.folder, "after.csv", "before.csv");
    kelp_run_fini(&run);
}

/* Rows of three series; the last `ahead` of each lack what is to be forecast. */
static void write_panel(const char *folder, const char *name, uint32_t first, uint32_t ahead)
{
    static const char *const zones[] = {"east", "west", "north"};
    struct kelp_test_text table = {.text = malloc(KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    kelp_test_add(&table, "time,zone,rides\n");
    for (uint32_t row = first; row < 120; row++) {
        for (uint32_t zone = 0; zone < KELP_ARRAY_COUNT(zones); zone++) {
            kelp_test_add(&table, "2020-01-%02u %02u:00:00,%s,", row / 24 + 1, row % 24,
                          zones[zone]);
            if (row + ahead < 120) {
                kelp_test_add(&table, "%.2f", level(row, zone + 1));
            }
            kelp_test_add(&table, "\n");
        }
    }
    (void)kelp_test_write(folder, name, table.text);
    free(table.text);
}

/* What is to be forecast need not be there; a series that the model does not know is refused. */
KELP_TEST(panel)
{
    struct kelp_run run;
    kelp_run_prepare(&run);
    write_panel(run.folder, "panel.csv", 0, 0);
    train_in(&run, "name: panel\n"
                   "model: {kind: tft, d_model: 8, heads: 2}\n"
                   "data: {kind: panel, path: panel.csv, time: time, group: zone, targets: [rides],"
                   " derive: ['hour = hour(time)'], known: [hour], seq_len: 12, pred_len: 4,"
                   " split: [100, 16, 4], normalize: standard, normalize_target: standard,"
                   " cache: cache}\n"
                   "train: {epochs: 1, batch_size: 32, loss: quantile}\n"
                   "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    predict(&run, "run", NULL, NULL, "before.csv");
    write_panel(run.folder, "new.csv", 120 - 16, 4);
    kelp_test_remove(run.folder, "panel.csv");
    predict(&run, "m.safetensors", "--data", "new.csv", "after.csv");
    kelp_test_expect_same(run.folder, "before.csv", "after.csv");
    const char *const targets[] = {"predict", "m.safetensors", "--data",    "new.csv",
                                   "--out",   "again.csv",     "--targets", NULL};
    kelp_test_command_says(run.folder, targets, 2, "--targets: the rows to predict have none");
    (void)kelp_test_write(run.folder, "bad.csv", "time,zone,rides\n2020-01-01 00:00:00,moon,1\n");
    const char *const bad[] = {"predict", "m.safetensors", "--data", "bad.csv",
                               "--out",   "bad-out.csv",   NULL};
    kelp_test_command_says(run.folder, bad, 2, "series moon");
    kelp_run_fini(&run);
}

/* Birds of three kinds, in runs of each; `named` of them have one. */
static void write_birds(const char *folder, const char *name, uint32_t named)
{
    static const char *const kinds[] = {"Gentoo", "\"Chin, \"\"strap\"\"\"", "Ad\xc3\xa9lie"};
    struct kelp_test_text table = {.text = malloc(KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    kelp_test_add(&table, named > 0 ? "bill,mass,kind\n" : "bill,mass\n");
    for (uint32_t row = 0; row < 240; row++) {
        uint32_t kind = row / 80;
        kelp_test_add(&table, "%.1f,%u", 30.0 + 8.0 * kind + (double)((row * 2654435761u) >> 29),
                      3000 + 700 * ((kind + 1) % 3) + row % 13);
        if (named > 0) {
            kelp_test_add(&table, ",%s", row < named ? kinds[kind] : "");
        }
        kelp_test_add(&table, "\n");
    }
    (void)kelp_test_write(folder, name, table.text);
    free(table.text);
}

static void expect_has(const char *folder, const char *name, const char *text)
{
    char *bytes = kelp_test_read(folder, name, NULL);
    ck_assert_msg(strstr(bytes, text) != NULL, "'%s' is not in %s:\n%.500s", text, name, bytes);
    free(bytes);
}

/* Classes may be names: they are numbered by their bytes, and the model carries them. */
KELP_TEST(class_names)
{
    struct kelp_run run;
    kelp_run_prepare(&run);
    write_birds(run.folder, "birds.csv", 239); /* one bird is of no kind */
    write_birds(run.folder, "labelled.csv", 240);
    write_birds(run.folder, "new.csv", 0);
    train_in(&run,
             "name: birds\n"
             "model: {kind: mlp, hidden: [8]}\n"
             "data: {kind: table, path: birds.csv, columns: [bill, mass], targets: [kind],"
             " filter: ['not missing(kind)'], normalize: standard, fractions: [0.8, 0.1, 0.1],"
             " random_split: true, cache: cache}\n"
             "train: {epochs: 30, batch_size: 16, lr: 0.02, loss: cross_entropy}\n"
             "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    ck_assert_ptr_nonnull(
        strstr(run.output, "classes of kind: 0 Ad\xc3\xa9lie, 1 Chin, \"strap\", 2 Gentoo\n"));
    expect_has(run.folder, "run/model.json",
               "\"classes\": [\"Ad\xc3\xa9lie\",\"Chin, \\\"strap\\\"\",\"Gentoo\"]");
    kelp_test_remove(run.folder, "birds.csv");
    predict(&run, "m.safetensors", "--data", "labelled.csv", "labelled-out.csv");
    predict(&run, "m.safetensors", "--data", "new.csv", "new-out.csv");
    kelp_test_expect_same(run.folder, "labelled-out.csv", "new-out.csv");
    expect_has(run.folder, "new-out.csv",
               "sample,class,class_name,score_Ad\xc3\xa9lie,\"score_Chin, \"\"strap\"\"\","
               "score_Gentoo\n0,2,Gentoo,");
    expect_has(run.folder, "new-out.csv", "\n100,1,\"Chin, \"\"strap\"\"\",");
    (void)kelp_test_write(run.folder, "none.csv", "bill,mass\n31,3700\n40,4400\n");
    (void)kelp_test_write(run.folder, "empty.csv", "kind,bill,mass\n,31,3700\nNA,40,4400\n");
    predict(&run, "m.safetensors", "--data", "none.csv", "none-out.csv");
    predict(&run, "m.safetensors", "--data", "empty.csv", "empty-out.csv");
    kelp_test_expect_same(run.folder, "none-out.csv", "empty-out.csv");
    const char *const targets[] = {"predict", "m.safetensors", "--data",    "labelled.csv",
                                   "--out",   "both.csv",      "--targets", NULL};
    kelp_test_run_ok(run.folder, targets);
    expect_has(run.folder, "both.csv", ",class_target,class_name_target\n");
    expect_has(run.folder, "both.csv", ",2,Gentoo\n1,2,Gentoo,");
    const char *const evaluate[] = {"evaluate", "m.safetensors", "--data", "labelled.csv", NULL};
    kelp_test_command_says(run.folder, evaluate, 0, "accuracy");
    (void)kelp_test_write(run.folder, "bad.csv", "kind,mass,bill\nGentoo,1,2\nDodo,1,2\n");
    const char *const bad[] = {"evaluate", "m.safetensors", "--data", "bad.csv", NULL};
    kelp_test_command_says(run.folder, bad, 2,
                           "bad.csv:3: column kind: 'Dodo' is none of the model's classes: "
                           "Ad\xc3\xa9lie, Chin, \"strap\", Gentoo");
    kelp_run_fini(&run);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static void write_bytes(const char *folder, const char *name, const void *bytes, size_t count)
{
    char path[512];
    struct kelp_error error;
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_msg(kelp_files_write(path, bytes, count, &error) == KELP_OK, "%s", error.text);
}

#define SIDE 6u

/* Images and labels; 0: none of them. */
static void write_idx(const char *folder, const char *prefix, uint8_t count, bool labels)
{
    uint8_t images[16 + 255 * SIDE * SIDE] = {0, 0, 8, 3,    0, 0, 0, count,
                                              0, 0, 0, SIDE, 0, 0, 0, SIDE};
    uint8_t classes[8 + 255] = {0, 0, 8, 1, 0, 0, 0, count};
    char name[128];
    size_t pixels = (size_t)count * SIDE * SIDE;
    for (size_t i = 0; i < pixels; i++) {
        images[16 + i] = (uint8_t)(i * 37 + i / (SIDE * SIDE) * 11);
    }
    for (size_t i = 0; i < count; i++) {
        classes[8 + i] = (uint8_t)(i % 3);
    }
    (void)snprintf(name, sizeof(name), "%s-images-idx3-ubyte", prefix);
    write_bytes(folder, name, images, 16 + pixels);
    (void)snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", prefix);
    if (labels) {
        write_bytes(folder, name, classes, 8u + count);
    }
}

KELP_TEST(images)
{
    struct kelp_run run;
    kelp_run_prepare(&run);
    kelp_test_make_folder(run.folder, "images");
    kelp_test_make_folder(run.folder, "new");
    write_idx(run.folder, "images/train", 120, true);
    write_idx(run.folder, "images/t10k", 40, true);
    write_idx(run.folder, "new/t10k", 40, false);
    train_in(&run, "name: images\n"
                   "model: {kind: mlp, hidden: [8]}\n"
                   "data: {kind: idx, path: images, mean: 0.5, std: 0.25}\n"
                   "train: {epochs: 1, batch_size: 32, loss: cross_entropy}\n"
                   "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    predict(&run, "run", NULL, NULL, "before.csv");
    kelp_test_remove(run.folder, "images");
    predict(&run, "m.safetensors", "--data", "new", "folder.csv");
    predict(&run, "m.safetensors", "--data", "new/t10k-images-idx3-ubyte", "file.csv");
    kelp_test_expect_same(run.folder, "before.csv", "folder.csv");
    kelp_test_expect_same(run.folder, "before.csv", "file.csv");
    const char *const evaluate[] = {"evaluate", "m.safetensors", "--data", "new", NULL};
    kelp_test_command_says(run.folder, evaluate, 2, "nothing to compare with");
    kelp_run_fini(&run);
}

/* Rows of four numbers, or of one. */
static void write_npy(const char *folder, const char *name, uint32_t rows, bool target)
{
    char head[128];
    float values[128 / 4 + 500 * 4] = {0};
    (void)snprintf(head, sizeof(head),
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (%u%s), }", rows,
                   target ? "," : ", 4");
    char *bytes = (char *)values;
    memset(bytes, ' ', 128);
    memcpy(bytes, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(bytes + 10, head, strlen(head));
    bytes[127] = '\n';
    uint32_t count = rows * (target ? 1 : 4);
    for (uint32_t i = 0; i < count; i++) {
        values[128 / 4 + i] = (float)((i * 2654435761u) >> 24) * (target ? 0.5f : 3.0f);
    }
    write_bytes(folder, name, values, 128 + count * sizeof(float));
}

KELP_TEST(arrays)
{
    struct kelp_run run;
    kelp_run_prepare(&run);
    write_npy(run.folder, "x.npy", 400, false);
    write_npy(run.folder, "y.npy", 400, true);
    write_npy(run.folder, "new.npy", 60, false);
    train_in(&run, "name: arrays\n"
                   "model: {kind: mlp, hidden: [8]}\n"
                   "data: {kind: npy, path: x.npy, target_path: y.npy, normalize: standard}\n"
                   "train: {epochs: 1, batch_size: 32}\n"
                   "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    predict(&run, "run", "--set", "data.test_path=new.npy", "before.csv");
    kelp_test_remove(run.folder, "x.npy");
    kelp_test_remove(run.folder, "y.npy");
    predict(&run, "m.safetensors", "--data", "new.npy", "after.csv");
    kelp_test_expect_same(run.folder, "before.csv", "after.csv");
    kelp_run_fini(&run);
}

/* Rows of four bytes, and of one more for the target. */
static void write_rows(const char *folder, const char *name, uint32_t count, bool targets)
{
    uint8_t bytes[5 * 400];
    size_t used = 0;
    for (uint32_t row = 0; row < count; row++) {
        for (uint32_t i = 0; i < 4; i++) {
            bytes[used++] = (uint8_t)((row * 4 + i) * 2654435761u >> 24);
        }
        used += targets ? 1 : 0;
        bytes[used - 1] = targets ? (uint8_t)(row % 3) : bytes[used - 1];
    }
    write_bytes(folder, name, bytes, used);
}

/* Nothing in such a file says whether its rows have targets: its size does, or the user. */
KELP_TEST(binary_rows)
{
    struct kelp_run run;
    kelp_run_prepare(&run);
    write_rows(run.folder, "rows.bin", 400, true);
    write_rows(run.folder, "labelled.bin", 61, true);
    write_rows(run.folder, "new.bin", 61, false);
    write_rows(run.folder, "either.bin", 100, false);
    train_in(&run, "name: rows\n"
                   "model: {kind: mlp, hidden: [8]}\n"
                   "data: {kind: binary, path: rows.bin, dtype: uint8, input_shape: [4],"
                   " fractions: [0.8, 0.2], random_split: true, normalize: standard}\n"
                   "train: {epochs: 1, batch_size: 32, loss: cross_entropy}\n"
                   "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    predict(&run, "run", "--set", "data.test_path=labelled.bin", "before.csv");
    kelp_test_remove(run.folder, "rows.bin");
    predict(&run, "m.safetensors", "--data", "labelled.bin", "labelled.csv");
    predict(&run, "m.safetensors", "--data", "new.bin", "after.csv");
    kelp_test_expect_same(run.folder, "before.csv", "labelled.csv");
    kelp_test_expect_same(run.folder, "before.csv", "after.csv");
    const char *const either[] = {
        "predict", "m.safetensors", "--data", "either.bin", "--out", "e.csv", NULL, NULL, NULL};
    kelp_test_command_says(run.folder, either, 2,
                           "either.bin: has 400 bytes, either 80 rows with targets or 100 "
                           "without; set data.test_rows to labelled or unlabelled");
    const char *const told[] = {"predict", "m.safetensors", "--data", "either.bin",
                                "--out",   "e.csv",         "--set",  "data.test_rows=unlabelled",
                                NULL};
    kelp_test_run_ok(run.folder, told);
    const char *const targets[] = {"predict", "m.safetensors", "--data",    "new.bin",
                                   "--out",   "t.csv",         "--targets", NULL};
    kelp_test_command_says(run.folder, targets, 2, "new.bin: has 244 bytes");
    kelp_run_fini(&run);
}

/* ---- Python ---------------------------------------------------------------------------------- */

/* 77: it has no PyTorch. */
static int check_in_python(const struct kelp_run *run, const char *python, const char *how)
{
    char command[2048];
    (void)snprintf(command, sizeof(command),
                   "cd %s && %s %s/tests/integration/cli/model_card_check.py m.safetensors "
                   "rows.csv predictions.csv %s",
                   run->folder, python, getenv("KELP_SOURCE"), how);
    int status = system(command); /* NOLINT(cert-env33-c): a test's own script */
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The weights with the scales of the card give the same predictions in Python: with its own
 * numbers, and with PyTorch where that is installed. */
KELP_TEST(python)
{
    struct kelp_run run;
    struct kelp_test_text table = {.text = malloc(KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    kelp_run_prepare(&run);
    kelp_test_add(&table, "x,y,z\n");
    for (uint32_t i = 0; i < 400; i++) {
        double x = 100.0 + (double)((i * 2654435761u) >> 24), y = 1e-3 * (double)(i % 37);
        kelp_test_add(&table, "%.3f,%.4f,%.3f\n", x, y, 5000.0 + 3.0 * x + 1e4 * y);
    }
    (void)kelp_test_write(run.folder, "rows.csv", table.text);
    free(table.text);
    train_in(&run, "name: python\n"
                   "model: {kind: mlp, hidden: [8, 4]}\n"
                   "data: {kind: table, path: rows.csv, columns: [x, y], targets: [z],"
                   " normalize: minmax, normalize_target: standard, cache: cache}\n"
                   "train: {epochs: 3, batch_size: 32}\n"
                   "cluster: {workers: 1, shards: 1, lanes: 2}\n");
    predict(&run, "m.safetensors", "--data", "rows.csv", "predictions.csv");
    if (system("python3 -c ''") != 0) { /* NOLINT(cert-env33-c) */
        (void)printf("skipped: there is no Python\n");
    } else {
        ck_assert_int_eq(check_in_python(&run, "python3", "plain"), 0);
        int status = check_in_python(&run, "python3", "torch");
        /* The system's packages belong to its own Python. */
        if (status == 77 && access("/usr/bin/python3", X_OK) == 0) {
            status = check_in_python(&run, "/usr/bin/python3", "torch");
        }
        ck_assert(status == 0 || status == 77);
        if (status == 77) {
            (void)printf("skipped: neither python3 nor /usr/bin/python3 has PyTorch\n");
        }
    }
    kelp_run_fini(&run);
}

/* ---- real data ------------------------------------------------------------------------------- */

#define TRIPS 2000u

/* The first trips, with all columns but one; "" leaves out none. */
static void write_trips(const char *folder, const char *name, const char *trips,
                        const char *without)
{
    struct kelp_csv *csv = NULL;
    struct kelp_error error;
    const struct kelp_csv_field *fields = NULL;
    struct kelp_test_text table = {.text = malloc(KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    ck_assert_msg(kelp_csv_open(trips, &csv, &error) == KELP_OK, "%s", error.text);
    uint32_t columns = kelp_csv_column_count(csv);
    for (uint32_t row = 0; row <= TRIPS; row++) {
        const char *between = "";
        if (row > 0) {
            ck_assert_int_eq(kelp_csv_next(csv, &fields, &error), KELP_OK);
            ck_assert_ptr_nonnull(fields);
        }
        for (uint32_t i = 0; i < columns; i++) {
            const char *column = kelp_csv_column(csv, i);
            if (strcmp(column, without) == 0) {
                continue;
            }
            kelp_test_add(&table, "%s%.*s", between,
                          row == 0 ? (int)strlen(column) : (int)fields[i].bytes,
                          row == 0 ? column : fields[i].start);
            between = ",";
        }
        kelp_test_add(&table, "\n");
    }
    (void)kelp_test_write(folder, name, table.text);
    kelp_csv_close(csv);
    free(table.text);
}

/* DeepFM on taxi trips: whether the tip is big, of trips whose tip is not in the file. */
KELP_TEST(taxi)
{
    char trips[KELP_TEST_PATH_MAX], example[1024], path[512];
    struct kelp_run run;
    struct kelp_error error;
    char *bytes = NULL;
    size_t count = 0;
    if (!kelp_test_data_file("nyc-taxi/yellow_trips_train.csv.gz", trips)) {
        (void)printf("skipped: no taxi trips in %s\n", trips);
        return;
    }
    kelp_run_prepare(&run);
    (void)snprintf(path, sizeof(path), "%s/trips.csv.gz", run.folder);
    ck_assert_int_eq(kelp_files_read(trips, 1u << 28, &bytes, &count, &error), KELP_OK);
    ck_assert_int_eq(kelp_files_write(path, bytes, count, &error), KELP_OK);
    free(bytes);
    write_trips(run.folder, "labelled.csv", trips, "");
    write_trips(run.folder, "unlabelled.csv", trips, "tip_amount");
    (void)snprintf(example, sizeof(example), "%s/examples/taxi-deepfm.yaml", getenv("KELP_SOURCE"));
    const char *const args[] = {"--set", "data.path=trips.csv.gz", "--set", "train.epochs=1",
                                "--set", "data.cache=cache",       NULL};
    kelp_run_train(&run, example, args, TIMEOUT_MS / 1000);
    ck_assert_msg(run.exit_code == 0, "exit %d; output:\n%s", run.exit_code, run.output);
    predict(&run, "run", "--data", "labelled.csv", "before.csv");
    kelp_test_copy(run.folder, "run/model.safetensors", "m.safetensors");
    kelp_test_remove(run.folder, "trips.csv.gz");
    kelp_test_remove(run.folder, "labelled.csv");
    kelp_test_remove(run.folder, "cache");
    kelp_test_remove(run.folder, "run");
    predict(&run, "m.safetensors", "--data", "unlabelled.csv", "after.csv");
    kelp_test_expect_same(run.folder, "before.csv", "after.csv");
    kelp_run_fini(&run);
}
