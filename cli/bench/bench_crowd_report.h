/*
 * What `kelp bench crowd` tells the process that started it, on its standard output: how its
 * workers stand, each time that something has changed and nothing more is on its way. Both are the
 * same program on one machine, so that times can be compared.
 */
#ifndef KELP_CLI_BENCH_BENCH_CROWD_REPORT_H
#define KELP_CLI_BENCH_BENCH_CROWD_REPORT_H

#include <stdint.h>

/* Times are kelp_bench_now_us(). */
struct kelp_bench_crowd_report {
    double begun_us;  /* the first worker's stream was opened */
    double hello_us;  /* the last hello left */
    double first_us;  /* the first change of lanes since the report before */
    double lanes_us;  /* the last one of all */
    double last_us;   /* the last change of anything */
    uint32_t joined;  /* workers that the coordinator has answered */
    uint32_t reached; /* that a shard has answered */
    uint32_t lanes;   /* different ones that they have */
    uint32_t changes; /* of their lanes, since the report before */
    uint32_t dropped; /* streams that the coordinator has ended so far */
    uint32_t unused;
};

#endif
