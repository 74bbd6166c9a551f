#include "coordinator/wire_map.h"

#include <stdlib.h>
#include <string.h>

void kelp_wire_map_fini(struct kelp_wire_map *wire)
{
    free(wire->shards);
    free(wire->shard_pointers);
    free(wire->partitions);
    free(wire->partition_pointers);
    *wire = (struct kelp_wire_map){.shards = NULL};
}

kelp_status kelp_wire_map_init(struct kelp_wire_map *wire, const struct kelp_map *map)
{
    *wire = (struct kelp_wire_map){.shards = NULL};
    kelp__v1__map__init(&wire->message);
    wire->shards = calloc((size_t)map->shard_count + 1, sizeof(*wire->shards));
    wire->shard_pointers = calloc((size_t)map->shard_count + 1, sizeof(*wire->shard_pointers));
    wire->partitions = calloc((size_t)map->partition_count + 1, sizeof(*wire->partitions));
    wire->partition_pointers =
        calloc((size_t)map->partition_count + 1, sizeof(*wire->partition_pointers));
    if (wire->shards == NULL || wire->shard_pointers == NULL || wire->partitions == NULL ||
        wire->partition_pointers == NULL) {
        kelp_wire_map_fini(wire);
        return KELP_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < map->shard_count; i++) {
        kelp__v1__shard_place__init(&wire->shards[i]);
        wire->shards[i].shard = map->shards[i].id;
        wire->shards[i].address = map->shards[i].address;
        wire->shards[i].incarnation = map->shards[i].incarnation;
        wire->shard_pointers[i] = &wire->shards[i];
    }
    for (uint32_t i = 0; i < map->partition_count; i++) {
        kelp__v1__partition_place__init(&wire->partitions[i]);
        wire->partitions[i].partition = i;
        wire->partitions[i].map_epoch = map->partitions[i].map_epoch;
        wire->partitions[i].primary = map->partitions[i].primary;
        wire->partition_pointers[i] = &wire->partitions[i];
    }
    wire->message.generation = map->generation;
    wire->message.restore_version = map->restore_version;
    wire->message.n_shards = map->shard_count;
    wire->message.shards = wire->shard_pointers;
    wire->message.n_partitions = map->partition_count;
    wire->message.partitions = wire->partition_pointers;
    return KELP_OK;
}

void kelp_wire_from_word(const struct kelp_control_word *word, Kelp__V1__ControlWord *ret_wire)
{
    kelp__v1__control_word__init(ret_wire);
    ret_wire->version = word->version;
    ret_wire->step = word->step;
    ret_wire->kind = (uint32_t)word->kind;
    ret_wire->epoch = word->epoch;
    ret_wire->step_in_epoch = word->step_in_epoch;
    ret_wire->sample_first = word->sample_first;
    ret_wire->sample_count = word->sample_count;
    ret_wire->lr = word->lr;
    ret_wire->digest_due = word->digest_due;
}

kelp_status kelp_wire_to_word(const Kelp__V1__ControlWord *wire, struct kelp_control_word *ret_word)
{
    if (wire == NULL || wire->kind < KELP_STEP_TRAIN || wire->kind > KELP_STEP_DONE) {
        return KELP_ERR_FORMAT;
    }
    *ret_word = (struct kelp_control_word){
        .version = wire->version,
        .step = wire->step,
        .kind = (enum kelp_step_kind)wire->kind,
        .epoch = wire->epoch,
        .step_in_epoch = wire->step_in_epoch,
        .sample_first = wire->sample_first,
        .sample_count = wire->sample_count,
        .lr = wire->lr,
        .digest_due = wire->digest_due != 0,
    };
    return KELP_OK;
}

void kelp_wire_from_record(const struct kelp_record *record, Kelp__V1__Record *ret_wire,
                           Kelp__V1__ControlWord *ret_word)
{
    kelp__v1__record__init(ret_wire);
    kelp_wire_from_word(&record->word, ret_word);
    ret_wire->word = ret_word;
    ret_wire->loss = record->loss;
    ret_wire->mse = record->mse;
    ret_wire->mae = record->mae;
    ret_wire->epoch_end = record->epoch_end;
    ret_wire->epoch_loss = record->epoch_loss;
    ret_wire->digest = (char *)record->digest; /* only read by the encoder */
}

kelp_status kelp_wire_to_record(const Kelp__V1__Record *wire, struct kelp_record *ret_record)
{
    struct kelp_record record = {
        .loss = wire->loss,
        .mse = wire->mse,
        .mae = wire->mae,
        .epoch_end = wire->epoch_end != 0,
        .epoch_loss = wire->epoch_loss,
    };
    size_t length = strlen(wire->digest);
    if (kelp_wire_to_word(wire->word, &record.word) != KELP_OK ||
        (length != 0 && length != sizeof(record.digest) - 1) ||
        strspn(wire->digest, "0123456789abcdef") != length) {
        return KELP_ERR_FORMAT;
    }
    memcpy(record.digest, wire->digest, length + 1);
    *ret_record = record;
    return KELP_OK;
}
