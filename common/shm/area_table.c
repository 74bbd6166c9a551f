#include "common/shm/area_table.h"

#define MASK (KELP_SHM_AREA_PLACES - 1)

_Static_assert((KELP_SHM_AREA_PLACES & MASK) == 0, "places are masked");

/* Where the name is, or the free place at which the search ends. Names are consecutive, so the
 * first place usually matches. */
static uint32_t place_of(const struct kelp_shm_area_table *table, uint32_t name)
{
    uint32_t place = name & MASK;

    while (table->places[place].name != 0 && table->places[place].name != name) {
        place = (place + 1) & MASK;
    }
    return place;
}

struct kelp_shm_area *kelp_shm_area_table_find(const struct kelp_shm_area_table *table,
                                               uint32_t name)
{
    return name != 0 ? table->places[place_of(table, name)].area : NULL;
}

kelp_status kelp_shm_area_table_add(struct kelp_shm_area_table *table, uint32_t name,
                                    struct kelp_shm_area *area)
{
    const uint32_t place = place_of(table, name);

    if (name == 0 || table->places[place].name == name) {
        return KELP_ERR_EXISTS;
    }
    if (table->count >= table->count_max) {
        return KELP_ERR_LIMIT;
    }
    kelp_shm_area_ref(area);
    table->places[place].name = name;
    table->places[place].area = area;
    table->count++;
    return KELP_OK;
}

/* Entries that follow without a gap may belong before it: move them up. */
static void close_gap(struct kelp_shm_area_table *table, uint32_t gap)
{
    for (uint32_t at = (gap + 1) & MASK; table->places[at].name != 0; at = (at + 1) & MASK) {
        const uint32_t name = table->places[at].name;
        struct kelp_shm_area *area = table->places[at].area;
        table->places[at].name = 0;
        table->places[at].area = NULL;
        const uint32_t place = place_of(table, name);
        table->places[place].name = name;
        table->places[place].area = area;
    }
}

bool kelp_shm_area_table_remove(struct kelp_shm_area_table *table, uint32_t name)
{
    const uint32_t place = name != 0 ? place_of(table, name) : 0;

    if (name == 0 || table->places[place].name != name) {
        return false;
    }
    kelp_shm_area_unref(table->places[place].area);
    table->places[place].name = 0;
    table->places[place].area = NULL;
    table->count--;
    close_gap(table, place);
    return true;
}

uint32_t kelp_shm_area_table_retired(const struct kelp_shm_area_table *table)
{
    for (uint32_t i = 0; i < KELP_SHM_AREA_PLACES; i++) {
        if (table->places[i].name != 0 && kelp__shm_area_is_retired(table->places[i].area)) {
            return table->places[i].name;
        }
    }
    return 0;
}

void kelp_shm_area_table_clear(struct kelp_shm_area_table *table)
{
    for (uint32_t i = 0; i < KELP_SHM_AREA_PLACES; i++) {
        kelp_shm_area_unref(table->places[i].area);
        table->places[i].name = 0;
        table->places[i].area = NULL;
    }
    table->count = 0;
}
