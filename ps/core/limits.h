/* All limits of the parameter server, each with its unit and its reason. */
#ifndef KELP_PS_CORE_LIMITS_H
#define KELP_PS_CORE_LIMITS_H

/* Pulls waiting on one partition: two for each stream (one per mode that can wait) of 4096 workers.
 */
#define KELP_PS_WAITING_MAX 8192

/* Weight buffers of one partition: current, older, and those that a snapshot or slow streams hold.
 * When they are used up, weights are copied into messages instead of lent. */
#define KELP_PS_WEIGHT_BUFFERS_MIN 3
#define KELP_PS_WEIGHT_BUFFERS_MAX 8

/* Bytes of everything but the payload in one message: 1024 partitions, a push and a pull of each at
 * about 200 bytes, or a part of up to KELP_DECISION_SHARE_VALUES_MAX numbers, with room. */
#define KELP_PS_FIELDS_BYTES_MAX (2u << 20)

/* Bytes of a command's fields on the control stream: spec, plan (1 MiB at most each) and the map.
 */
#define KELP_PS_COMMAND_BYTES_MAX (4u << 20)

/* Bytes of one partition's slice; the plan cuts the flat vector into slices of about 4 MiB. A job
 * whose transport.piece_bytes is larger may have larger slices. */
#define KELP_PS_PARTITION_BYTES_MAX (4u << 20)

/* Bytes that wait for workers who do not read, in all streams together, besides twice the model:
 * weights are lent to messages, and copied once KELP_PS_WEIGHT_BUFFERS_MAX are lent. */
#define KELP_PS_QUEUE_BYTES_MAX (64u << 20)

/* Control streams at once: the leader, and earlier leaders that have not noticed yet. */
#define KELP_PS_CONTROL_STREAMS_MAX 8

/* Entries of one partition whose duplicates are compared: a worker that was suspended for longer is
 * not. 40 bytes for each node of each. */
#define KELP_PS_EVIDENCE_ENTRIES 64
/* Nodes of an entry of which a primary tells its followers who pushed them, about 12 bytes each: as
 * many workers as push one node each, and what these add up to. */
#define KELP_PS_EVIDENCE_TOLD_MAX 128
/* Contents of duplicates that one partition keeps until they add up to what was taken: enough for
 * as many workers, and small beside what it may have to collect for one step. */
#define KELP_PS_EVIDENCE_HELD_MAX 32

/* Roots of one partition in flight to a joiner that has not caught up: so many steps may go by
 * while a copy of 4 MiB travels, and the joiner holds no more than that many gradients. */
#define KELP_PS_FORWARDS_QUEUED_MAX 4

/* Lines that the log takes at once of leaders that come and go; then it is one a second. */
#define KELP_PS_LEADER_LINES 20

/* Names of workers that a shard remembers, to say who differs and who works; those that one host
 * may have of them: as many workers as a job has. */
#define KELP_PS_AUTHORS_MAX     4096
#define KELP_PS_AUTHORS_OF_HOST 1024
/* Workers in one report of who has shown work. */
#define KELP_PS_REPORT_WORK_MAX 256

/* Milliseconds between two reports of records and progress. */
#define KELP_PS_REPORT_MS 50

/* Milliseconds until the next look at what is late. After SOON, the least time in which an entry
 * that begins now can be late, no message needs to bring it forward; MIN bounds the work. */
#define KELP_PS_TICK_MIN_MS  3
#define KELP_PS_TICK_SOON_MS 12
#define KELP_PS_TICK_MAX_MS  1000

/* Milliseconds between two looks at links to other shards: broken ones are opened again, copies go
 * on. A link that sent nothing for KELP_PS_REPLICA_SILENT_MS shows that it lives. */
#define KELP_PS_REPLICA_TICK_MS   50
#define KELP_PS_REPLICA_SILENT_MS 100
/* A link whose other end says nothing for failure.detect, and at least for this, is given up with
 * its connection: after a split TCP would wait for seconds. Each question gets five times. */
#define KELP_PS_LINK_SILENT_MIN_MS (5 * KELP_PS_REPLICA_SILENT_MS)
/* Milliseconds until a link is opened again, doubled with each attempt: TICK_MS at first, this at
 * most. One that was up for STEADY_MS is opened at once. */
#define KELP_PS_LINK_RETRY_MAX_MS 500
#define KELP_PS_LINK_STEADY_MS    1000

/* Shards at the other ends of our streams: those that are silent for so long are reported, and
 * those that were not heard for so long are forgotten. */
#define KELP_PS_PEERS_MAX      1024
#define KELP_PS_PEER_SILENT_MS 300
#define KELP_PS_PEER_FORGET_MS 10000
/* Training steps between two digests of a partition's weights, which its replicas compare; a hash
 * of them takes a fraction of an update. Partitions take turns. Before so many steps it is after 1,
 * 2, 4, …: a process that computes otherwise does so from the beginning. */
#define KELP_PS_COMPARE_STEPS 64
/* Bytes of roots that a turn collects for one follower before they leave: small ones of many
 * partitions go in one message, and large ones go before they are applied here. */
#define KELP_PS_FORWARD_BYTES (128u << 10)
/* Bytes of a piece of a copy, unless transport.piece is smaller; and bytes of pieces that a
 * follower has not taken yet: a root waits behind no more than that. */
#define KELP_PS_COPY_PIECE_BYTES     (512u << 10)
#define KELP_PS_COPY_UNDER_WAY_BYTES (2u << 20)
/* Records that go with a copy of partition 0: the leader has all older ones since long. */
#define KELP_PS_COPY_RECORDS_MAX 1024

/* Records kept for a leader that comes later (about 200 bytes each), and in one report. */
#define KELP_PS_RECORDS_MAX        (1u << 20)
#define KELP_PS_REPORT_RECORDS_MAX 256

/* Buffers of weights from this size on have an area of shared memory each; smaller ones share areas
 * of the other size. */
#define KELP_PS_AREA_BYTES_MIN   (64u << 10)
#define KELP_PS_AREA_CHUNK_BYTES (1u << 20)

/* Bytes of one sorted file of a snapshot: large, so that few files have to be synced; small enough
 * that its index (40 bytes for each 256 KiB) lies within the digested end. */
#define KELP_PS_SNAPSHOT_FILE_BYTES (64u << 20)
/* Bytes of the list of a snapshot's files: 80 for each, 1 TiB of state in files of 64 MiB. */
#define KELP_PS_SNAPSHOT_CONTENTS_MAX (2u << 20)

/* Niceness of the thread that writes snapshots: a fraction of a processor while training uses all
 * of them, so that a snapshot is seconds late rather than a step. */
#define KELP_PS_SNAPSHOT_NICE 10

/* Milliseconds between two looks for storage that is not there yet: a folder on another host's file
 * system announces nothing. */
#define KELP_PS_STORAGE_LOOK_MS 200

/* Loop threads of --threads. */
#define KELP_PS_THREADS_MAX 64

#endif
