/*
 * One direction of a channel: bytes from one producer to one consumer, in memory that both map.
 *
 * The producer owns the bytes and `sent`, the consumer owns `taken`; each reads the other's number
 * and believes it only as far as it makes sense. What is put becomes visible at once with
 * kelp_shm_ring_publish(), so whoever dies before it has sent nothing.
 *
 * Threads: one at a time has the writer, one the reader. Errors: KELP_ERR_CORRUPT, when the other
 * side's number cannot be true.
 */
#ifndef KELP_COMMON_SHM_RING_INTERNAL_H
#define KELP_COMMON_SHM_RING_INTERNAL_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/base/status.h"

struct kelp_shm_ring_writer {
    uint8_t *bytes;
    uint32_t capacity; /* a power of two */
    _Atomic uint64_t *sent;
    _Atomic uint64_t *taken; /* the other side's: only read */
    uint64_t at;             /* bytes put since the beginning */
};

/* Bytes that may be put now. */
kelp_status kelp_shm_ring_room(const struct kelp_shm_ring_writer *writer, size_t *ret_bytes,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* length is at most what kelp_shm_ring_room() said, with all that was put since. */
void kelp_shm_ring_put(struct kelp_shm_ring_writer *writer, const void *bytes, size_t length);
void kelp_shm_ring_publish(struct kelp_shm_ring_writer *writer);

struct kelp_shm_ring_reader {
    const uint8_t *bytes; /* the other side's, as `sent` */
    uint32_t capacity;
    _Atomic uint64_t *sent;
    _Atomic uint64_t *taken;
    uint64_t at; /* bytes got since the beginning */
};

/* Bytes that may be got now. */
kelp_status kelp_shm_ring_ready(const struct kelp_shm_ring_reader *reader, size_t *ret_bytes,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* Copies; the producer may change them meanwhile, and what was got is what counts. */
void kelp_shm_ring_get(struct kelp_shm_ring_reader *reader, void *to, size_t length);
/* The producer may overwrite what was got. */
void kelp_shm_ring_taken(struct kelp_shm_ring_reader *reader);

#endif
