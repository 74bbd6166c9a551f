/*
 * What two processes write for each other, version KELP_SHM_VERSION: one area of each side with its
 * numbers (page_internal.h) and its ring, and notes on the socket between them.
 *
 *     page of A   sent, bytes of A's ring     written by A alone, read by B
 *                 taken: of B's ring
 *                 naps, wants, released
 *     page of B   the same, the other way round
 *
 * Each side writes its own area and maps that of the other one read-only, so neither can damage
 * what the other has written. No lock is in it: a process that dies leaves numbers behind that
 * are as good as any others. Both processes run on one machine, so numbers are in its byte order.
 *
 * Whatever is read here comes from outside: it is copied once, and then checked.
 */
#ifndef KELP_COMMON_SHM_LAYOUT_H
#define KELP_COMMON_SHM_LAYOUT_H

#include <stdint.h>

#define KELP_SHM_VERSION 1u
/* Bytes of a ring, a power of two: two of the largest frames, and more. */
#define KELP_SHM_RING_BYTES (256u << 10)
#define KELP_SHM_RING_AT    4096u /* behind the page */
#define KELP_SHM_PAGE_BYTES (KELP_SHM_RING_AT + KELP_SHM_RING_BYTES)
/* Messages whose parts are in areas and have not been released. */
#define KELP_SHM_SLOTS   256u
#define KELP_SHM_NO_SLOT UINT32_MAX
/* Parts of one message: a payload of 4 MiB in slices of 16 KiB, twice, and its header. */
#define KELP_SHM_PARTS_MAX 1024u
/* Bytes of one message that travel in the ring; more belongs into an area. */
#define KELP_SHM_COPIED_MAX (64u << 10)
/* Areas that one side has passed and not dropped: the most partitions that a job has. The other
 * side may see twice as many, when it hears of new ones before it hears what was dropped. */
#define KELP_SHM_AREAS_MAX 1024u

/* ---- in a ring: a frame is this, then its parts, then the copied bytes, rounded up to 8 ---- */

struct kelp_shm_frame {
    uint32_t part_count;   /* 0: frames name the area `use` no more */
    uint32_t copied_bytes; /* of all parts without an area */
    uint32_t slot;         /* KELP_SHM_NO_SLOT: no part is in an area */
    uint32_t use;          /* of the slot: released[slot] becomes this */
};

struct kelp_shm_frame_part {
    uint32_t area; /* 0: copied, offset is 0 */
    uint32_t zero;
    uint64_t offset;
    uint64_t length;
};

#define KELP_SHM_FRAME_BYTES_MAX                                                                   \
    (sizeof(struct kelp_shm_frame) + KELP_SHM_PARTS_MAX * sizeof(struct kelp_shm_frame_part) +     \
     KELP_SHM_COPIED_MAX)

/* ---- on the socket, each as one packet ---- */

enum kelp_shm_note_kind {
    KELP_SHM_NOTE_HELLO = 1, /* the first: version, with the descriptor of the sender's page */
    KELP_SHM_NOTE_AREA,      /* area and length, with its descriptor */
    KELP_SHM_NOTE_BELL,      /* look */
};

struct kelp_shm_note {
    uint32_t kind;
    uint32_t value; /* version or area */
    uint64_t length;
};

#endif
