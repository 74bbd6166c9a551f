/*
 * Encode and decode the messages of kelp.proto: small fields by protobuf-c, tensor bytes as the
 * last field (15) that is never copied (docs/PROTOCOL.md, "Payload"). Everything received is
 * bounded and checked before it is used.
 */
#ifndef KELP_PROTO_WIRE_H
#define KELP_PROTO_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <sys/uio.h>

#include "common/base/status.h"
#include "common/rpc/rpc.h"

#define KELP_WIRE_PAYLOAD_FIELD 15

/* Pack `fields` (payload left empty) into a new message. Owned by the caller. */
kelp_status kelp_wire_encode(const ProtobufCMessage *fields, struct kelp_rpc_message **ret_message,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* The same, then tag and length of a payload of payload_bytes; the caller adds exactly that many
 * bytes with kelp_rpc_message_borrow() or _copy(). payload_bytes 0 adds nothing. */
kelp_status kelp_wire_encode_payload(const ProtobufCMessage *fields, size_t payload_bytes,
                                     struct kelp_rpc_message **ret_message,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* The payload of a received message: lies in the message's segments. Valid while the message is
 * referenced. */
struct kelp_wire_payload {
    struct kelp_rpc_message *message; /* borrowed */
    size_t segment;                   /* where it begins */
    size_t segment_offset;
    size_t length; /* bytes */
};

/*
 * Decode. Fields may come in any order; field 15 may appear once at most. *ret_fields is owned
 * (protobuf_c_message_free_unpacked). fields_bytes_max bounds everything but the payload, and four
 * times as much what it takes in memory, which is counted before anything is made. Errors:
 * KELP_ERR_FORMAT (garbage, truncated, a second payload, a length beyond the message),
 * KELP_ERR_LIMIT.
 */
kelp_status kelp_wire_decode(struct kelp_rpc_message *message,
                             const ProtobufCMessageDescriptor *descriptor, size_t fields_bytes_max,
                             ProtobufCMessage **ret_fields, struct kelp_wire_payload *ret_payload,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* For what people will read: control characters in its texts, at any depth, become spaces, so that
 * a peer cannot move the cursor of a terminal or begin a line of its own. */
void kelp_wire_clean(ProtobufCMessage *fields);

/*
 * The contiguous pieces of payload bytes [offset, offset + length), which the caller has checked to
 * lie inside it; calls piece() for each in order, with its offset relative to the first byte asked
 * for. Pieces may begin at any alignment and split a float.
 */
void kelp_wire_payload_pieces(const struct kelp_wire_payload *payload, size_t offset, size_t length,
                              void (*piece)(const uint8_t *bytes, size_t length, size_t at,
                                            void *user),
                              void *user);
/* Copy bytes [offset, offset + length) to `to`. */
void kelp_wire_payload_copy(const struct kelp_wire_payload *payload, size_t offset, size_t length,
                            void *to);

#endif
