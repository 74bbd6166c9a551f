#include "common/etcd/base64.h"

#include <stdint.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t kelp_base64_decoded_bytes_max(size_t text_bytes)
{
    return text_bytes / 4 * 3;
}

size_t kelp_base64_encode(const void *bytes, size_t count, char *ret_text)
{
    const uint8_t *from = bytes;
    char *to = ret_text;

    for (; count >= 3; count -= 3, from += 3) {
        *to++ = alphabet[from[0] >> 2];
        *to++ = alphabet[(from[0] & 3) << 4 | from[1] >> 4];
        *to++ = alphabet[(from[1] & 15) << 2 | from[2] >> 6];
        *to++ = alphabet[from[2] & 63];
    }
    if (count > 0) {
        unsigned second = count == 2 ? from[1] : 0;
        *to++ = alphabet[from[0] >> 2];
        *to++ = alphabet[(from[0] & 3u) << 4 | second >> 4];
        *to++ = count == 2 ? alphabet[(second & 15) << 2] : '=';
        *to++ = '=';
    }
    return (size_t)(to - ret_text);
}

/* The six bits of a character, or -1. */
static int bits_of(char character)
{
    if (character >= 'A' && character <= 'Z') {
        return character - 'A';
    }
    if (character >= 'a' && character <= 'z') {
        return character - 'a' + 26;
    }
    if (character >= '0' && character <= '9') {
        return character - '0' + 52;
    }
    return character == '+' ? 62 : character == '/' ? 63 : -1;
}

/* Decode one group of four characters, the last `padding` of which are '='. Returns the number
 * of bytes; 0: error. */
static size_t decode_group(const char *text, unsigned padding, uint8_t *to)
{
    uint32_t bits = 0;

    for (unsigned i = 0; i < 4; i++) {
        int value = i < 4 - padding ? bits_of(text[i]) : 0;
        if (value < 0) {
            return 0;
        }
        bits = bits << 6 | (uint32_t)value;
    }
    if ((bits & ((1u << (8 * padding)) - 1)) != 0) {
        return 0; /* unused bits are set */
    }
    to[0] = (uint8_t)(bits >> 16);
    if (padding < 2) {
        to[1] = (uint8_t)(bits >> 8);
    }
    if (padding < 1) {
        to[2] = (uint8_t)bits;
    }
    return 3 - padding;
}

kelp_status kelp_base64_decode(const char *text, size_t text_bytes, void *ret_bytes,
                               size_t *ret_count)
{
    uint8_t *to = ret_bytes;
    size_t used = 0;

    if (text_bytes % 4 != 0) {
        return KELP_ERR_FORMAT;
    }
    for (size_t i = 0; i < text_bytes; i += 4) {
        unsigned padding = 0;
        if (i + 4 == text_bytes && text[i + 3] == '=') {
            padding = text[i + 2] == '=' ? 2 : 1;
        }
        size_t got = decode_group(text + i, padding, to + used);
        if (got == 0) {
            return KELP_ERR_FORMAT;
        }
        used += got;
    }
    *ret_count = used;
    return KELP_OK;
}
