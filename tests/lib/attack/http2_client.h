/*
 * An HTTP/2 client over a plain socket or TLS, for tests that attack a server: it sends what the
 * test wants, well-formed or not, presents any certificate or none, and does not verify the server.
 * It knows as much of gRPC as a call needs. Nothing here fails a test: the peer's behaviour is the
 * result.
 *
 * Threads: one client, one thread. All work is done inside these functions.
 */
#ifndef KELP_TESTS_LIB_ATTACK_HTTP2_CLIENT_H
#define KELP_TESTS_LIB_ATTACK_HTTP2_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#define KELP_HTTP2_HEADERS      1u
#define KELP_HTTP2_RST_STREAM   3u
#define KELP_HTTP2_PING         6u
#define KELP_HTTP2_CONTINUATION 9u
#define KELP_HTTP2_END_STREAM   0x1u
#define KELP_HTTP2_END_HEADERS  0x4u

struct kelp_http2;

struct kelp_http2_target {
    const char *address; /* "127.0.0.1:41234" */
    bool tls;
    const char *certs; /* folder with cert.pem and key.pem to present; NULL: none */
    bool reads_little; /* grants no window for answers, on any stream */
};

/* What has come on a stream so far. */
struct kelp_http2_answer {
    bool ended;      /* by the peer, or with the connection */
    int grpc_status; /* -1: none has come */
    int kelp_status; /* of the trailer; 0: none has come */
    unsigned messages;
};

/* Connect, and send the connection preface. NULL: out of memory. If the peer refuses, the client
 * is not alive. */
struct kelp_http2 *kelp_http2_open(const struct kelp_http2_target *target);
void kelp_http2_close(struct kelp_http2 *client); /* NULL does nothing */
bool kelp_http2_alive(const struct kelp_http2 *client);

/* Send the headers of a call. Returns the number of its stream. */
uint32_t kelp_http2_call(struct kelp_http2 *client, const char *path);
/* The same with any headers of at most 120 bytes each, all in one frame. */
uint32_t kelp_http2_headers(struct kelp_http2 *client, const char *const headers[][2],
                            size_t count);
/* Send a message of `declared` bytes, of which the first `count` follow. Waits for the peer's
 * window, up to 5 s; false: it could not be sent. */
bool kelp_http2_send(struct kelp_http2 *client, uint32_t stream, const void *bytes, size_t count,
                     size_t declared);
bool kelp_http2_send_message(struct kelp_http2 *client, uint32_t stream,
                             const ProtobufCMessage *message);
void kelp_http2_finish(struct kelp_http2 *client, uint32_t stream);
/* Send any frame unchanged. */
bool kelp_http2_frame(struct kelp_http2 *client, uint8_t type, uint8_t flags, uint32_t stream,
                      const void *bytes, size_t count);

/* Send and receive for so long, or until the stream has ended (0: no stream). */
void kelp_http2_run(struct kelp_http2 *client, uint32_t stream, uint32_t ms);
/* The same until so many messages have come, or the stream has ended. */
void kelp_http2_await(struct kelp_http2 *client, uint32_t stream, unsigned messages, uint32_t ms);
struct kelp_http2_answer kelp_http2_answer(const struct kelp_http2 *client, uint32_t stream);
/* The newest complete message of the stream, borrowed until the next call; NULL: none. */
const uint8_t *kelp_http2_newest(const struct kelp_http2 *client, uint32_t stream,
                                 size_t *ret_count);

#endif
