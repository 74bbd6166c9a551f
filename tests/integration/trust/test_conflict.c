/*
 * A worker's certificate in wrong hands, at a job that trains at ports with certificates: a client
 * of our own pushes a gradient of zeros for all lanes, with the right control word. Another worker
 * pushes the right one, before or after, and so the lie is found.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "common/base/json.h"
#include "proto/wire.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define JOB         "differs"
#define EXCHANGE    "/kelp.v1.ParameterServer/Exchange"
#define LIAR        "worker-9"
#define LANES       4
#define ANSWER_MAX  (4u << 20)
#define DEADLINE_MS 60000 /* only reached by a failure */

static const char job_text[] = "name: " JOB "\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 100000, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 1, lanes: 4}\n"
                               "checkpoint: {digest_steps: 5}\n";

static struct kelp_run run;

static void issue(const char *out, const char *name)
{
    kelp_test_issue(&(struct kelp_test_issue){run.folder, "authority", out, name, NULL, 5});
}

static void setup(void)
{
    etcd_fixture_require();
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    kelp_rpc_global_init();
    kelp_run_prepare(&run);
    kelp_test_authority(run.folder, "authority");
    issue("certs/coordinator", JOB "/coordinator");
    issue("certs/shard", JOB "/shard");
    issue("certs/worker", JOB "/worker");
    issue("certs/operator", JOB "/operator");
    issue("liar", JOB "/worker/" LIAR);
    (void)kelp_test_write(run.folder, "job.yaml", job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
    kelp_rpc_global_fini();
}

static void start(const char *policy)
{
    char certs[400];

    (void)snprintf(certs, sizeof(certs), "%s/certs", run.folder);
    const char *args[] = {"--listen", "127.0.0.1", "--certs", certs, "--set", policy, NULL};
    kelp_run_start(&run, "job.yaml", args);
    kelp_run_await_step(&run, 5);
}

/* ---- the liar ------------------------------------------------------------------------------- */

static struct liar {
    struct kelp_credentials *credentials;
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream; /* NULL: it has ended */
    Kelp__V1__ExchangeReply *reply; /* the newest one, with a word; owned */
} liar;

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    (void)stream;
    (void)user;
    ck_assert_int_eq(kelp_wire_decode(message, &kelp__v1__exchange_reply__descriptor, 1u << 20,
                                      &fields, &payload, NULL),
                     KELP_OK);
    Kelp__V1__ExchangeReply *reply = (void *)fields;
    if (reply->n_answer == 1 && reply->answer[0]->word && !liar.reply) {
        liar.reply = reply;
    } else {
        protobuf_c_message_free_unpacked(fields, NULL);
    }
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    (void)stream;
    (void)status;
    (void)text;
    (void)user;
    liar.stream = NULL;
}

static const struct kelp_rpc_stream_events events = {on_message, on_closed};

static void find_shard(char address[256])
{
    struct kelp_job_client *client = NULL;
    char *value = NULL;
    cJSON *json = NULL;

    ck_assert_int_eq(kelp_run_client_open(run.run_folder, &client, NULL), KELP_OK);
    ck_assert_int_eq(kelp_job_client_get(client, "ps/shard-0", DEADLINE_MS, &value, NULL), KELP_OK);
    ck_assert_int_eq(kelp_json_parse(value, strlen(value), &json, NULL), KELP_OK);
    ck_assert_int_eq(kelp_json_string(json, "address", address, 256, NULL), KELP_OK);
    cJSON_Delete(json);
    free(value);
    kelp_job_client_close(client);
}

static void send_request(const Kelp__V1__ExchangeRequest *request, size_t zeros)
{
    struct kelp_rpc_message *message = NULL;
    void *bytes = calloc(1, zeros + 1);

    ck_assert_ptr_nonnull(bytes);
    ck_assert_int_eq(kelp_wire_encode_payload(&request->base, zeros, &message, NULL), KELP_OK);
    ck_assert_int_eq(kelp_rpc_message_copy(message, bytes, zeros), KELP_OK);
    kelp_status sent = kelp_rpc_stream_send(liar.stream, message);
    ck_assert(sent == KELP_OK || sent == KELP_ERR_CLOSED); /* the run may be over */
    free(bytes);
}

/* Hello, and a pull of partition 0. */
static void liar_open(void)
{
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__Hello hello = KELP__V1__HELLO__INIT;
    char address[256];

    find_shard(address);
    liar = (struct liar){.credentials = kelp_test_credentials(run.folder, "liar")};
    ck_assert_int_eq(kelp_rpc_loop_create(&liar.loop, NULL), KELP_OK);
    kelp_rpc_loop_credentials(liar.loop, liar.credentials);
    ck_assert_int_eq(
        kelp_rpc_channel_open(liar.loop, address, KELP_ROLE_SHARD, ANSWER_MAX, &liar.channel, NULL),
        KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_open(
                         liar.channel,
                         &(struct kelp_rpc_stream_options){
                             .path = EXCHANGE, .first_message_ms = DEADLINE_MS, .events = &events},
                         &liar.stream, NULL),
                     KELP_OK);
    hello.job = (char *)(uintptr_t)JOB; /* texts are only read */
    hello.id = (char *)(uintptr_t)LIAR;
    hello.incarnation = 7;
    hello.protocol = 1;
    ck_assert_int_eq(kelp_run_spec_digest(run.run_folder, &hello.spec_digest, NULL), KELP_OK);
    request.hello = &hello;
    send_request(&request, 0);
}

static void liar_close(void)
{
    if (liar.stream) {
        kelp_rpc_stream_close(liar.stream, KELP_OK, "enough");
    }
    while (liar.stream) {
        (void)kelp_rpc_loop_run(liar.loop, 100);
    }
    if (liar.reply) {
        kelp__v1__exchange_reply__free_unpacked(liar.reply, NULL);
    }
    kelp_rpc_channel_close(liar.channel);
    kelp_rpc_loop_destroy(liar.loop);
    kelp_credentials_close(liar.credentials);
}

/* What partition 0 has now, with its word, or nothing when the stream has ended. */
static void ask(void)
{
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__PullItem pull = KELP__V1__PULL_ITEM__INIT;
    Kelp__V1__PullItem *pulls[] = {&pull};

    pull.mode = KELP__V1__PULL_MODE__PULL_CURRENT;
    pull.map_epoch = 1;
    request.generation = 1;
    request.n_pull = 1;
    request.pull = pulls;
    send_request(&request, 0);
    for (uint64_t until_ms = kelp_clock_ms() + DEADLINE_MS;
         liar.stream && !liar.reply && kelp_clock_ms() < until_ms;) {
        (void)kelp_rpc_loop_run(liar.loop, 100);
    }
}

/* Zeros for all lanes of the step that the answer names. */
static void lie(void)
{
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__PushItem push = KELP__V1__PUSH_ITEM__INIT;
    Kelp__V1__PushItem *pushes[] = {&push};
    double sums[] = {1.0, 32.0};

    push.map_epoch = 1;
    push.lane_count = LANES;
    push.length = liar.reply->answer[0]->length;
    push.sums = sums;
    push.n_sums = 2;
    push.digest = (char *)(uintptr_t) "00112233445566778899aabbccddeeff";
    request.generation = 1;
    request.word = liar.reply->answer[0]->word;
    request.n_push = 1;
    request.push = pushes;
    send_request(&request, push.length);
}

/* Until somebody has noticed. */
static void lie_until(bool (*found)(void))
{
    liar_open();
    for (uint64_t until_ms = kelp_clock_ms() + DEADLINE_MS;
         liar.stream && !found() && kelp_clock_ms() < until_ms;) {
        ask();
        if (liar.reply && liar.reply->answer[0]->word->kind == 1) {
            lie();
        }
        if (liar.reply) {
            kelp__v1__exchange_reply__free_unpacked(liar.reply, NULL);
            liar.reply = NULL;
        }
        (void)kelp_rpc_loop_run(liar.loop, 1);
    }
    ck_assert(found() || !liar.stream);
    liar_close();
}

/* Step after step of partition 0, faster than any worker gets its weights: a worker that asks
 * partition 0 for those of the step that the others are at is too late. */
static void rush(uint32_t lies)
{
    liar_open();
    for (uint32_t i = 0; i < lies; i++) {
        ask();
        ck_assert_ptr_nonnull(liar.stream);
        ck_assert_ptr_nonnull(liar.reply);
        lie();
        kelp__v1__exchange_reply__free_unpacked(liar.reply, NULL);
        liar.reply = NULL;
    }
    liar_close();
}

/* ---- tests ---------------------------------------------------------------------------------- */

static bool has_ended(void)
{
    return kelp_test_command_ended(&run.command);
}

static bool has_warned(void)
{
    char *log = kelp_test_read(run.folder, "run/logs/shard-0.log", NULL);
    const char *line = strstr(log, "workers differ, the first one counts");
    bool warned = line && strstr(line, LIAR);

    free(log);
    return warned;
}

KELP_CASE("conflict", .timeout_s = KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* The job fails, and its reason names the liar and another worker. */
KELP_TEST(stops)
{
    start("failure.on_conflict=stop");
    lie_until(has_ended);
    kelp_run_finish(&run, 4);
    ck_assert_msg(strstr(run.output, LIAR) && strstr(run.output, " sent different "), "%s",
                  run.output);
    ck_assert_msg(strstr(run.output, "worker-0") || strstr(run.output, "worker-1"), "%s",
                  run.output);
}

/* Partition 0 is far ahead of the others, which nobody can bridge: the leader says so, and the run
 * goes on in another generation. Nobody is to find the lies first, so that the run would end. */
KELP_TEST(rushes)
{
    start("failure.on_conflict=first");
    rush(200);
    kelp_run_await_log(&run, "partitions are apart generation=1 ");
    kelp_run_go_on(&run, 50);
    ck_assert(!has_ended());
}

/* It goes on; the shard's log, the terminal, the status and the result say the same. */
KELP_TEST(first_counts)
{
    start("failure.on_conflict=first");
    lie_until(has_warned);
    ck_assert(has_warned());
    kelp_run_go_on(&run, 50);
    ck_assert(!has_ended());
    kelp_test_command_await(&run.command, "workers differ (");
    kelp_test_command_says(run.folder, (const char *[]){"status", "run", NULL}, 0, "\nconflicts  ");
    kelp_test_command_says(run.folder, (const char *[]){"status", "run", "-o", "json", NULL}, 0,
                           " sent different ");
    kelp_test_command_says(run.folder, (const char *[]){"stop", "run", "--now", NULL}, 0, "");
    (void)kelp_test_command_wait(&run.command, KELP_TEST_HANG_MS);
    cJSON *result = kelp_test_read_json(run.folder, "run/result.json");
    ck_assert_double_gt(kelp_test_number(result, "conflicts"), 0);
    ck_assert_ptr_nonnull(strstr(kelp_test_text(result, "conflict"), LIAR));
    cJSON_Delete(result);
}
