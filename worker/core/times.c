#include "worker/core/times.h"

#include <string.h>

void kelp_times_waits(struct kelp_times *times, uint64_t now_us)
{
    if (times->waiting_us == 0) {
        times->waiting_us = now_us;
    }
}

void kelp_times_answered(struct kelp_times *times, uint32_t link, uint64_t now_us)
{
    if (times->last_us > 0 && times->last_link != link) {
        times->before_us = times->last_us; /* all other links had answered by then */
    }
    times->last_us = now_us;
    times->last_link = link;
}

void kelp_times_begins(struct kelp_times *times)
{
    const uint64_t from_us =
        times->before_us > times->waiting_us ? times->before_us : times->waiting_us;
    const bool alone = times->before_us > 0 && times->waiting_us > 0;

    times->alone_us = alone && times->last_us > from_us ? times->last_us - from_us : 0;
    times->alone_link = times->last_link;
    times->last_us = 0;
    times->before_us = 0;
}

/* Keep the links that are waited for most: a new link replaces the one with the least time. */
static void add_alone(struct kelp_times *times, uint32_t link, uint64_t us)
{
    uint32_t least = 0;

    for (uint32_t i = 0; i < KELP_TIMES_LINKS; i++) {
        if (times->links[i].us > 0 && times->links[i].link == link) {
            times->links[i].us += us;
            return;
        }
        least = times->links[i].us < times->links[least].us ? i : least;
    }
    times->links[least].link = link;
    times->links[least].us = us;
}

static void close_window(struct kelp_times *times, uint64_t now_us,
                         struct kelp_times_window *ret_window)
{
    const uint64_t serial = times->window.serial + 1;

    *ret_window = times->window;
    ret_window->serial = serial;
    ret_window->length_us = now_us - times->since_us;
    for (uint32_t i = 0; i < KELP_TIMES_LINKS; i++) {
        if (times->links[i].us > ret_window->alone_us) {
            ret_window->alone_us = times->links[i].us;
            ret_window->link = times->links[i].link;
        }
    }
    memset(times->links, 0, sizeof(times->links));
    times->window = (struct kelp_times_window){.serial = serial};
    times->since_us = now_us;
}

bool kelp_times_add(struct kelp_times *times, const struct kelp_times_step *step, uint64_t now_us,
                    struct kelp_times_window *ret_window)
{
    struct kelp_times_window *window = &times->window;
    const uint64_t took_us = step->read_us + step->compute_us + step->push_us + step->wait_us;

    times->waiting_us = 0;
    if (!step->train) {
        /* A window has only training steps; the time between them is left out. */
        times->since_us += times->since_us > 0 ? took_us : 0;
        times->alone_us = 0;
        return false;
    }
    if (times->since_us == 0) {
        times->since_us = now_us > took_us ? now_us - took_us : 1;
    }
    window->steps += step->begins ? 1 : 0;
    window->lanes += step->lanes;
    window->read_us += step->read_us;
    window->compute_us += step->compute_us;
    window->push_us += step->push_us;
    window->wait_us += step->wait_us;
    if (times->alone_us > 0) {
        add_alone(times, times->alone_link, times->alone_us);
        times->alone_us = 0;
    }
    if (window->steps < KELP_TIMES_STEPS || now_us < times->since_us + KELP_TIMES_WINDOW_US) {
        return false;
    }
    close_window(times, now_us, ret_window);
    return true;
}
