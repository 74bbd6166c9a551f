/*
 * What kelp doctor found: a list of doors, each closed, worth a note, or open; or of what a cluster
 * needs, each in order, worth a warning, or a problem.
 */
#ifndef KELP_CLI_DOCTOR_FINDINGS_H
#define KELP_CLI_DOCTOR_FINDINGS_H

#include <stdint.h>
#include <stdio.h>

#include "cli/cluster/run_client.h"
#include "common/base/status.h"

/* A line for each process of the largest job, and all else; more are counted. */
#define KELP_FINDINGS_MAX 1200

enum kelp_door { KELP_DOOR_CLOSED, KELP_DOOR_NOTE, KELP_DOOR_OPEN };
/* The same of a cluster. */
#define KELP_FINDING_OK      KELP_DOOR_CLOSED
#define KELP_FINDING_WARNING KELP_DOOR_NOTE
#define KELP_FINDING_PROBLEM KELP_DOOR_OPEN

/* How they are called: states for people and in JSON, and the member that says what was looked at.
 */
struct kelp_finding_words {
    const char *states[3];
    const char *json_states[3];
    const char *json_member;
};
extern const struct kelp_finding_words kelp_door_words, kelp_cluster_words;

struct kelp_finding {
    const char *door; /* "ports" */
    enum kelp_door state;
    char text[400];
};

struct kelp_findings {
    struct kelp_finding items[KELP_FINDINGS_MAX];
    uint32_t count;
    uint32_t left_out;
    bool open; /* one is, also of those that were left out */
};

void kelp_findings_add(struct kelp_findings *findings, const char *door, enum kelp_door state,
                       const char *format, ...) KELP_PRINTF(4, 5);

void kelp_findings_text(const struct kelp_findings *findings,
                        const struct kelp_finding_words *words, FILE *out);
/* [{"door":"ports","state":"closed","text":"…"},…] */
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
