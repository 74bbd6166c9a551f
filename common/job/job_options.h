/*
 * The table of job keys, shared by the parser, the printer and the reference page. Private to
 * common/job/job*.c; everybody else includes common/job/job.h.
 */
#ifndef KELP_COMMON_JOB_JOB_OPTIONS_H
#define KELP_COMMON_JOB_JOB_OPTIONS_H

#include <stdio.h>

#include "common/job/job.h"

enum kelp_job_type {
    KELP_JOB_BOOL,
    KELP_JOB_U32,
    KELP_JOB_U64,
    KELP_JOB_I32,
    KELP_JOB_DOUBLE,
    KELP_JOB_NAME,     /* letters, digits, '-', '_', '.' */
    KELP_JOB_TEXT,     /* any printable text */
    KELP_JOB_PATH,     /* a text that names a file or a folder (kelp__job_path_resolve()) */
    KELP_JOB_SIZE,     /* uint32_t bytes */
    KELP_JOB_DURATION, /* uint32_t milliseconds */
    KELP_JOB_RANGE,    /* struct kelp_range */
    KELP_JOB_CHOICE,   /* an enum whose values count from 0 in the order of choices */
    KELP_JOB_WIDTHS,   /* uint32_t[KELP_JOB_LIST_MAX], its count in another field */
    KELP_JOB_SPLIT,    /* uint64_t[3] */
    KELP_JOB_NUMBERS,  /* double[KELP_JOB_LIST_MAX], its count in another field */
    KELP_JOB_TEXTS,    /* char[]: printable texts, a line feed between two */
};

/* Whether a key may differ in the job that goes on with a run (kelp_job_compare()). */
enum kelp_job_change {
    KELP_JOB_STAYS,   /* it shapes the result, or what is recorded */
    KELP_JOB_CHANGES, /* it may be anything */
    KELP_JOB_GROWS,   /* a larger value goes on from the end of the smaller one; KELP_JOB_U32 */
};

struct kelp_job_key {
    const char *name; /* "train.lr"; keys of one section stand together */
    enum kelp_job_type type;
    uint32_t only_values; /* see only_with */
    size_t offset;        /* in struct kelp_job */
    size_t bytes;         /* of the field there */
    size_t count_offset;  /* WIDTHS, NUMBERS: of the count */
    uint64_t min, max;    /* whole numbers, sizes (bytes), durations (ms), list entries */
    double number_min, number_max;
    const char *const *choices; /* CHOICE; ends with NULL */
    /* CHOICE: "val/NAME" may name a sum of model.sums too: its value is then behind that of the
     * last choice, and the name stands here. 0: it may not. */
    size_t sum_offset;
    const char *default_text;
    /* Every job must set the key, to this for example; its default_text only fills the field until
     * then. NULL: the key may be left out. */
    const char *required;
    /* The key means something only where the CHOICE key only_with has one of these values (bit i:
     * choice i). NULL: always. */
    const char *only_with;
    enum kelp_job_change change; /* may it differ when a run goes on */
    /* Jobs were digested before there was the key: its default is no part of
     * kelp_job_file_digest(), so that checkpoints of earlier versions are still those of their job.
     */
    bool later;
    const char *help;
};

extern const struct kelp_job_key kelp__job_keys[];
extern const size_t kelp__job_key_count;

#define KELP__JOB_KEYS_MAX 192

/* The index of a key, or kelp__job_key_count. */
size_t kelp__job_key_find(const char *name);

/* True when the key means something in this job. */
bool kelp__job_key_applies(const struct kelp_job_key *key, const struct kelp_job *job);

/* Read text into the key's field of job; the field is unchanged on KELP_ERR_INVALID. */
kelp_status kelp__job_key_read(const struct kelp_job_key *key, const char *text,
                               struct kelp_job *job, struct kelp_error *reterr) KELP_MUST_USE;

/* The value in effect, as the canonical text has it. */
void kelp__job_key_print(FILE *out, const struct kelp_job_key *key, const struct kelp_job *job);

/* Type and range, or the choices, each word in backticks. */
void kelp__job_key_print_allowed(FILE *out, const struct kelp_job_key *key);

/* The word that a CHOICE key stands at. */
void kelp__job_key_chosen(const char *name, const struct kelp_job *job, char *text,
                          size_t text_bytes);

struct kelp_job_file {
    struct kelp_job job;
    struct kelp_job *here; /* the same with the paths on this host, owned; NULL: they are alike */
    char *name;            /* of the file that was read, or NULL */
    char *folder;          /* in which it lies, absolute; NULL: it is a text in memory */
    struct kelp_origin origins[KELP__JOB_KEYS_MAX];
};

/* Refuse a key that there is none of, with the one that was probably meant or those that there are.
 * KELP_ERR_INVALID. */
kelp_status kelp__job_key_unknown(const char *typed, struct kelp_error *reterr);

/* Set a key; an unknown one is refused with the nearest, and errors begin with the origin. */
kelp_status kelp__job_file_assign(struct kelp_job_file *file, const char *key, const char *value,
                                  struct kelp_origin origin,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Is this value of the key, set at origin, a relative path that becomes absolute? Not in a text in
 * memory, and not a run.dir that is not of a file: it is printed as it was given. */
bool kelp__job_path_is_relative(const struct kelp_job_file *file, const struct kelp_job_key *key,
                                const char *value, enum kelp_origin_kind origin);

/* The absolute path of value in folder, or in the current folder where that is NULL. Errors:
 * KELP_ERR_IO (the current folder has no name), KELP_ERR_INVALID (it is too long). */
kelp_status kelp__job_path_resolve(const char *folder, const char *value,
                                   char ret_path[KELP_JOB_PATH_MAX + 1],
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* "KELP_TRAIN_LR" of "train.lr". */
void kelp__job_variable(const char *key, char *name, size_t name_bytes);

/* The absolute folder of a file; owned. Errors: KELP_ERR_IO, KELP_ERR_NO_MEMORY. */
kelp_status kelp__job_path_folder(const char *path, char **ret_folder,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* The last component of a path: what is left of it wherever its folder lies. */
const char *kelp__job_path_name(const char *path);

/* Refuse a value in effect: where it comes from, its key, and what is wrong. KELP_ERR_INVALID. */
kelp_status kelp__job_refuse(const struct kelp_job_file *file, const char *key,
                             struct kelp_error *reterr, const char *format, ...) KELP_PRINTF(4, 5);

/* Parts of kelp_job_file_finish(), each in a file of its own. */
kelp_status kelp__job_check_data(const struct kelp_job_file *file,
                                 struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__job_check_sums(const struct kelp_job_file *file,
                                 struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__job_check_schedule(const struct kelp_job_file *file,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif
