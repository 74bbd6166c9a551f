/* What programs of libkelp-worker.so.1 were built with, which no later header may change. */
#include <kelp/worker.h>
#include <stddef.h>

#define IS(what, value) _Static_assert((what) == (value), #what " is no longer " #value)
#define AT(type, field, offset)                                                                    \
    _Static_assert(offsetof(struct type, field) == (offset), #field " is elsewhere")

IS(KELP_WORKER_ABI, 1);
IS(sizeof(struct kelp_worker_options), 72);
AT(kelp_worker_options, size, 0);
AT(kelp_worker_options, etcd, 8);
AT(kelp_worker_options, job, 16);
AT(kelp_worker_options, id, 24);
AT(kelp_worker_options, spec_sha256, 32);
AT(kelp_worker_options, certs, 40);
AT(kelp_worker_options, shm_folder, 48);
AT(kelp_worker_options, log_level, 56);
AT(kelp_worker_options, grace_ms, 64);
IS(sizeof(struct kelp_worker_tensor), 48); /* 40 at first */
AT(kelp_worker_tensor, name, 8);
AT(kelp_worker_tensor, shape, 16);
AT(kelp_worker_tensor, rank, 24);
AT(kelp_worker_tensor, init, 28);
AT(kelp_worker_tensor, init_a, 32);
AT(kelp_worker_tensor, momentum, 36);
AT(kelp_worker_tensor, held, 40);
AT(kelp_worker_tensor, reserved, 44);
IS(sizeof(struct kelp_worker_lane), 88);
AT(kelp_worker_lane, kind, 8);
AT(kelp_worker_lane, lane, 12);
AT(kelp_worker_lane, samples, 16);
AT(kelp_worker_lane, step_samples, 24);
AT(kelp_worker_lane, step, 32);
AT(kelp_worker_lane, epoch, 40);
AT(kelp_worker_lane, weights_index, 44);
AT(kelp_worker_lane, weights, 48);
AT(kelp_worker_lane, gradient, 56);
AT(kelp_worker_lane, gradient_index, 64);
AT(kelp_worker_lane, seed, 72);
AT(kelp_worker_lane, lr, 80);
IS(sizeof(struct kelp_worker_ahead), 40);
AT(kelp_worker_ahead, kind, 8);
AT(kelp_worker_ahead, lane, 12);
AT(kelp_worker_ahead, samples, 16);
AT(kelp_worker_ahead, step, 24);
AT(kelp_worker_ahead, seed, 32);
IS(KELP_WORKER_OK, 0);
IS(KELP_WORKER_OVER, 1);
IS(KELP_WORKER_STOPPED, 2);
IS(KELP_WORKER_INVALID, -1);
IS(KELP_WORKER_FAILED, -2);
IS(KELP_WORKER_INIT_CONSTANT, 0);
IS(KELP_WORKER_INIT_UNIFORM, 1);
IS(KELP_WORKER_INIT_NORMAL, 2);
IS(KELP_WORKER_INIT_FILE, 3);
IS(KELP_WORKER_TRAIN, 1);
IS(KELP_WORKER_VALIDATE, 2);
IS(KELP_WORKER_TEST, 3);
IS(KELP_WORKER_PREDICT, 6);
IS(KELP_WORKER_SUM_LOSS, 0);
IS(KELP_WORKER_SUM_SQUARED, 2);
IS(KELP_WORKER_SUM_ABSOLUTE, 3);
IS(KELP_WORKER_SUM_ELEMENTS, 4);
IS(KELP_WORKER_SUM_RELATIVE, 5);
IS(KELP_WORKER_SUM_RELATIVE_SQUARED, 6);
IS(KELP_WORKER_SUM_TARGET, 7);
IS(KELP_WORKER_SUM_TARGET_SQUARED, 8);
IS(KELP_WORKER_SUM_CORRECT, 9);

/* Functions keep their types, too. */
const char *(*const version)(void) = kelp_worker_version;
const char *(*const error)(void) = kelp_worker_error;
int (*const exit_status)(int) = kelp_worker_exit_status;
int (*const global_init)(void) = kelp_worker_global_init;
int (*const options_read)(struct kelp_worker_options *, int *, char **) = kelp_worker_options_read;
int (*const open_worker)(const struct kelp_worker_options *,
                         struct kelp_worker **) = kelp_worker_open;
void (*const close_worker)(struct kelp_worker *) = kelp_worker_close;
int (*const setting)(const struct kelp_worker *, const char *, char *,
                     size_t) = kelp_worker_setting;
int (*const plan_data)(struct kelp_worker *, uint64_t, uint64_t, uint64_t,
                       uint64_t) = kelp_worker_plan_data;
int (*const plan_compute)(struct kelp_worker *, const char *, uint64_t) = kelp_worker_plan_compute;
int (*const plan_reasons)(struct kelp_worker *, const char *) = kelp_worker_plan_reasons;
int (*const plan_sum)(struct kelp_worker *, const char *) = kelp_worker_plan_sum;
int (*const add_named)(struct kelp_worker *, const char *, double) = kelp_worker_add_named;
int (*const plan_program)(struct kelp_worker *, uint64_t) = kelp_worker_plan_program;
int (*const plan_block)(struct kelp_worker *, uint64_t) = kelp_worker_plan_block;
int (*const plan_tensor)(struct kelp_worker *,
                         const struct kelp_worker_tensor *) = kelp_worker_plan_tensor;
uint64_t (*const hash)(const void *, size_t) = kelp_worker_hash;
int (*const join)(struct kelp_worker *) = kelp_worker_join;
uint64_t (*const elements)(const struct kelp_worker *) = kelp_worker_elements;
uint64_t (*const offset)(const struct kelp_worker *, uint32_t) = kelp_worker_offset;
const float *(*const weights)(const struct kelp_worker *, uint32_t) = kelp_worker_weights;
int (*const next_lane)(struct kelp_worker *, struct kelp_worker_lane *) = kelp_worker_next_lane;
uint64_t (*const piece)(const struct kelp_worker *, uint64_t) = kelp_worker_piece;
int (*const indices)(const struct kelp_worker *, uint64_t, uint64_t,
                     uint64_t *) = kelp_worker_indices;
uint64_t (*const lane_seed)(const struct kelp_worker *) = kelp_worker_lane_seed;
int (*const ahead_begin)(struct kelp_worker *) = kelp_worker_ahead_begin;
int (*const ahead_next)(struct kelp_worker *, struct kelp_worker_ahead *) = kelp_worker_ahead_next;
uint64_t (*const ahead_piece)(const struct kelp_worker *, uint64_t) = kelp_worker_ahead_piece;
int (*const ahead_indices)(const struct kelp_worker *, uint64_t, uint64_t,
                           uint64_t *) = kelp_worker_ahead_indices;
int (*const add)(struct kelp_worker *, uint32_t, double) = kelp_worker_add;
int (*const predict)(struct kelp_worker *, uint64_t, uint64_t, const float *,
                     uint64_t) = kelp_worker_predict;
int (*const submit)(struct kelp_worker *) = kelp_worker_submit;
int (*const poll)(struct kelp_worker *) = kelp_worker_poll;
void (*const spent_reading)(struct kelp_worker *, uint64_t) = kelp_worker_spent_reading;
void (*const stop)(struct kelp_worker *) = kelp_worker_stop;
