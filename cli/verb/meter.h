/*
 * What a run shows while it goes on, as text: a bar for a terminal, plain lines for anything else.
 * Pure: time and width come from the caller.
 */
#ifndef KELP_CLI_VERB_METER_H
#define KELP_CLI_VERB_METER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KELP_METER_TEXT_MAX 512 /* bytes that fit every line of this module */

struct kelp_meter {
    bool running;       /* steps are being made; otherwise `reason` says what is waited for */
    const char *reason; /* borrowed; may be "" */
    const char *what;   /* that is counted, when it is not steps; NULL: it is */
    uint64_t step;
    uint64_t total_steps;   /* 0: not known yet */
    uint64_t steps_skipped; /* so far */
    uint32_t epoch;         /* 1-based: the current one */
    uint32_t epochs;        /* 0: there are none */
    bool loss_known;
    double loss; /* of the newest training step */
    bool val_known;
    double val_loss; /* of the newest evaluation of the validation split */
    double samples_per_s;
    uint32_t workers;
    uint32_t shards;
    double left_s; /* negative: not known */
};

/*
 * One line of at most `columns` bytes without line break: a bar and as many fields as fit, the most
 * wanted first. text_bytes is KELP_METER_TEXT_MAX or more; columns is cut to what fits there.
 */
void kelp_meter_bar(const struct kelp_meter *meter, unsigned columns, char *text,
                    size_t text_bytes);

/* "step 812/1900 epoch 3/10 loss 0.16123 ..." without line break; "block 3/10 samples/s ..." of
 * what has no epochs. */
void kelp_meter_line(const struct kelp_meter *meter, char *text, size_t text_bytes);

/* "850 ms", "12.4 s", "3 min 12 s", "2 h 05 min". */
void kelp_meter_duration(double seconds, char *text, size_t text_bytes);

/* "812", "24.1k", "1.2M". */
void kelp_meter_count(double value, char *text, size_t text_bytes);

/* "512 B", "1.2 MiB". */
void kelp_meter_size(uint64_t bytes, char *text, size_t text_bytes);

/*
 * Steps per second over the last few seconds, and over the whole run. A step number that goes down
 * (the job was rolled back) starts the short window again, as does waiting at step 0; the whole-run
 * figure counts from the first time a step was seen to the last time the highest step so far rose.
 * When that is less than KELP_RATE_SHORT_MS, looks are too few to go by: it counts from the last
 * look before the first step.
 */
#define KELP_RATE_SHORT_MS  1000
#define KELP_RATE_WINDOW    32   /* samples kept */
#define KELP_RATE_WINDOW_MS 6000 /* their age at most */

struct kelp_rate {
    uint64_t base; /* steps that were made before; those of the samples come on top */
    struct {
        uint64_t step;
        uint64_t at_ms;
    } samples[KELP_RATE_WINDOW];
    uint32_t count;   /* oldest first */
    bool started;     /* first and highest are set */
    bool idle_seen;   /* idle_ms is set */
    uint64_t idle_ms; /* last look at which no step was made */
    uint64_t first_step;
    uint64_t first_ms;
    uint64_t highest_step;
    uint64_t highest_ms;
};

/* Training goes on from this step: what was made before does not count. No effect once a step was
 * seen. */
void kelp_rate_begin(struct kelp_rate *rate, uint64_t step);
void kelp_rate_add(struct kelp_rate *rate, uint64_t step, uint64_t now_ms);
/* Steps per second over the window; 0 while there are fewer than two different samples. */
double kelp_rate_recent(const struct kelp_rate *rate);
/* Steps per second from the first step seen to the highest; 0 when nothing moved. */
double kelp_rate_whole(const struct kelp_rate *rate);

#endif
