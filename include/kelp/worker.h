/*
 * Kelp's worker as a library, for programs that compute gradients themselves.
 *
 * A program declares its model and its data once, and then computes lanes: shares of training steps
 * and of evaluations. The library does everything else: connections, maps, restores,
 * retransmission, adding up lanes, digests. A worker has no state that must survive: it may be
 * killed and restarted at any time, and other workers compute its lanes meanwhile.
 *
 *     kelp_worker_global_init()            once
 *     kelp_worker_options_read()           etcd, job and id, which `kelp train` passes
 *     kelp_worker_open()                   finds etcd and the job
 *     kelp_worker_plan_data(), kelp_worker_plan_compute(), kelp_worker_plan_tensor()
 *     kelp_worker_join()
 *     while (kelp_worker_next_lane() == KELP_WORKER_OK)
 *         for each piece (kelp_worker_piece())
 *             kelp_worker_indices()        which samples
 *             ... compute, fill lane.gradient, kelp_worker_add(); or kelp_worker_predict()
 *         kelp_worker_submit()
 *     kelp_worker_close()
 *
 * The job's weights have the same bits whatever happens, provided that lane.gradient is a function
 * of weights, samples, their order and lane.seed alone: not of time, threads, addresses, or earlier
 * computations.
 *
 * Functions that can fail return an enum kelp_worker_result: KELP_WORKER_OK, another value >= 0, or
 * a negative one, for which kelp_worker_error() has a line of text. A call at the wrong time
 * returns KELP_WORKER_INVALID and changes nothing.
 *
 * Threads: call all functions of a worker from one thread, except kelp_worker_stop(). Processes:
 * one worker at a time. fork() only before kelp_worker_global_init(), or to execute another
 * program.
 *
 * Stability: programs built with this header run with every later libkelp-worker.so.1. Structs
 * begin with their size, which the caller sets to sizeof; they grow at the end, and functions are
 * added. The header compiles as C99 and C++11, and includes nothing of Kelp.
 */
#ifndef KELP_WORKER_H
#define KELP_WORKER_H

#include <stddef.h>
#include <stdint.h>

#define KELP_WORKER_ABI 1 /* of libkelp-worker.so.1 */

#if defined(__GNUC__)
#define KELP_WORKER_API __attribute__((visibility("default")))
#else
#define KELP_WORKER_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum kelp_worker_result {
    KELP_WORKER_OK = 0,
    KELP_WORKER_OVER = 1,    /* the job is over */
    KELP_WORKER_STOPPED = 2, /* asked to end: kelp_worker_stop(), kelp drain, kelp scale */
    KELP_WORKER_INVALID =
        -1, /* a mistake in the call, options, job or data: a retry fails in the same way */
    KELP_WORKER_FAILED = -2 /* memory, disk, network: a restarted program may succeed */
};

/* Version of the loaded library, "0.1.0". */
KELP_WORKER_API const char *kelp_worker_version(void);

/* One line about this thread's last call that returned a negative number; "" if none did. Borrowed
 * until the thread's next call. */
KELP_WORKER_API const char *kelp_worker_error(void);

/* The exit status for a program that ends with this result: 0, 1 (FAILED: restart it) or 2
 * (INVALID: do not). */
KELP_WORKER_API int kelp_worker_exit_status(int result);

/* Call once per process, before it has other threads: sets malloc's thresholds, and an environment
 * variable that gRPC reads. Further calls do nothing. */
KELP_WORKER_API int kelp_worker_global_init(void);

/* ---- opening --------------------------------------------------------------------------------- */

struct kelp_worker_options {
    size_t size;             /* sizeof(struct kelp_worker_options) */
    const char *etcd;        /* required: "http://127.0.0.1:2379", or several with commas */
    const char *job;         /* required: the job's name */
    const char *id;          /* required, unique in the job; a second worker of this id waits */
    const char *spec_sha256; /* of the job's text: another job is refused; NULL: not checked */
    const char *certs;       /* folder with ca.pem, cert.pem, key.pem: mutual TLS; NULL: none */
    const char *shm_folder;  /* as kelp-worker --shm-folder; NULL: none */
    const char *log_level;   /* "error", "warn", "info", "debug", "trace", to standard error; NULL:
                                "info" */
    uint32_t grace_ms; /* after kelp_worker_stop(): time to deliver submitted lanes; 0: 5000 */
    uint32_t reserved; /* 0 */
};

/*
 * Remove --etcd, --job, --id, --spec-sha256, --certs, --shm-folder, --log-level and --grace from
 * the command line; other arguments stay, in order. Options that are not given come from KELP_ETCD,
 * KELP_JOB and so on, which `kelp train` and `kelp node` set; the remaining arguments are then
 * model.arguments. Texts are borrowed from argv and the environment. The caller sets options->size.
 */
KELP_WORKER_API int kelp_worker_options_read(struct kelp_worker_options *options, int *argc,
                                             char **argv);

struct kelp_worker;

/* Wait until etcd and the job are available; the log says for which. The options are copied.
 * *ret_worker is owned (kelp_worker_close()). */
KELP_WORKER_API int kelp_worker_open(const struct kelp_worker_options *options,
                                     struct kelp_worker **ret_worker);

/* Leave the job and free everything, including the memory of weights and gradients. A lane that was
 * not submitted is computed by other workers. NULL does nothing. */
KELP_WORKER_API void kelp_worker_close(struct kelp_worker *worker);

/*
 * The value in effect of a key of the job file (docs/JOB.md), such as "train.batch_size", as text:
 * "64", "true", "mse", "[0.8, 0.2]", a path without quotation marks. text has `bytes` bytes,
 * terminating zero included. INVALID: there is no such key, or it does not fit.
 */
KELP_WORKER_API int kelp_worker_setting(const struct kelp_worker *worker, const char *key,
                                        char *text, size_t bytes);

/* ---- the plan, which must be the same for all workers of the job ------------------------------
 */

/* Numbers of training, validation and test samples. The fingerprint stands for their content: a
 * worker with another one is refused. Required. */
KELP_WORKER_API int kelp_worker_plan_data(struct kelp_worker *worker, uint64_t train,
                                          uint64_t validate, uint64_t test, uint64_t fingerprint);

/*
 * What the bits depend on besides weights and samples: kind names processor and libraries in at
 * most 127 printable characters, answer is a hash of the results of a fixed computation. Workers
 * that differ are refused, unless the job has cluster.mixed. Required.
 */
KELP_WORKER_API int kelp_worker_plan_compute(struct kelp_worker *worker, const char *kind,
                                             uint64_t answer);

/* Likely reasons for different answers of equal kinds, in at most 127 printable characters, for the
 * line that refuses a worker ("another loss, model or transforms"). Not compared. */
KELP_WORKER_API int kelp_worker_plan_reasons(struct kelp_worker *worker, const char *reasons);

/*
 * Announce a sum that the program will add to (kelp_worker_add_named()). INVALID: the job does not
 * have it in model.sums. Optional: it reports that mistake early.
 */
KELP_WORKER_API int kelp_worker_plan_sum(struct kelp_worker *worker, const char *name);

/* A hash of the program or of its model's source; workers that differ are refused. 0, the default:
 * none. */
KELP_WORKER_API int kelp_worker_plan_program(struct kelp_worker *worker, uint64_t digest);

/* Maximum number of samples per piece of an evaluation's lane (kelp_worker_piece()); the default is
 * 256. */
KELP_WORKER_API int kelp_worker_plan_block(struct kelp_worker *worker, uint64_t samples);

enum kelp_worker_init {
    KELP_WORKER_INIT_CONSTANT = 0, /* a */
    KELP_WORKER_INIT_UNIFORM = 1,  /* [-a, a), from the job's seed and the tensor's number */
    KELP_WORKER_INIT_NORMAL = 2,   /* mean 0, standard deviation a, likewise */
    /* The tensor of that name in the job's model.init, a safetensors file. In a job with model.init
     * this applies to all tensors, unless only some of them say so. */
    KELP_WORKER_INIT_FILE = 3
};

struct kelp_worker_tensor {
    size_t size;           /* sizeof(struct kelp_worker_tensor) */
    const char *name;      /* at most 127 characters, unique in the model */
    const uint64_t *shape; /* [rank], none 0 */
    uint32_t rank;         /* 0 to 8 */
    uint32_t init;         /* enum kelp_worker_init; shards generate the values */
    float init_a;
    /* 0: a parameter. Above 0: a running statistic, such as batch norm's mean. Its gradient is the
     * lane's value times the lane's share of the step's samples. It is updated without the
     * optimizer: w' = (1 - momentum) w + momentum g. */
    float momentum;
    /* 1: held (frozen). It keeps its initial bits: no update, no weight decay, no part in the norm
     * of the gradient. Do not write its gradient. momentum must be 0. */
    uint32_t held;
    uint32_t reserved; /* 0 */
};

/* Declare the model's next tensor, float32. Everything is copied. At least one is required. */
KELP_WORKER_API int kelp_worker_plan_tensor(struct kelp_worker *worker,
                                            const struct kelp_worker_tensor *tensor);

/* XXH3-64, for fingerprints, digests and answers. */
KELP_WORKER_API uint64_t kelp_worker_hash(const void *bytes, size_t count);

/* Complete the plan and join the job, once. A job without a plan gets this one. */
KELP_WORKER_API int kelp_worker_join(struct kelp_worker *worker);

/* ---- memory, once it has joined ----------------------------------------------------------------
 */

/*
 * Length of the flat vectors of weights and gradients, in float32 elements. They hold the tensors
 * in the order of the plan, each aligned to 64 bytes. The gaps are zero and must stay zero.
 */
KELP_WORKER_API uint64_t kelp_worker_elements(const struct kelp_worker *worker);

/* First element of tensor number `tensor` in these vectors; UINT64_MAX: there is no such tensor. */
KELP_WORKER_API uint64_t kelp_worker_offset(const struct kelp_worker *worker, uint32_t tensor);

/*
 * One of the two vectors of weights, 0 or 1, float32[kelp_worker_elements()]. Their addresses are
 * valid until the worker is closed. lane.weights is one of them; the other one may change at any
 * time, on another thread. NULL: there is no such vector.
 */
KELP_WORKER_API const float *kelp_worker_weights(const struct kelp_worker *worker, uint32_t which);

/* ---- lanes -------------------------------------------------------------------------------------
 */

enum kelp_worker_lane_kind {
    KELP_WORKER_TRAIN = 1,    /* a gradient, and the sum of losses */
    KELP_WORKER_VALIDATE = 2, /* only sums, of validation samples */
    KELP_WORKER_TEST = 3,     /* only sums, of test samples */
    /* Only with run.mode: predict (kelp predict): call kelp_worker_predict(). The samples are of
     * the split that the job's run.part names: "train", "val" or "test". */
    KELP_WORKER_PREDICT = 6
};

struct kelp_worker_lane {
    size_t size;            /* set by the caller: sizeof(struct kelp_worker_lane) */
    uint32_t kind;          /* enum kelp_worker_lane_kind */
    uint32_t lane;          /* its number in the step */
    uint64_t samples;       /* of this lane, at least 1 */
    uint64_t step_samples;  /* of all lanes of the step or evaluation */
    uint64_t step;          /* training steps before this one */
    uint32_t epoch;         /* from 0; an evaluation belongs to the epoch that it follows */
    uint32_t weights_index; /* which of kelp_worker_weights() */
    const float *weights;
    /*
     * Output: the gradient of the mean loss over the step's samples,
     * float32[kelp_worker_elements()]; each sample counts 1 / step_samples. Write all elements of
     * all tensors except held ones; the previous contents are undefined. NULL: not a training lane.
     * The library has a few buffers, which return under the same index and address. The buffer is
     * the caller's until the lane is submitted; do not access it after that.
     */
    float *gradient;
    uint32_t gradient_index; /* counted from 0 */
    uint32_t reserved;
    uint64_t seed; /* for random numbers of this lane: a function of job, step and lane */
    double lr;     /* learning rate of the step; 0: not a training lane */
};

/*
 * Wait for the next lane with samples; sends what was submitted. OVER, STOPPED: there are no more,
 * close the worker. INVALID: the previous lane was not submitted.
 */
KELP_WORKER_API int kelp_worker_next_lane(struct kelp_worker *worker,
                                          struct kelp_worker_lane *ret_lane);

/*
 * Number of samples to compute at once, after `done` samples of the lane: pieces of
 * train.accumulate, blocks of evaluations. 0: the lane is complete.
 *
 *     for (done = 0; (count = kelp_worker_piece(worker, done)) > 0; done += count)
 */
KELP_WORKER_API uint64_t kelp_worker_piece(const struct kelp_worker *worker, uint64_t done);

/* Indices, within their split, of samples [first, first + count) of the lane: uint64[count]. */
KELP_WORKER_API int kelp_worker_indices(const struct kelp_worker *worker, uint64_t first,
                                        uint64_t count, uint64_t *ret_indices);

/* lane.seed, for bindings that keep no lane; 0: there is no lane. */
KELP_WORKER_API uint64_t kelp_worker_lane_seed(const struct kelp_worker *worker);

/* ---- upcoming lanes, for programs that prefetch samples ---------------------------------------
 */

struct kelp_worker_ahead {
    size_t size;      /* set by the caller: sizeof(struct kelp_worker_ahead) */
    uint32_t kind;    /* enum kelp_worker_lane_kind */
    uint32_t lane;    /* its number in the step */
    uint64_t samples; /* of this lane, at least 1 */
    uint64_t step;    /* training steps before this one */
    uint64_t seed;    /* the lane's */
};

/* Start after the current lane. */
KELP_WORKER_API int kelp_worker_ahead_begin(struct kelp_worker *worker);

/* The next lane with samples. A guess: this worker gets it if it keeps its lanes and training goes
 * on. Its contents are certain. OVER: there is none. */
KELP_WORKER_API int kelp_worker_ahead_next(struct kelp_worker *worker,
                                           struct kelp_worker_ahead *ret_ahead);

/* kelp_worker_piece() and kelp_worker_indices() for that lane. */
KELP_WORKER_API uint64_t kelp_worker_ahead_piece(const struct kelp_worker *worker, uint64_t done);
KELP_WORKER_API int kelp_worker_ahead_indices(const struct kelp_worker *worker, uint64_t first,
                                              uint64_t count, uint64_t *ret_indices);

/* ---- the lane's results ------------------------------------------------------------------------
 */

enum kelp_worker_sum {
    KELP_WORKER_SUM_LOSS = 0,             /* over samples: of the loss */
    KELP_WORKER_SUM_SQUARED = 2,          /* over elements of the target: of the squared error */
    KELP_WORKER_SUM_ABSOLUTE = 3,         /* of the absolute error */
    KELP_WORKER_SUM_ELEMENTS = 4,         /* number of elements; a class is one */
    KELP_WORKER_SUM_RELATIVE = 5,         /* of |error / target| */
    KELP_WORKER_SUM_RELATIVE_SQUARED = 6, /* of its square */
    KELP_WORKER_SUM_TARGET = 7,           /* of the target */
    KELP_WORKER_SUM_TARGET_SQUARED = 8,   /* of its square */
    KELP_WORKER_SUM_CORRECT = 9           /* elements whose class is right */
};

/* Add to a sum of the lane, enum kelp_worker_sum. Metrics are computed from the sums that are added
 * to, or with --worker-program those of the job's train.loss. A training step needs only LOSS. The
 * library counts samples. */
KELP_WORKER_API int kelp_worker_add(struct kelp_worker *worker, uint32_t sum, double value);

/* Add to a sum of model.sums, by name: metrics.jsonl has its mean over the samples of an
 * evaluation. Ignored in a training step. */
KELP_WORKER_API int kelp_worker_add_named(struct kelp_worker *worker, const char *name,
                                          double value);

/*
 * In a KELP_WORKER_PREDICT lane: the model's output for samples [first, first + count) of the lane,
 * float32[count][width], as kelp predict will write it. Pass the samples in order, each once; width
 * is the same for all samples of the job. values is borrowed until return.
 */
KELP_WORKER_API int kelp_worker_predict(struct kelp_worker *worker, uint64_t first, uint64_t count,
                                        const float *values, uint64_t width);

/* Hand in the lane: its gradient and sums, or its predictions, are complete. */
KELP_WORKER_API int kelp_worker_submit(struct kelp_worker *worker);

/*
 * During a long lane: is it still wanted? Optional: a thread of the library keeps connections and
 * heartbeats alive, so a lane may take minutes without polling. OK: continue. STOPPED: finish the
 * lane if that takes little time, else close the worker. OVER, negative: close.
 */
KELP_WORKER_API int kelp_worker_poll(struct kelp_worker *worker);

/* Report how many microseconds of the lane were spent reading samples, so that kelp status can say
 * in what a slow worker is slow. */
KELP_WORKER_API void kelp_worker_spent_reading(struct kelp_worker *worker, uint64_t us);

/* Request the end: kelp_worker_next_lane() delivers what was submitted and returns STOPPED. It
 * cannot interrupt kelp_worker_open(), since there is no worker yet. Any thread, but not a signal
 * handler.
 */
KELP_WORKER_API void kelp_worker_stop(struct kelp_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
