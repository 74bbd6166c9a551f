/* The loop of a worker that computes for long is run by somebody else, and given back at once. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "tests/lib/suite.h"
#include "worker/links/loop_keeper.h"

static struct kelp_rpc_loop *loop;
static struct kelp_rpc_timer *timer;
static struct kelp_loop_keeper *keeper;
static pthread_t owner;
static atomic_uint by_owner; /* events that each thread has handled */
static atomic_uint by_keeper;
static atomic_uint ran;
static uint64_t fastest_us = UINT64_MAX;

static void on_timer(void *user)
{
    (void)user;
    atomic_fetch_add(pthread_equal(pthread_self(), owner) ? &by_owner : &by_keeper, 1);
}

static void on_ran(void *user)
{
    (void)user;
    ck_assert(!pthread_equal(pthread_self(), owner));
    atomic_fetch_add(&ran, 1);
}

static void setup(void)
{
    kelp_rpc_global_init();
    owner = pthread_self();
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, NULL), KELP_OK);
    ck_assert_int_eq(kelp_rpc_timer_start(loop, 1, on_timer, NULL, &timer), KELP_OK);
    ck_assert_int_eq(kelp_loop_keeper_start(loop, on_ran, NULL, &keeper, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_loop_keeper_stop(keeper);
    kelp_rpc_timer_stop(timer);
    kelp_rpc_loop_destroy(loop);
    kelp_rpc_global_fini();
}

static void await_keeper(void)
{
    unsigned before = atomic_load(&by_keeper);
    while (atomic_load(&by_keeper) < before + 3) {
        (void)usleep(1000); /* until the keeper has run; the test's time limit ends it */
    }
}

KELP_CASE("loop keeper", .timeout_s = 60, .setup = setup, .teardown = teardown)

KELP_TEST(runs_the_loop_of_an_owner_who_is_away)
{
    for (int i = 0; i < 3; i++) {
        kelp_loop_keeper_leave(keeper, false);
        await_keeper();
        kelp_loop_keeper_return(keeper);
        unsigned kept = atomic_load(&by_keeper);
        unsigned own = atomic_load(&by_owner);
        while (atomic_load(&by_owner) < own + 3) {
            (void)kelp_rpc_loop_run(loop, -1);
        }
        ck_assert_uint_eq(atomic_load(&by_keeper), kept);
    }
    ck_assert_uint_ge(atomic_load(&ran), atomic_load(&by_keeper));
}

/* An owner who hands over a piece of its work has been away all the time. */
KELP_TEST(goes_on_after_a_pause)
{
    kelp_loop_keeper_leave(keeper, false);
    for (int i = 0; i < 3; i++) {
        await_keeper();
        kelp_loop_keeper_pause(keeper);
        unsigned kept = atomic_load(&by_keeper);
        (void)kelp_rpc_loop_run(loop, -1);
        ck_assert_uint_eq(atomic_load(&by_keeper), kept);
        kelp_loop_keeper_resume(keeper);
    }
}

/* Where there is work for the loop, the keeper takes it as soon as it can: the first event comes
 * long before its patience would be over, also after a pause. */
KELP_TEST(takes_the_loop_at_once)
{
    kelp_loop_keeper_leave(keeper, true);
    for (int i = 0; i < 3; i++) {
        const unsigned before = atomic_load(&by_keeper);
        const uint64_t begin_us = kelp_clock_us();
        while (atomic_load(&by_keeper) == before) {
            (void)usleep(100); /* until the keeper has run; the test's time limit ends it */
        }
        fastest_us =
            kelp_clock_us() - begin_us < fastest_us ? kelp_clock_us() - begin_us : fastest_us;
        kelp_loop_keeper_pause(keeper);
        kelp_loop_keeper_resume(keeper);
    }
    ck_assert_uint_lt(fastest_us, 50000);
}

KELP_TEST(ends_while_it_runs_the_loop)
{
    kelp_loop_keeper_leave(keeper, false);
    await_keeper();
}
