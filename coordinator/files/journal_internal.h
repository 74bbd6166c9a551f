/*
 * What the files of the journal share: journal.c (appending, forgetting) calls journal_lines.c (the
 * files, and what stands in them).
 */
#ifndef KELP_COORDINATOR_FILES_JOURNAL_INTERNAL_H
#define KELP_COORDINATOR_FILES_JOURNAL_INTERNAL_H

#include <pthread.h>
#include <stdio.h>

#include "common/base/json.h"
#include "coordinator/files/journal.h"

#define DIGEST_CHARS 32

struct kelp__digest_entry {
    uint64_t version;
    char digest[DIGEST_CHARS + 1];
};

/* One file of lines that each carry a "version". Who looks at its end or changes it holds the lock:
 * two leaders may advise for a while, and both append what the shards report. */
struct kelp__lines {
    char path[4096];
    int fd;
    uint64_t bytes; /* whole lines taken; all of the file right after read_new_lines() */
    uint64_t count; /* lines taken */
    bool any;
    uint64_t newest; /* version, when any */
    uint64_t step;   /* of that line */
};

struct kelp__evaluation {
    uint64_t step;
    double metric[KELP_CHECKPOINT_METRICS]; /* by enum kelp_checkpoint_metric; NaN: none */
};

/* Who writes files changes what is known of them under `lock`, and reads it without: it is one
 * thread at a time. */
struct kelp_journal {
    const struct kelp_job *job; /* borrowed; NULL: without sums of its own */
    pthread_mutex_t lock;       /* of what others ask for; never held while a file is touched */
    struct kelp__lines metrics;
    bool seen[KELP_SPLIT_COUNT]; /* in metrics.jsonl */
    struct kelp_record latest[KELP_SPLIT_COUNT];
    struct kelp__lines digests;
    struct kelp__digest_entry *known; /* what digests.jsonl holds, by growing version */
    size_t known_count;
    size_t known_capacity;
    struct kelp__evaluation *evaluations; /* what metrics.jsonl holds of the validation split */
    size_t evaluation_count;
    size_t evaluation_capacity;
};

/* The first entry whose version is not below that one. */
size_t kelp__journal_known_index(const struct kelp_journal *journal, uint64_t version);
kelp_status kelp__journal_remember(struct kelp_journal *journal, uint64_t version,
                                   const char *digest);
kelp_status kelp__journal_check_digest(const struct kelp_journal *journal, uint64_t version,
                                       const char *digest, struct kelp_error *reterr);
/* *ret_json is the caller's, in every case. */
kelp_status kelp__journal_parse_line(const char *text, size_t text_bytes, cJSON **ret_json,
                                     uint64_t *ret_version, uint64_t *ret_step,
                                     struct kelp_error *reterr);
/* The newest line is of that version. */
void kelp__lines_stand(struct kelp_journal *journal, struct kelp__lines *lines, uint64_t version,
                       uint64_t step);
void kelp__lines_unlock(struct kelp__lines *lines);
/* Lock the file for a moment, which others do as briefly, and learn what they appended. Not locked
 * after an error. */
kelp_status kelp__lines_lock(struct kelp_journal *journal, struct kelp__lines *lines,
                             struct kelp_error *reterr);
kelp_status kelp__lines_open(struct kelp_journal *journal, struct kelp__lines *lines,
                             const char *folder, const char *name, struct kelp_error *reterr);

#endif
