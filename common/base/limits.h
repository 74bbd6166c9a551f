/*
 * Limits of common/: each with its unit and the reason for it. Limits that belong to a data
 * structure's contract stand with it (job.h, plan.h).
 */
#ifndef KELP_COMMON_BASE_LIMITS_H
#define KELP_COMMON_BASE_LIMITS_H

/* Bytes of a job file: ten times what all keys take. */
#define KELP_JOB_FILE_BYTES_MAX (64u << 10)
/* Open brackets in a job file; libyaml's time grows with their square. */
#define KELP_JOB_FILE_NESTING_MAX 64
/* Bytes of a safetensors header: about 100 bytes a tensor, and metadata, in which a model keeps the
 * words of its categories. Other readers take 100 MB. */
#define KELP_SAFETENSORS_HEADER_MAX (64u << 20)
/* Tensors and metadata entries of a safetensors file: as many as a plan may have. */
#define KELP_SAFETENSORS_TENSORS_MAX  16384
#define KELP_SAFETENSORS_METADATA_MAX 4096
/* Bytes of one log line; the rest is cut and marked. PIPE_BUF, so that lines of several processes
 * on one pipe do not mix. */
#define KELP_LOG_LINE_MAX 4096
/* Of a trace (trace.h). Steps: more than anybody looks at. Those before the first one are left out,
 * since they warm caches and buffers. Spans of one thread take 88 bytes each: a ResNet18 of 8 lanes
 * has some 1500 of them in a step. Threads: as many as a shard may have, and those of a worker. */
#define KELP_TRACE_STEPS_MAX   1000
#define KELP_TRACE_STEPS_SKIP  10
#define KELP_TRACE_SPANS_MAX   131072
#define KELP_TRACE_THREADS_MAX 72
/* Partitions that have tracks; as many as there may be. */
#define KELP_TRACE_PARTITIONS_MAX 1024
/* Values of one repeatable command-line option, and positional arguments. */
#define KELP_OPTIONS_REPEAT_MAX 256

/* ---- rpc, per stream and message ---- */

/* Messages that wait in one stream. The pushes of a step are at most 1024 partitions times 18
 * nodes, and once more after a reconnect: a peer with this many unsent messages does not read any
 * more. */
#define KELP_RPC_SEND_QUEUE_MAX 65536
/* Bytes that a message which waits takes besides its own, and each segment of it. */
#define KELP_RPC_QUEUED_BYTES         1024
#define KELP_RPC_QUEUED_SEGMENT_BYTES 192
/* Bytes of one message that we build; gRPC's length prefix has 32 bits, protobuf stops at 2 GiB. */
#define KELP_RPC_MESSAGE_BYTES_MAX (1u << 30)
/* Bytes of status text that crosses the wire; it is a header, and headers are bounded at 8 KiB. */
#define KELP_RPC_TEXT_MAX 512
/* Bytes of a method's path, "/kelp.v1.ParameterServer/Exchange". */
#define KELP_RPC_PATH_MAX 255
/* Milliseconds from a close until the stream is cancelled when the peer does not answer it. */
#define KELP_RPC_CLOSE_MS 1000
/* Milliseconds from the end of gRPC until all memory that was lent to it must be back: as long as
 * it waits itself for what it has open. */
#define KELP_RPC_GIVE_BACK_MS 10000

/* ---- rpc, per server process ---- */

/* Connections that a process takes; more are closed at once. A job has at most 4096 workers, and
 * each of them two while it reconnects. */
#define KELP_RPC_CONNECTIONS_MAX 8192
/* Descriptors that connections from outside leave to files and to connections of our own: this
 * many, and at least this part of what the system allows. */
#define KELP_RPC_DESCRIPTORS_SPARE      64
#define KELP_RPC_DESCRIPTORS_SPARE_PART 8

/* Part of the machine's memory that gRPC may buffer in: rather streams than the process. */
#define KELP_RPC_MEMORY_PART 4

/* ---- rpc, before the hello ---- */

/* Milliseconds from the call until the first message of a stream, or the request of a call, is
 * there: a host on which all processors compute needs seconds. */
#define KELP_RPC_HELLO_MS 5000
/* Bytes that each connection may send before a hello on it was accepted: the TLS handshake takes 6
 * KiB, a hello 200 bytes, and a job's text at most 64 KiB. */
#define KELP_RPC_STRANGER_BYTES (64u << 10)
/* Bytes that all of them may send beyond that, and again in each KELP_RPC_STRANGERS_MS: a
 * coordinator's first message to a shard has the map, and a worker's the plan, of up to 4 MiB. What
 * they hold is free again after KELP_RPC_HELLO_MS; floods of small frames cost time besides. */
#define KELP_RPC_STRANGERS_BYTES (32u << 20)
#define KELP_RPC_STRANGERS_MS    60000
/* Bytes between two messages of a connection whose hello was accepted, in largest messages with
 * their read-ahead: a few streams may each have one in flight. */
#define KELP_RPC_UNHEARD_MESSAGES 4

/* ---- rpc, per connection ---- */

/* Streams that one connection may have open; a Kelp process uses two or three. Calls beyond it wait
 * with the client. */
#define KELP_RPC_STREAMS_PER_CONNECTION 64
/* Calls that a connection may begin at once, and milliseconds until it may begin one more. Clients
 * of ours begin 50 a second at most; streams that are reset at once are calls too. */
#define KELP_RPC_CALLS   1000
#define KELP_RPC_CALL_MS 5
/* Bytes of a call's headers, which are gRPC's and at most a status text of ours. */
#define KELP_RPC_METADATA_BYTES 8192
/* Milliseconds until a connection that has not completed the HTTP/2 handshake is closed: garbage on
 * the port, or a port scanner. */
#define KELP_RPC_HANDSHAKE_MS 5000
/*
 * Milliseconds between HTTP/2 pings on a silent connection, and until one that is not answered
 * breaks it (kelp_rpc_loop_keepalive changes them). The net below the owners' heartbeats, for a
 * peer that vanished without a word. Those between workers and coordinator are rarer, where there
 * are many, and reports go to one side. gRPC reads sockets only inside kelp_rpc_loop_run(): a
 * program that computes for longer than the second number without running its loop is cut off, and
 * a worker may compute a lane for seconds.
 */
#define KELP_RPC_KEEPALIVE_MS         1000
#define KELP_RPC_KEEPALIVE_MANY_MS    10000
#define KELP_RPC_KEEPALIVE_TIMEOUT_MS 20000
/* Milliseconds that one attempt to connect may take, so that a host on which all processors compute
 * is not taken for dead; a refusal is noticed at once anyway. gRPC calls it the minimal back-off
 * and also waits that long between attempts, therefore whoever opens a stream starts another
 * attempt, at most every KELP_RPC_RECONNECT_MS: a restarted shard is found in well under 0.2 s. */
#define KELP_RPC_CONNECT_MS   1000
#define KELP_RPC_RECONNECT_MS 50
/* Bytes of an HTTP/2 frame, of read-ahead for a stream, and of one socket read. Larger frames and
 * reads mean fewer system calls for each 4 MiB piece; beyond these nothing is gained. */
#define KELP_RPC_FRAME_BYTES     (1 << 20)
#define KELP_RPC_LOOKAHEAD_BYTES (8 << 20)
#define KELP_RPC_READ_BYTES      (1 << 20)
#define KELP_RPC_READ_BYTES_MAX  (4 << 20)
/* Bytes of one socket read at a server of thousands of connections, which keeps that memory for
 * each of them; gRPC takes more where more is there. */
#define KELP_RPC_SPARING_READ_BYTES (8 << 10)
/* Bytes that a local socket of a process takes to be sent before its writer has to wait, where
 * messages of more than KELP_RPC_LOCAL_LARGE_BYTES may pass. The system's default of 208 KiB is a
 * wait and two wake-ups for each 100 KiB; beyond this what waits leaves the caches. No more than
 * net.core.wmem_max has an effect. */
#define KELP_RPC_LOCAL_SEND_BYTES  (1 << 20)
#define KELP_RPC_LOCAL_LARGE_BYTES (4u << 20)
/* Milliseconds between two pings of a client; so many that come sooner, with nothing sent to it in
 * between, end its connection. Ours wait for each answer. */
#define KELP_RPC_PING_APART_MS 50
#define KELP_RPC_PING_STRIKES  100
/* New calls that a server has asked gRPC for at one time; more only queue inside gRPC. */
#define KELP_RPC_ACCEPTS 4

/* ---- shared memory ---- */

/* Bytes of one area that another process may pass: the flat vector of the largest model. */
#define KELP_SHM_AREA_BYTES_MAX (UINT64_C(64) << 30)
/* Bytes of answers that one reader of a server may have in areas, besides one answer: enough pieces
 * to be always busy. More wait. */
#define KELP_RPC_SHARED_LENT_MAX (32u << 20)

#endif
