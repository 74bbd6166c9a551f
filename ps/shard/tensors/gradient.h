/*
 * Gradient slices that wait in a reduction tree, as the handles of ps/core/partition/partition.h:
 * either bytes of a received message, which stay where they came in, or a dense buffer that holds a
 * sum, or two of these whose sum has yet to be made. Both hold elements as they travel
 * (transport.precision). Only sums of floats wait to be made: those of others are rounded, for
 * which they go to memory.
 *
 * Buffers and handles are pooled: after warm-up nothing is allocated. Threads: calls for different
 * handles may run in parallel.
 */
#ifndef KELP_PS_SHARD_TENSORS_GRADIENT_H
#define KELP_PS_SHARD_TENSORS_GRADIENT_H

#include "common/base/status.h"
#include "kernels/optimizer.h"
#include "proto/wire.h"
#include "ps/core/partition_events.h"

struct kelp_gradients;

/* count_max: elements of the largest slice. Owned. */
kelp_status kelp_gradients_create(uint64_t count_max, enum kelp_precision precision,
                                  struct kelp_gradients **ret_gradients,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Gone once all that was lent is back; all other handles have been released. NULL does nothing. */
void kelp_gradients_destroy(struct kelp_gradients *gradients);

/*
 * `count` elements at byte `offset` of the payload (checked to lie inside it). The message is
 * referenced until it is not needed any more. KELP_HANDLE_NONE: out of memory.
 */
uint64_t kelp_gradients_receive(struct kelp_gradients *gradients,
                                const struct kelp_wire_payload *payload, size_t offset,
                                uint64_t count);

/* left + right, rounded as the precision says; both are used up, also on KELP_HANDLE_NONE (out of
 * memory). */
uint64_t kelp_gradients_merge(struct kelp_gradients *gradients, uint64_t left, uint64_t right);
/* The same, but floats are not added before somebody needs the sum in memory: kelp_gradients_read()
 * does without. The handle is to be merged with no other. */
uint64_t kelp_gradients_join(struct kelp_gradients *gradients, uint64_t left, uint64_t right);

/*
 * What an update or a measurement of kernels/update.h reads, to which it gives gradient or terms.
 * keeps: the sum is needed after that too, and goes to memory; the pass has to be made, and
 * kelp_gradients_was_read() called after it. Valid until the handle is released. False: out of
 * memory.
 */
bool kelp_gradients_read(struct kelp_gradients *gradients, uint64_t handle, bool keeps,
                         struct kelp_optimizer_buffers *buffers) KELP_MUST_USE;
void kelp_gradients_was_read(struct kelp_gradients *gradients, uint64_t handle);

/* The values in one piece, as floats, valid until the handle is released; NULL: out of memory. */
const float *kelp_gradients_values(struct kelp_gradients *gradients, uint64_t handle);

/* Digest of the values as they travel, for which a sum is made. False: out of memory, which nothing
 * needs but a sum. */
bool kelp_gradients_content(struct kelp_gradients *gradients, uint64_t handle,
                            struct kelp_content *ret_content) KELP_MUST_USE;

void kelp_gradients_release(struct kelp_gradients *gradients, uint64_t handle);

/* Values that are lent for sending. */
struct kelp_gradients_loan {
    struct kelp_gradients *gradients;
    uint64_t handle;
    const void *values; /* as they travel */
    size_t bytes;
};
/* The values stay as they are and where they are until kelp_gradients_return(), whatever becomes of
 * the handle, which is to be merged with no other any more. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_gradients_lend(struct kelp_gradients *gradients, uint64_t handle,
                                struct kelp_gradients_loan *ret_loan) KELP_MUST_USE;
/* Any thread, inside any call of rpc: takes only a lock of its own. */
void kelp_gradients_return(const struct kelp_gradients_loan *loan);

#endif
