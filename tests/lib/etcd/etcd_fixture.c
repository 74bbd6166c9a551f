#include "tests/lib/etcd/etcd_fixture.h"

#include <check.h>
#include <curl/curl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void etcd_fixture_require(void)
{
    char path[KELP_PROCESS_PATH_MAX];

    if (kelp_process_find("etcd", path, NULL) != KELP_OK && access("/usr/bin/etcd", X_OK) != 0) {
        (void)fprintf(stderr, "skipped: no etcd program (package etcd-server)\n");
        exit(77);
    }
}

static void start_server(struct etcd_fixture *fixture, uint16_t port)
{
    char data[96];
    char log[96];
    struct kelp_error error = {0};

    (void)snprintf(data, sizeof(data), "%s/data", fixture->folder);
    (void)snprintf(log, sizeof(log), "%s/etcd.log", fixture->folder);
    struct kelp_etcd_server_options options = {
        .data_folder = data, .log_path = log, .client_port = port, .deadline_ms = 60000};
    kelp_status status = kelp_etcd_server_start(&options, &fixture->server, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    fixture->port = kelp_etcd_server_port(fixture->server);
    (void)snprintf(fixture->url, sizeof(fixture->url), "%s", kelp_etcd_server_url(fixture->server));
}

void etcd_fixture_start(struct etcd_fixture *fixture)
{
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    *fixture = (struct etcd_fixture){0};
    (void)snprintf(fixture->folder, sizeof(fixture->folder), "/tmp/kelp-test-etcd-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fixture->folder));
    start_server(fixture, 0);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void etcd_fixture_stop(struct etcd_fixture *fixture)
{
    kelp_etcd_server_stop(fixture->server, 2000);
    fixture->server = NULL;
    ck_assert_int_eq(nftw(fixture->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void etcd_fixture_kill(struct etcd_fixture *fixture)
{
    kelp_etcd_server_stop(fixture->server, 0);
    fixture->server = NULL;
}

void etcd_fixture_restart(struct etcd_fixture *fixture)
{
    ck_assert_ptr_null(fixture->server);
    start_server(fixture, fixture->port);
}

struct kelp_etcd *etcd_fixture_client(const struct etcd_fixture *fixture)
{
    struct kelp_etcd *etcd = NULL;
    struct kelp_error error = {0};
    kelp_status status = kelp_etcd_open(fixture->url, &etcd, &error);

    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return etcd;
}

static size_t discard(char *bytes, size_t size, size_t count, void *user)
{
    (void)bytes;
    (void)user;
    return size * count;
}

static void post(const struct etcd_fixture *fixture, const char *path, const char *body)
{
    char url[128];
    CURL *curl = curl_easy_init();

    (void)snprintf(url, sizeof(url), "%s%s", fixture->url, path);
    ck_assert_ptr_nonnull(curl);
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, discard);
    (void)curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 10000L);
    ck_assert_int_eq(curl_easy_perform(curl), CURLE_OK);
    curl_easy_cleanup(curl);
}

void etcd_fixture_compact(const struct etcd_fixture *fixture, int64_t revision)
{
    char body[96];

    (void)snprintf(body, sizeof(body), "{\"revision\":\"%" PRId64 "\",\"physical\":true}",
                   revision);
    post(fixture, "/v3/kv/compaction", body);
}

void etcd_fixture_fill(const struct etcd_fixture *fixture)
{
    post(fixture, "/v3/maintenance/alarm", "{\"action\":\"ACTIVATE\",\"alarm\":\"NOSPACE\"}");
}

void etcd_fixture_revoke(const struct etcd_fixture *fixture, int64_t lease)
{
    char body[64];

    (void)snprintf(body, sizeof(body), "{\"ID\":\"%" PRId64 "\"}", lease);
    post(fixture, "/v3/lease/revoke", body);
}
