/* What model a fixture holds: read from its metadata and the names and shapes of its tensors. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/lib/golden/golden.h"

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

static uint64_t dim(const struct kelp_golden_file *file, const char *name, uint32_t index)
{
    const struct kelp_safetensors_tensor *tensor = kelp_safetensors_find(file->tensors, name);
    return tensor != NULL && tensor->rank > index ? tensor->shape[index] : 0;
}

static bool has_parameter(const struct kelp_golden_file *file, const char *name)
{
    char full[KELP_GOLDEN_NAME_SIZE];
    (void)snprintf(full, sizeof(full), "param/%s", name);
    return kelp_safetensors_find(file->tensors, full) != NULL;
}

static bool read_fare(const struct kelp_golden_file *file, struct kelp_job *job,
                      char reason[KELP_GOLDEN_TEXT_SIZE])
{
    job->model.kind = KELP_MODEL_FARE;
    return dim(file, "param/fc1.weight", 0) == 256 && dim(file, "param/fc2.weight", 0) == 16
               ? true
               : refuse(reason, "the layers are not 256-16-1");
}

static bool read_convnet(const struct kelp_golden_file *file, struct kelp_job *job,
                         char reason[KELP_GOLDEN_TEXT_SIZE])
{
    job->model.kind = KELP_MODEL_CONVNET;
    job->model.classes = (uint32_t)dim(file, "output", 1);
    job->model.dropout_count = 2; /* both 0 */
    return strstr(file->model, "dropouts p=0") != NULL ? true
                                                       : refuse(reason, "has dropout of PyTorch's");
}

static bool read_resnet18(const struct kelp_golden_file *file, struct kelp_job *job,
                          char reason[KELP_GOLDEN_TEXT_SIZE])
{
    (void)reason;
    job->model.kind = KELP_MODEL_RESNET18;
    job->model.classes = (uint32_t)dim(file, "output", 1);
    return true;
}

static bool read_deepfm(const struct kelp_golden_file *file, struct kelp_job *job,
                        char reason[KELP_GOLDEN_TEXT_SIZE])
{
    char name[KELP_GOLDEN_NAME_SIZE];
    job->model.kind = KELP_MODEL_DEEPFM;
    job->model.embedding_dim = (uint32_t)dim(file, "param/v.0.weight", 1);
    for (uint32_t f = 0; f < KELP_JOB_LIST_MAX; f++) {
        (void)snprintf(name, sizeof(name), "param/v.%u.weight", f);
        const uint64_t vocab = dim(file, name, 0);
        if (vocab == 0) {
            break;
        }
        job->data.vocab[job->data.vocab_count++] = (uint32_t)vocab;
    }
    for (uint32_t i = 0; i < KELP_JOB_LIST_MAX; i++) {
        (void)snprintf(name, sizeof(name), "param/mlp.%u.weight", 2 * i);
        const uint64_t width = dim(file, name, 0);
        (void)snprintf(name, sizeof(name), "param/mlp.%u.weight", 2 * i + 2);
        if (dim(file, name, 0) == 0) {
            break; /* that was the last layer, to the logit */
        }
        job->model.hidden[job->model.hidden_count++] = (uint32_t)width;
    }
    return job->data.vocab_count > 0 ? true : refuse(reason, "no embedding tables");
}

static bool read_tft(const struct kelp_golden_file *file, struct kelp_job *job,
                     char reason[KELP_GOLDEN_TEXT_SIZE])
{
    job->model.kind = KELP_MODEL_TFT;
    job->model.d_model = (uint32_t)dim(file, "param/emb.weight", 1);
    job->data.vocab[0] = (uint32_t)dim(file, "param/emb.weight", 0);
    job->data.vocab_count = 1;
    return kelp_golden_number(file->model, "heads ", &job->model.heads)
               ? true
               : refuse(reason, "the number of heads is not said");
}

/* The example of a model of one's own (examples/plugin). Its channels are fixed: with others, the
 * initial values do not fit it. */
static bool read_conv_small(const struct kelp_golden_file *file, struct kelp_job *job,
                            char reason[KELP_GOLDEN_TEXT_SIZE])
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    if (programs == NULL) {
        return refuse(reason, "KELP_TEST_PROGRAMS does not say where the plug-in is");
    }
    unsigned conv[6], linear[4];
    int used = 0;
    (void)sscanf(file->model,
                 "Conv(%u,%u,%u) ReLU Conv(%u,%u,%u,no bias) BatchNorm2d ReLU MaxPool2 "
                 "Linear(%u,%u) ReLU Linear(%u,%u) log_softmax%n",
                 &conv[0], &conv[1], &conv[2], &conv[3], &conv[4], &conv[5], &linear[0], &linear[1],
                 &linear[2], &linear[3], &used);
    if (used == 0 || file->model[used] != '\0') {
        return refuse(reason, "not the layers of the example plug-in");
    }
    job->model.kind = KELP_MODEL_PLUGIN;
    (void)snprintf(job->model.plugin, sizeof(job->model.plugin), "%s/plugins/conv_small.so",
                   programs);
    (void)snprintf(job->model.params, sizeof(job->model.params), "hidden=%u", linear[1]);
    return true;
}

/* What the model's text says, and a parameter that only that model has. */
static const struct {
    const char *word, *parameter;
    bool (*read)(const struct kelp_golden_file *file, struct kelp_job *job,
                 char reason[KELP_GOLDEN_TEXT_SIZE]);
} models[] = {
    {"FarePredictor", "fc3.weight", read_fare},
    {"ConvNet", "conv2.weight", read_convnet},
    {"resnet18", "layer4.1.bn2.weight", read_resnet18},
    {"DeepFM", "lin.weight", read_deepfm},
    {"TFT", "vsn_enc.weight.fc1.weight", read_tft},
    {"BatchNorm2d", "bn.weight", read_conv_small},
};

static bool read_model(const struct kelp_golden_file *file, struct kelp_job *job,
                       char reason[KELP_GOLDEN_TEXT_SIZE])
{
    if (only_layers(file, is_mlp_parameter)) {
        return read_mlp(file, job, reason);
    }
    if (only_layers(file, is_dlinear_parameter)) {
        return read_dlinear(file, job, reason);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(models); i++) {
        if (strstr(file->model, models[i].word) != NULL &&
            has_parameter(file, models[i].parameter)) {
            return models[i].read(file, job, reason);
        }
    }
    return refuse(reason, "another model");
}

/* ---- the batch ------------------------------------------------------------------------------- */

static bool read_tensor(const struct kelp_golden_file *file, const char *name, uint64_t *samples,
                        struct kelp_sample_tensor *shape)
{
    const struct kelp_safetensors_tensor *tensor = kelp_safetensors_find(file->tensors, name);
    if (tensor == NULL || tensor->dtype == KELP_DTYPE_F64 || tensor->rank < 1 ||
        tensor->rank - 1 > KELP_SAMPLE_RANK_MAX || tensor->shape[0] == 0 ||
        tensor->shape[0] > UINT32_MAX || (*samples != 0 && tensor->shape[0] != *samples)) {
        return false;
    }
    *samples = tensor->shape[0];
    shape->rank = tensor->rank - 1;
    memcpy(shape->dims, tensor->shape + 1, shape->rank * sizeof(tensor->shape[0]));
    return true;
}

/* Sizes of an int64 input's categories, from those of the model's tables. */
static bool read_vocab(struct kelp_sample_tensor *shape, const struct kelp_job *job,
                       uint32_t *vocab_used)
{
    const uint64_t columns = shape->rank > 0 ? shape->dims[shape->rank - 1] : 1;
    if (columns > job->data.vocab_count - *vocab_used) {
        return false;
    }
    shape->vocab_count = (uint32_t)columns;
    memcpy(shape->vocab, job->data.vocab + *vocab_used, columns * sizeof(shape->vocab[0]));
    *vocab_used += shape->vocab_count;
    return true;
}

static bool is_whole(const struct kelp_golden_file *file, const char *name)
{
    return kelp_safetensors_find(file->tensors, name)->dtype == KELP_DTYPE_I64;
}

static bool read_shapes(const struct kelp_golden_file *file, struct kelp_golden_model *model)
{
    uint64_t samples = 0;
    uint32_t vocab_used = 0;
    char name[KELP_GOLDEN_NAME_SIZE];
    for (uint32_t i = 0; i < KELP_SAMPLE_INPUTS_MAX; i++) {
        struct kelp_sample_tensor *input = &model->shape.inputs[i];
        (void)snprintf(name, sizeof(name), "input/%u", i);
        if (kelp_safetensors_find(file->tensors, name) == NULL) {
            break;
        }
        if (!read_tensor(file, name, &samples, input) ||
            (is_whole(file, name) && !read_vocab(input, &model->job, &vocab_used))) {
            return false;
        }
        model->shape.input_count++;
    }
    if (model->shape.input_count == 0 ||
        !read_tensor(file, "target", &samples, &model->shape.target)) {
        return false;
    }
    if (is_whole(file, "target")) {
        model->shape.target.vocab_count = 1;
        model->shape.target.vocab[0] = (uint32_t)dim(file, "output", 1);
    }
    model->samples = (uint32_t)samples;
    return true;
}

float *kelp_golden_inputs(const struct kelp_golden_file *file,
                          const struct kelp_golden_model *model)
{
    const uint64_t record = kelp_sample_input_count(&model->shape);
    float *records = calloc((size_t)(record * model->samples), sizeof(*records));
    uint64_t first = 0;
    for (uint32_t i = 0; i < model->shape.input_count && records != NULL; i++) {
        char name[KELP_GOLDEN_NAME_SIZE];
        uint64_t total = 0;
        (void)snprintf(name, sizeof(name), "input/%u", i);
        const uint64_t count = kelp_sample_tensor_count(&model->shape.inputs[i]);
        float *values = kelp_golden_floats(file, name, &total);
        if (values == NULL || total != count * model->samples) {
            free(values);
            free(records);
            return NULL;
        }
        for (uint64_t s = 0; s < model->samples; s++) {
            memcpy(records + s * record + first, values + s * count,
                   (size_t)count * sizeof(*values));
        }
        free(values);
        first += count;
    }
    return records;
}

/* ---- the loss -------------------------------------------------------------------------------- */

/* "q=.1,.5,.9, ..." */
static bool read_quantiles(const char *text, struct kelp_job *job)
{
    job->train.quantile_count = 0;
    for (char *end = NULL; job->train.quantile_count < KELP_JOB_LIST_MAX; text = end + 1) {
        const double quantile = strtod(text, &end);
        if (end == text) {
            break;
        }
        job->train.quantiles[job->train.quantile_count++] = quantile;
        if (*end != ',') {
            break;
        }
    }
    return job->train.quantile_count > 0;
}

static bool read_loss(const char *loss, struct kelp_job *job)
{
    static const struct {
        const char *text;
        enum kelp_loss_kind kind;
    } losses[] = {
        {"MSELoss(mean)", KELP_LOSS_MSE}, {"L1Loss(mean)", KELP_LOSS_MAE},
        {"NLLLoss(mean)", KELP_LOSS_NLL}, {"CrossEntropyLoss(mean)", KELP_LOSS_CROSS_ENTROPY},
        {"BCELoss(mean)", KELP_LOSS_BCE}, {"BCEWithLogitsLoss(mean)", KELP_LOSS_BCE_WITH_LOGITS},
    };
    job->train.loss_beta = 1.0;
    if (loss[0] == '\0') {
        job->train.loss = KELP_LOSS_MSE;
        return true;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(losses); i++) {
        if (strcmp(loss, losses[i].text) == 0) {
            job->train.loss = losses[i].kind;
            return true;
        }
    }
    if (sscanf(loss, "SmoothL1Loss(beta=%lf", &job->train.loss_beta) == 1) {
        job->train.loss = KELP_LOSS_SMOOTH_L1;
        return true;
    }
    if (sscanf(loss, "HuberLoss(delta=%lf", &job->train.loss_beta) == 1) {
        job->train.loss = KELP_LOSS_HUBER;
        return true;
    }
    const char *quantiles = strstr(loss, "q=");
    job->train.loss = KELP_LOSS_QUANTILE;
    return strncmp(loss, "quantile loss", strlen("quantile loss")) == 0 && quantiles != NULL &&
           read_quantiles(quantiles + 2, job);
}

bool kelp_golden_has_any(const struct kelp_golden_file *file, const char *prefix)
{
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        if (strncmp(kelp_safetensors_at(file->tensors, i)->name, prefix, strlen(prefix)) == 0) {
            return true;
        }
    }
    return false;
}

uint32_t kelp_golden_shards(const struct kelp_golden_file *file,
                            uint32_t rows[KELP_GOLDEN_CASES_MAX])
{
    const char *text = kelp_safetensors_metadata(file->tensors, "shard_rows");
    uint32_t count = 0;
    while (text != NULL && *text != '\0' && count < KELP_GOLDEN_CASES_MAX) {
        char *end = NULL;
        rows[count++] = (uint32_t)strtoul(text, &end, 10);
        text = *end == ',' ? end + 1 : "";
    }
    return count;
}

bool kelp_golden_is_model(const struct kelp_golden_file *file)
{
    return kelp_golden_has_any(file, "param/") && kelp_golden_has_any(file, "input/0") &&
           kelp_golden_has_any(file, "target");
}

bool kelp_golden_model_read(const struct kelp_golden_file *file, struct kelp_golden_model *ret,
                            char reason[KELP_GOLDEN_TEXT_SIZE])
{
    struct kelp_golden_model model = {.samples = 0};
    model.job.cluster.lane_threads = 1;
    bool ok = read_model(file, &model.job, reason);
    if (ok && !read_loss(file->loss, &model.job)) {
        ok = refuse(reason, "another loss");
    }
    if (ok && !read_shapes(file, &model)) {
        ok = refuse(reason, "no inputs and target with samples of one number");
    }
    if (ok) {
        model.statistics = kelp_golden_has_any(file, "buffer/");
        *ret = model;
    }
    return ok;
}
