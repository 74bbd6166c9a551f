/*
 * Numbers for classes that are names: those of data.path, in the order of their bytes; or those of
 * the model that is used. A name that neither has is refused.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_CLASS_FIT_H
#define KELP_WORKER_DATA_TABLE_TABLE_CLASS_FIT_H

#include "worker/data/dataset_split.h"
#include "worker/data/table/table_input.h"

/*
 * Give each field of input->raw->classes its number; raw->classes.names are those that were learnt.
 * Nothing happens where the target is no such column, or has numbers only.
 * Errors: KELP_ERR_INVALID (a class that is not known, or missing; the text begins with the row's
 * place), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_table_classes_fit(const struct kelp_table_input *input,
                                   const struct kelp_splits *splits,
                                   struct kelp_error *reterr) KELP_MUST_USE;

#endif
