/*
 * The certificates of a run, as far as this machine has them: the folder of the operator's that
 * cluster.json names, those of the other roles beside it, and their authority.
 */
#ifndef KELP_CLI_CLUSTER_RUN_CERTIFICATES_H
#define KELP_CLI_CLUSTER_RUN_CERTIFICATES_H

#include <stdint.h>
#include <stdio.h>

#include "common/tls/credentials.h"

#define KELP_RUN_CERTIFICATES_MAX 6

struct kelp_run_certificate {
    const char *what; /* "worker", "authority" */
    char folder[KELP_CREDENTIALS_PATH_MAX + 1];
    int64_t until_s;
    bool soon; /* kelp_certificate_ends_soon() */
    bool over;
};

/* Returns how many there are; 0 for a run without. */
uint32_t kelp_run_certificates(const char *run_path, int64_t now_s,
                               struct kelp_run_certificate list[KELP_RUN_CERTIFICATES_MAX]);

/* A line for each that ends soon, or has ended; nothing otherwise. */
void kelp_run_certificates_warn(const char *run_path, int64_t now_s, FILE *out);
/* ,"certificates":[{"what":"worker","until":"2026-01-31T12:00:00Z","soon":false},…] */
void kelp_run_certificates_json(const char *run_path, int64_t now_s, FILE *out);

#endif
