/*
 * Networks that fail between two processes alone, also one way: between shards that keep one
 * another's partitions, between the leader and a shard, between a worker and a shard. Training goes
 * on once the network is whole, to the digests of the quiet run: there is one history.
 *
 * It takes root, for a network namespace. KELP_PROOF=splits tries each pair both ways and one way.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "tests/lib/cluster/net_split.h"
#include "tests/lib/cluster/shard_look.h"
#include "tests/lib/commands/proof.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define INTERVAL 50 /* steps between two digests */
#define GO_ON    (2 * INTERVAL)
#define SPLIT_MS 2500 /* longer than what silence may take to be noticed */
#define RENEW_US 2000
#define SHARDS   2
#define HEALED_S 3 /* from the healing to the next step, at most, in the proof */

static const char job_text[] = "name: splits\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 100000, batch_size: 64, clip_norm: 0.5}\n"
                               "cluster: {workers: 2, shards: 2, replicas: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms, max_failures: -1}\n"
                               "checkpoint: {digest_steps: 50}\n";

static const struct end {
    const char *program, *id;
} backup = {"kelp-ps", "shard-1"}, leader = {"kelp-coordinator", "coordinator-0"},
  worker = {"kelp-worker", "worker-0"}, primary = {"kelp-ps", "shard-0"};

enum way { BOTH, THERE, BACK, WAYS };
static const char *const ways[WAYS] = {"<->", "-->", "<--"};

static struct kelp_run run;
static struct kelp_chaos_split split;
static struct kelp_job_client *client;
static struct kelp_shard_look looks[SHARDS];

static void prepare(void)
{
    struct kelp_error error;

    if (kelp_chaos_net_enter(&error) != KELP_OK) {
        kelp_suite_skip("%s", error.text);
    }
}

static void setup(void)
{
    kelp_rpc_global_init();
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
    kelp_rpc_global_fini();
}

static void go_on(void)
{
    kelp_run_go_on(&run, GO_ON);
}

static void open_looks(void)
{
    struct kelp_run_cluster cluster;
    struct kelp_error error = {.text = ""};

    ck_assert_int_eq(kelp_run_cluster_read(run.run_folder, &cluster, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_client_open(run.run_folder, &client, &error), KELP_OK);
    for (size_t i = 0; i < SHARDS; i++) {
        kelp_shard_look_init(&looks[i], cluster.certs);
    }
}

static void close_looks(void)
{
    for (size_t i = 0; i < SHARDS; i++) {
        kelp_shard_look_fini(&looks[i]);
    }
    kelp_job_client_close(client);
    client = NULL;
}

/* The newest step of any shard. */
static uint64_t step_now(void)
{
    uint64_t step = 0;

    for (size_t i = 0; i < SHARDS; i++) {
        struct kelp_shard_look_at at;
        char id[32];
        (void)snprintf(id, sizeof(id), "shard-%zu", i);
        kelp_shard_look_find(&looks[i], client, id);
        if (kelp_shard_look(&looks[i], &at) && at.step > step) {
            step = at.step;
        }
    }
    return step;
}

/* Both shards have all partitions again, and both workers have lanes. */
static bool is_whole(void)
{
    Kelp__V1__StatusReply *reply = NULL;
    uint32_t backups = 0, working = 0;

    if (kelp_job_client_status(client, 1000, &reply, NULL) != KELP_OK) {
        return false;
    }
    bool whole = strcmp(reply->state, "running") == 0;
    for (size_t i = 0; i < reply->n_shards; i++) {
        backups += reply->shards[i]->backups;
        whole = whole && reply->shards[i]->connected && reply->shards[i]->joining == 0;
    }
    for (size_t i = 0; i < reply->n_workers; i++) {
        working += reply->workers[i]->lane_count > 0 ? 1 : 0;
    }
    whole = whole && backups == reply->map->n_partitions && working == 2;
    kelp_job_client_status_free(reply);
    return whole;
}

/* The process of that name, which the launcher may have started again. */
static pid_t find(const struct end *end, pid_t known)
{
    return known > 0 && kill(known, 0) == 0
               ? known
               : kelp_test_command_find(&run.command, end->program, end->id);
}

/* Cut, for so long; the number of cuts. A connection that is opened meanwhile lives for a moment.
 */
static uint32_t cut(const struct end *one, const struct end *other, enum way way)
{
    const uint64_t end_ms = kelp_clock_ms() + SPLIT_MS;
    pid_t first = 0, second = 0;

    while (kelp_clock_ms() < end_ms) {
        first = find(one, first);
        second = find(other, second);
        if (first > 0 && second > 0 && way != BACK) {
            kelp_net_split_way(&split, first, second);
        }
        if (first > 0 && second > 0 && way != THERE) {
            kelp_net_split_way(&split, second, first);
        }
        (void)usleep(RENEW_US);
    }
    return split.count;
}

/* Milliseconds from the healing to the next step. */
static uint64_t split_and_heal(const struct end *one, const struct end *other, enum way way)
{
    struct kelp_error error = {.text = ""};

    KELP_TEST_AWAIT_FROM(&run.command, is_whole(), "the cluster is not whole");
    const uint64_t before = step_now();
    const uint32_t cuts = cut(one, other, way);
    const uint64_t meanwhile = step_now();
    ck_assert_uint_gt(cuts, 0);
    ck_assert_msg(kelp_chaos_split_heal(&split, &error) == KELP_OK, "%s", error.text);
    const uint64_t healed_ms = kelp_clock_ms();
    KELP_TEST_AWAIT_FROM(&run.command, step_now() > meanwhile, "training does not go on");
    const uint64_t next_ms = kelp_clock_ms() - healed_ms;
    (void)printf("%-13s %s %s  %3u cuts, %6llu steps meanwhile, the next one %4llu ms after "
                 "healing\n",
                 one->id, ways[way], other->id, cuts, (unsigned long long)(meanwhile - before),
                 (unsigned long long)next_ms);
    (void)fflush(stdout);
    go_on();
    return next_ms;
}

KELP_SUITE(.before = prepare)
KELP_CASE("splits", .setup = setup, .teardown = teardown, .timeout_s = 600)

static const struct end *const pairs[] = {&backup, &leader, &worker};

/* Each pair, in one of three ways. */
KELP_TEST(one_history)
{
    kelp_run_start(&run, "job.yaml", (const char *[]){"--listen", "127.0.0.1", NULL});
    go_on();
    open_looks();
    for (size_t i = 0; i < KELP_ARRAY_COUNT(pairs); i++) {
        (void)split_and_heal(pairs[i], &primary, (enum way)i);
    }
    close_looks();
    kelp_run_expect_quiet(&run, job_text, (const char *[]){"--set", "cluster.replicas=1", NULL});
}

KELP_CASE("splits", .setup = setup, .teardown = teardown, .timeout_s = KELP_PROOF_S, .proof = true)

/* In all of them. */
KELP_TEST(one_history_of_all_splits)
{
    struct kelp_run quiet;

    kelp_proof_quiet(&quiet, NULL);
    kelp_proof_start(&run, (const char *[]){"--listen", "127.0.0.1", "--shards", "2", "--set",
                                            "cluster.replicas=2", NULL});
    open_looks();
    for (size_t i = 0; i < KELP_ARRAY_COUNT(pairs) * WAYS; i++) {
        ck_assert_uint_le(split_and_heal(pairs[i / WAYS], &primary, (enum way)(i % WAYS)),
                          HEALED_S * 1000);
    }
    close_looks();
    kelp_proof_goes_on(&run);
    kelp_proof_end(&run);
    kelp_proof_never_back(&run);
    kelp_proof_same("splits", &run, &quiet);
    kelp_run_fini(&quiet);
}
