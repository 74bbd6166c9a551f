/* The beginning of each side's area (layout.h). For channels and their tests. */
#ifndef KELP_COMMON_SHM_PAGE_INTERNAL_H
#define KELP_COMMON_SHM_PAGE_INTERNAL_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/shm/layout.h"

/* Numbers that one side writes often lie in one cache line, those of the other in another one. */
struct kelp_shm_page {
    _Alignas(64) _Atomic uint64_t sent;  /* bytes written to our ring since the beginning */
    _Alignas(64) _Atomic uint64_t taken; /* bytes read from the other side's */
    /* Odd while we wait at the socket, and are to be told by a note: that something was sent; that
     * there is room, a slot is free, or notes were read. */
    _Alignas(64) _Atomic uint32_t naps;
    _Atomic uint32_t wants;
    /* The newest use of each slot of the other side of which we have read all. */
    _Alignas(64) _Atomic uint32_t released[KELP_SHM_SLOTS];
};

_Static_assert(sizeof(struct kelp_shm_page) <= KELP_SHM_RING_AT, "the ring lies behind the page");
_Static_assert(KELP_SHM_FRAME_BYTES_MAX * 2 <= KELP_SHM_RING_BYTES, "a frame always fits at last");
_Static_assert((KELP_SHM_RING_BYTES & (KELP_SHM_RING_BYTES - 1)) == 0, "places are masked");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "an atomic with a hidden lock would be left locked by a process that dies");

#endif
