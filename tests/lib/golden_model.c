/* What model a fixture holds: read from its metadata and the names and shapes of its tensors. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/lib/golden.h"

/* NULL when the file has it not, or only samples of it, which do not tell the shape. */
static const struct kelp_safetensors_tensor *parameter(const struct kelp_golden_file *file,
                                                       const char *layer, const char *what)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    (void)snprintf(name, sizeof(name), "param/%s.%s", layer, what);
    return kelp_safetensors_find(file->tensors, name);
}

/* True when there are parameters, all known, and no buffers. */
static bool only_layers(const struct kelp_golden_file *file, bool (*known)(const char *layer))
{
    bool any = false;
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const char *name = kelp_safetensors_at(file->tensors, i)->name;
        if (strncmp(name, "param/", strlen("param/")) != 0) {
            if (strncmp(name, "buffer/", strlen("buffer/")) == 0) {
                return false;
            }
            continue;
        }
        any = true;
        if (!known(name + strlen("param/"))) {
            return false;
        }
    }
    return any;
}

/* "fc<number>.weight" or ".bias" */
static bool is_mlp_parameter(const char *name)
{
    char *end = NULL;
    if (strncmp(name, "fc", 2) != 0 || !isdigit((unsigned char)name[2])) {
        return false;
    }
    (void)strtoul(name + 2, &end, 10);
    return strncmp(end, ".weight", strlen(".weight")) == 0 ||
           strncmp(end, ".bias", strlen(".bias")) == 0;
}

static bool is_dlinear_parameter(const char *name)
{
    return strncmp(name, "linear_seasonal.", strlen("linear_seasonal.")) == 0 ||
           strncmp(name, "linear_trend.", strlen("linear_trend.")) == 0;
}

static bool refuse(char reason[KELP_GOLDEN_TEXT_SIZE], const char *text)
{
    (void)snprintf(reason, KELP_GOLDEN_TEXT_SIZE, "%s", text);
    return false;
}

/* "Linear(10,15) ReLU Linear(15,5)": all of it, or it is another model. The widths in between go to
 * the job. */
static bool read_chain(const char *text, struct kelp_job *job, uint32_t *ret_in, uint32_t *ret_out)
{
    uint32_t expected_in = 0;
    job->model.hidden_count = 0;
    for (uint32_t layer = 0;; layer++) {
        unsigned in = 0, out = 0;
        int used = 0;
        if (sscanf(text, "Linear(%u,%u)%n", &in, &out, &used) != 2 || used == 0 ||
            (layer > 0 && in != expected_in)) {
            return false;
        }
        *ret_in = layer == 0 ? in : *ret_in;
        *ret_out = out;
        expected_in = out;
        text += used;
        if (*text == '\0') {
            return true;
        }
        if (strncmp(text, " ReLU ", strlen(" ReLU ")) != 0 ||
            job->model.hidden_count == KELP_JOB_LIST_MAX) {
            return false;
        }
        text += strlen(" ReLU ");
        job->model.hidden[job->model.hidden_count++] = out;
    }
}

/* The same from the shapes of fc1.weight, fc2.weight, ... */
static bool read_chain_of_shapes(const struct kelp_golden_file *file, struct kelp_job *job,
                                 uint32_t *ret_in, uint32_t *ret_out)
{
    job->model.hidden_count = 0;
    for (uint32_t layer = 0; layer <= KELP_JOB_LIST_MAX; layer++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "fc%u", layer + 1);
        const struct kelp_safetensors_tensor *weight = parameter(file, name, "weight");
        if (weight == NULL) {
            return layer > 0;
        }
        if (weight->rank != 2 || parameter(file, name, "bias") == NULL ||
            (layer > 0 && weight->shape[1] != *ret_out)) {
            return false;
        }
        if (layer == 0) {
            *ret_in = (uint32_t)weight->shape[1];
        } else {
            job->model.hidden[job->model.hidden_count++] = *ret_out;
        }
        *ret_out = (uint32_t)weight->shape[0];
    }
    return false;
}

static bool read_mlp(const struct kelp_golden_file *file, struct kelp_job *job,
                     char reason[KELP_GOLDEN_TEXT_SIZE])
{
    uint32_t in = 0, out = 0;
    job->model.kind = KELP_MODEL_MLP;
    if (strstr(file->model, "Linear(") != NULL) {
        return read_chain(file->model, job, &in, &out)
                   ? true
                   : refuse(reason, "not a chain of Linear and ReLU");
    }
    if (strcasestr(file->model, "mlp") == NULL) {
        return refuse(reason, "not said to be an mlp");
    }
    return read_chain_of_shapes(file, job, &in, &out)
               ? true
               : refuse(reason, "the layers' shapes make no chain");
}

static bool read_dlinear(const struct kelp_golden_file *file, struct kelp_job *job,
                         char reason[KELP_GOLDEN_TEXT_SIZE])
{
    job->model.kind = KELP_MODEL_DLINEAR;
    /* A layer per channel is named linear_seasonal.0.weight. */
    job->model.individual = true;
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const char *name = kelp_safetensors_at(file->tensors, i)->name;
        if (strncmp(name, "param/linear_seasonal.weight", strlen("param/linear_seasonal.weight")) ==
            0) {
            job->model.individual = false;
        }
    }
    if (strcasestr(file->model, "dlinear") == NULL) {
        return refuse(reason, "not said to be DLinear");
    }
    if (!kelp_golden_number(file->model, "kernel ", &job->model.kernel_size)) {
        job->model.kernel_size = 25; /* the article's */
    }
    return true;
}

static bool read_shapes(const struct kelp_golden_file *file, struct kelp_golden_model *model)
{
    const struct kelp_safetensors_tensor *input = kelp_safetensors_find(file->tensors, "input/0");
    const struct kelp_safetensors_tensor *target = kelp_safetensors_find(file->tensors, "target");
    if (input == NULL || target == NULL || input->dtype != KELP_DTYPE_F32 ||
        target->dtype != KELP_DTYPE_F32 || input->rank < 1 || target->rank < 1 ||
        input->shape[0] != target->shape[0] || input->shape[0] == 0 ||
        input->shape[0] > UINT32_MAX || input->rank - 1 > KELP_SAMPLE_RANK_MAX ||
        target->rank - 1 > KELP_SAMPLE_RANK_MAX) {
        return false;
    }
    model->samples = (uint32_t)input->shape[0];
    model->shape.input_count = 1;
    model->shape.inputs[0].rank = input->rank - 1;
    model->shape.target.rank = target->rank - 1;
    memcpy(model->shape.inputs[0].dims, input->shape + 1,
           model->shape.inputs[0].rank * sizeof(input->shape[0]));
    memcpy(model->shape.target.dims, target->shape + 1,
           model->shape.target.rank * sizeof(target->shape[0]));
    return true;
}

static bool read_loss(const char *loss, struct kelp_job *job)
{
    if (loss[0] == '\0' || strcmp(loss, "MSELoss(mean)") == 0) {
        job->train.loss = KELP_LOSS_MSE;
        return true;
    }
    job->train.loss = KELP_LOSS_MAE;
    return strcmp(loss, "L1Loss(mean)") == 0;
}

bool kelp_golden_model_read(const struct kelp_golden_file *file, struct kelp_golden_model *ret,
                            char reason[KELP_GOLDEN_TEXT_SIZE])
{
    struct kelp_golden_model model = {.samples = 0};
    model.job.cluster.lane_threads = 1;
    bool ok;
    if (only_layers(file, is_mlp_parameter)) {
        ok = read_mlp(file, &model.job, reason);
    } else if (only_layers(file, is_dlinear_parameter)) {
        ok = read_dlinear(file, &model.job, reason);
    } else {
        return refuse(reason, "another model");
    }
    if (ok && !read_shapes(file, &model)) {
        ok = refuse(reason, "no float32 input/0 and target with samples of one number");
    }
    if (ok && !read_loss(file->loss, &model.job)) {
        ok = refuse(reason, "another loss");
    }
    if (ok) {
        *ret = model;
    }
    return ok;
}
