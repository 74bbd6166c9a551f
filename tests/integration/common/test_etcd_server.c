/* The private etcd. */
#include "common/program/etcd_server.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/etcd/etcd_endpoint.h"
#include "common/program/run_certs.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/etcd/tcp_double.h"
#include "tests/lib/suite.h"

static struct kelp_error error;
static struct etcd_fixture fixture;

static void setup(void)
{
    etcd_fixture_start(&fixture);
}

static void teardown(void)
{
    etcd_fixture_stop(&fixture);
}

static struct kelp_etcd_server_options options_in(const char *data, const char *log)
{
    return (struct kelp_etcd_server_options){.data_folder = data, .log_path = log};
}

static size_t drop_bytes(char *bytes, size_t size, size_t count, void *user)
{
    (void)bytes;
    (void)user;
    return size * count;
}

static size_t note_header(char *bytes, size_t size, size_t count, void *user)
{
    bool *allowed = user;

    *allowed = *allowed || strncasecmp(bytes, "Access-Control-Allow-Origin",
                                       strlen("Access-Control-Allow-Origin")) == 0;
    return size * count;
}

/* What a request with one more header comes to: HTTP's status; 0: no answer. */
static long ask_with(const char *url, const char *header, bool *ret_allowed)
{
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, header);
    long status = 0;

    *ret_allowed = false;
    ck_assert_int_eq(kelp_etcd_endpoint_apply(curl, url, "/version"), KELP_OK);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop_bytes);
    (void)curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, note_header);
    (void)curl_easy_setopt(curl, CURLOPT_HEADERDATA, ret_allowed);
    if (curl_easy_perform(curl) == CURLE_OK) {
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    }
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    return status;
}

/* Pages of a browser: neither another origin nor another name for this host. */
static void expect_closed_to_pages(const char *url)
{
    bool allowed = false;

    ck_assert_int_eq(ask_with(url, "X-Nothing: 1", &allowed), 200);
    ck_assert_int_eq(ask_with(url, "Origin: http://evil.example", &allowed), 200);
    ck_assert(!allowed);
    ck_assert_int_eq(ask_with(url, "Host: evil.example", &allowed), 421);
}

static unsigned mode_of(const char *folder, const char *name)
{
    char path[200];
    struct stat about;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_msg(lstat(path, &about) == 0, "%s", path);
    return about.st_mode & 07777;
}

/* What a write comes to with the certificates of that folder (NULL: none). */
static kelp_status put_with(const char *url, const char *certs)
{
    struct kelp_etcd *etcd = NULL;

    ck_assert_int_eq(kelp_etcd_open_certified(url, certs, &etcd, &error), KELP_OK);
    kelp_status status = kelp_etcd_put(etcd, "/a", "1", 0, 2000, &error);
    kelp_etcd_close(etcd);
    return status;
}

static void put(const char *key, const char *value)
{
    struct kelp_etcd *etcd = etcd_fixture_client(&fixture);

    ck_assert_int_eq(kelp_etcd_put(etcd, key, value, 0, 10000, &error), KELP_OK);
    kelp_etcd_close(etcd);
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("server", .setup = setup, .teardown = teardown, .timeout_s = 90)

/* What was acknowledged is there after a kill, on the same port and on another. */
KELP_TEST(keeps_what_it_has)
{
    char data[96];
    char log[96];
    struct kelp_etcd_range range;

    put("/a", "1");
    etcd_fixture_kill(&fixture);
    etcd_fixture_restart(&fixture);
    put("/b", "2");
    etcd_fixture_kill(&fixture);

    (void)snprintf(data, sizeof(data), "%s/data", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/etcd.log", fixture.folder);
    struct kelp_etcd_server_options options = options_in(data, log);
    ck_assert_int_eq(kelp_etcd_server_start(&options, &fixture.server, &error), KELP_OK);
    (void)snprintf(fixture.url, sizeof(fixture.url), "%s", kelp_etcd_server_url(fixture.server));
    struct kelp_etcd *etcd = etcd_fixture_client(&fixture);
    ck_assert_int_eq(kelp_etcd_get_prefix(etcd, "/", 10000, &range, &error), KELP_OK);
    ck_assert_uint_eq(range.count, 2);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
}

/* A data folder belongs to one etcd; the second is told so at once. */
KELP_TEST(folder_in_use)
{
    char data[96];
    char log[96];
    struct kelp_etcd_server *server;

    (void)snprintf(data, sizeof(data), "%s/data", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    struct kelp_etcd_server_options options = options_in(data, log);
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(error.text, data));
}

/* On sockets: no port, the same address after a kill, whose sockets are replaced. */
KELP_TEST(on_sockets)
{
    char data[96], log[96], folder[KELP_SOCKET_FOLDER_MAX + 1];
    int held;
    struct kelp_etcd_server *server = NULL;
    struct kelp_etcd *etcd = NULL;
    struct kelp_etcd_range range;

    (void)snprintf(data, sizeof(data), "%s/other", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    ck_assert_int_eq(kelp_socket_folder_make(folder, &held, &error), KELP_OK);
    struct kelp_etcd_server_options options = options_in(data, log);
    options.socket_folder = folder;
    for (int round = 0; round < 2; round++) {
        kelp_status status = kelp_etcd_server_start(&options, &server, &error);
        ck_assert_msg(status == KELP_OK, "%s", error.text);
        ck_assert_int_eq(strncmp(kelp_etcd_server_url(server), "unix:/", 6), 0);
        ck_assert_uint_eq(kelp_etcd_server_port(server), 0);
        ck_assert_int_eq(kelp_etcd_open(kelp_etcd_server_url(server), &etcd, &error), KELP_OK);
        if (round == 0) {
            ck_assert_int_eq(kelp_etcd_put(etcd, "/a", "1", 0, 10000, &error), KELP_OK);
        }
        ck_assert_int_eq(kelp_etcd_get(etcd, "/a", 10000, &range, &error), KELP_OK);
        ck_assert_uint_eq(range.count, 1);
        kelp_etcd_range_fini(&range);
        kelp_etcd_close(etcd);
        expect_closed_to_pages(kelp_etcd_server_url(server));
        kelp_etcd_server_stop(server, 0); /* killed: its sockets stay */
    }
    ck_assert_int_eq(close(held), 0);
    kelp_socket_folder_remove(folder);
    ck_assert_int_ne(access(folder, F_OK), 0);
}

/* At a port: only with a certificate of its authority, also after a kill; other members have no
 * port to reach. What was made for it goes with its folder. */
KELP_TEST(with_certificates)
{
    char data[96], log[96], folder[KELP_SOCKET_FOLDER_MAX + 1], other[KELP_SOCKET_FOLDER_MAX + 1];
    char own[KELP_RUN_CERTS_MAX + 1], operator[KELP_RUN_CERTS_MAX + 1],
        foreign[KELP_RUN_CERTS_MAX + 1];
    int held, other_held;
    struct kelp_etcd_server *server = NULL;

    (void)snprintf(data, sizeof(data), "%s/other", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    ck_assert_int_eq(kelp_socket_folder_make(folder, &held, &error), KELP_OK);
    ck_assert_int_eq(kelp_socket_folder_make(other, &other_held, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_certs_make(folder, "a", &error), KELP_OK);
    ck_assert_int_eq(kelp_run_certs_make(other, "a", &error), KELP_OK);
    ck_assert_uint_eq(mode_of(folder, "certs/etcd"), 0700);
    ck_assert_uint_eq(mode_of(folder, "certs/shard/key.pem"), 0600);
    kelp_run_certs_role(folder, KELP_ROLE_ETCD, own);
    kelp_run_certs_role(folder, KELP_ROLE_OPERATOR, operator);
    kelp_run_certs_role(other, KELP_ROLE_OPERATOR, foreign);
    struct kelp_etcd_server_options options = options_in(data, log);
    options.socket_folder = folder;
    options.certs = own;
    for (int round = 0; round < 2; round++) {
        kelp_status status = kelp_etcd_server_start(&options, &server, &error);
        ck_assert_msg(status == KELP_OK, "%s", error.text);
        const char *url = kelp_etcd_server_url(server);
        ck_assert_int_eq(strncmp(url, "https://127.0.0.1:", 18), 0);
        options.client_port = kelp_etcd_server_port(server);
        ck_assert_int_eq(put_with(url, operator), KELP_OK);
        ck_assert_int_ne(put_with(url, foreign), KELP_OK);
        ck_assert_int_ne(put_with(url, NULL), KELP_OK);
        kelp_etcd_server_stop(server, 0);
    }
    ck_assert_int_eq(close(held), 0);
    ck_assert_int_eq(close(other_held), 0);
    kelp_socket_folder_remove(folder);
    kelp_socket_folder_remove(other);
    ck_assert_int_ne(access(folder, F_OK), 0);
    ck_assert_int_ne(access(other, F_OK), 0);
}

/* A folder in which somebody is served keeps its certificates. */
KELP_TEST(certificates_stay_with_the_served)
{
    char folder[KELP_SOCKET_FOLDER_MAX + 1];
    int held;
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    ck_assert_int_eq(kelp_socket_folder_make(folder, &held, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_certs_make(folder, "a", &error), KELP_OK);
    ck_assert_int_ge(held, 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/served", folder);
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(server, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(server, 1), 0);
    kelp_socket_folder_remove(folder);
    ck_assert_uint_eq(mode_of(folder, "certs/worker/key.pem"), 0600);
    (void)close(server);
    (void)close(held);
    kelp_socket_folder_remove(folder);
    ck_assert_int_ne(access(folder, F_OK), 0);
}

/* A port that was asked for and is taken is an error that names it. */
KELP_TEST(port_in_use)
{
    char data[96];
    char log[96];
    char port[16];
    struct kelp_etcd_server *server;

    (void)snprintf(data, sizeof(data), "%s/other", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    (void)snprintf(port, sizeof(port), "%u", fixture.port);
    struct kelp_etcd_server_options options = options_in(data, log);
    options.client_port = fixture.port;
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_EXISTS);
    ck_assert_ptr_nonnull(strstr(error.text, port));
}

/* No etcd program: one line that names the package. (With /usr/bin/etcd there, the search cannot
 * fail; a program that was asked for can.) */
KELP_TEST(no_program)
{
    char data[96];
    char log[96];
    struct kelp_etcd_server *server;

    (void)snprintf(data, sizeof(data), "%s/other", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    struct kelp_etcd_server_options options = options_in(data, log);
    options.program = "/nonexistent/etcd";
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(setenv("PATH", "/nonexistent", 1), 0);
    options.program = NULL;
    if (access("/usr/bin/etcd", X_OK) != 0) {
        ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_NOT_FOUND);
        ck_assert_ptr_nonnull(strstr(error.text, "etcd-server"));
    } else {
        ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_OK);
        kelp_etcd_server_stop(server, 2000);
    }
}

static void write_program(char path[96], const char *text)
{
    (void)snprintf(path, 96, "%s/program", fixture.folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(close(fd), 0);
}

/* It ends before it serves: its last words are in the text. It never serves: the deadline ends it.
 */
KELP_TEST(does_not_serve)
{
    char data[96];
    char log[96];
    char program[96];
    struct kelp_etcd_server *server;
    time_t start_s = time(NULL);

    (void)snprintf(data, sizeof(data), "%s/other", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    struct kelp_etcd_server_options options = options_in(data, log);
    options.program = program;
    write_program(program, "#!/bin/sh\necho first; echo the disk is on fire >&2; exit 5\n");
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(error.text, "exited with status 5"));
    ck_assert_ptr_nonnull(strstr(error.text, "the disk is on fire"));
    ck_assert_ptr_nonnull(strstr(error.text, log));

    /* Of a panic the line that says why, and not the stack behind it; a full disk by its name. */
    write_program(program,
                  "#!/bin/sh\n"
                  "printf 'panic: the store is locked\\n\\ngoroutine 1:\\n\\tmain.go:3\\n'\n"
                  "exit 2\n");
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(error.text, "): panic: the store is locked"));
    ck_assert_ptr_null(strstr(error.text, "main.go"));
    write_program(program, "#!/bin/sh\n"
                           "printf 'panic: write wal: no space left on device\\n\\tmain.go:3\\n'\n"
                           "exit 2\n");
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(error.text, "no space is left on the disk"));

    write_program(program, "#!/bin/sh\nexec sleep 60\n");
    options.deadline_ms = 300;
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_TIMEOUT);

    /* Ports that are taken each time are tried again, but not for ever. */
    write_program(program, "#!/bin/sh\necho bind: address already in use\nexit 1\n");
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_EXISTS);
    ck_assert_int_lt(time(NULL) - start_s, 20);
}

/* An etcd answers on our port, healthy, but it is not the one that we started (somebody took the
 * port just before ours could): it is not taken for ours. */
KELP_TEST(stranger_on_the_port)
{
    char data[96];
    char log[96];
    char program[96];
    struct kelp_etcd_server *server;

    (void)snprintf(data, sizeof(data), "%s/other", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    struct kelp_etcd_server_options options = options_in(data, log);
    options.program = program;
    options.deadline_ms = 4000;
    write_program(program, "#!/bin/sh\nPATH=$PATH:/usr/bin exec etcd \"$@\" --name=stranger"
                           " --initial-cluster=stranger=http://127.0.0.1:1"
                           " --initial-advertise-peer-urls=http://127.0.0.1:1\n");
    ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_ERR_TIMEOUT);
    /* It did come up. */
    (void)snprintf(data, sizeof(data), "%s/other/member", fixture.folder);
    ck_assert_int_eq(access(data, F_OK), 0);
}

/* Settings of the environment that are meant for another etcd, or for a proxy, do not reach it; and
 * it listens on loopback alone. */
KELP_TEST(environment_is_not_heeded)
{
    char path[64];
    char text[65536];
    struct kelp_process *process;

    etcd_fixture_kill(&fixture);
    ck_assert_int_eq(setenv("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379", 1), 0);
    ck_assert_int_eq(setenv("ETCD_DATA_DIR", "/nonexistent", 1), 0);
    ck_assert_int_eq(setenv("HTTP_PROXY", "http://127.0.0.1:1", 1), 0);
    ck_assert_int_eq(setenv("no_proxy", "x", 1), 0);
    etcd_fixture_restart(&fixture);
    process = kelp_etcd_server_process(fixture.server);
    (void)snprintf(path, sizeof(path), "/proc/%d/environ", kelp_process_pid(process));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ssize_t got = read(fd, text, sizeof(text) - 1);
    ck_assert_int_gt(got, 0);
    (void)close(fd);
    text[got] = '\0';
    for (const char *entry = text; entry < text + got; entry += strlen(entry) + 1) {
        ck_assert_msg(strncmp(entry, "ETCD_L", 6) != 0 && strncmp(entry, "ETCD_D", 6) != 0 &&
                          strncasecmp(entry, "http_proxy", 10) != 0 &&
                          strncasecmp(entry, "no_proxy", 8) != 0,
                      "%s", entry);
    }
}

/* Its parent is killed: it goes too. */
KELP_TEST(dies_with_its_parent)
{
    int fds[2];
    pid_t server_pid = 0;
    char data[96];
    char log[96];

    (void)snprintf(data, sizeof(data), "%s/other", fixture.folder);
    (void)snprintf(log, sizeof(log), "%s/other.log", fixture.folder);
    ck_assert_int_eq(pipe(fds), 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct kelp_etcd_server *server;
        struct kelp_etcd_server_options options = options_in(data, log);
        ck_assert_int_eq(kelp_etcd_server_start(&options, &server, &error), KELP_OK);
        server_pid = kelp_process_pid(kelp_etcd_server_process(server));
        ck_assert_int_eq(write(fds[1], &server_pid, sizeof(server_pid)), sizeof(server_pid));
        for (;;) {
            (void)pause();
        }
    }
    ck_assert_int_gt(parent, 0);
    ck_assert_int_eq(read(fds[0], &server_pid, sizeof(server_pid)), sizeof(server_pid));
    ck_assert_int_eq(kill(server_pid, 0), 0);
    ck_assert_int_eq(kill(parent, SIGKILL), 0);
    ck_assert_int_eq(waitpid(parent, NULL, 0), parent);
    /* The folder's lock went with the parent; a new etcd waits for the old one's, so that its start
     * shows that the old one is gone. */
    struct kelp_etcd_server *next;
    struct kelp_etcd_server_options options = options_in(data, log);
    kelp_status status = kelp_etcd_server_start(&options, &next, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    kelp_etcd_server_stop(next, 2000);
    (void)close(fds[0]);
    (void)close(fds[1]);
}
