/*
 * Areas by the name that one side has given them: those that were passed to the other side, or came
 * from it. Holds a reference to each. Pure but for what it holds. Threads: one at a time.
 */
#ifndef KELP_COMMON_SHM_AREA_TABLE_H
#define KELP_COMMON_SHM_AREA_TABLE_H

#include "common/shm/layout.h"
#include "common/shm/shm_area.h"

#define KELP_SHM_AREA_PLACES (4 * KELP_SHM_AREAS_MAX) /* half of them stay free */

struct kelp_shm_area_table {
    uint32_t count;
    uint32_t count_max; /* up to 2 * KELP_SHM_AREAS_MAX */
    struct {
        uint32_t name; /* 0: free */
        struct kelp_shm_area *area;
    } places[KELP_SHM_AREA_PLACES];
};

/* NULL: there is none. */
struct kelp_shm_area *kelp_shm_area_table_find(const struct kelp_shm_area_table *table,
                                               uint32_t name);
/* Takes a reference of its own. Errors: KELP_ERR_LIMIT (count_max), KELP_ERR_EXISTS. */
kelp_status kelp_shm_area_table_add(struct kelp_shm_area_table *table, uint32_t name,
                                    struct kelp_shm_area *area) KELP_MUST_USE;
/* False: there is none. */
bool kelp_shm_area_table_remove(struct kelp_shm_area_table *table, uint32_t name);
/* The name of one that is retired; 0: none is. */
uint32_t kelp_shm_area_table_retired(const struct kelp_shm_area_table *table);
void kelp_shm_area_table_clear(struct kelp_shm_area_table *table);

#endif
