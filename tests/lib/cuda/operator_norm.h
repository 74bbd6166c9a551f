/*
 * How exact batch norm and layer norm are when their sums lose digits. Errors: KELP_ERR_MISMATCH,
 * with the case and what differs; KELP_ERR_NO_MEMORY and KELP_ERR_DEVICE of the devices.
 */
#ifndef KELP_TESTS_LIB_CUDA_OPERATOR_NORM_H
#define KELP_TESTS_LIB_CUDA_OPERATOR_NORM_H

#include "tests/lib/cuda/operator_cases.h"

/*
 * Means 10,000 deviations from zero, first values far from all others, rising values, a constant:
 * mean, deviation, running statistics and y must be within 1e-5 of their float64 values, and so
 * must batch norm's mean and deviation on the CPU. ret_worst: the largest such difference; may be
 * NULL.
 */
kelp_status operator_norm_check(const struct case_devices *devices, double *ret_worst,
                                struct kelp_error *reterr);

#endif
