/*
 * Maps, control words and records to and from their messages. Messages that are built here borrow
 * from their source.
 */
#ifndef KELP_COORDINATOR_WIRE_MAP_H
#define KELP_COORDINATOR_WIRE_MAP_H

#include "common/control.h"
#include "coordinator/map.h"
#include "proto/kelp.pb-c.h"

/* A message with its arrays. Freed with kelp_wire_map_fini(); valid while the map is. */
struct kelp_wire_map {
    Kelp__V1__Map message;
    Kelp__V1__ShardPlace *shards;
    Kelp__V1__ShardPlace **shard_pointers;
    Kelp__V1__PartitionPlace *partitions;
    Kelp__V1__PartitionPlace **partition_pointers;
};
kelp_status kelp_wire_map_init(struct kelp_wire_map *wire,
                               const struct kelp_map *map) KELP_MUST_USE;
void kelp_wire_map_fini(struct kelp_wire_map *wire);

void kelp_wire_from_word(const struct kelp_control_word *word, Kelp__V1__ControlWord *ret_wire);
/* Errors: KELP_ERR_FORMAT (missing, or a kind that does not exist). */
kelp_status kelp_wire_to_word(const Kelp__V1__ControlWord *wire,
                              struct kelp_control_word *ret_word) KELP_MUST_USE;

/* ret_word is where the message's word is built. */
void kelp_wire_from_record(const struct kelp_record *record, Kelp__V1__Record *ret_wire,
                           Kelp__V1__ControlWord *ret_word);
/* Errors: KELP_ERR_FORMAT (no word, or a digest that is not 32 hexadecimal digits). */
kelp_status kelp_wire_to_record(const Kelp__V1__Record *wire,
                                struct kelp_record *ret_record) KELP_MUST_USE;

#endif
