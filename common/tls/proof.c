#include "common/tls/proof.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <string.h>

#define BYTES (KELP_PROOF_HEX / 2)

static void print_hex(const unsigned char *bytes, char text[KELP_PROOF_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < BYTES; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[KELP_PROOF_HEX] = '\0';
}

kelp_status kelp_proof_draw(char ret_secret[KELP_PROOF_HEX + 1], struct kelp_error *reterr)
{
    unsigned char bytes[BYTES];

    if (RAND_bytes(bytes, (int)sizeof(bytes)) != 1) {
        return kelp_fail(reterr, KELP_ERR_IO, "the system gives no random numbers");
    }
    print_hex(bytes, ret_secret);
    return KELP_OK;
}

kelp_status kelp_proof_digest(const char *secret, char ret_digest[KELP_PROOF_HEX + 1],
                              struct kelp_error *reterr)
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    const size_t length = strnlen(secret, KELP_PROOF_HEX + 1);

    if (length > KELP_PROOF_HEX) {
        ret_digest[0] = '\0';
        return KELP_OK;
    }
    if (EVP_Digest(secret, length, bytes, NULL, EVP_sha256(), NULL) != 1) {
        return kelp_fail(reterr, KELP_ERR_INTERNAL, "no SHA-256 in this OpenSSL");
    }
    print_hex(bytes, ret_digest);
    return KELP_OK;
}
