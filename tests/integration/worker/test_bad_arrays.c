/*
 * Images and arrays through `kelp train`: what is wrong with a file, or does not fit the model, is
 * a single line that names it, exit code 2, and no run was begun; what is right trains, and
 * predicts classes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

#define IMAGES     40u
#define SIDE       12u
#define TIMEOUT_MS 60000

static struct kelp_test_folder folder;

static const char images_job[] = "name: images\n"
                                 "model: {kind: convnet, classes: 4}\n"
                                 "data: {kind: idx, path: \".\", std: 0.5}\n"
                                 "train: {epochs: 1, batch_size: 20, loss: nll}\n"
                                 "cluster: {workers: 2, lanes: 2}\n";
static const char arrays_job[] = "name: arrays\n"
                                 "model: {kind: mlp, hidden: [4]}\n"
                                 "data: {kind: npy, path: x.npy, target_path: y.npy}\n"
                                 "train: {epochs: 1, batch_size: 4, evaluate: false}\n"
                                 "cluster: {workers: 1, lanes: 2}\n";

static void write_file(const char *name, const void *bytes, size_t count)
{
    char path[256];
    struct kelp_error error;
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    ck_assert_msg(kelp_files_write(path, bytes, count, &error) == KELP_OK, "%s", error.text);
}

static void write_gzip(const char *name, const void *bytes, size_t count)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    gzFile file = gzopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(gzwrite(file, bytes, (unsigned)count), (int)count);
    ck_assert_int_eq(gzclose(file), Z_OK);
}

/* The first `kept` bytes of a file. */
static void cut(const char *name, long kept)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    ck_assert_int_eq(truncate(path, kept), 0);
}

static void flip(const char *name, long at)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, at, SEEK_SET), 0);
    int byte = fgetc(file);
    ck_assert_int_eq(fseek(file, at, SEEK_SET), 0);
    ck_assert_int_ne(fputc(byte ^ 0x10, file), EOF);
    ck_assert_int_eq(fclose(file), 0);
}

/* Images of one bright row, whose place is the label. */
static void write_images(const char *prefix, uint8_t side)
{
    uint8_t images[16 + IMAGES * SIDE * SIDE] = {0, 0, 8, 3,    0, 0, 0, IMAGES,
                                                 0, 0, 0, side, 0, 0, 0, side};
    uint8_t labels[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, IMAGES};
    char name[64];
    for (uint32_t i = 0; i < IMAGES; i++) {
        labels[8 + i] = (uint8_t)(i % 4);
        memset(images + 16 + i * side * side + labels[8 + i] * side, 200, side);
    }
    (void)snprintf(name, sizeof(name), "%s-images-idx3-ubyte.gz", prefix);
    write_gzip(name, images, 16 + (size_t)IMAGES * side * side);
    (void)snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", prefix);
    write_file(name, labels, sizeof(labels));
}

static void write_array(const char *name, const char *shape, size_t values)
{
    uint8_t bytes[512] = "\x93NUMPY\x01\0\x76";
    ck_assert_uint_le(values, 64);
    memset(bytes + 10, ' ', 118);
    int length = snprintf((char *)bytes + 10, 110,
                          "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
    bytes[10 + length] = ' ';
    bytes[127] = '\n';
    for (size_t i = 0; i < values; i++) {
        const float value = (float)(i % 5);
        memcpy(bytes + 128 + 4 * i, &value, sizeof(value));
    }
    write_file(name, bytes, 128 + 4 * values);
}

static void set_up(void)
{
    kelp_test_folder_init(&folder);
    write_file("images.yaml", images_job, strlen(images_job));
    write_file("arrays.yaml", arrays_job, strlen(arrays_job));
    write_images("train", SIDE);
    write_images("t10k", SIDE);
    write_array("x.npy", "(8, 3)", 24);
    write_array("y.npy", "(8,)", 8);
}

static void tear_down(void)
{
    kelp_test_folder_fini(&folder);
}

static void check_refused(const char *job, const char *setting, const char *expected)
{
    char runs[256];
    const char *const args[] = {"train", job, setting ? "--set" : NULL, setting, NULL};
    kelp_test_command_says(folder.path, args, 2, expected);
    (void)snprintf(runs, sizeof(runs), "%s/runs", folder.path);
    ck_assert_msg(access(runs, F_OK) != 0, "a run was begun before: %s", expected);
}

KELP_CASE("bad_arrays", .timeout_s = 180, .setup = set_up, .teardown = tear_down)

KELP_TEST(wrong_images)
{
    check_refused("images.yaml", "model.classes=3",
                  "train-labels-idx1-ubyte: row 3: class 3; classes are whole numbers from 0 to 2");
    check_refused("images.yaml", "data.path=none", "none: has no train-images-idx3-ubyte");
    flip("t10k-images-idx3-ubyte.gz", 60);
    check_refused("images.yaml", NULL, "t10k-images-idx3-ubyte.gz: the gzip data are damaged");
    cut("t10k-images-idx3-ubyte.gz", 50);
    check_refused("images.yaml", NULL, "t10k-images-idx3-ubyte.gz: is cut off");
    write_images("t10k", SIDE - 1);
    check_refused("images.yaml", NULL, "has images of 11 x 11");
    write_images("t10k", SIDE);
    cut("train-labels-idx1-ubyte", 20);
    check_refused("images.yaml", NULL, "train-labels-idx1-ubyte: is cut off: 40 rows");
    write_images("train", 3);
    write_images("t10k", 3);
    check_refused("images.yaml", NULL, "conv");
}

KELP_TEST(wrong_arrays)
{
    check_refused("arrays.yaml", "data.target_path=", "data.target_path: is empty");
    check_refused("arrays.yaml", "data.test_path=x.npy", "data.test_target_path: is empty");
    check_refused("arrays.yaml", "data.kind=binary", "data.target_path: does not apply");
    write_array("y.npy", "(7,)", 7);
    check_refused("arrays.yaml", NULL, "y.npy: has 7 rows, but ");
    cut("x.npy", 200);
    check_refused("arrays.yaml", NULL, "x.npy: is cut off: 8 rows of 3 float32");
    cut("x.npy", 60);
    check_refused("arrays.yaml", NULL, "x.npy: is cut off in its header");
    cut("x.npy", 0);
    check_refused("arrays.yaml", NULL, "x.npy: is not an NPY file");
}

/* Trained on images, each is predicted with a class and its scores, once and in order. */
KELP_TEST(classes_are_predicted)
{
    struct kelp_test_command command;
    char path[256], *text = NULL;
    size_t count = 0;
    const char *const train[] = {"train", "images.yaml", "--run", "run", NULL};
    const char *const predict[] = {"predict", "run", "--out", "p.csv", "--targets", NULL};
    kelp_test_command_run(&command, folder.path, train, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
    kelp_test_command_run(&command, folder.path, predict, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
    (void)snprintf(path, sizeof(path), "%s/p.csv", folder.path);
    ck_assert_int_eq(kelp_files_read(path, 1 << 20, &text, &count, NULL), KELP_OK);
    const char *at = strchr(text, '\n');
    ck_assert_int_eq(
        strncmp(text, "sample,class,score_0,score_1,score_2,score_3,class_target\n", 57), 0);
    for (unsigned i = 0; i < IMAGES; i++) {
        unsigned sample, class, target;
        float scores[4];
        ck_assert_ptr_nonnull(at);
        ck_assert_int_eq(sscanf(at + 1, "%u,%u,%f,%f,%f,%f,%u\n", &sample, &class, &scores[0],
                                &scores[1], &scores[2], &scores[3], &target),
                         7);
        ck_assert_uint_eq(sample, i);
        ck_assert_uint_eq(target, i % 4);
        ck_assert_uint_lt(class, 4);
        for (int k = 0; k < 4; k++) {
            ck_assert_float_le(scores[k], scores[class]);
        }
        at = strchr(at + 1, '\n');
    }
    ck_assert_str_eq(at, "\n");
    free(text);
}

/* Samples to predict need no targets; what is not there is not written as if it were 0. */
KELP_TEST(no_targets_to_show)
{
    static const char *const train[] = {"train", "arrays.yaml", "--run", "run", NULL};
    static const char *const predict[] = {"predict", "run",   "--set", "data.test_path=x.npy",
                                          "--out",   "p.csv", NULL};
    static const char *const targets[] = {"predict", "run",   "--set",     "data.test_path=x.npy",
                                          "--out",   "t.csv", "--targets", NULL};
    struct kelp_test_command command;
    kelp_test_command_run(&command, folder.path, train, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
    kelp_test_command_says(folder.path, targets, 2, "--targets: the rows to predict have none");
    kelp_test_command_run(&command, folder.path, predict, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
}
