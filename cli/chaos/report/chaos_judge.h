/*
 * The verdict on a run under faults. Pure.
 */
#ifndef KELP_CLI_CHAOS_REPORT_CHAOS_JUDGE_H
#define KELP_CLI_CHAOS_REPORT_CHAOS_JUDGE_H

#include "cli/chaos/report/chaos_report.h"

/*
 * Set report->digest, equal and verdict, one line; true: all is as it must be. first_different: of
 * the records, ready to be added to the line; "": they agree.
 */
bool kelp_chaos_judge(struct kelp_chaos_report *report, const char *digest,
                      const char *first_different, uint32_t replicas);

#endif
