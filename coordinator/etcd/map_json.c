#include "coordinator/etcd/map_json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/address.h"
#include "common/base/json.h"
#include "common/base/process_name.h"
#include "common/training/plan.h"

/* ---- printing ---- */

static kelp_status finish(FILE *out, char **text, char **ret_text, struct kelp_error *reterr)
{
    if (fclose(out) != 0) {
        free(*text);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a text");
    }
    *ret_text = *text;
    return KELP_OK;
}

/* Nothing is printed if there is no follower. */
static void print_follower(FILE *out, const char *name, uint32_t shard)
{
    if (shard != KELP_MAP_NOBODY) {
        (void)fprintf(out, ",\"%s\":%u", name, shard);
    }
}

kelp_status kelp_map_print(const struct kelp_map *map, char **ret_text, struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the map's text");
    }
    (void)fprintf(out,
                  "{\"generation\":%" PRIu64 ",\"serial\":%" PRIu64 ",\"restore_version\":%" PRIu64
                  ",\"nonce\":",
                  map->generation, map->serial, map->restore_version);
    kelp_json_print_string(out, map->nonce);
    (void)fprintf(out, ",\"shards\":[");
    for (uint32_t i = 0; i < map->shard_count; i++) {
        (void)fprintf(out, "%s{\"shard\":", i > 0 ? "," : "");
        kelp_json_print_string(out, map->shards[i].id);
        (void)fprintf(out, ",\"address\":");
        kelp_json_print_string(out, map->shards[i].address);
        if (map->shards[i].zone[0] != '\0') {
            (void)fprintf(out, ",\"zone\":");
            kelp_json_print_string(out, map->shards[i].zone);
        }
        (void)fprintf(out, ",\"incarnation\":\"%" PRIu64 "\"}", map->shards[i].incarnation);
    }
    (void)fprintf(out, "],\"partitions\":[");
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        (void)fprintf(out, "%s{\"map_epoch\":%" PRIu64 ",\"primary\":%u", i > 0 ? "," : "",
                      entry->map_epoch, entry->primary);
        print_follower(out, "backup", entry->backup);
        print_follower(out, "joiner", entry->joiner);
        (void)fputc('}', out);
    }
    (void)fprintf(out, "]}");
    return finish(out, &text, ret_text, reterr);
}

static void print_targets(FILE *out, const char *name, const struct kelp_targets *targets)
{
    (void)fprintf(out, "\"%s\":{\"workers_min\":%u,\"workers_max\":%u,\"shards\":%u", name,
                  targets->workers_min, targets->workers_max, targets->shards);
    for (uint32_t i = 0; i < targets->drain_count; i++) {
        (void)fputs(i == 0 ? ",\"drains\":[" : ",", out);
        kelp_json_print_member(out, "{", "id", targets->drains[i].id);
        (void)fprintf(out, ",\"incarnation\":\"%" PRIu64 "\"}", targets->drains[i].incarnation);
    }
    (void)fputs(targets->drain_count > 0 ? "]}" : "}", out);
}

kelp_status kelp_scale_print(const struct kelp_scale *scale, char **ret_text,
                             struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the scale's text");
    }
    (void)fputc('{', out);
    print_targets(out, "targets", &scale->targets);
    (void)fputc(',', out);
    print_targets(out, "of_job", &scale->of_job);
    (void)fputc('}', out);
    return finish(out, &text, ret_text, reterr);
}

kelp_status kelp_job_state_print(const struct kelp_job_state *state, char **ret_text,
                                 struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the state's text");
    }
    (void)fprintf(out, "{\"state\":");
    kelp_json_print_string(out, state->state);
    (void)fprintf(out, ",\"reason\":");
    kelp_json_print_string(out, state->reason);
    (void)fprintf(out,
                  ",\"version\":%" PRIu64 ",\"step\":%" PRIu64 ",\"steps_recomputed\":%" PRIu64 "}",
                  state->version, state->step, state->steps_recomputed);
    return finish(out, &text, ret_text, reterr);
}

/* ---- parsing ---- */

/* An incarnation uses all 64 bits, so it is a decimal string. */
static kelp_status parse_incarnation(const cJSON *json, uint64_t *ret_value,
                                     struct kelp_error *reterr)
{
    char text[24];
    kelp_status status = kelp_json_string(json, "incarnation", text, sizeof(text), reterr);
    if (status != KELP_OK) {
        return status;
    }
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0' || value == 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "incarnation: \"%s\" is not a number from 1",
                         text);
    }
    *ret_value = value;
    return KELP_OK;
}

static kelp_status parse_place(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_map_shard *ret_shard = into;
    struct kelp_map_shard shard = *ret_shard;
    kelp_status status =
        kelp_json_string(json, "address", shard.address, sizeof(shard.address), reterr);
    if (status == KELP_OK) {
        status = parse_incarnation(json, &shard.incarnation, reterr);
    }
    if (status == KELP_OK && shard.address[0] == '\0') {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "address: empty; host:port is needed");
    }
    if (status == KELP_OK && cJSON_HasObjectItem(json, "zone")) {
        status = kelp_json_string(json, "zone", shard.zone, sizeof(shard.zone), reterr);
        if (status == KELP_OK && !kelp_process_name_valid(shard.zone)) {
            status =
                kelp_fail(reterr, KELP_ERR_FORMAT,
                          "zone: '%s' is not a name of letters, digits, '-', '_', '.'", shard.zone);
        }
    }
    if (status == KELP_OK) {
        *ret_shard = shard;
    }
    return status;
}

static kelp_status check_address(const char *address, struct kelp_error *reterr)
{
    return kelp_address_is_target(address)
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_FORMAT,
                           "address: '%s' is not HOST:PORT in numbers, or unix:/PATH", address);
}

static kelp_status parse_registration(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_map_shard *ret_shard = into;
    struct kelp_map_shard shard = *ret_shard;
    kelp_status status = parse_place(json, &shard, reterr);
    if (status == KELP_OK) {
        status = check_address(shard.address, reterr);
    }
    if (status == KELP_OK) {
        *ret_shard = shard;
    }
    return status;
}

kelp_status kelp_registration_parse(const char *text, size_t text_bytes,
                                    struct kelp_map_shard *ret_shard, struct kelp_error *reterr)
{
    return kelp_json_read(text, text_bytes, parse_registration, ret_shard, reterr);
}

static kelp_status parse_holder(const cJSON *json, void *user, struct kelp_error *reterr)
{
    struct kelp_holder *holder = user;
    kelp_status status = kelp_json_string(json, "id", holder->id, sizeof(holder->id), reterr);
    if (status == KELP_OK) {
        status =
            kelp_json_string(json, "address", holder->address, sizeof(holder->address), reterr);
    }
    if (status == KELP_OK) {
        status = check_address(holder->address, reterr);
    }
    if (status == KELP_OK) {
        status = parse_incarnation(json, &holder->incarnation, reterr);
    }
    if (status == KELP_OK && !kelp_process_name_valid(holder->id)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "id: is not the name of a coordinator");
    }
    return status;
}

kelp_status kelp_holder_parse(const char *text, size_t text_bytes, struct kelp_holder *ret_holder,
                              struct kelp_error *reterr)
{
    return kelp_json_read(text, text_bytes, parse_holder, ret_holder, reterr);
}

static kelp_status parse_shards(const cJSON *array, struct kelp_map *map, struct kelp_error *reterr)
{
    uint32_t index = 0;
    for (const cJSON *item = array->child; item; item = item->next) {
        struct kelp_map_shard *shard = &map->shards[index++];
        kelp_status status = kelp_json_string(item, "shard", shard->id, sizeof(shard->id), reterr);
        if (status == KELP_OK) {
            status = parse_place(item, shard, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* KELP_MAP_NOBODY if the entry has none. */
static kelp_status parse_follower(const cJSON *json, const char *name, uint32_t *ret_shard,
                                  struct kelp_error *reterr)
{
    *ret_shard = KELP_MAP_NOBODY;
    return cJSON_HasObjectItem(json, name)
               ? kelp_json_u32(json, name, KELP_COORDINATOR_SHARDS_MAX, ret_shard, reterr)
               : KELP_OK;
}

static kelp_status parse_partitions(const cJSON *array, struct kelp_map *map,
                                    struct kelp_error *reterr)
{
    uint32_t index = 0;
    for (const cJSON *item = array->child; item; item = item->next) {
        struct kelp_map_partition *partition = &map->partitions[index++];
        kelp_status status =
            kelp_json_u64(item, "map_epoch", KELP_JSON_INTEGER_MAX, &partition->map_epoch, reterr);
        if (status == KELP_OK) {
            status = kelp_json_u32(item, "primary", KELP_COORDINATOR_SHARDS_MAX,
                                   &partition->primary, reterr);
        }
        if (status == KELP_OK) {
            status = parse_follower(item, "backup", &partition->backup, reterr);
        }
        if (status == KELP_OK) {
            status = parse_follower(item, "joiner", &partition->joiner, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status parse_map(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_map *map = into;
    const cJSON *shards = NULL;
    const cJSON *partitions = NULL;
    kelp_status status =
        kelp_json_array(json, "shards", KELP_COORDINATOR_SHARDS_MAX, &shards, reterr);
    if (status == KELP_OK) {
        status = kelp_json_array(json, "partitions", KELP_PARTITIONS_MAX, &partitions, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_map_init(map, (uint32_t)cJSON_GetArraySize(shards),
                               (uint32_t)cJSON_GetArraySize(partitions), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "generation", KELP_JSON_INTEGER_MAX, &map->generation, reterr);
    }
    if (status == KELP_OK) {
        map->serial = 1; /* older versions wrote none */
        status = cJSON_HasObjectItem(json, "serial")
                     ? kelp_json_u64(json, "serial", KELP_JSON_INTEGER_MAX, &map->serial, reterr)
                     : KELP_OK;
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "restore_version", KELP_JSON_INTEGER_MAX,
                               &map->restore_version, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "nonce", map->nonce, sizeof(map->nonce), reterr);
    }
    if (status == KELP_OK) {
        status = parse_shards(shards, map, reterr);
    }
    if (status == KELP_OK) {
        status = parse_partitions(partitions, map, reterr);
    }
    return status == KELP_OK ? kelp_map_check(map, reterr) : status;
}

kelp_status kelp_map_parse(const char *text, size_t text_bytes, struct kelp_map *ret_map,
                           struct kelp_error *reterr)
{
    struct kelp_map map = {0};
    kelp_status status = kelp_json_read(text, text_bytes, parse_map, &map, reterr);
    if (status != KELP_OK) {
        kelp_map_fini(&map);
        return status;
    }
    *ret_map = map;
    return KELP_OK;
}

static kelp_status parse_state(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_job_state *state = into;
    kelp_status status =
        kelp_json_string(json, "state", state->state, sizeof(state->state), reterr);
    if (status == KELP_OK) {
        status = kelp_json_string(json, "reason", state->reason, sizeof(state->reason), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "version", KELP_JSON_INTEGER_MAX, &state->version, reterr);
    }
    /* Older versions wrote neither of these. */
    if (status == KELP_OK && cJSON_HasObjectItem(json, "step")) {
        status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &state->step, reterr);
    }
    if (status == KELP_OK && cJSON_HasObjectItem(json, "steps_recomputed")) {
        status = kelp_json_u64(json, "steps_recomputed", KELP_JSON_INTEGER_MAX,
                               &state->steps_recomputed, reterr);
    }
    return status;
}

kelp_status kelp_job_state_parse(const char *text, size_t text_bytes,
                                 struct kelp_job_state *ret_state, struct kelp_error *reterr)
{
    struct kelp_job_state state = {0};
    kelp_status status = kelp_json_read(text, text_bytes, parse_state, &state, reterr);
    if (status == KELP_OK) {
        *ret_state = state;
    }
    return status;
}

static kelp_status parse_drain(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_drain drain = {.incarnation = 0};
    kelp_status status = kelp_json_string(json, "id", drain.id, sizeof(drain.id), reterr);
    if (status == KELP_OK) {
        status = parse_incarnation(json, &drain.incarnation, reterr);
    }
    if (status == KELP_OK && !kelp_process_name_valid(drain.id)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "id: is not the name of a process");
    }
    return status == KELP_OK ? kelp_targets_add_drain(into, drain.id, drain.incarnation, reterr)
                             : status;
}

/* Older versions wrote none. */
static kelp_status parse_drains(const cJSON *json, struct kelp_targets *ret_targets,
                                struct kelp_error *reterr)
{
    const cJSON *drains = NULL;
    if (!cJSON_HasObjectItem(json, "drains")) {
        return KELP_OK;
    }
    kelp_status status =
        kelp_json_array(json, "drains", KELP_COORDINATOR_DRAINS_MAX, &drains, reterr);
    return status == KELP_OK ? kelp_json_each(drains, parse_drain, ret_targets, reterr) : status;
}

static kelp_status parse_targets(const cJSON *json, const char *name,
                                 struct kelp_targets *ret_targets, struct kelp_error *reterr)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);
    if (!cJSON_IsObject(member)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: is missing, or no object", name);
    }
    kelp_status status =
        kelp_json_u32(member, "workers_min", KELP_JOB_LANES_MAX, &ret_targets->workers_min, reterr);
    if (status == KELP_OK) {
        status = kelp_json_u32(member, "workers_max", KELP_JOB_LANES_MAX, &ret_targets->workers_max,
                               reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u32(member, "shards", KELP_COORDINATOR_SHARDS_MAX, &ret_targets->shards,
                               reterr);
    }
    return status == KELP_OK ? parse_drains(member, ret_targets, reterr) : status;
}

static kelp_status parse_scale(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_scale *scale = into;
    kelp_status status = parse_targets(json, "targets", &scale->targets, reterr);
    return status == KELP_OK ? parse_targets(json, "of_job", &scale->of_job, reterr) : status;
}

kelp_status kelp_scale_parse(const char *text, size_t text_bytes, struct kelp_scale *ret_scale,
                             struct kelp_error *reterr)
{
    struct kelp_scale scale = {.targets = {0}};
    kelp_status status = kelp_json_read(text, text_bytes, parse_scale, &scale, reterr);
    if (status == KELP_OK) {
        *ret_scale = scale;
    }
    return status;
}
