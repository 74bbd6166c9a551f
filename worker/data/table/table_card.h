/*
 * Between what is fitted on a table or panel and the card that a model carries: the one is written
 * into the other after training data were fitted, and taken from it where the model is used.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_CARD_H
#define KELP_WORKER_DATA_TABLE_TABLE_CARD_H

#include "worker/data/model_card.h"
#include "worker/data/table/prepared.h"
#include "worker/data/table/table_input.h"

/*
 * The job takes the columns that the model was trained with, and the files have them. Files to
 * predict may lack what only targets are made of: the schema says so then.
 * Errors: KELP_ERR_MISMATCH, KELP_ERR_INVALID; those of opening the files.
 */
kelp_status kelp_table_card_fits(struct kelp_table_input *input,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Columns of a card as they are fitted, and back; names are those of numbers [first, ...) of the
 * schema. ret_columns is empty before. Errors: KELP_ERR_NO_MEMORY. */
void kelp_table_card_take(const struct kelp_card_columns *columns, struct kelp_fit *ret_fits,
                          struct kelp_target_scale *ret_scales);
kelp_status kelp_table_card_put(const struct kelp_table_numbers *numbers,
                                const struct kelp_table_schema *schema,
                                struct kelp_card_columns *ret_columns,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* The same of one number. */
struct kelp_card_number kelp_table_card_number(const struct kelp_fit *fit,
                                               const struct kelp_target_scale *scale);
void kelp_table_card_fit(const struct kelp_card_number *number, struct kelp_fit *ret_fit,
                         struct kelp_target_scale *ret_scale);

/* The card as text, as prepared data keep it. What is more than a model can carry is "": training
 * goes on without. *ret_text is owned (free()). Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_table_card_text(const struct kelp_model_card *card, char **ret_text,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* And back: a kelp_dataset_functions.describe. Errors: KELP_ERR_LIMIT. */
kelp_status kelp_table_card_of(const struct kelp_prepared *prepared,
                               struct kelp_model_card *ret_card,
                               struct kelp_error *reterr) KELP_MUST_USE;

#endif
