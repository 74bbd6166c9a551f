#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/preflight/machine.h"
#include "cli/preflight/model_probe.h"
#include "common/base/files.h"
#include "tests/lib/commands/run_command.h"
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

/* A file of a group in a file system of groups. */
static void put(const char *root, const char *group, const char *name, const char *text)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s%s", root, group);
    ck_assert_int_eq(kelp_files_make_folder(path, &error), KELP_OK);
    (void)snprintf(path, sizeof(path), "%s%s/%s", root, group, name);
    ck_assert_int_eq(kelp_files_write(path, text, strlen(text), &error), KELP_OK);
}

/* Version 2: the least of the group and those above it, with swap where that has a limit. */
KELP_TEST(test_group_version_2)
{
    struct kelp_test_folder folder;

    kelp_test_folder_init(&folder);
    const char *root = folder.path;
    ck_assert_uint_eq(kelp_machine_group_limit(root, ""), UINT64_MAX);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "0::/a/b\n"), UINT64_MAX);
    put(root, "/a", "memory.max", "3000\n");
    put(root, "/a/b", "memory.max", "max\n");
    ck_assert_uint_eq(kelp_machine_group_limit(root, "4:memory:/x\n0::/a/b\n"), 3000);
    put(root, "/a/b", "memory.max", "1000\n");
    ck_assert_uint_eq(kelp_machine_group_limit(root, "0::/a/b\n"), 1000);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "0::/a/b/c\n"), 1000);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "0::/a\n"), 3000);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "0::/\n"), UINT64_MAX);
    put(root, "/a/b", "memory.swap.max", "500\n");
    ck_assert_uint_eq(kelp_machine_group_limit(root, "0::/a/b\n"), 1500);
    kelp_test_folder_fini(&folder);
}

/* Version 1, as Slurm and Docker of older systems use it: a hierarchy for memory, alone or with
 * other controllers; a number that no machine has stands for no limit. */
KELP_TEST(test_group_version_1)
{
    static const char none[] = "9223372036854771712\n";
    struct kelp_test_folder folder;

    kelp_test_folder_init(&folder);
    const char *root = folder.path;
    put(root, "/memory", "memory.limit_in_bytes", none);
    put(root, "/memory/slurm/job_1", "memory.limit_in_bytes", "2000\n");
    put(root, "/memory/slurm/job_1", "memory.memsw.limit_in_bytes", none);
    put(root, "/memory/slurm/job_1/step_0", "memory.limit_in_bytes", none);
    ck_assert_uint_eq(
        kelp_machine_group_limit(
            root, "12:cpu,cpuacct:/x\n9:memory:/slurm/job_1/step_0\n1:name=systemd:/y\n0::/z\n"),
        2000);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "9:cpuset,memory:/slurm/job_1\n"), 2000);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "9:memory2,xmemory:/slurm/job_1\n"),
                      UINT64_MAX);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "9:memory:/\n"), UINT64_MAX);
    put(root, "/memory/slurm/job_1", "memory.memsw.limit_in_bytes", "2500\n");
    ck_assert_uint_eq(kelp_machine_group_limit(root, "9:memory:/slurm/job_1\n"), 2500);
    put(root, "/memory", "memory.limit_in_bytes", "700\n"); /* a container's own */
    ck_assert_uint_eq(kelp_machine_group_limit(root, "9:memory:/docker/0123\n0::/\n"), 700);
    ck_assert_uint_eq(kelp_machine_group_limit(root, "0::/\n"), 700);
    kelp_test_folder_fini(&folder);
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
