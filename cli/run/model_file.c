#include "cli/run/model_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"

kelp_status kelp_model_write(const char *path, const struct kelp_plan *plan, const float *flat,
                             const char *job, uint64_t step, struct kelp_error *reterr)
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
    (void)snprintf(step_text, sizeof(step_text), "%" PRIu64, step);
    /* "format" is what readers of PyTorch's side look at. */
    const struct kelp_safetensors_pair metadata[] = {
        {"format", "pt"}, {"kelp.job", job}, {"kelp.step", step_text}, {"kelp.digest", digest}};
    kelp_status status = kelp_safetensors_write(path, items, plan->tensor_count, metadata,
                                                KELP_ARRAY_COUNT(metadata), reterr);
    free(items);
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
