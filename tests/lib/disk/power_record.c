/* Also part of kelp-shadowdisk.so: it uses only libc, and only what a preloaded library may do. */
#include "tests/lib/disk/power_record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATH_BYTES (1024 + 128)

/* ---- ids ----------------------------------------------------------------------------------- */

/* FNV-1a over the file handle, which includes the inode's generation; 0: there is none. */
static uint64_t handle_of(int folder_fd, const char *name)
{
    union {
        struct file_handle handle;
        unsigned char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } room;
    int mount = 0;
    room.handle.handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(folder_fd, name, &room.handle, &mount,
                          name[0] == '\0' ? AT_EMPTY_PATH : 0) != 0) {
        return 0;
    }
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (unsigned i = 0; i < room.handle.handle_bytes; i++) {
        hash = (hash ^ room.bytes[sizeof(struct file_handle) + i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static char type_of(unsigned mode)
{
    if (S_ISREG(mode)) {
        return 'f';
    }
    if (S_ISDIR(mode)) {
        return 'd';
    }
    return S_ISLNK(mode) ? 'l' : '?';
}

bool kelp_power_id(int folder_fd, const char *name, char ret_id[KELP_POWER_ID_BYTES],
                   char *ret_type)
{
    struct statx about;
    int flags = AT_SYMLINK_NOFOLLOW | (name[0] == '\0' ? AT_EMPTY_PATH : 0);
    if (statx(folder_fd, name, flags, STATX_INO | STATX_TYPE | STATX_BTIME, &about) != 0) {
        return false;
    }
    if ((about.stx_mask & STATX_BTIME) == 0) {
        errno = EOPNOTSUPP;
        return false;
    }
    (void)snprintf(ret_id, KELP_POWER_ID_BYTES, "%llx-%llx.%x-%llx",
                   (unsigned long long)about.stx_ino, (unsigned long long)about.stx_btime.tv_sec,
                   about.stx_btime.tv_nsec, (unsigned long long)handle_of(folder_fd, name));
    *ret_type = type_of(about.stx_mode);
    return true;
}

/* ---- recording ----------------------------------------------------------------------------- */

struct record {
    int lock;
    int out;
    char temporary[PATH_BYTES];
    char path[PATH_BYTES];
};

/* A later record of an inode replaces an earlier one. */
static bool begin_record(struct record *record, const char *shadow, char kind, const char *id)
{
    char lock[PATH_BYTES];
    (void)snprintf(lock, sizeof(lock), "%s/lock", shadow);
    (void)snprintf(record->path, sizeof(record->path), "%s/%c.%s", shadow, kind, id);
    (void)snprintf(record->temporary, sizeof(record->temporary), "%s/new.%ld", shadow,
                   (long)syscall(SYS_gettid));
    record->lock = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (record->lock < 0) {
        return false;
    }
    while (flock(record->lock, LOCK_EX) != 0) {
        if (errno != EINTR) {
            (void)close(record->lock);
            return false;
        }
    }
    record->out = open(record->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (record->out < 0) {
        int error = errno;
        (void)close(record->lock);
        errno = error;
        return false;
    }
    return true;
}

static bool end_record(struct record *record, bool done)
{
    int error = errno;
    if (close(record->out) != 0 && done) {
        error = errno;
        done = false;
    }
    if (done && rename(record->temporary, record->path) != 0) {
        error = errno;
        done = false;
    }
    (void)close(record->lock); /* unlocks */
    errno = error;
    return done;
}

static bool write_out(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(fd, bytes, count);
        if (written < 0 && errno != EINTR) {
            return false;
        }
        bytes += written > 0 ? written : 0;
        count -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

static bool copy_file(int fd, int out)
{
    char path[64];
    char buffer[64 << 10];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd); /* fd may be write-only */
    int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0) {
        return false;
    }
    ssize_t got = 0;
    bool done = true;
    do {
        got = read(in, buffer, sizeof(buffer));
        done = got >= 0 ? write_out(out, buffer, (size_t)got) : errno == EINTR;
    } while (done && got != 0);
    int error = errno;
    (void)close(in);
    errno = error;
    return done;
}

/* A symbolic link cannot be synced itself: it is as durable as its name. */
static bool add_target(int folder_fd, const char *name, int out)
{
    char target[PATH_BYTES];
    ssize_t length = readlinkat(folder_fd, name, target, sizeof(target) - 1);
    if (length < 0) {
        return false;
    }
    target[length] = '\0';
    return write_out(out, target, (size_t)length + 1);
}

static bool list_folder(int fd, int out)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = own >= 0 ? fdopendir(own) : NULL;
    if (folder == NULL) {
        if (own >= 0) {
            (void)close(own);
        }
        return false;
    }
    bool done = true;
    for (struct dirent *entry = readdir(folder); entry != NULL && done; entry = readdir(folder)) {
        char id[KELP_POWER_ID_BYTES];
        char line[KELP_POWER_ID_BYTES + 320];
        char type = '?';
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (!kelp_power_id(own, entry->d_name, id, &type)) {
            done = errno == ENOENT; /* removed meanwhile */
            continue;
        }
        int length = snprintf(line, sizeof(line), "%c%s %s", type, id, entry->d_name);
        done = write_out(out, line, (size_t)length + 1) &&
               (type != 'l' || add_target(own, entry->d_name, out));
    }
    int error = errno;
    (void)closedir(folder);
    errno = error;
    return done;
}

bool kelp_power_record(const char *shadow, int fd)
{
    char id[KELP_POWER_ID_BYTES];
    char type = '?';
    struct record record;
    if (!kelp_power_id(fd, "", id, &type)) {
        return false;
    }
    if (type != 'f' && type != 'd') {
        return true;
    }
    if (!begin_record(&record, shadow, type, id)) {
        return false;
    }
    bool done = type == 'd' ? list_folder(fd, record.out) : copy_file(fd, record.out);
    return end_record(&record, done);
}
