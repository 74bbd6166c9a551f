#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/host/hosts.h"
#include "common/base/json.h"
#include "common/base/process_name.h"

kelp_status kelp_hosts_print(const struct kelp_hosts_entry *host, char **ret_text,
                             struct kelp_error *reterr)
{
    cJSON *json = cJSON_CreateObject();
    char nonce[17];

    (void)snprintf(nonce, sizeof(nonce), "%016" PRIx64, host->nonce);
    bool made = cJSON_AddNumberToObject(json, "shards_min", host->shards.least) &&
                cJSON_AddNumberToObject(json, "shards_max", host->shards.most) &&
                cJSON_AddNumberToObject(json, "workers_min", host->workers.least) &&
                cJSON_AddNumberToObject(json, "workers_max", host->workers.most) &&
                cJSON_AddNumberToObject(json, "pid", host->pid) &&
                cJSON_AddStringToObject(json, "nonce", nonce) &&
                cJSON_AddStringToObject(json, "kernel", host->kernel);
    char *text = made ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    *ret_text = text;
    return text ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static kelp_status read_name(const char *key, struct kelp_hosts_entry *host,
                             struct kelp_error *reterr)
{
    const char *name = strrchr(key, '/');

    name = name ? name + 1 : key;
    if (strlen(name) > KELP_HOST_NAME_MAX || !kelp_process_name_valid(name)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "etcd: %.300s names no host", key);
    }
    (void)snprintf(host->host, sizeof(host->host), "%s", name);
    return KELP_OK;
}

static kelp_status read_room(const cJSON *json, const char *least, const char *most,
                             struct kelp_room *room, struct kelp_error *reterr)
{
    kelp_status status = kelp_json_u32(json, most, KELP_HOST_ROOM_MAX, &room->most, reterr);

    return status == KELP_OK ? kelp_json_u32(json, least, room->most, &room->least, reterr)
                             : status;
}

static kelp_status read_entry(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_hosts_entry *host = into;

    kelp_status status = read_room(json, "shards_min", "shards_max", &host->shards, reterr);
    if (status == KELP_OK) {
        status = read_room(json, "workers_min", "workers_max", &host->workers, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u32(json, "pid", INT32_MAX, &host->pid, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_hex64(json, "nonce", &host->nonce, reterr);
    }
    return status == KELP_OK
               ? kelp_json_string(json, "kernel", host->kernel, sizeof(host->kernel), reterr)
               : status;
}

kelp_status kelp_hosts_parse(const char *key, const char *text, struct kelp_hosts_entry *ret_host,
                             struct kelp_error *reterr)
{
    *ret_host = (struct kelp_hosts_entry){.pid = 0};
    kelp_status status = read_name(key, ret_host, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_json_read(text, strlen(text), read_entry, ret_host, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, key);
    }
    return status;
}

void kelp_hosts_names(const struct kelp_hosts_list *list, char *text, size_t text_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < list->count && used < text_bytes; i++) {
        int more = snprintf(text + used, text_bytes - used, "%s%s", i > 0 ? ", " : "",
                            list->hosts[i].host);
        used += more > 0 ? (size_t)more : 0;
    }
}
