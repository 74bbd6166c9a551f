#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/preflight/machine.h"
#include "cli/preflight/model_probe.h"
#include "tests/lib/suite.h"

static struct kelp_error error;

/* Memory and swap together; a text without them says nothing. */
KELP_TEST(test_meminfo)
{
    ck_assert_uint_eq(
        kelp_machine_meminfo("MemTotal:       2 kB\nMemFree: 1 kB\nSwapTotal: 3 kB\n"), 5 * 1024);
    ck_assert_uint_eq(kelp_machine_meminfo("MemTotal: 2 kB\n"), 2 * 1024);
    ck_assert_uint_eq(kelp_machine_meminfo("SwapTotal: 2 kB\n"), 0);
}

/* The group's folder of version 2, beside others of version 1. */
KELP_TEST(test_group)
{
    char path[64];

    ck_assert(kelp_machine_group("0::/a/b\n", path, sizeof(path)));
    ck_assert_str_eq(path, "/sys/fs/cgroup/a/b");
    ck_assert(kelp_machine_group("4:memory:/x\n0::/\n", path, sizeof(path)));
    ck_assert_str_eq(path, "/sys/fs/cgroup");
    ck_assert(!kelp_machine_group("4:memory:/x\n", path, sizeof(path)));
    ck_assert(!kelp_machine_group("0::/a/b\n", path, 18));
}

/* This machine has some memory. */
KELP_TEST(test_read)
{
    struct kelp_machine machine;

    kelp_machine_read(&machine);
    ck_assert_uint_gt(machine.memory_bytes, 1u << 20);
}

/* A library that does not come back is not waited for. */
KELP_TEST(test_probe_of_a_library_that_hangs)
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    const struct kelp_sample_shape shape = {.input_count = 1};
    struct kelp_job_file *file = kelp_job_file_create();
    char text[1024];

    ck_assert_ptr_nonnull(programs);
    (void)snprintf(text, sizeof(text),
                   "model: {plugin: \"%s/plugins/unruly.so\", params: [how=hang]}\n"
                   "data: {kind: synthetic}\n",
                   programs);
    ck_assert_int_eq(kelp_job_file_parse(file, "job", text, strlen(text), &error), KELP_OK);
    ck_assert_int_eq(kelp_job_file_finish(file, &error), KELP_OK);
    ck_assert_int_eq(kelp_model_probe(kelp_job_file_job(file), &shape, 100, &error),
                     KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "unruly.so has not built the model within 0.1 s"));
    kelp_job_file_destroy(file);
}
