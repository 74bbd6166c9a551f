/*
 * The worker of Kelp as a library: a program that computes gradients itself takes part in a job.
 *
 * It says once what its model and its data are, and then computes lanes: shares of training steps
 * and of evaluations. Everything else is done inside: connections, maps, restores, sending again,
 * adding up lanes, digests. A worker keeps no state that matters. It may be killed at any moment,
 * and started again; other workers compute its lanes meanwhile.
 *
 *     kelp_worker_global_init()            once
 *     kelp_worker_options_read()           etcd, job and id, which `kelp train` hands over
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
 * The job's weights are the same bits whatever happens if what fills lane.gradient is a function of
 * weights, samples, their order and lane.seed alone: not of time, threads, addresses, or of what
 * was computed before.
 *
 * Functions that can fail return KELP_WORKER_OK, another word of enum kelp_worker_result, or a
 * negative one, for which kelp_worker_error() has a line of text. A call at the wrong time is
 * KELP_WORKER_INVALID and changes nothing.
 *
 * Threads: all functions of a worker on one thread, but for kelp_worker_stop(). Processes: one
 * worker at a time. fork() only before kelp_worker_global_init(), or to execute another program.
 *
 * Stability: programs built with this header run with every later libkelp-worker.so.1. Structs
 * begin with their size, which the caller sets to sizeof; they grow at the end, and functions are
 * added. Compiles as C99 and C++11, and includes nothing of Kelp.
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
        -1,                 /* the call, the options, the job or the data: again, the same comes */
    KELP_WORKER_FAILED = -2 /* memory, disk, network: started again, it may go on */
};

/* "0.1.0", of the library that is loaded. */
KELP_WORKER_API const char *kelp_worker_version(void);

/* One line about the newest call of this thread that returned a negative number; "" before one.
 * Borrowed until the thread's next call. */
KELP_WORKER_API const char *kelp_worker_error(void);

/* What a program that ends with this result should exit with, for whoever starts it again: 0, 1
 * (FAILED) or 2 (INVALID: it is of no use). */
KELP_WORKER_API int kelp_worker_exit_status(int result);

/* Once in a process, before it has other threads: it sets malloc's thresholds, and a variable of
 * the environment that gRPC reads. A second call does nothing. */
KELP_WORKER_API int kelp_worker_global_init(void);

/* ---- opening --------------------------------------------------------------------------------- */

struct kelp_worker_options {
    size_t size;             /* sizeof(struct kelp_worker_options); the rest may be zero but */
    const char *etcd;        /* for these three: "http://127.0.0.1:2379", or several with commas */
    const char *job;         /* the name */
    const char *id;          /* unique in the job; a second one of this id waits for the first */
    const char *spec_sha256; /* of the job's text: another one is refused; NULL: any will do */
    const char *certs;       /* folder with ca.pem, cert.pem, key.pem: mutual TLS; NULL: none */
    const char *shm_folder;  /* as of kelp-worker --shm-folder; NULL: none */
    const char *log_level;   /* "error", "warn", "info", "debug", "trace", to standard error; NULL:
                                "info" */
    uint32_t grace_ms;       /* after kelp_worker_stop(): to see what was submitted used; 0: 5000 */
    uint32_t reserved;       /* 0 */
};

/*
 * Take --etcd, --job, --id, --spec-sha256, --certs, --shm-folder, --log-level and --grace out of
 * the command line; what else there is stays, in order. Those that are not given come from
 * KELP_ETCD, KELP_JOB and so on, which `kelp train` and `kelp node` set: what stays is then
 * model.arguments. Texts are borrowed from argv and the environment. options->size is set by the
 * caller.
 */
KELP_WORKER_API int kelp_worker_options_read(struct kelp_worker_options *options, int *argc,
                                             char **argv);

struct kelp_worker;

/* Wait until etcd and the job are there, saying in the log for what. The options are copied.
 * *ret_worker is owned (kelp_worker_close()). */
KELP_WORKER_API int kelp_worker_open(const struct kelp_worker_options *options,
                                     struct kelp_worker **ret_worker);

/* Leave the job and free everything, the memory of weights and gradients too. A lane that was not
 * submitted is computed by others. NULL does nothing. */
KELP_WORKER_API void kelp_worker_close(struct kelp_worker *worker);

/*
 * The value in effect of a key of the job file (docs/JOB.md), such as "train.batch_size", as text:
 * "64", "true", "mse", "[0.8, 0.2]", a path without quotation marks. INVALID: there is no such key,
 * or text has no room for it; bytes counts the zero at its end.
 */
KELP_WORKER_API int kelp_worker_setting(const struct kelp_worker *worker, const char *key,
                                        char *text, size_t bytes);

/* ---- the plan: what every worker of the job must say alike ------------------------------------
 */

/* How many samples there are to train, validate and test with; fingerprint stands for their
 * content, and workers of other data are refused by it. Required. */
KELP_WORKER_API int kelp_worker_plan_data(struct kelp_worker *worker, uint64_t train,
                                          uint64_t validate, uint64_t test, uint64_t fingerprint);

/*
 * What the bits depend on besides weights and samples: kind names processor and libraries in at
 * most 127 printable characters, answer is a hash of something computed with them. Workers that
 * differ are refused, unless the job has cluster.mixed. Required.
 */
KELP_WORKER_API int kelp_worker_plan_compute(struct kelp_worker *worker, const char *kind,
                                             uint64_t answer);

/* Where answers differ although the kinds are equal: what it may be, in at most 127 printable
 * characters, for the line that refuses a worker ("another loss, model or transforms"). Not
 * compared. */
KELP_WORKER_API int kelp_worker_plan_reasons(struct kelp_worker *worker, const char *reasons);

/*
 * This program adds to a sum of its own by that name (kelp_worker_add_named()). The job must have
 * it in model.sums, which says what people and train.monitor see: INVALID otherwise. It needs not
 * be called; it finds out early.
 */
KELP_WORKER_API int kelp_worker_plan_sum(struct kelp_worker *worker, const char *name);

/* A hash of the program or of its model's text, for the same purpose; 0, the beginning: none. */
KELP_WORKER_API int kelp_worker_plan_program(struct kelp_worker *worker, uint64_t digest);

/* How many samples of an evaluation's lane are computed at once at most (kelp_worker_piece()). 256
 * unless this is called. */
KELP_WORKER_API int kelp_worker_plan_block(struct kelp_worker *worker, uint64_t samples);

enum kelp_worker_init {
    KELP_WORKER_INIT_CONSTANT = 0, /* a */
    KELP_WORKER_INIT_UNIFORM = 1,  /* [-a, a), from the job's seed and the tensor's number */
    KELP_WORKER_INIT_NORMAL = 2,   /* mean 0, standard deviation a, likewise */
    /* The tensor of that name in the job's model.init, a safetensors file. In a job that sets
     * model.init all tensors are that, unless some say so and others do not. */
    KELP_WORKER_INIT_FILE = 3
};

struct kelp_worker_tensor {
    size_t size;           /* sizeof(struct kelp_worker_tensor) */
    const char *name;      /* at most 127 characters, unique in the model */
    const uint64_t *shape; /* [rank], none 0 */
    uint32_t rank;         /* 0 to 8 */
    uint32_t init;         /* enum kelp_worker_init; shards make the values */
    float init_a;
    /* 0: a parameter. Above: a running statistic, such as batch norm's mean. Its gradient is the
     * lane's value times the lane's share of the step's samples, the update w' = (1 - momentum) w +
     * momentum g, and the optimizer does not touch it. */
    float momentum;
    /* 1: held. It keeps the bits that it begins with: no update, no weight decay, no part in the
     * norm of the gradient. Its gradient is not to be written. momentum is 0. */
    uint32_t held;
    uint32_t reserved; /* 0 */
};

/* The next tensor of the model, float32; all is copied. At least one is required. */
KELP_WORKER_API int kelp_worker_plan_tensor(struct kelp_worker *worker,
                                            const struct kelp_worker_tensor *tensor);

/* XXH3-64, for fingerprints, digests and answers. */
KELP_WORKER_API uint64_t kelp_worker_hash(const void *bytes, size_t count);

/* The plan is complete: take part. Where the job has no plan yet it gets this one. Once. */
KELP_WORKER_API int kelp_worker_join(struct kelp_worker *worker);

/* ---- memory, once it has joined ----------------------------------------------------------------
 */

/*
 * Weights and gradients are flat vectors of so many float32, tensors in the order of the plan, each
 * aligned to 64 bytes. What lies between them is zero and must stay so.
 */
KELP_WORKER_API uint64_t kelp_worker_elements(const struct kelp_worker *worker);

/* Where tensor number `tensor` begins in them; UINT64_MAX: there is none. */
KELP_WORKER_API uint64_t kelp_worker_offset(const struct kelp_worker *worker, uint32_t tensor);

/*
 * The two vectors of weights, 0 and 1: their addresses stay until the worker is closed. Those of a
 * lane are in lane.weights, one of the two; the other one changes at any time, on another thread.
 * NULL: there is no such vector.
 */
KELP_WORKER_API const float *kelp_worker_weights(const struct kelp_worker *worker, uint32_t which);

/* ---- lanes -------------------------------------------------------------------------------------
 */

enum kelp_worker_lane_kind {
    KELP_WORKER_TRAIN = 1,    /* a gradient, and the sum of losses */
    KELP_WORKER_VALIDATE = 2, /* sums alone, of the samples to validate with */
    KELP_WORKER_TEST = 3,     /* the same of those to test with */
    /* Of jobs with run.mode predict alone (kelp predict): kelp_worker_predict(). The samples are of
     * the part that the job's run.part names: "train", "val" or "test". */
    KELP_WORKER_PREDICT = 6
};

struct kelp_worker_lane {
    size_t size;            /* set by the caller: sizeof(struct kelp_worker_lane) */
    uint32_t kind;          /* enum kelp_worker_lane_kind */
    uint32_t lane;          /* its number in the step */
    uint64_t samples;       /* of this lane, at least 1 */
    uint64_t step_samples;  /* of all lanes of the step or evaluation */
    uint64_t step;          /* training steps before this one */
    uint32_t epoch;         /* from 0; an evaluation belongs to the epoch before it */
    uint32_t weights_index; /* which of kelp_worker_weights() */
    const float *weights;
    /*
     * Where the gradient goes: of the mean loss over the step's samples, so each sample's counts
     * 1 / step_samples. All elements of all tensors but held ones are to be written, whatever they
     * are before.
     * NULL: no training. A buffer comes again under the same number and at the same address; there
     * are a few, by and by. It is the caller's until the lane is submitted, and not to be touched
     * after that: the library goes on with it.
     */
    float *gradient;
    uint32_t gradient_index; /* counted from 0 */
    uint32_t reserved;
    uint64_t seed; /* 64 bits for random numbers of this lane: a function of job, step and lane */
    double lr;     /* of the step; 0: no training */
};

/*
 * Wait for the next lane with samples. What was submitted is sent here. OVER, STOPPED: there will
 * be none; close the worker. A lane that was not submitted is INVALID.
 */
KELP_WORKER_API int kelp_worker_next_lane(struct kelp_worker *worker,
                                          struct kelp_worker_lane *ret_lane);

/*
 * How many samples of the lane are computed at once, after `done` that were computed before: the
 * pieces of train.accumulate, and the blocks of evaluations. 0: it is done.
 *
 *     for (done = 0; (count = kelp_worker_piece(worker, done)) > 0; done += count)
 */
KELP_WORKER_API uint64_t kelp_worker_piece(const struct kelp_worker *worker, uint64_t done);

/* The numbers, in their part of the data, of samples [first, first + count) of the lane. */
KELP_WORKER_API int kelp_worker_indices(const struct kelp_worker *worker, uint64_t first,
                                        uint64_t count, uint64_t *ret_indices);

/* lane.seed again, for bindings that keep no lane; 0: there is no lane. */
KELP_WORKER_API uint64_t kelp_worker_lane_seed(const struct kelp_worker *worker);

/* ---- lanes to come, for programs that read samples ahead of time ------------------------------
 */

struct kelp_worker_ahead {
    size_t size;      /* set by the caller: sizeof(struct kelp_worker_ahead) */
    uint32_t kind;    /* enum kelp_worker_lane_kind */
    uint32_t lane;    /* its number in the step */
    uint64_t samples; /* of this lane, at least 1 */
    uint64_t step;    /* training steps before this one */
    uint64_t seed;    /* as the lane's will be */
};

/* Begin behind the lane that was handed out. */
KELP_WORKER_API int kelp_worker_ahead_begin(struct kelp_worker *worker);

/* The next of them with samples. A guess: this worker gets it if it keeps its lanes, and training
 * goes on; what a lane has is certain. OVER: there is none. */
KELP_WORKER_API int kelp_worker_ahead_next(struct kelp_worker *worker,
                                           struct kelp_worker_ahead *ret_ahead);

/* kelp_worker_piece() and kelp_worker_indices() of that lane. */
KELP_WORKER_API uint64_t kelp_worker_ahead_piece(const struct kelp_worker *worker, uint64_t done);
KELP_WORKER_API int kelp_worker_ahead_indices(const struct kelp_worker *worker, uint64_t first,
                                              uint64_t count, uint64_t *ret_indices);

/* ---- the lane's results ------------------------------------------------------------------------
 */

enum kelp_worker_sum {
    KELP_WORKER_SUM_LOSS = 0,             /* over samples, of the sample's loss */
    KELP_WORKER_SUM_SQUARED = 2,          /* over elements of the target: of the squared error */
    KELP_WORKER_SUM_ABSOLUTE = 3,         /* of the absolute error */
    KELP_WORKER_SUM_ELEMENTS = 4,         /* how many; a class is one */
    KELP_WORKER_SUM_RELATIVE = 5,         /* of |error / target| */
    KELP_WORKER_SUM_RELATIVE_SQUARED = 6, /* of its square */
    KELP_WORKER_SUM_TARGET = 7,           /* of the target */
    KELP_WORKER_SUM_TARGET_SQUARED = 8,   /* of its square */
    KELP_WORKER_SUM_CORRECT = 9           /* elements whose class is right */
};

/* Add to a sum of the lane, from which metrics are made: those of the sums that are added to, or
 * with --worker-program those of the job's train.loss. A training step needs LOSS alone. How many
 * samples there are is counted inside. */
KELP_WORKER_API int kelp_worker_add(struct kelp_worker *worker, uint32_t sum, double value);

/* Add to a sum of model.sums, by its name: metrics.jsonl has its mean over the samples of an
 * evaluation. In a training step it counts for nothing. */
KELP_WORKER_API int kelp_worker_add_named(struct kelp_worker *worker, const char *name,
                                          double value);

/*
 * Of a KELP_WORKER_PREDICT lane: what the model gives for samples [first, first + count) of the
 * lane, float32[count][width], as kelp predict is to write it. In their order, each sample once;
 * width is the same for all samples of the job. It is written at once.
 */
KELP_WORKER_API int kelp_worker_predict(struct kelp_worker *worker, uint64_t first, uint64_t count,
                                        const float *values, uint64_t width);

/* The lane's gradient and sums, or its predictions, are complete. */
KELP_WORKER_API int kelp_worker_submit(struct kelp_worker *worker);

/*
 * In the middle of a lane that takes long: is it still wanted? Connections and heartbeats go on
 * without this, on a thread of the library: a lane may take minutes, also where nobody polls. OK:
 * go on. STOPPED: finish the lane if that is soon done, else close the worker. OVER, negative:
 * close.
 */
KELP_WORKER_API int kelp_worker_poll(struct kelp_worker *worker);

/* Of the time since the lane was handed out, so many microseconds went into reading samples: kelp
 * status then says of a slow worker what it is slow in. */
KELP_WORKER_API void kelp_worker_spent_reading(struct kelp_worker *worker, uint64_t us);

/* End: kelp_worker_next_lane() sees what was submitted off, and returns STOPPED. A
 * kelp_worker_open() that waits cannot be reached: there is no worker yet. Any thread, not a signal
 * handler. */
KELP_WORKER_API void kelp_worker_stop(struct kelp_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
