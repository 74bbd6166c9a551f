#include "cli/init/job_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/init/name_guess.h"
#include "cli/init/target_choice.h"
#include "common/job/job.h"
#include "worker/data/limits.h"

/* Fewer rows are no table to learn from. */
#define ROWS_MIN 20

/* Steps of a training, and fewer where many categories are learnt from few rows. */
#define STEPS       3000
#define SMALL_ROWS  500
#define SMALL_STEPS 100
#define ROWS_A_WORD 8 /* of a small table that is learnt as a large one */

/* Of the bytes of a list in a job: the longest entry of one column is under 1000. */
#define LIST_BYTES 3000

/* A largest value so many times the mean is learnt as a logarithm. */
#define HEAVY_TAIL 20.0

/* Series of a panel, and rows of each. */
#define PANEL_SERIES_MAX 10000
#define PANEL_ROWS_MIN   60

void kelp_init_choice_fini(struct kelp_init_choice *choice)
{
    free(choice->columns);
    choice->columns = NULL;
}

static void leave_out(struct kelp_init_column *column, const char *why)
{
    *column = (struct kelp_init_column){.use = KELP_INIT_LEFT_OUT, .why = why};
}

static uint64_t at_least(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- series and panels ----------------------------------------------------------------------- */

/* A day of what comes more often than that, a week of days, a month of weeks, else a year. */
static uint32_t natural_horizon(int64_t step)
{
    if (step < 86400) {
        return (uint32_t)at_most(at_least(4, (uint64_t)(86400 / step)), 96);
    }
    return step < 5 * 86400 ? 7 : step < 27 * 86400 ? 4 : 12;
}

/* Splits of `rows`, with windows that fit into them. */
static bool fit_windows(struct kelp_init_choice *choice, int64_t step, uint64_t rows)
{
    uint64_t val = rows / 10, test = rows / 5, train = rows - val - test;
    uint32_t ahead = natural_horizon(step);
    while (ahead > 1 && (ahead > val || 5 * (uint64_t)ahead > train / 2)) {
        ahead /= 2;
    }
    choice->pred_len = ahead;
    choice->seq_len = 4 * ahead;
    choice->split[0] = train;
    choice->split[1] = val;
    choice->split[2] = test;
    return ahead <= val && 5 * (uint64_t)ahead <= train / 2;
}

/* One row after the other, with a target in each. */
static bool choose_series(const struct kelp_table_facts *facts, struct kelp_init_choice *choice)
{
    const struct kelp_column_facts *target = &facts->columns[choice->target];
    if (!facts->has_dates || facts->file_count > 1 || choice->target_kind != KELP_INIT_AMOUNT ||
        target->missing > 0) {
        return false;
    }
    const struct kelp_column_facts *clock = &facts->columns[facts->date_column];
    if (!kelp_column_is_clock(clock) || !fit_windows(choice, clock->step_min, facts->rows)) {
        return false;
    }
    choice->shape = KELP_INIT_SERIES;
    choice->time = facts->date_column;
    return true;
}

/* A column with a row for each of the dates, in a grid without holes. */
static bool is_group(const struct kelp_table_facts *facts, uint32_t i)
{
    const struct kelp_column_facts *column = &facts->columns[i];
    enum kelp_column_type type = kelp_column_type(column);
    bool names = type == KELP_COLUMN_WORD || (type == KELP_COLUMN_NUMBER && !column->long_words &&
                                              kelp_column_is_whole(column));
    return names && column->missing == 0 && !column->words_full &&
           column->words.count <= PANEL_SERIES_MAX && kelp__init_name_fits(facts, i) &&
           column->words.count * facts->date_count == facts->rows;
}

static bool choose_panel(const struct kelp_table_facts *facts, struct kelp_init_choice *choice)
{
    bool complete = facts->has_dates && facts->date_step > 0 && facts->looked == facts->rows &&
                    facts->columns[facts->date_column].missing == 0 &&
                    kelp__init_name_fits(facts, facts->date_column);
    if (!complete || choice->target_kind != KELP_INIT_AMOUNT ||
        facts->columns[choice->target].missing > 0 || facts->date_count < PANEL_ROWS_MIN) {
        return false;
    }
    for (uint32_t i = 0; i < facts->column_count; i++) {
        if (i != choice->target && i != facts->date_column && is_group(facts, i) &&
            fit_windows(choice, facts->date_step, facts->date_count)) {
            choice->shape = KELP_INIT_PANEL;
            choice->time = facts->date_column;
            choice->group = i;
            return true;
        }
    }
    return false;
}

/* Other columns than those that a series or panel is made of. */
static void leave_others(const struct kelp_table_facts *facts, struct kelp_init_choice *choice)
{
    for (uint32_t i = 0; i < facts->column_count; i++) {
        leave_out(&choice->columns[i], "the first model learns from the target's own past");
    }
    choice->columns[choice->time].use = KELP_INIT_TIME;
    choice->columns[choice->target].use = KELP_INIT_IS_TARGET;
    if (choice->shape == KELP_INIT_PANEL) {
        choice->columns[choice->group].use = KELP_INIT_GROUP;
        choice->seq_len = (uint32_t)at_most(choice->seq_len, 72);
        /* One window of each series to measure with. */
        choice->split[0] = facts->date_count - 2 * (uint64_t)choice->pred_len;
        choice->split[1] = choice->split[2] = choice->pred_len;
    }
    choice->batch_size = choice->shape == KELP_INIT_PANEL ? 128 : 32;
    choice->lr = choice->shape == KELP_INIT_PANEL ? 0.005 : 0.002;
    uint64_t windows = choice->split[0] * (facts->rows / at_least(facts->date_count, 1));
    uint64_t epochs = (uint64_t)STEPS * choice->batch_size / at_least(windows, 1);
    choice->epochs = (uint32_t)at_most(at_least(epochs, 10), 100);
    choice->patience = 5;
}

/* ---- columns of a table ---------------------------------------------------------------------- */

/* A category that names almost each row is learnt by heart. With few rows, decay prevents that. */
static bool repeats(const struct kelp_table_facts *facts, const struct kelp_column_facts *column)
{
    return kelp_column_variety(column) <= (facts->rows < SMALL_ROWS ? 0.5 : 0.2);
}

static void use_number(const struct kelp_table_facts *facts, uint32_t i,
                       struct kelp_init_column *ret)
{
    const struct kelp_column_facts *column = &facts->columns[i];
    bool numbers_rows = kelp_column_is_whole(column) &&
                        (kelp_name_is_row(column->name) || i == 0) &&
                        (column->counts || kelp_column_variety(column) > 0.99);
    if (numbers_rows) {
        leave_out(ret, "it numbers the rows");
        return;
    }
    if (kelp_column_is_whole(column) && kelp_name_is_category(column->name)) {
        ret->use = KELP_INIT_CATEGORY;
        if (!repeats(facts, column)) {
            leave_out(ret, "a name of things, and too few rows share one");
        }
        return;
    }
    if (!kelp_spread_is_safe(&column->spread, facts->rows)) {
        leave_out(ret, "it hardly varies");
        return;
    }
    double mean = column->sum / (double)column->numbers;
    bool heavy = column->min >= 0.0 && column->max > HEAVY_TAIL * mean;
    ret->use = heavy ? KELP_INIT_LOG_NUMBER : KELP_INIT_NUMBER;
}

static void use_word(const struct kelp_table_facts *facts, uint32_t i, struct kelp_init_column *ret)
{
    const struct kelp_column_facts *column = &facts->columns[i];
    ret->use = KELP_INIT_CATEGORY;
    if (column->long_words) {
        leave_out(ret, "it has long texts");
    } else if (kelp_word_is_date(kelp_words_at(&column->words, 0))) {
        leave_out(ret, "write dates as YYYY-MM-DD HH:MM:SS to use them");
    } else if (column->words.count > KELP_INIT_CLASSES_MAX &&
               kelp_word_is_amount(kelp_words_at(&column->words, 0))) {
        leave_out(ret, "write numbers as 1234.5, without signs and commas, to use them");
    } else if (column->dates > 0 || column->numbers * 2 > column->present) {
        leave_out(ret, "it has dates or numbers, but not in all rows");
    } else if (!repeats(facts, column)) {
        leave_out(ret, "too few rows share a word");
    }
}

static void use_date(const struct kelp_table_facts *facts, uint32_t i, struct kelp_init_column *ret)
{
    const struct kelp_column_facts *column = &facts->columns[i];
    bool varies = false;
    for (int part = 0; part < KELP_DATE_PART_COUNT; part++) {
        varies = varies || kelp_spread_is_safe(&column->parts[part], facts->rows);
    }
    if (i != facts->date_column && kelp_spread_is_safe(&column->since, facts->rows)) {
        ret->use = KELP_INIT_SINCE;
    } else if (varies && i == facts->date_column) {
        ret->use = KELP_INIT_DATE;
    } else {
        leave_out(ret, "its hour, weekday, month and year hardly vary");
    }
}

static void use_column(const struct kelp_table_facts *facts, uint32_t i,
                       struct kelp_init_column *ret)
{
    const char *trouble = kelp__init_name_trouble(facts, i);
    if (trouble) {
        leave_out(ret, trouble);
        return;
    }
    switch (kelp_column_type(&facts->columns[i])) {
    case KELP_COLUMN_EMPTY:
        leave_out(ret, "it is empty");
        return;
    case KELP_COLUMN_CONSTANT:
        leave_out(ret, "it has one value");
        return;
    case KELP_COLUMN_NUMBER:
        use_number(facts, i, ret);
        return;
    case KELP_COLUMN_DATE:
        use_date(facts, i, ret);
        return;
    case KELP_COLUMN_WORD:
        use_word(facts, i, ret);
        return;
    }
}

/* A model of classes takes numbers alone: words become a 0 or 1 each. */
static void use_without_categories(const struct kelp_column_facts *column,
                                   struct kelp_init_column *ret)
{
    if (ret->use != KELP_INIT_CATEGORY) {
        return;
    }
    bool few = column->words.count <= KELP_INIT_ONE_HOT_MAX;
    for (uint32_t w = 0; w < column->words.count && few; w++) {
        few = kelp__init_word_fits(kelp_words_at(&column->words, w));
    }
    ret->use = KELP_INIT_ONE_HOT;
    if (!few) {
        leave_out(ret, "it has more words than a model of classes takes as numbers");
    }
}

/* Bytes that a column may take in the longest of the job's lists. */
static size_t list_bytes(const struct kelp_column_facts *column, enum kelp_init_use use)
{
    size_t name = strlen(column->name);
    switch (use) {
    case KELP_INIT_LEFT_OUT:
    case KELP_INIT_IS_TARGET:
    case KELP_INIT_TIME:
    case KELP_INIT_GROUP:
        return 0;
    case KELP_INIT_NUMBER:
    case KELP_INIT_CATEGORY:
        return name + 1;
    case KELP_INIT_LOG_NUMBER:
        return 2 * name + 32;
    case KELP_INIT_SINCE:
        return 3 * name + 96 + KELP_CSV_COLUMN_NAME_MAX;
    case KELP_INIT_DATE:
        return KELP_DATE_PART_COUNT * (2 * name + 32);
    case KELP_INIT_ONE_HOT:
        return column->words.count * (2 * name + 32 + 2 * KELP_CSV_COLUMN_NAME_MAX);
    }
    return 0;
}

/* A job's lists have room for so many. */
static void bound(const struct kelp_table_facts *facts, struct kelp_init_choice *choice)
{
    size_t bytes = 0;
    uint32_t categories = KELP_DATE_PART_COUNT;
    for (uint32_t i = 0; i < facts->column_count; i++) {
        struct kelp_init_column *column = &choice->columns[i];
        bytes += list_bytes(&facts->columns[i], column->use);
        categories += column->use == KELP_INIT_CATEGORY;
        if (bytes > LIST_BYTES ||
            (column->use == KELP_INIT_CATEGORY && categories > KELP_TABLE_WORDS_MAX)) {
            bytes -= list_bytes(&facts->columns[i], column->use);
            leave_out(column, "the job's lists have no room for more columns");
        }
    }
}

/* ---- model of a table ------------------------------------------------------------------------ */

/* Would the words of categories be learnt by heart? */
static bool few_rows(const struct kelp_table_facts *facts, const struct kelp_init_choice *choice)
{
    uint64_t words = 0;
    for (uint32_t i = 0; i < facts->column_count; i++) {
        words += choice->columns[i].use == KELP_INIT_CATEGORY ? facts->columns[i].words.count : 0;
    }
    return facts->rows < SMALL_ROWS && words * ROWS_A_WORD > facts->rows;
}

static void choose_training(const struct kelp_table_facts *facts, struct kelp_init_choice *choice)
{
    uint64_t rows = facts->rows;
    bool few = few_rows(facts, choice);
    choice->batch_size = rows < 5000 ? 32 : rows < 50000 ? 128 : 256;
    uint64_t epochs = (few ? SMALL_STEPS : STEPS) * (uint64_t)choice->batch_size / rows;
    choice->epochs = (uint32_t)at_most(at_least(epochs, 3), 200);
    choice->lr = few ? 0.01 : 0.001;
    choice->weight_decay = few ? 10.0 : 0.01;
    choice->decay_weights_alone = few;
    choice->patience = choice->epochs >= 20 ? 10 : 0;
}

/* The first of the columns that were left out stands for the others. */
static kelp_status nothing_to_learn_from(const struct kelp_table_facts *facts,
                                         const struct kelp_init_choice *choice,
                                         struct kelp_error *reterr)
{
    const char *target = facts->columns[choice->target].name;
    for (uint32_t i = 0; i < facts->column_count; i++) {
        if (i != choice->target) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "there is no column to learn %s from; column %s is left out: %s",
                             target, facts->columns[i].name, choice->columns[i].why);
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "there is no column to learn %s from: it is the only one", target);
}

static kelp_status choose_table(const struct kelp_table_facts *facts,
                                struct kelp_init_choice *choice, struct kelp_error *reterr)
{
    bool classes =
        choice->target_kind == KELP_INIT_CLASS || choice->target_kind == KELP_INIT_WORD_CLASS;
    uint32_t used = 0;
    choice->shape = KELP_INIT_TABLE;
    choice->random_split = kelp_column_is_sorted(&facts->columns[choice->target]);
    for (uint32_t i = 0; i < facts->column_count; i++) {
        struct kelp_init_column *column = &choice->columns[i];
        use_column(facts, i, column);
        if (i == choice->target) {
            *column = (struct kelp_init_column){.use = KELP_INIT_IS_TARGET};
        } else if (classes) {
            use_without_categories(&facts->columns[i], column);
        }
    }
    bound(facts, choice);
    for (uint32_t i = 0; i < facts->column_count; i++) {
        bool input = choice->columns[i].use > KELP_INIT_IS_TARGET;
        used += input;
        choice->missing = choice->missing || (input && facts->columns[i].missing > 0);
        choice->has_categories =
            choice->has_categories || choice->columns[i].use == KELP_INIT_CATEGORY;
    }
    if (used == 0) {
        return nothing_to_learn_from(facts, choice, reterr);
    }
    choose_training(facts, choice);
    return KELP_OK;
}

kelp_status kelp_init_choose(const struct kelp_table_facts *facts, const char *target,
                             struct kelp_init_choice *ret_choice, struct kelp_error *reterr)
{
    struct kelp_init_choice choice = {.group = UINT32_MAX};
    if (facts->rows < ROWS_MIN) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "the table has %u row%s; a job needs %d, of which training takes four "
                         "fifths",
                         (unsigned)facts->rows, facts->rows == 1 ? "" : "s", ROWS_MIN);
    }
    kelp_status status = kelp__init_choose_target(facts, target, &choice, reterr);
    if (status != KELP_OK) {
        return status;
    }
    choice.columns = calloc(facts->column_count, sizeof(*choice.columns));
    if (!choice.columns) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    if (choose_series(facts, &choice) || choose_panel(facts, &choice)) {
        leave_others(facts, &choice);
    } else {
        status = choose_table(facts, &choice, reterr);
    }
    if (status == KELP_OK) {
        *ret_choice = choice;
    } else {
        kelp_init_choice_fini(&choice);
    }
    return status;
}
