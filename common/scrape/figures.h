/*
 * What a daemon tells whoever watches it: one table of figures, which the loops of the daemon set
 * and a scrape (scrape.h) prints in Prometheus's text format 0.0.4. docs/METRICS.md is checked
 * against the table.
 *
 * Writers set a number and never wait; a reader takes each number as it stands. So a scrape holds
 * up no step. Nothing that reaches the weights reads a figure.
 *
 * Threads: any. figures NULL: nobody watches, and the functions that set do nothing.
 */
#ifndef KELP_COMMON_SCRAPE_FIGURES_H
#define KELP_COMMON_SCRAPE_FIGURES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum kelp_figure {
    /* Every daemon. */
    KELP_FIGURE_READY,
    KELP_FIGURE_LOOP_SILENT, /* milliseconds */
    KELP_FIGURE_CPU,         /* microseconds */
    KELP_FIGURE_MEMORY,
    KELP_FIGURE_STARTED, /* milliseconds since 1970 */
    KELP_FIGURE_CERTIFICATE_END,
    KELP_FIGURE_SCRAPES,
    KELP_FIGURE_SCRAPES_REFUSED,

    /* A shard. */
    KELP_FIGURE_SHARD_LED,
    KELP_FIGURE_SHARD_FOLLOWED,
    KELP_FIGURE_SHARD_GENERATION,
    KELP_FIGURE_SHARD_STEP,
    KELP_FIGURE_SHARD_PENDING,
    KELP_FIGURE_SHARD_WAITING,
    KELP_FIGURE_SHARD_LAG,
    KELP_FIGURE_SHARD_PUSHES,
    KELP_FIGURE_SHARD_DUPLICATES,
    KELP_FIGURE_SHARD_REFUSALS,
    KELP_FIGURE_SHARD_OFFERS,
    KELP_FIGURE_SHARD_RECEIVED,
    KELP_FIGURE_SHARD_SENT,
    KELP_FIGURE_SHARD_COPIED,
    KELP_FIGURE_SHARD_CONFLICTS,
    KELP_FIGURE_SHARD_STREAMS_REFUSED,

    /* A worker. */
    KELP_FIGURE_WORKER_GENERATION,
    KELP_FIGURE_WORKER_VERSION,
    KELP_FIGURE_WORKER_STEP,
    KELP_FIGURE_WORKER_ASSIGNED,
    KELP_FIGURE_WORKER_ENTRIES,
    KELP_FIGURE_WORKER_LANES,
    KELP_FIGURE_WORKER_LATE_LANES,
    KELP_FIGURE_WORKER_SAMPLES,
    KELP_FIGURE_WORKER_DATA, /* microseconds, as the three that follow */
    KELP_FIGURE_WORKER_COMPUTE,
    KELP_FIGURE_WORKER_PUSH,
    KELP_FIGURE_WORKER_WAIT,
    KELP_FIGURE_WORKER_RECEIVED,
    KELP_FIGURE_WORKER_SENT,
    KELP_FIGURE_WORKER_REFUSALS,

    /* A coordinator. */
    KELP_FIGURE_LEADS,
    KELP_FIGURE_ELECTED,
    KELP_FIGURE_TERMS,
    KELP_FIGURE_STANDBYS,
    KELP_FIGURE_ETCD_TROUBLES,
    KELP_FIGURE_COORDINATOR_STREAMS_REFUSED,
    KELP_FIGURE_CHECKPOINT_TIME, /* milliseconds */
    KELP_FIGURE_CHECKPOINT_BYTES,
    KELP_FIGURE_FAILOVER_TIME, /* milliseconds */
    KELP_FIGURE_EVENTS,        /* of the first kind; the others follow in the order of
                                  enum kelp_event_kind */
    KELP_FIGURE_EVENTS_LAST = KELP_FIGURE_EVENTS + 15,

    /* What the leading coordinator knows of the job. */
    KELP_FIGURE_JOB_STARTING, /* one of five states */
    KELP_FIGURE_JOB_RUNNING,
    KELP_FIGURE_JOB_PAUSED,
    KELP_FIGURE_JOB_DONE,
    KELP_FIGURE_JOB_FAILED,
    KELP_FIGURE_JOB_GENERATION,
    KELP_FIGURE_JOB_VERSION,
    KELP_FIGURE_JOB_STEP,
    KELP_FIGURE_JOB_STEPS_PLANNED,
    KELP_FIGURE_JOB_EPOCH,
    KELP_FIGURE_JOB_SAMPLES,
    KELP_FIGURE_JOB_WORKERS,
    KELP_FIGURE_JOB_WORKERS_WANTED,
    KELP_FIGURE_JOB_WORKERS_TROUBLED,
    KELP_FIGURE_JOB_SHARDS,
    KELP_FIGURE_JOB_SHARDS_WANTED,
    KELP_FIGURE_JOB_PARTITIONS,
    KELP_FIGURE_JOB_UNBACKED,
    KELP_FIGURE_JOB_JOINING,
    KELP_FIGURE_JOB_LAG,
    KELP_FIGURE_JOB_RECOMPUTED,
    KELP_FIGURE_JOB_CHECKPOINT_STEP,
    KELP_FIGURE_JOB_CHECKPOINT_TIME, /* milliseconds since 1970 */
    KELP_FIGURE_JOB_CHECKPOINTS,
    KELP_FIGURE_JOB_CHECKPOINTS_FAILED,
    KELP_FIGURE_JOB_CONFLICTS,
    KELP_FIGURE_JOB_SLOW_READING, /* one of four, in the order of enum kelp_slow_part */
    KELP_FIGURE_JOB_SLOW_COMPUTING,
    KELP_FIGURE_JOB_SLOW_PUSHING,
    KELP_FIGURE_JOB_SLOW_SHARD,

    KELP_FIGURE_COUNT
};

/* Who tells it. */
#define KELP_FIGURE_OF_PS          1u
#define KELP_FIGURE_OF_WORKER      2u
#define KELP_FIGURE_OF_COORDINATOR 4u
#define KELP_FIGURE_OF_ALL         7u

enum kelp_figure_type { KELP_FIGURE_GAUGE, KELP_FIGURE_COUNTER };

struct kelp_figure_row {
    const char *name;  /* "kelp_worker_seconds_total" */
    const char *label; /* "part=\"data\""; NULL: none. Rows of one name follow one another */
    enum kelp_figure_type type;
    unsigned of;
    uint32_t scale;   /* the number counts parts of its unit: 1000 for milliseconds */
    const char *help; /* the first row of a name */
};
extern const struct kelp_figure_row kelp_figure_rows[KELP_FIGURE_COUNT];

/* ---- histograms ---- */

/* How long something takes, each time that it happens. */
enum kelp_histogram {
    KELP_HISTOGRAM_SHARD_STEP,
    KELP_HISTOGRAM_WORKER_DATA,
    KELP_HISTOGRAM_WORKER_COMPUTE,
    KELP_HISTOGRAM_WORKER_PUSH,
    KELP_HISTOGRAM_WORKER_WAIT,
    KELP_HISTOGRAM_CHECKPOINT,
    KELP_HISTOGRAM_COUNT
};

#define KELP_HISTOGRAM_BOUNDS 12

struct kelp_histogram_bound {
    uint64_t us;
    const char *text; /* the label `le`, in seconds */
};

struct kelp_histogram_row {
    const char *name; /* "kelp_worker_step_seconds" */
    const char *label;
    unsigned of;
    const struct kelp_histogram_bound *bounds; /* [KELP_HISTOGRAM_BOUNDS], ascending */
    const char *help;                          /* the first row of a name */
};
extern const struct kelp_histogram_row kelp_histogram_rows[KELP_HISTOGRAM_COUNT];

/* ---- numbers ---- */

/* A figure of this value is not told: it is not known, or says nothing here. */
#define KELP_FIGURE_NONE UINT64_MAX

/* All atomic. */
struct kelp_figures {
    uint64_t values[KELP_FIGURE_COUNT];
    struct {
        uint64_t counts[KELP_HISTOGRAM_BOUNDS + 1]; /* between two bounds; the last: above all */
        uint64_t sum_us;
    } histograms[KELP_HISTOGRAM_COUNT];
    uint64_t beat_ms;          /* when the loop ran last; 0: it does not run yet */
    const char *why_not_ready; /* NULL: ready */
};

/* Gauges are not known, counters are zero, and it is not ready: "it starts". */
void kelp_figures_init(struct kelp_figures *figures);

void kelp_figures_set(struct kelp_figures *figures, enum kelp_figure figure, uint64_t value);
void kelp_figures_add(struct kelp_figures *figures, enum kelp_figure figure, uint64_t value);
uint64_t kelp_figures_get(const struct kelp_figures *figures, enum kelp_figure figure);
/* It took so long, once: two additions. */
void kelp_figures_observe(struct kelp_figures *figures, enum kelp_histogram histogram, uint64_t us);

/* The loop runs. */
void kelp_figures_beat(struct kelp_figures *figures);
/* Has it run lately? One that has not begun to is well too. */
bool kelp_figures_healthy(const struct kelp_figures *figures);
/* Does the process take part? why: a text that stays, for people; NULL: it does. */
void kelp_figures_ready(struct kelp_figures *figures, const char *why);
const char *kelp_figures_why_not_ready(const struct kelp_figures *figures);

/* Who is watched. All borrowed. */
struct kelp_figures_process {
    unsigned of;
    const char *role; /* "ps" */
    const char *job;
    const char *id;
    const char *version;
    const char *commit;
};
/* The whole text: who it is, then each figure of the process that is known. */
void kelp_figures_print(const struct kelp_figures *figures,
                        const struct kelp_figures_process *process, FILE *out);

/* The value of a label, escaped: backslash, quote and line break. */
void kelp_figures_print_label(FILE *out, const char *text);

#endif
