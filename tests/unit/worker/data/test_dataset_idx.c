/* Images in IDX files: what they hand out, and each mistake they can hold. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/unit/worker/data/dataset_files.h"

static size_t gzip_bytes(const void *bytes, size_t count, uint8_t *ret, size_t room)
{
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)count};
    stream.next_out = ret;
    stream.avail_out = (uInt)room;
    ck_assert_int_eq(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    ck_assert_int_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    size_t used = room - stream.avail_out;
    ck_assert_int_eq(deflateEnd(&stream), Z_OK);
    return used;
}

#define TRAIN_IMAGES "train-images-idx3-ubyte"
#define TRAIN_LABELS "train-labels-idx1-ubyte"
#define TEST_IMAGES  "t10k-images-idx3-ubyte"
#define TEST_LABELS  "t10k-labels-idx1-ubyte"

/* Three images of 2 x 2, two for testing. */
static const uint8_t train_images[] = {0, 0, 8, 3,   0,  0,   0, 3, 0, 0, 0, 2, 0, 0,
                                       0, 2, 0, 255, 51, 102, 1, 2, 3, 4, 9, 8, 7, 6};
static const uint8_t train_labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 0, 1};
static const uint8_t test_images[] = {0, 0, 8, 3, 0, 0,  0,  2,  0,   0,   0,   2,
                                      0, 0, 0, 2, 5, 10, 15, 20, 100, 110, 120, 130};
static const uint8_t test_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 3, 2};

static void write_idx(void)
{
    write_file(TRAIN_IMAGES, train_images, sizeof(train_images));
    write_file(TRAIN_LABELS, train_labels, sizeof(train_labels));
    write_file(TEST_IMAGES, test_images, sizeof(test_images));
    write_file(TEST_LABELS, test_labels, sizeof(test_labels));
}

static void check_idx(struct kelp_dataset *dataset)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 3);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 0);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 2);
    ck_assert_uint_eq(info->shape.input_count, 1);
    ck_assert_uint_eq(info->shape.inputs[0].rank, 3);
    ck_assert_uint_eq(info->shape.inputs[0].dims[0], 1);
    ck_assert_uint_eq(info->shape.inputs[0].dims[1], 2);
    ck_assert_uint_eq(info->shape.target.rank, 0);
    ck_assert_uint_eq(info->shape.target.vocab_count, 1);
    ck_assert_uint_eq(info->shape.target.vocab[0], 5);
    float input[8], target[2];
    const uint64_t train[] = {2, 0};
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, train, 2, input, target),
                     KELP_OK);
    const float expected[] = {9, 8, 7, 6, 0, 255, 51, 102};
    for (int i = 0; i < 8; i++) {
        ck_assert_float_eq(input[i], (expected[i] / 255.0f - 0.5f) / 0.25f);
    }
    ck_assert_float_eq(target[0], 1.0f);
    ck_assert_float_eq(target[1], 4.0f);
    const uint64_t test[] = {1};
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TEST, test, 1, input, target), KELP_OK);
    ck_assert_float_eq(input[3], (130.0f / 255.0f - 0.5f) / 0.25f);
    ck_assert_float_eq(target[0], 2.0f);
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_VAL, test, 1, input, target),
                     KELP_ERR_INVALID);
}

KELP_CASE("idx", .setup = setup, .teardown = teardown)

static void set_fractions(uint32_t count, const double *fractions)
{
    job.data.fraction_count = count;
    memcpy(job.data.fractions, fractions, count * sizeof(*fractions));
}

/* Validation images are cut out of the training images; the test images stay. */
KELP_TEST(validation_images)
{
    float input[4], target;
    const uint64_t first = 0;
    write_idx();
    set_fractions(2, (const double[]){0.67, 0.33});
    struct kelp_dataset *dataset = open_or_fail();
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 2);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 1);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 2);
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_VAL, &first, 1, input, &target),
                     KELP_OK);
    ck_assert_float_eq(target, 1.0f); /* the third label */
    ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TEST, &first, 1, input, &target),
                     KELP_OK);
    ck_assert_float_eq(target, 3.0f);
    kelp_dataset_close(dataset);
    bool moved = false; /* by some seed */
    job.data.random_split = true;
    for (job.seed = 1; job.seed < 40 && !moved; job.seed++) {
        dataset = open_or_fail();
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_VAL, &first, 1, input, &target),
                         KELP_OK);
        moved = target != 1.0f;
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TEST, &first, 1, input, &target),
                         KELP_OK);
        ck_assert_float_eq(target, 3.0f);
        kelp_dataset_close(dataset);
    }
    ck_assert(moved);
    set_fractions(3, (const double[]){0.5, 0.25, 0.25});
    expect_error(KELP_ERR_INVALID, "data.fractions", "t10k", NULL);
}

/* Plain, compressed, and under the other usual names: the same samples and fingerprint. */
KELP_TEST(images_and_labels)
{
    job.data.mean = 0.5;
    job.data.std = 0.25;
    write_idx();
    struct kelp_dataset *dataset = open_or_fail();
    check_idx(dataset);
    uint64_t fingerprint = kelp_dataset_info(dataset)->fingerprint;
    kelp_dataset_close(dataset);

    uint8_t packed[256];
    remove_file(TRAIN_IMAGES);
    write_file("train-images.idx3-ubyte.gz", packed,
               gzip_bytes(train_images, sizeof(train_images), packed, sizeof(packed)));
    remove_file(TEST_LABELS);
    write_file(TEST_LABELS ".gz", packed,
               gzip_bytes(test_labels, sizeof(test_labels), packed, sizeof(packed)));
    dataset = open_or_fail();
    check_idx(dataset);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);

    uint8_t other[sizeof(train_images)];
    memcpy(other, train_images, sizeof(other));
    other[sizeof(other) - 1]++;
    remove_file("train-images.idx3-ubyte.gz");
    write_file(TRAIN_IMAGES, other, sizeof(other));
    dataset = open_or_fail();
    ck_assert_uint_ne(kelp_dataset_info(dataset)->fingerprint, fingerprint);
    kelp_dataset_close(dataset);
}

/* data.limit takes the first training images alone; without t10k files there is no test split. */
KELP_TEST(fewer_images)
{
    write_idx();
    remove_file(TEST_IMAGES);
    remove_file(TEST_LABELS);
    job.data.limit = 2;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN], 2);
    ck_assert_uint_eq(kelp_dataset_info(dataset)->samples[KELP_SPLIT_TEST], 0);
    kelp_dataset_close(dataset);
}

KELP_TEST(missing_images)
{
    expect_error(KELP_ERR_NOT_FOUND, folder.path, "train-images-idx3-ubyte", ".gz", NULL);
    write_idx();
    remove_file(TEST_LABELS);
    expect_error(KELP_ERR_NOT_FOUND, "t10k-labels-idx1-ubyte", NULL);
    remove_file(TRAIN_LABELS);
    expect_error(KELP_ERR_NOT_FOUND, "train-labels-idx1-ubyte", NULL);
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s/none", folder.path);
    expect_error(KELP_ERR_NOT_FOUND, "/none: ", NULL);
}

/* Images and labels that do not fit each other, the other part, or the model. */
KELP_TEST(images_that_do_not_fit)
{
    write_idx();
    write_file(TRAIN_LABELS, test_labels, sizeof(test_labels));
    expect_error(KELP_ERR_INVALID, "has 3 images, but", "has 2 labels", NULL);
    write_file(TRAIN_LABELS, train_images, sizeof(train_images));
    expect_error(KELP_ERR_INVALID, TRAIN_LABELS ": has 3 dimensions of uint8; labels need 1", NULL);
    write_idx();
    write_file(TRAIN_IMAGES, train_labels, sizeof(train_labels));
    expect_error(KELP_ERR_INVALID, TRAIN_IMAGES ": has 1 dimensions; images need 3", NULL);
    static const uint8_t wide[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4};
    write_idx();
    write_file(TEST_IMAGES, wide, sizeof(wide));
    expect_error(KELP_ERR_INVALID, TEST_IMAGES ": has images of 1 x 2", "have 2 x 2", NULL);
    write_idx();
    job.model.kind = KELP_MODEL_CONVNET;
    job.model.classes = 4;
    expect_error(KELP_ERR_INVALID, TRAIN_LABELS ": row 0: class 4;", "0 to 3 (model.classes)",
                 NULL);
    job.model.classes = 10;
    struct kelp_dataset *dataset = open_or_fail();
    ck_assert_uint_eq(kelp_dataset_info(dataset)->shape.target.vocab[0], 10);
    kelp_dataset_close(dataset);
}

/* Cut off anywhere or made longer, plain or compressed: refused, with the file's name. */
KELP_TEST(damaged_images)
{
    uint8_t packed[256];
    write_idx();
    for (size_t length = 0; length < sizeof(train_images); length++) {
        write_file(TRAIN_IMAGES, train_images, length);
        expect_error(KELP_ERR_FORMAT, TRAIN_IMAGES ": is ", NULL);
    }
    uint8_t longer[sizeof(train_images) + 1] = {0};
    memcpy(longer, train_images, sizeof(train_images));
    write_file(TRAIN_IMAGES, longer, sizeof(longer));
    expect_error(KELP_ERR_FORMAT, "is longer than its header says: 3 rows of 4 uint8",
                 "28 bytes, but there are 29", NULL);
    remove_file(TRAIN_IMAGES);
    for (size_t length = 0; length <= sizeof(train_images) + 1; length++) {
        size_t count = gzip_bytes(longer, length, packed, sizeof(packed));
        write_file(TRAIN_IMAGES ".gz", packed, count);
        if (length == sizeof(train_images)) {
            kelp_dataset_close(open_or_fail());
            write_file(TRAIN_IMAGES ".gz", packed, count - 1);
        }
        expect_error(KELP_ERR_FORMAT, TRAIN_IMAGES ".gz: is ", NULL);
    }
    static const uint8_t huge[] = {0, 0, 14, 3, 255, 255, 255, 255, 0, 1, 0, 0, 0, 1, 0, 0, 1};
    write_file(TRAIN_IMAGES ".gz", packed, gzip_bytes(huge, sizeof(huge), packed, sizeof(packed)));
    expect_error(KELP_ERR_FORMAT, "dimensions that are too large", NULL);
    static const uint8_t large[] = {0, 0, 8, 3, 255, 255, 255, 255, 0, 0, 0, 1, 0, 0, 0, 1, 1};
    write_file(TRAIN_IMAGES ".gz", packed,
               gzip_bytes(large, sizeof(large), packed, sizeof(packed)));
    expect_error(KELP_ERR_LIMIT, "4294967295 bytes of data when decompressed", NULL);
}
