/*
 * A text that is printed piece by piece into memory, with all failures seen: of open_memstream()
 * some are not, since a stream of it that could not grow in the middle of a print goes on as if
 * nothing had happened.
 */
#ifndef KELP_COMMON_BASE_TEXT_H
#define KELP_COMMON_BASE_TEXT_H

#include <stddef.h>
#include <stdio.h>

#include "common/base/status.h"

struct kelp_text {
    FILE *out; /* print here */
    char *bytes;
    size_t count;
    size_t capacity;
    bool failed;
};

/* text stays where it is until it is closed. Errors: KELP_ERR_NO_MEMORY. */
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

/*
 * What print() prints of `what`, in one go. *ret_text is owned by the caller (free()), and set on
 * success only. Errors: KELP_ERR_LIMIT (over bytes_max bytes), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_text_print(void (*print)(const void *what, FILE *out), const void *what,
                            size_t bytes_max, char **ret_text,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Add a name to a list for a message: "a, b". The list, "" at first, ends in ", …" when it is full;
 * list_bytes is at least 16. */
void kelp_text_list_add(char *list, size_t list_bytes, const char *name);

#endif
