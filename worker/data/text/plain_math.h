/*
 * Elementary functions of doubles for what data are derived with, built from + - * / alone: the
 * same bits on every machine, which the C library's do not promise. Within a few units of the last
 * place. Pure.
 */
#ifndef KELP_WORKER_DATA_TEXT_PLAIN_MATH_H
#define KELP_WORKER_DATA_TEXT_PLAIN_MATH_H

/* Larger angles have no digits left to tell one place of the circle from another by. */
#define KELP_PLAIN_ANGLE_MAX 1e6

/* NaN where there is none: x is 0, negative or not finite. */
double kelp_plain_log(double x);
/* x in radians; NaN beyond KELP_PLAIN_ANGLE_MAX on either side. */
double kelp_plain_sin(double x);
double kelp_plain_cos(double x);

#endif
