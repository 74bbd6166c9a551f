/* Lanes: pieces of a lane add up to it, and a lane over which a batch norm cannot work is refused
 * before anything starts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/tensors/safetensors.h"
#include "common/training/control.h"
#include "kernels/bfloat16.h"
#include "tests/lib/suite.h"
#include "worker/compute/lanes.h"
#include "worker/compute/node_sum.h"
#include "worker/core/schedule.h"

static struct kelp_job_file *file;
static struct kelp_gradient_pool *pool;
static struct kelp_error error;

static const char job_text[] = "name: lanes\n"
                               "model:\n"
                               "  kind: dlinear\n"
                               "  kernel_size: 5\n"
                               "data:\n"
                               "  kind: synthetic\n"
                               "  features: M\n"
                               "  rows: 400\n"
                               "  seq_len: 12\n"
                               "  pred_len: 4\n"
                               "  split: [200, 50, 50]\n"
                               "train:\n"
                               "  epochs: 1\n"
                               "  batch_size: 23\n"
                               "cluster:\n"
                               "  lanes: 2\n";

static void setup(void)
{
    file = kelp_job_file_create();
    ck_assert_ptr_nonnull(file);
    const kelp_status status = kelp_job_file_parse(file, "job", job_text, strlen(job_text), &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static void teardown(void)
{
    kelp_gradient_pool_destroy(pool);
    pool = NULL;
    kelp_job_file_destroy(file);
}

static void set(const char *key, const char *value)
{
    const kelp_status status = kelp_job_file_set(file, key, value, KELP_ORIGIN_FLAG, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static kelp_status open_lanes(struct kelp_lanes **ret_lanes)
{
    const kelp_status status = kelp_job_file_finish(file, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return kelp_lanes_create(kelp_job_file_job(file), ret_lanes, &error);
}

static struct kelp_gradient *take_buffer(void *user)
{
    return kelp_gradient_get(user);
}

/* What was told of the last lane of a node, and the node's values as they were then. */
static struct {
    struct kelp_node_sum sum;
    struct kelp_gradient *lane;
    const struct kelp_gradient *gradient;
    float *values; /* NULL: nobody asks */
    uint64_t first;
    uint32_t calls;
} told;

static void take_ready(void *user, uint64_t first)
{
    (void)user;
    ck_assert_uint_le(first, told.first);
    const struct kelp_gradient *gradient =
        kelp_node_sum_add_values(&told.sum, told.lane, first, told.first - first);
    ck_assert(told.calls == 0 || gradient == told.gradient);
    memcpy(told.values + first, gradient->values + first,
           (size_t)(told.first - first) * sizeof(*told.values));
    told.gradient = gradient;
    told.first = first;
    told.calls++;
}

/* As kelp_lanes_node(), with the last lane piece by piece. */
static kelp_status node_in_pieces(struct kelp_lanes *lanes, uint32_t count,
                                  struct kelp_gradient **ret_gradient)
{
    static const struct kelp_lanes_ready ready = {.tell = take_ready};
    kelp_status status = KELP_OK;

    kelp_node_sum_begin(&told.sum, 0, count);
    for (uint32_t i = 0; i < count && status == KELP_OK; i++) {
        const bool last = i + 1 == count;
        told.lane = kelp_gradient_get(pool);
        told.first = kelp_lanes_plan(lanes)->flat_count;
        ck_assert_ptr_nonnull(told.lane);
        status = kelp_lanes_lane(lanes, i, told.lane, last ? &ready : NULL, &error);
        *ret_gradient = kelp_node_sum_add_rest(&told.sum, told.lane, told.first);
    }
    return status;
}

/* The whole gradient of the first training step, from the initial weights. */
static struct kelp_gradient *first_step(struct kelp_lanes *lanes, float **ret_weights,
                                        struct kelp_control_word *ret_word)
{
    const struct kelp_job *job = kelp_job_file_job(file);
    const struct kelp_plan *plan = kelp_lanes_plan(lanes);
    struct kelp_control_state state;
    struct kelp_gradient *gradient = NULL;
    float *weights = calloc((size_t)plan->flat_count, sizeof(*weights));
    ck_assert_ptr_nonnull(weights);
    ck_assert_int_eq(kelp_plan_initialise(plan, job, NULL,
                                          (struct kelp_slice_range){0, plan->flat_count}, weights,
                                          &error),
                     KELP_OK);
    kelp_control_init(&state, job, plan);
    kelp_control_word(&state, job, plan, ret_word);
    ck_assert_int_eq(ret_word->kind, KELP_STEP_TRAIN);
    ck_assert_int_eq(kelp_lanes_begin(lanes, ret_word, weights, &error), KELP_OK);
    kelp_gradient_pool_destroy(pool);
    pool = kelp_gradient_pool_create(plan->flat_count, job->transport.precision);
    ck_assert_ptr_nonnull(pool);
    const kelp_status status =
        told.values
            ? node_in_pieces(lanes, job->cluster.lanes, &gradient)
            : kelp_lanes_node(lanes, 0, job->cluster.lanes,
                              &(struct kelp_lanes_buffers){.get = take_buffer, .user = pool},
                              &gradient, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    *ret_weights = weights;
    return gradient;
}

KELP_SUITE(.fork_each = true)
KELP_CASE("lanes", .setup = setup, .teardown = teardown)

/* With any number of pieces, also more than there are samples, the same gradient and sums but for
 * rounding: every sample once. */
KELP_LOOP_TEST(test_pieces_add_up, 0, 4)
{
    static const char *const pieces[] = {"2", "3", "11", "64"};
    struct kelp_lanes *lanes;
    struct kelp_control_word word;
    float *weights;
    ck_assert_int_eq(open_lanes(&lanes), KELP_OK);
    const uint64_t count = kelp_lanes_plan(lanes)->flat_count;
    struct kelp_gradient *whole = first_step(lanes, &weights, &word);
    float *expected = malloc((size_t)count * sizeof(*expected));
    double sums[KELP_METRIC_SUM_SCALARS], largest = 0.0;
    ck_assert_ptr_nonnull(expected);
    memcpy(expected, whole->values, (size_t)count * sizeof(*expected));
    memcpy(sums, whole->sums, sizeof(sums));
    kelp_gradient_unref(whole);
    kelp_lanes_destroy(lanes);
    free(weights);
    for (uint64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)expected[i]));
    }
    ck_assert_double_gt(largest, 0.0);

    set("train.accumulate", pieces[_i]);
    ck_assert_int_eq(open_lanes(&lanes), KELP_OK);
    struct kelp_gradient *gradient = first_step(lanes, &weights, &word);
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_double_eq_tol((double)gradient->values[i], (double)expected[i], 1e-5 * largest);
    }
    ck_assert_double_eq_tol(gradient->sums[KELP_METRIC_SUM_LOSS], sums[KELP_METRIC_SUM_LOSS],
                            1e-5 * fabs(sums[KELP_METRIC_SUM_LOSS]));
    ck_assert_double_eq(gradient->sums[KELP_METRIC_SUM_SAMPLES], 23.0);
    kelp_gradient_unref(gradient);
    kelp_lanes_destroy(lanes);
    free(weights);
    free(expected);
}

/* Each bit of a sum that a node has, however many of its lanes were computed here: every node is
 * rounded, on its way up to the sum of all, and what travels has the same values. */
KELP_TEST(test_bfloat16_rounds_every_node)
{
    struct kelp_lanes *lanes;
    struct kelp_control_word word;
    float *weights;
    set("transport.precision", "bfloat16");
    set("cluster.lanes", "4");
    ck_assert_int_eq(open_lanes(&lanes), KELP_OK);
    const uint64_t count = kelp_lanes_plan(lanes)->flat_count;
    struct kelp_gradient *whole = first_step(lanes, &weights, &word);
    const struct kelp_lanes_buffers buffers = {.get = take_buffer, .user = pool};
    struct kelp_gradient *nodes[4];
    for (uint32_t lane = 0; lane < 4; lane++) {
        ck_assert_int_eq(kelp_lanes_node(lanes, lane, 1, &buffers, &nodes[lane], &error), KELP_OK);
        kelp_gradient_pack(nodes[lane], 0, count);
    }
    uint64_t odd = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &whole->values[i], sizeof(bits));
        ck_assert_uint_eq(bits & 0xffffu, 0);
        float sums[2];
        for (uint32_t half = 0; half < 2; half++) {
            sums[half] = nodes[2 * half]->values[i] + nodes[2 * half + 1]->values[i];
            kelp_bfloat16_round(&sums[half], 1);
        }
        float root = sums[0] + sums[1];
        odd += root != whole->values[i]; /* where the root's own rounding shows */
        kelp_bfloat16_round(&root, 1);
        ck_assert_float_eq(root, whole->values[i]);
    }
    ck_assert_uint_gt(odd, 0);
    for (uint32_t lane = 0; lane < 4; lane++) {
        float *values = malloc((size_t)count * sizeof(*values));
        ck_assert_ptr_nonnull(values);
        kelp_bfloat16_unpack(kelp_gradient_bytes(nodes[lane], 0), count, values);
        ck_assert_mem_eq(values, nodes[lane]->values, (size_t)count * sizeof(*values));
        free(values);
        kelp_gradient_unref(nodes[lane]);
    }
    kelp_gradient_unref(whole);
    kelp_lanes_destroy(lanes);
    free(weights);
}

/* Told piece by piece, the last tensors first, a node has the bits that it has when it is added at
 * once, and what was told does not change any more. With one lane, with several, with pieces of a
 * lane, with lanes that have no samples, with rounded values. */
KELP_LOOP_TEST(test_ready_piece_by_piece, 0, 10)
{
    static const struct {
        const char *lanes, *pieces, *batch;
    } cases[] = {
        {"1", "1", "23"}, {"2", "1", "23"}, {"8", "1", "23"}, {"4", "3", "23"}, {"16", "1", "5"}};
    struct kelp_lanes *lanes;
    struct kelp_control_word word;
    float *weights;
    set("cluster.lanes", cases[_i / 2].lanes);
    set("train.accumulate", cases[_i / 2].pieces);
    set("train.batch_size", cases[_i / 2].batch);
    set("transport.precision", _i % 2 == 0 ? "float32" : "bfloat16");
    ck_assert_int_eq(open_lanes(&lanes), KELP_OK);
    const uint64_t count = kelp_lanes_plan(lanes)->flat_count;
    struct kelp_gradient *whole = first_step(lanes, &weights, &word);
    float *expected = malloc((size_t)count * sizeof(*expected));
    double sums[KELP_METRIC_SUM_SCALARS];
    ck_assert_ptr_nonnull(expected);
    memcpy(expected, whole->values, (size_t)count * sizeof(*expected));
    memcpy(sums, whole->sums, sizeof(sums));
    kelp_gradient_unref(whole);
    free(weights);

    told.values = malloc((size_t)count * sizeof(*told.values));
    ck_assert_ptr_nonnull(told.values);
    struct kelp_gradient *gradient = first_step(lanes, &weights, &word);
    ck_assert(gradient->present);
    ck_assert_mem_eq(gradient->values, expected, (size_t)count * sizeof(*expected));
    ck_assert_mem_eq(gradient->sums, sums, sizeof(sums));
    ck_assert_uint_ge(told.calls, 2);
    ck_assert_uint_eq(told.first, 0);
    ck_assert_ptr_eq(told.gradient, gradient);
    ck_assert_mem_eq(told.values, expected, (size_t)count * sizeof(*expected));
    kelp_gradient_unref(gradient);
    kelp_lanes_destroy(lanes);
    free(weights);
    free(expected);
    free(told.values);
    told.values = NULL;
}

/* Weights that are not there are not read: the elements that were asked for are put in place one
 * tensor after the other. A node ends when they are not to come. */
static struct {
    const float *weights;
    float *shown;
    uint32_t calls, most;
} coming;

static bool await_weights(void *user, uint64_t first, uint64_t count)
{
    (void)user;
    if (coming.calls++ == coming.most) {
        return false;
    }
    memcpy(coming.shown + first, coming.weights + first, (size_t)count * sizeof(float));
    return true;
}

KELP_LOOP_TEST(test_waits_for_weights, 0, 3)
{
    struct kelp_lanes *lanes;
    struct kelp_control_word word;
    struct kelp_gradient *gradient = NULL;
    float *weights;
    ck_assert_int_eq(open_lanes(&lanes), KELP_OK);
    const struct kelp_plan *plan = kelp_lanes_plan(lanes);
    struct kelp_gradient *whole = first_step(lanes, &weights, &word);
    coming.weights = weights;
    coming.shown = malloc((size_t)plan->flat_count * sizeof(float));
    coming.most = _i == 0 ? UINT32_MAX : (uint32_t)_i - 1;
    ck_assert_ptr_nonnull(coming.shown);
    for (uint64_t i = 0; i < plan->flat_count; i++) {
        coming.shown[i] = NAN;
    }
    kelp_lanes_await(lanes, await_weights, NULL);
    ck_assert_int_eq(kelp_lanes_begin(lanes, &word, coming.shown, &error), KELP_OK);
    const kelp_status status =
        kelp_lanes_node(lanes, 0, 2, &(struct kelp_lanes_buffers){.get = take_buffer, .user = pool},
                        &gradient, &error);
    if (_i == 0) {
        ck_assert_int_eq(status, KELP_OK);
        ck_assert_mem_eq(gradient->values, whole->values, (size_t)plan->flat_count * sizeof(float));
        ck_assert_uint_eq(coming.calls, 2 * plan->tensor_count); /* for each of two lanes */
    } else {
        ck_assert_int_eq(status, KELP_ERR_BUSY);
        ck_assert_str_eq(error.text, "the weights of this step will not come");
        ck_assert_uint_eq(coming.calls, (unsigned)_i);
    }
    kelp_gradient_unref(gradient);
    kelp_gradient_unref(whole);
    kelp_lanes_destroy(lanes);
    free(weights);
    free(coming.shown);
}

/* Pieces cover their lane in order, without gap or overlap. */
KELP_LOOP_TEST(test_pieces_cover, 0, 30)
{
    for (uint32_t pieces = 1; pieces < 40; pieces++) {
        const struct kelp_schedule_range lane = {.first = 7, .count = (uint64_t)_i};
        uint64_t next = lane.first;
        for (uint32_t p = 0; p < pieces; p++) {
            const struct kelp_schedule_range piece = kelp_schedule_piece(lane, p, pieces);
            ck_assert_uint_eq(piece.first, next);
            ck_assert_uint_le(piece.count, (lane.count + pieces - 1) / pieces);
            next += piece.count;
        }
        ck_assert_uint_eq(next, lane.first + lane.count);
    }
}

/* ---- batch norm ---- */

/* Fifty rows for the fare model, in a file of a folder of this test. */
static void write_rows(char *folder, char *path, size_t path_bytes)
{
    static float numbers[50 * 6], value[50];
    static const uint64_t numbers_shape[] = {50, 6}, value_shape[] = {50};
    const struct kelp_safetensors_item items[] = {
        {.name = "numbers",
         .dtype = KELP_DTYPE_F32,
         .rank = 2,
         .shape = numbers_shape,
         .data = numbers},
        {.name = "value", .dtype = KELP_DTYPE_F32, .rank = 1, .shape = value_shape, .data = value},
    };
    for (uint32_t i = 0; i < 300; i++) {
        numbers[i] = (float)(i * 7 % 13) - 6.0f;
    }
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, path_bytes, "%s/rows.safetensors", folder);
    const kelp_status status = kelp_safetensors_write(path, items, 2, NULL, 0, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static const char fare_text[] = "name: lanes\n"
                                "model: {kind: fare}\n"
                                "data: {kind: tensors, input_name: [numbers], target_name: value}\n"
                                "train: {epochs: 1}\n";

/* Jobs whose lanes would have one sample alone in some step are refused with what would help, and
 * others are not. */
KELP_LOOP_TEST(test_batch_norm, 0, 8)
{
    static const struct {
        const char *batch, *lanes, *pieces, *drop_last;
        const char *text; /* NULL: it works */
    } cases[] = {
        {"12", "4", "1", "false", "the last step of an epoch has 2 samples for 4 lanes"},
        {"12", "4", "1", "true", NULL},
        {"7", "4", "1", "true", "cluster.lanes 4 and train.accumulate 1 cut train.batch_size 7"},
        {"8", "4", "1", "true", NULL},
        {"8", "4", "2", "true", "cluster.lanes 4 and train.accumulate 2 cut train.batch_size 8"},
        {"7", "1", "1", "false", "the last step of an epoch has 1 samples for 1 lanes"},
        {"10", "1", "1", "false", NULL},
        {"25", "8", "3", "false", "cut train.batch_size 25 too small"},
    };
    char folder[] = "/tmp/kelp-lanes-XXXXXX", path[64];
    struct kelp_lanes *lanes = NULL;
    kelp_job_file_destroy(file);
    file = kelp_job_file_create();
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(kelp_job_file_parse(file, "job", fare_text, strlen(fare_text), &error),
                     KELP_OK);
    write_rows(folder, path, sizeof(path));
    set("data.path", path);
    set("train.batch_size", cases[_i].batch);
    set("cluster.lanes", cases[_i].lanes);
    set("train.accumulate", cases[_i].pieces);
    set("train.drop_last", cases[_i].drop_last);
    const kelp_status status = open_lanes(&lanes);
    (void)unlink(path);
    (void)rmdir(folder);
    if (cases[_i].text == NULL) {
        ck_assert_msg(status == KELP_OK, "%s", error.text);
        kelp_lanes_destroy(lanes);
        return;
    }
    ck_assert_int_eq(status, KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, cases[_i].text) != NULL, "%s", error.text);
    ck_assert_msg(strstr(error.text, "layer bn1: a batch norm over one sample") != NULL, "%s",
                  error.text);
}
