#include "cli/init/job_print.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/init/job_lists.h"
#include "worker/data/text/calendar.h"

/* Columns that get a line of their own at the top. */
#define TOLD_MAX 200

void kelp_init_job_name(const char *path, char ret_name[KELP_INIT_NAME_MAX + 1])
{
    size_t end = strlen(path), used = 0;
    while (end > 0 && path[end - 1] == '/') {
        end--;
    }
    size_t from = end;
    while (from > 0 && path[from - 1] != '/') {
        from--;
    }
    for (size_t i = from; i < end && path[i] != '.' && used < KELP_INIT_NAME_MAX; i++) {
        bool fits = isalnum((unsigned char)path[i]) || strchr("-_", path[i]);
        ret_name[used++] = (char)(fits ? path[i] : '-');
    }
    ret_name[used] = '\0';
    if (used == 0) {
        memcpy(ret_name, "job", sizeof("job"));
    }
}

/* ---- comments -------------------------------------------------------------------------------- */

static void print_numbers(const struct kelp_column_facts *column, FILE *out)
{
    bool whole = kelp_column_is_whole(column);
    int digits = whole ? 15 : 6;
    (void)fprintf(out, "%s from %.*g to %.*g", whole ? "whole numbers" : "numbers", digits,
                  column->min, digits, column->max);
}

static void print_dates(const struct kelp_column_facts *column, FILE *out)
{
    char first[KELP_CALENDAR_TEXT_BYTES], last[KELP_CALENDAR_TEXT_BYTES];
    kelp_calendar_print(column->first_date, first);
    kelp_calendar_print(column->last_date, last);
    (void)fprintf(out, "dates, %s in the first row, %s in the last", first, last);
}

static void print_facts(const struct kelp_column_facts *column, FILE *out)
{
    switch (kelp_column_type(column)) {
    case KELP_COLUMN_EMPTY:
        (void)fputs("nothing", out);
        break;
    case KELP_COLUMN_CONSTANT:
        (void)fputs("one value", out);
        break;
    case KELP_COLUMN_NUMBER:
        print_numbers(column, out);
        break;
    case KELP_COLUMN_DATE:
        print_dates(column, out);
        break;
    case KELP_COLUMN_WORD:
        (void)fprintf(out, "%s%" PRIu32 " different words", column->words_full ? "over " : "",
                      column->words.count);
        break;
    }
    if (column->missing > 0 && column->present > 0) {
        (void)fprintf(out, ", %" PRIu64 " missing", column->missing);
    }
}

static void print_use(const struct kelp_init_column *column, FILE *out)
{
    static const char *const uses[] = {
        [KELP_INIT_IS_TARGET] = "the target",
        [KELP_INIT_NUMBER] = "a number",
        [KELP_INIT_LOG_NUMBER] = "its logarithm, since a few values are far larger",
        [KELP_INIT_CATEGORY] = "a category",
        [KELP_INIT_ONE_HOT] = "a 0 or 1 for each word",
        [KELP_INIT_DATE] = "its hour, weekday, month and year, where they vary",
        [KELP_INIT_SINCE] = "the time since the row's first date",
        [KELP_INIT_TIME] = "the order of the rows",
        [KELP_INIT_GROUP] = "a series for each",
    };
    if (column->use == KELP_INIT_LEFT_OUT) {
        (void)fprintf(out, "; left out: %s\n", column->why);
    } else {
        (void)fprintf(out, "; %s\n", uses[column->use]);
    }
}

/* A name as a comment may have it. */
static void print_name(const char *name, FILE *out)
{
    for (size_t i = 0; name[i] != '\0'; i++) {
        (void)fputc(iscntrl((unsigned char)name[i]) ? '?' : name[i], out);
    }
}

static void print_columns(const struct kelp_table_facts *facts,
                          const struct kelp_init_choice *choice, FILE *out)
{
    for (uint32_t i = 0; i < facts->column_count && i < TOLD_MAX; i++) {
        (void)fputs("#   ", out);
        print_name(facts->columns[i].name, out);
        (void)fputs(": ", out);
        print_facts(&facts->columns[i], out);
        print_use(&choice->columns[i], out);
    }
    if (facts->column_count > TOLD_MAX) {
        (void)fprintf(out, "#   and %" PRIu32 " more\n", facts->column_count - TOLD_MAX);
    }
}

static void print_heading(const struct kelp_init_source *source, FILE *out)
{
    (void)fputs("# A first job for ", out);
    print_name(source->shown, out);
    (void)fputs(", written by kelp init. Change what you like;\n"
                "# kelp explain KEY tells about a key.\n#\n#   kelp train ",
                out);
    print_name(source->file, out);
    (void)fputs("\n#   kelp predict --data NEW --out predictions.csv\n#\n", out);
}

static void print_survey(const struct kelp_table_facts *facts,
                         const struct kelp_init_choice *choice, FILE *out)
{
    (void)fprintf(out, "# %" PRIu64 " rows", facts->rows);
    if (facts->looked < facts->rows) {
        (void)fprintf(out, ", of which the first %" PRIu64 " were looked at", facts->looked);
    }
    (void)fprintf(out, "; %" PRIu32 " columns:\n", facts->column_count);
    print_columns(facts, choice, out);
    if (!choice->target_given) {
        (void)fputs("# The target is a guess: kelp init --target COLUMN takes another one.\n"
                    "# Remove inputs that you will not know when you predict.\n",
                    out);
    }
}

/* Names of classes, in the order of their numbers. Without memory the comment is left out. */
static void print_sorted(const struct kelp_words *words, FILE *out)
{
    const char **names = kelp_words_sorted(words);
    for (uint32_t w = 0; names && w < words->count; w++) {
        (void)fprintf(out, "%s %" PRIu32 " ", w == 0 ? "# Classes:" : ",", w);
        print_name(names[w], out);
    }
    (void)fputs(names ? "\n" : "", out);
    free(names);
}

/* Of two words, or numbers, the one whose chance is learnt; classes in their order. */
static void print_classes(const struct kelp_table_facts *facts,
                          const struct kelp_init_choice *choice, FILE *out)
{
    const struct kelp_column_facts *target = &facts->columns[choice->target];
    if (choice->target_kind == KELP_INIT_OTHER_CHANCE) {
        (void)fputs("# The model learns how likely ", out);
        print_name(kelp_words_at(&target->words, choice->likely), out);
        (void)fputs(" is; it predicts a logit: over 0 is over 50 %.\n", out);
    }
    if (choice->target_kind == KELP_INIT_WORD_CLASS) {
        print_sorted(&target->words, out);
    }
}

/* ---- sections -------------------------------------------------------------------------------- */

static void print_head(const struct kelp_init_source *source, const char *kind, FILE *out)
{
    (void)fprintf(out, "name: %s\nseed: 1\nmodel:\n  kind: %s\n", source->name, kind);
}

static void print_path(const struct kelp_init_source *source, const char *kind, FILE *out)
{
    (void)fprintf(out, "data:\n  kind: %s\n  path: ", kind);
    kelp_init_print_text(source->path, out);
    (void)fputc('\n', out);
}

static void print_windows(const struct kelp_init_choice *choice, FILE *out)
{
    (void)fprintf(out,
                  "  seq_len: %" PRIu32 "    # rows that the model sees\n"
                  "  pred_len: %" PRIu32 "   # rows that it forecasts\n"
                  "  split: [%" PRIu64 ", %" PRIu64 ", %" PRIu64
                  "]   # rows for training, validation, testing\n",
                  choice->seq_len, choice->pred_len, choice->split[0], choice->split[1],
                  choice->split[2]);
}

static void print_training(const struct kelp_init_choice *choice, const char *loss, FILE *out)
{
    (void)fprintf(out,
                  "train:\n  epochs: %" PRIu32 "\n  batch_size: %" PRIu32 "\n  loss: %s\n"
                  "  optimizer: %s\n  lr: %g\n",
                  choice->epochs, choice->batch_size, loss,
                  choice->weight_decay > 0.0 ? "adamw" : "adam", choice->lr);
    if (choice->weight_decay > 0.0) {
        (void)fprintf(out, "  weight_decay: %g\n", choice->weight_decay);
    }
    if (choice->decay_weights_alone) {
        (void)fputs(
            "  decay_exclude: ['*.bias']   # few rows for so many categories: keep weights small\n",
            out);
    }
    if (choice->patience > 0) {
        (void)fprintf(out,
                      "  patience: %" PRIu32 "   # epochs without a better val/loss, then stop\n",
                      choice->patience);
    }
}

static void print_series(const struct kelp_init_source *source,
                         const struct kelp_table_facts *facts,
                         const struct kelp_init_choice *choice, FILE *out)
{
    print_head(source, "dlinear", out);
    if (choice->seq_len < 25) {
        (void)fputs("  kernel_size: 3\n", out);
    }
    print_path(source, "csv", out);
    (void)fputs("  target: ", out);
    kelp_init_print_text(facts->columns[choice->target].name, out);
    (void)fputs("\n  features: S   # the target alone; MS: all columns, of numbers\n", out);
    print_windows(choice, out);
    print_training(choice, "mse", out);
}

static void print_panel(const struct kelp_init_source *source, const struct kelp_table_facts *facts,
                        const struct kelp_init_choice *choice, FILE *out)
{
    print_head(source, "tft", out);
    (void)fputs("  d_model: 16\n  heads: 4\n", out);
    print_path(source, "panel", out);
    kelp_init_print_panel_keys(facts, choice, out);
    print_windows(choice, out);
    (void)fputs("  normalize_target: standard\n", out);
    print_training(choice, "quantile   # 0.1, 0.5 and 0.9", out);
    (void)fputs("  max_steps: 400\n  evaluate_steps: 100\n  clip_norm: 0.1\n", out);
}

static void print_rows(const struct kelp_init_source *source, const struct kelp_table_facts *facts,
                       const struct kelp_init_choice *choice, FILE *out)
{
    bool classes =
        choice->target_kind == KELP_INIT_CLASS || choice->target_kind == KELP_INIT_WORD_CLASS;
    bool amount = choice->target_kind == KELP_INIT_AMOUNT;
    print_head(source, choice->has_categories ? "deepfm" : "mlp", out);
    (void)fputs(choice->has_categories ? "  embedding_dim: 4\n" : "", out);
    (void)fputs(facts->rows < 2000 ? "  hidden: [16]\n" : "  hidden: [64, 32]\n", out);
    print_path(source, "table", out);
    kelp_init_print_table_keys(facts, choice, out);
    if (choice->missing) {
        (void)fputs("  missing: mean   # of numbers; a missing word is a category of its own\n",
                    out);
    }
    (void)fputs("  normalize: standard\n", out);
    (void)fputs(amount ? "  normalize_target: standard\n" : "", out);
    (void)fputs(
        choice->random_split
            ? "  random_split: true   # the file is sorted: take its rows in another order\n"
            : "",
        out);
    (void)fprintf(out, "  test_every: %d   # the last of every %d rows is for testing\n",
                  KELP_INIT_TEST_EVERY, KELP_INIT_TEST_EVERY);
    (void)fputs("  fractions: [0.9, 0.1]   # of the others: training, validation\n", out);
    print_training(choice, amount ? "mse" : classes ? "cross_entropy" : "bce_with_logits", out);
}

void kelp_init_print_table(const struct kelp_init_source *source,
                           const struct kelp_table_facts *facts,
                           const struct kelp_init_choice *choice, FILE *out)
{
    print_heading(source, out);
    print_survey(facts, choice, out);
    print_classes(facts, choice, out);
    switch (choice->shape) {
    case KELP_INIT_SERIES:
        print_series(source, facts, choice, out);
        break;
    case KELP_INIT_PANEL:
        print_panel(source, facts, choice, out);
        break;
    case KELP_INIT_TABLE:
        print_rows(source, facts, choice, out);
        break;
    }
    (void)fputs("cluster:\n  workers: 2\n  shards: 1\n  lanes: 4\n", out);
}

void kelp_init_print_images(const struct kelp_init_source *source,
                            const struct kelp_image_facts *facts, FILE *out)
{
    print_heading(source, out);
    (void)fprintf(out,
                  "# %" PRIu32 " training images of %" PRIu32 " x %" PRIu32 " pixels in %" PRIu32
                  " classes.\n",
                  facts->count, facts->height, facts->width, facts->classes);
    print_head(source, "convnet", out);
    (void)fprintf(out, "  classes: %" PRIu32 "\n", facts->classes);
    print_path(source, "idx", out);
    (void)fprintf(out, "  mean: %.4f\n  std: %.4f\n", facts->mean, facts->std);
    (void)fputs("train:\n  epochs: 2\n  batch_size: 128\n  loss: nll\n  optimizer: adadelta\n"
                "  lr: 1\n  schedule: step\n  schedule_step: 1\n  gamma: 0.7\n"
                "cluster:\n  workers: 2\n  shards: 1\n  lanes: 4\n",
                out);
}
