#include "tests/lib/shared_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool find_file(const char *variable, const char *folder, const char *name,
                      char path[KELP_TEST_PATH_MAX])
{
    const char *set = getenv(variable);
    const char *source = getenv("KELP_SOURCE");
    if (set != NULL && set[0] != '\0') {
        (void)snprintf(path, KELP_TEST_PATH_MAX, "%s/%s", set, name);
    } else {
        (void)snprintf(path, KELP_TEST_PATH_MAX, "%s/../shared/%s/%s",
                       source != NULL ? source : ".", folder, name);
    }
    return access(path, R_OK) == 0;
}

bool kelp_test_data_file(const char *name, char path[KELP_TEST_PATH_MAX])
{
    return find_file("KELP_DATA", "data", name, path);
}

bool kelp_test_reference_file(const char *name, char path[KELP_TEST_PATH_MAX])
{
    return find_file("KELP_REFERENCE", "reference", name, path);
}
