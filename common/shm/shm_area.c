#include "common/shm/shm_area.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/base/limits.h"

#define SEALS      (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define PAGE_BYTES 4096u

struct kelp_shm_area {
    atomic_uint refs;
    atomic_bool retired;
    uint32_t id;
    int fd; /* -1: belongs to another process, or settled */
    void *bytes;
    size_t length;
};

static struct kelp_shm_area *area_new(int fd, void *bytes, size_t length)
{
    static atomic_uint newest;
    struct kelp_shm_area *area = calloc(1, sizeof(*area));

    if (area) {
        atomic_init(&area->refs, 1);
        atomic_init(&area->retired, false);
        area->id = atomic_fetch_add(&newest, 1) + 1;
        assert(area->id != 0);
        area->fd = fd;
        area->bytes = bytes;
        area->length = length;
    }
    return area;
}

static kelp_status no_memory(struct kelp_error *reterr, size_t length)
{
    return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a shared area of %zu bytes",
                     length);
}

/* Allocate all pages now, so that no write can fail for lack of one. */
static bool fill(int fd, size_t length)
{
    int result;

    do {
        result = ftruncate(fd, (off_t)length) == 0 ? fallocate(fd, 0, 0, (off_t)length) : -1;
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

/* First the pages, then the writable mapping, then the seals, which exclude any other writable
 * mapping. */
static kelp_status area_make(int fd, size_t length, struct kelp_shm_area **ret_area,
                             struct kelp_error *reterr)
{
    if (!fill(fd, length)) {
        return no_memory(reterr, length);
    }
    void *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (bytes == MAP_FAILED) {
        return no_memory(reterr, length);
    }
    if (fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        (void)munmap(bytes, length);
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "shared memory cannot be sealed: %s",
                         strerror(errno));
    }
    *ret_area = area_new(fd, bytes, length);
    if (!*ret_area) {
        (void)munmap(bytes, length);
        return no_memory(reterr, length);
    }
    return KELP_OK;
}

kelp_status kelp_shm_area_create(size_t length, struct kelp_shm_area **ret_area,
                                 struct kelp_error *reterr)
{
    if (length == 0 || length > KELP_SHM_AREA_BYTES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "a shared area of %zu bytes: it has 1 to %" PRIu64,
                         length, KELP_SHM_AREA_BYTES_MAX);
    }
    int fd = memfd_create("kelp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "no descriptor for a shared area: %s",
                         strerror(errno));
    }
    length = (length + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    kelp_status status = area_make(fd, length, ret_area, reterr);
    if (status != KELP_OK) {
        (void)close(fd);
    }
    return status;
}

/* Does the descriptor have the form and seals of kelp_shm_area_create()? Then it cannot change. */
static kelp_status check(int fd, uint64_t length, struct kelp_error *reterr)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat about;
    struct statfs system;

    if (seals < 0 || (seals & SEALS) != SEALS) {
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "shared memory came without its seals: its owner could shorten it");
    }
    if (fstat(fd, &about) != 0 || fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
        return kelp_fail(reterr, KELP_ERR_DENIED, "shared memory came that is not plain memory");
    }
    if (about.st_size < 0 || (uint64_t)about.st_size != length) {
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "shared memory of %" PRId64 " bytes came as %" PRIu64,
                         (int64_t)about.st_size, length);
    }
    if ((uint64_t)about.st_blocks * 512 < length) {
        return kelp_fail(reterr, KELP_ERR_DENIED, "shared memory came with pages left out");
    }
    return KELP_OK;
}

kelp_status kelp_shm_area_map(int fd, uint64_t length, struct kelp_shm_area **ret_area,
                              struct kelp_error *reterr)
{
    if (length == 0 || length > KELP_SHM_AREA_BYTES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "shared memory of %" PRIu64 " bytes came: it has 1 to %" PRIu64, length,
                         KELP_SHM_AREA_BYTES_MAX);
    }
    kelp_status status = check(fd, length, reterr);
    if (status != KELP_OK) {
        return status;
    }
    void *bytes = mmap(NULL, (size_t)length, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (bytes == MAP_FAILED) {
        return no_memory(reterr, (size_t)length);
    }
    *ret_area = area_new(-1, bytes, (size_t)length);
    if (!*ret_area) {
        (void)munmap(bytes, (size_t)length);
        return no_memory(reterr, (size_t)length);
    }
    return KELP_OK;
}

void kelp_shm_area_ref(struct kelp_shm_area *area)
{
    atomic_fetch_add_explicit(&area->refs, 1, memory_order_relaxed);
}

void kelp_shm_area_unref(struct kelp_shm_area *area)
{
    if (!area || atomic_fetch_sub_explicit(&area->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    (void)munmap(area->bytes, area->length);
    if (area->fd >= 0) {
        (void)close(area->fd);
    }
    free(area);
}

void *kelp_shm_area_bytes(const struct kelp_shm_area *area)
{
    return area->bytes;
}

size_t kelp_shm_area_length(const struct kelp_shm_area *area)
{
    return area->length;
}

void kelp_shm_area_settle(struct kelp_shm_area *area)
{
    if (area->fd >= 0) {
        (void)close(area->fd);
        area->fd = -1;
    }
}

static atomic_uint retired_count;

void kelp_shm_area_retire(struct kelp_shm_area *area)
{
    atomic_store_explicit(&area->retired, true, memory_order_release);
    atomic_fetch_add(&retired_count, 1);
}

uint32_t kelp__shm_areas_retired(void)
{
    return atomic_load(&retired_count);
}

uint32_t kelp__shm_area_id(const struct kelp_shm_area *area)
{
    return area->id;
}

bool kelp__shm_area_is_retired(const struct kelp_shm_area *area)
{
    return atomic_load_explicit(&area->retired, memory_order_acquire);
}

int kelp__shm_area_fd(const struct kelp_shm_area *area)
{
    return area->fd;
}
