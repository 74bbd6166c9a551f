/*
 * The normal distribution, from + - * / and sqrt alone, so that every processor and C library gives
 * the same bits. Pure; any thread.
 *
 * Source: Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied
 * Statistics 37 (1988): PPND16, about 16 digits.
 */
#ifndef KELP_COMMON_TENSORS_NORMAL_H
#define KELP_COMMON_TENSORS_NORMAL_H

/* x with P(X <= x) = probability for a standard normal X; probability in [2^-34, 1 - 2^-34]. */
double kelp_normal_quantile(double probability);

#endif
