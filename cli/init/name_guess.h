/*
 * What names of columns tell, and the first word of one that has no numbers. Pure.
 */
#ifndef KELP_CLI_INIT_NAME_GUESS_H
#define KELP_CLI_INIT_NAME_GUESS_H

#include <stdbool.h>
#include <stdint.h>

/* How much a name sounds like the target: 0 not at all. Whole names ("label") come before words in
 * names ("fare_amount"), and then earlier ones of a list. */
uint32_t kelp_name_target_rank(const char *name);
/* A target of classes ("species"), whose numbers mean no amount. */
bool kelp_name_is_class(const char *name);
/* Numbers that name things ("VendorID", "zip"), and no amount. */
bool kelp_name_is_category(const char *name);
/* A row's own number ("id", "row_id", "Unnamed: 0", ""). */
bool kelp_name_is_row(const char *name);

/* A date in another form than data files have: "03/25/2017 8:55 AM". */
bool kelp_word_is_date(const char *word);
/* A number with more than data files have: "$1,200", "5.3%". */
bool kelp_word_is_amount(const char *word);

#endif
