/*
 * Where prepared data are kept between runs: a folder with one file for each (content of the files,
 * keys of the job that shape the result). A file that is damaged counts as absent.
 */
#ifndef KELP_WORKER_DATA_DATA_CACHE_H
#define KELP_WORKER_DATA_DATA_CACHE_H

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/tensors/digest.h"

#define KELP_DATA_CACHE_PATH_MAX (KELP_JOB_PATH_MAX + 64)

struct kelp_data_cache {
    bool usable; /* false: there is no folder; prepare in memory */
    char folder[KELP_JOB_PATH_MAX + 1];
    char path[KELP_DATA_CACHE_PATH_MAX + 1]; /* of the file for the key */
};

/* The content of a file as it is stored, and its length, into a key. Errors: those of
 * worker/data/text/input_file.h. */
kelp_status kelp_data_cache_add_file(struct kelp_digest *key, const char *path,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* A text, with its end, so that two texts are not one. */
void kelp_data_cache_add_text(struct kelp_digest *key, const char *text);
void kelp_data_cache_add_number(struct kelp_digest *key, uint64_t number);

/*
 * Choose and make the folder: data.cache, else the user's. A folder that the job names must be
 * there or be possible to make; without it, one that cannot be made is not an error.
 */
kelp_status kelp_data_cache_open(struct kelp_data_cache *cache, const struct kelp_job *job,
                                 const struct kelp_digest *key,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
