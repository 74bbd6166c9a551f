/* What a process has in memory (/proc/PID/smaps), code and files apart. */
#ifndef KELP_TESTS_LIB_COMMANDS_PROCESS_MEMORY_H
#define KELP_TESTS_LIB_COMMANDS_PROCESS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kelp_process_memory {
    uint64_t own_bytes; /* its heap, and the shared areas that it may write */
    uint64_t read_only; /* bytes of shared areas of others */
};

/* False: it has ended. */
bool kelp_process_memory_read(pid_t pid, struct kelp_process_memory *ret_memory);

#endif
