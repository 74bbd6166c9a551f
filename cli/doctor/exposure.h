/*
 * Who can get into a run: each function makes one check and adds what it found. None changes
 * anything or connects to anybody.
 */
#ifndef KELP_CLI_DOCTOR_EXPOSURE_H
#define KELP_CLI_DOCTOR_EXPOSURE_H

#include "cli/doctor/findings.h"

/* What its processes listen at, and who may connect. */
void kelp_exposure_ports(const struct kelp_doctor_run *run, struct kelp_findings *findings);
/* The folder of its unix sockets. */
void kelp_exposure_sockets(const struct kelp_doctor_run *run, struct kelp_findings *findings);
/* The way to etcd. */
void kelp_exposure_etcd(const struct kelp_doctor_run *run, struct kelp_findings *findings);
/* The run's folder and data.cache: who else reads and writes them. */
void kelp_exposure_folders(const struct kelp_doctor_run *run, struct kelp_findings *findings);
/* Keys that others read, certificates that end soon. */
void kelp_exposure_certificates(const struct kelp_doctor_run *run, struct kelp_findings *findings);
/* The library of model.plugin. */
void kelp_exposure_library(const struct kelp_doctor_run *run, struct kelp_findings *findings);
/* What a crash of this machine's processes writes, and how many files they may open. */
void kelp_exposure_machine(struct kelp_findings *findings);

#endif
