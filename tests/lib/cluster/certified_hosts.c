#include "tests/lib/cluster/certified_hosts.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd.h"
#include "tests/lib/etcd/etcd_certified.h"
#include "tests/lib/tls/test_certificates.h"

#define ARGS_MAX 32

static const char *const names[KELP_CERTIFIED_HOSTS_MAX] = {"a", "b"};

static bool etcd_answers(const struct kelp_certified_hosts *cluster)
{
    struct kelp_etcd *client = NULL;
    struct kelp_etcd_range range = {0};
    char certs[300], key[100];

    (void)snprintf(certs, sizeof(certs), "%s/certs/operator", cluster->folder.path);
    (void)snprintf(key, sizeof(key), "/kelp/%.60s/spec", cluster->job);
    kelp_status status = kelp_etcd_open_certified(cluster->etcd_url, certs, &client, NULL);
    if (status == KELP_OK) {
        status = kelp_etcd_get(client, key, 1000, &range, NULL);
    }
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
    return status == KELP_OK;
}

static void issue(const struct kelp_certified_hosts *cluster, const char *role)
{
    char out[40], name[100];

    (void)snprintf(out, sizeof(out), "certs/%s", role);
    (void)snprintf(name, sizeof(name), "%.60s/%s", cluster->job, role);
    kelp_test_issue(
        &(struct kelp_test_issue){cluster->folder.path, "authority", out, name, NULL, 5});
}

void kelp_certified_hosts_init(struct kelp_certified_hosts *cluster, const char *job)
{
    static const char *const roles[] = {"coordinator", "shard", "worker", "operator", "reader"};

    memset(cluster, 0, sizeof(*cluster));
    cluster->job = job;
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    kelp_test_folder_init(&cluster->folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", cluster->folder.path, 1), 0);
    kelp_test_authority(cluster->folder.path, "authority");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        issue(cluster, roles[i]);
    }
    kelp_test_issue(&(struct kelp_test_issue){cluster->folder.path, "authority", "certs/etcd",
                                              "etcd", "127.0.0.1", 5});
    cluster->etcd =
        etcd_certified_start(cluster->folder.path, "certs/etcd", "127.0.0.1", cluster->etcd_url);
    KELP_TEST_AWAIT(etcd_answers(cluster), "etcd does not answer");
}

void kelp_certified_hosts_fini(struct kelp_certified_hosts *cluster)
{
    for (size_t i = 0; i < KELP_CERTIFIED_HOSTS_MAX; i++) {
        kelp_test_command_fini(&cluster->hosts[i]);
    }
    kelp_process_destroy(cluster->etcd);
    kelp_test_folder_fini(&cluster->folder);
    curl_global_cleanup();
}

/* FIRST ..., then args. */
static void put_args(const char **all, size_t count, const char *const *args)
{
    for (size_t i = 0; args && args[i]; i++) {
        ck_assert_uint_lt(count, ARGS_MAX - 1);
        all[count++] = args[i];
    }
    all[count] = NULL;
}

void kelp_certified_hosts_submit(struct kelp_certified_hosts *cluster, const char *file,
                                 const char *run, const char *const *args)
{
    const char *all[ARGS_MAX] = {"submit",         file,    "--etcd", cluster->etcd_url, "--certs",
                                 "certs/operator", "--run", run};

    put_args(all, 8, args);
    kelp_test_command_says(cluster->folder.path, all, 0, "\nsha256 ");
}

void kelp_certified_hosts_free(struct kelp_certified_hosts *cluster)
{
    const char *const args[] = {"free",    cluster->job,     "--etcd", cluster->etcd_url,
                                "--certs", "certs/operator", NULL};

    kelp_test_command_says(cluster->folder.path, args, 0, "");
}

void kelp_certified_hosts_start(struct kelp_certified_hosts *cluster, size_t host,
                                const char *shards, const char *const *args)
{
    const char *all[ARGS_MAX] = {
        "node",  "--etcd",   cluster->etcd_url, "--job",    cluster->job, "--certs",
        "certs", "--host",   names[host],       "--shards", shards,       "--workers",
        "1",     "--listen", "127.0.0.1",       "--grace",  "2s"};
    size_t count = 17;

    if (host == 0) {
        all[count++] = "--coordinator";
    }
    put_args(all, count, args);
    kelp_test_command_fini(&cluster->hosts[host]); /* of an earlier start */
    memset(&cluster->hosts[host], 0, sizeof(cluster->hosts[host]));
    kelp_test_command_start(&cluster->hosts[host], cluster->folder.path, all);
}

void kelp_certified_hosts_end(struct kelp_certified_hosts *cluster, size_t host, int exit_code)
{
    struct kelp_test_command *command = &cluster->hosts[host];

    (void)kelp_test_command_wait(command, KELP_TEST_HANG_MS);
    ck_assert_msg(command->exit_code == exit_code, "host %s: exit %d: %s%s", names[host],
                  command->exit_code, command->out, command->err);
    kelp_test_command_gone(command);
}

unsigned kelp_certified_hosts_said(const struct kelp_certified_hosts *cluster, const char *run,
                                   const char *id, const char *words)
{
    char path[300], line[4096];
    unsigned count = 0;

    (void)snprintf(path, sizeof(path), "%s/%s/logs/%s.log", cluster->folder.path, run, id);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        count += strstr(line, words) != NULL;
    }
    if (file) {
        (void)fclose(file);
    }
    return count;
}
