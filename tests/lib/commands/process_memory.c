#include "tests/lib/commands/process_memory.h"

#include <stdio.h>
#include <string.h>

/* To which count the mapping of this line belongs; NULL: to none. */
static uint64_t *place_of(const char *line, struct kelp_process_memory *memory)
{
    char mode[8] = "", path[256] = "";

    (void)sscanf(line, "%*s %7s %*s %*s %*s %255s", mode, path);
    if (strncmp(path, "/memfd:", 7) == 0) {
        return mode[1] == 'w' ? &memory->own_bytes : &memory->read_only;
    }
    return path[0] == '\0' || path[0] == '[' ? &memory->own_bytes : NULL;
}

bool kelp_process_memory_read(pid_t pid, struct kelp_process_memory *ret_memory)
{
    struct kelp_process_memory memory = {0};
    uint64_t *place = NULL;
    char path[64], line[512];
    unsigned lines = 0;

    (void)snprintf(path, sizeof(path), "/proc/%ld/smaps", (long)pid);
    FILE *file = fopen(path, "r");
    if (!file) {
        return false;
    }
    while (fgets(line, sizeof(line), file)) {
        unsigned long begin, end, kib;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
            place = place_of(line, &memory);
            lines++;
        } else if (place && sscanf(line, "Rss: %lu kB", &kib) == 1) {
            *place += (uint64_t)kib * 1024;
        }
    }
    (void)fclose(file);
    *ret_memory = memory;
    return lines > 0;
}
