#include "common/base/process_name.h"

#include <string.h>

bool kelp_process_name_valid(const char *text)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t length = strnlen(text, KELP_PROCESS_NAME_MAX + 1);
    return length > 0 && length <= KELP_PROCESS_NAME_MAX && strspn(text, allowed) == length;
}
