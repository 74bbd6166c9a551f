/* The size of the cluster, from the request to etcd. */
#include <string.h>

#include "coordinator/term/parts/size.h"
#include "tests/lib/suite.h"

static struct kelp_job job;
static struct kelp_size size;

static void setup(void)
{
    memset(&job, 0, sizeof(job));
    job.cluster.workers = (struct kelp_range){.min = 2, .max = 2};
    job.cluster.lanes = 8;
    job.cluster.shards = 2;
    job.cluster.replicas = 2;
    kelp_size_init(&size, &job);
}

static kelp_status ask(uint32_t least, uint32_t most, struct kelp_error *reterr)
{
    return kelp_size_ask(&size, &(struct kelp_targets){.workers_min = least, .workers_max = most},
                         reterr);
}

KELP_CASE("size", .setup = setup)

/* A size counts once it stands in etcd; what was not taken is tried again, later. */
KELP_TEST(counts_once_written)
{
    ck_assert_ptr_null(kelp_size_due(&size, 0));
    ck_assert_int_eq(ask(1, 4, NULL), KELP_OK);
    const struct kelp_targets *due = kelp_size_due(&size, 10);
    ck_assert_ptr_nonnull(due);
    ck_assert_uint_eq(due->workers_max, 4);
    ck_assert_uint_eq(size.now.workers_max, 2);
    kelp_size_sent(&size);
    ck_assert_ptr_null(kelp_size_due(&size, 20));
    ck_assert(!kelp_size_written(&size, NULL, 20));
    ck_assert_ptr_null(kelp_size_due(&size, 20));
    ck_assert_ptr_nonnull(kelp_size_due(&size, 20 + KELP_COORDINATOR_RETRY_MS));
    kelp_size_sent(&size);
    const struct kelp_targets written = size.wanted;
    ck_assert(kelp_size_written(&size, &written, 900));
    ck_assert_uint_eq(size.now.workers_max, 4);
    ck_assert_ptr_null(kelp_size_due(&size, UINT64_MAX));
    ck_assert_uint_eq(kelp_targets_least_workers(&size.now), 1);
}

/* One that comes while another is on its way is written after it. */
KELP_TEST(the_last_request_wins)
{
    ck_assert_int_eq(ask(1, 4, NULL), KELP_OK);
    const struct kelp_targets first = size.wanted;
    kelp_size_sent(&size);
    ck_assert_int_eq(ask(2, 2, NULL), KELP_OK); /* as it was */
    ck_assert(kelp_size_written(&size, &first, 10));
    const struct kelp_targets *due = kelp_size_due(&size, 10);
    ck_assert_ptr_nonnull(due);
    ck_assert_uint_eq(due->workers_max, 2);
}

/* A job with another size than when it was asked for counts itself. */
KELP_TEST(a_new_size_of_the_job_counts)
{
    struct kelp_found found = {
        .has_scale = true,
        .scale = {.targets = {.workers_min = 3, .workers_max = 6, .shards = 2},
                  .of_job = {.workers_min = 2, .workers_max = 2, .shards = 2}}};
    ck_assert(kelp_size_read(&size, &found));
    ck_assert_uint_eq(size.now.workers_max, 6);
    ck_assert_uint_eq(kelp_targets_least_workers(&size.now), 3);
    found.scale.of_job.workers_max = 4;
    ck_assert(kelp_size_read(&size, &found));
    ck_assert_uint_eq(size.now.workers_max, 2);
    found.has_scale = false;
    ck_assert(!kelp_size_read(&size, &found));
}

/* What cannot be changes nothing. */
KELP_TEST(impossible_sizes)
{
    struct kelp_error error;
    ck_assert_int_eq(ask(0, 0, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(ask(0, 3, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(ask(3, 2, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(ask(1, 9, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "8 lanes"));
    ck_assert_int_eq(kelp_size_ask(&size, &(struct kelp_targets){.shards = 1}, &error),
                     KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "2 replicas"));
    ck_assert_int_eq(kelp_size_ask(&size, &(struct kelp_targets){.shards = 99999}, &error),
                     KELP_ERR_INVALID);
    ck_assert_ptr_null(kelp_size_due(&size, 0));
    ck_assert_uint_eq(size.now.workers_max, 2);
    ck_assert_int_eq(kelp_size_ask(&size, &(struct kelp_targets){.shards = 3}, &error), KELP_OK);
    ck_assert_uint_eq(kelp_size_due(&size, 0)->shards, 3);
    ck_assert_uint_eq(kelp_size_due(&size, 0)->workers_max, 2);
}

/* Names of processes that are to go are kept beside the numbers, also when those are the job's
 * again; they mean one start of a process. */
KELP_TEST(drains_are_kept)
{
    struct kelp_found found = {.has_scale = true};
    ck_assert_int_eq(kelp_size_drain(&size, "shard-1", 7, NULL), KELP_OK);
    const struct kelp_targets *due = kelp_size_due(&size, 10);
    ck_assert_ptr_nonnull(due);
    ck_assert_int_eq(ask(1, 4, NULL), KELP_OK); /* together */
    found.scale.targets = size.wanted;
    found.scale.of_job = kelp_targets_of_job(&job);
    kelp_size_sent(&size);
    ck_assert(kelp_size_written(&size, &found.scale.targets, 10));
    ck_assert_ptr_null(kelp_size_due(&size, 10));
    ck_assert(kelp_targets_drain(&size.now, "shard-1", 7));
    ck_assert(!kelp_targets_drain(&size.now, "shard-1", 8));
    ck_assert_uint_eq(size.now.workers_max, 4);

    job.cluster.shards = 3; /* another size: the numbers go, the names stay */
    kelp_size_init(&size, &job);
    ck_assert(kelp_size_read(&size, &found));
    ck_assert_uint_eq(size.now.workers_max, 2);
    ck_assert(kelp_targets_drain(&size.now, "shard-1", 7));
    kelp_size_drained(&size, "shard-1", 7);
    ck_assert_ptr_nonnull(kelp_size_due(&size, 10));
    ck_assert_uint_eq(kelp_size_due(&size, 10)->drain_count, 0);
}

/* There is room for so many at a time. */
KELP_TEST(drains_are_bounded)
{
    struct kelp_error error;
    for (uint64_t i = 1; i <= KELP_COORDINATOR_DRAINS_MAX; i++) {
        ck_assert_int_eq(kelp_size_drain(&size, "shard-1", i, NULL), KELP_OK);
    }
    ck_assert_int_eq(kelp_size_drain(&size, "shard-1", 1, NULL), KELP_OK); /* known */
    ck_assert_int_eq(kelp_size_drain(&size, "shard-1", 1000, &error), KELP_ERR_LIMIT);
    ck_assert_uint_eq(size.wanted.drain_count, KELP_COORDINATOR_DRAINS_MAX);
}
