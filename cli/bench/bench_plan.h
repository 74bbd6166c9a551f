/* The plan of a job that is only measured: one tensor, and an epoch that does not end. */
#ifndef KELP_CLI_BENCH_BENCH_PLAN_H
#define KELP_CLI_BENCH_BENCH_PLAN_H

#include "common/training/plan.h"

/* bytes: of the tensor, a multiple of 64. *ret_plan is owned (kelp_plan_fini()), also after an
 * error. Errors: those of kelp_plan_lay_out(). */
kelp_status kelp_bench_plan_make(uint64_t bytes, uint32_t max_shards, struct kelp_plan *ret_plan,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
