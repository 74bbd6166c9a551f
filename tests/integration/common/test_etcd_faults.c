/*
 * What the client makes of an etcd that is not there, answers nonsense, or does not answer: from
 * doubles, as the real one cannot show these, and through a proxy in front of the real one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/etcd/event_log.h"
#include "tests/lib/etcd/tcp_double.h"
#include "tests/lib/suite.h"

/* That calls end here at all is the deadline's doing: what they wait for never comes. */
enum { DEADLINE_MS = 40000, WAIT_MS = 40000 };

static struct kelp_error error;

#define ck_ok(call)                                                                                \
    do {                                                                                           \
        kelp_status got_status = (call);                                                           \
        ck_assert_msg(got_status == KELP_OK, "%s: %s", kelp_status_name(got_status), error.text);  \
    } while (0)
#define ck_status(call, wanted)                                                                    \
    do {                                                                                           \
        kelp_status got_status = (call);                                                           \
        ck_assert_msg(got_status == (wanted), "%s: %s", kelp_status_name(got_status), error.text); \
    } while (0)

static struct kelp_etcd *open_client(const char *url)
{
    struct kelp_etcd *etcd = NULL;

    ck_ok(kelp_etcd_open(url, &etcd, &error));
    return etcd;
}

/* ---- nobody there -----------------------------------------------------------------------------
 */

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("doubles", .timeout_s = 120)

/* A closed port: each call ends, says which endpoint, and that nothing was applied. */
KELP_TEST(closed_port)
{
    char url[64];
    struct kelp_etcd_range range;
    struct kelp_etcd_lease *lease;
    struct kelp_etcd_operation put = {.key = "/a", .value = "x"};
    bool succeeded;
    int64_t revision;

    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u", tcp_double_closed_port());
    struct kelp_etcd *etcd = open_client(url);
    uint64_t start_ms = kelp_clock_ms();
    ck_status(kelp_etcd_get(etcd, "/a", 500, &range, &error), KELP_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(error.text, url));
    ck_status(kelp_etcd_put(etcd, "/a", "x", 0, 500, &error), KELP_ERR_UNREACHABLE);
    ck_status(kelp_etcd_delete_prefix(etcd, "/a", 500, &error), KELP_ERR_UNREACHABLE);
    ck_status(kelp_etcd_transaction(etcd,
                                    &(struct kelp_etcd_transaction){NULL, 0, &put, 1, "/a", 500},
                                    &succeeded, &revision, &error),
              KELP_ERR_UNREACHABLE);
    ck_status(kelp_etcd_lease_open(etcd, &(struct kelp_etcd_lease_options){5, 500, NULL, NULL},
                                   &lease, &error),
              KELP_ERR_UNREACHABLE);
    ck_assert_uint_gt(kelp_clock_ms() - start_ms, 5 * 200); /* it did try again */
    kelp_etcd_close(etcd);
}

/* Endpoints that make no sense are refused, with what is right. */
KELP_TEST(bad_endpoints)
{
    static const char *const bad[] = {"",
                                      "127.0.0.1:2379",
                                      "ftp://127.0.0.1:2379",
                                      "http://",
                                      "http://a:1/path",
                                      "http://a:1,,http://b:1",
                                      "http://a:1 ",
                                      "http://user@a:1",
                                      "http://a:1,"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        struct kelp_etcd *etcd;
        ck_assert_msg(kelp_etcd_open(bad[i], &etcd, &error) == KELP_ERR_INVALID, "%s", bad[i]);
        ck_assert_ptr_nonnull(strstr(error.text, "HOST:PORT"));
    }
}

/* ---- nonsense ---------------------------------------------------------------------------------
 */

static void serve_fixed(struct tcp_double *server, int fd, void *user)
{
    char request[65536];

    while (tcp_double_read_request(server, fd, request, sizeof(request))) {
        if (!tcp_double_write(fd, user, strlen(user))) {
            return;
        }
        if (!strstr(user, "Content-Length") || strstr(user, "Content-Length: 999")) {
            return; /* ends with the connection, or before it should */
        }
    }
}

struct nonsense {
    const char *body; /* NULL: raw is sent as it is */
    const char *raw;
    kelp_status read;  /* what a get gives */
    kelp_status write; /* what a put gives */
};

#define HEADER "\"header\":{\"revision\":\"5\"}"
static const struct nonsense nonsenses[] = {
    {"", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{\"header\":{\"revision\":\"5\"}", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"[]", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"null", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{}", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{" HEADER "}{}", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{\"header\":7}", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{\"header\":{\"revision\":5}}", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{\"header\":{\"revision\":\"-5\"}}", NULL, KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {"{\"header\":{\"revision\":\"99999999999999999999\"}}", NULL, KELP_ERR_FORMAT,
     KELP_ERR_FORMAT},
    {"{" HEADER ",\"kvs\":{}}", NULL, KELP_ERR_FORMAT, KELP_OK},
    {"{" HEADER ",\"kvs\":[1]}", NULL, KELP_ERR_FORMAT, KELP_OK},
    {"{" HEADER ",\"kvs\":[{\"key\":7}]}", NULL, KELP_ERR_FORMAT, KELP_OK},
    {"{" HEADER ",\"kvs\":[{\"key\":\"!!!!\"}]}", NULL, KELP_ERR_FORMAT, KELP_OK},
    {NULL, "HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nNot Found\n", KELP_ERR_FORMAT,
     KELP_ERR_FORMAT},
    {NULL, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
     KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {NULL, "SSH-2.0-OpenSSH_9.2\r\n", KELP_ERR_FORMAT, KELP_ERR_FORMAT},
    {NULL, "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{\"header\"", KELP_ERR_UNREACHABLE,
     KELP_ERR_TIMEOUT},
};

/* Each kind of nonsense gives its error, with the endpoint; and never a success. */
KELP_LOOP_TEST(nonsense, 0, KELP_ARRAY_COUNT(nonsenses))
{
    const struct nonsense *row = &nonsenses[_i];
    struct tcp_double server;
    struct kelp_etcd_range range;
    char reply[1024];

    (void)snprintf(reply, sizeof(reply), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s",
                   row->body ? strlen(row->body) : 0, row->body ? row->body : "");
    tcp_double_start(&server, serve_fixed, row->raw ? (void *)(uintptr_t)row->raw : reply);
    struct kelp_etcd *etcd = open_client(server.url);
    ck_status(kelp_etcd_get(etcd, "/a", 1500, &range, &error), row->read);
    ck_assert_ptr_nonnull(strstr(error.text, server.url));
    ck_status(kelp_etcd_put(etcd, "/a", "x", 0, 1500, &error), row->write);
    kelp_etcd_close(etcd);
    tcp_double_stop(&server);
}

/* Leases and elections that meet nonsense end with an error, or go on trying; none is ever won. */
KELP_TEST(nonsense_for_leases_and_elections)
{
    static char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n"
                          "{" HEADER ",\"TTL\":[]}";
    struct tcp_double server;
    struct kelp_etcd_lease *lease;
    struct kelp_etcd_election *election;
    struct kelp_etcd_election_events hooks = {0}; /* a call of either would end the test */

    tcp_double_start(&server, serve_fixed, reply);
    struct kelp_etcd *etcd = open_client(server.url);
    ck_status(kelp_etcd_lease_open(etcd, &(struct kelp_etcd_lease_options){2, 1500, NULL, NULL},
                                   &lease, &error),
              KELP_ERR_FORMAT);
    ck_ok(kelp_etcd_election_open(
        etcd, &(struct kelp_etcd_election_options){"/e", "x", 2, &hooks, NULL}, &election, &error));
    struct kelp_etcd_range range;
    for (int i = 0; i < 20; i++) { /* calls go on beside it */
        ck_ok(kelp_etcd_get(etcd, "/a", 1500, &range, &error));
        kelp_etcd_range_fini(&range);
    }
    kelp_etcd_election_close(election);
    kelp_etcd_close(etcd);
    tcp_double_stop(&server);
}

/* ---- endless and silent -----------------------------------------------------------------------
 */

static const char endless_head[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";

static void serve_flood(struct tcp_double *server, int fd, void *user)
{
    char request[65536];
    static const char spaces[] = "                                                               ";

    (void)user;
    if (tcp_double_read_request(server, fd, request, sizeof(request)) &&
        tcp_double_write(fd, endless_head, strlen(endless_head))) {
        while (!tcp_double_stopping(server) && tcp_double_write(fd, spaces, sizeof(spaces) - 1)) {
        }
    }
}

static void serve_trickle(struct tcp_double *server, int fd, void *user)
{
    char request[65536];

    (void)user;
    if (tcp_double_read_request(server, fd, request, sizeof(request)) &&
        tcp_double_write(fd, endless_head, strlen(endless_head))) {
        while (!tcp_double_readable(server, fd, 20) && !tcp_double_stopping(server) &&
               tcp_double_write(fd, " ", 1)) {
        }
    }
}

static void serve_silence(struct tcp_double *server, int fd, void *user)
{
    char request[65536];

    (void)user;
    while (tcp_double_read_request(server, fd, request, sizeof(request))) {
    }
}

/* An answer without end is cut off at the limit, or by the deadline when it comes slowly. */
KELP_TEST(endless_answer)
{
    struct tcp_double server;
    struct kelp_etcd_range range;

    tcp_double_start(&server, serve_flood, NULL);
    struct kelp_etcd *etcd = open_client(server.url);
    ck_status(kelp_etcd_get(etcd, "/a", 60000, &range, &error), KELP_ERR_LIMIT);
    ck_status(kelp_etcd_put(etcd, "/a", "x", 0, 60000, &error), KELP_ERR_LIMIT);
    kelp_etcd_close(etcd);
    tcp_double_stop(&server);

    tcp_double_start(&server, serve_trickle, NULL);
    etcd = open_client(server.url);
    ck_status(kelp_etcd_get(etcd, "/a", 700, &range, &error), KELP_ERR_UNREACHABLE);
    ck_status(kelp_etcd_put(etcd, "/a", "x", 0, 700, &error), KELP_ERR_TIMEOUT);
    kelp_etcd_close(etcd);
    tcp_double_stop(&server);
}

/* A server that takes requests and never answers: reads are unreachable, writes uncertain. */
KELP_TEST(silent_server)
{
    struct tcp_double server;
    struct kelp_etcd_range range;
    struct kelp_etcd_operation put = {.key = "/a", .value = "x"};
    bool succeeded;
    int64_t revision;

    tcp_double_start(&server, serve_silence, NULL);
    struct kelp_etcd *etcd = open_client(server.url);
    ck_status(kelp_etcd_get(etcd, "/a", 600, &range, &error), KELP_ERR_UNREACHABLE);
    ck_status(kelp_etcd_put(etcd, "/a", "x", 0, 600, &error), KELP_ERR_TIMEOUT);
    ck_status(kelp_etcd_transaction(etcd,
                                    &(struct kelp_etcd_transaction){NULL, 0, &put, 1, NULL, 600},
                                    &succeeded, &revision, &error),
              KELP_ERR_TIMEOUT);
    ck_status(kelp_etcd_transaction(etcd,
                                    &(struct kelp_etcd_transaction){NULL, 0, &put, 1, "/a", 600},
                                    &succeeded, &revision, &error),
              KELP_ERR_TIMEOUT);
    kelp_etcd_close(etcd);
    tcp_double_stop(&server);
}

enum { HANGS_UP_MS = 1200, HANGS_UP_DEADLINE_MS = 1500 };

static void serve_hanging_up(struct tcp_double *server, int fd, void *user)
{
    char request[65536];
    const uint64_t *start_ms = user;

    while (tcp_double_read_request(server, fd, request, sizeof(request)) &&
           kelp_clock_ms() - *start_ms >= HANGS_UP_MS) {
    }
}

/* What failed is told by the last attempt that the deadline did not cut short. */
KELP_TEST(cut_short)
{
    struct tcp_double server;
    struct kelp_etcd_range range;
    uint64_t start_ms = kelp_clock_ms();

    tcp_double_start(&server, serve_hanging_up, &start_ms);
    struct kelp_etcd *etcd = open_client(server.url);
    ck_status(kelp_etcd_get(etcd, "/a", HANGS_UP_DEADLINE_MS, &range, &error),
              KELP_ERR_UNREACHABLE);
    ck_assert_msg(strstr(error.text, "Server returned nothing"), "%s", error.text);
    kelp_etcd_close(etcd);
    tcp_double_stop(&server);
}

/* ---- watches ----------------------------------------------------------------------------------
 */

/* What the stream of a watch says after a listing that is in order. */
static void serve_watch(struct tcp_double *server, int fd, void *user)
{
    static const char listing[] = "HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{" HEADER "}";
    char request[65536];

    while (tcp_double_read_request(server, fd, request, sizeof(request))) {
        if (strncmp(request, "POST /v3/watch", 14) != 0) {
            if (!tcp_double_write(fd, listing, strlen(listing))) {
                return;
            }
            continue;
        }
        if (!tcp_double_write(fd, endless_head, strlen(endless_head)) ||
            !tcp_double_write(fd, user, strlen(user))) {
            return;
        }
        /* And no more than that, with the connection open; or, behind a colon, without end. */
        while (((const char *)user)[strlen(user) - 1] == ':' && !tcp_double_stopping(server) &&
               tcp_double_write(fd, user, strlen(user))) {
        }
        (void)tcp_double_readable(server, fd, -1);
    }
}

static void ignore_pair(const struct kelp_etcd_pair *pair, void *user)
{
    event_log_add(user, "%s=%s", pair->key, pair->value);
}

static void ignore_key(const char *key, void *user)
{
    event_log_add(user, "-%s", key);
}

static void note_synced(int64_t revision, void *user)
{
    event_log_add(user, "synced %" PRId64, revision);
}

static void note_trouble(kelp_status status, const char *text, void *user)
{
    event_log_add(user, "trouble %s %s", kelp_status_name(status), text);
}

static const struct {
    const char *stream;
    const char *trouble;
} streams[] = {
    {"nonsense\n", "trouble FORMAT"},
    {"\n\n{\"result\":{}}\n", "trouble FORMAT"},
    {"{\"result\":{" HEADER ",\"events\":[{\"type\":\"PUT\"}]}}\n", "trouble FORMAT"},
    {"{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"x\"}}]}}\n",
     "trouble FORMAT"},
    {"{\"error\":{\"message\":\"no\"}}\n", "trouble UNREACHABLE"},
    {"{\"result\":{" HEADER ",\"canceled\":true,\"compact_revision\":\"9\"}}\n",
     "trouble NOT_FOUND"},
    {"a line without end:", "trouble LIMIT"},
};

/* Nonsense on a watch's stream is trouble, and no event; it lists again, and again. */
KELP_LOOP_TEST(nonsense_for_watches, 0, KELP_ARRAY_COUNT(streams))
{
    static const struct kelp_etcd_watch_events hooks = {.changed = ignore_pair,
                                                        .removed = ignore_key,
                                                        .synced = note_synced,
                                                        .trouble = note_trouble};
    static struct event_log events;
    struct tcp_double server;
    struct kelp_etcd_watch *watch;

    event_log_init(&events);
    tcp_double_start(&server, serve_watch, (void *)(uintptr_t)streams[_i].stream);
    struct kelp_etcd *etcd = open_client(server.url);
    ck_ok(kelp_etcd_watch_open(etcd, "/w/", &hooks, &events, &watch, &error));
    for (int i = 0; i < 3; i++) {
        event_log_expect(&events, WAIT_MS, "synced 5");
        event_log_skip_to(&events, WAIT_MS, streams[_i].trouble);
    }
    kelp_etcd_watch_close(watch);
    ck_assert_uint_eq(event_log_count(&events, "/"), 0);
    kelp_etcd_close(etcd);
    tcp_double_stop(&server);
}

/* ---- a real etcd behind a proxy ---------------------------------------------------------------
 */

static struct etcd_fixture fixture;
static struct tcp_proxy proxy;
static struct kelp_etcd *direct;
static struct kelp_etcd *through;

static void setup(void)
{
    etcd_fixture_start(&fixture);
    tcp_proxy_start(&proxy, fixture.port, "/v3/kv/txn");
    direct = etcd_fixture_client(&fixture);
    through = open_client(proxy.server.url);
}

static void teardown(void)
{
    kelp_etcd_close(through);
    kelp_etcd_close(direct);
    tcp_proxy_stop(&proxy);
    etcd_fixture_stop(&fixture);
}

/* How often the key was written, by the proxy's other side. */
static int64_t version_of(const char *key)
{
    struct kelp_etcd_range range;

    ck_ok(kelp_etcd_get(direct, key, DEADLINE_MS, &range, &error));
    int64_t version = range.count == 1 ? range.pairs[0].version : 0;
    kelp_etcd_range_fini(&range);
    return version;
}

static kelp_status create_map(const char *nonce_key, bool *ret_succeeded)
{
    struct kelp_etcd_compare absent = {.key = "/map", .what = KELP_ETCD_CREATE_REVISION};
    struct kelp_etcd_operation put = {.key = "/map", .value = "generation 1 nonce 42"};
    int64_t revision;

    return kelp_etcd_transaction(
        through, &(struct kelp_etcd_transaction){&absent, 1, &put, 1, nonce_key, DEADLINE_MS},
        ret_succeeded, &revision, &error);
}

KELP_CASE("proxied", .setup = setup, .teardown = teardown, .timeout_s = 120)

/* It took effect, the answer was lost: success with a nonce key, uncertain without; applied once,
 * also on a connection that was used before (which libcurl would quietly try again). */
KELP_TEST(lost_answer)
{
    struct kelp_etcd_range range;
    bool succeeded = false;

    ck_ok(kelp_etcd_get(through, "/a", DEADLINE_MS, &range, &error)); /* an idle connection */
    kelp_etcd_range_fini(&range);
    tcp_proxy_lose(&proxy, 1, 0);
    ck_ok(create_map("/map", &succeeded));
    ck_assert(succeeded);
    ck_assert_int_eq(version_of("/map"), 1);
    ck_assert_int_eq(tcp_proxy_seen(&proxy), 1);

    ck_ok(kelp_etcd_delete_prefix(direct, "/map", DEADLINE_MS, &error));
    tcp_proxy_lose(&proxy, 1, 0);
    ck_status(create_map(NULL, &succeeded), KELP_ERR_TIMEOUT);
    ck_assert_int_eq(version_of("/map"), 1);
    ck_assert_int_eq(tcp_proxy_seen(&proxy), 2);
}

/* It was lost before it took effect: sent again with a nonce key, left alone without. */
KELP_TEST(lost_request)
{
    bool succeeded = false;

    tcp_proxy_lose(&proxy, 0, 3);
    ck_ok(create_map("/map", &succeeded));
    ck_assert(succeeded);
    ck_assert_int_eq(version_of("/map"), 1);
    ck_assert_int_eq(tcp_proxy_seen(&proxy), 4);

    ck_ok(kelp_etcd_delete_prefix(direct, "/map", DEADLINE_MS, &error));
    tcp_proxy_lose(&proxy, 0, 1);
    ck_status(create_map(NULL, &succeeded), KELP_ERR_TIMEOUT);
    ck_assert_int_eq(version_of("/map"), 0);
}

/* Somebody else won, and the answer that says so was lost: not a success. */
KELP_TEST(lost_answer_of_a_lost_transaction)
{
    bool succeeded = true;

    ck_ok(kelp_etcd_put(direct, "/map", "generation 1 nonce 7", 0, DEADLINE_MS, &error));
    tcp_proxy_lose(&proxy, 1, 0);
    ck_ok(create_map("/map", &succeeded));
    ck_assert(!succeeded);
    ck_assert_int_eq(version_of("/map"), 1);
}

/* Every answer is lost: uncertain, and not a storm of attempts. */
KELP_TEST(every_answer_lost)
{
    struct kelp_etcd_compare never = {
        .key = "/map", .what = KELP_ETCD_MOD_REVISION, .revision = 99999};
    struct kelp_etcd_operation put = {.key = "/map", .value = "x"};
    bool succeeded;
    int64_t revision;

    tcp_proxy_lose(&proxy, 1000000, 0);
    ck_status(kelp_etcd_transaction(
                  through, &(struct kelp_etcd_transaction){&never, 1, &put, 1, "/map", 2000},
                  &succeeded, &revision, &error),
              KELP_ERR_TIMEOUT);
    ck_assert_int_le(tcp_proxy_seen(&proxy), 45);
    ck_assert_int_ge(tcp_proxy_seen(&proxy), 2);
}

/* Of two endpoints one is dead: calls go to the other, and stay there. */
KELP_TEST(second_endpoint)
{
    char urls[160];
    struct kelp_etcd_range range;

    (void)snprintf(urls, sizeof(urls), "http://127.0.0.1:%u/,%s", tcp_double_closed_port(),
                   fixture.url);
    struct kelp_etcd *etcd = open_client(urls);
    for (int i = 0; i < 10; i++) {
        ck_ok(kelp_etcd_put(etcd, "/a", "x", 0, DEADLINE_MS, &error));
        ck_ok(kelp_etcd_get(etcd, "/a", DEADLINE_MS, &range, &error));
        ck_assert_uint_eq(range.count, 1);
        kelp_etcd_range_fini(&range);
    }
    kelp_etcd_close(etcd);
}

/* Proxy settings of the environment are not asked. */
KELP_TEST(no_proxy_is_asked)
{
    struct kelp_etcd_range range;

    ck_assert_int_eq(setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
    ck_assert_int_eq(setenv("all_proxy", "http://127.0.0.1:1", 1), 0);
    struct kelp_etcd *etcd = etcd_fixture_client(&fixture);
    ck_ok(kelp_etcd_get(etcd, "/a", DEADLINE_MS, &range, &error));
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
}
