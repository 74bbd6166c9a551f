#include "cli/describe/roff.h"

#include <ctype.h>
#include <stdbool.h>

#include "common/program/options/version.h"

void kelp_roff_put(FILE *out, const char *text)
{
    bool line_begins = true;

    for (; *text != '\0'; text++) {
        if (line_begins && (*text == '.' || *text == '\'')) {
            (void)fputs("\\&", out);
        }
        if (*text == '\\') {
            (void)fputs("\\e", out);
        } else if (*text == '-') {
            (void)fputs("\\-", out);
        } else {
            (void)fputc(*text, out);
        }
        line_begins = *text == '\n';
    }
}

void kelp_roff_put_between(FILE *out, const char *before, const char *text, const char *after)
{
    (void)fputs(before, out);
    kelp_roff_put(out, text);
    (void)fputs(after, out);
}

void kelp_roff_title(FILE *out, const char *name, int section)
{
    (void)fputs(".TH \"", out);
    for (const char *c = name; *c != '\0'; c++) {
        (void)fputc(toupper((unsigned char)*c), out);
    }
    (void)fprintf(out, "\" %d \"\" \"Kelp %s\" \"Kelp\"\n", section, kelp_version());
}

void kelp_roff_elsewhere(FILE *out)
{
    (void)fputs(".PP\n"
                "The folder \\fIshare/doc/kelp\\fR of the installation holds the reference of the "
                "command line (docs/CLI.md), of job files (docs/JOB.md), and the rest.\n"
                "Examples of jobs are in \\fIshare/kelp/examples\\fR.\n",
                out);
}
