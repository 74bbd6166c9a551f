/* A process of a run is slowed, and `kelp status` says which one and in what, by the run's folder
 * and by its etcd. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define RUN_US  8000 /* then it stands for STOP_US, again and again */
#define STOP_US 40000

/* Most of a step is computing, so that a worker that stands at times stands in it. */
static const char job_text[] = "name: slow\nseed: 1\n"
                               "model: {kind: mlp, hidden: [128, 128]}\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: 100000, batch_size: 4096, drop_last: true, "
                               "evaluate: false}\n"
                               "cluster: {lanes: 8, workers: 3, shards: 2}\n"
                               "checkpoint: {interval: 60m}\n";

static struct kelp_run run;
static struct etcd_fixture etcd;

static void setup(void)
{
    etcd_fixture_require();
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
}

/* ---- a process that runs for a part of the time ---- */

static struct {
    pthread_t thread;
    pid_t pid;
    atomic_bool over;
} throttle;

static void *throttle_thread(void *user)
{
    (void)user;
    while (!atomic_load(&throttle.over)) {
        (void)kill(throttle.pid, SIGSTOP);
        (void)usleep(STOP_US); /* being slow is what is done to it */
        (void)kill(throttle.pid, SIGCONT);
        (void)usleep(RUN_US);
    }
    return NULL;
}

static void slow_down(const char *program, const char *id)
{
    throttle.pid = kelp_test_command_find(&run.command, program, id);
    ck_assert_msg(throttle.pid > 0, "no %s runs", id);
    atomic_init(&throttle.over, false);
    ck_assert_int_eq(pthread_create(&throttle.thread, NULL, throttle_thread, NULL), 0);
}

static void let_go(void)
{
    atomic_store(&throttle.over, true);
    (void)pthread_join(throttle.thread, NULL);
}

/* ---- what is said ---- */

static char *status(const char *const *args)
{
    struct kelp_test_command command;

    kelp_test_command_run(&command, run.folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    char *text = strdup(command.out);
    kelp_test_command_fini(&command);
    return text;
}

/* Does `kelp status -o json` name this worker ("" for a shard that is slow to all), in this part?
 */
static bool says(const char *worker, const char *part)
{
    char *text = status((const char *[]){"status", "run", "-o", "json", NULL});
    cJSON *json = kelp_test_json(text);
    const cJSON *slow = kelp_test_member(json, "slow");
    const bool found = cJSON_IsObject(slow) &&
                       strcmp(kelp_test_text(slow, "worker"), worker) == 0 &&
                       strcmp(kelp_test_text(slow, "part"), part) == 0;

    cJSON_Delete(json);
    free(text);
    return found;
}

/* Does the table have a line that begins so and holds that? */
static bool has_line(const char *const *args, const char *begin, const char *holds)
{
    char *text = status(args);
    char *line = strstr(text, begin);
    bool found = false;

    if (line) {
        line[1 + strcspn(line + 1, "\n")] = '\0'; /* begin has the break before it */
        found = strstr(line, holds) != NULL;
    }
    free(text);
    return found;
}

static void stop(void)
{
    kelp_process_signal(run.command.process, SIGQUIT); /* no checkpoint */
    (void)kelp_test_command_wait(&run.command, KELP_TEST_HANG_MS);
}

KELP_CASE("slow", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* A worker that is stopped for most of the time computes slowly; the others wait for it. The same
 * is said by its etcd's address. */
KELP_TEST(a_worker)
{
    char url[64];

    etcd_fixture_start(&etcd);
    (void)snprintf(url, sizeof(url), "%s", etcd.url);
    kelp_run_start(&run, "job.yaml", (const char *[]){"--etcd", url, NULL});
    kelp_test_command_await(&run.command, "step ");
    slow_down("kelp-worker", "worker-1");
    KELP_TEST_AWAIT_FROM(&run.command, says("worker-1", "computing"), "worker-1 is not said to be");
    KELP_TEST_AWAIT_FROM(&run.command,
                         has_line((const char *[]){"status", "run", NULL},
                                  "\nslow       worker-1: ", "(median): computing "),
                         "no line says so");
    KELP_TEST_AWAIT_FROM(&run.command,
                         has_line((const char *[]){"status", "slow", "--etcd", url, NULL},
                                  "\nslow       worker-1: ", "(median): computing "),
                         "no line says so by etcd");
    let_go();
    KELP_TEST_AWAIT_FROM(&run.command, !says("worker-1", "computing"), "worker-1 stays slow");
    stop();
    etcd_fixture_stop(&etcd);
}

/* A shard that is stopped for most of the time is told apart from workers that compute slowly: all
 * of them wait for it alone. */
KELP_TEST(a_shard)
{
    kelp_run_start(&run, "job.yaml", NULL);
    kelp_test_command_await(&run.command, "step ");
    slow_down("kelp-ps", "shard-1");
    KELP_TEST_AWAIT_FROM(&run.command, says("", "shard"), "no shard is said to be slow");
    KELP_TEST_AWAIT_FROM(&run.command,
                         has_line((const char *[]){"status", "run", NULL},
                                  "\nslow       shard-1 at ", ": workers wait for it alone, "),
                         "no line says so");
    let_go();
    KELP_TEST_AWAIT_FROM(&run.command, !says("", "shard"), "shard-1 stays slow");
    stop();
}
