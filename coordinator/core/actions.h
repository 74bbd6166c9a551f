/*
 * What is to be done after an event: at most one action of each kind, in the order of the kinds.
 * For the files of this room and of the rooms in it. Pure.
 */
#ifndef KELP_COORDINATOR_CORE_ACTIONS_H
#define KELP_COORDINATOR_CORE_ACTIONS_H

#include <stddef.h>
#include <stdint.h>

/* Put an action where its kind belongs, over one of its kind. items has room; each item has
 * `bytes`, and its kind, an enum, comes first. */
void kelp__actions_put(void *items, uint32_t *count, const void *item, size_t bytes);

#endif
