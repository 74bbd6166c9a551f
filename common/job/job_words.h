/*
 * The words of a job file: names of keys, what they mean, and the words that some take as values.
 * For completions and help; what is checked is in common/job/job.h.
 */
#ifndef KELP_COMMON_JOB_JOB_WORDS_H
#define KELP_COMMON_JOB_JOB_WORDS_H

#include <stdbool.h>
#include <stddef.h>

struct kelp_job_words {
    const char *name;           /* "train.optimizer" */
    const char *help;           /* Markdown, without a full stop */
    const char *const *choices; /* ends with NULL; NULL: the key takes no words */
};

/* The key at an index of the table; false beyond its end. All texts are static. */
bool kelp_job_words(size_t index, struct kelp_job_words *ret_words);

#endif
