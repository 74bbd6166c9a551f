/*
 * The loops of the CPU device. Each file is compiled once for each instruction set, and the variant
 * for the processor is chosen at run time. A loop does the same operations in the same order in
 * every variant, so all give the same bits (tests/unit/kernels/test_optimizer.c, test_ops.c).
 * Private to kernels/ and its tests.
 */
#ifndef KELP_KERNELS_CPU_LOOPS_LOOPS_H
#define KELP_KERNELS_CPU_LOOPS_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/optimizer.h"

/* The name of a table in the variant that is being compiled. */
#ifndef KELP_LOOPS_VARIANT
#define KELP_LOOPS_VARIANT base
#endif
#define KELP_LOOPS_PASTE(name, variant)  name##_##variant
#define KELP_LOOPS_EXPAND(name, variant) KELP_LOOPS_PASTE(name, variant)
#define KELP_LOOPS_NAME(name)            KELP_LOOPS_EXPAND(name, KELP_LOOPS_VARIANT)

/* Each returns false if a gradient element is not finite; see kelp_optimizer_apply(). */
struct kelp_optimizer_loops {
    bool (*sgd)(const struct kelp_optimizer_step *step,
                const struct kelp_optimizer_buffers *buffers, uint64_t count);
    bool (*adam)(const struct kelp_optimizer_step *step,
                 const struct kelp_optimizer_buffers *buffers, uint64_t count);
    bool (*adagrad)(const struct kelp_optimizer_step *step,
                    const struct kelp_optimizer_buffers *buffers, uint64_t count);
    bool (*rmsprop)(const struct kelp_optimizer_step *step,
                    const struct kelp_optimizer_buffers *buffers, uint64_t count);
    bool (*adadelta)(const struct kelp_optimizer_step *step,
                     const struct kelp_optimizer_buffers *buffers, uint64_t count);
    /* `ratio` scales the rate (kelp_lamb_ratio()). */
    bool (*lamb)(const struct kelp_optimizer_step *step,
                 const struct kelp_optimizer_buffers *buffers, uint64_t count, double ratio);
    /* Writes the update that lamb would make with ratio and rate 1 to `direction`; nothing else
     * changes. */
    void (*lamb_direction)(const struct kelp_optimizer_step *step,
                           const struct kelp_optimizer_buffers *buffers, uint64_t count,
                           float *direction);
    /* sums[i]: the squares of x[16 i] to x[16 i + 15], always added in the same order. */
    void (*leaf_squares)(const float *x, uint64_t leaves, double *sums);
    /* w' = (1 - momentum) w + momentum g; slots do not change. */
    bool (*statistic)(float momentum, const struct kelp_optimizer_buffers *buffers, uint64_t count);
    bool (*vector_finite)(const float *values, uint64_t count);
    void (*vector_add)(float *sum, const void *other, uint64_t count);
    /* sum = left + right, floats of any alignment; sum overlaps neither. */
    void (*vector_sum)(float *sum, const void *left, const void *right, uint64_t count);
    /* A copy that bypasses the caches, to whole cache lines: `to` is 64-byte aligned, `count` a
     * multiple of 16. Other threads may read it after vector_streamed(). */
    void (*vector_stream)(float *to, const float *from, uint64_t count);
    void (*vector_streamed)(void);
};

/* Digests; each variant of the optimizers' loops has such a table, too. */
struct kelp_digest_loops {
    void (*whole)(const void *bytes, uint64_t length, uint64_t ret_words[2]);
    /* The same for bytes that come in pieces. */
    void (*begin)(struct kelp_vector_digest *digest);
    void (*add)(struct kelp_vector_digest *digest, const void *bytes, uint64_t length);
    void (*end)(const struct kelp_vector_digest *digest, uint64_t ret_words[2]);
};
/* As kelp__loops_variant(). */
const struct kelp_digest_loops *kelp__digest_variant(uint32_t index);

/* As in kernels/bfloat16.h. */
struct kelp_bfloat16_loops {
    void (*round)(float *values, uint64_t count);
    void (*add)(float *sum, const float *other, uint64_t count);
    void (*add_packed)(void *sum, const void *other, uint64_t count);
    void (*pack)(const float *values, uint64_t count, void *packed);
    void (*unpack)(const void *packed, uint64_t count, float *values);
};

/* The planes of [samples, channels, inner]. */
struct kelp_channels {
    uint32_t samples, channels;
    uint64_t inner;
};

/* y[c][r] = x[r][c] + bias[c], or += x[r][c]; rows of x and of y are ld elements apart. */
struct kelp_turn {
    const float *x;
    uint64_t x_ld;
    float *y;
    uint64_t y_ld;
    uint32_t rows, columns;
    const float *bias; /* NULL: none; ignored with KELP_ACCUMULATE */
    enum kelp_write write;
};

/* The `used` columns `positions` of weights [rows, kernel]. */
struct kelp_taps {
    uint64_t rows;
    uint32_t kernel, used;
    const uint32_t *positions;
};

/* Sizes of one group of a convolution. */
struct kelp_tap_sizes {
    uint32_t inputs, outputs; /* channels; the taps' rows are [outputs, inputs] */
};

/* Loops that convolutions consist of. */
struct kelp_window_loops {
    /* Copy one sample x [channels, input] to columns [channels, kernel, output], with 0 for
     * padding; and add each element of columns to the place that it was copied from. */
    void (*unfold)(const struct kelp_window *window, const float *x, float *columns);
    void (*fold_add)(const struct kelp_window *window, const float *columns, float *x);
    void (*turn)(const struct kelp_turn *turn);
    /* Copy weights [rows, kernel] to [used, rows], and back; unused columns become zero, or with
     * KELP_ACCUMULATE keep their values. */
    void (*gather_taps)(const struct kelp_taps *taps, const float *weights, float *to);
    /* The same, with each tap's rows [outputs, inputs] transposed to [inputs, outputs]. */
    void (*gather_taps_turned)(const struct kelp_taps *taps, struct kelp_tap_sizes sizes,
                               const float *weights, float *to);
    void (*scatter_taps)(const struct kelp_taps *taps, const float *from, float *weights,
                         enum kelp_write write);
    void (*channel_bias_add)(float *y, const float *bias, const struct kelp_channels *sizes);
    void (*channel_bias_gradient)(float *dbias, const float *dy, const struct kelp_channels *sizes,
                                  enum kelp_write write);
};

/* The same operators in each variant: entries of kernels/device.h, as KELP_LOOP(name). They are
 * called with the stream of a fault, or with any other: most do not look at it. */
#define KELP_LOOP(name)              KELP_LOOPS_NAME(kelp__loop_##name)
#define KELP_LOOP_DECLARE(name, ...) void KELP_LOOP(name)(struct kelp_stream * stream, __VA_ARGS__);
KELP_OPERATORS(KELP_LOOP_DECLARE)
#undef KELP_LOOP_DECLARE

/* What a loop cannot compute; it still computes its other rows. */
enum kelp_loop_fault_what { KELP_LOOP_FINE, KELP_LOOP_BAD_ID, KELP_LOOP_BAD_CLASS };
struct kelp_loop_fault {
    enum kelp_loop_fault_what what;
    float value;    /* the number that is not a row of the table, or not a class */
    uint64_t limit; /* how many rows or classes there are */
};

struct kelp__cpu_stream {
    struct kelp_stream base;
    /* What wait() reports: why a matrix product failed, or the first number that is not a class
     * or a row of a table (kelp__cpu_fault()). */
    kelp_status product_failed;
    struct kelp_loop_fault fault;
};

static inline void kelp__cpu_fault(struct kelp_stream *stream, struct kelp_loop_fault fault)
{
    struct kelp_loop_fault *first = &((struct kelp__cpu_stream *)stream)->fault;
    if (first->what == KELP_LOOP_FINE) {
        *first = fault;
    }
}

struct kelp_loops {
    const char *name;      /* "base", "avx2", "avx512": of the optimizers */
    const char *operators; /* "base", "avx2": named by the compute kind */
    const struct kelp_optimizer_loops *optimizer;
    const struct kelp_window_loops *window;
    const struct kelp_bfloat16_loops *bfloat16;
};

/* kelp_optimizer_apply() with the loops of one variant. */
bool kelp__optimizer_update(const struct kelp_optimizer_loops *loops,
                            const struct kelp_optimizer_step *step,
                            const struct kelp_optimizer_buffers *buffers, uint64_t count);

/* The variants that this processor supports, slowest first; NULL after the last. */
const struct kelp_loops *kelp__loops_variant(uint32_t index);
/* The fastest variant. */
const struct kelp_loops *kelp__loops(void);
/* The CPU device with the operators of a variant. A program that only adds vectors does not need
 * it, and so no library for matrix products: libkelp-worker.so. */
const struct kelp_device_table *kelp__cpu_table(const struct kelp_loops *loops);

#endif
