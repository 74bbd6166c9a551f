/*
 * The memory of the fake device. Its addresses are reserved in this process and never readable;
 * what lies there is elsewhere, behind guard pages, and only fake_memory_find() says where. So
 * whatever reads device memory from the host faults, and no address is used twice.
 *
 * One for the process. Threads: one caller at a time.
 */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_MEMORY_H
#define KELP_TESTS_LIB_FAKE_FAKE_MEMORY_H

#include "common/base/status.h"

/* Each byte of memory that nothing has been written to: NaN as float32 and float64. */
#define FAKE_POISON 0xff

/* From now on there are so many bytes, with those that are allocated. */
void fake_memory_limit(size_t bytes);
/* Poisoned, aligned to KELP_DEVICE_ALIGN. *ret: fake_memory_free(). Errors: KELP_ERR_NO_MEMORY. */
kelp_status fake_memory_alloc(size_t bytes, void **ret, struct kelp_error *reterr) KELP_MUST_USE;
void fake_memory_free(void *address); /* NULL: nothing */

/* Where an address of the device lies; NULL when `bytes` bytes do not, and why not in *ret_why
 * ("memory of the host"). Room for 0 bytes is behind the last one of an allocation too. */
void *fake_memory_find(const void *address, size_t bytes, const char **ret_why);

#endif
