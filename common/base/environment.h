/* Places and programs that the user's environment names. */
#ifndef KELP_COMMON_BASE_ENVIRONMENT_H
#define KELP_COMMON_BASE_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

/* The folder for what can be made again: $XDG_CACHE_HOME/kelp, or $HOME/.cache/kelp. False when
 * neither is set (to an absolute path), or it does not fit. Nothing is made. */
bool kelp_environment_cache(char *ret_path, size_t path_bytes);

/* The same for what should outlast a command: $XDG_STATE_HOME/kelp, or $HOME/.local/state/kelp. */
bool kelp_environment_state(char *ret_path, size_t path_bytes);

/* The folder for what is needed for a moment: $TMPDIR, or "/tmp". Borrowed. */
const char *kelp_environment_temporary(void);

/* The Python that runs scripts: $KELP_PYTHON, or "python3". Borrowed. */
const char *kelp_environment_python(void);

#endif
