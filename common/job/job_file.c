/* A key on its way: found in the table and assigned (kelp__job_file_assign()), checked with the
 * others once all are read (kelp_job_file_finish()). */
#include "common/job/job.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/base/value.h"
#include "common/job/job_options.h"
#include "common/tensors/rename.h"

#define VALUE_BYTES_MAX (64u << 10) /* no longer than a file */

struct kelp_job_file *kelp_job_file_create(void)
{
    struct kelp_job_file *file = calloc(1, sizeof(*file));

    if (!file) {
        return NULL;
    }
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        kelp_status status = kelp__job_key_read(&kelp__job_keys[i], kelp__job_keys[i].default_text,
                                                &file->job, NULL);
        assert(status == KELP_OK); /* the table's own default */
        (void)status;
    }
    return file;
}

void kelp_job_file_destroy(struct kelp_job_file *file)
{
    if (file) {
        free(file->name);
        free(file->folder);
        free(file->here);
        free(file);
    }
}

const struct kelp_job *kelp_job_file_job(const struct kelp_job_file *file)
{
    return file->here ? file->here : &file->job;
}

enum kelp_origin_kind kelp_job_file_origin(const struct kelp_job_file *file, const char *key)
{
    size_t index = kelp__job_key_find(key);

    assert(index < kelp__job_key_count);
    return file->origins[index].kind;
}

struct value {
    const struct kelp_job_key *key;
    const struct kelp_job *job;
};

static void print_value(const void *what, FILE *out)
{
    const struct value *value = what;
    const struct kelp_job_key *key = value->key;

    if (key->type == KELP_JOB_NAME || key->type == KELP_JOB_TEXT || key->type == KELP_JOB_PATH) {
        (void)fputs((const char *)value->job + key->offset, out);
    } else {
        kelp__job_key_print(out, key, value->job);
    }
}

kelp_status kelp_job_file_value(const struct kelp_job_file *file, const char *key, char *text,
                                size_t text_bytes, struct kelp_error *reterr)
{
    const size_t index = kelp__job_key_find(key);
    char *printed = NULL;

    if (index >= kelp__job_key_count) {
        return kelp__job_key_unknown(key, reterr);
    }
    const struct value value = {&kelp__job_keys[index], kelp_job_file_job(file)};
    kelp_status status = kelp_text_print(print_value, &value, VALUE_BYTES_MAX, &printed, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const size_t bytes = strlen(printed) + 1;
    if (bytes > text_bytes) {
        status = kelp_fail(reterr, KELP_ERR_LIMIT, "%s: its value needs %zu bytes, not %zu", key,
                           bytes, text_bytes);
    } else {
        memcpy(text, printed, bytes);
    }
    free(printed);
    return status;
}

/* ---- errors ---- */

/* Put the origin of the key's value in front of the text. */
static void prefix_origin(const struct kelp_job_file *file, const char *key,
                          const struct kelp_origin *origin, struct kelp_error *reterr)
{
    char variable[64];

    switch (origin->kind) {
    case KELP_ORIGIN_DEFAULT:
        kelp_error_prefix(reterr, "%.63s", key);
        return;
    case KELP_ORIGIN_FILE:
        kelp_error_prefix(reterr, "%.127s:%" PRIu32 ": %.63s", file->name, origin->line, key);
        return;
    case KELP_ORIGIN_ENVIRONMENT:
        kelp__job_variable(key, variable, sizeof(variable));
        kelp_error_prefix(reterr, "environment %s", variable);
        return;
    case KELP_ORIGIN_FLAG:
        kelp_error_prefix(reterr, "command line: %.63s", key);
        return;
    }
    assert(false && "origin kind");
}

kelp_status kelp__job_refuse(const struct kelp_job_file *file, const char *key,
                             struct kelp_error *reterr, const char *format, ...)
{
    char text[384];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)kelp_fail(reterr, KELP_ERR_INVALID, "%s", text);
    prefix_origin(file, key, &file->origins[kelp__job_key_find(key)], reterr);
    return KELP_ERR_INVALID;
}

/* ---- setting ---- */

kelp_status kelp__job_file_assign(struct kelp_job_file *file, const char *key, const char *value,
                                  struct kelp_origin origin, struct kelp_error *reterr)
{
    size_t index = kelp__job_key_find(key);
    char path[KELP_JOB_PATH_MAX + 1];

    assert(!file->here);
    kelp_status status = index < kelp__job_key_count ? KELP_OK : kelp__job_key_unknown(key, reterr);

    if (status == KELP_OK &&
        kelp__job_path_is_relative(file, &kelp__job_keys[index], value, origin.kind)) {
        status = kelp__job_path_resolve(origin.kind == KELP_ORIGIN_FILE ? file->folder : NULL,
                                        value, path, reterr);
        value = path;
    }
    if (status == KELP_OK) {
        status = kelp__job_key_read(&kelp__job_keys[index], value, &file->job, reterr);
    }
    if (status != KELP_OK) {
        prefix_origin(file, key, &origin, reterr);
        return status;
    }
    file->origins[index] = origin;
    return KELP_OK;
}

kelp_status kelp_job_file_set(struct kelp_job_file *file, const char *key, const char *value,
                              enum kelp_origin_kind kind, struct kelp_error *reterr)
{
    assert(kind != KELP_ORIGIN_FILE);
    return kelp__job_file_assign(file, key, value, (struct kelp_origin){.kind = kind}, reterr);
}

kelp_status kelp_job_file_environment(struct kelp_job_file *file, struct kelp_error *reterr)
{
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        char variable[64];
        kelp__job_variable(kelp__job_keys[i].name, variable, sizeof(variable));
        const char *value = getenv(variable);
        if (!value || value[0] == '\0') {
            continue; /* as everywhere: an empty variable counts as unset */
        }
        kelp_status status =
            kelp_job_file_set(file, kelp__job_keys[i].name, value, KELP_ORIGIN_ENVIRONMENT, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* ---- checks over several keys ---- */

/* A key that is not set although every job needs it. */
static kelp_status check_required(const struct kelp_job_file *file, size_t index,
                                  struct kelp_error *reterr)
{
    const struct kelp_job_key *key = &kelp__job_keys[index];
    char list[256] = "";

    if (!key->required || file->origins[index].kind != KELP_ORIGIN_DEFAULT) {
        return KELP_OK;
    }
    for (size_t i = 0; key->choices[i]; i++) {
        kelp_text_list_add(list, sizeof(list), key->choices[i]);
    }
    (void)kelp__job_refuse(file, key->name, reterr,
                           "is not set, and has no default; write for example \"%s\" (one of %s)",
                           key->required, list);
    if (file->name) {
        kelp_error_prefix(reterr, "%.127s", file->name);
    }
    return KELP_ERR_INVALID;
}

/* A key that is set but means nothing with the chosen kind. */
static kelp_status check_applies(const struct kelp_job_file *file, size_t index,
                                 struct kelp_error *reterr)
{
    const struct kelp_job_key *key = &kelp__job_keys[index];
    char list[256] = "", chosen[32] = "";
    size_t used = 0;

    if (file->origins[index].kind == KELP_ORIGIN_DEFAULT ||
        kelp__job_key_applies(key, &file->job)) {
        return KELP_OK;
    }
    const struct kelp_job_key *other = &kelp__job_keys[kelp__job_key_find(key->only_with)];
    for (uint32_t i = 0; other->choices[i] && used < sizeof(list); i++) {
        if ((key->only_values & (1u << i)) != 0) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
                                     used > 0 ? " or " : "", other->choices[i]);
        }
    }
    kelp__job_key_chosen(key->only_with, &file->job, chosen, sizeof(chosen));
    return kelp__job_refuse(file, key->name, reterr, "does not apply with %s %s; it goes with %s",
                            key->only_with, chosen, list);
}

/* Losses that fit the output of a model; kinds that are not listed take any. */
static kelp_status check_loss(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    static const struct {
        enum kelp_model_kind model;
        uint32_t losses; /* bits */
        const char *text;
    } fits[] = {
        {KELP_MODEL_MLP, ~(1u << KELP_LOSS_NLL | 1u << KELP_LOSS_BCE),
         "any but nll and bce, which take probabilities; mlp puts out any numbers"},
        {KELP_MODEL_FARE,
         ~(1u << KELP_LOSS_BCE_WITH_LOGITS | 1u << KELP_LOSS_CROSS_ENTROPY | 1u << KELP_LOSS_NLL |
           1u << KELP_LOSS_QUANTILE),
         "smooth_l1, huber, mse, mae or bce"},
        {KELP_MODEL_CONVNET, 1u << KELP_LOSS_NLL | 1u << KELP_LOSS_CROSS_ENTROPY,
         "nll or cross_entropy"},
        {KELP_MODEL_RESNET18, 1u << KELP_LOSS_CROSS_ENTROPY, "cross_entropy"},
        {KELP_MODEL_DEEPFM,
         ~(1u << KELP_LOSS_BCE | 1u << KELP_LOSS_CROSS_ENTROPY | 1u << KELP_LOSS_NLL |
           1u << KELP_LOSS_QUANTILE),
         "bce_with_logits, or for numbers mse, mae, smooth_l1 or huber"},
        {KELP_MODEL_TFT,
         1u << KELP_LOSS_QUANTILE | 1u << KELP_LOSS_MSE | 1u << KELP_LOSS_MAE |
             1u << KELP_LOSS_SMOOTH_L1 | 1u << KELP_LOSS_HUBER,
         "quantile, mse, mae, smooth_l1 or huber"},
        {KELP_MODEL_DLINEAR,
         1u << KELP_LOSS_MSE | 1u << KELP_LOSS_MAE | 1u << KELP_LOSS_SMOOTH_L1 |
             1u << KELP_LOSS_HUBER,
         "mse, mae, smooth_l1 or huber"},
        {KELP_MODEL_NLINEAR,
         1u << KELP_LOSS_MSE | 1u << KELP_LOSS_MAE | 1u << KELP_LOSS_SMOOTH_L1 |
             1u << KELP_LOSS_HUBER,
         "mse, mae, smooth_l1 or huber"},
    };
    const struct kelp_job *job = &file->job;
    char loss[32], model[32];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(fits); i++) {
        if (fits[i].model == job->model.kind && (fits[i].losses & (1u << job->train.loss)) == 0) {
            kelp__job_key_chosen("train.loss", job, loss, sizeof(loss));
            kelp__job_key_chosen("model.kind", job, model, sizeof(model));
            return kelp__job_refuse(file, "train.loss", reterr,
                                    "%s does not fit model.kind %s; it takes %s", loss, model,
                                    fits[i].text);
        }
    }
    return KELP_OK;
}

/* What the loss itself needs. */
static kelp_status check_loss_keys(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;

    if (job->train.loss == KELP_LOSS_HUBER && !(job->train.loss_beta > 0)) {
        return kelp__job_refuse(file, "train.loss_beta", reterr,
                                "0 makes every huber loss 0; it must be above 0");
    }
    if (job->train.loss != KELP_LOSS_QUANTILE) {
        return KELP_OK;
    }
    if (job->train.quantile_count == 0) {
        return kelp__job_refuse(
            file, "train.quantiles", reterr,
            "is empty; name the quantiles to forecast, such as [0.1, 0.5, 0.9]");
    }
    for (uint32_t i = 1; i < job->train.quantile_count; i++) {
        if (!(job->train.quantiles[i] > job->train.quantiles[i - 1])) {
            return kelp__job_refuse(file, "train.quantiles", reterr,
                                    "%g after %g; they must ascend", job->train.quantiles[i],
                                    job->train.quantiles[i - 1]);
        }
    }
    return KELP_OK;
}

/* As many shares as the model has dropout layers, or none. */
static kelp_status check_dropout(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    const char *layers = "one share for all of its layers";
    uint32_t count = 1;
    if (job->model.kind == KELP_MODEL_CONVNET) {
        count = 2;
        layers = "two layers";
    } else if (job->model.kind == KELP_MODEL_DEEPFM) {
        count = job->model.hidden_count;
        layers = "one for each of model.hidden";
    } else if (job->model.kind != KELP_MODEL_TFT) {
        return KELP_OK;
    }
    if (job->model.dropout_count != 0 && job->model.dropout_count != count) {
        return kelp__job_refuse(file, "model.dropout", reterr,
                                "has %" PRIu32 " numbers; the model has %s: give %" PRIu32
                                ", or none",
                                job->model.dropout_count, layers, count);
    }
    return KELP_OK;
}

static kelp_status check_init_map(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    struct kelp_error error;

    if (job->model.init_map[0] != '\0' && job->model.init[0] == '\0') {
        return kelp__job_refuse(file, "model.init_map", reterr, "needs model.init, which is empty");
    }
    return kelp_rename_check(job->model.init_map, &error) == KELP_OK
               ? KELP_OK
               : kelp__job_refuse(file, "model.init_map", reterr, "%s", error.text);
}

/* The program has the data too; check that the job has no keys that need Kelp's own data. */
static kelp_status check_program(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    const bool program = job->model.kind == KELP_MODEL_PROGRAM;
    char kind[32];

    if (program != (job->data.kind == KELP_DATA_PROGRAM)) {
        kelp__job_key_chosen("data.kind", job, kind, sizeof(kind));
        return kelp__job_refuse(file, "data.kind", reterr,
                                program ? "%s does not go with model.kind program, which has the "
                                          "data itself; omit data.kind"
                                        : "%s is only for model.kind program",
                                kind);
    }
    if (!program) {
        return KELP_OK;
    }
    if ((job->model.program[0] == '\0') == (job->model.python[0] == '\0')) {
        return kelp__job_refuse(file, "model.program", reterr,
                                job->model.program[0] == '\0'
                                    ? "is empty; model.kind program needs it, or model.python"
                                    : "does not go with model.python; set one of them");
    }
    return job->cluster.compute == KELP_COMPUTE_PORTABLE
               ? kelp__job_refuse(file, "cluster.compute", reterr,
                                  "portable is a promise of Kelp's own operators, which a program "
                                  "(model.program, model.python) cannot give")
               : KELP_OK;
}

static kelp_status check_model(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;

    if (job->model.kind == KELP_MODEL_TFT && job->model.d_model % job->model.heads != 0) {
        return kelp__job_refuse(file, "model.heads", reterr,
                                "%" PRIu32 " does not divide model.d_model (%" PRIu32 ")",
                                job->model.heads, job->model.d_model);
    }
    if (job->model.kind == KELP_MODEL_PLUGIN && job->model.plugin[0] == '\0') {
        return kelp__job_refuse(file, "model.plugin", reterr,
                                "is empty; model.kind plugin needs a library");
    }
    if (job->model.plugin_sha256[0] != '\0' && !kelp_sha256_is(job->model.plugin_sha256)) {
        return kelp__job_refuse(file, "model.plugin_sha256", reterr,
                                "'%s' is not a SHA-256: 64 hexadecimal digits in lower case",
                                job->model.plugin_sha256);
    }
    kelp_status status = check_dropout(file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = check_loss(file, reterr);
    if (status == KELP_OK) {
        status = check_loss_keys(file, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (job->model.kind == KELP_MODEL_DLINEAR && job->model.kernel_size % 2 == 0) {
        return kelp__job_refuse(file, "model.kernel_size", reterr,
                                "%" PRIu32 " is even; it must be odd", job->model.kernel_size);
    }
    if (job->run.mode != KELP_RUN_TRAIN && job->model.init[0] == '\0') {
        return kelp__job_refuse(
            file, "run.mode", reterr,
            "predict and evaluate need trained weights; name their file in model.init");
    }
    if (job->model.init[0] == '\0' && job->model.init_prefix[0] != '\0') {
        return kelp__job_refuse(file, "model.init_prefix", reterr,
                                "needs model.init, which is empty");
    }
    return check_init_map(file, reterr);
}

static kelp_status check_training(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;

    if (job->train.optimizer == KELP_OPTIMIZER_LAMB && job->train.clip_norm > 0) {
        return kelp__job_refuse(
            file, "train.clip_norm", reterr,
            "does not go with lamb, which scales each tensor's update itself; leave it at "
            "0");
    }
    if (job->train.optimizer == KELP_OPTIMIZER_SGD && job->train.nesterov &&
        !(job->train.momentum > 0 && job->train.dampening == 0.0)) {
        return kelp__job_refuse(file, "train.nesterov", reterr,
                                "needs train.momentum above 0 and train.dampening 0");
    }
    return KELP_OK;
}

static kelp_status check_cluster(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;

    if ((job->cluster.lanes & (job->cluster.lanes - 1)) != 0) {
        return kelp__job_refuse(file, "cluster.lanes", reterr, "%" PRIu32 " is not a power of two",
                                job->cluster.lanes);
    }
    if (job->cluster.shards > job->cluster.max_shards) {
        return kelp__job_refuse(file, "cluster.shards", reterr,
                                "%" PRIu32 " is over cluster.max_shards (%" PRIu32 ")",
                                job->cluster.shards, job->cluster.max_shards);
    }
    if (job->cluster.device != KELP_DEVICE_CPU && job->cluster.compute == KELP_COMPUTE_PORTABLE) {
        return kelp__job_refuse(file, "cluster.compute", reterr,
                                "portable is for cluster.device: cpu only; GPUs of one kind give "
                                "the same bits without it");
    }
    if (job->train.precision != KELP_PRODUCT_FLOAT32 && job->cluster.device == KELP_DEVICE_CPU) {
        return kelp__job_refuse(file, "train.precision", reterr,
                                "the CPU computes products in float32 only; %s needs "
                                "cluster.device: cuda",
                                job->train.precision == KELP_PRODUCT_TF32 ? "tf32" : "bfloat16");
    }
    if (job->train.precision != KELP_PRODUCT_FLOAT32 && job->model.kind == KELP_MODEL_PROGRAM) {
        return kelp__job_refuse(file, "train.precision", reterr,
                                "is for Kelp's own models; a program chooses its precision itself");
    }
    if (job->cluster.cudnn == KELP_CUDNN_ALWAYS && job->cluster.device == KELP_DEVICE_CPU) {
        return kelp__job_refuse(file, "cluster.cudnn", reterr,
                                "always is for GPUs; it needs cluster.device: cuda");
    }
    if (job->cluster.replicas > job->cluster.shards) {
        return kelp__job_refuse(file, "cluster.replicas", reterr,
                                "%" PRIu32
                                " replicas need as many shards, and cluster.shards is %" PRIu32,
                                job->cluster.replicas, job->cluster.shards);
    }
    return KELP_OK;
}

static bool is_unset(const struct kelp_job_file *file, const char *key)
{
    return file->origins[kelp__job_key_find(key)].kind == KELP_ORIGIN_DEFAULT;
}

/* The key counts as set if the other one is. */
static void set_with(struct kelp_job_file *file, const char *key, const char *other)
{
    file->origins[kelp__job_key_find(key)] = file->origins[kelp__job_key_find(other)];
}

/* Naming a library or a program is enough to choose it. */
static void choose_kinds(struct kelp_job_file *file)
{
    struct kelp_job *job = &file->job;
    const char *program = job->model.program[0] != '\0' ? "model.program" : "model.python";

    if (is_unset(file, "model.kind") && job->model.plugin[0] != '\0') {
        job->model.kind = KELP_MODEL_PLUGIN;
        set_with(file, "model.kind", "model.plugin");
    } else if (is_unset(file, "model.kind") &&
               (job->model.program[0] != '\0' || job->model.python[0] != '\0')) {
        job->model.kind = KELP_MODEL_PROGRAM;
        set_with(file, "model.kind", program);
    }
    if (job->model.kind != KELP_MODEL_PROGRAM) {
        return;
    }
    if (is_unset(file, "data.kind")) {
        job->data.kind = KELP_DATA_PROGRAM;
        set_with(file, "data.kind", "model.kind");
    }
    if (is_unset(file, "checkpoint.metric")) { /* the one that every program gives */
        job->checkpoint.metric = KELP_CHECKPOINT_VAL_LOSS;
    }
}

kelp_status kelp_job_file_finish(struct kelp_job_file *file, struct kelp_error *reterr)
{
    static kelp_status (*const checks[])(const struct kelp_job_file *, struct kelp_error *) = {
        check_program,  kelp__job_check_sums,     check_model,  kelp__job_check_data,
        check_training, kelp__job_check_schedule, check_cluster};

    choose_kinds(file);
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        kelp_status status = check_required(file, i, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        kelp_status status = check_applies(file, i, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(checks); i++) {
        kelp_status status = checks[i](file, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}
