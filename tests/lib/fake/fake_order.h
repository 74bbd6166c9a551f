/*
 * The order of the fake device's operations: by their streams, by after(), and by the host's waits.
 * It is a mistake if two operations touch the same memory, at least one of them to write, and
 * neither comes first.
 *
 * Copies touch all their bytes. Of an operator only the start of each operand is known, so it is
 * compared with copies that contain that address and with operators that have an operand there.
 *
 * One for the process. Threads: one caller at a time.
 */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_ORDER_H
#define KELP_TESTS_LIB_FAKE_FAKE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_ORDER_STREAMS 64u /* at a time; further streams are not checked */

/* A stream's place; FAKE_ORDER_STREAMS: none is free. Positions count from 1 for each place. */
uint32_t fake_order_open(void);
void fake_order_close(uint32_t place); /* all of its operations are done */
/* An operation is enqueued. */
void fake_order_next(uint32_t place);
uint64_t fake_order_position(uint32_t place); /* of the last operation */
/* Later operations of the stream come after those of `other` up to the position. */
void fake_order_after(uint32_t place, uint32_t other, uint64_t position);
/* The host has waited for the stream's operations up to the position. */
void fake_order_waited(uint32_t place, uint64_t position);

/* Memory touched by the operation at the stream's last position. */
struct fake_touch {
    uintptr_t address;
    size_t bytes; /* 1: the start of an operand */
    bool writes;
    const char *name; /* borrowed, from the operation */
};
/* True: an operation of another stream conflicts; *ret_name is its name. */
bool fake_order_touch(uint32_t place, const struct fake_touch *touch, const char **ret_name);

#endif
