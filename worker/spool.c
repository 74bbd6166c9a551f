#include "worker/spool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/files.h"

#define IN_MEMORY "prepared data in memory"

static const char *name_of(const struct kelp_spool *spool)
{
    return spool->path != NULL ? spool->path : IN_MEMORY;
}

static kelp_status make_file(struct kelp_spool *spool, const char *folder, bool named, int *ret_fd,
                             struct kelp_error *reterr)
{
    size_t bytes = strlen(folder) + 32;
    spool->path = malloc(bytes);
    if (spool->path == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)snprintf(spool->path, bytes, "%s/.preparing-XXXXXX", folder);
    *ret_fd = mkostemp(spool->path, O_CLOEXEC);
    if (*ret_fd < 0) {
        kelp_status status = kelp_files_error(errno, "write in", folder, reterr);
        free(spool->path);
        spool->path = NULL;
        return status;
    }
    if (!named) {
        (void)unlink(spool->path); /* it goes on without a name; one that stays is only untidy */
        free(spool->path);
        spool->path = NULL;
    }
    return KELP_OK;
}

kelp_status kelp_spool_open(struct kelp_spool *spool, const char *folder, bool named,
                            struct kelp_error *reterr)
{
    *spool = (struct kelp_spool){0};
    int fd = -1;
    if (folder != NULL) {
        kelp_status status = make_file(spool, folder, named, &fd, reterr);
        if (status != KELP_OK) {
            return status;
        }
    } else {
        fd = memfd_create("kelp", MFD_CLOEXEC);
    }
    spool->out = fd >= 0 ? fdopen(fd, "w+") : NULL;
    if (spool->out == NULL) {
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
    assert(spool->out != NULL);
    if (count > 0 && fwrite(bytes, 1, count, spool->out) != count) {
        return kelp_files_error(errno, "write", name_of(spool), reterr);
    }
    spool->count += count;
    return KELP_OK;
}

static kelp_status map_file(struct kelp_spool *spool, int fd, struct kelp_error *reterr)
{
    if (spool->count == 0) {
        return KELP_OK; /* nothing can be mapped, and nothing will be read */
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
    assert(spool->out != NULL);
    bool whole = fflush(spool->out) == 0;
    kelp_status status = whole ? map_file(spool, fileno(spool->out), reterr)
                               : kelp_files_error(errno, "write", name_of(spool), reterr);
    (void)fclose(spool->out); /* flushed above; the mapping keeps the file */
    spool->out = NULL;
    return status;
}

kelp_status kelp_spool_keep(struct kelp_spool *spool, const char *path, struct kelp_error *reterr)
{
    assert(spool->path != NULL && spool->out == NULL);
    kelp_status status = kelp_files_sync(spool->path, reterr);
    if (status == KELP_OK && rename(spool->path, path) != 0) {
        status = kelp_files_error(errno, "rename", spool->path, reterr);
    }
    if (status == KELP_OK) {
        free(spool->path);
        spool->path = NULL;
        status = kelp_files_sync_above(path, 1, reterr);
    }
    return status;
}

kelp_status kelp_spool_reopen(struct kelp_spool *spool, const char *path, struct kelp_error *reterr)
{
    *spool = (struct kelp_spool){0};
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    kelp_status status = KELP_OK;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        status = kelp_fail(reterr, KELP_ERR_IO, "%s: is not a regular file", path);
    } else {
        spool->count = (size_t)about.st_size;
        status = map_file(spool, fd, reterr);
    }
    (void)close(fd); /* nothing was written; the mapping stays */
    return status;
}

void kelp_spool_fini(struct kelp_spool *spool)
{
    if (spool->out != NULL) {
        (void)fclose(spool->out); /* given up: what it held is not wanted */
    }
    if (spool->bytes != NULL) {
        (void)munmap(spool->bytes, spool->count); /* cannot fail for a mapping of ours */
    }
    if (spool->path != NULL) {
        (void)unlink(spool->path); /* a file that stays is only untidy */
        free(spool->path);
    }
    *spool = (struct kelp_spool){0};
}
