/* Servers that also accept streams through shared memory. */
#include <stdlib.h>
#include <unistd.h>

#include "common/rpc/rpc_shared_stream_internal.h"
#include "common/shm/shm_socket.h"

struct kelp__rpc_shared_listener {
    struct kelp__rpc_source source;
    struct kelp_rpc_server *server;
    struct kelp_rpc_loop *loop;
    size_t message_bytes_max;
    bool hello; /* the first message must come soon */
    atomic_bool closing;
    char path[KELP_RPC_ADDRESS_MAX + 1];
};

static void welcome(struct kelp__rpc_shared_listener *listener, int socket)
{
    struct kelp_rpc_shared_stream *shared = NULL;

    if (kelp__rpc_shared_stream_create(listener->loop, socket, listener->message_bytes_max,
                                       "a process of this host, through shared memory", &shared,
                                       NULL) != KELP_OK) {
        return; /* the peer sees the end */
    }
    kelp__rpc_server_hold(listener->server);
    shared->stream.server = listener->server;
    shared->stream.queue.queues = kelp__rpc_server_queues(listener->server);
    shared->hello = listener->hello;
    if (kelp__rpc_shared_stream_begin(shared, NULL, NULL, KELP_RPC_HELLO_MS) != KELP_OK) {
        kelp__rpc_shared_stream_drop(shared); /* the peer sees the end */
    }
}

static void listener_free(struct kelp__rpc_shared_listener *listener)
{
    (void)unlink(listener->path);
    (void)close(listener->source.fd);
    kelp__rpc_server_unhold(listener->server);
    free(listener);
}

static enum kelp__rpc_ran run_listener(struct kelp__rpc_source *source)
{
    struct kelp__rpc_shared_listener *listener =
        KELP_CONTAINER_OF(source, struct kelp__rpc_shared_listener, source);
    int socket = -1;

    if (atomic_load(&listener->closing)) {
        kelp__rpc_source_remove(atomic_load(&listener->loop->shared), source);
        listener_free(listener);
        return KELP__RPC_GONE;
    }
    kelp_status status = kelp_shm_accept(source->fd, &socket, NULL);
    if (status == KELP_OK) {
        welcome(listener, socket);
    }
    return status == KELP_OK || status == KELP_ERR_DENIED ? KELP__RPC_RAN : KELP__RPC_TIRED;
}

kelp_status kelp__rpc_shared_listen(struct kelp_rpc_loop *loop, struct kelp_rpc_server *server,
                                    const char *address,
                                    const struct kelp_rpc_server_options *options,
                                    struct kelp__rpc_shared_listener **ret_listener,
                                    struct kelp_error *reterr)
{
    struct kelp__rpc_shared_listener *listener = calloc(1, sizeof(*listener));

    if (!listener) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a server");
    }
    listener->loop = loop;
    listener->server = server;
    listener->message_bytes_max = options->message_bytes_max;
    listener->hello = options->hello;
    listener->source = (struct kelp__rpc_source){.fd = -1, .run = run_listener};
    kelp_status status =
        kelp__rpc_shared_path(loop, address, listener->path)
            ? kelp__rpc_shared_begin(loop, reterr)
            : kelp_fail(reterr, KELP_ERR_INVALID, "%s %s", address,
                        loop->shm_folder || kelp__rpc_address_is_local(address)
                            ? "has a socket beside it whose path is longer than 107 bytes"
                            : "is a port, and there is no folder to meet in (--shm-folder)");
    if (status == KELP_OK) {
        status = kelp_shm_listen(listener->path, &listener->source.fd, reterr);
    }
    if (status != KELP_OK) {
        free(listener);
        return status;
    }
    kelp__rpc_server_hold(server);
    if (kelp__rpc_source_add(atomic_load(&loop->shared), &listener->source) != KELP_OK) {
        listener_free(listener);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a server");
    }
    *ret_listener = listener;
    return KELP_OK;
}

void kelp__rpc_shared_unlisten(struct kelp__rpc_shared_listener *listener)
{
    if (!listener) {
        return;
    }
    struct kelp__rpc_shared *shared = atomic_load(&listener->loop->shared);
    struct kelp_rpc_server *server = listener->server;
    atomic_store(&listener->closing, true); /* it ends on the loop, like its streams */
    kelp__rpc_shared_cancel(shared, server);
}
