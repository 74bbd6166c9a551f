/*
 * Hosts that are network namespaces: faults of their network are real, and what is not as it must
 * be is found. It takes root: a test program cannot begin again in a user namespace.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chaos/network/network_internal.h"
#include "common/process/process.h"
#include "tests/lib/suite.h"

#define HOSTS 3

static struct kelp_network *network;
static struct kelp_error error;

static void prepare(void)
{
    if (geteuid() != 0) {
        kelp_suite_skip("network namespaces take root");
    }
    if (kelp_network_make(HOSTS, &network, &error) != KELP_OK) {
        kelp_suite_skip("%s", error.text);
    }
}

static void clean(void)
{
    kelp_network_close(network);
}

KELP_SUITE(.before = prepare, .after = clean)

static void must(kelp_status status)
{
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static void is_real(void)
{
    must(kelp_network_check(network, &error));
}

static void is_not(const char *says)
{
    ck_assert_int_eq(kelp_network_check(network, &error), KELP_ERR_MISMATCH);
    ck_assert_str_eq(error.text, says);
}

KELP_CASE("hosts", .timeout_s = 60)

/* A host that is cut off hears nobody and nobody hears it, until it is joined again; when that is
 * not so, the check says it. */
KELP_TEST(cut_off)
{
    is_real();
    must(kelp_network_cut(network, 1, true, &error));
    is_real();
    network->list[1].cut = false; /* as if nothing had been done */
    is_not("nothing that host-0 sends arrives at host-1, though no fault lies between them");
    must(kelp_network_cut(network, 1, false, &error));
    is_real();
    network->list[1].cut = true; /* as if the cut had come to nothing */
    is_not("what host-0 sends arrives at host-1, though the fault that lies between them loses it");
    network->list[1].cut = false;
    is_real();
}

/* One way is lost, the way back is not, at whatever address. */
KELP_TEST(one_way)
{
    must(kelp_network_move(network, 0, &error));
    must(kelp_network_lose(network, 2, 0, true, &error));
    is_real();
    network->list[2].lost[0] = false;
    is_not("nothing that host-2 sends arrives at host-0, though no fault lies between them");
    network->list[2].lost[0] = true;
    network->list[0].lost[2] = true;
    is_not("what host-0 sends arrives at host-2, though the fault that lies between them loses it");
    network->list[0].lost[2] = false;
    must(kelp_network_lose(network, 2, 0, false, &error));
    is_real();
}

/* A host that moves has an address that none has had, besides its first one. */
KELP_TEST(move)
{
    char before[KELP_NETWORK_ADDRESS_MAX + 1];

    must(kelp_network_move(network, 2, &error));
    (void)snprintf(before, sizeof(before), "%s", kelp_network_address(network, 2));
    must(kelp_network_move(network, 2, &error));
    ck_assert_str_ne(kelp_network_address(network, 2), before);
    ck_assert_str_ne(kelp_network_address(network, 2), kelp_network_address(network, 1));
    ck_assert_str_eq(kelp_network_first_address(network, 2), "10.77.0.3");
    is_real();
}

static struct kelp_process *start_on(uint32_t host)
{
    static const char *const argv[] = {"sleep", "60", NULL};
    const struct kelp_process_options options = {
        .argv = argv, .stdout_fd = KELP_PROCESS_NULL, .stderr_fd = KELP_PROCESS_NULL};
    struct kelp_process *process = NULL;

    must(kelp_network_enter(network, host, &error));
    must(kelp_process_start(&options, &process, &error));
    must(kelp_network_return(network, &error));
    return process;
}

/* All that runs on a host is killed, and nothing else. */
KELP_TEST(kill)
{
    struct kelp_process *one = start_on(0), *two = start_on(0), *other = start_on(1);
    uint32_t count = 0;

    must(kelp_network_kill(network, 0, &count, &error));
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(kelp_process_wait(one, 0, NULL), KELP_OK);
    ck_assert_int_eq(kelp_process_wait(two, 0, NULL), KELP_OK);
    ck_assert_int_eq(kelp_process_wait(other, 0, NULL), KELP_ERR_TIMEOUT);
    must(kelp_network_kill(network, 0, &count, &error));
    ck_assert_uint_eq(count, 0);
    kelp_process_destroy(one);
    kelp_process_destroy(two);
    kelp_process_destroy(other);
}
