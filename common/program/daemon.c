#include "common/program/daemon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/process_name.h"
#include "common/base/sha256.h"
#include "common/etcd/etcd_endpoint.h"
#include "common/log/log.h"
#include "common/program/serving.h"

_Static_assert(KELP_PROCESS_NAME_MAX == KELP_JOB_NAME_MAX, "--job and --id are alike");

#define ETCD_DEADLINE_MS 1000u
#define ETCD_RETRY_MS    250u

/* Each peer is a connection, so use as many descriptors as the system allows. */
static void raise_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* on failure the old limit stays */
    }
}

static bool check_etcd(const struct kelp_program *program, const char *text)
{
    char(*endpoints)[KELP_ETCD_ENDPOINT_MAX + 1] = NULL;
    size_t count = 0;
    struct kelp_error error;

    if (kelp_etcd_endpoints_parse(text, &endpoints, &count, &error) != KELP_OK) {
        (void)fprintf(stderr, "%s: --etcd: %s\n", program->name, error.text);
        return false;
    }
    free(endpoints);
    return true;
}

bool kelp_daemon_begin(const struct kelp_program *program, const struct kelp_options *options,
                       const char *role)
{
    if (!kelp_process_name_valid(kelp_options_text(options, "job")) ||
        !kelp_process_name_valid(kelp_options_text(options, "id"))) {
        (void)fprintf(stderr, "%s: --job and --id are 1 to %d letters, digits, '-', '_' or '.'\n",
                      program->name, KELP_JOB_NAME_MAX);
        return false;
    }
    if (!check_etcd(program, kelp_options_text(options, "etcd"))) {
        return false;
    }
    const char *sha256 = kelp_options_text(options, "spec-sha256");
    if (sha256 && !kelp_sha256_is(sha256)) {
        (void)fprintf(stderr, "%s: --spec-sha256 must be 64 hexadecimal digits in lower case\n",
                      program->name);
        return false;
    }
    raise_descriptors();
    kelp_log_as((enum kelp_log_format)kelp_options_choice(options, "log-format"));
    kelp_log_init(role, kelp_options_text(options, "id"),
                  (enum kelp_log_level)kelp_options_choice(options, "log-level"), STDERR_FILENO);
    return true;
}

kelp_status kelp_daemon_check_own(const struct kelp_credentials *credentials, enum kelp_role role,
                                  const char *job, const char *id, struct kelp_error *reterr)
{
    const struct kelp_spiffe *name = kelp_credentials_name(credentials);
    char text[KELP_SPIFFE_MAX + 1];

    if (name->role == role && strcmp(name->job, job) == 0 && kelp_spiffe_allows(name, id)) {
        return KELP_OK;
    }
    kelp_spiffe_print(name, text);
    return kelp_fail(reterr, KELP_ERR_DENIED,
                     "the certificate is for %s, but this process is spiffe://kelp/%s/%s/%s", text,
                     job, kelp_role_names[role], id);
}

bool kelp_daemon_credentials(const struct kelp_program *program, const struct kelp_options *options,
                             enum kelp_role role, struct kelp_credentials **ret_credentials)
{
    const char *folder = kelp_options_text(options, "certs");
    struct kelp_credentials *credentials = NULL;
    struct kelp_error error;

    *ret_credentials = NULL;
    if (!folder) {
        return true;
    }
    kelp_status status = kelp_credentials_open(folder, &credentials, &error);
    if (status == KELP_OK) {
        status = kelp_daemon_check_own(credentials, role, kelp_options_text(options, "job"),
                                       kelp_options_text(options, "id"), &error);
    }
    if (status != KELP_OK) {
        (void)fprintf(stderr, "%s: --certs: %s\n", program->name, error.text);
        kelp_credentials_close(credentials);
        return false;
    }
    *ret_credentials = credentials;
    return true;
}

static const char *wrong_advertise(const char *listen, const char *advertise)
{
    bool has_port = false;

    if (listen && strncmp(listen, "unix:", 5) == 0) {
        return "not allowed with --listen unix:PATH, which others dial as it is";
    }
    return kelp_address_is_dialled(advertise, &has_port)
               ? NULL
               : "expected HOST or HOST:PORT with a numeric address that others can dial, such "
                 "as 203.0.113.7:7001";
}

/* Why this address may not be used without certificates, or NULL. */
static const char *wrong_listen(const char *listen, bool insecure)
{
    if (strncmp(listen, "unix:", 5) == 0) {
        return NULL;
    }
    if (!kelp_address_is_loopback(listen, strlen(listen))) {
        return "other machines can reach this address, so it needs certificates: --certs FOLDER "
               "(kelp certs)";
    }
    return insecure ? NULL
                    : "every user of this machine can reach this address: use certificates "
                      "(--certs FOLDER, see kelp certs) or a socket (unix:/PATH), or accept it "
                      "with --insecure";
}

static bool complain(const struct kelp_program *program, const char *option, const char *value,
                     const char *what)
{
    if (what) {
        (void)fprintf(stderr, "%s: --%s %.255s: %s\n", program->name, option, value, what);
    }
    return what != NULL;
}

/* The same check; reports what is wrong. */
static bool may_listen_openly(const struct kelp_program *program, const char *listen, bool insecure)
{
    return !complain(program, "listen", listen, wrong_listen(listen, insecure));
}

bool kelp_daemon_may_listen(const struct kelp_program *program, const struct kelp_options *options,
                            const struct kelp_credentials *credentials,
                            struct kelp_serving *serving)
{
    const struct kelp_serving_options wanted = {
        .etcd = kelp_options_text(options, "etcd"),
        .listen = kelp_options_text(options, "listen"),
        .advertise = kelp_options_text(options, "advertise"),
        .certified = credentials != NULL,
        .one_machine = kelp_options_flag(options, "one-machine"),
    };
    bool insecure = kelp_options_flag(options, "insecure");
    struct kelp_error error;

    if (credentials && insecure) {
        (void)fprintf(stderr, "%s: --insecure with --certs: give one of them\n", program->name);
        return false;
    }
    /* Host names are resolved only after these checks. */
    if ((wanted.advertise && complain(program, "advertise", wanted.advertise,
                                      wrong_advertise(wanted.listen, wanted.advertise))) ||
        (wanted.listen && !credentials && !may_listen_openly(program, wanted.listen, insecure))) {
        return false;
    }
    if (kelp_serving_init(serving, &wanted, &error) != KELP_OK) {
        (void)fprintf(stderr, "%s: %s\n", program->name, error.text);
        return false;
    }
    if (credentials) {
        return true;
    }
    if (!may_listen_openly(program, serving->listen, insecure)) {
        return false;
    }
    if (strncmp(serving->listen, "unix:", 5) != 0) { /* shown at every --log-level */
        kelp_log_error("insecure: every user of this machine can read, steer and stop the job at "
                       "this port; --certs closes it listen=%s",
                       serving->listen);
    }
    return true;
}

int kelp_daemon_exit_code(kelp_status status)
{
    if (status == KELP_ERR_DEVICE) {
        return KELP_EXIT_DEVICE;
    }
    switch (kelp_status_group(status)) {
    case KELP_GROUP_OK:
        return KELP_EXIT_OK;
    case KELP_GROUP_CALLER:
    case KELP_GROUP_DATA:
        return KELP_EXIT_USAGE;
    case KELP_GROUP_RETRY:
    case KELP_GROUP_PEER:
    case KELP_GROUP_FENCED:
    case KELP_GROUP_RESOURCE:
        break;
    }
    return KELP_EXIT_FAILED;
}

void kelp_stop_raise(struct kelp_stop *stop)
{
    (void)pthread_mutex_lock(&stop->mutex);
    stop->raised = true;
    (void)pthread_cond_broadcast(&stop->changed);
    (void)pthread_mutex_unlock(&stop->mutex);
}

bool kelp_stop_raised(struct kelp_stop *stop)
{
    (void)pthread_mutex_lock(&stop->mutex);
    bool raised = stop->raised;
    (void)pthread_mutex_unlock(&stop->mutex);
    return raised;
}

/* Wait until the stop is raised, at most wait_ms. Returns whether it is raised. */
static bool wait_raised(struct kelp_stop *stop, uint32_t wait_ms)
{
    const uint64_t until_ms = kelp_clock_ms() + wait_ms;

    (void)pthread_mutex_lock(&stop->mutex);
    while (!stop->raised && kelp_clock_wait(&stop->changed, &stop->mutex, until_ms)) {
    }
    bool raised = stop->raised;
    (void)pthread_mutex_unlock(&stop->mutex);
    return raised;
}

/* *ret_text is owned. The reason for waiting is logged when it changes. */
static kelp_status wait_for_spec(struct kelp_etcd *etcd, const char *job, struct kelp_stop *stop,
                                 char **ret_text, struct kelp_error *reterr)
{
    char key[sizeof("/kelp//spec") + KELP_JOB_NAME_MAX];
    kelp_status told = KELP_OK;

    (void)snprintf(key, sizeof(key), "/kelp/%s/spec", job);
    do {
        struct kelp_etcd_range range = {0};
        struct kelp_error error = {.text = ""};
        kelp_status status = kelp_etcd_get(etcd, key, ETCD_DEADLINE_MS, &range, &error);
        if (status == KELP_OK && range.count > 0) {
            *ret_text = range.pairs[0].value;
            range.pairs[0].value = NULL;
            kelp_etcd_range_fini(&range);
            return KELP_OK;
        }
        if (status == KELP_OK) {
            kelp_etcd_range_fini(&range);
            status = kelp_fail(&error, KELP_ERR_NOT_FOUND, "there is no such job yet");
        }
        if (status != told) {
            kelp_log_info("waiting for the job key=%s reason=\"%s\"", key, error.text);
            told = status;
        }
    } while (!wait_raised(stop, ETCD_RETRY_MS));
    return kelp_fail(reterr, KELP_ERR_TIMEOUT, "stopped while waiting for %s", key);
}

kelp_status kelp_daemon_find_address(struct kelp_serving *serving, struct kelp_stop *stop,
                                     struct kelp_error *reterr)
{
    bool told = false;
    kelp_status status;

    while ((status = kelp_serving_find(serving, reterr)) == KELP_ERR_UNREACHABLE) {
        if (!told) {
            kelp_log_info("waiting for a route to etcd reason=\"%s\"", reterr->text);
            told = true;
        }
        if (wait_raised(stop, ETCD_RETRY_MS)) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "stopped while waiting for a route to etcd");
        }
    }
    return status;
}

kelp_status kelp_daemon_check_spec(const char *job, const char *text, size_t text_bytes,
                                   const char *sha256, struct kelp_error *reterr)
{
    char actual[KELP_SHA256_HEX_BYTES];

    kelp_status status = kelp_sha256(text, text_bytes, actual, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_log_info("the job is there key=/kelp/%s/spec sha256=%s", job, actual);
    if (!sha256 || strcmp(actual, sha256) == 0) {
        return KELP_OK;
    }
    return kelp_fail(
        reterr, KELP_ERR_MISMATCH,
        "/kelp/%s/spec in etcd is not the expected job: its SHA-256 is %s, but --spec-sha256 is %s",
        job, actual, sha256);
}

static kelp_status parse_spec(struct kelp_job_file *file, const char *text,
                              struct kelp_error *reterr)
{
    kelp_status status = kelp_job_file_parse(file, "spec in etcd", text, strlen(text), reterr);

    return status == KELP_OK ? kelp_job_file_finish(file, reterr) : status;
}

static kelp_status map_paths(struct kelp_job_file *file, const struct kelp_path_map *paths,
                             struct kelp_error *reterr)
{
    struct kelp_job_path path;

    if (!paths || paths->count == 0) {
        return KELP_OK;
    }
    kelp_status status = kelp_job_file_map(file, paths, reterr);
    for (size_t i = 0; status == KELP_OK && kelp_job_file_path(file, i, &path); i++) {
        if (strcmp(path.named, path.here) != 0) {
            kelp_log_info("reads a file of the job elsewhere key=%s path=\"%s\" here=\"%s\"",
                          path.key, path.named, path.here);
        }
    }
    return status;
}

kelp_status kelp_daemon_read_job(struct kelp_etcd *etcd, const struct kelp_daemon_job *job,
                                 struct kelp_stop *stop, struct kelp_job_file **ret_file,
                                 struct kelp_error *reterr)
{
    char *text = NULL;
    kelp_status status = wait_for_spec(etcd, job->name, stop, &text, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_job_file *file = kelp_job_file_create();
    status = file ? kelp_daemon_check_spec(job->name, text, strlen(text), job->sha256, reterr)
                  : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the job");
    if (status == KELP_OK) {
        status = parse_spec(file, text, reterr);
    }
    if (status == KELP_OK) {
        status = map_paths(file, job->paths, reterr);
    }
    free(text);
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}
