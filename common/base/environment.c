#include "common/base/environment.h"

#include <stdio.h>
#include <stdlib.h>

static bool choose(const char *folder, const char *below_home, char *ret_path, size_t path_bytes)
{
    const char *home = getenv("HOME");
    int bytes = -1;
    if (folder && folder[0] == '/') { /* the XDG rules ignore relative paths */
        bytes = snprintf(ret_path, path_bytes, "%s/kelp", folder);
    } else if (home && home[0] == '/') {
        bytes = snprintf(ret_path, path_bytes, "%s/%s/kelp", home, below_home);
    }
    return bytes > 0 && (size_t)bytes < path_bytes;
}

bool kelp_environment_cache(char *ret_path, size_t path_bytes)
{
    return choose(getenv("XDG_CACHE_HOME"), ".cache", ret_path, path_bytes);
}

bool kelp_environment_state(char *ret_path, size_t path_bytes)
{
    return choose(getenv("XDG_STATE_HOME"), ".local/state", ret_path, path_bytes);
}

const char *kelp_environment_python(void)
{
    const char *python = getenv("KELP_PYTHON");

    return python && python[0] != '\0' ? python : "python3";
}

const char *kelp_environment_temporary(void)
{
    const char *folder = getenv("TMPDIR");

    return folder && folder[0] == '/' ? folder : "/tmp";
}
