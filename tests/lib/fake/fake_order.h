/*
 * What of the fake device's streams comes before what: by their own order, by after(), and by the
 * host's waits. Two of them that touch the same memory, one to write, with nothing that says which
 * comes first, are a mistake.
 *
 * A copy touches its bytes. An operator is known by where its operands begin alone, so it is set
 * against copies around that place and against operators that begin at the same.
 *
 * One for the process. Threads: one caller at a time.
 */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_ORDER_H
#define KELP_TESTS_LIB_FAKE_FAKE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_ORDER_STREAMS 64u /* at once; streams beyond that are not looked at */

/* A stream's place, FAKE_ORDER_STREAMS: there is none. Positions count from 1, per place. */
uint32_t fake_order_open(void);
void fake_order_close(uint32_t place); /* all of it is done */
/* Something is enqueued. */
void fake_order_next(uint32_t place);
uint64_t fake_order_position(uint32_t place); /* of the last one */
/* What comes next on the stream comes after all of other's up to the position. */
void fake_order_after(uint32_t place, uint32_t other, uint64_t position);
/* The host waited for all of the stream's up to the position. */
void fake_order_waited(uint32_t place, uint64_t position);

/* Memory that the operation at the stream's last position touches. */
struct fake_touch {
    uintptr_t address;
    size_t bytes; /* 1: an operand begins there */
    bool writes;
    const char *name; /* borrowed: of the operation */
};
/* The operation of another stream that is at odds with it; NULL: none. *ret_name: its name. */
bool fake_order_touch(uint32_t place, const struct fake_touch *touch, const char **ret_name);

#endif
