/*
 * What stands between libgrpc and the system: which connections a server takes, how much of them it
 * reads, and how much local sockets take to be sent.
 *
 * libgrpc 1.51 stops to listen for good when accept4() fails (CVE-2023-4785). It has no bound on
 * connections, nor on what a message holds before it is whole. So this room defines accept4() and
 * recvmsg() for the process: libgrpc calls ours, and ours the C library's. Without a server they
 * only pass calls on. So does connect(), unless local connections carry large messages: libgrpc has
 * no argument for the size of a socket's send buffer.
 */
#ifndef KELP_COMMON_RPC_RPC_SOCKETS_H
#define KELP_COMMON_RPC_RPC_SOCKETS_H

#include <stddef.h>

/* From now on connections are bounded: a server opens. Counts; each needs its close. */
void kelp__rpc_sockets_open(void);
void kelp__rpc_sockets_close(void);

/* Messages of so many bytes may pass through local sockets. If they are large, those that connect
 * or are taken from now on, for the life of the process, get a send buffer of
 * KELP_RPC_LOCAL_SEND_BYTES. */
void kelp__rpc_sockets_local(size_t message_bytes_max);

#endif
