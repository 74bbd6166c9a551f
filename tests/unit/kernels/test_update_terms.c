/* An update that adds up the gradient on its way has the bits of the addition and of the update one
 * after the other: for each optimizer, size, alignment, and wherever the sum goes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "common/tensors/philox.h"
#include "kernels/update.h"
#include "tests/lib/suite.h"

#define TENSORS 3

/* Elements of the largest tensor: around vectors and around blocks of 1024. */
static const uint64_t sizes[] = {1, 15, 16, 17, 33, 975, 991, 992, 993, 1007, 2000, 5001};

/* What takes another way through an update. */
static const struct kelp_job jobs[] = {
    {.train = {.optimizer = KELP_OPTIMIZER_SGD}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .momentum = 0.9, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .clip_norm = 0.25}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAM}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAM, .weight_decay = 0.01, .clip_norm = 0.25}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAMW, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAMW, .amsgrad = true, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAGRAD, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .momentum = 0.9, .centered = true}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADADELTA, .weight_decay = 0.01}},
};

static struct kelp_job job_at(size_t index)
{
    struct kelp_job job = jobs[index];
    job.train.lr = 0.05;
    job.train.beta1 = 0.9;
    job.train.beta2 = 0.999;
    job.train.alpha = 0.99;
    job.train.rho = 0.9;
    return job;
}

static struct kelp_plan plan;
static struct kelp_update update;
static struct kelp_optimizer_step step;

/* The arrays of one update; terms are bytes, so that they can begin anywhere. */
struct arrays {
    float *weights, *next, *slots[KELP_OPTIMIZER_SLOTS_MAX], *sum;
    char *left, *right;
};

static struct arrays apart, fused;

static float *floats(uint64_t count, uint32_t stream)
{
    float *values = aligned_alloc(64, (count + 16) * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint64_t i = 0; i < count + 16; i += 4) {
        uint32_t words[4];
        kelp_philox(7, KELP_PHILOX_TEST, stream, i, words);
        for (uint64_t k = 0; k < 4; k++) {
            values[i + k] = kelp_philox_float(words[k]) - 0.5f;
        }
    }
    return values;
}

static struct arrays arrays_new(void)
{
    const uint64_t count = plan.flat_count;
    struct arrays arrays = {.weights = floats(count, 1),
                            .next = floats(count, 2),
                            .sum = floats(count, 3),
                            .left = (char *)floats(count, 4),
                            .right = (char *)floats(count, 5)};
    for (uint32_t i = 0; i < KELP_OPTIMIZER_SLOTS_MAX; i++) {
        arrays.slots[i] = floats(count, 6 + i);
        for (uint64_t e = 0; e < count; e++) {
            arrays.slots[i][e] = fabsf(arrays.slots[i][e]); /* also averages of squares */
        }
    }
    return arrays;
}

static void arrays_free(struct arrays *arrays)
{
    void *all[] = {arrays->weights, arrays->next, arrays->sum, arrays->left, arrays->right};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(all); i++) {
        free(all[i]);
    }
    for (uint32_t i = 0; i < KELP_OPTIMIZER_SLOTS_MAX; i++) {
        free(arrays->slots[i]);
    }
}

/* A decaying tensor of so many elements, a statistic, and one that does not decay. */
static void open_update(const struct kelp_job *job, uint64_t size)
{
    const uint64_t counts[TENSORS] = {size, 20, 33};

    plan = (struct kelp_plan){.tensor_count = TENSORS};
    plan.tensors = calloc(TENSORS, sizeof(*plan.tensors));
    ck_assert_ptr_nonnull(plan.tensors);
    for (uint32_t i = 0; i < TENSORS; i++) {
        struct kelp_tensor *tensor = &plan.tensors[i];
        (void)snprintf(tensor->name, sizeof(tensor->name), "tensor-%u", i);
        tensor->rank = 1;
        tensor->shape[0] = counts[i];
        tensor->decays = i == 0;
        tensor->statistic = i == 1;
        tensor->momentum = i == 1 ? 0.1f : 0.0f;
    }
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 1, NULL), KELP_OK);
    ck_assert_int_eq(kelp_update_init(&update, job, &plan,
                                      (struct kelp_slice_range){.count = plan.flat_count}, NULL),
                     KELP_OK);
    kelp_optimizer_prepare(&step, job, job->train.lr, 3);
    apart = arrays_new();
    fused = arrays_new();
}

static void close_update(void)
{
    arrays_free(&apart);
    arrays_free(&fused);
    kelp_update_fini(&update);
    kelp_plan_fini(&plan);
}

static float float_at(const char *bytes, uint64_t i)
{
    float value;
    memcpy(&value, bytes + i * sizeof(value), sizeof(value));
    return value;
}

/* One addition after the other, which no compiler joins with what follows. */
static void add_apart(const char *left, const char *right)
{
    for (uint64_t i = 0; i < plan.flat_count; i++) {
        volatile float sum = float_at(left, i);
        if (right) {
            sum = sum + float_at(right, i);
        }
        apart.sum[i] = sum;
    }
}

static struct kelp_optimizer_buffers buffers_of(const struct arrays *arrays)
{
    return (struct kelp_optimizer_buffers){
        .weights = arrays->weights,
        .weights_next = arrays->next,
        .slots = {arrays->slots[0], arrays->slots[1], arrays->slots[2]}};
}

static bool apply(const struct kelp_optimizer_buffers *buffers)
{
    double value = 0.375; /* the factor of a norm */
    const struct kelp_step_decision decision = {.count = 1, .values = &value};

    return kelp_update_apply(&update, &step, &decision, buffers);
}

static void expect_same_results(void)
{
    const size_t bytes = plan.flat_count * sizeof(float);

    ck_assert_mem_eq(fused.next, apart.next, bytes);
    for (uint32_t i = 0; i < KELP_OPTIMIZER_SLOTS_MAX; i++) {
        ck_assert_mem_eq(fused.slots[i], apart.slots[i], bytes);
    }
}

static void expect_digest_of_sum(const uint64_t digest[2])
{
    uint64_t words[2];

    kelp_digest_bytes_words(apart.sum, plan.flat_count * sizeof(float), words);
    ck_assert_mem_eq(digest, words, sizeof(words));
}

enum place { NOWHERE, ELSEWHERE, IN_PLACE, PLACES };

/* Every way in which terms can lie: `way` counts through them. */
static struct kelp_gradient_terms terms_of(unsigned way, uint64_t *digest)
{
    const enum place place = way % PLACES;
    const size_t shift = way / PLACES % 4; /* bytes */
    const bool alone = way % 7 == 6 && place != IN_PLACE;
    struct kelp_gradient_terms terms = {.digest = way % 2 == 0 ? digest : NULL};

    memmove(fused.right + 5 * shift, fused.right, plan.flat_count * sizeof(float));
    terms.right = alone ? NULL : fused.right + 5 * shift;
    if (place != IN_PLACE) {
        memmove(fused.left + shift, fused.left, plan.flat_count * sizeof(float));
    }
    terms.left = place == IN_PLACE ? fused.left : fused.left + shift;
    terms.sum = place == NOWHERE     ? NULL
                : place == ELSEWHERE ? fused.sum
                                     : (float *)(void *)fused.left;
    return terms;
}

#define WAYS 28u

/* ---- terms in pieces ---- */

/* Bytes of the pieces that a term is cut into, in turn: within a float, around blocks of 4 KiB, and
 * nothing at all. */
static const size_t cuts[][3] = {{1, 2, 3},       {4, 64, 5},       {4096, 4096, 4096},
                                 {4097, 4095, 0}, {9001, 1, 12345}, {7, 0, 8192}};

struct pieces {
    struct kelp_gradient_piece *list;
    char **copies;
    size_t count;
};

/* A term in pieces of memory of their own, so that whatever is read beside them is noticed. */
static const void *cut(const void *term, unsigned way, struct pieces *ret_pieces,
                       struct kelp_gradient_rest *ret_rest)
{
    const size_t bytes = plan.flat_count * sizeof(float);
    const size_t *lengths = cuts[way % KELP_ARRAY_COUNT(cuts)];
    const size_t most = 3 * (bytes / (lengths[0] + lengths[1] + lengths[2]) + 1) + 1;
    size_t at = 0;

    *ret_pieces = (struct pieces){.list = calloc(most, sizeof(*ret_pieces->list)),
                                  .copies = calloc(most, sizeof(*ret_pieces->copies))};
    ck_assert(ret_pieces->list && ret_pieces->copies);
    for (size_t i = 0; at < bytes; i++) {
        ck_assert_uint_lt(i, most);
        const size_t length = lengths[i % 3] < bytes - at ? lengths[i % 3] : bytes - at;
        ret_pieces->copies[i] = malloc(length);
        ck_assert(ret_pieces->copies[i] || length == 0);
        if (length > 0) {
            memcpy(ret_pieces->copies[i], (const char *)term + at, length);
        }
        ret_pieces->list[i] =
            (struct kelp_gradient_piece){.bytes = ret_pieces->copies[i], .length = length};
        at += length;
        ret_pieces->count++;
    }
    *ret_rest = (struct kelp_gradient_rest){.next = ret_pieces->list + 1,
                                            .here = ret_pieces->list[0].length};
    return ret_pieces->list[0].bytes;
}

static void pieces_free(struct pieces *pieces)
{
    for (size_t i = 0; i < pieces->count; i++) {
        free(pieces->copies[i]);
    }
    free(pieces->list);
    free(pieces->copies);
}

/* What terms_of() made, cut up: both, or the one that takes no sum in its place. */
struct cut_terms {
    struct pieces left, right;
};

static void cut_terms(struct kelp_gradient_terms *terms, unsigned way, struct cut_terms *ret_cut)
{
    *ret_cut = (struct cut_terms){.left = {.count = 0}};
    if (terms->left != terms->sum) {
        terms->left = cut(terms->left, way, &ret_cut->left, &terms->left_rest);
    }
    if (terms->right && (way % 5 != 4 || terms->left == terms->sum)) {
        terms->right = cut(terms->right, way + 1, &ret_cut->right, &terms->right_rest);
    }
}

static void cut_terms_free(struct cut_terms *cut)
{
    pieces_free(&cut->left);
    pieces_free(&cut->right);
}

KELP_CASE("one pass", .timeout_s = 120)

/* … the same bits, and the sum and its digest where they are wanted. */
KELP_LOOP_TEST(applies_as_two_passes_do, 0, KELP_ARRAY_COUNT(jobs))
{
    const struct kelp_job job = job_at((size_t)_i);

    for (size_t s = 0; s < KELP_ARRAY_COUNT(sizes); s++) {
        for (unsigned way = 0; way < WAYS; way++) {
            uint64_t digest[2] = {0, 0};
            open_update(&job, sizes[s]);
            struct kelp_optimizer_buffers buffers = buffers_of(&fused);
            buffers.terms = terms_of(way, digest);
            add_apart(buffers.terms.left, buffers.terms.right);
            struct kelp_optimizer_buffers plain = buffers_of(&apart);
            plain.gradient = apart.sum;
            ck_assert(apply(&plain));
            ck_assert(apply(&buffers));
            expect_same_results();
            if (buffers.terms.sum) {
                ck_assert_mem_eq(buffers.terms.sum, apart.sum, plan.flat_count * sizeof(float));
            }
            if (buffers.terms.digest) {
                expect_digest_of_sum(digest);
            }
            close_update();
        }
    }
}

/* … what a step's decision needs, and the gradient for the pass after it. */
KELP_LOOP_TEST(measures_as_two_passes_do, 0, KELP_ARRAY_COUNT(sizes))
{
    static const struct kelp_job deciding[] = {
        {.train = {.optimizer = KELP_OPTIMIZER_SGD, .clip_norm = 1}},
        {.train = {.optimizer = KELP_OPTIMIZER_ADAM}, .failure = {.on_nan = KELP_NAN_SKIP}},
        {.train = {.optimizer = KELP_OPTIMIZER_LAMB, .beta1 = 0.9, .beta2 = 0.999}}};

    for (size_t j = 0; j < KELP_ARRAY_COUNT(deciding); j++) {
        for (unsigned way = 0; way < WAYS; way++) {
            uint64_t digest[2] = {0, 0};
            struct kelp_decision_share first, second;
            open_update(&deciding[j], sizes[_i]);
            struct kelp_optimizer_buffers buffers = buffers_of(&fused);
            buffers.terms = terms_of(way, digest);
            if (!buffers.terms.sum) {
                buffers.terms.sum = fused.sum; /* the pass after this one reads it */
            }
            add_apart(buffers.terms.left, buffers.terms.right);
            struct kelp_optimizer_buffers plain = buffers_of(&apart);
            plain.gradient = apart.sum;
            kelp_update_measure(&update, &step, &plain, &first);
            kelp_update_measure(&update, &step, &buffers, &second);
            ck_assert_uint_eq(first.count, second.count);
            ck_assert_mem_eq(first.values, second.values, first.count * sizeof(first.values[0]));
            ck_assert_double_eq(first.values[KELP_DECISION_SHARE_FINITE], 1.0);
            ck_assert_mem_eq(buffers.terms.sum, apart.sum, plan.flat_count * sizeof(float));
            if (buffers.terms.digest) {
                expect_digest_of_sum(digest);
            }
            close_update();
        }
    }
}

/* The same of terms that came in pieces, however they were cut. */
KELP_LOOP_TEST(pieces_have_the_same_bits, 0, KELP_ARRAY_COUNT(jobs))
{
    const struct kelp_job job = job_at((size_t)_i);

    for (size_t s = 0; s < KELP_ARRAY_COUNT(sizes); s++) {
        for (unsigned way = 0; way < 2 * WAYS; way++) {
            uint64_t digest[2] = {0, 0};
            struct kelp_decision_share first, second;
            struct cut_terms cut;
            open_update(&job, sizes[s]);
            struct kelp_optimizer_buffers buffers = buffers_of(&fused);
            buffers.terms = terms_of(way % WAYS, digest);
            add_apart(buffers.terms.left, buffers.terms.right);
            cut_terms(&buffers.terms, way, &cut);
            struct kelp_optimizer_buffers plain = buffers_of(&apart);
            plain.gradient = apart.sum;
            if (buffers.terms.sum == fused.sum) { /* elsewhere, so that it may be made twice */
                kelp_update_measure(&update, &step, &plain, &first);
                kelp_update_measure(&update, &step, &buffers, &second);
                ck_assert_mem_eq(first.values, second.values,
                                 first.count * sizeof(first.values[0]));
            }
            ck_assert(apply(&plain));
            ck_assert(apply(&buffers));
            expect_same_results();
            if (buffers.terms.sum) {
                ck_assert_mem_eq(buffers.terms.sum, apart.sum, plan.flat_count * sizeof(float));
            }
            if (buffers.terms.digest) {
                expect_digest_of_sum(digest);
            }
            cut_terms_free(&cut);
            close_update();
        }
    }
}

/* A sum that is not finite is noticed wherever it stands, also where its terms are finite. */
KELP_TEST(what_is_not_finite_is_noticed)
{
    static const float wrong[][2] = {
        {INFINITY, 1.0f}, {1.0f, NAN}, {INFINITY, -INFINITY}, {3e38f, 3e38f}, {-3e38f, -3e38f}};
    const struct kelp_job job = {.train = {.optimizer = KELP_OPTIMIZER_SGD}};

    open_update(&job, 2000);
    struct kelp_optimizer_buffers buffers = buffers_of(&fused);
    buffers.terms = (struct kelp_gradient_terms){.left = fused.left, .right = fused.right};
    for (uint64_t at = 0; at < plan.flat_count; at += 13) {
        const float saved[2] = {float_at(fused.left, at), float_at(fused.right, at)};
        const float *pair = wrong[at % KELP_ARRAY_COUNT(wrong)];
        struct kelp_decision_share share;
        memcpy(fused.left + at * sizeof(float), &pair[0], sizeof(float));
        memcpy(fused.right + at * sizeof(float), &pair[1], sizeof(float));
        ck_assert(!apply(&buffers));
        kelp_update_measure(&update, &step, &buffers, &share);
        ck_assert_double_eq(share.values[KELP_DECISION_SHARE_FINITE], 0.0);
        memcpy(fused.left + at * sizeof(float), &saved[0], sizeof(float));
        memcpy(fused.right + at * sizeof(float), &saved[1], sizeof(float));
        ck_assert(apply(&buffers));
    }
    close_update();
}

/* Slices that no cache holds are written past the caches: the same bits, also where the weights
 * begin elsewhere than a cache line does. */
KELP_LOOP_TEST(large_slices_have_the_same_bits, 0, 2)
{
    const struct kelp_job job = {
        .train = {.optimizer = KELP_OPTIMIZER_SGD, .lr = 0.5, .weight_decay = 0.01}};
    const uint64_t size = (UINT64_C(1) << 22) + 17;
    struct kelp_optimizer_step bare;

    open_update(&job, size);
    bare = step;
    kelp_optimizer_leave_decay(&bare);
    add_apart(apart.left, apart.right);
    struct kelp_optimizer_buffers plain = buffers_of(&apart);
    plain.gradient = apart.sum;
    ck_assert(kelp_optimizer_apply(&step, &plain, plan.tensors[1].offset));
    struct kelp_optimizer_buffers buffers = buffers_of(&fused);
    buffers.weights_next += _i;
    buffers.terms = (struct kelp_gradient_terms){.left = fused.left, .right = fused.right};
    ck_assert(apply(&buffers));
    ck_assert_mem_eq(buffers.weights_next, apart.next, plan.tensors[1].offset * sizeof(float));
    const uint64_t last = plan.tensors[2].offset;
    for (uint64_t e = plan.tensors[1].offset; e < plan.flat_count; e++) {
        const float w = apart.weights[e], g = apart.sum[e];
        const float product = 0.1f * g, average = w * 0.9f, change = bare.lr * g;
        ck_assert_float_eq(buffers.weights_next[e], e < last ? average + product : w - change);
    }
    buffers.gradient = apart.sum; /* one that is there already */
    memset(fused.next, 0, plan.flat_count * sizeof(float));
    ck_assert(apply(&buffers));
    ck_assert_mem_eq(buffers.weights_next, apart.next, plan.tensors[1].offset * sizeof(float));
    close_update();
}
