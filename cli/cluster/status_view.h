/*
 * A coordinator's status in other forms: for the progress bar, for result.json, as the table and
 * the JSON of `kelp status`. Those two also have what the run's folder says of its data's unit and
 * of its certificates.
 */
#ifndef KELP_CLI_CLUSTER_STATUS_VIEW_H
#define KELP_CLI_CLUSTER_STATUS_VIEW_H

#include "cli/run/result.h"
#include "cli/verb/meter.h"
#include "common/base/status.h"
#include "proto/kelp.pb-c.h"

/* ret_meter->reason is borrowed from status. */
void kelp_status_meter(const Kelp__V1__StatusReply *status, uint32_t batch_size, double steps_per_s,
                       struct kelp_meter *ret_meter);

/* Step, completed epochs, metrics and digest; the rest is left alone. */
void kelp_status_result(const Kelp__V1__StatusReply *status, struct kelp_result *result);

void kelp_status_table(const Kelp__V1__StatusReply *status, const char *run_path, FILE *out);
/* docs/CLI.md, "kelp status". */
void kelp_status_json(const Kelp__V1__StatusReply *status, const char *run_path, FILE *out);

#endif
