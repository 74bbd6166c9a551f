#include "ps/shard/hosting.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/tensors/safetensors.h"
#include "ps/core/limits.h"
#include "ps/shard/hosting_internal.h"

/* Places of optimizer slots within a page: behind the weight buffers (ps/shard/weights.h). */
#define STAGGER_SLOTS KELP_PS_WEIGHT_SLOTS_MAX

void kelp_hosting_destroy(struct kelp_hosting *hosting)
{
    if (!hosting) {
        return;
    }
    for (uint32_t i = 0; hosting->hosted && i < hosting->count; i++) {
        kelp_capture_release(&hosting->hosted[i].capture);
        kelp_partition_destroy(hosting->hosted[i].core);
        kelp_update_fini(&hosting->hosted[i].update);
        (void)pthread_mutex_destroy(&hosting->hosted[i].lock);
    }
    for (uint32_t i = 0; i < hosting->slot_count; i++) {
        free(hosting->slot_bases[i]);
    }
    kelp_gradients_destroy(hosting->gradients);
    kelp_weights_unref(hosting->weights);
    free(hosting->by_index);
    free(hosting->hosted);
    free(hosting);
}

static kelp_status prepare_partitions(struct kelp_hosting *hosting, const struct kelp_plan *plan,
                                      const struct kelp_hosting_place *places,
                                      struct kelp_error *reterr)
{
    uint64_t offset = 0;
    uint64_t bytes_max = hosting->job->transport.piece_bytes > KELP_PS_PARTITION_BYTES_MAX
                             ? hosting->job->transport.piece_bytes
                             : KELP_PS_PARTITION_BYTES_MAX;

    for (uint32_t i = 0; i < hosting->count; i++) {
        struct hosted *hosted = &hosting->hosted[i];
        assert(places[i].partition < plan->partition_count);
        assert(i == 0 || places[i].partition > places[i - 1].partition);
        hosted->index = places[i].partition;
        hosted->place = i;
        hosted->map_epoch = places[i].map_epoch;
        hosted->range = kelp_plan_partition(plan, hosted->index);
        hosted->slot_offset = offset;
        offset += hosted->range.count;
        if (hosted->range.count > bytes_max / sizeof(float)) {
            return kelp_fail(reterr, KELP_ERR_LIMIT,
                             "partition %u has %" PRIu64 " bytes; transport.piece_bytes must be at "
                             "least that",
                             hosted->index, hosted->range.count * sizeof(float));
        }
        struct kelp_partition_config config = {.index = hosted->index,
                                               .hollow = hosted->range.count == 0,
                                               .job = hosting->job,
                                               .plan = plan};
        kelp_status status =
            kelp_update_init(&hosted->update, hosting->job, plan, hosted->range, reterr);
        if (status == KELP_OK) {
            status = kelp_partition_create(&config, &hosted->core, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        hosting->by_index[hosted->index] = hosted;
    }
    return KELP_OK;
}

static kelp_status prepare_memory(struct kelp_hosting *hosting, struct kelp_error *reterr)
{
    uint64_t *counts = calloc(hosting->count + 1, sizeof(*counts));
    uint64_t total = 0;
    uint64_t count_max = 0;

    if (!counts) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for %u partitions", hosting->count);
    }
    for (uint32_t i = 0; i < hosting->count; i++) {
        counts[i] = hosting->hosted[i].range.count;
        total += counts[i];
        count_max = counts[i] > count_max ? counts[i] : count_max;
    }
    hosting->element_count = total;
    kelp_status status = kelp_weights_create(counts, hosting->count, &hosting->weights, reterr);
    free(counts);
    if (status == KELP_OK) {
        status = kelp_gradients_create(count_max, &hosting->gradients, reterr);
    }
    uint32_t slot_count = kelp_optimizer_slot_count(hosting->job);
    for (uint32_t i = 0; status == KELP_OK && i < slot_count; i++) {
        hosting->slots[i] = kelp__weights_alloc_staggered(
            (size_t)total * sizeof(float), STAGGER_SLOTS + i, &hosting->slot_bases[i]);
        if (!hosting->slots[i]) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                             "no memory for optimizer state of %" PRIu64 " elements", total);
        }
        hosting->slot_count = i + 1;
    }
    return status;
}

static bool needs_init_file(const struct kelp_plan *plan)
{
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        if (plan->tensors[i].init == KELP_INIT_FILE) {
            return true;
        }
    }
    return false;
}

/* What optimizer slots start from; their memory is zero already. */
static void start_slots(struct kelp_hosting *hosting)
{
    for (uint32_t i = 0; i < hosting->slot_count; i++) {
        float start = kelp_optimizer_slot_start(hosting->job, i);
        for (uint64_t e = 0; start != 0.0f && e < hosting->element_count; e++) {
            hosting->slots[i][e] = start;
        }
    }
}

static kelp_status initialise(struct kelp_hosting *hosting, const struct kelp_plan *plan,
                              struct kelp_error *reterr)
{
    struct kelp_safetensors *init_data = NULL;
    kelp_status status = KELP_OK;

    start_slots(hosting);
    if (needs_init_file(plan)) {
        status = kelp_safetensors_open(hosting->job->model.init, &init_data, reterr);
    }
    for (uint32_t i = 0; status == KELP_OK && i < hosting->count; i++) {
        const struct hosted *hosted = &hosting->hosted[i];
        if (hosted->range.count > 0) {
            status = kelp_plan_initialise(
                plan, hosting->job, init_data,
                (struct kelp_slice_range){hosted->range.first, hosted->range.count},
                kelp_weights_current(hosting->weights, i), reterr);
        }
    }
    kelp_safetensors_close(init_data);
    for (uint32_t i = 0; status == KELP_OK && i < hosting->count; i++) {
        struct kelp_partition_start start = {.generation = hosting->generation,
                                             .map_epoch = hosting->hosted[i].map_epoch};
        kelp_partition_load(hosting->hosted[i].core, &start);
    }
    return status;
}

kelp_status kelp_hosting_prepare(const struct kelp_hosting_config *config,
                                 struct kelp_hosting **ret_hosting, struct kelp_error *reterr)
{
    const struct kelp_plan *plan = config->plan;
    const uint32_t count = config->place_count;
    struct kelp_hosting *hosting = calloc(1, sizeof(*hosting));
    kelp_status status = KELP_ERR_NO_MEMORY;

    assert(config->generation > 0);
    assert(count <= plan->partition_count);
    if (!hosting) {
        return kelp_fail(reterr, status, "no memory for %u partitions", count);
    }
    hosting->job = config->job;
    hosting->generation = config->generation;
    hosting->partition_count = plan->partition_count;
    hosting->hosted = calloc(count + 1, sizeof(*hosting->hosted));
    hosting->by_index = calloc(plan->partition_count, sizeof(struct hosted *));
    if (!hosting->hosted || !hosting->by_index) {
        (void)kelp_fail(reterr, status, "no memory for %u partitions", count);
        goto err_destroy;
    }
    hosting->count = count;
    for (uint32_t i = 0; i < count; i++) {
        (void)pthread_mutex_init(&hosting->hosted[i].lock, NULL);
    }
    status = prepare_partitions(hosting, plan, config->places, reterr);
    if (status != KELP_OK) {
        goto err_destroy;
    }
    status = prepare_memory(hosting, reterr);
    if (status != KELP_OK) {
        goto err_destroy;
    }
    status = config->restore ? kelp__hosting_restore(hosting, plan, config->restore, reterr)
                             : initialise(hosting, plan, reterr);
    if (status != KELP_OK) {
        goto err_destroy;
    }
    *ret_hosting = hosting;
    return KELP_OK;

err_destroy:
    kelp_hosting_destroy(hosting);
    return status;
}
