/* Paths of a job file: relative ones start from the folder of the file, or from the working
 * directory of the command. Also how they map to a host that has the files elsewhere. */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/job/job_options.h"
#include "common/job/path_map.h"

kelp_status kelp__job_path_folder(const char *path, char **ret_folder, struct kelp_error *reterr)
{
    const char *slash = strrchr(path, '/');
    char *above = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");

    if (!above) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%.127s: out of memory", path);
    }
    char *folder = realpath(above, NULL);
    free(above);
    if (!folder) {
        return kelp_fail(reterr, KELP_ERR_IO, "%.255s: its folder has no name: %s", path,
                         strerror(errno));
    }
    *ret_folder = folder;
    return KELP_OK;
}

/* Remove "./" and "../" from the front of path, and one name from the folder for each "../"; the
 * folder's name has no symbolic links. The root becomes an empty name. */
static const char *climb(char *folder, const char *path)
{
    if (strcmp(folder, "/") == 0) {
        folder[0] = '\0';
    }
    for (;;) {
        size_t dots = strspn(path, ".");
        if (dots == 0 || dots > 2 || (path[dots] != '/' && path[dots] != '\0')) {
            return path;
        }
        char *slash = dots == 2 ? strrchr(folder, '/') : NULL;
        if (slash) {
            *slash = '\0';
        }
        path += dots;
        path += strspn(path, "/");
    }
}

bool kelp__job_path_is_relative(const struct kelp_job_file *file, const struct kelp_job_key *key,
                                const char *value, enum kelp_origin_kind origin)
{
    if (key->type != KELP_JOB_PATH || value[0] == '\0' || value[0] == '/') {
        return false;
    }
    return origin == KELP_ORIGIN_FILE ? file->folder != NULL : strcmp(key->name, "run.dir") != 0;
}

kelp_status kelp__job_path_resolve(const char *folder, const char *value,
                                   char ret_path[KELP_JOB_PATH_MAX + 1], struct kelp_error *reterr)
{
    char above[PATH_MAX];

    if (folder) {
        (void)snprintf(above, sizeof(above), "%s", folder);
    } else if (!getcwd(above, sizeof(above))) {
        return kelp_fail(reterr, KELP_ERR_IO, "the current folder has no name: %s",
                         strerror(errno));
    }
    const char *rest = climb(above, value);
    const char *slash = rest[0] != '\0' || above[0] == '\0' ? "/" : "";
    int length = snprintf(ret_path, KELP_JOB_PATH_MAX + 1, "%s%s%s", above, slash, rest);
    if (length < 0 || length > KELP_JOB_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "is longer than %d bytes with its folder %.200s",
                         KELP_JOB_PATH_MAX, above);
    }
    return KELP_OK;
}

const char *kelp__job_path_name(const char *path)
{
    size_t end = strlen(path);

    while (end > 0 && path[end - 1] == '/') {
        end--;
    }
    while (end > 0 && path[end - 1] != '/') {
        end--;
    }
    return path + end;
}

/* ---- on this host -------------------------------------------------------------------------- */

kelp_status kelp_job_file_map(struct kelp_job_file *file, const struct kelp_path_map *map,
                              struct kelp_error *reterr)
{
    assert(!file->here);
    struct kelp_job *here = malloc(sizeof(*here));

    if (!here) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *here = file->job;
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const struct kelp_job_key *key = &kelp__job_keys[i];
        if (key->type != KELP_JOB_PATH) {
            continue;
        }
        kelp_status status = kelp_path_map_apply(map, (const char *)&file->job + key->offset,
                                                 (char *)here + key->offset, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "%s", key->name);
            free(here);
            return status;
        }
    }
    file->here = here;
    return KELP_OK;
}

bool kelp_job_file_path(const struct kelp_job_file *file, size_t index,
                        struct kelp_job_path *ret_path)
{
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const struct kelp_job_key *key = &kelp__job_keys[i];
        const char *named = (const char *)&file->job + key->offset;
        if (key->type == KELP_JOB_PATH && named[0] != '\0' && index-- == 0) {
            *ret_path =
                (struct kelp_job_path){.key = key->name,
                                       .named = named,
                                       .here = (const char *)kelp_job_file_job(file) + key->offset};
            return true;
        }
    }
    return false;
}
