/*
 * What a device says of work that it cannot do, and that it goes on afterwards.
 *
 * Errors: KELP_ERR_MISMATCH, with what was expected in words; KELP_ERR_NO_MEMORY and
 * KELP_ERR_DEVICE of the devices.
 */
#ifndef KELP_TESTS_LIB_CUDA_OPERATOR_FAULTS_H
#define KELP_TESTS_LIB_CUDA_OPERATOR_FAULTS_H

#include "tests/lib/cuda/operator_cases.h"

/* An id or a class that there is none of: KELP_ERR_INVALID at wait() with the CPU's words, of
 * several the first row's; the next operator of the stream computes what the CPU does. */
kelp_status operator_faults_check(const struct case_devices *devices, struct kelp_error *reterr);

/* Memory is aligned as the device says. More than there is: KELP_ERR_NO_MEMORY or KELP_ERR_DEVICE;
 * the next operator computes what the CPU does. */
kelp_status operator_memory_check(const struct case_devices *devices, struct kelp_error *reterr);

/* Memory of host_alloc() is copied in and out, and what was enqueued before a mark is there once
 * the mark was waited for: of many marks, in order and out of order, and again after wait(). */
kelp_status operator_marks_check(const struct case_devices *devices, struct kelp_error *reterr);

/* Two streams that take turns: each finds what the other did before the mark. */
kelp_status operator_after_check(const struct case_devices *devices, struct kelp_error *reterr);

#endif
