/* Limits of worker/compute/, each with its unit and reason. */
#ifndef KELP_WORKER_COMPUTE_LIMITS_H
#define KELP_WORKER_COMPUTE_LIMITS_H

/* Least bytes of a gradient that shards of this host read in place; smaller ones are copied into a
 * ring. */
#define KELP_GRADIENT_SHARED_BYTES_MIN (64u << 10)

/* Bytes of the path of a file of predictions: the run's folder and the file's name. */
#define KELP_PREDICTION_PATH_MAX 2048

/* Bytes of one file of predictions, which holds one lane's share of a block. */
#define KELP_PREDICTION_BYTES_MAX (4ull << 30)

#endif
