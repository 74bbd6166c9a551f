#include "cli/init/job_lists.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

#include "cli/init/derived_names.h"

#define NAME_BYTES   (KELP_CSV_COLUMN_NAME_MAX + 1)
#define QUOTED_BYTES (KELP_CSV_COLUMN_NAME_MAX + 3)
#define LINE_BYTES   512
#define WRAP_COLUMN  90

static const char *const part_names[KELP_DATE_PART_COUNT] = {"hour", "weekday", "month", "year"};

/* What is printed at the moment. */
struct lister {
    const struct kelp_table_facts *facts;
    const struct kelp_init_choice *choice;
    FILE *out;
    const char *key; /* of the list */
    bool begun;
    size_t width; /* of the line, of a list in brackets */
};

void kelp_init_print_text(const char *text, FILE *out)
{
    bool plain = isalnum((unsigned char)text[0]) || strchr("_./", text[0]);
    for (size_t i = 0; text[i] != '\0'; i++) {
        plain = plain && !strchr(":#'\"`[]{},&*?|<>=!%@\\", text[i]);
    }
    if (plain && text[0] != '\0' && text[strlen(text) - 1] != ' ') {
        (void)fputs(text, out);
        return;
    }
    (void)fputc('\'', out);
    for (size_t i = 0; text[i] != '\0'; i++) {
        (void)fputs(text[i] == '\'' ? "''" : (char[]){text[i], '\0'}, out);
    }
    (void)fputc('\'', out);
}

/* ---- lists with a line for each entry -------------------------------------------------------- */

static void item(struct lister *lister, const char *format, ...) KELP_PRINTF(2, 3);

static void item(struct lister *lister, const char *format, ...)
{
    char text[KELP_INIT_EXPRESSION_MAX + 1];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!lister->begun) {
        (void)fprintf(lister->out, "  %s:\n", lister->key);
        lister->begun = true;
    }
    (void)fputs("    - '", lister->out);
    for (size_t i = 0; text[i] != '\0'; i++) {
        (void)fputs(text[i] == '\'' ? "''" : (char[]){text[i], '\0'}, lister->out);
    }
    (void)fputs("'\n", lister->out);
}

static void derive_date(struct lister *lister, uint32_t i)
{
    const struct kelp_column_facts *column = &lister->facts->columns[i];
    char name[NAME_BYTES], of[QUOTED_BYTES], suffix[16];
    kelp_expression_column_text(column->name, of);
    for (int part = 0; part < KELP_DATE_PART_COUNT; part++) {
        if (kelp_spread_is_safe(&column->parts[part], lister->facts->rows)) {
            (void)snprintf(suffix, sizeof(suffix), "_%s", part_names[part]);
            kelp_derived_name(lister->facts, i, suffix, name);
            item(lister, "%s = %s(%s)", name, part_names[part], of);
        }
    }
}

static void derive_since(struct lister *lister, uint32_t i)
{
    const struct kelp_table_facts *facts = lister->facts;
    char name[NAME_BYTES], of[QUOTED_BYTES], first[QUOTED_BYTES];
    kelp_expression_column_text(facts->columns[i].name, of);
    kelp_expression_column_text(facts->columns[facts->date_column].name, first);
    kelp_derived_name(facts, i, "_since", name);
    item(lister, "%s = log(abs(seconds(%s) - seconds(%s)) + 1)", name, of, first);
}

static void derive_words(struct lister *lister, uint32_t i)
{
    const struct kelp_column_facts *column = &lister->facts->columns[i];
    char name[NAME_BYTES], of[QUOTED_BYTES], word[QUOTED_BYTES], suffix[NAME_BYTES];
    kelp_expression_column_text(column->name, of);
    for (uint32_t w = 0; w < column->words.count; w++) {
        kelp_derived_word_suffix(column, w, suffix);
        kelp_derived_name(lister->facts, i, suffix, name);
        kelp_expression_literal_text(kelp_words_at(&column->words, w), word);
        item(lister, "%s = %s == %s", name, of, word);
    }
}

/* The name of the column that training learns, where it is derived. */
static const char *target_name(const struct lister *lister, char name[NAME_BYTES])
{
    const struct kelp_init_choice *choice = lister->choice;
    const struct kelp_column_facts *column = &lister->facts->columns[choice->target];
    char suffix[NAME_BYTES] = "_class";
    switch (choice->target_kind) {
    case KELP_INIT_AMOUNT:
    case KELP_INIT_CHANCE:
    case KELP_INIT_WORD_CLASS:
        return column->name;
    case KELP_INIT_CLASS:
        if (column->min == 0.0) {
            return column->name;
        }
        break;
    case KELP_INIT_OTHER_CHANCE:
        kelp_derived_word_suffix(column, choice->likely, suffix);
        break;
    }
    kelp_derived_name(lister->facts, choice->target, suffix, name);
    return name;
}

static void derive_target(struct lister *lister)
{
    const struct kelp_column_facts *column = &lister->facts->columns[lister->choice->target];
    char made[NAME_BYTES], of[QUOTED_BYTES], word[QUOTED_BYTES];
    const char *name = target_name(lister, made);
    if (name == column->name) {
        return;
    }
    kelp_expression_column_text(column->name, of);
    if (lister->choice->target_kind == KELP_INIT_CLASS) {
        item(lister, "%s = %s - %.17g", name, of, column->min);
    } else if (kelp_column_type(column) == KELP_COLUMN_NUMBER) {
        item(lister, "%s = %s == %s", name, of,
             kelp_words_at(&column->words, lister->choice->likely));
    } else {
        kelp_expression_literal_text(kelp_words_at(&column->words, lister->choice->likely), word);
        item(lister, "%s = %s == %s", name, of, word);
    }
}

static void derive(struct lister *lister)
{
    char name[NAME_BYTES], of[QUOTED_BYTES];
    for (uint32_t i = 0; i < lister->facts->column_count; i++) {
        enum kelp_init_use use = lister->choice->columns[i].use;
        if (use == KELP_INIT_DATE) {
            derive_date(lister, i);
        } else if (use == KELP_INIT_SINCE) {
            derive_since(lister, i);
        } else if (use == KELP_INIT_ONE_HOT) {
            derive_words(lister, i);
        } else if (use == KELP_INIT_LOG_NUMBER) {
            kelp_expression_column_text(lister->facts->columns[i].name, of);
            kelp_derived_name(lister->facts, i, "_log", name);
            item(lister, "%s = log(max(%s, 0) + 1)", name, of);
        }
    }
    derive_target(lister);
}

/* Rows without a target teach nothing. */
static void filter(struct lister *lister)
{
    const struct kelp_column_facts *column = &lister->facts->columns[lister->choice->target];
    char of[QUOTED_BYTES], word[QUOTED_BYTES];
    kelp_expression_column_text(column->name, of);
    if (kelp_column_type(column) == KELP_COLUMN_NUMBER ||
        lister->choice->target_kind == KELP_INIT_WORD_CLASS) {
        if (column->missing > 0) {
            item(lister, "not missing(%s)", of);
        }
        return;
    }
    char text[KELP_INIT_EXPRESSION_MAX + 1] = "";
    size_t used = 0;
    for (uint32_t w = 0; w < column->words.count && used < sizeof(text); w++) {
        kelp_expression_literal_text(kelp_words_at(&column->words, w), word);
        int bytes =
            snprintf(text + used, sizeof(text) - used, "%s%s == %s", w > 0 ? " or " : "", of, word);
        used += bytes > 0 ? (size_t)bytes : 0;
    }
    item(lister, "%s", text);
}

/* ---- lists in brackets ----------------------------------------------------------------------- */

static void name_item(struct lister *lister, const char *name)
{
    size_t width = strlen(name) + 2;
    if (!lister->begun) {
        (void)fprintf(lister->out, "  %s: [", lister->key);
        lister->width = strlen(lister->key) + 5;
    } else if (lister->width + width > WRAP_COLUMN) {
        (void)fputs(",\n    ", lister->out);
        lister->width = 4;
    } else {
        (void)fputs(", ", lister->out);
    }
    kelp_init_print_text(name, lister->out);
    lister->begun = true;
    lister->width += width;
}

static void end_names(struct lister *lister)
{
    if (lister->begun) {
        (void)fputs("]\n", lister->out);
    }
}

/* Parts from `first` up to `end`. */
static void name_date_parts(struct lister *lister, uint32_t i, int first, int end)
{
    char name[NAME_BYTES], suffix[16];
    for (int part = first; part < end; part++) {
        if (kelp_spread_is_safe(&lister->facts->columns[i].parts[part], lister->facts->rows)) {
            (void)snprintf(suffix, sizeof(suffix), "_%s", part_names[part]);
            kelp_derived_name(lister->facts, i, suffix, name);
            name_item(lister, name);
        }
    }
}

static void name_words(struct lister *lister, uint32_t i)
{
    const struct kelp_column_facts *column = &lister->facts->columns[i];
    char name[NAME_BYTES], suffix[NAME_BYTES];
    for (uint32_t w = 0; w < column->words.count; w++) {
        kelp_derived_word_suffix(column, w, suffix);
        kelp_derived_name(lister->facts, i, suffix, name);
        name_item(lister, name);
    }
}

static void name_numbers(struct lister *lister)
{
    char name[NAME_BYTES];
    for (uint32_t i = 0; i < lister->facts->column_count; i++) {
        enum kelp_init_use use = lister->choice->columns[i].use;
        if (use == KELP_INIT_NUMBER) {
            name_item(lister, lister->facts->columns[i].name);
        } else if (use == KELP_INIT_LOG_NUMBER || use == KELP_INIT_SINCE) {
            kelp_derived_name(lister->facts, i, use == KELP_INIT_SINCE ? "_since" : "_log", name);
            name_item(lister, name);
        } else if (use == KELP_INIT_ONE_HOT) {
            name_words(lister, i);
        } else if (use == KELP_INIT_DATE) {
            int first = lister->choice->has_categories ? KELP_DATE_YEAR : 0;
            name_date_parts(lister, i, first, KELP_DATE_PART_COUNT);
        }
    }
    end_names(lister);
}

static void name_categories(struct lister *lister)
{
    for (uint32_t i = 0; i < lister->facts->column_count; i++) {
        enum kelp_init_use use = lister->choice->columns[i].use;
        if (use == KELP_INIT_CATEGORY) {
            name_item(lister, lister->facts->columns[i].name);
        } else if (use == KELP_INIT_DATE && lister->choice->has_categories) {
            name_date_parts(lister, i, 0, KELP_DATE_YEAR);
        }
    }
    end_names(lister);
}

/* ---- whole ----------------------------------------------------------------------------------- */

void kelp_init_print_table_keys(const struct kelp_table_facts *facts,
                                const struct kelp_init_choice *choice, FILE *out)
{
    static const struct {
        const char *key;
        void (*print)(struct lister *lister);
    } lists[] = {{"derive", derive},
                 {"filter", filter},
                 {"columns", name_numbers},
                 {"categories", name_categories}};
    struct lister lister = {.facts = facts, .choice = choice, .out = out};
    char name[NAME_BYTES];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(lists); i++) {
        lister.key = lists[i].key;
        lister.begun = false;
        lists[i].print(&lister);
    }
    (void)fputs("  targets: [", out);
    kelp_init_print_text(target_name(&lister, name), out);
    (void)fputs("]\n", out);
}

void kelp_init_print_panel_keys(const struct kelp_table_facts *facts,
                                const struct kelp_init_choice *choice, FILE *out)
{
    struct lister lister = {.facts = facts, .choice = choice, .out = out, .key = "derive"};
    char of[QUOTED_BYTES];
    bool days = facts->date_step < 86400, weeks = facts->date_step <= 86400;
    kelp_expression_column_text(facts->columns[choice->time].name, of);
    if (days) {
        item(&lister, "day_sin = sin(2 * pi * hour(%s) / 24)", of);
        item(&lister, "day_cos = cos(2 * pi * hour(%s) / 24)", of);
    }
    if (weeks) {
        item(&lister, "week_sin = sin(2 * pi * (24 * weekday(%s) + hour(%s)) / 168)", of, of);
        item(&lister, "week_cos = cos(2 * pi * (24 * weekday(%s) + hour(%s)) / 168)", of, of);
    } else {
        item(&lister, "year_sin = sin(2 * pi * month(%s) / 12)", of);
        item(&lister, "year_cos = cos(2 * pi * month(%s) / 12)", of);
    }
    (void)fprintf(out, "  known: [%s%s]\n", days ? "day_sin, day_cos, " : "",
                  weeks ? "week_sin, week_cos" : "year_sin, year_cos");
    (void)fputs("  time: ", out);
    kelp_init_print_text(facts->columns[choice->time].name, out);
    (void)fputs("\n  group: ", out);
    kelp_init_print_text(facts->columns[choice->group].name, out);
    (void)fputs("\n  targets: [", out);
    kelp_init_print_text(facts->columns[choice->target].name, out);
    (void)fputs("]\n", out);
}
