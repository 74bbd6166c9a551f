#include "common/training/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/text.h"

static const char *const init_names[] = {
    [KELP_INIT_CONSTANT] = "constant",
    [KELP_INIT_UNIFORM] = "uniform",
    [KELP_INIT_NORMAL] = "normal",
    [KELP_INIT_FILE] = "file",
};
static const char *const part_names[KELP_SPLIT_COUNT] = {"train", "validation", "test"};

/* ---- text ---- */

static void print_tensor(FILE *out, const struct kelp_tensor *tensor)
{
    (void)fputs("{\"name\":", out);
    kelp_json_print_string(out, tensor->name);
    (void)fputs(",\"shape\":[", out);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        (void)fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", tensor->shape[i]);
    }
    (void)fprintf(out, "],\"init\":\"%s\",\"a\":", init_names[tensor->init]);
    kelp_json_print_float(out, tensor->init_a);
    if (tensor->statistic) {
        (void)fputs(",\"momentum\":", out);
        kelp_json_print_float(out, tensor->momentum);
    } else if (!tensor->decays) {
        (void)fputs(",\"decays\":false", out);
    }
    (void)fputc('}', out);
}

static void print_plan(const void *what, FILE *out)
{
    const struct kelp_plan *plan = what;

    (void)fprintf(out,
                  "{\"samples\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "],"
                  "\"data_fingerprint\":\"%016" PRIx64 "\",",
                  plan->samples[0], plan->samples[1], plan->samples[2], plan->data_fingerprint);
    if (plan->model_digest != 0) {
        (void)fprintf(out, "\"model_digest\":\"%016" PRIx64 "\",", plan->model_digest);
    }
    (void)fputs("\"compute_kind\":", out);
    kelp_json_print_string(out, plan->compute_kind);
    (void)fprintf(out, ",\"compute_answer\":\"%016" PRIx64 "\"", plan->compute_answer);
    if (plan->compute_reasons[0] != '\0') {
        kelp_json_print_member(out, ",", "compute_reasons", plan->compute_reasons);
    }
    (void)fprintf(out, ",\"partitions\":%" PRIu32 ",\"tensors\":[", plan->partition_count);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        if (i > 0) {
            (void)fputc(',', out);
        }
        print_tensor(out, &plan->tensors[i]);
    }
    (void)fputs("]}", out);
}

kelp_status kelp_plan_print(const struct kelp_plan *plan, char **ret_text,
                            struct kelp_error *reterr)
{
    kelp_status status = kelp_text_print(print_plan, plan, KELP_PLAN_TEXT_MAX, ret_text, reterr);

    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the plan of %" PRIu32 " tensors", plan->tensor_count);
    }
    return status;
}

static kelp_status parse_init(const cJSON *item, struct kelp_tensor *tensor,
                              struct kelp_error *reterr)
{
    char name[16];
    double a = 0;
    kelp_status status = kelp_json_string(item, "init", name, sizeof(name), reterr);

    if (status == KELP_OK) {
        status = kelp_json_double(item, "a", &a, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    tensor->init_a = (float)a;
    if (!isfinite(tensor->init_a)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a: beyond a float's range");
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(init_names); i++) {
        if (strcmp(name, init_names[i]) == 0) {
            tensor->init = (enum kelp_init_kind)i;
            return KELP_OK;
        }
    }
    return kelp_fail(reterr, KELP_ERR_FORMAT, "init: %s is not constant, uniform, normal or file",
                     name);
}

/* "momentum" marks a statistic; a parameter decays unless "decays" is false. */
static kelp_status parse_update(const cJSON *item, struct kelp_tensor *tensor,
                                struct kelp_error *reterr)
{
    const cJSON *decays = cJSON_GetObjectItemCaseSensitive(item, "decays");
    double momentum = 0;

    if (decays && !cJSON_IsFalse(decays)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "decays: is false, or left out");
    }
    tensor->statistic = cJSON_HasObjectItem(item, "momentum");
    tensor->decays = !tensor->statistic && !decays;
    if (!tensor->statistic) {
        return KELP_OK;
    }
    kelp_status status = kelp_json_double(item, "momentum", &momentum, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (decays || !(momentum >= 0 && momentum <= 1)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "momentum: is a number from 0 to 1, and goes without decays");
    }
    tensor->momentum = (float)momentum;
    return KELP_OK;
}

static kelp_status parse_dim(const cJSON *element, void *into, struct kelp_error *reterr)
{
    struct kelp_tensor *tensor = into;
    uint64_t *dim = &tensor->shape[tensor->rank++];
    kelp_status status = kelp_json_element_u64(element, KELP_PLAN_ELEMENTS_MAX, dim, reterr);

    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "shape");
    }
    return status;
}

static kelp_status parse_shape(const cJSON *item, struct kelp_tensor *tensor,
                               struct kelp_error *reterr)
{
    const cJSON *shape = NULL;
    kelp_status status = kelp_json_array(item, "shape", KELP_TENSOR_RANK_MAX, &shape, reterr);

    return status == KELP_OK ? kelp_json_each(shape, parse_dim, tensor, reterr) : status;
}

static kelp_status parse_tensor(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct kelp_plan *plan = into;
    struct kelp_tensor *tensor = &plan->tensors[plan->tensor_count];
    kelp_status status = kelp_json_string(item, "name", tensor->name, sizeof(tensor->name), reterr);

    if (status == KELP_OK) {
        status = parse_shape(item, tensor, reterr);
    }
    if (status == KELP_OK) {
        status = parse_init(item, tensor, reterr);
    }
    if (status == KELP_OK) {
        status = parse_update(item, tensor, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "tensors[%" PRIu32 "]", plan->tensor_count);
        return status;
    }
    plan->tensor_count++;
    return KELP_OK;
}

static kelp_status parse_tensors(const cJSON *json, struct kelp_plan *plan,
                                 struct kelp_error *reterr)
{
    const cJSON *tensors = NULL;
    kelp_status status = kelp_json_array(json, "tensors", KELP_PLAN_TENSORS_MAX, &tensors, reterr);

    if (status != KELP_OK) {
        return status;
    }
    plan->tensors = calloc((size_t)cJSON_GetArraySize(tensors) + 1, sizeof(*plan->tensors));
    if (!plan->tensors) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    return kelp_json_each(tensors, parse_tensor, plan, reterr);
}

static kelp_status parse_samples(const cJSON *json, struct kelp_plan *plan,
                                 struct kelp_error *reterr)
{
    const cJSON *samples;
    kelp_status status = kelp_json_array(json, "samples", KELP_SPLIT_COUNT, &samples, reterr);

    for (int part = 0; part < KELP_SPLIT_COUNT && status == KELP_OK; part++) {
        status = kelp_json_element_u64(cJSON_GetArrayItem(samples, part), KELP_JSON_INTEGER_MAX,
                                       &plan->samples[part], reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "samples[%d]", part);
        }
    }
    return status;
}

/* The number of partitions follows from the job's max_shards, which the text does not have. So
 * each number that the formula can give is accepted; comparing plans finds a wrong one. */
static kelp_status parse_partitions(const cJSON *json, struct kelp_plan *plan,
                                    struct kelp_error *reterr)
{
    uint32_t partitions;
    kelp_status status =
        kelp_json_u32(json, "partitions", KELP_PARTITIONS_MAX, &partitions, reterr);

    if (status == KELP_OK) {
        status = kelp_plan_lay_out(plan, 1, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (partitions == 0 || partitions > plan->flat_count / 16) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "partitions: %" PRIu32 " of %" PRIu64 " elements",
                         partitions, plan->flat_count);
    }
    plan->partition_count = partitions;
    return KELP_OK;
}

static kelp_status parse_plan(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_plan *plan = into;
    kelp_status status = parse_samples(json, plan, reterr);

    if (status == KELP_OK) {
        status = kelp_json_hex64(json, "data_fingerprint", &plan->data_fingerprint, reterr);
    }
    if (status == KELP_OK && cJSON_HasObjectItem(json, "model_digest")) {
        status = kelp_json_hex64(json, "model_digest", &plan->model_digest, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "compute_kind", plan->compute_kind,
                                  sizeof(plan->compute_kind), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_hex64(json, "compute_answer", &plan->compute_answer, reterr);
    }
    if (status == KELP_OK && cJSON_HasObjectItem(json, "compute_reasons")) {
        status = kelp_json_string(json, "compute_reasons", plan->compute_reasons,
                                  sizeof(plan->compute_reasons), reterr);
    }
    if (status == KELP_OK) {
        status = parse_tensors(json, plan, reterr);
    }
    if (status == KELP_OK) {
        status = parse_partitions(json, plan, reterr);
    }
    return status;
}

kelp_status kelp_plan_parse(const char *text, size_t text_bytes, struct kelp_plan *ret_plan,
                            struct kelp_error *reterr)
{
    struct kelp_plan plan = {0};

    if (text_bytes > KELP_PLAN_TEXT_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "plan: %zu bytes, over %u", text_bytes,
                         KELP_PLAN_TEXT_MAX);
    }
    kelp_status status = kelp_json_read(text, text_bytes, parse_plan, &plan, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "plan");
        kelp_plan_fini(&plan);
        return status;
    }
    *ret_plan = plan;
    return KELP_OK;
}

/* ---- difference ---- */

/* Compare bits: -0 and 0 give different weights. */
static bool same_bits(float a, float b)
{
    uint32_t a_bits, b_bits;

    memcpy(&a_bits, &a, sizeof(a));
    memcpy(&b_bits, &b, sizeof(b));
    return a_bits == b_bits;
}

static bool tensors_equal(const struct kelp_tensor *a, const struct kelp_tensor *b)
{
    return strcmp(a->name, b->name) == 0 && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) == 0 && a->init == b->init &&
           same_bits(a->init_a, b->init_a) && a->statistic == b->statistic &&
           a->decays == b->decays && same_bits(a->momentum, b->momentum);
}

static bool tensor_difference(const struct kelp_plan *ours, const struct kelp_plan *theirs,
                              char *text, size_t text_bytes)
{
    if (ours->tensor_count != theirs->tensor_count) {
        (void)snprintf(text, text_bytes, "the model has %" PRIu32 " tensors, not %" PRIu32,
                       ours->tensor_count, theirs->tensor_count);
        return true;
    }
    for (uint32_t i = 0; i < ours->tensor_count; i++) {
        if (!tensors_equal(&ours->tensors[i], &theirs->tensors[i])) {
            (void)snprintf(text, text_bytes,
                           "tensor %" PRIu32 " (%s) differs in name, shape, initial values or "
                           "update from %s",
                           i, ours->tensors[i].name, theirs->tensors[i].name);
            return true;
        }
    }
    if (ours->partition_count != theirs->partition_count) {
        (void)snprintf(text, text_bytes, "the model has %" PRIu32 " partitions, not %" PRIu32,
                       ours->partition_count, theirs->partition_count);
        return true;
    }
    return false;
}

bool kelp_plan_is_portable(const struct kelp_plan *plan)
{
    static const char portable[] = "cpu portable ";
    return strncmp(plan->compute_kind, portable, sizeof(portable) - 1) == 0;
}

/* The compute kind from " cudnn-" on; "": it has none. */
static const char *cudnn_of(const struct kelp_plan *plan)
{
    const char *cudnn = strstr(plan->compute_kind, " cudnn-");
    return cudnn ? cudnn : "";
}

/* Advice how to make the plans equal. */
static const char *advice(const struct kelp_plan *ours, const struct kelp_plan *theirs)
{
    if (strcmp(ours->compute_kind, theirs->compute_kind) == 0) {
        return "cluster.mixed: true lets it in";
    }
    if (strcmp(cudnn_of(ours), cudnn_of(theirs)) != 0) {
        return "cluster.cudnn: never computes without cuDNN on all; cluster.mixed: true lets it in";
    }
    return !kelp_plan_is_portable(ours) && !kelp_plan_is_portable(theirs)
               ? "cluster.compute: portable is one kind for all with the same OpenBLAS; "
                 "cluster.mixed: true lets it in"
               : "cluster.mixed: true lets it in";
}

bool kelp_plan_computes_otherwise(const struct kelp_plan *ours, const struct kelp_plan *theirs,
                                  char *text, size_t text_bytes)
{
    if (strcmp(ours->compute_kind, theirs->compute_kind) != 0) {
        (void)snprintf(text, text_bytes, "compute kind %s differs from %s", ours->compute_kind,
                       theirs->compute_kind);
        return true;
    }
    const char *reasons =
        theirs->compute_reasons[0] ? theirs->compute_reasons : ours->compute_reasons;
    if (ours->compute_answer != theirs->compute_answer) {
        (void)snprintf(text, text_bytes, "%s %016" PRIx64 " differs from %016" PRIx64 "%s%s",
                       reasons[0] ? "what the program computes before the first step,"
                                  : "the kernels' known answer",
                       ours->compute_answer, theirs->compute_answer, reasons[0] ? ": " : "",
                       reasons);
        return true;
    }
    return false;
}

static bool compute_difference(const struct kelp_plan *ours, const struct kelp_plan *theirs,
                               char *text, size_t text_bytes)
{
    if (!kelp_plan_computes_otherwise(ours, theirs, text, text_bytes)) {
        return false;
    }
    const size_t used = strlen(text);
    (void)snprintf(text + used, text_bytes - used, " (%s)", advice(ours, theirs));
    return true;
}

static bool data_difference(const struct kelp_plan *ours, const struct kelp_plan *theirs,
                            char *text, size_t text_bytes)
{
    for (int part = 0; part < KELP_SPLIT_COUNT; part++) {
        if (ours->samples[part] != theirs->samples[part]) {
            (void)snprintf(text, text_bytes, "the %s split has %" PRIu64 " samples, not %" PRIu64,
                           part_names[part], ours->samples[part], theirs->samples[part]);
            return true;
        }
    }
    if (ours->data_fingerprint != theirs->data_fingerprint) {
        (void)snprintf(text, text_bytes, "data fingerprint %016" PRIx64 " differs from %016" PRIx64,
                       ours->data_fingerprint, theirs->data_fingerprint);
        return true;
    }
    return false;
}

static bool model_difference(const struct kelp_plan *ours, const struct kelp_plan *theirs,
                             char *text, size_t text_bytes)
{
    if (ours->model_digest != theirs->model_digest) {
        (void)snprintf(text, text_bytes,
                       "the digest of the model's library or program, %016" PRIx64
                       ", differs from %016" PRIx64,
                       ours->model_digest, theirs->model_digest);
        return true;
    }
    return tensor_difference(ours, theirs, text, text_bytes);
}

enum kelp_plan_part kelp_plan_difference(const struct kelp_plan *ours,
                                         const struct kelp_plan *theirs, bool mixed, char *text,
                                         size_t text_bytes)
{
    if (data_difference(ours, theirs, text, text_bytes)) {
        return KELP_PLAN_DATA;
    }
    if (model_difference(ours, theirs, text, text_bytes)) {
        return KELP_PLAN_MODEL;
    }
    return !mixed && compute_difference(ours, theirs, text, text_bytes) ? KELP_PLAN_COMPUTE
                                                                        : KELP_PLAN_EQUAL;
}
