/*
 * Shards that keep one another's partitions (cluster.replicas: 2): one that is killed costs neither
 * a generation nor a step, the next one to come gets copies while training goes on, and then the
 * other may be killed. Always with the digests of the quiet run. And what two of them compute is
 * compared.
 *
 * KELP_PROOF=kills: a shard of three is killed every three seconds for a minute.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/rpc/rpc.h"
#include "tests/lib/commands/proof.h"
#include "tests/lib/commands/run_size.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define INTERVAL 50 /* steps between two digests */
#define GO_ON    (3 * INTERVAL)

/* It does not end by itself; and it has what replicas have to agree on besides gradients. */
static const char job_text[] = "name: replicas\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 100000, batch_size: 64, clip_norm: 0.5}\n"
                               "cluster: {workers: 2, shards: 2, replicas: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms, on_nan: skip}\n"
                               "checkpoint: {digest_steps: 50}\n";

static struct kelp_run run;
static struct kelp_run quiet_run; /* of a proof */

static void setup(void)
{
    kelp_rpc_global_init();
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_run_fini(&quiet_run);
    kelp_run_fini(&run);
    kelp_rpc_global_fini();
}

static void go_on(void)
{
    kelp_run_go_on(&run, GO_ON);
}

/* How often primaries were put where they are wanted, which is the last change after each loss. */
static unsigned settled(void)
{
    return kelp_run_count_logged(&run, "coordinator-0", "because=\"exchange");
}

/* Kill the shard, and wait until all partitions are on two shards again. */
static void lose(const char *id)
{
    const unsigned before = settled();

    (void)kelp_test_command_signal(&run.command, "kelp-ps", id, SIGKILL);
    KELP_TEST_AWAIT_FROM(&run.command, settled() > before,
                         "partitions do not come to the shard that was started again");
    go_on();
}

static void check_no_loss(void)
{
    ck_assert(!kelp_run_logged(&run, "restoring"));
    ck_assert(!kelp_run_logged(&run, "generation=2"));
}

/* 36 MB in 16 partitions, whose roots are beyond 2 MB. Under a sanitizer a shard may work on them
 * for seconds, and is not silent then. */
static const char large_text[] = "name: large\nseed: 11\n"
                                 "model: {kind: mlp, hidden: [3000, 3000]}\n"
                                 "data: {kind: synthetic}\n"
                                 "train: {epochs: 100000, batch_size: 4, evaluate: false}\n"
                                 "cluster: {workers: 1, shards: 2, replicas: 2, lanes: 2}\n"
                                 "failure: {restart_backoff: 100ms, detect: 60s}\n"
                                 "checkpoint: {digest_steps: 5}\n";

KELP_CASE("replicas", .setup = setup, .teardown = teardown, .timeout_s = 200)

/* Both shards, one after the other: each has been primary of partition 0, and has had copies of
 * it. */
KELP_TEST(shards_are_killed_in_turn)
{
    kelp_run_start(&run, "job.yaml", NULL);
    go_on();
    lose("shard-0");
    lose("shard-1");
    lose("shard-0");
    check_no_loss();
    ck_assert(kelp_run_count_logged(&run, "shard-1",
                                    "follower connected shard=shard-0 "
                                    "transport=shm") > 0);
    kelp_run_expect_quiet(&run, job_text, (const char *[]){"--set", "cluster.replicas=1", NULL});
}

/* Slices of a large model go to backups, and the backup goes on from there. */
KELP_TEST(large_slices)
{
    (void)kelp_test_write(run.folder, "job.yaml", large_text);
    kelp_run_start(&run, "job.yaml", NULL);
    kelp_run_await_step(&run, 5);
    (void)kelp_test_command_signal(&run.command, "kelp-ps", "shard-0", SIGKILL);
    kelp_run_go_on(&run, 10);
    check_no_loss();
}

/* ---- weights that are changed behind a shard's back ---- */

/* Steps so small that no weight ever changes, so that one that was changed stays so. */
static const char still_text[] = "name: still\nseed: 11\n"
                                 "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                                 "train: {epochs: 100000, batch_size: 64, optimizer: sgd,\n"
                                 "        lr: 1e-30, evaluate: false}\n"
                                 "cluster: {workers: 1, shards: 2, replicas: 2, lanes: 2}\n"
                                 "checkpoint: {digest_steps: 50, steps: 50}\n";

#define PATTERN_BYTES 64
#define REGION_MAX    (256u << 20) /* sanitizers have larger ones of their own */

/* Some of the model's weights, as they lie in a shard's memory. */
static void find_pattern(char pattern[PATTERN_BYTES])
{
    const char *const export[] = {"export", "run", "--out", "weights.safetensors", NULL};
    uint64_t header = 0;
    size_t bytes = 0;

    (void)kelp_run_await_checkpoint(&run, (struct kelp_run_wanted){.step = 50});
    kelp_test_command_says(run.folder, export, 0, "");
    char *file = kelp_test_read(run.folder, "weights.safetensors", &bytes);
    memcpy(&header, file, sizeof(header));
    const size_t first = sizeof(header) + (size_t)header;
    ck_assert_uint_gt(bytes, first + (16u << 10));
    memcpy(pattern, file + first + (bytes - first) / 16 * 4, PATTERN_BYTES);
    free(file);
}

/* Change one bit wherever the pattern is in a piece of its memory; returns how often. */
static unsigned change_piece(int memory, const char *piece, size_t bytes, uint64_t address,
                             const char pattern[PATTERN_BYTES])
{
    const char *at = piece;
    unsigned count = 0;

    while ((at = memmem(at, (size_t)(piece + bytes - at), pattern, PATTERN_BYTES)) != NULL) {
        const char changed = (char)(at[0] ^ 1);
        ck_assert_int_eq(pwrite(memory, &changed, 1, (off_t)(address + (uint64_t)(at - piece))), 1);
        at += PATTERN_BYTES;
        count++;
    }
    return count;
}

static unsigned change_memory(pid_t pid, const char pattern[PATTERN_BYTES])
{
    char path[64];
    char line[512];
    unsigned count = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
    const int memory = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_msg(memory >= 0, "%s: %s", path, strerror(errno));
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof(line), maps)) {
        uint64_t first = 0;
        uint64_t last = 0;
        /* Workers of this host read weights in place: these are shared. */
        if (sscanf(line, "%" SCNx64 "-%" SCNx64, &first, &last) != 2 ||
            !(strstr(line, " rw-p ") || strstr(line, " rw-s ")) || last - first > REGION_MAX) {
            continue;
        }
        char *piece = malloc(last - first);
        ck_assert_ptr_nonnull(piece);
        const ssize_t bytes = pread(memory, piece, last - first, (off_t)first);
        if (bytes > 0) {
            count += change_piece(memory, piece, (size_t)bytes, first, pattern);
        }
        free(piece);
    }
    (void)fclose(maps);
    (void)close(memory);
    return count;
}

KELP_CASE("differing replicas", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* The job ends, and says which shard has which weights. */
KELP_TEST(replicas_that_differ_stop_the_job)
{
    char pattern[PATTERN_BYTES];

    (void)kelp_test_write(run.folder, "job.yaml", still_text);
    kelp_run_start(&run, "job.yaml", NULL);
    find_pattern(pattern);
    const pid_t pid = kelp_test_command_find(&run.command, "kelp-ps", "shard-1");
    ck_assert_int_gt(pid, 0);
    ck_assert_uint_gt(change_memory(pid, pattern), 0);
    kelp_run_finish(&run, 4);
    ck_assert_msg(strstr(run.output, "replicas of partition ") &&
                      strstr(run.output, " have different weights after step ") &&
                      strstr(run.output, "shard-0 has ") && strstr(run.output, "shard-1 has "),
                  "%s", run.output);
}

/* ---- proof -------------------------------------------------------------------------------------
 */

#define KILLS    20
#define EVERY_MS 3000

KELP_CASE("kills", .setup = setup, .teardown = teardown, .timeout_s = KELP_PROOF_S, .proof = true)

/* Or a little later, where a slow machine has not made all copies again by then: what both replicas
 * lose is lost. */
KELP_TEST(one_killed_every_three_seconds)
{
    const struct kelp_run_size whole = {.shards = 3, .workers = 2, .replicas = 2};

    kelp_proof_quiet(&quiet_run, NULL);
    kelp_proof_start(&run, (const char *[]){"--shards", "3", "--set", "cluster.replicas=2", NULL});
    const uint64_t begin_ms = kelp_clock_ms();
    uint64_t next_ms = begin_ms;
    for (unsigned i = 0; i < KILLS; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "shard-%u", i % whole.shards);
        next_ms += EVERY_MS;
        KELP_TEST_AWAIT_FROM(&run.command,
                             kelp_clock_ms() >= next_ms && kelp_run_has_size(&run, whole),
                             "after %u kills it is not whole any more, or has ended", i);
        (void)kelp_test_command_signal(&run.command, "kelp-ps", id, SIGKILL);
    }
    (void)printf("kills: %u in %.1f s\n", KILLS, (double)(kelp_clock_ms() - begin_ms) / 1000);
    kelp_run_await_size(&run, whole);
    kelp_proof_goes_on(&run);
    kelp_proof_end(&run);
    kelp_proof_never_back(&run);
    kelp_proof_same("kills", &run, &quiet_run);
}
