/*
 * Decoding walks the top level of the message once: every field but the payload is copied to a
 * small bounded buffer, which protobuf-c unpacks; the payload stays where it was received.
 */
#include "proto/wire.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire_measure.h"

/* The payload's tag has one byte, since its field number is below 16. */
_Static_assert(KELP_WIRE_PAYLOAD_FIELD < 16, "the payload's tag has one byte");
#define PAYLOAD_TAG      ((KELP_WIRE_PAYLOAD_FIELD << 3) | 2)
#define VARINT_BYTES_MAX 10

/* ---- encoding ---- */

static size_t put_varint(uint64_t value, uint8_t *to)
{
    size_t count = 0;

    while (value >= 0x80) {
        to[count++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    to[count++] = (uint8_t)value;
    return count;
}

kelp_status kelp_wire_encode_payload(const ProtobufCMessage *fields, size_t payload_bytes,
                                     struct kelp_rpc_message **ret_message,
                                     struct kelp_error *reterr)
{
    uint8_t head[1 + VARINT_BYTES_MAX] = {PAYLOAD_TAG};
    size_t head_bytes = payload_bytes > 0 ? 1 + put_varint(payload_bytes, head + 1) : 0;
    size_t fields_bytes = protobuf_c_message_get_packed_size(fields);
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    if (!message) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a message");
    }
    /* One piece for both: gRPC writes pieces one by one. */
    uint8_t *to = kelp_rpc_message_extend(message, fields_bytes + head_bytes);
    if (!to) {
        kelp_rpc_message_unref(message);
        return kelp_fail(reterr, KELP_ERR_LIMIT, "message of %zu bytes is too large", fields_bytes);
    }
    size_t packed = protobuf_c_message_pack(fields, to);
    assert(packed == fields_bytes);
    (void)packed;
    memcpy(to + fields_bytes, head, head_bytes);
    *ret_message = message;
    return KELP_OK;
}

kelp_status kelp_wire_encode(const ProtobufCMessage *fields, struct kelp_rpc_message **ret_message,
                             struct kelp_error *reterr)
{
    return kelp_wire_encode_payload(fields, 0, ret_message, reterr);
}

/* ---- a reader over segments ---- */

struct reader {
    struct kelp_rpc_message *message;
    struct kelp_rpc_segment current;
    size_t segment; /* index of current */
    size_t segment_count;
    size_t offset; /* in current; below its length unless nothing is left */
    size_t left;   /* bytes of the message from here on */
};

static void reader_settle(struct reader *reader)
{
    while (reader->left > 0 && reader->offset == reader->current.length) {
        reader->segment++;
        assert(reader->segment < reader->segment_count);
        reader->current = kelp_rpc_message_segment(reader->message, reader->segment);
        reader->offset = 0;
    }
}

static void reader_init(struct reader *reader, struct kelp_rpc_message *message)
{
    *reader = (struct reader){.message = message,
                              .segment_count = kelp_rpc_message_segment_count(message),
                              .left = kelp_rpc_message_length(message)};
    if (reader->segment_count > 0) {
        reader->current = kelp_rpc_message_segment(message, 0);
    }
    reader_settle(reader);
}

/* Skip length bytes, which are there; copy them when to is not NULL. */
static void reader_take(struct reader *reader, size_t length, uint8_t *to)
{
    assert(length <= reader->left);
    while (length > 0) {
        size_t piece = reader->current.length - reader->offset;
        piece = piece < length ? piece : length;
        if (to) {
            memcpy(to, reader->current.bytes + reader->offset, piece);
            to += piece;
        }
        reader->offset += piece;
        reader->left -= piece;
        length -= piece;
        reader_settle(reader);
    }
}

/* Returns its bytes, 0 when the message ends in it or it is too long. raw receives the bytes. */
static size_t reader_varint(struct reader *reader, uint8_t raw[VARINT_BYTES_MAX],
                            uint64_t *ret_value)
{
    uint64_t value = 0;

    for (size_t i = 0; i < VARINT_BYTES_MAX && reader->left > 0; i++) {
        reader_take(reader, 1, &raw[i]);
        value |= (uint64_t)(raw[i] & 0x7f) << (7 * i);
        if (!(raw[i] & 0x80)) {
            *ret_value = value;
            return i + 1;
        }
    }
    return 0;
}

/* ---- decoding ---- */

/* What the walk collects: the fields but the payload, as one run of bytes. */
struct collected {
    uint8_t inline_bytes[2048]; /* nearly every message of the data path fits */
    uint8_t *bytes;             /* inline_bytes or allocated */
    size_t length;
    size_t size;
    size_t length_max;
};

static kelp_status collect_room(struct collected *collected, size_t more, struct kelp_error *reterr)
{
    if (more > collected->length_max - collected->length) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "message has more than %zu bytes beside its payload",
                         collected->length_max);
    }
    size_t needed = collected->length + more;
    if (needed <= collected->size) {
        return KELP_OK;
    }
    size_t size = needed < collected->length_max / 2 ? needed * 2 : collected->length_max;
    uint8_t *bytes = malloc(size);
    if (!bytes) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a message of %zu bytes", size);
    }
    memcpy(bytes, collected->bytes, collected->length);
    if (collected->bytes != collected->inline_bytes) {
        free(collected->bytes);
    }
    collected->bytes = bytes;
    collected->size = size;
    return KELP_OK;
}

static kelp_status collect(struct collected *collected, const uint8_t *bytes, size_t length,
                           struct kelp_error *reterr)
{
    kelp_status status = collect_room(collected, length, reterr);

    if (status == KELP_OK) {
        memcpy(collected->bytes + collected->length, bytes, length);
        collected->length += length;
    }
    return status;
}

static kelp_status collect_from(struct collected *collected, struct reader *reader, uint64_t length,
                                struct kelp_error *reterr)
{
    if (length > reader->left) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "message is cut off: a field of %" PRIu64 " bytes has %zu left", length,
                         reader->left);
    }
    kelp_status status = collect_room(collected, (size_t)length, reterr);
    if (status == KELP_OK) {
        reader_take(reader, (size_t)length, collected->bytes + collected->length);
        collected->length += (size_t)length;
    }
    return status;
}

/* The value of a field whose tag has been collected. */
static kelp_status collect_value(struct collected *collected, struct reader *reader,
                                 unsigned wire_type, struct kelp_error *reterr)
{
    uint8_t raw[VARINT_BYTES_MAX];
    uint64_t value = 0;

    if (wire_type == 1 || wire_type == 5) {
        return collect_from(collected, reader, wire_type == 1 ? 8 : 4, reterr);
    }
    if (wire_type != 0 && wire_type != 2) { /* groups are not in proto3 */
        return kelp_fail(reterr, KELP_ERR_FORMAT, "message has a field of unknown wire type %u",
                         wire_type);
    }
    size_t raw_bytes = reader_varint(reader, raw, &value);
    if (raw_bytes == 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "message is cut off or has a bad number");
    }
    kelp_status status = collect(collected, raw, raw_bytes, reterr);
    if (status == KELP_OK && wire_type == 2) {
        status = collect_from(collected, reader, value, reterr);
    }
    return status;
}

static kelp_status read_payload(struct reader *reader, bool *seen,
                                struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    uint8_t raw[VARINT_BYTES_MAX];
    uint64_t length = 0;

    if (*seen) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "message has two payloads");
    }
    if (reader_varint(reader, raw, &length) == 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "message is cut off before its payload");
    }
    if (length > reader->left) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "message is cut off: a payload of %" PRIu64 " bytes has %zu left", length,
                         reader->left);
    }
    *seen = true;
    payload->segment = reader->segment;
    payload->segment_offset = reader->offset;
    payload->length = (size_t)length;
    reader_take(reader, (size_t)length, NULL);
    return KELP_OK;
}

static kelp_status walk(struct reader *reader, bool has_payload, struct collected *collected,
                        struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    bool seen = false;

    while (status == KELP_OK && reader->left > 0) {
        uint8_t raw[VARINT_BYTES_MAX];
        uint64_t tag = 0;
        size_t raw_bytes = reader_varint(reader, raw, &tag);
        if (raw_bytes == 0 || tag > UINT32_MAX || tag >> 3 == 0) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "message has a bad field tag");
        }
        if (has_payload && tag == PAYLOAD_TAG) {
            status = read_payload(reader, &seen, payload, reterr);
            continue;
        }
        status = collect(collected, raw, raw_bytes, reterr);
        if (status == KELP_OK) {
            status = collect_value(collected, reader, (unsigned)(tag & 7), reterr);
        }
    }
    return status;
}

/* protobuf-c makes a structure of each empty item of two bytes: fields of this many bytes take a
 * few MiB at most, longer ones are measured before. */
#define MEASURED_BYTES (64u << 10)
/* Memory per byte that fields may have at most: a pull of 12 bytes becomes 100. */
#define MEMORY_FACTOR 4

static kelp_status check_memory(const struct collected *collected,
                                const ProtobufCMessageDescriptor *descriptor,
                                struct kelp_error *reterr)
{
    const size_t most = MEMORY_FACTOR * collected->length_max;

    if (collected->length <= MEASURED_BYTES) {
        return KELP_OK;
    }
    kelp_status status = kelp_wire_measure(collected->bytes, collected->length, descriptor, most);
    if (status == KELP_ERR_LIMIT) {
        return kelp_fail(reterr, status, "the items of a %s take more than %zu bytes",
                         descriptor->name, most);
    }
    return status == KELP_OK
               ? KELP_OK
               : kelp_fail(reterr, status, "message is not a valid %s", descriptor->name);
}

kelp_status kelp_wire_decode(struct kelp_rpc_message *message,
                             const ProtobufCMessageDescriptor *descriptor, size_t fields_bytes_max,
                             ProtobufCMessage **ret_fields, struct kelp_wire_payload *ret_payload,
                             struct kelp_error *reterr)
{
    /* Not initialised as a whole: clearing 2 KiB per message would be wasted. */
    struct collected collected;
    struct kelp_wire_payload payload = {.message = message};
    struct reader reader;
    bool has_payload =
        protobuf_c_message_descriptor_get_field(descriptor, KELP_WIRE_PAYLOAD_FIELD) != NULL;

    collected.bytes = collected.inline_bytes;
    collected.length = 0;
    collected.size = sizeof(collected.inline_bytes);
    collected.length_max = fields_bytes_max;
    reader_init(&reader, message);
    kelp_status status = walk(&reader, has_payload, &collected, &payload, reterr);
    if (status == KELP_OK) {
        status = check_memory(&collected, descriptor, reterr);
    }
    if (status == KELP_OK) {
        ProtobufCMessage *fields =
            protobuf_c_message_unpack(descriptor, NULL, collected.length, collected.bytes);
        if (fields) {
            *ret_fields = fields;
            if (ret_payload) {
                *ret_payload = payload;
            }
        } else {
            status =
                kelp_fail(reterr, KELP_ERR_FORMAT, "message is not a valid %s", descriptor->name);
        }
    }
    if (collected.bytes != collected.inline_bytes) {
        free(collected.bytes);
    }
    return status;
}

/* ---- texts ---- */

static void clean_text(char *text)
{
    for (; text && *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) {
            *text = ' ';
        }
    }
}

/* One value of a field: a text or a message. */
static void clean_value(const ProtobufCFieldDescriptor *field, void *value)
{
    /* Texts that are not set are the descriptor's own, and constant. */
    if (field->type == PROTOBUF_C_TYPE_STRING && value != field->default_value && value) {
        clean_text(value);
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE && value) {
        kelp_wire_clean(value);
    }
}

void kelp_wire_clean(ProtobufCMessage *fields)
{
    for (unsigned i = 0; i < fields->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &fields->descriptor->fields[i];
        char *member = (char *)fields + field->offset;
        if (field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_MESSAGE) {
            continue;
        }
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            clean_value(field, *(void **)(void *)member);
            continue;
        }
        size_t count = *(size_t *)(void *)((char *)fields + field->quantifier_offset);
        void **values = *(void ***)(void *)member;
        for (size_t at = 0; at < count; at++) {
            clean_value(field, values[at]);
        }
    }
}

/* ---- payload ---- */

void kelp_wire_payload_pieces(const struct kelp_wire_payload *payload, size_t offset, size_t length,
                              void (*piece)(const uint8_t *bytes, size_t length, size_t at,
                                            void *user),
                              void *user)
{
    assert(offset <= payload->length);
    assert(length <= payload->length - offset);
    size_t index = payload->segment;
    size_t skip = payload->segment_offset + offset;
    size_t at = 0;

    while (at < length) {
        struct kelp_rpc_segment segment = kelp_rpc_message_segment(payload->message, index++);
        if (skip >= segment.length) {
            skip -= segment.length;
            continue;
        }
        size_t bytes = segment.length - skip;
        bytes = bytes < length - at ? bytes : length - at;
        piece(segment.bytes + skip, bytes, at, user);
        at += bytes;
        skip = 0;
    }
}

static void copy_piece(const uint8_t *bytes, size_t length, size_t at, void *user)
{
    memcpy((uint8_t *)user + at, bytes, length);
}

void kelp_wire_payload_copy(const struct kelp_wire_payload *payload, size_t offset, size_t length,
                            void *to)
{
    kelp_wire_payload_pieces(payload, offset, length, copy_piece, to);
}
