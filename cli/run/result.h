/*
 * What a run came to: result.json of its folder, and the summary for people. Pure.
 */
#ifndef KELP_CLI_RUN_RESULT_H
#define KELP_CLI_RUN_RESULT_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/training/manifest.h"

#define KELP_RESULT_METRICS_MAX 32
#define KELP_RESULT_WORKERS_MAX 1024 /* names of workers; more are counted but not listed */

struct kelp_result_metric {
    char name[32]; /* "val/mse" */
    double value;
};

/* One worker's name, over all its starts. */
struct kelp_result_worker {
    char id[40];
    uint64_t lanes_computed; /* as last reported: a worker that was killed did a little more */
};

struct kelp_result {
    char job[64];
    char started[32]; /* when the command was started, and when this was written, ISO 8601 in UTC */
    char ended[32];
    char host[72];    /* where kelp ran */
    char version[64]; /* of kelp, with its commit */
    char unit[64];    /* of the metrics in the data's own unit, for people; "": it has no name */
    char status[16];  /* "done", "failed", "stopped", "paused" */
    char reason[512];
    bool unheld;     /* a resume that did not take hold: this is in no file */
    char after[512]; /* what a program did after its job was over failed; "": no; in no file */
    uint64_t step;
    uint64_t steps_skipped; /* of these (failure.on_nan: skip) */
    uint32_t epoch;         /* completed epochs */
    struct kelp_result_metric metrics[KELP_RESULT_METRICS_MAX];
    uint32_t metric_count;
    /* The best evaluation of the validation split (train.monitor), when there was one. */
    bool best_known;
    uint64_t best_step;
    uint32_t best_epoch; /* 1-based, as people count; an epoch that is not complete counts */
    struct kelp_result_metric best[KELP_RESULT_METRICS_MAX]; /* val/… and test/… of these weights */
    uint32_t best_count;
    char best_checkpoint[KELP_FOLDER_NAME_MAX +
                         1]; /* that holds these weights, "step-1500.g2"; "": none does */
    char digest[33];         /* of the final weights, or "" */
    double steps_per_s;      /* training steps over the time from the first to the last, evaluation
                                included */
    double wall_s;           /* from the start of the command */
    uint32_t restarts;       /* of children that died */
    uint64_t restores; /* times that the job went back to a checkpoint or its beginning, resuming
                          included, since it began */
    uint64_t steps_recomputed; /* by these */
    uint64_t checkpoints;      /* committed while this command ran */
    uint64_t conflicts;        /* workers that differed, where the first one counts */
    char conflict[512];        /* the newest */
    struct kelp_result_worker workers[KELP_RESULT_WORKERS_MAX];
    uint32_t worker_count;
};

/* Do nothing beyond KELP_RESULT_METRICS_MAX. */
void kelp_result_add(struct kelp_result *result, const char *name, double value);
void kelp_result_add_best(struct kelp_result *result, const char *name, double value);

/* One JSON object and a line break. */
void kelp_result_print(const struct kelp_result *result, FILE *out);
/* Errors: KELP_ERR_FORMAT (the text names the member). */
kelp_status kelp_result_parse(const char *text, size_t text_bytes, struct kelp_result *ret_result,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Members of such an object: "metrics":{…} and ,"best":{…} or null. */
void kelp_result_print_metrics(FILE *out, const struct kelp_result_metric *metrics, uint32_t count);
void kelp_result_print_best(FILE *out, const struct kelp_result *result, bool with_checkpoint);

/* The metrics as a table for people; nothing when there are none. */
void kelp_result_table(FILE *out, const struct kelp_result *result);

/* What the errors in the data's own unit are called: data.unit, or the one target column; "" for
 * several. */
void kelp_result_unit(const struct kelp_job *job, struct kelp_result *result);
/* When the command ended, now, and when it was started, so many seconds earlier. */
void kelp_result_stamp(struct kelp_result *result, time_t now, double wall_s);
/* A line of history.jsonl: when, where, by which version, and what came of it. */
void kelp_result_print_history(const struct kelp_result *result, FILE *out);

/* The summary: outcome, metrics, digest, where the files are. */
void kelp_result_summary(const struct kelp_result *result, const char *run_path, FILE *out);

#endif
