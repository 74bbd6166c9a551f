/*
 * Looking at many things at once, so that those which do not answer take the time of one.
 */
#ifndef KELP_CLI_DOCTOR_SIDE_BY_SIDE_H
#define KELP_CLI_DOCTOR_SIDE_BY_SIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KELP_SIDE_BY_SIDE_MAX 16 /* threads */

/* Call look(0, user) to look(count - 1, user), each once, some of them at the same time; returns
 * when all have returned. Without threads it calls them one after the other. */
void kelp_side_by_side(size_t count, void (*look)(size_t index, void *user), void *user);

/*
 * Call look(user) in a thread and wait for it, until end_ms (kelp_clock_ms()) at most. False: it
 * has not returned, and may never; what user points to must stay until the process ends. Without a
 * thread it is called here.
 */
bool kelp_side_wait(void (*look)(void *user), void *user, uint64_t end_ms);

#endif
