/* Tensors of a file under the names that a model has for them: what the published code of DLinear,
 * wrappers of PyTorch and rules of the user call them. */
#include <stdio.h>
#include <string.h>

#include "common/training/plan_init.h"
#include "tests/lib/suite.h"

#define NAMES_MAX 4

static unsigned char bytes[2048];
static struct kelp_job job;
static struct kelp_safetensors *file;
static struct kelp_error error;

/* A file with a number for each name: 0, 1, … */
static void open_file(const char *const *names)
{
    char header[1024] = "{";
    float values[NAMES_MAX] = {0, 1, 2, 3};
    uint64_t used = 1, count = 0;
    for (; count < NAMES_MAX && names[count]; count++) {
        used += (uint64_t)snprintf(header + used, sizeof(header) - used,
                                   "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[%u,"
                                   "%u]}",
                                   count > 0 ? "," : "", names[count], (unsigned)(4 * count),
                                   (unsigned)(4 * count + 4));
    }
    header[used++] = '}';
    memcpy(bytes, &used, 8);
    memcpy(bytes + 8, header, used);
    memcpy(bytes + 8 + used, values, 4 * count);
    ck_assert_msg(kelp_safetensors_open_memory("m", bytes, 8 + used + 4 * count, &file, &error) ==
                      KELP_OK,
                  "%s", error.text);
}

static void setup(void)
{
    memset(&job, 0, sizeof(job));
    error = (struct kelp_error){.text = ""};
}

static void teardown(void)
{
    kelp_safetensors_close(file);
    file = NULL;
}

/* What the file calls the model's tensor; "": it has none. */
static const char *found(const char *name)
{
    const struct kelp_safetensors_tensor *tensor = NULL;
    ck_assert_msg(kelp__init_find(file, &job, name, &tensor, &error) == KELP_OK, "%s", error.text);
    return tensor ? tensor->name : "";
}

static void set_map(const char *rules)
{
    (void)snprintf(job.model.init_map, sizeof(job.model.init_map), "%s", rules);
}

KELP_CASE("names", .setup = setup, .teardown = teardown)

/* The published code of DLinear, as it is, and within a wrapper. */
KELP_TEST(published_names)
{
    open_file((const char *[]){"Linear_Seasonal.0.weight", "Linear_Trend.0.weight", NULL});
    ck_assert_str_eq(found("linear_trend.0.weight"), "Linear_Trend.0.weight");
    ck_assert_str_eq(found("linear_trend.weight"), "");
    teardown();
    open_file(
        (const char *[]){"module.Linear_Seasonal.weight", "module.Linear_Trend.weight", NULL});
    ck_assert_str_eq(found("linear_trend.weight"), "module.Linear_Trend.weight");
    teardown();
    open_file((const char *[]){"module._orig_mod.a", "module._orig_mod.b", NULL});
    ck_assert_str_eq(found("b"), "module._orig_mod.b");
}

/* A wrapper is before every name, and a model that has such names of its own keeps them. */
KELP_TEST(no_wrapper)
{
    open_file((const char *[]){"module.a", "b", NULL});
    ck_assert_str_eq(found("a"), "");
    ck_assert_str_eq(found("module.a"), "module.a");
    teardown();
    open_file((const char *[]){"module.a", "module.module.a", NULL});
    ck_assert_str_eq(found("module.a"), "module.a");
}

/* The letters decide between two names that differ in case alone. */
KELP_TEST(letter_case)
{
    open_file((const char *[]){"a.W", "a.w", NULL});
    ck_assert_str_eq(found("a.w"), "a.w");
    ck_assert_str_eq(found("A.w"), "");
}

/* Rules come behind prefix and wrapper. */
KELP_TEST(rules)
{
    set_map("encoder.=\nhead.=fc.");
    open_file((const char *[]){"encoder.layer.weight", "head.weight", NULL});
    ck_assert_str_eq(found("layer.weight"), "encoder.layer.weight");
    ck_assert_str_eq(found("fc.weight"), "head.weight");
    ck_assert_str_eq(found("head.weight"), "");
    ck_assert_int_eq(kelp__init_check_map(file, &job, &error), KELP_OK);
    teardown();
    open_file((const char *[]){"module.encoder.weight", "module.head.weight", NULL});
    ck_assert_str_eq(found("weight"), "module.encoder.weight");
    ck_assert_int_eq(kelp__init_check_map(file, &job, &error), KELP_OK);
    teardown();
    (void)snprintf(job.model.init_prefix, sizeof(job.model.init_prefix), "net.");
    open_file((const char *[]){"net.encoder.weight", "net.head.weight", "other", NULL});
    ck_assert_str_eq(found("weight"), "net.encoder.weight");
    ck_assert_str_eq(found("other"), "");
}

/* Two that a rule makes one, and a rule that renames nothing, are told. */
KELP_TEST(wrong_rules)
{
    const struct kelp_safetensors_tensor *tensor = NULL;
    open_file((const char *[]){"a.weight", "b.weight", NULL});
    set_map("a.=b.");
    ck_assert_int_eq(kelp__init_find(file, &job, "b.weight", &tensor, &error), KELP_ERR_MISMATCH);
    ck_assert_str_eq(error.text,
                     "m: tensors a.weight and b.weight are both b.weight by model.init_map");
    set_map("a.=c.\nd.=e.");
    ck_assert_int_eq(kelp__init_check_map(file, &job, &error), KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "model.init_map's 'd.=e.' renames"));
}

/* What is missing is told with what would find it. */
KELP_TEST(what_is_missing)
{
    open_file((const char *[]){"net.model.FC.weight", NULL});
    (void)kelp__init_lacks(file, &job, "fc.weight", &error);
    ck_assert_str_eq(error.text, "m: no tensor fc.weight; the file has net.model.FC.weight: set "
                                 "model.init_prefix to 'net.model.'");
    teardown();
    open_file((const char *[]){"param/fc.weight", NULL});
    (void)kelp__init_lacks(file, &job, "fc.weight", &error);
    ck_assert_ptr_nonnull(strstr(error.text, "set model.init_prefix to 'param/'"));
    teardown();
    open_file((const char *[]){"net.model.FC.weight", NULL});
    (void)kelp__init_lacks(file, &job, "fc.bias", &error);
    ck_assert_str_eq(error.text, "m: no tensor fc.bias; the file has net.model.FC.weight "
                                 "(model.init_map renames them)");
}
