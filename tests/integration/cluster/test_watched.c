/* Each daemon is watched while a job trains: what it tells, when it is ready, and that whoever
 * comes to the door changes nothing. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/rpc/rpc.h"
#include "tests/lib/commands/watched.h"
#include "tests/lib/http_raw.h"
#include "tests/lib/suite.h"

#define LONG 100000 /* epochs: longer than any test */

static struct watched cluster;
static const char *const everybody[] = {"coordinator-0", "coordinator-1", "shard-0",
                                        "shard-1",       "worker-0",      "worker-1"};

static void setup(void)
{
    etcd_fixture_require();
    watched_start(&cluster);
}

static void teardown(void)
{
    watched_stop(&cluster);
}

static void await_ready(const char *id)
{
    KELP_TEST_AWAIT(watched_status(&cluster, id, "/readyz") == 200, "%s is never ready: %s", id,
                    watched_ask(&cluster, id, "/readyz"));
}

KELP_CASE("health", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* Without a job, and without others, a daemon is healthy and not ready; then it says what it lacks;
 * in the end all are ready. A worker whose coordinators are gone is not ready any more. */
KELP_TEST(from_not_ready_to_ready)
{
    watched_daemons(&cluster);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(everybody); i++) {
        KELP_TEST_AWAIT(watched_status(&cluster, everybody[i], "/healthz") == 200,
                        "%s is not healthy", everybody[i]);
        ck_assert_int_eq(watched_status(&cluster, everybody[i], "/readyz"), 503);
        ck_assert(watched_sample(&cluster, everybody[i], "kelp_ready") == 0.0);
    }
    ck_assert_str_eq(watched_ask(&cluster, "worker-0", "/readyz"), "not ready: it starts\n");
    KELP_TEST_AWAIT(strcmp(watched_ask(&cluster, "coordinator-0", "/readyz"),
                           "not ready: the job is not in etcd yet\n") == 0,
                    "the coordinator does not say what it waits for");
    watched_put_job(&cluster, LONG);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(everybody); i++) {
        await_ready(everybody[i]);
        ck_assert(watched_sample(&cluster, everybody[i], "kelp_ready") == 1.0);
    }
    kelp_process_signal(watched_process(&cluster, "coordinator-0"), SIGKILL);
    kelp_process_signal(watched_process(&cluster, "coordinator-1"), SIGKILL);
    KELP_TEST_AWAIT(strcmp(watched_ask(&cluster, "worker-0", "/readyz"),
                           "not ready: no coordinator has it as a member\n") == 0,
                    "the worker says that it is ready");
    ck_assert_int_eq(watched_status(&cluster, "worker-0", "/healthz"), 200);
}

KELP_CASE("figures", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

static const char *leader(void)
{
    return watched_sample(&cluster, "coordinator-0", "kelp_coordinator_leads") == 1.0
               ? "coordinator-0"
               : "coordinator-1";
}

static double of(const char *id, const char *name)
{
    return watched_sample(&cluster, id, name);
}

static void expect_progress(const char *id, const char *name)
{
    const double before = of(id, name);
    ck_assert_msg(before >= 0.0, "%s does not tell %s", id, name);
    KELP_TEST_AWAIT(of(id, name) > before, "%s of %s does not grow", name, id);
}

/* Everything that is counted is there, and grows while the job trains. */
KELP_TEST(of_a_run)
{
    static const char *const of_workers[] = {
        "kelp_worker_entries_total",
        "kelp_worker_lanes_total",
        "kelp_worker_samples_total",
        "kelp_worker_seconds_total{part=\"data\"}",
        "kelp_worker_seconds_total{part=\"compute\"}",
        "kelp_worker_seconds_total{part=\"push\"}",
        "kelp_worker_seconds_total{part=\"wait\"}",
        "kelp_worker_received_bytes_total",
        "kelp_worker_sent_bytes_total",
        "kelp_worker_step",
        "kelp_worker_step_seconds_count{part=\"data\"}",
        "kelp_worker_step_seconds_bucket{part=\"compute\",le=\"+Inf\"}",
        "kelp_worker_step_seconds_sum{part=\"push\"}",
        "kelp_worker_step_seconds_sum{part=\"wait\"}",
    };
    static const char *const of_shards[] = {
        "kelp_shard_pushes_total",         "kelp_shard_step",
        "kelp_shard_received_bytes_total", "kelp_shard_sent_bytes_total",
        "kelp_shard_step_seconds_count",   "kelp_shard_step_seconds_sum"};
    static const char *const of_leaders[] = {
        "kelp_job_step",
        "kelp_job_version",
        "kelp_job_samples",
        "kelp_coordinator_events_total{event=\"checkpoint\"}",
        "kelp_coordinator_checkpoint_bytes_total",
        "kelp_coordinator_checkpoint_seconds_total",
        "kelp_coordinator_checkpoint_duration_seconds_count",
        "kelp_coordinator_checkpoint_duration_seconds_sum",
        "kelp_job_checkpoint_step",
    };
    watched_put_job(&cluster, LONG);
    watched_daemons(&cluster);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(everybody); i++) {
        await_ready(everybody[i]);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(of_workers); i++) {
        expect_progress("worker-0", of_workers[i]);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(of_shards); i++) {
        expect_progress("shard-0", of_shards[i]);
    }
    const char *leads = leader();
    for (size_t i = 0; i < KELP_ARRAY_COUNT(of_leaders); i++) {
        expect_progress(leads, of_leaders[i]);
    }
    ck_assert(of(leads, "kelp_job_state{state=\"running\"}") == 1.0);
    ck_assert(of(leads, "kelp_job_state{state=\"done\"}") == 0.0);
    ck_assert(of(leads, "kelp_job_slow_seconds{part=\"computing\"}") >= 0.0);
    ck_assert(of(leads, "kelp_job_workers") == 2.0);
    ck_assert(of(leads, "kelp_job_workers_wanted") == 2.0);
    ck_assert(of(leads, "kelp_job_shards") == 2.0);
    ck_assert(of(leads, "kelp_coordinator_elected") == 1.0);
    ck_assert(of(leads, "kelp_coordinator_followers") == 1.0);
    ck_assert(of(leads, "kelp_coordinator_events_total{event=\"worker-joined\"}") == 2.0);
    KELP_TEST_AWAIT(of(leads, "kelp_job_partitions_unbacked") == 0.0, "no backup is in sync");
    const double led = of("shard-0", "kelp_shard_partitions{place=\"primary\"}") +
                       of("shard-1", "kelp_shard_partitions{place=\"primary\"}");
    ck_assert(led == of(leads, "kelp_job_partitions"));
    ck_assert(of("worker-0", "kelp_worker_generation") == of(leads, "kelp_job_generation"));
    /* Who stands by knows nothing of the job. */
    const char *stands_by = strcmp(leads, "coordinator-0") == 0 ? "coordinator-1" : "coordinator-0";
    ck_assert(of(stands_by, "kelp_coordinator_leads") == 0.0);
    ck_assert(of(stands_by, "kelp_job_step") == -1.0);
    ck_assert(of(stands_by, "kelp_job_slow_seconds{part=\"shard\"}") == -1.0);
}

/* A lost shard is seen: a loss, a promotion, and partitions without a backup. A lost worker too. */
KELP_TEST(of_losses)
{
    watched_put_job(&cluster, LONG);
    watched_daemons(&cluster);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(everybody); i++) {
        await_ready(everybody[i]);
    }
    const char *leads = leader();
    KELP_TEST_AWAIT(of(leads, "kelp_job_partitions_unbacked") == 0.0 &&
                        of(leads, "kelp_job_step") > 0.0,
                    "no backup is in sync");
    const double pushes = of("shard-1", "kelp_shard_pushes_total");
    kelp_process_signal(watched_process(&cluster, "shard-0"), SIGKILL);
    KELP_TEST_AWAIT(of(leads, "kelp_coordinator_events_total{event=\"shard-lost\"}") == 1.0,
                    "the loss of a shard is not told");
    KELP_TEST_AWAIT(of(leads, "kelp_coordinator_events_total{event=\"promoted\"}") >= 1.0,
                    "the promotion is not told");
    KELP_TEST_AWAIT(of(leads, "kelp_job_partitions_unbacked") > 0.0, "backups are not missed");
    ck_assert(of("shard-1", "kelp_shard_pushes_total") >= pushes);
    expect_progress("shard-1", "kelp_shard_pushes_total");
    kelp_process_signal(watched_process(&cluster, "worker-1"), SIGKILL);
    KELP_TEST_AWAIT(of(leads, "kelp_coordinator_events_total{event=\"worker-lost\"}") == 1.0,
                    "the loss of a worker is not told");
    KELP_TEST_AWAIT(of(leads, "kelp_job_workers") == 1.0, "the worker is still counted");
    expect_progress(leads, "kelp_job_step");
}

/* Counters of a shard count on when training goes back and its partitions are made anew. */
KELP_TEST(of_a_restore)
{
    cluster.replicas = 1;
    watched_put_job(&cluster, LONG);
    watched_daemons(&cluster);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(everybody); i++) {
        await_ready(everybody[i]);
    }
    const char *leads = leader();
    KELP_TEST_AWAIT(of(leads, "kelp_job_checkpoint_step") > 0.0, "there is no checkpoint");
    const double pushes = of("shard-1", "kelp_shard_pushes_total");
    ck_assert(pushes > 0.0);
    ck_assert(of("shard-1", "kelp_shard_generation") == 1.0);
    kelp_process_signal(watched_process(&cluster, "shard-0"), SIGKILL);
    watched_daemon(&cluster, "ps", "shard-2", NULL);
    KELP_TEST_AWAIT(of("shard-1", "kelp_shard_generation") > 1.0, "there is no new generation");
    ck_assert(of("shard-1", "kelp_shard_pushes_total") >= pushes);
    expect_progress("shard-1", "kelp_shard_pushes_total");
    ck_assert(of("shard-1", "kelp_shard_pushes_total") > pushes);
    ck_assert(of(leads, "kelp_coordinator_events_total{event=\"generation\"}") >= 2.0);
    KELP_TEST_AWAIT(of(leads, "kelp_job_steps_recomputed") > 0.0, "no step is computed again");
}

/* A call of somebody who may not ask, or asks for nothing that there is. */
static kelp_status call(const char *id, enum kelp_role role, const char *path, const char *bytes)
{
    struct kelp_rpc_loop *loop = NULL;
    struct kelp_rpc_channel *channel = NULL;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_rpc_message *request = kelp_rpc_message_create();
    struct kelp_error error = {.text = ""};
    char address[256];

    (void)snprintf(address, sizeof(address), "unix:%s/%s.s", cluster.folder.path, id);
    ck_assert_int_eq(kelp_rpc_message_copy(request, bytes, strlen(bytes)), KELP_OK);
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, &error), KELP_OK);
    ck_assert_int_eq(kelp_rpc_channel_open(loop, address, role, 1 << 20, &channel, &error),
                     KELP_OK);
    kelp_status status = kelp_rpc_call(channel, path, request, KELP_TEST_HANG_MS, &answer, &error);
    kelp_rpc_message_unref(answer);
    kelp_rpc_channel_close(channel);
    kelp_rpc_loop_destroy(loop);
    return status;
}

/* Calls that are refused are counted, at coordinators as at shards: those of no method, and what
 * cannot be read. */
KELP_TEST(of_refusals)
{
    static const char garbage[] = "\xff\xff\xff\xff\xff\xff";
    const char *streams[] = {"kelp_coordinator_refused_streams_total",
                             "kelp_shard_refused_streams_total"};

    watched_put_job(&cluster, LONG);
    watched_daemons(&cluster);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(everybody); i++) {
        await_ready(everybody[i]);
    }
    const char *leads = leader();
    kelp_rpc_global_init();
    const double before = of(leads, streams[0]);
    ck_assert_int_ne(call(leads, KELP_ROLE_COORDINATOR, "/kelp.v1.Coordinator/No", ""), KELP_OK);
    ck_assert(of(leads, streams[0]) == before + 1.0);
    ck_assert_int_ne(call(leads, KELP_ROLE_COORDINATOR, "/kelp.v1.Coordinator/Checkpoint", garbage),
                     KELP_OK);
    ck_assert(of(leads, streams[0]) == before + 2.0);
    ck_assert_int_ne(call(leads, KELP_ROLE_COORDINATOR, "/kelp.v1.Coordinator/Scale", garbage),
                     KELP_OK);
    ck_assert(of(leads, streams[0]) == before + 3.0);
    const double at_shard = of("shard-0", streams[1]);
    ck_assert_int_ne(call("shard-0", KELP_ROLE_SHARD, "/kelp.v1.ParameterServer/No", ""), KELP_OK);
    ck_assert(of("shard-0", streams[1]) == at_shard + 1.0);
    kelp_rpc_global_fini();
}

KELP_CASE("logs", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

static const char *const json_format[] = {"--log-format", "json", NULL};

/* Each line that a daemon has written is an object with who said what and when. Their number. */
static unsigned count_json_lines(const char *id)
{
    static const char *const members[] = {"time", "level", "role", "id", "message"};
    char name[64];
    char *rest = NULL;
    unsigned count = 0;

    (void)snprintf(name, sizeof(name), "%s.log", id);
    char *text = kelp_test_read(cluster.folder.path, name, NULL);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *json = NULL;
        ck_assert_msg(kelp_json_parse(line, strlen(line), &json, NULL) == KELP_OK, "%s", line);
        for (size_t i = 0; i < KELP_ARRAY_COUNT(members); i++) {
            ck_assert_msg(cJSON_IsString(cJSON_GetObjectItemCaseSensitive(json, members[i])), "%s",
                          line);
        }
        ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(json, "id")->valuestring, id);
        cJSON_Delete(json);
        count++;
    }
    free(text);
    return count;
}

/* --log-format json: every line of a daemon's life, from its start to its end. */
KELP_TEST(are_json)
{
    int wait_status = 0;

    watched_put_job(&cluster, 3);
    watched_daemon(&cluster, "coordinator", "coordinator-0", json_format);
    watched_daemon(&cluster, "ps", "shard-0", json_format);
    watched_daemon(&cluster, "ps", "shard-1", json_format);
    watched_daemon(&cluster, "worker", "worker-0", json_format);
    watched_daemon(&cluster, "worker", "worker-1", json_format);
    ck_assert_int_eq(
        kelp_process_wait(watched_process(&cluster, "worker-0"), KELP_TEST_HANG_MS, &wait_status),
        KELP_OK);
    ck_assert_int_eq(wait_status, 0);
    ck_assert_uint_gt(count_json_lines("worker-0"), 5);
    ck_assert_uint_gt(count_json_lines("shard-0"), 5);
    ck_assert_uint_gt(count_json_lines("coordinator-0"), 5);
}

KELP_CASE("strangers", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* The digests of a job of so many epochs; owned (free()). stranger: what comes to the doors
 * meanwhile, until the workers have ended. */
static char *digests_of(unsigned epochs, void (*stranger)(const char *address))
{
    int wait_status = 0;

    watched_put_job(&cluster, epochs);
    watched_daemons(&cluster);
    while (kelp_process_wait(watched_process(&cluster, "worker-0"), 0, &wait_status) != KELP_OK) {
        for (size_t i = 0; stranger && i < KELP_ARRAY_COUNT(everybody); i++) {
            stranger(watched_address(&cluster, everybody[i]));
        }
        kelp_test_look_later();
    }
    ck_assert_int_eq(wait_status, 0);
    return kelp_test_read(cluster.folder.path, "digests.jsonl", NULL);
}

/* Half requests, garbage, and connections that are left open until there are many. */
static void be_hostile(const char *address)
{
    static const char *const texts[] = {"GET /metr", "\x16\x03\x01\x02\x01",
                                        "POST /metrics HTTP/1.1"
                                        "\r\nContent-Length: 100000000\r\n\r\nx",
                                        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"};
    static int open[64];
    static unsigned next;
    int fd = kelp_test_http_connect(address);

    if (fd < 0) {
        return; /* it has ended, or not begun */
    }
    const char *text = texts[next % KELP_ARRAY_COUNT(texts)];
    kelp_test_http_send(fd, text, strlen(text));
    int *place = &open[next % KELP_ARRAY_COUNT(open)];
    if (*place > 0) {
        (void)close(*place);
    }
    *place = fd;
    next++;
}

/* Whoever comes to the doors: the job has the digests that it has without them. */
KELP_TEST(change_nothing)
{
    char *quiet = digests_of(40, NULL);
    ck_assert_ptr_nonnull(strstr(quiet, "digest"));
    watched_stop(&cluster);
    watched_start(&cluster);
    char *loud = digests_of(40, be_hostile);
    ck_assert_str_eq(loud, quiet);
    free(loud);
    free(quiet);
}
