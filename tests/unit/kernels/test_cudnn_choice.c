/* Which of cuDNN's algorithms is taken, and what a shape is in its words. No GPU is needed. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/conv2d/cudnn_choice.h"
#include "tests/lib/suite.h"

KELP_CASE("cudnn_choice", .timeout_s = 10)

#define DETERMINISTIC     .determinism = KELP_CUDNN_DETERMINISTIC
#define NON_DETERMINISTIC .determinism = 0

static int choose(enum kelp__cudnn_direction direction, enum kelp_product_precision precision,
                  const struct kelp__cudnn_candidate *candidates, int count)
{
    return kelp__cudnn_choose(direction, precision, candidates, count);
}

KELP_TEST(the_first_that_is_deterministic)
{
    const struct kelp__cudnn_candidate some[] = {
        {.algorithm = KELP_CUDNN_FORWARD_GEMM, NON_DETERMINISTIC, .time = 1.0f},
        {.algorithm = KELP_CUDNN_FORWARD_IMPLICIT_GEMM, DETERMINISTIC, .time = 9.0f},
        {.algorithm = KELP_CUDNN_FORWARD_DIRECT, DETERMINISTIC, .time = 0.1f},
    };
    ck_assert_int_eq(choose(KELP_CUDNN_FORWARD, KELP_PRODUCT_FLOAT32, some, 3), 1);
    ck_assert_int_eq(choose(KELP_CUDNN_FORWARD, KELP_PRODUCT_FLOAT32, some, 1), -1);
    ck_assert_int_eq(choose(KELP_CUDNN_FORWARD, KELP_PRODUCT_FLOAT32, some, 0), -1);
    ck_assert_int_eq(choose(KELP_CUDNN_FORWARD, KELP_PRODUCT_FLOAT32, some + 2, 1), 0);
}

KELP_TEST(no_more_workspace_than_there_may_be)
{
    struct kelp__cudnn_candidate some[] = {
        {.algorithm = KELP_CUDNN_FILTER_1,
         DETERMINISTIC,
         .workspace = KELP_CUDNN_WORKSPACE_MAX + 1},
        {.algorithm = KELP_CUDNN_FILTER_1, DETERMINISTIC, .workspace = KELP_CUDNN_WORKSPACE_MAX},
    };
    ck_assert_int_eq(choose(KELP_CUDNN_FILTER, KELP_PRODUCT_FLOAT32, some, 2), 1);
    some[1].workspace = SIZE_MAX; /* it cannot be run so */
    ck_assert_int_eq(choose(KELP_CUDNN_FILTER, KELP_PRODUCT_FLOAT32, some, 2), -1);
}

KELP_TEST(what_failed_is_not_taken)
{
    const struct kelp__cudnn_candidate some[] = {
        {.algorithm = KELP_CUDNN_DATA_1, DETERMINISTIC, .status = 3000},
        {.algorithm = KELP_CUDNN_DATA_WINOGRAD, DETERMINISTIC},
    };
    ck_assert_int_eq(choose(KELP_CUDNN_DATA, KELP_PRODUCT_FLOAT32, some, 2), 1);
}

/* Fourier transforms, Winograd's algorithm with large tiles, those that add up in any order, and
 * those that are not known: whatever is said of their determinism. */
KELP_TEST(algorithms_that_are_never_taken)
{
    static const bool taken[KELP_CUDNN_DIRECTIONS][9] = {
        [KELP_CUDNN_FORWARD] = {true, true, true, true, false, false, true},
        [KELP_CUDNN_DATA] = {false, true, false, false, true},
        [KELP_CUDNN_FILTER] = {false, true},
    };
    for (int direction = 0; direction < KELP_CUDNN_DIRECTIONS; direction++) {
        for (int algorithm = 0; algorithm < 9; algorithm++) {
            const struct kelp__cudnn_candidate one = {.algorithm = algorithm, DETERMINISTIC};
            ck_assert_msg((choose((enum kelp__cudnn_direction)direction, KELP_PRODUCT_TF32, &one,
                                  1) == 0) == taken[direction][algorithm],
                          "direction %d, algorithm %d", direction, algorithm);
        }
    }
}

/* float32 is asked for and run as FMA, whatever is listed; TensorFloat-32 comes with the others,
 * and float16 never. */
KELP_TEST(math)
{
    static const bool taken[][4] = {[KELP_PRODUCT_FLOAT32] = {true, false, false, true},
                                    [KELP_PRODUCT_TF32] = {true, true, false, true},
                                    [KELP_PRODUCT_BFLOAT16] = {true, true, false, true}};
    ck_assert_int_eq(kelp__cudnn_math_of(KELP_PRODUCT_FLOAT32), KELP_CUDNN_MATH_FMA);
    ck_assert_int_eq(kelp__cudnn_math_of(KELP_PRODUCT_TF32), KELP_CUDNN_MATH_DEFAULT);
    ck_assert_int_eq(kelp__cudnn_math_of(KELP_PRODUCT_BFLOAT16), KELP_CUDNN_MATH_DEFAULT);
    for (int precision = KELP_PRODUCT_FLOAT32; precision <= KELP_PRODUCT_BFLOAT16; precision++) {
        const enum kelp_product_precision asked = (enum kelp_product_precision)precision;
        for (int math = 0; math < 4; math++) {
            const struct kelp__cudnn_candidate one = {
                .algorithm = KELP_CUDNN_DATA_1, DETERMINISTIC, .math = math};
            ck_assert_int_eq(choose(KELP_CUDNN_DATA, asked, &one, 1),
                             taken[precision][math] ? 0 : -1);
            ck_assert_int_eq(kelp__cudnn_math_for(asked, &one),
                             asked == KELP_PRODUCT_FLOAT32 ? (int)KELP_CUDNN_MATH_FMA : math);
        }
    }
}

KELP_TEST(tensors)
{
    static const uint32_t sides[] = {5, 7};
    static const int sizes[] = {2, 3, 5, 7}, first[] = {105, 35, 7, 1}, last[] = {105, 1, 21, 3};
    struct kelp__cudnn_tensor tensor = kelp__cudnn_tensor_of(2, 3, sides, KELP_CHANNELS_FIRST);
    ck_assert_mem_eq(tensor.sizes, sizes, sizeof(sizes));
    ck_assert_mem_eq(tensor.strides, first, sizeof(first));
    tensor = kelp__cudnn_tensor_of(2, 3, sides, KELP_CHANNELS_LAST);
    ck_assert_mem_eq(tensor.sizes, sizes, sizeof(sizes));
    ck_assert_mem_eq(tensor.strides, last, sizeof(last));
}

static struct kelp_conv2d_shape shape_of(uint32_t channels, uint32_t side, uint32_t kernel,
                                         uint32_t channels_out, uint32_t groups)
{
    return (struct kelp_conv2d_shape){.window = {.channels = channels,
                                                 .input = {side, side},
                                                 .kernel = {kernel, kernel},
                                                 .stride = {1, 1},
                                                 .output = {side - kernel + 1, side - kernel + 1}},
                                      .channels_out = channels_out,
                                      .groups = groups};
}

/* A tensor's elements are counted in 31 bits, those of x as those of y. */
KELP_TEST(samples_that_can_be_counted)
{
    struct kelp_conv2d_shape shape = shape_of(64, 112, 1, 32, 1);
    ck_assert_uint_eq(kelp__cudnn_samples_max(&shape), INT32_MAX / (64 * 112 * 112));
    shape.channels_out = 128;
    ck_assert_uint_eq(kelp__cudnn_samples_max(&shape), INT32_MAX / (128 * 112 * 112));
    shape = shape_of(1, 1, 1, INT32_MAX, 1);
    ck_assert_uint_eq(kelp__cudnn_samples_max(&shape), 1);
    shape = shape_of(65536, 1, 1, 65536, 1); /* weights that cannot */
    ck_assert_uint_eq(kelp__cudnn_samples_max(&shape), 0);
    shape = shape_of(65536, 1, 1, 65536, 4);
    ck_assert_uint_eq(kelp__cudnn_samples_max(&shape), INT32_MAX / 65536);
    shape = shape_of(1, 3, 3, 1, 1);
    shape.window.stride[1] = (uint32_t)INT32_MAX + 1;
    ck_assert_uint_eq(kelp__cudnn_samples_max(&shape), 0);
}

/* Only where [out][in][kernel] and [out][kernel][in] are not the same. */
KELP_TEST(filters_that_are_turned)
{
    struct kelp_conv2d_shape shape = shape_of(4, 9, 3, 8, 1);
    ck_assert(!kelp__cudnn_turns_filter(&shape));
    shape.window.layout = KELP_CHANNELS_LAST;
    ck_assert(kelp__cudnn_turns_filter(&shape));
    shape.groups = 4; /* one channel each */
    ck_assert(!kelp__cudnn_turns_filter(&shape));
    shape = shape_of(4, 9, 1, 8, 1);
    shape.window.layout = KELP_CHANNELS_LAST;
    ck_assert(!kelp__cudnn_turns_filter(&shape));
}
