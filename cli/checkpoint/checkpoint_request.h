/*
 * Waiting for a checkpoint that was asked for: the coordinator's answers go in, what to do comes
 * out. Pure. A request is lost with the leader that took it, so it is made again with the next one.
 */
#ifndef KELP_CLI_CHECKPOINT_CHECKPOINT_REQUEST_H
#define KELP_CLI_CHECKPOINT_CHECKPOINT_REQUEST_H

#include <stdint.h>

#include "proto/kelp.pb-c.h"

enum kelp_request_news {
    KELP_REQUEST_ASK,     /* make the request (again) */
    KELP_REQUEST_WAITS,   /* made, not answered yet */
    KELP_REQUEST_DONE,    /* committed: status->checkpoint says which */
    KELP_REQUEST_REFUSED, /* it failed: status->checkpoint->error says why */
};

/* All zero: nothing asked for yet. */
struct kelp_request {
    uint64_t serial; /* 0: to be asked for */
    char leader[64]; /* that was asked; "": not known yet */
};

/* The leading coordinator took the request as this serial, which is not 0. */
void kelp_request_made(struct kelp_request *request, uint64_t serial);

/* Its next answer. */
enum kelp_request_news kelp_request_read(struct kelp_request *request,
                                         const Kelp__V1__StatusReply *status);

#endif
