/* Models in shared libraries: the example is built and computes, and everything that can be wrong
 * with a library is one clear line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/sha256.h"
#include "tests/lib/suite.h"
#include "worker/model/model.h"
#include "worker/model/plugin.h"

static struct kelp_job job;
static struct kelp_sample_shape shape;
static struct kelp_error error;

static void use_plugin(const char *name)
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    ck_assert_ptr_nonnull(programs);
    (void)snprintf(job.model.plugin, sizeof(job.model.plugin), "%s/plugins/%s.so", programs, name);
}

static void setup(void)
{
    job = (struct kelp_job){.cluster = {.lane_threads = 1},
                            .model = {.kind = KELP_MODEL_PLUGIN},
                            .train = {.loss = KELP_LOSS_NLL}};
    shape = (struct kelp_sample_shape){.input_count = 1,
                                       .inputs[0] = {.rank = 3, .dims = {1, 10, 10}},
                                       .target = {.vocab_count = 1, .vocab = {5}}};
    error = (struct kelp_error){KELP_OK, ""};
    use_plugin("conv_small");
}

static struct kelp_model *build(void)
{
    struct kelp_model *model = NULL;
    const kelp_status status = kelp_model_create(&job, &shape, 4, &model, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return model;
}

static void expect_refused(const char *text)
{
    struct kelp_model *model = NULL;
    const kelp_status status = kelp_model_create(&job, &shape, 4, &model, &error);
    ck_assert_msg(status == KELP_ERR_INVALID, "status %d, %s", (int)status, error.text);
    ck_assert_msg(strstr(error.text, text) != NULL, "'%s' is not in: %s", text, error.text);
    ck_assert_ptr_null(strchr(error.text, '\n'));
}

KELP_CASE("plugin", .setup = setup)

/* Parameters with PyTorch's names, the param in the shapes. */
KELP_TEST(test_example)
{
    static const char *const names[] = {"conv1.weight",    "conv1.bias",    "conv2.weight",
                                        "bn.weight",       "bn.bias",       "fc1.weight",
                                        "fc1.bias",        "fc2.weight",    "fc2.bias",
                                        "bn.running_mean", "bn.running_var"};
    (void)snprintf(job.model.params, sizeof(job.model.params), "hidden=7");
    struct kelp_model *model = build();
    uint32_t count = 0;
    const struct kelp_tensor *tensors = kelp_model_tensors(model, &count);
    ck_assert_uint_eq(count, KELP_ARRAY_COUNT(names));
    for (size_t n = 0; n < KELP_ARRAY_COUNT(names); n++) {
        bool found = false;
        for (uint32_t i = 0; i < count && !found; i++) {
            found = strcmp(tensors[i].name, names[n]) == 0;
            ck_assert(!found || strcmp(names[n], "fc1.weight") != 0 || tensors[i].shape[0] == 7);
        }
        ck_assert_msg(found, "no %s", names[n]);
    }
    ck_assert_uint_eq(kelp_model_output(model)->dims[0], 5);
    kelp_model_destroy(model);
}

/* Built twice, as every worker does, it is the same model and computes the same bits. */
KELP_TEST(test_example_computes)
{
    float input[300], outputs[2][15];
    for (int i = 0; i < 300; i++) {
        input[i] = (float)(i % 7) * 0.1f;
    }
    for (int round = 0; round < 2; round++) {
        struct kelp_model *model = build();
        struct kelp_plan plan = {.samples = {0}};
        const struct kelp_tensor *tensors = kelp_model_tensors(model, &plan.tensor_count);
        plan.tensors = malloc(plan.tensor_count * sizeof(*tensors));
        ck_assert_ptr_nonnull(plan.tensors);
        memcpy(plan.tensors, tensors, plan.tensor_count * sizeof(*tensors));
        ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_OK);
        float *weights = malloc(plan.flat_count * sizeof(*weights));
        ck_assert_int_eq(kelp_plan_initialise(&plan, &job, NULL,
                                              (struct kelp_slice_range){0, plan.flat_count},
                                              weights, &error),
                         KELP_OK);
        kelp_model_bind(model, &plan, weights, NULL);
        ck_assert_int_eq(kelp_model_forward(model, input, 3, outputs[round], &error), KELP_OK);
        free(weights);
        kelp_plan_fini(&plan);
        kelp_model_destroy(model);
    }
    ck_assert_mem_eq(outputs[0], outputs[1], sizeof(outputs[0]));
    ck_assert(outputs[0][0] < 0.0f); /* the logarithm of a probability */
}

KELP_TEST(test_bad_params)
{
    static const struct {
        const char *params, *text;
    } cases[] = {
        {"hiden=16", "'hiden' is a parameter that the model does not use"},
        {"hidden=16\nwidth=3", "'width' is a parameter that the model does not use"},
        {"hidden", "'hidden' is not of the form name=value"},
        {"=3", "is not of the form name=value"},
        {"hidden=0", "hidden"},
        {"hidden=many", "hidden"},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        (void)snprintf(job.model.params, sizeof(job.model.params), "%s", cases[i].params);
        expect_refused(cases[i].text);
        ck_assert_ptr_nonnull(strstr(error.text, "model.params"));
    }
}

KELP_TEST(test_other_samples)
{
    shape.inputs[0].rank = 2;
    expect_refused("conv_small takes an image");
    shape.inputs[0] = (struct kelp_sample_tensor){.rank = 3, .dims = {1, 4, 4}};
    expect_refused("layer conv2");
}

KELP_TEST(test_bad_libraries)
{
    use_plugin("there_is_none");
    expect_refused("there_is_none.so");
    use_plugin("no_symbol");
    expect_refused("no symbol 'kelp_model_plugin'");
    use_plugin("wrong_abi");
    expect_refused("built for ABI 2 of kelp/model.h, this Kelp has 1");
    use_plugin("newer");
    expect_refused("built for a newer Kelp");
    (void)snprintf(job.model.plugin, sizeof(job.model.plugin), "libm.so.6"); /* a file is meant */
    expect_refused("libm.so.6");
}

/* A text file, and the first half of a library. */
KELP_TEST(test_damaged_libraries)
{
    char folder[] = "/tmp/kelp-plugin-XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/model.so", folder);
    for (int cut = 0; cut < 2; cut++) {
        char bytes[4000];
        use_plugin("conv_small");
        FILE *from = fopen(job.model.plugin, "rb"), *to = fopen(path, "wb");
        ck_assert(from != NULL && to != NULL);
        ck_assert_uint_eq(fread(bytes, 1, sizeof(bytes), from), sizeof(bytes));
        memcpy(bytes, "no", cut == 0 ? 2 : 0);
        ck_assert_uint_eq(fwrite(bytes, 1, sizeof(bytes), to), sizeof(bytes));
        (void)fclose(from);
        ck_assert_int_eq(fclose(to), 0);
        (void)snprintf(job.model.plugin, sizeof(job.model.plugin), "%s", path);
        expect_refused("is not a shared library, or is cut off");
    }
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* without a writer: it must not be waited for */
    expect_refused("not a regular file");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

/* Each mistake of the library's author is told by the layer's name; nothing crashes. */
KELP_TEST(test_mistakes)
{
    static const char *const texts[] = {
        "",          "layer conv",  "layer p",       "layer p",      "layer p",
        "layer sum", "layer parts", "layer dropout", "layer norm",   "no such luck",
        "input 99",  "layer turn",  "layer conv",    "layer groups", "layer mean"};
    use_plugin("unfinished");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        (void)snprintf(job.model.params, sizeof(job.model.params), "mistake=%zu", i);
        expect_refused(texts[i]);
    }
}

/* Another library than the one that is meant is refused, and its code does not run: this one would
 * end the process. */
KELP_TEST(test_sha256)
{
    char *bytes = NULL;
    size_t count = 0;
    ck_assert_int_eq(kelp_files_read(job.model.plugin, 1u << 24, &bytes, &count, &error), KELP_OK);
    ck_assert_int_eq(kelp_sha256(bytes, count, job.model.plugin_sha256, &error), KELP_OK);
    kelp_model_destroy(build());
    use_plugin("unruly");
    (void)snprintf(job.model.params, sizeof(job.model.params), "how=abort");
    expect_refused("unruly.so has the SHA-256 ");
    ck_assert_ptr_nonnull(strstr(error.text, job.model.plugin_sha256));
    /* One that the loader refuses is called by its own name. */
    job.model.params[0] = '\0';
    free(bytes);
    use_plugin("no_symbol");
    ck_assert_int_eq(kelp_files_read(job.model.plugin, 1u << 24, &bytes, &count, &error), KELP_OK);
    ck_assert_int_eq(kelp_sha256(bytes, count, job.model.plugin_sha256, &error), KELP_OK);
    expect_refused("no_symbol.so: no symbol");
    free(bytes);
}

/* Two workers with two libraries have different plans, in words. */
KELP_TEST(test_digest)
{
    struct kelp_plan ours = {.samples = {1, 1, 1}}, theirs = ours, read;
    char text[200], *printed = NULL;
    ck_assert_int_eq(kelp__plugin_digest(job.model.plugin, &ours.model_digest, &error), KELP_OK);
    ck_assert_uint_ne(ours.model_digest, 0);
    use_plugin("unfinished");
    ck_assert_int_eq(kelp__plugin_digest(job.model.plugin, &theirs.model_digest, &error), KELP_OK);
    ck_assert(kelp_plan_difference(&ours, &theirs, true, text, sizeof(text)));
    ck_assert_ptr_nonnull(strstr(text, "library or program"));
    theirs.model_digest = ours.model_digest;
    ck_assert(!kelp_plan_difference(&ours, &theirs, true, text, sizeof(text)));
    struct kelp_tensor tensor = {
        .name = "a", .rank = 1, .shape = {20}, .elem_count = 20, .decays = true};
    ours.tensors = &tensor;
    ours.tensor_count = 1;
    ck_assert_int_eq(kelp_plan_lay_out(&ours, 4, &error), KELP_OK);
    ck_assert_int_eq(kelp_plan_print(&ours, &printed, &error), KELP_OK);
    ck_assert_int_eq(kelp_plan_parse(printed, strlen(printed), &read, &error), KELP_OK);
    ck_assert_uint_eq(read.model_digest, ours.model_digest);
    kelp_plan_fini(&read);
    free(printed);
    use_plugin("there_is_none");
    ck_assert_int_eq(kelp__plugin_digest(job.model.plugin, &theirs.model_digest, &error),
                     KELP_ERR_NOT_FOUND);
}
