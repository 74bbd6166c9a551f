#include "ps/shard/hosting.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/tensors/safetensors.h"
#include "ps/core/limits.h"
#include "ps/shard/hosting_internal.h"

/* ---- one partition ---- */

void kelp__hosted_destroy(struct hosted *hosted)
{
    if (!hosted) {
        return;
    }
    kelp_capture_release(&hosted->capture);
    kelp_partition_destroy(hosted->core);
    kelp_update_fini(&hosted->update);
    kelp_extent_unref(hosted->extent);
    (void)pthread_mutex_destroy(&hosted->lock);
    free(hosted);
}

static kelp_status check_size(const struct kelp_hosting *hosting, const struct hosted *hosted,
                              struct kelp_error *reterr)
{
    const uint64_t piece_bytes = hosting->job->transport.piece_bytes;
    const uint64_t bytes_max =
        piece_bytes > KELP_PS_PARTITION_BYTES_MAX ? piece_bytes : KELP_PS_PARTITION_BYTES_MAX;

    if (hosted->range.count > bytes_max / sizeof(float)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "partition %u has %" PRIu64 " bytes; transport.piece_bytes must be at "
                         "least that",
                         hosted->index, hosted->range.count * sizeof(float));
    }
    return KELP_OK;
}

static kelp_status prepare_hosted(const struct kelp_hosting *hosting, struct hosted *hosted,
                                  struct kelp_error *reterr)
{
    const struct kelp_replica_entry *entry = &hosted->entry;
    const bool alone =
        entry->place == KELP_REPLICA_PRIMARY && entry->backup == 0 && entry->joiner == 0;
    const struct kelp_partition_config config = {.index = hosted->index,
                                                 .replicated = !alone,
                                                 .hollow = hosted->range.count == 0,
                                                 .job = hosting->job,
                                                 .plan = hosting->plan};
    kelp_status status = check_size(hosting, hosted, reterr);

    if (status == KELP_OK) {
        status =
            kelp_update_init(&hosted->update, hosting->job, hosting->plan, hosted->range, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_partition_create(&config, &hosted->core, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_extent_create(hosted->range.count, kelp_optimizer_slot_count(hosting->job),
                                    hosting->areas, &hosted->extent, reterr);
    }
    return status;
}

kelp_status kelp__hosted_create(const struct kelp_hosting *hosting,
                                const struct kelp_hosting_place *place, struct hosted **ret_hosted,
                                struct kelp_error *reterr)
{
    struct hosted *hosted = calloc(1, sizeof(*hosted));

    assert(place->partition < hosting->partition_count);
    if (!hosted) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for partition %u",
                         place->partition);
    }
    (void)pthread_mutex_init(&hosted->lock, NULL);
    hosted->index = place->partition;
    hosted->entry = place->entry;
    hosted->primary = place->primary;
    hosted->range = kelp_plan_partition(hosting->plan, hosted->index);
    kelp_status status = prepare_hosted(hosting, hosted, reterr);
    if (status != KELP_OK) {
        kelp__hosted_destroy(hosted);
        return status;
    }
    *ret_hosted = hosted;
    return KELP_OK;
}

void kelp__hosted_load(const struct kelp_hosting *hosting, const struct hosted *hosted,
                       const struct kelp_partition_start *from)
{
    struct kelp_partition_start start = *from;

    start.generation = hosting->generation;
    start.map_epoch = hosted->entry.map_epoch;
    start.place = hosted->entry.place;
    start.backup = hosted->entry.backup;
    start.joiner = hosted->entry.joiner;
    kelp_partition_load(hosted->core, &start);
}

/* ---- all partitions ---- */

void kelp_hosting_destroy(struct kelp_hosting *hosting)
{
    if (!hosting) {
        return;
    }
    for (uint32_t i = 0; hosting->by_index && i < hosting->partition_count; i++) {
        kelp__hosted_destroy(hosting->by_index[i]);
    }
    kelp_gradients_destroy(hosting->gradients);
    kelp_area_pool_unref(hosting->areas);
    free(hosting->by_index);
    free(hosting);
}

/* Elements of the largest slice of the plan; any partition may be hosted later. */
static uint64_t largest_slice(const struct kelp_plan *plan)
{
    return kelp_plan_partition(plan, 0).count;
}

static kelp_status prepare_partitions(struct kelp_hosting *hosting,
                                      const struct kelp_hosting_config *config,
                                      struct kelp_error *reterr)
{
    kelp_status status =
        kelp_gradients_create(largest_slice(hosting->plan), hosting->job->transport.precision,
                              &hosting->gradients, reterr);

    for (uint32_t i = 0; status == KELP_OK && i < config->place_count; i++) {
        const struct kelp_hosting_place *place = &config->places[i];
        assert(!hosting->by_index[place->partition]);
        status = kelp__hosted_create(hosting, place, &hosting->by_index[place->partition], reterr);
        hosting->count += status == KELP_OK;
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

/* Set optimizer slots to their start values; their memory is zero already. */
static void start_slots(const struct kelp_job *job, const struct hosted *hosted)
{
    for (uint32_t i = 0; i < kelp_extent_slot_count(hosted->extent); i++) {
        float start = kelp_optimizer_slot_start(job, i);
        float *values = kelp_extent_slot(hosted->extent, i);
        for (uint64_t e = 0; start != 0.0f && e < hosted->range.count; e++) {
            values[e] = start;
        }
    }
}

static kelp_status initialise_hosted(const struct kelp_hosting *hosting, struct hosted *hosted,
                                     const struct kelp_safetensors *init_data,
                                     struct kelp_error *reterr)
{
    const struct kelp_partition_start start = {.step = 0};
    kelp_status status = KELP_OK;

    start_slots(hosting->job, hosted);
    if (hosted->range.count > 0) {
        status = kelp_plan_initialise(
            hosting->plan, hosting->job, init_data,
            (struct kelp_slice_range){hosted->range.first, hosted->range.count},
            kelp_extent_current(hosted->extent), reterr);
    }
    if (status == KELP_OK) {
        kelp__hosted_load(hosting, hosted, &start);
    }
    return status;
}

static kelp_status initialise(struct kelp_hosting *hosting, struct kelp_error *reterr)
{
    struct kelp_safetensors *init_data = NULL;
    kelp_status status = KELP_OK;
    struct hosted *hosted;
    uint32_t at = 0;

    if (needs_init_file(hosting->plan)) {
        status = kelp_safetensors_open(hosting->job->model.init, &init_data, reterr);
    }
    while (status == KELP_OK && (hosted = kelp__hosting_next(hosting, &at)) != NULL) {
        status = initialise_hosted(hosting, hosted, init_data, reterr);
    }
    kelp_safetensors_close(init_data);
    return status;
}

kelp_status kelp_hosting_prepare(const struct kelp_hosting_config *config,
                                 struct kelp_hosting **ret_hosting, struct kelp_error *reterr)
{
    struct kelp_hosting *hosting = calloc(1, sizeof(*hosting));
    const uint32_t count = config->plan->partition_count;

    assert(config->generation > 0);
    assert(config->place_count <= count);
    if (hosting) {
        hosting->by_index = calloc(count, sizeof(struct hosted *));
    }
    if (!hosting || !hosting->by_index) {
        free(hosting);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for %u partitions",
                         config->place_count);
    }
    hosting->job = config->job;
    hosting->plan = config->plan;
    hosting->generation = config->generation;
    hosting->partition_count = count;
    hosting->areas = config->shares ? kelp_area_pool_create() : NULL; /* NULL: weights are copied */
    kelp_status status = prepare_partitions(hosting, config, reterr);
    if (status == KELP_OK) {
        status = config->restore ? kelp__hosting_restore(hosting, config->restore, reterr)
                                 : initialise(hosting, reterr);
    }
    if (status != KELP_OK) {
        kelp_hosting_destroy(hosting);
        return status;
    }
    *ret_hosting = hosting;
    return KELP_OK;
}
