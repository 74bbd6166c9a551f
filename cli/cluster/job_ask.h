/*
 * What a verb wants of a running job: asked for until the job's status shows it, since a request is
 * lost with the leader that took it. What is waited for is said on standard error.
 */
#ifndef KELP_CLI_CLUSTER_JOB_ASK_H
#define KELP_CLI_CLUSTER_JOB_ASK_H

#include "cli/cluster/job_client.h"
#include "cli/verb/meter.h"
#include "cli/verb/verb.h"

/* Rows of a verb's options: how long, and where the job is. */
#define KELP_JOB_ASK_OPTIONS(otherwise, text)                                                      \
    KELP_VERB_NUMBER("timeout", DURATION, 100, 86400000, otherwise, NULL, text),                   \
        KELP_VERB_ETCD(NULL, "find the job in this etcd; the argument is then a job's name, not "  \
                             "a run's folder"),                                                    \
        KELP_VERB_CERTS(NULL, "with --etcd: an operator's ca.pem, cert.pem and key.pem")

/* How one look went. */
struct kelp_job_look {
    struct kelp_error error;         /* of asking; KELP_OK: it is so, or only not so yet */
    int exit_status;                 /* with an error that is final; 0: KELP_EXIT_USAGE */
    char waits[KELP_METER_TEXT_MAX]; /* what for, for people; "": nothing to say */
};

struct kelp_job_ask {
    /* Look at the job, and ask where it is needed, within left_ms. True: it is so. */
    bool (*look)(struct kelp_job_client *client, uint32_t left_ms, void *user,
                 struct kelp_job_look *look);
    /* It is so: say that. */
    void (*tell)(const void *user, double seconds);
    /* The time is over, because of that: complain. Returns the exit status. */
    int (*late)(const struct kelp_job_client *client, const char *why, const void *user);
    void *user;
    bool quiet; /* say nothing of what is waited for */
};

/* Find the job that `given` and the typed name mean (kelp_run_client_choose()), and ask until it is
 * so, refused for good, or late. Returns the exit status of the command. */
int kelp_job_ask(const struct kelp_options *given, const char *typed,
                 const struct kelp_job_ask *ask);

#endif
