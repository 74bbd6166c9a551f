/*
 * What a device reports about work that it cannot do, and that it continues afterwards. Errors:
 * KELP_ERR_MISMATCH, with what was expected; KELP_ERR_NO_MEMORY and KELP_ERR_DEVICE of the devices.
 */
#ifndef KELP_TESTS_LIB_CUDA_OPERATOR_FAULTS_H
#define KELP_TESTS_LIB_CUDA_OPERATOR_FAULTS_H

#include "tests/lib/cuda/operator_cases.h"

/* An invalid id or class: wait() fails with KELP_ERR_INVALID and the CPU's text, which names the
 * first such row; the stream's next operator gives the CPU's result. */
kelp_status operator_faults_check(const struct case_devices *devices, struct kelp_error *reterr);

/* Memory has the device's alignment. Too large an allocation: KELP_ERR_NO_MEMORY or
 * KELP_ERR_DEVICE; the next operator gives the CPU's result. */
kelp_status operator_memory_check(const struct case_devices *devices, struct kelp_error *reterr);

/* Memory of host_alloc() is copied in and out, and work enqueued before a mark is complete after
 * waiting for the mark: for many marks, in order and out of order, and again after wait(). */
kelp_status operator_marks_check(const struct case_devices *devices, struct kelp_error *reterr);

/* Two streams in turn: each sees what the other did before the mark. */
kelp_status operator_after_check(const struct case_devices *devices, struct kelp_error *reterr);

#endif
