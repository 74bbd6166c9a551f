/* Snapshots of one partition: at which state it keeps which, and what ends an order. */
#include "tests/lib/cores/partition_bench.h"
#include "tests/lib/suite.h"

static void order_snapshot(uint64_t serial, uint64_t step)
{
    struct kelp_snapshot_order order = {.serial = serial, .generation = 3, .step = step};

    ck_assert_int_eq(kelp_partition_snapshot(bench.partition, &order, &bench.actions), KELP_OK);
    bench_take_actions();
}

KELP_CASE("other partitions", .setup = bench_open_other, .teardown = bench_close)

/* At once where it stands; when it gets there, before anything of the next step is applied; PAST
 * behind it. Each order ends once. */
KELP_TEST(snapshot_at_its_step)
{
    order_snapshot(5, 0);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.snapshot.snapshot.serial, 5);
    ck_assert(!bench.snapshot.snapshot.has_control);
    order_snapshot(6, 2);
    bench_train_step();
    ck_assert_uint_eq(bench.snapshot_count, 1);
    bench_train_step();
    ck_assert_uint_eq(bench.snapshot_count, 2);
    ck_assert_uint_eq(bench.snapshot.snapshot.serial, 6);
    ck_assert_uint_eq(bench.snapshot.snapshot.step, 2);
    bench_train_step();
    ck_assert_uint_eq(bench.snapshot_count, 2);
    order_snapshot(7, 2);
    ck_assert_uint_eq(bench.past_count, 1);
    ck_assert_uint_eq(bench.past.past.serial, 7);
    ck_assert_uint_eq(bench.past.past.step, 3);
    bench_train_step();
    ck_assert_uint_eq(bench.past_count, 1);
}

/* While a step is applied its weights are half old, half new: too late for them, in time for the
 * next ones. */
KELP_TEST(snapshot_while_applying)
{
    bench_push(0, 4, "r");
    order_snapshot(1, 0);
    ck_assert_uint_eq(bench.snapshot_count, 0);
    ck_assert_uint_eq(bench.past_count, 1);
    ck_assert_uint_eq(bench.past.past.step, 1);
    order_snapshot(2, 1);
    ck_assert_uint_eq(bench.snapshot_count, 0);
    bench_finish_apply(true);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.snapshot.snapshot.step, 1);
}

/* A later order takes the place of one that waits, serial 0 too; other generations are ignored. */
KELP_TEST(snapshot_orders_replace_each_other)
{
    struct kelp_snapshot_order older = {.serial = 9, .generation = 2, .step = 1};

    order_snapshot(1, 1);
    order_snapshot(2, 2);
    ck_assert_int_eq(kelp_partition_snapshot(bench.partition, &older, &bench.actions), KELP_OK);
    bench_train_step();
    ck_assert_uint_eq(bench.snapshot_count, 0);
    bench_train_step();
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.snapshot.snapshot.serial, 2);
    order_snapshot(3, 3);
    order_snapshot(0, 0);
    bench_train_step();
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.past_count, 0);
}

/* Unloading forgets an order: the next generation knows nothing of it. */
KELP_TEST(snapshot_ends_with_the_generation)
{
    struct kelp_partition_start start = {.generation = 3, .map_epoch = 7};

    order_snapshot(1, 1);
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    order_snapshot(2, 1); /* ABSENT */
    bench_take_actions();
    kelp_partition_load(bench.partition, &start);
    bench_train_step();
    ck_assert_uint_eq(bench.snapshot_count, 0);
    ck_assert_uint_eq(bench.past_count, 0);
}

/* A gradient that is not finite was not applied: the state before it is whole, and can be saved. */
KELP_TEST(snapshot_of_a_failed_partition)
{
    bench_push(0, 4, "r");
    bench_finish_apply(false);
    order_snapshot(1, 0);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    order_snapshot(2, 1);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.past_count, 0);
}

KELP_CASE("partition 0", .setup = bench_open_control, .teardown = bench_close)

/* Partition 0 hands out its control state: between evaluations, and when the job is done. */
KELP_TEST(snapshot_has_the_control_state)
{
    order_snapshot(1, 2);
    bench_train_step();
    bench_push(0, 4, "r");
    bench_finish_apply(true);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert(bench.snapshot.snapshot.has_control);
    ck_assert_uint_eq(bench.snapshot.snapshot.version, 2);
    ck_assert_int_eq((int)bench.snapshot.snapshot.control.kind, KELP_STEP_EVALUATE_VAL);
    bench_push(0, 4, NULL);
    order_snapshot(2, 2);
    ck_assert_uint_eq(bench.snapshot.snapshot.version, 3);
    ck_assert_int_eq((int)bench.snapshot.snapshot.control.kind, KELP_STEP_EVALUATE_TEST);
    ck_assert_uint_eq(bench.snapshot.snapshot.word.version, 3);
    while (bench_view().word.kind != KELP_STEP_DONE) {
        bool training = bench_view().word.kind == KELP_STEP_TRAIN;
        bench_push(0, 4, training ? "r" : NULL);
        if (training) {
            bench_finish_apply(true);
        }
    }
    order_snapshot(3, 4);
    ck_assert_uint_eq(bench.snapshot_count, 3);
    ck_assert_int_eq((int)bench.snapshot.snapshot.control.kind, KELP_STEP_DONE);
}
