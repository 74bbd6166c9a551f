/*
 * Where two runs diverge: by what they have on record, and to the step and the tensor by computing
 * both again (cli/replay/replay.h) from the checkpoints before the first difference on record.
 *
 * Threads: one.
 */
#ifndef KELP_CLI_REPLAY_COMPARE_H
#define KELP_CLI_REPLAY_COMPARE_H

#include "cli/checkpoint/checkpoint_read.h"
#include "cli/replay/digest_log.h"
#include "cli/replay/replay.h"
#include "common/job/job.h"

#define KELP_COMPARE_TENSORS_MAX 16 /* that are named; more are counted */

/* One of the two. */
struct kelp_compare_run {
    const char *path; /* borrowed */
    struct kelp_job_file *file;
    struct kelp_digest_log log;
    struct kelp_checkpoints checkpoints;
    struct kelp_replay *replay;          /* NULL: not computed again */
    char from[KELP_FOLDER_NAME_MAX + 1]; /* checkpoint that the replay began at; "": version 0 */
    uint64_t from_step;
    char compute_kind[128]; /* of its newest checkpoint's plan; "": not known */
    bool reproduced;        /* the replay gives the digest on record at the first difference */
    char digest[KELP_DIGEST_HEX_BYTES]; /* what it gives there; "": it does not come so far */
};

enum kelp_compare_outcome {
    KELP_COMPARE_SAME,     /* nothing on record differs */
    KELP_COMPARE_RECORDS,  /* records differ; not computed again, text says why */
    KELP_COMPARE_MODELS,   /* the models have different tensors, text says which */
    KELP_COMPARE_FOUND,    /* states differ from `step` on */
    KELP_COMPARE_JOBS_SAME /* computed again, both give the same bits: a record is wrong */
};

struct kelp_compare {
    struct kelp_compare_run runs[2];
    struct kelp_job_differences keys;
    struct kelp_digest_log_comparison records;
    enum kelp_compare_outcome outcome;
    char text[512];
    bool allow_plugin; /* to be set before it is computed again (cli/run/plugin_consent.h) */
    uint64_t step; /* FOUND: so many training steps are complete in the first states that differ */
    uint32_t tensor_count; /* FOUND: that differ, in all vectors */
    struct kelp_model_state_tensor tensors[KELP_COMPARE_TENSORS_MAX];
    struct {
        char name[KELP_TENSOR_NAME_MAX + 32];
        char digests[2][KELP_DIGEST_HEX_BYTES];
    } named[KELP_COMPARE_TENSORS_MAX];
};

/*
 * Read both runs and compare what they have on record; outcome is SAME or RECORDS.
 * Errors: those of reading job.yaml and digests.jsonl; KELP_ERR_INVALID (nothing on record that
 *         both have). ret_compare is to be given to kelp_compare_fini() in any case.
 */
kelp_status kelp_compare_records(const char *path_a, const char *path_b,
                                 struct kelp_compare *ret_compare,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/*
 * After outcome RECORDS: compute both again and find the step and the tensors. A checkpoint that
 * cannot be used is told to `warn`, and the one before it is taken. Errors: KELP_ERR_NO_MEMORY
 * alone; when computing again is not possible the outcome stays RECORDS and text says why.
 */
kelp_status kelp_compare_replay(struct kelp_compare *compare, struct kelp_error *reterr,
                                void (*warn)(const char *text)) KELP_MUST_USE;

void kelp_compare_fini(struct kelp_compare *compare);

#endif
