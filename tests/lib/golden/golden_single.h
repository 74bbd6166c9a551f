/* Private to golden_single.c: checks of one case of the fixtures of losses and of single
 * operations. The case's name says which ("conv2d_3x3_s2_p1_nobias", "smooth_l1_beta0.5"). */
#ifndef KELP_TESTS_LIB_GOLDEN_GOLDEN_SINGLE_H
#define KELP_TESTS_LIB_GOLDEN_GOLDEN_SINGLE_H

#include "tests/lib/golden/golden_report.h"

void kelp_golden_check_loss(struct kelp_golden_report *report, struct kelp_stream *stream,
                            const char *case_name);
void kelp_golden_check_operation(struct kelp_golden_report *report, struct kelp_stream *stream,
                                 const char *case_name);

/* "before/<i>", "after_max_norm_<n>/<i>", "total_norm": one case of max_norm. */
void kelp_golden_check_clip(struct kelp_golden_report *report, const char *case_name);

#endif
