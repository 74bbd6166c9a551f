/*
 * This process once more: its own arguments, and the same program executed again in its place with
 * another environment. For what a library reads when it is loaded, before any code of ours runs.
 */
#ifndef KELP_COMMON_PROCESS_PROCESS_AGAIN_H
#define KELP_COMMON_PROCESS_PROCESS_AGAIN_H

#include <stdbool.h>

#include "common/base/status.h"

/* The words of this process's command line, and the text that holds them; both are owned (free()).
 * NULL: errno says why (E2BIG: more than the limits in process_again.c). */
char **kelp_process_own_words(char **ret_text);

/*
 * Execute this program again, with its own words and with `variables` in its environment:
 * "NAME=value" entries, NULL-terminated, in place of those of the same name. Process id, signal
 * mask, folder and the descriptors that stay open are the same; threads and memory are gone.
 * Returns only when that failed, and then nothing has changed.
 * Errors: KELP_ERR_IO, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_process_again(const char *const *variables,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Does our environment have all of these entries? */
bool kelp_process_has_variables(const char *const *variables);

/* Our environment with the variables laid over it; the array is owned, its texts are borrowed.
 * NULL: no memory. */
char **kelp_process_own_environment(const char *const *variables);

#endif
