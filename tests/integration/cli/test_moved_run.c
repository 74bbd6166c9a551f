/*
 * Paths of a job: those in a file begin at the file's folder, those of options where the command is
 * given. A run's folder works from any folder and after it was moved, with its own copy of the
 * library of the model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

#define ROWS 200

static struct kelp_test_folder top; /* holds project/jobs/, project/data/ and elsewhere/ */
static char elsewhere[160], jobs[160];

static void make_folder(const char *name)
{
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/%s", top.path, name);
    ck_assert_int_eq(mkdir(path, 0777), 0);
}

static void move(const char *from, const char *to)
{
    char paths[2][200];
    (void)snprintf(paths[0], sizeof(paths[0]), "%s/%s", top.path, from);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/%s", top.path, to);
    ck_assert_int_eq(rename(paths[0], paths[1]), 0);
}

static void write_data(const char *folder)
{
    char text[ROWS * 40];
    size_t used = (size_t)snprintf(text, sizeof(text), "date,OT\n");
    for (int row = 0; row < ROWS; row++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "2016-07-%02d %02d:00:00,%d.5\n",
                                 1 + row / 24, row % 24, row * row % 17);
    }
    (void)kelp_test_write(folder, "series.csv", text);
}

static void copy_plugin(const char *name)
{
    char *bytes = NULL, path[300];
    size_t count = 0;
    struct kelp_error error;
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    ck_assert_ptr_nonnull(programs);
    (void)snprintf(path, sizeof(path), "%s/plugins/%s.so", programs, name);
    ck_assert_int_eq(kelp_files_read(path, 1u << 24, &bytes, &count, &error), KELP_OK);
    (void)snprintf(path, sizeof(path), "%s/model.so", jobs);
    ck_assert_int_eq(kelp_files_write(path, bytes, count, &error), KELP_OK);
    free(bytes);
}

static void setup(void)
{
    static const char *const folders[] = {"project", "project/jobs", "project/data", "elsewhere",
                                          "archive"};
    char data[160];
    kelp_test_folder_init(&top);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(folders); i++) {
        make_folder(folders[i]);
    }
    (void)snprintf(jobs, sizeof(jobs), "%s/project/jobs", top.path);
    (void)snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", top.path);
    (void)snprintf(data, sizeof(data), "%s/project/data", top.path);
    write_data(data);
    copy_plugin("windows");
    (void)kelp_test_write(jobs, "job.yaml",
                          "name: moved\nmodel: {plugin: model.so, params: [hidden=5]}\n"
                          "data: {kind: csv, path: ../data/series.csv, seq_len: 8, pred_len: 4,\n"
                          "       split: [120, 40, 40]}\n"
                          "train: {epochs: 2, batch_size: 16}\n"
                          "cluster: {workers: 1, lanes: 2}\n");
}

static void teardown(void)
{
    kelp_test_folder_fini(&top);
}

static void train(const char *folder, const char *const *args)
{
    kelp_test_command_says(folder, args, 0, "digest ");
}

/* The digest of a run's end; owned. */
static char *digest_of(const char *run)
{
    char *text = kelp_test_read(top.path, run, NULL);
    cJSON *result = cJSON_Parse(text);
    const cJSON *digest = cJSON_GetObjectItemCaseSensitive(result, "digest");
    ck_assert(cJSON_IsString(digest));
    char *copy = strdup(digest->valuestring);
    ck_assert_ptr_nonnull(copy);
    cJSON_Delete(result);
    free(text);
    return copy;
}

static void same_digest(const char *run, const char *other)
{
    char *digests[2] = {digest_of(run), digest_of(other)};
    ck_assert_str_eq(digests[0], digests[1]);
    free(digests[0]);
    free(digests[1]);
}

/* Somebody else, or on another machine: nothing was let in yet. Returns what was before; owned. */
static char *forget_consent(const char *name)
{
    char *known = strdup(getenv("XDG_STATE_HOME")), state[200];

    ck_assert_ptr_nonnull(known);
    (void)snprintf(state, sizeof(state), "%s/%s", top.path, name);
    ck_assert_int_eq(setenv("XDG_STATE_HOME", state, 1), 0);
    return known;
}

static void remember_consent(char *known)
{
    ck_assert_int_eq(setenv("XDG_STATE_HOME", known, 1), 0);
    free(known);
}

/* The run's library is not loaded until it is let in, and from then on without asking. A job file
 * that is typed names the library. */
static void ask_first(const char *run)
{
    const char *const resume[] = {"train", "--resume", "--run", run, NULL};
    const char *const evaluate[] = {"evaluate", run, NULL};
    const char *const verify[] = {"verify", run, "--replay", "--steps", "1", NULL};
    const char *const plot[] = {"plot", run, NULL};
    const char *const *const asked[] = {resume, evaluate, verify, plot};
    char *known = forget_consent("state");

    for (size_t i = 0; i < KELP_ARRAY_COUNT(asked); i++) {
        kelp_test_command_says(top.path, asked[i], 2, "--allow-plugin allows it");
    }
    kelp_test_command_says(top.path, (const char *[]){"evaluate", run, "--allow-plugin", NULL}, 0,
                           "");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(asked); i++) {
        kelp_test_command_says(top.path, asked[i], 0, "");
    }
    remember_consent(known);
}

/* Two runs that differ are computed again, but not with a library that was not let in. */
static void diff_asks_first(const char *run, const char *other)
{
    const char *const diff[] = {"diff", run, other, NULL};
    const char *const allowed[] = {"diff", run, other, "--allow-plugin", NULL};
    char *known = forget_consent("other-state");

    kelp_test_command_says(top.path, diff, 1, "--allow-plugin allows it");
    kelp_test_command_says(top.path, allowed, 1, "first      ");
    kelp_test_command_says(top.path, diff, 1, "first      ");
    remember_consent(known);
}

KELP_CASE("moved_run", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* Trained from one folder, moved, the library deleted, gone on with from another folder: as if
 * nothing had been moved. */
KELP_TEST(moved_and_resumed)
{
    char library[200];
    train(elsewhere, (const char *[]){"train", "../project/jobs/job.yaml", "--run", "run",
                                      "--no-plots", NULL});
    train(elsewhere, (const char *[]){"train", "../project/jobs/job.yaml", "--run", "whole",
                                      "--set", "train.epochs=3", "--no-plots", NULL});
    train(elsewhere, (const char *[]){"train", "../project/jobs/job.yaml", "--run", "other",
                                      "--set", "seed=5", "--no-plots", NULL});
    (void)snprintf(library, sizeof(library), "%s/model.so", jobs);
    ck_assert_int_eq(unlink(library), 0);
    move("elsewhere/run", "archive/old");
    train(top.path, (const char *[]){"train", "--resume", "--run", "archive/old", "--set",
                                     "train.epochs=3", "--no-plots", NULL});
    same_digest("archive/old/result.json", "elsewhere/whole/result.json");
    /* the job's own file does as well, once the library is back */
    copy_plugin("windows");
    ask_first("archive/old");
    diff_asks_first("archive/old", "elsewhere/other");
    kelp_test_command_says(jobs,
                           (const char *[]){"train", "job.yaml", "--resume", "--run",
                                            "../../archive/old", "--set", "train.epochs=3", NULL},
                           0, "digest ");
}

/* The whole project under another name: data that have moved are named, by their old name alone. */
KELP_TEST(moved_with_its_data)
{
    train(jobs, (const char *[]){"train", "job.yaml", "--run", "run", "--no-plots", NULL});
    move("project", "renamed");
    kelp_test_command_says(top.path,
                           (const char *[]){"train", "--resume", "--run", "renamed/jobs/run",
                                            "--set", "train.epochs=3", NULL},
                           2, "project/data/series.csv");
    kelp_test_command_says(top.path,
                           (const char *[]){"train", "--resume", "--run", "renamed/jobs/run",
                                            "--set", "train.epochs=3", "--set",
                                            "data.path=renamed/data/other.csv", NULL},
                           2, "other.csv");
    train(top.path, (const char *[]){"train", "--resume", "--run", "renamed/jobs/run", "--set",
                                     "train.epochs=3", "--set", "data.path=renamed/data/series.csv",
                                     "--no-plots", NULL});
}

/* Another library under the name of the run's is refused before anything is changed. */
KELP_TEST(another_library)
{
    train(jobs, (const char *[]){"train", "job.yaml", "--run", "run", "--no-plots", NULL});
    char *before = kelp_test_read(jobs, "run/job.yaml", NULL);
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/model.so", jobs);
    FILE *library = fopen(path, "ae");
    ck_assert_ptr_nonnull(library);
    ck_assert_int_eq(fputc('x', library), 'x');
    ck_assert_int_eq(fclose(library), 0);
    kelp_test_command_says(jobs,
                           (const char *[]){"train", "job.yaml", "--resume", "--run", "run",
                                            "--set", "train.epochs=3", NULL},
                           2, "; resume without setting model.plugin, or use --force");
    char *after = kelp_test_read(jobs, "run/job.yaml", NULL);
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
}
