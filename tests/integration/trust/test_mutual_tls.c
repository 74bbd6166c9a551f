/*
 * A cluster whose processes and etcd have certificates: it trains to the bits of one without, shuts
 * out who has none or the wrong one, and takes new certificates while it trains.
 */
#include <curl/curl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/job_client.h"
#include "cli/cluster/run_client.h"
#include "common/base/json.h"
#include "common/process/process.h"
#include "proto/wire.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/etcd/etcd_certified.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define JOB          "doors"
#define ANSWER_MAX   (4u << 20)
#define DEADLINE_MS  60000 /* only reached by a failure */
#define SHORT_MS     1500  /* of a call that must fail, and may only do so by its deadline */
#define COMPARED     180   /* a step that the short job makes */
#define SHORT_LIFE_S 8     /* of certificates that end while a job trains */

#define JOB_STATUS       "/kelp.v1.Coordinator/Status"
#define JOB_CHECKPOINT   "/kelp.v1.Coordinator/Checkpoint"
#define COORDINATOR_JOIN "/kelp.v1.Coordinator/Join"
#define SHARD_STATUS     "/kelp.v1.ParameterServer/Status"
#define SHARD_CONTROL    "/kelp.v1.ParameterServer/Control"
#define SHARD_EXCHANGE   "/kelp.v1.ParameterServer/Exchange"

/* A rate that does not change, so that a step done twice or left out would be seen. */
static const char job_text[] = "name: " JOB "\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: %s, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {digest_steps: 5}\n";

static struct kelp_run run; /* with certificates */
static struct kelp_process *etcd;
static char etcd_url[64];

/* ---- an etcd with certificates ------------------------------------------------------------- */

static const char *in_folder(const char *name, char path[400])
{
    (void)snprintf(path, 400, "%s/%s", run.folder, name);
    return path;
}

/* A client of it; kelp_etcd_close(). */
static struct kelp_etcd *open_etcd(const char *certs)
{
    char path[400];
    struct kelp_etcd *client = NULL;
    struct kelp_error error;

    kelp_status status =
        kelp_etcd_open_certified(etcd_url, in_folder(certs, path), &client, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return client;
}

static kelp_status read_etcd(struct kelp_etcd *client, uint32_t deadline_ms)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp_etcd_get(client, "/kelp/" JOB "/spec", deadline_ms, &range, NULL);

    kelp_etcd_range_fini(&range);
    return status;
}

/* ---- the cluster ---------------------------------------------------------------------------- */

static void issue(const char *out, const char *name, int days)
{
    kelp_test_issue(&(struct kelp_test_issue){run.folder, "authority", out, name, NULL, days});
}

static void issue_all(void)
{
    issue("certs/coordinator", JOB "/coordinator", 5);
    issue("certs/shard", JOB "/shard", 5);
    issue("certs/worker", JOB "/worker", 5);
    issue("certs/operator", JOB "/operator", 5);
}

static void setup(void)
{
    etcd_fixture_require();
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    kelp_run_prepare(&run);
    kelp_test_authority(run.folder, "authority");
    kelp_test_authority(run.folder, "foreign");
    issue_all();
    kelp_test_issue(
        &(struct kelp_test_issue){run.folder, "authority", "certs/etcd", "etcd", "127.0.0.1", 5});
    etcd = etcd_certified_start(run.folder, "certs/etcd", "127.0.0.1", etcd_url);
    struct kelp_etcd *client = open_etcd("certs/operator");
    KELP_TEST_AWAIT(read_etcd(client, 1000) == KELP_OK, "etcd does not answer");
    kelp_etcd_close(client);
    kelp_rpc_global_init();
}

static void teardown(void)
{
    kelp_run_fini(&run);
    kelp_process_destroy(etcd);
    kelp_rpc_global_fini();
}

static void write_job(const char *epochs)
{
    char text[sizeof(job_text) + 16];

    (void)snprintf(text, sizeof(text), job_text, epochs); /* NOLINT: the format is above */
    (void)kelp_test_write(run.folder, "job.yaml", text);
}

static void start_with(const char *epochs, const char *coordinators)
{
    char certs[400];
    const char *args[] = {"--listen",       "127.0.0.1",  "--etcd",
                          etcd_url,         "--certs",    in_folder("certs", certs),
                          "--coordinators", coordinators, NULL};

    write_job(epochs);
    kelp_run_start(&run, "job.yaml", args);
}

static void start_closed(const char *epochs)
{
    start_with(epochs, "1");
}

/* The digest of a step by digests.jsonl of that run, or "" when it is not there. */
static void read_digest(const char *name, unsigned step, char digest[33])
{
    char wanted[48];
    char path[64];

    (void)snprintf(path, sizeof(path), "%s/digests.jsonl", name);
    (void)snprintf(wanted, sizeof(wanted), "\"step\":%u,", step);
    char *text = kelp_test_read(run.folder, path, NULL);
    const char *line = strstr(text, wanted);
    const char *value = line ? strstr(line, "\"digest\":\"") : NULL;
    ck_assert_msg(value != NULL, "no digest of step %u in %s", step, path);
    (void)snprintf(digest, 33, "%.32s", value + strlen("\"digest\":\""));
    free(text);
}

/* The same job on unix sockets, to its end, in FOLDER/plain. */
static void train_plain(void)
{
    static const char *const args[] = {"train", "job.yaml", "--run", "plain", NULL};
    struct kelp_test_command command;

    write_job("3");
    kelp_test_command_run(&command, run.folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    kelp_test_command_fini(&command);
}

static void expect_same_digest(void)
{
    char plain[33];
    char closed[33];

    read_digest("plain", COMPARED, plain);
    read_digest("run", COMPARED, closed);
    ck_assert_str_eq(plain, closed);
}

static bool log_says(const char *name, const char *text)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "run/logs/%s.log", name);
    char *log = kelp_test_read(run.folder, path, NULL);
    bool says = strstr(log, text) != NULL;
    free(log);
    return says;
}

static void expect_log(const char *name, const char *text)
{
    KELP_TEST_AWAIT(log_says(name, text), "%s does not say '%s'", name, text);
}

/* ---- strangers ------------------------------------------------------------------------------ */

struct stranger {
    struct kelp_credentials *credentials;
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_channel *channel;
    bool closed;
    kelp_status status;
    char text[300];
};

static void read_address(const char *name, char address[256])
{
    struct kelp_etcd *client = open_etcd("certs/operator");
    struct kelp_etcd_range range = {0};
    char key[128];
    cJSON *json = NULL;

    (void)snprintf(key, sizeof(key), "/kelp/" JOB "/%s", name);
    ck_assert_int_eq(kelp_etcd_get(client, key, DEADLINE_MS, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    ck_assert_int_eq(kelp_json_parse(range.pairs[0].value, range.pairs[0].value_bytes, &json, NULL),
                     KELP_OK);
    ck_assert_int_eq(kelp_json_string(json, "address", address, 256, NULL), KELP_OK);
    cJSON_Delete(json);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
}

/* certs NULL: without any. */
static void stranger_open(struct stranger *stranger, const char *certs, const char *path)
{
    bool shard = strstr(path, "ParameterServer") != NULL;
    char address[256];

    *stranger = (struct stranger){.loop = NULL};
    read_address(shard ? "ps/shard-0" : "coordinator", address);
    stranger->credentials = certs ? kelp_test_credentials(run.folder, certs) : NULL;
    ck_assert_int_eq(kelp_rpc_loop_create(&stranger->loop, NULL), KELP_OK);
    kelp_rpc_loop_credentials(stranger->loop, stranger->credentials);
    ck_assert_int_eq(kelp_rpc_channel_open(stranger->loop, address,
                                           shard ? KELP_ROLE_SHARD : KELP_ROLE_COORDINATOR,
                                           ANSWER_MAX, &stranger->channel, NULL),
                     KELP_OK);
}

static void stranger_close(struct stranger *stranger)
{
    kelp_rpc_channel_close(stranger->channel);
    kelp_rpc_loop_destroy(stranger->loop);
    kelp_credentials_close(stranger->credentials);
}

/* What one call with an empty request comes to. */
static kelp_status call_as(const char *certs, const char *path, uint32_t deadline_ms)
{
    struct stranger stranger;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error;

    stranger_open(&stranger, certs, path);
    kelp_status status = kelp_rpc_call(stranger.channel, path, kelp_rpc_message_create(),
                                       deadline_ms, &answer, &error);
    kelp_rpc_message_unref(answer);
    stranger_close(&stranger);
    return status;
}

static void ignore_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                           void *user)
{
    (void)stream;
    (void)message;
    (void)user;
}

static void note_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                        void *user)
{
    struct stranger *stranger = user;

    (void)stream;
    stranger->closed = true;
    stranger->status = status;
    (void)snprintf(stranger->text, sizeof(stranger->text), "%s", text);
}

static const struct kelp_rpc_stream_events stranger_events = {ignore_message, note_closed};

/* How a stream ends that begins with this message. */
static kelp_status stream_as(const char *certs, const char *path, const ProtobufCMessage *first)
{
    struct stranger stranger;
    struct kelp_rpc_stream *stream = NULL;
    struct kelp_rpc_message *message = NULL;

    stranger_open(&stranger, certs, path);
    ck_assert_int_eq(kelp_wire_encode(first, &message, NULL), KELP_OK);
    ck_assert_int_eq(
        kelp_rpc_stream_open(stranger.channel,
                             &(struct kelp_rpc_stream_options){.path = path,
                                                               .first_message_ms = DEADLINE_MS,
                                                               .events = &stranger_events,
                                                               .user = &stranger},
                             &stream, NULL),
        KELP_OK);
    kelp_status sent = kelp_rpc_stream_send(stream, message);
    ck_assert(sent == KELP_OK || sent == KELP_ERR_CLOSED); /* refused already */
    while (!stranger.closed) {
        (void)kelp_rpc_loop_run(stranger.loop, 100);
    }
    stranger_close(&stranger);
    return stranger.status;
}

static void fill_hello(Kelp__V1__Hello *hello, const char *id)
{
    kelp__v1__hello__init(hello);
    ck_assert_int_eq(kelp_run_spec_digest(run.run_folder, &hello->spec_digest, NULL), KELP_OK);
    hello->job = (char *)(uintptr_t)JOB;
    hello->id = (char *)(uintptr_t)id;
    hello->incarnation = 7;
    hello->protocol = 1;
}

/* Who has no certificate of the authority, or one that is over, does not get in anywhere. */
static void expect_shut_out(const char *certs)
{
    static const char *const paths[] = {JOB_STATUS, JOB_CHECKPOINT, SHARD_STATUS};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(paths); i++) {
        kelp_status status = call_as(certs, paths[i], SHORT_MS);
        ck_assert_msg(status == KELP_ERR_UNREACHABLE || status == KELP_ERR_TIMEOUT, "%s as %s: %s",
                      paths[i], certs ? certs : "nobody", kelp_status_name(status));
    }
    struct kelp_etcd *client = certs ? open_etcd(certs) : NULL;
    if (client) {
        ck_assert_int_ne(read_etcd(client, SHORT_MS), KELP_OK);
        kelp_etcd_close(client);
    }
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* The first line of the shards' key: what nothing else holds. */
static void read_key_line(char key[128])
{
    char *text = kelp_test_read(run.folder, "certs/shard/key.pem", NULL);
    const char *line = strchr(text, '\n') + 1;

    (void)snprintf(key, 128, "%.*s", (int)strcspn(line, "\n"), line);
    ck_assert_uint_ge(strlen(key), 40);
    free(text);
}

/* Neither the arguments nor the environment of a process of the run have it. */
static void expect_no_key(const char *key)
{
    static const char *const files[] = {"cmdline", "environ"};
    pid_t pids[32];
    size_t count = kelp_test_command_processes(&run.command, pids, KELP_ARRAY_COUNT(pids));

    ck_assert_uint_ge(count, 5); /* kelp, the coordinator, two shards, a worker or two */
    for (size_t i = 0; i < 2 * count; i++) {
        char path[64];
        char bytes[65536] = "";
        (void)snprintf(path, sizeof(path), "/proc/%ld/%s", (long)pids[i / 2], files[i % 2]);
        FILE *in = fopen(path, "re");
        size_t got = in ? fread(bytes, 1, sizeof(bytes), in) : 0;
        ck_assert_msg(!memmem(bytes, got, key, strlen(key)), "the key is in %s", path);
        if (in) {
            (void)fclose(in);
        }
    }
}

/* Each port of the run asks for a certificate, and kelp doctor says so. */
static void expect_doors_closed(void)
{
    struct kelp_test_command command;

    kelp_test_command_run(&command, run.folder, (const char *[]){"doctor", "run", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_msg(strstr(command.out, "shard-0 listens at 127.0.0.1:") != NULL, "%s", command.out);
    ck_assert_msg(!strstr(command.out, "ports        OPEN"), "%s", command.out);
    ck_assert_msg(!strstr(command.out, "etcd         OPEN"), "%s", command.out);
    kelp_test_command_fini(&command);
}

/* ---- tests ---------------------------------------------------------------------------------- */

KELP_CASE("mutual tls", .timeout_s = KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* A job ends with the bits that it has without certificates, and its commands find their way by its
 * folder alone. No key is in a log or another file of the run. */
KELP_TEST(same_bits)
{
    static const char *const status_args[] = {"status", "run", "-o", "json", NULL};
    char key[128];
    char command[900];

    train_plain();
    start_closed("3");
    kelp_run_finish(&run, 0);
    expect_same_digest();
    kelp_test_command_says(run.folder, status_args, 0, "\"done\"");
    read_key_line(key);
    (void)snprintf(command, sizeof(command), "grep -rqF -- '%s' '%s'", key, run.run_folder);
    ck_assert_int_ne(system(command), 0); /* NOLINT(cert-env33-c): a test's own words */
}

/* A coordinator that stands by may listen to the one that leads. */
KELP_TEST(standby)
{
    start_with("100000", "2");
    kelp_run_await_step(&run, 1);
    KELP_TEST_AWAIT(log_says("coordinator-0", "the leader is heard") ||
                        log_says("coordinator-1", "the leader is heard"),
                    "no coordinator hears the other");
}

/* What uses a model has certificates of a job of its own, at the same etcd; another job's do not
 * do. Nothing of it stays there. */
KELP_TEST(predict_and_evaluate)
{
    static const char *const roles[] = {"coordinator", "shard", "worker", "operator"};
    static const char *const verbs[] = {"predict", "evaluate"};
    char out[64], name[64];

    train_plain();
    for (size_t i = 0; i < 2 * KELP_ARRAY_COUNT(roles); i++) {
        (void)snprintf(out, sizeof(out), "%s/%s", verbs[i % 2], roles[i / 2]);
        (void)snprintf(name, sizeof(name), JOB "-%s/%s", verbs[i % 2], roles[i / 2]);
        issue(out, name, 5);
    }
    kelp_test_command_says(run.folder,
                           (const char *[]){"predict", "plain", "--out", "plain.csv", NULL}, 0, "");
    kelp_test_command_says(run.folder,
                           (const char *[]){"predict", "plain", "--out", "closed.csv", "--etcd",
                                            etcd_url, "--certs", "predict", NULL},
                           0, "");
    kelp_test_command_says(
        run.folder,
        (const char *[]){"evaluate", "plain", "--etcd", etcd_url, "--certs", "evaluate", NULL}, 0,
        "");
    kelp_test_command_says(
        run.folder,
        (const char *[]){"evaluate", "plain", "--etcd", etcd_url, "--certs", "certs", NULL}, 2,
        "not for every coordinator of job " JOB "-evaluate");
    char *plain = kelp_test_read(run.folder, "plain.csv", NULL);
    char *closed = kelp_test_read(run.folder, "closed.csv", NULL);
    ck_assert_str_eq(plain, closed);
    free(plain);
    free(closed);
    struct kelp_etcd *client = open_etcd("certs/operator");
    struct kelp_etcd_range range = {0};
    struct kelp_error error;
    ck_assert_int_eq(kelp_etcd_get_prefix(client, "/kelp/", DEADLINE_MS, &range, &error), KELP_OK);
    ck_assert_uint_eq(range.count, 0);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
}

/* Each stranger is refused, each refusal is one line in the log, and the run does not notice. */
KELP_TEST(strangers)
{
    Kelp__V1__WorkerReport join = KELP__V1__WORKER_REPORT__INIT;
    Kelp__V1__ExchangeRequest exchange = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__ShardCommand control = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;

    train_plain();
    start_closed("100000");
    kelp_run_await_step(&run, 1);
    kelp_test_issue(&(struct kelp_test_issue){run.folder, "foreign", "foreign-operator",
                                              JOB "/operator", NULL, 5});
    issue("expired", JOB "/operator", -1);
    issue("other-job", "other/operator", 5);
    issue("reader", JOB "/reader", 5);
    issue("worker-9", JOB "/worker/worker-9", 5);

    expect_shut_out(NULL);
    expect_shut_out("foreign-operator");
    expect_shut_out("expired");
    expect_log("shard-0", "connection refused: the handshake failed");
    ck_assert_int_ne(call_as("other-job", JOB_CHECKPOINT, SHORT_MS), KELP_OK);

    ck_assert_int_eq(call_as("reader", JOB_STATUS, DEADLINE_MS), KELP_OK);
    ck_assert_int_eq(call_as("reader", JOB_CHECKPOINT, DEADLINE_MS), KELP_ERR_DENIED);
    expect_log("coordinator-0", "name=spiffe://kelp/doors/reader needs=operator of_job=doors");
    ck_assert_int_eq(call_as("certs/worker", JOB_CHECKPOINT, DEADLINE_MS), KELP_ERR_DENIED);

    fill_hello(&hello, "worker-0");
    join.hello = &hello;
    exchange.hello = &hello;
    control.hello = &hello;
    ck_assert_int_eq(stream_as("certs/worker", SHARD_CONTROL, &control.base), KELP_ERR_DENIED);
    expect_log("shard-0", "name=spiffe://kelp/doors/worker needs=coordinator of_job=doors");
    ck_assert_int_eq(stream_as("certs/operator", COORDINATOR_JOIN, &join.base), KELP_ERR_DENIED);
    ck_assert_int_eq(stream_as("worker-9", SHARD_EXCHANGE, &exchange.base), KELP_ERR_DENIED);
    expect_log("shard-0", "does not allow the id 'worker-0'");
    (void)stream_as("worker-9", COORDINATOR_JOIN, &join.base);
    expect_log("coordinator-0", "does not allow the id 'worker-0'");

    kelp_run_await_step(&run, COMPARED);
    expect_same_digest();
    ck_assert(!log_says("coordinator-0", "generation=2"));
}

/* All certificates are replaced while the job trains, etcd's too: nobody is disturbed, no step is
 * made again, and a worker that starts later shows the new one. */
KELP_TEST(rotation)
{
    static const char *const status_args[] = {"status", "run", "-o", "json", NULL};
    char key[128];

    train_plain();
    start_closed("100000");
    kelp_run_await_step(&run, 1);
    read_key_line(key);
    expect_no_key(key);
    expect_doors_closed();
    issue_all();
    kelp_test_issue(
        &(struct kelp_test_issue){run.folder, "authority", "certs/etcd", "etcd", "127.0.0.1", 5});
    (void)kelp_test_command_signal(&run.command, "kelp-worker", "worker-1", SIGKILL);
    expect_log("shard-0", "(read again)");
    expect_log("coordinator-0", "(read again)");
    ck_assert_int_eq(call_as("certs/operator", JOB_STATUS, DEADLINE_MS), KELP_OK);
    kelp_run_await_step(&run, COMPARED);
    expect_same_digest();
    ck_assert(!log_says("coordinator-0", "generation=2"));
    kelp_test_command_says(run.folder, status_args, 0, "\"steps_recomputed\":0");
    struct kelp_etcd *client = open_etcd("certs/operator");
    ck_assert_int_eq(read_etcd(client, DEADLINE_MS), KELP_OK);
    kelp_etcd_close(client);
}

static bool all_have_ended(void)
{
    return log_says("shard-0", "the certificate of its caller has ended") &&
           log_says("coordinator-0", "the certificate of its caller has ended");
}

/* Certificates end while the job trains, and new ones lie there: streams end, processes are back
 * with what is new, and no step is lost. On a machine that takes so long to begin that there is
 * none to end, the job begins with new ones. */
KELP_TEST(certificates_end)
{
    static const char *const roles[] = {"coordinator", "shard", "worker", "operator"};
    static const char *const status_args[] = {"status", "run", "-o", "json", NULL};
    char out[64], name[64];
    const uint64_t ends_ms = kelp_clock_ms() + SHORT_LIFE_S * 1000;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        (void)snprintf(out, sizeof(out), "certs/%s", roles[i]);
        (void)snprintf(name, sizeof(name), JOB "/%s", roles[i]);
        kelp_test_issue_for(&(struct kelp_test_issue){run.folder, "authority", out, name, NULL, 0},
                            SHORT_LIFE_S);
    }
    start_closed("100000");
    KELP_TEST_AWAIT(kelp_run_step(&run) > 0 || kelp_clock_ms() > ends_ms, "never");
    const bool begun = kelp_run_step(&run) > 0;
    issue_all();
    KELP_TEST_AWAIT_FROM(&run.command, !begun || all_have_ended(), "no stream ends");
    kelp_run_go_on(&run, COMPARED);
    ck_assert(!log_says("coordinator-0", "generation=2"));
    kelp_test_command_says(run.folder, status_args, 0, "\"steps_recomputed\":0");
}
