#include "tests/lib/attack/http2_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

#define CONNECT_MS   10000
#define SEND_MS      5000
#define FRAME_HEADER 9
#define FRAME_MAX    16384 /* bytes that every peer takes */
#define WINDOW       65535 /* bytes that every peer takes first */
#define MESSAGE_MAX  (8u << 20)

enum { DATA = 0, SETTINGS = 4, WINDOW_UPDATE = 8 };
enum { ACK = 1 };

struct bytes {
    uint8_t *at;
    size_t count, room;
};

struct stream {
    struct kelp_http2_answer answer;
    int64_t window;       /* bytes that we may send */
    struct bytes partial; /* of a gRPC message, with its prefix */
    struct bytes newest;  /* the message before */
};

struct kelp_http2 {
    int fd;
    SSL_CTX *context;
    SSL *ssl; /* NULL: plain */
    bool tls, dead, reads_little;
    struct bytes in, out;
    struct stream *streams; /* stream 1, 3, 5, … */
    size_t stream_count;
    int64_t window, first_window;
};

/* ---- bytes ---------------------------------------------------------------------------------- */

static bool add(struct bytes *bytes, const void *more, size_t count)
{
    if (bytes->room - bytes->count < count) {
        size_t room = 2 * bytes->room + count + 256;
        uint8_t *moved = realloc(bytes->at, room);
        if (!moved) {
            return false;
        }
        bytes->at = moved;
        bytes->room = room;
    }
    if (count > 0) {
        memcpy(bytes->at + bytes->count, more, count);
        bytes->count += count;
    }
    return true;
}

static void drop(struct bytes *bytes, size_t count)
{
    bytes->count -= count;
    if (bytes->count > 0) {
        memmove(bytes->at, bytes->at + count, bytes->count);
    }
}

static uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void write_u32(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

/* ---- the socket ----------------------------------------------------------------------------- */

static bool dial(struct kelp_http2 *client, const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    const int now = 1;
    char host[64];
    const char *colon = strrchr(address, ':');

    if (!colon || (size_t)(colon - address) >= sizeof(host)) {
        return false;
    }
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return client->fd >= 0 && inet_pton(AF_INET, host, &to.sin_addr) == 1 &&
           connect(client->fd, (const struct sockaddr *)&to, sizeof(to)) == 0 &&
           setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &now, sizeof(now)) == 0 &&
           fcntl(client->fd, F_SETFL, O_NONBLOCK) == 0;
}

static bool wait_socket(const struct kelp_http2 *client, short events, uint64_t until_ms)
{
    struct pollfd poller = {.fd = client->fd, .events = events};
    uint64_t now_ms = kelp_clock_ms();

    return poll(&poller, 1, until_ms > now_ms ? (int)(until_ms - now_ms) : 0) > 0;
}

/* Of an SSL_ call that did not succeed: what it waits for; 0: it failed. */
static short wants(struct kelp_http2 *client, int result)
{
    switch (SSL_get_error(client->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return POLLIN;
    case SSL_ERROR_WANT_WRITE:
        return POLLOUT;
    default:
        return 0;
    }
}

static bool show_certificate(struct kelp_http2 *client, const char *certs)
{
    char certificate[1100];
    char key[1100];

    (void)snprintf(certificate, sizeof(certificate), "%s/cert.pem", certs);
    (void)snprintf(key, sizeof(key), "%s/key.pem", certs);
    return SSL_CTX_use_certificate_chain_file(client->context, certificate) == 1 &&
           SSL_CTX_use_PrivateKey_file(client->context, key, SSL_FILETYPE_PEM) == 1;
}

static bool shake_hands(struct kelp_http2 *client, const char *certs)
{
    static const unsigned char protocols[] = {2, 'h', '2'};
    uint64_t until_ms = kelp_clock_ms() + CONNECT_MS;

    client->context = SSL_CTX_new(TLS_client_method());
    if (!client->context || (certs && !show_certificate(client, certs)) ||
        SSL_CTX_set_alpn_protos(client->context, protocols, sizeof(protocols)) != 0) {
        return false;
    }
    client->ssl = SSL_new(client->context);
    if (!client->ssl || SSL_set_fd(client->ssl, client->fd) != 1) {
        return false;
    }
    for (;;) {
        int result = SSL_connect(client->ssl);
        short event = result == 1 ? 0 : wants(client, result);
        if (result == 1 || !event || !wait_socket(client, event, until_ms)) {
            return result == 1;
        }
    }
}

/* Bytes written; 0: not now. */
static size_t write_some(struct kelp_http2 *client)
{
    if (client->ssl) {
        int result = SSL_write(client->ssl, client->out.at, (int)client->out.count);
        client->dead = client->dead || (result <= 0 && !wants(client, result));
        return result > 0 ? (size_t)result : 0;
    }
    ssize_t result = send(client->fd, client->out.at, client->out.count, MSG_NOSIGNAL);
    client->dead = client->dead || (result < 0 && errno != EAGAIN && errno != EINTR);
    return result > 0 ? (size_t)result : 0;
}

static size_t read_some(struct kelp_http2 *client, uint8_t *bytes, size_t room)
{
    if (client->ssl) {
        int result = SSL_read(client->ssl, bytes, (int)room);
        client->dead = client->dead || (result <= 0 && !wants(client, result));
        return result > 0 ? (size_t)result : 0;
    }
    ssize_t result = recv(client->fd, bytes, room, 0);
    client->dead = client->dead || result == 0 || (result < 0 && errno != EAGAIN && errno != EINTR);
    return result > 0 ? (size_t)result : 0;
}

/* ---- frames --------------------------------------------------------------------------------- */

bool kelp_http2_frame(struct kelp_http2 *client, uint8_t type, uint8_t flags, uint32_t stream,
                      const void *bytes, size_t count)
{
    uint8_t header[FRAME_HEADER] = {(uint8_t)(count >> 16), (uint8_t)(count >> 8), (uint8_t)count,
                                    type, flags};

    write_u32(header + 5, stream);
    return !client->dead && add(&client->out, header, sizeof(header)) &&
           add(&client->out, bytes, count);
}

static void send_window(struct kelp_http2 *client, uint32_t stream, size_t bytes)
{
    uint8_t more[4];

    write_u32(more, (uint32_t)bytes);
    if (bytes > 0 && !client->reads_little) {
        (void)kelp_http2_frame(client, WINDOW_UPDATE, 0, stream, more, sizeof(more));
    }
}

static struct stream *find(const struct kelp_http2 *client, uint32_t id)
{
    return id % 2 == 1 && id / 2 < client->stream_count ? &client->streams[id / 2] : NULL;
}

/* A number after a name in a block of headers. We ask for no table, so gRPC writes both as text:
 * the name, the value's length, the value. */
static bool find_number(const uint8_t *block, size_t count, const char *name, int *ret_number)
{
    const uint8_t *at = memmem(block, count, name, strlen(name));
    char text[16] = "";

    if (!at || (size_t)(at - block) + strlen(name) + 1 >= count) {
        return false;
    }
    at += strlen(name);
    size_t left = count - (size_t)(at + 1 - block);
    if (*at >= sizeof(text) || *at > left) {
        return false;
    }
    memcpy(text, at + 1, *at);
    *ret_number = (int)strtol(text, NULL, 10);
    return true;
}

/* Whole messages of what has come; the newest is kept. */
static void split(struct stream *stream)
{
    while (stream->partial.count >= 5) {
        size_t length = read_u32(stream->partial.at + 1);
        if (stream->partial.count - 5 < length) {
            return;
        }
        stream->newest.count = 0;
        (void)add(&stream->newest, stream->partial.at + 5, length);
        stream->answer.messages++;
        drop(&stream->partial, 5 + length);
    }
}

static void take_settings(struct kelp_http2 *client, uint8_t flags, const uint8_t *body,
                          size_t count)
{
    if (flags & ACK) {
        return;
    }
    for (size_t at = 0; at + 6 <= count; at += 6) {
        if (body[at] == 0 && body[at + 1] == 4) {
            int64_t first = read_u32(body + at + 2);
            for (size_t i = 0; i < client->stream_count; i++) {
                client->streams[i].window += first - client->first_window;
            }
            client->first_window = first;
        }
    }
    (void)kelp_http2_frame(client, SETTINGS, ACK, 0, NULL, 0);
}

static void take_data(struct kelp_http2 *client, uint32_t id, const uint8_t *body, size_t count)
{
    struct stream *stream = find(client, id);

    if (stream && stream->partial.count + count < MESSAGE_MAX) {
        (void)add(&stream->partial, body, count);
        split(stream);
    }
    send_window(client, id, count);
    send_window(client, 0, count);
}

static void take_frame(struct kelp_http2 *client, const uint8_t *header, const uint8_t *body,
                       size_t count)
{
    uint32_t id = read_u32(header + 5) & 0x7fffffff;
    struct stream *stream = find(client, id);

    switch (header[3]) {
    case DATA:
        take_data(client, id, body, count);
        break;
    case KELP_HTTP2_HEADERS:
    case KELP_HTTP2_CONTINUATION:
        if (stream) {
            (void)find_number(body, count, "grpc-status", &stream->answer.grpc_status);
            (void)find_number(body, count, "kelp-status", &stream->answer.kelp_status);
        }
        break;
    case SETTINGS:
        take_settings(client, header[4], body, count);
        break;
    case KELP_HTTP2_PING:
        (void)(header[4] & ACK || kelp_http2_frame(client, KELP_HTTP2_PING, ACK, 0, body, count));
        break;
    case WINDOW_UPDATE:
        if (count == 4) {
            *(stream ? &stream->window : &client->window) += read_u32(body) & 0x7fffffff;
        }
        break;
    default:
        break;
    }
    if (stream && (header[3] == KELP_HTTP2_RST_STREAM ||
                   (header[3] <= KELP_HTTP2_HEADERS && (header[4] & KELP_HTTP2_END_STREAM)))) {
        stream->answer.ended = true;
    }
}

static void take_frames(struct kelp_http2 *client)
{
    size_t at = 0;

    while (client->in.count - at >= FRAME_HEADER) {
        const uint8_t *header = client->in.at + at;
        size_t count = (size_t)header[0] << 16 | (size_t)header[1] << 8 | header[2];
        if (client->in.count - at - FRAME_HEADER < count) {
            break;
        }
        take_frame(client, header, header + FRAME_HEADER, count);
        at += FRAME_HEADER + count;
    }
    if (at > 0) {
        drop(&client->in, at);
    }
}

/* One turn: what can be written, what is there to read; false: nothing happened until then. */
static bool turn(struct kelp_http2 *client, uint64_t until_ms)
{
    uint8_t bytes[65536];

    if (client->dead) {
        return false;
    }
    if (client->out.count > 0) {
        drop(&client->out, write_some(client));
    }
    size_t got = read_some(client, bytes, sizeof(bytes));
    if (got > 0) {
        client->dead = !add(&client->in, bytes, got) || client->dead;
        take_frames(client);
        return true;
    }
    return !client->dead &&
           wait_socket(client, (short)(POLLIN | (client->out.count > 0 ? POLLOUT : 0)), until_ms);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void begin(struct kelp_http2 *client)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    uint8_t settings[12] = {0, 1, 0, 0, 0, 0, 0, 4}; /* no table of headers; first window */

    write_u32(settings + 8, client->reads_little ? 0 : 1u << 20);
    client->dead = !add(&client->out, preface, sizeof(preface) - 1);
    (void)kelp_http2_frame(client, SETTINGS, 0, 0, settings, sizeof(settings));
    send_window(client, 0, 16u << 20);
}

struct kelp_http2 *kelp_http2_open(const struct kelp_http2_target *target)
{
    struct kelp_http2 *client = calloc(1, sizeof(*client));

    if (!client) {
        return NULL;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* OpenSSL writes to closed sockets */
    client->fd = -1;
    client->reads_little = target->reads_little;
    client->tls = target->tls;
    client->window = WINDOW;
    client->first_window = WINDOW;
    client->dead =
        !dial(client, target->address) || (target->tls && !shake_hands(client, target->certs));
    if (!client->dead) {
        begin(client);
    }
    return client;
}

void kelp_http2_close(struct kelp_http2 *client)
{
    if (!client) {
        return;
    }
    for (size_t i = 0; i < client->stream_count; i++) {
        free(client->streams[i].partial.at);
        free(client->streams[i].newest.at);
    }
    free(client->streams);
    free(client->in.at);
    free(client->out.at);
    SSL_free(client->ssl);
    SSL_CTX_free(client->context);
    if (client->fd >= 0) {
        (void)close(client->fd);
    }
    free(client);
}

bool kelp_http2_alive(const struct kelp_http2 *client)
{
    return !client->dead;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static size_t put_header(uint8_t *block, const char *name, const char *value)
{
    size_t name_bytes = strlen(name);
    size_t value_bytes = strlen(value);

    block[0] = 0; /* literal, kept in no table */
    block[1] = (uint8_t)name_bytes;
    memcpy(block + 2, name, name_bytes);
    block[2 + name_bytes] = (uint8_t)value_bytes;
    memcpy(block + 3 + name_bytes, value, value_bytes);
    return 3 + name_bytes + value_bytes;
}

uint32_t kelp_http2_headers(struct kelp_http2 *client, const char *const headers[][2], size_t count)
{
    uint8_t block[FRAME_MAX];
    size_t used = 0;
    uint32_t id = (uint32_t)(2 * client->stream_count + 1);
    struct stream *streams =
        realloc(client->streams, (client->stream_count + 1) * sizeof(*client->streams));

    client->streams = streams ? streams : client->streams;
    for (size_t i = 0; i < count; i++) {
        size_t name = strlen(headers[i][0]), value = strlen(headers[i][1]);
        if (!streams || name > 120 || value > 120 || used + name + value + 3 > sizeof(block)) {
            client->dead = true;
            return 0;
        }
        used += put_header(block + used, headers[i][0], headers[i][1]);
    }
    streams[client->stream_count++] =
        (struct stream){.answer = {.grpc_status = -1}, .window = client->first_window};
    (void)kelp_http2_frame(client, KELP_HTTP2_HEADERS, KELP_HTTP2_END_HEADERS, id, block, used);
    return id;
}

uint32_t kelp_http2_call(struct kelp_http2 *client, const char *path)
{
    const char *const headers[][2] = {
        {":method", "POST"}, {":scheme", client->tls ? "https" : "http"},
        {":path", path},     {":authority", "kelp.test"},
        {"te", "trailers"},  {"content-type", "application/grpc"}};

    return kelp_http2_headers(client, headers, sizeof(headers) / sizeof(headers[0]));
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* DATA frames as the peer's windows allow. */
static bool send_data(struct kelp_http2 *client, uint32_t id, const uint8_t *bytes, size_t count)
{
    uint64_t until_ms = kelp_clock_ms() + SEND_MS;

    for (size_t at = 0; at < count;) {
        struct stream *stream = find(client, id);
        if (client->dead || !stream || stream->answer.ended || kelp_clock_ms() >= until_ms) {
            return false;
        }
        if (client->window <= 0 || stream->window <= 0 || client->out.count > (1u << 20)) {
            (void)turn(client, until_ms);
            continue;
        }
        size_t piece = least(least(count - at, FRAME_MAX),
                             least((size_t)client->window, (size_t)stream->window));
        client->dead = !kelp_http2_frame(client, DATA, 0, id, bytes + at, piece);
        client->window -= (int64_t)piece;
        stream->window -= (int64_t)piece;
        at += piece;
    }
    return true;
}

bool kelp_http2_send(struct kelp_http2 *client, uint32_t stream, const void *bytes, size_t count,
                     size_t declared)
{
    uint8_t prefix[5] = {0};

    write_u32(prefix + 1, (uint32_t)declared);
    return send_data(client, stream, prefix, sizeof(prefix)) &&
           send_data(client, stream, bytes, count);
}

bool kelp_http2_send_message(struct kelp_http2 *client, uint32_t stream,
                             const ProtobufCMessage *message)
{
    size_t count = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(count + 1);

    if (!bytes) {
        return false;
    }
    (void)protobuf_c_message_pack(message, bytes);
    bool sent = kelp_http2_send(client, stream, bytes, count, count);
    free(bytes);
    return sent;
}

void kelp_http2_finish(struct kelp_http2 *client, uint32_t stream)
{
    (void)kelp_http2_frame(client, DATA, KELP_HTTP2_END_STREAM, stream, NULL, 0);
}

void kelp_http2_await(struct kelp_http2 *client, uint32_t stream, unsigned messages, uint32_t ms)
{
    uint64_t until_ms = kelp_clock_ms() + ms;

    for (;;) {
        struct kelp_http2_answer answer = kelp_http2_answer(client, stream);
        bool over = answer.ended || (messages > 0 && answer.messages >= messages);
        if ((over && client->out.count == 0) || !turn(client, until_ms) ||
            kelp_clock_ms() >= until_ms) {
            return;
        }
    }
}

void kelp_http2_run(struct kelp_http2 *client, uint32_t stream, uint32_t ms)
{
    kelp_http2_await(client, stream, 0, ms);
}

struct kelp_http2_answer kelp_http2_answer(const struct kelp_http2 *client, uint32_t stream)
{
    const struct stream *found = find(client, stream);
    struct kelp_http2_answer answer = {.grpc_status = -1};

    if (found) {
        answer = found->answer;
    }
    answer.ended = answer.ended || client->dead;
    return answer;
}

const uint8_t *kelp_http2_newest(const struct kelp_http2 *client, uint32_t stream,
                                 size_t *ret_count)
{
    const struct stream *found = find(client, stream);

    if (!found || found->answer.messages == 0) {
        return NULL;
    }
    *ret_count = found->newest.count;
    return found->newest.at;
}
