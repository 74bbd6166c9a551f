#include "cli/verb/out_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/verb/verb.h"

kelp_status kelp_out_file_check(const char *option, const char *path, struct kelp_error *reterr)
{
    struct stat about;
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int length = !slash ? snprintf(folder, sizeof(folder), ".")
                 : slash == path
                     ? snprintf(folder, sizeof(folder), "/")
                     : snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);

    if (length < 0 || (size_t)length >= sizeof(folder)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: the path is too long", option);
    }
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s '%s': is %s; give a file", option, path,
                         S_ISDIR(about.st_mode) ? "a folder" : "not a regular file");
    }
    if (access(folder, W_OK | X_OK) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s '%s': no file can be made in '%s': %s",
                         option, path, folder, strerror(errno));
    }
    return KELP_OK;
}

void kelp_out_file_tell_safetensors(const char *path)
{
    static const char *const endings[] = {".pt", ".pth", ".bin", ".ckpt"};
    size_t bytes = strlen(path);

    for (size_t i = 0; i < KELP_ARRAY_COUNT(endings); i++) {
        size_t ending = strlen(endings[i]);
        if (bytes > ending && strcmp(path + bytes - ending, endings[i]) == 0) {
            (void)kelp_complain(KELP_EXIT_OK,
                                "%s holds safetensors: safetensors.torch.load_file() reads it, "
                                "torch.load() does not",
                                path);
        }
    }
}
