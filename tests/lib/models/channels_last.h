/*
 * A CPU device that also accepts images with channels last (kernels/operators.h,
 * KELP_CHANNELS_LAST): it transposes them, runs the CPU's operator, and transposes the outputs
 * back. So it gives the CPU's bits, and code for such devices can be tested without one.
 */
#ifndef KELP_TESTS_LIB_MODELS_CHANNELS_LAST_H
#define KELP_TESTS_LIB_MODELS_CHANNELS_LAST_H

#include "kernels/device.h"

/* As kelp_device_cpu_create() with one thread. */
kelp_status channels_last_cpu_create(struct kelp_device **ret,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif
