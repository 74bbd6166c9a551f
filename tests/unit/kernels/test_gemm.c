/* The libraries for matrix products: which, and on how many threads. */
#include <cblas.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/device.h"
#include "tests/lib/suite.h"

static const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
static float c[4];

KELP_TEST(the_kind_names_them)
{
    char kind[KELP_COMPUTE_KIND_SIZE];
    uint64_t answer = 0;
    struct kelp_device *device = NULL;
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(kelp_compute_kind(device, kind, &answer, &error), KELP_OK);
    ck_assert_ptr_nonnull(strstr(kind, "openblas-"));
    ck_assert_ptr_nonnull(strstr(kind, "onednn-"));
    device->table->destroy(device);
}

/* Where OpenBLAS's buffers do not fit the address space, that is said; OpenBLAS would try for ever.
 */
KELP_TEST(no_room_for_buffers)
{
    struct rlimit before, little;
    struct kelp_device *device = NULL;
    struct kelp_error error = {KELP_OK, ""};
    unsigned long pages = 0;

    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lu", &pages), 1);
    (void)fclose(file);
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    little = before;
    little.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)100 << 20);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &little), 0);
    const kelp_status status = kelp_device_cpu_create(1, &device, &error);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
    ck_assert_int_eq(status, KELP_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(error.text, "OpenBLAS needs 128 MiB more of address space"));
}

/* A device that was made after ours with more threads does not change those of ours. */
KELP_TEST(devices_take_turns)
{
    struct kelp_device *devices[2] = {NULL, NULL};
    struct kelp_stream *streams[2];
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_matmul product = {
        .m = 2, .n = 2, .k = 2, .a = a, .lda = 2, .b = b, .ldb = 2, .c = c, .ldc = 2};
    for (uint32_t i = 0; i < 2; i++) {
        if (kelp_device_cpu_create(i + 1, &devices[i], &error) != KELP_OK) {
            ck_assert_uint_eq(i, 1); /* this OpenBLAS has one thread */
            devices[0]->table->stream_destroy(streams[0]);
            devices[0]->table->destroy(devices[0]);
            return;
        }
        ck_assert_int_eq(devices[i]->table->stream_create(devices[i], &streams[i], &error),
                         KELP_OK);
    }
    for (int turn = 0; turn < 6; turn++) {
        devices[turn % 2]->table->matmul(streams[turn % 2], &product);
        ck_assert_int_eq(openblas_get_num_threads(), turn % 2 + 1);
    }
    for (uint32_t i = 0; i < 2; i++) {
        devices[i]->table->stream_destroy(streams[i]);
        devices[i]->table->destroy(devices[i]);
    }
}

/* Two threads give the same bits each time, also where OpenMP may choose how many there are. The
 * runtime's threads are not known to the thread sanitizer. */
#ifndef __SANITIZE_THREAD__
extern void omp_set_dynamic(int dynamic);

KELP_TEST(two_threads)
{
    struct kelp_device *two = NULL;
    struct kelp_error error = {KELP_OK, ""};
    char kind[KELP_COMPUTE_KIND_SIZE];
    if (kelp_device_cpu_create(2, &two, &error) != KELP_OK) {
        ck_assert_ptr_nonnull(strstr(error.text, "at most")); /* built or told to run one */
        return;
    }
    uint64_t first = 0;
    for (uint32_t i = 0; i < 6; i++) {
        uint64_t answer = 0;
        omp_set_dynamic(i % 2 == 1);
        ck_assert_int_eq(kelp_compute_kind(two, kind, &answer, &error), KELP_OK);
        first = i == 0 ? answer : first;
        ck_assert_uint_eq(answer, first);
    }
    two->table->destroy(two);
}
#endif
