/*
 * Every limit of the data sets, with its unit and reason. Reaching one is KELP_ERR_LIMIT (or one
 * line that names file and line), never silent truncation.
 */
#ifndef KELP_WORKER_DATA_LIMITS_H
#define KELP_WORKER_DATA_LIMITS_H

#include "worker/data/text/limits.h"

/* Numbers in a series, which is kept in memory: 77 million rows of ETT data, 4 GiB. */
#define KELP_CSV_VALUES_MAX (1ull << 29)

/* Columns that a job uses from a table; and columns that it derives. */
#define KELP_TABLE_COLUMNS_MAX 512

/* Category columns, as many as a sample's input may have; bytes of one category's name. */
#define KELP_TABLE_WORDS_MAX 64
#define KELP_TABLE_WORD_MAX  63

/* Files that a pattern may match. */
#define KELP_TABLE_FILES_MAX 65536

/* Series of a panel. */
#define KELP_PANEL_SERIES_MAX (1u << 24)

/* Rows of a series; the limit keeps sums and products of row numbers in range. */
#define KELP_PANEL_ROWS_MAX (1ull << 40)

/* Rows of a generated series: 1142 years of hours. */
#define KELP_SYNTHETIC_ROWS_MAX 10000000ull

/* Elements of an input or a target in a row of data.kind binary. */
#define KELP_ARRAY_ROW_ELEMS_MAX (1u << 30)

/* Bytes of an array that is kept in memory; larger files are read as needed. The images of MNIST
 * have 47 MB. */
#define KELP_ARRAY_RESIDENT_MAX (64ull << 20)

/* Bytes of a compressed array after decompression. It is kept in memory, since it cannot be read in
 * any order. */
#define KELP_ARRAY_INFLATED_MAX (2ull << 30)

/* Seconds after which a change of a file surely shows in its time stamp: file systems keep coarse
 * time, and the clocks of file servers differ. */
#define KELP_SURVEY_SETTLED_S 10

/* Bytes of the survey of an array: two numbers for each column. */
#define KELP_SURVEY_BYTES_MAX (1u << 30)

/* Columns in one list of a model card; a row of numbers (npy, binary) may be wide. */
#define KELP_MODEL_CARD_COLUMNS_MAX (1u << 20)

#endif
