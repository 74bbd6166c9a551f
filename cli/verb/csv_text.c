#include "cli/verb/csv_text.h"

#include <math.h>
#include <string.h>

void kelp_csv_print_text(FILE *out, const char *text)
{
    if (!text[strcspn(text, ",\"\r\n")]) {
        (void)fputs(text, out);
        return;
    }
    (void)fputc('"', out);
    for (; *text; text++) {
        if (*text == '"') {
            (void)fputc('"', out);
        }
        (void)fputc(*text, out);
    }
    (void)fputc('"', out);
}

void kelp_csv_print_double(FILE *out, double value)
{
    if (isfinite(value)) {
        (void)fprintf(out, "%.17g", value);
    }
}
