/*
 * A model carries what was fitted: used alone, in another folder, without the data that it was
 * trained on, it predicts the same bytes. Its training data may change, and the rows to predict
 * need no target.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/cluster/run_command.h"
#include "tests/lib/cluster/run_train.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS

/* ---- files --------------------------------------------------------------------------------- */

struct table {
    char *text;
    size_t used;
};

#define TABLE_BYTES (1u << 20)

static void add(struct table *table, const char *format, ...) KELP_PRINTF(2, 3);
static void add(struct table *table, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(table->text + table->used, TABLE_BYTES - table->used, format, args);
    va_end(args);
    ck_assert(bytes >= 0 && table->used + (size_t)bytes < TABLE_BYTES);
    table->used += (size_t)bytes;
}

/* Rows that follow from their number; `far` moves the distances, and with it their mean. */
static void write_rides(const char *folder, const char *name, uint32_t first, uint32_t count,
                        double far, bool labelled)
{
    static const char *const zones[] = {"JFK", "LGA", "Bronx", "Caf\xc3\xa9", "old \"town\", west"};
    struct table table = {.text = malloc(TABLE_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    add(&table, "distance,zone,hour%s\n", labelled ? ",fare" : "");
    for (uint32_t i = first; i < first + count; i++) {
        uint32_t mixed = i * 2654435761u;
        double distance = far + (double)(mixed >> 8 & 0xfff) / 409.6;
        /* The last rows have a zone that no training row has. */
        uint32_t zone = i >= 900 && i % 7 == 0 ? 4 : mixed >> 20 & 3;
        const char *text = zone == 4 ? "\"old \"\"town\"\", west\"" : zones[zone];
        add(&table, "%.4f,%s,%u", distance, text, mixed >> 5 & 15);
        if (labelled) {
            add(&table, ",%.4f", 2.5 + 3 * distance + zone + 0.1 * (mixed >> 5 & 15));
        }
        add(&table, "\n");
    }
    (void)kelp_test_write(folder, name, table.text);
    free(table.text);
}

static const char rides_job[] = "name: rides\n"
                                "model: {kind: deepfm, hidden: [8], embedding_dim: 4}\n"
                                "data:\n"
                                "  kind: table\n"
                                "  path: train.csv\n"
                                "  columns: [distance, hour]\n"
                                "  categories: [zone]\n"
                                "  derive: ['price = fare * 2']\n"
                                "  filter: ['price > 0', 'distance >= 0']\n"
                                "  targets: [price]\n"
                                "  vocab: [6]\n"
                                "  missing: mean\n"
                                "  normalize: standard\n"
                                "  normalize_target: standard\n"
                                "  fractions: [0.8, 0.1, 0.1]\n"
                                "  cache: cache\n"
                                "train: {epochs: 2, batch_size: 64, loss: mse}\n"
                                "cluster: {workers: 1, shards: 1, lanes: 2}\n";

/* ---- commands ------------------------------------------------------------------------------ */

static void run_in(const char *folder, const char *const *args)
{
    struct kelp_test_command command;
    kelp_test_command_run(&command, folder, args, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
}

static void expect_same(const char *folder, const char *name, const char *other)
{
    size_t count = 0, other_count = 0;
    char *bytes = kelp_test_read(folder, name, &count);
    char *other_bytes = kelp_test_read(folder, other, &other_count);
    ck_assert_uint_gt(count, 100);
    ck_assert_msg(count == other_count && memcmp(bytes, other_bytes, count) == 0,
                  "%s and %s differ:\n%.300s\n%.300s", name, other, bytes, other_bytes);
    free(bytes);
    free(other_bytes);
}

static void move(const char *folder, const char *from, const char *to)
{
    char old[512], new[512];
    (void)snprintf(old, sizeof(old), "%s/%s", folder, from);
    (void)snprintf(new, sizeof(new), "%s/%s", folder, to);
    ck_assert_int_eq(rename(old, new), 0);
}

static void copy(const char *folder, const char *from, const char *to)
{
    struct kelp_error error;
    char path[512];
    size_t count = 0;
    char *bytes = kelp_test_read(folder, from, &count);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, to);
    ck_assert_msg(kelp_files_write(path, bytes, count, &error) == KELP_OK, "%s", error.text);
    free(bytes);
}

static void make_folder(const char *folder, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(kelp_files_make_folder(path, NULL), KELP_OK);
}

static void trained(const struct kelp_run *run)
{
    ck_assert_msg(run->exit_code == 0, "exit %d; output:\n%s", run->exit_code, run->output);
}

/* ---- a table ------------------------------------------------------------------------------- */

/* One training for all tests of the table, which leave its run as it is. */
static struct kelp_run rides;

static void train_rides(void)
{
    kelp_run_prepare(&rides);
    write_rides(rides.folder, "train.csv", 0, 900, 0, true);
    write_rides(rides.folder, "new.csv", 900, 100, 0, true);
    write_rides(rides.folder, "unlabelled.csv", 900, 100, 0, false);
    kelp_run_train(&rides, kelp_test_write(rides.folder, "job.yaml", rides_job), NULL,
                   TIMEOUT_MS / 1000);
    trained(&rides);
    const char *const before[] = {"predict", "run",        "--set", "data.test_path=new.csv",
                                  "--out",   "before.csv", "--run", "before",
                                  NULL};
    run_in(rides.folder, before);
}

static void remove_rides(void)
{
    kelp_run_fini(&rides);
}

KELP_CASE("a table", .timeout_s = 2 * KELP_TEST_HANG_S, .begin = train_rides, .end = remove_rides)

/* Copied alone, with the training data and the run gone: the same bytes of rows without targets. */
KELP_TEST(model_alone_predicts_the_same)
{
    const char *const args[] = {"predict", "alone/m.safetensors", "--data", "unlabelled.csv",
                                "--out",   "alone.csv",           "--run",  "a1",
                                NULL};
    make_folder(rides.folder, "alone");
    copy(rides.folder, "run/model.safetensors", "alone/m.safetensors");
    move(rides.folder, "train.csv", "gone.csv");
    move(rides.folder, "run", "gone");
    run_in(rides.folder, args);
    move(rides.folder, "gone.csv", "train.csv");
    move(rides.folder, "gone", "run");
    expect_same(rides.folder, "before.csv", "alone.csv");
}

/* Other training data under the same name: the scales are those of the model. */
KELP_TEST(changed_training_data_change_nothing)
{
    const char *const args[] = {"predict",     "run",   "--data", "new.csv", "--out",
                                "changed.csv", "--run", "c1",     NULL};
    const char *const set[] = {"predict", "run",     "--set", "data.test_path=new.csv",
                               "--out",   "set.csv", "--run", "c2",
                               NULL};
    copy(rides.folder, "train.csv", "kept.csv");
    write_rides(rides.folder, "train.csv", 0, 900, 50, true);
    run_in(rides.folder, args);
    run_in(rides.folder, set);
    move(rides.folder, "kept.csv", "train.csv");
    expect_same(rides.folder, "before.csv", "changed.csv");
    expect_same(rides.folder, "before.csv", "set.csv");
}

/* A checkpoint's folder alone, and what export makes of run and checkpoint. */
KELP_TEST(checkpoints_and_exports_carry_it)
{
    const char *const of_run[] = {"export", "run", "--out", "exported.safetensors", NULL};
    const char *const of_checkpoint[] = {"checkpoint", "export", "newest", "from.safetensors",
                                         "--run",      "run",    NULL};
    const char *const first[] = {"predict", "exported.safetensors",
                                 "--data",  "unlabelled.csv",
                                 "--out",   "e1.csv",
                                 "--run",   "e1",
                                 NULL};
    const char *const second[] = {"predict", "from.safetensors", "--data", "unlabelled.csv",
                                  "--out",   "e2.csv",           "--run",  "e2",
                                  NULL};
    run_in(rides.folder, of_run);
    run_in(rides.folder, of_checkpoint);
    run_in(rides.folder, first);
    run_in(rides.folder, second);
    expect_same(rides.folder, "before.csv", "e1.csv");
    expect_same(rides.folder, "before.csv", "e2.csv");

    char folder[64];
    (void)snprintf(folder, sizeof(folder), "alone/step-%.0f.g1", kelp_run_number(&rides, "step"));
    char from[96];
    (void)snprintf(from, sizeof(from), "run/checkpoints/%s", folder + strlen("alone/"));
    const char *const third[] = {"predict", "--checkpoint", folder,  "--data", "unlabelled.csv",
                                 "--out",   "e3.csv",       "--run", "e3",     NULL};
    make_folder(rides.folder, "alone");
    move(rides.folder, from, folder);
    move(rides.folder, "run", "gone");
    run_in(rides.folder, third);
    move(rides.folder, "gone", "run");
    move(rides.folder, folder, from);
    expect_same(rides.folder, "before.csv", "e3.csv");
}

/* Weights of elsewhere, without a card, for a run: with the run's scales. */
KELP_TEST(evaluate_uses_the_models_scales)
{
    const char *const own[] = {"evaluate", "run",   "--data", "new.csv", "-o",
                               "json",     "--run", "v1",     NULL};
    const char *const alone[] = {
        "evaluate", "run/model.safetensors", "--data", "new.csv", "-o", "json", "--run", "v2",
        NULL};
    struct kelp_test_command first, second;
    kelp_test_command_run(&first, rides.folder, own, TIMEOUT_MS);
    ck_assert_msg(first.exit_code == 0, "%s", first.err);
    kelp_test_command_run(&second, rides.folder, alone, TIMEOUT_MS);
    ck_assert_msg(second.exit_code == 0, "%s", second.err);
    const char *metric = strstr(first.out, "\"test/mse\"");
    ck_assert_ptr_nonnull(metric);
    const char *other = strstr(second.out, "\"test/mse\"");
    ck_assert_ptr_nonnull(other);
    ck_assert_int_eq(strncmp(metric, other, strcspn(metric, ",}")), 0);
    kelp_test_command_fini(&first);
    kelp_test_command_fini(&second);
}

/* One line each: what is wrong, and what the model takes. */
KELP_TEST(what_does_not_fit_is_refused)
{
    static const struct {
        const char *args[12];
        const char *says;
    } mistakes[] = {
        {{"predict", "run/model.safetensors", "--out", "p.csv"}, "data.path"},
        {{"predict", "run", "--data", "unlabelled.csv", "--targets", "--out", "p.csv"},
         "--targets: the rows to predict have none"},
        {{"evaluate", "run", "--data", "unlabelled.csv"}, "column fare: no such column"},
        {{"predict", "run", "--data", "bad.csv", "--out", "p.csv"},
         "bad.csv:1: column distance: no such column; the model takes these: distance, hour, zone"},
        {{"predict", "run", "--data", "new.csv", "--part", "val", "--out", "p.csv"},
         "leave out --part"},
        {{"predict", "run", "--data", "new.csv", "--set", "data.columns=[hour, distance]", "--out",
          "p.csv"},
         "data.columns: has column hour where the model"},
        {{"predict", "plain.safetensors", "--data", "new.csv", "--out", "p.csv"},
         "has weights alone"},
        {{"predict", "run/model.safetensors", "--weights", "x", "--data", "new.csv", "--out",
          "p.csv"},
         "has weights already"},
    };
    size_t count = 0;
    char *bytes = kelp_test_read(rides.folder, "run/model.safetensors", &count);
    char *key = memmem(bytes, count, "kelp.model", 10);
    ck_assert_ptr_nonnull(key);
    memcpy(key, "kelp.medal", 10);
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/plain.safetensors", rides.folder);
    ck_assert_int_eq(kelp_files_write(path, bytes, count, NULL), KELP_OK);
    free(bytes);
    (void)kelp_test_write(rides.folder, "bad.csv", "Distance,zone,hour\n1,JFK,2\n");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(mistakes); i++) {
        kelp_test_command_says(rides.folder, mistakes[i].args, 2, mistakes[i].says);
    }
}

/* A model of an earlier Kelp: its scales are fitted again, and that is said. */
KELP_TEST(weights_without_a_card)
{
    size_t count = 0;
    char *bytes = kelp_test_read(rides.folder, "run/model.safetensors", &count);
    memcpy(memmem(bytes, count, "kelp.model", 10), "kelp.medal", 10);
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/plain.safetensors", rides.folder);
    ck_assert_int_eq(kelp_files_write(path, bytes, count, NULL), KELP_OK);
    free(bytes);
    const char *const job[] = {"predict",   "job.yaml",
                               "--weights", "plain.safetensors",
                               "--set",     "data.test_path=new.csv",
                               "--out",     "w1.csv",
                               "--run",     "w1",
                               NULL};
    const char *const run[] = {"predict", "run",     "--weights", "plain.safetensors",
                               "--data",  "new.csv", "--out",     "w2.csv",
                               "--run",   "w2",      NULL};
    kelp_test_command_says(rides.folder, job, 0, "does not carry its scales");
    expect_same(rides.folder, "before.csv", "w1.csv");
    run_in(rides.folder, run); /* with the card of the run */
    expect_same(rides.folder, "before.csv", "w2.csv");
}
