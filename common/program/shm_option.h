/*
 * The option --shm-folder FOLDER: where processes of one host that serve at ports, and those that
 * dial them, meet for shared memory (kelp_rpc_loop_shm_folder()).
 */
#ifndef KELP_COMMON_PROGRAM_SHM_OPTION_H
#define KELP_COMMON_PROGRAM_SHM_OPTION_H

#include "common/program/options/options.h"

#define KELP_SHM_FOLDER "shm-folder"

/* An entry for a table of options. */
#define KELP_SHM_FOLDER_OPTION(heading, more)                                                      \
    {                                                                                              \
        .name = KELP_SHM_FOLDER, .type = KELP_OPTION_TEXT, .placeholder = "FOLDER",                \
        .group = (heading),                                                                        \
        .help = "folder through which processes of this host and user that listen on ports find "  \
                "shared memory (transport.kind); its path may differ between processes" more       \
    }

/* What it says; NULL: nothing. Borrowed from the options. Errors: KELP_ERR_INVALID (no folder's
 * absolute path, or one that is too long). */
kelp_status kelp_shm_option_read(const struct kelp_options *options, const char **ret_folder,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* The same for a daemon. On a mistake: one line to standard error and false. */
bool kelp_shm_option_begin(const struct kelp_program *program, const struct kelp_options *options,
                           const char **ret_folder);

#endif
