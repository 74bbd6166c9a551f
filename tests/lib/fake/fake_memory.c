#include "tests/lib/fake/fake_memory.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/device.h"

#define PAGE        ((size_t)4096)
#define SPACE_BYTES ((size_t)1 << 40) /* for the life of a process: addresses are not reused */

struct allocation {
    uintptr_t address; /* on the device */
    size_t bytes;
    char *memory; /* the bytes on the host; NULL: freed */
    char *pages;  /* their pages, including guards */
    size_t pages_bytes;
};

static struct {
    uintptr_t begin; /* 0: not reserved yet */
    size_t used;
    size_t live, limit;             /* bytes; limit 0: none */
    struct allocation *allocations; /* by address */
    size_t count, capacity;
} space;

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static bool reserve(void)
{
    void *begin =
        mmap(NULL, SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin != MAP_FAILED) {
        space.begin = (uintptr_t)begin;
    }
    return begin != MAP_FAILED;
}

static bool make_room(void)
{
    if (space.count < space.capacity) {
        return true;
    }
    const size_t capacity = space.capacity != 0 ? 2 * space.capacity : 64;
    struct allocation *larger = realloc(space.allocations, capacity * sizeof(*larger));
    if (larger) {
        space.allocations = larger;
        space.capacity = capacity;
    }
    return larger != NULL;
}

/* The bytes end at a guard page, except for alignment. */
static bool map(struct allocation *allocation)
{
    const size_t aligned = round_up(allocation->bytes, KELP_DEVICE_ALIGN);
    const size_t inner = round_up(aligned, PAGE);
    allocation->pages_bytes = inner + 2 * PAGE;
    void *pages = mmap(NULL, allocation->pages_bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return false;
    }
    allocation->pages = pages;
    if (inner != 0 && mprotect(allocation->pages + PAGE, inner, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(pages, allocation->pages_bytes);
        return false;
    }
    allocation->memory = allocation->pages + PAGE + inner - aligned;
    memset(allocation->memory, FAKE_POISON, aligned);
    return true;
}

void fake_memory_limit(size_t bytes)
{
    space.limit = bytes;
}

kelp_status fake_memory_alloc(size_t bytes, void **ret, struct kelp_error *reterr)
{
    struct allocation allocation = {.bytes = bytes};
    const bool fits = (space.begin != 0 || reserve()) && bytes < SPACE_BYTES &&
                      round_up(bytes, PAGE) + PAGE <= SPACE_BYTES - space.used;
    const bool left =
        space.limit == 0 || (space.live <= space.limit && bytes <= space.limit - space.live);
    if (!fits || !left || !make_room() || !map(&allocation)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate %zu bytes on the fake device",
                         bytes);
    }
    allocation.address = space.begin + space.used;
    space.live += bytes;
    space.used += round_up(bytes, PAGE) + PAGE;
    space.allocations[space.count++] = allocation;
    *ret = (void *)allocation.address; // NOLINT(performance-no-int-to-ptr): never followed
    return KELP_OK;
}

/* The last allocation at or before the address; NULL: none. */
static struct allocation *at_or_before(uintptr_t address)
{
    size_t low = 0, high = space.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (space.allocations[middle].address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? &space.allocations[low - 1] : NULL;
}

void fake_memory_free(void *address)
{
    if (!address) {
        return;
    }
    struct allocation *allocation = at_or_before((uintptr_t)address);
    assert(allocation);
    assert(allocation->address == (uintptr_t)address);
    assert(allocation->memory);
    (void)munmap(allocation->pages, allocation->pages_bytes);
    allocation->memory = NULL;
    space.live -= allocation->bytes;
}

void *fake_memory_find(const void *pointer, size_t bytes, const char **ret_why)
{
    const uintptr_t address = (uintptr_t)pointer;
    if (space.begin == 0 || address < space.begin || address - space.begin >= SPACE_BYTES) {
        *ret_why = "memory of the host";
        return NULL;
    }
    const struct allocation *allocation = at_or_before(address);
    const size_t offset = allocation ? address - allocation->address : 0;
    if (!allocation || offset > allocation->bytes || bytes > allocation->bytes - offset) {
        *ret_why = "not within an allocation of the device";
        return NULL;
    }
    if (!allocation->memory) {
        *ret_why = "memory that was freed";
        return NULL;
    }
    return allocation->memory + offset;
}
