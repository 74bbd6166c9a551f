#include "common/tls/core_files.h"

#include <sys/resource.h>

/* A limit of 0 bytes prevents only core files; a limit of 1 also prevents piping to a program
 * (core_pattern "|..."), and is too small for a file. */
#define CORE_BYTES 1

void kelp_core_files_forbid(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_CORE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max < CORE_BYTES ? limit.rlim_max : CORE_BYTES;
        (void)setrlimit(RLIMIT_CORE, &limit); /* lowering it cannot fail */
    }
}
