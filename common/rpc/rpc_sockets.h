/*
 * What stands between libgrpc and the system: which connections a server takes, and how much of
 * them it reads.
 *
 * libgrpc 1.51 stops to listen for good when accept4() fails (CVE-2023-4785). It has no bound on
 * connections, nor on what a message holds before it is whole. So this room defines accept4() and
 * recvmsg() for the process: libgrpc calls ours, and ours the C library's. Without a server they
 * only pass calls on.
 */
#ifndef KELP_COMMON_RPC_RPC_SOCKETS_H
#define KELP_COMMON_RPC_RPC_SOCKETS_H

/* From now on connections are bounded: a server opens. Counts; each needs its close. */
void kelp__rpc_sockets_open(void);
void kelp__rpc_sockets_close(void);

#endif
