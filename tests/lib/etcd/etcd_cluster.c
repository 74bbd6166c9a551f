#include "tests/lib/etcd/etcd_cluster.h"

#include <arpa/inet.h>
#include <check.h>
#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

enum { WAIT_MS = 60000, LOOK_MS = 20, ANSWER_MAX = 16384 };

/* ---- requests to a member -------------------------------------------------------------------- */

struct answer {
    char bytes[ANSWER_MAX];
    size_t used;
};

static size_t take_answer(char *bytes, size_t size, size_t count, void *user)
{
    struct answer *answer = user;

    if (count > sizeof(answer->bytes) - answer->used) {
        return 0;
    }
    memcpy(answer->bytes + answer->used, bytes, count);
    answer->used += count;
    return size * count;
}

/* POST; the parsed answer (owned), or NULL. */
static cJSON *ask(const char *member_url, const char *path, const char *body)
{
    char url[128];
    struct answer answer = {.used = 0};
    cJSON *json = NULL;
    CURL *curl = curl_easy_init();

    ck_assert_ptr_nonnull(curl);
    (void)snprintf(url, sizeof(url), "%s%s", member_url, path);
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_answer);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 1000L);
    if (curl_easy_perform(curl) == CURLE_OK) {
        json = cJSON_ParseWithLength(answer.bytes, answer.used);
    }
    curl_easy_cleanup(curl);
    return json;
}

static const char *text_of(const cJSON *json, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));

    return text ? text : "";
}

/* A member's own id, and the id of its leader ("": none). */
static bool member_status(const struct etcd_cluster *cluster, int member, char id[32],
                          char leader[32])
{
    cJSON *json = ask(cluster->members[member].url, "/v3/maintenance/status", "{}");
    const cJSON *header = cJSON_GetObjectItemCaseSensitive(json, "header");

    (void)snprintf(id, 32, "%s", text_of(header, "member_id"));
    (void)snprintf(leader, 32, "%s", text_of(json, "leader"));
    cJSON_Delete(json);
    return *id != '\0';
}

int etcd_cluster_leader(struct etcd_cluster *cluster)
{
    uint64_t end_ms = kelp_clock_ms() + WAIT_MS;

    while (kelp_clock_ms() < end_ms) {
        for (int i = 0; i < ETCD_CLUSTER_MEMBERS; i++) {
            char id[32];
            char leader[32];
            if (cluster->members[i].process && member_status(cluster, i, id, leader) &&
                strcmp(id, leader) == 0) {
                return i;
            }
        }
        (void)usleep(LOOK_MS * 1000); /* etcd sends no event for this, so ask again */
    }
    ck_abort_msg("etcd has no leader after %d s", WAIT_MS / 1000);
    return -1;
}

void etcd_cluster_move_leader(struct etcd_cluster *cluster, int to)
{
    const uint64_t end_ms = kelp_clock_ms() + WAIT_MS;
    char id[32];
    char leader[32];
    char body[64];

    /* On a busy machine another member may be elected meanwhile, and refuse. */
    while (etcd_cluster_leader(cluster) != to) {
        ck_assert_msg(kelp_clock_ms() < end_ms, "member %d does not become leader", to);
        if (member_status(cluster, to, id, leader)) {
            (void)snprintf(body, sizeof(body), "{\"targetID\":\"%s\"}", id);
            cJSON_Delete(ask(cluster->members[etcd_cluster_leader(cluster)].url,
                             "/v3/maintenance/transfer-leadership", body));
        }
    }
}

void etcd_cluster_expect_member(struct etcd_cluster *cluster)
{
    static const char body[] = "{\"peerURLs\":[\"http://127.0.0.1:1\"]}";
    const uint64_t end_ms = kelp_clock_ms() + WAIT_MS;
    bool added = false;

    while (!added && kelp_clock_ms() < end_ms) {
        cJSON *json =
            ask(cluster->members[etcd_cluster_leader(cluster)].url, "/v3/cluster/member/add", body);
        added = cJSON_GetObjectItemCaseSensitive(json, "member") != NULL;
        cJSON_Delete(json);
        if (!added) { /* the members have been connected for too short a time */
            (void)usleep(LOOK_MS * 1000);
        }
    }
    ck_assert_msg(added, "etcd takes no member in %d s", WAIT_MS / 1000);
}

/* ---- members ----------------------------------------------------------------------------------
 */

/* Choose free ports, all held at once so that they differ. */
static void choose_ports(struct etcd_cluster *cluster)
{
    int fds[2 * ETCD_CLUSTER_MEMBERS];

    for (int i = 0; i < 2 * ETCD_CLUSTER_MEMBERS; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET};
        socklen_t length = sizeof(address);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(fds[i], 0);
        ck_assert_int_eq(bind(fds[i], (struct sockaddr *)&address, sizeof(address)), 0);
        ck_assert_int_eq(getsockname(fds[i], (struct sockaddr *)&address, &length), 0);
        uint16_t *port =
            i % 2 ? &cluster->members[i / 2].peer_port : &cluster->members[i / 2].client_port;
        *port = ntohs(address.sin_port);
    }
    for (int i = 0; i < 2 * ETCD_CLUSTER_MEMBERS; i++) {
        (void)close(fds[i]);
    }
}

static void launch(struct etcd_cluster *cluster, int member)
{
    char name[32], data[96], client[96], advertise_client[96], peer[96], advertise_peer[96];
    char initial[256] = "--initial-cluster=";
    char log[96];
    char path[KELP_PROCESS_PATH_MAX];
    struct kelp_error error = {.text = ""};
    static const char *const unset[] = {"ETCD_*", "http_proxy", "HTTP_PROXY", "all_proxy", NULL};

    if (kelp_process_find("etcd", path, NULL) != KELP_OK) {
        (void)snprintf(path, sizeof(path), "/usr/bin/etcd");
    }
    (void)snprintf(name, sizeof(name), "--name=m%d", member);
    (void)snprintf(data, sizeof(data), "--data-dir=%s/m%d", cluster->folder, member);
    (void)snprintf(log, sizeof(log), "%s/m%d.log", cluster->folder, member);
    (void)snprintf(client, sizeof(client), "--listen-client-urls=%s", cluster->members[member].url);
    (void)snprintf(advertise_client, sizeof(advertise_client), "--advertise-client-urls=%s",
                   cluster->members[member].url);
    (void)snprintf(peer, sizeof(peer), "--listen-peer-urls=http://127.0.0.1:%u",
                   cluster->members[member].peer_port);
    (void)snprintf(advertise_peer, sizeof(advertise_peer),
                   "--initial-advertise-peer-urls=http://127.0.0.1:%u",
                   cluster->members[member].peer_port);
    for (int i = 0; i < ETCD_CLUSTER_MEMBERS; i++) {
        size_t used = strlen(initial);
        (void)snprintf(initial + used, sizeof(initial) - used, "%sm%d=http://127.0.0.1:%u",
                       i ? "," : "", i, cluster->members[i].peer_port);
    }
    const char *argv[] = {path,
                          name,
                          data,
                          client,
                          advertise_client,
                          peer,
                          advertise_peer,
                          initial,
                          "--initial-cluster-state=new",
                          "--heartbeat-interval=50",
                          "--election-timeout=500",
                          "--logger=zap",
                          "--log-outputs=stderr",
                          "--log-level=error",
                          NULL};
    int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(log_fd, 0);
    struct kelp_process_options options = {
        .argv = argv, .unset_environment = unset, .stdout_fd = log_fd, .stderr_fd = log_fd};
    kelp_status status = kelp_process_start(&options, &cluster->members[member].process, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    (void)close(log_fd);
}

void etcd_cluster_start(struct etcd_cluster *cluster)
{
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    *cluster = (struct etcd_cluster){.folder = "/tmp/kelp-test-etcd-XXXXXX"};
    ck_assert_ptr_nonnull(mkdtemp(cluster->folder));
    choose_ports(cluster);
    for (int i = 0; i < ETCD_CLUSTER_MEMBERS; i++) {
        size_t used = strlen(cluster->urls);
        (void)snprintf(cluster->members[i].url, sizeof(cluster->members[i].url),
                       "http://127.0.0.1:%u", cluster->members[i].client_port);
        (void)snprintf(cluster->urls + used, sizeof(cluster->urls) - used, "%s%s", i ? "," : "",
                       cluster->members[i].url);
    }
    for (int i = 0; i < ETCD_CLUSTER_MEMBERS; i++) {
        launch(cluster, i);
    }
    (void)etcd_cluster_leader(cluster);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void etcd_cluster_stop(struct etcd_cluster *cluster)
{
    for (int i = 0; i < ETCD_CLUSTER_MEMBERS; i++) {
        etcd_cluster_kill(cluster, i);
    }
    ck_assert_int_eq(nftw(cluster->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void etcd_cluster_kill(struct etcd_cluster *cluster, int member)
{
    kelp_process_destroy(cluster->members[member].process);
    cluster->members[member].process = NULL;
}

void etcd_cluster_restart(struct etcd_cluster *cluster, int member)
{
    ck_assert_ptr_null(cluster->members[member].process);
    launch(cluster, member);
}

void etcd_cluster_pause(struct etcd_cluster *cluster, int member)
{
    kelp_process_signal(cluster->members[member].process, SIGSTOP);
}

void etcd_cluster_resume(struct etcd_cluster *cluster, int member)
{
    kelp_process_signal(cluster->members[member].process, SIGCONT);
}
