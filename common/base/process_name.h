/*
 * Names of processes, jobs and zones: they become parts of keys in etcd, of files and of
 * certificates. Pure.
 */
#ifndef KELP_COMMON_BASE_PROCESS_NAME_H
#define KELP_COMMON_BASE_PROCESS_NAME_H

#include <stdbool.h>

#define KELP_PROCESS_NAME_MAX 63 /* bytes */

/* 1 to KELP_PROCESS_NAME_MAX letters, digits, '-', '_' or '.'. */
bool kelp_process_name_valid(const char *text);

#endif
