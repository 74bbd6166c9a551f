/*
 * Which GPU a worker gets.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/host/gpus.h"
#include "tests/lib/suite.h"

static struct kelp_error error;
static struct kelp_gpus gpus;

static void sees(uint32_t worker, const char *expected)
{
    char entry[KELP_GPU_ENTRY_MAX + 1];

    kelp_gpus_entry(&gpus, worker, entry);
    ck_assert_str_eq(entry, expected);
}

/* One each, and in turn where there are more workers. */
KELP_TEST(test_in_turn)
{
    ck_assert_int_eq(kelp_gpus_parse("--gpus", "0,2,GPU-5ebe-11", &gpus, &error), KELP_OK);
    ck_assert_uint_eq(gpus.count, 3);
    sees(0, "CUDA_VISIBLE_DEVICES=0");
    sees(1, "CUDA_VISIBLE_DEVICES=2");
    sees(2, "CUDA_VISIBLE_DEVICES=GPU-5ebe-11");
    sees(3, "CUDA_VISIBLE_DEVICES=0");
}

/* What a batch system gave is taken; what is typed counts more. */
KELP_TEST(test_found)
{
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "3,1", 1), 0);
    ck_assert_int_eq(kelp_gpus_find(NULL, true, &gpus, &error), KELP_OK);
    ck_assert_uint_eq(gpus.count, 2);
    sees(1, "CUDA_VISIBLE_DEVICES=1");
    ck_assert_int_eq(kelp_gpus_find("7", true, &gpus, &error), KELP_OK);
    sees(5, "CUDA_VISIBLE_DEVICES=7");
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
    ck_assert_int_eq(kelp_gpus_find(NULL, true, &gpus, &error), KELP_OK);
    ck_assert_uint_eq(gpus.count, 0);
    ck_assert_int_eq(kelp_gpus_find(NULL, false, &gpus, &error), KELP_OK);
    ck_assert_uint_eq(gpus.count, 0);
    ck_assert_int_eq(kelp_gpus_find("0", false, &gpus, &error), KELP_ERR_INVALID);
}

KELP_TEST(test_shared)
{
    ck_assert_int_eq(kelp_gpus_parse("--gpus", "0,1,2", &gpus, &error), KELP_OK);
    ck_assert_uint_eq(kelp_gpus_sharing(&gpus, 1), 1);
    ck_assert_uint_eq(kelp_gpus_sharing(&gpus, 3), 1);
    ck_assert_uint_eq(kelp_gpus_sharing(&gpus, 4), 2);
    ck_assert_uint_eq(kelp_gpus_sharing(&gpus, 7), 3);
    gpus.count = 0;
    ck_assert_uint_eq(kelp_gpus_sharing(&gpus, 7), 1);
}

KELP_TEST(test_refused)
{
    static const char *const bad[] = {"", ",", "0,", "0, 1", "0;1", "a=b", "0,1,0"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        ck_assert_int_eq(kelp_gpus_parse("--gpus", bad[i], &gpus, &error), KELP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, "--gpus"));
    }
    char many[4 * KELP_GPUS_MAX + 8] = "0";
    size_t used = 1;
    for (int i = 1; i <= KELP_GPUS_MAX; i++) {
        used += (size_t)snprintf(many + used, sizeof(many) - used, ",%d", i);
    }
    ck_assert_int_eq(kelp_gpus_parse("--gpus", many, &gpus, &error), KELP_ERR_LIMIT);
}
