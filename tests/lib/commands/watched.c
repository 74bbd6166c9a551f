#include "tests/lib/commands/watched.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/http_raw.h"

#define JOB     "watched"
#define CALL_MS 20000

/* A constant learning rate, so that a step done twice or left out would show. */
static const char job_text[] = "name: " JOB "\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: %u, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4, replicas: %u}\n"
                               "checkpoint: {steps: 100, digest_steps: 10}\n";

void watched_start(struct watched *watched)
{
    memset(watched, 0, sizeof(*watched));
    watched->replicas = 2;
    etcd_fixture_start(&watched->etcd);
    kelp_test_folder_init(&watched->folder);
}

void watched_stop(struct watched *watched)
{
    for (size_t i = 0; i < watched->count; i++) {
        kelp_process_destroy(watched->daemons[i].process);
    }
    etcd_fixture_stop(&watched->etcd);
    kelp_test_folder_fini(&watched->folder);
}

void watched_put_job(struct watched *watched, unsigned epochs)
{
    struct kelp_etcd *client = etcd_fixture_client(&watched->etcd);
    struct kelp_error error = {.text = ""};
    char text[sizeof(job_text) + 32];

    (void)snprintf(text, sizeof(text), job_text, epochs, watched->replicas);
    kelp_status status = kelp_etcd_put(client, "/kelp/" JOB "/spec", text, 0, CALL_MS, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    kelp_etcd_close(client);
}

const char *watched_address(const struct watched *watched, const char *id)
{
    static char address[256];

    (void)snprintf(address, sizeof(address), "unix:%s/%s.m", watched->folder.path, id);
    return address;
}

void watched_daemon(struct watched *watched, const char *kind, const char *id,
                    const char *const *arguments)
{
    static const char *const unset[] = {"KELP_*", NULL};
    char program[512];
    char name[64];
    char listen[256];
    char metrics[256];
    char log[256];
    struct kelp_error error = {.text = ""};
    size_t count = 0;
    const char *argv[32];

    (void)snprintf(name, sizeof(name), "kelp-%s", kind);
    kelp_test_program(name, program, sizeof(program));
    (void)snprintf(listen, sizeof(listen), "unix:%s/%s.s", watched->folder.path, id);
    (void)snprintf(metrics, sizeof(metrics), "%s", watched_address(watched, id));
    (void)snprintf(log, sizeof(log), "%s/%s.log", watched->folder.path, id);
    const char *all[] = {program, "--etcd", watched->etcd.url, "--job", JOB,
                         "--id",  id,       "--metrics",       metrics};
    const char *serves[] = {"--listen", listen, "--run", watched->folder.path};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(all); i++) {
        argv[count++] = all[i];
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(serves) && strcmp(kind, "worker") != 0; i++) {
        argv[count++] = serves[i];
    }
    for (; arguments && *arguments; arguments++) {
        argv[count++] = *arguments;
    }
    argv[count] = NULL;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    const struct kelp_process_options options = {
        .argv = argv, .unset_environment = unset, .stdout_fd = KELP_PROCESS_NULL, .stderr_fd = fd};
    ck_assert_uint_lt(watched->count, WATCHED_PROCESSES);
    (void)snprintf(watched->daemons[watched->count].id, sizeof(watched->daemons[0].id), "%s", id);
    kelp_status status =
        kelp_process_start(&options, &watched->daemons[watched->count].process, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    watched->count++;
    (void)close(fd);
}

void watched_daemons(struct watched *watched)
{
    watched_daemon(watched, "coordinator", "coordinator-0", NULL);
    watched_daemon(watched, "coordinator", "coordinator-1", NULL);
    watched_daemon(watched, "ps", "shard-0", NULL);
    watched_daemon(watched, "ps", "shard-1", NULL);
    watched_daemon(watched, "worker", "worker-0", NULL);
    watched_daemon(watched, "worker", "worker-1", NULL);
}

struct kelp_process *watched_process(const struct watched *watched, const char *id)
{
    for (size_t i = 0; i < watched->count; i++) {
        if (strcmp(watched->daemons[i].id, id) == 0) {
            return watched->daemons[i].process;
        }
    }
    ck_abort_msg("there is no %s", id);
}

static const char *respond(const struct watched *watched, const char *id, const char *path)
{
    return kelp_test_http_ask(watched_address(watched, id), "GET", path);
}

int watched_status(const struct watched *watched, const char *id, const char *path)
{
    return kelp_test_http_status(respond(watched, id, path));
}

const char *watched_ask(const struct watched *watched, const char *id, const char *path)
{
    return kelp_test_http_body(respond(watched, id, path));
}

double watched_sample(const struct watched *watched, const char *id, const char *name)
{
    return kelp_test_http_sample(watched_ask(watched, id, "/metrics"), name);
}
