#include "cli/checkpoint/checkpoint_request.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void kelp_request_made(struct kelp_request *request, uint64_t serial)
{
    assert(serial != 0);
    request->serial = serial;
    request->leader[0] = '\0';
}

enum kelp_request_news kelp_request_read(struct kelp_request *request,
                                         const Kelp__V1__StatusReply *status)
{
    const Kelp__V1__CheckpointStatus *checkpoint = status->checkpoint;

    if (request->serial == 0) {
        return KELP_REQUEST_ASK;
    }
    /* Leaders count their own requests: a smaller number is one of another leader, and so is any
     * number under another name. */
    bool lost = !checkpoint || checkpoint->requested < request->serial ||
                (request->leader[0] && strcmp(request->leader, status->leader) != 0);
    if (lost) {
        *request = (struct kelp_request){.serial = 0};
        return KELP_REQUEST_ASK;
    }
    (void)snprintf(request->leader, sizeof(request->leader), "%.63s", status->leader);
    if (checkpoint->answered >= request->serial) {
        return KELP_REQUEST_DONE;
    }
    return checkpoint->refused >= request->serial ? KELP_REQUEST_REFUSED : KELP_REQUEST_WAITS;
}
