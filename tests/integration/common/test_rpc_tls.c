/*
 * Mutual TLS between a client and a server in one process: who is served, who is refused and with
 * which words, and certificates that are replaced while connections are open.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/rpc_process.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define BYTES_MAX   4096
#define DEADLINE_MS 30000 /* only reached by a failure */
#define SHORT_MS    1500  /* of a call that must fail, and may only do so by its deadline */

static struct kelp_test_folder folder;
static struct kelp_credentials *shard;
static struct kelp_rpc_loop *loop;
static struct kelp_rpc_server *server;
static atomic_bool over;
static atomic_uint refused; /* calls, as the server counts them */
static pthread_t thread;

/* ---- the server, a shard with a thread of its own ---- */

static void stream_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                           void *user)
{
    char id[64] = "";
    struct kelp_error error = {.text = ""};
    struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, 0);

    (void)user;
    memcpy(id, segment.bytes, segment.length);
    kelp_status status = kelp_rpc_stream_check_id(stream, id, &error);
    kelp_rpc_stream_close(stream, status, error.text);
}

static const struct kelp_rpc_stream_events server_events = {stream_message,
                                                            kelp_test_rpc_ignore_closed};

static const struct kelp_rpc_stream_events *accept_stream(struct kelp_rpc_stream *stream,
                                                          void *server_user, void **ret_user)
{
    (void)server_user;
    (void)ret_user;
    ck_assert_ptr_nonnull(kelp_rpc_stream_name(stream));
    return &server_events;
}

static const struct kelp_rpc_method methods[] = {
    {.path = "/test/Work", .roles = KELP_ROLE_BIT(KELP_ROLE_WORKER), .unary = kelp_test_rpc_echo},
    {.path = "/test/Stream", .roles = KELP_ROLE_BIT(KELP_ROLE_WORKER), .accept = accept_stream},
};

static void count_refused(void *server_user)
{
    (void)server_user;
    (void)atomic_fetch_add(&refused, 1);
}

static void *run_loop(void *user)
{
    (void)user;
    while (!atomic_load(&over)) {
        (void)kelp_rpc_loop_run(loop, 20);
    }
    return NULL;
}

static void issue(const char *authority, const char *out, const char *name, int days)
{
    kelp_test_issue(&(struct kelp_test_issue){folder.path, authority, out, name, NULL, days});
}

static void setup(void)
{
    char log[160];
    struct kelp_error error;

    kelp_test_folder_init(&folder);
    (void)snprintf(log, sizeof(log), "%s/log", folder.path);
    kelp_log_init("test", "tls", KELP_LOG_INFO,
                  open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    kelp_test_authority(folder.path, "authority");
    kelp_test_authority(folder.path, "foreign");
    issue("authority", "shard", "j/shard", 5);
    shard = kelp_test_credentials(folder.path, "shard");
    kelp_rpc_global_init();
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, NULL), KELP_OK);
    kelp_rpc_loop_credentials(loop, shard);
    struct kelp_rpc_server_options options = {.address = "127.0.0.1:0",
                                              .message_bytes_max = BYTES_MAX,
                                              .methods = methods,
                                              .method_count = KELP_ARRAY_COUNT(methods),
                                              .refused = count_refused};
    ck_assert_msg(kelp_rpc_server_open(loop, &options, &server, &error) == KELP_OK, "%s",
                  error.text);
    atomic_store(&over, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_loop, NULL), 0);
}

static void teardown(void)
{
    atomic_store(&over, true);
    kelp_rpc_loop_wake(loop);
    (void)pthread_join(thread, NULL);
    kelp_rpc_server_close(server);
    kelp_rpc_loop_destroy(loop);
    kelp_credentials_close(shard);
    kelp_rpc_global_fini();
    kelp_test_folder_fini(&folder);
}

static void expect_logged(const char *text)
{
    char *log = kelp_test_read(folder.path, "log", NULL);

    ck_assert_msg(strstr(log, text) != NULL, "the log has no '%s':\n%s", text, log);
    free(log);
}

/* ---- a client ---- */

struct client {
    struct kelp_credentials *credentials; /* NULL: none */
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_channel *channel;
};

static void client_open(struct client *client, const char *certs, enum kelp_role expects)
{
    *client = (struct client){.loop = NULL};
    client->credentials = certs ? kelp_test_credentials(folder.path, certs) : NULL;
    ck_assert_int_eq(kelp_rpc_loop_create(&client->loop, NULL), KELP_OK);
    kelp_rpc_loop_credentials(client->loop, client->credentials);
    ck_assert_int_eq(kelp_rpc_channel_open(client->loop, kelp_rpc_server_address(server), expects,
                                           BYTES_MAX, &client->channel, NULL),
                     KELP_OK);
}

static void client_close(struct client *client)
{
    kelp_rpc_channel_close(client->channel);
    kelp_rpc_loop_destroy(client->loop);
    kelp_credentials_close(client->credentials);
}

static kelp_status call(struct client *client, uint32_t deadline_ms, struct kelp_error *error)
{
    struct kelp_rpc_message *request = kelp_rpc_message_create();
    struct kelp_rpc_message *answer = NULL;

    error->text[0] = '\0';
    ck_assert_int_eq(kelp_rpc_message_copy(request, "ping", 4), KELP_OK);
    kelp_status status =
        kelp_rpc_call(client->channel, "/test/Work", request, deadline_ms, &answer, error);
    kelp_rpc_message_unref(answer);
    return status;
}

static kelp_status call_as(const char *certs, uint32_t deadline_ms, struct kelp_error *error)
{
    struct client client;

    client_open(&client, certs, KELP_ROLE_SHARD);
    kelp_status status = call(&client, deadline_ms, error);
    client_close(&client);
    return status;
}

static void expect_unreachable(const char *certs)
{
    struct kelp_error error;
    kelp_status status = call_as(certs, SHORT_MS, &error);

    ck_assert_msg(status == KELP_ERR_UNREACHABLE || status == KELP_ERR_TIMEOUT, "%s: %s",
                  kelp_status_name(status), error.text);
}

KELP_CASE("mutual tls", .timeout_s = 120, .setup = setup, .teardown = teardown)

/* The role that a method is for is served. */
KELP_TEST(served)
{
    struct kelp_error error;

    issue("authority", "worker", "j/worker", 5);
    ck_assert_msg(call_as("worker", DEADLINE_MS, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(atomic_load(&refused), 0);
}

/* Another role, or the role in another job, gets one line that says what is missing, and each is
 * counted. */
KELP_TEST(denied)
{
    static const char *const names[] = {"j/reader", "j/operator", "j/shard/shard-0"};
    struct kelp_error error;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        issue("authority", "client", names[i], 5);
        ck_assert_int_eq(call_as("client", DEADLINE_MS, &error), KELP_ERR_DENIED);
        ck_assert_ptr_nonnull(strstr(error.text, "/test/Work is for the role worker of job j"));
        ck_assert_ptr_nonnull(strstr(error.text, names[i]));
        ck_assert_uint_eq(atomic_load(&refused), i + 1);
    }
    expect_logged("call refused method=/test/Work peer=ipv4:127.0.0.1:");
    expect_logged("name=spiffe://kelp/j/reader needs=worker of_job=j");
}

/* Who shows no certificate, one of another authority, or one that has expired, does not get in; a
 * call of his can only fail, and the log says that somebody tried. */
KELP_TEST(shut_out)
{
    struct kelp_error error;

    expect_unreachable(NULL);
    issue("foreign", "foreign-worker", "j/worker", 5);
    expect_unreachable("foreign-worker");
    issue("authority", "expired", "j/worker", -1);
    expect_unreachable("expired");
    expect_logged("connection refused: the handshake failed");
    issue("authority", "worker", "j/worker", 5);
    ck_assert_msg(call_as("worker", DEADLINE_MS, &error) == KELP_OK, "%s", error.text);
}

/* A client does not talk to a server of another job, or of another role than it means. */
KELP_TEST(wrong_server)
{
    struct client client;
    struct kelp_error error;

    issue("authority", "other", "k/worker", 5);
    expect_unreachable("other");
    expect_logged("the server is spiffe://kelp/j/shard, not the shard of job k");
    issue("authority", "worker", "j/worker", 5);
    client_open(&client, "worker", KELP_ROLE_COORDINATOR);
    ck_assert_int_ne(call(&client, SHORT_MS, &error), KELP_OK);
    client_close(&client);
}

struct end {
    bool closed;
    kelp_status status;
    char text[256];
};

static void client_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                           void *user)
{
    (void)stream;
    (void)message;
    (void)user;
}

static void client_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                          void *user)
{
    struct end *end = user;

    (void)stream;
    end->closed = true;
    end->status = status;
    (void)snprintf(end->text, sizeof(end->text), "%s", text);
}

static const struct kelp_rpc_stream_events client_events = {client_message, client_closed};

/* How a stream of a worker with that certificate ends that calls itself id. */
static void stream_as(const char *certs, const char *id, struct end *end)
{
    struct client client;
    struct kelp_rpc_stream *stream = NULL;
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    *end = (struct end){.closed = false};
    client_open(&client, certs, KELP_ROLE_SHARD);
    ck_assert_int_eq(
        kelp_rpc_stream_open(client.channel,
                             &(struct kelp_rpc_stream_options){.path = "/test/Stream",
                                                               .first_message_ms = DEADLINE_MS,
                                                               .events = &client_events,
                                                               .user = end},
                             &stream, NULL),
        KELP_OK);
    ck_assert_int_eq(kelp_rpc_message_copy(message, id, strlen(id)), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(stream, message), KELP_OK);
    while (!end->closed) {
        (void)kelp_rpc_loop_run(client.loop, 100);
    }
    client_close(&client);
}

/* A certificate with an id is for that id alone; the name that counts is the certificate's. */
KELP_TEST(own_id)
{
    struct end end;

    issue("authority", "zero", "j/worker/worker-0", 5);
    issue("authority", "any", "j/worker", 5);
    stream_as("zero", "worker-0", &end);
    ck_assert_int_eq(end.status, KELP_OK);
    stream_as("any", "worker-7", &end);
    ck_assert_int_eq(end.status, KELP_OK);
    stream_as("zero", "worker-1", &end);
    ck_assert_int_eq(end.status, KELP_ERR_DENIED);
    ck_assert_str_eq(end.text, "the certificate of spiffe://kelp/j/worker/worker-0 does not allow "
                               "the id 'worker-1'");
}

/* A server that has gone over to another authority refuses new connections of the old one; those
 * that are open go on, and a channel goes over by itself when its own files are replaced. */
KELP_TEST(rotation)
{
    struct client client;
    struct kelp_error error;

    issue("authority", "worker", "j/worker", 5);
    client_open(&client, "worker", KELP_ROLE_SHARD);
    ck_assert_msg(call(&client, DEADLINE_MS, &error) == KELP_OK, "%s", error.text);
    issue("foreign", "shard", "j/shard", 5);
    expect_unreachable("worker");
    ck_assert_msg(call(&client, DEADLINE_MS, &error) == KELP_OK, "%s", error.text);
    issue("foreign", "worker", "j/worker", 5);
    ck_assert_msg(call(&client, DEADLINE_MS, &error) == KELP_OK, "%s", error.text);
    expect_logged("(read again)");
    client_close(&client);
}

static void issue_short(int seconds)
{
    kelp_test_issue_for(
        &(struct kelp_test_issue){folder.path, "authority", "short", "j/worker", NULL, 0}, seconds);
}

/* A connection that was open before the certificate ended: its streams end then, and it takes no
 * call any more. With a new certificate the same channel is served again. */
KELP_TEST(expires_while_open)
{
    struct client client;
    struct kelp_error error;
    struct kelp_rpc_stream *stream = NULL;
    struct end end = {.closed = false};
    kelp_status status = KELP_ERR_TIMEOUT;

    for (int seconds = 3; status != KELP_OK; seconds *= 2) { /* as long as this machine needs */
        issue_short(seconds);
        client_open(&client, "short", KELP_ROLE_SHARD);
        status = call(&client, SHORT_MS, &error);
        if (status != KELP_OK) {
            client_close(&client);
        }
    }
    ck_assert_int_eq(
        kelp_rpc_stream_open(client.channel,
                             &(struct kelp_rpc_stream_options){.path = "/test/Stream",
                                                               .first_message_ms = DEADLINE_MS,
                                                               .events = &client_events,
                                                               .user = &end},
                             &stream, NULL),
        KELP_OK);
    while (!end.closed) {
        (void)kelp_rpc_loop_run(client.loop, 100);
    }
    ck_assert_int_eq(end.status, KELP_ERR_UNREACHABLE);
    ck_assert_msg(strstr(end.text, "the certificate has ended") != NULL, "%s", end.text);
    ck_assert_int_eq(call(&client, SHORT_MS, &error), KELP_ERR_UNREACHABLE);
    expect_logged("the certificate of its caller has ended peer=ipv4:127.0.0.1:");
    issue_short(86400);
    ck_assert_msg(call(&client, DEADLINE_MS, &error) == KELP_OK, "%s", error.text);
    client_close(&client);
}
