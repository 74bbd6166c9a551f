/* The server of --metrics: what it answers, and what it lets nobody do. */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/scrape/limits.h"
#include "common/scrape/scrape.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/http_raw.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

static const struct kelp_option option_list[] = {
    {.name = "job", .type = KELP_OPTION_TEXT, .default_text = "etth1"},
    {.name = "id", .type = KELP_OPTION_TEXT, .default_text = "shard-0"},
    {.name = "metrics", .type = KELP_OPTION_TEXT},
};
static const struct kelp_program program = {
    .name = "test", .options = option_list, .option_count = KELP_ARRAY_COUNT(option_list)};

static struct kelp_test_folder folder;
static struct kelp_options *options;
static struct kelp_scrape *scrape;
static char address[400];

static struct kelp_credentials *credentials; /* NULL: none */

/* Was it opened? */
static bool open_at(const char *where)
{
    char *argv[] = {(char[]){"test"}, (char[]){"--metrics"}, (char *)(uintptr_t)where, NULL};
    const struct kelp_scrape_process process = {
        .of = KELP_FIGURE_OF_PS, .role = "ps", .credentials = credentials};
    enum kelp_options_wish wish;

    ck_assert_int_eq(kelp_options_parse(&program, 3, argv, &wish, &options, NULL), KELP_OK);
    if (!kelp_scrape_begin(&program, options, &process, &scrape)) {
        return false;
    }
    (void)snprintf(address, sizeof(address), "%s", kelp_scrape_address(scrape));
    return true;
}

static void setup(void)
{
    kelp_test_folder_init(&folder);
    ck_assert(open_at("127.0.0.1:0"));
}

static void teardown(void)
{
    kelp_scrape_close(scrape);
    kelp_options_destroy(options);
    kelp_test_folder_fini(&folder);
}

KELP_CASE("answers", .setup = setup, .teardown = teardown, .timeout_s = 60)

/* /metrics is text of version 0.0.4, with what was set; the connection ends behind it. */
KELP_TEST(metrics)
{
    kelp_figures_set(kelp_scrape_figures(scrape), KELP_FIGURE_SHARD_STEP, 42);
    const char *response = kelp_test_http_ask(address, "GET", "/metrics");
    ck_assert_int_eq(kelp_test_http_status(response), 200);
    ck_assert_ptr_nonnull(
        strstr(response, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    ck_assert_ptr_nonnull(strstr(response, "Connection: close\r\n"));
    const char *body = kelp_test_http_body(response);
    ck_assert(kelp_test_http_sample(body, "kelp_shard_step") == 42.0);
    ck_assert(kelp_test_http_sample(body, "kelp_scrape_requests_total") == 1.0);
    ck_assert(kelp_test_http_sample(body, "kelp_process_resident_memory_bytes") > 1e6);
    ck_assert(kelp_test_http_sample(body, "kelp_process_cpu_seconds_total") >= 0.0);
    ck_assert(kelp_test_http_sample(body, "kelp_process_start_time_seconds") > 1.7e9);
    ck_assert(kelp_test_http_sample(body, "kelp_certificate_expiry_timestamp_seconds") == -1.0);
}

/* HEAD has the same headers and no body. */
KELP_TEST(head)
{
    const char *response = kelp_test_http_ask(address, "HEAD", "/metrics");
    ck_assert_int_eq(kelp_test_http_status(response), 200);
    ck_assert_ptr_nonnull(strstr(response, "Content-Length: "));
    ck_assert_str_eq(kelp_test_http_body(response), "");
}

/* /readyz says why it is not ready; /healthz does not depend on that. */
KELP_TEST(ready)
{
    struct kelp_figures *figures = kelp_scrape_figures(scrape);
    const char *response = kelp_test_http_ask(address, "GET", "/readyz");
    ck_assert_int_eq(kelp_test_http_status(response), 503);
    ck_assert_str_eq(kelp_test_http_body(response), "not ready: it starts\n");
    ck_assert_int_eq(kelp_test_http_status(kelp_test_http_ask(address, "GET", "/healthz")), 200);
    kelp_figures_ready(figures, NULL);
    response = kelp_test_http_ask(address, "GET", "/readyz");
    ck_assert_int_eq(kelp_test_http_status(response), 200);
    ck_assert_str_eq(kelp_test_http_body(response), "ok\n");
}

/* A loop that does not run any more is neither healthy nor ready. */
KELP_TEST(silent_loop)
{
    struct kelp_figures *figures = kelp_scrape_figures(scrape);
    kelp_figures_ready(figures, NULL);
    kelp_figures_beat(figures);
    ck_assert_int_eq(kelp_test_http_status(kelp_test_http_ask(address, "GET", "/healthz")), 200);
    __atomic_store_n(&figures->beat_ms, 1, __ATOMIC_RELAXED); /* long ago */
    const char *response = kelp_test_http_ask(address, "GET", "/healthz");
    ck_assert_int_eq(kelp_test_http_status(response), 503);
    ck_assert_str_eq(kelp_test_http_body(response), "the event loop does not answer\n");
    ck_assert_int_eq(kelp_test_http_status(kelp_test_http_ask(address, "GET", "/readyz")), 503);
}

static const struct {
    const char *method, *path;
    int status;
} strange[] = {
    {"GET", "/", 404},        {"GET", "/metrics/", 404},    {"GET", "/../etc/passwd", 404},
    {"GET", "metrics", 404},  {"POST", "/metrics", 405},    {"PUT", "/metrics", 405},
    {"DELETE", "/", 405},     {"OPTIONS", "/metrics", 405}, {"TRACE", "/metrics", 405},
    {"get", "/metrics", 405}, {"GETGET", "/healthz", 405},
};

/* Whatever else is asked for is not there, and counted. */
KELP_LOOP_TEST(nothing_else, 0, KELP_ARRAY_COUNT(strange))
{
    const char *response = kelp_test_http_ask(address, strange[_i].method, strange[_i].path);
    ck_assert_msg(kelp_test_http_status(response) == strange[_i].status, "%s", response);
    if (strange[_i].status == 405) {
        ck_assert_ptr_nonnull(strstr(response, "Allow: GET, HEAD\r\n"));
    }
    ck_assert_uint_eq(kelp_figures_get(kelp_scrape_figures(scrape), KELP_FIGURE_SCRAPES_REFUSED),
                      1);
}

KELP_CASE("limits", .setup = setup, .teardown = teardown, .timeout_s = 120)

static void expect_answer(void)
{
    ck_assert_int_eq(kelp_test_http_status(kelp_test_http_ask(address, "GET", "/healthz")), 200);
}

static void send_text(int fd, const char *text)
{
    kelp_test_http_send(fd, text, strlen(text));
}

/* Headers beyond the bound are refused, and so is a body. */
KELP_TEST(large_requests)
{
    static char large[4 * KELP_SCRAPE_REQUEST_BYTES];
    memset(large, 'x', sizeof(large));
    int fd = kelp_test_http_connect(address);
    send_text(fd, "GET /metrics HTTP/1.1\r\nX: ");
    kelp_test_http_send(fd, large, sizeof(large));
    const int status = kelp_test_http_status(kelp_test_http_read(fd, 20000));
    ck_assert_msg(status == 0 || (status >= 400 && status < 500), "%d", status);
    fd = kelp_test_http_connect(address);
    send_text(fd, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000000\r\n\r\n");
    kelp_test_http_send(fd, large, sizeof(large));
    const int other = kelp_test_http_status(kelp_test_http_read(fd, 20000));
    ck_assert_msg(other == 0 || other == 405, "%d", other);
    expect_answer();
}

/* What is no HTTP ends the connection. */
KELP_TEST(garbage)
{
    static const char *const lines[] = {"\x16\x03\x01\x02", "\r\n\r\n\r\n\r\n", "GET\r\n\r\n",
                                        "GET /metrics HTTP/9.9\r\n\r\n",
                                        "GET /metrics HTTP/1.1\r\nHost\r\n: :\r\n\r\n"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(lines); i++) {
        int fd = kelp_test_http_connect(address);
        send_text(fd, lines[i]);
        ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
        ck_assert_int_ne(kelp_test_http_status(kelp_test_http_read(fd, 20000)), 204);
    }
    expect_answer();
}

/* A client that sends a byte now and then is cut off all the same, in the time that a connection
 * has. */
KELP_TEST(slow_headers)
{
    const uint64_t begin_ms = kelp_clock_ms();
    int fd = kelp_test_http_connect(address);
    bool open = true;
    while (open) {
        char byte;
        kelp_test_http_send(fd, "G", 1);
        kelp_test_look_later();
        open = recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && kelp_clock_ms() - begin_ms < 60000;
    }
    const uint64_t took_ms = kelp_clock_ms() - begin_ms;
    ck_assert_uint_ge(took_ms, KELP_SCRAPE_CONNECTION_MS - 1000);
    ck_assert_uint_lt(took_ms, 60000);
    (void)close(fd);
    ck_assert_uint_ge(kelp_figures_get(kelp_scrape_figures(scrape), KELP_FIGURE_SCRAPES_REFUSED),
                      1);
    expect_answer();
}

/* More connections than there is room for, which say nothing: they are cut off one after the other,
 * and who asks is answered. */
KELP_TEST(many_connections)
{
    int fds[3 * KELP_SCRAPE_CONNECTIONS];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(fds); i++) {
        fds[i] = i < KELP_SCRAPE_CONNECTIONS ? kelp_test_http_connect(address) : -1;
    }
    /* The kernel's queue takes some more; none of them is served while the others hang. */
    for (size_t i = KELP_SCRAPE_CONNECTIONS; i < KELP_SCRAPE_CONNECTIONS + 8; i++) {
        fds[i] = kelp_test_http_connect(address);
    }
    const uint64_t begin_ms = kelp_clock_ms();
    int fd = kelp_test_http_connect(address);
    send_text(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert_int_eq(kelp_test_http_status(kelp_test_http_read(fd, 60000)), 200);
    ck_assert_uint_ge(kelp_clock_ms() - begin_ms, 1000);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(fds); i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
}

/* A flood has its rate, and the next second brings the next answers. */
KELP_TEST(floods_have_a_rate)
{
    const uint64_t begin_ms = kelp_clock_ms();
    for (unsigned i = 0; i < 3 * KELP_SCRAPE_RATE; i++) {
        expect_answer();
    }
    ck_assert_uint_ge(kelp_clock_ms() - begin_ms, 1000);
}

/* While connections hang, the close does not wait for them. */
KELP_TEST(close_waits_for_nobody)
{
    int fd = kelp_test_http_connect(address);
    send_text(fd, "GET /met");
    const uint64_t begin_ms = kelp_clock_ms();
    kelp_scrape_close(scrape);
    scrape = NULL;
    ck_assert_uint_lt(kelp_clock_ms() - begin_ms, 2000);
    (void)close(fd);
    ck_assert_int_eq(kelp_test_http_connect(address), -1);
}

KELP_CASE("sockets", .setup = setup, .teardown = teardown, .timeout_s = 60)

static void open_anew(const char *where)
{
    kelp_scrape_close(scrape);
    scrape = NULL;
    kelp_options_destroy(options);
    ck_assert(open_at(where));
}

static void socket_path(char where[300])
{
    (void)snprintf(where, 300, "unix:%s/metrics", folder.path);
}

/* A socket in the file system is its owner's alone, and gone with the server. */
KELP_TEST(of_the_file_system)
{
    char where[300];
    struct stat info;
    socket_path(where);
    open_anew(where);
    ck_assert_str_eq(address, where);
    expect_answer();
    ck_assert_int_eq(stat(where + 5, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    kelp_scrape_close(scrape);
    scrape = NULL;
    ck_assert_int_ne(stat(where + 5, &info), 0);
}

/* What a killed process left is replaced. */
KELP_TEST(left_behind)
{
    char where[300];
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socket_path(where);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)snprintf(name.sun_path, sizeof(name.sun_path), "%.100s", where + 5);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    (void)close(fd);
    open_anew(where);
    expect_answer();
}

/* What somebody serves, or what is no socket, is not. */
KELP_TEST(in_use)
{
    struct kelp_scrape *first = scrape;
    struct kelp_options *first_options = options;
    char where[300];
    char port[400];
    (void)snprintf(port, sizeof(port), "%s", address);
    ck_assert(!open_at(port));
    kelp_options_destroy(options);
    (void)snprintf(where, sizeof(where), "unix:%s", kelp_test_write(folder.path, "file", "kept"));
    ck_assert(!open_at(where));
    kelp_options_destroy(options);
    char *kept = kelp_test_read(folder.path, "file", NULL);
    ck_assert_str_eq(kept, "kept");
    free(kept);
    scrape = first;
    options = first_options;
    expect_answer();
}

/* ---- certificates ---------------------------------------------------------------------------- */

static void issue(const char *authority, const char *out, const char *name, int days)
{
    kelp_test_issue(&(struct kelp_test_issue){folder.path, authority, out, name, NULL, days});
}

static void issue_all(const char *authority, int days)
{
    issue(authority, "shard", "etth1/shard", days);
    issue(authority, "reader", "etth1/reader", days);
    issue(authority, "operator", "etth1/operator", days);
    issue(authority, "coordinator", "etth1/coordinator", days);
    issue(authority, "worker", "etth1/worker", days);
    issue(authority, "other", "other/reader", days);
}

static void setup_tls(void)
{
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    kelp_test_folder_init(&folder);
    kelp_test_authority(folder.path, "authority");
    kelp_test_authority(folder.path, "foreign");
    issue_all("authority", 5);
    issue("authority", "expired", "etth1/reader", -1);
    issue("foreign", "stranger", "etth1/reader", 5);
    credentials = kelp_test_credentials(folder.path, "shard");
    ck_assert(open_at("127.0.0.1:0"));
}

static void teardown_tls(void)
{
    teardown();
    kelp_credentials_close(credentials);
    curl_global_cleanup();
}

static size_t keep(char *bytes, size_t size, size_t count, void *user)
{
    (void)strncat(user, bytes,
                  size * count < 2000 - strlen(user) ? size * count : 2000 - strlen(user));
    return size * count;
}

/* The status of a GET of /metrics with that certificate (NULL: none); 0: no answer. body: 2001
 * bytes. roots: folder whose authority the server must have. */
static long ask_secure(const char *certificate, const char *roots, char *body)
{
    const char *port = strrchr(address, ':');
    char url[64];
    char resolve[64];
    char ca[300];
    char own[300];
    char key[300];
    long status = 0;
    CURL *curl = curl_easy_init();

    body[0] = '\0';
    (void)snprintf(url, sizeof(url), "https://shard.kelp%.10s/metrics", port);
    (void)snprintf(resolve, sizeof(resolve), "shard.kelp%.10s:127.0.0.1", port);
    (void)snprintf(ca, sizeof(ca), "%s/%s/ca.pem", folder.path, roots);
    (void)snprintf(own, sizeof(own), "%s/%s/cert.pem", folder.path, certificate ? certificate : "");
    (void)snprintf(key, sizeof(key), "%s/%s/key.pem", folder.path, certificate ? certificate : "");
    struct curl_slist *names = curl_slist_append(NULL, resolve);
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_RESOLVE, names);
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(curl, CURLOPT_CAINFO, ca);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, keep);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 20000L);
    if (certificate) {
        (void)curl_easy_setopt(curl, CURLOPT_SSLCERT, own);
        (void)curl_easy_setopt(curl, CURLOPT_SSLKEY, key);
    }
    if (curl_easy_perform(curl) == CURLE_OK) {
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    }
    curl_easy_cleanup(curl);
    curl_slist_free_all(names);
    return status;
}

KELP_CASE("certificates", .setup = setup_tls, .teardown = teardown_tls, .timeout_s = 120)

/* Who steers, looks or leads may look: readers, operators, coordinators of the job. */
KELP_TEST(who_may_look)
{
    static const char *const names[] = {"reader", "operator", "coordinator"};
    char body[2001];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        ck_assert_msg(ask_secure(names[i], names[i], body) == 200, "%s: %s", names[i], body);
        ck_assert_ptr_nonnull(strstr(body, "kelp_process_info{kelp_job=\"etth1\""));
    }
    const char *response = kelp_test_http_ask(address, "GET", "/metrics");
    ck_assert_msg(!strstr(response, "kelp_"), "%s", response); /* without TLS nothing is told */
    ck_assert_uint_gt(kelp_figures_get(kelp_scrape_figures(scrape), KELP_FIGURE_CERTIFICATE_END),
                      1700000000);
}

/* Nobody else: without a certificate, of another authority, expired, of another role or job. */
KELP_TEST(who_may_not)
{
    static const char *const names[] = {NULL, "stranger", "expired", "worker", "shard", "other"};
    char body[2001];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        const long status = ask_secure(names[i], "reader", body);
        ck_assert_msg(status == 0 || status == 403, "%s: %ld", names[i] ? names[i] : "none",
                      status);
        ck_assert_ptr_null(strstr(body, "kelp_"));
    }
    ck_assert_int_eq(ask_secure(NULL, "reader", body), 403);
    ck_assert_str_eq(body, "a certificate of the job's authority is needed\n");
    ck_assert_int_eq(ask_secure("worker", "reader", body), 403);
    ck_assert_str_eq(body, "it is for the roles reader, operator and coordinator of the job\n");
    ck_assert_int_eq(ask_secure("other", "reader", body), 403);
    ck_assert_int_eq(ask_secure("reader", "reader", body), 200);
}

/* Files that are replaced count for the next connection, their authority too; a connection that
 * hangs holds that up for no longer than it may last. */
KELP_TEST(new_certificates)
{
    char body[2001];
    ck_assert_int_eq(ask_secure("reader", "reader", body), 200);
    int fd = kelp_test_http_connect(address); /* says nothing */
    kelp_test_authority(folder.path, "next");
    issue("authority", "before", "etth1/reader", 5);
    issue_all("next", 7);
    KELP_TEST_AWAIT(ask_secure("reader", "reader", body) == 200, "the new ones are not used: %s",
                    body);
    ck_assert_int_ne(ask_secure("before", "reader", body), 200);
    ck_assert_int_eq(ask_secure("reader", "before", body), 0);
    (void)close(fd);
}
