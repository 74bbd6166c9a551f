/* What `kelp status` gets. */
#ifndef KELP_COORDINATOR_STATUS_REPLY_H
#define KELP_COORDINATOR_STATUS_REPLY_H

#include "coordinator/coordinator.h"

/* *ret_answer is owned by the caller. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_status_reply(struct kelp_coordinator *coordinator,
                              struct kelp_rpc_message **ret_answer,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif
