/* All limits of the parameter server, each with its unit and its reason. */
#ifndef KELP_PS_CORE_LIMITS_H
#define KELP_PS_CORE_LIMITS_H

/* Pulls that wait on one partition: two for each of 4096 workers, one per mode that can wait. */
#define KELP_PS_WAITING_MAX 8192

/* Weight buffers of one partition: the current and the older weights, and buffers that a snapshot
 * or slow streams still hold. Once all are in use, weights are copied into messages instead of
 * lent. */
#define KELP_PS_WEIGHT_BUFFERS_MIN 3
#define KELP_PS_WEIGHT_BUFFERS_MAX 8

/* Bytes of one message without its payload: for each of 1024 partitions a push and a pull of about
 * 200 bytes, or a part of up to KELP_DECISION_SHARE_VALUES_MAX numbers, with room to spare. */
#define KELP_PS_FIELDS_BYTES_MAX (2u << 20)

/* Bytes of a command's fields on the control stream: spec, plan (1 MiB at most each) and the map.
 */
#define KELP_PS_COMMAND_BYTES_MAX (4u << 20)

/* Bytes of one partition's slice; the plan cuts the flat vector into slices of about 4 MiB. A job
 * whose transport.piece_bytes is larger may have larger slices. */
#define KELP_PS_PARTITION_BYTES_MAX (4u << 20)

/* Bytes queued for workers that do not read, in all streams together, on top of twice the model.
 * Messages borrow weights, and copy them once KELP_PS_WEIGHT_BUFFERS_MAX buffers are borrowed. */
#define KELP_PS_QUEUE_BYTES_MAX (64u << 20)

/* Control streams at once: the leader's, and those of former leaders that have not noticed yet. */
#define KELP_PS_CONTROL_STREAMS_MAX 8

/* Entries of one partition for which late duplicates are still compared, at 40 bytes per node. A
 * duplicate of an older entry, from a worker that was suspended for longer, is not compared. */
#define KELP_PS_EVIDENCE_ENTRIES 64
/* Nodes of an entry whose authors a primary tells its followers, about 12 bytes each: enough for 64
 * workers with one node each, and the sums of these nodes. */
#define KELP_PS_EVIDENCE_TOLD_MAX 128
/* Duplicates that one partition keeps until their sum can be compared with what it accepted: enough
 * for as many workers, and little next to the gradients that it may have to collect for one step.
 */
#define KELP_PS_EVIDENCE_HELD_MAX 32

/* Roots of one partition in flight to a joiner that has not caught up. Training may take this many
 * steps while a copy of 4 MiB is sent, and the joiner holds no more gradients than these. */
#define KELP_PS_FORWARDS_QUEUED_MAX 4

/* Log lines about leaders that come and go before the log allows only one per second. */
#define KELP_PS_LEADER_LINES 20

/* Names of workers that a shard remembers, to report conflicts and work; and how many of them may
 * belong to one host: as many workers as a job has. */
#define KELP_PS_AUTHORS_MAX     4096
#define KELP_PS_AUTHORS_OF_HOST 1024
/* Workers in one report of work. */
#define KELP_PS_REPORT_WORK_MAX 256

/* Milliseconds between two reports of records and progress. */
#define KELP_PS_REPORT_MS 50

/* Milliseconds between checks for late entries. An entry that begins now is not late before SOON,
 * so a message need not bring a check forward that comes earlier. MIN limits how often it checks.
 */
#define KELP_PS_TICK_MIN_MS  3
#define KELP_PS_TICK_SOON_MS 12
#define KELP_PS_TICK_MAX_MS  1000

/* Milliseconds between checks of the links to other shards, which reopen broken links and continue
 * copies. A link on which nothing was sent for KELP_PS_REPLICA_SILENT_MS sends an empty message. */
#define KELP_PS_REPLICA_TICK_MS   50
#define KELP_PS_REPLICA_SILENT_MS 100
/* A link is closed, with its connection, once its other end has been silent for failure.detect and
 * for at least this time, five intervals of empty messages. After a network split TCP alone would
 * wait for seconds. */
#define KELP_PS_LINK_SILENT_MIN_MS (5 * KELP_PS_REPLICA_SILENT_MS)
/* Milliseconds until a broken link is opened again: TICK_MS at first, doubled with each attempt up
 * to this. A link that was up for STEADY_MS is opened again at once. */
#define KELP_PS_LINK_RETRY_MAX_MS 500
#define KELP_PS_LINK_STEADY_MS    1000

/* Shards at the other ends of our streams: how many are remembered, after how long a silence they
 * are reported, and after how long they are forgotten. */
#define KELP_PS_PEERS_MAX      1024
#define KELP_PS_PEER_SILENT_MS 300
#define KELP_PS_PEER_FORGET_MS 10000
/* Training steps between two digests of a partition's weights, which its replicas compare. A hash
 * costs a fraction of an update; partitions take turns. In the first steps digests come after 1, 2,
 * 4, … steps, because a process that computes differently does so from the beginning. */
#define KELP_PS_COMPARE_STEPS 64
/* Bytes of roots that are collected for one follower before they are sent: small roots of many
 * partitions share one message, and large roots are sent before they are applied here. */
#define KELP_PS_FORWARD_BYTES (128u << 10)
/* Bytes of a piece of a copy, unless transport.piece is smaller; and bytes of pieces that are sent
 * to a follower before it confirms them, so that a root never waits behind more than these. */
#define KELP_PS_COPY_PIECE_BYTES     (512u << 10)
#define KELP_PS_COPY_UNDER_WAY_BYTES (2u << 20)
/* Records that are sent with a copy of partition 0; the leader has had all older ones for long. */
#define KELP_PS_COPY_RECORDS_MAX 1024

/* Records kept for a later leader, about 200 bytes each, and records in one report. */
#define KELP_PS_RECORDS_MAX        (1u << 20)
#define KELP_PS_REPORT_RECORDS_MAX 256

/* Weight buffers of at least MIN bytes get a shared-memory area of their own; smaller buffers share
 * areas of CHUNK bytes. */
#define KELP_PS_AREA_BYTES_MIN   (64u << 10)
#define KELP_PS_AREA_CHUNK_BYTES (1u << 20)

/* Bytes of one sorted file of a snapshot. Large files mean few syncs; the limit keeps a file's
 * index (40 bytes per 256 KiB) within the part at its end that is digested. */
#define KELP_PS_SNAPSHOT_FILE_BYTES (64u << 20)
/* Bytes of the list of a snapshot's files: 80 per file, enough for 1 TiB in files of 64 MiB. */
#define KELP_PS_SNAPSHOT_CONTENTS_MAX (2u << 20)

/* Niceness of the thread that writes snapshots. While training uses all processors, the thread gets
 * only a fraction of one: a snapshot may take seconds longer, but it does not delay a step. */
#define KELP_PS_SNAPSHOT_NICE 10

/* Milliseconds between checks for missing storage. They are needed because a network file system
 * does not report that a folder has appeared. */
#define KELP_PS_STORAGE_LOOK_MS 200

/* Largest value of --threads. */
#define KELP_PS_THREADS_MAX 64

#endif
