/*
 * A CPU that takes images with the channels last, too (kernels/operators.h, KELP_CHANNELS_LAST): it
 * turns them, does as it always does, and turns back what it wrote. So it has the CPU's bits, and
 * what plans for such devices can be tested without one.
 */
#ifndef KELP_TESTS_LIB_MODELS_CHANNELS_LAST_H
#define KELP_TESTS_LIB_MODELS_CHANNELS_LAST_H

#include "kernels/device.h"

/* As kelp_device_cpu_create() for one thread. */
kelp_status channels_last_cpu_create(struct kelp_device **ret,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif
