/*
 * The memory of the fake device. Its addresses are reserved in this process but never readable; the
 * bytes are elsewhere, between guard pages, and only fake_memory_find() returns them. So host
 * access to device memory faults, and no address is used twice. One for the process.
 *
 * Threads: one caller at a time.
 */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_MEMORY_H
#define KELP_TESTS_LIB_FAKE_FAKE_MEMORY_H

#include "common/base/status.h"

/* Each byte of unwritten memory: NaN as float32 and as float64. */
#define FAKE_POISON 0xff

/* Limit the memory to so many bytes, including allocated ones. */
void fake_memory_limit(size_t bytes);
/* Filled with FAKE_POISON, aligned to KELP_DEVICE_ALIGN. *ret: fake_memory_free(). Errors:
 * KELP_ERR_NO_MEMORY. */
kelp_status fake_memory_alloc(size_t bytes, void **ret, struct kelp_error *reterr) KELP_MUST_USE;
void fake_memory_free(void *address); /* NULL does nothing */

/* Where the bytes of a device address are. NULL: not all `bytes` bytes are the device's, for the
 * reason *ret_why ("memory of the host"). 0 bytes may lie at the end of an allocation. */
void *fake_memory_find(const void *address, size_t bytes, const char **ret_why);

#endif
