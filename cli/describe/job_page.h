/*
 * kelp-job(5), the man page of job files: the page that docs/JOB.md is, out of its Markdown.
 */
#ifndef KELP_CLI_DESCRIBE_JOB_PAGE_H
#define KELP_CLI_DESCRIBE_JOB_PAGE_H

#include <stdio.h>

#include "common/base/status.h"

#define KELP_JOB_PAGE "kelp-job"

/* Errors: those of kelp_job_reference(). */
kelp_status kelp_job_page_print(FILE *out) KELP_MUST_USE;

#endif
