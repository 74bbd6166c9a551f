/*
 * An rpc server in a process of its own, for tests in which it dies, stops, or is short of
 * something; and the methods that need no thought. Everything here fails the running test when it
 * cannot do its work.
 */
#ifndef KELP_TESTS_LIB_RPC_PROCESS_H
#define KELP_TESTS_LIB_RPC_PROCESS_H

#include <sys/types.h>

#include "common/rpc/rpc.h"

struct kelp_test_rpc_process {
    pid_t pid; /* 0: none, or it was ended */
    uint16_t port;
    int go, report; /* pipes to it and from it */
};

/* Fork it, before gRPC has threads here; it waits. options: without an address, borrowed. prepare
 * runs in it first; NULL: nothing does. */
void kelp_test_rpc_fork(struct kelp_test_rpc_process *process,
                        const struct kelp_rpc_server_options *options, void (*prepare)(void));
/* It serves at that address from now on. */
void kelp_test_rpc_serve(struct kelp_test_rpc_process *process, const char *address);
/* "127.0.0.1:PORT". */
#define KELP_TEST_RPC_ADDRESS_BYTES 32
void kelp_test_rpc_address(const struct kelp_test_rpc_process *process, const char *host,
                           char address[KELP_TEST_RPC_ADDRESS_BYTES]);
/* A connection to its port at loopback, over which nothing was said. */
int kelp_test_rpc_connect(const struct kelp_test_rpc_process *process);
/* Kill it, if it is there. */
void kelp_test_rpc_end(struct kelp_test_rpc_process *process);

/* ---- methods and events ---- */

/* Answers with what was asked. */
void kelp_test_rpc_echo(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                        void *server_user);
/* A stream method whose events are what the server's user points to. */
const struct kelp_rpc_stream_events *kelp_test_rpc_accept(struct kelp_rpc_stream *stream,
                                                          void *server_user, void **ret_user);
void kelp_test_rpc_ignore_closed(struct kelp_rpc_stream *stream, kelp_status status,
                                 const char *text, void *user);

#endif
