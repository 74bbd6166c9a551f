/* What the thread that computes tells of its work, and what is forgotten when that is given up. */
#include <string.h>

#include "tests/lib/cores/stepper_bench.h"
#include "tests/lib/suite.h"
#include "worker/compute/gradients.h"
#include "worker/job_link_internal.h"

static struct kelp_job_link job_link;
static uint64_t arrived[STEPPER_PARTITIONS];

static void setup(void)
{
    stepper_setup();
    kelp_rpc_global_init();
    memset(&job_link, 0, sizeof(job_link));
    job_link.job = &stepper_bench.job;
    job_link.plan = &stepper_bench.plan;
    job_link.stepper = stepper_bench.stepper;
    job_link.arrived = arrived;
    job_link.overlaps = true;
    ck_assert_int_eq(kelp_rpc_loop_create(&job_link.loop, NULL), KELP_OK);
    job_link.gradients =
        kelp_gradient_pool_create(stepper_bench.plan.flat_count, KELP_PRECISION_FLOAT32);
    ck_assert_ptr_nonnull(job_link.gradients);
    kelp__job_link_forget_ready(&job_link); /* as kelp_job_link_join() does */
}

static void teardown(void)
{
    kelp_gradient_pool_destroy(job_link.gradients);
    kelp_rpc_loop_destroy(job_link.loop);
    kelp_stepper_actions_fini(&job_link.actions);
    kelp_rpc_global_fini();
    stepper_teardown();
}

static void hand_out(uint64_t step, bool ahead)
{
    struct kelp_stepper_action action = {.kind = KELP_STEPPER_COMPUTE};
    action.compute.word = stepper_word_of(step);
    action.compute.lane_count = 1;
    action.compute.ahead = ahead;
    kelp__job_link_handed_out(&job_link, &action);
}

static struct kelp_node make_node(void)
{
    struct kelp_node node = {.lane_count = 1, .gradient = kelp_job_link_gradient(&job_link)};
    ck_assert_ptr_nonnull(node.gradient);
    node.gradient->present = true;
    return node;
}

KELP_CASE("link, overlap", .setup = setup, .teardown = teardown)

/* A partition whose weights no layer reads may be missing while the backward pass tells what is
 * complete. When that work is given up its gradient goes back, and nothing of it is told later. */
KELP_TEST(what_is_given_up_is_not_told)
{
    hand_out(1, true);
    const struct kelp_node first = make_node();
    kelp_job_link_ready(&job_link, &first, STEPPER_BLOCK);
    kelp__job_link_tell_ready(&job_link); /* not before all weights are there */
    ck_assert_int_eq(job_link.failure.status, KELP_OK);
    kelp__job_link_give_up(&job_link, &(struct kelp_stepper_action){.kind = KELP_STEPPER_GIVE_UP});
    ck_assert(!kelp_job_link_await(&job_link, 0, STEPPER_BLOCK));
    ck_assert_int_eq(kelp_job_link_push(&job_link, &first, NULL), KELP_OK);

    hand_out(0, false);
    kelp__job_link_tell_ready(&job_link); /* the stepper refuses what was not handed out */
    ck_assert_int_eq(job_link.failure.status, KELP_OK);
    ck_assert_uint_eq(job_link.actions.count, 0);
    const struct kelp_node second = make_node();
    ck_assert_ptr_eq(second.gradient, first.gradient); /* nobody has a reference to it */
    kelp_job_link_ready(&job_link, &second, 2 * STEPPER_BLOCK);
    ck_assert_uint_eq(job_link.ready.partition, 2);
    ck_assert_uint_eq(job_link.ready.first, 2 * STEPPER_BLOCK);
    kelp_gradient_unref(second.gradient);
}

/* With falling numbers, whole partitions, and not partition 0: the sums come with it. */
KELP_TEST(whole_partitions_are_ready)
{
    hand_out(0, false);
    const struct kelp_node node = make_node();
    kelp_job_link_ready(&job_link, &node, 2 * STEPPER_BLOCK + 1);
    ck_assert_uint_eq(job_link.ready.partition, KELP__JOB_LINK_NOTHING);
    kelp_job_link_ready(&job_link, &node, STEPPER_BLOCK + 1);
    ck_assert_uint_eq(job_link.ready.partition, 2);
    kelp_job_link_ready(&job_link, &node, 0);
    ck_assert_uint_eq(job_link.ready.partition, 2);
    kelp_job_link_ready(&job_link, &node, STEPPER_BLOCK);
    ck_assert_uint_eq(job_link.ready.partition, 1);
    kelp_gradient_unref(node.gradient);
}

/* Weights that are there are not waited for, nor those of a range that is empty. */
KELP_TEST(weights_that_are_there)
{
    hand_out(1, true);
    arrived[0] = 2;
    arrived[1] = 2;
    ck_assert(kelp_job_link_await(&job_link, 0, 2 * STEPPER_BLOCK));
    ck_assert(kelp_job_link_await(&job_link, 3 * STEPPER_BLOCK, 0));
    hand_out(1, false);
    ck_assert(kelp_job_link_await(&job_link, 0, 3 * STEPPER_BLOCK));
}
