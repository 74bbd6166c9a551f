/*
 * Digests: XXH3 over a stream of bytes, and the canonical form of tensors (docs/PROTOCOL.md,
 * "Digest"), so that anyone can recompute a model's digest from an exported file.
 *
 * For each tensor in declaration order: its name and a NUL byte, the rank (u32), each dimension
 * (u64), then its elements (float32), everything little-endian and without padding.
 */
#ifndef KELP_COMMON_TENSORS_DIGEST_H
#define KELP_COMMON_TENSORS_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define KELP_DIGEST_HEX_BYTES 33 /* 32 digits and NUL */

/* A digest in progress, in the caller's memory; nothing to free. */
struct kelp_digest {
    unsigned char state[640] __attribute__((aligned(64)));
};

void kelp_digest_init(struct kelp_digest *digest);
void kelp_digest_update(struct kelp_digest *digest, const void *bytes, size_t count);
/* Everything of a tensor but its elements, which the caller adds next. */
void kelp_digest_tensor(struct kelp_digest *digest, const char *name, uint32_t rank,
                        const uint64_t *shape);

/* XXH3-128 of what was added so far, most significant digit first (as xxhsum prints it). */
void kelp_digest_hex(const struct kelp_digest *digest, char ret_hex[KELP_DIGEST_HEX_BYTES]);
/* The same as numbers: first the low half. */
void kelp_digest_words(const struct kelp_digest *digest, uint64_t ret_words[2]);
/* XXH3-64 of what was added so far. */
uint64_t kelp_digest_short(const struct kelp_digest *digest);

/* XXH3-64 of one piece of memory. */
uint64_t kelp_digest_bytes(const void *bytes, size_t count);
/* XXH3-128 of one piece of memory, as kelp_digest_words(). */
void kelp_digest_bytes_words(const void *bytes, size_t count, uint64_t ret_words[2]);

#endif
