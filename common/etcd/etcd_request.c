#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/base64.h"
#include "common/etcd/etcd_internal.h"

/* ---- buffers ---- */

kelp_status kelp__etcd_buffer_add(struct etcd_buffer *buffer, const void *bytes, size_t count)
{
    if (count > buffer->max - buffer->used) {
        return KELP_ERR_LIMIT;
    }
    if (buffer->used + count + 1 > buffer->capacity) {
        size_t capacity = buffer->capacity ? buffer->capacity : 512;
        while (capacity < buffer->used + count + 1) {
            capacity *= 2; /* max is far below SIZE_MAX / 2 */
        }
        char *grown = realloc(buffer->bytes, capacity);
        if (!grown) {
            return KELP_ERR_NO_MEMORY;
        }
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    if (count > 0) {
        memcpy(buffer->bytes + buffer->used, bytes, count);
    }
    buffer->used += count;
    buffer->bytes[buffer->used] = '\0';
    return KELP_OK;
}

void kelp__etcd_buffer_drop(struct etcd_buffer *buffer, size_t count)
{
    assert(count <= buffer->used);
    buffer->used -= count;
    if (buffer->bytes) {
        memmove(buffer->bytes, buffer->bytes + count, buffer->used + 1);
    }
}

void kelp__etcd_buffer_fini(struct etcd_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct etcd_buffer){.max = buffer->max};
}

/* ---- writing ---- */

/* A request under construction: the first failure is kept and checked once, at the end. */
struct writer {
    struct etcd_buffer *body;
    kelp_status status;
    size_t payload_bytes; /* keys and values, before base64 */
};

static void put_text(struct writer *writer, const char *text)
{
    if (writer->status == KELP_OK) {
        writer->status = kelp__etcd_buffer_add(writer->body, text, strlen(text));
    }
}

/* "name":"123" */
static void put_int64(struct writer *writer, const char *name, int64_t number)
{
    char text[96];

    (void)snprintf(text, sizeof(text), "\"%s\":\"%" PRId64 "\"", name, number);
    put_text(writer, text);
}

/* "name":"base64" */
static void put_bytes(struct writer *writer, const char *name, const char *bytes, size_t count)
{
    char group[4];

    writer->payload_bytes += count;
    if (writer->status == KELP_OK && writer->payload_bytes > ETCD_REQUEST_MAX) {
        writer->status = KELP_ERR_LIMIT;
    }
    put_text(writer, "\"");
    put_text(writer, name);
    put_text(writer, "\":\"");
    for (size_t at = 0; at < count && writer->status == KELP_OK; at += 3) {
        size_t length = kelp_base64_encode(bytes + at, count - at < 3 ? count - at : 3, group);
        writer->status = kelp__etcd_buffer_add(writer->body, group, length);
    }
    put_text(writer, "\"");
}

static void put_key(struct writer *writer, const char *key)
{
    size_t length = strlen(key);

    if (writer->status == KELP_OK && (length == 0 || length >= ETCD_KEY_MAX)) {
        writer->status = length == 0 ? KELP_ERR_INVALID : KELP_ERR_LIMIT;
    }
    put_bytes(writer, "key", key, length);
}

static struct writer writer_start(struct etcd_buffer *body)
{
    /* Base64 and field names on top of the payload. */
    body->max = ETCD_REQUEST_MAX / 3 * 4 + 256 * (size_t)ETCD_OPERATIONS_MAX * 2 + 1024;
    return (struct writer){.body = body};
}

static kelp_status writer_end(struct writer *writer, struct kelp_error *reterr)
{
    switch (writer->status) {
    case KELP_OK:
        return KELP_OK;
    case KELP_ERR_LIMIT:
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "a request to etcd is over %d bytes, or a key over %d", ETCD_REQUEST_MAX,
                         ETCD_KEY_MAX - 1);
    case KELP_ERR_INVALID:
        return kelp_fail(reterr, KELP_ERR_INVALID, "an empty key was asked of etcd");
    default:
        return kelp_fail(reterr, writer->status, "%s", kelp_status_text(writer->status));
    }
}

kelp_status kelp__etcd_prefix_end(const char *prefix, char ret_end[ETCD_KEY_MAX], size_t *ret_bytes)
{
    size_t length = strlen(prefix);

    if (length == 0) {
        return KELP_ERR_INVALID;
    }
    if (length >= ETCD_KEY_MAX) {
        return KELP_ERR_LIMIT;
    }
    memcpy(ret_end, prefix, length + 1);
    while (length > 0 && (unsigned char)ret_end[length - 1] == 0xff) {
        length--;
    }
    if (length == 0) {
        ret_end[0] = '\0'; /* etcd's sign for "to the last key" */
        *ret_bytes = 1;
        return KELP_OK;
    }
    ret_end[length - 1] = (char)((unsigned char)ret_end[length - 1] + 1);
    *ret_bytes = length;
    return KELP_OK;
}

/* "key":"...","range_end":"..." */
static void put_range(struct writer *writer, const char *key, bool prefix)
{
    char end[ETCD_KEY_MAX];
    size_t end_bytes;

    put_key(writer, key);
    if (prefix && writer->status == KELP_OK) {
        writer->status = kelp__etcd_prefix_end(key, end, &end_bytes);
        if (writer->status == KELP_OK) {
            put_text(writer, ",");
            put_bytes(writer, "range_end", end, end_bytes);
        }
    }
}

kelp_status kelp__etcd_encode_range(const char *key, bool prefix, struct etcd_buffer *ret_body,
                                    struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    put_text(&writer, "{");
    put_range(&writer, key, prefix);
    put_text(&writer, "}");
    return writer_end(&writer, reterr);
}

/* One key, up to the last (a range_end of a zero byte). */
kelp_status kelp__etcd_encode_next(const char *from, struct etcd_buffer *ret_body,
                                   struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    put_text(&writer, "{");
    put_key(&writer, from);
    put_text(&writer, ",\"range_end\":\"AA==\",\"limit\":\"1\",\"keys_only\":true}");
    return writer_end(&writer, reterr);
}

static void put_pair(struct writer *writer, const char *key, const char *value, int64_t lease)
{
    put_key(writer, key);
    put_text(writer, ",");
    put_bytes(writer, "value", value, strlen(value));
    if (lease != 0) {
        put_text(writer, ",");
        put_int64(writer, "lease", lease);
    }
}

kelp_status kelp__etcd_encode_put(const char *key, const char *value, int64_t lease,
                                  struct etcd_buffer *ret_body, struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    put_text(&writer, "{");
    put_pair(&writer, key, value, lease);
    put_text(&writer, "}");
    return writer_end(&writer, reterr);
}

static void put_compare(struct writer *writer, const struct kelp_etcd_compare *compare)
{
    bool create = compare->what == KELP_ETCD_CREATE_REVISION;

    put_text(writer, create ? "{\"target\":\"CREATE\",\"result\":\"EQUAL\","
                            : "{\"target\":\"MOD\",\"result\":\"EQUAL\",");
    put_key(writer, compare->key);
    put_text(writer, ",");
    put_int64(writer, create ? "create_revision" : "mod_revision", compare->revision);
    put_text(writer, "}");
}

static void put_operation(struct writer *writer, const struct kelp_etcd_operation *operation)
{
    if (operation->value) {
        put_text(writer, "{\"request_put\":{");
        put_pair(writer, operation->key, operation->value, operation->lease);
    } else {
        put_text(writer, "{\"request_delete_range\":{");
        put_key(writer, operation->key);
    }
    put_text(writer, "}}");
}

kelp_status kelp__etcd_encode_transaction(const struct kelp_etcd_compare *compares,
                                          size_t compare_count,
                                          const struct kelp_etcd_operation *operations,
                                          size_t operation_count, struct etcd_buffer *ret_body,
                                          struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    if (compare_count > ETCD_OPERATIONS_MAX || operation_count > ETCD_OPERATIONS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "an etcd transaction of more than %d operations",
                         ETCD_OPERATIONS_MAX);
    }
    put_text(&writer, "{\"compare\":[");
    for (size_t i = 0; i < compare_count; i++) {
        put_text(&writer, i > 0 ? "," : "");
        put_compare(&writer, &compares[i]);
    }
    put_text(&writer, "],\"success\":[");
    for (size_t i = 0; i < operation_count; i++) {
        put_text(&writer, i > 0 ? "," : "");
        put_operation(&writer, &operations[i]);
    }
    put_text(&writer, "]}");
    return writer_end(&writer, reterr);
}

static void put_plain(struct writer *writer, const char *name, const char *value)
{
    put_text(writer, "\"");
    put_text(writer, name);
    put_text(writer, "\":\"");
    put_text(writer, value);
    put_text(writer, "\"");
}

kelp_status kelp__etcd_encode_texts(const struct etcd_text *texts, size_t count,
                                    struct etcd_buffer *ret_body, struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    for (size_t i = 0; i < count; i++) {
        put_text(&writer, i == 0 ? "{" : ",");
        put_plain(&writer, texts[i].name, texts[i].value);
    }
    put_text(&writer, count > 0 ? "}" : "{}");
    return writer_end(&writer, reterr);
}

kelp_status kelp__etcd_encode_permission(const char *role,
                                         const struct kelp_etcd_permission *permission,
                                         struct etcd_buffer *ret_body, struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    put_text(&writer, "{");
    put_plain(&writer, "name", role);
    put_text(&writer, ",\"perm\":{");
    put_plain(&writer, "permType", permission->write ? "READWRITE" : "READ");
    put_text(&writer, ",");
    put_range(&writer, permission->key, permission->prefix);
    put_text(&writer, "}}");
    return writer_end(&writer, reterr);
}

kelp_status kelp__etcd_encode_grant(uint32_t ttl_s, struct etcd_buffer *ret_body,
                                    struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    put_text(&writer, "{");
    put_int64(&writer, "TTL", ttl_s);
    put_text(&writer, "}");
    return writer_end(&writer, reterr);
}

kelp_status kelp__etcd_encode_lease_id(int64_t id, struct etcd_buffer *ret_body,
                                       struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    put_text(&writer, "{");
    put_int64(&writer, "ID", id);
    put_text(&writer, "}");
    return writer_end(&writer, reterr);
}

kelp_status kelp__etcd_encode_watch(const char *key, bool prefix, int64_t start_revision,
                                    struct etcd_buffer *ret_body, struct kelp_error *reterr)
{
    struct writer writer = writer_start(ret_body);

    put_text(&writer, "{\"create_request\":{");
    put_range(&writer, key, prefix);
    put_text(&writer, ",");
    put_int64(&writer, "start_revision", start_revision);
    put_text(&writer, "}}\n");
    return writer_end(&writer, reterr);
}
