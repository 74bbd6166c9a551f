/*
 * Shared memory for many small arrays: pieces of areas (common/shm/shm_area.h), since an area of
 * its own for each would cost a descriptor and a mapping. A piece comes back to nobody: areas live
 * as long as somebody holds them.
 *
 * Threads: any.
 */
#ifndef KELP_PS_SHARD_TENSORS_AREA_POOL_H
#define KELP_PS_SHARD_TENSORS_AREA_POOL_H

#include "common/shm/shm_area.h"

struct kelp_area_pool;

/* Reference count 1. NULL: out of memory. */
struct kelp_area_pool *kelp_area_pool_create(void);
void kelp_area_pool_ref(struct kelp_area_pool *pool);
/* With the last one its areas are retired. NULL does nothing. */
void kelp_area_pool_unref(struct kelp_area_pool *pool);

/* `bytes`, page-aligned and zero, in *ret_area, of which the caller has a reference. NULL: the
 * system has none. */
void *kelp_area_pool_take(struct kelp_area_pool *pool, size_t bytes,
                          struct kelp_shm_area **ret_area);

#endif
