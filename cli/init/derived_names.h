/* Names and expressions of columns that a job derives. Pure. */
#ifndef KELP_CLI_INIT_DERIVED_NAMES_H
#define KELP_CLI_INIT_DERIVED_NAMES_H

#include "cli/init/table_facts.h"

#define KELP_INIT_EXPRESSION_MAX 4095

/* A name for what `suffix` makes of a column; no other column has it. */
void kelp_derived_name(const struct kelp_table_facts *facts, uint32_t column, const char *suffix,
                       char ret_name[KELP_CSV_COLUMN_NAME_MAX + 1]);
/* The suffix of "column is word number w". */
void kelp_derived_word_suffix(const struct kelp_column_facts *column, uint32_t word,
                              char ret_suffix[KELP_CSV_COLUMN_NAME_MAX + 1]);

/* A column's name as an expression takes it: in backticks unless it is a plain word. */
void kelp_expression_column_text(const char *name, char ret_text[KELP_CSV_COLUMN_NAME_MAX + 3]);
/* A word between quotes of the kind that it does not have. */
void kelp_expression_literal_text(const char *word, char ret_text[KELP_CSV_COLUMN_NAME_MAX + 3]);

#endif
