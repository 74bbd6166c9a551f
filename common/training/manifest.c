#include "common/training/manifest.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/training/plan.h"

/* A storage holds at least one partition. */
#define STORAGES_MAX KELP_PARTITIONS_MAX

_Static_assert(KELP_PARTITIONS_MAX * 128u + STORAGES_MAX * (KELP_FOLDER_NAME_MAX + 3u) + 1024u <=
                   KELP_MANIFEST_BYTES_MAX,
               "the largest manifest must fit its own limit");

kelp_status kelp_manifest_init(struct kelp_manifest *manifest, uint32_t storage_count,
                               uint32_t part_count, struct kelp_error *reterr)
{
    if (storage_count > STORAGES_MAX || part_count > KELP_PARTITIONS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "a manifest of %u storages and %u parts; %u and %u are the limits",
                         storage_count, part_count, STORAGES_MAX, KELP_PARTITIONS_MAX);
    }
    struct kelp_manifest made = {.storage_count = storage_count, .part_count = part_count};
    /* One more of each, so that NULL always means out of memory. */
    made.storages = calloc(storage_count + 1u, sizeof(*made.storages));
    made.parts = calloc(part_count + 1u, sizeof(*made.parts));
    if (!made.storages || !made.parts) {
        kelp_manifest_fini(&made);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a manifest of %u parts",
                         part_count);
    }
    *manifest = made;
    return KELP_OK;
}

void kelp_manifest_fini(struct kelp_manifest *manifest)
{
    free(manifest->storages);
    free(manifest->parts);
    *manifest = (struct kelp_manifest){0};
}

void kelp_manifest_state_digest(const struct kelp_manifest *manifest,
                                char ret_hex[KELP_DIGEST_HEX_BYTES])
{
    struct kelp_digest digest;
    kelp_digest_init(&digest);
    kelp_digest_update(&digest, &manifest->version, sizeof(manifest->version));
    for (uint32_t i = 0; i < manifest->part_count; i++) {
        kelp_digest_update(&digest, manifest->parts[i].digest, KELP_DIGEST_HEX_BYTES - 1);
    }
    kelp_digest_hex(&digest, ret_hex);
}

/* ---- printing ---- */

static void print_head(FILE *out, const struct kelp_manifest *manifest)
{
    (void)fprintf(out, "{\"job\":");
    kelp_json_print_string(out, manifest->job);
    (void)fprintf(out,
                  ",\"spec_digest\":\"%016" PRIx64 "\",\"version\":%" PRIu64 ",\"step\":%" PRIu64
                  ",\"epochs\":%u,\"generation\":%" PRIu64 ",\"unix_ms\":%" PRIu64 ",\"metric\":",
                  manifest->spec_digest, manifest->version, manifest->step, manifest->epochs,
                  manifest->generation, manifest->unix_ms);
    if (manifest->has_metric) {
        for (size_t i = 0; i < KELP_ARRAY_COUNT(manifest->metric); i++) {
            (void)fputc(i == 0 ? '[' : ',', out);
            kelp_json_print_double(out, manifest->metric[i]);
        }
        (void)fputc(']', out);
    } else {
        (void)fprintf(out, "null");
    }
    (void)fprintf(out, ",\"nonce\":");
    kelp_json_print_string(out, manifest->nonce);
    (void)fprintf(out, ",\"folder\":");
    kelp_json_print_string(out, manifest->folder);
}

kelp_status kelp_manifest_print(const struct kelp_manifest *manifest, char **ret_text,
                                struct kelp_error *reterr)
{
    struct kelp_text text;
    size_t bytes = 0;
    kelp_status status = kelp_text_open(&text, reterr);
    if (status != KELP_OK) {
        return status;
    }
    print_head(text.out, manifest);
    (void)fprintf(text.out, ",\"storages\":[");
    for (uint32_t i = 0; i < manifest->storage_count; i++) {
        (void)fprintf(text.out, "%s", i > 0 ? "," : "");
        kelp_json_print_string(text.out, manifest->storages[i]);
    }
    (void)fprintf(text.out, "],\"parts\":[");
    for (uint32_t i = 0; i < manifest->part_count; i++) {
        const struct kelp_manifest_part *part = &manifest->parts[i];
        (void)fprintf(text.out,
                      "%s{\"storage\":%u,\"bytes\":%" PRIu64 ",\"digest\":", i > 0 ? "," : "",
                      part->storage, part->bytes);
        kelp_json_print_string(text.out, part->digest);
        (void)fputc('}', text.out);
    }
    (void)fprintf(text.out, "]}");
    return kelp_text_close(&text, ret_text, &bytes, reterr);
}

/* ---- parsing ---- */

static kelp_status folder_string(const cJSON *item, char name[KELP_FOLDER_NAME_MAX + 1],
                                 const char *what, struct kelp_error *reterr)
{
    const char *text = cJSON_GetStringValue(item);
    if (!text || !kelp_folder_name_valid(text)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s: not a folder's name (1 to %d letters, digits, '-', '_', '.'; no '.' "
                         "at the beginning)",
                         what, KELP_FOLDER_NAME_MAX);
    }
    memcpy(name, text, strlen(text) + 1);
    return KELP_OK;
}

/* Numbers that are not finite are printed as null. */
static kelp_status parse_metric(const cJSON *json, struct kelp_manifest *manifest,
                                struct kelp_error *reterr)
{
    const cJSON *metric = cJSON_GetObjectItemCaseSensitive(json, "metric");
    if (cJSON_IsNull(metric)) {
        return KELP_OK;
    }
    if (!cJSON_IsArray(metric) ||
        (size_t)cJSON_GetArraySize(metric) != KELP_ARRAY_COUNT(manifest->metric)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "metric: neither null nor %zu numbers",
                         KELP_ARRAY_COUNT(manifest->metric));
    }
    size_t index = 0;
    for (const cJSON *item = metric->child; item; item = item->next) {
        if (!cJSON_IsNull(item) && !(cJSON_IsNumber(item) && isfinite(item->valuedouble))) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "metric[%zu]: not a finite number or null",
                             index);
        }
        manifest->metric[index++] = cJSON_IsNull(item) ? (double)NAN : item->valuedouble;
    }
    manifest->has_metric = true;
    return KELP_OK;
}

static kelp_status parse_numbers(const cJSON *json, struct kelp_manifest *manifest,
                                 struct kelp_error *reterr)
{
    const struct {
        const char *name;
        uint64_t *value;
    } numbers[] = {{"version", &manifest->version},
                   {"step", &manifest->step},
                   {"generation", &manifest->generation},
                   {"unix_ms", &manifest->unix_ms}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        kelp_status status =
            kelp_json_u64(json, numbers[i].name, KELP_JSON_INTEGER_MAX, numbers[i].value, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    kelp_status status = kelp_json_u32(json, "epochs", UINT32_MAX, &manifest->epochs, reterr);
    if (status == KELP_OK) {
        status = kelp_json_hex64(json, "spec_digest", &manifest->spec_digest, reterr);
    }
    if (status == KELP_OK && manifest->generation == 0) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "generation: 0; they count from 1");
    }
    if (status == KELP_OK && manifest->step > manifest->version) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT,
                           "step: %" PRIu64 " training steps in %" PRIu64 " versions",
                           manifest->step, manifest->version);
    }
    return status;
}

static kelp_status parse_names(const cJSON *json, struct kelp_manifest *manifest,
                               struct kelp_error *reterr)
{
    kelp_status status =
        kelp_json_string(json, "job", manifest->job, sizeof(manifest->job), reterr);
    if (status == KELP_OK && manifest->job[0] == '\0') {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "job: empty; the job's name is needed");
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "nonce", manifest->nonce, sizeof(manifest->nonce), reterr);
    }
    if (status == KELP_OK) {
        status = folder_string(cJSON_GetObjectItemCaseSensitive(json, "folder"), manifest->folder,
                               "folder", reterr);
    }
    return status;
}

static kelp_status parse_storages(const cJSON *array, struct kelp_manifest *manifest,
                                  struct kelp_error *reterr)
{
    uint32_t index = 0;
    for (const cJSON *item = array->child; item; item = item->next, index++) {
        kelp_status status = folder_string(item, manifest->storages[index], "storages", reterr);
        if (status != KELP_OK) {
            return status;
        }
        for (uint32_t i = 0; i < index; i++) {
            if (strcmp(manifest->storages[i], manifest->storages[index]) == 0) {
                return kelp_fail(reterr, KELP_ERR_FORMAT, "storages: %s is there twice",
                                 manifest->storages[index]);
            }
        }
    }
    return KELP_OK;
}

static bool digest_valid(const char *digest)
{
    return strlen(digest) == KELP_DIGEST_HEX_BYTES - 1 &&
           strspn(digest, "0123456789abcdef") == KELP_DIGEST_HEX_BYTES - 1;
}

static kelp_status parse_part(const cJSON *json, uint32_t storage_count,
                              struct kelp_manifest_part *part, struct kelp_error *reterr)
{
    kelp_status status = kelp_json_u32(json, "storage", UINT32_MAX, &part->storage, reterr);
    if (status == KELP_OK && part->storage >= storage_count) {
        status =
            kelp_fail(reterr, KELP_ERR_FORMAT, "storage: %u of %u", part->storage, storage_count);
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "bytes", KELP_JSON_INTEGER_MAX, &part->bytes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "digest", part->digest, sizeof(part->digest), reterr);
    }
    if (status == KELP_OK && !digest_valid(part->digest)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "digest: not %d hexadecimal digits",
                           KELP_DIGEST_HEX_BYTES - 1);
    }
    return status;
}

static kelp_status parse_parts(const cJSON *array, struct kelp_manifest *manifest,
                               struct kelp_error *reterr)
{
    uint32_t index = 0;
    for (const cJSON *item = array->child; item; item = item->next, index++) {
        kelp_status status =
            parse_part(item, manifest->storage_count, &manifest->parts[index], reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "parts[%u]", index);
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status parse_json(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_manifest *manifest = into;
    const cJSON *storages = NULL;
    const cJSON *parts = NULL;
    kelp_status status = kelp_json_array(json, "storages", STORAGES_MAX, &storages, reterr);
    if (status == KELP_OK) {
        status = kelp_json_array(json, "parts", KELP_PARTITIONS_MAX, &parts, reterr);
    }
    if (status == KELP_OK && cJSON_GetArraySize(parts) == 0) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "parts: none; a model has at least one");
    }
    if (status == KELP_OK) {
        status = kelp_manifest_init(manifest, (uint32_t)cJSON_GetArraySize(storages),
                                    (uint32_t)cJSON_GetArraySize(parts), reterr);
    }
    if (status == KELP_OK) {
        status = parse_numbers(json, manifest, reterr);
    }
    if (status == KELP_OK) {
        status = parse_metric(json, manifest, reterr);
    }
    if (status == KELP_OK) {
        status = parse_names(json, manifest, reterr);
    }
    if (status == KELP_OK) {
        status = parse_storages(storages, manifest, reterr);
    }
    return status == KELP_OK ? parse_parts(parts, manifest, reterr) : status;
}

kelp_status kelp_manifest_parse(const char *text, size_t text_bytes,
                                struct kelp_manifest *ret_manifest, struct kelp_error *reterr)
{
    if (text_bytes > KELP_MANIFEST_BYTES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "a manifest of %zu bytes; %u is the limit",
                         text_bytes, KELP_MANIFEST_BYTES_MAX);
    }
    struct kelp_manifest manifest = {0};
    kelp_status status = kelp_json_read(text, text_bytes, parse_json, &manifest, reterr);
    if (status != KELP_OK) {
        kelp_manifest_fini(&manifest);
        return status;
    }
    *ret_manifest = manifest;
    return KELP_OK;
}
