/*
 * kelp-faultdisk.so (cli/faultdisk/faultdisk.h): the C library's calls that RocksDB and our own
 * code write with, each of which asks gate() first.
 *
 * In mode OK a call costs one load. Otherwise the path decides whether it is ours: that of the
 * argument, or what /proc says of a descriptor. Only fsync() and fdatasync() keep records; so
 * nothing has to be followed from call to call, and nothing is lost when the program is killed.
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
    char shadow[PATH_MAX]; /* empty: no records */
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
    const char *shadow = getenv(KELP_FAULTDISK_ENV_SHADOW);
    if (control == NULL || root == NULL) {
        return;
    }
    if (strlen(root) >= sizeof(disk.root) || strlen(shadow ? shadow : "") >= sizeof(disk.shadow)) {
        complain(root, "the path is too long");
    }
    (void)snprintf(disk.root, sizeof(disk.root), "%s", root);
    (void)snprintf(disk.shadow, sizeof(disk.shadow), "%s", shadow ? shadow : "");
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

/* ---- which calls are ours ---------------------------------------------------------------------
 */

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
    if (path[0] != '/' && folder_fd == AT_FDCWD && getcwd(folder, sizeof(folder)) == NULL) {
        return false;
    }
    if (path[0] != '/' && folder_fd != AT_FDCWD && !fd_path(folder_fd, folder)) {
        return false;
    }
    (void)snprintf(whole, sizeof(whole), "%s/%s", folder, path);
    clean_path(whole);
    return below_root(whole);
}

/* ---- what happens to them ---------------------------------------------------------------------
 */

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

static void wait_ms(uint32_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
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
        wait_ms(atomic_load(&control->slow_ms));
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

/* errno is left alone by a call that passes. */
static bool gate_fd(enum call call, int fd)
{
    (void)pthread_once(&once, begin);
    if (disk.control == NULL) {
        return false;
    }
    uint32_t mode = atomic_load_explicit(&disk.control->mode, memory_order_relaxed);
    int error = errno;
    if (may_hit(mode, call) && fd_below_root(fd) && hit(mode)) {
        return true;
    }
    errno = error;
    return false;
}

static bool gate_path(enum call call, int folder_fd, const char *path)
{
    (void)pthread_once(&once, begin);
    if (disk.control == NULL || path == NULL) {
        return false;
    }
    uint32_t mode = atomic_load_explicit(&disk.control->mode, memory_order_relaxed);
    int error = errno;
    if (may_hit(mode, call) && path_below_root(folder_fd, path) && hit(mode)) {
        return true;
    }
    errno = error;
    return false;
}

static bool gate_stream(enum call call, FILE *stream)
{
    int fd = fileno(stream);
    return fd >= 0 && gate_fd(call, fd);
}

static void *next(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL) {
        complain(name, "not in the C library");
    }
    return symbol;
}

/* The C library's own function of this name, looked up once. */
#define NEXT(name)                                                                                 \
    static _Atomic(void *) found;                                                                  \
    void *symbol = atomic_load_explicit(&found, memory_order_acquire);                             \
    if (symbol == NULL) {                                                                          \
        symbol = next(#name);                                                                      \
        atomic_store_explicit(&found, symbol, memory_order_release);                               \
    }                                                                                              \
    __typeof__(name) *real;                                                                        \
    memcpy(&real, &symbol, sizeof(real))

/* ---- opening ----------------------------------------------------------------------------------
 */

/* Declares `mode`, which stands behind flags that make files. */
#define TAKE_MODE(flags)                                                                           \
    mode_t mode = 0;                                                                               \
    if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE) {                              \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        mode = va_arg(arguments, mode_t);                                                          \
        va_end(arguments);                                                                         \
    }

PUBLIC int open(const char *path, int flags, ...)
{
    NEXT(open);
    TAKE_MODE(flags)
    bool fails = (flags & O_CREAT) != 0 && gate_path(CALL_TAKE_ROOM, AT_FDCWD, path);
    return fails ? -1 : real(path, flags, mode);
}

PUBLIC int open64(const char *path, int flags, ...)
{
    NEXT(open64);
    TAKE_MODE(flags)
    bool fails = (flags & O_CREAT) != 0 && gate_path(CALL_TAKE_ROOM, AT_FDCWD, path);
    return fails ? -1 : real(path, flags, mode);
}

PUBLIC int openat(int folder_fd, const char *path, int flags, ...)
{
    NEXT(openat);
    TAKE_MODE(flags)
    bool fails = (flags & O_CREAT) != 0 && gate_path(CALL_TAKE_ROOM, folder_fd, path);
    return fails ? -1 : real(folder_fd, path, flags, mode);
}

PUBLIC int creat(const char *path, mode_t mode)
{
    NEXT(creat);
    return gate_path(CALL_TAKE_ROOM, AT_FDCWD, path) ? -1 : real(path, mode);
}

static FILE *open_stream(FILE *(*real)(const char *, const char *), const char *path,
                         const char *mode)
{
    bool takes_room = mode[0] != 'r';
    return takes_room && gate_path(CALL_TAKE_ROOM, AT_FDCWD, path) ? NULL : real(path, mode);
}

PUBLIC FILE *fopen(const char *path, const char *mode)
{
    NEXT(fopen);
    return open_stream(real, path, mode);
}

PUBLIC FILE *fopen64(const char *path, const char *mode)
{
    NEXT(fopen64);
    return open_stream(real, path, mode);
}

/* ---- reading and writing ----------------------------------------------------------------------
 */

PUBLIC ssize_t read(int fd, void *bytes, size_t count)
{
    NEXT(read);
    return gate_fd(CALL_READ, fd) ? -1 : real(fd, bytes, count);
}

PUBLIC ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
    NEXT(pread);
    return gate_fd(CALL_READ, fd) ? -1 : real(fd, bytes, count, offset);
}

PUBLIC ssize_t pread64(int fd, void *bytes, size_t count, off64_t offset)
{
    NEXT(pread64);
    return gate_fd(CALL_READ, fd) ? -1 : real(fd, bytes, count, offset);
}

PUBLIC ssize_t write(int fd, const void *bytes, size_t count)
{
    NEXT(write);
    return gate_fd(CALL_WRITE, fd) ? -1 : real(fd, bytes, count);
}

PUBLIC ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    NEXT(pwrite);
    return gate_fd(CALL_WRITE, fd) ? -1 : real(fd, bytes, count, offset);
}

PUBLIC ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset)
{
    NEXT(pwrite64);
    return gate_fd(CALL_WRITE, fd) ? -1 : real(fd, bytes, count, offset);
}

PUBLIC ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    NEXT(writev);
    return gate_fd(CALL_WRITE, fd) ? -1 : real(fd, pieces, count);
}

PUBLIC ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset)
{
    NEXT(pwritev);
    return gate_fd(CALL_WRITE, fd) ? -1 : real(fd, pieces, count, offset);
}

PUBLIC size_t fwrite(const void *bytes, size_t size, size_t count, FILE *stream)
{
    NEXT(fwrite);
    return gate_stream(CALL_WRITE, stream) ? 0 : real(bytes, size, count, stream);
}

PUBLIC int fflush(FILE *stream)
{
    NEXT(fflush);
    return stream != NULL && gate_stream(CALL_WRITE, stream) ? EOF : real(stream);
}

PUBLIC int ftruncate(int fd, off_t length)
{
    NEXT(ftruncate);
    return gate_fd(CALL_TAKE_ROOM, fd) ? -1 : real(fd, length);
}

PUBLIC int ftruncate64(int fd, off64_t length)
{
    NEXT(ftruncate64);
    return gate_fd(CALL_TAKE_ROOM, fd) ? -1 : real(fd, length);
}

PUBLIC int fallocate(int fd, int mode, off_t offset, off_t length)
{
    NEXT(fallocate);
    return gate_fd(CALL_TAKE_ROOM, fd) ? -1 : real(fd, mode, offset, length);
}

PUBLIC int posix_fallocate(int fd, off_t offset, off_t length)
{
    NEXT(posix_fallocate);
    return gate_fd(CALL_TAKE_ROOM, fd) ? errno : real(fd, offset, length);
}

/* ---- syncing ----------------------------------------------------------------------------------
 */

static int sync_with(int (*real)(int), int fd)
{
    if (gate_fd(CALL_SYNC, fd)) {
        return -1;
    }
    int error = errno;
    int result = real(fd);
    if (result == 0 && disk.control != NULL && disk.shadow[0] != '\0' && fd_below_root(fd)) {
        if (!kelp__faultdisk_record(disk.shadow, fd)) {
            complain("cannot record what was synced", strerror(errno));
        }
        errno = error;
    }
    return result;
}

PUBLIC int fsync(int fd)
{
    NEXT(fsync);
    return sync_with(real, fd);
}

PUBLIC int fdatasync(int fd)
{
    NEXT(fdatasync);
    return sync_with(real, fd);
}

PUBLIC int sync_file_range(int fd, off64_t offset, off64_t count, unsigned flags)
{
    NEXT(sync_file_range);
    /* Without flags nothing is written: RocksDB asks so whether there is such a call. */
    return flags != 0 && gate_fd(CALL_SYNC, fd) ? -1 : real(fd, offset, count, flags);
}

/* ---- names ------------------------------------------------------------------------------------
 */

PUBLIC int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir);
    return gate_path(CALL_TAKE_ROOM, AT_FDCWD, path) ? -1 : real(path, mode);
}

PUBLIC int mkdirat(int folder_fd, const char *path, mode_t mode)
{
    NEXT(mkdirat);
    return gate_path(CALL_TAKE_ROOM, folder_fd, path) ? -1 : real(folder_fd, path, mode);
}

PUBLIC int link(const char *from, const char *to)
{
    NEXT(link);
    return gate_path(CALL_TAKE_ROOM, AT_FDCWD, to) ? -1 : real(from, to);
}

PUBLIC int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    NEXT(linkat);
    return gate_path(CALL_TAKE_ROOM, to_fd, to) ? -1 : real(from_fd, from, to_fd, to, flags);
}

PUBLIC int rename(const char *from, const char *to)
{
    NEXT(rename);
    return gate_path(CALL_TAKE_ROOM, AT_FDCWD, to) ? -1 : real(from, to);
}

PUBLIC int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    NEXT(renameat);
    return gate_path(CALL_TAKE_ROOM, to_fd, to) ? -1 : real(from_fd, from, to_fd, to);
}

PUBLIC int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    NEXT(renameat2);
    return gate_path(CALL_TAKE_ROOM, to_fd, to) ? -1 : real(from_fd, from, to_fd, to, flags);
}

PUBLIC int unlink(const char *path)
{
    NEXT(unlink);
    return gate_path(CALL_REMOVE, AT_FDCWD, path) ? -1 : real(path);
}

PUBLIC int unlinkat(int folder_fd, const char *path, int flags)
{
    NEXT(unlinkat);
    return gate_path(CALL_REMOVE, folder_fd, path) ? -1 : real(folder_fd, path, flags);
}

PUBLIC int rmdir(const char *path)
{
    NEXT(rmdir);
    return gate_path(CALL_REMOVE, AT_FDCWD, path) ? -1 : real(path);
}
