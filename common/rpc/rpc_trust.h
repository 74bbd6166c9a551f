/*
 * How many bytes a connection from outside may send before it is trusted, and between its messages
 * afterwards; and how many calls it may begin. gRPC 1.51 buffers a message of any announced length,
 * up to 4 GiB, before it looks at its own limit, on each stream; so the bytes are counted where
 * they are read (rpc_sockets.c).
 *
 *     accepted --hello accepted--> trusted
 *
 * A stranger has KELP_RPC_STRANGER_BYTES of its own, and then what is left of the bytes that all
 * strangers share; whoever finds none left is cut off. The deadline of the hello ends streams, and
 * with them what they hold, so that the shared bytes can grow again, but more slowly.
 *
 * Connections are known by their descriptor, and by the system's cookie of the socket when the
 * descriptor has become another one's. Unix sockets are not watched: their peers are this user.
 *
 * Threads: any.
 */
#ifndef KELP_COMMON_RPC_RPC_TRUST_H
#define KELP_COMMON_RPC_RPC_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define KELP__RPC_ALL SIZE_MAX

/* A connection as its streams know it. */
struct kelp__rpc_connection {
    int fd; /* -1: it is not watched */
    uint64_t cookie;
};

/* Connections to the server at this port are watched; message_bytes_max: its largest message. */
void kelp__rpc_trust_add_server(uint16_t port, size_t message_bytes_max);
void kelp__rpc_trust_remove_server(uint16_t port);

/* A connection was accepted. */
void kelp__rpc_trust_begin(int fd, const struct sockaddr *peer);
/* Bytes that may be read from it now: KELP__RPC_ALL without a bound, 0: cut it off. */
size_t kelp__rpc_trust_room(int fd);
void kelp__rpc_trust_read(int fd, size_t bytes);

/* A call began on it; too many at a time end the connection: streams that are reset at once. */
void kelp__rpc_trust_called(const struct kelp__rpc_connection *connection);
/* peer: as gRPC names it, "ipv4:127.0.0.1:4711". */
struct kelp__rpc_connection kelp__rpc_trust_find(const char *peer);
/* A hello was accepted. */
void kelp__rpc_trust_grant(const struct kelp__rpc_connection *connection);
/* A message came to its owner. */
void kelp__rpc_trust_heard(const struct kelp__rpc_connection *connection);

#endif
