/* What `kelp status` gets. */
#ifndef KELP_COORDINATOR_STREAMS_STATUS_REPLY_H
#define KELP_COORDINATOR_STREAMS_STATUS_REPLY_H

#include "common/rpc/rpc.h"
#include "coordinator/common/identity.h"
#include "coordinator/term/term.h"

/* *ret_answer is owned by the caller. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_status_reply(const struct kelp_term *term, const struct kelp_identity *identity,
                              struct kelp_rpc_message **ret_answer,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif
