/* The command line of programs of one's own that are workers: what `kelp train` hands over. */
#ifndef KELP_WORKER_CLIENT_CLIENT_OPTIONS_H
#define KELP_WORKER_CLIENT_CLIENT_OPTIONS_H

#include "common/base/status.h"

struct kelp_worker_options; /* kelp/worker.h */

/* kelp_worker_options_read(); options->size is left. On an error argv stays as it is. Errors:
 * KELP_ERR_INVALID, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_client_options_read(struct kelp_worker_options *options, int *argc, char **argv,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif
