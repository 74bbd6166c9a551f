/* What kelp doctor found: a list of doors, each closed, worth a note, or open. */
#ifndef KELP_CLI_DOCTOR_FINDINGS_H
#define KELP_CLI_DOCTOR_FINDINGS_H

#include <stdint.h>
#include <stdio.h>

#include "cli/run/run_client.h"
#include "common/base/status.h"

#define KELP_FINDINGS_MAX 96 /* more are counted */

enum kelp_door { KELP_DOOR_CLOSED, KELP_DOOR_NOTE, KELP_DOOR_OPEN };

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

void kelp_findings_text(const struct kelp_findings *findings, FILE *out);
/* [{"door":"ports","state":"closed","text":"…"},…] */
void kelp_findings_json(const struct kelp_findings *findings, FILE *out);

/* The run that is looked at. */
struct kelp_doctor_run {
    const char *path;
    const struct kelp_job *job;
    bool running;
    bool has_cluster; /* cluster.json is there */
    struct kelp_run_cluster cluster;
};

#endif
