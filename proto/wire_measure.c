#include "proto/wire_measure.h"

#define VARINT_BYTES_MAX 10
#define MEMBER_BYTES     64 /* of a field while protobuf-c looks at it, and its pointer */
#define NUMBER_BYTES     8  /* of a packed number that has one byte or more on the wire */

struct span {
    const uint8_t *at;
    const uint8_t *end;
};

/* False: it ends in it, or it is too long. */
static bool measure_varint(struct span *span, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < VARINT_BYTES_MAX && span->at < span->end; i++) {
        uint8_t byte = *span->at++;
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80)) {
            *ret_value = value;
            return true;
        }
    }
    return false;
}

static bool spend(size_t *memory, size_t bytes)
{
    bool enough = bytes <= *memory;

    *memory -= enough ? bytes : *memory;
    return enough;
}

static kelp_status measure_message(struct span span, const ProtobufCMessageDescriptor *descriptor,
                                   size_t *memory);

/* Are its packed values numbers that may be shorter on the wire than in memory? */
static bool is_varint(const ProtobufCFieldDescriptor *field)
{
    if (!field) {
        return false; /* unknown fields are kept as they are */
    }
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_SFIXED32:
        return false;
    default:
        return true;
    }
}

/* A value with a length. */
static kelp_status measure_long(struct span *span, const ProtobufCFieldDescriptor *field,
                                size_t *memory)
{
    uint64_t length = 0;

    if (!measure_varint(span, &length) || length > (size_t)(span->end - span->at)) {
        return KELP_ERR_FORMAT;
    }
    struct span inside = {.at = span->at, .end = span->at + length};
    span->at = inside.end;
    if (field && field->type == PROTOBUF_C_TYPE_MESSAGE) {
        return measure_message(inside, field->descriptor, memory);
    }
    size_t bytes = (size_t)length * (is_varint(field) ? NUMBER_BYTES : 1);
    return spend(memory, bytes) ? KELP_OK : KELP_ERR_LIMIT;
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as the descriptors, which do not hold themselves. */
static kelp_status measure_message(struct span span, const ProtobufCMessageDescriptor *descriptor,
                                   size_t *memory)
{
    kelp_status status = spend(memory, descriptor->sizeof_message) ? KELP_OK : KELP_ERR_LIMIT;
    uint64_t value = 0;

    while (status == KELP_OK && span.at < span.end) {
        uint64_t tag = 0;
        if (!measure_varint(&span, &tag)) {
            return KELP_ERR_FORMAT;
        }
        if (!spend(memory, MEMBER_BYTES)) {
            return KELP_ERR_LIMIT;
        }
        const size_t left = (size_t)(span.end - span.at);
        const size_t fixed = (tag & 7) == 1 ? 8 : 4;
        switch (tag & 7) {
        case 0:
            status = measure_varint(&span, &value) ? KELP_OK : KELP_ERR_FORMAT;
            break;
        case 1:
        case 5:
            status = left >= fixed ? KELP_OK : KELP_ERR_FORMAT;
            span.at += left >= fixed ? fixed : left;
            break;
        case 2:
            status = measure_long(
                &span, protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(tag >> 3)),
                memory);
            break;
        default:
            return KELP_ERR_FORMAT;
        }
    }
    return status;
}

kelp_status kelp_wire_measure(const uint8_t *bytes, size_t length,
                              const ProtobufCMessageDescriptor *descriptor, size_t memory_max)
{
    const struct span all = {.at = bytes, .end = bytes + length};
    size_t memory = memory_max;

    return measure_message(all, descriptor, &memory);
}
