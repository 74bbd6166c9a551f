/* Part of manifest.h without I/O: the coordinator checks folder names that shards report. */
#include <string.h>

#include "common/training/manifest.h"

bool kelp_folder_name_valid(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > KELP_FOLDER_NAME_MAX || name[0] == '.') {
        return false;
    }
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
           length;
}
