/*
 * The keys that a watch has reported, in their order, each with the revision that it had then.
 * Pure. Threads: one at a time.
 */
#ifndef KELP_COMMON_ETCD_ETCD_KNOWN_KEYS_H
#define KELP_COMMON_ETCD_ETCD_KNOWN_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct etcd_known_keys { /* all zero: none */
    struct etcd_known_key {
        char *key;
        int64_t mod_revision;
    } * keys; /* owned */
    size_t count;
    size_t capacity;
};

/* Where the key is, or belongs. */
size_t kelp__etcd_known_find(const struct etcd_known_keys *known, const char *key, bool *ret_found);
/* At a place that find() gave; key is copied. Errors: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp__etcd_known_insert(struct etcd_known_keys *known, size_t at, const char *key,
                                    int64_t mod_revision) KELP_MUST_USE;
/* Returns the name of the key that went: owned by the caller (free()). */
char *kelp__etcd_known_remove(struct etcd_known_keys *known, size_t at);
void kelp__etcd_known_fini(struct etcd_known_keys *known);

#endif
