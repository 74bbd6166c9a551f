#include "common/base/environment.h"

#include <stdio.h>
#include <stdlib.h>

bool kelp_environment_cache(char *ret_path, size_t path_bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int bytes = -1;
    if (cache && cache[0] == '/') { /* the XDG rules have relative ones ignored */
        bytes = snprintf(ret_path, path_bytes, "%s/kelp", cache);
    } else if (home && home[0] == '/') {
        bytes = snprintf(ret_path, path_bytes, "%s/.cache/kelp", home);
    }
    return bytes > 0 && (size_t)bytes < path_bytes;
}
