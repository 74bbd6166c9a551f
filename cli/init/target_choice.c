#include "cli/init/target_choice.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/init/name_guess.h"
#include "common/base/value.h"

const char *kelp__init_name_trouble(const struct kelp_table_facts *facts, uint32_t column)
{
    const char *name = facts->columns[column].name;
    if (name[0] == '\0') {
        return "it has no name";
    }
    for (uint32_t i = 0; i < facts->column_count; i++) {
        if (i != column && strcmp(facts->columns[i].name, name) == 0) {
            return "another column has its name";
        }
    }
    if (name[0] == ' ') {
        return "its name begins with a space";
    }
    bool fits =
        !strpbrk(name, "`,") && kelp_value_text(name, KELP_CSV_COLUMN_NAME_MAX, NULL) == KELP_OK;
    return fits ? NULL
                : "its name has a comma, a backtick or other characters that a job cannot name";
}

bool kelp__init_name_fits(const struct kelp_table_facts *facts, uint32_t column)
{
    return !kelp__init_name_trouble(facts, column);
}

bool kelp__init_word_fits(const char *word)
{
    return !(strchr(word, '\'') && strchr(word, '"')) && !strchr(word, ',') &&
           kelp_value_text(word, KELP_CSV_COLUMN_NAME_MAX, NULL) == KELP_OK;
}

/* Few words, each of which can stand in an expression. */
static bool has_few_words(const struct kelp_column_facts *column)
{
    if (column->long_words || column->words.count < 2 ||
        column->words.count > KELP_INIT_CLASSES_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < column->words.count; i++) {
        if (!kelp__init_word_fits(kelp_words_at(&column->words, i))) {
            return false;
        }
    }
    return true;
}

static bool can_be_target(const struct kelp_table_facts *facts, uint32_t i)
{
    const struct kelp_column_facts *column = &facts->columns[i];
    enum kelp_column_type type = kelp_column_type(column);
    if (!kelp__init_name_fits(facts, i)) {
        return false;
    }
    return type == KELP_COLUMN_NUMBER ? kelp_spread_is_safe(&column->spread, facts->rows)
                                      : type == KELP_COLUMN_WORD && has_few_words(column) &&
                                            kelp_column_variety(column) <= 0.5;
}

/* What sounds most like a target; else the last column that can be one. */
static bool guess(const struct kelp_table_facts *facts, uint32_t *ret_column)
{
    uint32_t best_rank = 0;
    bool found = false;
    for (uint32_t i = 0; i < facts->column_count; i++) {
        const struct kelp_column_facts *column = &facts->columns[i];
        uint32_t rank = kelp_name_target_rank(column->name);
        bool numbers_rows = column->counts || kelp_name_is_row(column->name);
        bool better = !found || rank > best_rank || best_rank == 0;
        if (better && !numbers_rows && can_be_target(facts, i)) {
            best_rank = rank;
            *ret_column = i;
            found = true;
        }
    }
    return found;
}

static kelp_status no_such_column(const struct kelp_table_facts *facts, const char *name,
                                  struct kelp_error *reterr)
{
    const char **names = calloc((size_t)facts->column_count + 1, sizeof(*names));
    for (uint32_t i = 0; names && i < facts->column_count; i++) {
        names[i] = facts->columns[i].name;
    }
    const char *meant = names ? kelp_value_nearest(name, names) : NULL;
    kelp_status status =
        meant
            ? kelp_fail(reterr, KELP_ERR_INVALID,
                        "--target: there is no column '%.64s'; did you mean '%s'?", name, meant)
            : kelp_fail(reterr, KELP_ERR_INVALID,
                        "--target: there is no column '%.64s'; the first one is '%s', the last "
                        "one '%s'",
                        name, facts->columns[0].name, facts->columns[facts->column_count - 1].name);
    free(names);
    return status;
}

static kelp_status find(const struct kelp_table_facts *facts, const char *name,
                        uint32_t *ret_column, struct kelp_error *reterr)
{
    uint32_t column = 0;
    while (column < facts->column_count && strcmp(facts->columns[column].name, name) != 0) {
        column++;
    }
    if (column == facts->column_count) {
        return no_such_column(facts, name, reterr);
    }
    *ret_column = column;
    if (can_be_target(facts, column)) {
        return KELP_OK;
    }
    const struct kelp_column_facts *found = &facts->columns[column];
    if (kelp_column_type(found) == KELP_COLUMN_WORD && found->words.count > 0 &&
        kelp_word_is_amount(kelp_words_at(&found->words, 0))) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--target: column %s has words such as '%s'; write numbers as 1234.5, "
                         "without signs and commas",
                         name, kelp_words_at(&found->words, 0));
    }
    if (kelp_column_type(found) == KELP_COLUMN_WORD) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--target: column %s has %s%u different words; a target has numbers, or 2 "
                         "to %d words that repeat",
                         name, found->words_full ? "over " : "", found->words.count,
                         KELP_INIT_CLASSES_MAX);
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "--target: column %s cannot be the target: it needs a unique name, and values "
                     "that differ from row to row",
                     name);
}

/* Numbers from min to max, each of which is there. */
static bool has_no_gaps(const struct kelp_column_facts *column)
{
    return kelp_column_is_whole(column) && !column->words_full &&
           column->max - column->min + 1.0 == (double)column->words.count;
}

/* Of two: the one that says yes, or the larger number, else the second. */
static uint32_t find_likely(const struct kelp_words *words)
{
    static const char *const yes[] = {"yes", "true", "y", "t", "1", "positive", "on"};
    const char *first = kelp_words_at(words, 0);
    double one = 0.0, other = 0.0;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(yes); i++) {
        if (strcasecmp(first, yes[i]) == 0) {
            return 0;
        }
    }
    bool numbers =
        kelp_value_double(first, -HUGE_VAL, HUGE_VAL, &one, NULL) == KELP_OK &&
        kelp_value_double(kelp_words_at(words, 1), -HUGE_VAL, HUGE_VAL, &other, NULL) == KELP_OK;
    return numbers && one > other ? 0 : 1;
}

static void choose_kind(const struct kelp_column_facts *column, struct kelp_init_choice *choice)
{
    uint32_t count = column->words.count;
    bool words = kelp_column_type(column) == KELP_COLUMN_WORD;
    choice->target_kind = KELP_INIT_AMOUNT;
    if (words) {
        choice->target_kind = count == 2 ? KELP_INIT_OTHER_CHANCE : KELP_INIT_WORD_CLASS;
    } else if (!column->words_full && count == 2) {
        bool zero_one = column->min == 0.0 && column->max == 1.0;
        choice->target_kind = zero_one ? KELP_INIT_CHANCE : KELP_INIT_OTHER_CHANCE;
    } else if (has_no_gaps(column) && count > 2 && count <= KELP_INIT_CLASSES_MAX &&
               kelp_name_is_class(column->name)) {
        choice->target_kind = KELP_INIT_CLASS;
    }
    choice->classes = count;
    choice->likely =
        choice->target_kind == KELP_INIT_OTHER_CHANCE ? find_likely(&column->words) : 0;
}

kelp_status kelp__init_choose_target(const struct kelp_table_facts *facts, const char *name,
                                     struct kelp_init_choice *choice, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    choice->target_given = name;
    if (name) {
        status = find(facts, name, &choice->target, reterr);
    } else if (!guess(facts, &choice->target)) {
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "no column can be the target: one has numbers, or 2 to %d words that "
                           "repeat",
                           KELP_INIT_CLASSES_MAX);
    }
    if (status == KELP_OK) {
        choose_kind(&facts->columns[choice->target], choice);
    }
    return status;
}
