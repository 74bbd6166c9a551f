#include "common/shm/ring_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

kelp_status kelp_shm_ring_room(const struct kelp_shm_ring_writer *writer, size_t *ret_bytes,
                               struct kelp_error *reterr)
{
    const uint64_t taken = atomic_load(writer->taken);
    const uint64_t used = writer->at - taken;

    if (used > writer->capacity) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT,
                         "the other process says that it took %" PRIu64
                         " bytes of a ring of %u into which %" PRIu64 " were written",
                         taken, writer->capacity, writer->at);
    }
    *ret_bytes = writer->capacity - (size_t)used;
    return KELP_OK;
}

/* Bytes from `at` to the end of the memory, at most length. */
static size_t straight(uint64_t at, uint32_t capacity, size_t length)
{
    const size_t left = capacity - (size_t)(at & (capacity - 1));

    return length < left ? length : left;
}

void kelp_shm_ring_put(struct kelp_shm_ring_writer *writer, const void *bytes, size_t length)
{
    const size_t first = straight(writer->at, writer->capacity, length);

    assert(length <= writer->capacity);
    if (length == 0) {
        return;
    }
    memcpy(writer->bytes + (writer->at & (writer->capacity - 1)), bytes, first);
    memcpy(writer->bytes, (const uint8_t *)bytes + first, length - first);
    writer->at += length;
}

void kelp_shm_ring_publish(struct kelp_shm_ring_writer *writer)
{
    atomic_store(writer->sent, writer->at);
}

kelp_status kelp_shm_ring_ready(const struct kelp_shm_ring_reader *reader, size_t *ret_bytes,
                                struct kelp_error *reterr)
{
    const uint64_t sent = atomic_load(reader->sent);
    const uint64_t ready = sent - reader->at;

    if (ready > reader->capacity) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT,
                         "the other process says that it wrote %" PRIu64
                         " bytes into a ring of %u from which %" PRIu64 " were taken",
                         sent, reader->capacity, reader->at);
    }
    *ret_bytes = (size_t)ready;
    return KELP_OK;
}

void kelp_shm_ring_get(struct kelp_shm_ring_reader *reader, void *to, size_t length)
{
    const size_t first = straight(reader->at, reader->capacity, length);

    assert(length <= reader->capacity);
    if (length == 0) {
        return;
    }
    memcpy(to, reader->bytes + (reader->at & (reader->capacity - 1)), first);
    memcpy((uint8_t *)to + first, reader->bytes, length - first);
    reader->at += length;
}

void kelp_shm_ring_taken(struct kelp_shm_ring_reader *reader)
{
    atomic_store(reader->taken, reader->at);
}
