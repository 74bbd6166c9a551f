/*
 * What the files of a placement share: placement.c (states, checks) calls placement_events.c (what
 * an event changes), and both placement_shards.c (what is known of shards).
 */
#ifndef KELP_COORDINATOR_CORE_PLACEMENT_INTERNAL_H
#define KELP_COORDINATOR_CORE_PLACEMENT_INTERNAL_H

#include "coordinator/core/placement.h"

/* ---- placement_shards.c ---- */

/* NULL: nothing is known of it. */
struct kelp_placement_shard *kelp__placement_find(const struct kelp_placement *placement,
                                                  const char *id);
/* The entry of that id, a new one in the order of names if need be; NULL: the table is full. */
struct kelp_placement_shard *kelp__placement_shard_of(struct kelp_placement *placement,
                                                      const char *id, uint64_t now_ms);
bool kelp__placement_ready(const struct kelp_placement_shard *shard);
uint32_t kelp__placement_ready_count(const struct kelp_placement *placement);
/* Has it been away for as long as it is waited for? */
bool kelp__placement_overdue(const struct kelp_placement *placement,
                             const struct kelp_placement_shard *shard, uint64_t now_ms);
/* The first shard of the map that is lost, not reached, has not loaded it; NULL: none. */
const char *kelp__placement_first_lost(const struct kelp_placement *placement, uint64_t now_ms);
const char *kelp__placement_first_unreached(const struct kelp_placement *placement);
const char *kelp__placement_first_unloaded(const struct kelp_placement *placement);
/* What a shard has waited for too long; NULL: nothing. *ret_shard: it, or the first that waits. */
const char *kelp__placement_missing_storage(const struct kelp_placement *placement, uint64_t now_ms,
                                            const struct kelp_placement_shard **ret_shard);
/* Drop the entries of shards that left for good. */
void kelp__placement_forget(struct kelp_placement *placement);

/* ---- placement_events.c ---- */

void kelp__placement_want(struct kelp_placement_actions *actions,
                          enum kelp_placement_action_kind kind);
void kelp__placement_want_loss(struct kelp_placement_actions *actions, const char *lost);
void kelp__placement_move(struct kelp_placement *placement, enum kelp_placement_state state,
                          struct kelp_placement_actions *actions);
/* The reason is this now. */
void kelp__placement_say(struct kelp_placement *placement, struct kelp_placement_actions *actions,
                         const char *format, ...) KELP_PRINTF(3, 4);
/* The job cannot go on; the event's hint says where it stood and how to resume it. */
void kelp__placement_fail(struct kelp_placement *placement,
                          const struct kelp_placement_event *event,
                          struct kelp_placement_actions *actions, const char *id, const char *text);
/* Take an event in. */
kelp_status kelp__placement_take(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event,
                                 struct kelp_placement_actions *actions,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
