#include "common/job/job_options.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const run_modes[] = {"train", "evaluate", "predict", NULL};
static const char *const run_parts[] = {"train", "val", "test", NULL};
static const char *const model_kinds[] = {"mlp",     "dlinear",  "nlinear", "fare",
                                          "convnet", "resnet18", "deepfm",  "tft",
                                          "plugin",  "program",  NULL};
static const char *const data_kinds[] = {"csv", "synthetic", "tensors", "table",   "panel",
                                         "idx", "npy",       "binary",  "program", NULL};
static const char *const missing_policies[] = {"error", "drop", "zero", "mean", NULL};
static const char *const normalize_kinds[] = {"none", "standard", "minmax", NULL};
static const char *const dtypes[] = {"float32", "float64", "uint8", "int32", NULL};
static const char *const test_rows[] = {"labelled", "unlabelled", "either", NULL};
static const char *const schedule_units[] = {"epoch", "step", NULL};
static const char *const monitors[] = {"val/loss",     "val/mse", "val/mae",
                                       "val/accuracy", "val/auc", NULL};
static const char *const feature_kinds[] = {"S", "M", "MS", NULL};
static const char *const nan_policies[] = {"stop", "skip", NULL};
static const char *const conflict_policies[] = {"stop", "first", NULL};
static const char *const loss_kinds[] = {"mse",           "mae", "smooth_l1", "huber",
                                         "cross_entropy", "nll", "bce",       "bce_with_logits",
                                         "quantile",      NULL};
static const char *const optimizer_kinds[] = {"sgd",     "adam",     "adamw", "adagrad",
                                              "rmsprop", "adadelta", "lamb",  NULL};
static const char *const schedule_kinds[] = {"constant", "step",   "multistep",       "exponential",
                                             "type1",    "cosine", "cosine_restarts", "linear",
                                             "plateau",  NULL};
static const char *const checkpoint_metrics[] = {"val/loss",     "val/mse", "val/mae",
                                                 "val/accuracy", "val/auc", NULL};
static const char *const checkpoint_orders[] = {"min", "max", NULL};
static const char *const device_kinds[] = {"cpu", "cuda", NULL};
static const char *const computes[] = {"native", "portable", NULL};
static const char *const cudnns[] = {"auto", "always", "never", NULL};
static const char *const transports[] = {"auto", "grpc", "shm", NULL};
static const char *const product_precisions[] = {"float32", "tf32", "bfloat16", NULL};
static const char *const precisions[] = {"float32", "bfloat16", NULL};

/* The words of a choice are in the order of its enum: checking the first, the last and the number
 * is enough. */
#define CHECK_ORDER(words, first, last)                                                            \
    _Static_assert((first) == 0 && (last) + 2 == KELP_ARRAY_COUNT(words), "order of " #words)
CHECK_ORDER(run_modes, KELP_RUN_TRAIN, KELP_RUN_PREDICT);
CHECK_ORDER(run_parts, KELP_RUN_PART_TRAIN, KELP_RUN_PART_TEST);
CHECK_ORDER(model_kinds, KELP_MODEL_MLP, KELP_MODEL_PROGRAM);
CHECK_ORDER(data_kinds, KELP_DATA_CSV, KELP_DATA_PROGRAM);
CHECK_ORDER(missing_policies, KELP_MISSING_ERROR, KELP_MISSING_MEAN);
CHECK_ORDER(normalize_kinds, KELP_NORMALIZE_NONE, KELP_NORMALIZE_MINMAX);
CHECK_ORDER(dtypes, KELP_NUMBER_FLOAT32, KELP_NUMBER_INT32);
CHECK_ORDER(test_rows, KELP_TEST_ROWS_LABELLED, KELP_TEST_ROWS_EITHER);
CHECK_ORDER(schedule_units, KELP_SCHEDULE_EPOCH, KELP_SCHEDULE_BY_STEP);
CHECK_ORDER(monitors, KELP_MONITOR_LOSS, KELP_MONITOR_AUC);
CHECK_ORDER(feature_kinds, KELP_FEATURES_S, KELP_FEATURES_MS);
CHECK_ORDER(loss_kinds, KELP_LOSS_MSE, KELP_LOSS_QUANTILE);
CHECK_ORDER(optimizer_kinds, KELP_OPTIMIZER_SGD, KELP_OPTIMIZER_LAMB);
CHECK_ORDER(schedule_kinds, KELP_SCHEDULE_CONSTANT, KELP_SCHEDULE_PLATEAU);
CHECK_ORDER(device_kinds, KELP_DEVICE_CPU, KELP_DEVICE_CUDA);
CHECK_ORDER(computes, KELP_COMPUTE_NATIVE, KELP_COMPUTE_PORTABLE);
CHECK_ORDER(cudnns, KELP_CUDNN_AUTO, KELP_CUDNN_NEVER);
CHECK_ORDER(transports, KELP_TRANSPORT_AUTO, KELP_TRANSPORT_SHM);
CHECK_ORDER(product_precisions, KELP_PRODUCT_FLOAT32, KELP_PRODUCT_BFLOAT16);
CHECK_ORDER(precisions, KELP_PRECISION_FLOAT32, KELP_PRECISION_BFLOAT16);
CHECK_ORDER(checkpoint_metrics, KELP_CHECKPOINT_VAL_LOSS, KELP_CHECKPOINT_VAL_AUC);
_Static_assert(KELP_ORDER_MIN == 0 && KELP_ORDER_MAX == 1, "order of checkpoint_orders");
_Static_assert(sizeof(enum kelp_model_kind) == sizeof(uint32_t), "enums are stored as uint32_t");

#define BIT(value) (1u << (value))

/* Most keys have the name of their field; the count of a list is the field next to it. */
#define KEY_AT(key, member, kind)                                                                  \
    .name = (key), .type = KELP_JOB_##kind, .offset = offsetof(struct kelp_job, member),           \
    .bytes = sizeof(((struct kelp_job *)0)->member)
#define KEY(member, kind) KEY_AT(#member, member, kind)
#define LIST(member, kind)                                                                         \
    KEY(member, kind), .count_offset = offsetof(struct kelp_job, member##_count)
#define WITHIN(low, high)  .min = (low), .max = (high)
#define BETWEEN(low, high) .number_min = (low), .number_max = (high)

#define WITH_MODEL(kinds)     .only_with = "model.kind", .only_values = (kinds)
#define WITH_DATA(kinds)      .only_with = "data.kind", .only_values = (kinds)
#define WITH_OPTIMIZER(kinds) .only_with = "train.optimizer", .only_values = (kinds)
#define WITH_SCHEDULE(kinds)  .only_with = "train.schedule", .only_values = (kinds)
#define WITH_LOSS(kinds)      .only_with = "train.loss", .only_values = (kinds)

#define MODEL_MLP     BIT(KELP_MODEL_MLP)
#define MODEL_DLINEAR BIT(KELP_MODEL_DLINEAR)
#define MODEL_NLINEAR BIT(KELP_MODEL_NLINEAR)
#define MODEL_IMAGES  (BIT(KELP_MODEL_CONVNET) | BIT(KELP_MODEL_RESNET18))
#define MODEL_DEEPFM  BIT(KELP_MODEL_DEEPFM)
#define MODEL_TFT     BIT(KELP_MODEL_TFT)
#define MODEL_DROPOUT (BIT(KELP_MODEL_CONVNET) | MODEL_DEEPFM | MODEL_TFT)
#define MODEL_PLUGIN  BIT(KELP_MODEL_PLUGIN)
#define MODEL_PROGRAM BIT(KELP_MODEL_PROGRAM)

#define DATA_CSV       BIT(KELP_DATA_CSV)
#define DATA_SYNTHETIC BIT(KELP_DATA_SYNTHETIC)
#define DATA_TENSORS   BIT(KELP_DATA_TENSORS)
#define DATA_TABLE     BIT(KELP_DATA_TABLE)
#define DATA_PANEL     BIT(KELP_DATA_PANEL)
#define DATA_IDX       BIT(KELP_DATA_IDX)
#define DATA_NPY       BIT(KELP_DATA_NPY)
#define DATA_BINARY    BIT(KELP_DATA_BINARY)
#define DATA_PROGRAM   BIT(KELP_DATA_PROGRAM)
#define DATA_COLUMNS   (DATA_TABLE | DATA_PANEL)
#define DATA_ROWS      (DATA_TABLE | DATA_NPY | DATA_BINARY)
#define DATA_SERIES    (DATA_CSV | DATA_SYNTHETIC | DATA_PANEL)
#define DATA_FILE      (DATA_CSV | DATA_TENSORS | DATA_ROWS | DATA_PANEL | DATA_IDX)

#define OPTIMIZER_SGD      BIT(KELP_OPTIMIZER_SGD)
#define OPTIMIZER_ADAM     (BIT(KELP_OPTIMIZER_ADAM) | BIT(KELP_OPTIMIZER_ADAMW))
#define OPTIMIZER_LAMB     BIT(KELP_OPTIMIZER_LAMB)
#define OPTIMIZER_ADAGRAD  BIT(KELP_OPTIMIZER_ADAGRAD)
#define OPTIMIZER_RMSPROP  BIT(KELP_OPTIMIZER_RMSPROP)
#define OPTIMIZER_ADADELTA BIT(KELP_OPTIMIZER_ADADELTA)

#define SCHEDULE_STEP     BIT(KELP_SCHEDULE_STEP)
#define SCHEDULE_MULTI    BIT(KELP_SCHEDULE_MULTISTEP)
#define SCHEDULE_GAMMA    (SCHEDULE_STEP | SCHEDULE_MULTI | BIT(KELP_SCHEDULE_EXPONENTIAL))
#define SCHEDULE_RESTARTS BIT(KELP_SCHEDULE_COSINE_RESTARTS)
#define SCHEDULE_COSINE   (BIT(KELP_SCHEDULE_COSINE) | SCHEDULE_RESTARTS)
#define SCHEDULE_LINEAR   BIT(KELP_SCHEDULE_LINEAR)
#define SCHEDULE_PLATEAU  BIT(KELP_SCHEDULE_PLATEAU)

#define BELOW_ONE 0x1.fffffffffffffp-1

const struct kelp_job_key kelp__job_keys[] = {
    {KEY(name, NAME), .default_text = "job",
     .help = "Name of the run: its prefix in etcd is `/kelp/<name>/`, its default folder "
             "`runs/<name>-<time>`"},
    {KEY(seed, U64), .max = UINT64_MAX, .default_text = "1",
     .help = "Seed of initial weights, sample order, dropout and generated data"},
    {KEY(run.dir, PATH), .change = KELP_JOB_CHANGES, .default_text = "",
     .help = "Folder of the run. Empty: `runs/<name>-<time>` in the current directory"},

    {KEY(run.mode, CHOICE), .choices = run_modes, .default_text = "train",
     .help = "`train`: train the model. `evaluate`: measure the validation and test splits with "
             "the weights of model.init. `predict`: write the model's output for run.part into the "
             "run's folder"},
    {KEY(run.part, CHOICE), .choices = run_parts, .default_text = "test", .only_with = "run.mode",
     .only_values = BIT(KELP_RUN_PREDICT), .help = "The split to predict"},
    {KEY_AT("run.private", run.closed, BOOL), .change = KELP_JOB_CHANGES, .later = true,
     .default_text = "false",
     .help =
         "Only you can open the run's folder (mode 0700); else the group of it can, too (0750)"},

    {KEY(model.kind, CHOICE), .choices = model_kinds, .default_text = "dlinear",
     .required = "model: {kind: mlp}",
     .help = "The model. `mlp`: linear layers with ReLU between them. `dlinear`: one linear map "
             "for the trend and one for the rest of a series. `nlinear`: one linear map after the "
             "last value is subtracted. `fare`: layers of 6, 256, 16 and 1 with batch norm and a "
             "sigmoid. `convnet`: two convolutions and two linear layers. `resnet18`: ResNet18. "
             "`deepfm`: factorization machine and MLP over categories and numbers. `tft`: Temporal "
             "Fusion Transformer. `plugin`: the library of model.plugin. `program`: the program of "
             "model.program or model.python, which has the data too"},
    {LIST(model.hidden, WIDTHS), WITHIN(1, 1 << 20), .default_text = "[64]",
     WITH_MODEL(MODEL_MLP | MODEL_DEEPFM),
     .help = "Widths of the hidden layers; in deepfm, those of its MLP. `[]`: none"},
    {KEY(model.individual, BOOL), .default_text = "false",
     WITH_MODEL(MODEL_DLINEAR | MODEL_NLINEAR),
     .help = "A separate linear map for each channel, instead of one for all"},
    {KEY(model.kernel_size, U32), WITHIN(1, 9999), .default_text = "25", WITH_MODEL(MODEL_DLINEAR),
     .help = "Width of the moving average that gives the trend. It must be odd"},
    {KEY(model.plugin, PATH), .default_text = "", WITH_MODEL(MODEL_PLUGIN),
     .help = "Shared library with a model of your own (docs/MODELS.md). Where it is set and "
             "model.kind is not, model.kind is `plugin`"},
    {KEY(model.plugin_sha256, TEXT), .change = KELP_JOB_CHANGES, .later = true, .default_text = "",
     WITH_MODEL(MODEL_PLUGIN),
     .help = "SHA-256 of that library, 64 hexadecimal digits. A library with another one is "
             "refused before it is opened. Empty: `kelp` fills it in when a run begins"},
    {KEY(model.params, TEXTS), .default_text = "[]", WITH_MODEL(MODEL_PLUGIN),
     .help = "Parameters for the library, each as `name=value`"},
    {KEY(model.program, PATH), .later = true, .default_text = "", WITH_MODEL(MODEL_PROGRAM),
     .help = "A program of your own, linked with libkelp-worker (docs/WORKERS.md): workers run it "
             "instead of kelp-worker. It has the model, the data and the loss. Where it or "
             "model.python is set, model.kind and data.kind are `program`"},
    {KEY(model.python, PATH), .later = true, .default_text = "", WITH_MODEL(MODEL_PROGRAM),
     .help = "A script in the place of model.program. It is run by `$KELP_PYTHON`, or else by "
             "`python3`"},
    {KEY(model.arguments, TEXTS), .later = true, .default_text = "[]", WITH_MODEL(MODEL_PROGRAM),
     .help =
         "The program's arguments, passed unchanged: a relative path in them is relative to the "
         "folder in which the command was given"},
    {KEY(model.sums, TEXTS), .later = true, .default_text = "[]", WITH_MODEL(MODEL_PROGRAM),
     .help = "Names of sums that the program adds up in evaluations, at most 6: `metrics.jsonl` "
             "has their means over samples, as `val/NAME`. `NAME=min`: the smaller the better, for "
             "train.monitor. `NAME` or `NAME=max`: the larger"},
    {KEY(model.classes, U32), WITHIN(2, 1 << 20), .default_text = "10", WITH_MODEL(MODEL_IMAGES),
     .help = "Number of classes"},
    {LIST(model.dropout, NUMBERS), .number_max = BELOW_ONE, .default_text = "[]",
     WITH_MODEL(MODEL_DROPOUT),
     .help = "Fraction of elements that each dropout layer zeroes, in the model's order. `[]`: "
             "`[0.25, 0.5]` in convnet, none in the others"},
    {KEY(model.embedding_dim, U32), WITHIN(1, 4096), .default_text = "8", WITH_MODEL(MODEL_DEEPFM),
     .help = "Numbers that represent one category"},
    {KEY(model.d_model, U32), WITHIN(1, 4096), .default_text = "16", WITH_MODEL(MODEL_TFT),
     .help = "Hidden size"},
    {KEY(model.heads, U32), WITHIN(1, 64), .default_text = "4", WITH_MODEL(MODEL_TFT),
     .help = "Attention heads. It must divide model.d_model"},
    {KEY(model.init, PATH), .default_text = "",
     .help =
         "A safetensors file with the initial weights. Names are those of the model; letter case "
         "may differ, and `module.` or `_orig_mod.` may stand before all. Empty: the weights are "
         "drawn from the seed"},
    {KEY(model.init_prefix, TEXT), .default_text = "",
     .help = "Prefix of each parameter's name in that file"},
    {KEY(model.init_map, TEXTS), .later = true, .default_text = "[]",
     .help = "Other names for that file's tensors: `OLD=NEW` each. A name that begins with OLD "
             "begins with NEW instead: `[encoder.=, head.=fc.]`. With one `*` on each side, a rule "
             "is for whole names: `*.gamma=*.weight`. The first rule that fits counts"},

    {KEY(data.kind, CHOICE), .choices = data_kinds, .default_text = "synthetic",
     .required = "data: {kind: csv, path: FILE.csv}",
     .help = "Where samples come from. `csv`: a time series with a header line, a date and number "
             "columns. `synthetic`: a series of that form, generated from the seed. `tensors`: "
             "inputs and targets of a safetensors file. `table`: rows of CSV files, each a sample. "
             "`panel`: windows of one or many time series in CSV files, with inputs known ahead. "
             "`idx`: images and labels in MNIST's format. `npy`: NumPy arrays. `binary`: rows of "
             "numbers without a header. `program`: from the program of model.kind `program`"},
    {KEY(data.path, PATH), .default_text = "", WITH_DATA(DATA_FILE),
     .help = "The file. It is required. `table`, `panel`: it may be compressed with gzip, or be a "
             "pattern (`2017-0?.csv`) whose files are joined in the order of their names. `idx`: a "
             "folder with the usual four files. `npy`: the inputs"},
    {KEY(data.target, TEXT), .default_text = "OT", WITH_DATA(DATA_CSV | DATA_SYNTHETIC),
     .help = "Name of the column to forecast"},
    {KEY(data.features, CHOICE), .choices = feature_kinds, .default_text = "S",
     WITH_DATA(DATA_CSV | DATA_SYNTHETIC),
     .help = "`S`: only the target column. `M`: all columns, forecast together. `MS`: all columns "
             "are inputs, the target last, and only the target is forecast"},
    {KEY(data.seq_len, U32), WITHIN(1, 1 << 16), .default_text = "96", WITH_DATA(DATA_SERIES),
     .help = "Rows that the model sees"},
    {KEY(data.pred_len, U32), WITHIN(1, 1 << 16), .default_text = "96", WITH_DATA(DATA_SERIES),
     .help = "Rows that the model forecasts"},
    {KEY(data.split, SPLIT), .max = UINT64_C(1) << 40, .default_text = "[8640, 2880, 2880]",
     WITH_DATA(DATA_SERIES),
     .help = "Rows of the training, validation and test split, from the top of the file. The last "
             "two may be 0. Windows of a split may begin in the split before it"},
    {KEY(data.rows, U64), WITHIN(1, 10000000), .default_text = "17420", WITH_DATA(DATA_SYNTHETIC),
     .help = "Rows to generate"},
    {KEY(data.shuffle, BOOL), .default_text = "true",
     .help = "Use another order of the training samples in each epoch, from the seed"},
    {KEY(data.unit, TEXT), .change = KELP_JOB_CHANGES, .default_text = "", WITH_DATA(~DATA_PROGRAM),
     .help = "Unit of the target (`rides`), for people: errors in the data's own unit carry it. "
             "Empty: the name of the target column"},
    {KEY(data.input_name, TEXTS), .default_text = "[x]", WITH_DATA(DATA_TENSORS),
     .help = "Names of the tensors with one input in each row: float32, or int64 for categories"},
    {KEY(data.target_name, TEXT), .default_text = "y", WITH_DATA(DATA_TENSORS),
     .help = "Name of the tensor with one target in each row: float32, or int64 for classes"},

    {KEY(data.columns, TEXTS), .default_text = "[]", WITH_DATA(DATA_COLUMNS),
     .help = "`table`: columns that are the number inputs, in this order. `panel`: columns that "
             "are observed up to the present, besides the targets"},
    {KEY(data.categories, TEXTS), .default_text = "[]", WITH_DATA(DATA_TABLE),
     .help = "Columns that are categories. Words and whole numbers are numbered in the order of "
             "their first row in the training split. A value that only other splits have gets the "
             "next number where data.vocab has room for it, otherwise 0"},
    {KEY(data.known, TEXTS), .default_text = "[]", WITH_DATA(DATA_PANEL),
     .help = "Columns that are known ahead, such as the hour or the day of the week"},
    {KEY(data.targets, TEXTS), .default_text = "[]", WITH_DATA(DATA_COLUMNS),
     .help = "Columns to learn or forecast"},
    {KEY(data.derive, TEXTS), .default_text = "[]", WITH_DATA(DATA_COLUMNS),
     .help = "New columns, each `name = expression` over earlier columns. Operators: + - * /, "
             "comparisons, `column == 'text'`, `and`, `or`, `not`. Functions of times: hour(t), "
             "minute(t), weekday(t) (Monday 0), day(t), month(t), year(t), seconds(t) (since "
             "1970). Functions of numbers: abs(x), floor(x), log(x), sqrt(x), sin(x), cos(x), "
             "min(x, y), max(x, y). Others: missing(x), `pi`. Times are YYYY-MM-DD HH:MM:SS"},
    {KEY(data.filter, TEXTS), .default_text = "[]", WITH_DATA(DATA_COLUMNS),
     .help = "Conditions that a row must meet; other rows are left out. They are expressions as in "
             "data.derive"},
    {KEY(data.time, TEXT), .default_text = "", WITH_DATA(DATA_PANEL),
     .help = "Column that orders the rows of a series"},
    {KEY(data.group, TEXT), .default_text = "", WITH_DATA(DATA_PANEL),
     .help = "Column that tells one series from another. Empty: all rows are one series"},
    {LIST(data.vocab, WIDTHS), WITHIN(1, 1 << 24), .default_text = "[]",
     WITH_DATA(DATA_COLUMNS | DATA_TENSORS),
     .help = "Sizes of the category inputs, one for each. `[]`: from the data. `tensors`: sizes of "
             "each column of the int64 inputs"},
    {KEY(data.missing, CHOICE), .choices = missing_policies, .default_text = "error",
     WITH_DATA(DATA_COLUMNS),
     .help = "What to do with an empty field (also NA, NaN and null). `error`: refuse it. `drop`: "
             "leave out the row. `zero`: take zero. `mean`: take the column's mean in the training "
             "split. Rows that data.filter leaves out do not count"},
    {KEY(data.normalize, CHOICE), .choices = normalize_kinds, .default_text = "none",
     WITH_DATA(DATA_ROWS | DATA_PANEL),
     .help = "Scale number inputs by the training split. `standard`: by mean and standard "
             "deviation. `minmax`: by smallest and largest value"},
    {KEY(data.normalize_target, CHOICE), .choices = normalize_kinds, .default_text = "none",
     WITH_DATA(DATA_COLUMNS),
     .help =
         "The same for targets; in a panel for each series by itself. Predictions are scaled back"},
    {KEY(data.mean, DOUBLE), BETWEEN(-1e30, 1e30), .default_text = "0", WITH_DATA(DATA_IDX),
     .help = "Images become (x / 255 - mean) / std"},
    {KEY(data.std, DOUBLE), BETWEEN(1e-30, 1e30), .default_text = "1", WITH_DATA(DATA_IDX),
     .help = "See data.mean"},
    {KEY(data.target_path, PATH), .default_text = "", WITH_DATA(DATA_NPY),
     .help = "The targets of data.path. It is required"},
    {KEY(data.val_target_path, PATH), .default_text = "", WITH_DATA(DATA_NPY),
     .help = "The targets of data.val_path"},
    {KEY(data.test_target_path, PATH), .default_text = "", WITH_DATA(DATA_NPY),
     .help = "The targets of data.test_path. Samples to predict need none"},
    {KEY(data.dtype, CHOICE), .choices = dtypes, .default_text = "float32", WITH_DATA(DATA_BINARY),
     .help = "Type of the numbers, little-endian"},
    {LIST(data.input_shape, WIDTHS), WITHIN(1, 1 << 24), .default_text = "[]",
     WITH_DATA(DATA_BINARY), .help = "Shape of a row's input, which comes first. It is required"},
    {LIST(data.target_shape, WIDTHS), WITHIN(1, 1 << 24), .default_text = "[]",
     WITH_DATA(DATA_BINARY),
     .help = "Shape of a row's target, which follows the input. `[]`: one number"},
    {KEY(data.fractions, NUMBERS), .count_offset = offsetof(struct kelp_job, data.fraction_count),
     .number_max = 1, .default_text = "[]", WITH_DATA(DATA_ROWS | DATA_IDX),
     .help = "Fractions of the rows that are the training, validation and test split, in this "
             "order from the top. `[]`: all rows are training rows. `idx` has test images of its "
             "own: the fractions are of its training images"},
    {KEY(data.test_every, U32), .max = 1 << 30, .default_text = "0", WITH_DATA(DATA_ROWS),
     .help = "N: the last of every N rows is in the test split. 0: none"},
    {KEY(data.random_split, BOOL), .default_text = "false", WITH_DATA(DATA_ROWS | DATA_IDX),
     .help = "Let data.fractions and data.test_every count rows of data.path in an order that is "
             "drawn from the seed, not in that of the file"},
    {KEY(data.val_path, PATH), .default_text = "", WITH_DATA(DATA_ROWS),
     .help = "A separate file for the validation split, instead of that of data.fractions"},
    {KEY(data.test_path, PATH), .default_text = "", WITH_DATA(~DATA_PROGRAM),
     .help =
         "A separate file for the test split, instead of that of data.fractions or "
         "data.test_every. The training split does not change. `csv`, `synthetic` (a CSV file), "
         "`panel`, `idx`, "
         "`tensors`: only with run.mode predict and evaluate; the whole file is the test split"},
    {KEY(data.test_rows, CHOICE), .later = true, .choices = test_rows, .default_text = "labelled",
     WITH_DATA(DATA_BINARY),
     .help = "Whether the rows of data.test_path have targets after their inputs. `unlabelled`: "
             "only inputs, for predictions. `either`: the size of the file tells; it is refused if "
             "both are possible. `kelp predict --data` sets `either`, with `--targets` `labelled`"},
    {KEY(data.limit, U64), .max = UINT64_C(1) << 40, .default_text = "0", WITH_DATA(~DATA_PROGRAM),
     .help = "Use only the first N training samples. 0: all"},
    {KEY(data.cache, PATH), .change = KELP_JOB_CHANGES, .default_text = "",
     WITH_DATA(DATA_ROWS | DATA_PANEL),
     .help = "Folder for data that was parsed and measured once. Empty: `$XDG_CACHE_HOME/kelp` or "
             "`~/.cache/kelp`. It changes no result"},

    {KEY(train.epochs, U32), WITHIN(1, 1000000), .change = KELP_JOB_GROWS, .default_text = "10",
     .help = "Passes over the training split"},
    {KEY(train.batch_size, U32), WITHIN(1, 1 << 24), .default_text = "32",
     .help = "Samples of a step, over all lanes"},
    {KEY(train.drop_last, BOOL), .default_text = "false",
     .help = "Leave out an epoch's last batch when it is short"},
    {KEY(train.batches_per_epoch, U32), .max = UINT32_MAX, .default_text = "0",
     .help = "Training steps of an epoch at most: the first ones of its order. With data.shuffle "
             "each epoch draws others. Evaluations take all samples. 0: the whole split"},
    {KEY(train.max_steps, U64), .max = UINT64_C(1) << 62, .default_text = "0",
     .help = "End training after N steps, also within an epoch. 0: with the last epoch"},
    {KEY(train.accumulate, U32), WITHIN(1, 1 << 20), .default_text = "1",
     .help = "Pieces in which a lane computes its samples, one after the other; their gradients "
             "are added. More pieces need less memory for the same step"},
    {KEY(train.loss, CHOICE), .choices = loss_kinds, .default_text = "mse",
     WITH_MODEL(~MODEL_PROGRAM),
     .help = "The loss, a mean over the elements, as PyTorch's loss of that name. `nll` takes "
             "log-probabilities, `bce` probabilities. `quantile`: mean over train.quantiles"},
    {KEY(train.loss_beta, DOUBLE), .number_max = 1e30, .default_text = "1",
     WITH_LOSS(BIT(KELP_LOSS_SMOOTH_L1) | BIT(KELP_LOSS_HUBER)),
     .help = "Error at which the loss changes from squared to absolute"},
    {KEY(train.label_smoothing, DOUBLE), .number_max = BELOW_ONE, .default_text = "0",
     WITH_LOSS(BIT(KELP_LOSS_CROSS_ENTROPY)),
     .help = "Fraction of the weight that is spread evenly over all classes"},
    {KEY(train.quantiles, NUMBERS), .count_offset = offsetof(struct kelp_job, train.quantile_count),
     .number_max = 1, .default_text = "[0.1, 0.5, 0.9]", WITH_LOSS(BIT(KELP_LOSS_QUANTILE)),
     .help =
         "Quantiles to forecast, ascending. The middle one is the forecast that mse and mae use"},
    {KEY(train.optimizer, CHOICE), .choices = optimizer_kinds, .default_text = "adam",
     .help = "Update rule, as in PyTorch"},
    {KEY(train.lr, DOUBLE), .number_max = 1000, .default_text = "0.005", .help = "Learning rate"},
    {KEY(train.momentum, DOUBLE), .number_max = 1, .default_text = "0",
     WITH_OPTIMIZER(OPTIMIZER_SGD | OPTIMIZER_RMSPROP), .help = "Momentum. 0: none"},
    {KEY(train.dampening, DOUBLE), .number_max = 1, .default_text = "0",
     WITH_OPTIMIZER(OPTIMIZER_SGD), .help = "Dampening of the momentum"},
    {KEY(train.nesterov, BOOL), .default_text = "false", WITH_OPTIMIZER(OPTIMIZER_SGD),
     .help = "Use Nesterov momentum. It needs a momentum and no dampening"},
    {KEY(train.weight_decay, DOUBLE), .number_max = 1000, .default_text = "0",
     .help = "Weight decay, times the weights. `adamw` shrinks the weights by it, `lamb` adds it "
             "to the update, and the others add it to the gradient"},
    {KEY(train.decay_exclude, TEXTS), .default_text = "[]",
     .help =
         "Parameters without weight decay: patterns of names with `*` and `?`, such as `*.bias`"},
    {KEY(train.beta1, DOUBLE), .number_max = BELOW_ONE, .default_text = "0.9",
     WITH_OPTIMIZER(OPTIMIZER_ADAM | OPTIMIZER_LAMB),
     .help = "Decay of the mean of gradients, below 1"},
    {KEY(train.beta2, DOUBLE), .number_max = BELOW_ONE, .default_text = "0.999",
     WITH_OPTIMIZER(OPTIMIZER_ADAM | OPTIMIZER_LAMB),
     .help = "Decay of the mean of squared gradients, below 1"},
    {KEY(train.amsgrad, BOOL), .default_text = "false", WITH_OPTIMIZER(OPTIMIZER_ADAM),
     .help = "Divide by the largest mean of squared gradients so far"},
    {KEY(train.alpha, DOUBLE), .number_max = BELOW_ONE, .default_text = "0.99",
     WITH_OPTIMIZER(OPTIMIZER_RMSPROP), .help = "Decay of the mean of squared gradients, below 1"},
    {KEY(train.centered, BOOL), .default_text = "false", WITH_OPTIMIZER(OPTIMIZER_RMSPROP),
     .help = "Divide by an estimate of the variance of gradients instead"},
    {KEY(train.rho, DOUBLE), .number_max = BELOW_ONE, .default_text = "0.9",
     WITH_OPTIMIZER(OPTIMIZER_ADADELTA),
     .help = "Decay of the means of squared gradients and updates, below 1"},
    {KEY(train.lr_decay, DOUBLE), .number_max = 1000, .default_text = "0",
     WITH_OPTIMIZER(OPTIMIZER_ADAGRAD),
     .help = "The rate of step t, counted from 0, is lr / (1 + t lr_decay)"},
    {KEY(train.initial_accumulator, DOUBLE), .number_max = 1000, .default_text = "0",
     WITH_OPTIMIZER(OPTIMIZER_ADAGRAD), .help = "Initial value of the sums of squared gradients"},
    {KEY(train.eps, DOUBLE), .number_max = 1, .default_text = "0", WITH_OPTIMIZER(~OPTIMIZER_SGD),
     .help = "Number added to the denominator. 0: PyTorch's default (1e-08; `adagrad` 1e-10; "
             "`adadelta` and `lamb` 1e-06)"},
    {KEY(train.clip_norm, DOUBLE), .number_max = 1e30, .default_text = "0",
     .help = "Largest norm of the whole gradient, over all parameters. A longer gradient is scaled "
             "down to it. 0: no limit"},
    {KEY(train.schedule, CHOICE), .choices = schedule_kinds, .default_text = "constant",
     .help = "The learning rate over time, as PyTorch's schedulers. `step`, `multistep`, "
             "`exponential`, `linear` and `cosine` count in train.schedule_unit. `type1`: the full "
             "rate in epochs 1 and 2, halved in each later epoch. `plateau`: lower once "
             "train.monitor stops getting better"},
    {KEY(train.schedule_unit, CHOICE), .choices = schedule_units, .default_text = "epoch",
     .help =
         "Unit in which schedules and warm-up count. `type1` counts epochs and `plateau` counts "
         "evaluations"},
    {KEY(train.schedule_step, U32), WITHIN(1, UINT32_MAX), .default_text = "1",
     WITH_SCHEDULE(SCHEDULE_STEP), .help = "Multiply the rate by train.gamma every N units"},
    {KEY(train.gamma, DOUBLE), .number_max = 1000, .default_text = "0.1",
     WITH_SCHEDULE(SCHEDULE_GAMMA), .help = "Factor of the schedule"},
    {KEY(train.milestones, WIDTHS),
     .count_offset = offsetof(struct kelp_job, train.milestone_count), .max = UINT32_MAX,
     .default_text = "[]", WITH_SCHEDULE(SCHEDULE_MULTI),
     .help = "Units at which the rate is multiplied by train.gamma, ascending"},
    {KEY(train.schedule_total, U32), .max = UINT32_MAX, .default_text = "0",
     WITH_SCHEDULE(SCHEDULE_COSINE | SCHEDULE_LINEAR),
     .help = "Units until the rate has reached its end; in `cosine_restarts`, the first period. 0: "
             "the whole run, which then cannot get more epochs later"},
    {KEY(train.restart_factor, U32), WITHIN(1, 1000), .default_text = "1",
     WITH_SCHEDULE(SCHEDULE_RESTARTS), .help = "Each period is N times as long as the one before"},
    {KEY(train.lr_min, DOUBLE), .number_max = 1000, .default_text = "0",
     WITH_SCHEDULE(SCHEDULE_COSINE | SCHEDULE_PLATEAU), .help = "Smallest learning rate"},
    {KEY(train.start_factor, DOUBLE), .number_max = 1, .default_text = "0.333333333333333",
     WITH_SCHEDULE(SCHEDULE_LINEAR), .help = "Fraction of the rate at the start"},
    {KEY(train.warmup, U32), .max = UINT32_MAX, .default_text = "0",
     WITH_SCHEDULE(~(SCHEDULE_LINEAR | SCHEDULE_PLATEAU)),
     .help =
         "Units over which the rate grows linearly to the schedule's rate. Unit k of n, from 0, "
         "has (k + 1) / (n + 1) of it. `cosine` and `cosine_restarts` begin after the warm-up"},
    {KEY(train.plateau_patience, U32), .max = UINT32_MAX, .default_text = "10",
     WITH_SCHEDULE(SCHEDULE_PLATEAU),
     .help = "Evaluations without improvement before the rate is lowered"},
    {KEY(train.plateau_factor, DOUBLE), .number_max = BELOW_ONE, .default_text = "0.1",
     WITH_SCHEDULE(SCHEDULE_PLATEAU), .help = "Factor by which the rate is multiplied, below 1"},
    {KEY(train.plateau_threshold, DOUBLE), .number_max = 1, .default_text = "0.0001",
     WITH_SCHEDULE(SCHEDULE_PLATEAU),
     .help = "Better means better by more than this fraction of the best"},
    {KEY(train.evaluate, BOOL), .default_text = "true",
     .help = "Measure the validation and test splits"},
    {KEY(train.evaluate_epochs, U32), .max = 1000000, .default_text = "1",
     .help =
         "Measure after every N epochs. 0: not by epochs. The end of training is always measured"},
    {KEY(train.evaluate_steps, U32), .max = UINT32_MAX, .default_text = "0",
     .help = "Measure after every N training steps. 0: not by steps"},
    {KEY(train.monitor, CHOICE), .choices = monitors,
     .sum_offset = offsetof(struct kelp_job, train.monitor_sum), .default_text = "val/loss",
     .help = "Metric that decides which evaluation is the best so far. Early stopping and the "
             "`plateau` schedule use it. `val/NAME`: a sum of model.sums"},
    {KEY(train.precision, CHOICE), .choices = product_precisions, .later = true,
     .default_text = "float32",
     .help = "Type to which matrix products and convolutions on a GPU round their operands: `tf32` "
             "has 11 significant bits, `bfloat16` 8; tensor cores are several times faster with "
             "them. Sums, all other operators, weights and gradients stay `float32`. The CPU "
             "computes only `float32`"},
    {KEY(train.patience, U32), .max = UINT32_MAX, .default_text = "0",
     .help = "Stop training after N evaluations without improvement. 0: never"},
    {KEY(train.min_delta, DOUBLE), .number_max = 1e30, .default_text = "0",
     .help = "For train.patience, an improvement is a change for the better by more than this"},

    {KEY(cluster.workers, RANGE), WITHIN(1, 1024), .change = KELP_JOB_CHANGES,
     .default_text = "2:2",
     .help = "`MIN:MAX` worker processes, or `N`. Training starts once MIN have joined. With MIN "
             "below MAX, it waits while there are fewer than MIN. It changes no result"},
    {KEY(cluster.shards, U32), WITHIN(1, 1024), .change = KELP_JOB_CHANGES, .default_text = "1",
     .help = "Parameter-server processes. It changes no result"},
    {KEY(cluster.max_shards, U32), WITHIN(1, 1024), .default_text = "4",
     .help = "The most shards that the job may ever have. It determines into how many partitions "
             "the weights are cut"},
    {KEY(cluster.lanes, U32), WITHIN(1, KELP_JOB_LANES_MAX), .default_text = "8",
     .help = "Lanes into which each batch is cut, a power of two. No more workers than this can "
             "work at once"},
    {KEY(cluster.lane_threads, U32), WITHIN(1, 256), .default_text = "1",
     .help = "Threads that compute one lane"},
    {KEY(cluster.device, CHOICE), .choices = device_kinds, .default_text = "cpu",
     .help = "Device on which workers compute. `cuda`: a GPU for each worker (--gpus); "
             "workers of a job need GPUs of one kind. Shards compute on the CPU"},
    {KEY(cluster.streams, U32), WITHIN(0, 8), .change = KELP_JOB_CHANGES, .later = true,
     .default_text = "0",
     .help = "With `device: cuda`, lanes that a worker computes at the same time, each on its own "
             "stream of the GPU and in its own memory. 0: 2 if lanes take little memory, as with "
             "models too small to fill a GPU, otherwise 1. It changes no result"},
    {KEY(cluster.compute, CHOICE), .choices = computes, .later = true, .default_text = "native",
     .help = "`native`: as fast as the processor can; another kind of processor may give different "
             "bits. `portable`: the same bits on every processor with AVX2 and FMA "
             "(x86-64-v3) and the same OpenBLAS, whatever the environment says"},
    {KEY(cluster.cudnn, CHOICE), .choices = cudnns, .later = true, .default_text = "auto",
     .help = "Whether cuDNN 9 computes convolutions on a GPU, with its deterministic algorithms "
             "only. `auto`: on machines that have it; workers of a job must agree. `always`: a "
             "worker without it is an error. `never`: Kelp's own kernels, so that machines with "
             "and without it share a job"},
    {KEY(cluster.mixed, BOOL), .default_text = "false",
     .help = "Accept workers of another compute kind, and shards that compute differently. Runs "
             "then need not end with the same bits"},
    {KEY(cluster.replicas, U32), WITHIN(1, 2), .change = KELP_JOB_CHANGES, .later = true,
     .default_text = "1",
     .help = "Shards that keep each partition, in different zones where shards name them. With 2, "
             "the job goes on at once when a shard is lost. It changes no result"},
    {KEY(cluster.move_rate, SIZE), WITHIN(64 << 10, 1 << 30), .change = KELP_JOB_CHANGES,
     .later = true, .default_text = "64MiB",
     .help = "Bytes a second that each shard may send to move its partitions to other shards. A "
             "higher rate takes less time, and slows training more"},

    {KEY(transport.kind, CHOICE), .choices = transports, .change = KELP_JOB_CHANGES, .later = true,
     .default_text = "auto",
     .help = "How workers, shards and their backups exchange gradients and weights. `shm`: "
             "through shared memory, for which all of them must be on one host; otherwise the job "
             "ends. `auto`: through shared memory if both are on one host, otherwise by gRPC. It "
             "changes no result"},
    {KEY(transport.precision, CHOICE), .choices = precisions, .later = true,
     .default_text = "float32",
     .help = "Type in which gradients are sent. `bfloat16`: half the bytes, with 8 significant "
             "bits. The "
             "gradient of each lane and each sum of two is rounded, wherever it is computed, so "
             "the result does not depend on the cluster; but it differs from the result with "
             "`float32`. Running statistics of batch norm are sent with gradients. Weights stay "
             "`float32`"},
    {KEY_AT("transport.piece", transport.piece_bytes, SIZE), WITHIN(4096, 64 << 20),
     .change = KELP_JOB_CHANGES, .default_text = "4MiB",
     .help = "The most tensor bytes in one message"},
    {KEY(transport.streams, U32), WITHIN(1, KELP_JOB_STREAMS_MAX), .change = KELP_JOB_CHANGES,
     .later = true, .default_text = "1",
     .help = "Connections between a worker and a shard, which share the shard's partitions. With "
             "more than one, each has a thread at the worker, and the shard serves with as many "
             "threads: for networks that one core cannot saturate. It changes no result"},
    {KEY_AT("transport.connect_timeout", transport.connect_timeout_ms, DURATION),
     WITHIN(100, 600000), .change = KELP_JOB_CHANGES, .default_text = "5s",
     .help = "How long to wait for the first answer of a peer"},

    {KEY_AT("failure.detect", failure.detect_ms, DURATION), WITHIN(100, 600000),
     .change = KELP_JOB_CHANGES, .default_text = "1s",
     .help = "Silence after which a process counts as lost"},
    {KEY_AT("failure.shard_wait", failure.shard_wait_ms, DURATION), WITHIN(1000, 3600000),
     .change = KELP_JOB_CHANGES, .default_text = "2s",
     .help = "How long to wait for a lost shard before its partitions move"},
    {KEY(failure.max_failures, I32), .max = 1000000, .change = KELP_JOB_CHANGES,
     .default_text = "100",
     .help = "Restarts of child processes within failure.window before the launcher gives up. -1: "
             "any number"},
    {KEY_AT("failure.window", failure.window_ms, DURATION), .max = 86400000,
     .change = KELP_JOB_CHANGES, .default_text = "60m",
     .help = "Time in which failure.max_failures count. 0s: the whole run"},
    {KEY_AT("failure.restart_backoff", failure.restart_backoff_ms, DURATION), WITHIN(10, 600000),
     .change = KELP_JOB_CHANGES, .default_text = "500ms",
     .help = "Pause before a child that keeps dying is restarted, doubled each time. The first "
             "restart is immediate"},
    {KEY_AT("failure.storage_wait", failure.storage_wait_ms, DURATION), .max = 604800000,
     .change = KELP_JOB_CHANGES, .default_text = "0s",
     .help = "How long a restore waits for storage that is not there yet before the job fails. 0s: "
             "without limit"},
    {KEY(failure.on_nan, CHOICE), .choices = nan_policies, .change = KELP_JOB_CHANGES,
     .default_text = "stop",
     .help = "What to do with a gradient that is not finite. `stop`: the job fails. `skip`: the "
             "step is skipped. It counts, and the weights stay as they are. But the job fails if, "
             "at the end of an epoch, more of its steps were skipped than applied"},
    {KEY(failure.on_conflict, CHOICE), .later = true, .choices = conflict_policies,
     .change = KELP_JOB_CHANGES, .default_text = "stop",
     .help = "What to do when two workers push different results for the same lanes, which correct "
             "workers never do. `stop`: the job fails and names both. `first`: the first result "
             "counts, with a warning. With cluster.mixed nothing is compared"},

    {KEY(checkpoint.digest_steps, U32), .max = UINT32_MAX, .default_text = "0",
     .help = "Record the model's digest every N steps. 0: only at the ends of epochs"},
    {KEY(checkpoint.steps, U32), .max = UINT32_MAX, .change = KELP_JOB_CHANGES, .default_text = "0",
     .help = "Write a checkpoint at steps that are a multiple of this. While a checkpoint is being "
             "written, the next one waits for the next multiple. 0: not by steps"},
    {KEY_AT("checkpoint.interval", checkpoint.interval_ms, DURATION), .max = 604800000,
     .change = KELP_JOB_CHANGES, .default_text = "1m",
     .help = "Write a checkpoint this long after the previous one, the first one after at most "
             "10s. At most this much training is recomputed when a shard is lost. 0s: not by time"},
    {KEY(checkpoint.epochs, U32), .max = 1000000, .change = KELP_JOB_CHANGES, .default_text = "0",
     .help = "Write a checkpoint at the end of every N epochs. 0: not by epochs"},
    {KEY(checkpoint.at_end, BOOL), .change = KELP_JOB_CHANGES, .default_text = "true",
     .help = "Write a checkpoint of the final state"},
    {KEY(checkpoint.keep_last, U32), WITHIN(1, KELP_CHECKPOINT_KEEP_MAX),
     .change = KELP_JOB_CHANGES, .default_text = "2",
     .help = "How many of the newest checkpoints are kept"},
    {KEY(checkpoint.keep_best, U32), .max = KELP_CHECKPOINT_KEEP_MAX, .change = KELP_JOB_CHANGES,
     .default_text = "0",
     .help = "How many of the best checkpoints by checkpoint.metric are kept in addition to the "
             "newest. "
             "Only steps that were evaluated count"},
    {KEY(checkpoint.metric, CHOICE), .choices = checkpoint_metrics,
     .sum_offset = offsetof(struct kelp_job, checkpoint.metric_sum), .change = KELP_JOB_CHANGES,
     .default_text = "val/mse",
     .help = "Metric that checkpoint.keep_best uses. `val/NAME`: a sum of model.sums. If "
             "model.kind is `program`, the default is `val/loss`"},
    {KEY(checkpoint.order, CHOICE), .choices = checkpoint_orders, .change = KELP_JOB_CHANGES,
     .default_text = "min",
     .help = "Whether a smaller (`min`) or a larger (`max`) value is better"},

    {KEY(metrics.every, U32), .max = UINT32_MAX, .default_text = "50",
     .help = "Write `train/step_loss`, the mean loss since the line before, to `metrics.jsonl` "
             "every N steps. 0: only `train/loss` at the ends of epochs. After 262144 lines they "
             "come half as often, and again whenever the steps have doubled"},
    {KEY(metrics.tensorboard, BOOL), .change = KELP_JOB_CHANGES, .default_text = "false",
     .help = "Write what `metrics.jsonl` gets also as an event file for TensorBoard, "
             "`events.out.tfevents.…` in the run's folder"},
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
