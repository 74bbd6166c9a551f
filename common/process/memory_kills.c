#include "common/process/memory_kills.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/process/proc_file.h"
#include "common/process/process.h"

#define VMSTAT_BYTES 16384 /* it has 4 to 6 KiB */

uint64_t kelp_memory_kills_in(const char *text)
{
    static const char name[] = "oom_kill ";
    const char *line =
        strncmp(text, name, sizeof(name) - 1) == 0 ? text : strstr(text, "\noom_kill ");

    return line ? strtoull(strchr(line, ' '), NULL, 10) : 0;
}

uint64_t kelp_memory_kills(void)
{
    char text[VMSTAT_BYTES];

    return kelp_proc_file_read("vmstat", text, sizeof(text)) > 0 ? kelp_memory_kills_in(text) : 0;
}

void kelp_memory_kills_describe(int wait_status, uint64_t kills, char *text, size_t text_bytes)
{
    kelp_process_describe(wait_status, text, text_bytes);
    if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL && kills > 0) {
        const size_t used = strlen(text);
        (void)snprintf(text + used, text_bytes - used,
                       ", perhaps because memory ran out (the system killed %" PRIu64
                       " process%s for that while it ran)",
                       kills, kills == 1 ? "" : "es");
    }
}
