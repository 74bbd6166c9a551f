/* What the members of an etcd cluster report about themselves and each other. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/etcd/etcd_internal.h"

/* ---- answers: pure ------------------------------------------------------------------------- */

static kelp_status foreign(struct kelp_error *reterr, const char *what)
{
    return kelp_fail(reterr, KELP_ERR_FORMAT, "not an answer of etcd: %s", what);
}

/* A member's id, a decimal string of 64 bits; absent: 0. */
static kelp_status get_id(const cJSON *json, const char *name, uint64_t *ret_id)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);
    const char *text = cJSON_GetStringValue(member);
    char *end = NULL;

    *ret_id = 0;
    if (!member) {
        return KELP_OK;
    }
    if (!text || text[0] < '0' || text[0] > '9') {
        return KELP_ERR_FORMAT;
    }
    errno = 0;
    *ret_id = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? KELP_OK : KELP_ERR_FORMAT;
}

/* Concatenate the texts of an array as far as there is room; absent: none. */
static kelp_status get_texts(const cJSON *json, const char *name, char *text, size_t text_bytes)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(json, name);
    const cJSON *item;
    size_t used = 0;

    text[0] = '\0';
    if (array && !cJSON_IsArray(array)) {
        return KELP_ERR_FORMAT;
    }
    cJSON_ArrayForEach(item, array)
    {
        const char *word = cJSON_GetStringValue(item);
        if (!word) {
            return KELP_ERR_FORMAT;
        }
        if (used < text_bytes) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? ", " : "",
                                     word);
        }
    }
    return KELP_OK;
}

static kelp_status read_health(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_etcd_health *health = into;
    const cJSON *header = cJSON_GetObjectItemCaseSensitive(json, "header");

    if (get_id(header, "member_id", &health->member) != KELP_OK || health->member == 0 ||
        get_id(json, "leader", &health->leader) != KELP_OK ||
        kelp_json_string(json, "version", health->version, sizeof(health->version), NULL) !=
            KELP_OK ||
        get_texts(json, "errors", health->errors, sizeof(health->errors)) != KELP_OK) {
        return foreign(reterr, "the state of a member");
    }
    return KELP_OK;
}

kelp_status kelp__etcd_decode_health(const char *bytes, size_t count,
                                     struct kelp_etcd_health *ret_health, struct kelp_error *reterr)
{
    struct kelp_etcd_health health = {0};

    kelp_status status = kelp_json_read(bytes, count, read_health, &health, reterr);
    if (status == KELP_OK) {
        *ret_health = health;
    }
    return status;
}

static kelp_status read_member(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_etcd_members *members = into;
    struct kelp_etcd_member *member = &members->list[members->count];
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(json, "name");
    const cJSON *urls = cJSON_GetObjectItemCaseSensitive(json, "clientURLs");
    const cJSON *first = cJSON_GetArrayItem(urls, 0);

    if (get_id(json, "ID", &member->id) != KELP_OK || member->id == 0 ||
        (name && !cJSON_IsString(name)) || (urls && !cJSON_IsArray(urls)) ||
        (first && !cJSON_IsString(first))) {
        return foreign(reterr, "a member");
    }
    /* A member that has not started yet has neither. */
    (void)snprintf(member->name, sizeof(member->name), "%s", name ? name->valuestring : "");
    (void)snprintf(member->url, sizeof(member->url), "%s", first ? first->valuestring : "");
    members->count++;
    return KELP_OK;
}

static kelp_status read_members(const cJSON *json, void *into, struct kelp_error *reterr)
{
    const cJSON *list = NULL;

    kelp_status status = kelp_json_array(json, "members", KELP_ETCD_MEMBERS_MAX, &list, reterr);
    return status == KELP_OK ? kelp_json_each(list, read_member, into, reterr) : status;
}

kelp_status kelp__etcd_decode_members(const char *bytes, size_t count,
                                      struct kelp_etcd_members *ret_members,
                                      struct kelp_error *reterr)
{
    struct kelp_etcd_members members = {0};

    kelp_status status = kelp_json_read(bytes, count, read_members, &members, reterr);
    if (status == KELP_OK) {
        *ret_members = members;
    }
    return status;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* Send a request. NULL: no answer, see *ret_status. The caller destroys the call. */
static struct etcd_call *ask(struct kelp_etcd *etcd, const char *path, uint32_t deadline_ms,
                             kelp_status *ret_status, struct kelp_error *reterr)
{
    struct etcd_call *call = kelp__etcd_call_create(etcd, path, ETCD_REPEATABLE, deadline_ms);

    if (!call) {
        *ret_status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    *ret_status = kelp__etcd_encode_texts(NULL, 0, &call->body, reterr);
    if (*ret_status == KELP_OK) {
        *ret_status = kelp__etcd_call_run(call, reterr);
    }
    if (*ret_status != KELP_OK) {
        kelp__etcd_call_destroy(call);
        return NULL;
    }
    return call;
}

/* Put the endpoint in front of a decoder's text. */
static kelp_status finish(struct etcd_call *call, kelp_status status, struct kelp_error *reterr)
{
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s%s", call->etcd->endpoints[call->endpoint], call->path);
    }
    kelp__etcd_call_destroy(call);
    return status;
}

kelp_status kelp_etcd_health(struct kelp_etcd *etcd, uint32_t deadline_ms,
                             struct kelp_etcd_health *ret_health, struct kelp_error *reterr)
{
    kelp_status status;
    struct etcd_call *call = ask(etcd, "/v3/maintenance/status", deadline_ms, &status, reterr);

    if (!call) {
        return status;
    }
    status = kelp__etcd_decode_health(call->answer.bytes, call->answer.used, ret_health, reterr);
    if (status == KELP_OK) {
        ret_health->date_s = call->date_s;
    }
    return finish(call, status, reterr);
}

kelp_status kelp_etcd_members(struct kelp_etcd *etcd, uint32_t deadline_ms,
                              struct kelp_etcd_members *ret_members, struct kelp_error *reterr)
{
    kelp_status status;
    struct etcd_call *call = ask(etcd, "/v3/cluster/member/list", deadline_ms, &status, reterr);

    if (!call) {
        return status;
    }
    status = kelp__etcd_decode_members(call->answer.bytes, call->answer.used, ret_members, reterr);
    return finish(call, status, reterr);
}
