/* What the files of a channel share; nobody else includes it. */
#ifndef KELP_COMMON_SHM_SHM_CHANNEL_INTERNAL_H
#define KELP_COMMON_SHM_SHM_CHANNEL_INTERNAL_H

#include "common/shm/area_table.h"
#include "common/shm/page_internal.h"
#include "common/shm/ring_internal.h"
#include "common/shm/shm_channel.h"

/* What a message needs after its channel has been closed. */
struct kelp__shm_line {
    atomic_uint refs;
    int socket;
    struct kelp_shm_area *own;
    struct kelp_shm_page *page; /* in it */
    /* The other side's, since its hello; set once, by whoever receives. */
    struct kelp_shm_area *theirs_area;
    _Atomic(struct kelp_shm_page *) theirs;
    /* The newest of its waits for which we rang. */
    atomic_uint nap_told;
    atomic_uint want_told;
};

struct kelp__shm_slot {
    bool used;
    uint32_t use;
    kelp_shm_done done;
    void *user;
};

struct kelp_shm_channel {
    struct kelp__shm_line *line;
    size_t message_bytes_max;

    /* Of whoever sends. */
    struct kelp_shm_ring_writer writer; /* its memory: after the other side's hello */
    struct kelp_shm_area_table passed;
    uint64_t dropped_at; /* in the ring: behind the last drop */
    uint32_t swept;      /* kelp__shm_areas_retired() when all that were had been dropped */
    struct kelp__shm_slot slots[KELP_SHM_SLOTS];
    uint32_t lent; /* slots that are used */

    /* Of whoever receives. */
    struct kelp_shm_ring_reader reader; /* its memory: after the other side's hello */
    struct kelp_shm_area_table came;
    bool look;  /* there may be a note */
    bool news;  /* one was taken since the last rest */
    bool ended; /* the other side has gone */
};

void kelp__shm_line_ref(struct kelp__shm_line *line);
void kelp__shm_line_unref(struct kelp__shm_line *line);
/* Ring when the other side waits for something that was sent; for room. Any thread. */
void kelp__shm_ring_nap(struct kelp__shm_line *line);
void kelp__shm_ring_want(struct kelp__shm_line *line);

/* End what is lent, without its release. */
void kelp__shm_channel_give_up(struct kelp_shm_channel *channel);

#endif
