#include "common/program/etcd_server_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/socket_folder.h"

enum {
    DEADLINE_DEFAULT_MS = 15000, /* a start takes 0.3 to 1 s; a slow disk's syncs several */
    PORT_ATTEMPTS = 8, /* tries; each fails only if another process took the port in the meantime */
    LOOK_MS = 20,      /* between two looks at /health */
    PROBE_MS = 500,    /* one look */
    ANSWER_MAX = 64 * 1024, /* bytes that are read of an etcd answer */
    LOG_TAIL = 8192,        /* bytes of the log searched for the reason of a failure */
};

/* ---- addresses ---- */

/* A socket bound to a loopback port (0: any free one), not listening; the port in *ret_port. */
static int bind_port(uint16_t port, uint16_t *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t length = sizeof(address);
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -1;
    }
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    /* As etcd itself does: lingering connections of the last etcd must not be in the way. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) < 0) {
        int error = errno;
        (void)close(fd);
        errno = error;
        return -1;
    }
    *ret_port = ntohs(address.sin_port);
    return fd;
}

/* The port of clients; -1 with *reterr set, or a descriptor that holds the port. */
static int hold_client_port(struct kelp_etcd_server *server, uint16_t client_port,
                            const char *scheme, kelp_status *ret_status, struct kelp_error *reterr)
{
    int fd = bind_port(client_port, &server->client_port);

    if (fd < 0) {
        *ret_status = kelp_fail(reterr, errno == EADDRINUSE ? KELP_ERR_EXISTS : KELP_ERR_IO,
                                "port %u on 127.0.0.1 cannot be used for etcd: %s", client_port,
                                strerror(errno));
        return -1;
    }
    (void)snprintf(server->url, sizeof(server->url), "%s://127.0.0.1:%u", scheme,
                   server->client_port);
    (void)snprintf(server->client, sizeof(server->client), "%s", server->url);
    return fd;
}

/* Both ports are held at the same time, so that they differ, and are released just before etcd
 * starts. */
static kelp_status choose_ports(struct kelp_etcd_server *server, uint16_t client_port,
                                struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    int client_fd = hold_client_port(server, client_port, "http", &status, reterr);

    if (client_fd < 0) {
        return status;
    }
    int peer_fd = bind_port(0, &server->peer_port);
    int error = errno;
    (void)close(client_fd);
    if (peer_fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "no free port on 127.0.0.1: %s", strerror(error));
    }
    (void)close(peer_fd);
    (void)snprintf(server->peer, sizeof(server->peer), "http://127.0.0.1:%u", server->peer_port);
    (void)snprintf(server->advertise, sizeof(server->advertise), "%s", server->peer);
    return KELP_OK;
}

/* There are no other members, so the peer address is a socket, whatever clients use. */
static kelp_status choose_sockets(struct kelp_etcd_server *server, const char *folder,
                                  struct kelp_error *reterr)
{
    int wrote = snprintf(server->url, sizeof(server->url), "unix:%s/" CLIENT_SOCKET, folder);

    if (wrote < 0 || (size_t)wrote >= sizeof(server->url)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "the path '%s' is too long for a folder of sockets", folder);
    }
    kelp_socket_folder_sweep(folder, CLIENT_SOCKET);
    kelp_socket_folder_sweep(folder, PEER_SOCKET);
    (void)snprintf(server->client, sizeof(server->client), "unix://" CLIENT_SOCKET);
    (void)snprintf(server->peer, sizeof(server->peer), "unix://" PEER_SOCKET);
    (void)snprintf(server->advertise, sizeof(server->advertise), "http://" PEER_SOCKET);
    return KELP_OK;
}

static kelp_status choose_addresses(struct kelp_etcd_server *server,
                                    const struct kelp_etcd_server_options *options,
                                    struct kelp_error *reterr)
{
    if (!options->socket_folder) {
        return choose_ports(server, options->client_port, reterr);
    }
    kelp_status status = choose_sockets(server, options->socket_folder, reterr);
    if (status == KELP_OK && options->certs) {
        int fd = hold_client_port(server, options->client_port, "https", &status, reterr);
        status = fd >= 0 && close(fd) == 0 ? KELP_OK : status;
    }
    return status;
}

/* ---- asking it ---- */

struct answer {
    char bytes[ANSWER_MAX];
    size_t used;
};

static size_t receive_answer(char *bytes, size_t size, size_t count, void *user)
{
    struct answer *answer = user;

    if (count > sizeof(answer->bytes) - answer->used) {
        return 0; /* ends the transfer as failed */
    }
    memcpy(answer->bytes + answer->used, bytes, count);
    answer->used += count;
    return size * count;
}

/* POST body, or GET when it is NULL; the parsed answer (owned) or NULL. */
static cJSON *ask(const struct kelp_etcd_server *server, const char *path, const char *body)
{
    cJSON *json = NULL;
    struct answer *answer = calloc(1, sizeof(*answer));
    CURL *curl = curl_easy_init();

    if (answer && curl && kelp_etcd_endpoint_apply(curl, server->url, path) == KELP_OK &&
        (!server->certificates ||
         kelp_etcd_certificates_apply(curl, server->certificates) == KELP_OK)) {
        (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)PROBE_MS);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive_answer);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
        if (body) {
            (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
        }
        if (curl_easy_perform(curl) == CURLE_OK) {
            json = cJSON_ParseWithLength(answer->bytes, answer->used);
        }
    }
    curl_easy_cleanup(curl);
    free(answer);
    return json;
}

static bool healthy(const struct kelp_etcd_server *server)
{
    cJSON *json = ask(server, "/health", NULL);
    const char *health = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "health"));
    bool yes = health && strcmp(health, "true") == 0;

    cJSON_Delete(json);
    return yes;
}

/* Another etcd may have taken the port between our check and the start of our etcd, and would
 * answer /health as well; only ours has the name that we drew. */
static bool is_ours(const struct kelp_etcd_server *server)
{
    cJSON *json = ask(server, "/v3/cluster/member/list", "{}");
    bool yes = false;
    const cJSON *member;

    cJSON_ArrayForEach(member, cJSON_GetObjectItemCaseSensitive(json, "members"))
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(member, "name"));
        yes = yes || (name && strcmp(name, server->name) == 0);
    }
    cJSON_Delete(json);
    return yes;
}

/* ---- starting ---- */

/* The end of the log in tail, as one NUL-terminated string. */
static void read_tail(int log_fd, off_t start, char tail[LOG_TAIL])
{
    off_t end = lseek(log_fd, 0, SEEK_END);
    off_t from = end - start < LOG_TAIL ? start : end - LOG_TAIL + 1;
    ssize_t got = pread(log_fd, tail, LOG_TAIL - 1, from);

    tail[got < 0 ? 0 : got] = '\0';
}

static const char *last_line(char *text)
{
    size_t length = strlen(text);

    while (length > 0 && text[length - 1] == '\n') {
        text[--length] = '\0';
    }
    const char *line = strrchr(text, '\n');
    return line ? line + 1 : text;
}

/* The reason in a log: for a Go panic the line before the stack; otherwise the last line. */
static const char *telling_line(char *text)
{
    static const char *const starts[] = {"panic: ", "fatal error: "};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(starts); i++) {
        char *line = strstr(text, starts[i]);
        if (line && (line == text || line[-1] == '\n')) {
            line[strcspn(line, "\n")] = '\0';
            return line;
        }
    }
    return last_line(text);
}

/* Find out why etcd ended before it served. KELP_ERR_EXISTS: a port was taken. */
static kelp_status explain_end(int wait_status, int log_fd, off_t log_start, const char *log_path,
                               struct kelp_error *reterr)
{
    char tail[LOG_TAIL];
    char how[64];

    read_tail(log_fd, log_start, tail);
    kelp_process_describe(wait_status, how, sizeof(how));
    if (strcasestr(tail, "no space left on device")) {
        return kelp_fail(reterr, KELP_ERR_NO_SPACE,
                         "etcd %s, because no space is left on the disk (log: %s)", how, log_path);
    }
    bool taken = strstr(tail, "address already in use") != NULL;
    const char *line = telling_line(tail);
    return kelp_fail(reterr, taken ? KELP_ERR_EXISTS : KELP_ERR_UNREACHABLE,
                     "etcd %s before it served (log: %s): %.300s", how, log_path,
                     *line ? line : "it said nothing; is it etcd?");
}

static kelp_status wait_until_served(struct kelp_etcd_server *server,
                                     const struct kelp_etcd_server_options *options, int log_fd,
                                     off_t log_start, uint64_t end_ms, struct kelp_error *reterr)
{
    int wait_status;

    for (;;) {
        kelp_status status = kelp_process_wait(server->process, LOOK_MS, &wait_status);
        if (status == KELP_OK) {
            return explain_end(wait_status, log_fd, log_start, options->log_path, reterr);
        }
        if (status != KELP_ERR_TIMEOUT) {
            return kelp_fail(reterr, status, "cannot wait for etcd");
        }
        if (healthy(server) && is_ours(server)) {
            return KELP_OK;
        }
        if (options->given_up && options->given_up(options->user)) {
            return kelp_fail(reterr, KELP_ERR_CLOSED, "etcd is not wanted any more");
        }
        if (kelp_clock_ms() >= end_ms) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT,
                             "etcd on %s was not healthy in time (log: %s)", server->url,
                             options->log_path);
        }
    }
}

static kelp_status start_once(struct kelp_etcd_server *server, const char *program,
                              const struct kelp_etcd_server_options *options, int log_fd,
                              uint64_t end_ms, struct kelp_error *reterr)
{
    off_t log_start = lseek(log_fd, 0, SEEK_END);
    kelp_status status = choose_addresses(server, options, reterr);

    if (status == KELP_OK) {
        status = kelp__etcd_server_launch(server, program, options, log_fd, reterr);
    }
    if (status == KELP_OK) {
        status = wait_until_served(server, options, log_fd, log_start, end_ms, reterr);
        if (status != KELP_OK) {
            kelp_process_destroy(server->process);
            server->process = NULL;
        }
    }
    return status;
}

/* Make the path absolute, since etcd has another working folder. A path that cannot be resolved
 * stays as it is: starting etcd reports it. */
static void make_absolute(char path[KELP_PROCESS_PATH_MAX])
{
    char *absolute = realpath(path, NULL);

    if (absolute && strlen(absolute) < KELP_PROCESS_PATH_MAX) {
        (void)snprintf(path, KELP_PROCESS_PATH_MAX, "%s", absolute);
    }
    free(absolute);
}

kelp_status kelp_etcd_server_find(const char *wanted, char ret_path[KELP_PROCESS_PATH_MAX],
                                  struct kelp_error *reterr)
{
    static const char fallback[] = "/usr/bin/etcd";

    if (wanted) {
        kelp_status status = kelp_process_find(wanted, ret_path, reterr);
        if (status == KELP_OK) {
            make_absolute(ret_path);
        }
        return status;
    }
    if (kelp_process_find("etcd", ret_path, NULL) == KELP_OK) {
        return KELP_OK;
    }
    if (access(fallback, X_OK) == 0) {
        memcpy(ret_path, fallback, sizeof(fallback));
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                     "etcd is not installed: install the package etcd-server "
                     "(sudo apt-get install etcd-server), or put etcd on PATH");
}

/* The data folder, made when missing and locked: two etcds in one folder wait for each other
 * without a word, so that the second would only time out. */
static kelp_status lock_folder(struct kelp_etcd_server *server, const char *folder,
                               struct kelp_error *reterr)
{
    if (strlen(folder) >= KELP_PROCESS_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "etcd's data folder has too long a path");
    }
    if (mkdir(folder, 0700) < 0 && errno != EEXIST) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot make etcd's data folder '%s': %s", folder,
                         strerror(errno));
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot open etcd's data folder '%s': %s", folder,
                         strerror(errno));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        kelp_status status = kelp_fail(reterr, KELP_ERR_BUSY,
                                       "etcd's data folder '%s' is used by another etcd", folder);
        (void)close(fd);
        return status;
    }
    server->lock_fd = fd;
    server->data_folder = realpath(folder, NULL);
    if (!server->data_folder) {
        (void)close(fd);
        return kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s': %s", folder, strerror(errno));
    }
    return KELP_OK;
}

static kelp_status draw_name(struct kelp_etcd_server *server, struct kelp_error *reterr)
{
    uint64_t drawn;

    if (getrandom(&drawn, sizeof(drawn), 0) != (ssize_t)sizeof(drawn)) {
        return kelp_fail(reterr, KELP_ERR_IO, "no random numbers: %s", strerror(errno));
    }
    (void)snprintf(server->name, sizeof(server->name), "kelp-%016" PRIx64, drawn);
    return KELP_OK;
}

static kelp_status start_in_folder(struct kelp_etcd_server *server, const char *program,
                                   const struct kelp_etcd_server_options *options,
                                   struct kelp_error *reterr)
{
    uint64_t end_ms =
        kelp_clock_ms() + (options->deadline_ms > 0 ? options->deadline_ms : DEADLINE_DEFAULT_MS);
    int log_fd = open(options->log_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

    if (log_fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot open etcd's log '%s': %s", options->log_path,
                         strerror(errno));
    }
    kelp_status status = KELP_ERR_EXISTS;
    for (int attempt = 0; status == KELP_ERR_EXISTS && attempt < PORT_ATTEMPTS; attempt++) {
        status = draw_name(server, reterr);
        if (status == KELP_OK) {
            status = start_once(server, program, options, log_fd, end_ms, reterr);
        }
        if (options->client_port != 0) {
            break; /* a requested port is not replaced by another */
        }
    }
    (void)close(log_fd);
    return status;
}

static kelp_status set_certificates(struct kelp_etcd_server *server,
                                    const struct kelp_etcd_server_options *options,
                                    struct kelp_error *reterr)
{
    assert(options->socket_folder);
    server->certificates = calloc(1, sizeof(*server->certificates));
    return server->certificates
               ? kelp_etcd_certificates_init(server->certificates, options->certs, reterr)
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static void free_server(struct kelp_etcd_server *server)
{
    free(server->certificates);
    free(server->data_folder);
    free(server);
}

kelp_status kelp_etcd_server_start(const struct kelp_etcd_server_options *options,
                                   struct kelp_etcd_server **ret_server, struct kelp_error *reterr)
{
    char program[KELP_PROCESS_PATH_MAX];

    assert(options->data_folder && options->log_path);
    kelp_status status = kelp_etcd_server_find(options->program, program, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_etcd_server *server = calloc(1, sizeof(*server));
    if (!server) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    status = options->certs ? set_certificates(server, options, reterr) : KELP_OK;
    if (status == KELP_OK) {
        status = lock_folder(server, options->data_folder, reterr);
    }
    if (status == KELP_OK) {
        status = start_in_folder(server, program, options, reterr);
        if (status != KELP_OK) {
            (void)close(server->lock_fd);
        }
    }
    if (status != KELP_OK) {
        free_server(server);
        return status;
    }
    *ret_server = server;
    return KELP_OK;
}

void kelp_etcd_server_stop(struct kelp_etcd_server *server, uint32_t grace_ms)
{
    if (!server) {
        return;
    }
    kelp_process_stop(server->process, grace_ms);
    kelp_process_destroy(server->process);
    (void)close(server->lock_fd);
    free_server(server);
}

const char *kelp_etcd_server_url(const struct kelp_etcd_server *server)
{
    return server->url;
}

uint16_t kelp_etcd_server_port(const struct kelp_etcd_server *server)
{
    return server->client_port;
}

struct kelp_process *kelp_etcd_server_process(struct kelp_etcd_server *server)
{
    return server->process;
}
