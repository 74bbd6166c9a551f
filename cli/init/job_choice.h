/*
 * What a first job for a table should be: from the facts of its columns alone. Pure.
 */
#ifndef KELP_CLI_INIT_JOB_CHOICE_H
#define KELP_CLI_INIT_JOB_CHOICE_H

#include "cli/init/choice.h"
#include "cli/init/table_facts.h"

/*
 * target: a column's name, or NULL to guess it. *ret_choice is owned by the caller
 * (kelp_init_choice_fini()). Errors: KELP_ERR_INVALID (no such target; none that can be learnt;
 * nothing to learn from), KELP_ERR_LIMIT (too few rows, too many classes), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_init_choose(const struct kelp_table_facts *facts, const char *target,
                             struct kelp_init_choice *ret_choice,
                             struct kelp_error *reterr) KELP_MUST_USE;
void kelp_init_choice_fini(struct kelp_init_choice *choice);

#endif
