#include "common/training/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_ELEMS     (KELP_TENSOR_ALIGN / sizeof(float))
#define PARTITION_BYTES (UINT64_C(4) << 20)  /* of a partition of a large model */
#define SMALL_BYTES     (UINT64_C(64) << 10) /* smallest partition of a small model */
#define LEAST_BYTES     (UINT64_C(4) << 10)  /* ... if otherwise a shard would have none */

_Static_assert(ALIGN_ELEMS == 16, "plan.h promises multiples of 16 elements");

static uint64_t divide_up(uint64_t value, uint64_t divisor)
{
    return value / divisor + (value % divisor != 0 ? 1 : 0);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int compare_names(const void *a, const void *b)
{
    const struct kelp_tensor *const *left = a;
    const struct kelp_tensor *const *right = b;

    return strcmp((*left)->name, (*right)->name);
}

static kelp_status check_names(const struct kelp_plan *plan, struct kelp_error *reterr)
{
    const struct kelp_tensor **sorted = calloc(plan->tensor_count, sizeof(struct kelp_tensor *));
    kelp_status status = KELP_OK;

    if (!sorted) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        sorted[i] = &plan->tensors[i];
    }
    qsort(sorted, plan->tensor_count, sizeof(struct kelp_tensor *), compare_names);
    for (uint32_t i = 1; i < plan->tensor_count && status == KELP_OK; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            status =
                kelp_fail(reterr, KELP_ERR_INVALID, "two tensors are named %s", sorted[i]->name);
        }
    }
    free(sorted);
    return status;
}

static kelp_status count_elements(struct kelp_tensor *tensor, struct kelp_error *reterr)
{
    uint64_t count = 1;

    if (tensor->rank > KELP_TENSOR_RANK_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "tensor %s: rank %u is over %d", tensor->name,
                         tensor->rank, KELP_TENSOR_RANK_MAX);
    }
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "tensor %s: dimension %u is zero",
                             tensor->name, i);
        }
        if (__builtin_mul_overflow(count, tensor->shape[i], &count) ||
            count > KELP_PLAN_ELEMENTS_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "tensor %s has more than %" PRIu64 " elements",
                             tensor->name, KELP_PLAN_ELEMENTS_MAX);
        }
    }
    tensor->elem_count = count;
    return KELP_OK;
}

/* Four partitions for each possible shard divide evenly among fewer shards. In a small model a
 * partition costs more than the arithmetic on its bytes, so there one for each shard is enough. */
static uint32_t count_partitions(uint64_t bytes, uint32_t max_shards)
{
    const uint64_t one_each = min_u64(max_shards, divide_up(bytes, LEAST_BYTES));
    const uint64_t four_each = min_u64(UINT64_C(4) * max_shards, divide_up(bytes, SMALL_BYTES));
    const uint64_t wanted = max_u64(one_each, four_each);

    return (uint32_t)min_u64(KELP_PARTITIONS_MAX,
                             max_u64(divide_up(bytes, PARTITION_BYTES), wanted));
}

kelp_status kelp_plan_lay_out(struct kelp_plan *plan, uint32_t max_shards,
                              struct kelp_error *reterr)
{
    uint64_t flat = 0;

    if (plan->tensor_count == 0 || plan->tensor_count > KELP_PLAN_TENSORS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%u tensors: allowed are 1 to %d",
                         plan->tensor_count, KELP_PLAN_TENSORS_MAX);
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        struct kelp_tensor *tensor = &plan->tensors[i];
        kelp_status status = count_elements(tensor, reterr);
        if (status != KELP_OK) {
            return status;
        }
        tensor->offset = flat;
        flat += divide_up(tensor->elem_count, ALIGN_ELEMS) * ALIGN_ELEMS;
        if (flat > KELP_PLAN_ELEMENTS_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "the model has more than %" PRIu64 " elements",
                             KELP_PLAN_ELEMENTS_MAX);
        }
    }
    kelp_status status = check_names(plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    plan->flat_count = flat;
    plan->partition_count = count_partitions(flat * sizeof(float), max_shards);
    assert(plan->flat_count % ALIGN_ELEMS == 0);
    assert(plan->partition_count > 0);
    return KELP_OK;
}

struct kelp_slice_range kelp_plan_partition(const struct kelp_plan *plan, uint32_t partition)
{
    assert(partition < plan->partition_count);
    uint64_t blocks = divide_up(plan->flat_count / ALIGN_ELEMS, plan->partition_count);
    uint64_t slice = blocks * ALIGN_ELEMS;
    uint64_t first = min_u64(partition * slice, plan->flat_count);

    return (struct kelp_slice_range){
        .first = first,
        .count = min_u64(slice, plan->flat_count - first),
    };
}

void kelp_plan_fini(struct kelp_plan *plan)
{
    free(plan->tensors);
    memset(plan, 0, sizeof(*plan));
}
