/* A digest, which is as fast as its vectors are wide, and the same in every variant. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/cpu/loops.h"

void KELP_LOOPS_NAME(kelp__loop_digest)(const void *bytes, uint64_t length, uint64_t ret_words[2])
{
    const XXH128_hash_t hash = XXH3_128bits(bytes, (size_t)length);

    ret_words[0] = hash.low64;
    ret_words[1] = hash.high64;
}
