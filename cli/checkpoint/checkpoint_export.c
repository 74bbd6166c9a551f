/* `kelp checkpoint export`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/cluster/model_file.h"
#include "cli/verb/out_file.h"
#include "common/tensors/safetensors.h"

#define NAME_BYTES (KELP_TENSOR_NAME_MAX + 64)

static const struct kelp_option options[] = {
    KELP_VERB_FLAG("with-optimizer", NULL, "add the optimizer's state, as optimizer.SLOT.TENSOR"),
    KELP_CHECKPOINT_OPTION_RUN,
};

static const struct kelp_program program = {
    .name = "kelp checkpoint export",
    .summary = "writes a checkpoint's weights as safetensors",
    .positional = "NAME|FOLDER|newest|best FILE",
    .positional_min = 2,
    .positional_max = 2,
    .examples = "  kelp checkpoint export newest model.safetensors\n"
                "  kelp checkpoint export best model.safetensors --run runs/mine\n"
                "  kelp checkpoint export step-1500.g2 state.safetensors --with-optimizer\n",
    KELP_VERB_OPTIONS(options),
};

struct items {
    struct kelp_safetensors_item *items; /* owned */
    char (*names)[NAME_BYTES];           /* owned */
    size_t count;
};

static void add_vector(struct items *items, const struct kelp_model_state *state,
                       const float *vector, const char *slot)
{
    for (uint32_t i = 0; i < state->plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &state->plan->tensors[i];
        char *name = items->names[items->count];
        (void)snprintf(name, NAME_BYTES, "%s%s%s%s", slot ? "optimizer." : "", slot ? slot : "",
                       slot ? "." : "", tensor->name);
        items->items[items->count++] =
            (struct kelp_safetensors_item){.name = name,
                                           .dtype = KELP_DTYPE_F32,
                                           .rank = tensor->rank,
                                           .shape = tensor->shape,
                                           .data = vector + tensor->offset};
    }
}

static kelp_status write_all(const char *path, const struct kelp_model_state *state,
                             const struct kelp_manifest *manifest, const char *card,
                             struct kelp_error *reterr)
{
    size_t most = (size_t)state->plan->tensor_count * (1 + state->slot_count);
    struct items items = {.items = calloc(most, sizeof(*items.items)),
                          .names = calloc(most, sizeof(*items.names))};
    char digest[KELP_DIGEST_HEX_BYTES];
    char state_digest[KELP_DIGEST_HEX_BYTES];
    char step[32];
    kelp_status status;

    if (!items.items || !items.names) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        goto free_items;
    }
    add_vector(&items, state, state->weights, NULL);
    for (uint32_t i = 0; i < state->slot_count; i++) {
        add_vector(&items, state, state->slots[i], kelp_optimizer_slot_name(state->job, i));
    }
    kelp_plan_digest(state->plan, state->weights, digest);
    kelp_manifest_state_digest(manifest, state_digest);
    (void)snprintf(step, sizeof(step), "%" PRIu64, manifest->step);
    const struct kelp_safetensors_pair metadata[] = {
        {"format", "pt"},        {"kelp.job", manifest->job},         {"kelp.step", step},
        {"kelp.digest", digest}, {"kelp.state_digest", state_digest}, {KELP_MODEL_CARD_KEY, card}};
    status = kelp_safetensors_write(path, items.items, items.count, metadata,
                                    KELP_ARRAY_COUNT(metadata) - (card ? 0 : 1), reterr);
free_items:
    free(items.items);
    free(items.names);
    return status;
}

/* The checkpoint's own; of one that an earlier Kelp made, that of the run whose it is. */
static kelp_status read_card(const struct kelp_checkpoint *checkpoint, char **ret_card,
                             struct kelp_error *reterr)
{
    char path[sizeof(checkpoint->path) + 64];

    kelp_status status = kelp_model_card_read(checkpoint->path, ret_card, reterr);
    if (status != KELP_OK || *ret_card) {
        return status;
    }
    (void)snprintf(path, sizeof(path), "%s/../../" KELP_CHECKPOINTS_FOLDER, checkpoint->path);
    if (access(path, F_OK) != 0) {
        return KELP_OK; /* it lies alone */
    }
    (void)snprintf(path, sizeof(path), "%s/../..", checkpoint->path);
    return kelp_model_card_read(path, ret_card, reterr);
}

static kelp_status write_weights(const struct kelp_checkpoint *checkpoint, const char *path,
                                 const struct kelp_model_state *state, bool with_optimizer,
                                 struct kelp_error *reterr)
{
    const struct kelp_manifest *manifest = &checkpoint->manifest;
    char *card = NULL;

    kelp_status status = read_card(checkpoint, &card, reterr);
    if (status == KELP_OK) {
        const struct kelp_model_about about = {manifest->job, manifest->step, card};
        status = with_optimizer
                     ? write_all(path, state, manifest, card, reterr)
                     : kelp_model_write(path, state->plan, state->weights, &about, reterr);
    }
    free(card);
    return status;
}

kelp_status kelp_checkpoint_export(const struct kelp_checkpoint *checkpoint, const char *path,
                                   bool with_optimizer, char ret_digest[KELP_DIGEST_HEX_BYTES],
                                   struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan;
    struct kelp_model_state state = {.slot_count = 0};

    if (checkpoint->fault.status != KELP_OK) {
        return kelp_fail(reterr, checkpoint->fault.status, "%s", checkpoint->fault.text);
    }
    kelp_status status = kelp_checkpoint_job(checkpoint, &file, &plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_model_state_init(&state, kelp_job_file_job(file), &plan, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    status = kelp_checkpoint_load(checkpoint, &state, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    status = write_weights(checkpoint, path, &state, with_optimizer, reterr);
    if (status == KELP_OK) {
        kelp_plan_digest(&plan, state.weights, ret_digest);
    }

release:
    kelp_model_state_fini(&state);
    kelp_plan_fini(&plan);
    kelp_job_file_destroy(file);
    return status;
}

static int export_named(const struct kelp_options *given)
{
    struct kelp_checkpoint_source source = {.listed = false};
    const char *path = kelp_options_positional(given, 1);
    char digest[KELP_DIGEST_HEX_BYTES];
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    if (kelp_out_file_check("FILE", path, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    const struct kelp_checkpoint *checkpoint =
        kelp_checkpoint_find(&source, given, kelp_options_positional(given, 0), &exit_status);
    if (checkpoint &&
        kelp_checkpoint_export(checkpoint, path, kelp_options_flag(given, "with-optimizer"), digest,
                               &error) != KELP_OK) {
        exit_status = kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    } else if (checkpoint) {
        (void)printf("%s: step %" PRIu64 ", digest %s\n", path, checkpoint->manifest.step, digest);
        kelp_out_file_tell_safetensors(path);
    }
    kelp_checkpoint_source_fini(&source);
    return exit_status;
}

const struct kelp_verb kelp_checkpoint_verb_export = {
    "export", "write a checkpoint's weights as safetensors", &program, export_named, NULL};
