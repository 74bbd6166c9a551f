/* What a message's fields take in memory once protobuf-c has unpacked them, from the packed bytes
 * alone: nothing is made. */
#ifndef KELP_PROTO_WIRE_MEASURE_H
#define KELP_PROTO_WIRE_MEASURE_H

#include <protobuf-c/protobuf-c.h>

#include "common/base/status.h"

/* Errors: KELP_ERR_LIMIT (more than memory_max bytes), KELP_ERR_FORMAT (no such message). */
kelp_status kelp_wire_measure(const uint8_t *bytes, size_t length,
                              const ProtobufCMessageDescriptor *descriptor,
                              size_t memory_max) KELP_MUST_USE;

#endif
