/* Inlined, so that the size of the state is known and does not depend on the library's version. */
#define XXH_INLINE_ALL
#include <inttypes.h>
#include <xxhash.h>

#include "common/tensors/digest.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct kelp_digest), "digest state too small");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct kelp_digest), "digest state misaligned");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digests hash memory as it is");

static XXH3_state_t *state_of(struct kelp_digest *digest)
{
    return (XXH3_state_t *)(void *)digest->state;
}

static const XXH3_state_t *const_state_of(const struct kelp_digest *digest)
{
    return (const XXH3_state_t *)(const void *)digest->state;
}

void kelp_digest_init(struct kelp_digest *digest)
{
    memset(digest, 0, sizeof(*digest));
    (void)XXH3_128bits_reset(state_of(digest)); /* fails only for NULL */
}

void kelp_digest_update(struct kelp_digest *digest, const void *bytes, size_t count)
{
    if (count > 0) {
        (void)XXH3_128bits_update(state_of(digest), bytes, count); /* fails only for NULL */
    }
}

void kelp_digest_tensor(struct kelp_digest *digest, const char *name, uint32_t rank,
                        const uint64_t *shape)
{
    kelp_digest_update(digest, name, strlen(name) + 1);
    kelp_digest_update(digest, &rank, sizeof(rank));
    kelp_digest_update(digest, shape, rank * sizeof(*shape));
}

void kelp_digest_hex(const struct kelp_digest *digest, char ret_hex[KELP_DIGEST_HEX_BYTES])
{
    XXH128_hash_t hash = XXH3_128bits_digest(const_state_of(digest));

    (void)snprintf(ret_hex, KELP_DIGEST_HEX_BYTES, "%016" PRIx64 "%016" PRIx64,
                   (uint64_t)hash.high64, (uint64_t)hash.low64);
}

void kelp_digest_words(const struct kelp_digest *digest, uint64_t ret_words[2])
{
    XXH128_hash_t hash = XXH3_128bits_digest(const_state_of(digest));

    ret_words[0] = hash.low64;
    ret_words[1] = hash.high64;
}

uint64_t kelp_digest_short(const struct kelp_digest *digest)
{
    return XXH3_64bits_digest(const_state_of(digest));
}

uint64_t kelp_digest_bytes(const void *bytes, size_t count)
{
    return XXH3_64bits(bytes, count);
}

void kelp_digest_bytes_words(const void *bytes, size_t count, uint64_t ret_words[2])
{
    XXH128_hash_t hash = XXH3_128bits(bytes, count);

    ret_words[0] = hash.low64;
    ret_words[1] = hash.high64;
}
