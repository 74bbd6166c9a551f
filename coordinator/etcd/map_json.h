/*
 * The texts that the coordinator reads from and writes to etcd (docs/PROTOCOL.md,
 * "Connections").
 */
#ifndef KELP_COORDINATOR_ETCD_MAP_JSON_H
#define KELP_COORDINATOR_ETCD_MAP_JSON_H

#include "coordinator/term/outside/found.h"
#include "coordinator/term/standby.h"

/* ret_text is owned by the caller (free()). */
kelp_status kelp_map_print(const struct kelp_map *map, char **ret_text,
                           struct kelp_error *reterr) KELP_MUST_USE;
/* Bounded and checked (kelp_map_check). Errors: KELP_ERR_FORMAT, KELP_ERR_LIMIT,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_map_parse(const char *text, size_t text_bytes, struct kelp_map *ret_map,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* {"address","incarnation","zone"} of a shard's key, the zone if it has one; ret_shard->id is left
 * alone. */
kelp_status kelp_registration_parse(const char *text, size_t text_bytes,
                                    struct kelp_map_shard *ret_shard,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* {"id","address","incarnation"} of a leader's key; the revision is left alone. */
kelp_status kelp_holder_parse(const char *text, size_t text_bytes, struct kelp_holder *ret_holder,
                              struct kelp_error *reterr) KELP_MUST_USE;

kelp_status kelp_scale_print(const struct kelp_scale *scale, char **ret_text,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* Numbers are bounded; whether they make a size for the job is not said. */
kelp_status kelp_scale_parse(const char *text, size_t text_bytes, struct kelp_scale *ret_scale,
                             struct kelp_error *reterr) KELP_MUST_USE;

kelp_status kelp_job_state_print(const struct kelp_job_state *state, char **ret_text,
                                 struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_job_state_parse(const char *text, size_t text_bytes,
                                 struct kelp_job_state *ret_state,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
