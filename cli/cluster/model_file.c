#include "cli/cluster/model_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/run_dir.h"
#include "common/base/files.h"
#include "common/tensors/safetensors.h"
#include "common/training/manifest.h"

kelp_status kelp_model_write(const char *path, const struct kelp_plan *plan, const float *flat,
                             const struct kelp_model_about *about, struct kelp_error *reterr)
{
    struct kelp_safetensors_item *items = calloc(plan->tensor_count, sizeof(*items));
    char digest[KELP_DIGEST_HEX_BYTES];
    char step_text[32];

    if (!items) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        items[i] = (struct kelp_safetensors_item){.name = tensor->name,
                                                  .dtype = KELP_DTYPE_F32,
                                                  .rank = tensor->rank,
                                                  .shape = tensor->shape,
                                                  .data = flat + tensor->offset};
    }
    kelp_plan_digest(plan, flat, digest);
    (void)snprintf(step_text, sizeof(step_text), "%" PRIu64, about->step);
    /* "format" is what readers of PyTorch's side look at. */
    const struct kelp_safetensors_pair metadata[] = {{"format", "pt"},
                                                     {"kelp.job", about->job},
                                                     {"kelp.step", step_text},
                                                     {"kelp.digest", digest},
                                                     {KELP_MODEL_CARD_KEY, about->card}};
    kelp_status status =
        kelp_safetensors_write(path, items, plan->tensor_count, metadata,
                               KELP_ARRAY_COUNT(metadata) - (about->card ? 0 : 1), reterr);
    free(items);
    return status;
}

kelp_status kelp_model_card_read(const char *folder, char **ret_text, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 512];
    size_t bytes = 0;

    int length = snprintf(path, sizeof(path), "%s/" KELP_MODEL_CARD_FILE, folder);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path '%.40s…' is too long", folder);
    }
    kelp_status status = kelp_files_read(path, KELP_MODEL_CARD_BYTES_MAX, ret_text, &bytes, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        *ret_text = NULL;
        return KELP_OK;
    }
    return status;
}

/* The file's metadata, with the card in the place of its own. Returns how many. */
static size_t copy_metadata(const struct kelp_safetensors *file, const char *card,
                            struct kelp_safetensors_pair *pairs)
{
    size_t count = 0;

    for (size_t i = 0; i < kelp_safetensors_metadata_count(file); i++) {
        const char *key = kelp_safetensors_metadata_key(file, i);
        if (!card || strcmp(key, KELP_MODEL_CARD_KEY) != 0) {
            pairs[count++] = (struct kelp_safetensors_pair){
                .key = key, .value = kelp_safetensors_metadata_value(file, i)};
        }
    }
    if (card) {
        pairs[count++] = (struct kelp_safetensors_pair){.key = KELP_MODEL_CARD_KEY, .value = card};
    }
    return count;
}

kelp_status kelp_model_copy_file(const char *from, const char *to, const char *card,
                                 struct kelp_error *reterr)
{
    struct kelp_safetensors *file = NULL;

    kelp_status status = kelp_safetensors_open(from, &file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    size_t count = kelp_safetensors_count(file);
    struct kelp_safetensors_item *items = calloc(count + 1, sizeof(*items));
    struct kelp_safetensors_pair *pairs =
        calloc(kelp_safetensors_metadata_count(file) + 1, sizeof(*pairs));
    if (!items || !pairs) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        goto free_tables;
    }
    for (size_t i = 0; i < count; i++) {
        const struct kelp_safetensors_tensor *tensor = kelp_safetensors_at(file, i);
        items[i] = (struct kelp_safetensors_item){.name = tensor->name,
                                                  .dtype = tensor->dtype,
                                                  .rank = tensor->rank,
                                                  .shape = tensor->shape,
                                                  .data = tensor->data};
    }
    status =
        kelp_safetensors_write(to, items, count, pairs, copy_metadata(file, card, pairs), reterr);
free_tables:
    free(items);
    free(pairs);
    kelp_safetensors_close(file);
    return status;
}

/* Elements in pieces: they may be unaligned in the file, and are digested as the bytes they are. */
kelp_status kelp_model_file_digest(const char *path, char ret_hex[KELP_DIGEST_HEX_BYTES],
                                   struct kelp_error *reterr)
{
    struct kelp_safetensors *file = NULL;
    struct kelp_digest digest;

    kelp_status status = kelp_safetensors_open(path, &file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_digest_init(&digest);
    for (size_t i = 0; i < kelp_safetensors_count(file) && status == KELP_OK; i++) {
        const struct kelp_safetensors_tensor *tensor = kelp_safetensors_at(file, i);
        if (tensor->dtype != KELP_DTYPE_F32) {
            status = kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                               "%s: tensor '%s' is %s; a model's digest is over F32 tensors", path,
                               tensor->name, kelp_dtype_name(tensor->dtype));
            break;
        }
        kelp_digest_tensor(&digest, tensor->name, tensor->rank, tensor->shape);
        kelp_digest_update(&digest, tensor->data, tensor->data_bytes);
    }
    kelp_safetensors_close(file);
    if (status == KELP_OK) {
        kelp_digest_hex(&digest, ret_hex);
    }
    return status;
}
