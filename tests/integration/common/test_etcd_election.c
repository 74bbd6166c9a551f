/* Elections against a real etcd. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/etcd/event_log.h"
#include "tests/lib/etcd/tcp_double.h"
#include "tests/lib/suite.h"

enum { DEADLINE_MS = 10000, WAIT_MS = 20000, TTL_S = 3 };

static const char key[] = "/kelp/job/coordinator";

static struct etcd_fixture fixture;
static struct kelp_etcd *first_client;
static struct kelp_etcd *second_client;
static struct kelp_error error;
static struct event_log first;
static struct event_log second;

#define ck_ok(call)                                                                                \
    do {                                                                                           \
        kelp_status got_status = (call);                                                           \
        ck_assert_msg(got_status == KELP_OK, "%s: %s", kelp_status_name(got_status), error.text);  \
    } while (0)

/* No client, hence no thread, before the test has forked. */
static void setup_without_clients(void)
{
    etcd_fixture_start(&fixture);
    event_log_init(&first);
    event_log_init(&second);
}

static void setup(void)
{
    setup_without_clients();
    first_client = etcd_fixture_client(&fixture);
    second_client = etcd_fixture_client(&fixture);
}

static void teardown(void)
{
    kelp_etcd_close(first_client);
    kelp_etcd_close(second_client);
    etcd_fixture_stop(&fixture);
}

static void on_elected(int64_t create_revision, void *user)
{
    event_log_add(user, "elected %" PRId64, create_revision);
}

static void on_deposed(const char *why, void *user)
{
    event_log_add(user, "deposed: %s", why);
}

static const struct kelp_etcd_election_events hooks = {.elected = on_elected,
                                                       .deposed = on_deposed};

static struct kelp_etcd_election *stand(struct kelp_etcd *etcd, const char *value,
                                        struct event_log *log)
{
    struct kelp_etcd_election *election;

    ck_ok(kelp_etcd_election_open(
        etcd, &(struct kelp_etcd_election_options){key, value, TTL_S, &hooks, log}, &election,
        &error));
    return election;
}

/* The create revision of the key as etcd has it; its value must be this. */
static int64_t leader_is(const char *value)
{
    struct kelp_etcd_range range;

    ck_ok(kelp_etcd_get(first_client, key, DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 1);
    ck_assert_str_eq(range.pairs[0].value, value);
    int64_t create_revision = range.pairs[0].create_revision;
    kelp_etcd_range_fini(&range);
    return create_revision;
}

static void expect_elected(struct event_log *log, const char *value)
{
    char line[64];

    event_log_skip_to(log, WAIT_MS, "elected");
    (void)snprintf(line, sizeof(line), "elected %" PRId64, leader_is(value));
    ck_assert_uint_eq(event_log_count(log, line), 1);
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("election", .setup = setup, .teardown = teardown, .timeout_s = 90)

/* The etcd client's thread alone. */
static const char *on_renew(void *user)
{
    static const char *const answers[] = {NULL, "one", "two"};
    static size_t asked;

    (void)user;
    return answers[asked < 2 ? asked++ : asked];
}

/* What the key is to hold is asked for before each attempt, and an answer that there is none puts
 * the attempt off. */
KELP_TEST(a_value_that_changes)
{
    struct kelp_etcd_election_events renewing = hooks;
    struct kelp_etcd_election *election;

    renewing.renew = on_renew;
    ck_ok(kelp_etcd_election_open(
        first_client, &(struct kelp_etcd_election_options){key, "never", TTL_S, &renewing, &first},
        &election, &error));
    expect_elected(&first, "one");
    ck_ok(kelp_etcd_delete_prefix(second_client, key, DEADLINE_MS, &error));
    event_log_skip_to(&first, WAIT_MS, "deposed");
    expect_elected(&first, "two");
    kelp_etcd_election_close(election);
}

/* One leads; when it resigns, the other does, at once and not after the lease's time. */
KELP_TEST(hand_over_when_one_resigns)
{
    struct kelp_etcd_election *one = stand(first_client, "one", &first);

    expect_elected(&first, "one");
    struct kelp_etcd_election *two = stand(second_client, "two", &second);
    ck_assert(event_log_quiet(&second, TTL_S * 1000 + 1500)); /* the leader keeps its lease */
    kelp_etcd_election_close(one);
    event_log_skip_to(&second, 1000, "elected");
    (void)leader_is("two");
    ck_assert(event_log_quiet(&first, 0)); /* who resigns is not deposed */
    kelp_etcd_election_close(two);
}

/* Another's key is deleted by its revision, and no other one is: who did it leads at once, and who
 * led lets it, though its own lease lives. */
KELP_TEST(deposed_by_another)
{
    struct kelp_etcd_election *one = stand(first_client, "one", &first);

    expect_elected(&first, "one");
    struct kelp_etcd_election *two = stand(second_client, "two", &second);
    int64_t revision = leader_is("one");
    kelp_etcd_election_depose(two, revision + 1);
    kelp_etcd_election_depose(one, revision); /* not oneself */
    ck_assert(event_log_quiet(&first, 500));
    do { /* its watch may not have shown the key yet */
        kelp_etcd_election_depose(two, revision);
    } while (event_log_quiet(&second, 50));
    expect_elected(&second, "two");
    event_log_skip_to(&first, WAIT_MS, "deposed: the key is gone");
    ck_assert(event_log_quiet(&first, 0));
    kelp_etcd_election_close(two);
    event_log_skip_to(&first, WAIT_MS, "elected");
    kelp_etcd_election_close(one);
}

/* Closing the client resigns as well. */
KELP_TEST(hand_over_when_a_client_closes)
{
    struct kelp_etcd *client = etcd_fixture_client(&fixture);

    (void)stand(client, "one", &first);
    expect_elected(&first, "one");
    struct kelp_etcd_election *two = stand(second_client, "two", &second);
    ck_assert(event_log_quiet(&second, 500));
    kelp_etcd_close(client);
    event_log_skip_to(&second, 1000, "elected");
    kelp_etcd_election_close(two);
}

/* Of ten that stand at once exactly one is elected, and each in turn when the one before resigns.
 */
KELP_TEST(one_of_many)
{
    enum { COUNT = 10 };
    static struct event_log logs[COUNT];
    struct kelp_etcd_election *elections[COUNT];
    bool led[COUNT] = {false};

    for (int i = 0; i < COUNT; i++) {
        event_log_init(&logs[i]);
        elections[i] = stand(i % 2 ? first_client : second_client, "x", &logs[i]);
    }
    for (int turn = 0; turn < COUNT; turn++) {
        int leader = -1;
        for (int wait = 0; leader < 0 && wait < 500; wait++) {
            for (int i = 0; i < COUNT; i++) {
                if (!led[i] && event_log_count(&logs[i], "elected") > 0) {
                    ck_assert_int_eq(leader, -1); /* never two */
                    leader = i;
                }
            }
            (void)event_log_quiet(&first, 10); /* nobody writes there: a pause */
        }
        ck_assert_int_ge(leader, 0);
        led[leader] = true;
        kelp_etcd_election_close(elections[leader]);
    }
}

KELP_CASE("forking", .setup = setup_without_clients, .teardown = teardown, .timeout_s = 90)

/* The leader's process is killed: the other leads once the lease has run out. */
KELP_TEST(hand_over_when_a_process_is_killed)
{
    int ready[2];
    char byte;

    ck_assert_int_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct event_log *log = &first;
        struct kelp_etcd *etcd = etcd_fixture_client(&fixture);
        (void)stand(etcd, "child", log);
        event_log_skip_to(log, WAIT_MS, "elected");
        ck_assert_int_eq(write(ready[1], "x", 1), 1);
        for (;;) {
            (void)pause();
        }
    }
    ck_assert_int_gt(child, 0);
    first_client = etcd_fixture_client(&fixture);
    second_client = etcd_fixture_client(&fixture);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    (void)leader_is("child");
    struct kelp_etcd_election *two = stand(second_client, "two", &second);
    ck_assert(event_log_quiet(&second, TTL_S * 1000 + 1000));
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    expect_elected(&second, "two");
    kelp_etcd_election_close(two);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

KELP_CASE("election", .setup = setup, .teardown = teardown, .timeout_s = 90)

/* Somebody deletes the key: the leader is told, and leads again under another revision. */
KELP_TEST(key_deleted)
{
    struct kelp_etcd_election *one = stand(first_client, "one", &first);

    expect_elected(&first, "one");
    ck_ok(kelp_etcd_delete_prefix(second_client, key, DEADLINE_MS, &error));
    event_log_expect(&first, WAIT_MS, "deposed: the key is gone");
    expect_elected(&first, "one");
    kelp_etcd_election_close(one);
}

/* Somebody overwrites the key: the leader is told. It leads again once the stranger's key is gone.
 */
KELP_TEST(key_overwritten)
{
    struct kelp_etcd_election *one = stand(first_client, "one", &first);

    expect_elected(&first, "one");
    ck_ok(kelp_etcd_put(second_client, key, "stranger", 0, DEADLINE_MS, &error));
    event_log_expect(&first, WAIT_MS, "deposed: somebody else wrote the key");
    ck_assert(event_log_quiet(&first, 500));
    ck_ok(kelp_etcd_delete_prefix(second_client, key, DEADLINE_MS, &error));
    expect_elected(&first, "one");
    kelp_etcd_election_close(one);
}

/* The lease is revoked behind the leader's back: it is told, and leads again with another one. */
KELP_TEST(lease_revoked)
{
    struct kelp_etcd_election *one = stand(first_client, "one", &first);
    struct kelp_etcd_range range;

    expect_elected(&first, "one");
    ck_ok(kelp_etcd_get(first_client, key, DEADLINE_MS, &range, &error));
    etcd_fixture_revoke(&fixture, range.pairs[0].lease);
    kelp_etcd_range_fini(&range);
    event_log_skip_to(&first, WAIT_MS, "deposed");
    expect_elected(&first, "one");
    kelp_etcd_election_close(one);
}

/* Etcd is away for less than the lease: nothing happens. For more: deposed meanwhile, and somebody
 * leads when it is back. */
KELP_TEST(etcd_away)
{
    struct kelp_etcd_election *one = stand(first_client, "one", &first);

    expect_elected(&first, "one");
    etcd_fixture_kill(&fixture);
    etcd_fixture_restart(&fixture);
    ck_assert(event_log_quiet(&first, TTL_S * 1000 + 1500));
    etcd_fixture_kill(&fixture);
    event_log_skip_to(&first, WAIT_MS, "deposed: the lease ran out");
    etcd_fixture_restart(&fixture);
    expect_elected(&first, "one");
    kelp_etcd_election_close(one);
}

/* The answer to the transaction that created the key is lost: elected all the same, once. */
KELP_TEST(lost_answer)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;

    tcp_proxy_start(&proxy, fixture.port, "/v3/kv/txn");
    tcp_proxy_lose(&proxy, 1, 0);
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    struct kelp_etcd_election *one = stand(through, "one", &first);
    expect_elected(&first, "one");
    ck_assert_int_ge(tcp_proxy_seen(&proxy), 1); /* a slow etcd is asked again */
    ck_assert(event_log_quiet(&first, 1000));
    kelp_etcd_election_close(one);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
}

/* A member whose leader is gone drops a transaction and does not answer: the lease lasts long, but
 * it is asked again soon. */
KELP_TEST(dropped_transaction)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;
    struct kelp_etcd_election *one = stand(first_client, "one", &first), *two;

    expect_elected(&first, "one");
    tcp_proxy_start(&proxy, fixture.port, "/v3/kv/txn");
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    ck_ok(kelp_etcd_election_open(
        through, &(struct kelp_etcd_election_options){key, "two", 600, &hooks, &second}, &two,
        &error));
    tcp_proxy_hold(&proxy, true);
    do { /* who stands by says so again and again */
        kelp_etcd_election_depose(two, leader_is("one"));
    } while (event_log_quiet(&second, 50) && tcp_proxy_seen(&proxy) < 2);
    tcp_proxy_hold(&proxy, false);
    expect_elected(&second, "two");
    kelp_etcd_election_close(two);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
    event_log_skip_to(&first, WAIT_MS, "elected");
    kelp_etcd_election_close(one);
}

/* While the leader hears nothing of it, its key is deleted and created again with its own lease, as
 * by a request of its own that comes late: it leads anew, by the key's new revision. */
KELP_TEST(key_created_again)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;
    struct kelp_etcd_election *one;
    struct kelp_etcd_range range;

    tcp_proxy_start(&proxy, fixture.port, "/v3/kv/range");
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    ck_ok(kelp_etcd_election_open(
        through, &(struct kelp_etcd_election_options){key, "one", 10 * TTL_S, &hooks, &first}, &one,
        &error));
    expect_elected(&first, "one");
    tcp_proxy_hold(&proxy, true);
    etcd_fixture_kill(&fixture);
    etcd_fixture_restart(&fixture);
    tcp_proxy_wait_held(&proxy, 1); /* the watch lists again */
    ck_ok(kelp_etcd_get(second_client, key, DEADLINE_MS, &range, &error));
    ck_ok(kelp_etcd_delete_prefix(second_client, key, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_put(second_client, key, "one", range.pairs[0].lease, DEADLINE_MS, &error));
    kelp_etcd_range_fini(&range);
    tcp_proxy_hold(&proxy, false);
    event_log_expect(&first, WAIT_MS, "deposed: the key was deleted and created again");
    expect_elected(&first, "one");
    kelp_etcd_election_close(one);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
}

/* The leader is cut off, its connections open but dead: it is deposed before the other is elected.
 */
KELP_TEST(leader_cut_off)
{
    struct tcp_proxy proxy;
    struct kelp_etcd *through;

    tcp_proxy_start(&proxy, fixture.port, "/none");
    ck_ok(kelp_etcd_open(proxy.server.url, &through, &error));
    /* Both write to one log, so that their order shows. */
    struct kelp_etcd_election *one = stand(through, "one", &first);
    expect_elected(&first, "one");
    struct kelp_etcd_election *two = stand(second_client, "two", &first);
    ck_assert(event_log_quiet(&first, 1000));
    tcp_proxy_lead_to(&proxy, tcp_double_closed_port());
    tcp_proxy_freeze(&proxy);
    event_log_expect(&first, WAIT_MS, "deposed: the lease ran out: no keep-alive got through");
    event_log_skip_to(&first, WAIT_MS, "elected");
    (void)leader_is("two");
    kelp_etcd_election_close(two);
    kelp_etcd_election_close(one);
    kelp_etcd_close(through);
    tcp_proxy_stop(&proxy);
}

/* What makes no sense is refused at once. */
KELP_TEST(bad_arguments)
{
    struct kelp_etcd_election *election;

    ck_assert_int_eq(
        kelp_etcd_election_open(first_client,
                                &(struct kelp_etcd_election_options){"", "x", 5, &hooks, &first},
                                &election, &error),
        KELP_ERR_INVALID);
    ck_assert_int_eq(
        kelp_etcd_election_open(first_client,
                                &(struct kelp_etcd_election_options){key, "x", 0, &hooks, &first},
                                &election, &error),
        KELP_ERR_INVALID);
}
