/*
 * Words numbered from 0 in the order in which they first come: the categories of a column. The
 * numbers depend on that order alone, not on the table that finds them. Pure.
 */
#ifndef KELP_WORKER_DATA_WORDS_H
#define KELP_WORKER_DATA_WORDS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct kelp_words {
    char *bytes; /* the words, a NUL behind each */
    size_t bytes_used;
    size_t bytes_capacity;
    size_t *starts; /* of word i in bytes */
    uint32_t count;
    uint32_t capacity;
    uint32_t *slots;     /* open addressing: number + 1, 0 where free */
    uint32_t slot_count; /* a power of two */
};

/* An empty one is all zero. */
void kelp_words_fini(struct kelp_words *words);

/*
 * The number of a word, a new one when it was not there. Errors: KELP_ERR_LIMIT (more than
 * KELP_SAMPLE_CATEGORIES_MAX), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_words_add(struct kelp_words *words, const char *word, uint32_t *ret_number,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* number < words->count; borrowed until the next word is added. */
const char *kelp_words_at(const struct kelp_words *words, uint32_t number);

/* All of them in the order of their bytes. Owned (free()), borrowed until the next word is added;
 * NULL: out of memory. */
const char **kelp_words_sorted(const struct kelp_words *words) KELP_MUST_USE;

/* False: the word is not there. */
bool kelp_words_find(const struct kelp_words *words, const char *word, uint32_t *ret_number);

#endif
