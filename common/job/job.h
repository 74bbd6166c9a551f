/*
 * The job, read from a strict YAML file. Together with the data it determines the result of
 * training.
 *
 * One table (common/job/job_options.c) holds each key's name, type, unit, default, range and help;
 * the parser, --set, --print-config and the reference page docs/JOB.md come from it.
 */
#ifndef KELP_COMMON_JOB_JOB_H
#define KELP_COMMON_JOB_JOB_H

#include <stdint.h>

#include "common/base/sha256.h"
#include "common/base/status.h"
#include "common/base/value.h"

#define KELP_JOB_NAME_MAX    63 /* bytes; letters, digits, '-', '_', '.' */
#define KELP_JOB_PATH_MAX    1023
#define KELP_JOB_WORD_MAX    63
#define KELP_JOB_LIST_MAX    64   /* entries of a list (hidden sizes, quantiles) */
#define KELP_JOB_TEXTS_MAX   4095 /* bytes of a list of texts, separated by line feeds */
#define KELP_JOB_LANES_MAX   1024
#define KELP_JOB_STREAMS_MAX 8

#define KELP_JOB_SUMS_MAX     6  /* sums that a program defines (model.sums) */
#define KELP_JOB_SUM_NAME_MAX 23 /* bytes; letters, digits, '-', '_', '.' */

/*
 * Largest value of checkpoint.keep_last and of checkpoint.keep_best. A leader reads all manifests
 * from etcd in one answer of at most ETCD_ANSWER_MAX bytes. Twice this many of the largest
 * manifests fit into it, with room for a few that are being added or removed.
 */
#define KELP_CHECKPOINT_KEEP_MAX 32

/* What the cluster does with the model; common/training/control.h has the entries for each mode. */
enum kelp_run_mode {
    KELP_RUN_TRAIN,
    KELP_RUN_EVALUATE, /* measure the validation and test split once */
    KELP_RUN_PREDICT,  /* write the model's output for run.part to <run>/predict */
};
enum kelp_run_part { KELP_RUN_PART_TRAIN, KELP_RUN_PART_VAL, KELP_RUN_PART_TEST };
enum kelp_model_kind {
    KELP_MODEL_MLP,
    KELP_MODEL_DLINEAR,
    KELP_MODEL_NLINEAR,
    KELP_MODEL_FARE,
    KELP_MODEL_CONVNET,
    KELP_MODEL_RESNET18,
    KELP_MODEL_DEEPFM,
    KELP_MODEL_TFT,
    KELP_MODEL_PLUGIN,  /* model.plugin names the shared library */
    KELP_MODEL_PROGRAM, /* model.program or model.python computes instead of kelp-worker */
};
enum kelp_data_kind {
    KELP_DATA_CSV,
    KELP_DATA_SYNTHETIC,
    KELP_DATA_TENSORS,
    KELP_DATA_TABLE,   /* rows of CSV files, one sample each */
    KELP_DATA_PANEL,   /* windows over one or many time series, with known-future inputs */
    KELP_DATA_IDX,     /* images and labels in the format of MNIST */
    KELP_DATA_NPY,     /* two NumPy arrays */
    KELP_DATA_BINARY,  /* fixed-size rows of numbers without a header */
    KELP_DATA_PROGRAM, /* the program of model.kind program has the data */
};
enum kelp_missing_policy {
    KELP_MISSING_ERROR,
    KELP_MISSING_DROP,
    KELP_MISSING_ZERO,
    KELP_MISSING_MEAN
};
enum kelp_normalize_kind { KELP_NORMALIZE_NONE, KELP_NORMALIZE_STANDARD, KELP_NORMALIZE_MINMAX };
/* Element types of data.kind binary, little-endian. */
enum kelp_number_kind {
    KELP_NUMBER_FLOAT32,
    KELP_NUMBER_FLOAT64,
    KELP_NUMBER_UINT8,
    KELP_NUMBER_INT32
};
/* data.kind binary: whether rows of data.test_path have a target after the input. */
enum kelp_test_rows {
    KELP_TEST_ROWS_LABELLED,
    KELP_TEST_ROWS_UNLABELLED, /* only for predictions */
    KELP_TEST_ROWS_EITHER,     /* found out from the file's size */
};
enum kelp_optimizer_kind {
    KELP_OPTIMIZER_SGD, /* momentum, dampening and Nesterov are settings of it */
    KELP_OPTIMIZER_ADAM,
    KELP_OPTIMIZER_ADAMW,
    KELP_OPTIMIZER_ADAGRAD,
    KELP_OPTIMIZER_RMSPROP,
    KELP_OPTIMIZER_ADADELTA,
    KELP_OPTIMIZER_LAMB,
};
enum kelp_schedule_kind {
    KELP_SCHEDULE_CONSTANT,
    KELP_SCHEDULE_STEP,
    KELP_SCHEDULE_MULTISTEP,
    KELP_SCHEDULE_EXPONENTIAL,
    KELP_SCHEDULE_TYPE1,
    KELP_SCHEDULE_COSINE,
    KELP_SCHEDULE_COSINE_RESTARTS,
    KELP_SCHEDULE_LINEAR,
    KELP_SCHEDULE_PLATEAU,
};
enum kelp_schedule_unit { KELP_SCHEDULE_EPOCH, KELP_SCHEDULE_BY_STEP };
enum kelp_loss_kind {
    KELP_LOSS_MSE,
    KELP_LOSS_MAE,
    KELP_LOSS_SMOOTH_L1,
    KELP_LOSS_HUBER,
    KELP_LOSS_CROSS_ENTROPY,
    KELP_LOSS_NLL,
    KELP_LOSS_BCE,
    KELP_LOSS_BCE_WITH_LOGITS,
    KELP_LOSS_QUANTILE,
};
/* The metric of the validation split that early stopping, the plateau schedule and "best so far"
 * compare. */
enum kelp_monitored {
    KELP_MONITOR_LOSS,
    KELP_MONITOR_MSE,
    KELP_MONITOR_MAE,
    KELP_MONITOR_ACCURACY, /* larger is better for accuracy and auc; smaller for those above */
    KELP_MONITOR_AUC,
    KELP_MONITOR_SUM, /* the one of model.sums that train.monitor_sum names */
};
/* A job file cannot say PLANNED: a GPU that this host need not have, to plan a model's memory. */
enum kelp_device_kind { KELP_DEVICE_CPU, KELP_DEVICE_CUDA, KELP_DEVICE_PLANNED };
enum kelp_compute { KELP_COMPUTE_NATIVE, KELP_COMPUTE_PORTABLE };
/* How a worker and a shard exchange gradients and weights. */
enum kelp_transport { KELP_TRANSPORT_AUTO, KELP_TRANSPORT_GRPC, KELP_TRANSPORT_SHM };
/* Message of a process that ends because the job demands shared memory and there is none:
 * shard, address, reason. */
#define KELP_SHM_UNMET                                                                             \
    "transport.kind: shm: no shared memory with %.63s at %.110s, which must be of this host and "  \
    "user, with the same --shm-folder: %.191s"
/* Type to which matrix products round their operands (train.precision); sums are float32. */
enum kelp_product_precision { KELP_PRODUCT_FLOAT32, KELP_PRODUCT_TF32, KELP_PRODUCT_BFLOAT16 };
/* Whether cuDNN computes a GPU's convolutions (cluster.cudnn); AUTO: if it is found. */
enum kelp_cudnn { KELP_CUDNN_AUTO, KELP_CUDNN_ALWAYS, KELP_CUDNN_NEVER };
/* Element type of a pushed gradient (transport.precision); the numbers are those of PushItem.kind.
 */
enum kelp_precision { KELP_PRECISION_FLOAT32, KELP_PRECISION_BFLOAT16 };
/* Bytes of one element. */
static inline uint32_t kelp_precision_bytes(enum kelp_precision precision)
{
    return precision == KELP_PRECISION_BFLOAT16 ? 2 : 4;
}
/* csv, synthetic: the columns of the model's input and output. */
enum kelp_features {
    KELP_FEATURES_S, /* the target is input and output */
    KELP_FEATURES_M, /* all columns are input and output */
    KELP_FEATURES_MS /* input: all columns, the target last; output: the target */
};

enum kelp_nan_policy {
    KELP_NAN_STOP, /* the step is not applied, and the job fails */
    KELP_NAN_SKIP, /* the step is skipped: the weights stay as they were */
};
/* What happens when two workers pushed different gradients for the same lanes. */
enum kelp_conflict_policy {
    KELP_CONFLICT_STOP,  /* the job fails */
    KELP_CONFLICT_FIRST, /* the first one counts, with a warning */
};
enum kelp_checkpoint_metric {
    KELP_CHECKPOINT_VAL_LOSS,
    KELP_CHECKPOINT_VAL_MSE,
    KELP_CHECKPOINT_VAL_MAE,
    KELP_CHECKPOINT_VAL_ACCURACY,
    KELP_CHECKPOINT_VAL_AUC,
    KELP_CHECKPOINT_VAL_SUM, /* the one of model.sums that checkpoint.metric_sum names */
};
/* Metrics of its evaluation that are kept with a checkpoint. A job of model.kind program has no
 * AUC; the sum that checkpoint.metric names takes that place. */
#define KELP_CHECKPOINT_METRICS 5
enum kelp_checkpoint_order { KELP_ORDER_MIN, KELP_ORDER_MAX };

struct kelp_job {
    char name[KELP_JOB_NAME_MAX + 1];
    uint64_t seed;
    struct {
        char dir[KELP_JOB_PATH_MAX + 1]; /* empty: runs/<name>-<time> */
        enum kelp_run_mode mode;
        enum kelp_run_part part; /* predict */
        bool closed;             /* run.private: only its user can open the folder */
    } run;
    struct {
        enum kelp_model_kind kind;
        uint32_t hidden[KELP_JOB_LIST_MAX]; /* mlp: widths of the hidden layers */
        uint32_t hidden_count;
        char plugin[KELP_JOB_PATH_MAX + 1]; /* shared library with a model (include/kelp/model.h) */
        char plugin_sha256[KELP_SHA256_HEX_BYTES]; /* of that library; "": any */
        char params[KELP_JOB_TEXTS_MAX + 1];       /* plugin: "name=value" texts */
        char program[KELP_JOB_PATH_MAX + 1];       /* a program linked with libkelp-worker */
        char python[KELP_JOB_PATH_MAX + 1];        /* or a script for python3 */
        char arguments[KELP_JOB_TEXTS_MAX + 1];    /* of the program or script */
        char sums[KELP_JOB_TEXTS_MAX + 1];         /* program: kelp_job_sum() */
        double dropout[KELP_JOB_LIST_MAX]; /* of each dropout layer; empty: the model's defaults */
        uint32_t dropout_count;
        uint32_t classes;                 /* convnet, resnet18 */
        uint32_t embedding_dim;           /* deepfm */
        uint32_t d_model;                 /* tft: hidden size */
        uint32_t heads;                   /* tft */
        bool individual;                  /* dlinear, nlinear: one linear map per channel */
        uint32_t kernel_size;             /* dlinear: width of the moving average, odd */
        char init[KELP_JOB_PATH_MAX + 1]; /* safetensors file with initial weights, or empty */
        char init_prefix[KELP_JOB_WORD_MAX + 1]; /* prefix of each name in that file */
        char init_map[KELP_JOB_TEXTS_MAX + 1];   /* other names (common/tensors/rename.h) */
    } model;
    struct {
        enum kelp_data_kind kind;
        char path[KELP_JOB_PATH_MAX + 1];
        char target[KELP_JOB_WORD_MAX + 1]; /* csv: name of the target column */
        enum kelp_features features;
        uint32_t seq_len;
        uint32_t pred_len;
        uint64_t split[3]; /* csv, synthetic, panel: rows of the train, validation and test split */
        double fractions[KELP_JOB_LIST_MAX]; /* table, npy, binary: shares of the three parts */
        uint32_t fraction_count;
        uint32_t
            test_every; /* table, npy, binary: rows n - 1, 2 n - 1, … are the test split; 0: off */
        bool random_split; /* table, npy, binary, idx: in an order drawn from the seed */
        char val_path[KELP_JOB_PATH_MAX + 1];  /* table, npy, binary: a part of its own file */
        char test_path[KELP_JOB_PATH_MAX + 1]; /* likewise; predict, evaluate: for any kind */
        uint64_t limit; /* first samples of the training split to use; 0: all */
        char columns[KELP_JOB_TEXTS_MAX + 1]; /* table: number inputs; panel: other observed ones */
        char categories[KELP_JOB_TEXTS_MAX + 1]; /* table, panel: category inputs */
        char known[KELP_JOB_TEXTS_MAX + 1];      /* panel: inputs known ahead */
        char targets[KELP_JOB_TEXTS_MAX + 1];    /* table, panel */
        char derive[KELP_JOB_TEXTS_MAX + 1];     /* table, panel: "name = expression" */
        char filter[KELP_JOB_TEXTS_MAX + 1];     /* table, panel: conditions that a row must meet */
        char time[KELP_JOB_WORD_MAX + 1];        /* panel: column that orders the rows */
        char group[KELP_JOB_WORD_MAX + 1]; /* panel: column that names the series; empty: one */
        uint32_t vocab[KELP_JOB_LIST_MAX]; /* sizes of the category inputs; empty: from the data */
        uint32_t vocab_count;
        enum kelp_missing_policy missing;
        enum kelp_normalize_kind normalize;        /* table, panel, npy, binary: of number inputs */
        enum kelp_normalize_kind normalize_target; /* table, panel */
        double mean, std;                          /* idx: (x / 255 - mean) / std */
        char target_path[KELP_JOB_PATH_MAX + 1];   /* npy, as the next two */
        char val_target_path[KELP_JOB_PATH_MAX + 1];
        char test_target_path[KELP_JOB_PATH_MAX + 1];
        enum kelp_number_kind dtype;             /* binary */
        uint32_t input_shape[KELP_JOB_LIST_MAX]; /* binary: of one row; npy, table: empty */
        uint32_t input_shape_count;
        uint32_t target_shape[KELP_JOB_LIST_MAX]; /* binary */
        uint32_t target_shape_count;
        enum kelp_test_rows test_rows;     /* binary */
        char cache[KELP_JOB_PATH_MAX + 1]; /* folder for parsed files and statistics */
        uint64_t rows;                     /* synthetic: rows to generate */
        bool shuffle;
        char unit[KELP_JOB_WORD_MAX + 1];        /* of the target, for people */
        char input_name[KELP_JOB_TEXTS_MAX + 1]; /* tensors: names of input tensors [N, ...] */
        char target_name[KELP_JOB_WORD_MAX + 1]; /* tensors: name of the target tensor [N, ...] */
    } data;
    struct {
        uint32_t epochs;
        uint32_t batch_size; /* samples in a step, over all lanes */
        bool drop_last;
        uint32_t batches_per_epoch; /* steps of an epoch, at most; 0: until its samples are used */
        uint64_t max_steps;         /* training steps, at most; 0: until the last epoch ends */
        uint32_t accumulate;        /* pieces in which a lane computes its share, to save memory */
        enum kelp_loss_kind loss;
        double loss_beta;       /* smooth_l1: beta; huber: delta */
        double label_smoothing; /* cross_entropy */
        double quantiles[KELP_JOB_LIST_MAX];
        uint32_t quantile_count;
        enum kelp_optimizer_kind optimizer;
        double lr;
        double momentum;
        double dampening;
        bool nesterov;
        double weight_decay;
        char decay_exclude[KELP_JOB_TEXTS_MAX + 1]; /* patterns of parameter names */
        double beta1;
        double beta2;
        bool amsgrad;
        double alpha; /* rmsprop */
        bool centered;
        double rho;      /* adadelta */
        double lr_decay; /* adagrad */
        double initial_accumulator;
        double eps;       /* 0: PyTorch's for this optimizer */
        double clip_norm; /* largest norm of the whole gradient; 0: no clipping */
        enum kelp_schedule_kind schedule;
        enum kelp_schedule_unit schedule_unit;
        uint32_t schedule_step; /* step */
        double gamma;           /* step, multistep, exponential */
        uint32_t milestones[KELP_JOB_LIST_MAX];
        uint32_t milestone_count;
        uint32_t schedule_total; /* cosine, cosine_restarts, linear: units; 0: the whole run */
        uint32_t restart_factor; /* cosine_restarts: length of a period over that before it */
        double lr_min;           /* cosine, cosine_restarts, plateau */
        double start_factor;     /* linear */
        uint32_t warmup;         /* units in which the rate grows linearly to its full value */
        uint32_t plateau_patience;
        double plateau_factor;
        double plateau_threshold;
        bool evaluate;            /* validation and test splits */
        uint32_t evaluate_epochs; /* epochs between evaluations; 0: not by epochs */
        uint32_t evaluate_steps;  /* training steps between evaluations; 0: not by steps */
        enum kelp_monitored monitor;
        char monitor_sum[KELP_JOB_SUM_NAME_MAX + 1];
        uint32_t patience; /* evaluations without improvement until training ends; 0: no limit */
        double min_delta;  /* least change that counts as an improvement */
        enum kelp_product_precision precision;
    } train;
    struct {
        struct kelp_range workers; /* MIN:MAX; training starts once MIN have joined */
        uint32_t shards;
        uint32_t max_shards;
        uint32_t lanes; /* power of two */
        uint32_t lane_threads;
        enum kelp_device_kind device;
        uint32_t streams; /* lanes that a worker computes at the same time on its GPU; 0: chosen by
                             the worker */
        enum kelp_compute compute;
        enum kelp_cudnn cudnn;
        bool mixed;         /* workers of another compute kind may join */
        uint32_t replicas;  /* of each partition */
        uint32_t move_rate; /* bytes per second that a shard may send to move partitions */
    } cluster;
    struct {
        enum kelp_transport kind;
        enum kelp_precision precision;
        uint32_t piece_bytes; /* largest payload of one message */
        uint32_t streams;     /* between a worker and a shard, up to KELP_JOB_STREAMS_MAX */
        uint32_t connect_timeout_ms;
    } transport;
    struct {
        uint32_t detect_ms;     /* silence after which a worker counts as lost */
        uint32_t shard_wait_ms; /* how long to wait for a lost shard before its partitions move */
        int32_t max_failures; /* restarts of processes before the launcher gives up; -1: no limit */
        uint32_t window_ms;   /* time over which max_failures are counted; 0: the whole run */
        uint32_t restart_backoff_ms; /* before the second restart in a row; the first is at once */
        uint32_t storage_wait_ms;    /* how long to wait for missing storage; 0: no limit */
        enum kelp_nan_policy on_nan;
        enum kelp_conflict_policy on_conflict;
    } failure;
    struct {
        uint32_t digest_steps; /* training steps between digests; 0: at ends of epochs only */
        uint32_t steps;        /* training steps between checkpoints; 0: not by steps */
        uint32_t interval_ms;  /* time between checkpoints; 0: not by time */
        uint32_t epochs;       /* epochs between checkpoints; 0: not by epochs */
        bool at_end;           /* a checkpoint of the final state */
        uint32_t keep_last;    /* newest checkpoints that are kept */
        uint32_t keep_best;    /* best checkpoints by `metric` that are kept in addition */
        enum kelp_checkpoint_metric metric;
        char metric_sum[KELP_JOB_SUM_NAME_MAX + 1];
        enum kelp_checkpoint_order order;
    } checkpoint;
    struct {
        uint32_t every;   /* training steps between lines with the loss; 0: epochs only */
        bool tensorboard; /* write event files too */
    } metrics;
};

/* Where the value of a key came from, for --print-config and error messages. */
enum kelp_origin_kind {
    KELP_ORIGIN_DEFAULT,
    KELP_ORIGIN_FILE,
    KELP_ORIGIN_ENVIRONMENT,
    KELP_ORIGIN_FLAG
};
struct kelp_origin {
    enum kelp_origin_kind kind;
    uint32_t line; /* of the file */
};

/* A job with the origin of each value. Opaque; freed with kelp_job_file_destroy(). */
struct kelp_job_file;

/* A job with every key at its default. NULL when out of memory. */
struct kelp_job_file *kelp_job_file_create(void);
void kelp_job_file_destroy(struct kelp_job_file *file);

/*
 * Read the file at `path`, whose values replace the current ones. It may have each key only once.
 * Of several functions that set a key, the last one called wins. Paths that are relative to the
 * file's folder become absolute. The error text is "FILE:LINE: key: what is wrong; what is
 * allowed". Errors: KELP_ERR_NOT_FOUND, KELP_ERR_IO, KELP_ERR_LIMIT (over 64 KiB),
 * KELP_ERR_INVALID.
 */
kelp_status kelp_job_file_read(struct kelp_job_file *file, const char *path,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* The same from memory; error texts use `name` for the file. Relative paths stay relative. */
kelp_status kelp_job_file_parse(struct kelp_job_file *file, const char *name, const char *text,
                                size_t text_bytes, struct kelp_error *reterr) KELP_MUST_USE;

/* Set one key, as --set does ("train.lr", "0.01"); its origin becomes `kind`. Paths that are
 * relative to the current folder become absolute, except run.dir. */
kelp_status kelp_job_file_set(struct kelp_job_file *file, const char *key, const char *value,
                              enum kelp_origin_kind kind, struct kelp_error *reterr) KELP_MUST_USE;

/* Set the keys whose variables KELP_<KEY> are in the environment ("KELP_TRAIN_LR"). */
kelp_status kelp_job_file_environment(struct kelp_job_file *file,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Whether the name of an environment variable looks as if it were meant for a job key that does not
 * exist: it resembles the variable of a key, or begins like those of a section. `nearest` is the
 * key that it resembles most; "" if there is none.
 */
bool kelp_job_variable_unknown(const char *variable, char *nearest, size_t nearest_bytes);

/* Check what a single key does not show: lanes a power of two, an odd kernel, keys that do not
 * apply to the chosen kinds, and so on. Call it once all values are set; after it the job may be
 * used. */
kelp_status kelp_job_file_finish(struct kelp_job_file *file,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Where the value of `key` came from. The key must exist. */
enum kelp_origin_kind kelp_job_file_origin(const struct kelp_job_file *file, const char *key);

/*
 * A key's value in effect, as in the canonical text, but names, texts and paths have no quotation
 * marks, and paths are those on this host. Errors: KELP_ERR_INVALID (no such key), KELP_ERR_LIMIT
 * (longer than text_bytes), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_job_file_value(const struct kelp_job_file *file, const char *key, char *text,
                                size_t text_bytes, struct kelp_error *reterr) KELP_MUST_USE;

/* Borrowed until the file is destroyed, or kelp_job_file_map() is called. */
const struct kelp_job *kelp_job_file_job(const struct kelp_job_file *file);

/*
 * Use other paths for the job's files on this host (common/job/path_map.h): from now on
 * kelp_job_file_job() has the paths on this host. Text, digest and comparisons still use the paths
 * that the job names, so it is still the same job. Call it once, after kelp_job_file_finish().
 * Errors: KELP_ERR_LIMIT (a path becomes too long), KELP_ERR_NO_MEMORY.
 */
struct kelp_path_map;
kelp_status kelp_job_file_map(struct kelp_job_file *file, const struct kelp_path_map *map,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* A sum that the job's program computes in addition to the standard metrics. */
struct kelp_job_sum {
    char name[KELP_JOB_SUM_NAME_MAX + 1];
    bool larger; /* a larger mean is better */
};

/* The sums of model.sums, by an index from 0; false if there is none with that index. */
bool kelp_job_sum(const struct kelp_job *job, uint32_t index, struct kelp_job_sum *ret_sum);
bool kelp_job_sum_find(const struct kelp_job *job, const char *name, uint32_t *ret_index);

/* A file or folder of the job. */
struct kelp_job_path {
    const char *key;   /* "data.path" */
    const char *named; /* as the job has it */
    const char *here;  /* where it is on this host */
};

/* The paths that are set, in the table's order, by an index from 0; false if there is none with
 * that index. Borrowed like the job. */
bool kelp_job_file_path(const struct kelp_job_file *file, size_t index,
                        struct kelp_job_path *ret_path);

/*
 * The canonical text: YAML with each key in the table's order and its value in effect, without keys
 * that do not apply to the chosen kinds. The same job gives the same bytes, and parsing them gives
 * the same job. /kelp/<job>/spec and the run folder's job.yaml hold this text. *ret_text is owned
 * by the caller (free()).
 */
kelp_status kelp_job_file_print(const struct kelp_job_file *file, bool with_origin, char **ret_text,
                                struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The canonical text without the keys that belong to one place or one run: paths of data and
 * weights, the sections run, transport, failure and checkpoint, and all of cluster but lanes. It is
 * enough to build the model again for samples of the same shape; a model's file carries it.
 * *ret_text is owned by the caller.
 */
kelp_status kelp_job_file_print_model(const struct kelp_job_file *file, char **ret_text,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The canonical text for a file in `folder`, an absolute path: paths below the folder are relative
 * to it, and run.dir is empty. Reading the file gives the same job even after the folder was moved.
 */
kelp_status kelp_job_file_print_in(const struct kelp_job_file *file, const char *folder,
                                   char **ret_text, struct kelp_error *reterr) KELP_MUST_USE;

/* XXH3-64 of the canonical text, but without run.dir, with only the last component of each path,
 * and without keys marked as later that have their default. It identifies the job in checkpoints
 * and in every hello on the wire, wherever the job's files are. 0 when out of memory; no peer
 * accepts that.
 */
uint64_t kelp_job_file_digest(const struct kelp_job_file *file);

/* A key whose values in two jobs differ. */
struct kelp_job_difference {
    const char *key; /* "train.lr" */
    char *before;    /* as in the canonical text */
    char *now;
    bool allowed; /* a resume may change this key */
};

/* Freed with kelp_job_differences_fini(). */
struct kelp_job_differences {
    struct kelp_job_difference *items; /* in the table's order */
    size_t count;
    size_t refused; /* items that are not allowed */
};

/*
 * Compare two jobs for a resume of a run that was made with `before` and is to continue with `now`.
 * Keys that shape the result must be equal, train.epochs may grow, and all other keys may change.
 * Files may be in another folder; only their names must be equal. Keys that do not apply to both
 * jobs are left out, because the key that selects the kind differs then. Errors:
 * KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_job_compare(const struct kelp_job_file *before, const struct kelp_job_file *now,
                             struct kelp_job_differences *ret_differences,
                             struct kelp_error *reterr) KELP_MUST_USE;
void kelp_job_differences_fini(struct kelp_job_differences *differences);

/* Print the allowed differences, or the others: "seed 1 -> 2, train.lr 0.005 -> 0.01". If they do
 * not fit into text_bytes, the text ends with "…". */
void kelp_job_differences_text(const struct kelp_job_differences *differences, bool allowed,
                               char *text, size_t text_bytes);

/* The reference page in Markdown. *ret_text is owned by the caller (free()). */
kelp_status kelp_job_reference(char **ret_text) KELP_MUST_USE;

/*
 * Explain a key: its values, default and meaning, and whether it may differ on resume. name is a
 * key, a section (all its keys), or NULL (one line for each key). The text is lines for people, or
 * a JSON array with an object for each key. *ret_text is owned (free()). Errors: KELP_ERR_INVALID
 * (the text suggests a similar key), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_job_explain(const char *name, bool json, char **ret_text,
                             struct kelp_error *reterr) KELP_MUST_USE;

#endif
