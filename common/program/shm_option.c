#include "common/program/shm_option.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/program/socket_folder.h"

kelp_status kelp_shm_option_read(const struct kelp_options *options, const char **ret_folder,
                                 struct kelp_error *reterr)
{
    const char *folder = kelp_options_text(options, KELP_SHM_FOLDER);
    struct stat about;

    *ret_folder = folder;
    if (!folder) {
        return KELP_OK;
    }
    if (folder[0] != '/' || strlen(folder) > KELP_SOCKET_FOLDER_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--" KELP_SHM_FOLDER
                         " '%.100s': expected an absolute path of at most %d bytes",
                         folder, KELP_SOCKET_FOLDER_MAX);
    }
    if (stat(folder, &about) != 0 || !S_ISDIR(about.st_mode)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--" KELP_SHM_FOLDER " '%s' is not a folder",
                         folder);
    }
    return KELP_OK;
}

bool kelp_shm_option_begin(const struct kelp_program *program, const struct kelp_options *options,
                           const char **ret_folder)
{
    struct kelp_error error;

    if (kelp_shm_option_read(options, ret_folder, &error) != KELP_OK) {
        (void)fprintf(stderr, "%s: %s\n", program->name, error.text);
        return false;
    }
    return true;
}
