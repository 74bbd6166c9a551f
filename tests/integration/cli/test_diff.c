/*
 * `kelp diff`: the first difference on record, the keys of the jobs, and the exact step and tensors
 * by computing both runs again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "common/base/status.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS
/* 465 windows in batches of 40: 12 steps in an epoch. */
#define STEPS_PER_EPOCH 12

static const char job_text[] =
    "name: diff\n"
    "seed: 11\n"
    "model: {kind: dlinear}\n"
    "data: {kind: synthetic, seq_len: 24, pred_len: 12, rows: 700, split: [500, 100, 100]}\n"
    "train: {epochs: 4, batch_size: 40, optimizer: adam, lr: 0.005, schedule: type1}\n"
    "cluster: {workers: 2, shards: 2, lanes: 4}\n"
    "checkpoint: {digest_steps: 5}\n";

static struct kelp_test_folder folder;

static void run(const char *const *args, int exit_code, struct kelp_test_command *command)
{
    kelp_test_command_run(command, folder.path, args, TIMEOUT_MS);
    ck_assert_msg(command->exit_code == exit_code, "exit %d, not %d; output:\n%s%s",
                  command->exit_code, exit_code, command->out, command->err);
}

/* `kelp train job.yaml --run NAME [--set KEY=VALUE]`, once in all tests. */
static void train(const char *name, const char *set)
{
    const char *args[] = {"train", "job.yaml", "--run", name, set ? "--set" : NULL, set, NULL};
    struct kelp_test_command command;

    run(args, 0, &command);
    kelp_test_command_fini(&command);
}

/* `kelp diff A B -o json`; owned (cJSON_Delete()). */
static cJSON *diff(const char *a, const char *b, int exit_code)
{
    const char *args[] = {"diff", a, b, "-o", "json", NULL};
    struct kelp_test_command command;

    run(args, exit_code, &command);
    cJSON *json = kelp_test_json(command.out);
    kelp_test_command_fini(&command);
    return json;
}

static void check_key(const cJSON *json, const char *key, const char *a, const char *b)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, kelp_test_member(json, "keys"))
    {
        if (strcmp(kelp_test_text(item, "key"), key) == 0) {
            ck_assert_str_eq(cJSON_GetArrayItem(kelp_test_member(item, "values"), 0)->valuestring,
                             a);
            ck_assert_str_eq(cJSON_GetArrayItem(kelp_test_member(item, "values"), 1)->valuestring,
                             b);
            return;
        }
    }
    ck_abort_msg("no difference of key %s in %s", key, cJSON_PrintUnformatted(json));
}

static void check_reproduced(const cJSON *json, bool a, bool b)
{
    const cJSON *runs = kelp_test_member(json, "runs");

    ck_assert_int_eq(cJSON_IsTrue(kelp_test_member(cJSON_GetArrayItem(runs, 0), "reproduced")), a);
    ck_assert_int_eq(cJSON_IsTrue(kelp_test_member(cJSON_GetArrayItem(runs, 1), "reproduced")), b);
}

static void setup(void)
{
    kelp_test_folder_init(&folder);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    train("a", NULL);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

KELP_CASE("diff", .timeout_s = KELP_TEST_HANG_S, .begin = setup, .end = teardown)

/* The same job twice, with another number of workers: the same. */
KELP_TEST(same_job_is_the_same)
{
    train("same", "cluster.workers=1");
    cJSON *json = diff("a", "same", 0);
    ck_assert(cJSON_IsTrue(kelp_test_member(json, "same")));
    check_key(json, "cluster.workers", "2:2", "1:1");
    const cJSON *metrics = kelp_test_member(json, "metrics");
    ck_assert(kelp_test_number(metrics, "common") > 4 * 3);
    ck_assert_ptr_null(cJSON_GetObjectItemCaseSensitive(metrics, "first"));
    cJSON_Delete(json);
}

/* A learning rate that is another one from the third epoch on: recorded at a later step, found at
 * the first step of that epoch. */
KELP_TEST(other_lr_from_an_epoch_on)
{
    static const char *const table[] = {"diff", "a", "constant", "--no-replay", NULL};

    train("constant", "train.schedule=constant");
    cJSON *json = diff("a", "constant", 1);
    const cJSON *first = kelp_test_member(json, "first");
    ck_assert_int_eq(kelp_test_member(kelp_test_member(json, "record"), "step")->valueint, 25);
    ck_assert_int_eq(kelp_test_member(first, "step")->valueint, 2 * STEPS_PER_EPOCH + 1);
    /* Weights of both maps; Adam's moments follow from the gradient, which is the same once more.
     */
    ck_assert_int_eq(kelp_test_member(first, "tensor_count")->valueint, 4);
    ck_assert_str_eq(
        kelp_test_text(cJSON_GetArrayItem(kelp_test_member(first, "tensors"), 0), "name"),
        "linear_seasonal.weight");
    check_key(json, "train.schedule", "type1", "constant");
    /* The rate of the third epoch is the first metric that differs; the table has both runs. */
    const cJSON *metrics = kelp_test_member(json, "metrics");
    first = kelp_test_member(metrics, "first");
    ck_assert_int_eq(kelp_test_member(first, "epoch")->valueint, 3);
    ck_assert(kelp_test_number(first, "step") > 2 * STEPS_PER_EPOCH);
    ck_assert_int_eq(cJSON_GetArraySize(kelp_test_member(metrics, "runs")), 2);
    kelp_test_command_says(folder.path, table, 1, "METRIC");
    kelp_test_command_says(folder.path, table, 1, "metrics    differ at step ");
    check_reproduced(json, true, true);
    cJSON_Delete(json);
}

/* A run that went on from a checkpoint as another job: computed again from that checkpoint, since
 * from its beginning the new job gives other bits. */
KELP_TEST(other_lr_from_a_checkpoint_on)
{
    static const char *const import[] = {"checkpoint", "import",  "base/checkpoints/step-24.g1",
                                         "--run",      "changed", NULL};
    static const char *const resume[] = {"train",         "--resume", "--run",          "changed",
                                         "--force",       "--set",    "train.epochs=4", "--set",
                                         "train.lr=0.02", NULL};

    train("base", "train.epochs=2");
    kelp_test_command_says(folder.path, import, 0, "imported");
    kelp_test_command_says(folder.path, resume, 0, "done");
    cJSON *json = diff("a", "changed", 1);
    ck_assert_int_eq(kelp_test_member(kelp_test_member(json, "record"), "step")->valueint, 25);
    ck_assert_int_eq(kelp_test_member(kelp_test_member(json, "first"), "step")->valueint, 25);
    ck_assert_str_eq(kelp_test_text(cJSON_GetArrayItem(kelp_test_member(json, "runs"), 1), "from"),
                     "step-24.g1");
    check_key(json, "train.lr", "0.005", "0.02");
    check_reproduced(json, true, true);
    cJSON_Delete(json);
}

/* Another seed: the initial states differ already. */
KELP_TEST(other_seed)
{
    train("seed", "seed=12");
    cJSON *json = diff("a", "seed", 1);
    ck_assert_int_eq(kelp_test_member(kelp_test_member(json, "first"), "step")->valueint, 0);
    check_key(json, "seed", "11", "12");
    check_reproduced(json, true, true);
    cJSON_Delete(json);
}

/* Other models have no tensors in common: said instead of a step. */
KELP_TEST(other_model)
{
    train("mlp", "model.kind=mlp");
    cJSON *json = diff("a", "mlp", 1);
    ck_assert_str_eq(kelp_test_text(json, "outcome"), "models");
    cJSON_Delete(json);
}

/* Change a byte of a file of the test's folder: the first one behind both texts. */
static void alter(const char *name, const char *text, const char *behind)
{
    struct kelp_error error = {.status = KELP_OK};
    char path[300];
    char *bytes = NULL;
    size_t count = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    ck_assert_msg(kelp_files_read(path, 1 << 20, &bytes, &count, &error) == KELP_OK, "%s",
                  error.text);
    char *at = strstr(bytes, text);
    ck_assert_ptr_nonnull(at);
    at = strstr(at, behind);
    ck_assert_ptr_nonnull(at);
    at += strlen(behind);
    *at = *at == '0' ? '1' : '0';
    ck_assert_msg(kelp_files_write(path, bytes, count, &error) == KELP_OK, "%s", error.text);
    free(bytes);
}

/* A line of digests.jsonl that was altered by hand is named: the jobs give the same, and that
 * record is not it. */
KELP_TEST(altered_record)
{
    static const char *const args[] = {"diff", "a", "altered", NULL};

    train("altered", NULL);
    alter("altered/digests.jsonl", "\"step\":35,", "\"digest\":\"");
    cJSON *json = diff("a", "altered", 1);
    ck_assert_str_eq(kelp_test_text(json, "outcome"), "jobs give the same");
    ck_assert_int_eq(kelp_test_member(kelp_test_member(json, "record"), "step")->valueint, 35);
    check_reproduced(json, true, false);
    cJSON_Delete(json);
    kelp_test_command_says(folder.path, args, 1, "the record of altered is not what its job gives");
    /* As if it had been computed elsewhere. */
    alter("altered/checkpoints/step-48.g1/plan.json", "compute_kind", "openblas-");
    kelp_test_command_says(folder.path, args, 1, "altered was computed on another kind of machine");
    kelp_test_command_says(folder.path, args, 1, "compute    a: cpu ");
}

/* A mistake is one line and exit status 2. */
KELP_TEST(mistakes)
{
    static const char *const cases[][4] = {
        {"diff", "a", NULL}, {"diff", "a", "nowhere", NULL}, {"diff", "a", "a", "--replay"}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        const char *args[5] = {cases[i][0], cases[i][1], cases[i][2], cases[i][3], NULL};
        struct kelp_test_command command;
        run(args, 2, &command);
        ck_assert_str_eq(command.out, "");
        kelp_test_command_fini(&command);
    }
}
