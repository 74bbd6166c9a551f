/*
 * An rpc server in a process of its own, for tests in which it dies, stops, or runs out of
 * something; and simple methods for it. On an error these functions fail the running test.
 */
#ifndef KELP_TESTS_LIB_RPC_PROCESS_H
#define KELP_TESTS_LIB_RPC_PROCESS_H

#include <sys/types.h>

#include "common/rpc/rpc.h"

struct kelp_test_rpc_process {
    pid_t pid; /* 0: there is none, or it has ended */
    uint16_t port;
    int go, report; /* pipes to it and from it */
};

/* Fork the server before gRPC has threads in this process; it then waits. options: without an
 * address, borrowed. prepare runs in it first; may be NULL. */
void kelp_test_rpc_fork(struct kelp_test_rpc_process *process,
                        const struct kelp_rpc_server_options *options, void (*prepare)(void));
/* Start serving at that address. */
void kelp_test_rpc_serve(struct kelp_test_rpc_process *process, const char *address);
/* "127.0.0.1:PORT". */
#define KELP_TEST_RPC_ADDRESS_BYTES 32
void kelp_test_rpc_address(const struct kelp_test_rpc_process *process, const char *host,
                           char address[KELP_TEST_RPC_ADDRESS_BYTES]);
/* Connect to its loopback port without sending anything. */
int kelp_test_rpc_connect(const struct kelp_test_rpc_process *process);
/* Kill the server if it runs. */
void kelp_test_rpc_end(struct kelp_test_rpc_process *process);

/* ---- methods and events ---- */

/* A method that returns its request. */
void kelp_test_rpc_echo(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                        void *server_user);
/* A stream method with the events that server_user points to. */
const struct kelp_rpc_stream_events *kelp_test_rpc_accept(struct kelp_rpc_stream *stream,
                                                          void *server_user, void **ret_user);
void kelp_test_rpc_ignore_closed(struct kelp_rpc_stream *stream, kelp_status status,
                                 const char *text, void *user);

#endif
