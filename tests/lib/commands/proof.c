#include "tests/lib/commands/proof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/run_watch.h"

#define EPOCHS  "400"
#define ROWS    4000 /* 3,200 of them for training: 100 steps */
#define COLUMNS 8
#define BAD_ROW 1234
#define FIRST   300 /* steps before the first disturbance */
#define HANG_MS (KELP_PROOF_S * 1000u)

static const char job_format[] =
    "name: proof\nseed: 11\n"
    "model: {kind: mlp, hidden: [256, 256]}\n"
    "data: {kind: table, path: data.csv, columns: [a, b, c, d, e, f, g, h], targets: [y],\n"
    "       fractions: [0.8, 0.1, 0.1]}\n"
    "train: {epochs: %s, batch_size: 32, optimizer: adam, lr: 0.0005, schedule: constant,\n"
    "        clip_norm: 0.5}\n"
    "cluster: {workers: 2, shards: 1, lanes: 8}\n"
    "failure: {restart_backoff: 100ms, on_nan: skip, max_failures: -1}\n"
    "checkpoint: {digest_steps: 100, steps: 2000}\n";

/* ---- the job ----------------------------------------------------------------------------------
 */

/* In thousandths, with integer arithmetic only: the same text on every machine. */
static int value_at(unsigned row, unsigned column)
{
    const unsigned mixed = (row + 1) * 2654435761u ^ (column + 1) * 40503u * (row + 7);
    return (int)(mixed >> 8) % 2001 - 1000;
}

void kelp_proof_rows(const char *folder, const char *name, unsigned count, bool with_bad)
{
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    ck_assert_msg(file != NULL, "%s cannot be written", path);
    (void)fputs("a,b,c,d,e,f,g,h,y\n", file);
    for (unsigned row = 0; row < count; row++) {
        int value[COLUMNS];
        for (unsigned i = 0; i < COLUMNS; i++) {
            value[i] = value_at(row, i);
            if (with_bad && row == BAD_ROW && i == 2) {
                (void)fputs("3e38,", file);
            } else {
                (void)fprintf(file, "%de-3,", value[i]);
            }
        }
        (void)fprintf(file, "%de-3\n", value[0] * value[1] / 1000 + value[2] / 2 - value[3]);
    }
    ck_assert_int_eq(fclose(file), 0);
}

unsigned kelp_proof_write(const char *folder)
{
    const char *epochs = getenv("KELP_PROOF_EPOCHS") ? getenv("KELP_PROOF_EPOCHS") : EPOCHS;
    char text[sizeof(job_format) + 32];

    (void)snprintf(text, sizeof(text), job_format, epochs);
    (void)kelp_test_write(folder, "job.yaml", text);
    kelp_proof_rows(folder, "data.csv", ROWS, true);
    return (unsigned)strtoul(epochs, NULL, 10);
}

/* ---- its runs ---------------------------------------------------------------------------------
 */

void kelp_proof_quiet(struct kelp_run *quiet, const char *const *args)
{
    kelp_run_prepare(quiet);
    (void)kelp_proof_write(quiet->folder);
    kelp_run_start(quiet, "job.yaml", args);
    kelp_proof_end(quiet);
}

void kelp_proof_start(struct kelp_run *run, const char *const *args)
{
    (void)kelp_proof_write(run->folder);
    kelp_run_start(run, "job.yaml", args);
    kelp_run_await_step(run, FIRST);
}

void kelp_proof_goes_on(const struct kelp_run *run)
{
    ck_assert_msg(!kelp_test_command_ended(&run->command),
                  "the job has ended too early: KELP_PROOF_EPOCHS=N, above " EPOCHS
                  ", makes it longer");
}

void kelp_proof_end(struct kelp_run *run)
{
    kelp_run_finish_within(run, 0, HANG_MS);
}

/* ---- what they left ---------------------------------------------------------------------------
 */

void kelp_proof_same_records(const char *run_folder, const char *quiet_folder)
{
    static const char *const names[] = {"digests.jsonl", "metrics.jsonl"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        char *ours = kelp_test_read(run_folder, names[i], NULL);
        char *quiet = kelp_test_read(quiet_folder, names[i], NULL);
        ck_assert_uint_gt(strlen(quiet), 1000);
        ck_assert_msg(strcmp(ours, quiet) == 0, "%s is not that of the quiet run", names[i]);
        free(ours);
        free(quiet);
    }
}

void kelp_proof_same(const char *what, const struct kelp_run *run, const struct kelp_run *quiet)
{
    ck_assert_str_eq(kelp_run_digest(run), kelp_run_digest(quiet));
    ck_assert_double_eq(kelp_run_number(run, "step"), kelp_run_number(quiet, "step"));
    kelp_proof_same_records(run->run_folder, quiet->run_folder);
    ck_assert_double_gt(kelp_run_number(run, "steps_skipped"), 0);
    ck_assert_double_eq(kelp_run_number(run, "steps_skipped"),
                        kelp_run_number(quiet, "steps_skipped"));
    (void)printf("%s: %.0f steps, %.0f skipped, digest %s, restarts %.0f, restores %.0f, "
                 "steps again %.0f, promotions %u, moves %u, quiet %.0f s, this %.0f s\n",
                 what, kelp_run_number(run, "step"), kelp_run_number(run, "steps_skipped"),
                 kelp_run_digest(run), kelp_run_number(run, "restarts"),
                 kelp_run_number(run, "restores"), kelp_run_number(run, "steps_recomputed"),
                 kelp_proof_events(run->run_folder, "promoted"),
                 kelp_proof_events(run->run_folder, "moved"), kelp_run_number(quiet, "wall_s"),
                 kelp_run_number(run, "wall_s"));
    (void)fflush(stdout);
}

void kelp_proof_never_back(const struct kelp_run *run)
{
    char *events = kelp_test_read(run->run_folder, "events.jsonl", NULL);

    ck_assert_double_eq(kelp_run_number(run, "restores"), 0);
    ck_assert_double_eq(kelp_run_number(run, "steps_recomputed"), 0);
    ck_assert_ptr_nonnull(strstr(events, "\"generation\":1"));
    ck_assert_ptr_null(strstr(events, "\"generation\":2"));
    free(events);
}

unsigned kelp_proof_events(const char *run_folder, const char *event)
{
    char *events = kelp_test_read(run_folder, "events.jsonl", NULL);
    char wanted[64];
    unsigned count = 0;

    (void)snprintf(wanted, sizeof(wanted), "\"event\":\"%s\"", event);
    for (const char *at = events; (at = strstr(at, wanted)) != NULL; at++) {
        count++;
    }
    free(events);
    return count;
}
