/* Prints docs/JOB.md from the table of job keys. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/base/value.h"
#include "common/job/job_options.h"

#define PAGE_WIDTH 118 /* columns of a line */

static void allowed_numbers(const struct kelp_job_key *key, char *text, size_t text_bytes)
{
    char low[KELP_VALUE_TEXT_MAX], high[KELP_VALUE_TEXT_MAX];

    if (key->type == KELP_JOB_DOUBLE || key->type == KELP_JOB_NUMBERS) {
        kelp_value_print_double(key->number_min, low);
        kelp_value_print_double(key->number_max, high);
    } else if (key->type == KELP_JOB_SIZE) {
        kelp_value_print_size(key->min, low);
        kelp_value_print_size(key->max, high);
    } else if (key->type == KELP_JOB_DURATION) {
        kelp_value_print_duration(key->min, low);
        kelp_value_print_duration(key->max, high);
    } else {
        int64_t min = key->type == KELP_JOB_I32 ? -1 : (int64_t)key->min;
        (void)snprintf(low, sizeof(low), "%" PRId64, min);
        (void)snprintf(high, sizeof(high), "%" PRIu64, key->max);
    }
    (void)snprintf(text, text_bytes, "%.60s to %.60s", low, high);
}

static void allowed_choices(const struct kelp_job_key *key, FILE *out)
{
    for (size_t i = 0; key->choices[i]; i++) {
        (void)fprintf(out, "%s`%s`", i > 0 ? ", " : "", key->choices[i]);
    }
}

void kelp__job_key_print_allowed(FILE *out, const struct kelp_job_key *key)
{
    static const char *const words[] = {
        [KELP_JOB_BOOL] = "`true`, `false`",
        [KELP_JOB_U32] = "integer",
        [KELP_JOB_U64] = "integer",
        [KELP_JOB_I32] = "integer",
        [KELP_JOB_DOUBLE] = "number",
        [KELP_JOB_NAME] = "letters, digits, `-`, `_`, `.`",
        [KELP_JOB_TEXT] = "text",
        [KELP_JOB_PATH] = "path",
        [KELP_JOB_SIZE] = "size",
        [KELP_JOB_DURATION] = "duration",
        [KELP_JOB_RANGE] = "`MIN:MAX` or `N`,",
        [KELP_JOB_CHOICE] = "",
        [KELP_JOB_WIDTHS] = "list of integers",
        [KELP_JOB_SPLIT] = "list of 3 integers",
        [KELP_JOB_NUMBERS] = "list of numbers",
        [KELP_JOB_TEXTS] = "list of texts",
    };
    char range[2 * KELP_VALUE_TEXT_MAX];

    (void)fputs(words[key->type], out);
    switch (key->type) {
    case KELP_JOB_CHOICE:
        allowed_choices(key, out);
        return;
    case KELP_JOB_BOOL:
        return;
    case KELP_JOB_NAME:
    case KELP_JOB_TEXT:
    case KELP_JOB_PATH:
    case KELP_JOB_TEXTS:
        (void)fprintf(out, ", at most %zu bytes", key->bytes - 1);
        return;
    case KELP_JOB_U32:
    case KELP_JOB_U64:
    case KELP_JOB_I32:
    case KELP_JOB_DOUBLE:
    case KELP_JOB_SIZE:
    case KELP_JOB_DURATION:
    case KELP_JOB_RANGE:
    case KELP_JOB_WIDTHS:
    case KELP_JOB_SPLIT:
    case KELP_JOB_NUMBERS:
        allowed_numbers(key, range, sizeof(range));
        (void)fprintf(out, " %s", range);
        return;
    }
}

/* The only choice with which the key has no meaning; NULL: there are several. */
static const char *only_lacking(const struct kelp_job_key *key, const struct kelp_job_key *other)
{
    const char *lacking = NULL;
    uint32_t count = 0;

    for (uint32_t i = 0; other->choices[i]; i++) {
        if ((key->only_values & (1u << i)) == 0) {
            lacking = other->choices[i];
            count++;
        }
    }
    return count == 1 ? lacking : NULL;
}

static void print_only_with(FILE *out, const struct kelp_job_key *key)
{
    if (!key->only_with) {
        return;
    }
    const struct kelp_job_key *other = &kelp__job_keys[kelp__job_key_find(key->only_with)];
    const char *separator = "";
    const char *lacking = only_lacking(key, other);
    if (lacking) {
        (void)fprintf(out, " Not with `%s` `%s`.", key->only_with, lacking);
        return;
    }
    (void)fprintf(out, " Only with `%s` ", key->only_with);
    for (uint32_t i = 0; other->choices[i]; i++) {
        if (key->only_values & (1u << i)) {
            (void)fprintf(out, "%s`%s`", separator, other->choices[i]);
            separator = " or ";
        }
    }
    (void)fputc('.', out);
}

static void print_key(FILE *out, const struct kelp_job_key *key)
{
    static const char *const changes[] = {[KELP_JOB_STAYS] = "stays",
                                          [KELP_JOB_CHANGES] = "may change",
                                          [KELP_JOB_GROWS] = "may grow"};

    (void)fprintf(out, "- **`%s`**: ", key->name);
    kelp__job_key_print_allowed(out, key);
    if (key->required) {
        (void)fprintf(out, "; required; %s.\n", changes[key->change]);
    } else if (key->default_text[0] != '\0') {
        (void)fprintf(out, "; default `%s`; %s.\n", key->default_text, changes[key->change]);
    } else {
        (void)fprintf(out, "; default empty; %s.\n", changes[key->change]);
    }
    (void)fprintf(out, "  %s.", key->help);
    print_only_with(out, key);
    (void)fputc('\n', out);
}

/* Print a heading if the key's section differs from that of the key before. */
static void print_heading(FILE *out, const struct kelp_job_key *key)
{
    size_t length = strcspn(key->name, ".");

    if (key == kelp__job_keys) {
        (void)fputs("\n## Keys without a section\n\n", out);
    } else if (key->name[length] == '.' && strncmp(key[-1].name, key->name, length + 1) != 0) {
        (void)fprintf(out, "\n## %.*s\n\n", (int)length, key->name);
    }
}

static void print_page(FILE *out)
{
    (void)fputs(
        "# Job files\n\n"
        "A job file is YAML: sections, and in them the keys of this page. `kelp train job.yaml` "
        "reads it. It must set `model.kind` (or `model.plugin`) and `data.kind`; or "
        "`model.program` or "
        "`model.python` instead of both. Any other key that it leaves out has its default.\n\n"
        "- **Precedence**: `--set key=value` on the command line, then the environment "
        "(`KELP_TRAIN_LR` for `train.lr`), then the file, then the default. "
        "`kelp train --print-config` shows the values in effect, and where each comes from.\n"
        "- **Mistakes** are errors with file, line and key: an unknown key, a key given twice, a "
        "key that does not apply to the chosen kind, a value out of range, a missing unit.\n"
        "- **Units**: sizes need one (`B`, `KiB`, `MiB`, `GiB`), and so do durations (`ms`, `s`, "
        "`m`, `h`).\n"
        "- **Relative paths** in a job file begin at the file's folder, those of `--set` and the "
        "environment at the current directory. `job.yaml` of a run has absolute paths, and the run "
        "works from any directory.\n"
        "- **On resume**: `kelp train --resume` compares the job with the one that the run had. "
        "A key that *may change* does not affect the result. One that *may grow* continues where "
        "the shorter job ended. One that *stays* must be the same; of a path, the last part. "
        "`--force` accepts a difference; "
        "the result is then that of neither job.\n\n"
        "Each entry below has the values, the default, and what `--resume` accepts.\n\n"
        "<!-- Generated from common/job/job_options.c: KELP_UPDATE=1 ctest -R test_job -->\n",
        out);
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        print_heading(out, &kelp__job_keys[i]);
        print_key(out, &kelp__job_keys[i]);
    }
}

/* Print one line of the page, broken at spaces; an item ("- ") stays indented. */
static void print_wrapped(FILE *out, const char *line, const char *end)
{
    int indent = (line[0] == '-' || line[0] == ' ') && line[1] == ' ' ? 2 : 0;
    int column = fprintf(out, "%.*s", indent, line);

    line += indent;
    while (line < end) {
        int word = (int)strcspn(line, " \n");
        if (column > indent && column + 1 + word > PAGE_WIDTH) {
            (void)fprintf(out, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(out, "%s%.*s", column > indent ? " " : "", word, line);
        line += word + 1;
    }
    (void)fputc('\n', out);
}

kelp_status kelp_job_reference(char **ret_text)
{
    struct kelp_text page, wrapped;
    char *bytes = NULL;
    size_t count;
    kelp_status status = kelp_text_open(&page, NULL);

    if (status != KELP_OK) {
        return status;
    }
    print_page(page.out);
    status = kelp_text_close(&page, &bytes, &count, NULL);
    if (status == KELP_OK) {
        status = kelp_text_open(&wrapped, NULL);
    }
    if (status == KELP_OK) {
        for (const char *line = bytes, *end; *line != '\0'; line = end + 1) {
            end = strchr(line, '\n');
            print_wrapped(wrapped.out, line, end);
        }
        status = kelp_text_close(&wrapped, ret_text, &count, NULL);
    }
    free(bytes);
    return status;
}
