#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/base64.h"
#include "common/etcd/etcd_internal.h"

/*
 * Etcd's gateway follows proto3's JSON mapping as etcd 3.4 prints it: int64 as decimal strings,
 * bytes as base64, int32 as numbers, and every field that has its default value left out. A field
 * that is there with another type is an error; fields that we do not know are ignored, as etcd adds
 * some from release to release.
 */

static kelp_status foreign(struct kelp_error *reterr, const char *what)
{
    return kelp_fail(reterr, KELP_ERR_FORMAT, "not an answer of etcd: %s", what);
}

/* The whole text as one JSON object (owned), white space behind it allowed. */
static kelp_status parse_object(const char *bytes, size_t count, cJSON **ret_json,
                                struct kelp_error *reterr)
{
    const char *end = NULL;
    cJSON *json = bytes ? cJSON_ParseWithLengthOpts(bytes, count, &end, 0) : NULL;

    if (!json) {
        return foreign(reterr, "it is not JSON");
    }
    while (end < bytes + count && strchr(" \t\r\n", *end) && *end != '\0') {
        end++;
    }
    if (end != bytes + count || !cJSON_IsObject(json)) {
        cJSON_Delete(json);
        return foreign(reterr, "it is not one JSON object");
    }
    *ret_json = json;
    return KELP_OK;
}

/* A member that must be an object; *ret_member is NULL when it is left out. */
static kelp_status get_object(const cJSON *json, const char *name, const cJSON **ret_member)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);

    *ret_member = member;
    return !member || cJSON_IsObject(member) ? KELP_OK : KELP_ERR_FORMAT;
}

static kelp_status get_array(const cJSON *json, const char *name, const cJSON **ret_member)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);

    *ret_member = member;
    return !member || cJSON_IsArray(member) ? KELP_OK : KELP_ERR_FORMAT;
}

static kelp_status get_bool(const cJSON *json, const char *name, bool *ret_value)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);

    *ret_value = cJSON_IsTrue(member);
    return !member || cJSON_IsBool(member) ? KELP_OK : KELP_ERR_FORMAT;
}

/* A decimal string: an optional minus sign, then digits alone. */
static kelp_status get_int64(const cJSON *json, const char *name, int64_t *ret_value)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);
    const char *text = cJSON_GetStringValue(member);
    char *end;

    if (!member) {
        *ret_value = 0;
        return KELP_OK;
    }
    if (!text || (text[text[0] == '-'] < '0' || text[text[0] == '-'] > '9')) {
        return KELP_ERR_FORMAT;
    }
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0') {
        return KELP_ERR_FORMAT;
    }
    *ret_value = value;
    return KELP_OK;
}

/* int64 that cannot be negative: revisions, versions. */
static kelp_status get_count(const cJSON *json, const char *name, int64_t *ret_value)
{
    kelp_status status = get_int64(json, name, ret_value);

    return status == KELP_OK && *ret_value < 0 ? KELP_ERR_FORMAT : status;
}

/* Decode base64 into owned bytes followed by a NUL; a missing field is empty. */
static kelp_status get_bytes(const cJSON *json, const char *name, char **ret_bytes,
                             size_t *ret_count)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);
    const char *text = member ? cJSON_GetStringValue(member) : "";

    if (!text) {
        return KELP_ERR_FORMAT;
    }
    size_t length = strlen(text);
    char *bytes = malloc(kelp_base64_decoded_bytes_max(length) + 1);
    if (!bytes) {
        return KELP_ERR_NO_MEMORY;
    }
    kelp_status status = kelp_base64_decode(text, length, bytes, ret_count);
    if (status != KELP_OK) {
        free(bytes);
        return status;
    }
    bytes[*ret_count] = '\0';
    *ret_bytes = bytes;
    return KELP_OK;
}

/* A text for people, cut to fit, control characters replaced. */
static kelp_status get_text(const cJSON *json, const char *name, char *ret_text, size_t text_bytes)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);
    const char *text = member ? cJSON_GetStringValue(member) : "";

    if (!text) {
        return KELP_ERR_FORMAT;
    }
    (void)snprintf(ret_text, text_bytes, "%s", text);
    for (char *at = ret_text; *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            *at = ' ';
        }
    }
    return KELP_OK;
}

/* Every answer of etcd has a header; some leave its revision out. */
static kelp_status get_header(const cJSON *json, int64_t *ret_revision)
{
    const cJSON *header;
    kelp_status status = get_object(json, "header", &header);

    if (status != KELP_OK || !header) {
        return KELP_ERR_FORMAT;
    }
    return get_count(header, "revision", ret_revision);
}

static void pair_fini(struct kelp_etcd_pair *pair)
{
    free(pair->key);
    free(pair->value);
    *pair = (struct kelp_etcd_pair){0};
}

/* *ret_pair is to be freed also after an error. */
static kelp_status get_pair(const cJSON *json, struct kelp_etcd_pair *ret_pair)
{
    size_t key_bytes = 0;

    if (!cJSON_IsObject(json)) {
        return KELP_ERR_FORMAT;
    }
    kelp_status status = get_bytes(json, "key", &ret_pair->key, &key_bytes);
    if (status != KELP_OK) {
        return status;
    }
    /* Our keys are texts; a zero byte inside would make two keys look equal. */
    if (key_bytes == 0 || strlen(ret_pair->key) != key_bytes) {
        return KELP_ERR_FORMAT;
    }
    status = get_bytes(json, "value", &ret_pair->value, &ret_pair->value_bytes);
    if (status != KELP_OK) {
        return status;
    }
    if (get_count(json, "create_revision", &ret_pair->create_revision) != KELP_OK ||
        get_count(json, "mod_revision", &ret_pair->mod_revision) != KELP_OK ||
        get_count(json, "version", &ret_pair->version) != KELP_OK ||
        get_int64(json, "lease", &ret_pair->lease) != KELP_OK) {
        return KELP_ERR_FORMAT;
    }
    return KELP_OK;
}

void kelp_etcd_range_fini(struct kelp_etcd_range *range)
{
    for (size_t i = 0; i < range->count; i++) {
        pair_fini(&range->pairs[i]);
    }
    free(range->pairs);
    *range = (struct kelp_etcd_range){0};
}

static kelp_status get_pairs(const cJSON *array, struct kelp_etcd_range *range)
{
    const cJSON *item;
    int count = cJSON_GetArraySize(array);

    if (count == 0) {
        return KELP_OK;
    }
    if (count > ETCD_KEYS_MAX) {
        return KELP_ERR_LIMIT;
    }
    range->pairs = calloc((size_t)count, sizeof(*range->pairs));
    if (!range->pairs) {
        return KELP_ERR_NO_MEMORY;
    }
    cJSON_ArrayForEach(item, array)
    {
        struct kelp_etcd_pair *pair = &range->pairs[range->count++];
        kelp_status status = get_pair(item, pair);
        if (status != KELP_OK) {
            return status;
        }
        /* Comparing listings relies on the order. */
        if (range->count > 1 && strcmp(pair[-1].key, pair->key) >= 0) {
            return KELP_ERR_FORMAT;
        }
    }
    return KELP_OK;
}

static kelp_status fail_decode(struct kelp_error *reterr, kelp_status status, const char *what)
{
    if (status == KELP_ERR_FORMAT) {
        return foreign(reterr, what);
    }
    return kelp_fail(reterr, status, "%s: %s", what, kelp_status_text(status));
}

kelp_status kelp__etcd_decode_range(const char *bytes, size_t count,
                                    struct kelp_etcd_range *ret_range, struct kelp_error *reterr)
{
    struct kelp_etcd_range range = {0};
    const cJSON *pairs = NULL;
    cJSON *json;
    kelp_status status = parse_object(bytes, count, &json, reterr);

    if (status != KELP_OK) {
        return status;
    }
    status = get_header(json, &range.revision);
    if (status == KELP_OK) {
        status = get_array(json, "kvs", &pairs);
    }
    if (status == KELP_OK && pairs) {
        status = get_pairs(pairs, &range);
    }
    cJSON_Delete(json);
    if (status != KELP_OK) {
        kelp_etcd_range_fini(&range);
        return fail_decode(reterr, status, "a listing of keys");
    }
    *ret_range = range;
    return KELP_OK;
}

kelp_status kelp__etcd_decode_header(const char *bytes, size_t count, int64_t *ret_revision,
                                     struct kelp_error *reterr)
{
    cJSON *json;
    kelp_status status = parse_object(bytes, count, &json, reterr);

    if (status != KELP_OK) {
        return status;
    }
    status = get_header(json, ret_revision);
    cJSON_Delete(json);
    return status == KELP_OK ? KELP_OK : fail_decode(reterr, status, "a header");
}

kelp_status kelp__etcd_decode_transaction(const char *bytes, size_t count, bool *ret_succeeded,
                                          int64_t *ret_revision, struct kelp_error *reterr)
{
    cJSON *json;
    bool succeeded = false;
    int64_t revision = 0;
    kelp_status status = parse_object(bytes, count, &json, reterr);

    if (status != KELP_OK) {
        return status;
    }
    status = get_header(json, &revision);
    if (status == KELP_OK) {
        status = get_bool(json, "succeeded", &succeeded);
    }
    cJSON_Delete(json);
    if (status != KELP_OK) {
        return fail_decode(reterr, status, "the result of a transaction");
    }
    *ret_succeeded = succeeded;
    *ret_revision = revision;
    return KELP_OK;
}

kelp_status kelp__etcd_decode_grant(const char *bytes, size_t count, int64_t *ret_id,
                                    int64_t *ret_ttl_s, struct kelp_error *reterr)
{
    cJSON *json;
    int64_t revision;
    int64_t id = 0;
    int64_t ttl_s = 0;
    kelp_status status = parse_object(bytes, count, &json, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (get_header(json, &revision) != KELP_OK || get_int64(json, "ID", &id) != KELP_OK ||
        get_count(json, "TTL", &ttl_s) != KELP_OK || id == 0 || ttl_s == 0) {
        status = foreign(reterr, "a granted lease");
    }
    cJSON_Delete(json);
    if (status == KELP_OK) {
        *ret_id = id;
        *ret_ttl_s = ttl_s;
    }
    return status;
}

kelp_status kelp__etcd_decode_token(const char *bytes, size_t count, char **ret_token,
                                    struct kelp_error *reterr)
{
    cJSON *json;
    kelp_status status = parse_object(bytes, count, &json, reterr);

    if (status != KELP_OK) {
        return status;
    }
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "token"));
    size_t length = text ? strlen(text) : 0;
    bool plain = length > 0 && length <= ETCD_TOKEN_MAX;
    for (size_t i = 0; i < length; i++) { /* it becomes a line of a header */
        plain = plain && text[i] > ' ' && text[i] < 0x7f;
    }
    char *token = plain ? strdup(text) : NULL;
    cJSON_Delete(json);
    if (!token) {
        return plain ? kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory")
                     : foreign(reterr, "a token");
    }
    *ret_token = token;
    return KELP_OK;
}

kelp_status kelp__etcd_decode_keep_alive(const char *bytes, size_t count, int64_t *ret_ttl_s,
                                         struct kelp_error *reterr)
{
    cJSON *json;
    const cJSON *result;
    int64_t revision;
    int64_t ttl_s = 0;
    kelp_status status = parse_object(bytes, count, &json, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (get_object(json, "result", &result) != KELP_OK || !result ||
        get_header(result, &revision) != KELP_OK || get_count(result, "TTL", &ttl_s) != KELP_OK) {
        status = foreign(reterr, "the answer to a keep-alive");
    }
    cJSON_Delete(json);
    if (status == KELP_OK) {
        *ret_ttl_s = ttl_s;
    }
    return status;
}

/* A number without a fraction, as etcd prints int32. */
static kelp_status get_small(const cJSON *json, const char *name, int *ret_value)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);

    *ret_value = 0;
    if (!member) {
        return KELP_OK;
    }
    if (!cJSON_IsNumber(member) || !(member->valuedouble >= 0 && member->valuedouble <= 1e6)) {
        return KELP_ERR_FORMAT;
    }
    *ret_value = (int)member->valuedouble;
    return KELP_OK;
}

kelp_status kelp__etcd_decode_refusal(const char *bytes, size_t count,
                                      struct etcd_refusal *ret_refusal)
{
    struct etcd_refusal refusal;
    cJSON *json;
    kelp_status status = parse_object(bytes, count, &json, NULL);

    if (status != KELP_OK) {
        return status;
    }
    if (!cJSON_GetObjectItemCaseSensitive(json, "code") ||
        get_small(json, "code", &refusal.code) != KELP_OK ||
        get_text(json, "message", refusal.message, sizeof(refusal.message)) != KELP_OK) {
        status = KELP_ERR_FORMAT;
    }
    cJSON_Delete(json);
    if (status == KELP_OK) {
        *ret_refusal = refusal;
    }
    return status;
}

static kelp_status get_event(const cJSON *json, struct etcd_event *event)
{
    const cJSON *pair;
    char type[16];

    if (!cJSON_IsObject(json) || get_text(json, "type", type, sizeof(type)) != KELP_OK ||
        get_object(json, "kv", &pair) != KELP_OK || !pair) {
        return KELP_ERR_FORMAT;
    }
    event->deleted = strcmp(type, "DELETE") == 0;
    if (!event->deleted && type[0] != '\0' && strcmp(type, "PUT") != 0) {
        return KELP_ERR_FORMAT;
    }
    kelp_status status = get_pair(pair, &event->pair);
    return status == KELP_OK && event->pair.mod_revision == 0 ? KELP_ERR_FORMAT : status;
}

static kelp_status get_events(const cJSON *array, struct etcd_watch_answer *answer)
{
    const cJSON *item;
    int count = cJSON_GetArraySize(array);

    if (count == 0) {
        return KELP_OK;
    }
    if (count > ETCD_KEYS_MAX) {
        return KELP_ERR_LIMIT;
    }
    answer->events = calloc((size_t)count, sizeof(*answer->events));
    if (!answer->events) {
        return KELP_ERR_NO_MEMORY;
    }
    cJSON_ArrayForEach(item, array)
    {
        kelp_status status = get_event(item, &answer->events[answer->event_count++]);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status get_watch_result(const cJSON *result, struct etcd_watch_answer *answer)
{
    const cJSON *events = NULL;

    if (get_header(result, &answer->revision) != KELP_OK ||
        get_bool(result, "created", &answer->created) != KELP_OK ||
        get_bool(result, "canceled", &answer->canceled) != KELP_OK ||
        get_count(result, "compact_revision", &answer->compact_revision) != KELP_OK ||
        get_text(result, "cancel_reason", answer->reason, sizeof(answer->reason)) != KELP_OK ||
        get_array(result, "events", &events) != KELP_OK) {
        return KELP_ERR_FORMAT;
    }
    return events ? get_events(events, answer) : KELP_OK;
}

void kelp__etcd_watch_answer_fini(struct etcd_watch_answer *answer)
{
    for (size_t i = 0; i < answer->event_count; i++) {
        pair_fini(&answer->events[i].pair);
    }
    free(answer->events);
    *answer = (struct etcd_watch_answer){0};
}

kelp_status kelp__etcd_decode_watch(const char *bytes, size_t count,
                                    struct etcd_watch_answer *ret_answer, struct kelp_error *reterr)
{
    struct etcd_watch_answer answer = {0};
    const cJSON *result = NULL;
    const cJSON *error = NULL;
    cJSON *json;
    kelp_status status = parse_object(bytes, count, &json, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (get_object(json, "result", &result) != KELP_OK ||
        get_object(json, "error", &error) != KELP_OK || !result == !error) {
        status = KELP_ERR_FORMAT;
    } else if (error) {
        answer.failed = true;
        status = get_text(error, "message", answer.reason, sizeof(answer.reason));
    } else {
        status = get_watch_result(result, &answer);
    }
    cJSON_Delete(json);
    if (status != KELP_OK) {
        kelp__etcd_watch_answer_fini(&answer);
        return fail_decode(reterr, status, "news of a watch");
    }
    *ret_answer = answer;
    return KELP_OK;
}
