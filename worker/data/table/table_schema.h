/*
 * What a job takes from the columns of its CSV files: which columns are read as what, what is
 * derived from them, which rows stay, and which values make a row. Pure: the files come later.
 *
 * Every column that is read, in each way it is read, and every derived one has a slot in an array
 * of doubles; a row fills the slots of the file's columns, expressions fill the others in order.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_SCHEMA_H
#define KELP_WORKER_DATA_TABLE_TABLE_SCHEMA_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "worker/data/limits.h"
#include "worker/data/text/expression.h"

#define KELP_TABLE_SLOTS_MAX (2 * KELP_TABLE_COLUMNS_MAX)

/* Slots that a value is computed from, also those of columns that are derived on the way. */
struct kelp_table_slots {
    uint64_t bits[KELP_TABLE_SLOTS_MAX / 64];
};

/* One column of the file, in one view. */
struct kelp_table_source {
    const char *key; /* of the job file, which asks for it */
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    char literal[KELP_CSV_COLUMN_NAME_MAX + 1]; /* KELP_VIEW_TEXT */
    enum kelp_expression_view view;
    bool is_word;  /* of a category or class: its text counts, it fills no slot */
    uint32_t slot; /* unless it is a word */
    bool label;    /* only targets are computed from it, no input */
    bool absent;   /* a label that the files to predict do not have: it is missing in each row */
};

struct kelp_table_derived {
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    uint32_t slot;
    struct kelp_expression *expression; /* owned */
    struct kelp_table_slots uses;
};

/* A value that a row hands out. */
struct kelp_table_output {
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    bool is_source; /* a word, a class: `index` is of sources; else `index` is a slot */
    uint32_t index;
};

struct kelp_table_schema {
    struct kelp_table_source sources[KELP_TABLE_COLUMNS_MAX];
    uint32_t source_count;
    struct kelp_table_derived derived[KELP_TABLE_COLUMNS_MAX];
    uint32_t derived_count;
    struct kelp_expression *filters[KELP_TABLE_COLUMNS_MAX]; /* owned */
    struct kelp_table_slots filter_uses[KELP_TABLE_COLUMNS_MAX];
    uint32_t filter_count;
    uint32_t slot_count;
    /* data.columns, then data.known, then data.targets. */
    struct kelp_table_output numbers[KELP_TABLE_COLUMNS_MAX];
    uint32_t column_count;
    uint32_t known_count;
    uint32_t target_count;
    uint32_t number_count; /* all three */
    /* data.categories, or data.group of a panel. */
    struct kelp_table_output words[KELP_TABLE_WORDS_MAX];
    uint32_t word_count;
    bool has_time;
    uint32_t time_slot; /* data.time */
    bool unlabelled;    /* there are no targets: they read as 0 */
    /* The only target is a column of the files, and the loss one over classes. */
    bool has_class;
    uint32_t class_number; /* of numbers */
};

/*
 * *ret_schema is owned by the caller (kelp_table_schema_destroy()). Errors: KELP_ERR_INVALID (the
 * text names the key), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_table_schema_create(const struct kelp_job *job,
                                     struct kelp_table_schema **ret_schema,
                                     struct kelp_error *reterr) KELP_MUST_USE;
void kelp_table_schema_destroy(struct kelp_table_schema *schema); /* NULL is ignored */

/*
 * Rows to predict come without targets: sources that are marked absent, which are labels all, are
 * not read, and filters over them are left out.
 */
void kelp_table_schema_drop_labels(struct kelp_table_schema *schema);

/* Name of target i. */
const char *kelp_table_schema_target(const struct kelp_table_schema *schema, uint32_t target);

#endif
