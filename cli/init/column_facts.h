/*
 * What the fields of one column have in common, gathered field by field in bounded memory. Pure.
 */
#ifndef KELP_CLI_INIT_COLUMN_FACTS_H
#define KELP_CLI_INIT_COLUMN_FACTS_H

#include <stdint.h>

#include "common/base/status.h"
#include "worker/data/text/limits.h"
#include "worker/data/words.h"

/* Different words of a column that are told apart; the share of different ones counts up to there.
 */
#define KELP_INIT_WORDS_MAX 16384

/* Every tenth row is for testing, so that what training sees is known while rows are read. */
#define KELP_INIT_TEST_EVERY 10

/* Whether training rows differ in a number: scaling a constant is refused. */
struct kelp_spread {
    bool begun;
    double first;       /* value */
    uint64_t first_row; /* that has another one */
    uint64_t others;    /* training rows with another one */
};

/* A field of a row, looked at in every way. */
struct kelp_field {
    uint64_t row; /* from 0 */
    bool missing; /* as the table reader has it */
    bool is_number, is_date;
    double number;
    int64_t seconds; /* of a date */
    bool has_since;  /* the row has an earlier column with a date, `since` seconds before */
    double since;
    const char *word; /* borrowed; NULL: longer than a category may be */
};

enum kelp_date_part {
    KELP_DATE_HOUR,
    KELP_DATE_WEEKDAY,
    KELP_DATE_MONTH,
    KELP_DATE_YEAR, /* an amount, the others come again and again */
    KELP_DATE_PART_COUNT,
};

struct kelp_column_facts {
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    uint64_t missing, present;
    uint64_t numbers, integers, dates; /* of the present ones */
    double min, max, sum;              /* of numbers */
    struct kelp_spread spread;         /* of numbers */
    bool counts;                       /* each number is the one before it and one more */
    double last;
    uint64_t ups,
        downs; /* rows with a larger, smaller number, or later, earlier word, than before */
    uint32_t last_word;
    int64_t first_date, last_date;
    int64_t step_min, step_max; /* seconds from row to row; negative when the order is another */
    struct kelp_spread parts[KELP_DATE_PART_COUNT];
    struct kelp_spread since;
    struct kelp_words words; /* different fields, in the order of their first rows; owned */
    uint64_t words_rows;     /* present fields until the words were full */
    bool words_full;
    bool long_words;
};

enum kelp_column_type {
    KELP_COLUMN_EMPTY,
    KELP_COLUMN_CONSTANT,
    KELP_COLUMN_NUMBER,
    KELP_COLUMN_DATE,
    KELP_COLUMN_WORD,
};

/* The name is set by the caller; everything else is 0. */
kelp_status kelp_column_add(struct kelp_column_facts *facts, const struct kelp_field *field,
                            struct kelp_error *reterr) KELP_MUST_USE;
void kelp_column_fini(struct kelp_column_facts *facts);

enum kelp_column_type kelp_column_type(const struct kelp_column_facts *facts);
/* The share of different fields among the present ones, 0 to 1. */
double kelp_column_variety(const struct kelp_column_facts *facts);
/* Numbers that are all whole. */
bool kelp_column_is_whole(const struct kelp_column_facts *facts);
/* Dates that grow from row to row in steps that are much alike. */
bool kelp_column_is_clock(const struct kelp_column_facts *facts);
/* Whether rows stand in the order of their numbers, or the same words together. */
bool kelp_column_is_sorted(const struct kelp_column_facts *facts);
/* Whether training surely sees more than one value, of `rows` rows. */
bool kelp_spread_is_safe(const struct kelp_spread *spread, uint64_t rows);

#endif
