/* Which column a job learns, and as what. Pure; for job_choice.c alone. */
#ifndef KELP_CLI_INIT_TARGET_CHOICE_H
#define KELP_CLI_INIT_TARGET_CHOICE_H

#include "cli/init/choice.h"
#include "cli/init/table_facts.h"

/* Sets target, target_given and target_kind, and classes. */
kelp_status kelp__init_choose_target(const struct kelp_table_facts *facts, const char *name,
                                     struct kelp_init_choice *choice,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* Why it cannot be named in a job file, alone; NULL: it can. */
const char *kelp__init_name_trouble(const struct kelp_table_facts *facts, uint32_t column);
bool kelp__init_name_fits(const struct kelp_table_facts *facts, uint32_t column);
/* Can the word stand in an expression, between quotes of one kind? */
bool kelp__init_word_fits(const char *word);

#endif
