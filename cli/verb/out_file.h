/* A file that a command is asked to write: looked at before there is anything to write. */
#ifndef KELP_CLI_VERB_OUT_FILE_H
#define KELP_CLI_VERB_OUT_FILE_H

#include "common/base/status.h"

/*
 * Can a file be made at path, instead of what is there? Never of a folder or a device: files
 * are replaced by renaming. The text names the option ("--out"). Errors: KELP_ERR_INVALID,
 * KELP_ERR_LIMIT.
 */
kelp_status kelp_out_file_check(const char *option, const char *path,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Safetensors under a name that PyTorch's own files have: say on standard error what reads it. */
void kelp_out_file_tell_safetensors(const char *path);

#endif
