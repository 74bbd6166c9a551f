#include "cli/run/job_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool kelp_job_files_needed(const struct kelp_job_path *path)
{
    return strcmp(path->key, "run.dir") != 0 && strcmp(path->key, "data.cache") != 0;
}

static bool is_missing(const char *path)
{
    return access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

bool kelp_job_files_missing(const char *here)
{
    const size_t plain = strcspn(here, "*?[");
    char folder[KELP_JOB_PATH_MAX + 1];

    if (!is_missing(here)) {
        return false;
    }
    if (here[plain] == '\0') {
        return true;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)plain, here);
    char *slash = strrchr(folder, '/');
    if (slash) {
        slash[1] = '\0';
    }
    return is_missing(slash ? folder : ".");
}
