#include "common/base/files.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POUR_BYTES (256u << 10)

static kelp_status status_of(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return KELP_ERR_NO_SPACE;
    case ENOENT:
    case ENOTDIR:
        return KELP_ERR_NOT_FOUND;
    case ENOMEM:
        return KELP_ERR_NO_MEMORY;
    default:
        return KELP_ERR_IO;
    }
}

kelp_status kelp_files_error(int error, const char *what, const char *path,
                             struct kelp_error *reterr)
{
    return kelp_fail(reterr, status_of(error), "cannot %s '%s': %s", what, path, strerror(error));
}

static kelp_status no_memory(const char *path, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the path '%s'", path);
}

kelp_status kelp_files_make_folder(const char *path, struct kelp_error *reterr)
{
    char *part = strdup(path);
    if (!part) {
        return no_memory(path, reterr);
    }
    kelp_status status = KELP_OK;
    char *at = part;
    bool last = false;
    while (!last && status == KELP_OK) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        last = *at == '\0';
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            status = kelp_files_error(errno, "make folder", part, reterr);
        }
        *at = last ? '\0' : '/';
    }
    free(part);
    return status;
}

/* EINVAL: the file system cannot sync folders, and nothing can be done about it. */
static kelp_status sync_one(const char *path, bool folder, struct kelp_error *reterr)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | (folder ? O_DIRECTORY : 0));
    if (fd < 0) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    kelp_status status = KELP_OK;
    if (fsync(fd) != 0 && !(folder && errno == EINVAL)) {
        status = kelp_files_error(errno, "sync", path, reterr);
    }
    (void)close(fd); /* it was only read */
    return status;
}

kelp_status kelp_files_sync(const char *path, struct kelp_error *reterr)
{
    struct stat about;
    if (stat(path, &about) != 0) {
        return kelp_files_error(errno, "look at", path, reterr);
    }
    return sync_one(path, S_ISDIR(about.st_mode), reterr);
}

/* Cut the last name off; false: there is no folder above. */
static bool cut_name(char *path)
{
    char *end = path + strlen(path);
    while (end > path + 1 && end[-1] == '/') {
        end--;
    }
    while (end > path && end[-1] != '/') {
        end--;
    }
    while (end > path + 1 && end[-1] == '/') {
        end--;
    }
    bool cut = *end != '\0' && end > path;
    *end = '\0';
    return cut;
}

kelp_status kelp_files_sync_above(const char *path, unsigned levels, struct kelp_error *reterr)
{
    char *above = strdup(path);
    if (!above) {
        return no_memory(path, reterr);
    }
    kelp_status status = KELP_OK;
    for (unsigned i = 0; i < levels && status == KELP_OK && strcmp(above, "/") != 0; i++) {
        if (!cut_name(above)) {
            status = sync_one(".", true, reterr);
            break;
        }
        status = sync_one(above, true, reterr);
    }
    free(above);
    return status;
}

/* ---- trees ---- */

/* Called for each entry of a tree, children before their folder. After an error the walk
 * continues; the first error is kept. */
typedef kelp_status walk_entry(const char *path, bool folder, struct kelp_error *reterr);

static kelp_status walk_one(const FTSENT *entry, walk_entry *visit, struct kelp_error *reterr)
{
    switch (entry->fts_info) {
    case FTS_D:
        return KELP_OK;
    case FTS_NS:
    case FTS_DNR:
    case FTS_ERR:
        return entry->fts_errno == ENOENT
                   ? KELP_OK
                   : kelp_files_error(entry->fts_errno, "read", entry->fts_path, reterr);
    default:
        return visit(entry->fts_path, entry->fts_info == FTS_DP, reterr);
    }
}

static kelp_status walk(const char *path, walk_entry *visit, struct kelp_error *reterr)
{
    char *root = strdup(path); /* fts needs it writable */
    char *roots[] = {root, NULL};
    FTS *tree = root ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    if (!tree) {
        free(root);
        return no_memory(path, reterr);
    }
    kelp_status first = KELP_OK;
    errno = 0;
    for (FTSENT *entry = fts_read(tree); entry; entry = fts_read(tree)) {
        kelp_status status = walk_one(entry, visit, first == KELP_OK ? reterr : NULL);
        first = first == KELP_OK ? status : first;
        errno = 0;
    }
    if (errno != 0 && first == KELP_OK) {
        first = kelp_files_error(errno, "read", path, reterr);
    }
    (void)fts_close(tree); /* it was only read */
    free(root);
    return first;
}

static kelp_status visit_sync(const char *path, bool folder, struct kelp_error *reterr)
{
    return sync_one(path, folder, reterr);
}

kelp_status kelp_files_sync_tree(const char *path, struct kelp_error *reterr)
{
    if (access(path, F_OK) != 0) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    return walk(path, visit_sync, reterr);
}

static kelp_status visit_remove(const char *path, bool folder, struct kelp_error *reterr)
{
    if ((folder ? rmdir(path) : unlink(path)) != 0 && errno != ENOENT) {
        return kelp_files_error(errno, "remove", path, reterr);
    }
    return KELP_OK;
}

kelp_status kelp_files_remove(const char *path, struct kelp_error *reterr)
{
    return walk(path, visit_remove, reterr);
}

/* ---- whole files ---- */

bool kelp_files_write_all(int fd, const void *bytes, size_t count)
{
    const char *at = bytes;

    while (count > 0) {
        ssize_t written = write(fd, at, count);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return false;
        }
        at += written;
        count -= (size_t)written;
    }
    return true;
}

static kelp_status write_beside(const char *path, const char *temporary, const void *bytes,
                                size_t count, struct kelp_error *reterr)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return kelp_files_error(errno, "open", temporary, reterr);
    }
    kelp_status status = KELP_OK;
    if (!kelp_files_write_all(fd, bytes, count) || fsync(fd) != 0) {
        status = kelp_files_error(errno, "write", temporary, reterr);
    }
    if (close(fd) != 0 && status == KELP_OK) {
        status = kelp_files_error(errno, "close", temporary, reterr);
    }
    if (status == KELP_OK && rename(temporary, path) != 0) {
        status = kelp_files_error(errno, "rename", temporary, reterr);
    }
    if (status != KELP_OK) {
        (void)unlink(temporary); /* the first error is the one to report */
    }
    return status;
}

kelp_status kelp_files_write(const char *path, const void *bytes, size_t count,
                             struct kelp_error *reterr)
{
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.new", path) < 0) {
        return no_memory(path, reterr);
    }
    kelp_status status = write_beside(path, temporary, bytes, count, reterr);
    free(temporary);
    return status == KELP_OK ? kelp_files_sync_above(path, 1, reterr) : status;
}

kelp_status kelp_files_print(const char *path, void (*print)(const void *what, FILE *out),
                             const void *what, struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (!out) {
        return no_memory(path, reterr);
    }
    print(what, out);
    kelp_status status =
        fclose(out) == 0 ? kelp_files_write(path, text, bytes, reterr) : no_memory(path, reterr);
    free(text);
    return status;
}

kelp_status kelp_files_pour(int from, const char *from_path, int to, const char *to_path,
                            struct kelp_error *reterr)
{
    char *buffer = malloc(POUR_BYTES);
    kelp_status status = KELP_OK;
    ssize_t got = 1;

    if (!buffer) {
        return no_memory(from_path, reterr);
    }
    while (status == KELP_OK && got > 0) {
        do {
            got = read(from, buffer, POUR_BYTES);
        } while (got < 0 && errno == EINTR);
        if (got < 0) {
            status = kelp_files_error(errno, "read", from_path, reterr);
        } else if (!kelp_files_write_all(to, buffer, (size_t)got)) {
            status = kelp_files_error(errno, "write", to_path, reterr);
        }
    }
    free(buffer);
    return status;
}

static kelp_status read_all(int fd, const char *path, size_t count_max, char **ret_bytes,
                            size_t *ret_count, struct kelp_error *reterr)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return kelp_files_error(errno, "look at", path, reterr);
    }
    if (about.st_size < 0 || (uint64_t)about.st_size > count_max) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "'%s' has %" PRId64 " bytes; %zu is the limit",
                         path, (int64_t)about.st_size, count_max);
    }
    size_t count = 0;
    size_t room = (size_t)about.st_size;
    char *bytes = malloc(room + 1);
    if (!bytes) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for '%s'", path);
    }
    while (count < room) {
        ssize_t got = read(fd, bytes + count, room - count);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            kelp_status status = kelp_files_error(errno, "read", path, reterr);
            free(bytes);
            return status;
        }
        if (got == 0) {
            break;
        }
        count += (size_t)got;
    }
    assert(count <= room);
    bytes[count] = '\0';
    *ret_bytes = bytes;
    *ret_count = count;
    return KELP_OK;
}

kelp_status kelp_files_open(const char *path, int flags, int *ret_fd, struct stat *ret_about,
                            struct kelp_error *reterr)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    kelp_status status = KELP_OK;

    if (fd < 0) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    if (fstat(fd, &about) != 0) {
        status = kelp_files_error(errno, "look at", path, reterr);
    } else if (!S_ISREG(about.st_mode)) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, "%s: is %s; give a file", path,
                           S_ISDIR(about.st_mode) ? "a folder" : "not a regular file");
    }
    if (status != KELP_OK) {
        (void)close(fd);
        return status;
    }
    *ret_fd = fd;
    if (ret_about) {
        *ret_about = about;
    }
    return KELP_OK;
}

kelp_status kelp_files_read(const char *path, size_t count_max, char **ret_bytes, size_t *ret_count,
                            struct kelp_error *reterr)
{
    int fd = -1;
    kelp_status status = kelp_files_open(path, 0, &fd, NULL, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = read_all(fd, path, count_max, ret_bytes, ret_count, reterr);
    (void)close(fd); /* it was only read */
    return status;
}
