/* Shared by the files of the scripted cluster only. */
#ifndef KELP_TESTS_LIB_CLUSTER_COORDINATOR_PEERS_INTERNAL_H
#define KELP_TESTS_LIB_CLUSTER_COORDINATOR_PEERS_INTERNAL_H

#include "tests/lib/cluster/coordinator_peers.h"

#define CALL_MS     5000
#define MESSAGE     (4u << 20)
#define JOB         "demo"
#define JOIN        "/kelp.v1.Coordinator/Join"
#define STATUS      "/kelp.v1.Coordinator/Status"
#define CHECKPOINT  "/kelp.v1.Coordinator/Checkpoint"
#define CONTROL     "/kelp.v1.ParameterServer/Control"
#define PARTITIONS  16   /* of the plan below */
#define TURN_EVENTS 1000 /* loop events between two checks of a test's condition */

uint64_t peer_next_incarnation(void);
void peer_fill_hello(Kelp__V1__Hello *hello, const char *job, uint64_t digest, const char *id,
                     uint64_t incarnation);
void peer_send_message(struct kelp_rpc_stream *stream, const ProtobufCMessage *fields);
void *peer_decode(struct kelp_rpc_message *message, const ProtobufCMessageDescriptor *descriptor);

#endif
