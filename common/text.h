/*
 * A text that is printed piece by piece into memory. open_memstream() with its failures seen: a
 * stream that ran out of memory reports it in three different places, and none of them is enough.
 */
#ifndef KELP_COMMON_TEXT_H
#define KELP_COMMON_TEXT_H

#include <stdio.h>

#include "common/status.h"

struct kelp_text {
    FILE *out; /* print here */
    char *bytes;
    size_t count;
};

/* Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_text_open(struct kelp_text *text, struct kelp_error *reterr) KELP_MUST_USE;

/*
 * End the text, in every case once it was opened. *ret_bytes (NUL-terminated) is owned by the
 * caller (free()), and set on success only. Errors: KELP_ERR_NO_MEMORY, also when anything printed
 * before failed.
 */
kelp_status kelp_text_close(struct kelp_text *text, char **ret_bytes, size_t *ret_count,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* End the text and forget it. */
void kelp_text_discard(struct kelp_text *text);

#endif
