/*
 * The rows of CSV files as a panel: one or many series, each in the order of time and evenly
 * spaced. Prepared data have the rows of data.split of each series, one series after the other, in
 * two planes: what is observed (targets, then columns), and what is known ahead. With a file of its
 * own to use a model on (data.test_path) they have all rows of each series; what was observed may
 * be missing in the last data.pred_len of them, if they are to be forecast.
 */
#ifndef KELP_WORKER_DATA_TABLE_PANEL_ARRANGE_H
#define KELP_WORKER_DATA_TABLE_PANEL_ARRANGE_H

#include "worker/data/table/table_prepare.h"

/* Text instead of the card, of rows to forecast whose targets are not all there. */
#define KELP_PANEL_NO_TARGETS "no targets"

/* A kelp_table_arrange. Series are numbered in the order of their first row. data.split is checked
 * already: it has room for a training window, and its sum is in range. */
kelp_status kelp__panel_arrange(const struct kelp_table_input *input, struct kelp_spool *spool,
                                struct kelp_prepared *ret_prepared,
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif
