/*
 * Base64 with padding (RFC 4648, section 4): how etcd's JSON gateway carries keys and values.
 */
#ifndef KELP_COMMON_ETCD_BASE64_H
#define KELP_COMMON_ETCD_BASE64_H

#include "common/base/status.h"

/* Writes four characters for every three bytes, or what is left of them, and no NUL. Returns how
 * many. */
size_t kelp_base64_encode(const void *bytes, size_t count, char *ret_text);

/* The most bytes that decode from a text of this length. */
size_t kelp_base64_decoded_bytes_max(size_t text_bytes);

/*
 * Decode strictly: length a multiple of four, no other character, padding only at the end and its
 * unused bits zero, so that a text has one meaning and a meaning one text.
 *
 * ret_bytes   holds kelp_base64_decoded_bytes_max(text_bytes) bytes.
 * Errors: KELP_ERR_FORMAT; ret_bytes may then hold part of it.
 */
kelp_status kelp_base64_decode(const char *text, size_t text_bytes, void *ret_bytes,
                               size_t *ret_count) KELP_MUST_USE;

#endif
