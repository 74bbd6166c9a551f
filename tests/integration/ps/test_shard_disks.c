/*
 * Snapshots of real kelp-ps processes on disks that are full, broken or hang: steps do not wait for
 * the disk, and what they overwrite was copied before.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/faultdisk/faultdisk.h"
#include "tests/lib/cluster/shard_snapshots.h"
#include "tests/lib/suite.h"

KELP_SUITE(.before = etcd_fixture_require)

static struct kelp_faultdisk *disk;

static void put_environment(const char *entry)
{
    char name[32];
    const char *equals = strchr(entry, '=');

    (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - entry), entry);
    ck_assert_int_eq(setenv(name, equals + 1, 1), 0);
}

/* Shards that are gathered from now on write to a disk that does what the test says. */
static void preload_disk(void)
{
    static struct kelp_faultdisk_environment environment;
    struct kelp_error error = {.text = ""};
    char library[500], control[200];
    const char *bin = getenv("KELP_BIN");

    (void)snprintf(library, sizeof(library), "%s/kelp-faultdisk.so",
                   bin ? bin : "build/release/bin");
    (void)snprintf(control, sizeof(control), "%s/control", shard_bench.folder.path);
    kelp_status status = kelp_faultdisk_open(control, &disk, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    struct kelp_faultdisk_paths paths = {
        .library = library, .control = control, .root = shard_bench.run};
    status = kelp_faultdisk_environment(&paths, &environment, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    put_environment(environment.preload);
    put_environment(environment.control);
    put_environment(environment.root);
}

static void set_up_disk(void)
{
    shard_cluster_set_up("adam", NULL, "2");
    preload_disk();
}

static void tear_down_disk(void)
{
    kelp_faultdisk_close(disk);
    (void)unsetenv("LD_PRELOAD");
    shard_cluster_tear_down();
}

/* Writes and syncs wait until the disk is set to something else. */
static const struct kelp_faultdisk_fault hanging = {.mode = KELP_FAULTDISK_SLOW,
                                                    .slow_ms = 10 * SHARD_WAIT_MS};

static void release_disk(void)
{
    kelp_faultdisk_set(disk, &(struct kelp_faultdisk_fault){.mode = KELP_FAULTDISK_OK});
}

/* Until the writing thread of the shard stands in a call. */
static void await_hang(struct shard_cluster *cluster)
{
    for (uint32_t ms = 0; kelp_faultdisk_hits(disk) == 0; ms += 5) {
        ck_assert_uint_lt(ms, SHARD_WAIT_MS);
        shard_stream_pass(&cluster->control[0], 5);
    }
}

KELP_CASE("disks", .timeout_s = 120, .setup = set_up_disk, .teardown = tear_down_disk)

/* Full, broken: the snapshot fails, with the reason, training goes on to the same bits, and the
 * next snapshot works once the disk does. */
KELP_TEST(disks_that_fail)
{
    static const struct {
        enum kelp_faultdisk_mode mode;
        kelp_status status;
    } faults[] = {{KELP_FAULTDISK_FULL, KELP_ERR_NO_SPACE}, {KELP_FAULTDISK_ERROR, KELP_ERR_IO}};
    struct shard_cluster cluster, calm;
    struct kelp_manifest manifest, other;

    shard_cluster_gather(&cluster, 1, false);
    shard_cluster_begin(&cluster, 1);
    for (uint64_t i = 0; i < KELP_ARRAY_COUNT(faults); i++) {
        /* One in the beginning, one somewhere in the middle. */
        struct kelp_faultdisk_fault fault = {.mode = faults[i].mode, .after = i * 6};
        kelp_faultdisk_set(disk, &fault);
        shard_cluster_order(&cluster, i + 1, i + 1, "step-x");
        shard_cluster_train_to(&cluster, i + 2);
        shard_cluster_expect_end(&cluster, i + 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED,
                                 faults[i].status);
        ck_assert_uint_gt(kelp_faultdisk_hits(disk), 0);
    }
    release_disk();
    shard_cluster_order(&cluster, 9, 3, "step-3.g1");
    shard_cluster_commit(&cluster, 9, "step-3.g1", &manifest);
    shard_cluster_gather(&calm, 1, false);
    shard_cluster_begin(&calm, 1);
    shard_cluster_train_to(&calm, 3);
    shard_cluster_order(&calm, 1, 3, "calm");
    shard_cluster_commit(&calm, 1, "calm", &other);
    shard_cluster_expect_parts(&manifest, &other);
    kelp_manifest_fini(&manifest);
    kelp_manifest_fini(&other);
    shard_cluster_end(&cluster);
    shard_cluster_end(&calm);
}

/* A disk that hangs: steps do not wait for it, and what they overwrite was copied before. */
KELP_TEST(steps_on_a_disk_that_hangs)
{
    struct shard_cluster cluster, calm;
    struct kelp_manifest manifest, other;

    shard_cluster_gather(&cluster, 2, false);
    shard_cluster_begin(&cluster, 1);
    kelp_faultdisk_set(disk, &hanging);
    shard_cluster_order(&cluster, 1, 1, "step-1.g1");
    shard_cluster_train_to(&cluster, 1);
    await_hang(&cluster);
    shard_cluster_train_to(&cluster, 6);
    release_disk();
    shard_cluster_commit(&cluster, 1, "step-1.g1", &manifest);
    shard_cluster_order(&cluster, 2, 4, "step-4.g1"); /* in the first one's buffers */
    shard_cluster_gather(&calm, 1, false);
    shard_cluster_begin(&calm, 1);
    shard_cluster_train_to(&calm, 1);
    shard_cluster_order(&calm, 1, 1, "calm");
    shard_cluster_commit(&calm, 1, "calm", &other);
    shard_cluster_expect_parts(&manifest, &other);
    kelp_manifest_fini(&manifest);
    kelp_manifest_fini(&other);
    shard_cluster_train_to(&calm, 6);
    shard_cluster_expect_weights(&cluster, &calm);
    shard_cluster_order(&calm, 2, 4, "calm-4");
    shard_cluster_commit(&cluster, 2, "step-4.g1", &manifest);
    shard_cluster_commit(&calm, 2, "calm-4", &other);
    ck_assert_uint_eq(manifest.version, 6);
    shard_cluster_expect_parts(&manifest, &other);
    kelp_manifest_fini(&manifest);
    kelp_manifest_fini(&other);
    shard_cluster_end(&cluster);
    shard_cluster_end(&calm);
}

/* Given up while the disk hangs: nothing is left, and the next one is written. */
KELP_TEST(given_up_on_a_disk_that_hangs)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;

    shard_cluster_gather(&cluster, 1, false);
    shard_cluster_begin(&cluster, 1);
    kelp_faultdisk_set(disk, &hanging);
    shard_cluster_order(&cluster, 1, 1, "step-1.g1");
    shard_cluster_train_to(&cluster, 1);
    await_hang(&cluster);
    shard_cluster_train_to(&cluster, 2);
    shard_cluster_give_up(&cluster, 0, 1);
    shard_cluster_expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED,
                             KELP_ERR_CLOSED);
    release_disk();
    shard_cluster_order(&cluster, 2, 2, "step-2.g1");
    shard_cluster_give_up(&cluster, 0,
                          1); /* of a leader that was deposed meanwhile: not its successor's */
    shard_cluster_commit(&cluster, 2, "step-2.g1", &manifest);
    ck_assert_uint_eq(shard_cluster_entries_of("step-1.g1"), 0);
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}
