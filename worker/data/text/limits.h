/* Limits of reading text, each with its unit and reason. */
#ifndef KELP_WORKER_DATA_TEXT_LIMITS_H
#define KELP_WORKER_DATA_TEXT_LIMITS_H

/* Bytes of one line. A file with a longer line has no line ends and is no table. */
#define KELP_CSV_LINE_MAX 65536u

/* Columns of a table, and bytes of a column's name (as long as data.target may be). */
#define KELP_CSV_COLUMNS_MAX     1024
#define KELP_CSV_COLUMN_NAME_MAX 63

#endif
