#include "tests/lib/cores/partition_replicas.h"

#include <check.h>

void bench_say(uint64_t process, uint64_t map_epoch, bool holds, uint64_t held)
{
    const struct kelp_acknowledgement said = {
        .process = process, .generation = 3, .map_epoch = map_epoch, .holds = holds, .held = held};
    ck_assert_int_eq(kelp_partition_acknowledged(bench.partition, &said, &bench.actions), KELP_OK);
    bench_take_actions();
}

void bench_enter(uint64_t map_epoch, enum kelp_replica_place place, uint64_t backup,
                 uint64_t joiner)
{
    const struct kelp_replica_entry entry = {
        .map_epoch = map_epoch, .place = place, .backup = backup, .joiner = joiner};
    ck_assert_int_eq(kelp_partition_enter(bench.partition, &entry, &bench.actions), KELP_OK);
    bench_take_actions();
}

void bench_forward(uint64_t map_epoch, uint64_t step, const char *text)
{
    const struct kelp_forward root = {.generation = 3,
                                      .map_epoch = map_epoch,
                                      .word = bench_train_word(step, step),
                                      .handle = bench_new_handle(text)};
    ck_assert_int_eq(kelp_partition_forwarded(bench.partition, &root, &bench.actions), KELP_OK);
    bench_take_actions();
}

void bench_push_at(uint64_t map_epoch, uint64_t step, const char *text)
{
    const struct kelp_control_word word = bench_train_word(step, step);
    const struct kelp_push push = {.requester = 11,
                                   .generation = 3,
                                   .map_epoch = map_epoch,
                                   .word = &word,
                                   .lane_count = BENCH_LANES,
                                   .handle = bench_new_handle(text),
                                   .content = bench_content(text)};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &push, &bench.actions), KELP_OK);
    bench_take_actions();
}

void bench_check_says(uint64_t map_epoch, bool holds, uint64_t held)
{
    const struct kelp_action said = bench_replicated(KELP_ACTION_ACKNOWLEDGE);

    ck_assert_uint_eq(said.acknowledge.map_epoch, map_epoch);
    ck_assert_int_eq(said.acknowledge.holds, holds);
    ck_assert_uint_eq(said.acknowledge.held, held);
}

void bench_level(uint64_t held)
{
    bench_say(BENCH_BACKUP, 7, true, held);
    (void)bench_replicated(KELP_ACTION_IN_SYNC);
}
