/*
 * Keys of a job file: defaults, values, and each mistake.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cores/job_bench.h"
#include "tests/lib/suite.h"

KELP_CASE("job", .setup = job_setup, .teardown = job_teardown)

/* Beside the two kinds, defaults are a job that runs: a constant rate, Adam. */
KELP_TEST(test_defaults)
{
    const struct kelp_job *job = kelp_job_file_job(job_bench.file);

    ck_assert_msg(kelp_job_file_finish(job_bench.file, &job_bench.error) == KELP_OK, "%s",
                  job_bench.error.text);
    ck_assert_str_eq(job->name, "job");
    ck_assert_int_eq(job->data.kind, KELP_DATA_SYNTHETIC);
    ck_assert_uint_eq(job->data.split[0], 8640);
    ck_assert_uint_eq(job->data.split[2], 2880);
    ck_assert_str_eq(job->data.target, "OT");
    ck_assert_int_eq(job->model.kind, KELP_MODEL_DLINEAR);
    ck_assert_uint_eq(job->model.kernel_size, 25);
    ck_assert_int_eq(job->train.optimizer, KELP_OPTIMIZER_ADAM);
    ck_assert_double_eq(job->train.lr, 0.005);
    ck_assert_double_eq(job->train.beta2, 0.999);
    ck_assert_double_eq(job->train.eps, 0);
    ck_assert_int_eq(job->train.schedule, KELP_SCHEDULE_CONSTANT);
    ck_assert_uint_eq(job->train.batch_size, 32);
    ck_assert_uint_eq(job->cluster.lanes, 8);
    ck_assert_uint_eq(job->cluster.workers.min, 2);
    ck_assert_uint_eq(job->cluster.workers.max, 2);
    ck_assert_uint_eq(job->failure.detect_ms, 1000);
    ck_assert_int_eq(job->transport.kind, KELP_TRANSPORT_AUTO);
    ck_assert_int_eq(job->transport.precision, KELP_PRECISION_FLOAT32);
    ck_assert_uint_eq(job->transport.piece_bytes, 4u << 20);
    ck_assert(job->train.evaluate);
    ck_assert(job->data.shuffle);
}

/* Values of each type arrive in their field. */
KELP_TEST(test_values)
{
    const struct kelp_job *job = kelp_job_file_job(job_bench.file);

    ck_assert_msg(
        job_parse("name: etth1-mlp\n"
                  "seed: 18446744073709551615\n"
                  "model:\n  kind: mlp\n  hidden: [15, 7]\n  init: \"weights \\\"x\\\".bin\"\n"
                  "data: {kind: csv, path: /data/ETTh1.csv, features: M, split: [500, 0, 200]}\n"
                  "train:\n  optimizer: sgd\n  momentum: 0.9\n  nesterov: true\n  lr: 1e-2\n"
                  "cluster:\n  workers: 2:8\n  shards: 3\n"
                  "transport:\n  kind: shm\n  precision: bfloat16\n  piece: 64KiB\n"
                  "failure:\n  detect: 250ms\n  max_failures: -1\n") == KELP_OK,
        "%s", job_bench.error.text);
    ck_assert_str_eq(job->name, "etth1-mlp");
    ck_assert_uint_eq(job->seed, UINT64_MAX);
    ck_assert_uint_eq(job->model.hidden_count, 2);
    ck_assert_uint_eq(job->model.hidden[1], 7);
    ck_assert_str_eq(job->model.init, "weights \"x\".bin");
    ck_assert_int_eq(job->data.features, KELP_FEATURES_M);
    ck_assert_uint_eq(job->data.split[1], 0);
    ck_assert(job->train.nesterov);
    ck_assert_double_eq(job->train.lr, 0.01);
    ck_assert_uint_eq(job->cluster.workers.max, 8);
    ck_assert_int_eq(job->transport.kind, KELP_TRANSPORT_SHM);
    ck_assert_int_eq(job->transport.precision, KELP_PRECISION_BFLOAT16);
    ck_assert_uint_eq(job->transport.piece_bytes, 65536);
    ck_assert_uint_eq(job->failure.detect_ms, 250);
    ck_assert_int_eq(job->failure.max_failures, -1);
}

static const struct {
    const char *text;
    const char *expected;
} kinds[] = {
    {"name: a\n",
     "job.yaml: model.kind: is not set, and has no default; write for example \"model: "
     "{kind: mlp}\" (one of mlp, dlinear, nlinear, fare, convnet, resnet18, deepfm, "
     "tft, plugin, program)"},
    {"model: {kind: mlp}\n",
     "job.yaml: data.kind: is not set, and has no default; write for example \"data: {kind: csv, "
     "path: FILE.csv}\" (one of csv, synthetic, tensors, table, panel, idx, npy, binary, "
     "program)"},
    {"model: {plugin: x.so}\n",
     "job.yaml: data.kind: is not set, and has no default; write for example \"data: {kind: csv, "
     "path: FILE.csv}\" (one of csv, synthetic, tensors, table, panel, idx, npy, binary, "
     "program)"},
    {"model: {program: /x, python: /y.py}\n",
     "job.yaml:1: model.program: does not go with model.python; set one of them"},
    {"model: {kind: program}\n",
     "model.program: is empty; model.kind program needs it, or model.python"},
    {"model: {kind: mlp, program: /x}\ndata: {kind: synthetic}\n",
     "job.yaml:1: model.program: does not apply with model.kind mlp; it goes with program"},
    {"model: {program: /x}\ndata: {kind: synthetic}\n",
     "job.yaml:2: data.kind: synthetic does not go with model.kind program, which has the data "
     "itself; omit data.kind"},
    {"model: {kind: mlp}\ndata: {kind: program}\n",
     "job.yaml:2: data.kind: program is only for model.kind program"},
    {"model: {python: /x.py}\ndata: {path: /y.csv}\n",
     "job.yaml:2: data.path: does not apply with data.kind program; it goes with csv or tensors or "
     "table or panel or idx or npy or binary"},
    {"model: {python: /x.py}\ntrain: {loss: mae}\n",
     "job.yaml:2: train.loss: does not apply with model.kind program; it goes with mlp or dlinear "
     "or nlinear or fare or convnet or resnet18 or deepfm or tft or plugin"},
    {"model: {python: /x.py, sums: [loss]}\n",
     "job.yaml:1: model.sums: loss is a built-in metric; choose another name"},
    {"model: {python: /x.py, sums: [a=most]}\n", "job.yaml:1: model.sums: 'a=most' is not a sum: "
                                                 "NAME, NAME=max or NAME=min, with a name of 1 to "
                                                 "23 "
                                                 "letters, digits, '-', '_' or '.'"},
    {"model: {python: /x.py, sums: [a, b=min, a=max]}\n",
     "job.yaml:1: model.sums: a is there twice"},
    {"model: {python: /x.py, sums: [a, b, c, d, e, f, g]}\n",
     "job.yaml:1: model.sums: has more than 6 names"},
    {"model: {python: /x.py, sums: [a]}\ntrain: {monitor: val/b}\n",
     "job.yaml:2: train.monitor: 'val/b' is not one of val/loss, val/mse, val/mae, val/accuracy, "
     "val/auc; did you mean val/mse?; model.sums names others"},
    {"model: {python: /x.py, sums: [a=min]}\n"
     "checkpoint: {keep_best: 1, metric: val/a, order: max}\n",
     "job.yaml:2: checkpoint.order: a smaller value of checkpoint.metric is better: set it to "
     "min"},
    {"model: {kind: mlp, sums: [a]}\ndata: {kind: synthetic}\n",
     "job.yaml:1: model.sums: does not apply with model.kind mlp; it goes with program"},
    {"model: {python: /x.py}\nrun: {mode: predict}\n",
     "job.yaml:2: run.mode: predict and evaluate need trained weights; name their file in "
     "model.init"},
    {"model: {python: /x.py}\ncluster: {compute: portable}\n",
     "job.yaml:2: cluster.compute: portable is a promise of Kelp's own operators, which a program "
     "(model.program, model.python) cannot give"},
    {"model: {python: /x.py}\ntrain: {monitor: val/auc}\n",
     "job.yaml:2: train.monitor: val/auc is for Kelp's own models; a program's sums give val/loss, "
     "val/mse, val/mae or val/accuracy"},
    {"model: {python: /x.py}\ncheckpoint: {keep_best: 1, metric: val/auc, order: max}\n",
     "job.yaml:2: checkpoint.metric: val/auc is for Kelp's own models; a program's sums give "
     "val/loss, val/mse, val/mae or val/accuracy"},
};

/* No model and no data are chosen for somebody who named none; a plug-in and a program name their
 * kinds, and a program goes with none of what it has itself. */
KELP_LOOP_TEST(test_kinds, 0, KELP_ARRAY_COUNT(kinds))
{
    kelp_job_file_destroy(job_bench.file);
    job_bench.file = kelp_job_file_create();
    ck_assert_int_eq(job_parse(kinds[_i].text), KELP_ERR_INVALID);
    ck_assert_str_eq(job_bench.error.text, kinds[_i].expected);
}

/* A job that names its program needs no more, and says which metric is best: the one that every
 * program gives. */
KELP_TEST(test_program)
{
    const struct kelp_job *job;

    kelp_job_file_destroy(job_bench.file);
    job_bench.file = kelp_job_file_create();
    ck_assert_msg(job_parse("model: {python: /x.py, arguments: [--lr, \"a, b\"]}\n"
                            "checkpoint: {keep_best: 1}\n") == KELP_OK,
                  "%s", job_bench.error.text);
    job = kelp_job_file_job(job_bench.file);
    ck_assert_int_eq(job->model.kind, KELP_MODEL_PROGRAM);
    ck_assert_int_eq(job->data.kind, KELP_DATA_PROGRAM);
    ck_assert_str_eq(job->model.arguments, "--lr\na, b");
    ck_assert_int_eq(job->checkpoint.metric, KELP_CHECKPOINT_VAL_LOSS);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "model.sums", "[top5, far=min]", KELP_ORIGIN_FLAG, NULL),
        KELP_OK);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "train.monitor", "val/far", KELP_ORIGIN_FLAG, NULL),
        KELP_OK);
    ck_assert_int_eq(kelp_job_file_finish(job_bench.file, NULL), KELP_OK);
    char *text = job_print(false);
    ck_assert_ptr_nonnull(strstr(text, "  kind: program\n  program: \"\"\n"));
    ck_assert_ptr_nonnull(strstr(text, "  arguments: [\"--lr\", \"a, b\"]\n"));
    ck_assert_ptr_null(strstr(text, "  loss: "));
    ck_assert_ptr_nonnull(strstr(text, "  monitor: val/far\n"));
    free(text);
}

static const struct {
    const char *text;
    const char *expected;
} mistakes[] = {
    {"train:\n  batchsize: 3\n",
     "job.yaml:2: train.batchsize: unknown key; did you mean train.batch_size?"},
    {"train:\n  zebra: 3\n",
     "job.yaml:2: train.zebra: unknown key; allowed in train are epochs, batch_size, drop_last, "
     "batches_per_epoch, max_steps, accumulate, loss, loss_beta, label_smoothing, quantiles, "
     "optimizer, lr, momentum, "
     "dampening, nesterov, weight_decay, decay_exclude, beta1, beta2, amsgrad, alpha, centered, "
     "rho, lr_decay, initial_accumulator, eps, clip_norm, schedule, schedule_unit, schedule_step, "
     "gamma, milestones, … (kelp explain lists all)"},
    {"zebra: 3\n", "job.yaml:1: zebra: unknown key; allowed are name, seed, run, model, data, "
                   "train, cluster, transport, failure, checkpoint, metrics"},
    {"lr: 3\n", "job.yaml:1: lr: unknown key; did you mean train.lr?"},
    {"kind: mlp\n",
     "job.yaml:1: kind: unknown key; did you mean model.kind or data.kind or transport.kind?"},
    {"epoch: 3\n",
     "job.yaml:1: epoch: unknown key; did you mean train.epochs or checkpoint.epochs?"},
    {"model:\n  lr: 3\n", "job.yaml:2: model.lr: unknown key; did you mean train.lr?"},
    {"train:\n  Learning-Rate: 3\n",
     "job.yaml:2: train.Learning-Rate: unknown key; did you mean train.lr?"},
    {"train:\n  seed: 3\n", "job.yaml:2: train.seed: unknown key; did you mean seed?"},
    {"train:\n  epochs: 1e1\n",
     "job.yaml:2: train.epochs: '1e1' is not an integer from 1 to 1000000; did you mean 10?"},
    {"train:\n  lr: 0,1\n",
     "job.yaml:2: train.lr: '0,1' is not a number from 0 to 1000; did you mean 0.1?"},
    {"train:\n  loss: MSE\n",
     "job.yaml:2: train.loss: 'MSE' is not one of mse, mae, smooth_l1, huber, cross_entropy, nll, "
     "bce, bce_with_logits, quantile; did you mean mse?"},
    {"failure:\n  detect: 2 min\n",
     "job.yaml:2: failure.detect: '2 min' is not a duration from 100ms to 10m (a whole number with "
     "ms, s, m or h); did you mean 2m?"},
    {"cluster:\n  workers: 2-8\n", "job.yaml:2: cluster.workers: '2-8' is not a number or MIN:MAX "
                                   "from 1 to 1024; did you mean 2:8?"},
    {"trian:\n  lr: 3\n", "job.yaml:1: trian: unknown key; did you mean train?"},
    {"train:\n  lr: 0.1\n\n  lr: 0.2\n", "job.yaml:4: train.lr: given twice"},
    {"train:\n  lr: 0.1\ndata:\n  rows: 20000\ntrain:\n  epochs: 2\n",
     "job.yaml:5: train: given twice"},
    {"train.lr: 0.1\n",
     "job.yaml:1: train.lr: write the section and the key as two levels, the key indented"},
    {"train: 5\n", "job.yaml:1: train: is a section; its keys must be indented below it"},
    {"name:\n  x: 5\n", "job.yaml:2: name: is a section; the key takes a value"},
    {"train:\n  lr: fast\n", "job.yaml:2: train.lr: 'fast' is not a number from 0 to 1000"},
    {"train:\n  lr: -1\n", "job.yaml:2: train.lr: '-1' is not a number from 0 to 1000"},
    {"train:\n  lr: .nan\n", "job.yaml:2: train.lr: '.nan' is not a number from 0 to 1000"},
    {"train:\n  lr:\n", "job.yaml:2: train.lr: has no value (an empty text is written \"\")"},
    {"train:\n  lr: ~\n", "job.yaml:2: train.lr: has no value (an empty text is written \"\")"},
    {"train:\n  beta1: 1\n",
     "job.yaml:2: train.beta1: '1' is not a number from 0 to 0.9999999999999999"},
    {"train:\n  epochs: 0\n", "job.yaml:2: train.epochs: '0' is not an integer from 1 to 1000000"},
    {"train:\n  optimizer: adam2\n",
     "job.yaml:2: train.optimizer: 'adam2' is not one of sgd, adam, adamw, adagrad, rmsprop, "
     "adadelta, lamb; did you mean adam?"},
    {"train:\n  drop_last: yes\n",
     "job.yaml:2: train.drop_last: 'yes' is not true or false; did you mean true?"},
    {"failure:\n  detect: 5\n", "job.yaml:2: failure.detect: '5' is not a duration from 100ms to "
                                "10m (a whole number with ms, s, m or h)"},
    {"transport:\n  kind: tcp\n",
     "job.yaml:2: transport.kind: 'tcp' is not one of auto, grpc, shm"},
    {"transport:\n  precision: float16\n",
     "job.yaml:2: transport.precision: 'float16' is not one of float32, bfloat16; did you mean "
     "bfloat16?"},
    {"train:\n  precision: half\ncluster:\n  device: cuda\n",
     "job.yaml:2: train.precision: 'half' is not one of float32, tf32, bfloat16"},
    {"train:\n  precision: tf32\n",
     "job.yaml:2: train.precision: the CPU computes products in float32 only; tf32 needs "
     "cluster.device: cuda"},
    {"train:\n  precision: bfloat16\n",
     "job.yaml:2: train.precision: the CPU computes products in float32 only; bfloat16 needs "
     "cluster.device: cuda"},
    {"cluster:\n  cudnn: sometimes\n",
     "job.yaml:2: cluster.cudnn: 'sometimes' is not one of auto, always, never"},
    {"cluster:\n  cudnn: always\n",
     "job.yaml:2: cluster.cudnn: always is for GPUs; it needs cluster.device: cuda"},
    {"transport:\n  piece: 4MB\n",
     "job.yaml:2: transport.piece: '4MB' is not a size from 4KiB to "
     "64MiB (a whole number with B, KiB, MiB or GiB); did you mean 4MiB?"},
    {"cluster:\n  workers: 8:2\n", "job.yaml:2: cluster.workers: '8:2': MIN is larger than MAX; "
                                   "did you mean 2:8?"},
    {"cluster:\n  lanes: 6\n", "job.yaml:2: cluster.lanes: 6 is not a power of two"},
    {"cluster:\n  shards: 5\n", "job.yaml:2: cluster.shards: 5 is over cluster.max_shards (4)"},
    {"cluster:\n  replicas: 2\n",
     "job.yaml:2: cluster.replicas: 2 replicas need as many shards, and cluster.shards is 1"},
    {"cluster:\n  replicas: 3\n",
     "job.yaml:2: cluster.replicas: '3' is not an integer from 1 to 2"},
    {"cluster:\n  move_rate: 0B\n",
     "job.yaml:2: cluster.move_rate: '0B' is not a size from 64KiB to 1GiB (a whole number with B, "
     "KiB, MiB or GiB)"},
    {"model:\n  kernel_size: 24\n", "job.yaml:2: model.kernel_size: 24 is even; it must be odd"},
    {"model:\n  kind: mlp\n  kernel_size: 25\n",
     "job.yaml:3: model.kernel_size: does not apply with model.kind mlp; it goes with dlinear"},
    {"train:\n  momentum: 0.9\n", "job.yaml:2: train.momentum: does not apply with "
                                  "train.optimizer adam; it goes with sgd or rmsprop"},
    {"data:\n  path: x.csv\n", "job.yaml:2: data.path: does not apply with data.kind synthetic; "
                               "it goes with csv or tensors or table or panel or idx or npy or "
                               "binary"},
    {"data:\n  kind: table\n  path: x\n  derive: [\"a = min(b, c)\", {x: 1}]\n",
     "job.yaml:4: data.derive: an entry of the list is not a text, or too long"},
    {"train:\n  loss: quantile\n  quantiles: [0.1, high]\n",
     "job.yaml:3: train.quantiles: an entry of the list is not a number"},
    {"train:\n  loss: quantile\n  quantiles: [0.1, 2]\n",
     "job.yaml:3: train.quantiles: '2' is not a number from 0 to 1"},
    {"model:\n  kind: mlp\ntrain:\n  loss: quantile\n  quantiles: [0.1, 0.9, 0.5]\n",
     "job.yaml:5: train.quantiles: 0.5 after 0.9; they must ascend"},
    {"model:\n  kind: mlp\ntrain:\n  loss: quantile\n  quantiles: []\n",
     "job.yaml:5: train.quantiles: is empty; name the quantiles to forecast, such as [0.1, 0.5, "
     "0.9]"},
    {"run:\n  mode: evaluate\n", "job.yaml:2: run.mode: predict and evaluate need trained weights; "
                                 "name their file in model.init"},
    {"model:\n  init_map: [a=b]\n", "job.yaml:2: model.init_map: needs model.init, which is empty"},
    {"model:\n  init: x\n  init_map: [encoder.]\n",
     "job.yaml:3: model.init_map: 'encoder.' is not OLD=NEW: a name's beginning in the file and in "
     "the model, or whole names with one * on each side"},
    {"train:\n  loss: huber\n  loss_beta: 0\n",
     "job.yaml:3: train.loss_beta: 0 makes every huber loss 0; it must be above 0"},
    {"model:\n  kind: tft\n  d_model: 10\ntrain:\n  loss: quantile\n",
     "model.heads: 4 does not divide model.d_model (10)"},
    {"model:\n  kind: convnet\n  dropout: [0.1]\ntrain:\n  loss: nll\n",
     "job.yaml:3: model.dropout: has 1 numbers; the model has two layers: give 2, or none"},
    {"model:\n  kind: deepfm\n  hidden: [8, 4, 2]\n  dropout: [0.1, 0.1]\n",
     "job.yaml:4: model.dropout: has 2 numbers; the model has one for each of model.hidden: give "
     "3, or none"},
    {"model:\n  kind: resnet18\ntrain:\n  loss: nll\n",
     "job.yaml:4: train.loss: nll does not fit model.kind resnet18; it takes cross_entropy"},
    {"model:\n  kind: fare\ntrain:\n  loss: bce_with_logits\n",
     "job.yaml:4: train.loss: bce_with_logits does not fit model.kind fare; it takes smooth_l1, "
     "huber, mse, mae or bce"},
    {"train:\n  loss: quantile\n",
     "job.yaml:2: train.loss: quantile does not fit model.kind dlinear; it takes mse, mae, "
     "smooth_l1 or huber"},
    {"data:\n  kind: csv\n", "data.path: is empty; data.kind csv needs a file"},
    {"data:\n  split: [100, 0, 0]\n",
     "job.yaml:2: data.split: the training split has 100 rows, but one window takes 192 "
     "(data.seq_len + data.pred_len)"},
    {"data:\n  split: [1000, 95, 0]\n", "job.yaml:2: data.split: the validation split has 95 rows; "
                                        "it needs 0, or at least 96 (data.pred_len)"},
    {"data:\n  split: [1000, 0]\n", "job.yaml:2: data.split: 2 entries, not 3: rows of the "
                                    "training, validation and test split"},
    {"data:\n  split: [1000, a, 0]\n",
     "job.yaml:2: data.split: an entry of the list is not an integer"},
    {"data:\n  rows: 14399\n", "data.split: the splits have 14400 rows, over data.rows (14399)"},
    {"train:\n  batch_size: 9000\n  drop_last: true\n",
     "job.yaml:2: train.batch_size: an epoch has 8449 samples, fewer than one batch of 9000, and "
     "train.drop_last drops an incomplete batch"},
    {"train:\n  optimizer: lamb\n  clip_norm: 1\n",
     "job.yaml:3: train.clip_norm: does not go with lamb, which scales each tensor's update "
     "itself; leave it at 0"},
    {"train:\n  optimizer: sgd\n  amsgrad: true\n",
     "job.yaml:3: train.amsgrad: does not apply with train.optimizer sgd; it goes with adam or "
     "adamw"},
    {"train:\n  optimizer: sgd\n  nesterov: true\n",
     "job.yaml:3: train.nesterov: needs train.momentum above 0 and train.dampening 0"},
    {"train:\n  schedule: multistep\n  milestones: [3, 3]\n",
     "job.yaml:3: train.milestones: 3 after 3; they must ascend"},
    {"train:\n  schedule: cosine\n  lr_min: 0.1\n",
     "job.yaml:3: train.lr_min: 0.1 is over train.lr (0.005)"},
    {"train:\n  schedule: cosine\n  schedule_total: 4\n  warmup: 4\n",
     "job.yaml:4: train.warmup: 4 leaves no steps of train.schedule_total (4)"},
    {"train:\n  schedule: plateau\n  evaluate: false\n",
     "job.yaml:2: train.schedule: plateau follows evaluations; it needs train.evaluate with "
     "train.evaluate_epochs or train.evaluate_steps"},
    {"train:\n  patience: 3\n  evaluate_epochs: 0\n",
     "job.yaml:2: train.patience: counts evaluations; it needs train.evaluate with "
     "train.evaluate_epochs or train.evaluate_steps"},
    {"model:\n  kind: convnet\ntrain:\n  loss: nll\n  monitor: val/mse\n",
     "job.yaml:5: train.monitor: train.loss compares classes; use val/loss, val/accuracy or "
     "val/auc"},
    {"model:\n  kind: convnet\ntrain:\n  loss: nll\ncheckpoint:\n  keep_best: 1\n",
     "checkpoint.metric: train.loss compares classes; with checkpoint.keep_best use val/loss, "
     "val/accuracy or val/auc"},
    {"train:\n  monitor: val/accuracy\n",
     "job.yaml:2: train.monitor: train.loss compares numbers; use val/loss, val/mse or val/mae"},
    {"checkpoint:\n  keep_best: 1\n  metric: val/auc\n",
     "job.yaml:3: checkpoint.metric: train.loss compares numbers; with checkpoint.keep_best use "
     "val/loss, val/mse or val/mae"},
    {"model:\n  kind: convnet\ntrain:\n  loss: nll\ncheckpoint:\n  keep_best: 1\n  metric: "
     "val/accuracy\n",
     "checkpoint.order: a larger value of checkpoint.metric is better: set it to max"},
    {"name: a/b\n", "job.yaml:1: name: 'a/b' is not 1 to 63 letters, digits, '-', '_' or '.', the "
                    "first one a letter, digit or '_'"},
    {"name: ..\n", "job.yaml:1: name: '..' is not 1 to 63 letters, digits, '-', '_' or '.', the "
                   "first one a letter, digit or '_'"},
    {"data:\n  target: \"a\\nb\"\n", "job.yaml:2: data.target: byte 1 is not printable UTF-8 (line "
                                     "breaks and control characters are not allowed)"},
    {"data:\n  target: \"a\\0b\"\n", "job.yaml:2: data.target: not a single value"},
    {"", "job.yaml: holds no keys"},
    {"# nothing\n", "job.yaml: holds no keys"},
    {"- a\n", "job.yaml:1: is not a job: sections and keys are expected, such as name: …"},
    {"name: a\n---\nname: b\n", "job.yaml:3: a second document"},
    {"name: [a\n", "job.yaml:2: not YAML: did not find expected ',' or ']'"},
    {"name: a\n\tb: c\n", "job.yaml:2: is indented with a tab; YAML allows only spaces"},
    {"? [a, b]\n: c\n", "job.yaml:1: a key is not a single word"},
};

/* Each mistake is one line: file, line, key, what is wrong, what is allowed. */
KELP_LOOP_TEST(test_mistakes, 0, KELP_ARRAY_COUNT(mistakes))
{
    ck_assert_int_eq(job_parse(mistakes[_i].text), KELP_ERR_INVALID);
    ck_assert_str_eq(job_bench.error.text, mistakes[_i].expected);
    ck_assert_ptr_null(strchr(job_bench.error.text, '\n'));
}

/* Editors of another system begin a file with a byte order mark. */
KELP_TEST(test_byte_order_mark)
{
    ck_assert_msg(job_parse("\xef\xbb\xbfname: marked\nseed: 3\n") == KELP_OK, "%s",
                  job_bench.error.text);
    ck_assert_str_eq(kelp_job_file_job(job_bench.file)->name, "marked");
    ck_assert_int_eq(job_parse("\xef\xbb\xbf"), KELP_ERR_INVALID);
}

/* What YAML takes for true, and hours. */
KELP_TEST(test_natural_values)
{
    const struct kelp_job *job = kelp_job_file_job(job_bench.file);

    ck_assert_msg(job_parse("train: {drop_last: True, evaluate: FALSE}\nfailure: {window: 1h}\n") ==
                      KELP_OK,
                  "%s", job_bench.error.text);
    ck_assert(job->train.drop_last && !job->train.evaluate);
    ck_assert_uint_eq(job->failure.window_ms, 3600000);
    char *text = job_print(false);
    ck_assert_ptr_nonnull(strstr(text, "  window: 60m\n"));
    free(text);
}

/* A key, a section, all keys; an unknown one is told the nearest. Every key has its object. */
KELP_TEST(test_explain)
{
    char *text = NULL;

    ck_assert_int_eq(kelp_job_explain("train.epochs", false, &text, &job_bench.error), KELP_OK);
    ck_assert_ptr_eq(strstr(text, "train.epochs: integer 1 to 1000000; default 10\n"), text);
    ck_assert_ptr_nonnull(strstr(text, "\n    On resume: it may grow.\n"));
    free(text);
    ck_assert_int_eq(kelp_job_explain("model", false, &text, &job_bench.error), KELP_OK);
    ck_assert_ptr_eq(strstr(text, "model.kind: mlp, dlinear, "), text);
    ck_assert_ptr_nonnull(strstr(text, "program; required\n"));
    ck_assert_ptr_nonnull(strstr(text, "Only with model.kind"));
    ck_assert_ptr_null(strchr(text, '`'));
    free(text);
    ck_assert_int_eq(kelp_job_explain(NULL, true, &text, &job_bench.error), KELP_OK);
    cJSON *json = cJSON_Parse(text);
    ck_assert_msg(cJSON_GetArraySize(json) > 100, "%s", text);
    cJSON_Delete(json);
    free(text);
    ck_assert_int_eq(kelp_job_explain("lr", false, &text, &job_bench.error), KELP_ERR_INVALID);
    ck_assert_str_eq(job_bench.error.text, "unknown key; did you mean train.lr?");
}

/* A document that refers to itself, or is deep, or large, is refused and nothing worse. */
KELP_TEST(test_hostile)
{
    static char deep[60001], large[(64 << 10) + 2];

    ck_assert_int_eq(job_parse("name: &a [*a]\n"), KELP_ERR_INVALID);
    ck_assert_int_eq(job_parse("train: &a\n  lr: *a\n"), KELP_ERR_INVALID);
    memset(deep, '[', sizeof(deep) - 1);
    ck_assert_int_eq(job_parse(deep), KELP_ERR_LIMIT);
    memset(large, '#', sizeof(large) - 1);
    ck_assert_int_eq(job_parse(large), KELP_ERR_LIMIT);
}

/* A list of texts reads the same from a file, from --set and from its canonical print. */
KELP_TEST(test_texts)
{
    const struct kelp_job *job = kelp_job_file_job(job_bench.file);
    char *text = NULL;

    ck_assert_msg(
        job_parse("data:\n  kind: table\n  path: x.csv\n  columns: [a, b]\n  targets: [y]\n"
                  "  derive: [\"m = min(a, b)\", 'q = \"x\"']\n") == KELP_OK,
        "%s", job_bench.error.text);
    ck_assert_str_eq(job->data.columns, "a\nb");
    ck_assert_str_eq(job->data.derive, "m = min(a, b)\nq = \"x\"");
    ck_assert_int_eq(kelp_job_file_print(job_bench.file, false, &text, &job_bench.error), KELP_OK);
    ck_assert_ptr_nonnull(strstr(text, "  derive: [\"m = min(a, b)\", \"q = \\\"x\\\"\"]\n"));
    free(text);
    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "data.derive", "m = min(a, b), \"n = a,b\"",
                                       KELP_ORIGIN_FLAG, &job_bench.error),
                     KELP_OK);
    ck_assert_str_eq(job->data.derive, "m = min(a, b)\nn = a,b");
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "data.derive", "[]", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_OK);
    ck_assert_str_eq(job->data.derive, "");
    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "data.derive", "[a, , b]", KELP_ORIGIN_FLAG,
                                       &job_bench.error),
                     KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "data.derive", "[a,]", KELP_ORIGIN_FLAG,
                                       &job_bench.error),
                     KELP_ERR_INVALID);
}

/* docs/JOB.md is what the table says. KELP_UPDATE=1 writes it. */
KELP_TEST(test_reference)
{
    char path[512], *text, *on_file;
    const char *source = getenv("KELP_SOURCE");
    size_t bytes;

    (void)snprintf(path, sizeof(path), "%s/docs/JOB.md", source ? source : ".");
    ck_assert_int_eq(kelp_job_reference(&text), KELP_OK);
    if (getenv("KELP_UPDATE")) {
        FILE *out = fopen(path, "we");
        ck_assert_ptr_nonnull(out);
        ck_assert_int_ge(fputs(text, out), 0);
        ck_assert_int_eq(fclose(out), 0);
    }
    FILE *in = fopen(path, "re");
    ck_assert_msg(in != NULL, "no %s: run this test with KELP_UPDATE=1", path);
    on_file = calloc(1, 1 << 20);
    bytes = fread(on_file, 1, (1 << 20) - 1, in);
    ck_assert_int_eq(fclose(in), 0);
    ck_assert_uint_gt(bytes, 1000);
    ck_assert_msg(strcmp(text, on_file) == 0,
                  "%s is older than common/job/job_options.c: run this test with KELP_UPDATE=1",
                  path);
    free(on_file);
    free(text);
}

/* A value as text, as a program of one's own asks for it: no quotation marks around texts. */
KELP_TEST(test_values_as_text)
{
    static const struct {
        const char *key, *value;
    } cases[] = {{"train.batch_size", "32"},    {"train.loss", "mse"},
                 {"data.shuffle", "true"},      {"train.lr", "0.005"},
                 {"data.target", "OT"},         {"run.dir", "a b"},
                 {"cluster.workers", "2:2"},    {"failure.detect", "1s"},
                 {"train.decay_exclude", "[]"}, {"name", "job"},
                 {"transport.piece", "4MiB"}};
    char text[32];

    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "run.dir", "a b", KELP_ORIGIN_FLAG, NULL),
                     KELP_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        ck_assert_msg(kelp_job_file_value(job_bench.file, cases[i].key, text, sizeof(text),
                                          &job_bench.error) == KELP_OK,
                      "%s", job_bench.error.text);
        ck_assert_str_eq(text, cases[i].value);
    }
    ck_assert_int_eq(kelp_job_file_value(job_bench.file, "train.loss", text, 4, &job_bench.error),
                     KELP_OK);
    ck_assert_int_eq(kelp_job_file_value(job_bench.file, "train.loss", text, 3, &job_bench.error),
                     KELP_ERR_LIMIT);
    ck_assert_str_eq(job_bench.error.text, "train.loss: its value needs 4 bytes, not 3");
    ck_assert_int_eq(
        kelp_job_file_value(job_bench.file, "train.los", text, sizeof(text), &job_bench.error),
        KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(job_bench.error.text, "train.loss"));
}
