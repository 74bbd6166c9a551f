/* What a table holds: the facts of its columns, how many rows, which grid of dates. */
#ifndef KELP_CLI_INIT_TABLE_FACTS_H
#define KELP_CLI_INIT_TABLE_FACTS_H

#include "cli/init/column_facts.h"

/* Rows that are looked at; those behind them are counted alone. */
#define KELP_INIT_ROWS_MAX 1000000u

struct kelp_table_facts {
    struct kelp_column_facts *columns; /* owned, as its size */
    uint32_t column_count;
    uint64_t rows;   /* all */
    uint64_t looked; /* at so many */
    uint32_t file_count;
    /* Of the first column with dates. */
    bool has_dates;
    uint32_t date_column;
    uint64_t date_count; /* different ones */
    int64_t date_step;   /* between neighbours, seconds; 0: uneven */
};

void kelp_table_facts_fini(struct kelp_table_facts *facts);

#endif
