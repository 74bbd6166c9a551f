#include "common/etcd/etcd_known_keys.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/etcd/etcd_internal.h"

size_t kelp__etcd_known_find(const struct etcd_known_keys *known, const char *key, bool *ret_found)
{
    size_t low = 0;
    size_t high = known->count;

    *ret_found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(known->keys[middle].key, key);
        if (order == 0) {
            *ret_found = true;
            return middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

kelp_status kelp__etcd_known_insert(struct etcd_known_keys *known, size_t at, const char *key,
                                    int64_t mod_revision)
{
    if (known->count == ETCD_KEYS_MAX) {
        return KELP_ERR_LIMIT;
    }
    if (known->count == known->capacity) {
        size_t capacity = known->capacity ? known->capacity * 2 : 16;
        struct etcd_known_key *grown = realloc(known->keys, capacity * sizeof(*grown));
        if (!grown) {
            return KELP_ERR_NO_MEMORY;
        }
        known->keys = grown;
        known->capacity = capacity;
    }
    char *copy = strdup(key);
    if (!copy) {
        return KELP_ERR_NO_MEMORY;
    }
    memmove(&known->keys[at + 1], &known->keys[at], (known->count - at) * sizeof(*known->keys));
    known->keys[at] = (struct etcd_known_key){.key = copy, .mod_revision = mod_revision};
    known->count++;
    return KELP_OK;
}

char *kelp__etcd_known_remove(struct etcd_known_keys *known, size_t at)
{
    char *key = known->keys[at].key;

    known->count--;
    memmove(&known->keys[at], &known->keys[at + 1], (known->count - at) * sizeof(*known->keys));
    return key;
}

void kelp__etcd_known_fini(struct etcd_known_keys *known)
{
    for (size_t i = 0; i < known->count; i++) {
        free(known->keys[i].key);
    }
    free(known->keys);
    *known = (struct etcd_known_keys){0};
}
