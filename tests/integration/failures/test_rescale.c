/*
 * Runs that grow and shrink while processes die, that write a checkpoint while partitions move, and
 * whose every process is replaced. Always with the digests of the quiet run.
 *
 * KELP_PROOF=checkpoint, replaced, inference (or all): the same with runs of minutes, to their end.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/job_client.h"
#include "common/rpc/rpc.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/proof.h"
#include "tests/lib/commands/run_size.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/suite.h"

#define INTERVAL 50 /* steps between two digests */
#define GO_ON    (2 * INTERVAL)

/* They do not end by themselves, and have what a step can be decided by, and evaluations. */
#define JOB                                                                                        \
    "name: rescale\nseed: 11\n"                                                                    \
    "failure: {restart_backoff: 100ms, on_nan: skip, max_failures: -1}\n"                          \
    "checkpoint: {digest_steps: 50, steps: 200}\n"

static const char small_text[] = JOB "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                                     "train: {epochs: 100000, batch_size: 256}\n"
                                     "cluster: {workers: 1, shards: 1, lanes: 8}\n";

/* 115,000 parameters, moved 64 KiB a second: half of them and of their slots take 14 s. */
static const char slow_text[] = JOB "model: {kind: mlp, hidden: [256, 256]}\n"
                                    "data: {kind: synthetic}\n"
                                    "train: {epochs: 100000, batch_size: 64, evaluate: false}\n"
                                    "cluster: {workers: 2, shards: 1, lanes: 4, "
                                    "move_rate: 64KiB}\n";

static struct kelp_run run;
static struct kelp_run quiet_run; /* of a proof */

static void setup(void)
{
    kelp_rpc_global_init();
    kelp_run_prepare(&run);
}

static void teardown(void)
{
    kelp_run_fini(&quiet_run);
    kelp_run_fini(&run);
    kelp_rpc_global_fini();
}

static void go_on(void)
{
    kelp_run_go_on(&run, GO_ON);
}

static void start(const char *text, const char *const *args)
{
    (void)kelp_test_write(run.folder, "job.yaml", text);
    kelp_run_start(&run, "job.yaml", args);
    go_on();
}

static void scale(const char *what, const char *size)
{
    kelp_test_command_says(run.folder, (const char *[]){"scale", what, size, "run", NULL}, 0, size);
}

static void await_size(uint32_t shards, uint32_t workers, uint32_t replicas)
{
    kelp_run_await_size(&run, (struct kelp_run_size){shards, workers, replicas});
    go_on();
}

static void lose(const char *program, const char *id)
{
    (void)kelp_test_command_signal(&run.command, program, id, SIGKILL);
}

KELP_CASE("rescale", .setup = setup, .teardown = teardown, .timeout_s = 300)

/* What a step waits for, besides its gradients: the norm of all of them, or of each tensor's. */
#define CLIPS "train.clip_norm=0.5"
#define LAMB  "train.optimizer=lamb"

/* 1 to 4 to 2 to 3 shards, and 1 to 6 to 2 workers, while shards, workers and the leader are
 * killed: between moves and in the middle of them. */
KELP_TEST(sizes_under_faults)
{
    start(small_text, (const char *[]){"--coordinators", "2", "--set", CLIPS, NULL});
    scale("--shards", "4");
    scale("--workers", "6");
    await_size(4, 6, 1);
    lose("kelp-worker", "worker-3");
    scale("--shards", "2");
    lose("kelp-coordinator", "coordinator-0");
    scale("--workers", "2");
    await_size(2, 2, 1);
    scale("--shards", "3");
    lose("kelp-ps", "shard-1"); /* it has no backup: back to a checkpoint */
    await_size(3, 2, 1);
    kelp_run_expect_quiet(&run, small_text, (const char *[]){"--set", CLIPS, NULL});
}

/* The number of a line of events.jsonl, from 1, that has both texts: the first such line or the
 * last. 0: there is none. */
static unsigned event_line(const char *text, const char *other, bool last)
{
    char *all = kelp_test_read(run.run_folder, "events.jsonl", NULL);
    unsigned number = 0, found = 0;
    char *rest = NULL;

    for (char *line = strtok_r(all, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        number++;
        if ((found == 0 || last) && strstr(line, text) && strstr(line, other)) {
            found = number;
        }
    }
    free(all);
    return found;
}

/* Its parts are of partitions that have moved and of some that have not. Restored on three shards,
 * it goes on as if nothing had been. */
KELP_TEST(checkpoint_while_partitions_move)
{
    start(slow_text, NULL);
    scale("--shards", "2");
    KELP_TEST_AWAIT_FROM(&run.command, event_line("moved", "promote", false) > 0,
                         "no partition moves");
    const unsigned before = event_line("\"checkpoint\"", "step", true);
    kelp_test_command_says(run.folder, (const char *[]){"checkpoint", "run", NULL}, 0, "step");
    KELP_TEST_AWAIT_FROM(
        &run.command, event_line("moved", "promote", true) > event_line("\"checkpoint\"", "", true),
        "the moves end before the checkpoint");
    ck_assert_uint_gt(event_line("\"checkpoint\"", "", true), before);
    kelp_test_command_kill_all(&run.command);
    kelp_run_start(&run, "--resume", (const char *[]){"--shards", "3", NULL});
    go_on();
    ck_assert(kelp_run_logged(&run, "restoring"));
    kelp_run_expect_quiet(&run, slow_text, NULL);
}

static pid_t pid_of(const char *program, const char *id)
{
    return kelp_test_command_find(&run.command, program, id);
}

static void replace(const char *program, const char *id)
{
    const pid_t before = pid_of(program, id);

    if (strcmp(program, "kelp-coordinator") == 0) {
        lose(program, id); /* it keeps nothing that others do not have */
    } else {
        kelp_test_command_says(run.folder, (const char *[]){"drain", id, "run", NULL}, 0,
                               "drained");
    }
    KELP_TEST_AWAIT_FROM(&run.command, pid_of(program, id) != 0 && pid_of(program, id) != before,
                         "no other %s is started", id);
}

/* Each machine, one after the other: its work has gone to others when it ends, and comes to the
 * next one. */
static void replace_all(void)
{
    static const char *const shards[] = {"shard-0", "shard-1", "shard-2"};
    static const char *const workers[] = {"worker-0", "worker-1"};
    static const char *const coordinators[] = {"coordinator-0", "coordinator-1"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(shards); i++) {
        replace("kelp-ps", shards[i]);
        await_size(3, 2, 2);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(workers); i++) {
        replace("kelp-worker", workers[i]);
        replace("kelp-coordinator", coordinators[i]);
        await_size(3, 2, 2);
    }
}

static const char *const three_machines[] = {
    "--coordinators",     "2",     "--shards", "3", "--workers", "2", "--set",
    "cluster.replicas=2", "--set", LAMB,       NULL};

/* No generation, no step again. */
KELP_TEST(every_process_replaced)
{
    Kelp__V1__StatusReply *reply = NULL;

    start(small_text, three_machines);
    replace_all();
    KELP_TEST_AWAIT_FROM(&run.command, (reply = kelp_run_ask(run.run_folder)) != NULL,
                         "nobody leads");
    ck_assert_uint_eq(reply->generation, 1);
    ck_assert_uint_eq(reply->steps_recomputed, 0);
    kelp_job_client_status_free(reply);
    kelp_run_expect_quiet(&run, small_text, (const char *[]){"--set", LAMB, NULL});
}

/* `kelp VERB` of the trained run, with the arguments more; what it printed, owned. With `grows` its
 * only worker stands still on the way: shards come, one is killed, and then the worker. */
static char *infer(const char *verb, const char *folder, const char *const *more, bool grows)
{
    const char *args[KELP_TEST_ARGS_MAX] = {verb,   "run",   "--run",
                                            folder, "--set", "train.batch_size=64"};
    struct kelp_test_command command;
    char path[512];
    size_t count = 6;

    for (; *more; more++) {
        args[count++] = *more;
    }
    kelp_test_command_start(&command, run.folder, args);
    if (grows) {
        (void)snprintf(path, sizeof(path), "%s/%s", run.folder, folder);
        KELP_TEST_AWAIT_FROM(&command, kelp_run_shards_used(path) == 2, "it does not begin");
        (void)kelp_test_command_signal(&command, "kelp-worker", "worker-0", SIGSTOP);
        kelp_test_command_says(run.folder, (const char *[]){"scale", "--shards", "3", folder, NULL},
                               0, "3");
        KELP_TEST_AWAIT_FROM(&command, kelp_run_shards_used(path) == 3, "partitions do not move");
        (void)kelp_test_command_signal(&command, "kelp-ps", "shard-0", SIGKILL);
        (void)kelp_test_command_signal(&command, "kelp-worker", "worker-0", SIGKILL);
    }
    (void)kelp_test_command_wait(&command, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    char *out = command.out;
    command.out = NULL;
    kelp_test_command_fini(&command);
    return out;
}

/* What two of `kelp evaluate` printed: the same metrics, and the other never went back. */
static void expect_metrics(const char *quiet, const char *grown)
{
    cJSON *one = kelp_test_json(quiet), *other = kelp_test_json(grown);

    ck_assert_msg(
        cJSON_Compare(kelp_test_member(one, "metrics"), kelp_test_member(other, "metrics"), true),
        "%s%s", quiet, grown);
    ck_assert_double_eq(kelp_test_number(other, "restores"), 0);
    cJSON_Delete(one);
    cJSON_Delete(other);
}

/* A run that predicts and one that evaluates: what they give is the same bytes. */
KELP_CASE("infer", .setup = setup, .teardown = teardown, .timeout_s = 300)

KELP_TEST(predicts_and_evaluates)
{
    static const char *const grows[] = {"--workers", "1",
                                        "--shards",  "2",
                                        "--set",     "cluster.replicas=2",
                                        "--set",     "failure.detect=10m",
                                        "--fault",   "worker-0:stall@version=1",
                                        NULL};
    const char *predict[16] = {"--out", "grown.csv"};

    (void)kelp_test_write(run.folder, "job.yaml", small_text);
    kelp_run_start(&run, "job.yaml", (const char *[]){"--set", "train.epochs=1", NULL});
    kelp_run_finish(&run, 0);
    memcpy(&predict[2], grows, sizeof(grows));
    free(infer("predict", "p1", (const char *[]){"--out", "quiet.csv", NULL}, false));
    free(infer("predict", "p2", predict, true));
    char *quiet = kelp_test_read(run.folder, "quiet.csv", NULL);
    char *grown = kelp_test_read(run.folder, "grown.csv", NULL);
    ck_assert(strcmp(quiet, grown) == 0);
    free(quiet);
    free(grown);
    quiet = infer("evaluate", "e1", (const char *[]){"-o", "json", NULL}, false);
    predict[0] = "-o";
    predict[1] = "json";
    grown = infer("evaluate", "e2", predict, true);
    expect_metrics(quiet, grown);
    free(quiet);
    free(grown);
}

/* ---- proofs ------------------------------------------------------------------------------------
 */

#define ROUNDS 3      /* of replacing every process */
#define ROWS   200000 /* to predict and to evaluate */
#define KILLS  8      /* of shards meanwhile, in each size */

KELP_CASE("checkpoint", .setup = setup, .teardown = teardown, .timeout_s = KELP_PROOF_S,
          .proof = true)

/* From one shard to four; what is restored has parts of what has moved and of what has not. */
KELP_TEST(restored_on_another_size)
{
    uint32_t used = 0, joining = 0;

    kelp_proof_quiet(&quiet_run, NULL);
    kelp_proof_start(&run, (const char *[]){"--set", "cluster.move_rate=64KiB", NULL});
    scale("--shards", "4");
    KELP_TEST_AWAIT_FROM(&run.command, kelp_run_shards_used(run.run_folder) >= 3,
                         "no partition moves");
    kelp_test_command_says(run.folder, (const char *[]){"checkpoint", "run", NULL}, 0, "step");
    KELP_TEST_AWAIT_FROM(&run.command, (used = kelp_run_shards_used(run.run_folder)) > 0,
                         "nobody leads");
    joining = kelp_run_joining(run.run_folder);
    const unsigned moves = kelp_proof_events(run.run_folder, "moved");
    kelp_test_command_kill_all(&run.command);
    ck_assert_msg(joining > 0, "the moves end before the checkpoint");
    (void)printf("checkpoint: %u moves made, %u shards used, %u partitions on their way\n", moves,
                 used, joining);
    kelp_run_start(&run, "--resume",
                   (const char *[]){"--shards", "3", "--set", "cluster.move_rate=128MiB", NULL});
    kelp_proof_end(&run);
    ck_assert_double_eq(kelp_run_number(&run, "restores"), 1);
    kelp_proof_same("checkpoint", &run, &quiet_run);
}

KELP_CASE("replaced", .setup = setup, .teardown = teardown, .timeout_s = KELP_PROOF_S,
          .proof = true)

/* Shards and workers by drain, coordinators by SIGKILL. */
KELP_TEST(every_process_replaced_again_and_again)
{
    const char *args[KELP_ARRAY_COUNT(three_machines)];

    memcpy(args, three_machines, sizeof(args));
    args[KELP_ARRAY_COUNT(args) - 3] = NULL; /* without LAMB */
    kelp_proof_quiet(&quiet_run, NULL);
    kelp_proof_start(&run, args);
    for (unsigned i = 0; i < ROUNDS; i++) {
        replace_all();
    }
    kelp_proof_goes_on(&run);
    kelp_proof_end(&run);
    kelp_proof_never_back(&run);
    kelp_proof_same("replaced", &run, &quiet_run);
}

KELP_CASE("inference", .setup = setup, .teardown = teardown, .timeout_s = KELP_PROOF_S,
          .proof = true)

/* From two shards to four and to three; one after the other is killed, once a second. */
static void grow_and_kill(const struct kelp_run *job, const char *folder, uint32_t workers)
{
    static const uint32_t sizes[] = {4, 3};
    char text[16], id[32];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(sizes); i++) {
        (void)snprintf(text, sizeof(text), "%u", sizes[i]);
        kelp_test_command_says(run.folder,
                               (const char *[]){"scale", "--shards", text, folder, NULL}, 0, text);
        for (uint32_t kills = 0; kills < KILLS; kills++) {
            const uint64_t next_ms = kelp_clock_ms() + 1000;
            KELP_TEST_AWAIT_FROM(
                &job->command,
                kelp_clock_ms() >= next_ms &&
                    kelp_run_has_size(job, (struct kelp_run_size){sizes[i], workers, 2}),
                "with %u shards, after %u kills, it ends or is not whole", sizes[i], kills);
            (void)snprintf(id, sizeof(id), "shard-%u", kills % sizes[i]);
            (void)kelp_test_command_signal(&job->command, "kelp-ps", id, SIGKILL);
        }
    }
}

enum growth { QUIET, GROWS, GROWS_HELD };

/* `kelp VERB` of the trained run on rows.csv; what it printed, owned. GROWS_HELD: its worker hangs
 * while shards come and go, since there is too little to do for it, and another takes its place. */
static char *infer_rows(const char *verb, const char *folder, const char *const *more,
                        enum growth growth)
{
    const char *args[KELP_TEST_ARGS_MAX] = {verb,     "run",      "--run", folder,
                                            "--data", "rows.csv", "--set", "train.batch_size=8"};
    struct kelp_run job = {.command = {.process = NULL}};

    for (size_t i = 0; more[i]; i++) {
        args[8 + i] = more[i];
    }
    (void)snprintf(job.run_folder, sizeof(job.run_folder), "%s/%s", run.folder, folder);
    kelp_test_command_start(&job.command, run.folder, args);
    if (growth != QUIET) {
        KELP_TEST_AWAIT_FROM(&job.command, kelp_run_shards_used(job.run_folder) == 2,
                             "it does not begin");
        const bool held = growth == GROWS_HELD;
        grow_and_kill(&job, folder, held ? 1 : 2);
        if (held) {
            (void)kelp_test_command_signal(&job.command, "kelp-worker", "worker-0", SIGKILL);
        }
        (void)printf("inference: %s, %d shards killed\n", verb, 2 * KILLS);
        (void)fflush(stdout);
    }
    (void)kelp_test_command_wait(&job.command, KELP_PROOF_S * 1000u);
    ck_assert_msg(job.command.exit_code == 0, "exit %d: %s", job.command.exit_code,
                  job.command.err);
    char *out = job.command.out;
    job.command.out = NULL;
    kelp_test_command_fini(&job.command);
    return out;
}

/* The same bytes and metrics, and no restore. */
KELP_TEST(predictions_while_shards_come_and_go)
{
    static const char *const grown[] = {"--out", "grown.csv", "--workers",          "2", "--shards",
                                        "2",     "--set",     "cluster.replicas=2", NULL};
    static const char *const held[] = {"-o",        "json",
                                       "--workers", "1",
                                       "--shards",  "2",
                                       "--set",     "cluster.replicas=2",
                                       "--set",     "failure.detect=10m",
                                       "--fault",   "worker-0:hang@version=1",
                                       NULL};

    (void)kelp_proof_write(run.folder);
    kelp_run_start(&run, "job.yaml", (const char *[]){"--set", "train.epochs=2", NULL});
    kelp_run_finish(&run, 0);
    kelp_proof_rows(run.folder, "rows.csv", ROWS, false);
    free(infer_rows("predict", "p1", (const char *[]){"--out", "quiet.csv", NULL}, QUIET));
    free(infer_rows("predict", "p2", grown, GROWS));
    kelp_test_expect_same(run.folder, "quiet.csv", "grown.csv");
    char *one = infer_rows("evaluate", "e1", (const char *[]){"-o", "json", NULL}, QUIET);
    char *other = infer_rows("evaluate", "e2", held, GROWS_HELD);
    expect_metrics(one, other);
    free(one);
    free(other);
}
