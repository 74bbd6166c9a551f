/*
 * Memory of one process that others may read: an anonymous file, mapped, whose descriptor is passed
 * to them. It is sealed: nobody can make it shorter or longer, and nobody but its owner can write
 * it. All of it is there from the beginning. So a reader meets no signal and no page that costs him
 * memory, whatever the owner does later.
 *
 * Threads: any; what is written is the owner's matter.
 */
#ifndef KELP_COMMON_SHM_SHM_AREA_H
#define KELP_COMMON_SHM_SHM_AREA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct kelp_shm_area;

/* Own memory of `length` bytes, rounded up to pages, all zero. Reference count 1. Errors:
 * KELP_ERR_NO_MEMORY, KELP_ERR_LIMIT (KELP_SHM_AREA_BYTES_MAX), KELP_ERR_UNSUPPORTED (the system
 * has no such seals), KELP_ERR_IO (no descriptor). */
kelp_status kelp_shm_area_create(size_t length, struct kelp_shm_area **ret_area,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* Another process's, to be read, which says that it has `length` bytes. The descriptor stays the
 * caller's. Errors: KELP_ERR_DENIED (it is not what this header promises), KELP_ERR_LIMIT,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_shm_area_map(int fd, uint64_t length, struct kelp_shm_area **ret_area,
                              struct kelp_error *reterr) KELP_MUST_USE;
void kelp_shm_area_ref(struct kelp_shm_area *area);
/* The last one unmaps it here; others keep what they have mapped. NULL does nothing. */
void kelp_shm_area_unref(struct kelp_shm_area *area);

/* Page-aligned. Of another process: it may change at any time, so what is decided by it is copied
 * first. */
void *kelp_shm_area_bytes(const struct kelp_shm_area *area);
size_t kelp_shm_area_length(const struct kelp_shm_area *area);

/* Close its descriptor: no other channel is to get it. Threads: the one that sends it. */
void kelp_shm_area_settle(struct kelp_shm_area *area);
/* The owner sends nothing of it any more: channels forget it (kelp_shm_channel_sweep()). */
void kelp_shm_area_retire(struct kelp_shm_area *area);

/* For channels: its name in this process, never 0 and never another area's; is it retired; its
 * descriptor, -1: another process's, or settled. */
uint32_t kelp__shm_area_id(const struct kelp_shm_area *area);
bool kelp__shm_area_is_retired(const struct kelp_shm_area *area);
/* Of all areas: it changes after each that is retired. */
uint32_t kelp__shm_areas_retired(void);
int kelp__shm_area_fd(const struct kelp_shm_area *area);

#endif
