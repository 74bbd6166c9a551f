/* A digest: its speed depends on the width of vectors, its result does not. */
#define XXH_INLINE_ALL
/* Two pages ahead: the processor's own prefetching ends with the page, and gradients lie in
 * small pages. The digest of 64 MiB becomes 1.5 times as fast. */
#define XXH_PREFETCH_DIST 8192
#include <xxhash.h>

#include "kernels/cpu/loops/loops.h"

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct kelp_vector_digest), "room for the state");

static void put_words(XXH128_hash_t hash, uint64_t ret_words[2])
{
    ret_words[0] = hash.low64;
    ret_words[1] = hash.high64;
}

static void whole(const void *bytes, uint64_t length, uint64_t ret_words[2])
{
    put_words(XXH3_128bits(bytes, (size_t)length), ret_words);
}

/* These fail only for NULL. */

static void begin(struct kelp_vector_digest *digest)
{
    XXH3_state_t *state = (void *)digest->state;

    XXH3_INITSTATE(state);
    (void)XXH3_128bits_reset(state);
}

static void add(struct kelp_vector_digest *digest, const void *bytes, uint64_t length)
{
    (void)XXH3_128bits_update((void *)digest->state, bytes, (size_t)length);
}

static void end(const struct kelp_vector_digest *digest, uint64_t ret_words[2])
{
    put_words(XXH3_128bits_digest((const void *)digest->state), ret_words);
}

extern const struct kelp_digest_loops KELP_LOOPS_NAME(kelp__digest_loops);
const struct kelp_digest_loops KELP_LOOPS_NAME(kelp__digest_loops) = {
    .whole = whole, .begin = begin, .add = add, .end = end};
