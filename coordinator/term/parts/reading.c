#include "coordinator/term/parts/reading.h"

#include "coordinator/core/limits.h"

void kelp_reading_restart(struct kelp_reading *reading)
{
    reading->at_ms = 0;
    reading->again = reading->done;
}

bool kelp_reading_due(const struct kelp_reading *reading, bool elected, uint64_t now_ms)
{
    return (!reading->done || reading->again) && !reading->under_way && elected &&
           now_ms >= reading->at_ms;
}

bool kelp_reading_settled(const struct kelp_reading *reading)
{
    return reading->done && !reading->again;
}

void kelp_reading_sent(struct kelp_reading *reading, bool taken, uint64_t now_ms)
{
    reading->under_way = taken;
    reading->at_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
}

void kelp_reading_answered(struct kelp_reading *reading, bool good, uint64_t now_ms)
{
    reading->under_way = false;
    if (good) {
        reading->done = true;
        reading->again = false;
    } else {
        reading->at_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
    }
}

void kelp_reading_want_map(struct kelp_reading *reading, uint64_t now_ms)
{
    reading->map_wanted = true;
    reading->map_at_ms = now_ms;
}

bool kelp_reading_map_due(const struct kelp_reading *reading, uint64_t now_ms)
{
    return reading->map_wanted && now_ms >= reading->map_at_ms;
}

void kelp_reading_map_sent(struct kelp_reading *reading, bool taken)
{
    reading->map_wanted = !taken;
}

void kelp_reading_map_failed(struct kelp_reading *reading, uint64_t now_ms)
{
    reading->map_wanted = true;
    reading->map_at_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
}
