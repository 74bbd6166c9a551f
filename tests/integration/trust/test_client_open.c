/* A worker of one's own before it has lanes: what it is told when it opens, and when it is stopped.
 * The rest is tried by a program outside the tree: tests/package/worker.sh. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kelp/worker.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define ETCD_MS 10000

#define PREDICT                                                                                    \
    "name: own\nmodel: {kind: mlp, hidden: [4], init: /w.safetensors}\n"                           \
    "data: {kind: synthetic, seq_len: 8, pred_len: 8}\nrun: {mode: predict}\n"
#define JOB(more)                                                                                  \
    "name: own\nmodel: {kind: mlp, hidden: [4]}\n"                                                 \
    "data: {kind: synthetic, seq_len: 8, pred_len: 8}\n" more

static struct etcd_fixture etcd;

static void setup(void)
{
    etcd_fixture_require();
    etcd_fixture_start(&etcd);
}

static void teardown(void)
{
    etcd_fixture_stop(&etcd);
}

static void put_job(const char *text)
{
    struct kelp_etcd *client = etcd_fixture_client(&etcd);

    ck_assert_int_eq(kelp_etcd_put(client, "/kelp/own/spec", text, 0, ETCD_MS, NULL), KELP_OK);
    kelp_etcd_close(client);
}

static struct kelp_worker_options good(void)
{
    return (struct kelp_worker_options){
        .size = sizeof(struct kelp_worker_options), .etcd = etcd.url, .job = "own", .id = "me"};
}

static void expect_refused(const struct kelp_worker_options *options, const char *words)
{
    struct kelp_worker *worker = NULL;

    ck_assert_int_eq(kelp_worker_open(options, &worker), KELP_WORKER_INVALID);
    ck_assert_msg(strstr(kelp_worker_error(), words), "'%s' says nothing of '%s'",
                  kelp_worker_error(), words);
    ck_assert_ptr_null(worker);
}

KELP_CASE("opening", .setup = setup, .teardown = teardown)

/* Each mistake in the options is a line. */
KELP_TEST(options)
{
    struct kelp_worker_options wrong = good();

    expect_refused(&wrong, "kelp_worker_global_init() comes before");
    ck_assert_int_eq(kelp_worker_global_init(), KELP_WORKER_OK);
    wrong.size = 0;
    expect_refused(&wrong, "size is 0");
    wrong = good();
    wrong.id = NULL;
    expect_refused(&wrong, "etcd, job and id are needed");
    wrong = good();
    wrong.id = "a/b";
    expect_refused(&wrong, "job and id are 1 to");
    wrong = good();
    wrong.spec_sha256 = "12";
    expect_refused(&wrong, "64 hexadecimal digits");
    wrong = good();
    wrong.log_level = "loud";
    expect_refused(&wrong, "log_level \"loud\" is none of error, warn, info");
    wrong = good();
    wrong.reserved = 1;
    expect_refused(&wrong, "reserved must be 0");
    wrong = good();
    wrong.certs = "/nowhere";
    expect_refused(&wrong, "certs: ");
}

/* A job that such programs cannot do, and one that is not the one that was meant. */
KELP_TEST(jobs)
{
    static const char sha256[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    struct kelp_worker_options options = good();

    ck_assert_int_eq(kelp_worker_global_init(), KELP_WORKER_OK);
    put_job(PREDICT);
    expect_refused(&options, "run.dir: is not set; run.mode predict writes into it");
    put_job(JOB("train: {epochs: none}\n"));
    expect_refused(&options, "train.epochs");
    put_job(JOB(""));
    options.spec_sha256 = sha256;
    expect_refused(&options, "own");
}

static void *stop(void *worker)
{
    kelp_worker_stop(worker);
    return NULL;
}

static void plan(struct kelp_worker *worker, uint64_t samples)
{
    const uint64_t shape[] = {3};
    const struct kelp_worker_tensor tensor = {
        .size = sizeof(tensor), .name = "w", .shape = shape, .rank = 1};

    ck_assert_int_eq(kelp_worker_plan_data(worker, samples, 0, 0, 1), KELP_WORKER_OK);
    ck_assert_int_eq(kelp_worker_plan_compute(worker, "test", 1), KELP_WORKER_OK);
    ck_assert_int_eq(kelp_worker_plan_tensor(worker, &tensor), KELP_WORKER_OK);
}

/* One that waits for work, and is stopped by another thread, has stopped. */
KELP_TEST(stopped)
{
    const struct kelp_worker_options options = good();
    struct kelp_worker_lane lane = {.size = sizeof(lane)};
    struct kelp_worker *worker = NULL;
    pthread_t thread;

    ck_assert_int_eq(kelp_worker_global_init(), KELP_WORKER_OK);
    put_job(JOB(""));
    ck_assert_int_eq(kelp_worker_open(&options, &worker), KELP_WORKER_OK);
    plan(worker, 100);
    ck_assert_msg(kelp_worker_join(worker) == KELP_WORKER_OK, "%s", kelp_worker_error());
    lane.size = 8;
    ck_assert_int_eq(kelp_worker_next_lane(worker, &lane), KELP_WORKER_INVALID);
    ck_assert_ptr_nonnull(strstr(kelp_worker_error(), "size is 8"));
    lane.size = sizeof(lane);
    ck_assert_int_eq(pthread_create(&thread, NULL, stop, worker), 0);
    ck_assert_int_eq(kelp_worker_next_lane(worker, &lane), KELP_WORKER_STOPPED);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    kelp_worker_close(worker);
}

/* Of a plan that the job cannot be done with the worker hears before it joins; a portable job takes
 * no kind but its own. */
KELP_TEST(plans)
{
    static const struct {
        const char *job;
        uint64_t samples;
        const char *words;
    } cases[] = {{JOB(""), 0, "sample"},
                 {JOB("cluster: {compute: portable}\n"), 100,
                  "cluster.compute: portable, and this worker's compute kind is test"}};
    const struct kelp_worker_options options = good();

    ck_assert_int_eq(kelp_worker_global_init(), KELP_WORKER_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_worker *worker = NULL;
        put_job(cases[i].job);
        ck_assert_int_eq(kelp_worker_open(&options, &worker), KELP_WORKER_OK);
        plan(worker, cases[i].samples);
        ck_assert_int_eq(kelp_worker_join(worker), KELP_WORKER_INVALID);
        ck_assert_msg(strstr(kelp_worker_error(), cases[i].words), "%s", kelp_worker_error());
        ck_assert_int_eq(kelp_worker_exit_status(KELP_WORKER_INVALID), 2);
        kelp_worker_close(worker);
    }
}
