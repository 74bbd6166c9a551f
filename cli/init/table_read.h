/* Looks at all rows of CSV files. */
#ifndef KELP_CLI_INIT_TABLE_READ_H
#define KELP_CLI_INIT_TABLE_READ_H

#include "cli/init/table_facts.h"

/*
 * The files must have the columns of the first one. *ret_facts is owned by the caller
 * (kelp_table_facts_fini()). Errors: those of worker/data/text/csv.h; KELP_ERR_INVALID (no rows).
 */
kelp_status kelp_table_read(char *const *paths, uint32_t count, struct kelp_table_facts *ret_facts,
                            struct kelp_error *reterr) KELP_MUST_USE;

#endif
