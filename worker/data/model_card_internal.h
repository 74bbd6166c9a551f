/* What printing and parsing a model card share. */
#ifndef KELP_WORKER_DATA_MODEL_CARD_INTERNAL_H
#define KELP_WORKER_DATA_MODEL_CARD_INTERNAL_H

#include "worker/data/model_card.h"

#define KELP__CARD_FORMAT 1

/* The words of data.kind, in the order of the enum. */
extern const char *const kelp__card_kinds[KELP_DATA_BINARY + 1];

/* Whether numbers are multiplied by the factor, which is called "scale" then. */
bool kelp__card_multiplies(enum kelp_data_kind kind);

#endif
