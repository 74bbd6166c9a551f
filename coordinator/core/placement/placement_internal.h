/*
 * What the files of a placement share: placement.c (states, checks) calls placement_events.c (what
 * an event changes) and placement_moves.c (which partitions move), all three placement_changes.c
 * (the map within its generation), and all of them placement_says.c (states and actions) and
 * placement_shards.c (what is known of shards).
 */
#ifndef KELP_COORDINATOR_CORE_PLACEMENT_PLACEMENT_INTERNAL_H
#define KELP_COORDINATOR_CORE_PLACEMENT_PLACEMENT_INTERNAL_H

#include "coordinator/core/placement/failover.h"
#include "coordinator/core/placement/placement.h"

/* ---- placement_shards.c ---- */

/* NULL: nothing is known of it. */
struct kelp_placement_shard *kelp__placement_find(const struct kelp_placement *placement,
                                                  const char *id);
/* The entry of that id, a new one in the order of names if need be; NULL: the table is full. */
struct kelp_placement_shard *kelp__placement_shard_of(struct kelp_placement *placement,
                                                      const char *id, uint64_t now_ms);
bool kelp__placement_ready(const struct kelp_placement_shard *shard);
/* May a generation that opens use it? One that is drained only where there is no other. */
bool kelp__placement_usable(const struct kelp_placement *placement,
                            const struct kelp_placement_shard *shard);
uint32_t kelp__placement_usable_count(const struct kelp_placement *placement);
/* Names, or shards, have changed: who is drained? */
void kelp__placement_find_drained(struct kelp_placement *placement, uint64_t now_ms);
/* Has it been away for as long as it is waited for? */
bool kelp__placement_overdue(const struct kelp_placement *placement,
                             const struct kelp_placement_shard *shard, uint64_t now_ms);
/* Is the shard of the map lost, by one witness or by two? */
bool kelp__placement_suspected(const struct kelp_placement *placement,
                               const struct kelp_map_shard *mapped, uint64_t now_ms);
bool kelp__placement_lost(const struct kelp_placement *placement,
                          const struct kelp_map_shard *mapped, uint64_t now_ms);
/* Do we hear this very incarnation? */
bool kelp__placement_hears(const struct kelp_placement *placement,
                           const struct kelp_map_shard *mapped);
/* The first shard of the map that is lost, not reached, has not loaded it; NULL: none. */
const char *kelp__placement_first_lost(const struct kelp_placement *placement, uint64_t now_ms);
const char *kelp__placement_first_unreached(const struct kelp_placement *placement);
const char *kelp__placement_first_unloaded(const struct kelp_placement *placement);
/* What a shard has waited for too long; NULL: nothing. *ret_shard: it, or the first that waits. */
const char *kelp__placement_missing_storage(const struct kelp_placement *placement, uint64_t now_ms,
                                            const struct kelp_placement_shard **ret_shard);
/* Drop the entries of shards that left for good. */
void kelp__placement_forget(struct kelp_placement *placement, uint64_t now_ms);

/* ---- placement_changes.c ---- */

/* A shard is lost whose partitions have other replicas: change their entries. What is to be done
 * then; NOBODY: by two witnesses nobody is left who may lead some partition. Errors:
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp__placement_fail_over(struct kelp_placement *placement, uint64_t now_ms,
                                      struct kelp_placement_actions *actions,
                                      enum kelp_failover_verdict *ret_verdict,
                                      struct kelp_error *reterr) KELP_MUST_USE;
/* The change is on its way; next is emptied. */
void kelp__placement_begin_change(struct kelp_placement *placement, struct kelp_map *next,
                                  struct kelp_placement_actions *actions);
/* The answers to a change in progress. Errors: as kelp__placement_adopt(). */
kelp_status kelp__placement_change_written(struct kelp_placement *placement,
                                           enum kelp_placement_written written, uint64_t now_ms,
                                           struct kelp_placement_actions *actions,
                                           struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__placement_change_read(struct kelp_placement *placement, struct kelp_map *found,
                                        uint64_t now_ms, struct kelp_placement_actions *actions,
                                        struct kelp_error *reterr) KELP_MUST_USE;
/* Let workers know of a change that primaries have taken. */
void kelp__placement_tell(struct kelp_placement *placement, uint64_t now_ms,
                          struct kelp_placement_actions *actions);
/* Make map (not empty) the current one; it is emptied. Errors: KELP_ERR_LIMIT,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp__placement_adopt(struct kelp_placement *placement, struct kelp_map *map,
                                  uint64_t now_ms, struct kelp_error *reterr) KELP_MUST_USE;
/* A nonce that no write had before. */
void kelp__placement_name_write(struct kelp_placement *placement, struct kelp_map *map);

/* ---- placement_moves.c ---- */

/* Entries with backups for a map of a generation that opens. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp__placement_lay_out(const struct kelp_placement *placement, struct kelp_map *map,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Begin the next moves, if any are wanted and may be made now. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp__placement_move_partitions(struct kelp_placement *placement,
                                            const struct kelp_placement_event *event,
                                            struct kelp_placement_actions *actions,
                                            struct kelp_error *reterr) KELP_MUST_USE;

/* ---- placement_says.c ---- */

void kelp__placement_act(struct kelp_placement_actions *actions,
                         struct kelp_placement_action action);
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

/* ---- placement_events.c ---- */

/* Take an event in. */
kelp_status kelp__placement_take(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event,
                                 struct kelp_placement_actions *actions,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
