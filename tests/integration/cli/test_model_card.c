/*
 * A model of a table carries what was fitted: used alone, in another folder, without the data that
 * it was trained on, it predicts the same bytes. Its training data may change, and the rows to
 * predict need no target.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS

/* ---- files --------------------------------------------------------------------------------- */

/* Rows that follow from their number; `far` moves the distances, and with it their mean. */
static void write_rides(const char *folder, const char *name, uint32_t first, uint32_t count,
                        double far, bool labelled)
{
    static const char *const zones[] = {"JFK", "LGA", "Bronx", "Caf\xc3\xa9", "old \"town\", west"};
    struct kelp_test_text table = {.text = malloc(KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    kelp_test_add(&table, "distance,zone,hour%s\n", labelled ? ",fare" : "");
    for (uint32_t i = first; i < first + count; i++) {
        uint32_t mixed = i * 2654435761u;
        double distance = far + (double)(mixed >> 8 & 0xfff) / 409.6;
        /* The last rows have a zone that no training row has. */
        uint32_t zone = i >= 900 && i % 7 == 0 ? 4 : mixed >> 20 & 3;
        const char *text = zone == 4 ? "\"old \"\"town\"\", west\"" : zones[zone];
        kelp_test_add(&table, "%.4f,%s,%u", distance, text, mixed >> 5 & 15);
        if (labelled) {
            kelp_test_add(&table, ",%.4f", 2.5 + 3 * distance + zone + 0.1 * (mixed >> 5 & 15));
        }
        kelp_test_add(&table, "\n");
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
    ck_assert_msg(rides.exit_code == 0, "exit %d; output:\n%s", rides.exit_code, rides.output);
    const char *const before[] = {"predict", "run",        "--set", "data.test_path=new.csv",
                                  "--out",   "before.csv", "--run", "before",
                                  NULL};
    kelp_test_run_ok(rides.folder, before);
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
    kelp_test_make_folder(rides.folder, "alone");
    kelp_test_copy(rides.folder, "run/model.safetensors", "alone/m.safetensors");
    kelp_test_move(rides.folder, "train.csv", "gone.csv");
    kelp_test_move(rides.folder, "run", "gone");
    kelp_test_run_ok(rides.folder, args);
    kelp_test_move(rides.folder, "gone.csv", "train.csv");
    kelp_test_move(rides.folder, "gone", "run");
    kelp_test_expect_same(rides.folder, "before.csv", "alone.csv");
}

/* Other training data under the same name: the scales are those of the model. */
KELP_TEST(changed_training_data_change_nothing)
{
    const char *const args[] = {"predict", "run",         "--set", "data.test_path=new.csv",
                                "--out",   "changed.csv", "--run", "c1",
                                NULL};
    kelp_test_copy(rides.folder, "train.csv", "kept.csv");
    write_rides(rides.folder, "train.csv", 0, 900, 50, true);
    kelp_test_run_ok(rides.folder, args);
    kelp_test_move(rides.folder, "kept.csv", "train.csv");
    kelp_test_expect_same(rides.folder, "before.csv", "changed.csv");
}

/* A checkpoint's folder alone, and what export makes of run and checkpoint. */
KELP_TEST(checkpoints_and_exports_carry_it)
{
    static const char *const exported[] = {"exported.safetensors", "from.safetensors"};
    const char *const of_run[] = {"export", "run", "--out", "exported.safetensors", NULL};
    const char *const of_checkpoint[] = {"checkpoint", "export", "newest", "from.safetensors",
                                         "--run",      "run",    NULL};
    kelp_test_run_ok(rides.folder, of_run);
    kelp_test_run_ok(rides.folder, of_checkpoint);
    size_t count = 0;
    char *card = kelp_test_read(rides.folder, "run/model.json", &count);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(exported); i++) {
        char path[512], *text = NULL;
        struct kelp_error error;
        (void)snprintf(path, sizeof(path), "%s/%s", rides.folder, exported[i]);
        ck_assert_msg(kelp_model_card_text_of(path, &text, &error) == KELP_OK, "%s", error.text);
        ck_assert_ptr_nonnull(text);
        ck_assert_str_eq(text, card);
        free(text);
    }
    free(card);

    char folder[64];
    (void)snprintf(folder, sizeof(folder), "alone/step-%.0f.g1", kelp_run_number(&rides, "step"));
    char from[96];
    (void)snprintf(from, sizeof(from), "run/checkpoints/%s", folder + strlen("alone/"));
    const char *const third[] = {"predict", "--checkpoint", folder,  "--data", "unlabelled.csv",
                                 "--out",   "e3.csv",       "--run", "e3",     NULL};
    kelp_test_make_folder(rides.folder, "alone");
    kelp_test_move(rides.folder, from, folder);
    kelp_test_move(rides.folder, "run", "gone");
    kelp_test_run_ok(rides.folder, third);
    kelp_test_move(rides.folder, "gone", "run");
    kelp_test_move(rides.folder, folder, from);
    kelp_test_expect_same(rides.folder, "before.csv", "e3.csv");
}

/* Evaluated alone, the error is that of the predictions against the targets, in the model's scale.
 */
KELP_TEST(evaluate_needs_nothing_else)
{
    const char *const predict[] = {
        "predict", "run/model.safetensors", "--data",    "new.csv", "--out", "scaled.csv", "--run",
        "v1",      "--normalized",          "--targets", NULL};
    const char *const evaluate[] = {
        "evaluate", "run/model.safetensors", "--data", "new.csv", "-o", "json", "--run", "v2",
        NULL};
    struct kelp_test_command command;
    double squares = 0.0;
    size_t count = 0;
    kelp_test_run_ok(rides.folder, predict);
    char *text = kelp_test_read(rides.folder, "scaled.csv", &count);
    char *at = strchr(text, '\n') + 1;
    for (uint32_t i = 0; i < 100; i++) {
        double sample = 0.0, predicted = 0.0, target = 0.0;
        ck_assert_int_eq(sscanf(at, "%lf,%lf,%lf", &sample, &predicted, &target), 3);
        squares += (predicted - target) * (predicted - target);
        at = strchr(at, '\n') + 1;
    }
    free(text);
    kelp_test_command_run(&command, rides.folder, evaluate, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    const char *metric = strstr(command.out, "\"test/mse\":");
    ck_assert_ptr_nonnull(metric);
    ck_assert_double_eq_tol(strtod(metric + strlen("\"test/mse\":"), NULL), squares / 100, 1e-5);
    kelp_test_command_fini(&command);
}

/* One line each: what is wrong, and what the model takes. */
KELP_TEST(what_does_not_fit_is_refused)
{
    static const struct {
        const char *args[12];
        const char *says;
    } mistakes[] = {
        {{"predict", "run/model.safetensors", "--out", "p.csv"}, "with --data PATH"},
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
         "has only weights"},
        {{"predict", "run/model.safetensors", "--weights", "x", "--data", "new.csv", "--out",
          "p.csv"},
         "has weights: omit"},
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
    kelp_test_expect_same(rides.folder, "before.csv", "w1.csv");
    kelp_test_run_ok(rides.folder, run); /* with the card of the run */
    kelp_test_expect_same(rides.folder, "before.csv", "w2.csv");
}
