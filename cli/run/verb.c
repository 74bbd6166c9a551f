#include "cli/run/verb.h"

#include <stdarg.h>
#include <stdio.h>

int kelp_complain(int exit_status, const char *format, ...)
{
    va_list arguments;

    (void)fputs("kelp: ", stderr);
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): started on the line above */
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
    return exit_status;
}
