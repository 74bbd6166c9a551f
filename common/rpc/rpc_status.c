/* Converts gRPC's codes to ours and back. The exact kelp_status is sent as the trailer
 * "kelp-status"; the gRPC code is for clients that do not know Kelp. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/rpc_internal.h"

#define STATUS_KEY "kelp-status"

grpc_status_code kelp__rpc_status_to_grpc(kelp_status status)
{
    switch (status) {
    case KELP_OK:
        return GRPC_STATUS_OK;
    case KELP_ERR_BUSY:
    case KELP_ERR_UNREACHABLE:
    case KELP_ERR_NOT_PRIMARY:
    case KELP_ERR_NOT_LEADER:
        return GRPC_STATUS_UNAVAILABLE;
    case KELP_ERR_TIMEOUT:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case KELP_ERR_CLOSED:
        return GRPC_STATUS_CANCELLED;
    case KELP_ERR_OLD_MAP_EPOCH:
    case KELP_ERR_OLD_GENERATION:
    case KELP_ERR_CONTROL_WORD:
        return GRPC_STATUS_ABORTED;
    case KELP_ERR_CORRUPT:
        return GRPC_STATUS_DATA_LOSS;
    case KELP_ERR_FORMAT:
    case KELP_ERR_INVALID:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case KELP_ERR_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case KELP_ERR_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case KELP_ERR_MISMATCH:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case KELP_ERR_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case KELP_ERR_DENIED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case KELP_ERR_LIMIT:
    case KELP_ERR_NO_MEMORY:
    case KELP_ERR_NO_SPACE:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case KELP_ERR_DEVICE:
    case KELP_ERR_IO:
    case KELP_ERR_INTERNAL:
        return GRPC_STATUS_INTERNAL;
    }
    return GRPC_STATUS_UNKNOWN;
}

static kelp_status from_code(grpc_status_code code)
{
    switch (code) {
    case GRPC_STATUS_OK:
        return KELP_OK;
    case GRPC_STATUS_CANCELLED:
        return KELP_ERR_CLOSED;
    case GRPC_STATUS_UNAVAILABLE:
        return KELP_ERR_UNREACHABLE;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return KELP_ERR_TIMEOUT;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return KELP_ERR_LIMIT;
    case GRPC_STATUS_UNIMPLEMENTED:
        return KELP_ERR_UNSUPPORTED;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_OUT_OF_RANGE:
        return KELP_ERR_INVALID;
    case GRPC_STATUS_UNAUTHENTICATED:
    case GRPC_STATUS_PERMISSION_DENIED:
        return KELP_ERR_DENIED;
    case GRPC_STATUS_NOT_FOUND:
        return KELP_ERR_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return KELP_ERR_EXISTS;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return KELP_ERR_MISMATCH;
    case GRPC_STATUS_ABORTED:
        return KELP_ERR_BUSY;
    case GRPC_STATUS_DATA_LOSS:
        return KELP_ERR_CORRUPT;
    case GRPC_STATUS_UNKNOWN:
    case GRPC_STATUS_INTERNAL:
    case GRPC_STATUS__DO_NOT_USE:
        break;
    }
    return KELP_ERR_INTERNAL;
}

/* The number in "kelp-status" if it is an error of ours; otherwise 0. */
static kelp_status from_trailer(const grpc_metadata_array *trailing)
{
    for (size_t i = 0; trailing && i < trailing->count; i++) {
        const grpc_metadata *item = &trailing->metadata[i];
        char text[8];
        size_t length = GRPC_SLICE_LENGTH(item->value);
        if (grpc_slice_str_cmp(item->key, STATUS_KEY) != 0 || length == 0 ||
            length >= sizeof(text)) {
            continue;
        }
        memcpy(text, GRPC_SLICE_START_PTR(item->value), length);
        text[length] = '\0';
        char *end = NULL;
        long number = strtol(text, &end, 10);
        if (*end == '\0' && number < 0 && kelp_status_known((int)number)) {
            return (kelp_status)number;
        }
    }
    return KELP_OK;
}

kelp_status kelp__rpc_status_from_grpc(grpc_status_code code, const grpc_metadata_array *trailing)
{
    kelp_status exact = code == GRPC_STATUS_OK ? KELP_OK : from_trailer(trailing);
    return exact != KELP_OK ? exact : from_code(code);
}

void kelp__rpc_trailer_op(struct kelp__rpc_trailer *trailer, kelp_status status, const char *text,
                          grpc_op *ret_op)
{
    text = text ? text : "";
    size_t length = strnlen(text, KELP_RPC_TEXT_MAX);
    (void)snprintf(trailer->value, sizeof(trailer->value), "%d", (int)status);
    trailer->details = grpc_slice_from_copied_buffer(text, length);
    trailer->metadata = (grpc_metadata){.key = grpc_slice_from_static_string(STATUS_KEY),
                                        .value = grpc_slice_from_copied_string(trailer->value)};
    *ret_op = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    ret_op->data.send_status_from_server.status = kelp__rpc_status_to_grpc(status);
    ret_op->data.send_status_from_server.status_details = length ? &trailer->details : NULL;
    ret_op->data.send_status_from_server.trailing_metadata = &trailer->metadata;
    ret_op->data.send_status_from_server.trailing_metadata_count = status == KELP_OK ? 0 : 1;
}

void kelp__rpc_trailer_fini(struct kelp__rpc_trailer *trailer)
{
    grpc_slice_unref(trailer->details);
    grpc_slice_unref(trailer->metadata.value);
}
