/*
 * Code that all daemons use: their common options, waiting for the job in etcd, a stop request that
 * wakes waiting threads at once, and exit statuses.
 */
#ifndef KELP_COMMON_PROGRAM_DAEMON_H
#define KELP_COMMON_PROGRAM_DAEMON_H

#include <pthread.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/etcd/etcd.h"
#include "common/job/job.h"
#include "common/job/path_map.h"
#include "common/log/log.h"
#include "common/program/options/options.h"
#include "common/tls/credentials.h"

struct kelp_serving; /* common/program/serving.h */

/* --certs, for every program that connects to a job. */
#define KELP_CERTS_OPTION                                                                          \
    {                                                                                              \
        .name = "certs", .type = KELP_OPTION_TEXT, .placeholder = "FOLDER",                        \
        .help = "folder with ca.pem, cert.pem and key.pem of this process, for mutual TLS on "     \
                "every port and to etcd"                                                           \
    }

/* Messages that workers log at every level, because their parent process looks for them. */
/* A worker is about to fail because of its --fault. */
#define KELP_WORKER_FAILING "failing as asked"
/* A program with libkelp-worker has joined; the beginning of the message. */
#define KELP_WORKER_JOINED "joined samples="
/* The job is over for such a program, and what it does from now on is its own business. */
#define KELP_WORKER_ENDED "there are no more lanes: the job is over"

/* --grace: the default time, and the text after "time to". */
#define KELP_GRACE_OPTION(time, text)                                                              \
    {                                                                                              \
        .name = "grace", .type = KELP_OPTION_DURATION, .min = 100, .max = 86400000,                \
        .default_text = (time), .help = "after SIGTERM: time to " text                             \
    }

/* --listen; `what` continues "address to listen on". */
#define KELP_LISTEN_OPTION(what)                                                                   \
    {                                                                                              \
        .name = "listen", .type = KELP_OPTION_TEXT, .placeholder = "HOST:PORT",                    \
        .help = "address to listen on" what                                                        \
                "; port 0: any free port, unix:/PATH: a socket in the file system "                \
                "(default 127.0.0.1:0; if etcd is on another machine, a free port of the "         \
                "address from which this host reaches it)"                                         \
    }

#define KELP_INSECURE_OPTION                                                                       \
    {                                                                                              \
        .name = "insecure", .type = KELP_OPTION_FLAG, .no_environment = true,                      \
        .help = "listen on a loopback port without --certs, though every user of this machine "    \
                "can then read, steer and stop the job"                                            \
    }

#define KELP_ADVERTISE_OPTION                                                                      \
    {                                                                                              \
        .name = "advertise", .type = KELP_OPTION_TEXT, .placeholder = "HOST[:PORT]",               \
        .help = "numeric address that others dial, if it is not --listen, as behind a NAT "        \
                "(default: --listen; for 0.0.0.0 the address from which this host reaches etcd, "  \
                "or that of the first interface if etcd is on this host)"                          \
    }

#define KELP_ONE_MACHINE_OPTION                                                                    \
    {                                                                                              \
        .name = "one-machine", .type = KELP_OPTION_FLAG, .no_environment = true,                   \
        .help = "all processes of the job are on this machine though etcd is not, so a loopback "  \
                "address may be registered"                                                        \
    }

/* Entries for a daemon's table of options. */
#define KELP_DAEMON_OPTIONS                                                                        \
    {.name = "etcd",                                                                               \
     .type = KELP_OPTION_TEXT,                                                                     \
     .placeholder = "URL[,URL...]",                                                                \
     .required = true,                                                                             \
     .help = "etcd's client addresses"},                                                           \
        {.name = "job",                                                                            \
         .type = KELP_OPTION_TEXT,                                                                 \
         .placeholder = "NAME",                                                                    \
         .required = true,                                                                         \
         .help = "the job to work for; its text is in etcd"},                                      \
        {.name = "id",                                                                             \
         .type = KELP_OPTION_TEXT,                                                                 \
         .placeholder = "NAME",                                                                    \
         .required = true,                                                                         \
         .help = "name of this process, unique in the job"},                                       \
        {.name = "spec-sha256",                                                                    \
         .type = KELP_OPTION_TEXT,                                                                 \
         .placeholder = "HEX",                                                                     \
         .help = "work for the job only if its text has this SHA-256; a worker needs it for a "    \
                 "job with model.plugin"},                                                         \
        KELP_CERTS_OPTION,                                                                         \
        {.name = "metrics",                                                                        \
         .type = KELP_OPTION_TEXT,                                                                 \
         .placeholder = "ADDRESS",                                                                 \
         .help = "serve /metrics, /healthz and /readyz at HOST:PORT (loopback only without "       \
                 "--certs) or at unix:/PATH"},                                                     \
        {.name = "log-format",                                                                     \
         .type = KELP_OPTION_CHOICE,                                                               \
         .default_text = "text",                                                                   \
         .choices = kelp_log_format_names,                                                         \
         .help = "log lines as text, or as JSON objects with time, level, role, id, message and "  \
                 "the line's fields"},                                                             \
    {                                                                                              \
        .name = "log-level", .type = KELP_OPTION_CHOICE, .default_text = "info",                   \
        .choices = kelp_log_level_names, .help = "lowest level that is logged to standard error"   \
    }

/*
 * Check --job and --id, which become parts of etcd keys, --etcd and --spec-sha256, and set up the
 * log. On a mistake it prints one line to standard error and returns false; the program should then
 * exit with KELP_EXIT_USAGE.
 */
bool kelp_daemon_begin(const struct kelp_program *program, const struct kelp_options *options,
                       const char *role);

/*
 * Open the certificates of --certs. *ret_credentials is owned (kelp_credentials_close()); NULL if
 * the option is not given. The certificate must be for that role and for --job, and for --id or for
 * all ids. On a mistake it prints one line to standard error and returns false; the program should
 * then exit with KELP_EXIT_USAGE.
 */
bool kelp_daemon_credentials(const struct kelp_program *program, const struct kelp_options *options,
                             enum kelp_role role, struct kelp_credentials **ret_credentials);
/* Check that the certificate is for that role and job, and for this id or for all ids. Errors:
 * KELP_ERR_DENIED (it is not). */
kelp_status kelp_daemon_check_own(const struct kelp_credentials *credentials, enum kelp_role role,
                                  const char *job, const char *id,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/*
 * Check whether the daemon may listen at --listen and be dialled at --advertise. Without
 * credentials it may not listen at an address that other machines can reach, and at a loopback port
 * only with
 * --insecure, which logs a warning. The address that it would register must meet the rules of
 * serving.h. If it may not, the function prints one line to standard error and returns false; the
 * program should then exit with KELP_EXIT_USAGE. Names in --listen are looked up. serving borrows
 * the texts of the options.
 */
bool kelp_daemon_may_listen(const struct kelp_program *program, const struct kelp_options *options,
                            const struct kelp_credentials *credentials,
                            struct kelp_serving *serving);

/* Errors of the caller or the data are bad input (2); all others are a failure (1). */
int kelp_daemon_exit_code(kelp_status status);

/* A stop request. Any thread may raise it; it is never lowered. */
struct kelp_stop {
    pthread_mutex_t mutex; /* guards raised */
    pthread_cond_t changed;
    bool raised;
};
#define KELP_STOP_INIT                                                                             \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                    \
    }
void kelp_stop_raise(struct kelp_stop *stop);
bool kelp_stop_raised(struct kelp_stop *stop);

/* Call kelp_serving_find() until there is a route to etcd; log that the daemon waits for one.
 * Errors: KELP_ERR_TIMEOUT (stop was raised), KELP_ERR_INVALID. */
kelp_status kelp_daemon_find_address(struct kelp_serving *serving, struct kelp_stop *stop,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Check that a job's text has the given SHA-256 (--spec-sha256), and log the one that it has.
 * sha256 NULL: any text is accepted. Errors: KELP_ERR_MISMATCH, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_daemon_check_spec(const char *job, const char *text, size_t text_bytes,
                                   const char *sha256, struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Wait for etcd and for /kelp/<job>/spec in it, without a time limit, and log what it waits for.
 * Then check the job's text, read it, and apply job->paths to its files, which is logged too.
 * *ret_file is owned (kelp_job_file_destroy()). Errors: KELP_ERR_TIMEOUT (stop was raised),
 * KELP_ERR_INVALID (the text is no valid job), those of kelp_daemon_check_spec() and
 * kelp_job_file_map().
 */
struct kelp_daemon_job {
    const char *name;
    const char *sha256;                /* of the job's text; NULL: any */
    const struct kelp_path_map *paths; /* where files are here; NULL: at the job's own paths */
};
kelp_status kelp_daemon_read_job(struct kelp_etcd *etcd, const struct kelp_daemon_job *job,
                                 struct kelp_stop *stop, struct kelp_job_file **ret_file,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
