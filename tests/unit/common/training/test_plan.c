#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"
#include "common/training/plan.h"
#include "tests/lib/suite.h"

static struct kelp_plan plan;
static struct kelp_error error;

static void name_tensor(uint32_t index, const char *name, uint32_t rank, const uint64_t *shape)
{
    struct kelp_tensor *tensor = &plan.tensors[index];

    (void)snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    tensor->rank = rank;
    for (uint32_t i = 0; i < rank; i++) {
        tensor->shape[i] = shape[i];
    }
}

static void setup(void)
{
    memset(&plan, 0, sizeof(plan));
    plan.tensors = calloc(3, sizeof(*plan.tensors));
    ck_assert_ptr_nonnull(plan.tensors);
    plan.tensor_count = 3;
    plan.samples[KELP_SPLIT_TRAIN] = 8449;
    plan.samples[KELP_SPLIT_VAL] = 2785;
    plan.data_fingerprint = UINT64_C(0xfedcba9876543210);
    plan.compute_answer = 5;
    (void)snprintf(plan.compute_kind, sizeof(plan.compute_kind), "cpu \"avx2\" openblas-0.3");
    name_tensor(0, "linear.weight", 2, (const uint64_t[]){96, 5});
    name_tensor(1, "linear.bias", 1, (const uint64_t[]){5});
    name_tensor(2, "scale", 0, NULL);
    plan.tensors[0].init = KELP_INIT_UNIFORM;
    plan.tensors[0].init_a = 0.1f;
    plan.tensors[1].init = KELP_INIT_CONSTANT;
    plan.tensors[1].init_a = 1.0f / 3;
    plan.tensors[2].init = KELP_INIT_FILE;
    plan.tensors[0].decays = true;
    plan.tensors[2].statistic = true;
    plan.tensors[2].momentum = 0.1f;
}

static void teardown(void)
{
    kelp_plan_fini(&plan);
}

static void lay_out(uint32_t max_shards)
{
    ck_assert_msg(kelp_plan_lay_out(&plan, max_shards, &error) == KELP_OK, "%s", error.text);
}

KELP_CASE("plan", .setup = setup, .teardown = teardown)

/* Tensors start at multiples of 16 elements, in order; the flat vector is padded to one. */
KELP_TEST(test_lay_out)
{
    lay_out(4);
    ck_assert_uint_eq(plan.tensors[0].offset, 0);
    ck_assert_uint_eq(plan.tensors[0].elem_count, 480);
    ck_assert_uint_eq(plan.tensors[1].offset, 480);
    ck_assert_uint_eq(plan.tensors[2].offset, 496);
    ck_assert_uint_eq(plan.tensors[2].elem_count, 1);
    ck_assert_uint_eq(plan.flat_count, 512);
    ck_assert_uint_eq(plan.partition_count, 1); /* 2 KiB: not worth cutting */
}

/* The formula of docs/PROTOCOL.md: 4 for each possible shard, but not below 64 KiB; one for each,
 * but not below 4 KiB; one for each 4 MiB; never over 1024. */
KELP_TEST(test_partition_counts)
{
    static const struct {
        uint64_t elements;
        uint32_t max_shards;
        uint32_t partitions;
    } cases[] = {
        {18624, 4, 4},        {18624, 1, 2},
        {4096, 4, 4},         {1025, 4, 2},
        {5 << 14, 4, 5},      {(5 << 14) + 1, 4, 6},
        {1 << 18, 4, 16},     {1 << 24, 4, 16},
        {1 << 25, 4, 32},     {1 << 20, 1, 4},
        {1 << 20, 100, 100},  {1 << 20, 1000, 1000},
        {1 << 24, 300, 1024}, {UINT64_C(1) << 33, 4, 1024},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        plan.tensor_count = 1;
        name_tensor(0, "w", 1, &cases[i].elements);
        lay_out(cases[i].max_shards);
        ck_assert_msg(plan.partition_count == cases[i].partitions, "case %zu: %u", i,
                      plan.partition_count);
    }
}

/* Mistakes in tensors are refused by name. */
KELP_TEST(test_lay_out_refuses)
{
    name_tensor(1, "scale", 1, (const uint64_t[]){5});
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "scale"));
    name_tensor(1, "bias", 1, (const uint64_t[]){0});
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_ERR_INVALID);
    name_tensor(1, "bias", 2, (const uint64_t[]){UINT64_C(1) << 40, UINT64_C(1) << 40});
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_ERR_LIMIT);
    name_tensor(1, "bias", 2, (const uint64_t[]){UINT64_C(1) << 32, UINT64_C(1) << 32});
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_ERR_LIMIT);
    plan.tensor_count = 0;
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_ERR_LIMIT);
}

/* The text gives the same plan, and that plan the same text. */
KELP_TEST(test_round_trip)
{
    char *text, *again, difference[256];
    struct kelp_plan parsed;

    lay_out(4);
    ck_assert_int_eq(kelp_plan_print(&plan, &text, &error), KELP_OK);
    ck_assert_msg(kelp_plan_parse(text, strlen(text), &parsed, &error) == KELP_OK, "%s",
                  error.text);
    ck_assert(!kelp_plan_difference(&plan, &parsed, false, difference, sizeof(difference)));
    ck_assert_uint_eq(parsed.flat_count, plan.flat_count);
    ck_assert_uint_eq(parsed.tensors[2].offset, plan.tensors[2].offset);
    ck_assert_float_eq(parsed.tensors[1].init_a, 1.0f / 3);
    ck_assert(parsed.tensors[0].decays && !parsed.tensors[0].statistic);
    ck_assert(!parsed.tensors[1].decays && !parsed.tensors[1].statistic);
    ck_assert(!parsed.tensors[2].decays && parsed.tensors[2].statistic);
    ck_assert_float_eq(parsed.tensors[2].momentum, 0.1f);
    ck_assert_int_eq(kelp_plan_print(&parsed, &again, &error), KELP_OK);
    ck_assert_str_eq(text, again);
    kelp_plan_fini(&parsed);
    free(text);
    free(again);
}

/* What a tensor's update may be is checked. */
KELP_TEST(test_parse_update)
{
    static const char *const wrong[] = {"\"momentum\":1.5",
                                        "\"momentum\":-0.1",
                                        "\"momentum\":null",
                                        "\"momentum\":\"0.1\"",
                                        "\"momentum\":0.1,\"decays\":false",
                                        "\"decays\":true",
                                        "\"decays\":0"};
    char *text, changed[1024];
    struct kelp_plan parsed;

    lay_out(4);
    ck_assert_int_eq(kelp_plan_print(&plan, &text, &error), KELP_OK);
    const char *at = strstr(text, "\"decays\":false");
    ck_assert_ptr_nonnull(at);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        (void)snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, wrong[i],
                       at + strlen("\"decays\":false"));
        ck_assert_msg(kelp_plan_parse(changed, strlen(changed), &parsed, &error) == KELP_ERR_FORMAT,
                      "%s", changed);
        ck_assert_ptr_nonnull(strstr(error.text, "tensors[1]"));
    }
    free(text);
}

/* Parameters decay but those that a pattern names; a pattern that names none is refused. */
KELP_TEST(test_mark_decays)
{
    static const struct {
        const char *patterns;
        bool decays[2];
    } cases[] = {{"", {true, true}},
                 {"*.bias", {true, false}},
                 {"linear.*", {false, false}},
                 {"*", {false, false}},
                 {"linear.????", {true, false}},
                 {"linear.bias\nlinear.weight", {false, false}},
                 {"*a*.*g*t", {false, true}},
                 {"**ear.b*s*", {true, false}}};
    static const char *const none[] = {"*.bias\nlinear", "scale",  "linear.bia", "?",
                                       "inear.bias",     "*.bias?"};
    static struct kelp_job job;

    lay_out(4);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        (void)snprintf(job.train.decay_exclude, sizeof(job.train.decay_exclude), "%s",
                       cases[i].patterns);
        ck_assert_int_eq(kelp_plan_mark_decays(&plan, &job, &error), KELP_OK);
        ck_assert_msg(plan.tensors[0].decays == cases[i].decays[0], "%s", cases[i].patterns);
        ck_assert_msg(plan.tensors[1].decays == cases[i].decays[1], "%s", cases[i].patterns);
        ck_assert(!plan.tensors[2].decays);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(none); i++) {
        (void)snprintf(job.train.decay_exclude, sizeof(job.train.decay_exclude), "%s", none[i]);
        ck_assert_msg(kelp_plan_mark_decays(&plan, &job, &error) == KELP_ERR_INVALID, "%s",
                      none[i]);
        ck_assert_ptr_nonnull(strstr(error.text, "train.decay_exclude: no parameter's name"));
    }
}

/* Each cut of a plan's text is refused. */
KELP_TEST(test_parse_truncated)
{
    char *text;
    struct kelp_plan parsed;

    lay_out(4);
    (void)snprintf(plan.compute_reasons, sizeof(plan.compute_reasons), "another loss");
    ck_assert_int_eq(kelp_plan_print(&plan, &text, &error), KELP_OK);
    for (size_t bytes = 0; bytes < strlen(text); bytes++) {
        ck_assert_int_eq(kelp_plan_parse(text, bytes, &parsed, &error), KELP_ERR_FORMAT);
    }
    free(text);
}

/* Another kind is refused with both, and with what would be right: a portable kind cannot become
 * more so. */
KELP_TEST(test_compute_kinds)
{
    static const char native[] = "cpu x86_64 avx2 openblas-0.3.21 Zen onednn-2.6.3 avx2 threads=1";
    static const char other[] =
        "cpu x86_64 avx2 openblas-0.3.21 SkylakeX onednn-2.6.3 avx512_core threads=1";
    static const char portable[] = "cpu portable x86-64-v3 openblas-0.3.21 Haswell threads=1";
    static const char newer[] = "cpu portable x86-64-v3 openblas-0.3.26 Haswell threads=1";
    static const char gpu[] = "cuda sm_90 sms=132 cuda-13.0 cublaslt-13.1.0 4567cdef float32";
    static const char with_cudnn[] =
        "cuda sm_90 sms=132 cuda-13.0 cublaslt-13.1.0 4567cdef cudnn-9.19.0 0123abcd float32";
    static const char newer_cudnn[] =
        "cuda sm_90 sms=132 cuda-13.0 cublaslt-13.1.0 4567cdef cudnn-9.20.0 0123abce float32";
    static const char without_cudnn[] =
        "(cluster.cudnn: never computes without cuDNN on all; cluster.mixed: true lets it in)";
    static const struct {
        const char *ours, *theirs, *advice;
    } cases[] = {
        {gpu, with_cudnn, without_cudnn},
        {with_cudnn, newer_cudnn, without_cudnn},
        {native, other,
         "(cluster.compute: portable is one kind for all with the same OpenBLAS; cluster.mixed: "
         "true lets it in)"},
        {portable, native, "(cluster.mixed: true lets it in)"},
        {native, portable, "(cluster.mixed: true lets it in)"},
        {portable, newer, "(cluster.mixed: true lets it in)"},
    };
    char text[512], expected[512];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_plan ours = {.samples = {1}}, theirs = {.samples = {1}};
        (void)snprintf(ours.compute_kind, sizeof(ours.compute_kind), "%s", cases[i].ours);
        (void)snprintf(theirs.compute_kind, sizeof(theirs.compute_kind), "%s", cases[i].theirs);
        ck_assert_int_eq(kelp_plan_difference(&ours, &theirs, false, text, sizeof(text)),
                         KELP_PLAN_COMPUTE);
        (void)snprintf(expected, sizeof(expected), "compute kind %s differs from %s %s",
                       cases[i].ours, cases[i].theirs, cases[i].advice);
        ck_assert_str_eq(text, expected);
        ck_assert(kelp_plan_is_portable(&ours) == (strstr(cases[i].ours, "portable") != NULL));
    }
}

/* What differs is named, and cluster.mixed forgives the compute kind alone. */
KELP_TEST(test_difference)
{
    char text[256], *json;
    struct kelp_plan other;

    lay_out(4);
    ck_assert_int_eq(kelp_plan_print(&plan, &json, &error), KELP_OK);
    ck_assert_int_eq(kelp_plan_parse(json, strlen(json), &other, &error), KELP_OK);
    other.compute_answer = 6;
    ck_assert_int_eq(kelp_plan_difference(&other, &plan, false, text, sizeof(text)),
                     KELP_PLAN_COMPUTE);
    ck_assert_ptr_nonnull(strstr(text, "known answer 0000000000000006 differs"));
    ck_assert_ptr_nonnull(strstr(text, " (cluster.mixed: true lets it in)"));
    (void)snprintf(plan.compute_reasons, sizeof(plan.compute_reasons), "another \"loss\"");
    ck_assert_int_eq(kelp_plan_difference(&other, &plan, false, text, sizeof(text)),
                     KELP_PLAN_COMPUTE);
    ck_assert_ptr_nonnull(strstr(text, ": another \"loss\" (cluster.mixed: true lets it in)"));
    ck_assert_ptr_nonnull(strstr(text, "before the first step, 0000000000000006 differs"));
    ck_assert_ptr_null(strstr(text, "kernel"));
    other.compute_answer = plan.compute_answer; /* reasons alone are no difference */
    ck_assert(!kelp_plan_difference(&other, &plan, false, text, sizeof(text)));
    ck_assert(!kelp_plan_difference(&other, &plan, true, text, sizeof(text)));
    other.tensors[2].momentum = 0.2f;
    ck_assert_int_eq(kelp_plan_difference(&other, &plan, true, text, sizeof(text)),
                     KELP_PLAN_MODEL);
    ck_assert_ptr_nonnull(strstr(text, "(scale)"));
    other.tensors[1].decays = true;
    ck_assert(kelp_plan_difference(&other, &plan, true, text, sizeof(text)));
    ck_assert_ptr_nonnull(strstr(text, "linear.bias"));
    other.tensors[1].decays = false;
    other.tensors[1].shape[0] = 6;
    ck_assert(kelp_plan_difference(&other, &plan, true, text, sizeof(text)));
    ck_assert_ptr_nonnull(strstr(text, "linear.bias"));
    other.data_fingerprint = 1;
    ck_assert(kelp_plan_difference(&other, &plan, true, text, sizeof(text)));
    ck_assert_ptr_nonnull(strstr(text, "data fingerprint 0000000000000001 differs from fedc"));
    other.samples[KELP_SPLIT_VAL] = 1;
    ck_assert_int_eq(kelp_plan_difference(&other, &plan, true, text, sizeof(text)), KELP_PLAN_DATA);
    ck_assert_ptr_nonnull(strstr(text, "validation split has 1 samples, not 2785"));
    kelp_plan_fini(&other);
    free(json);
}

/* S_0 does not depend on how it is cut, lies within its bounds, and follows the seed. */
KELP_TEST(test_initialise)
{
    static struct kelp_job job;
    float whole[512], piece[512];

    plan.tensors[2].init = KELP_INIT_CONSTANT;
    lay_out(4);
    job.seed = 1;
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, NULL, (struct kelp_slice_range){0, 512}, whole, &error),
        KELP_OK);
    for (uint64_t first = 0; first < 512; first += 7) {
        uint64_t count = first + 30 <= 512 ? 30 : 512 - first;
        ck_assert_int_eq(kelp_plan_initialise(&plan, &job, NULL,
                                              (struct kelp_slice_range){first, count}, piece,
                                              &error),
                         KELP_OK);
        ck_assert_mem_eq(piece, whole + first, count * sizeof(float));
    }
    float smallest = 1, largest = -1;
    for (int i = 0; i < 480; i++) {
        smallest = fminf(smallest, whole[i]);
        largest = fmaxf(largest, whole[i]);
    }
    ck_assert(smallest >= -0.1f && smallest < -0.098f);
    ck_assert(largest < 0.1f && largest > 0.098f);
    ck_assert_float_eq(whole[480], 1.0f / 3);
    ck_assert_float_eq(whole[485], 0.0f);
    job.seed = 2;
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, NULL, (struct kelp_slice_range){0, 512}, piece, &error),
        KELP_OK);
    ck_assert_float_ne(whole[0], piece[0]);
}

/* Normal values have their mean and deviation, and do not depend on how they are cut. */
KELP_TEST(test_initialise_normal)
{
    static struct kelp_job job = {.seed = 3};
    static float whole[65536], piece[64];
    const uint64_t count = 65536;
    double sum = 0, squares = 0;
    uint32_t beyond = 0;

    plan.tensor_count = 1;
    name_tensor(0, "embedding", 1, &count);
    plan.tensors[0].init = KELP_INIT_NORMAL;
    plan.tensors[0].init_a = 0.5f;
    lay_out(4);
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, NULL, (struct kelp_slice_range){0, count}, whole, &error),
        KELP_OK);
    for (uint64_t i = 0; i < count; i++) {
        sum += (double)whole[i];
        squares += (double)whole[i] * (double)whole[i];
        beyond += fabsf(whole[i]) > 1.0f ? 1 : 0; /* two deviations */
    }
    ck_assert_double_eq_tol(sum / 65536, 0.0, 0.008);
    ck_assert_double_eq_tol(squares / 65536, 0.25, 0.006);
    ck_assert_double_eq_tol(beyond / 65536.0, 0.0455, 0.004);
    for (uint64_t first = 0; first < 4000; first += 61) {
        ck_assert_int_eq(kelp_plan_initialise(&plan, &job, NULL,
                                              (struct kelp_slice_range){first, 64}, piece, &error),
                         KELP_OK);
        ck_assert_mem_eq(piece, whole + first, sizeof(piece));
    }
}

/* Tensors of model.init are read under their prefix; a missing or misshapen one is named. */
KELP_TEST(test_initialise_from_file)
{
    static struct kelp_job job;
    static const char header[] =
        "{\"init.scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}";
    unsigned char bytes[256];
    uint64_t header_bytes = sizeof(header) - 1;
    float value = 2.5f, values[16];
    struct kelp_safetensors *file;

    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, header, header_bytes);
    memcpy(bytes + 8 + header_bytes, &value, 4);
    ck_assert_int_eq(kelp_safetensors_open_memory("m", bytes, 12 + header_bytes, &file, &error),
                     KELP_OK);
    lay_out(4);
    (void)snprintf(job.model.init_prefix, sizeof(job.model.init_prefix), "init.");
    ck_assert_msg(kelp_plan_initialise(&plan, &job, file, (struct kelp_slice_range){496, 16},
                                       values, &error) == KELP_OK,
                  "%s", error.text);
    ck_assert_float_eq(values[0], 2.5f);
    ck_assert_float_eq(values[1], 0.0f);
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, NULL, (struct kelp_slice_range){496, 16}, values, &error),
        KELP_ERR_INVALID);
    (void)snprintf(job.model.init_prefix, sizeof(job.model.init_prefix), "Init.");
    ck_assert_int_eq(kelp_plan_check_init(&plan, &job, file, &error), KELP_OK);
    (void)snprintf(job.model.init_prefix, sizeof(job.model.init_prefix), "init.");
    name_tensor(2, "scale", 1, (const uint64_t[]){1});
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, file, (struct kelp_slice_range){496, 16}, values, &error),
        KELP_ERR_MISMATCH);
    ck_assert_int_eq(kelp_plan_check_init(&plan, &job, file, &error), KELP_ERR_MISMATCH);

    /* A running statistic may be missing where it is about to be learned, and there alone. */
    job.model.init_prefix[0] = '\0';
    plan.tensors[2].init_a = 1.0f;
    ck_assert_int_eq(kelp_plan_check_init(&plan, &job, file, &error), KELP_OK);
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, file, (struct kelp_slice_range){496, 16}, values, &error),
        KELP_OK);
    ck_assert_float_eq(values[0], 1.0f);
    job.run.mode = KELP_RUN_EVALUATE;
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, file, (struct kelp_slice_range){496, 16}, values, &error),
        KELP_ERR_NOT_FOUND);
    job.run.mode = KELP_RUN_TRAIN;
    plan.tensors[2].statistic = false;
    ck_assert_int_eq(
        kelp_plan_initialise(&plan, &job, file, (struct kelp_slice_range){496, 16}, values, &error),
        KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_plan_check_init(&plan, &job, file, &error), KELP_ERR_NOT_FOUND);
    ck_assert_str_eq(
        error.text,
        "m: no tensor scale; the file has init.scale: set model.init_prefix to 'init.'");
    kelp_safetensors_close(file);
}

/* The canonical form is what docs/PROTOCOL.md says: the expected digits come from xxhsum -H2 over
 * bytes written by another program. */
KELP_TEST(test_digest)
{
    float flat[32] = {1, 2, 3};
    char hex[33], other[33];

    plan.tensor_count = 2;
    name_tensor(0, "a.weight", 1, (const uint64_t[]){3});
    name_tensor(1, "b", 0, NULL);
    lay_out(4);
    flat[16] = 0.5f;
    kelp_plan_digest(&plan, flat, hex);
    ck_assert_str_eq(hex, "0643b6fb405e362da8346d05974a6a03");
    flat[4] = 9; /* padding does not count */
    kelp_plan_digest(&plan, flat, other);
    ck_assert_str_eq(hex, other);
    flat[2] = 9;
    kelp_plan_digest(&plan, flat, other);
    ck_assert_str_ne(hex, other);
}
