#include "common/etcd/base64.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *bytes;
    const char *text;
} pairs[] = {
    {"", ""},
    {"f", "Zg=="},
    {"fo", "Zm8="},
    {"foo", "Zm9v"},
    {"foob", "Zm9vYg=="},
    {"fooba", "Zm9vYmE="},
    {"foobar", "Zm9vYmFy"},
    {"\xff\xfe\xfd", "//79"},
    {"\xfb\xef\xbe", "++++"},
};

/* The examples of RFC 4648, section 10, and the two last letters of the alphabet, both ways. */
KELP_LOOP_TEST(known_pairs, 0, KELP_ARRAY_COUNT(pairs))
{
    char text[32] = {0};
    char bytes[32] = {0};
    size_t count = strlen(pairs[_i].bytes);

    ck_assert_uint_eq(kelp_base64_encode(pairs[_i].bytes, count, text), strlen(pairs[_i].text));
    ck_assert_str_eq(text, pairs[_i].text);
    ck_assert_int_eq(kelp_base64_decode(text, strlen(text), bytes, &count), KELP_OK);
    ck_assert_uint_eq(count, strlen(pairs[_i].bytes));
    ck_assert_str_eq(bytes, pairs[_i].bytes);
}

/* All bytes, in all lengths up to 256, come back, in a buffer of exactly the stated size. */
KELP_TEST(round_trip)
{
    unsigned char bytes[256];

    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (unsigned char)(i * 167 + 13);
    }
    for (size_t count = 0; count <= sizeof(bytes); count++) {
        size_t length = (count + 2) / 3 * 4;
        char *text = malloc(length > 0 ? length : 1);
        unsigned char *back = malloc(kelp_base64_decoded_bytes_max(length) + 1);
        size_t got = 0;
        ck_assert_ptr_nonnull(text);
        ck_assert_ptr_nonnull(back);
        ck_assert_uint_eq(kelp_base64_encode(bytes, count, text), length);
        ck_assert_int_eq(kelp_base64_decode(text, length, back, &got), KELP_OK);
        ck_assert_uint_eq(got, count);
        ck_assert_int_eq(memcmp(back, bytes, count), 0);
        free(text);
        free(back);
    }
}

static const char *const malformed[] = {
    "Z",        "Zg",      "Zg=",   "Zg==Zg==", "=",         "====",    "Z===",
    "Zm8=Zm8=", "Zm9v=",   "Zm9\n", " Zm9v",    "Zm9v Zm9v", "Zm-_",    "Zh==",
    "Zm9=",     "Zm9vYg=", "=Zm9",  "Z=9v",     "Zm=v",      "\x80m9v",
};

/* A wrong length, character or padding, or bits that no byte uses, is an error. */
KELP_LOOP_TEST(malformed_texts, 0, KELP_ARRAY_COUNT(malformed))
{
    unsigned char bytes[32];
    size_t count;

    ck_assert_msg(kelp_base64_decode(malformed[_i], strlen(malformed[_i]), bytes, &count) ==
                      KELP_ERR_FORMAT,
                  "'%s'", malformed[_i]);
}

/* Every single-byte change of a text either is refused or decodes to something else. */
KELP_TEST(one_text_one_meaning)
{
    static const char text[] = "Zm9vYmE=";
    char changed[sizeof(text)];
    char bytes[8];
    size_t count;

    for (size_t at = 0; at + 1 < sizeof(text); at++) {
        for (int byte = 1; byte < 256; byte++) {
            memcpy(changed, text, sizeof(text));
            changed[at] = (char)byte;
            if (changed[at] != text[at] &&
                kelp_base64_decode(changed, strlen(changed), bytes, &count) == KELP_OK) {
                ck_assert(count != 5 || memcmp(bytes, "fooba", 5) != 0);
            }
        }
    }
}
