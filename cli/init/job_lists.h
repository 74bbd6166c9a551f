/* The lists of columns that a job has: derive, filter, columns, categories. */
#ifndef KELP_CLI_INIT_JOB_LISTS_H
#define KELP_CLI_INIT_JOB_LISTS_H

#include <stdio.h>

#include "cli/init/choice.h"
#include "cli/init/table_facts.h"

/* The keys of `data` that name columns of a table, target and filters too. */
void kelp_init_print_table_keys(const struct kelp_table_facts *facts,
                                const struct kelp_init_choice *choice, FILE *out);
/* The same of a panel. */
void kelp_init_print_panel_keys(const struct kelp_table_facts *facts,
                                const struct kelp_init_choice *choice, FILE *out);
/* A text as a YAML scalar, in quotes where it needs them. */
void kelp_init_print_text(const char *text, FILE *out);

#endif
