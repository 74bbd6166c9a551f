/*
 * Digests with the widest vectors of the processor. Shards need them, devices do not.
 */
#include "kernels/cpu/loops/loops.h"

extern const struct kelp_digest_loops kelp__digest_loops_base;
#ifdef KELP_LOOPS_AVX2
extern const struct kelp_digest_loops kelp__digest_loops_avx2, kelp__digest_loops_avx512;
#endif

const struct kelp_digest_loops *kelp__digest_variant(uint32_t index)
{
    static const struct kelp_digest_loops *const variants[] = {
        &kelp__digest_loops_base,
#ifdef KELP_LOOPS_AVX2
        &kelp__digest_loops_avx2,
        &kelp__digest_loops_avx512,
#endif
    };
    return kelp__loops_variant(index) ? variants[index] : NULL;
}

static const struct kelp_digest_loops *fastest(void)
{
    const struct kelp_digest_loops *found = kelp__digest_variant(0), *next;

    for (uint32_t index = 1; (next = kelp__digest_variant(index)) != NULL; index++) {
        found = next;
    }
    return found;
}

void kelp_vector_digest(const void *bytes, uint64_t length, uint64_t ret_words[2])
{
    fastest()->whole(bytes, length, ret_words);
}

void kelp_vector_digest_begin(struct kelp_vector_digest *digest)
{
    fastest()->begin(digest);
}

void kelp_vector_digest_add(struct kelp_vector_digest *digest, const void *bytes, uint64_t length)
{
    fastest()->add(digest, bytes, length);
}

void kelp_vector_digest_end(const struct kelp_vector_digest *digest, uint64_t ret_words[2])
{
    fastest()->end(digest, ret_words);
}
