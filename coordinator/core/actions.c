#include "coordinator/core/actions.h"

#include <string.h>

static unsigned kind_of(const unsigned char *item)
{
    unsigned kind;
    memcpy(&kind, item, sizeof(kind));
    return kind;
}

void kelp__actions_put(void *items, uint32_t *count, const void *item, size_t bytes)
{
    unsigned char *all = items;
    uint32_t at = 0;
    while (at < *count && kind_of(all + at * bytes) < kind_of(item)) {
        at++;
    }
    if (at == *count || kind_of(all + at * bytes) != kind_of(item)) {
        memmove(all + (at + 1) * bytes, all + at * bytes, (*count - at) * bytes);
        (*count)++;
    }
    memcpy(all + at * bytes, item, bytes);
}
