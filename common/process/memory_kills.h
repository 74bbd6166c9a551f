/*
 * Processes that the system killed because memory ran out, on the machine or in a control group. A
 * killed process cannot say so itself.
 */
#ifndef KELP_COMMON_PROCESS_MEMORY_KILLS_H
#define KELP_COMMON_PROCESS_MEMORY_KILLS_H

#include <stddef.h>
#include <stdint.h>

/* How many there have been on this machine so far; 0 also where that is not known. */
uint64_t kelp_memory_kills(void);
/* The same out of /proc/vmstat's text. Pure. */
uint64_t kelp_memory_kills_in(const char *text);

/* kelp_process_describe(); after SIGKILL also that memory may be the reason, if `kills` processes
 * were killed for it while this one ran. Pure. */
void kelp_memory_kills_describe(int wait_status, uint64_t kills, char *text, size_t text_bytes);

#endif
