/*
 * What a step would take on a device that was never kept waiting: of each operator the longer of
 * two times, that of its multiplications at the speed of a large product, and that of its data at
 * the speed of a large copy, each array read or written once (batch norm's x and dy twice).
 */
#ifndef KELP_BENCH_MODELS_ROOFLINE_H
#define KELP_BENCH_MODELS_ROOFLINE_H

#include <stdbool.h>

#include "kernels/device.h"

struct roofline {
    double flop_s, byte_s; /* of the device; 0: not measured yet */
    double seconds;        /* of what was counted */
    unsigned operators;
};
extern struct roofline roofline;

/* GPUs that are created from now on count what they are asked for, or do not. */
void roofline_count(bool on);

/* Sets flop_s and byte_s: the best of several rounds. */
void roofline_measure(struct kelp_stream *stream);

#endif
