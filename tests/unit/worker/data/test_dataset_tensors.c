/* Data sets of tensors in a safetensors file: samples, categories, and each mistake. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/worker/data/dataset_files.h"

/* x F32 [3,2] = 1..6, z F32 [2,3] over 7..12, y F32 [3] = 13..15, i I64 [3] = ids, d F64 [1]
 * spelled out, so that the reader is not tested against our own writer alone. */
static void write_tensors(const int64_t ids[3])
{
    char header[512];
    int header_bytes =
        snprintf(header, sizeof(header), "{%s,%s,%s,%s,%s}",
                 "\"x\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]}",
                 "\"z\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,48]}",
                 "\"y\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[48,60]}",
                 "\"i\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[60,84]}",
                 "\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[84,92]}");
    unsigned char bytes[8 + sizeof(header) + 92] = {0};
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    }
    memcpy(bytes + 8, header, (size_t)header_bytes);
    for (size_t i = 0; i < 15; i++) {
        float value = (float)(i + 1);
        memcpy(bytes + 8 + (size_t)header_bytes + 4 * i, &value, sizeof(value));
    }
    memcpy(bytes + 8 + (size_t)header_bytes + 60, ids, 3 * sizeof(*ids));
    write_file("t.safetensors", bytes, 8 + (size_t)header_bytes + 92);
}

static void tensors_job(void)
{
    job.data.kind = KELP_DATA_TENSORS;
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s/t.safetensors", folder.path);
}

KELP_CASE("tensors", .setup = setup, .teardown = teardown)

/* Rows of two tensors are training samples, unscaled. */
KELP_TEST(tensors)
{
    write_tensors((const int64_t[3]){0});
    tensors_job();
    (void)snprintf(job.data.input_name, sizeof(job.data.input_name), "x");
    (void)snprintf(job.data.target_name, sizeof(job.data.target_name), "y");
    struct kelp_dataset *dataset = open_or_fail();
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 3);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 0);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 0);
    ck_assert_uint_eq(info->shape.inputs[0].rank, 1);
    ck_assert_uint_eq(info->shape.inputs[0].dims[0], 2);
    ck_assert_uint_eq(info->shape.target.rank, 0);
    float read_input[4];
    float read_target[2];
    const uint64_t indices[] = {2, 0};
    ck_assert_int_eq(
        kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, indices, 2, read_input, read_target), KELP_OK);
    ck_assert_float_eq(read_input[0], 5);
    ck_assert_float_eq(read_input[1], 6);
    ck_assert_float_eq(read_input[2], 1);
    ck_assert_float_eq(read_target[0], 15);
    ck_assert_float_eq(read_target[1], 13);
    kelp_dataset_close(dataset);

    job.train.loss = KELP_LOSS_BCE_WITH_LOGITS;
    expect_error(KELP_ERR_INVALID, "t.safetensors: row 0 of the training split: target 13; ",
                 "train.loss bce_with_logits takes targets from 0 to 1", NULL);
    job.train.loss = KELP_LOSS_MSE;
    (void)snprintf(job.data.target_name, sizeof(job.data.target_name), "none");
    expect_error(KELP_ERR_INVALID, "tensor none: no such tensor", "data.target_name", NULL);
    (void)snprintf(job.data.target_name, sizeof(job.data.target_name), "z");
    expect_error(KELP_ERR_INVALID, "tensor x has 3 samples, tensor z 2", NULL);
}

/* Several inputs stand end to end in a sample's record; int64 ones are categories, an int64 target
 * is classes. */
KELP_TEST(tensors_of_categories)
{
    static const int64_t ids[] = {1, 0, 2};
    write_tensors(ids);
    tensors_job();
    (void)snprintf(job.data.input_name, sizeof(job.data.input_name), "i\nx\ny");
    (void)snprintf(job.data.target_name, sizeof(job.data.target_name), "i");
    struct kelp_dataset *dataset = open_or_fail();
    const struct kelp_sample_shape *shape = &kelp_dataset_info(dataset)->shape;
    ck_assert_uint_eq(shape->input_count, 3);
    ck_assert_uint_eq(shape->inputs[0].rank, 0);
    ck_assert_uint_eq(shape->inputs[0].vocab_count, 1);
    ck_assert_uint_eq(shape->inputs[0].vocab[0], 3);
    ck_assert_uint_eq(shape->inputs[1].vocab_count, 0);
    ck_assert_uint_eq(shape->target.vocab_count, 1);
    ck_assert_uint_eq(shape->target.vocab[0], 3);
    ck_assert_uint_eq(kelp_sample_input_count(shape), 4);
    float input[8], target[2];
    const uint64_t indices[] = {2, 0};
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, indices, 2, input, target),
                     KELP_OK);
    static const float expected[] = {2, 5, 6, 15, 1, 1, 2, 13};
    for (size_t i = 0; i < 8; i++) {
        ck_assert_float_eq(input[i], expected[i]);
    }
    ck_assert_float_eq(target[0], 2);
    ck_assert_float_eq(target[1], 1);
    kelp_dataset_close(dataset);

    job.data.vocab_count = 1;
    job.data.vocab[0] = 9;
    dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.inputs[0].vocab[0], 9);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 3);
    kelp_dataset_close(dataset);
    job.data.vocab[0] = 2;
    expect_error(KELP_ERR_INVALID, "tensor i: has category 2 in column 0", "gives it 2", NULL);
    job.data.vocab_count = 2;
    expect_error(KELP_ERR_INVALID, "1 columns of categories", "data.vocab has 2", NULL);
}

KELP_TEST(categories_out_of_range)
{
    static const int64_t negative[] = {0, -1, 2}, huge[] = {0, 1, INT64_C(1) << 24};
    tensors_job();
    (void)snprintf(job.data.input_name, sizeof(job.data.input_name), "x");
    (void)snprintf(job.data.target_name, sizeof(job.data.target_name), "i");
    write_tensors(negative);
    expect_error(KELP_ERR_INVALID, "tensor i: row 1: category -1", "0 to 16777215", NULL);
    write_tensors(huge);
    expect_error(KELP_ERR_INVALID, "tensor i: row 2: category 16777216", NULL);
    (void)snprintf(job.data.target_name, sizeof(job.data.target_name), "d");
    expect_error(KELP_ERR_INVALID, "tensor d: is F64", "F32", NULL);
}
