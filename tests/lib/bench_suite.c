#include "tests/lib/bench_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/process/proc_file.h"

#define TABLE_ROWS 240

void kelp_bench_write_table(const char *folder)
{
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/table.csv", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fprintf(file, "c,x,y\n");
    for (int i = 0; i < TABLE_ROWS; i++) {
        (void)fprintf(file, "%d,0.%d,0.%d\n", i, i, i * 7 % 100);
    }
    ck_assert_int_eq(fclose(file), 0);
}

double kelp_bench_cpu_s(pid_t pid)
{
    char name[64], text[1024] = "";
    unsigned long user = 0, system = 0;

    (void)snprintf(name, sizeof(name), "%ld/stat", (long)pid);
    (void)kelp_proc_file_read(name, text, sizeof(text));
    const char *rest = strrchr(text, ')'); /* after the program's name */
    if (!rest || sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                        &system) != 2) {
        return 0;
    }
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

double kelp_bench_median(double *values, size_t count)
{
    ck_assert_uint_gt(count, 0);
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

int kelp_bench_run(const char *name, const TTest *const *measurements, size_t count)
{
    Suite *suite = suite_create("bench");
    TCase *tcase = tcase_create(name);

    for (size_t i = 0; i < count; i++) {
        tcase_add_test(tcase, measurements[i]);
    }
    tcase_set_timeout(tcase, 0);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    if (failed > 0) {
        srunner_print(runner, CK_NORMAL);
    }
    srunner_free(runner);
    return failed;
}
