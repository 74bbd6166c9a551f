/* Which shards at the other end of streams are not heard. */
#include <stdlib.h>
#include <unistd.h>

#include "ps/service/replicas/peers.h"
#include "tests/lib/suite.h"

static struct kelp__service_peers *peers;

static void setup(void)
{
    peers = kelp__service_peers_create();
    ck_assert_ptr_nonnull(peers);
}

static void teardown(void)
{
    kelp__service_peers_destroy(peers);
}

static size_t wrong(void)
{
    size_t count = 0;
    free(kelp__service_peers_report(peers, &count));
    return count;
}

/* Time goes by; the test's time limit ends it. */
static void await_wrong(size_t count)
{
    while (wrong() != count) {
        (void)usleep(1000); /* silence is no event */
    }
}

KELP_CASE("peers", .setup = setup, .teardown = teardown)

/* One that never answered is told too, as long as a link to it is kept, whatever ends meanwhile. */
KELP_TEST(expected_and_never_heard)
{
    kelp__service_peers_expect(peers, "shard-1", 11);
    kelp__service_peers_ended(peers, "shard-1", 11, false); /* of a stream before */
    await_wrong(1);
    kelp__service_peers_heard(peers, "shard-1", 11);
    kelp__service_peers_heard(peers, "shard-2", 12);
    kelp__service_peers_ended(peers, "shard-2", 12, false);
    await_wrong(1); /* silent again; the other one is not needed */
    kelp__service_peers_release(peers, "shard-1", 11);
    ck_assert_uint_eq(wrong(), 0);
}

/* A stream that the peer broke off is told until it is heard again. */
KELP_TEST(broken_off)
{
    size_t count = 0;
    kelp__service_peers_expect(peers, "shard-1", 11);
    kelp__service_peers_ended(peers, "shard-1", 11, true);
    Kelp__V1__PeerReport **reports = kelp__service_peers_report(peers, &count);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(reports[0]->shard, "shard-1");
    ck_assert_uint_eq(reports[0]->incarnation, 11);
    ck_assert(reports[0]->broken);
    free(reports);
}
