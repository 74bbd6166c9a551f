/*
 * Restores of real kelp-ps processes: storage that comes late or never, damage, manifests that do
 * not fit.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster/shard_snapshots.h"
#include "tests/lib/suite.h"

#define PATH_BYTES 500

KELP_SUITE(.before = etcd_fixture_require)

KELP_CASE("restores", .timeout_s = 120, .setup = shard_cluster_set_up_momentum,
          .teardown = shard_cluster_tear_down)

/* A checkpoint of step 2 on one shard, and where its one storage lies. */
static void make_checkpoint(struct kelp_manifest *manifest, char *path, size_t path_bytes)
{
    struct shard_cluster cluster;

    shard_cluster_gather(&cluster, 1, true);
    shard_cluster_begin(&cluster, 1);
    shard_cluster_order(&cluster, 1, 2, "step-2.g1");
    shard_cluster_train_to(&cluster, 2);
    shard_cluster_commit(&cluster, 1, "step-2.g1", manifest);
    shard_cluster_end(&cluster);
    (void)snprintf(path, path_bytes, "%s/" KELP_CHECKPOINTS_FOLDER "/step-2.g1/%s", shard_bench.run,
                   manifest->storages[0]);
}

/* Until a report says that it waits; the text. */
static void await_waiting(struct shard_cluster *cluster, const char *name)
{
    for (bool waits = false; !waits;) {
        Kelp__V1__ShardReport *report = shard_take_report(&cluster->control[0]);
        ck_assert_msg(report->status == KELP_OK, "%s", report->error);
        ck_assert_uint_ne(report->loaded_generation, cluster->generation);
        waits = report->waiting[0] != '\0';
        if (waits) {
            ck_assert_ptr_nonnull(strstr(report->waiting, name));
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

/* A report comes that says why it cannot go on. */
static void await_failure(struct shard_cluster *cluster, kelp_status status, const char *name,
                          const char *other)
{
    for (bool failed = false; !failed;) {
        Kelp__V1__ShardReport *report = shard_take_report(&cluster->control[0]);
        ck_assert_uint_ne(report->loaded_generation, cluster->generation);
        failed = report->status != KELP_OK;
        if (failed) {
            ck_assert_int_eq(report->status, status);
            ck_assert_msg(strstr(report->error, name) && strstr(report->error, other), "%s",
                          report->error);
            ck_assert_str_eq(report->waiting, "");
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

/* A shard waits for the storage of a checkpoint, which has been moved from `path` to `away`. */
static void restore_without_storage(struct shard_cluster *cluster, struct kelp_manifest *manifest,
                                    char path[PATH_BYTES], char away[PATH_BYTES])
{
    make_checkpoint(manifest, path, PATH_BYTES);
    (void)snprintf(away, PATH_BYTES, "%s/away", shard_bench.run);
    ck_assert_int_eq(rename(path, away), 0);
    shard_cluster_gather(cluster, 1, false);
    cluster->generation = 2;
    shard_cluster_open_control(cluster);
    shard_cluster_send_restore(cluster, manifest, true);
    await_waiting(cluster, manifest->storages[0]);
}

/* Storage that is not there yet is waited for by name, and found when it comes. */
KELP_TEST(storage_that_comes_late)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;
    char path[PATH_BYTES], away[PATH_BYTES];

    restore_without_storage(&cluster, &manifest, path, away);
    ck_assert_int_eq(rename(away, path), 0);
    shard_cluster_await_loaded(&cluster);
    shard_cluster_open_worker(&cluster, 2);
    ck_assert_uint_eq(cluster.word.version, 2);
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}

/* A newer map ends the wait; so does failure.storage_wait, which is said. */
KELP_TEST(storage_that_never_comes)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;
    char path[PATH_BYTES], away[PATH_BYTES];

    restore_without_storage(&cluster, &manifest, path, away);
    cluster.generation = 3;
    shard_cluster_send_map(&cluster, 0, false, NULL, 0);
    shard_cluster_await_loaded(&cluster); /* and no failure was reported */
    cluster.generation = 4;
    shard_cluster_send_restore(&cluster, &manifest, false);
    await_waiting(&cluster, manifest.storages[0]);
    await_failure(&cluster, KELP_ERR_NOT_FOUND, "step-2.g1", manifest.storages[0]);
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}

/* The process can be stopped while it waits. */
KELP_TEST(stop_while_waiting)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;
    char path[PATH_BYTES], away[PATH_BYTES];

    restore_without_storage(&cluster, &manifest, path, away);
    shard_cluster_end(&cluster);
    kelp_manifest_fini(&manifest);
}

/* Flip one bit in the middle of the largest file of a folder. */
static void damage(const char *path)
{
    char name[900] = "";
    struct stat stat_buffer;
    off_t largest = 0;
    DIR *entries = opendir(path);

    ck_assert_ptr_nonnull(entries);
    for (const struct dirent *entry; (entry = readdir(entries));) {
        char file[800];
        (void)snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        if (stat(file, &stat_buffer) == 0 && S_ISREG(stat_buffer.st_mode) &&
            stat_buffer.st_size > largest) {
            largest = stat_buffer.st_size;
            (void)snprintf(name, sizeof(name), "%s", file);
        }
    }
    (void)closedir(entries);
    int fd = open(name, O_RDWR);
    unsigned char byte;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, largest / 2), 1);
    byte ^= 4;
    ck_assert_int_eq(pwrite(fd, &byte, 1, largest / 2), 1);
    ck_assert_int_eq(close(fd), 0);
}

/* Damage is said, with its place, and never loaded; the checkpoint before it still is. */
KELP_TEST(damage_is_found)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;
    char path[PATH_BYTES], digest[KELP_DIGEST_HEX_BYTES];

    make_checkpoint(&manifest, path, sizeof(path));
    shard_cluster_gather(&cluster, 1, false);
    cluster.generation = 2;
    shard_cluster_open_control(&cluster);
    memcpy(digest, manifest.parts[1].digest, sizeof(digest));
    memset(manifest.parts[1].digest, '0', sizeof(digest) - 1);
    shard_cluster_send_restore(&cluster, &manifest, true);
    memcpy(manifest.parts[1].digest, digest, sizeof(digest));
    await_failure(&cluster, KELP_ERR_CORRUPT, "step-2.g1", "partition 1");
    cluster.generation = 3;
    shard_cluster_send_restore(&cluster, &manifest, false);
    shard_cluster_await_loaded(&cluster);
    damage(path);
    cluster.generation = 4;
    shard_cluster_send_restore(&cluster, &manifest, false);
    await_failure(&cluster, KELP_ERR_CORRUPT, "step-2.g1", manifest.storages[0]);
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}

/* A map that restores needs the manifest of that version; a model of another size is no damage. */
KELP_TEST(manifests_are_checked)
{
    struct shard_cluster cluster;
    struct kelp_manifest manifest;
    char path[PATH_BYTES];

    make_checkpoint(&manifest, path, sizeof(path));
    shard_cluster_gather(&cluster, 1, false);
    cluster.generation = 2;
    char *text = shard_cluster_manifest_text(&manifest);
    const char *const texts[] = {"", "{}", text};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        shard_cluster_open_control(&cluster);
        shard_cluster_send_map(&cluster, 0, true, texts[i], 1); /* the manifest is of version 2 */
        shard_stream_await_closed(&cluster.control[0]);
        ck_assert_int_eq(cluster.control[0].status, KELP_ERR_FORMAT);
        shard_stream_close(&cluster.control[0]);
    }
    free(text);
    shard_cluster_open_control(&cluster);
    manifest.part_count--;
    shard_cluster_send_restore(&cluster, &manifest, true);
    await_failure(&cluster, KELP_ERR_MISMATCH, "step-2.g1", "partitions");
    manifest.part_count++;
    /* As many bytes as another optimizer's state would have. */
    cluster.generation = 3;
    manifest.parts[1].bytes *= 2;
    shard_cluster_send_restore(&cluster, &manifest, false);
    await_failure(&cluster, KELP_ERR_MISMATCH, "step-2.g1", "optimizer");
    kelp_manifest_fini(&manifest);
    shard_cluster_end(&cluster);
}

/* A shard that comes back when the restored checkpoint has been removed hosts nothing, and takes
 * the map without a manifest. */
KELP_TEST(nothing_to_restore)
{
    struct shard_cluster cluster;

    shard_cluster_gather(&cluster, 1, false);
    cluster.generation = 3;
    cluster.elsewhere = true;
    shard_cluster_open_control(&cluster);
    shard_cluster_send_map(&cluster, 0, true, NULL, 2);
    shard_cluster_await_loaded(&cluster);
    shard_cluster_end(&cluster);
}
