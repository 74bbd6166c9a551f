#include "worker/data/table/spool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"

#define IN_MEMORY "prepared data in memory"

static const char *name_of(const struct kelp_spool *spool)
{
    return spool->path ? spool->path : IN_MEMORY;
}

static kelp_status write_error(const struct kelp_spool *spool, struct kelp_error *reterr)
{
    if (!spool->folder) {
        return kelp_files_error(errno, "write", IN_MEMORY, reterr);
    }
    return kelp_fail(reterr, errno == ENOSPC || errno == EDQUOT ? KELP_ERR_NO_SPACE : KELP_ERR_IO,
                     "cannot write prepared data in '%s': %s; data.cache names another folder",
                     spool->folder, strerror(errno));
}

/* A template for mkostemp(); NULL: out of memory. */
static char *name_in(const char *folder, struct kelp_error *reterr)
{
    size_t bytes = strlen(folder) + 32;
    char *path = malloc(bytes);
    if (!path) {
        (void)kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    (void)snprintf(path, bytes, "%s/.preparing-XXXXXX", folder);
    return path;
}

static void forget_path(struct kelp_spool *spool)
{
    free(spool->path);
    spool->path = NULL;
}

/* Create a file without a name if the file system can, so that a process that dies leaves
 * nothing. */
static int make_nameless(const char *folder)
{
    return open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

static kelp_status make_file(struct kelp_spool *spool, const char *folder, bool named, int *ret_fd,
                             struct kelp_error *reterr)
{
    *ret_fd = make_nameless(folder);
    if (*ret_fd >= 0) {
        return KELP_OK;
    }
    spool->path = name_in(folder, reterr);
    if (!spool->path) {
        return KELP_ERR_NO_MEMORY;
    }
    *ret_fd = mkostemp(spool->path, O_CLOEXEC);
    if (*ret_fd < 0) {
        kelp_status status = kelp_files_error(errno, "write in", folder, reterr);
        forget_path(spool);
        return status;
    }
    if (!named) {
        (void)unlink(spool->path); /* used without a name; a leftover does no harm */
        forget_path(spool);
    }
    return KELP_OK;
}

kelp_status kelp_spool_open(struct kelp_spool *spool, const char *folder, bool named,
                            struct kelp_error *reterr)
{
    *spool = (struct kelp_spool){0};
    int fd = -1;
    if (folder) {
        spool->folder = strdup(folder);
        kelp_status status = spool->folder ? make_file(spool, folder, named, &fd, reterr)
                                           : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        if (status != KELP_OK) {
            return status;
        }
    } else {
        fd = memfd_create("kelp", MFD_CLOEXEC);
    }
    spool->out = fd >= 0 ? fdopen(fd, "w+") : NULL;
    if (!spool->out) {
        kelp_status status = kelp_files_error(errno, "make", name_of(spool), reterr);
        if (fd >= 0) {
            (void)close(fd); /* nothing was written */
        }
        return status;
    }
    return KELP_OK;
}

kelp_status kelp_spool_write(struct kelp_spool *spool, const void *bytes, size_t count,
                             struct kelp_error *reterr)
{
    assert(spool->out && !spool->bytes);
    if (count > 0 && fwrite(bytes, 1, count, spool->out) != count) {
        return write_error(spool, reterr);
    }
    spool->count += count;
    return KELP_OK;
}

static kelp_status map_file(struct kelp_spool *spool, int fd, struct kelp_error *reterr)
{
    if (spool->count == 0) {
        return KELP_OK; /* nothing to map or to read */
    }
    void *bytes = mmap(NULL, spool->count, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        return kelp_files_error(errno, "map", name_of(spool), reterr);
    }
    spool->bytes = bytes;
    return KELP_OK;
}

kelp_status kelp_spool_map(struct kelp_spool *spool, struct kelp_error *reterr)
{
    assert(spool->out && !spool->bytes);
    if (fflush(spool->out) != 0) {
        return write_error(spool, reterr);
    }
    return map_file(spool, fileno(spool->out), reterr);
}

/* Give a nameless file a name beside its final one, because a link cannot replace a file. */
static kelp_status name_file(struct kelp_spool *spool, const char *path, struct kelp_error *reterr)
{
    char file[64];
    size_t bytes = strlen(path) + 32;
    spool->path = malloc(bytes);
    if (!spool->path) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)snprintf(spool->path, bytes, "%s.%ld.%d.new", path, (long)getpid(), fileno(spool->out));
    (void)snprintf(file, sizeof(file), "/proc/self/fd/%d", fileno(spool->out));
    (void)unlink(spool->path); /* left by a dead process with our number */
    if (linkat(AT_FDCWD, file, AT_FDCWD, spool->path, AT_SYMLINK_FOLLOW) != 0) {
        kelp_status status = kelp_files_error(errno, "name", spool->path, reterr);
        forget_path(spool);
        return status;
    }
    return KELP_OK;
}

kelp_status kelp_spool_keep(struct kelp_spool *spool, const char *path, struct kelp_error *reterr)
{
    assert(spool->out);
    kelp_status status = !spool->path ? name_file(spool, path, reterr) : KELP_OK;
    if (status == KELP_OK) {
        status = kelp_files_sync(spool->path, reterr);
    }
    if (status == KELP_OK && rename(spool->path, path) != 0) {
        status = kelp_files_error(errno, "rename", spool->path, reterr);
    }
    if (status == KELP_OK) {
        forget_path(spool);
        status = kelp_files_sync_above(path, 1, reterr);
    }
    return status;
}

kelp_status kelp_spool_reopen(struct kelp_spool *spool, const char *path, struct kelp_error *reterr)
{
    *spool = (struct kelp_spool){0};
    struct stat about;
    int fd = -1;
    kelp_status status = kelp_files_open(path, 0, &fd, &about, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if ((about.st_uid != geteuid() && about.st_uid != 0) || (about.st_mode & 022) != 0) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH, "%s: others may have written it", path);
    } else {
        spool->count = (size_t)about.st_size;
        status = map_file(spool, fd, reterr);
    }
    (void)close(fd); /* nothing was written; the mapping stays */
    return status;
}

void kelp_spool_fini(struct kelp_spool *spool)
{
    if (spool->out) {
        (void)fclose(spool->out); /* given up: the content is not needed */
    }
    if (spool->bytes) {
        (void)munmap(spool->bytes, spool->count); /* cannot fail for our own mapping */
    }
    if (spool->path) {
        (void)unlink(spool->path); /* a leftover does no harm */
        free(spool->path);
    }
    free(spool->folder);
    *spool = (struct kelp_spool){0};
}
