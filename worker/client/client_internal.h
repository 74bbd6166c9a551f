/*
 * What the files of libkelp-worker share: the worker's state, and how calls fail.
 *
 * Private to worker/client.
 */
#ifndef KELP_WORKER_CLIENT_CLIENT_INTERNAL_H
#define KELP_WORKER_CLIENT_CLIENT_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kelp/worker.h"
#include "worker/compute/predictions.h"
#include "worker/core/ahead.h"
#include "worker/core/schedule.h"
#include "worker/job_link.h"
#include "worker/lane_feed.h"

#define KELP_CLIENT_STRUCT_MOST 4096u /* bytes of a caller's struct */

struct kelp_worker {
    struct kelp_stop stop;
    struct kelp_credentials *credentials; /* NULL: none */
    struct kelp_expiry_watch *expiry;     /* NULL: none */
    struct kelp_job_link *job_link;
    struct kelp_plan plan;
    bool has_data, has_compute;
    bool joining; /* the plan is closed */
    bool joined;
    uint64_t block;
    struct kelp_lane_feed *feed;
    const struct kelp_work *work; /* of the feed; NULL: none yet, or none any more */
    const struct kelp_lane *lane; /* of work; NULL: none is handed out */
    struct {
        struct kelp_prediction_writer *writer; /* of lane; NULL: none yet, or none any more */
        uint64_t done;                         /* samples of lane that it has */
        uint64_t width;                        /* of all lanes; 0: of none yet */
    } predictions;
    bool *cleared; /* of each gradient buffer: held tensors are zero; owned */
    uint32_t cleared_count;
    struct kelp_ahead ahead; /* lanes to come; job NULL: it was not begun */
    int ended;               /* what it ended with; KELP_WORKER_OK: it has not */
};

/* KELP_WORKER_OK, or what the status means to the caller; its text is kelp_worker_error()'s. */
int kelp__client_result(kelp_status status, const struct kelp_error *error);
/* KELP_WORKER_INVALID, with this text. */
KELP_PRINTF(1, 2) int kelp__client_invalid(const char *format, ...);
int kelp__client_no_memory(const char *where);
/* The caller's struct as we know it: what an older program does not have is zero, and what a newer
 * one has beyond it must be. `least`: as large as the struct was first. */
int kelp__client_take(const char *where, void *ret, size_t known, size_t least, const void *given);

/* Which sum of the job's own that is. */
int kelp__client_find_sum(const struct kelp_worker *worker, const char *what, const char *name,
                          uint32_t *ret_index);
/* Of a lane that is submitted: has it the sums that the job goes by? */
int kelp__client_check_sums(const struct kelp_worker *worker);
/* The lane's file is there before anybody hears that the lane is done. */
int kelp__client_end_predictions(struct kelp_worker *worker);

#endif
