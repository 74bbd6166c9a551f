#include "common/program/serving.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/etcd/etcd_endpoint.h"

#define DEFAULT_LISTEN "127.0.0.1:0"

/* ---- decisions ---- */

/* For an etcd on another machine, without --advertise. */
static kelp_status choose_by_listen(const struct kelp_serving_options *options,
                                    enum kelp_address_kind listen, enum kelp_serving_rule *ret_rule,
                                    struct kelp_error *reterr)
{
    switch (listen) {
    case KELP_ADDRESS_LOOPBACK:
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--listen %.255s: etcd is on another machine, but no other machine can "
                         "reach this address: omit --listen, or give an address that others can "
                         "reach (and --advertise if they dial a different one)",
                         options->listen);
    case KELP_ADDRESS_EVERY:
        *ret_rule = KELP_SERVING_BY_SOURCE;
        return KELP_OK;
    case KELP_ADDRESS_SOCKET:
    case KELP_ADDRESS_NUMBERS:
    case KELP_ADDRESS_NAME:
        break;
    }
    *ret_rule = KELP_SERVING_AS_GIVEN;
    return KELP_OK;
}

kelp_status kelp_serving_choose(const struct kelp_serving_options *options, bool remote,
                                enum kelp_address_kind listen, enum kelp_serving_rule *ret_rule,
                                struct kelp_error *reterr)
{
    *ret_rule = KELP_SERVING_AS_GIVEN;
    if (!remote || options->one_machine) {
        return KELP_OK;
    }
    if (options->advertise && kelp_address_kind(options->advertise) == KELP_ADDRESS_LOOPBACK) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--advertise %.255s: etcd is on another machine, but no other machine can "
                         "reach this address: give one that others can reach",
                         options->advertise);
    }
    if (!options->listen && !options->certified) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--etcd %.255s: this etcd is on another machine, so other machines must "
                         "reach this process, and it needs certificates: --certs FOLDER (kelp "
                         "certs)",
                         options->etcd);
    }
    if (!options->listen) {
        *ret_rule = KELP_SERVING_AT_SOURCE;
        return KELP_OK;
    }
    return options->advertise ? KELP_OK : choose_by_listen(options, listen, ret_rule, reterr);
}

/* ---- addresses ---- */

static socklen_t length_of(const union kelp_serving_peer *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof(address->in6) : sizeof(address->in4);
}

static void print_host(const union kelp_serving_peer *address, char host[KELP_SERVING_HOST_MAX + 1])
{
    char text[INET6_ADDRSTRLEN] = "";

    if (address->any.sa_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &address->in6.sin6_addr, text, sizeof(text));
        (void)snprintf(host, KELP_SERVING_HOST_MAX + 1, "[%s]", text);
        return;
    }
    (void)inet_ntop(AF_INET, &address->in4.sin_addr, text, sizeof(text));
    (void)snprintf(host, KELP_SERVING_HOST_MAX + 1, "%s", text);
}

/* Split HOST:PORT or HOST; brackets of an IPv6 host are removed. False: neither form. */
static bool split(const char *text, char host[KELP_SERVING_ADDRESS_MAX + 1], const char **ret_port)
{
    const char *end = text[0] == '[' ? strchr(text, ']') : text + strcspn(text, ":");
    size_t skipped = text[0] == '[' ? 1 : 0;

    if (!end || (end[skipped] != ':' && end[skipped] != '\0') ||
        strlen(text) > KELP_SERVING_ADDRESS_MAX) {
        return false;
    }
    (void)snprintf(host, KELP_SERVING_ADDRESS_MAX + 1, "%.*s",
                   (int)(end - text - (ptrdiff_t)skipped), text + skipped);
    *ret_port = end[skipped] == ':' ? end + skipped + 1 : "";
    return host[0] != '\0';
}

/* ---- the address to listen on ---- */

static bool is_name(const char *listen)
{
    return kelp_address_kind(listen) == KELP_ADDRESS_NAME ||
           strncmp(listen, "localhost", strlen("localhost")) == 0;
}

/* Resolve a name to a numeric address. An invalid address stays as it is: listening on it
 * reports the error. */
static kelp_status read_listen(struct kelp_serving *serving, const char *listen,
                               struct kelp_error *reterr)
{
    char host[KELP_SERVING_ADDRESS_MAX + 1];
    char numbers[KELP_SERVING_HOST_MAX + 1];
    const char *port;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    union kelp_serving_peer address = {.any.sa_family = AF_UNSPEC};

    (void)snprintf(serving->listen, sizeof(serving->listen), "%s", listen);
    if (!is_name(listen) || !split(listen, host, &port)) {
        return KELP_OK;
    }
    int code = getaddrinfo(host, NULL, &hints, &found);
    if (code != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--listen %.255s: %s", listen,
                         gai_strerror(code));
    }
    if (found->ai_addrlen <= sizeof(address)) {
        memcpy(&address, found->ai_addr, found->ai_addrlen);
    }
    freeaddrinfo(found);
    print_host(&address, numbers);
    (void)snprintf(serving->listen, sizeof(serving->listen), "%s%s%s", numbers,
                   port[0] != '\0' ? ":" : "", port);
    return KELP_OK;
}

/* "HOST:PORT" of an endpoint; NULL: a socket in the file system. */
static const char *endpoint_host(const char *endpoint)
{
    const char *scheme = strstr(endpoint, "://");
    return scheme ? scheme + strlen("://") : NULL;
}

static bool is_remote(const char *endpoint)
{
    const char *host = endpoint_host(endpoint);
    return host && kelp_address_kind(host) != KELP_ADDRESS_LOOPBACK;
}

static kelp_status any_remote(const char *etcd, bool *ret_remote, struct kelp_error *reterr)
{
    char(*endpoints)[KELP_ETCD_ENDPOINT_MAX + 1] = NULL;
    size_t count = 0;
    kelp_status status = kelp_etcd_endpoints_parse(etcd, &endpoints, &count, reterr);

    *ret_remote = false;
    for (size_t i = 0; i < count; i++) {
        *ret_remote = *ret_remote || is_remote(endpoints[i]);
    }
    free(endpoints);
    return status;
}

kelp_status kelp_serving_init(struct kelp_serving *serving,
                              const struct kelp_serving_options *options, struct kelp_error *reterr)
{
    bool remote;
    kelp_status status = any_remote(options->etcd, &remote, reterr);

    *serving = (struct kelp_serving){.options = *options};
    if (options->listen && strlen(options->listen) > KELP_SERVING_ADDRESS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "--listen %.40s...: more than %d bytes",
                         options->listen, KELP_SERVING_ADDRESS_MAX);
    }
    if (status == KELP_OK) {
        status = read_listen(serving, options->listen ? options->listen : DEFAULT_LISTEN, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_serving_choose(options, remote, kelp_address_kind(serving->listen),
                                     &serving->rule, reterr);
    }
    if (serving->rule == KELP_SERVING_AT_SOURCE) {
        serving->listen[0] = '\0';
    }
    return status;
}

const char *kelp_serving_advertise(const struct kelp_serving *serving)
{
    return serving->options.advertise                ? serving->options.advertise
           : serving->rule == KELP_SERVING_BY_SOURCE ? serving->source
                                                     : NULL;
}

/* ---- the source address ---- */

/* IPv6 link-local addresses need a scope besides the numbers. */
static bool can_be_dialled(const union kelp_serving_peer *address)
{
    return address->any.sa_family == AF_INET ||
           (address->any.sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&address->in6.sin6_addr));
}

/* The source address that this host would use towards the peer; nothing is sent. Returns 0 or an
 * errno. */
static int source_towards(const union kelp_serving_peer *peer, union kelp_serving_peer *ret_source)
{
    socklen_t length = sizeof(*ret_source);
    int error = 0;
    int fd = socket(peer->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return errno;
    }
    memset(ret_source, 0, sizeof(*ret_source));
    if (connect(fd, &peer->any, length_of(peer)) != 0 ||
        getsockname(fd, &ret_source->any, &length) != 0) {
        error = errno;
    }
    (void)close(fd);
    return error;
}

/* Add the addresses of the endpoint's host. */
static void add_peers(struct kelp_serving *serving, const char *endpoint, struct kelp_error *reterr)
{
    char host[KELP_SERVING_ADDRESS_MAX + 1];
    const char *port;
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;

    if (!is_remote(endpoint) || !split(endpoint_host(endpoint), host, &port)) {
        return;
    }
    /* The route does not depend on the port. */
    int code = getaddrinfo(host, "2379", &hints, &found);
    if (code != 0) {
        (void)kelp_fail(reterr, KELP_ERR_UNREACHABLE, "--etcd %s: %s", endpoint,
                        gai_strerror(code));
        return;
    }
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        if ((at->ai_family == AF_INET || at->ai_family == AF_INET6) &&
            serving->peer_count < KELP_SERVING_PEERS_MAX) {
            memcpy(&serving->peers[serving->peer_count++], at->ai_addr, at->ai_addrlen);
        }
    }
    freeaddrinfo(found);
}

/* Use the first reachable peer. Errors: as kelp_serving_find(). */
static kelp_status look_up(const struct kelp_serving *serving,
                           char ret_host[KELP_SERVING_HOST_MAX + 1], struct kelp_error *reterr)
{
    char own[KELP_SERVING_HOST_MAX + 1] = "";
    int error = EADDRNOTAVAIL;

    for (size_t i = 0; i < serving->peer_count; i++) {
        union kelp_serving_peer source;
        int failed = source_towards(&serving->peers[i], &source);
        error = failed != 0 ? failed : error;
        if (failed != 0 || !can_be_dialled(&source)) {
            continue;
        }
        print_host(&source, ret_host);
        if (kelp_address_kind(ret_host) == KELP_ADDRESS_NUMBERS) {
            return KELP_OK;
        }
        memcpy(own, ret_host, sizeof(own));
    }
    if (own[0] != '\0') {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "--etcd %.255s: on this host that is %s, which no other machine can reach: give "
            "--listen HOST:PORT, or --advertise, with an address that others can reach",
            serving->options.etcd, own);
    }
    return kelp_fail(reterr, KELP_ERR_UNREACHABLE, "no route to etcd at %.255s: %s",
                     serving->options.etcd, strerror(error));
}

kelp_status kelp_serving_find(struct kelp_serving *serving, struct kelp_error *reterr)
{
    char(*endpoints)[KELP_ETCD_ENDPOINT_MAX + 1] = NULL;
    struct kelp_error unknown = {.status = KELP_OK};
    size_t count = 0;

    if (serving->rule == KELP_SERVING_AS_GIVEN) {
        return KELP_OK;
    }
    kelp_status status =
        kelp_etcd_endpoints_parse(serving->options.etcd, &endpoints, &count, reterr);
    serving->peer_count = 0;
    for (size_t i = 0; i < count; i++) {
        add_peers(serving, endpoints[i], &unknown);
    }
    free(endpoints);
    if (status == KELP_OK && serving->peer_count == 0) {
        return kelp_fail(reterr, KELP_ERR_UNREACHABLE, "%s", unknown.text);
    }
    if (status == KELP_OK) {
        status = look_up(serving, serving->source, reterr);
    }
    if (status == KELP_OK && serving->rule == KELP_SERVING_AT_SOURCE) {
        (void)snprintf(serving->listen, sizeof(serving->listen), "%s:0", serving->source);
    }
    return status;
}

/* ---- later checks ---- */

/* Does this machine still have the address that it listens on? True if unknown. */
static bool has_address(const char *listen)
{
    char host[KELP_SERVING_ADDRESS_MAX + 1];
    const char *port;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;

    if (kelp_address_kind(listen) != KELP_ADDRESS_NUMBERS || !split(listen, host, &port) ||
        getaddrinfo(host, "0", &hints, &found) != 0) {
        return true;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool gone =
        fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) != 0 && errno == EADDRNOTAVAIL;
    if (fd >= 0) {
        (void)close(fd);
    }
    freeaddrinfo(found);
    return !gone;
}

enum kelp_serving_now kelp_serving_look(const struct kelp_serving *serving, const char *registered,
                                        char ret_host[KELP_SERVING_HOST_MAX + 1],
                                        struct kelp_error *reterr)
{
    const bool fixed = serving->rule == KELP_SERVING_AS_GIVEN || serving->options.advertise != NULL;

    ret_host[0] = '\0';
    if (!has_address(serving->listen)) {
        (void)kelp_fail(reterr, KELP_ERR_UNREACHABLE,
                        "it listens at %s, which this host no longer has: it ends, to be restarted",
                        serving->listen);
        return KELP_SERVING_GONE;
    }
    if (fixed) {
        return KELP_SERVING_SAME;
    }
    if (look_up(serving, ret_host, reterr) != KELP_OK) {
        return KELP_SERVING_UNKNOWN;
    }
    const bool everywhere = serving->rule == KELP_SERVING_BY_SOURCE;
    const char *before = everywhere ? registered : serving->source;
    if (strcmp(ret_host, before) == 0) {
        return KELP_SERVING_SAME;
    }
    (void)kelp_fail(
        reterr, KELP_ERR_UNREACHABLE,
        "it is registered as %s, but this host now reaches etcd from %s: it ends, to be restarted",
        before, ret_host);
    return everywhere ? KELP_SERVING_MOVED : KELP_SERVING_GONE;
}
