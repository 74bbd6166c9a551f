/*
 * Inputs that tell the model what it is to predict: a target itself, what is computed from one, and
 * all that a target is computed from. Pure.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_LEAKS_H
#define KELP_WORKER_DATA_TABLE_TABLE_LEAKS_H

#include "worker/data/table/table_schema.h"

/* Calls tell with one line for people, without an end of line, for each input and target. In a
 * panel the past of a target is no leak. */
void kelp_table_leaks_tell(const struct kelp_table_schema *schema, bool panel,
                           void (*tell)(void *user, const char *line), void *user);

#endif
