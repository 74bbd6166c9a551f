/* Partitions that a worker has driven apart: when that is certain, and what the placement does. */
#include <string.h>

#include "tests/lib/cores/placement_bench.h"
#include "tests/lib/suite.h"

#define BEATS KELP_COORDINATOR_APART_BEATS

static struct kelp_apart apart;
static struct kelp_apart_behind behind[2];

static void setup(void)
{
    apart = (struct kelp_apart){.generation = 0};
    memset(behind, 0, sizeof(behind));
}

/* Shard 0 leads partition 0, shard 1 partitions 1 and 2. */
static bool hear(uint32_t shard, uint64_t heartbeat, uint64_t next, uint64_t lowest,
                 uint64_t highest)
{
    const struct kelp_apart_said said = {.generation = 4,
                                         .heartbeat = heartbeat,
                                         .next = next,
                                         .lowest = {.partition = shard, .step = lowest},
                                         .highest = {.partition = 2 * shard, .step = highest}};
    return kelp_apart_hear(&apart, &behind[shard], &said);
}

KELP_CASE("rule", .setup = setup)

/* A partition stays two steps behind another one over so many heartbeats, and no fewer. */
KELP_TEST(two_steps_for_long)
{
    ck_assert(!hear(0, 9, 10, 12, 12));
    ck_assert(!hear(1, 9, 10, 10, 11));
    for (uint64_t n = 10; n < 10 + BEATS; n++) {
        ck_assert(!hear(0, n, n + 1, 12, 12));
        ck_assert(!hear(1, n, n + 1, 10, 11));
    }
    ck_assert(!hear(0, 10 + BEATS, 11 + BEATS, 12, 12)); /* it is ahead itself */
    ck_assert(hear(1, 10 + BEATS, 11 + BEATS, 10, 11));
    ck_assert_uint_eq(apart.highest.partition, 0);
    ck_assert_uint_eq(apart.highest.step, 12);
}

/* The furthest one may go on meanwhile: that helps nobody. */
KELP_TEST(the_furthest_goes_on)
{
    for (uint64_t n = 1; n <= BEATS + 1; n++) {
        ck_assert(!hear(0, n, n + 1, 20 + n, 20 + n));
        ck_assert(!hear(1, n, n + 1, 10, 10));
    }
    ck_assert(hear(1, BEATS + 2, BEATS + 3, 10, 10));
}

/* One step apart is how partitions stand all the time. */
KELP_TEST(one_step_is_usual)
{
    for (uint64_t n = 1; n < 10 * BEATS; n++) {
        ck_assert(!hear(0, n, n + 1, 11, 11));
        ck_assert(!hear(1, n, n + 1, 10, 11));
    }
}

/* Who holds the weights that are gone elsewhere may still push: the partition that was behind goes
 * on, and all begins anew. */
KELP_TEST(moves_after_all)
{
    for (uint64_t n = 1; n <= BEATS; n++) {
        ck_assert(!hear(0, n, n + 1, 15, 15));
        ck_assert(!hear(1, n, n + 1, 10, 10));
    }
    for (uint64_t n = BEATS + 1; n <= 2 * BEATS; n++) {
        ck_assert(!hear(1, n, n + 1, 11, 11));
    }
    ck_assert(!hear(1, 2 * BEATS + 1, 2 * BEATS + 2, 14, 15));
    ck_assert(!hear(1, 9 * BEATS, 9 * BEATS + 1, 14, 15));
}

/* What a shard says in answer to heartbeats that were sent before the other one was heard may be
 * older than that: it proves nothing, however long it lasts. */
KELP_TEST(old_answers_prove_nothing)
{
    ck_assert(!hear(0, 1000, 1001, 500, 500));
    for (uint64_t n = 1; n <= 1000 + BEATS; n++) {
        ck_assert(!hear(1, n, 1001, 10, 10));
    }
    ck_assert(hear(1, 1001 + BEATS, 1002 + BEATS, 10, 10));
}

/* Another generation goes back to older steps. */
KELP_TEST(another_generation)
{
    const struct kelp_apart_step step = {.partition = 1, .step = 3};
    struct kelp_apart_said said = {.generation = 5, .next = 2, .lowest = step, .highest = step};

    ck_assert(!hear(0, 1, 2, 15, 15));
    ck_assert(!hear(1, 1, 2, 3, 3));
    for (uint64_t n = 2; n < 5 * BEATS; n++) {
        said.heartbeat = n;
        ck_assert(!kelp_apart_hear(&apart, &behind[1], &said));
    }
    ck_assert_uint_eq(apart.generation, 5);
}

KELP_CASE("machine", .setup = placement_setup, .teardown = placement_teardown)

/* shard-1 says so of partitions 3 and 4, in answer to a heartbeat that has just been sent. */
static uint32_t stands(const char *id, uint64_t heartbeat, const struct kelp_apart_step *lowest,
                       const struct kelp_apart_step *highest)
{
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_STANDS,
        .stands = {.id = id,
                   .incarnation = strcmp(id, "shard-0") == 0 ? 10 : 11,
                   .said = {.generation = placement_bench.machine.map.generation,
                            .heartbeat = heartbeat,
                            .next = heartbeat + 1,
                            .lowest = *lowest,
                            .highest = *highest}}});
}

static struct kelp_apart_step at(uint32_t partition, uint64_t step)
{
    return (struct kelp_apart_step){.partition = partition,
                                    .map_epoch =
                                        placement_bench.machine.map.partitions[partition].map_epoch,
                                    .step = step};
}

static uint32_t rush(uint64_t from, uint64_t epoch_off)
{
    struct kelp_apart_step ahead = at(0, 12);
    struct kelp_apart_step late = at(3, 10);
    uint32_t done = 0;
    late.map_epoch -= epoch_off;
    for (uint64_t n = from; n <= from + BEATS + 1; n++) {
        done |= stands("shard-0", n, &ahead, &ahead);
        done |= stands("shard-1", n, &late, &late);
    }
    return done;
}

/* Another generation is opened, and people hear which partitions stand where, and why nobody can
 * bridge that. */
KELP_TEST(opens_another_generation)
{
    placement_start();
    ck_assert_uint_ne(rush(1, 0) & DID(STATE), 0);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_WAITING);
    ck_assert_str_eq(placement_bench.machine.reason,
                     "shard-1: partition 3 stays at step 10 while partition 0 (shard-0) is at step "
                     "12 and has no weights of step 10 any more: a worker has pushed steps that it "
                     "cannot have computed");
    ck_assert_uint_ne(placement_tick(KELP_COORDINATOR_LOAD_RETRY_MS) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.next.generation, 2);
}

/* After three generations the job fails. */
KELP_TEST(again_and_again)
{
    placement_start();
    for (uint64_t round = 0; round < KELP_COORDINATOR_BLOCK_TRIES; round++) {
        (void)rush(1 + round * 100, 0);
        ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_WAITING);
        (void)placement_tick(KELP_COORDINATOR_LOAD_RETRY_MS);
        (void)placement_written(KELP_WRITTEN_OK);
        for (uint32_t i = 0; i < 2; i++) {
            (void)placement_apply((struct kelp_placement_event){
                .kind = KELP_PLACEMENT_LOADED,
                .loaded = {.id = i == 0 ? "shard-0" : "shard-1",
                           .incarnation = 10 + i,
                           .generation = placement_bench.machine.map.generation}});
        }
        ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    }
    (void)rush(1000, 0);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_FAILED);
    ck_assert_ptr_nonnull(strstr(placement_bench.machine.reason, "partition 3 stays at step 10"));
}

/* What was said of another epoch, another shard's partition (0), one that there is not, or by
 * another incarnation counts for nothing. */
KELP_TEST(not_for_it_to_say)
{
    placement_start();
    ck_assert_uint_eq(rush(1, 1), 0);
    const struct kelp_apart_step ahead = at(0, 12);
    const struct kelp_apart_step late = at(3, 10);
    const struct kelp_apart_step none = {.partition = 77, .step = 1};
    for (uint64_t n = 100; n < 200; n++) {
        ck_assert_uint_eq(stands("shard-1", n, &late, &ahead), 0);
        ck_assert_uint_eq(stands("shard-0", n, &late, &ahead), 0);
        ck_assert_uint_eq(stands("shard-1", n, &none, &late), 0);
        ck_assert_uint_eq(stands("shard-1", n, &late, &none), 0);
    }
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    ck_assert_uint_eq(rush(300, 0), 0);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
}
