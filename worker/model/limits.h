/* Limits of models, each with its unit and reason. */
#ifndef KELP_WORKER_MODEL_LIMITS_H
#define KELP_WORKER_MODEL_LIMITS_H

/* Bytes of a shared library with a model: it is read whole for its digest. */
#define KELP_PLUGIN_BYTES_MAX (1u << 30)

#endif
