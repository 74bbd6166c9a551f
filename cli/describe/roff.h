/* Text in the man macros of groff. */
#ifndef KELP_CLI_DESCRIBE_ROFF_H
#define KELP_CLI_DESCRIBE_ROFF_H

#include <stdio.h>

/* Text of a page: what groff takes for its own is escaped, minus signs stay what they are. */
void kelp_roff_put(FILE *out, const char *text);

/* BEFORE TEXT AFTER, of which only TEXT is escaped. */
void kelp_roff_put_between(FILE *out, const char *before, const char *text, const char *after);

/* The title, in capitals: "KELP-TRAIN(1)" and what stands beside it. */
void kelp_roff_title(FILE *out, const char *name, int section);

/* Where the rest is documented. */
void kelp_roff_elsewhere(FILE *out);

#endif
