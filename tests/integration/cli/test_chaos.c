/*
 * `kelp chaos` on the ETTh1 job: a dozen faults, every kind of process hit at least once and all of
 * them at once, and the run ends with the digest of the quiet one. The long version, fifty faults
 * of every kind that this machine can do, runs with KELP_CHAOS_SEEDS=FIRST:LAST in the environment.
 * KELP_PROOF=sizes: shards and workers come and go under faults for minutes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chaos/plan/chaos_plan.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/proof.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define HANG_MS 1800000 /* far beyond what the slowest machine needs */
#define FAULTS  10      /* at least, in the short version */

static struct kelp_test_folder folder;
static struct kelp_test_command command;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&command, 0, sizeof(command));
}

static void teardown(void)
{
    kelp_test_command_fini(&command);
    kelp_test_folder_fini(&folder);
}

/* The job of the examples, on the real series where it is there. */
static void write_job(void)
{
    static const char job[] = "name: etth1\nseed: 2021\n"
                              "model: {kind: dlinear}\n"
                              "train: {epochs: 10, batch_size: 32, lr: 0.005, schedule: type1}\n"
                              "cluster: {workers: 2, shards: 2, lanes: 8}\n"
                              "checkpoint: {digest_steps: 50, steps: 100}\n";
    char text[KELP_TEST_PATH_MAX + 1024];
    char path[KELP_TEST_PATH_MAX];

    if (kelp_test_data_file("ett/ETTh1.csv", path)) {
        (void)snprintf(text, sizeof(text), "%sdata: {kind: csv, path: '%s'}\n", job, path);
    } else {
        (void)snprintf(text, sizeof(text), "%sdata: {kind: synthetic}\n", job);
    }
    (void)kelp_test_write(folder.path, "job.yaml", text);
}

static void chaos(const char *const *args, uint32_t timeout_ms)
{
    kelp_test_command_fini(&command);
    memset(&command, 0, sizeof(command));
    kelp_test_command_run(&command, folder.path, args, timeout_ms);
    kelp_test_command_gone(&command);
}

/* Does the plan without replicas have no fault for it? */
static bool never_hit(enum kelp_chaos_role role)
{
    return role == KELP_CHAOS_COORDINATOR || role == KELP_CHAOS_DISK || role == KELP_CHAOS_HOST ||
           role == KELP_CHAOS_PRIMARY || role == KELP_CHAOS_BACKUP || role == KELP_CHAOS_BOTH;
}

/* How often each role was hit; every fault must have been recovered from. */
static void count_hits(const cJSON *report, unsigned hits[KELP_CHAOS_ROLE_COUNT])
{
    const cJSON *fault;

    cJSON_ArrayForEach(fault, cJSON_GetObjectItemCaseSensitive(report, "faults"))
    {
        for (int role = 0; role < KELP_CHAOS_ROLE_COUNT; role++) {
            hits[role] += strcmp(kelp_test_text(fault, "role"),
                                 kelp_chaos_role_name((enum kelp_chaos_role)role)) == 0;
        }
        ck_assert_double_ge(kelp_test_number(fault, "step"),
                            kelp_test_number(fault, "planned_step"));
    }
}

KELP_CASE("chaos", .timeout_s = 3600, .setup = setup, .teardown = teardown)

/* The quiet run's steps are told as they are made, between the two lines that say which run goes
 * on. */
static void check_progress(void)
{
    const char *quiet = strstr(command.err, "kelp: run 1 of 2, without faults: chaos/quiet\n");
    const char *faults = strstr(command.err, "kelp: run 2 of 2, with ");

    ck_assert_msg(quiet && faults && quiet < faults, "it said:\n%s", command.err);
    const char *step = strstr(quiet, "\nstep ");
    ck_assert_msg(step && step < faults, "it said:\n%s", command.err);
}

/* A dozen faults, and the digest of the quiet run; the timeline and the picture are there. */
KELP_LOOP_TEST(quick_plan, 0, getenv("KELP_CHAOS_SEEDS") ? 0 : 1)
{
    static const char *const args[] = {"chaos", "job.yaml", "--run", "chaos", NULL};
    unsigned hits[KELP_CHAOS_ROLE_COUNT] = {0};
    char path[256];

    write_job();
    chaos(args, HANG_MS);
    printf("%s", command.out);
    ck_assert_msg(command.exit_code == 0, "exit %d; it said:\n%s%s", command.exit_code, command.out,
                  command.err);
    check_progress();
    cJSON *report = kelp_test_read_json(folder.path, "chaos/chaos.json");
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(report, "equal")));
    ck_assert_str_eq(kelp_test_text(report, "digest"), kelp_test_text(report, "quiet_digest"));
    count_hits(report, hits);
    unsigned total = 0;
    for (int role = 0; role < KELP_CHAOS_ROLE_COUNT; role++) {
        ck_assert_msg(hits[role] > 0 || never_hit((enum kelp_chaos_role)role), "no %s was hit",
                      kelp_chaos_role_name((enum kelp_chaos_role)role));
        total += hits[role];
    }
    ck_assert_uint_ge(total, FAULTS);
    cJSON_Delete(report);
    (void)snprintf(path, sizeof(path), "%s/chaos/chaos.svg", folder.path);
    ck_assert_int_eq(fclose(fopen(path, "r")), 0);
}

/* Processes come and go in order while one is killed: with replicas no step is computed again. The
 * last drain may be refused, if the shards that are too many have gone by then. */
KELP_LOOP_TEST(scale_and_drain, 0, getenv("KELP_CHAOS_SEEDS") ? 0 : 1)
{
    static const char *const args[] = {"chaos",  "job.yaml",           "--run",    "chaos",
                                       "--plan", "plan.yaml",          "--shards", "3",
                                       "--set",  "cluster.replicas=2", NULL};
    static const char plan[] = "faults:\n"
                               "  - {kind: drain, target: shard, step: 50}\n"
                               "  - {kind: scale, target: worker, to: 3, step: 100}\n"
                               "  - {kind: scale, target: shard, to: 4, step: 150}\n"
                               "  - {kind: drain, target: worker, step: 200}\n"
                               "  - {kind: kill, target: primary, step: 250}\n"
                               "  - {kind: scale, target: shard, to: 2, step: 300}\n"
                               "  - {kind: drain, target: primary, step: 350}\n";
    unsigned hits[KELP_CHAOS_ROLE_COUNT] = {0};

    (void)kelp_test_write(folder.path, "job.yaml",
                          "name: sizes\nmodel: {kind: dlinear}\ndata: {kind: synthetic}\n"
                          "train: {batch_size: 32, evaluate: false}\n"
                          "cluster: {workers: 2, lanes: 8}\n");
    (void)kelp_test_write(folder.path, "plan.yaml", plan);
    chaos(args, HANG_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d; it said:\n%s%s", command.exit_code, command.out,
                  command.err);
    cJSON *report = kelp_test_read_json(folder.path, "chaos/chaos.json");
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(report, "equal")));
    ck_assert_double_eq(kelp_test_number(report, "steps_recomputed"), 0);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(report, "restores")), 0);
    count_hits(report, hits);
    ck_assert_uint_eq(hits[KELP_CHAOS_SHARD] + hits[KELP_CHAOS_WORKER], 5);
    cJSON_Delete(report);
}

/* FOLDER/certs for the job, and for the etcd of chaos. */
static void issue_all(const char *job)
{
    static const char *const roles[] = {"coordinator", "shard", "worker", "operator", "etcd"};
    char out[64], name[64];

    kelp_test_authority(folder.path, "authority");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        bool etcd = strcmp(roles[i], "etcd") == 0;
        (void)snprintf(out, sizeof(out), "certs/%s", roles[i]);
        (void)snprintf(name, sizeof(name), "%s%s%s", etcd ? "" : job, etcd ? "" : "/", roles[i]);
        kelp_test_issue(&(struct kelp_test_issue){folder.path, "authority", out, name,
                                                  etcd ? "127.0.0.1" : NULL, 5});
    }
}

/* Another digest than that of the quiet run is found, and said; also with certificates, which all
 * processes have then. */
KELP_LOOP_TEST(difference, 0, getenv("KELP_CHAOS_SEEDS") ? 0 : 1)
{
    static const char *const args[] = {
        "chaos",   "job.yaml",       "--run",    "chaos",
        "--plan",  "plan.yaml",      "--set",    "data.kind=synthetic",
        "--set",   "train.epochs=2", "--digest", "0123456789abcdef0123456789abcdef",
        "--certs", "certs",          NULL};

    issue_all("difference");
    (void)kelp_test_write(folder.path, "job.yaml", "name: difference\nmodel: {kind: dlinear}\n");
    (void)kelp_test_write(folder.path, "plan.yaml",
                          "faults: [{kind: kill, target: worker, step: 20}]\n");
    chaos(args, HANG_MS);
    ck_assert_msg(command.exit_code == 1, "exit %d; it said:\n%s%s", command.exit_code, command.out,
                  command.err);
    ck_assert_msg(strstr(command.out, "DIFFERENT: the quiet run ends with 0123456789abcdef") !=
                      NULL,
                  "it said:\n%s", command.out);
    ck_assert_msg(strstr(command.err, "kelp: run 1 of 1, with 1 fault: chaos/chaos\n") != NULL,
                  "it said:\n%s", command.err);
    char *cluster = kelp_test_read(folder.path, "chaos/chaos/cluster.json", NULL);
    ck_assert_msg(strstr(cluster, "\"https://127.0.0.1:") && strstr(cluster, "/certs/operator\""),
                  "%s", cluster);
    free(cluster);
}

/* What cannot be done is one line and exit status 2, and leaves nothing behind. */
KELP_LOOP_TEST(mistakes, 0, getenv("KELP_CHAOS_SEEDS") ? 0 : 1)
{
    static const struct {
        const char *faults;
        const char *plan;
        const char *option;
        const char *value;
        const char *says;
    } wrong[] = {
        {"faults: [{kind: kill, target: worker-7, step: 20}]\n", "plan.yaml", "--seed", "1",
         "plan.yaml:1: there is no worker-7, the run has 2"},
        {"", "none", "--seed", "1", "plan 'none' is neither built in (quick, all, hosts) nor"},
        {"faults: [{kind: kill, target: worker, step: 2000000}]\n", "plan.yaml", "--epochs", "1",
         "the plan's last fault is at step 2000000"},
        {"faults: [{kind: kill, target: worker, step: 20}]\n", "plan.yaml", "--quiet-run",
         "nowhere", "nowhere/job.yaml"},
        {"faults: [{kind: kill, target: worker, step: 20}]\n", "plan.yaml", "--certs", "nowhere",
         "--certs: 'nowhere' is not a folder"},
    };
    char run[256];

    (void)kelp_test_write(folder.path, "job.yaml",
                          "name: mistakes\nmodel: {kind: dlinear}\ndata: {kind: synthetic}\n");
    (void)snprintf(run, sizeof(run), "%s/chaos", folder.path);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        const char *args[] = {"chaos",       "job.yaml",      "--run",        "chaos", "--plan",
                              wrong[i].plan, wrong[i].option, wrong[i].value, NULL};
        (void)kelp_test_write(folder.path, "plan.yaml", wrong[i].faults);
        chaos(args, HANG_MS);
        ck_assert_msg(command.exit_code == 2, "%s %s: exit %d; it said:\n%s", wrong[i].option,
                      wrong[i].value, command.exit_code, command.err);
        ck_assert_msg(strstr(command.err, wrong[i].says) != NULL, "it said:\n%s", command.err);
        ck_assert_ptr_null(fopen(run, "r"));
    }
}

/* Every seed of the range, with the plan of fifty faults; all share one quiet run. */
KELP_LOOP_TEST(all_plan, 0, getenv("KELP_CHAOS_SEEDS") ? 1 : 0)
{
    unsigned long long first = 0;
    unsigned long long last = 0;
    const char *range = getenv("KELP_CHAOS_SEEDS");
    char seed[32];
    char run[64];

    ck_assert_int_eq(sscanf(range, "%llu:%llu", &first, &last), 2);
    write_job();
    for (unsigned long long at = first; at <= last; at++) {
        const char *args[] = {"chaos",
                              "job.yaml",
                              "--plan",
                              "all",
                              "--seed",
                              seed,
                              "--run",
                              run,
                              "--epochs",
                              "40",
                              at > first ? "--quiet-run" : NULL,
                              "first/quiet",
                              NULL};
        (void)snprintf(seed, sizeof(seed), "%llu", at);
        (void)snprintf(run, sizeof(run), "%s", at > first ? seed : "first");
        chaos(args, HANG_MS);
        printf("seed %s\n%s\n", seed, command.out);
        (void)fflush(stdout);
        ck_assert_msg(command.exit_code == 0, "seed %s: exit %d; it said:\n%s%s", seed,
                      command.exit_code, command.out, command.err);
    }
}

/* ---- proof -------------------------------------------------------------------------------------
 */

KELP_CASE("sizes", .timeout_s = 2 * KELP_PROOF_S, .setup = setup, .teardown = teardown,
          .proof = true)

/* The fewest shards, to 4, to 2, to 3; 1 worker, to 6, to 2: as plan.yaml. */
static void write_sizes(unsigned fewest)
{
    static const char format[] =
        "faults:\n"
        "  - {kind: scale, target: shard, to: %u, step: 400}\n"
        "  - {kind: scale, target: worker, to: 1, step: 600}\n"
        "  - {kind: scale, target: shard, to: 4, step: 3000}\n"
        "  - {kind: scale, target: worker, to: 6, step: 4000}\n"
        "  - {kind: scale, target: shard, to: 2, step: 14000}\n"
        "  - {kind: scale, target: worker, to: 2, step: 16000}\n"
        "  - {kind: scale, target: shard, to: 3, step: 20000}\n"
        "draw:\n"
        "  count: 24\n"
        "  first: 3200\n"
        "  every: 600:1400\n"
        "  mix:\n"
        "    - {kind: kill, target: worker, weight: 3}\n"
        "    - {kind: kill, target: shard, weight: 3}\n"
        "    - {kind: kill, target: leader, weight: 1}\n"
        "    - {kind: pause, target: worker, for: 500ms:1500ms, weight: 1}\n"
        "    - {kind: pause, target: shard, for: 500ms:1500ms, weight: 1}\n";
    char text[sizeof(format) + 16];

    (void)snprintf(text, sizeof(text), format, fewest);
    (void)kelp_test_write(folder.path, "plan.yaml", text);
}

/* chaos.json of that folder: the digest of the quiet run, and no step again with replicas. */
static void check_sizes(const char *name, const char *what, bool with_replicas)
{
    char path[KELP_TEST_PATH_MAX], quiet[KELP_TEST_PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/chaos.json", name);
    cJSON *report = kelp_test_read_json(folder.path, path);
    const int restores = cJSON_GetArraySize(kelp_test_member(report, "restores"));
    (void)snprintf(path, sizeof(path), "%s/%s/chaos", folder.path, name);
    (void)snprintf(quiet, sizeof(quiet), "%s/%s/quiet", folder.path, with_replicas ? "one" : name);
    (void)printf(
        "sizes, %s, replicas %d: %.0f steps, %s, %d faults, restores %d, steps again %.0f, "
        "promotions %u, moves %u, quiet %.0f s, this %.0f s\n",
        what, with_replicas ? 2 : 1, kelp_test_number(report, "total_steps"),
        kelp_test_text(report, "digest"), cJSON_GetArraySize(kelp_test_member(report, "faults")),
        restores, kelp_test_number(report, "steps_recomputed"), kelp_proof_events(path, "promoted"),
        kelp_proof_events(path, "moved"), kelp_test_number(report, "quiet_wall_s"),
        kelp_test_number(report, "wall_s"));
    (void)fflush(stdout);
    ck_assert_str_eq(kelp_test_text(report, "digest"), kelp_test_text(report, "quiet_digest"));
    kelp_proof_same_records(path, quiet);
    char *events = kelp_test_read(path, "events.jsonl", NULL);
    ck_assert(strstr(events, "\"who\":\"shard-3\"") && strstr(events, "\"who\":\"worker-5\""));
    free(events);
    if (with_replicas) {
        ck_assert_int_eq(restores, 0);
        ck_assert_double_eq(kelp_test_number(report, "steps_recomputed"), 0);
    }
    cJSON_Delete(report);
}

/* lamb scales each tensor's update itself, and is not clipped. */
static const struct {
    const char *name, *setting, *clips;
} optimizers[] = {
    {"adam, clipped", "train.optimizer=adam", "train.clip_norm=0.5"},
    {"lamb", "train.optimizer=lamb", "train.clip_norm=0"},
};

/* Without replicas and with them, of one quiet run. */
KELP_LOOP_TEST(sizes_under_faults, 0, KELP_ARRAY_COUNT(optimizers))
{
    static const char *const names[] = {"one", "two"};
    static const char *const replicas[] = {"cluster.replicas=1", "cluster.replicas=2"};
    char epochs[16];

    (void)snprintf(epochs, sizeof(epochs), "%u", kelp_proof_write(folder.path));
    for (unsigned i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        const char *args[] = {"chaos",
                              "job.yaml",
                              "--run",
                              names[i],
                              "--plan",
                              "plan.yaml",
                              "--shards",
                              "3",
                              "--workers",
                              "2",
                              "--epochs",
                              epochs,
                              "--set",
                              optimizers[_i].setting,
                              "--set",
                              optimizers[_i].clips,
                              "--set",
                              replicas[i],
                              i > 0 ? "--quiet-run" : NULL,
                              "one/quiet",
                              NULL};
        write_sizes(i + 1);
        chaos(args, KELP_PROOF_S * 1000u);
        ck_assert_msg(command.exit_code == 0, "exit %d; it said:\n%s%s", command.exit_code,
                      command.out, command.err);
        check_sizes(names[i], optimizers[_i].name, i > 0);
    }
}
