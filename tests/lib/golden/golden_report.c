#include "tests/lib/golden/golden_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kelp_golden_case_begin(struct kelp_golden_report *report, const char *case_name)
{
    report->case_name = case_name;
    report->passed = report->skipped = report->failed = 0;
}

void kelp_golden_case_end(struct kelp_golden_report *report, const char *note)
{
    if (report->passed + report->skipped + report->failed == 0) {
        return;
    }
    printf("%-32s %-38s %4u passed %4u skipped%s%s\n", report->file->name, report->case_name,
           report->passed, report->skipped, note[0] != '\0' ? "  " : "", note);
    report->total_passed += report->passed;
    report->total_skipped += report->skipped;
    report->total_failed += report->failed;
}

void kelp_golden_fail(struct kelp_golden_report *report, const char *text)
{
    printf("FAILED %s, %s: %s\n", report->file->name, report->case_name, text);
    report->failed++;
}

void kelp_golden_check(struct kelp_golden_report *report, const char *name, const float *values,
                       uint64_t count, const struct kelp_golden_tolerance *tolerance)
{
    char text[KELP_GOLDEN_TEXT_SIZE];
    switch (kelp_golden_compare(report->file, name, values, count, tolerance, text)) {
    case KELP_GOLDEN_EQUAL:
        report->passed++;
        break;
    case KELP_GOLDEN_ABSENT:
        break;
    case KELP_GOLDEN_DIFFERS:
        kelp_golden_fail(report, text);
        break;
    }
}

void kelp_golden_check_scalar(struct kelp_golden_report *report, const char *name, double value)
{
    const float single = (float)value;
    kelp_golden_check(report, name, &single, 1, &kelp_golden_values);
}

void *kelp_golden_allocate(uint64_t count, size_t elem_bytes)
{
    void *memory = calloc((size_t)count + 1, elem_bytes);
    if (memory == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

void kelp_golden_print(char name[KELP_GOLDEN_NAME_SIZE], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(name, KELP_GOLDEN_NAME_SIZE, format, args);
    va_end(args);
}

bool kelp_golden_has(const struct kelp_golden_file *file, const char *name)
{
    return kelp_safetensors_find(file->tensors, name) != NULL;
}
