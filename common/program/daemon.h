/*
 * What Kelp's daemons share: the options that each takes, the wait for the job in etcd, a stop that
 * a waiting thread sees at once, and exit statuses.
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
#include "common/program/options.h"
#include "common/tls/credentials.h"

struct kelp_serving; /* common/program/serving.h */

/* Of whatever connects to a job. */
#define KELP_CERTS_OPTION                                                                          \
    {                                                                                              \
        .name = "certs", .type = KELP_OPTION_TEXT, .placeholder = "FOLDER",                        \
        .help =                                                                                    \
            "ca.pem, cert.pem and key.pem of this process: mutual TLS on every port and to etcd"   \
    }

/* What workers log at any level, since who started them looks for it. When one fails as its --fault
 * asks: */
#define KELP_WORKER_FAILING "failing as asked"
/* At the front of the line in which a program with libkelp-worker says that it takes part. */
#define KELP_WORKER_JOINED "joined samples="
/* That the job is over for it: what the program does from now on is its own. */
#define KELP_WORKER_ENDED "there are no more lanes: the job is over"

/* Of a daemon that is asked to end: how long, and what for. */
#define KELP_GRACE_OPTION(time, text)                                                              \
    {                                                                                              \
        .name = "grace", .type = KELP_OPTION_DURATION, .min = 100, .max = 86400000,                \
        .default_text = (time), .help = "after SIGTERM: time to " text                             \
    }

/* Of a daemon that listens. */
#define KELP_LISTEN_OPTION(what)                                                                   \
    {                                                                                              \
        .name = "listen", .type = KELP_OPTION_TEXT, .placeholder = "HOST:PORT",                    \
        .help = "address to serve " what                                                           \
                "; port 0 takes a free one, and unix:/PATH is a socket in the file system "        \
                "(default 127.0.0.1:0; where etcd is on another machine, a free port of the "      \
                "address that this host uses towards it)"                                          \
    }

#define KELP_INSECURE_OPTION                                                                       \
    {                                                                                              \
        .name = "insecure", .type = KELP_OPTION_FLAG, .no_environment = true,                      \
        .help = "listen at a port of loopback without --certs: every user of this machine can "    \
                "read, steer and stop the job"                                                     \
    }

#define KELP_ADVERTISE_OPTION                                                                      \
    {                                                                                              \
        .name = "advertise", .type = KELP_OPTION_TEXT, .placeholder = "HOST[:PORT]",               \
        .help = "what others dial, in numbers, when that is not --listen, as behind a NAT "        \
                "(default: --listen; for 0.0.0.0 the address that this host uses towards etcd, "   \
                "or the first interface's where etcd is here)"                                     \
    }

#define KELP_ONE_MACHINE_OPTION                                                                    \
    {                                                                                              \
        .name = "one-machine", .type = KELP_OPTION_FLAG, .no_environment = true,                   \
        .help = "all processes of the job are on this machine, though etcd is not: what is "       \
                "registered may be loopback"                                                       \
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
         .help = "SHA-256 of the job's text: refuse another one that etcd has; a worker needs it " \
                 "for a job with model.plugin"},                                                   \
        KELP_CERTS_OPTION,                                                                         \
        {.name = "metrics",                                                                        \
         .type = KELP_OPTION_TEXT,                                                                 \
         .placeholder = "ADDRESS",                                                                 \
         .help =                                                                                   \
             "serve /metrics, /healthz and /readyz at HOST:PORT, of loopback without --certs, "    \
             "or at unix:/PATH; else nowhere"},                                                    \
        {.name = "log-format",                                                                     \
         .type = KELP_OPTION_CHOICE,                                                               \
         .default_text = "text",                                                                   \
         .choices = kelp_log_format_names,                                                         \
         .help = "lines of the log as text, or as JSON objects whose members are time, level, "    \
                 "role, id, message and the fields of the line"},                                  \
    {                                                                                              \
        .name = "log-level", .type = KELP_OPTION_CHOICE, .default_text = "info",                   \
        .choices = kelp_log_level_names,                                                           \
        .help = "least important lines that are logged to standard error"                          \
    }

/*
 * Check --job and --id, which become parts of etcd keys, --etcd and --spec-sha256, and set up the
 * log. On a mistake: one line to standard error and false; the exit status is KELP_EXIT_USAGE then.
 */
bool kelp_daemon_begin(const struct kelp_program *program, const struct kelp_options *options,
                       const char *role);

/*
 * What --certs names, if it is given; *ret_credentials is owned (kelp_credentials_close()), NULL
 * when it is not. The certificate must be of that role, of --job, and of --id or of every id. On a
 * mistake: one line to standard error and false; the exit status is KELP_EXIT_USAGE then.
 */
bool kelp_daemon_credentials(const struct kelp_program *program, const struct kelp_options *options,
                             enum kelp_role role, struct kelp_credentials **ret_credentials);
/* Is the certificate of that role, of this job, and of this id or of every id? Errors:
 * KELP_ERR_DENIED. */
kelp_status kelp_daemon_check_own(const struct kelp_credentials *credentials, enum kelp_role role,
                                  const char *job, const char *id,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/*
 * May it listen at --listen, and be dialled at --advertise? Without credentials at no address that
 * other machines reach, and at a port of loopback only with --insecure, which is a warning in the
 * log; and what it would register must be as serving.h says. Otherwise: one line to standard error
 * and false; the exit status is KELP_EXIT_USAGE then. Names in --listen are looked up. serving
 * borrows the texts of the options.
 */
bool kelp_daemon_may_listen(const struct kelp_program *program, const struct kelp_options *options,
                            const struct kelp_credentials *credentials,
                            struct kelp_serving *serving);

/* Caller and data errors are bad input (2), the rest is a failure (1). */
int kelp_daemon_exit_code(kelp_status status);

/* Raised once, from any thread; never lowered. */
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

/* kelp_serving_find(), as long as there is no way to etcd, saying in the log that it waits. Errors:
 * KELP_ERR_TIMEOUT (stop was raised), KELP_ERR_INVALID. */
kelp_status kelp_daemon_find_address(struct kelp_serving *serving, struct kelp_stop *stop,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Is this text of a job the one that is meant (--spec-sha256)? Says in the log which one it is.
 * sha256 NULL: any is. Errors: KELP_ERR_MISMATCH, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_daemon_check_spec(const char *job, const char *text, size_t text_bytes,
                                   const char *sha256, struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Wait for /kelp/<job>/spec, and for etcd itself, without limit, saying in the log for what; check
 * it, and read it. The files that paths has lie elsewhere here, which is said in the log.
 * *ret_file is owned (kelp_job_file_destroy()). Errors: KELP_ERR_TIMEOUT (stop was raised),
 * KELP_ERR_INVALID (the specification), those of kelp_daemon_check_spec() and kelp_job_file_map().
 */
struct kelp_daemon_job {
    const char *name;
    const char *sha256;                /* of its text; NULL: any */
    const struct kelp_path_map *paths; /* NULL: all files are where the job has them */
};
kelp_status kelp_daemon_read_job(struct kelp_etcd *etcd, const struct kelp_daemon_job *job,
                                 struct kelp_stop *stop, struct kelp_job_file **ret_file,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
