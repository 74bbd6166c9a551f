#include "cli/describe/job_page.h"

#include <stdlib.h>
#include <string.h>

#include "cli/describe/roff.h"
#include "common/job/job.h"

/* ---- Markdown ------------------------------------------------------------------------------ */

/* What stands open in a line: `code` and **strong** are bold, *stress* is italic. */
struct style {
    bool code, strong, stress;
};

static void put_font(FILE *out, const struct style *style)
{
    const char *font = style->code || style->strong ? "\\fB" : style->stress ? "\\fI" : "\\fR";

    (void)fputs(font, out);
}

/* A mark at text: how many bytes it takes, 0 for none. Within code a star is a star. */
static size_t take_mark(const char *text, struct style *style)
{
    if (text[0] == '`') {
        style->code = !style->code;
        return 1;
    }
    if (text[0] != '*' || style->code) {
        return 0;
    }
    bool *open = text[1] == '*' ? &style->strong : &style->stress;
    *open = !*open;
    return text[1] == '*' ? 2 : 1;
}

/* Marks may stay open at a line's end: style goes on in the next. */
static void put_words(FILE *out, const char *text, struct style *style)
{
    char plain[512];
    size_t count = 0;

    for (;;) {
        size_t mark = *text == '\0' ? 0 : take_mark(text, style);
        if (*text == '\0' || mark > 0 || count + 1 == sizeof(plain)) {
            plain[count] = '\0';
            kelp_roff_put(out, plain);
            count = 0;
        }
        if (*text == '\0') {
            break;
        }
        if (mark > 0) {
            put_font(out, style);
            text += mark;
        } else {
            plain[count++] = *text++;
        }
    }
    (void)fputc('\n', out);
}

/* "- **`train.lr`**: number": the key stands out, and what is said of it is indented. Other items
 * have a bullet. */
static void put_item(FILE *out, const char *item, struct style *style)
{
    const char *end = strncmp(item, "**`", 3) == 0 ? strstr(item, "`**: ") : NULL;

    if (!end) {
        (void)fputs(".IP \\(bu 2\n", out);
        put_words(out, item, style);
        return;
    }
    (void)fprintf(out, ".TP\n\\fB%.*s\\fR\n", (int)(end - item - 3), item + 3);
    put_words(out, end + 5, style);
}

static void put_line(FILE *out, const char *line, struct style *style)
{
    if (strncmp(line, "## ", 3) == 0) {
        kelp_roff_put_between(out, ".SS \"", line + 3, "\"\n");
    } else if (strncmp(line, "- ", 2) == 0) {
        put_item(out, line + 2, style);
    } else if (line[0] == '\0') {
        (void)fputs(".PP\n", out);
    } else if (line[0] != '#' && strncmp(line, "<!--", 4) != 0) {
        put_words(out, line + strspn(line, " "), style);
    }
}

/* ---- the page ------------------------------------------------------------------------------ */

static void put_ends(FILE *out)
{
    (void)fputs(".SH EXAMPLES\n.EX\n", out);
    kelp_roff_put(out, "name: rides\n"
                       "model: {kind: mlp, hidden: [32]}\n"
                       "data: {kind: table, path: rides.csv, targets: [rides]}\n"
                       "train: {epochs: 20, lr: 0.01}\n");
    (void)fputs(".EE\n.PP\n", out);
    kelp_roff_put(out,
                  "kelp init rides.csv writes such a file for data of your own, with a comment "
                  "for each key.\nkelp explain train.lr prints what stands here of a key.\n");
    (void)fputs(".SH SEE ALSO\n.BR kelp\\-train (1),\n.BR kelp\\-init (1),\n"
                ".BR kelp\\-explain (1),\n.BR kelp (1)\n",
                out);
    kelp_roff_elsewhere(out);
}

kelp_status kelp_job_page_print(FILE *out)
{
    char *text = NULL;
    struct style style = {.code = false};

    kelp_status status = kelp_job_reference(&text);
    if (status != KELP_OK) {
        return status;
    }
    kelp_roff_title(out, KELP_JOB_PAGE, 5);
    (void)fputs(".SH NAME\n" KELP_JOB_PAGE " \\- job files of kelp\n"
                ".SH SYNOPSIS\n.B kelp train\n\\fIJOB.yaml\\fR\n.SH DESCRIPTION\n",
                out);
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line && rest; line = strsep(&rest, "\n")) {
        put_line(out, line, &style);
    }
    put_ends(out);
    free(text);
    return KELP_OK;
}
