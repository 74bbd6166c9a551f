#include "common/scrape/scrape.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/program/options/version.h"
#include "common/scrape/limits.h"
#include "common/scrape/scrape_listen.h"
#include "common/scrape/scrape_tls.h"

#define HOLD_MS 100 /* between two looks whether new certificates can be used */

/* A connection that libmicrohttpd serves. */
struct client {
    int fd; /* -1: none */
    uint64_t since_ms;
    bool cut;
};

struct kelp_scrape {
    struct kelp_figures figures;
    struct kelp_figures_process process;
    struct kelp_credentials *credentials; /* borrowed; NULL: none */
    char address[KELP_SCRAPE_ADDRESS_MAX + 1];
    int listener;
    int wake; /* an eventfd: the thread is to end */
    pthread_t thread;
    bool started;

    /* Of the thread. */
    struct MHD_Daemon *daemon;
    bool secure;      /* by mutual TLS */
    uint64_t version; /* of the credentials that the daemon has */
    struct client clients[KELP_SCRAPE_CONNECTIONS];
    uint64_t second; /* in which `taken` were taken */
    unsigned taken;
    uint64_t hold_ms; /* until then nobody is taken */
};

/* ---- what is measured of the process itself ---- */

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;

    if (!file || fscanf(file, "%*u %llu", &pages) != 1) {
        pages = 0;
    }
    if (file) {
        (void)fclose(file);
    }
    return pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : KELP_FIGURE_NONE;
}

static uint64_t unix_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t time_us(const struct timeval *time)
{
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec;
}

static void look_at_process(struct kelp_scrape *scrape)
{
    struct rusage usage;
    struct kelp_certificate own;
    struct kelp_certificate authority;

    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        kelp_figures_set(&scrape->figures, KELP_FIGURE_CPU,
                         time_us(&usage.ru_utime) + time_us(&usage.ru_stime));
    }
    kelp_figures_set(&scrape->figures, KELP_FIGURE_MEMORY, resident_bytes());
    if (scrape->credentials) {
        kelp_credentials_certificates(scrape->credentials, &own, &authority);
        kelp_figures_set(&scrape->figures, KELP_FIGURE_CERTIFICATE_END, (uint64_t)own.until_s);
    }
}

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type,
                              char *text, size_t bytes)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);

    if (!response) {
        free(text);
        return MHD_NO;
    }
    enum MHD_Result result =
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
                MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES &&
                (code != MHD_HTTP_METHOD_NOT_ALLOWED ||
                 MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD") == MHD_YES)
            ? MHD_queue_response(connection, code, response)
            : MHD_NO;
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result say(struct MHD_Connection *connection, unsigned code, const char *before,
                           const char *what)
{
    char *text = NULL;
    const int bytes = asprintf(&text, "%s%s\n", before, what);

    return bytes < 0 ? MHD_NO
                     : answer(connection, code, "text/plain; charset=utf-8", text, (size_t)bytes);
}

static enum MHD_Result tell_figures(struct kelp_scrape *scrape, struct MHD_Connection *connection)
{
    struct kelp_text text;
    struct kelp_error error;
    char *bytes = NULL;
    size_t count = 0;

    look_at_process(scrape);
    if (kelp_text_open(&text, &error) != KELP_OK) {
        return MHD_NO;
    }
    kelp_figures_print(&scrape->figures, &scrape->process, text.out);
    return kelp_text_close(&text, &bytes, &count, &error) == KELP_OK
               ? answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", bytes,
                        count)
               : MHD_NO;
}

static enum MHD_Result refuse(struct kelp_scrape *scrape, struct MHD_Connection *connection,
                              unsigned code, const char *why)
{
    kelp_figures_add(&scrape->figures, KELP_FIGURE_SCRAPES_REFUSED, 1);
    return say(connection, code, "", why);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **request_user)
{
    struct kelp_scrape *scrape = user;

    (void)version;
    (void)upload;
    (void)upload_bytes;
    (void)request_user;
    const char *denied =
        scrape->secure
            ? kelp_scrape_why_denied(connection, kelp_credentials_name(scrape->credentials))
            : NULL;
    if (denied) {
        return refuse(scrape, connection, MHD_HTTP_FORBIDDEN, denied);
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return refuse(scrape, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD alone");
    }
    const bool metrics = strcmp(url, "/metrics") == 0;
    const bool health = strcmp(url, "/healthz") == 0;
    const char *why_not = kelp_figures_why_not_ready(&scrape->figures);
    if (!metrics && !health && strcmp(url, "/readyz") != 0) {
        return refuse(scrape, connection, MHD_HTTP_NOT_FOUND,
                      "/metrics, /healthz and /readyz alone");
    }
    kelp_figures_add(&scrape->figures, KELP_FIGURE_SCRAPES, 1);
    if (metrics) {
        return tell_figures(scrape, connection);
    }
    if (!kelp_figures_healthy(&scrape->figures)) {
        return say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "", "the event loop does not answer");
    }
    return health || !why_not
               ? say(connection, MHD_HTTP_OK, "", "ok")
               : say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "not ready: ", why_not);
}

/* ---- connections ---- */

static struct client *client_of(struct kelp_scrape *scrape, int fd)
{
    for (size_t i = 0; i < KELP_SCRAPE_CONNECTIONS; i++) {
        if (scrape->clients[i].fd == fd) {
            return &scrape->clients[i];
        }
    }
    return NULL;
}

/* libmicrohttpd has accepted a connection, or is done with it. */
static void on_connection(void *user, struct MHD_Connection *connection, void **client_user,
                          enum MHD_ConnectionNotificationCode what)
{
    struct kelp_scrape *scrape = user;

    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct client *client = client_of(scrape, -1);
        *client_user = client;
        if (info && client) {
            *client = (struct client){.fd = info->connect_fd, .since_ms = kelp_clock_ms()};
        }
    } else if (*client_user) {
        ((struct client *)*client_user)->fd = -1;
    }
}

static bool has_clients(const struct kelp_scrape *scrape)
{
    for (size_t i = 0; i < KELP_SCRAPE_CONNECTIONS; i++) {
        if (scrape->clients[i].fd >= 0) {
            return true;
        }
    }
    return false;
}

/* A client that sends a byte now and then is never silent, so libmicrohttpd would keep it for
 * ever. */
static void cut_old(struct kelp_scrape *scrape)
{
    const uint64_t now_ms = kelp_clock_ms();

    for (size_t i = 0; i < KELP_SCRAPE_CONNECTIONS; i++) {
        struct client *client = &scrape->clients[i];
        if (client->fd >= 0 && !client->cut &&
            now_ms - client->since_ms >= KELP_SCRAPE_CONNECTION_MS) {
            client->cut = true;
            (void)shutdown(client->fd, SHUT_RDWR); /* libmicrohttpd sees it and closes it */
            kelp_figures_add(&scrape->figures, KELP_FIGURE_SCRAPES_REFUSED, 1);
        }
    }
}

/* ---- libmicrohttpd ---- */

/* Options of its start, besides the limits; both end with MHD_OPTION_END. */
static void set_tls(struct MHD_OptionItem options[5], const struct kelp_credential_texts *texts)
{
    const struct MHD_OptionItem items[] = {
        {MHD_OPTION_HTTPS_MEM_TRUST, 0, texts->ca},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, texts->certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, texts->key},
        {MHD_OPTION_HTTPS_PRIORITIES, 0,
         (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
        {MHD_OPTION_END, 0, NULL},
    };
    memcpy(options, items, sizeof(items));
}

static struct MHD_Daemon *start_with(struct kelp_scrape *scrape,
                                     const struct MHD_OptionItem *options)
{
    const unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET;

    return MHD_start_daemon(
        flags | (scrape->secure ? MHD_USE_TLS : 0), 0, NULL, NULL, on_request, scrape,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, scrape, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)KELP_SCRAPE_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)KELP_SCRAPE_REQUEST_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(KELP_SCRAPE_CONNECTION_MS / 1000), MHD_OPTION_ARRAY, options, MHD_OPTION_END);
}

static kelp_status start_daemon(struct kelp_scrape *scrape, struct kelp_error *reterr)
{
    struct MHD_OptionItem options[5] = {{MHD_OPTION_END, 0, NULL}};
    struct kelp_credential_texts texts = {.ca = NULL};

    if (scrape->secure) {
        kelp_status status = kelp_credentials_take(scrape->credentials, &texts, reterr);
        if (status != KELP_OK) {
            return status;
        }
        set_tls(options, &texts);
    }
    scrape->daemon = start_with(scrape, options); /* it has read the texts then */
    kelp_credential_texts_fini(&texts);
    return scrape->daemon ? KELP_OK
                          : kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                                      "--metrics: no memory or descriptors for the server");
}

/* Use replaced files of --certs for the next connection. False: not yet, since connections with the
 * old ones are open; they end soon. */
static bool renew(struct kelp_scrape *scrape)
{
    struct kelp_error error = {.status = KELP_OK};

    if (!scrape->secure) {
        return true;
    }
    const uint64_t version = kelp_credentials_refresh(scrape->credentials, &error);
    if (error.status != KELP_OK) {
        kelp_log_warn("certificates not reloaded, the previous ones stay in use reason=\"%s\"",
                      error.text);
    }
    if (version == scrape->version && scrape->daemon) {
        return true;
    }
    if (has_clients(scrape)) {
        return false;
    }
    if (scrape->daemon) {
        MHD_stop_daemon(scrape->daemon);
        scrape->daemon = NULL;
    }
    scrape->version = version;
    kelp_status status = start_daemon(scrape, &error);
    if (status != KELP_OK) {
        kelp_log_error("new certificates cannot be served: trying again error=\"%s\"", error.text);
    }
    return status == KELP_OK;
}

/* ---- who comes ---- */

/* Milliseconds until another connection may be accepted; 0: now. */
static int until_next(struct kelp_scrape *scrape)
{
    const uint64_t now_ms = kelp_clock_ms();

    if (scrape->second != now_ms / 1000) {
        scrape->second = now_ms / 1000;
        scrape->taken = 0;
    }
    if (now_ms < scrape->hold_ms) {
        return (int)(scrape->hold_ms - now_ms);
    }
    return scrape->taken < KELP_SCRAPE_RATE ? 0 : (int)(1000 - now_ms % 1000);
}

/* Not by accept4(), which counts descriptors for the rpc servers of the process. */
static void take_client(struct kelp_scrape *scrape)
{
    struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
    socklen_t length = sizeof(peer);

    if (!renew(scrape)) {
        scrape->hold_ms = kelp_clock_ms() + HOLD_MS;
        return;
    }
    int fd = accept(scrape->listener, (struct sockaddr *)&peer, &length);

    scrape->taken++; /* also when there is no descriptor: then the next second is waited for */
    if (fd >= 0 &&
        MHD_add_connection(scrape->daemon, fd, (const struct sockaddr *)&peer, length) != MHD_YES) {
        kelp_figures_add(&scrape->figures, KELP_FIGURE_SCRAPES_REFUSED, 1); /* it closed it */
    }
}

/* ---- the thread ---- */

static int least(int a, int b)
{
    return b < 0 || (a >= 0 && a < b) ? a : b;
}

/* Wait until something comes or is due. False: the thread must end. */
static bool wait_and_take(struct kelp_scrape *scrape)
{
    const union MHD_DaemonInfo *info =
        scrape->daemon ? MHD_get_daemon_info(scrape->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    const bool room = client_of(scrape, -1) != NULL;
    const int next_ms = until_next(scrape);
    MHD_UNSIGNED_LONG_LONG due_ms = 0;
    int wait_ms = has_clients(scrape) ? KELP_SCRAPE_CONNECTION_MS / 10 : -1;
    struct pollfd fds[] = {{.fd = scrape->wake, .events = POLLIN},
                           {.fd = info ? info->epoll_fd : -1, .events = POLLIN},
                           {.fd = room && next_ms == 0 ? scrape->listener : -1, .events = POLLIN}};

    if (room && next_ms > 0) {
        wait_ms = least(next_ms, wait_ms);
    }
    if (scrape->daemon && MHD_get_timeout(scrape->daemon, &due_ms) == MHD_YES) {
        wait_ms = least((int)(due_ms < 1000 ? due_ms : 1000), wait_ms);
    }
    (void)poll(fds, KELP_ARRAY_COUNT(fds), wait_ms); /* when it fails, nothing has come */
    if (fds[0].revents) {
        return false;
    }
    if (fds[2].revents) {
        take_client(scrape);
    }
    return true;
}

static void *serve(void *user)
{
    struct kelp_scrape *scrape = user;

    while (wait_and_take(scrape)) {
        if (scrape->daemon) {
            (void)MHD_run(scrape->daemon);
        }
        cut_old(scrape);
    }
    return NULL;
}

/* Signals go to the daemon's own thread for them. */
static kelp_status start_thread(struct kelp_scrape *scrape, struct kelp_error *reterr)
{
    sigset_t all;
    sigset_t before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    scrape->started = pthread_create(&scrape->thread, NULL, serve, scrape) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return scrape->started ? KELP_OK
                           : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--metrics: no thread");
}

/* ---- life ---- */

/* May it be opened without certificates? */
static kelp_status check_address(const char *address, struct kelp_error *reterr)
{
    if (kelp_scrape_path(address) || kelp_address_is_loopback(address, strlen(address))) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "--metrics %.255s: other machines can reach this address, so it needs "
                     "certificates: --certs FOLDER (kelp certs); or use a loopback address, such "
                     "as 127.0.0.1:9400, or unix:/PATH",
                     address);
}

static kelp_status open_scrape(const struct kelp_options *options,
                               const struct kelp_scrape_process *process,
                               struct kelp_scrape **ret_scrape, struct kelp_error *reterr)
{
    const char *address = kelp_options_text(options, "metrics");
    kelp_status status = process->credentials ? KELP_OK : check_address(address, reterr);

    if (status != KELP_OK) {
        return status;
    }
    struct kelp_scrape *scrape = calloc(1, sizeof(*scrape));
    if (!scrape) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--metrics: no memory");
    }
    scrape->process = (struct kelp_figures_process){.of = process->of,
                                                    .role = process->role,
                                                    .job = kelp_options_text(options, "job"),
                                                    .id = kelp_options_text(options, "id"),
                                                    .version = kelp_version(),
                                                    .commit = kelp_version_commit()};
    scrape->credentials = process->credentials;
    /* As with rpc: a process that can open a socket in the file system belongs to this user. */
    scrape->secure = process->credentials && !kelp_scrape_path(address);
    scrape->version = scrape->secure ? kelp_credentials_refresh(scrape->credentials, NULL) : 0;
    scrape->listener = -1;
    for (size_t i = 0; i < KELP_SCRAPE_CONNECTIONS; i++) {
        scrape->clients[i].fd = -1;
    }
    kelp_figures_init(&scrape->figures);
    kelp_figures_set(&scrape->figures, KELP_FIGURE_STARTED, unix_ms());
    scrape->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status = scrape->wake >= 0 ? KELP_OK
                               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--metrics: no descriptor");
    if (status == KELP_OK) {
        status = kelp_scrape_listen(address, &scrape->listener, scrape->address, reterr);
    }
    if (status == KELP_OK) {
        status = start_daemon(scrape, reterr);
    }
    if (status == KELP_OK) {
        status = start_thread(scrape, reterr);
    }
    if (status != KELP_OK) {
        kelp_scrape_close(scrape);
        return status;
    }
    kelp_log_info("may be watched metrics=%s", scrape->address);
    *ret_scrape = scrape;
    return KELP_OK;
}

bool kelp_scrape_begin(const struct kelp_program *program, const struct kelp_options *options,
                       const struct kelp_scrape_process *process, struct kelp_scrape **ret_scrape)
{
    struct kelp_error error;

    *ret_scrape = NULL;
    if (!kelp_options_text(options, "metrics") ||
        open_scrape(options, process, ret_scrape, &error) == KELP_OK) {
        return true;
    }
    (void)fprintf(stderr, "%s: %s\n", program->name, error.text);
    return false;
}

void kelp_scrape_close(struct kelp_scrape *scrape)
{
    if (!scrape) {
        return;
    }
    if (scrape->started) {
        (void)eventfd_write(scrape->wake, 1); /* cannot fail: it is written once */
        (void)pthread_join(scrape->thread, NULL);
    }
    if (scrape->daemon) {
        MHD_stop_daemon(scrape->daemon);
    }
    if (scrape->listener >= 0) {
        (void)close(scrape->listener);
        const char *path = kelp_scrape_path(scrape->address);
        if (path) {
            (void)unlink(path); /* the next process replaces it otherwise */
        }
    }
    if (scrape->wake >= 0) {
        (void)close(scrape->wake);
    }
    free(scrape);
}

struct kelp_figures *kelp_scrape_figures(struct kelp_scrape *scrape)
{
    return scrape ? &scrape->figures : NULL;
}

const char *kelp_scrape_address(const struct kelp_scrape *scrape)
{
    return scrape->address;
}
