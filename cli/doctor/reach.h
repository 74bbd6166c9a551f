/* Is an address reached from this host? */
#ifndef KELP_CLI_DOCTOR_REACH_H
#define KELP_CLI_DOCTOR_REACH_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Connect to an address as a process registers it (kelp_address_is_target()), and hang up. Returns
 * 0, or errno: ETIMEDOUT also when nothing came within the time. *ret_here: whoever was reached is
 * on this host.
 */
int kelp_reach(const char *address, uint32_t within_ms, bool *ret_here);

#endif
