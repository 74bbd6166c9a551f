/*
 * What kelp doctor found: a list of checks with their outcomes. Of a run's exposure they are called
 * closed, note and open, of a cluster's health ok, warning and problem.
 */
#ifndef KELP_CLI_DOCTOR_FINDINGS_H
#define KELP_CLI_DOCTOR_FINDINGS_H

#include <stdint.h>
#include <stdio.h>

#include "cli/cluster/run_client.h"
#include "common/base/status.h"

/* A line for each process of the largest job, and all else; more are counted. */
#define KELP_FINDINGS_MAX 1200

enum kelp_finding_state { KELP_FINDING_OK, KELP_FINDING_WARNING, KELP_FINDING_PROBLEM };

/* What the states are called, for people and in JSON. */
struct kelp_finding_words {
    const char *states[3];
    const char *json_states[3];
};
extern const struct kelp_finding_words kelp_exposure_words, kelp_cluster_words;

struct kelp_finding {
    const char *check; /* "ports" */
    enum kelp_finding_state state;
    char text[400];
};

struct kelp_findings {
    struct kelp_finding items[KELP_FINDINGS_MAX];
    uint32_t count;
    uint32_t left_out;
    bool problem; /* one is, also of those that were left out */
};

void kelp_findings_add(struct kelp_findings *findings, const char *check,
                       enum kelp_finding_state state, const char *format, ...) KELP_PRINTF(4, 5);

void kelp_findings_text(const struct kelp_findings *findings,
                        const struct kelp_finding_words *words, FILE *out);
/* [{"check":"ports","state":"closed","text":"…"},…] */
void kelp_findings_json(const struct kelp_findings *findings,
                        const struct kelp_finding_words *words, FILE *out);

/* The run that is looked at. */
struct kelp_doctor_run {
    const char *path;
    const struct kelp_job *job;
    bool running;
    bool has_cluster; /* cluster.json is there */
    struct kelp_run_cluster cluster;
};

#endif
