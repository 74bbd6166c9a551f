#include "tests/lib/golden/golden.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "common/base/json.h"

#define SUFFIX ".safetensors"

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

bool kelp_golden_set_open(struct kelp_golden_set *set)
{
    *set = (struct kelp_golden_set){.count = 0};
    (void)kelp_test_reference_file("", set->folder); /* "FOLDER/" */
    if (set->folder[0] != '\0') {
        set->folder[strlen(set->folder) - 1] = '\0';
    }
    struct dirent **entries = NULL;
    const int entry_count = scandir(set->folder, &entries, NULL, NULL);
    if (entry_count <= 0) {
        return false;
    }
    set->names = calloc((size_t)entry_count, sizeof(*set->names));
    for (int i = 0; i < entry_count; i++) { /* if out of memory, only free them */
        const char *name = entries[i]->d_name;
        const size_t length = strlen(name);
        if (set->names != NULL && length > strlen(SUFFIX) && length < KELP_GOLDEN_NAME_SIZE &&
            strcmp(name + length - strlen(SUFFIX), SUFFIX) == 0) {
            memcpy(set->names[set->count++], name, length + 1);
        }
        free(entries[i]);
    }
    free(entries);
    if (set->names == NULL || set->count == 0) {
        kelp_golden_set_close(set);
        return false;
    }
    qsort(set->names, set->count, sizeof(set->names[0]), by_name);
    return true;
}

void kelp_golden_set_close(struct kelp_golden_set *set)
{
    free(set->names);
    set->names = NULL;
    set->count = 0;
}

kelp_status kelp_golden_file_open(const struct kelp_golden_set *set, uint32_t index,
                                  struct kelp_golden_file *file, struct kelp_error *reterr)
{
    *file = (struct kelp_golden_file){.set = set, .name = set->names[index]};
    const int length = snprintf(file->path, sizeof(file->path), "%s/%s", set->folder, file->name);
    if (length < 0 || (size_t)length >= sizeof(file->path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: path too long", set->folder);
    }
    const kelp_status status = kelp_safetensors_open(file->path, &file->tensors, reterr);
    if (status == KELP_OK) {
        const char *model = kelp_safetensors_metadata(file->tensors, "model");
        const char *loss = kelp_safetensors_metadata(file->tensors, "loss");
        file->model = model != NULL ? model : "";
        file->loss = loss != NULL ? loss : "";
        file->read = calloc(kelp_safetensors_count(file->tensors), sizeof(*file->read));
        if (file->read == NULL) {
            kelp_golden_file_close(file);
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: no memory", file->path);
        }
    }
    return status;
}

void kelp_golden_file_close(struct kelp_golden_file *file)
{
    kelp_safetensors_close(file->tensors);
    file->tensors = NULL;
    free(file->read);
    file->read = NULL;
}

/* Find a tensor and mark it as read. */
static const struct kelp_safetensors_tensor *find_to_read(const struct kelp_golden_file *file,
                                                          const char *name)
{
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const struct kelp_safetensors_tensor *tensor = kelp_safetensors_at(file->tensors, i);
        if (strcmp(tensor->name, name) == 0) {
            file->read[i] = true;
            return tensor;
        }
    }
    return NULL;
}

kelp_status kelp_golden_json(const char *name, cJSON **ret_json, struct kelp_error *reterr)
{
    char path[KELP_TEST_PATH_MAX];
    char *text = NULL;
    size_t count = 0;
    (void)kelp_test_reference_file(name, path);
    kelp_status status = kelp_files_read(path, 1 << 24, &text, &count, reterr);
    if (status == KELP_OK) {
        status = kelp_json_parse(text, count, ret_json, reterr);
    }
    free(text);
    return status;
}

float *kelp_golden_floats(const struct kelp_golden_file *file, const char *name,
                          uint64_t *ret_count)
{
    const struct kelp_safetensors_tensor *tensor = find_to_read(file, name);
    float *values =
        tensor != NULL ? malloc((size_t)(tensor->elem_count + 1) * sizeof(*values)) : NULL;
    if (values == NULL) {
        return NULL;
    }
    if (tensor->dtype == KELP_DTYPE_I64) {
        for (uint64_t i = 0; i < tensor->elem_count; i++) {
            int64_t whole;
            memcpy(&whole, tensor->data + i * sizeof(whole), sizeof(whole));
            values[i] = (float)whole;
        }
    } else if (kelp_safetensors_floats(tensor, 0, tensor->elem_count, values, NULL) != KELP_OK) {
        free(values);
        return NULL;
    }
    *ret_count = tensor->elem_count;
    return values;
}

/* Copy a whole tensor of exactly `count` elements. */
static bool read_exactly(const struct kelp_golden_file *file, const char *name, float *values,
                         uint64_t count)
{
    const struct kelp_safetensors_tensor *tensor = find_to_read(file, name);
    return tensor != NULL && tensor->elem_count == count &&
           kelp_safetensors_floats(tensor, 0, count, values, NULL) == KELP_OK;
}

/* Read from the file whose metadata says that it has the full initial parameters of this one. */
static bool read_from_companion(const struct kelp_golden_file *file, const char *name,
                                float *values, uint64_t count)
{
    char claim[KELP_GOLDEN_NAME_SIZE * 2];
    (void)snprintf(claim, sizeof(claim), "full initial parameters of %.*s",
                   (int)(strlen(file->name) - strlen(SUFFIX)), file->name);
    bool found = false;
    for (uint32_t i = 0; i < file->set->count && !found; i++) {
        struct kelp_golden_file other;
        if (kelp_golden_file_open(file->set, i, &other, NULL) != KELP_OK) {
            continue;
        }
        found = strcmp(other.model, claim) == 0 && read_exactly(&other, name, values, count);
        kelp_golden_file_close(&other);
    }
    return found;
}

/* Fill by the README's rule for initial parameters that are too large to store. */
static void fill_by_rule(uint32_t k, const uint64_t *shape, uint32_t rank, float *values,
                         uint64_t count)
{
    const double fan_in = (double)count / (double)shape[0];
    const double scale = rank >= 2 ? sqrt(3.0 / fan_in) : 0.1;
    for (uint64_t j = 0; j < count; j++) {
        uint32_t u = (uint32_t)j * 2654435761u + (k + 1) * 40503u;
        u ^= u >> 15;
        u *= 2246822519u;
        u ^= u >> 13;
        values[j] = (float)(2.0 * ((double)u / 4294967296.0 - 0.5) * scale);
    }
}

static bool read_parameter(const struct kelp_golden_file *file, const struct kelp_tensor *tensor,
                           uint32_t index, float *values)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    (void)snprintf(name, sizeof(name), "param/%s", tensor->name);
    if (read_exactly(file, name, values, tensor->elem_count) ||
        read_from_companion(file, name, values, tensor->elem_count)) {
        return true;
    }
    const char *rule = kelp_safetensors_metadata(file->tensors, "param_rule");
    const char *offset = kelp_safetensors_metadata(file->tensors, "param_index_offset");
    if (rule == NULL || strncmp(rule, "det_init", strlen("det_init")) != 0 || tensor->rank == 0) {
        return false;
    }
    const uint32_t first = offset != NULL ? (uint32_t)strtoul(offset, NULL, 10) : 0;
    fill_by_rule(first + index, tensor->shape, tensor->rank, values, tensor->elem_count);
    return true;
}

bool kelp_golden_initial(const struct kelp_golden_file *file, const struct kelp_tensor *tensor,
                         uint32_t *parameter, float *values)
{
    if (!tensor->statistic) {
        return read_parameter(file, tensor, (*parameter)++, values);
    }
    char name[KELP_GOLDEN_NAME_SIZE];
    (void)snprintf(name, sizeof(name), "buffer/%s", tensor->name);
    if (!read_exactly(file, name, values, tensor->elem_count)) {
        for (uint64_t i = 0; i < tensor->elem_count; i++) {
            values[i] = tensor->init_a;
        }
    }
    return true;
}
