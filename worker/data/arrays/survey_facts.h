/*
 * What a look through the rows of large arrays has found, kept in a file of the cache
 * (worker/data/data_cache.h).
 *
 * Layout, little-endian: "KELPSURV", XXH3-64 of what follows (u64), fingerprint, class_largest,
 * columns (u64 each), shift and factor (float64[columns] each).
 */
#ifndef KELP_WORKER_DATA_ARRAYS_SURVEY_FACTS_H
#define KELP_WORKER_DATA_ARRAYS_SURVEY_FACTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct kelp_survey_facts {
    uint64_t fingerprint;
    uint32_t class_largest;
    uint64_t columns;       /* 0: inputs are not scaled */
    double *shift, *factor; /* [columns]; the caller's */
};

/* Fill in all but columns, which must be those of the file. False, with nothing changed, when there
 * is no such file or it is damaged: then they have to be found again. */
bool kelp_survey_facts_load(const char *path, struct kelp_survey_facts *facts);
/* The same of a file's bytes. */
bool kelp_survey_facts_take(const void *bytes, size_t count, struct kelp_survey_facts *facts);
/* Replace the file. One that cannot be written costs another look the next time, and no more. */
void kelp_survey_facts_save(const char *path, const struct kelp_survey_facts *facts);

#endif
