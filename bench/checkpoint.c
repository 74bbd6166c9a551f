/*
 * What checkpoints cost.
 *
 *     bench/checkpoint [MEGABYTES [ROUNDS [COMPUTE_MS [THREADS]]]]    default: 256, 6, 100 and 1
 *
 * The store alone first: written durable and read back, by one thread and by two. Then a real
 * kelp-ps with so many megabytes of state (weights and the two slots of Adam, values that do not
 * compress) and one scripted worker, which computes on THREADS processors for COMPUTE_MS before
 * each push: rounds of 50 steps, in turn without and with a checkpoint. A step belongs to a
 * checkpoint when it overlaps the time from the order to the report that everything is durable.
 */
#include <check.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/training/manifest.h"
#include "ps/storage/snapshot_store.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/cluster/scripted_worker.h"

#define PART_BYTES   (4u << 20)
#define ITEMS        3 /* weights and two slots */
#define STORE_ROUNDS 5
#define ROUND_STEPS  50
#define ORDER_AT     10 /* step of a round at which its checkpoint is ordered */
#define WARM_STEPS   10

#define COMPUTE_THREADS_MAX 64

static uint64_t megabytes = 256;
static uint64_t rounds = 6;
static double compute_s = 0.1;
static unsigned compute_threads = 1;
static char folder[64] = "/tmp/kelp-checkpoint-XXXXXX";
static struct kelp_error error;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        kelp_status status_of_call = (call);                                                       \
        ck_assert_msg(status_of_call == KELP_OK, "%s", error.text);                                \
    } while (0)

static double now_s(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The value that a share of them does not exceed; sorts. */
static double quantile(double *values, size_t count, double share)
{
    ck_assert_uint_gt(count, 0);
    qsort(values, count, sizeof(*values), compare_doubles);
    size_t index = (size_t)(share * (double)count);
    return values[index < count ? index : count - 1];
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- the store alone --------------------------------------------------------------------------
 */

static const struct kelp_snapshot_id id = {.generation = 1, .step = 1};
static const uint32_t kinds[ITEMS] = {KELP_SNAPSHOT_WEIGHTS, KELP_SNAPSHOT_SLOT,
                                      KELP_SNAPSHOT_SLOT + 1};

struct store_job {
    char path[128];
    unsigned char *bytes; /* of all items of all parts */
    unsigned char *read;
    uint32_t parts;
    char (*digests)[KELP_DIGEST_HEX_BYTES];
};

/* Threads cannot report through Check. */
static void need(kelp_status status, const struct kelp_error *why)
{
    if (status != KELP_OK) {
        (void)fprintf(stderr, "%s\n", why->text);
        exit(1);
    }
}

static void *write_store(void *user)
{
    struct store_job *job = user;
    struct kelp_error why;
    struct kelp_snapshot_writer *writer = NULL;
    need(kelp_snapshot_writer_open(job->path, &id, &writer, &why), &why);
    for (uint32_t p = 0; p < job->parts; p++) {
        uint64_t bytes = 0;
        need(kelp_snapshot_writer_part(writer, p, &why), &why);
        for (uint32_t i = 0; i < ITEMS; i++) {
            const unsigned char *at = job->bytes + (size_t)(p * ITEMS + i) * PART_BYTES;
            need(kelp_snapshot_writer_item(writer, kinds[i], at, PART_BYTES, &why), &why);
        }
        kelp_snapshot_writer_digest(writer, job->digests[p], &bytes);
    }
    need(kelp_snapshot_writer_finish(writer, &why), &why);
    return NULL;
}

static void *read_store(void *user)
{
    struct store_job *job = user;
    struct kelp_error why;
    struct kelp_snapshot_reader *reader = NULL;
    need(kelp_snapshot_reader_open(job->path, &id, &reader, &why), &why);
    for (uint32_t p = 0; p < job->parts; p++) {
        need(kelp_snapshot_reader_part(reader, p, &why), &why);
        for (uint32_t i = 0; i < ITEMS; i++) {
            unsigned char *at = job->read + (size_t)(p * ITEMS + i) * PART_BYTES;
            need(kelp_snapshot_reader_item(reader, kinds[i], at, PART_BYTES, &why), &why);
        }
        need(kelp_snapshot_reader_check(reader, job->digests[p], &why), &why);
    }
    kelp_snapshot_reader_close(reader);
    return NULL;
}

static double run_jobs(struct store_job *jobs, uint32_t count, void *(*run)(void *))
{
    pthread_t threads[2];
    double begin = now_s();
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return now_s() - begin;
}

static void open_jobs(struct store_job *jobs, uint32_t count, uint32_t parts)
{
    size_t bytes = (size_t)parts * ITEMS * PART_BYTES;
    uint64_t state = 88172645463325252u;
    for (uint32_t i = 0; i < count; i++) {
        jobs[i] = (struct store_job){.parts = parts};
        (void)snprintf(jobs[i].path, sizeof(jobs[i].path), "%s/store/shard-%u", folder, i);
        jobs[i].bytes = malloc(bytes);
        jobs[i].read = malloc(bytes);
        jobs[i].digests = calloc(parts, sizeof(*jobs[i].digests));
        ck_assert(jobs[i].bytes && jobs[i].read && jobs[i].digests);
        memset(jobs[i].read, 1, bytes);
        for (size_t at = 0; at < bytes; at += 8) {
            uint64_t value = next_random(&state);
            memcpy(jobs[i].bytes + at, &value, 8);
        }
    }
}

static void measure_store(uint32_t threads)
{
    struct store_job jobs[2];
    double write_s[STORE_ROUNDS];
    double read_s[STORE_ROUNDS];
    uint32_t parts = (uint32_t)(megabytes * 1000000 / (ITEMS * PART_BYTES) / threads + 1);
    double gigabytes = 1e-9 * parts * ITEMS * PART_BYTES * threads;
    open_jobs(jobs, threads, parts);
    for (int round = 0; round < STORE_ROUNDS; round++) {
        write_s[round] = run_jobs(jobs, threads, write_store);
        read_s[round] = run_jobs(jobs, threads, read_store);
        MUST(kelp_files_remove(jobs[0].path, &error));
        MUST(kelp_files_remove(jobs[threads - 1].path, &error));
    }
    double write = quantile(write_s, STORE_ROUNDS, 0.5);
    double read = quantile(read_s, STORE_ROUNDS, 0.5);
    (void)printf("%-10s %7u %8.3f %11.3f %8.2f %11.3f %8.2f\n", "store", threads, gigabytes, write,
                 gigabytes / write, read, gigabytes / read);
    for (uint32_t i = 0; i < threads; i++) {
        free(jobs[i].bytes);
        free(jobs[i].read);
        free(jobs[i].digests);
    }
}

START_TEST(store)
{
    (void)printf("%-10s %7s %8s %11s %8s %11s %8s\n", "", "threads", "GB", "durable s", "GB/s",
                 "restore s", "GB/s");
    measure_store(1);
    measure_store(2);
}
END_TEST

/* ---- a shard ----------------------------------------------------------------------------------
 */

struct bench {
    struct shard_fixture fixture;
    struct shard_stream control;
    struct scripted_worker worker;
    struct kelp_control_word word;
    float *gradient;
    uint64_t serial;     /* of the newest order; 0: none */
    bool pending;        /* it is not durable yet */
    double ordered_s;    /* when */
    char checkpoint[64]; /* its folder under checkpoints/ */
    double *plain_s;     /* steps of rounds without */
    size_t plain_count;
    double *during_s; /* steps that overlap a checkpoint */
    size_t during_count;
    double *durable_s; /* from the order to the report */
    size_t durable_count;
    struct kelp_manifest manifest; /* of the last one */
};

/* What a worker's threads do: their processors are busy until the lane is computed. */
static void *compute_thread(void *until)
{
    float values[256];
    double end = *(const double *)until;
    for (size_t i = 0; i < 256; i++) {
        values[i] = (float)i;
    }
    do {
        for (int k = 0; k < 1000; k++) {
            for (size_t i = 0; i < 256; i++) {
                values[i] = values[i] * 0.999f + 0.5f;
            }
        }
    } while (now_s() < end);
    return values[7] < 0 ? until : NULL; /* what is computed is not left out */
}

static void compute(void)
{
    pthread_t threads[COMPUTE_THREADS_MAX];
    double end = now_s() + compute_s;
    for (unsigned i = 1; i < compute_threads; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, compute_thread, &end), 0);
    }
    (void)compute_thread(&end);
    for (unsigned i = 1; i < compute_threads; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

static void order_checkpoint(struct bench *bench)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__SnapshotOrder order = KELP__V1__SNAPSHOT_ORDER__INIT;
    uint32_t partitions[KELP_PARTITIONS_MAX];
    uint64_t step = bench->word.step + 1;
    (void)snprintf(bench->checkpoint, sizeof(bench->checkpoint), "step-%llu.g1",
                   (unsigned long long)step);
    order.serial = ++bench->serial;
    order.generation = 1;
    order.step = step;
    order.folder = bench->checkpoint;
    order.shard = bench->fixture.id;
    order.incarnation = bench->fixture.incarnation;
    order.partition = partitions;
    for (uint32_t i = 0; i < bench->fixture.plan.partition_count; i++) {
        partitions[order.n_partition++] = i;
    }
    command.snapshot = &order;
    shard_stream_send(&bench->control, &command.base, NULL, 0);
    bench->pending = true;
    bench->ordered_s = now_s();
}

/* What a leader would commit, and what restoring needs. */
static void keep_manifest(struct bench *bench, const Kelp__V1__SnapshotReport *report)
{
    struct kelp_manifest *manifest = &bench->manifest;
    kelp_manifest_fini(manifest);
    MUST(kelp_manifest_init(manifest, 1, (uint32_t)report->n_part, &error));
    (void)snprintf(manifest->job, sizeof(manifest->job), "%s", bench->fixture.job->name);
    (void)snprintf(manifest->folder, sizeof(manifest->folder), "%s", bench->checkpoint);
    (void)snprintf(manifest->storages[0], sizeof(manifest->storages[0]), "%s", report->storage);
    manifest->spec_digest = kelp_job_file_digest(bench->fixture.job_file);
    manifest->version = report->word->version;
    manifest->step = report->step;
    manifest->generation = report->generation;
    for (size_t i = 0; i < report->n_part; i++) {
        struct kelp_manifest_part *part = &manifest->parts[report->part[i]->partition];
        part->bytes = report->part[i]->bytes;
        (void)snprintf(part->digest, sizeof(part->digest), "%s", report->part[i]->digest);
    }
}

static void take_reports(struct bench *bench)
{
    while (bench->control.message_count > 0) {
        Kelp__V1__ShardReport *report = shard_take_report(&bench->control);
        Kelp__V1__SnapshotReport *snapshot = report->snapshot;
        if (bench->pending && snapshot && snapshot->serial == bench->serial) {
            ck_assert_msg(snapshot->state == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING ||
                              snapshot->state == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_CAPTURED ||
                              snapshot->state == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE,
                          "state %d: %s", (int)snapshot->state, snapshot->error);
            if (snapshot->state == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE) {
                bench->pending = false;
                bench->durable_s[bench->durable_count++] = now_s() - bench->ordered_s;
                keep_manifest(bench, snapshot);
            }
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

static double run_step(struct bench *bench)
{
    double begin = now_s();
    compute();
    scripted_worker_send(&bench->worker, &bench->word, bench->gradient);
    scripted_worker_take(&bench->worker, &bench->word);
    take_reports(bench);
    return now_s() - begin;
}

/* Steps per second. Files of the checkpoint before are removed by another thread, as a leader
 * would have it done. */
static void *remove_folder(void *path)
{
    (void)kelp_files_remove(path, NULL); /* a folder for temporary files */
    return NULL;
}

static double run_round(struct bench *bench, bool with)
{
    pthread_t remover;
    char old[160] = "";
    if (with && bench->checkpoint[0] != '\0') {
        (void)snprintf(old, sizeof(old), "%s/checkpoints/%s", folder, bench->checkpoint);
    }
    double begin = now_s();
    for (int step = 0; step < ROUND_STEPS; step++) {
        if (with && step == ORDER_AT) {
            order_checkpoint(bench);
        }
        bool during = bench->pending;
        double took = run_step(bench);
        if (during) {
            bench->during_s[bench->during_count++] = took;
        } else if (!with) {
            bench->plain_s[bench->plain_count++] = took;
        }
        if (with && step == ROUND_STEPS / 2 && old[0] != '\0') {
            ck_assert_int_eq(pthread_create(&remover, NULL, remove_folder, old), 0);
        }
    }
    double rate = ROUND_STEPS / (now_s() - begin);
    if (old[0] != '\0') {
        (void)pthread_join(remover, NULL);
    }
    ck_assert_msg(!bench->pending, "the checkpoint took longer than the round");
    return rate;
}

/* A new generation from the last checkpoint: seconds until the shard serves it. */
static double restore(struct bench *bench)
{
    struct shard_fixture *fixture = &bench->fixture;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace shard = KELP__V1__SHARD_PLACE__INIT;
    Kelp__V1__ShardPlace *shards[] = {&shard};
    uint32_t count = fixture->plan.partition_count;
    Kelp__V1__PartitionPlace *places = calloc(count, sizeof(*places));
    Kelp__V1__PartitionPlace **pointers = calloc(count, sizeof(*pointers));
    ck_assert(places && pointers);
    for (uint32_t i = 0; i < count; i++) {
        kelp__v1__partition_place__init(&places[i]);
        places[i].partition = i;
        places[i].map_epoch = 2;
        pointers[i] = &places[i];
    }
    shard.shard = (char *)(uintptr_t) "shard-0";
    shard.incarnation = fixture->incarnation;
    shard.address = fixture->address;
    map.generation = 2;
    map.restore_version = bench->manifest.version;
    map.n_shards = 1;
    map.shards = shards;
    map.n_partitions = count;
    map.partitions = pointers;
    command.map = &map;
    MUST(kelp_manifest_print(&bench->manifest, &command.manifest, &error));
    double begin = now_s();
    shard_stream_send(&bench->control, &command.base, NULL, 0);
    uint64_t loaded = 0;
    while (loaded != 2) {
        Kelp__V1__ShardReport *report = shard_take_report(&bench->control);
        ck_assert_msg(report->status == KELP_OK, "%s", report->error);
        loaded = report->loaded_generation;
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
    double seconds = now_s() - begin;
    free(command.manifest);
    free(places);
    free(pointers);
    return seconds;
}

static void start(struct bench *bench)
{
    static const char *const settings[] = {"train.optimizer",
                                           "adam",
                                           "cluster.lanes",
                                           "1",
                                           "train.batch_size",
                                           "32",
                                           "train.evaluate",
                                           "false",
                                           "train.epochs",
                                           "1",
                                           NULL};
    uint64_t elements = megabytes * 1000000 / (ITEMS * sizeof(float));
    uint64_t steps = rounds * 2 * ROUND_STEPS + WARM_STEPS + 10;
    uint64_t state = 88172645463325252u;
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("KELP_RUN", folder, 1);
    shard_fixture_start(&bench->fixture, settings, elements, steps * 32);
    shard_stream_open(&bench->control, &bench->fixture, "Control");
    shard_load(&bench->control, 1);
    bench->gradient = calloc((size_t)bench->fixture.plan.flat_count, sizeof(float));
    bench->plain_s = calloc((size_t)steps, sizeof(double));
    bench->during_s = calloc((size_t)steps, sizeof(double));
    bench->durable_s = calloc((size_t)steps, sizeof(double));
    ck_assert(bench->gradient && bench->plain_s && bench->during_s && bench->durable_s);
    for (uint64_t i = 0; i < bench->fixture.plan.flat_count; i++) {
        bench->gradient[i] = (float)(next_random(&state) >> 40) * 1e-9f;
    }
    scripted_worker_open(&bench->worker, &bench->fixture, 1, 0, &bench->word);
    for (int i = 0; i < WARM_STEPS; i++) {
        (void)run_step(bench);
    }
}

static void stop(struct bench *bench)
{
    scripted_worker_close(&bench->worker);
    shard_stream_close(&bench->control);
    shard_fixture_stop(&bench->fixture);
    kelp_manifest_fini(&bench->manifest);
    free(bench->gradient);
    free(bench->plain_s);
    free(bench->during_s);
    free(bench->durable_s);
}

static void print_steps(const char *name, double rate, double *steps, size_t count, double median_s)
{
    double p50 = quantile(steps, count, 0.5);
    double p99 = quantile(steps, count, 0.99);
    (void)printf("%-18s %8.3f %8zu %9.1f %9.1f %9.1f %12.2f\n", name, rate, count, p50 * 1e3,
                 p99 * 1e3, steps[count - 1] * 1e3, p99 / median_s);
}

START_TEST(shard)
{
    struct bench bench = {.serial = 0};
    double without[64];
    double with[64];
    double ratios[64];
    start(&bench);
    for (uint64_t round = 0; round < rounds; round++) {
        without[round] = run_round(&bench, false);
        with[round] = run_round(&bench, true);
        ratios[round] = with[round] / without[round];
    }
    double gigabytes = 1e-9 * (double)bench.fixture.plan.flat_count * sizeof(float) * ITEMS;
    double rate_without = quantile(without, rounds, 0.5);
    double rate_with = quantile(with, rounds, 0.5);
    double plain = quantile(bench.plain_s, bench.plain_count, 0.5);
    double durable = quantile(bench.durable_s, bench.durable_count, 0.5);
    double restored = restore(&bench);
    (void)printf("\n%-18s %8s %8s %9s %9s %9s %12s\n", "", "steps/s", "steps", "p50 ms", "p99 ms",
                 "max ms", "p99/median");
    print_steps("no checkpoint", rate_without, bench.plain_s, bench.plain_count, plain);
    print_steps("during checkpoints", rate_with, bench.during_s, bench.during_count, plain);
    (void)printf(
        "\nsteps/s with a checkpoint every %d steps: %.1f %% of without (medians; of pairs "
        "of rounds: %.1f %%)\n",
        ROUND_STEPS, 100 * rate_with / rate_without, 100 * quantile(ratios, rounds, 0.5));
    (void)printf(
        "checkpoint of %.3f GB: %.3f s from order to durable, %.2f GB/s; restored in %.3f s, "
        "%.2f GB/s\n",
        gigabytes, durable, gigabytes / durable, restored, gigabytes / restored);
    stop(&bench);
}
END_TEST

int main(int argc, char **argv)
{
    megabytes = argc > 1 ? strtoull(argv[1], NULL, 10) : megabytes;
    rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : rounds;
    compute_s = argc > 3 ? strtod(argv[3], NULL) * 1e-3 : compute_s;
    compute_threads = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : compute_threads;
    if (megabytes == 0 || rounds > 64 || compute_threads > COMPUTE_THREADS_MAX ||
        mkdtemp(folder) == NULL) {
        (void)fprintf(stderr,
                      "usage: checkpoint [MEGABYTES [ROUNDS (0 to 64) [COMPUTE_MS [THREADS]]]]\n");
        return 2;
    }
    etcd_fixture_require();
    const TTest *const measurements[] = {store, shard};
    int failed = kelp_bench_run("checkpoint", measurements, rounds > 0 ? 2 : 1);
    (void)kelp_files_remove(folder, NULL); /* a folder for temporary files */
    return failed == 0 ? 0 : 1;
}
