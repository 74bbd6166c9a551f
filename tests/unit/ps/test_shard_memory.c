/*
 * A shard's steps need no memory of ours: once it is warm, pushes, additions, comparisons, updates
 * and answers allocate nothing.
 *
 * The allocator of the whole program is replaced for that, which sanitizers do too: under them this
 * test is skipped.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/lone_shard.h"
#include "tests/lib/suite.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    (void)puts("skipped: the sanitizer replaces the allocator itself");
    return 77;
}

#else

/* glibc's own allocator, under the names that it keeps for programs that replace malloc(). */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *block);

static _Thread_local bool counts; /* gRPC has threads of its own */
static uint64_t allocations;

static void count_one(void)
{
    allocations += counts ? 1 : 0;
}

void *malloc(size_t bytes)
{
    count_one();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_one();
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    count_one();
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count_one();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **ret_block, size_t alignment, size_t bytes)
{
    count_one();
    *ret_block = __libc_memalign(alignment, bytes);
    return *ret_block ? 0 : ENOMEM;
}

void free(void *block)
{
    __libc_free(block);
}

#define WARM_STEPS 80 /* what is kept of earlier entries has grown by then */
#define STEPS      40

static void set_up(void)
{
    kelp_rpc_global_init();
    lone_shard_init();
}

static void tear_down(void)
{
    lone_shard_close();
    kelp_rpc_global_fini();
}

/* One step of all lanes, and the answer; messages are the transport's, and come from before. */
static void run_step(uint32_t lanes, uint32_t pieces)
{
    float values[LONE_SHARD_ELEMENTS];
    struct kelp_rpc_message *messages[2];
    const uint64_t step = lone_shard.word.step;
    const struct kelp_control_word word = lone_shard.word;

    for (uint32_t lane = 0; lane < lanes; lane++) {
        lone_shard_values((uint32_t)step * 2 + lane, values);
        messages[lane] = lone_shard_message(values, pieces);
    }
    counts = step >= WARM_STEPS;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        lone_shard_push(lane + 1, &word, lane, 1, messages[lane]);
    }
    lone_shard_pull();
    counts = false;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        kelp_rpc_message_unref(messages[lane]);
    }
    ck_assert_uint_eq(lone_shard.step, step + 1);
}

KELP_CASE("memory", .setup = set_up, .teardown = tear_down)

/* A counter that counts nothing would find nothing. */
KELP_TEST(allocations_are_counted)
{
    static const float zeros[LONE_SHARD_ELEMENTS];

    lone_shard_open();
    struct kelp_rpc_message *message = lone_shard_message(zeros, 1);
    counts = true;
    lone_shard_push(1, &lone_shard.word, 0, 1, message);
    counts = false;
    kelp_rpc_message_unref(message);
    ck_assert_uint_gt(allocations, 0); /* the first step is not warm */
}

KELP_LOOP_TEST(warm_steps_allocate_nothing, 0, 7)
{
    static const struct {
        enum kelp_optimizer_kind optimizer;
        double clip_norm;
        bool mixed;
        uint32_t lanes, pieces;
    } ways[] = {{.optimizer = KELP_OPTIMIZER_ADAM, .lanes = 2, .pieces = 1},
                {.optimizer = KELP_OPTIMIZER_ADAM, .lanes = 2, .pieces = 3},
                {.optimizer = KELP_OPTIMIZER_ADAM, .lanes = 1, .pieces = 1},
                {.optimizer = KELP_OPTIMIZER_SGD, .mixed = true, .lanes = 2, .pieces = 1},
                {.optimizer = KELP_OPTIMIZER_SGD, .clip_norm = 0.5, .lanes = 2, .pieces = 1},
                {.optimizer = KELP_OPTIMIZER_SGD, .clip_norm = 0.5, .lanes = 1, .pieces = 2},
                {.optimizer = KELP_OPTIMIZER_LAMB, .lanes = 2, .pieces = 1}};

    ck_assert_uint_eq(KELP_ARRAY_COUNT(ways), 7);
    lone_shard.job.train.optimizer = ways[_i].optimizer;
    lone_shard.job.train.clip_norm = ways[_i].clip_norm;
    lone_shard.job.cluster.mixed = ways[_i].mixed;
    lone_shard.job.cluster.lanes = ways[_i].lanes;
    lone_shard_open();
    for (uint32_t k = 0; k < WARM_STEPS + STEPS; k++) {
        run_step(ways[_i].lanes, ways[_i].pieces);
    }
    ck_assert_msg(allocations == 0, "%llu allocations in %d steps", (unsigned long long)allocations,
                  STEPS);
    ck_assert_uint_eq(
        lone_shard.errors + lone_shard.refusals + lone_shard.conflicts + lone_shard.failures, 0);
}

#endif
