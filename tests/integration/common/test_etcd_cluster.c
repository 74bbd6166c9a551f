/*
 * The client against a real etcd of three members whose leader changes, dies or is stopped, whose
 * quorum is lost, and whose history is compacted while a watch is cut off.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/lib/etcd/etcd_cluster.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/etcd/event_log.h"
#include "tests/lib/suite.h"

enum { DEADLINE_MS = 30000, WAIT_MS = 60000, TTL_S = 3 };

static struct etcd_cluster cluster;
static struct kelp_error error;

#define ck_ok(call)                                                                                \
    do {                                                                                           \
        kelp_status got_status = (call);                                                           \
        ck_assert_msg(got_status == KELP_OK, "%s: %s", kelp_status_name(got_status), error.text);  \
    } while (0)

static void setup(void)
{
    etcd_cluster_start(&cluster);
}

static void teardown(void)
{
    etcd_cluster_stop(&cluster);
}

static struct kelp_etcd *open_client(const char *urls)
{
    struct kelp_etcd *etcd = NULL;

    ck_ok(kelp_etcd_open(urls, &etcd, &error));
    return etcd;
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- a counter that several clients count up --------------------------------------------------
 */

static const char counter_key[] = "/c/counter";

struct counting {
    int name;
    pthread_t thread;
    atomic_int attempts;
    atomic_bool stop;
    int counted; /* transactions that succeeded, as far as the client was told */
    /* Answers lost for good, and refusals: one of these may have been applied, when the other
     * client had overwritten it before the look that follows a lost answer. */
    int uncertain;
    char trouble[256];
};

/* One compare-and-swap of the counter; false: something happened that must not. */
static bool count_up(struct counting *counting, struct kelp_etcd *etcd, int64_t *seen_revision)
{
    struct kelp_etcd_range range;
    struct kelp_error why = {.text = ""};
    char value[64];
    bool succeeded = false;
    int64_t revision;

    kelp_status status = kelp_etcd_get(etcd, counter_key, DEADLINE_MS, &range, &why);
    if (status != KELP_OK) {
        (void)snprintf(counting->trouble, sizeof(counting->trouble), "get: %.200s", why.text);
        return false;
    }
    int64_t before = range.count ? range.pairs[0].mod_revision : 0;
    long number = range.count ? strtol(range.pairs[0].value, NULL, 10) : 0;
    kelp_etcd_range_fini(&range);
    if (before < *seen_revision) {
        (void)snprintf(counting->trouble, sizeof(counting->trouble), "a read went back");
        return false;
    }
    *seen_revision = before;
    struct kelp_etcd_compare same = {
        .key = counter_key, .what = KELP_ETCD_MOD_REVISION, .revision = before};
    (void)snprintf(value, sizeof(value), "%ld by %d, attempt %d", number + 1, counting->name,
                   atomic_fetch_add(&counting->attempts, 1));
    struct kelp_etcd_operation put = {.key = counter_key, .value = value};
    status = kelp_etcd_transaction(
        etcd, &(struct kelp_etcd_transaction){&same, 1, &put, 1, counter_key, DEADLINE_MS},
        &succeeded, &revision, &why);
    counting->counted += status == KELP_OK && succeeded;
    counting->uncertain += status == KELP_ERR_TIMEOUT || (status == KELP_OK && !succeeded);
    if (status != KELP_OK && status != KELP_ERR_TIMEOUT && status != KELP_ERR_UNREACHABLE) {
        (void)snprintf(counting->trouble, sizeof(counting->trouble), "%s: %.200s",
                       kelp_status_name(status), why.text);
        return false;
    }
    return true;
}

static void *count(void *user)
{
    struct counting *counting = user;
    struct kelp_etcd *etcd = NULL;
    int64_t seen_revision = 0;

    if (kelp_etcd_open(cluster.urls, &etcd, NULL) == KELP_OK) {
        while (!atomic_load(&counting->stop) && count_up(counting, etcd, &seen_revision)) {
        }
        kelp_etcd_close(etcd);
    }
    return NULL;
}

static void wait_for_attempts(struct counting *counting, int more)
{
    int wanted = atomic_load(&counting->attempts) + more;
    int64_t end_ms = now_ms() + WAIT_MS;

    while (atomic_load(&counting->attempts) < wanted && !counting->trouble[0]) {
        struct timespec pause = {.tv_nsec = 5000000};
        ck_assert_msg(now_ms() < end_ms, "counting stopped: nothing for %d s", WAIT_MS / 1000);
        (void)nanosleep(&pause, NULL);
    }
    ck_assert_str_eq(counting->trouble, "");
}

static void on_counter(const struct kelp_etcd_pair *pair, void *user)
{
    static _Atomic int64_t newest;
    int64_t before = atomic_exchange(&newest, pair->mod_revision);

    if (before >= pair->mod_revision) {
        event_log_add(user, "went back from %" PRId64, before);
    }
    if (strstr(pair->value, "the end")) {
        event_log_add(user, "the end");
    }
}

static void on_removed(const char *key, void *user)
{
    event_log_add(user, "removed %s", key);
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("members", .setup = setup, .teardown = teardown, .timeout_s = 120)

/*
 * The leader is moved, killed, and stopped while two clients count a key up by compare-and-swap: no
 * count is lost or made twice, no read goes back, and a watch sees the key move forward alone.
 */
KELP_TEST(leader_changes_under_load)
{
    static const struct kelp_etcd_watch_events hooks = {.changed = on_counter,
                                                        .removed = on_removed};
    static struct event_log seen;
    struct counting counting[2] = {{.name = 1}, {.name = 2}};
    struct kelp_etcd_range range;
    struct kelp_etcd_watch *watch;
    struct kelp_etcd *etcd = open_client(cluster.urls);

    event_log_init(&seen);
    ck_ok(kelp_etcd_watch_open(etcd, "/c/", &hooks, &seen, &watch, &error));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&counting[i].thread, NULL, count, &counting[i]), 0);
    }
    for (int round = 0; round < 2; round++) {
        wait_for_attempts(&counting[0], 10);
        etcd_cluster_move_leader(&cluster,
                                 (etcd_cluster_leader(&cluster) + 1) % ETCD_CLUSTER_MEMBERS);
        wait_for_attempts(&counting[1], 10);
        int leader = etcd_cluster_leader(&cluster);
        etcd_cluster_kill(&cluster, leader);
        wait_for_attempts(&counting[0], 10);
        etcd_cluster_restart(&cluster, leader);
        wait_for_attempts(&counting[1], 10);
        leader = etcd_cluster_leader(&cluster);
        etcd_cluster_pause(&cluster, leader);
        wait_for_attempts(&counting[0], 5);
        etcd_cluster_resume(&cluster, leader);
        wait_for_attempts(&counting[1], 10);
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&counting[i].stop, true);
        ck_assert_int_eq(pthread_join(counting[i].thread, NULL), 0);
        ck_assert_str_eq(counting[i].trouble, "");
    }
    ck_ok(kelp_etcd_get(etcd, counter_key, DEADLINE_MS, &range, &error));
    long number = strtol(range.pairs[0].value, NULL, 10);
    ck_assert_int_eq(number, range.pairs[0].version); /* each write was one count */
    kelp_etcd_range_fini(&range);
    int counted = counting[0].counted + counting[1].counted;
    int uncertain = counting[0].uncertain + counting[1].uncertain;
    ck_assert_int_ge(number, counted);
    ck_assert_int_le(number, counted + uncertain);
    ck_assert_int_gt(counted, 50);

    ck_ok(kelp_etcd_put(etcd, "/c/last", "the end", 0, DEADLINE_MS, &error));
    event_log_expect(&seen, WAIT_MS, "the end"); /* nothing else was logged before it */
    kelp_etcd_watch_close(watch);
    kelp_etcd_close(etcd);
}

/* ---- elections --------------------------------------------------------------------------------
 */

static void on_elected(int64_t create_revision, void *user)
{
    (void)create_revision;
    event_log_add(user, "elected");
}

static void on_deposed(const char *why, void *user)
{
    event_log_add(user, "deposed: %s", why);
}

static const struct kelp_etcd_election_events election_hooks = {.elected = on_elected,
                                                                .deposed = on_deposed};

/* Etcd's own leader moves and dies: whoever leads our job goes on leading. */
KELP_TEST(leader_of_a_job_outlives_etcds)
{
    static struct event_log one;
    static struct event_log two;
    struct kelp_etcd_election *first;
    struct kelp_etcd_election *second;
    struct kelp_etcd *etcd = open_client(cluster.urls);
    struct kelp_etcd *other = open_client(cluster.urls);

    event_log_init(&one);
    event_log_init(&two);
    ck_ok(kelp_etcd_election_open(
        etcd, &(struct kelp_etcd_election_options){"/e", "one", TTL_S, &election_hooks, &one},
        &first, &error));
    event_log_expect(&one, WAIT_MS, "elected");
    ck_ok(kelp_etcd_election_open(
        other, &(struct kelp_etcd_election_options){"/e", "two", TTL_S, &election_hooks, &two},
        &second, &error));
    etcd_cluster_move_leader(&cluster, (etcd_cluster_leader(&cluster) + 1) % ETCD_CLUSTER_MEMBERS);
    etcd_cluster_kill(&cluster, etcd_cluster_leader(&cluster));
    (void)etcd_cluster_leader(&cluster);
    ck_assert(event_log_quiet(&one, (TTL_S + 1) * 1000));
    ck_assert(event_log_quiet(&two, 0));
    kelp_etcd_election_close(first);
    event_log_expect(&two, WAIT_MS, "elected");
    kelp_etcd_election_close(second);
    kelp_etcd_close(other);
    kelp_etcd_close(etcd);
}

/* Two of three members are stopped: nothing is taken, every call ends and says so, and the
 * leader of the job knows that it may not lead. All of it goes on when they are back. */
KELP_TEST(quorum_is_lost)
{
    static struct event_log one;
    struct kelp_etcd_election *election;
    struct kelp_etcd_range range;
    struct kelp_etcd *etcd = open_client(cluster.urls);

    event_log_init(&one);
    ck_ok(kelp_etcd_put(etcd, "/q", "before", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_election_open(
        etcd, &(struct kelp_etcd_election_options){"/e", "one", TTL_S, &election_hooks, &one},
        &election, &error));
    event_log_expect(&one, WAIT_MS, "elected");
    int leader = etcd_cluster_leader(&cluster);
    int other = (leader + 1) % ETCD_CLUSTER_MEMBERS;
    etcd_cluster_pause(&cluster, leader);
    etcd_cluster_pause(&cluster, other);
    kelp_status status = kelp_etcd_put(etcd, "/q", "without a quorum", 0, 3000, &error);
    ck_assert_msg(status == KELP_ERR_TIMEOUT || status == KELP_ERR_UNREACHABLE, "%s: %s",
                  kelp_status_name(status), error.text);
    status = kelp_etcd_get(etcd, "/q", 3000, &range, &error);
    ck_assert_msg(status == KELP_ERR_UNREACHABLE, "%s: %s", kelp_status_name(status), error.text);
    event_log_skip_to(&one, WAIT_MS, "deposed");
    etcd_cluster_resume(&cluster, leader);
    etcd_cluster_resume(&cluster, other);
    event_log_skip_to(&one, WAIT_MS, "elected");
    ck_ok(kelp_etcd_put(etcd, "/q", "after", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_get(etcd, "/q", DEADLINE_MS, &range, &error));
    ck_assert_str_eq(range.pairs[0].value, "after");
    kelp_etcd_range_fini(&range);
    kelp_etcd_election_close(election);
    kelp_etcd_close(etcd);
}

/* ---- watches ----------------------------------------------------------------------------------
 */

static void on_changed(const struct kelp_etcd_pair *pair, void *user)
{
    event_log_add(user, "%s=%s", pair->key, pair->value);
}

/* A write until it is answered: while the others still take a stopped member for their leader, what
 * they pass on to it has no answer. */
static void put_until_answered(struct kelp_etcd *etcd, const char *key, const char *value)
{
    const int64_t end = now_ms() + WAIT_MS;
    kelp_status status;

    do {
        status = kelp_etcd_put(etcd, key, value, 0, DEADLINE_MS, &error);
    } while (status == KELP_ERR_TIMEOUT && now_ms() < end);
    ck_ok(status);
}

/* The member that feeds a watch is stopped, what it watches changes and is compacted elsewhere: the
 * watch goes to another member, lists again, and misses nothing that still counts. */
KELP_TEST(watched_history_is_compacted)
{
    static const struct kelp_etcd_watch_events hooks = {.changed = on_changed,
                                                        .removed = on_removed};
    static struct event_log seen;
    struct kelp_etcd_watch *watch;
    struct kelp_etcd_range range;
    struct etcd_fixture neighbour = {.server = NULL};

    event_log_init(&seen);
    struct kelp_etcd *watching = open_client(cluster.urls);
    ck_ok(kelp_etcd_put(watching, "/w/stays", "1", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_put(watching, "/w/goes", "1", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_watch_open(watching, "/w/", &hooks, &seen, &watch, &error));
    event_log_expect(&seen, WAIT_MS, "/w/goes=1");
    event_log_expect(&seen, WAIT_MS, "/w/stays=1");

    etcd_cluster_pause(&cluster, 0);     /* the first endpoint: the client is connected there */
    (void)etcd_cluster_leader(&cluster); /* it may have led */
    struct kelp_etcd *etcd = open_client(cluster.members[1].url);
    (void)snprintf(neighbour.url, sizeof(neighbour.url), "%s", cluster.members[1].url);
    put_until_answered(etcd, "/w/stays", "2");
    for (int i = 3; i <= 5; i++) {
        char value[16];
        (void)snprintf(value, sizeof(value), "%d", i);
        ck_ok(kelp_etcd_put(etcd, "/w/stays", value, 0, DEADLINE_MS, &error));
    }
    ck_ok(kelp_etcd_delete_prefix(etcd, "/w/goes", DEADLINE_MS, &error));
    ck_ok(kelp_etcd_put(etcd, "/w/new", "1", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_get(etcd, "/w/new", DEADLINE_MS, &range, &error));
    etcd_fixture_compact(&neighbour, range.revision);
    kelp_etcd_range_fini(&range);

    event_log_skip_to(&seen, WAIT_MS, "/w/stays=5");
    etcd_cluster_resume(&cluster, 0);
    ck_ok(kelp_etcd_put(etcd, "/w/stays", "6", 0, DEADLINE_MS, &error));
    event_log_skip_to(&seen, WAIT_MS, "/w/stays=6");
    ck_assert_uint_eq(event_log_count(&seen, "removed /w/goes"), 1);
    ck_assert_uint_eq(event_log_count(&seen, "/w/new=1"), 1);
    kelp_etcd_close(etcd);
    kelp_etcd_watch_close(watch);
    kelp_etcd_close(watching);
}
