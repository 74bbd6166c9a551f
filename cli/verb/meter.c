#include "cli/verb/meter.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/status.h"

#define FIELD_BYTES 48
#define BAR_MIN     10 /* cells; less says nothing */
#define BAR_MAX     40

enum field {
    FIELD_EPOCH,
    FIELD_BAR,
    FIELD_PERCENT,
    FIELD_STEP,
    FIELD_LOSS,
    FIELD_VAL,
    FIELD_SKIPPED,
    FIELD_RATE,
    FIELD_WORKERS,
    FIELD_SHARDS,
    FIELD_LEFT,
    FIELD_COUNT
};

/* What is left out first when the terminal is narrow; percent is never left out. */
static const enum field drop_order[] = {FIELD_SHARDS,  FIELD_WORKERS, FIELD_RATE, FIELD_EPOCH,
                                        FIELD_BAR,     FIELD_LEFT,    FIELD_VAL,  FIELD_LOSS,
                                        FIELD_SKIPPED, FIELD_STEP};

void kelp_meter_duration(double seconds, char *text, size_t text_bytes)
{
    if (!(seconds >= 0)) {
        seconds = 0;
    }
    if (seconds < 0.9995) {
        (void)snprintf(text, text_bytes, "%.0f ms", seconds * 1000);
    } else if (seconds < 59.95) {
        (void)snprintf(text, text_bytes, "%.1f s", seconds);
    } else if (seconds < 3599.5) {
        unsigned whole = (unsigned)(seconds + 0.5);
        (void)snprintf(text, text_bytes, "%u min %02u s", whole / 60, whole % 60);
    } else {
        double minutes = floor(seconds / 60 + 0.5);
        (void)snprintf(text, text_bytes, "%.0f h %02.0f min", floor(minutes / 60),
                       fmod(minutes, 60));
    }
}

void kelp_meter_count(double value, char *text, size_t text_bytes)
{
    if (value < 999.5) {
        (void)snprintf(text, text_bytes, "%.0f", value);
    } else if (value < 999950) {
        (void)snprintf(text, text_bytes, "%.1fk", value / 1e3);
    } else {
        (void)snprintf(text, text_bytes, "%.1fM", value / 1e6);
    }
}

void kelp_meter_size(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    size_t unit = 0;

    if (bytes < 1024) {
        (void)snprintf(text, text_bytes, "%" PRIu64 " B", bytes);
        return;
    }
    while (value >= 1023.95 && unit + 1 < KELP_ARRAY_COUNT(units)) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(text, text_bytes, "%.1f %s", value, units[unit]);
}

/* Short form for the bar: "00:12", "1:02:03". */
static void clock_text(double seconds, char *text, size_t text_bytes)
{
    uint64_t whole = seconds > 359999 ? 359999 : (uint64_t)(seconds + 0.5);

    if (whole < 3600) {
        (void)snprintf(text, text_bytes, "%02u:%02u", (unsigned)(whole / 60),
                       (unsigned)(whole % 60));
    } else {
        (void)snprintf(text, text_bytes, "%u:%02u:%02u", (unsigned)(whole / 3600),
                       (unsigned)(whole / 60 % 60), (unsigned)(whole % 60));
    }
}

static double fraction_done(const struct kelp_meter *meter)
{
    if (meter->total_steps == 0) {
        return 0;
    }
    if (meter->step >= meter->total_steps) {
        return 1;
    }
    return (double)meter->step / (double)meter->total_steps;
}

static const char *unit(const struct kelp_meter *meter)
{
    return meter->what ? meter->what : "step";
}

static void fill_fields(const struct kelp_meter *meter, char fields[FIELD_COUNT][FIELD_BYTES])
{
    char number[32];

    memset(fields, 0, sizeof(*fields) * FIELD_COUNT);
    if (meter->epochs > 0) {
        (void)snprintf(fields[FIELD_EPOCH], FIELD_BYTES, "epoch %u/%u", meter->epoch,
                       meter->epochs);
    }
    /* Rounded down: 100 % is shown when it is done, not before. */
    (void)snprintf(fields[FIELD_PERCENT], FIELD_BYTES, "%3.0f%%",
                   floor(fraction_done(meter) * 100));
    if (meter->total_steps > 0) {
        (void)snprintf(fields[FIELD_STEP], FIELD_BYTES, "%s %" PRIu64 "/%" PRIu64, unit(meter),
                       meter->step, meter->total_steps);
    }
    if (meter->loss_known) {
        (void)snprintf(fields[FIELD_LOSS], FIELD_BYTES, "loss %.4g", meter->loss);
    }
    if (meter->val_known) {
        (void)snprintf(fields[FIELD_VAL], FIELD_BYTES, "val %.4g", meter->val_loss);
    }
    if (meter->steps_skipped > 0) {
        (void)snprintf(fields[FIELD_SKIPPED], FIELD_BYTES, "%" PRIu64 " skipped",
                       meter->steps_skipped);
    }
    if (meter->samples_per_s > 0) {
        kelp_meter_count(meter->samples_per_s, number, sizeof(number));
        (void)snprintf(fields[FIELD_RATE], FIELD_BYTES, "%s samples/s", number);
    }
    (void)snprintf(fields[FIELD_WORKERS], FIELD_BYTES, "%u worker%s", meter->workers,
                   meter->workers == 1 ? "" : "s");
    (void)snprintf(fields[FIELD_SHARDS], FIELD_BYTES, "%u shard%s", meter->shards,
                   meter->shards == 1 ? "" : "s");
    if (meter->left_s >= 0) {
        clock_text(meter->left_s, number, sizeof(number));
        (void)snprintf(fields[FIELD_LEFT], FIELD_BYTES, "%s left", number);
    }
}

/* Bytes of the line with the fields that are kept, two spaces between them, the bar at `bar`. */
static unsigned line_length(char fields[FIELD_COUNT][FIELD_BYTES], const bool keep[FIELD_COUNT],
                            unsigned bar)
{
    unsigned length = 0;

    for (int i = 0; i < FIELD_COUNT; i++) {
        unsigned own = i == FIELD_BAR ? bar + 2 : (unsigned)strlen(fields[i]);
        if (keep[i] && own > 0) {
            length += own + (length > 0 ? 2 : 0);
        }
    }
    return length;
}

static size_t put_bar(char *text, unsigned cells, double fraction)
{
    unsigned full = (unsigned)(fraction * cells);

    text[0] = '[';
    for (unsigned i = 0; i < cells; i++) {
        text[1 + i] = i < full ? '=' : i == full && fraction > 0 ? '>' : ' ';
    }
    text[1 + cells] = ']';
    return cells + 2;
}

static void waiting_text(const struct kelp_meter *meter, char *text, size_t text_bytes)
{
    const char *reason = meter->reason && meter->reason[0] ? meter->reason : "the cluster starts";

    /* Reasons come from the coordinator and say mostly what is waited for themselves. */
    (void)snprintf(text, text_bytes, "%s%s",
                   strncmp(reason, "waiting", 7) == 0 ? "" : "waiting: ", reason);
}

void kelp_meter_bar(const struct kelp_meter *meter, unsigned columns, char *text, size_t text_bytes)
{
    char fields[FIELD_COUNT][FIELD_BYTES];
    bool keep[FIELD_COUNT];

    assert(text_bytes >= KELP_METER_TEXT_MAX);
    if (columns >= text_bytes) {
        columns = (unsigned)text_bytes - 1;
    }
    if (!meter->running) {
        waiting_text(meter, text, (size_t)columns + 1);
        return;
    }
    fill_fields(meter, fields);
    for (int i = 0; i < FIELD_COUNT; i++) {
        keep[i] = true;
    }
    for (size_t i = 0; i < sizeof(drop_order) / sizeof(drop_order[0]); i++) {
        if (line_length(fields, keep, BAR_MIN) <= columns) {
            break;
        }
        keep[drop_order[i]] = false;
    }
    unsigned bar = BAR_MIN;
    while (bar < BAR_MAX && line_length(fields, keep, bar + 1) <= columns) {
        bar++;
    }
    size_t used = 0;
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (!keep[i] || (i != FIELD_BAR && !fields[i][0])) {
            continue;
        }
        if (used > 0) {
            text[used++] = ' ';
            text[used++] = ' ';
        }
        if (i == FIELD_BAR) {
            used += put_bar(text + used, bar, fraction_done(meter));
        } else {
            size_t length = strlen(fields[i]);
            memcpy(text + used, fields[i], length);
            used += length;
        }
    }
    text[used < columns ? used : columns] = '\0';
}

void kelp_meter_line(const struct kelp_meter *meter, char *text, size_t text_bytes)
{
    char loss[32] = "-";
    char left[32] = "-";
    char training[192] = "";
    char val[40] = "";
    char skipped[40] = "";

    if (!meter->running) {
        waiting_text(meter, text, text_bytes);
        return;
    }
    if (meter->loss_known) {
        (void)snprintf(loss, sizeof(loss), "%.6g", meter->loss);
    }
    if (meter->val_known) {
        (void)snprintf(val, sizeof(val), " val/loss %.6g", meter->val_loss);
    }
    if (meter->steps_skipped > 0) {
        (void)snprintf(skipped, sizeof(skipped), " skipped %" PRIu64, meter->steps_skipped);
    }
    if (meter->left_s >= 0) {
        (void)snprintf(left, sizeof(left), "%.0f s", meter->left_s);
    }
    if (meter->epochs > 0) {
        (void)snprintf(training, sizeof(training), " epoch %u/%u loss %s%s%s", meter->epoch,
                       meter->epochs, loss, val, skipped);
    }
    (void)snprintf(text, text_bytes,
                   "%s %" PRIu64 "/%" PRIu64 "%s samples/s %.0f workers %u shards %u left %s",
                   unit(meter), meter->step, meter->total_steps, training, meter->samples_per_s,
                   meter->workers, meter->shards, left);
}

void kelp_rate_begin(struct kelp_rate *rate, uint64_t step)
{
    if (!rate->started) {
        rate->base = step;
    }
}

void kelp_rate_add(struct kelp_rate *rate, uint64_t step, uint64_t now_ms)
{
    step = step > rate->base ? step - rate->base : 0;
    if (rate->count > 0) {
        uint32_t last = rate->count - 1;
        bool back = step < rate->samples[last].step || now_ms < rate->samples[last].at_ms;
        bool idle = step == 0 && rate->samples[last].step == 0;
        if (back || idle) {
            rate->count = 0;
        }
    }
    uint32_t old = 0;
    while (old < rate->count && (now_ms - rate->samples[old].at_ms > KELP_RATE_WINDOW_MS ||
                                 rate->count - old >= KELP_RATE_WINDOW)) {
        old++;
    }
    memmove(&rate->samples[0], &rate->samples[old], (rate->count - old) * sizeof(rate->samples[0]));
    rate->count -= old;
    assert(rate->count < KELP_RATE_WINDOW);
    rate->samples[rate->count].step = step;
    rate->samples[rate->count].at_ms = now_ms;
    rate->count++;
    if (!rate->started && step == 0) {
        rate->idle_seen = true;
        rate->idle_ms = now_ms;
    }
    if (!rate->started && step > 0) {
        rate->started = true;
        rate->first_step = step;
        rate->first_ms = now_ms;
        rate->highest_step = step;
        rate->highest_ms = now_ms;
    } else if (rate->started && step > rate->highest_step) {
        rate->highest_step = step;
        rate->highest_ms = now_ms;
    }
}

static double per_second(uint64_t steps, uint64_t span_ms)
{
    return span_ms == 0 ? 0 : (double)steps * 1000 / (double)span_ms;
}

double kelp_rate_recent(const struct kelp_rate *rate)
{
    if (rate->count < 2) {
        return 0;
    }
    uint32_t last = rate->count - 1;
    return per_second(rate->samples[last].step - rate->samples[0].step,
                      rate->samples[last].at_ms - rate->samples[0].at_ms);
}

double kelp_rate_whole(const struct kelp_rate *rate)
{
    if (!rate->started) {
        return 0;
    }
    uint64_t span_ms = rate->highest_ms - rate->first_ms;
    if (span_ms < KELP_RATE_SHORT_MS && rate->idle_seen) {
        return per_second(rate->highest_step, rate->highest_ms - rate->idle_ms);
    }
    return per_second(rate->highest_step - rate->first_step, span_ms);
}
