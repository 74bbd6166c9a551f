/*
 * kelp-shadowdisk.so (tests/lib/disk/power_loss.h): fsync() and fdatasync() below the root also
 * record what they made durable. No other calls keep records, so nothing is lost when the program
 * is killed. If a record cannot be kept, the test is wrong, and the program is ended.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/faultdisk/faultdisk_internal.h"
#include "tests/lib/disk/power_record.h"

#define PUBLIC __attribute__((visibility("default")))

static bool below_root(int fd, const char *root)
{
    char link[64];
    char path[PATH_MAX];
    size_t length = strlen(root);

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, path, sizeof(path) - 1);
    path[got > 0 ? got : 0] = '\0';
    return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int sync_with(const char *name, int fd)
{
    const char *root = getenv(KELP_FAULTDISK_ENV_ROOT);
    const char *shadow = getenv(KELP_POWER_ENV_SHADOW);
    void *symbol = dlsym(RTLD_NEXT, name);
    int (*real)(int fd) = NULL;

    if (!symbol) {
        abort();
    }
    memcpy(&real, &symbol, sizeof(real));
    int error = errno;
    int result = real(fd);
    if (result != 0 || !root || !shadow || !below_root(fd, root)) {
        return result;
    }
    if (!kelp_power_record(shadow, fd)) {
        (void)dprintf(STDERR_FILENO, "kelp-shadowdisk: cannot record what was synced: %s\n",
                      strerror(errno));
        abort();
    }
    errno = error;
    return result;
}

PUBLIC int fsync(int fd)
{
    return sync_with("fsync", fd);
}

PUBLIC int fdatasync(int fd)
{
    return sync_with("fdatasync", fd);
}
