/* Which worker or shard the others wait for, and where workers' time goes, as `kelp status` shows
 * it. */
#ifndef KELP_CLI_CLUSTER_SLOW_VIEW_H
#define KELP_CLI_CLUSTER_SLOW_VIEW_H

#include <stdio.h>

#include "proto/kelp.pb-c.h"

/* One line, or nothing: slow NULL, or of a part that this build does not know. */
void kelp_slow_line(const Kelp__V1__Slow *slow, FILE *out);
/* A member "slow": null, or an object. */
void kelp_slow_json(const Kelp__V1__Slow *slow, FILE *out);

/* A member "times" of a worker: null before there is a window; means of it, in microseconds. */
void kelp_slow_times_json(const Kelp__V1__WorkerStatus *worker, FILE *out);

#endif
