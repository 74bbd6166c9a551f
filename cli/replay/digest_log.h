/*
 * The digests that a run has on record (digests.jsonl), and where two runs first differ in them.
 */
#ifndef KELP_CLI_REPLAY_DIGEST_LOG_H
#define KELP_CLI_REPLAY_DIGEST_LOG_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/tensors/digest.h"

struct kelp_digest_log_line {
    uint64_t version;
    uint64_t step; /* of the weights that were digested */
    uint32_t epoch;
    char digest[KELP_DIGEST_HEX_BYTES];
};

struct kelp_digest_log {
    struct kelp_digest_log_line *lines; /* owned; by growing version */
    size_t count;
};

/*
 * Read <run>/digests.jsonl. A last line that is being written, or that a crash cut off, is left
 * out. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_CORRUPT (FILE:LINE: what; a version has two digests),
 * KELP_ERR_IO, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_digest_log_read(const char *run_path, struct kelp_digest_log *ret_log,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_digest_log_fini(struct kelp_digest_log *log); /* all zero is fine */

/* The line of a step; of this version where more than one has it. NULL: none. */
const struct kelp_digest_log_line *kelp_digest_log_find(const struct kelp_digest_log *log,
                                                        uint64_t step, uint64_t version);

struct kelp_digest_log_comparison {
    size_t common;       /* steps that both have on record, up to the first difference */
    bool any_equal;      /* equal_step is set */
    uint64_t equal_step; /* the last step before the first difference that both have alike */
    const struct kelp_digest_log_line *a; /* the first difference; NULL: none */
    const struct kelp_digest_log_line *b;
};
/* Compare what both have on record, step by step. */
void kelp_digest_log_compare(const struct kelp_digest_log *a, const struct kelp_digest_log *b,
                             struct kelp_digest_log_comparison *ret_comparison);

#endif
