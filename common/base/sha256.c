#include "common/base/sha256.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

kelp_status kelp_sha256(const void *bytes, size_t count, char ret_hex[KELP_SHA256_HEX_BYTES],
                        struct kelp_error *reterr)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;

    if (EVP_Digest(bytes, count, digest, &length, EVP_sha256(), NULL) != 1 ||
        2 * length + 1 != KELP_SHA256_HEX_BYTES) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a SHA-256");
    }
    for (unsigned i = 0; i < length; i++) {
        (void)snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
    }
    return KELP_OK;
}

bool kelp_sha256_is(const char *text)
{
    return strlen(text) == KELP_SHA256_HEX_BYTES - 1 &&
           strspn(text, "0123456789abcdef") == KELP_SHA256_HEX_BYTES - 1;
}
