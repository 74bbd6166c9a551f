/* The memory of a process (/proc/PID/smaps), without code and files. */
#ifndef KELP_TESTS_LIB_COMMANDS_PROCESS_MEMORY_H
#define KELP_TESTS_LIB_COMMANDS_PROCESS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kelp_process_memory {
    uint64_t own_bytes; /* heap, and shared areas it can write */
    uint64_t read_only; /* bytes of others' shared areas */
};

/* False: the process has ended. */
bool kelp_process_memory_read(pid_t pid, struct kelp_process_memory *ret_memory);

#endif
