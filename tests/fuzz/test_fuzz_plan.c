/*
 * Plans, damaged: each input is refused, or is a plan within its limits whose partitions cover the
 * flat vector and whose text is a fixed point.
 */
#include <stdlib.h>
#include <string.h>

#include "common/training/plan.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 40000

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT(
        "{\"samples\":[8449,2785,2785],\"data_fingerprint\":\"0123456789abcdef\","
        "\"compute_kind\":\"cpu avx2\",\"compute_answer\":\"fedcba9876543210\","
        "\"partitions\":4,\"tensors\":["
        "{\"name\":\"Linear_Seasonal.weight\",\"shape\":[96,96],\"init\":\"uniform\","
        "\"a\":0.102062076},"
        "{\"name\":\"Linear_Seasonal.bias\",\"shape\":[96],\"init\":\"constant\",\"a\":0},"
        "{\"name\":\"scale\",\"shape\":[],\"init\":\"file\",\"a\":1}]}"),
    KELP_FUZZ_TEXT("{\"samples\":[0,0,0],\"data_fingerprint\":\"0000000000000000\","
                   "\"compute_kind\":\"\",\"compute_answer\":\"0000000000000000\","
                   "\"partitions\":1,\"tensors\":[{\"name\":\"\\u00e9\",\"shape\":[1099511627776],"
                   "\"init\":\"constant\",\"a\":-1e-45}]}"),
};
static const char *const words[] = {
    "\"samples\":",
    "\"tensors\":[",
    "\"shape\":[",
    "\"a\":",
    "\"init\":\"uniform\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "-1",
    "1e400",
    "0.5",
    "1e40",
    "9007199254740993",
    "18446744073709551616",
    "[[[[[[[[[[[[",
    "4294967296,",
    "0,",
    "1024",
};

static const char *check_plan(const struct kelp_plan *plan)
{
    struct kelp_plan parsed;
    struct kelp_error error;
    char *text = NULL, difference[256];
    uint64_t covered = 0;
    const char *wrong = NULL;

    if (plan->partition_count == 0 || plan->partition_count > KELP_PARTITIONS_MAX) {
        return "a number of partitions out of range";
    }
    for (uint32_t i = 0; i < plan->partition_count; i++) {
        struct kelp_slice_range range = kelp_plan_partition(plan, i);
        if (range.first != covered) {
            return "partitions do not follow each other";
        }
        covered += range.count;
    }
    if (covered != plan->flat_count) {
        return "partitions do not cover the flat vector";
    }
    if (kelp_plan_print(plan, &text, &error) != KELP_OK) {
        return error.status == KELP_ERR_LIMIT ? NULL : "cannot be printed";
    }
    if (kelp_plan_parse(text, strlen(text), &parsed, &error) != KELP_OK) {
        wrong = "its own text is refused";
    } else {
        wrong = kelp_plan_difference(plan, &parsed, false, difference, sizeof(difference))
                    ? "its own text is another plan"
                    : NULL;
        kelp_plan_fini(&parsed);
    }
    free(text);
    return wrong;
}

static const char *target(const uint8_t *bytes, size_t count)
{
    struct kelp_error error = {.status = KELP_OK};
    struct kelp_plan plan;
    kelp_status status = kelp_plan_parse((const char *)bytes, count, &plan, &error);

    if (status != KELP_OK) {
        return error.status == status && strncmp(error.text, "plan: ", 6) == 0
                   ? NULL
                   : "the error does not say what it is about";
    }
    const char *wrong = check_plan(&plan);
    kelp_plan_fini(&plan);
    return wrong;
}

KELP_CASE("fuzz plan", .timeout_s = 120)

KELP_FUZZ_TEST(test_damaged, INPUTS, seeds, words, target)
