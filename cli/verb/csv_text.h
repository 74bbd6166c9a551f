/*
 * Fields of a CSV file as RFC 4180 has them. Numbers have 17 digits; what is not finite is empty,
 * as a missing value is.
 */
#ifndef KELP_CLI_VERB_CSV_TEXT_H
#define KELP_CLI_VERB_CSV_TEXT_H

#include <stdio.h>

/* Quoted where it must be. */
void kelp_csv_print_text(FILE *out, const char *text);
void kelp_csv_print_double(FILE *out, double value);

#endif
