/*
 * Snapshots of real kelp-ps processes: training goes on from one to the same bits, on any number of
 * shards, and whatever becomes of an order, the next one finds the shard ready.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster/shard_snapshots.h"
#include "tests/lib/suite.h"

KELP_SUITE(.before = etcd_fixture_require)

/* ---- going on from a snapshot -------------------------------------------------------------- */

struct shape {
    const char *optimizer;
    const char *momentum;
    uint32_t from; /* shards */
    uint32_t to;
};

static const struct shape shapes[] = {
    {"sgd", "0.5", 1, 2}, {"adam", NULL, 2, 3}, {"adamw", NULL, 3, 1}, {"sgd", NULL, 2, 2}};

KELP_CASE("bits", .timeout_s = 120)

/* Taken while steps go on, restored onto another number of processes: the same bits as the run that
 * was never disturbed. Taken at rest: the same parts. */
KELP_LOOP_TEST(goes_on_to_the_same_bits, 0, KELP_ARRAY_COUNT(shapes))
{
    const struct shape *shape = &shapes[_i];
    struct shard_cluster before, after;
    struct kelp_manifest manifest, again, rest;

    shard_cluster_set_up(shape->optimizer, shape->momentum, "2");
    shard_cluster_gather(&before, shape->from, true);
    shard_cluster_begin(&before, 1);
    shard_cluster_train_to(&before, 1);
    shard_cluster_order(&before, 9, 3, "step-3.g1");
    shard_cluster_train_to(&before, 8); /* two evaluations after step 4, then two steps more */
    shard_cluster_commit(&before, 9, "step-3.g1", &manifest);
    ck_assert_uint_eq(manifest.step, 3);
    ck_assert_uint_eq(manifest.version, 3);

    shard_cluster_gather(&after, shape->to, false);
    shard_cluster_restore(&after, 2, &manifest);
    shard_cluster_order(&after, 1, 3,
                        "step-3.g2"); /* at rest: nothing of the state was lost or added */
    shard_cluster_commit(&after, 1, "step-3.g2", &again);
    shard_cluster_expect_parts(&manifest, &again);
    shard_cluster_train_to(&after, 8);
    shard_cluster_expect_weights(&before, &after);

    shard_cluster_order(&before, 10, 6, "step-6.g1");
    shard_cluster_commit(&before, 10, "step-6.g1", &rest);
    ck_assert_uint_eq(rest.version, 8);
    kelp_manifest_fini(&again);
    shard_cluster_order(&after, 2, 6, "step-6.g2");
    shard_cluster_commit(&after, 2, "step-6.g2", &again);
    shard_cluster_expect_parts(&rest, &again);
    kelp_manifest_fini(&manifest);
    kelp_manifest_fini(&again);
    kelp_manifest_fini(&rest);
    shard_cluster_end(&before);
    shard_cluster_end(&after);
    shard_cluster_tear_down();
}

KELP_CASE("orders", .timeout_s = 120, .setup = shard_cluster_set_up_momentum,
          .teardown = shard_cluster_tear_down)

/* Between evaluations and at the end: the control state says where, and a job that is done stays
 * done. */
KELP_TEST(evaluations_and_the_end)
{
    struct shard_cluster cluster, after;
    struct kelp_manifest middle, done;

    shard_cluster_gather(&cluster, 1, true);
    shard_cluster_begin(&cluster, 1);
    shard_cluster_train_to(&cluster, 5);
    ck_assert_int_eq((int)cluster.word.kind, KELP_STEP_EVALUATE_TEST);
    shard_cluster_order(&cluster, 1, 4, "step-4.g1");
    shard_cluster_commit(&cluster, 1, "step-4.g1", &middle);
    ck_assert_uint_eq(middle.version, 5);
    shard_cluster_train_to(&cluster, 13);
    ck_assert_int_eq((int)cluster.word.kind, KELP_STEP_DONE);
    shard_cluster_order(&cluster, 2, 8, "step-8.g1");
    shard_cluster_commit(&cluster, 2, "step-8.g1", &done);
    ck_assert_uint_eq(done.version, 13);

    shard_cluster_gather(&after, 2, false);
    shard_cluster_restore(&after, 2, &middle);
    ck_assert_int_eq((int)after.word.kind, KELP_STEP_EVALUATE_TEST);
    shard_cluster_train_to(&after, 13);
    shard_cluster_expect_weights(&cluster, &after);
    shard_cluster_end(&after);
    shard_cluster_gather(&after, 1, false);
    shard_cluster_restore(&after, 3, &done);
    ck_assert_int_eq((int)after.word.kind, KELP_STEP_DONE);
    shard_cluster_expect_weights(&cluster, &after);
    shard_cluster_end(&after);
    shard_cluster_end(&cluster);
    kelp_manifest_fini(&middle);
    kelp_manifest_fini(&done);
}

/* ---- orders -------------------------------------------------------------------------------- */

/* Whatever becomes of an order, the next one finds the shard ready, and nothing is left of it. */
KELP_TEST(orders_that_come_to_nothing)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;

    shard_cluster_gather(&cluster, 1, true);
    shard_cluster_begin(&cluster, 1);
    shard_cluster_train_to(&cluster, 2);
    shard_cluster_order(&cluster, 1, 1, "step-1.g1");
    shard_cluster_expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_PAST, KELP_OK);
    shard_cluster_order(&cluster, 2, 9, "step-9.g1");
    shard_cluster_give_up(&cluster, 0, 1); /* not what is under way: ignored */
    shard_cluster_give_up(&cluster, 0, 2);
    shard_cluster_expect_end(&cluster, 2, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED,
                             KELP_ERR_CLOSED);
    shard_cluster_order(&cluster, 3, 2, "../elsewhere");
    shard_cluster_expect_end(&cluster, 3, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED,
                             KELP_ERR_FORMAT);
    shard_cluster_order_from(&cluster, 0, 4, 7, 2,
                             "step-2.g7"); /* of a generation that is not here yet */
    shard_cluster_expect_end(&cluster, 4, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, KELP_ERR_BUSY);
    shard_cluster_order(&cluster, 5, 4, "step-4.g1");
    shard_cluster_order(&cluster, 6, 3, "step-3.g1"); /* instead of it */
    shard_cluster_train_to(&cluster, 4);
    shard_cluster_commit(&cluster, 6, "step-3.g1", &manifest);
    ck_assert_uint_eq(shard_cluster_entries_of("step-3.g1"), 1);
    ck_assert_uint_eq(shard_cluster_entries_of("step-1.g1") + shard_cluster_entries_of("step-4.g1"),
                      0);
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}

/* A new generation ends what is under way, and orders of the one before are not heard any more. */
KELP_TEST(generations_end_snapshots)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;

    shard_cluster_gather(&cluster, 1, true);
    shard_cluster_begin(&cluster, 1);
    shard_cluster_order(&cluster, 1, 5, "step-5.g1");
    shard_cluster_train_to(&cluster, 1);
    shard_stream_close(&cluster.worker[0]);
    cluster.generation = 2;
    shard_cluster_send_map(&cluster, 0, false, NULL, 0);
    shard_cluster_expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED,
                             KELP_ERR_OLD_GENERATION);
    shard_cluster_await_loaded(&cluster);
    shard_cluster_open_worker(&cluster, 0);
    shard_cluster_order_from(&cluster, 0, 2, 1, 1, "step-1.g1");
    shard_cluster_order(&cluster, 3, 1, "step-1.g2");
    shard_cluster_train_to(&cluster, 1);
    shard_cluster_commit(&cluster, 3, "step-1.g2", &manifest);
    ck_assert_uint_eq(shard_cluster_entries_of("step-1.g1"), 0);
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}

/* A start without a place for checkpoints says so. */
KELP_TEST(without_a_run)
{
    struct shard_cluster cluster;

    ck_assert_int_eq(setenv("KELP_RUN", "", 1), 0);
    shard_cluster_gather(&cluster, 1, false);
    shard_cluster_begin(&cluster, 1);
    shard_cluster_order(&cluster, 1, 0, "step-0.g1");
    shard_cluster_expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED,
                             KELP_ERR_UNSUPPORTED);
    shard_cluster_end(&cluster);
}

/* What a former start of the shard left unfinished is removed; nothing else is. */
KELP_TEST(leftovers_are_removed)
{
    static const char *const names[] = {"shard-1.00000000000000aa.writing",
                                        "shard-1.00000000000000aa",
                                        "shard-11.00000000000000aa.writing"};
    struct shard_cluster cluster;
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER, shard_bench.run);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/step-7.g1", shard_bench.run);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/step-7.g1/%s",
                       shard_bench.run, names[i]);
        ck_assert_int_eq(mkdir(path, 0755), 0);
    }
    shard_cluster_gather(&cluster, 1, false); /* shard-1 */
    shard_cluster_begin(&cluster, 1);
    shard_cluster_order(&cluster, 1, 0, "step-0.g1"); /* the thread has come so far */
    struct kelp_manifest manifest;
    shard_cluster_commit(&cluster, 1, "step-0.g1", &manifest);
    ck_assert_uint_eq(shard_cluster_entries_of("step-7.g1"), 2);
    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/step-7.g1/%s",
                   shard_bench.run, names[0]);
    ck_assert_int_ne(access(path, F_OK), 0);
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}
