/* The bound on log lines that peers can cause. */
#include <stdio.h>

#include "common/log/log_gate.h"
#include "tests/lib/suite.h"

/* What a peer used up stays so: the clock does not matter. */
static void shut(struct kelp_log_gate *gate)
{
    for (size_t i = 0; i < KELP_LOG_GATE_PEERS; i++) {
        gate->peers[i].open_ms = gate->peers[i].open_ms > 0 ? UINT64_MAX : 0;
    }
}

KELP_CASE("log_gate")

/* One line for a peer, whatever its port; the others count. */
KELP_TEST(one_line_for_a_peer)
{
    struct kelp_log_gate gate = KELP_LOG_GATE_INIT;
    unsigned held = 7;

    ck_assert(kelp_log_gate_pass(&gate, "ipv4:10.0.0.5:4711", 3, &held));
    ck_assert_uint_eq(held, 0);
    shut(&gate);
    ck_assert(!kelp_log_gate_pass(&gate, "ipv4:10.0.0.5:4712", 3, &held));
    ck_assert(!kelp_log_gate_pass(&gate, "ipv4:10.0.0.5:4711", 3, &held));
    for (size_t i = 0; i < KELP_LOG_GATE_PEERS; i++) {
        gate.peers[i].open_ms = 0;
    }
    ck_assert(kelp_log_gate_pass(&gate, "ipv4:10.0.0.5:1", 3, &held));
    ck_assert_uint_eq(held, 2);
    ck_assert(kelp_log_gate_pass(&gate, "ipv4:10.0.0.5:1", 4, &held)); /* another kind */
}

/* Ordinary runs have their lines at once; after so many it is one a second, as for the others. */
KELP_TEST(lines_at_once)
{
    struct kelp_log_gate gate = KELP_LOG_GATE_OF(20);
    unsigned held = 7;

    for (int i = 0; i < 20; i++) {
        ck_assert(kelp_log_gate_pass(&gate, "unix:", 0, &held));
        ck_assert_uint_eq(held, 0);
    }
    shut(&gate);
    ck_assert(!kelp_log_gate_pass(&gate, "unix:", 0, &held));
    for (size_t i = 0; i < KELP_LOG_GATE_PEERS; i++) {
        gate.peers[i].open_ms = 0;
    }
    ck_assert(kelp_log_gate_pass(&gate, "unix:", 0, &held));
    ck_assert_uint_eq(held, 1);
}

/* Others have lines of their own, and all of them together no more than there are places. */
KELP_TEST(bounded_for_all)
{
    struct kelp_log_gate gate = KELP_LOG_GATE_INIT;
    unsigned passed = 0;
    unsigned held = 0;

    for (int i = 0; i < 5000; i++) {
        char peer[32];
        (void)snprintf(peer, sizeof(peer), "ipv4:10.0.%d.%d:1", i / 250, i % 250);
        passed += kelp_log_gate_pass(&gate, peer, 3, &held) ? 1 : 0;
        shut(&gate);
    }
    ck_assert_uint_eq(passed, KELP_LOG_GATE_PEERS);
}
