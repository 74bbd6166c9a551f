/*
 * Checkpoints read without a cluster: `kelp checkpoint ls | show | verify | export`, and `kelp
 * verify` with and without computing again. The checkpoints are made of states that a replay gives,
 * so that any state, right or wrong, can be had.
 */
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/status.h"
#include "common/tensors/safetensors.h"
#include "tests/lib/cluster/checkpoint_make.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS
#define LAST_STEP  36 /* 465 windows in batches of 40: 12 steps in an epoch, three epochs */

static const char job_text[] =
    "name: verify\n"
    "seed: 11\n"
    "model: {kind: mlp, hidden: [4096]}\n"
    "data: {kind: synthetic, seq_len: 24, pred_len: 12, rows: 700, split: [500, 100, 100]}\n"
    "train: {epochs: 3, batch_size: 40, optimizer: adam, lr: 0.005, schedule: type1}\n"
    "cluster: {workers: 2, shards: 2, lanes: 4}\n"
    "checkpoint: {digest_steps: 5, interval: 0s, at_end: false}\n";

static struct kelp_test_folder folder;
static char run_path[160];

static void run(const char *const *args, int exit_code, struct kelp_test_command *command)
{
    kelp_test_command_run(command, folder.path, args, TIMEOUT_MS);
    ck_assert_msg(command->exit_code == exit_code, "exit %d, not %d; output:\n%s%s",
                  command->exit_code, exit_code, command->out, command->err);
}

/* What `kelp ARGS` printed; owned (cJSON_Delete()). */
static cJSON *run_json(const char *const *args, int exit_code)
{
    struct kelp_test_command command;

    run(args, exit_code, &command);
    cJSON *json = kelp_test_json(command.out);
    kelp_test_command_fini(&command);
    return json;
}

static void check_says(const char *const *args, int exit_code, const char *text)
{
    kelp_test_command_says(folder.path, args, exit_code, text);
}

/* One of the stretches that were computed again. */
static const cJSON *stretch(const cJSON *json, int index)
{
    const cJSON *found = cJSON_GetArrayItem(kelp_test_member(json, "replay"), index);

    ck_assert_msg(found != NULL, "no stretch %d in %s", index, cJSON_PrintUnformatted(json));
    return found;
}

static void ok(kelp_status status, const struct kelp_error *error)
{
    ck_assert_msg(status == KELP_OK, "%s", error->text);
}

static void make_checkpoint(uint64_t step, bool wrong, char *ret_path, size_t path_bytes)
{
    kelp_test_checkpoint_at(run_path, step, wrong, ret_path, path_bytes);
}

static void remove_tree(const char *path)
{
    struct kelp_error error;

    ok(kelp_files_remove(path, &error), &error);
}

static void setup(void)
{
    static const char *const args[] = {"train", "job.yaml", "--run", "run", NULL};
    struct kelp_test_command command;

    kelp_test_folder_init(&folder);
    (void)snprintf(run_path, sizeof(run_path), "%s/run", folder.path);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    run(args, 0, &command);
    kelp_test_command_fini(&command);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

/* Checkpoints of every test are its own. */
static void clear(void)
{
    char path[200];

    (void)snprintf(path, sizeof(path), "%s/checkpoints", run_path);
    remove_tree(path);
}

KELP_CASE("verify", .timeout_s = KELP_TEST_HANG_S, .begin = setup, .end = teardown, .setup = clear)

/* Rows in the order of steps, NAME first; a checkpoint that is being written is left out. */
KELP_TEST(ls_and_show)
{
    static const char *const ls[] = {"checkpoint", "ls", "--run", "run", NULL};
    static const char *const ls_json[] = {"checkpoint", "ls", "--run", "run", "-o", "json", NULL};
    static const char *const show[] = {"checkpoint", "show", "--run", "run", NULL};
    static const char *const missing[] = {"checkpoint", "show", "step-7.g1", "--run", "run", NULL};
    char path[1300];
    struct kelp_test_command command;

    check_says(ls, 0, "NAME");
    make_checkpoint(LAST_STEP, false, path, sizeof(path));
    make_checkpoint(10, false, path, sizeof(path));
    make_checkpoint(20, false, path, sizeof(path));
    (void)strncat(path, "/manifest.json", sizeof(path) - strlen(path) - 1);
    ck_assert_int_eq(unlink(path), 0);
    run(ls, 0, &command);
    const char *first = strstr(command.out, "\nstep-10.g1 ");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_nonnull(strstr(first, "\nstep-36.g1 "));
    ck_assert_ptr_null(strstr(command.out, "step-20.g1"));
    for (const char *line = command.out; line && *line; line = strchr(line, '\n') + 1) {
        ck_assert_uint_le(strcspn(line, "\n"), 80);
    }
    kelp_test_command_fini(&command);

    cJSON *json = run_json(ls_json, 0);
    const cJSON *row = cJSON_GetArrayItem(kelp_test_member(json, "checkpoints"), 0);
    ck_assert_int_eq(kelp_test_member(row, "step")->valueint, 10);
    ck_assert_int_eq(kelp_test_member(row, "storages")->valueint, 2);
    cJSON_Delete(json);
    check_says(show, 0, "checkpoint step-36.g1");
    check_says(missing, 2,
               "there is no checkpoint 'step-7.g1'; the run has step-10.g1, step-36.g1");
}

static void check_same_files(const char *a, const char *b)
{
    const char *const names[2] = {a, b};
    char path[400];
    char *texts[2];
    size_t counts[2];
    struct kelp_error error;

    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder.path, names[i]);
        ok(kelp_files_read(path, 1 << 24, &texts[i], &counts[i], &error), &error);
    }
    ck_assert_uint_eq(counts[0], counts[1]);
    ck_assert_mem_eq(texts[0], texts[1], counts[0]);
    free(texts[0]);
    free(texts[1]);
}

/* The weights that `kelp export` gives at the end are those of a checkpoint of the end, file by
 * file; the optimizer's slots are there when asked for. */
KELP_TEST(export_is_the_model)
{
    static const char *const by_run[] = {"export", "run", "--out", "run.safetensors", NULL};
    static const char *const by_checkpoint[] = {
        "checkpoint", "export", "step-36.g1", "checkpoint.safetensors", "--run", "run", NULL};
    static const char *const with_slots[] = {
        "checkpoint",       "export", "newest", "all.safetensors",
        "--with-optimizer", "--run",  "run",    NULL};
    char path[1300];
    struct kelp_error error;
    struct kelp_safetensors *file = NULL;

    make_checkpoint(LAST_STEP, false, path, sizeof(path));
    check_says(by_run, 0, "step 36");
    check_says(by_checkpoint, 0, "step 36");
    check_says(with_slots, 0, "step 36");
    check_same_files("run.safetensors", "checkpoint.safetensors");
    (void)snprintf(path, sizeof(path), "%s/all.safetensors", folder.path);
    ok(kelp_safetensors_open(path, &file, &error), &error);
    ck_assert_ptr_nonnull(kelp_safetensors_find(file, "fc1.weight"));
    ck_assert_ptr_nonnull(kelp_safetensors_find(file, "optimizer.exp_avg_sq.fc1.weight"));
    kelp_safetensors_close(file);
}

/* Change one bit among the first values in the largest file of a checkpoint's first storage. */
static void flip_bit(const char *checkpoint)
{
    char pattern[1400];
    char largest[1400] = "";
    off_t largest_bytes = 0;
    glob_t found;
    unsigned char byte;

    (void)snprintf(pattern, sizeof(pattern), "%s/shard-0.*/*.sst", checkpoint);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat info;
        ck_assert_int_eq(stat(found.gl_pathv[i], &info), 0);
        if (info.st_size > largest_bytes) {
            largest_bytes = info.st_size;
            (void)snprintf(largest, sizeof(largest), "%s", found.gl_pathv[i]);
        }
    }
    globfree(&found);
    int fd = open(largest, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, 64), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, 64), 1);
    ck_assert_int_eq(close(fd), 0);
}

/* A flipped bit is found, with checkpoint, storage and partition, and only there; nothing is
 * exported from it, and a replay goes by the others. */
KELP_TEST(flipped_bit)
{
    static const char *const verify[] = {"verify", "run", "-o", "json", NULL};
    static const char *const one[] = {"checkpoint", "verify", "step-20.g1", "--run", "run", NULL};
    static const char *const other[] = {"checkpoint", "verify", "step-10.g1", "--run", "run", NULL};
    static const char *const export[] = {"checkpoint", "export", "step-20.g1", "x.safetensors",
                                         "--run",      "run",    NULL};
    static const char *const replay[] = {"verify", "run", "--replay", NULL};
    char path[1300];

    make_checkpoint(10, false, path, sizeof(path));
    make_checkpoint(20, false, path, sizeof(path));
    check_says(verify, 0, "\"damaged\":0");
    flip_bit(path);
    cJSON *json = run_json(verify, 1);
    ck_assert_int_eq(kelp_test_member(json, "damaged")->valueint, 1);
    const cJSON *fault = cJSON_GetArrayItem(kelp_test_member(json, "faults"), 0);
    ck_assert_str_eq(kelp_test_text(fault, "checkpoint"), "step-20.g1");
    ck_assert_int_eq(strncmp(kelp_test_text(fault, "storage"), "shard-0.", 8), 0);
    ck_assert_int_ge(kelp_test_member(fault, "partition")->valueint, 0);
    cJSON_Delete(json);
    check_says(one, 1, "step-20.g1: DAMAGED: storage shard-0.");
    check_says(other, 0, "step-10.g1: good");
    check_says(export, 1, "checkpoint step-20.g1, storage shard-0.");
    check_says(replay, 1, "the same from version 0: 10 steps to step 10");
}

/* What is missing is told too. */
KELP_TEST(missing_files)
{
    static const char *const verify[] = {"verify", "run", NULL};
    char path[1300];
    char file[1400];

    make_checkpoint(10, false, path, sizeof(path));
    (void)snprintf(file, sizeof(file), "%s/plan.json", path);
    ck_assert_int_eq(unlink(file), 0);
    check_says(verify, 1, "plan.json");
    make_checkpoint(10, false, path, sizeof(path));
    (void)snprintf(file, sizeof(file), "%s/shard-1.aaaaaaaaaaaaaaaa", path);
    remove_tree(file);
    check_says(verify, 1, "step-10.g1: DAMAGED: storage shard-1.aaaaaaaaaaaaaaaa");
}

/* Steps computed again are the same: from version 0, from a checkpoint to the next (an evaluation
 * in between), to the very end, and as far as digests are on record without any checkpoint. */
KELP_TEST(replay_is_the_same)
{
    static const char *const verify[] = {"verify", "run", "--replay", "-o", "json", NULL};
    static const char *const bounded[] = {"verify", "run", "--replay", "--steps", "7", NULL};
    char path[1300];

    check_says(bounded, 0, "the same from version 0: 7 steps to step 7, 1 digests on record");
    cJSON *json = run_json(verify, 0);
    ck_assert_int_eq(kelp_test_member(stretch(json, 0), "step")->valueint, LAST_STEP);
    cJSON_Delete(json);
    make_checkpoint(20, false, path, sizeof(path));
    json = run_json(verify, 0);
    ck_assert_int_eq(kelp_test_member(stretch(json, 0), "steps")->valueint, 20);
    /* What is on record behind it, too. */
    ck_assert_str_eq(kelp_test_text(stretch(json, 1), "from"), "step-20.g1");
    ck_assert_int_eq(kelp_test_member(stretch(json, 1), "step")->valueint, LAST_STEP);
    cJSON_Delete(json);
    make_checkpoint(LAST_STEP, false, path, sizeof(path));
    json = run_json(verify, 0);
    const cJSON *replay = stretch(json, 0);
    ck_assert(cJSON_IsTrue(kelp_test_member(replay, "equal")));
    ck_assert(cJSON_IsTrue(kelp_test_member(replay, "whole")));
    ck_assert_str_eq(kelp_test_text(replay, "from"), "step-20.g1");
    ck_assert_int_eq(kelp_test_member(replay, "steps")->valueint, LAST_STEP - 20);
    ck_assert_int_ge(kelp_test_member(replay, "digests")->valueint, 4);
    cJSON_Delete(json);
}

/* A checkpoint that is whole but holds another state than its steps give is found by --replay
 * alone, with the tensor. */
KELP_TEST(wrong_state)
{
    static const char *const verify[] = {"verify", "run", NULL};
    static const char *const replay[] = {"verify", "run", "--replay", NULL};
    char path[1300];

    make_checkpoint(10, false, path, sizeof(path));
    make_checkpoint(22, true, path, sizeof(path));
    check_says(verify, 0, "step-22.g1: good");
    check_says(replay, 1, "the first tensor that differs is fc2.weight");
}

/* A line of digests.jsonl altered by hand is found and named. */
KELP_TEST(altered_record)
{
    static const char *const replay[] = {"verify", "run", "--replay", NULL};
    char path[200];
    char *text = NULL;
    size_t count = 0;
    struct kelp_error error;

    (void)snprintf(path, sizeof(path), "%s/digests.jsonl", run_path);
    ok(kelp_files_read(path, 1 << 20, &text, &count, &error), &error);
    char *line = strstr(text, "\"step\":25,");
    ck_assert_ptr_nonnull(line);
    char *digit = strstr(line, "\"digest\":\"") + strlen("\"digest\":\"");
    char right = *digit;
    *digit = right == '0' ? '1' : '0';
    ok(kelp_files_write(path, text, count, &error), &error);
    check_says(replay, 1, "step 25: the digest on record is");
    *digit = right;
    ok(kelp_files_write(path, text, count, &error), &error);
    free(text);
}

/* A run that failed since a gradient was not finite: computed to that step, lane and tensor. */
KELP_TEST(not_finite)
{
    static const char *const train[] = {"train",  "job.yaml",      "--run",
                                        "failed", "--set",         "train.optimizer=sgd",
                                        "--set",  "train.lr=1000", NULL};
    static const char *const replay[] = {"verify", "failed", "--replay", NULL};

    check_says(train, 4, "is not finite in partition");
    check_says(replay, 0, "is not finite: first in lane 0, tensor fc");
}

/* Data that is not what it was cannot be computed with: bad input, not a difference. */
KELP_TEST(other_data)
{
    static const char *const replay[] = {"verify", "run", "--replay", NULL};
    struct kelp_error error;
    char path[1300];
    char file[1400];
    char *text = NULL;
    size_t count = 0;

    make_checkpoint(10, false, path, sizeof(path));
    (void)snprintf(file, sizeof(file), "%s/plan.json", path);
    ok(kelp_files_read(file, 1 << 20, &text, &count, &error), &error);
    char *digit = strstr(text, "\"data_fingerprint\":\"");
    ck_assert_ptr_nonnull(digit);
    digit += strlen("\"data_fingerprint\":\"");
    *digit = *digit == '0' ? '1' : '0';
    ok(kelp_files_write(file, text, count, &error), &error);
    free(text);
    check_says(replay, 2, "the data or the model has changed");
}

/* A diff begins at the checkpoints before the first difference on record. */
KELP_TEST(diff_from_checkpoints)
{
    static const char *const train[] = {
        "train", "job.yaml", "--run", "lr", "--set", "train.schedule=constant", NULL};
    static const char *const diff[] = {"diff", "run", "lr", "-o", "json", NULL};
    struct kelp_test_command command;
    char path[1300];

    make_checkpoint(20, false, path, sizeof(path));
    make_checkpoint(30, false, path, sizeof(path)); /* behind the difference */
    run(train, 0, &command);
    kelp_test_command_fini(&command);
    cJSON *json = run_json(diff, 1);
    const cJSON *first_run = cJSON_GetArrayItem(kelp_test_member(json, "runs"), 0);
    ck_assert_str_eq(kelp_test_text(first_run, "from"), "step-20.g1");
    ck_assert_int_eq(kelp_test_member(kelp_test_member(json, "first"), "step")->valueint, 25);
    ck_assert(cJSON_IsTrue(kelp_test_member(first_run, "reproduced")));
    cJSON_Delete(json);
}

/* What shards and coordinator write is what a replay gives, to the digest of the state, and the
 * newest is the model that the run ends with. */
KELP_TEST(checkpoints_of_a_cluster)
{
    static const char *const train[] = {"train", "job.yaml",
                                        "--run", "cluster",
                                        "--set", "checkpoint.steps=5",
                                        "--set", "checkpoint.at_end=true",
                                        "--set", "checkpoint.keep_last=10",
                                        NULL};
    static const char *const verify[] = {"verify", "cluster", "--replay", "-o", "json", NULL};
    static const char *const export[] = {"checkpoint", "export",  "newest", "cluster.safetensors",
                                         "--run",      "cluster", NULL};
    static const char *const by_run[] = {"export", "cluster", "--out", "model.safetensors", NULL};

    check_says(train, 0, "done");
    cJSON *json = run_json(verify, 0);
    const cJSON *replay = stretch(json, 0);
    ck_assert_int_ge(kelp_test_member(json, "checked")->valueint, 1);
    ck_assert(cJSON_IsTrue(kelp_test_member(replay, "equal")));
    ck_assert(cJSON_IsTrue(kelp_test_member(replay, "whole")));
    ck_assert_int_eq(kelp_test_member(replay, "step")->valueint, LAST_STEP);
    printf("%d checkpoints of the cluster\n", kelp_test_member(json, "checked")->valueint);
    cJSON_Delete(json);
    check_says(export, 0, "step 36");
    check_says(by_run, 0, "step 36");
    check_same_files("cluster.safetensors", "model.safetensors");
}
