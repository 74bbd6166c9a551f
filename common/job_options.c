#include "common/job_options.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const model_kinds[] = {"mlp", "dlinear", NULL};
static const char *const data_kinds[] = {"csv", "synthetic", "tensors", NULL};
static const char *const feature_kinds[] = {"S", "M", NULL};
static const char *const nan_policies[] = {"stop", "skip", NULL};
static const char *const loss_kinds[] = {"mse", "mae", NULL};
static const char *const optimizer_kinds[] = {"sgd", "adam", "adamw", NULL};
static const char *const schedule_kinds[] = {"constant", "type1", NULL};
static const char *const checkpoint_metrics[] = {"val/loss", "val/mse", "val/mae", NULL};
static const char *const checkpoint_orders[] = {"min", "max", NULL};
static const char *const device_kinds[] = {"cpu", NULL};

_Static_assert(KELP_MODEL_MLP == 0 && KELP_MODEL_DLINEAR == 1, "order of model_kinds");
_Static_assert(KELP_DATA_CSV == 0 && KELP_DATA_SYNTHETIC == 1 && KELP_DATA_TENSORS == 2,
               "order of data_kinds");
_Static_assert(KELP_FEATURES_S == 0 && KELP_FEATURES_M == 1, "order of feature_kinds");
_Static_assert(KELP_LOSS_MSE == 0 && KELP_LOSS_MAE == 1, "order of loss_kinds");
_Static_assert(KELP_OPTIMIZER_SGD == 0 && KELP_OPTIMIZER_ADAM == 1 && KELP_OPTIMIZER_ADAMW == 2,
               "order of optimizer_kinds");
_Static_assert(KELP_SCHEDULE_CONSTANT == 0 && KELP_SCHEDULE_TYPE1 == 1, "order of schedule_kinds");
_Static_assert(KELP_DEVICE_CPU == 0, "order of device_kinds");
_Static_assert(KELP_CHECKPOINT_VAL_LOSS == 0 && KELP_CHECKPOINT_VAL_MAE == 2,
               "order of checkpoint_metrics");
_Static_assert(KELP_ORDER_MIN == 0 && KELP_ORDER_MAX == 1, "order of checkpoint_orders");
_Static_assert(sizeof(enum kelp_model_kind) == sizeof(uint32_t), "enums are stored as uint32_t");

#define FIELD(member)                                                                              \
    .offset = offsetof(struct kelp_job, member), .bytes = sizeof(((struct kelp_job *)0)->member)
#define BIT(value) (1u << (value))

#define WITH_MLP     .only_with = "model.kind", .only_values = BIT(KELP_MODEL_MLP)
#define WITH_DLINEAR .only_with = "model.kind", .only_values = BIT(KELP_MODEL_DLINEAR)
#define WITH_CSV     .only_with = "data.kind", .only_values = BIT(KELP_DATA_CSV)
#define WITH_SERIES                                                                                \
    .only_with = "data.kind", .only_values = BIT(KELP_DATA_CSV) | BIT(KELP_DATA_SYNTHETIC)
#define WITH_SYNTHETIC .only_with = "data.kind", .only_values = BIT(KELP_DATA_SYNTHETIC)
#define WITH_TENSORS   .only_with = "data.kind", .only_values = BIT(KELP_DATA_TENSORS)
#define WITH_FILE                                                                                  \
    .only_with = "data.kind", .only_values = BIT(KELP_DATA_CSV) | BIT(KELP_DATA_TENSORS)
#define WITH_SGD .only_with = "train.optimizer", .only_values = BIT(KELP_OPTIMIZER_SGD)
#define WITH_ADAM                                                                                  \
    .only_with = "train.optimizer",                                                                \
    .only_values = BIT(KELP_OPTIMIZER_ADAM) | BIT(KELP_OPTIMIZER_ADAMW)

#define BELOW_ONE 0x1.fffffffffffffp-1

const struct kelp_job_key kelp__job_keys[] = {
    {.name = "name",
     .type = KELP_JOB_NAME,
     FIELD(name),
     .default_text = "job",
     .help = "name of the run: its prefix in etcd, `/kelp/<name>/`, and its default folder"},
    {.name = "seed",
     .type = KELP_JOB_U64,
     FIELD(seed),
     .max = UINT64_MAX,
     .default_text = "1",
     .help = "of initial weights, sample order and generated data"},
    {.name = "run.dir",
     .type = KELP_JOB_TEXT,
     FIELD(run.dir),
     .change = KELP_JOB_CHANGES,
     .default_text = "",
     .help = "folder of the run; empty: `runs/<name>-<time>`"},

    {.name = "model.kind",
     .type = KELP_JOB_CHOICE,
     FIELD(model.kind),
     .choices = model_kinds,
     .default_text = "dlinear",
     .help = "`mlp`: linear layers with ReLU between; `dlinear`: one linear map each for the "
             "trend and the rest of a series"},
    {.name = "model.hidden",
     .type = KELP_JOB_WIDTHS,
     FIELD(model.hidden),
     .count_offset = offsetof(struct kelp_job, model.hidden_count),
     .min = 1,
     .max = 1 << 20,
     .default_text = "[64]",
     WITH_MLP,
     .help = "widths of the hidden layers; `[]`: none"},
    {.name = "model.individual",
     .type = KELP_JOB_BOOL,
     FIELD(model.individual),
     .default_text = "false",
     WITH_DLINEAR,
     .help = "a linear map of its own for each channel, instead of one for all"},
    {.name = "model.kernel_size",
     .type = KELP_JOB_U32,
     FIELD(model.kernel_size),
     .min = 1,
     .max = 9999,
     .default_text = "25",
     WITH_DLINEAR,
     .help = "width of the moving average that gives the trend; odd"},
    {.name = "model.init",
     .type = KELP_JOB_TEXT,
     FIELD(model.init),
     .default_text = "",
     .help = "safetensors file with the initial weights; empty: drawn from the seed"},
    {.name = "model.init_prefix",
     .type = KELP_JOB_TEXT,
     FIELD(model.init_prefix),
     .default_text = "",
     .help = "stands before each parameter's name in that file"},

    {.name = "data.kind",
     .type = KELP_JOB_CHOICE,
     FIELD(data.kind),
     .choices = data_kinds,
     .default_text = "synthetic",
     .help = "`csv`: a time series with a header line, a date and number columns; `synthetic`: "
             "one of that form, generated from the seed; `tensors`: inputs and targets of a "
             "safetensors file"},
    {.name = "data.path",
     .type = KELP_JOB_TEXT,
     FIELD(data.path),
     .default_text = "",
     WITH_FILE,
     .help = "the file; needed"},
    {.name = "data.target",
     .type = KELP_JOB_TEXT,
     FIELD(data.target),
     .default_text = "OT",
     WITH_SERIES,
     .help = "name of the column to forecast"},
    {.name = "data.features",
     .type = KELP_JOB_CHOICE,
     FIELD(data.features),
     .choices = feature_kinds,
     .default_text = "S",
     WITH_SERIES,
     .help = "`S`: the target column alone; `M`: all columns, forecast together"},
    {.name = "data.seq_len",
     .type = KELP_JOB_U32,
     FIELD(data.seq_len),
     .min = 1,
     .max = 1 << 16,
     .default_text = "96",
     WITH_SERIES,
     .help = "rows that the model sees"},
    {.name = "data.pred_len",
     .type = KELP_JOB_U32,
     FIELD(data.pred_len),
     .min = 1,
     .max = 1 << 16,
     .default_text = "96",
     WITH_SERIES,
     .help = "rows that it forecasts"},
    {.name = "data.split",
     .type = KELP_JOB_SPLIT,
     FIELD(data.split),
     .max = UINT64_C(1) << 40,
     .default_text = "[8640, 2880, 2880]",
     WITH_SERIES,
     .help = "rows of the training, validation and test part, from the top of the file; the last "
             "two may be 0. A part's windows may begin in the part before it"},
    {.name = "data.rows",
     .type = KELP_JOB_U64,
     FIELD(data.rows),
     .min = 1,
     .max = 10000000,
     .default_text = "17420",
     WITH_SYNTHETIC,
     .help = "rows to generate"},
    {.name = "data.shuffle",
     .type = KELP_JOB_BOOL,
     FIELD(data.shuffle),
     .default_text = "true",
     .help = "another order of the training samples in each epoch, from the seed"},
    {.name = "data.input_name",
     .type = KELP_JOB_TEXT,
     FIELD(data.input_name),
     .default_text = "x",
     WITH_TENSORS,
     .help = "name of the tensor with one input in each row"},
    {.name = "data.target_name",
     .type = KELP_JOB_TEXT,
     FIELD(data.target_name),
     .default_text = "y",
     WITH_TENSORS,
     .help = "name of the tensor with one target in each row"},

    {.name = "train.epochs",
     .type = KELP_JOB_U32,
     FIELD(train.epochs),
     .min = 1,
     .max = 1000000,
     .change = KELP_JOB_GROWS,
     .default_text = "10",
     .help = "passes over the training part"},
    {.name = "train.batch_size",
     .type = KELP_JOB_U32,
     FIELD(train.batch_size),
     .min = 1,
     .max = 1 << 24,
     .default_text = "32",
     .help = "samples of a step, over all lanes"},
    {.name = "train.drop_last",
     .type = KELP_JOB_BOOL,
     FIELD(train.drop_last),
     .default_text = "false",
     .help = "leave out an epoch's last batch when it is short"},
    {.name = "train.loss",
     .type = KELP_JOB_CHOICE,
     FIELD(train.loss),
     .choices = loss_kinds,
     .default_text = "mse",
     .help = "mean squared or mean absolute error"},
    {.name = "train.optimizer",
     .type = KELP_JOB_CHOICE,
     FIELD(train.optimizer),
     .choices = optimizer_kinds,
     .default_text = "adam",
     .help = "update rule, as in PyTorch"},
    {.name = "train.lr",
     .type = KELP_JOB_DOUBLE,
     FIELD(train.lr),
     .number_max = 1000,
     .default_text = "0.005",
     .help = "learning rate"},
    {.name = "train.momentum",
     .type = KELP_JOB_DOUBLE,
     FIELD(train.momentum),
     .number_max = 1,
     .default_text = "0",
     WITH_SGD,
     .help = "0: plain gradient descent"},
    {.name = "train.dampening",
     .type = KELP_JOB_DOUBLE,
     FIELD(train.dampening),
     .number_max = 1,
     .default_text = "0",
     WITH_SGD,
     .help = "of the momentum"},
    {.name = "train.nesterov",
     .type = KELP_JOB_BOOL,
     FIELD(train.nesterov),
     .default_text = "false",
     WITH_SGD,
     .help = "Nesterov momentum; needs a momentum, and no dampening"},
    {.name = "train.weight_decay",
     .type = KELP_JOB_DOUBLE,
     FIELD(train.weight_decay),
     .number_max = 1000,
     .default_text = "0",
     .help = "`sgd`, `adam`: added to the gradient; `adamw`: shrinks the weights"},
    {.name = "train.beta1",
     .type = KELP_JOB_DOUBLE,
     FIELD(train.beta1),
     .number_max = BELOW_ONE,
     .default_text = "0.9",
     WITH_ADAM,
     .help = "decay of the mean of gradients; below 1"},
    {.name = "train.beta2",
     .type = KELP_JOB_DOUBLE,
     FIELD(train.beta2),
     .number_max = BELOW_ONE,
     .default_text = "0.999",
     WITH_ADAM,
     .help = "decay of the mean of squared gradients; below 1"},
    {.name = "train.eps",
     .type = KELP_JOB_DOUBLE,
     FIELD(train.eps),
     .number_max = 1,
     .default_text = "1e-08",
     WITH_ADAM,
     .help = "added to the denominator"},
    {.name = "train.schedule",
     .type = KELP_JOB_CHOICE,
     FIELD(train.schedule),
     .choices = schedule_kinds,
     .default_text = "type1",
     .help = "`constant`, or `type1`: the full rate in epochs 1 and 2, halved in each one after"},
    {.name = "train.evaluate",
     .type = KELP_JOB_BOOL,
     FIELD(train.evaluate),
     .default_text = "true",
     .help = "measure the validation and test part after each epoch"},

    {.name = "cluster.workers",
     .type = KELP_JOB_RANGE,
     FIELD(cluster.workers),
     .min = 1,
     .max = 1024,
     .change = KELP_JOB_CHANGES,
     .default_text = "2:2",
     .help = "`MIN:MAX` worker processes, or `N`; the job starts once MIN are there. Changes no "
             "result"},
    {.name = "cluster.shards",
     .type = KELP_JOB_U32,
     FIELD(cluster.shards),
     .min = 1,
     .max = 1024,
     .change = KELP_JOB_CHANGES,
     .default_text = "1",
     .help = "parameter-server processes. Changes no result"},
    {.name = "cluster.max_shards",
     .type = KELP_JOB_U32,
     FIELD(cluster.max_shards),
     .min = 1,
     .max = 1024,
     .default_text = "4",
     .help = "most shards that the job may ever have: sets into how many partitions the weights "
             "are cut"},
    {.name = "cluster.lanes",
     .type = KELP_JOB_U32,
     FIELD(cluster.lanes),
     .min = 1,
     .max = KELP_JOB_LANES_MAX,
     .default_text = "8",
     .help = "shares into which each batch is cut, a power of two; the most workers that can "
             "work at once"},
    {.name = "cluster.lane_threads",
     .type = KELP_JOB_U32,
     FIELD(cluster.lane_threads),
     .min = 1,
     .max = 256,
     .default_text = "1",
     .help = "threads that compute one lane"},
    {.name = "cluster.device",
     .type = KELP_JOB_CHOICE,
     FIELD(cluster.device),
     .choices = device_kinds,
     .default_text = "cpu",
     .help = "what workers compute on"},
    {.name = "cluster.mixed",
     .type = KELP_JOB_BOOL,
     FIELD(cluster.mixed),
     .default_text = "false",
     .help = "let in workers of another compute kind; gives up that runs end with the same bits"},

    {.name = "transport.piece",
     .type = KELP_JOB_SIZE,
     FIELD(transport.piece_bytes),
     .min = 4096,
     .max = 64 << 20,
     .change = KELP_JOB_CHANGES,
     .default_text = "4MiB",
     .help = "most tensor bytes in one message"},
    {.name = "transport.connect_timeout",
     .type = KELP_JOB_DURATION,
     FIELD(transport.connect_timeout_ms),
     .min = 100,
     .max = 600000,
     .change = KELP_JOB_CHANGES,
     .default_text = "5s",
     .help = "how long the first answer of a peer is waited for"},

    {.name = "failure.detect",
     .type = KELP_JOB_DURATION,
     FIELD(failure.detect_ms),
     .min = 100,
     .max = 600000,
     .change = KELP_JOB_CHANGES,
     .default_text = "1s",
     .help = "silence after which a process counts as lost"},
    {.name = "failure.shard_wait",
     .type = KELP_JOB_DURATION,
     FIELD(failure.shard_wait_ms),
     .min = 1000,
     .max = 3600000,
     .change = KELP_JOB_CHANGES,
     .default_text = "2s",
     .help = "how long a lost shard is waited for before its partitions move"},
    {.name = "failure.max_failures",
     .type = KELP_JOB_I32,
     FIELD(failure.max_failures),
     .max = 1000000,
     .change = KELP_JOB_CHANGES,
     .default_text = "100",
     .help = "restarts of child processes within failure.window before the launcher gives up; -1: "
             "any number"},
    {.name = "failure.window",
     .type = KELP_JOB_DURATION,
     FIELD(failure.window_ms),
     .max = 86400000,
     .change = KELP_JOB_CHANGES,
     .default_text = "60m",
     .help = "in which failure.max_failures count; 0s: the whole run"},
    {.name = "failure.restart_backoff",
     .type = KELP_JOB_DURATION,
     FIELD(failure.restart_backoff_ms),
     .min = 10,
     .max = 600000,
     .change = KELP_JOB_CHANGES,
     .default_text = "500ms",
     .help = "pause before a child that keeps dying is started again, doubled each time; the first "
             "restart is at once"},
    {.name = "failure.storage_wait",
     .type = KELP_JOB_DURATION,
     FIELD(failure.storage_wait_ms),
     .max = 604800000,
     .change = KELP_JOB_CHANGES,
     .default_text = "0s",
     .help = "how long a restore waits for storage that is not there yet before the job fails; 0s: "
             "without limit"},
    {.name = "failure.on_nan",
     .type = KELP_JOB_CHOICE,
     FIELD(failure.on_nan),
     .choices = nan_policies,
     .change = KELP_JOB_CHANGES,
     .default_text = "stop",
     .help =
         "a gradient that is not finite fails the job (stop), or its step is left out: it counts, "
         "and the weights stay as they are (skip)"},

    {.name = "checkpoint.digest_steps",
     .type = KELP_JOB_U32,
     FIELD(checkpoint.digest_steps),
     .max = UINT32_MAX,
     .default_text = "0",
     .help = "record the model's digest every so many steps; 0: at the ends of epochs alone"},
    {.name = "checkpoint.steps",
     .type = KELP_JOB_U32,
     FIELD(checkpoint.steps),
     .max = UINT32_MAX,
     .change = KELP_JOB_CHANGES,
     .default_text = "0",
     .help = "a checkpoint at steps that are a multiple of this; while one is being written, the "
             "next multiple after it; 0: not by steps"},
    {.name = "checkpoint.interval",
     .type = KELP_JOB_DURATION,
     FIELD(checkpoint.interval_ms),
     .max = 604800000,
     .change = KELP_JOB_CHANGES,
     .default_text = "1m",
     .help = "a checkpoint so long after the one before; 0s: not by time"},
    {.name = "checkpoint.epochs",
     .type = KELP_JOB_U32,
     FIELD(checkpoint.epochs),
     .max = 1000000,
     .change = KELP_JOB_CHANGES,
     .default_text = "0",
     .help = "a checkpoint at the end of every so many epochs; 0: not by epochs"},
    {.name = "checkpoint.at_end",
     .type = KELP_JOB_BOOL,
     FIELD(checkpoint.at_end),
     .change = KELP_JOB_CHANGES,
     .default_text = "true",
     .help = "a checkpoint of the final state"},
    {.name = "checkpoint.keep_last",
     .type = KELP_JOB_U32,
     FIELD(checkpoint.keep_last),
     .min = 1,
     .max = KELP_CHECKPOINT_KEEP_MAX,
     .change = KELP_JOB_CHANGES,
     .default_text = "2",
     .help = "newest checkpoints that are kept"},
    {.name = "checkpoint.keep_best",
     .type = KELP_JOB_U32,
     FIELD(checkpoint.keep_best),
     .max = KELP_CHECKPOINT_KEEP_MAX,
     .change = KELP_JOB_CHANGES,
     .default_text = "0",
     .help = "best checkpoints by checkpoint.metric that are kept besides the newest; of those "
             "made at the ends of epochs"},
    {.name = "checkpoint.metric",
     .type = KELP_JOB_CHOICE,
     FIELD(checkpoint.metric),
     .choices = checkpoint_metrics,
     .change = KELP_JOB_CHANGES,
     .default_text = "val/mse",
     .help = "what checkpoint.keep_best goes by"},
    {.name = "checkpoint.order",
     .type = KELP_JOB_CHOICE,
     FIELD(checkpoint.order),
     .choices = checkpoint_orders,
     .change = KELP_JOB_CHANGES,
     .default_text = "min",
     .help = "whether a smaller or a larger value is better"},
};
const size_t kelp__job_key_count = KELP_ARRAY_COUNT(kelp__job_keys);
_Static_assert(KELP_ARRAY_COUNT(kelp__job_keys) <= KELP__JOB_KEYS_MAX, "raise KELP__JOB_KEYS_MAX");

size_t kelp__job_key_find(const char *name)
{
    size_t i = 0;

    while (i < kelp__job_key_count && strcmp(kelp__job_keys[i].name, name) != 0) {
        i++;
    }
    return i;
}

static uint32_t choice_of(const char *name, const struct kelp_job *job,
                          const struct kelp_job_key **ret_key)
{
    uint32_t value;
    size_t index = kelp__job_key_find(name);

    assert(index < kelp__job_key_count);
    assert(kelp__job_keys[index].type == KELP_JOB_CHOICE);
    memcpy(&value, (const char *)job + kelp__job_keys[index].offset, sizeof(value));
    *ret_key = &kelp__job_keys[index];
    return value;
}

void kelp__job_key_chosen(const char *name, const struct kelp_job *job, char *text,
                          size_t text_bytes)
{
    const struct kelp_job_key *key;
    uint32_t value = choice_of(name, job, &key);

    (void)snprintf(text, text_bytes, "%s", key->choices[value]);
}

bool kelp__job_key_applies(const struct kelp_job_key *key, const struct kelp_job *job)
{
    const struct kelp_job_key *other;

    return !key->only_with || (key->only_values & BIT(choice_of(key->only_with, job, &other))) != 0;
}
