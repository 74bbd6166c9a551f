/*
 * Operators of kernels/operators.h that are composed of others, through the stream's table: one
 * call for what a device may compute at once. The order of their parts affects the result. Private
 * to kernels/cpu.
 */
#ifndef KELP_KERNELS_CPU_COMPOSED_H
#define KELP_KERNELS_CPU_COMPOSED_H

#include "kernels/device.h"

void kelp__cpu_linear(struct kelp_stream *stream, const struct kelp_linear *p);
void kelp__cpu_linear_gradient(struct kelp_stream *stream, const struct kelp_linear *p);
void kelp__cpu_lstm(struct kelp_stream *stream, const struct kelp_lstm *p);
void kelp__cpu_lstm_gradient(struct kelp_stream *stream, const struct kelp_lstm *p);

#endif
