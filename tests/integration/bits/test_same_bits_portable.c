/*
 * cluster.compute: portable gives the same bits whatever the environment tells the libraries, in
 * every program that computes; and who computes otherwise is refused.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/process/process.h"
#include "common/rpc/rpc.h"
#include "common/tensors/safetensors.h"
#include "kernels/cpu/portable.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"
#include "worker/job_link.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)
#define ETCD_MS       10000
#define DIGEST_SIZE   33
#define SAMPLES       48
#define KIND          "cpu portable x86-64-v3 openblas-"

/* ---- environments ---------------------------------------------------------------------------- */

/* What a machine may have set, and what OpenBLAS then chooses; "": not set. Processors that cannot
 * run the kernels begin with them, too: nothing is computed before the program begins again. */
static const struct {
    const char *core, *isa, *l2;
} environments[] = {{"Haswell", "", ""},
                    {"Zen", "SSE41", "512"},
                    {"SkylakeX", "AVX512_CORE", ""},
                    {"Cooperlake", "AVX2", "64"},
                    {"", "", ""}};

static void set(const char *name, const char *value)
{
    ck_assert_int_eq(value[0] ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void set_environment(size_t index)
{
    set("OPENBLAS_CORETYPE", environments[index].core);
    set("DNNL_MAX_CPU_ISA", environments[index].isa);
    set("OPENBLAS_L2_SIZE", environments[index].l2);
}

static void require(void)
{
    struct kelp_portable_facts facts;

    kelp__portable_facts(&facts);
    if (!facts.avx2 || !facts.fma) {
        kelp_suite_skip("the processor has no AVX2 or no FMA");
    }
    etcd_fixture_require();
}

/* ---- data ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    unsigned classes; /* int64 below it; 0: float32 around 0 */
    uint32_t rank;
    uint64_t shape[4];
} tensors[] = {
    {"image", 0, 4, {SAMPLES, 1, 28, 28}}, {"class", 10, 1, {SAMPLES}},
    {"series", 3, 1, {SAMPLES}},           {"known", 0, 3, {SAMPLES, 24, 4}},
    {"observed", 0, 2, {SAMPLES, 24}},     {"ahead", 0, 3, {SAMPLES, 12, 4}},
    {"future", 0, 2, {SAMPLES, 12}},
};
#define TENSOR_COUNT KELP_ARRAY_COUNT(tensors)

static void *make_values(size_t index)
{
    uint64_t count = 1;

    for (uint32_t i = 0; i < tensors[index].rank; i++) {
        count *= tensors[index].shape[i];
    }
    int64_t *whole = calloc(count, sizeof(*whole));
    ck_assert_ptr_nonnull(whole);
    float *values = (float *)whole;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t number = (uint32_t)(i + 1) * 2654435761u ^ (uint32_t)(index * 40503u);
        if (tensors[index].classes > 0) {
            whole[i] = number >> 8 & 0xffff;
            whole[i] %= tensors[index].classes;
        } else {
            values[i] = (float)(int32_t)number * 0x1p-31f;
        }
    }
    return whole;
}

static void write_data(const char *folder)
{
    struct kelp_safetensors_item items[TENSOR_COUNT];
    struct kelp_error error = {.text = ""};
    void *values[TENSOR_COUNT];
    char path[300];

    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        values[i] = make_values(i);
        items[i] = (struct kelp_safetensors_item){.name = tensors[i].name,
                                                  .dtype = tensors[i].classes > 0 ? KELP_DTYPE_I64
                                                                                  : KELP_DTYPE_F32,
                                                  .rank = tensors[i].rank,
                                                  .shape = tensors[i].shape,
                                                  .data = values[i]};
    }
    (void)snprintf(path, sizeof(path), "%s/data.safetensors", folder);
    const kelp_status status = kelp_safetensors_write(path, items, TENSOR_COUNT, NULL, 0, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        free(values[i]);
    }
}

/* ---- models ---------------------------------------------------------------------------------- */

#define SERIES                                                                                     \
    "data: {kind: synthetic, rows: 700, split: [500, 100, 100], seq_len: 96, pred_len: 48}\n"
#define TENSORS(names) "data: {kind: tensors, path: data.safetensors, " names "}\n"
#define BEGINNING(cluster)                                                                         \
    "name: portable\nseed: 5\ncluster: {workers: 2, shards: 1, lanes: 4, " cluster "}\n"
#define MLP "model: {kind: mlp, hidden: [64, 64]}\n" SERIES

static const struct {
    const char *name, *job;
} models[] = {
    {"mlp", MLP "train: {epochs: 2, batch_size: 32}\n"},
    {"dlinear", "model: {kind: dlinear}\n" SERIES "train: {epochs: 2, batch_size: 32}\n"},
    {"convnet",
     "model: {kind: convnet, classes: 10}\n" TENSORS(
         "input_name: [image], "
         "target_name: class") "train: {epochs: 1, batch_size: 16, loss: nll, evaluate: false}\n"},
    {"tft, which has an lstm", "model: {kind: tft, d_model: 32, heads: 4}\n" TENSORS(
                                   "input_name: [series, known, observed, ahead], target_name: "
                                   "future") "train: {epochs: 1, batch_size: 16, loss: quantile, "
                                             "quantiles: [0.1, 0.5, 0.9], "
                                             "evaluate: false}\n"},
};

/* The digest of the job in one environment. */
static void train_in(size_t environment, const char *cluster, const char *rest,
                     char digest[DIGEST_SIZE])
{
    struct kelp_run run;
    char text[1500];

    set_environment(environment);
    kelp_run_prepare(&run);
    write_data(run.folder);
    (void)snprintf(text, sizeof(text), "%s%s", cluster, rest);
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", text), NULL, RUN_TIMEOUT_S);
    ck_assert_msg(run.exit_code == 0, "exit %d; output:\n%s", run.exit_code, run.output);
    (void)snprintf(digest, DIGEST_SIZE, "%s", kelp_run_digest(&run));
    kelp_run_fini(&run);
}

KELP_SUITE(.before = require)
KELP_CASE("models", .timeout_s = 2 * KELP_TEST_HANG_S)

KELP_LOOP_TEST(one_digest, 0, KELP_ARRAY_COUNT(models))
{
    char first[DIGEST_SIZE], digest[DIGEST_SIZE];

    train_in(0, BEGINNING("compute: portable"), models[_i].job, first);
    printf("%-24s %s\n", models[_i].name, first);
    (void)fflush(stdout);
    for (size_t i = 1; i < KELP_ARRAY_COUNT(environments); i++) {
        train_in(i, BEGINNING("compute: portable"), models[_i].job, digest);
        ck_assert_msg(strcmp(digest, first) == 0, "OPENBLAS_CORETYPE=%s: %s, not %s",
                      environments[i].core, digest, first);
    }
}

/* It is the digest of a machine that has nothing else: the kernels do what their names say. */
KELP_TEST(the_digest_of_such_a_machine)
{
    char portable[DIGEST_SIZE], native[DIGEST_SIZE];

    train_in(4, BEGINNING("compute: portable"), models[0].job, portable);
    set_environment(0);
    ck_assert_int_eq(setenv("DNNL_MAX_CPU_ISA", "AVX2", 1), 0);
    struct kelp_run run;
    kelp_run_prepare_job(&run, BEGINNING("mixed: false") MLP "train: {epochs: 2, batch_size: "
                                                             "32}\n");
    kelp_run_start(&run, "job.yaml", NULL);
    kelp_run_finish(&run, 0);
    (void)snprintf(native, sizeof(native), "%s", kelp_run_digest(&run));
    kelp_run_fini(&run);
    ck_assert_str_eq(native, portable);
}

/* ---- commands -------------------------------------------------------------------------------- */

static struct kelp_run done;

static void done_setup(void)
{
    set_environment(1);
    kelp_run_prepare_job(&done, BEGINNING("compute: portable") MLP
                         "train: {epochs: 2, batch_size: 32}\n"
                         "checkpoint: {digest_steps: 4, steps: 10}\n");
    kelp_run_start(&done, "job.yaml", NULL);
    kelp_run_finish(&done, 0);
}

static void done_teardown(void)
{
    kelp_run_fini(&done);
}

KELP_CASE("commands", .setup = done_setup, .teardown = done_teardown,
          .timeout_s = 2 * KELP_TEST_HANG_S)

/* Each command that computes does as the job of the run says, wherever it is given. */
KELP_TEST(commands_compute_as_the_run_did)
{
    set_environment(2);
    kelp_test_command_says(done.folder, (const char *[]){"verify", "run", "--replay", NULL}, 0,
                           "replay: the same from");
    kelp_test_command_says(
        done.folder, (const char *[]){"model", "show", "job.yaml", "-o", "json", NULL}, 0, KIND);
    kelp_test_command_says(done.folder, (const char *[]){"plot", "run", NULL}, 0, "run/plots");
    kelp_test_command_says(done.folder, (const char *[]){"evaluate", "run", NULL}, 0, "test");
    kelp_test_run_ok(done.folder, (const char *[]){"predict", "run", "--out", "a.csv", NULL});
    set_environment(4);
    kelp_test_command_says(done.folder, (const char *[]){"verify", "run", "--replay", NULL}, 0,
                           "replay: the same from");
    kelp_test_run_ok(done.folder, (const char *[]){"predict", "run", "--out", "b.csv", NULL});
    kelp_test_expect_same(done.folder, "a.csv", "b.csv");
}

/* kelp diff computes both runs again to find where they part. */
KELP_TEST(diff_computes_again)
{
    set_environment(2);
    kelp_test_run_ok(done.folder, (const char *[]){"train", "job.yaml", "--run", "other", "--set",
                                                   "train.lr=0.002", NULL});
    kelp_test_command_says(done.folder, (const char *[]){"diff", "run", "other", NULL}, 1,
                           "verdict    both records are what their jobs give");
}

/* The key shapes the result: runs that go on with another value are told so. Runs of before have
 * the native one. */
KELP_TEST(it_stays)
{
    set_environment(0);
    kelp_test_run_ok(done.folder, (const char *[]){"train", "job.yaml", "--run", "native", "--set",
                                                   "cluster.compute=native", NULL});
    kelp_test_command_says(done.folder,
                           (const char *[]){"train", "--resume", "--run", "native", "--set",
                                            "cluster.compute=portable", NULL},
                           2, "cluster.compute native -> portable; resume with the old values");
    set_environment(2);
    kelp_test_command_says(done.folder,
                           (const char *[]){"train", "--resume", "--run", "native", "--set",
                                            "cluster.compute=portable", "--set", "train.epochs=3",
                                            "--force", NULL},
                           0, "digest");
}

/* A run that is done has no etcd any more: its checkpoints say how it was computed, and who would
 * go on with it otherwise is told so, and what to do. */
KELP_TEST(another_machine_goes_on)
{
    const char *const longer[] = {"train", "--resume",       "--run", "native",
                                  "--set", "train.epochs=3", NULL};

    set_environment(0);
    kelp_test_run_ok(done.folder, (const char *[]){"train", "job.yaml", "--run", "native", "--set",
                                                   "cluster.compute=native", NULL});
    set_environment(1);
    kelp_test_command_says(done.folder, longer, 2,
                           "run 'native' began on a machine that computes otherwise: compute kind "
                           "cpu x86_64 avx2 openblas-");
    kelp_test_command_says(done.folder, longer, 2,
                           "; resume it on one of that kind, or with --set cluster.mixed=true "
                           "--force\n");
    set_environment(0);
    kelp_test_command_says(done.folder, longer, 0, "digest");
    set_environment(1);
    kelp_test_command_says(done.folder,
                           (const char *[]){"train", "--resume", "--run", "native", "--set",
                                            "train.epochs=4", "--set", "cluster.mixed=true",
                                            "--force", NULL},
                           0, "digest");
}

/* ---- a job on standard input ----------------------------------------------------------------- */

static void shell(const char *folder, const char *script)
{
    char program[512], text[1200];
    const char *const argv[] = {"sh", "-c", text, NULL};
    struct kelp_process *process = NULL;
    struct kelp_error error = {.text = ""};
    int wait_status = -1;

    kelp_test_program("kelp", program, sizeof(program));
    (void)snprintf(text, sizeof(text), script, program);
    const struct kelp_process_options options = {.argv = argv,
                                                 .folder = folder,
                                                 .stdout_fd = KELP_PROCESS_INHERIT,
                                                 .stderr_fd = KELP_PROCESS_INHERIT};
    ck_assert_msg(kelp_process_start(&options, &process, &error) == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_process_wait(process, KELP_TEST_HANG_MS, &wait_status), KELP_OK);
    ck_assert_msg(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0, "%s", text);
    kelp_process_destroy(process);
}

/* Of the run in this folder. */
static bool is_done(const char *name)
{
    char path[400], result[64];

    (void)snprintf(result, sizeof(result), "%s/result.json", name);
    (void)snprintf(path, sizeof(path), "%s/%s", done.folder, result);
    if (access(path, F_OK) != 0) {
        return false;
    }
    char *text = kelp_test_read(done.folder, result, NULL);
    const bool is = strstr(text, "\"done\"") != NULL;
    free(text);
    return is;
}

/* A pipe is read once, by a command that reads its job twice; in the background, too. */
KELP_TEST(a_job_on_standard_input)
{
    set_environment(1);
    shell(done.folder, "cat job.yaml | %s train - --run piped");
    kelp_test_expect_same(done.folder, "piped/model.safetensors", "run/model.safetensors");
    shell(done.folder, "cat job.yaml | %s train --detach - --run back");
    KELP_TEST_AWAIT(is_done("back"), "the run does not end");
    kelp_test_expect_same(done.folder, "back/model.safetensors", "run/model.safetensors");
}

/* ---- workers by hand ------------------------------------------------------------------------- */

static struct kelp_test_folder folder;
static struct kelp_test_command train;
static struct etcd_fixture etcd;
static struct kelp_process *worker;

static void hand_setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&train, 0, sizeof(train));
    etcd_fixture_start(&etcd);
}

static void hand_teardown(void)
{
    kelp_process_destroy(worker);
    kelp_test_command_fini(&train);
    etcd_fixture_stop(&etcd);
    kelp_test_folder_fini(&folder);
}

static bool has_begun(void)
{
    char path[300];
    struct stat about;

    (void)snprintf(path, sizeof(path), "%s/run/digests.jsonl", folder.path);
    return stat(path, &about) == 0 && about.st_size > 0;
}

/* Longer than any test. */
static void start_training(const char *cluster)
{
    char text[1500];

    (void)snprintf(text, sizeof(text),
                   "%s%strain: {epochs: 100000, batch_size: 32}\n"
                   "checkpoint: {digest_steps: 5}\n",
                   cluster, MLP);
    (void)kelp_test_write(folder.path, "job.yaml", text);
    kelp_test_command_start(
        &train, folder.path,
        (const char *[]){"train", "job.yaml", "--run", "run", "--etcd", etcd.url, NULL});
    KELP_TEST_AWAIT_FROM(&train, has_begun(), "training does not begin");
}

static void start_worker(void)
{
    char program[512], path[300];
    const char *const argv[] = {program,    "--etcd", etcd.url, "--job",
                                "portable", "--id",   "x",      NULL};
    struct kelp_error error = {.text = ""};

    kelp_test_program("kelp-worker", program, sizeof(program));
    (void)snprintf(path, sizeof(path), "%s/worker.log", folder.path);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    const struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    ck_assert_msg(kelp_process_start(&options, &worker, &error) == KELP_OK, "%s", error.text);
    (void)close(fd);
}

static bool worker_says(const char *words)
{
    char *text = kelp_test_read(folder.path, "worker.log", NULL);
    bool says = strstr(text, words) != NULL;

    free(text);
    return says;
}

static int end_worker(void)
{
    int wait_status = -1;

    ck_assert_int_eq(kelp_process_wait(worker, KELP_TEST_HANG_MS, &wait_status), KELP_OK);
    ck_assert(WIFEXITED(wait_status));
    return WEXITSTATUS(wait_status);
}

/* The name of the process, as ps(1) has it. */
static void expect_name(const char *expected)
{
    char path[64], name[64] = "";

    (void)snprintf(path, sizeof(path), "/proc/%ld/comm", (long)kelp_process_pid(worker));
    FILE *in = fopen(path, "re");
    ck_assert_ptr_nonnull(in);
    ck_assert_ptr_nonnull(fgets(name, sizeof(name), in));
    (void)fclose(in);
    name[strcspn(name, "\n")] = '\0';
    ck_assert_str_eq(name, expected);
}

KELP_CASE("by hand", .setup = hand_setup, .teardown = hand_teardown, .timeout_s = KELP_TEST_HANG_S)

/* It begins again as the same process, joins, and ends as any other. */
KELP_TEST(a_worker_begins_again)
{
    set_environment(1);
    start_training(BEGINNING("compute: portable"));
    set_environment(2);
    start_worker();
    KELP_TEST_AWAIT_FROM(&train, worker_says("compute=\"" KIND), "the worker does not join");
    ck_assert(worker_says("begins again: its job has cluster.compute: portable"));
    expect_name("kelp-worker");
    kelp_process_signal(worker, SIGTERM);
    ck_assert_int_eq(end_worker(), 0);
    char *text = kelp_test_read(folder.path, "worker.log", NULL);
    char *first = strstr(text, "begins again");
    ck_assert_ptr_null(strstr(first + 1, "begins again"));
    free(text);
    kelp_test_command_says(folder.path, (const char *[]){"stop", "run", "--now", NULL}, 0, "");
}

/* A worker with other kernels than the run began with: both kinds are named, and both keys. */
KELP_TEST(another_kind_is_refused)
{
    set_environment(1);
    start_training(BEGINNING("compute: native"));
    set_environment(0);
    start_worker();
    ck_assert_int_eq(end_worker(), 2);
    ck_assert(worker_says("compute kind cpu x86_64 avx2 openblas-"));
    ck_assert(worker_says(" Haswell "));
    ck_assert(worker_says(" Zen "));
    ck_assert(worker_says("(cluster.compute: portable is one kind for all with the same OpenBLAS; "
                          "cluster.mixed: true lets it in)"));
    ck_assert(!worker_says("begins again"));
    kelp_test_command_says(folder.path, (const char *[]){"stop", "run", "--now", NULL}, 0, "");
}

/* What kelp submit leaves for all hosts is the portable plan. */
KELP_TEST(a_job_for_several_hosts)
{
    struct kelp_etcd *client = etcd_fixture_client(&etcd);
    struct kelp_error error = {.text = ""};
    struct kelp_etcd_range range = {0};

    set_environment(1);
    (void)kelp_test_write(folder.path, "job.yaml", BEGINNING("compute: portable") MLP);
    kelp_test_run_ok(folder.path, (const char *[]){"submit", "job.yaml", "--etcd", etcd.url,
                                                   "--run", "run", NULL});
    ck_assert_int_eq(kelp_etcd_get(client, "/kelp/portable/plan", ETCD_MS, &range, &error),
                     KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    ck_assert_ptr_nonnull(strstr(range.pairs[0].value, "\"compute_kind\":\"" KIND));
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
}

/* A program with the worker library cannot begin again: it is told, before it joins. */
KELP_TEST(the_library_refuses)
{
    struct kelp_etcd *client = etcd_fixture_client(&etcd);
    struct kelp_error error = {.text = ""};
    struct kelp_stop stop = KELP_STOP_INIT;
    struct kelp_job_link *own = NULL;
    struct kelp_plan plan = {.compute_kind = "cpu x86_64 base mine"};
    const struct kelp_job_link_options options = {.etcd = etcd.url, .job = "portable", .id = "y"};

    ck_assert_int_eq(kelp_etcd_put(client, "/kelp/portable/spec",
                                   BEGINNING("compute: portable") MLP, 0, ETCD_MS, &error),
                     KELP_OK);
    kelp_etcd_close(client);
    kelp_rpc_global_init();
    ck_assert_msg(kelp_job_link_open(&options, &stop, &own, &error) == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_job_link_join(own, &plan, &error), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text,
                     "the job has cluster.compute: portable, and this worker's compute kind is cpu "
                     "x86_64 base mine: it must derive its plan from the job");
    kelp_job_link_close(own);
    kelp_rpc_global_fini();
}
