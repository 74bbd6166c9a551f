/*
 * The metrics of two runs side by side: where their metrics.jsonl first differ, and what they came
 * to at the end and at best.
 */
#ifndef KELP_CLI_RUNS_METRICS_COMPARE_H
#define KELP_CLI_RUNS_METRICS_COMPARE_H

#include <stdio.h>

#include "cli/run/metrics_log.h"
#include "cli/runs/run_info.h"

/* What two logs say of the same step, by name. */
struct kelp_metrics_difference {
    size_t common; /* values that both have, up to the first difference */
    bool found;    /* the rest is set */
    char name[KELP_METRICS_LOG_NAME_MAX + 1];
    uint64_t step;
    uint32_t epoch;
    double values[2]; /* NaN equals NaN */
};

/* In the order of the first log. Pure. */
void kelp_metrics_log_compare(const struct kelp_metrics_log *a, const struct kelp_metrics_log *b,
                              struct kelp_metrics_difference *ret_difference);

struct kelp_metrics_compare {
    struct kelp_run_info runs[2];
    struct kelp_metrics_difference difference;
    char text[256]; /* why the logs were not compared, or "" */
};

/* Read both runs; whatever cannot be read is told in the text. */
void kelp_metrics_compare_read(const char *const paths[2], const struct kelp_run_look *look,
                               struct kelp_metrics_compare *ret_compare);

/* For people; and ,"metrics":{…} (docs/CLI.md, "kelp diff"). */
void kelp_metrics_compare_text(const struct kelp_metrics_compare *compare, FILE *out);
void kelp_metrics_compare_json(const struct kelp_metrics_compare *compare, FILE *out);

#endif
