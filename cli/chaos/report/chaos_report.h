/*
 * What a run under `kelp chaos` came to: where it stood when, what each fault cost, and all of that
 * as text, JSON and a picture. Pure: looks and faults in, text out.
 */
#ifndef KELP_CLI_CHAOS_REPORT_CHAOS_REPORT_H
#define KELP_CLI_CHAOS_REPORT_CHAOS_REPORT_H

#include <stdio.h>

#include "cli/chaos/plan/chaos_plan.h"

#define KELP_CHAOS_KEPT_MAX     65536 /* looks kept; beyond it every second one is dropped */
#define KELP_CHAOS_RESTORES_MAX 4096  /* restores kept; more are not told apart */
#define KELP_CHAOS_LINE_MAX     256   /* bytes of one line of the timeline */
#define KELP_CHAOS_GOES_ON      100   /* entries after the end of a host's fault: it is over then */
/* Steps that a look may miss: how long after a fault looks still tell where it hit. */
#define KELP_CHAOS_ALONE_MS  UINT64_C(60000) /* what such a fault explains comes within this */
#define KELP_CHAOS_SETTLE_MS UINT64_C(40)    /* two looks */

/* Where partition 0 stood. */
struct kelp_chaos_look {
    uint64_t at_ms; /* CLOCK_MONOTONIC, when the answer came */
    uint64_t generation;
    uint64_t version; /* completed entries: steps and evaluations */
    uint64_t step;    /* completed training steps */
};

/* A fault that was done. Times are milliseconds since the run began. */
struct kelp_chaos_event {
    struct kelp_chaos_fault fault;
    char target[32];     /* the process that it hit: "coordinator-1" */
    uint64_t at_ms;      /* done */
    uint64_t generation; /* where the run stood */
    uint64_t version;
    uint64_t step;
    uint64_t checkpoint_step; /* of the newest checkpoint that was committed; 0: none */
    uint64_t
        left_ms;  /* RESTART, DRAIN: after at_ms the process had ended; HOST: it was as before */
    bool alone;   /* some partition had no other replica that was left */
    bool leaving; /* the process was asked to end and has not yet: it still works; HOST: the
                   * fault lasts */
    bool recovered;
    /* Until an entry that began after the fault was complete; HOST: until KELP_CHAOS_GOES_ON
     * entries were complete after its end, and the longest time without a new step from the fault
     * until then. */
    uint64_t recovery_ms;
    uint64_t pause_ms;
    uint64_t steps_again; /* that restores after this fault went back by */
};

/* A roll-back: another generation began. */
struct kelp_chaos_restore {
    uint64_t at_ms;
    uint64_t generation;
    uint64_t from_step; /* highest one seen before */
    uint64_t to_step;
    bool exact;     /* to_step is what the coordinator says */
    uint32_t event; /* index of the fault it is counted to; UINT32_MAX: none came before */
};

struct kelp_chaos_report {
    const char *job;
    const char *plan;
    uint64_t seed;
    uint64_t start_ms; /* CLOCK_MONOTONIC */
    uint64_t total_steps;
    struct kelp_chaos_look *looks; /* at_ms since the run began; owned */
    struct kelp_chaos_look newest;
    uint64_t highest_step;
    uint64_t new_step_ms;            /* when that was first seen to be completed */
    uint64_t progress_ms;            /* when an entry was last seen to be completed */
    struct kelp_chaos_event *events; /* owned */
    struct kelp_chaos_restore restores[KELP_CHAOS_RESTORES_MAX];
    uint64_t checkpoint_step;  /* newest that is known to be committed */
    uint64_t steps_recomputed; /* by the coordinator's count; 0: it does not say */
    double quiet_wall_s;
    double wall_s;
    uint32_t look_count;
    uint32_t thinned; /* looks between two that are kept, times two each time it was full */
    uint32_t skipped; /* since the last that was kept */
    uint32_t event_count;
    uint32_t restore_count;
    uint32_t planned;  /* faults of the plan */
    uint32_t left_out; /* faults that this machine cannot do */
    bool any;          /* newest is set */
    bool equal;
    char quiet_digest[33];
    char digest[33];
    char verdict[512]; /* one line for people */
};

kelp_status kelp_chaos_report_init(struct kelp_chaos_report *report,
                                   struct kelp_error *reterr) KELP_MUST_USE;
void kelp_chaos_report_fini(struct kelp_chaos_report *report);

/* Take in a look (at_ms by CLOCK_MONOTONIC). Returns the bits of what it brought: below. */
enum { KELP_CHAOS_RECOVERED = 1, KELP_CHAOS_RESTORED = 2 };
unsigned kelp_chaos_report_look(struct kelp_chaos_report *report,
                                const struct kelp_chaos_look *look);

/* What the coordinator says about the step that a generation began from: more exact than a look. */
void kelp_chaos_report_restored(struct kelp_chaos_report *report, uint64_t generation,
                                uint64_t step);

/*
 * The restore that went back further than the newest checkpoint that was committed before its
 * fault, or NULL: so no fault costs more than the steps since a checkpoint, which are the interval
 * between two and those made while one is being written.
 */
const struct kelp_chaos_restore *kelp_chaos_report_too_far(const struct kelp_chaos_report *report);

/* With replicas: a restore though each partition had a replica that lived, or NULL. */
const struct kelp_chaos_restore *kelp_chaos_report_needless(const struct kelp_chaos_report *report);
/* Did any fault leave a partition without a replica? */
bool kelp_chaos_report_alone(const struct kelp_chaos_report *report);

/* A fault was done at now_ms (CLOCK_MONOTONIC). At most KELP_CHAOS_FAULTS_MAX. */
void kelp_chaos_report_fault(struct kelp_chaos_report *report, const struct kelp_chaos_fault *fault,
                             const char *target, bool alone, uint64_t now_ms);

/* The process of a RESTART or DRAIN has ended, or the host is as before (now_ms by
 * CLOCK_MONOTONIC): from here on recovery counts. An index that is not there does nothing. */
void kelp_chaos_report_gone(struct kelp_chaos_report *report, uint32_t event, uint64_t now_ms);

/* "  12.34 s  step 812   kill shard-1   recovered in 0.84 s, 112 steps again" */
void kelp_chaos_event_line(const struct kelp_chaos_event *event, char text[KELP_CHAOS_LINE_MAX]);
/* A line for each kind and target with how often, the median and longest recovery (of hosts: time
 * without a new step), steps again. */
void kelp_chaos_report_table(const struct kelp_chaos_report *report, FILE *out);
/* One JSON object and a line break. */
void kelp_chaos_report_json(const struct kelp_chaos_report *report, FILE *out);
/* Steps a second over time, with the faults marked and listed, as SVG; *ret_bytes is owned
 * (free()). Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_chaos_report_svg(const struct kelp_chaos_report *report, char **ret_bytes,
                                  size_t *ret_count, struct kelp_error *reterr) KELP_MUST_USE;

#endif
