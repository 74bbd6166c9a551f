#include "tests/lib/fake/fake_order.h"

#include <stdlib.h>
#include <string.h>

struct past {
    struct fake_touch touch;
    uint64_t position;
};

struct line {
    bool open;
    uint64_t position;                   /* of the last operation */
    uint64_t before[FAKE_ORDER_STREAMS]; /* positions of others that precede the next one */
    struct past *past;                   /* operations that the host has not waited for */
    size_t count, capacity;
};

static struct line lines[FAKE_ORDER_STREAMS];
static uint64_t host[FAKE_ORDER_STREAMS]; /* positions that the host knows to be done */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint32_t fake_order_open(void)
{
    for (uint32_t i = 0; i < FAKE_ORDER_STREAMS; i++) {
        if (!lines[i].open) {
            lines[i].open = true;
            return i;
        }
    }
    return FAKE_ORDER_STREAMS;
}

void fake_order_close(uint32_t place)
{
    if (place < FAKE_ORDER_STREAMS) {
        fake_order_waited(place, lines[place].position);
        lines[place].open = false;
    }
}

void fake_order_next(uint32_t place)
{
    if (place < FAKE_ORDER_STREAMS) {
        lines[place].position++;
    }
}

uint64_t fake_order_position(uint32_t place)
{
    return place < FAKE_ORDER_STREAMS ? lines[place].position : 0;
}

/* What precedes the other stream's operation also precedes this stream's next one. */
void fake_order_after(uint32_t place, uint32_t other, uint64_t position)
{
    if (place >= FAKE_ORDER_STREAMS || other >= FAKE_ORDER_STREAMS) {
        return;
    }
    for (uint32_t i = 0; i < FAKE_ORDER_STREAMS; i++) {
        lines[place].before[i] = larger(lines[place].before[i], lines[other].before[i]);
    }
    lines[place].before[other] = larger(lines[place].before[other], position);
}

static void forget(struct line *line, uint64_t until)
{
    size_t kept = 0;
    for (size_t i = 0; i < line->count; i++) {
        if (line->past[i].position > until) {
            line->past[kept++] = line->past[i];
        }
    }
    line->count = kept;
}

void fake_order_waited(uint32_t place, uint64_t position)
{
    if (place >= FAKE_ORDER_STREAMS) {
        return;
    }
    host[place] = larger(host[place], position);
    for (uint32_t i = 0; i < FAKE_ORDER_STREAMS; i++) {
        host[i] = larger(host[i], lines[place].before[i]);
        forget(&lines[i], host[i]);
    }
}

static bool is_at_odds(const struct fake_touch *a, const struct fake_touch *b)
{
    return (a->writes || b->writes) && a->address < b->address + b->bytes &&
           b->address < a->address + a->bytes;
}

static void keep(struct line *line, const struct fake_touch *touch)
{
    if (line->count == line->capacity) {
        const size_t capacity = line->capacity != 0 ? 2 * line->capacity : 64;
        struct past *more = realloc(line->past, capacity * sizeof(*more));
        if (!more) {
            return; /* out of memory: a mistake may be missed */
        }
        line->past = more;
        line->capacity = capacity;
    }
    line->past[line->count++] = (struct past){.touch = *touch, .position = line->position};
}

bool fake_order_touch(uint32_t place, const struct fake_touch *touch, const char **ret_name)
{
    bool found = false;
    if (place >= FAKE_ORDER_STREAMS) {
        return false;
    }
    for (uint32_t i = 0; i < FAKE_ORDER_STREAMS; i++) {
        const uint64_t done = larger(host[i], lines[place].before[i]);
        for (size_t j = 0; i != place && !found && j < lines[i].count; j++) {
            const struct past *past = &lines[i].past[j];
            found = past->position > done && is_at_odds(touch, &past->touch);
            *ret_name = past->touch.name;
        }
    }
    keep(&lines[place], touch);
    return found;
}
