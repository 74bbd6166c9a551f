/*
 * kelp-faultdisk.so (cli/faultdisk/faultdisk.h): the C library's calls that RocksDB and our own
 * code write with, each of which asks gate() first.
 *
 * In mode OK a call costs one load. Otherwise the path decides whether it is ours: that of the
 * argument, or what /proc says of a descriptor. So nothing has to be followed from call to call.
 *
 * A symbol that RTLD_NEXT does not find is a mistake of ours: the program is ended.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "cli/faultdisk/faultdisk_internal.h"

#define PUBLIC __attribute__((visibility("default")))

static struct {
    struct kelp_faultdisk_control *control; /* NULL: nothing is to be done */
    char root[PATH_MAX];                    /* without a slash at the end */
    size_t root_length;
} disk;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void complain(const char *what, const char *why)
{
    (void)dprintf(STDERR_FILENO, "kelp-faultdisk: %s: %s\n", what, why);
    abort();
}

static void begin(void)
{
    const char *control = getenv(KELP_FAULTDISK_ENV_CONTROL);
    const char *root = getenv(KELP_FAULTDISK_ENV_ROOT);
    if (!control || !root) {
        return;
    }
    if (strlen(root) >= sizeof(disk.root)) {
        complain(root, "the path is too long");
    }
    (void)snprintf(disk.root, sizeof(disk.root), "%s", root);
    disk.root_length = strlen(disk.root);
    int fd = openat(AT_FDCWD, control, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        complain(control, strerror(errno));
    }
    void *memory = mmap(NULL, sizeof(*disk.control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED ||
        ((struct kelp_faultdisk_control *)memory)->magic != KELP_FAULTDISK_MAGIC) {
        complain(control, "not a control file");
    }
    (void)close(fd);
    disk.control = memory;
}

/* ---- which calls are ours ------------------------------------------------------------------ */

static bool below_root(const char *path)
{
    return strncmp(path, disk.root, disk.root_length) == 0 &&
           (path[disk.root_length] == '/' || path[disk.root_length] == '\0');
}

static bool fd_path(int fd, char path[PATH_MAX])
{
    char link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static bool fd_below_root(int fd)
{
    char path[PATH_MAX];
    return fd_path(fd, path) && below_root(path);
}

/* Without "//", "." and "..", as if no folder were a link. */
static void clean_path(char *path)
{
    char *out = path;
    for (const char *at = path; *at != '\0';) {
        at += strspn(at, "/");
        size_t length = strcspn(at, "/");
        if (length == 2 && at[0] == '.' && at[1] == '.') {
            while (out > path && *--out != '/') {
            }
        } else if (length > 0 && !(length == 1 && at[0] == '.')) {
            *out++ = '/';
            memmove(out, at, length);
            out += length;
        }
        at += length;
    }
    *out = '\0';
}

static bool path_below_root(int folder_fd, const char *path)
{
    char whole[2 * PATH_MAX];
    char folder[PATH_MAX] = "";
    if (path[0] != '/' && folder_fd == AT_FDCWD && !getcwd(folder, sizeof(folder))) {
        return false;
    }
    if (path[0] != '/' && folder_fd != AT_FDCWD && !fd_path(folder_fd, folder)) {
        return false;
    }
    (void)snprintf(whole, sizeof(whole), "%s/%s", folder, path);
    clean_path(whole);
    return below_root(whole);
}

/* ---- what happens to them ------------------------------------------------------------------ */

enum call { CALL_WRITE, CALL_SYNC, CALL_TAKE_ROOM, CALL_REMOVE, CALL_READ };

static bool may_hit(uint32_t mode, enum call call)
{
    switch ((enum kelp_faultdisk_mode)mode) {
    case KELP_FAULTDISK_OK:
        return false;
    case KELP_FAULTDISK_COUNT:
    case KELP_FAULTDISK_ERROR:
    case KELP_FAULTDISK_POWER:
        return call != CALL_READ;
    case KELP_FAULTDISK_FULL:
        return call != CALL_READ && call != CALL_REMOVE;
    case KELP_FAULTDISK_UNREADABLE:
        return call == CALL_READ;
    case KELP_FAULTDISK_SLOW:
        return call == CALL_WRITE || call == CALL_SYNC;
    }
    return false;
}

#define NAP_MS 5

static void nap(uint32_t ms)
{
    struct timespec left = {.tv_nsec = (long)ms * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* A disk that is slow no longer lets go of the calls that wait for it. */
static void wait_while_slow(const struct kelp_faultdisk_control *control)
{
    uint32_t left_ms = atomic_load(&control->slow_ms);
    while (left_ms > 0 && atomic_load(&control->mode) == KELP_FAULTDISK_SLOW) {
        uint32_t ms = left_ms < NAP_MS ? left_ms : NAP_MS;
        nap(ms);
        left_ms -= ms;
    }
}

/* True: this call is to fail, errno says how. */
static bool hit(uint32_t mode)
{
    struct kelp_faultdisk_control *control = disk.control;
    uint64_t number = atomic_fetch_add(&control->calls, 1);
    uint64_t after = atomic_load(&control->after);
    uint64_t count = atomic_load(&control->count);
    if (mode == KELP_FAULTDISK_COUNT || number < after || (count > 0 && number - after >= count)) {
        return false;
    }
    (void)atomic_fetch_add(&control->hits, 1);
    switch ((enum kelp_faultdisk_mode)mode) {
    case KELP_FAULTDISK_FULL:
        errno = ENOSPC;
        return true;
    case KELP_FAULTDISK_ERROR:
    case KELP_FAULTDISK_UNREADABLE:
        errno = EIO;
        return true;
    case KELP_FAULTDISK_SLOW:
        wait_while_slow(control);
        return false;
    case KELP_FAULTDISK_POWER:
        (void)kill(getpid(), SIGKILL);
        (void)pause(); /* until it has arrived */
        return false;
    case KELP_FAULTDISK_OK:
    case KELP_FAULTDISK_COUNT:
        break;
    }
    return false;
}

/* The mode, and whether a call may be hit at all. */
static bool may_be_hit(enum call call, uint32_t *ret_mode)
{
    (void)pthread_once(&once, begin);
    if (!disk.control) {
        return false;
    }
    *ret_mode = atomic_load_explicit(&disk.control->mode, memory_order_relaxed);
    return may_hit(*ret_mode, call);
}

/* errno is left alone by a call that passes. */
static bool gate_fd(enum call call, int fd)
{
    uint32_t mode = 0;
    int error = errno;
    bool fails = may_be_hit(call, &mode) && fd_below_root(fd) && hit(mode);
    errno = fails ? errno : error;
    return fails;
}

static bool gate_path(enum call call, int folder_fd, const char *path)
{
    uint32_t mode = 0;
    int error = errno;
    bool fails = path && may_be_hit(call, &mode) && path_below_root(folder_fd, path) && hit(mode);
    errno = fails ? errno : error;
    return fails;
}

static bool gate_stream(enum call call, FILE *stream)
{
    int fd = fileno(stream);
    return fd >= 0 && gate_fd(call, fd);
}

static void *next(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol) {
        complain(name, "not in the C library");
    }
    return symbol;
}

/* The C library's own function of this name, looked up once. */
#define NEXT(name)                                                                                 \
    static _Atomic(void *) found;                                                                  \
    void *symbol = atomic_load_explicit(&found, memory_order_acquire);                             \
    if (!symbol) {                                                                                 \
        symbol = next(#name);                                                                      \
        atomic_store_explicit(&found, symbol, memory_order_release);                               \
    }                                                                                              \
    __typeof__(name) *real;                                                                        \
    memcpy(&real, &symbol, sizeof(real))

/* ---- opening ------------------------------------------------------------------------------- */

/* A call that asks a gate first: hit, it fails with `failure`; else the C library does it. */
#define CALL(type, name, parameters, arguments, hit, failure)                                      \
    PUBLIC type name parameters                                                                    \
    {                                                                                              \
        NEXT(name);                                                                                \
        return (hit) ? (failure) : real arguments;                                                 \
    }

/* The same of a call whose mode stands behind flags that make files. */
#define CALL_OPEN(name, parameters, arguments, folder_fd)                                          \
    PUBLIC int name parameters                                                                     \
    {                                                                                              \
        NEXT(name);                                                                                \
        mode_t mode = 0;                                                                           \
        if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {                          \
            va_list rest;                                                                          \
            va_start(rest, flags);                                                                 \
            mode = va_arg(rest, mode_t);                                                           \
            va_end(rest);                                                                          \
        }                                                                                          \
        bool fails = (flags & O_CREAT) != 0 && gate_path(CALL_TAKE_ROOM, folder_fd, path);         \
        return fails ? -1 : real arguments;                                                        \
    }

static bool gate_open(const char *path, const char *mode)
{
    return mode[0] != 'r' && gate_path(CALL_TAKE_ROOM, AT_FDCWD, path);
}

CALL_OPEN(open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
CALL_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
CALL_OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), at)
CALL(int, creat, (const char *path, mode_t mode), (path, mode),
     gate_path(CALL_TAKE_ROOM, AT_FDCWD, path), -1)
CALL(FILE *, fopen, (const char *path, const char *mode), (path, mode), gate_open(path, mode), NULL)
CALL(FILE *, fopen64, (const char *path, const char *mode), (path, mode), gate_open(path, mode),
     NULL)

/* ---- reading and writing ------------------------------------------------------------------- */

CALL(ssize_t, read, (int fd, void *bytes, size_t count), (fd, bytes, count), gate_fd(CALL_READ, fd),
     -1)
CALL(ssize_t, pread, (int fd, void *bytes, size_t count, off_t offset), (fd, bytes, count, offset),
     gate_fd(CALL_READ, fd), -1)
CALL(ssize_t, pread64, (int fd, void *bytes, size_t count, off64_t offset),
     (fd, bytes, count, offset), gate_fd(CALL_READ, fd), -1)
CALL(ssize_t, write, (int fd, const void *bytes, size_t count), (fd, bytes, count),
     gate_fd(CALL_WRITE, fd), -1)
CALL(ssize_t, pwrite, (int fd, const void *bytes, size_t count, off_t offset),
     (fd, bytes, count, offset), gate_fd(CALL_WRITE, fd), -1)
CALL(ssize_t, pwrite64, (int fd, const void *bytes, size_t count, off64_t offset),
     (fd, bytes, count, offset), gate_fd(CALL_WRITE, fd), -1)
CALL(ssize_t, writev, (int fd, const struct iovec *pieces, int count), (fd, pieces, count),
     gate_fd(CALL_WRITE, fd), -1)
CALL(ssize_t, pwritev, (int fd, const struct iovec *pieces, int count, off_t offset),
     (fd, pieces, count, offset), gate_fd(CALL_WRITE, fd), -1)
CALL(size_t, fwrite, (const void *bytes, size_t size, size_t count, FILE *stream),
     (bytes, size, count, stream), gate_stream(CALL_WRITE, stream), 0)
CALL(int, fflush, (FILE * stream), (stream), stream &&gate_stream(CALL_WRITE, stream), EOF)
CALL(int, ftruncate, (int fd, off_t length), (fd, length), gate_fd(CALL_TAKE_ROOM, fd), -1)
CALL(int, ftruncate64, (int fd, off64_t length), (fd, length), gate_fd(CALL_TAKE_ROOM, fd), -1)
CALL(int, fallocate, (int fd, int mode, off_t offset, off_t length), (fd, mode, offset, length),
     gate_fd(CALL_TAKE_ROOM, fd), -1)
CALL(int, posix_fallocate, (int fd, off_t offset, off_t length), (fd, offset, length),
     gate_fd(CALL_TAKE_ROOM, fd), errno)

/* ---- syncing ------------------------------------------------------------------------------- */

CALL(int, fsync, (int fd), (fd), gate_fd(CALL_SYNC, fd), -1)
CALL(int, fdatasync, (int fd), (fd), gate_fd(CALL_SYNC, fd), -1)
/* Without flags nothing is written: RocksDB asks so whether there is such a call. */
CALL(int, sync_file_range, (int fd, off64_t offset, off64_t count, unsigned flags),
     (fd, offset, count, flags), flags != 0 && gate_fd(CALL_SYNC, fd), -1)

/* ---- names --------------------------------------------------------------------------------- */

CALL(int, mkdir, (const char *path, mode_t mode), (path, mode),
     gate_path(CALL_TAKE_ROOM, AT_FDCWD, path), -1)
CALL(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode),
     gate_path(CALL_TAKE_ROOM, at, path), -1)
CALL(int, link, (const char *from, const char *to), (from, to),
     gate_path(CALL_TAKE_ROOM, AT_FDCWD, to), -1)
CALL(int, linkat, (int from_at, const char *from, int to_at, const char *to, int flags),
     (from_at, from, to_at, to, flags), gate_path(CALL_TAKE_ROOM, to_at, to), -1)
CALL(int, rename, (const char *from, const char *to), (from, to),
     gate_path(CALL_TAKE_ROOM, AT_FDCWD, to), -1)
CALL(int, renameat, (int from_at, const char *from, int to_at, const char *to),
     (from_at, from, to_at, to), gate_path(CALL_TAKE_ROOM, to_at, to), -1)
CALL(int, renameat2, (int from_at, const char *from, int to_at, const char *to, unsigned flags),
     (from_at, from, to_at, to, flags), gate_path(CALL_TAKE_ROOM, to_at, to), -1)
CALL(int, unlink, (const char *path), (path), gate_path(CALL_REMOVE, AT_FDCWD, path), -1)
CALL(int, unlinkat, (int at, const char *path, int flags), (at, path, flags),
     gate_path(CALL_REMOVE, at, path), -1)
CALL(int, rmdir, (const char *path), (path), gate_path(CALL_REMOVE, AT_FDCWD, path), -1)
