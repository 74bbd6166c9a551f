/*
 * A fake GPU that is as hostile as the device interface (kernels/device.h) allows, and gives the
 * CPU's bits to whoever keeps to it:
 *
 *   - operators are queued, and run on the CPU when their stream is waited for, or some time before
 *     that. A seed draws when, and in which order with those of other streams and devices;
 *   - memory has addresses that the host cannot read, and begins as NaN;
 *   - copy_out() leaves NaN at its target until wait() returns;
 *   - wait() fails with KELP_ERR_DEVICE and one line when the source of a copy_in() or the target
 *     of a copy_out() changed since it was queued, when an argument is memory of the host, or when
 *     it was freed before the operator ran. The line names the operator, its argument, and where it
 *     was queued: PROGRAM+OFFSET, for addr2line. An operator so found is left out;
 *   - so it does when two streams touch the same memory, one to write, and neither after() nor a
 *     wait() of the host in between says which comes first (tests/lib/fake/fake_order.h);
 *   - so it does when something else than operators is recorded, when a recording is replayed on
 *     another stream, and when it is destroyed before its replays were waited for. What a recorded
 *     operator names is looked for at each replay: memory that was freed since, or allocated anew
 *     with another size, is found.
 *
 * A stream that is destroyed first runs what is left; a mistake that shows then ends the process.
 *
 * Operators run one at a time in a process. Threads: as kernels/device.h says.
 */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_DEVICE_H
#define KELP_TESTS_LIB_FAKE_FAKE_DEVICE_H

#include "kernels/device.h"

/* *ret is owned, table->destroy(). Errors: KELP_ERR_NO_MEMORY. */
kelp_status fake_device_create(struct kelp_device **ret, struct kelp_error *reterr) KELP_MUST_USE;

/* From now on, in this process, what runs when is drawn from seed; the same seed and calls give the
 * same order. 0, as at the beginning: nothing runs before its stream is waited for. */
void fake_device_seed(uint64_t seed);

/* Whether devices that are created from now on, in this process, offer recordings: they do, at the
 * beginning. */
void fake_device_offer_recordings(bool offered);

/* Whether they take images with the channels last, too: they do, at the beginning. */
void fake_device_take_channels_last(bool taken);

/* The GPU is lost after so many waits of this process, 0: never: from then on all fail with
 * KELP_ERR_DEVICE. lost: told once, before the first of them fails; NULL: nobody. */
void fake_device_lose(uint64_t waits, void (*lost)(void));

/* Others have taken the GPU's memory but for so many bytes, which this process may have. */
void fake_device_leave(size_t bytes);

/* What was recorded and replayed so far, in this process, and how often the host waited until the
 * GPU had nothing more to do. */
struct fake_device_counts {
    uint64_t recordings, replays, operators; /* of replays */
    uint64_t idle;
};
struct fake_device_counts fake_device_counts(void);

#endif
