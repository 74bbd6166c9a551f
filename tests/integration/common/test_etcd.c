/* The client's blocking calls and leases against a real etcd. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/etcd/etcd.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

enum { DEADLINE_MS = 10000 };

static struct etcd_fixture fixture;
static struct kelp_etcd *etcd;
static struct kelp_error error;

#define ck_ok(call)                                                                                \
    do {                                                                                           \
        kelp_status got_status = (call);                                                           \
        ck_assert_msg(got_status == KELP_OK, "%s: %s", kelp_status_name(got_status), error.text);  \
    } while (0)

static void setup(void)
{
    etcd_fixture_start(&fixture);
    etcd = etcd_fixture_client(&fixture);
}

static void teardown(void)
{
    kelp_etcd_close(etcd);
    etcd_fixture_stop(&fixture);
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("calls", .setup = setup, .teardown = teardown, .timeout_s = 60)

/* What was put can be read, with its revisions; a key that is missing is no error. */
KELP_TEST(put_and_get)
{
    struct kelp_etcd_range range;

    ck_ok(kelp_etcd_get(etcd, "/a", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 0);
    kelp_etcd_range_fini(&range);
    ck_ok(kelp_etcd_put(etcd, "/a", "one", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_put(etcd, "/a", "two", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_get(etcd, "/a", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 1);
    ck_assert_str_eq(range.pairs[0].key, "/a");
    ck_assert_str_eq(range.pairs[0].value, "two");
    ck_assert_uint_eq(range.pairs[0].value_bytes, 3);
    ck_assert_int_eq(range.pairs[0].version, 2);
    ck_assert_int_gt(range.pairs[0].mod_revision, range.pairs[0].create_revision);
    ck_assert_int_eq(range.pairs[0].lease, 0);
    ck_assert_int_eq(range.revision, range.pairs[0].mod_revision);
    kelp_etcd_range_fini(&range);
}

/* An empty value and one of the largest allowed size come back as they were. */
KELP_TEST(values_of_all_sizes)
{
    size_t largest = (1u << 20) - 8;
    char *value = malloc(largest + 16);
    struct kelp_etcd_range range;

    ck_assert_ptr_nonnull(value);
    ck_ok(kelp_etcd_put(etcd, "/empty", "", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_get(etcd, "/empty", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 1);
    ck_assert_str_eq(range.pairs[0].value, "");
    kelp_etcd_range_fini(&range);

    for (size_t i = 0; i < largest; i++) {
        value[i] = (char)('!' + i % 90);
    }
    value[largest] = '\0';
    ck_ok(kelp_etcd_put(etcd, "/large", value, 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_get(etcd, "/large", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 1);
    ck_assert_uint_eq(range.pairs[0].value_bytes, largest);
    ck_assert_int_eq(memcmp(range.pairs[0].value, value, largest), 0);
    kelp_etcd_range_fini(&range);

    memset(value, 'x', largest + 15);
    value[largest + 15] = '\0';
    ck_assert_int_eq(kelp_etcd_put(etcd, "/large", value, 0, DEADLINE_MS, &error), KELP_ERR_LIMIT);
    ck_assert_int_eq(kelp_etcd_put(etcd, "", "x", 0, DEADLINE_MS, &error), KELP_ERR_INVALID);
    free(value);
}

/* A prefix gives its keys in order and no neighbour's; deleting it deletes just those. */
KELP_TEST(prefixes)
{
    static const char *const keys[] = {"/job/b", "/job/a", "/job/a/x", "/jobs", "/job0", "/job"};
    struct kelp_etcd_range range;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(keys); i++) {
        ck_ok(kelp_etcd_put(etcd, keys[i], keys[i], 0, DEADLINE_MS, &error));
    }
    ck_ok(kelp_etcd_get_prefix(etcd, "/job/", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 3);
    ck_assert_str_eq(range.pairs[0].key, "/job/a");
    ck_assert_str_eq(range.pairs[1].key, "/job/a/x");
    ck_assert_str_eq(range.pairs[2].key, "/job/b");
    kelp_etcd_range_fini(&range);
    ck_ok(kelp_etcd_get_next(etcd, "/job/a0", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 1);
    ck_assert_str_eq(range.pairs[0].key, "/job/b");
    ck_assert_str_eq(range.pairs[0].value, "");
    kelp_etcd_range_fini(&range);
    ck_ok(kelp_etcd_delete_prefix(etcd, "/job/", DEADLINE_MS, &error));
    ck_ok(kelp_etcd_get_prefix(etcd, "/job", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 3);
    kelp_etcd_range_fini(&range);
}

/* A transaction whose compares hold is applied whole; one whose compares fail, not at all. */
KELP_TEST(transactions_won_and_lost)
{
    struct kelp_etcd_compare absent = {.key = "/t/new", .what = KELP_ETCD_CREATE_REVISION};
    struct kelp_etcd_operation operations[] = {{.key = "/t/new", .value = "1"},
                                               {.key = "/t/old", .value = NULL}};
    struct kelp_etcd_range range;
    bool succeeded = false;
    int64_t first = 0;
    int64_t second = 0;

    ck_ok(kelp_etcd_put(etcd, "/t/old", "0", 0, DEADLINE_MS, &error));
    ck_ok(kelp_etcd_transaction(
        etcd, &(struct kelp_etcd_transaction){&absent, 1, operations, 2, NULL, DEADLINE_MS},
        &succeeded, &first, &error));
    ck_assert(succeeded);
    ck_ok(kelp_etcd_transaction(
        etcd, &(struct kelp_etcd_transaction){&absent, 1, operations, 2, NULL, DEADLINE_MS},
        &succeeded, &second, &error));
    ck_assert(!succeeded);
    ck_ok(kelp_etcd_get_prefix(etcd, "/t/", DEADLINE_MS, &range, &error));
    ck_assert_uint_eq(range.count, 1);
    ck_assert_str_eq(range.pairs[0].key, "/t/new");
    ck_assert_int_eq(range.pairs[0].mod_revision, first);
    kelp_etcd_range_fini(&range);

    struct kelp_etcd_compare same = {
        .key = "/t/new", .what = KELP_ETCD_MOD_REVISION, .revision = first};
    struct kelp_etcd_operation next = {.key = "/t/new", .value = "2"};
    ck_ok(kelp_etcd_transaction(
        etcd, &(struct kelp_etcd_transaction){&same, 1, &next, 1, "/t/new", DEADLINE_MS},
        &succeeded, &second, &error));
    ck_assert(succeeded);
    ck_assert_int_gt(second, first);
    ck_ok(kelp_etcd_transaction(
        etcd, &(struct kelp_etcd_transaction){&same, 1, &next, 1, NULL, DEADLINE_MS}, &succeeded,
        &second, &error));
    ck_assert(!succeeded);
    ck_assert_int_eq(
        kelp_etcd_transaction(
            etcd, &(struct kelp_etcd_transaction){&same, 1, &next, 1, "/elsewhere", DEADLINE_MS},
            &succeeded, &second, &error),
        KELP_ERR_INVALID);
}

/* ---- leases -----------------------------------------------------------------------------------
 */

struct flag {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;
};
#define FLAG_INIT                                                                                  \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                                     \
    }

static void flag_raise(void *user)
{
    struct flag *flag = user;

    (void)pthread_mutex_lock(&flag->lock);
    flag->count++;
    (void)pthread_cond_broadcast(&flag->changed);
    (void)pthread_mutex_unlock(&flag->lock);
}

/* The count after at most wait_ms, as soon as it reaches wanted. */
static int flag_wait(struct flag *flag, int wanted, int wait_ms)
{
    const uint64_t end_ms = kelp_clock_ms() + (uint64_t)wait_ms;

    (void)pthread_mutex_lock(&flag->lock);
    while (flag->count < wanted && kelp_clock_wait(&flag->changed, &flag->lock, end_ms)) {
    }
    int count = flag->count;
    (void)pthread_mutex_unlock(&flag->lock);
    return count;
}

static size_t count_keys(const char *prefix)
{
    struct kelp_etcd_range range;

    ck_ok(kelp_etcd_get_prefix(etcd, prefix, DEADLINE_MS, &range, &error));
    size_t count = range.count;
    kelp_etcd_range_fini(&range);
    return count;
}

KELP_CASE("leases", .setup = setup, .teardown = teardown, .timeout_s = 60)

/* A key lives three times as long as its lease would without being kept alive, and goes with it
 * when it is revoked. */
KELP_TEST(lease_is_kept_alive)
{
    struct flag lost = FLAG_INIT;
    struct kelp_etcd_lease *lease;

    ck_ok(kelp_etcd_lease_open(etcd,
                               &(struct kelp_etcd_lease_options){2, DEADLINE_MS, flag_raise, &lost},
                               &lease, &error));
    ck_assert_int_ne(kelp_etcd_lease_id(lease), 0);
    ck_ok(kelp_etcd_put(etcd, "/l/a", "x", kelp_etcd_lease_id(lease), DEADLINE_MS, &error));
    ck_assert_int_eq(flag_wait(&lost, 1, 6000), 0);
    ck_assert_uint_eq(count_keys("/l/"), 1);
    kelp_etcd_lease_close(lease, true);
    ck_assert_uint_eq(count_keys("/l/"), 0);
    ck_assert_int_eq(flag_wait(&lost, 1, 0), 0);
}

/* A lease that is closed without revoking runs out by itself. */
KELP_TEST(lease_expires)
{
    struct flag gone = FLAG_INIT;
    struct kelp_etcd_lease *lease;

    ck_ok(kelp_etcd_lease_open(etcd,
                               &(struct kelp_etcd_lease_options){2, DEADLINE_MS, flag_raise, &gone},
                               &lease, &error));
    ck_ok(kelp_etcd_put(etcd, "/l/a", "x", kelp_etcd_lease_id(lease), DEADLINE_MS, &error));
    kelp_etcd_lease_close(lease, false);
    ck_assert_uint_eq(count_keys("/l/"), 1);
    for (int i = 0; i < 100 && count_keys("/l/") > 0; i++) {
        (void)flag_wait(&gone, 1, 100); /* nobody raises it: a pause */
    }
    ck_assert_uint_eq(count_keys("/l/"), 0);
}

/* Somebody else revokes it: we are told, once. */
KELP_TEST(lease_lost_to_a_revocation)
{
    struct flag lost = FLAG_INIT;
    struct kelp_etcd_lease *lease;

    ck_ok(kelp_etcd_lease_open(etcd,
                               &(struct kelp_etcd_lease_options){3, DEADLINE_MS, flag_raise, &lost},
                               &lease, &error));
    etcd_fixture_revoke(&fixture, kelp_etcd_lease_id(lease));
    ck_assert_int_eq(flag_wait(&lost, 1, 3000), 1);
    ck_assert_int_eq(flag_wait(&lost, 2, 1500), 1);
    kelp_etcd_lease_close(lease, true);
}

/* Etcd is away for longer than the time to live: we are told, once, and when that was over. */
KELP_TEST(lease_lost_to_silence)
{
    struct flag lost = FLAG_INIT;
    struct kelp_etcd_lease *lease;

    ck_ok(kelp_etcd_lease_open(etcd,
                               &(struct kelp_etcd_lease_options){2, DEADLINE_MS, flag_raise, &lost},
                               &lease, &error));
    etcd_fixture_kill(&fixture);
    ck_assert_int_eq(flag_wait(&lost, 1, 1000), 0);
    ck_assert_int_eq(flag_wait(&lost, 1, 4000), 1);
    ck_assert_int_eq(flag_wait(&lost, 2, 1000), 1);
    kelp_etcd_lease_close(lease, true);
}

/* Etcd is away for less: the lease and its key live on. */
KELP_TEST(lease_survives_a_restart)
{
    struct flag lost = FLAG_INIT;
    struct kelp_etcd_lease *lease;

    ck_ok(kelp_etcd_lease_open(
        etcd, &(struct kelp_etcd_lease_options){10, DEADLINE_MS, flag_raise, &lost}, &lease,
        &error));
    ck_ok(kelp_etcd_put(etcd, "/l/a", "x", kelp_etcd_lease_id(lease), DEADLINE_MS, &error));
    etcd_fixture_kill(&fixture);
    etcd_fixture_restart(&fixture);
    ck_assert_int_eq(flag_wait(&lost, 1, 12000), 0);
    ck_assert_uint_eq(count_keys("/l/"), 1);
    kelp_etcd_lease_close(lease, true);
    ck_assert_uint_eq(count_keys("/l/"), 0);
}

/* Closing the client gives its leases back. */
KELP_TEST(close_revokes)
{
    struct kelp_etcd *other = etcd_fixture_client(&fixture);
    struct flag lost = FLAG_INIT;
    struct kelp_etcd_lease *lease;

    ck_ok(kelp_etcd_lease_open(
        other, &(struct kelp_etcd_lease_options){60, DEADLINE_MS, flag_raise, &lost}, &lease,
        &error));
    ck_ok(kelp_etcd_put(other, "/l/a", "x", kelp_etcd_lease_id(lease), DEADLINE_MS, &error));
    ck_assert_uint_eq(count_keys("/l/"), 1);
    kelp_etcd_close(other);
    ck_assert_uint_eq(count_keys("/l/"), 0);
}

KELP_CASE("calls", .setup = setup, .teardown = teardown, .timeout_s = 60)

/* A write with a lease that does not exist is refused by name. */
KELP_TEST(refusals)
{
    struct kelp_etcd_lease *lease;

    ck_assert_int_eq(kelp_etcd_put(etcd, "/a", "x", 12345, DEADLINE_MS, &error),
                     KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "lease not found"));
    ck_assert_ptr_nonnull(strstr(error.text, fixture.url));
    ck_assert_int_eq(kelp_etcd_lease_open(
                         etcd, &(struct kelp_etcd_lease_options){0, DEADLINE_MS, flag_raise, NULL},
                         &lease, &error),
                     KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_etcd_lease_open(
                         etcd,
                         &(struct kelp_etcd_lease_options){999999, DEADLINE_MS, flag_raise, NULL},
                         &lease, &error),
                     KELP_ERR_INVALID);
}

/* Several threads share a client. */
static void *put_many(void *user)
{
    const char *name = user;
    struct kelp_error own = {0};
    char key[32];

    for (int i = 0; i < 50; i++) {
        (void)snprintf(key, sizeof(key), "/many/%s/%d", name, i);
        if (kelp_etcd_put(etcd, key, name, 0, DEADLINE_MS, &own) != KELP_OK) {
            return own.text[0] ? "failed" : NULL;
        }
    }
    return NULL;
}

KELP_TEST(threads_share_a_client)
{
    static char names[4][2] = {"a", "b", "c", "d"};
    pthread_t threads[4];

    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, put_many, names[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    ck_assert_uint_eq(count_keys("/many/"), 200);
}
