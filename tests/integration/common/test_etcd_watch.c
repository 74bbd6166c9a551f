/* Watches against a real etcd. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/etcd/event_log.h"
#include "tests/lib/etcd/tcp_double.h"
#include "tests/lib/suite.h"

enum { DEADLINE_MS = 10000, WAIT_MS = 15000 };

static struct etcd_fixture fixture;
static struct kelp_etcd *etcd;
static struct kelp_error error;
static struct event_log events;

#define ck_ok(call)                                                                                \
    do {                                                                                           \
        kelp_status got_status = (call);                                                           \
        ck_assert_msg(got_status == KELP_OK, "%s: %s", kelp_status_name(got_status), error.text);  \
    } while (0)

static void setup(void)
{
    etcd_fixture_start(&fixture);
    etcd = etcd_fixture_client(&fixture);
    event_log_init(&events);
}

static void teardown(void)
{
    kelp_etcd_close(etcd);
    etcd_fixture_stop(&fixture);
}

static void on_changed(const struct kelp_etcd_pair *pair, void *user)
{
    event_log_add(user, "%s=%.60s", pair->key, pair->value);
}

static void on_removed(const char *key, void *user)
{
    event_log_add(user, "-%s", key);
}

static void on_synced(int64_t revision, void *user)
{
    (void)revision;
    event_log_add(user, "synced");
}

static void on_trouble(kelp_status status, const char *text, void *user)
{
    event_log_add(user, "trouble %s %s", kelp_status_name(status), text);
}

static const struct kelp_etcd_watch_events hooks = {
    .changed = on_changed, .removed = on_removed, .synced = on_synced, .trouble = on_trouble};

static struct kelp_etcd_watch *watch(struct kelp_etcd *client, const char *prefix)
{
    struct kelp_etcd_watch *opened;

    ck_ok(kelp_etcd_watch_open(client, prefix, &hooks, &events, &opened, &error));
    return opened;
}

static void put(const char *key, const char *value)
{
    ck_ok(kelp_etcd_put(etcd, key, value, 0, DEADLINE_MS, &error));
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("watch", .setup = setup, .teardown = teardown, .timeout_s = 90)

/* What is there comes first, then synced, then each change in order; neighbours do not. */
KELP_TEST(listing_then_changes)
{
    put("/w/b", "1");
    put("/w/a", "1");
    put("/wx", "1");
    struct kelp_etcd_watch *opened = watch(etcd, "/w/");
    event_log_expect(&events, WAIT_MS, "/w/a=1");
    event_log_expect(&events, WAIT_MS, "/w/b=1");
    event_log_expect(&events, WAIT_MS, "synced");
    put("/w/a", "2");
    put("/wx", "2");
    put("/w/c", "");
    ck_ok(kelp_etcd_delete_prefix(etcd, "/w/b", DEADLINE_MS, &error));
    put("/w/b", "3");
    event_log_expect(&events, WAIT_MS, "/w/a=2");
    event_log_expect(&events, WAIT_MS, "/w/c=");
    event_log_expect(&events, WAIT_MS, "-/w/b");
    event_log_expect(&events, WAIT_MS, "/w/b=3");
    kelp_etcd_watch_close(opened);
    put("/w/a", "after");
    ck_assert(event_log_quiet(&events, 300));
}

/* All operations of a transaction arrive, though they share one revision. */
KELP_TEST(transaction_arrives_whole)
{
    struct kelp_etcd_operation operations[] = {
        {.key = "/w/1", .value = "x"}, {.key = "/w/2", .value = "y"}, {.key = "/w/0"}};
    bool succeeded;
    int64_t revision;

    put("/w/0", "old");
    struct kelp_etcd_watch *opened = watch(etcd, "/w/");
    event_log_expect(&events, WAIT_MS, "/w/0=old");
    event_log_expect(&events, WAIT_MS, "synced");
    ck_ok(kelp_etcd_transaction(
        etcd, &(struct kelp_etcd_transaction){NULL, 0, operations, 3, NULL, DEADLINE_MS},
        &succeeded, &revision, &error));
    ck_assert(succeeded);
    event_log_expect(&events, WAIT_MS, "/w/1=x");
    event_log_expect(&events, WAIT_MS, "/w/2=y");
    event_log_expect(&events, WAIT_MS, "-/w/0");
    kelp_etcd_watch_close(opened);
}

/* A value of the largest size arrives whole, cut up as it is on the way. */
KELP_TEST(large_value)
{
    size_t bytes = 1000000;
    char *value = malloc(bytes + 1);

    ck_assert_ptr_nonnull(value);
    memset(value, 'v', bytes);
    value[bytes] = '\0';
    struct kelp_etcd_watch *opened = watch(etcd, "/w/");
    event_log_expect(&events, WAIT_MS, "synced");
    put("/w/large", value);
    put("/w/small", "1");
    event_log_skip_to(&events, WAIT_MS, "/w/large=vvv");
    event_log_expect(&events, WAIT_MS, "/w/small=1");
    kelp_etcd_watch_close(opened);
    free(value);
}

/* Nothing happens for longer than the silence that ends a connection: no trouble, and the next
 * change still arrives. */
KELP_TEST(quiet_store_is_no_trouble)
{
    struct kelp_etcd_watch *opened = watch(etcd, "/w/");

    event_log_expect(&events, WAIT_MS, "synced");
    ck_assert(event_log_quiet(&events, 9000));
    put("/w/a", "1");
    event_log_expect(&events, WAIT_MS, "/w/a=1");
    kelp_etcd_watch_close(opened);
}

/* Etcd dies and comes back: trouble, then the differences: one change for two, nothing for a key
 * that stayed, a removal for one that went. */
KELP_TEST(etcd_restarts)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;

    put("/w/changed", "1");
    put("/w/gone", "1");
    put("/w/same", "1");
    tcp_proxy_start(&proxy, fixture.port, "/none");
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    struct kelp_etcd_watch *opened = watch(through, "/w/");
    event_log_skip_to(&events, WAIT_MS, "synced");
    etcd_fixture_kill(&fixture);
    event_log_skip_to(&events, WAIT_MS, "trouble UNREACHABLE");
    /* What the watch comes back to is still closed while things change behind its back. */
    tcp_proxy_lead_to(&proxy, tcp_double_closed_port());
    etcd_fixture_restart(&fixture);
    put("/w/changed", "2");
    put("/w/changed", "3");
    put("/w/flash", "1");
    ck_ok(kelp_etcd_delete_prefix(etcd, "/w/gone", DEADLINE_MS, &error));
    ck_ok(kelp_etcd_delete_prefix(etcd, "/w/flash", DEADLINE_MS, &error));
    put("/w/new", "1");
    tcp_proxy_lead_to(&proxy, fixture.port);
    event_log_skip_to(&events, WAIT_MS, "-/w/gone");
    event_log_expect(&events, WAIT_MS, "/w/changed=3");
    event_log_expect(&events, WAIT_MS, "/w/new=1");
    event_log_expect(&events, WAIT_MS, "synced");
    put("/w/same", "2");
    event_log_expect(&events, WAIT_MS, "/w/same=2");
    kelp_etcd_watch_close(opened);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
}

/* The revision that the watch starts from is compacted before etcd sees the request: etcd cancels,
 * the watch lists again and misses nothing. */
KELP_TEST(compaction)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;

    tcp_proxy_start(&proxy, fixture.port, "/v3/watch");
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    put("/w/a", "1");
    put("/w/b", "1");
    tcp_proxy_hold(&proxy, true);
    struct kelp_etcd_watch *opened = watch(through, "/w/");
    event_log_expect(&events, WAIT_MS, "/w/a=1");
    event_log_expect(&events, WAIT_MS, "/w/b=1");
    event_log_expect(&events, WAIT_MS, "synced");
    tcp_proxy_wait_held(&proxy, 1);
    for (int i = 2; i < 10; i++) {
        char value[16];
        (void)snprintf(value, sizeof(value), "%d", i);
        put("/w/a", value);
    }
    ck_ok(kelp_etcd_delete_prefix(etcd, "/w/b", DEADLINE_MS, &error));
    struct kelp_etcd_range range;
    ck_ok(kelp_etcd_get(etcd, "/w/a", DEADLINE_MS, &range, &error));
    etcd_fixture_compact(&fixture, range.revision);
    kelp_etcd_range_fini(&range);
    tcp_proxy_hold(&proxy, false);
    event_log_skip_to(&events, WAIT_MS, "trouble NOT_FOUND");
    event_log_expect(&events, WAIT_MS, "-/w/b");
    event_log_expect(&events, WAIT_MS, "/w/a=9");
    event_log_expect(&events, WAIT_MS, "synced");
    put("/w/a", "10");
    event_log_expect(&events, WAIT_MS, "/w/a=10");
    kelp_etcd_watch_close(opened);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
}

/* A connection that stays open but passes nothing on is found out by its silence and replaced. */
KELP_TEST(frozen_connection)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;

    tcp_proxy_start(&proxy, fixture.port, "/none");
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    struct kelp_etcd_watch *opened = watch(through, "/w/");
    event_log_expect(&events, WAIT_MS, "synced");
    put("/w/a", "1");
    event_log_expect(&events, WAIT_MS, "/w/a=1"); /* the stream stands */
    tcp_proxy_freeze(&proxy);
    put("/w/a", "2");
    event_log_skip_to(&events, WAIT_MS, "trouble UNREACHABLE");
    event_log_skip_to(&events, WAIT_MS, "/w/a=2");
    event_log_expect(&events, WAIT_MS, "synced");
    kelp_etcd_watch_close(opened);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
}

/* Such a connection is replaced at once when somebody knows better; one that is new is kept. */
KELP_TEST(doubted_connection)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;

    tcp_proxy_start(&proxy, fixture.port, "/none");
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    struct kelp_etcd_watch *opened = watch(through, "/w/");
    event_log_expect(&events, WAIT_MS, "synced");
    kelp_etcd_watch_doubt(opened);
    put("/w/a", "1");
    event_log_expect(&events, WAIT_MS, "/w/a=1"); /* the stream stands */
    tcp_proxy_freeze(&proxy);
    put("/w/a", "2");
    do {
        kelp_etcd_watch_doubt(opened);
    } while (event_log_quiet(&events, 50));
    event_log_expect(&events, WAIT_MS, "trouble UNREACHABLE what etcd said on a watch may be old");
    event_log_skip_to(&events, WAIT_MS, "/w/a=2");
    event_log_expect(&events, WAIT_MS, "synced");
    kelp_etcd_watch_close(opened);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
}

/* A watch that is opened while etcd is away begins when it is there; closing one that never
 * connected, or the client below it, ends at once. */
KELP_TEST(opened_before_etcd)
{
    struct kelp_etcd *nowhere;
    char url[64];

    put("/w/a", "1");
    etcd_fixture_kill(&fixture);
    struct kelp_etcd_watch *opened = watch(etcd, "/w/");
    event_log_skip_to(&events, WAIT_MS, "trouble UNREACHABLE");
    etcd_fixture_restart(&fixture);
    event_log_skip_to(&events, WAIT_MS, "/w/a=1");
    event_log_expect(&events, WAIT_MS, "synced");
    kelp_etcd_watch_close(opened);

    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u", tcp_double_closed_port());
    ck_ok(kelp_etcd_open(url, &nowhere, &error));
    kelp_etcd_watch_close(watch(nowhere, "/w/"));
    (void)watch(nowhere, "/w/");
    kelp_etcd_close(nowhere);
}
