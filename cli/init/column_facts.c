#include "cli/init/column_facts.h"

#include <math.h>
#include <string.h>

#include "worker/data/text/calendar.h"

/* A series may leave out nights, weekends and months of 28 days, not more. */
#define CLOCK_STEPS_RATIO 7

/* Less than this share of the rows has seen two values: validation may have all of the others. */
#define SPREAD_BY   0.75
#define SPREAD_ROWS 8

/* One row in so many may be against the order. */
#define SORTED_SHARE 50

static void spread_add(struct kelp_spread *spread, uint64_t row, double value)
{
    if (row % KELP_INIT_TEST_EVERY == KELP_INIT_TEST_EVERY - 1) {
        return;
    }
    if (!spread->begun) {
        *spread = (struct kelp_spread){.begun = true, .first = value};
    } else if (value != spread->first) {
        spread->first_row = spread->others == 0 ? row : spread->first_row;
        spread->others++;
    }
}

bool kelp_spread_is_safe(const struct kelp_spread *spread, uint64_t rows)
{
    return spread->others >= SPREAD_ROWS && (double)spread->first_row <= SPREAD_BY * (double)rows;
}

static void add_number(struct kelp_column_facts *facts, const struct kelp_field *field)
{
    bool first = facts->numbers == 0;
    facts->counts = first || (facts->counts && field->number == facts->last + 1.0);
    facts->ups += !first && field->number > facts->last;
    facts->downs += !first && field->number < facts->last;
    facts->last = field->number;
    facts->min = first || field->number < facts->min ? field->number : facts->min;
    facts->max = first || field->number > facts->max ? field->number : facts->max;
    facts->sum += field->number;
    facts->numbers++;
    facts->integers += floor(field->number) == field->number;
    spread_add(&facts->spread, field->row, field->number);
}

static void add_date(struct kelp_column_facts *facts, const struct kelp_field *field)
{
    struct kelp_calendar date = kelp_calendar_split(field->seconds);
    if (facts->dates == 0) {
        facts->first_date = field->seconds;
    } else {
        int64_t step = field->seconds - facts->last_date;
        bool first = facts->dates == 1;
        facts->step_min = first || step < facts->step_min ? step : facts->step_min;
        facts->step_max = first || step > facts->step_max ? step : facts->step_max;
    }
    facts->last_date = field->seconds;
    facts->dates++;
    spread_add(&facts->parts[KELP_DATE_HOUR], field->row, date.hour);
    spread_add(&facts->parts[KELP_DATE_WEEKDAY], field->row, date.weekday);
    spread_add(&facts->parts[KELP_DATE_MONTH], field->row, date.month);
    spread_add(&facts->parts[KELP_DATE_YEAR], field->row, (double)date.year);
    if (field->has_since) {
        spread_add(&facts->since, field->row, fabs(field->since));
    }
}

static kelp_status add_word(struct kelp_column_facts *facts, const char *word,
                            struct kelp_error *reterr)
{
    uint32_t number = 0;
    if (!word) {
        facts->long_words = true;
        return KELP_OK;
    }
    if (facts->words_full) {
        return KELP_OK;
    }
    facts->words_rows = facts->present;
    kelp_status status = kelp_words_add(&facts->words, word, &number, reterr);
    if (facts->numbers == 0) {
        facts->ups += number > facts->last_word;
        facts->downs += number < facts->last_word;
        facts->last_word = number;
    }
    facts->words_full = facts->words.count >= KELP_INIT_WORDS_MAX;
    return status;
}

kelp_status kelp_column_add(struct kelp_column_facts *facts, const struct kelp_field *field,
                            struct kelp_error *reterr)
{
    if (field->missing) {
        facts->missing++;
        return KELP_OK;
    }
    facts->present++;
    if (field->is_number) {
        add_number(facts, field);
    }
    if (field->is_date) {
        add_date(facts, field);
    }
    return add_word(facts, field->word, reterr);
}

void kelp_column_fini(struct kelp_column_facts *facts)
{
    kelp_words_fini(&facts->words);
}

enum kelp_column_type kelp_column_type(const struct kelp_column_facts *facts)
{
    if (facts->present == 0) {
        return KELP_COLUMN_EMPTY;
    }
    bool numbers = facts->numbers == facts->present;
    bool one_word = facts->words.count == 1 && !facts->long_words && !facts->words_full;
    if (numbers ? facts->min == facts->max : one_word) {
        return KELP_COLUMN_CONSTANT;
    }
    if (numbers) {
        return KELP_COLUMN_NUMBER;
    }
    return facts->dates == facts->present ? KELP_COLUMN_DATE : KELP_COLUMN_WORD;
}

bool kelp_column_is_sorted(const struct kelp_column_facts *facts)
{
    uint64_t fewer = facts->ups < facts->downs ? facts->ups : facts->downs;
    return fewer * SORTED_SHARE < facts->present;
}

double kelp_column_variety(const struct kelp_column_facts *facts)
{
    return facts->words_rows > 0 ? (double)facts->words.count / (double)facts->words_rows : 1.0;
}

bool kelp_column_is_whole(const struct kelp_column_facts *facts)
{
    return facts->present > 0 && facts->integers == facts->present;
}

bool kelp_column_is_clock(const struct kelp_column_facts *facts)
{
    return kelp_column_type(facts) == KELP_COLUMN_DATE && facts->missing == 0 && facts->dates > 2 &&
           facts->step_min > 0 && facts->step_max / facts->step_min <= CLOCK_STEPS_RATIO;
}
