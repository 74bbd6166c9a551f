/*
 * A fake GPU that uses all the freedom that the device interface (kernels/device.h) gives it. Code
 * that keeps to the interface gets the CPU's bits:
 *
 *   - Operators are queued, and run on the CPU when their stream is waited for, or some time
 *     earlier. A seed determines when, and in which order with those of other streams and devices.
 *   - Memory has addresses that the host cannot read, and initially holds NaN.
 *   - copy_out() leaves NaN at its target until wait() returns.
 *   - wait() fails with KELP_ERR_DEVICE and one line if the source of a copy_in() or the target of
 *     a copy_out() has changed since it was queued, or if an argument is host memory or was freed
 *     before the operator ran. The line names the operator, its argument, and where it was queued:
 *     PROGRAM+OFFSET, for addr2line. Such an operator does not run.
 *   - wait() also fails if two streams touch the same memory, at least one to write, and neither
 *     after() nor a wait() of the host orders the two (tests/lib/fake/fake_order.h).
 *   - wait() also fails if other calls than operators are recorded, if a recording is replayed on
 *     another stream, or if it is destroyed before its replays were waited for. The memory of a
 *     recorded operator is checked at each replay, so that memory which was freed since, or
 *     allocated anew with another size, is found.
 *
 * Destroying a stream first runs its queue; a mistake that is found then ends the process.
 *
 * Operators run one at a time in a process. Threads: as kernels/device.h says.
 */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_DEVICE_H
#define KELP_TESTS_LIB_FAKE_FAKE_DEVICE_H

#include "kernels/device.h"

/* *ret is owned, table->destroy(). Errors: KELP_ERR_NO_MEMORY. */
kelp_status fake_device_create(struct kelp_device **ret, struct kelp_error *reterr) KELP_MUST_USE;

/* From now on, in this process, the time and order of operations are random; the same seed and
 * calls give the same order. 0, the initial state: nothing runs before its stream is waited for. */
void fake_device_seed(uint64_t seed);

/* Whether devices created from now on in this process can record; initially they can. */
void fake_device_offer_recordings(bool offered);

/* Whether they also accept channels last; initially they do. */
void fake_device_take_channels_last(bool taken);

/* Lose the GPU after so many waits of this process (0: never): from then on all waits fail with
 * KELP_ERR_DEVICE. lost: called once, before the first one fails; may be NULL. */
void fake_device_lose(uint64_t waits, void (*lost)(void));

/* Let other processes use all GPU memory except so many bytes. */
void fake_device_leave(size_t bytes);

/* What was recorded and replayed so far in this process, and how often the host waited for the
 * GPU to become idle. */
struct fake_device_counts {
    uint64_t recordings, replays, operators; /* of replays */
    uint64_t idle;
};
struct fake_device_counts fake_device_counts(void);

#endif
