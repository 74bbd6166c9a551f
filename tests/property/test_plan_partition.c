#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "common/training/plan.h"
#include "tests/lib/suite.h"

#define TENSORS_MAX 12

static uint64_t roll(uint64_t seed, uint64_t *next, uint64_t bound)
{
    uint32_t words[4];

    kelp_philox(seed, KELP_PHILOX_TEST, 3, (*next)++, words);
    return kelp_philox_below(words[0], words[1], bound);
}

static void random_plan(struct kelp_plan *plan, uint64_t seed, uint32_t *ret_max_shards)
{
    static const uint64_t scales[] = {4, 100, 3000, 100000, 20000000, UINT64_C(1) << 34};
    uint64_t next = 0;

    memset(plan, 0, sizeof(*plan));
    plan->tensor_count = (uint32_t)(1 + roll(seed, &next, TENSORS_MAX));
    plan->tensors = calloc(plan->tensor_count, sizeof(*plan->tensors));
    ck_assert_ptr_nonnull(plan->tensors);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        struct kelp_tensor *tensor = &plan->tensors[i];
        (void)snprintf(tensor->name, sizeof(tensor->name), "t%u", i);
        tensor->rank = (uint32_t)roll(seed, &next, 3);
        for (uint32_t j = 0; j < tensor->rank; j++) {
            uint64_t scale = scales[roll(seed, &next, KELP_ARRAY_COUNT(scales))];
            tensor->shape[j] = 1 + (j == 0 ? roll(seed, &next, scale) : roll(seed, &next, 8));
        }
    }
    *ret_max_shards = (uint32_t)(1 + roll(seed, &next, 1024));
}

static void check_tensors(const struct kelp_plan *plan)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        ck_assert_uint_eq(tensor->offset % 16, 0);
        ck_assert_uint_ge(tensor->offset, end);
        ck_assert_uint_lt(tensor->offset - end, 16);
        end = tensor->offset + tensor->elem_count;
    }
    ck_assert_uint_ge(plan->flat_count, end);
    ck_assert_uint_lt(plan->flat_count - end, 16);
}

KELP_CASE("plan partition", .timeout_s = 60)

/* Whatever the tensors: they lie in order without overlap; partitions cover the flat vector
 * exactly, equal but for the last, in multiples of 16 elements; their number is within bounds. */
KELP_TEST(test_cover)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct kelp_plan plan;
        struct kelp_error error;
        uint32_t max_shards;
        uint64_t covered = 0;
        random_plan(&plan, seed, &max_shards);
        ck_assert_msg(kelp_plan_lay_out(&plan, max_shards, &error) == KELP_OK, "seed %llu: %s",
                      (unsigned long long)seed, error.text);
        check_tensors(&plan);
        uint64_t full = kelp_plan_partition(&plan, 0).count;
        for (uint32_t i = 0; i < plan.partition_count; i++) {
            struct kelp_slice_range range = kelp_plan_partition(&plan, i);
            /* Not an assertion each: Check writes to a pipe for every one. */
            if (range.first != covered || range.count % 16 != 0 ||
                (range.count != full && covered + range.count != plan.flat_count)) {
                ck_abort_msg("seed %llu: partition %u", (unsigned long long)seed, i);
            }
            covered += range.count;
        }
        ck_assert_uint_eq(covered, plan.flat_count);
        ck_assert_uint_ge(plan.partition_count, 1);
        ck_assert_uint_le(plan.partition_count, KELP_PARTITIONS_MAX);
        ck_assert(plan.partition_count == KELP_PARTITIONS_MAX || full * sizeof(float) <= 4 << 20);
        kelp_plan_fini(&plan);
    }
}
