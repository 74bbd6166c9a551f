#include "cli/checkpoint/model_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"
#include "common/training/manifest.h"
#include "ps/storage/snapshot_store.h"

float *kelp_model_state_vector(const struct kelp_plan *plan)
{
    size_t bytes =
        ((size_t)plan->flat_count * sizeof(float) / KELP_TENSOR_ALIGN + 1) * KELP_TENSOR_ALIGN;
    float *vector = aligned_alloc(KELP_TENSOR_ALIGN, bytes);

    if (vector) {
        memset(vector, 0, bytes);
    }
    return vector;
}

kelp_status kelp_model_state_init(struct kelp_model_state *state, const struct kelp_job *job,
                                  const struct kelp_plan *plan, struct kelp_error *reterr)
{
    memset(state, 0, sizeof(*state));
    state->job = job;
    state->plan = plan;
    state->weights = kelp_model_state_vector(plan);
    bool complete = state->weights != NULL;
    for (uint32_t i = 0; complete && i < kelp_optimizer_slot_count(job); i++) {
        state->slots[i] = kelp_model_state_vector(plan);
        complete = state->slots[i] != NULL;
        state->slot_count = i + 1;
    }
    if (!complete) {
        kelp_model_state_fini(state);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "no memory for a model of %" PRIu64 " elements", plan->flat_count);
    }
    kelp_control_init(&state->control, job, plan);
    return KELP_OK;
}

void kelp_model_state_fini(struct kelp_model_state *state)
{
    free(state->weights);
    for (uint32_t i = 0; i < state->slot_count; i++) {
        free(state->slots[i]);
    }
    memset(state, 0, sizeof(*state));
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

kelp_status kelp_model_state_begin(struct kelp_model_state *state, struct kelp_error *reterr)
{
    struct kelp_safetensors *init_data = NULL;
    kelp_status status = KELP_OK;

    if (needs_init_file(state->plan)) {
        status = kelp_safetensors_open(state->job->model.init, &init_data, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_plan_initialise(state->plan, state->job, init_data,
                                      (struct kelp_slice_range){0, state->plan->flat_count},
                                      state->weights, reterr);
    }
    kelp_safetensors_close(init_data);
    for (uint32_t i = 0; i < state->slot_count; i++) {
        float start = kelp_optimizer_slot_start(state->job, i);
        for (uint64_t e = 0; e < state->plan->flat_count; e++) {
            state->slots[i][e] = start;
        }
    }
    kelp_control_init(&state->control, state->job, state->plan);
    return status;
}

/* ---- as in a checkpoint -------------------------------------------------------------------- */

static void add_item(struct kelp_digest *digest, uint64_t *bytes, uint32_t kind, const void *data,
                     size_t data_bytes)
{
    kelp_snapshot_digest_item(digest, kind, data_bytes);
    kelp_digest_update(digest, data, data_bytes);
    *bytes += data_bytes;
}

void kelp_model_state_part_digest(const struct kelp_model_state *state, uint32_t partition,
                                  char ret_hex[KELP_DIGEST_HEX_BYTES], uint64_t *ret_bytes)
{
    struct kelp_slice_range range = kelp_plan_partition(state->plan, partition);
    size_t range_bytes = (size_t)range.count * sizeof(float);
    struct kelp_digest digest;
    uint64_t bytes = 0;

    kelp_digest_init(&digest);
    if (partition == 0) {
        unsigned char control[KELP_CONTROL_BYTES];
        kelp_control_pack(&state->control, control);
        add_item(&digest, &bytes, KELP_SNAPSHOT_CONTROL, control, sizeof(control));
    }
    add_item(&digest, &bytes, KELP_SNAPSHOT_WEIGHTS, state->weights + range.first, range_bytes);
    for (uint32_t i = 0; i < state->slot_count; i++) {
        add_item(&digest, &bytes, KELP_SNAPSHOT_SLOT + i, state->slots[i] + range.first,
                 range_bytes);
    }
    kelp_digest_hex(&digest, ret_hex);
    *ret_bytes = bytes;
}

kelp_status kelp_model_state_digest(const struct kelp_model_state *state,
                                    char ret_hex[KELP_DIGEST_HEX_BYTES], struct kelp_error *reterr)
{
    struct kelp_manifest manifest;

    kelp_status status = kelp_manifest_init(&manifest, 0, state->plan->partition_count, reterr);
    if (status != KELP_OK) {
        return status;
    }
    manifest.version = state->control.version;
    for (uint32_t i = 0; i < manifest.part_count; i++) {
        kelp_model_state_part_digest(state, i, manifest.parts[i].digest, &manifest.parts[i].bytes);
    }
    kelp_manifest_state_digest(&manifest, ret_hex);
    kelp_manifest_fini(&manifest);
    return KELP_OK;
}

/* ---- tensors ------------------------------------------------------------------------------- */

static const float *values_of(const struct kelp_model_state *state,
                              const struct kelp_model_state_tensor *which)
{
    const float *vector = which->item == 0 ? state->weights : state->slots[which->item - 1];

    return vector + state->plan->tensors[which->tensor].offset;
}

void kelp_model_state_tensor_digest(const struct kelp_model_state *state,
                                    const struct kelp_model_state_tensor *which,
                                    char ret_hex[KELP_DIGEST_HEX_BYTES])
{
    const struct kelp_tensor *tensor = &state->plan->tensors[which->tensor];
    struct kelp_digest digest;

    kelp_digest_init(&digest);
    kelp_digest_tensor(&digest, tensor->name, tensor->rank, tensor->shape);
    kelp_digest_update(&digest, values_of(state, which),
                       (size_t)tensor->elem_count * sizeof(float));
    kelp_digest_hex(&digest, ret_hex);
}

void kelp_model_state_tensor_name(const struct kelp_model_state *state,
                                  const struct kelp_model_state_tensor *which, char *text,
                                  size_t text_bytes)
{
    const char *name = state->plan->tensors[which->tensor].name;

    if (which->item == 0) {
        (void)snprintf(text, text_bytes, "%s", name);
    } else {
        (void)snprintf(text, text_bytes, "%s (%s)", name,
                       kelp_optimizer_slot_name(state->job, which->item - 1));
    }
}

/* Vectors that are compared: the weights, and the slots that mean the same. */
static uint32_t common_items(const struct kelp_model_state *a, const struct kelp_model_state *b)
{
    uint32_t slots = a->slot_count < b->slot_count ? a->slot_count : b->slot_count;
    uint32_t common = 0;

    while (common < slots && strcmp(kelp_optimizer_slot_name(a->job, common),
                                    kelp_optimizer_slot_name(b->job, common)) == 0) {
        common++;
    }
    return 1 + common;
}

void kelp_model_state_next(const struct kelp_model_state *state, struct kelp_model_state_tensor *at)
{
    at->tensor++;
    if (at->tensor == state->plan->tensor_count) {
        at->tensor = 0;
        at->item++;
    }
}

bool kelp_model_state_difference(const struct kelp_model_state *a, const struct kelp_model_state *b,
                                 struct kelp_model_state_tensor *at)
{
    uint32_t items = common_items(a, b);

    for (; at->item < items; kelp_model_state_next(a, at)) {
        size_t bytes = (size_t)a->plan->tensors[at->tensor].elem_count * sizeof(float);
        if (memcmp(values_of(a, at), values_of(b, at), bytes) != 0) {
            return true;
        }
    }
    return false;
}
