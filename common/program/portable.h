/*
 * What a program that computes needs for cluster.compute: portable. OpenBLAS chooses its kernels
 * from the environment when it is loaded, before main(): a program that began with other ones
 * executes itself again, once. Whether the kernels are the right ones then is asked of OpenBLAS
 * itself (kernels/device.h), which refuses.
 */
#ifndef KELP_COMMON_PROGRAM_PORTABLE_H
#define KELP_COMMON_PROGRAM_PORTABLE_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/job/job.h"

/* Must this program begin again to compute the job? Never after kelp_portable_again(). */
bool kelp_portable_needs_again(const struct kelp_job *job);

/* Children inherit what it sets. Returns only when it failed. Errors: those of
 * kelp_process_again(). */
kelp_status kelp_portable_again(struct kelp_error *reterr) KELP_MUST_USE;

#endif
