/*
 * Hosts that share no folder (kelp submit --no-shared-folder): each is a process here that works in
 * a folder of its own. There are no checkpoints; whatever happens to the hosts, the digest is that
 * of kelp train.
 */
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_doctor.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define HOSTS_MAX    3
#define DIGEST_CHARS 32
#define PATH_BYTES   300

#define JOB_TEXT(workers, epochs)                                                                  \
    "name: hosts\nseed: 3\n"                                                                       \
    "model: {kind: dlinear}\n"                                                                     \
    "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"                               \
    "       seq_len: 48, pred_len: 24}\n"                                                          \
    "train: {epochs: " epochs ", batch_size: 32, schedule: constant}\n"                            \
    "cluster: {workers: " workers ", shards: 2, replicas: 2, lanes: 4}\n"                          \
    "checkpoint: {digest_steps: 5, steps: 20}\n" /* which say nothing here */

/* Some seconds: time for things to happen to it. */
static const char job_text[] = JOB_TEXT("1:4", "60");

static const char *const names[HOSTS_MAX] = {"a", "b", "c"};

static struct kelp_test_folder folder;
static struct etcd_fixture etcd;
static struct kelp_test_command hosts[HOSTS_MAX];
static struct kelp_test_command doctor;
static char quiet[DIGEST_CHARS + 1]; /* of kelp train */

static void read_field(const char *summary, const char *field, char *text, size_t text_bytes)
{
    const char *line = strstr(summary, field);

    ck_assert_msg(line != NULL, "no %s in: %s", field, summary);
    line += strlen(field);
    line += strspn(line, " ");
    (void)snprintf(text, text_bytes, "%.*s", (int)strcspn(line, "\n"), line);
}

static void run(struct kelp_test_command *command, const char *const *args, int exit_code)
{
    memset(command, 0, sizeof(*command));
    kelp_test_command_run(command, folder.path, args, KELP_TEST_HANG_MS);
    ck_assert_msg(command->exit_code == exit_code, "exit %d: %s%s", command->exit_code,
                  command->out, command->err);
}

static void train_quietly(void)
{
    struct kelp_test_command train;

    run(&train, (const char *[]){"train", "job.yaml", "--run", "quiet", NULL}, 0);
    read_field(train.out, "\ndigest ", quiet, sizeof(quiet));
    kelp_test_command_fini(&train);
}

static void submit(void)
{
    struct kelp_test_command command;

    run(&command,
        (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--no-shared-folder", NULL}, 0);
    ck_assert_ptr_nonnull(strstr(command.err, "no checkpoints, since the hosts share no folder"));
    ck_assert_ptr_nonnull(strstr(command.out, "-HOST of each host\n"));
    kelp_test_command_fini(&command);
}

/* A host in its own folder, and with one of that name (NULL: its own choice). */
static void start(size_t host, const char *run_folder, const char *shards, const char *coordinator)
{
    const char *args[] = {"node",   "--etcd",    etcd.url,    "--job", "hosts",
                          "--host", names[host], "--workers", "1",     "--shards",
                          shards,   NULL,        NULL,        NULL,    NULL};
    char path[PATH_BYTES];
    size_t count = 11;

    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, names[host]);
    (void)mkdir(path, 0755);
    if (run_folder) {
        args[count++] = "--run";
        args[count++] = run_folder;
    }
    args[count] = coordinator;
    kelp_test_command_fini(&hosts[host]); /* of an earlier start */
    memset(&hosts[host], 0, sizeof(hosts[host]));
    kelp_test_command_start(&hosts[host], path, args);
}

static void start_all(void)
{
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        start(i, "own", "1", "--coordinator");
    }
}

static void ends(size_t host, int exit_code)
{
    (void)kelp_test_command_wait(&hosts[host], KELP_TEST_HANG_MS);
    ck_assert_msg(hosts[host].exit_code == exit_code, "host %zu: exit %d: %s%s", host,
                  hosts[host].exit_code, hosts[host].out, hosts[host].err);
    kelp_test_command_gone(&hosts[host]);
}

/* Does the leader know of a process of that name? */
static bool knows(const char *id)
{
    struct kelp_test_command status;

    memset(&status, 0, sizeof(status));
    kelp_test_command_run(&status, folder.path,
                          (const char *[]){"status", "hosts", "--etcd", etcd.url, NULL},
                          KELP_TEST_HANG_MS);
    bool known = status.exit_code != 0 || strstr(status.out, id);
    kelp_test_command_fini(&status);
    return known;
}

static void kill_host(size_t host)
{
    kelp_test_command_signal(&hosts[host], "node", "hosts",
                             SIGKILL); /* takes its processes along */
    ends(host, -1);
}

/* The newest step on record of any host. */
static double step_now(void)
{
    double newest = 0;
    char pattern[PATH_BYTES];
    glob_t found = {0};

    (void)snprintf(pattern, sizeof(pattern), "%s/?/own/digests.jsonl", folder.path);
    (void)!glob(pattern, 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const double step = kelp_run_step_in(found.gl_pathv[i]);
        newest = step > newest ? step : newest;
    }
    globfree(&found);
    return newest;
}

static void await_step(double step)
{
    KELP_TEST_AWAIT(step_now() >= step, "step %g was not reached: %s", step,
                    kelp_test_command_peek(&hosts[0]));
}

/* The host whose coordinator leads, as etcd says; HOSTS_MAX: it does not yet. */
static size_t host_on_record(void)
{
    struct kelp_error error;
    struct kelp_etcd *client = etcd_fixture_client(&etcd);
    struct kelp_etcd_range range = {0};
    size_t host = HOSTS_MAX;

    ck_assert_msg(kelp_etcd_get(client, "/kelp/hosts/run", 5000, &range, &error) == KELP_OK, "%s",
                  error.text);
    ck_assert_uint_eq(range.count, 1);
    cJSON *place = kelp_test_json(range.pairs[0].value);
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        host = strcmp(kelp_test_text(place, "host"), names[i]) == 0 ? i : host;
    }
    cJSON_Delete(place);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
    return host;
}

/* A leader says where it is once it leads; steps do not wait for that. */
static size_t leading_host(void)
{
    size_t host = HOSTS_MAX;

    KELP_TEST_AWAIT((host = host_on_record()) < HOSTS_MAX, "no host is on record: %s",
                    kelp_test_command_peek(&hosts[0]));
    return host;
}

/* kelp wait: the digest is the quiet one. Fills the path that it names. */
static void expect_quiet(char path[PATH_BYTES])
{
    struct kelp_test_command wait;
    char digest[DIGEST_CHARS + 1], where[PATH_BYTES];

    run(&wait, (const char *[]){"wait", "hosts", "--etcd", etcd.url, NULL}, 0);
    read_field(wait.out, "\ndigest ", digest, sizeof(digest));
    read_field(wait.out, "\nrun ", where, sizeof(where));
    kelp_test_command_fini(&wait);
    train_quietly();
    ck_assert_str_eq(digest, quiet);
    const char *colon = strchr(where, ':');
    ck_assert_msg(colon && colon == where + 1, "no host in: %s", where);
    (void)snprintf(path, PATH_BYTES, "%s", colon + 1);
}

/* A file is that of the quiet run. */
static void as_quiet(const char *path, const char *name)
{
    char other[PATH_BYTES];
    size_t bytes, same_bytes;

    char *text = kelp_test_read(path, name, &bytes);
    (void)snprintf(other, sizeof(other), "quiet/%s", name);
    char *same = kelp_test_read(folder.path, other, &same_bytes);
    ck_assert_msg(bytes == same_bytes && memcmp(text, same, bytes) == 0, "%s/%s differs from %s",
                  path, name, other);
    free(text);
    free(same);
}

static bool is_there(const char *path, const char *name)
{
    char whole[PATH_BYTES + 64];

    (void)snprintf(whole, sizeof(whole), "%s/%s", path, name);
    return access(whole, F_OK) == 0;
}

static void setup(void)
{
    etcd_fixture_require();
    etcd_fixture_start(&etcd);
    kelp_test_folder_init(&folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder.path, 1), 0);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    memset(hosts, 0, sizeof(hosts));
    memset(&doctor, 0, sizeof(doctor));
}

static void teardown(void)
{
    kelp_test_command_fini(&doctor);
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        kelp_test_command_fini(&hosts[i]);
    }
    kelp_test_folder_fini(&folder);
    etcd_fixture_stop(&etcd);
}

KELP_CASE("no_shared_folder", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup,
          .teardown = teardown)

/* Two hosts, each with a folder that it chooses; the leader's has the model and all records, and
 * kelp wait says where it is. */
KELP_TEST(trains)
{
    char path[PATH_BYTES];

    submit();
    ck_assert(!is_there(folder.path, "runs"));
    start(0, NULL, "1", "--coordinator");
    start(1, NULL, "1", "--coordinator");
    expect_quiet(path);
    ends(0, 0);
    ends(1, 0);
    ck_assert_ptr_nonnull(strstr(hosts[0].err, "no checkpoints, since the hosts share no folder"));
    ck_assert_ptr_nonnull(strstr(hosts[1].err, "this host's folder is runs/hosts-"));
    ck_assert_ptr_nonnull(strstr(hosts[0].out, path)); /* whichever wrote it */
    ck_assert_ptr_nonnull(strstr(hosts[1].out, path));
    as_quiet(path, "metrics.jsonl");
    as_quiet(path, "digests.jsonl");
    as_quiet(path, "model.safetensors"); /* with what it carries of its data */
    as_quiet(path, "model.json");
    ck_assert(is_there(path, "result.json"));
    ck_assert(is_there(path, "job.yaml"));
    ck_assert(!is_there(path, "checkpoints"));
    kelp_test_command_says(folder.path, (const char *[]){"digest", path, NULL}, 0, quiet);
    kelp_test_command_says(folder.path,
                           (const char *[]){"status", "hosts", "--etcd", etcd.url, NULL}, 0, path);
    kelp_test_doctor_run(&doctor, folder.path, "hosts", etcd.url, (const char *[]){NULL}, 0);
    KELP_TEST_DOCTOR_FOUND(&doctor, "folder", "OK",
                           "each host has its own, and there are no checkpoints; the leader's is ");
    KELP_TEST_DOCTOR_FOUND(&doctor, "folder", "OK", path);
}

/* Of three hosts the leader's is lost, with a shard, a worker and the records: nothing is computed
 * again, and the new leader's records are whole. */
KELP_TEST(leader_lost)
{
    char path[PATH_BYTES], own[PATH_BYTES];

    submit();
    start_all();
    await_step(100);
    size_t lost = leading_host();
    kill_host(lost);
    expect_quiet(path);
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        if (i != lost) {
            ends(i, 0);
        }
    }
    (void)snprintf(own, sizeof(own), "%s/%s/", folder.path, names[lost]);
    ck_assert_msg(strncmp(path, own, strlen(own)) != 0, "%s is the lost host's", path);
    as_quiet(path, "metrics.jsonl");
    as_quiet(path, "digests.jsonl");
    cJSON *result = kelp_test_read_json(path, "result.json");
    ck_assert(kelp_test_number(result, "steps_recomputed") == 0);
    cJSON_Delete(result);
}

/* Both holders of every partition are lost: the job begins again, which is said, and ends as it
 * would have. */
KELP_TEST(all_holders_lost)
{
    char path[PATH_BYTES];

    submit();
    start(2, "own", "0", "--coordinator"); /* leads: it is there first */
    kelp_test_command_await(&hosts[2], "waiting");
    start(0, "own", "1", NULL);
    start(1, "own", "1", NULL);
    await_step(100);
    kill_host(0);
    kill_host(1);
    start(0, "own", "1", NULL);
    start(1, "own", "1", NULL);
    expect_quiet(path);
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        ends(i, 0);
    }
    ck_assert_ptr_nonnull(strstr(hosts[2].err, "the job begins again at step 0"));
    as_quiet(path, "metrics.jsonl");
    cJSON *result = kelp_test_read_json(path, "result.json");
    ck_assert(kelp_test_number(result, "restores") >= 1);
    ck_assert(kelp_test_number(result, "steps_recomputed") >= 100);
    cJSON_Delete(result);
}

/* It can neither be paused nor saved, which is said at once; it goes on. A host that leaves takes
 * nothing along as long as others are there; the last one says what is lost, and the job begins
 * again. */
KELP_TEST(is_not_paused)
{
    char path[PATH_BYTES];

    /* It lasts while commands come and go, and rests while a host is away. */
    (void)kelp_test_write(folder.path, "job.yaml", JOB_TEXT("2:4", "120"));
    submit();
    start(0, "own", "1", "--coordinator");
    start(1, "own", "1", "--coordinator");
    await_step(100);
    kelp_test_command_says(folder.path, (const char *[]){"stop", "hosts", "--etcd", etcd.url, NULL},
                           2, "it has no checkpoints, and cannot be paused");
    kelp_test_command_says(folder.path,
                           (const char *[]){"checkpoint", "hosts", "--etcd", etcd.url, NULL}, 2,
                           "the hosts of this job share no folder: it has no checkpoints");
    kelp_test_command_signal(&hosts[0], "node", "hosts", SIGTERM);
    ends(0, 0);
    ck_assert_ptr_null(strstr(hosts[0].err, "begins again once"));
    KELP_TEST_AWAIT(!knows("a.shard-0"), "a.shard-0 is not forgotten");
    kelp_test_command_signal(&hosts[1], "node", "hosts", SIGTERM);
    ends(1, 0);
    ck_assert_msg(strstr(hosts[1].err, "no other host has shards, and there are no checkpoints: "
                                       "the job begins again once hosts are back"),
                  "%s", hosts[1].err);
    start(0, "own", "1", "--coordinator");
    start(1, "own", "1", "--coordinator");
    expect_quiet(path);
    ends(0, 0);
    ends(1, 0);
}

/* What cannot be is refused before anything is there, or in the folder of another run. */
KELP_TEST(mistakes)
{
    char path[PATH_BYTES];
    const char *const export[] = {"export", "hosts", "--etcd",        etcd.url, "--run",
                                  "other",  "--out", "x.safetensors", NULL};

    kelp_test_command_says(folder.path,
                           (const char *[]){"submit", "job.yaml", "--etcd", etcd.url,
                                            "--no-shared-folder", "--set", "cluster.replicas=1",
                                            NULL},
                           2, "--no-shared-folder needs cluster.replicas: 2");
    submit();
    kelp_test_command_says(
        folder.path,
        (const char *[]){"export", "hosts", "--etcd", etcd.url, "--out", "x.safetensors", NULL}, 2,
        "share no folder, and none has led it yet");
    kelp_test_command_says(folder.path,
                           (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run",
                                            "other", "--set", "name=another", NULL},
                           0, "\nsha256 ");
    kelp_test_command_says(folder.path, export, 2, "it is that of another run; hosts share none");
    (void)snprintf(path, sizeof(path), "%s/copy", folder.path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    (void)kelp_test_write(folder.path, "copy/job.yaml", job_text);
    kelp_test_command_says(
        folder.path,
        (const char *[]){"submit", "--resume", "--run", "copy", "--etcd", etcd.url, NULL}, 2,
        "share no folder, so there are no checkpoints");
    start(0, "../other", "1", NULL);
    ends(0, 2);
    ck_assert_ptr_nonnull(strstr(hosts[0].err, "it is that of another run; hosts share none"));
}
