/*
 * All rows of a job's CSV files as they were read, in a spool: what the training split is fitted on
 * and what samples are made of. A row is doubles: its numbers, the numbers of its words, its time,
 * and where it stands.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_RAW_H
#define KELP_WORKER_DATA_TABLE_TABLE_RAW_H

#include "worker/data/table/prepared.h"
#include "worker/data/table/spool.h"
#include "worker/data/table/table_reader.h"
#include "worker/data/words.h"

struct kelp_table_raw {
    const struct kelp_table_schema *schema; /* borrowed */
    struct kelp_spool spool;
    uint64_t row_count;
    uint64_t file_rows[KELP_SPLIT_COUNT];          /* of data.path, data.val_path, data.test_path */
    struct kelp_words words[KELP_TABLE_WORDS_MAX]; /* of each word column, as they first came */
    struct kelp_table_classes classes;             /* where schema->has_class */
    bool has_dates;                                /* times were dates, not plain numbers */
};

/* What is read, and how; all borrowed. */
struct kelp_table_reading {
    const struct kelp_table_schema *schema;
    const struct kelp_table_files *files; /* [KELP_SPLIT_COUNT] */
    enum kelp_missing_policy missing;
    const char *folder;                     /* where the spool lies; NULL: in memory */
    const struct kelp_dataset_watch *watch; /* NULL: nobody */
};

/* Read all files, those of the three keys one after the other. Freed with kelp_table_raw_fini(), in
 * every case. */
kelp_status kelp_table_raw_read(struct kelp_table_raw *raw, const struct kelp_table_reading *source,
                                struct kelp_error *reterr) KELP_MUST_USE;
void kelp_table_raw_fini(struct kelp_table_raw *raw);

/* Parts of row r. */
double kelp_table_raw_number(const struct kelp_table_raw *raw, uint64_t row, uint32_t number);
uint32_t kelp_table_raw_class(const struct kelp_table_raw *raw,
                              uint64_t row); /* of classes.fields */
uint32_t kelp_table_raw_word(const struct kelp_table_raw *raw, uint64_t row, uint32_t word);
double kelp_table_raw_time(const struct kelp_table_raw *raw, uint64_t row);
/* "FILE:LINE" of a row, given the files that were read. */
void kelp_table_raw_place(const struct kelp_table_raw *raw,
                          const struct kelp_table_files files[KELP_SPLIT_COUNT], uint64_t row,
                          char *ret_text, size_t text_bytes);

#endif
