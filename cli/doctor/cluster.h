/*
 * What a job on several hosts needs, looked at from this host: each function adds what it found.
 * They ask etcd and processes, and change nothing anywhere. What one leaves in the struct is for
 * those after it, in the order below.
 *
 * Nothing waits longer than kelp_doctor_left() says.
 */
#ifndef KELP_CLI_DOCTOR_CLUSTER_H
#define KELP_CLI_DOCTOR_CLUSTER_H

#include "cli/cluster/job_client.h"
#include "cli/cluster/run_home.h"
#include "cli/doctor/findings.h"
#include "common/etcd/etcd_endpoint.h"
#include "common/job/job.h"
#include "common/job/path_map.h"

/* Shards that a job may have, and its leader. */
#define KELP_DOCTOR_PROCESSES_MAX (1024 + 1)

#define KELP_DOCTOR_MEMBERS_MAX (KELP_ETCD_ENDPOINTS_MAX + KELP_ETCD_MEMBERS_MAX)

/* An etcd, by one of its addresses. */
struct kelp_doctor_member {
    char url[KELP_ETCD_ENDPOINT_MAX + 1];
    char name[64];                  /* "": not known */
    struct kelp_error error;        /* of asking it */
    struct kelp_etcd_health health; /* without an error */
    uint64_t round_trip_us;
    int64_t behind_s; /* so much is this host's clock behind its; 0 too when it is not known */
};

/* "0.1.0 (abc1234)", or without a commit. */
#define KELP_DOCTOR_VERSION_BYTES 96
void kelp_doctor_version(const char *version, const char *commit,
                         char text[KELP_DOCTOR_VERSION_BYTES]);

/* A process that is registered in etcd. */
struct kelp_doctor_process {
    enum kelp_role role;
    char id[64];
    char address[256];
    char zone[64];  /* "": none */
    char build[64]; /* "": it names none */
    uint64_t incarnation;

    bool here;                               /* it was reached, and runs on this host */
    enum kelp_finding_state state;           /* what came of asking it */
    char text[300];                          /* and in words */
    char version[KELP_DOCTOR_VERSION_BYTES]; /* "0.1.0 (abc1234)"; "": not known */
    Kelp__V1__StatusReply *status;           /* of a coordinator; owned */
};

struct kelp_doctor_cluster {
    const char *job;
    const char *etcd;
    const char *certs;          /* NULL: none */
    const char *run;            /* of --run; NULL: the folder that etcd names */
    struct kelp_path_map paths; /* of --map-path */
    uint64_t end_ms;            /* of kelp_clock_ms(): all must have come to an end */
    uint32_t share_ms;          /* that what does not answer may take of it */
    struct kelp_job_client *client;
    struct kelp_findings *findings;

    struct kelp_doctor_member members[KELP_DOCTOR_MEMBERS_MAX];
    size_t member_count;

    struct kelp_job_file *file; /* of the job's text; NULL: there is none that can be read */
    char *plan;                 /* the text; NULL: not there yet */
    char *state;                /* likewise */
    bool over;                  /* it has a result, of these: */
    char result[16], reason[512];

    struct kelp_doctor_process *processes;
    size_t process_count;
};

/* Of the time that is left, what one that does not answer may take; 0: there is none. */
uint32_t kelp_doctor_left(const struct kelp_doctor_cluster *cluster);

/* Of at least one; sorts them. */
uint64_t kelp_doctor_median(uint64_t *values, size_t count);

/* Those of --certs and beside it; nothing without. Asks nobody. */
void kelp_doctor_certificates(struct kelp_doctor_cluster *cluster);

/* etcd: its members, its leader, the way to it and its clock. False: none of it answers, and there
 * is nothing else to look at; *reterr says why. */
bool kelp_doctor_etcd(struct kelp_doctor_cluster *cluster, struct kelp_error *reterr);

/* This host's clock against those of etcd's hosts. */
void kelp_doctor_clock(struct kelp_doctor_cluster *cluster);

/* What etcd holds of the job. False: there is no such job, or it cannot be read now; *reterr says
 * which (KELP_ERR_NOT_FOUND). */
bool kelp_doctor_keys(struct kelp_doctor_cluster *cluster, struct kelp_error *reterr);

/* Each process that is registered: does it answer here? */
void kelp_doctor_processes(struct kelp_doctor_cluster *cluster);

/* What those that answered run. */
void kelp_doctor_versions(struct kelp_doctor_cluster *cluster);

/* What the job does, or waits for. */
void kelp_doctor_job(struct kelp_doctor_cluster *cluster);

/* The files that the job reads: are they here? */
void kelp_doctor_files(struct kelp_doctor_cluster *cluster);

/* The run's folder: is it the one that hosts share, and has it room? */
void kelp_doctor_folder(struct kelp_doctor_cluster *cluster);

void kelp_doctor_cluster_fini(struct kelp_doctor_cluster *cluster);

#endif
