/*
 * Limits of common/: each with its unit and the reason for it. Limits that belong to a data
 * structure's contract stand with it (job.h, plan.h).
 */
#ifndef KELP_COMMON_LIMITS_H
#define KELP_COMMON_LIMITS_H

/* Bytes of a job file: hundreds of times what all keys take. */
#define KELP_JOB_FILE_BYTES_MAX (1u << 20)
/* Bytes of a safetensors header: about 100 bytes a tensor, with room for metadata. */
#define KELP_SAFETENSORS_HEADER_MAX (16u << 20)
/* Tensors and metadata entries of a safetensors file: as many as a plan may have. */
#define KELP_SAFETENSORS_TENSORS_MAX  16384
#define KELP_SAFETENSORS_METADATA_MAX 4096
/* Bytes of one log line; the rest is cut and marked. PIPE_BUF, so that lines of several processes
 * on one pipe do not mix. */
#define KELP_LOG_LINE_MAX 4096
/* Values of one repeatable command-line option, and positional arguments. */
#define KELP_OPTIONS_REPEAT_MAX 256

#endif
