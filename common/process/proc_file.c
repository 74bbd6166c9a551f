#include "common/process/proc_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

size_t kelp_proc_file_read(const char *name, char *text, size_t text_bytes)
{
    char path[128];
    size_t used = 0;

    (void)snprintf(path, sizeof(path), "/proc/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && used < text_bytes - 1) {
        ssize_t got = read(fd, text + used, text_bytes - 1 - used);
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    text[used] = '\0';
    return used;
}
