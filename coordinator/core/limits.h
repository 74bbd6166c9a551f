/* All limits of the coordinator, each with its unit and reason. */
#ifndef KELP_COORDINATOR_CORE_LIMITS_H
#define KELP_COORDINATOR_CORE_LIMITS_H

#define KELP_COORDINATOR_ID_MAX       63   /* bytes of a worker's or shard's id */
#define KELP_COORDINATOR_ADDRESS_MAX  255  /* bytes, host:port */
#define KELP_COORDINATOR_PROGRAM_MAX  63   /* bytes of a program's name in a reason */
#define KELP_COORDINATOR_REASON_MAX   511  /* bytes of a reason, for people */
#define KELP_COORDINATOR_WAITING_MAX  191  /* bytes of the text on what a shard waits for */
#define KELP_COORDINATOR_TROUBLE_MAX  255  /* bytes that are kept of a worker's trouble */
#define KELP_COORDINATOR_WORKERS_MAX  4096 /* at most 1024 get lanes; the others are spares */
#define KELP_COORDINATOR_GONE_MAX     256  /* workers that left and are still shown in Status */
#define KELP_COORDINATOR_SHARDS_MAX   1024 /* one partition each, KELP_PARTITIONS_MAX */
#define KELP_COORDINATOR_SESSIONS_MAX 8192 /* worker streams, with those not identified yet */
/* Log lines that peers at one host may cause (common/log/log_gate.h) before the log allows only one
 * per second: a thousand workers that join and leave; requests for checkpoints. */
#define KELP_COORDINATOR_PEER_LINES    2048
#define KELP_COORDINATOR_REQUEST_LINES 20
#define KELP_COORDINATOR_TASKS_MAX     256 /* blocking calls that wait for the helper thread */
#define KELP_COORDINATOR_QUEUED_MAX    64  /* messages queued for a stream before it is not read */

#define KELP_COORDINATOR_CHECKPOINTS_MAX                                                           \
    4096 /* committed at a time; retention keeps far fewer, KELP_CHECKPOINT_KEEP_MAX */
#define KELP_COORDINATOR_AGAIN_MAX                                                                 \
    64 /* newest checkpoints whose manifest.json a leader rewrites                                 \
        */
#define KELP_COORDINATOR_DIGESTS_MAX 1024 /* digests of checkpoints, remembered for comparison */

#define KELP_COORDINATOR_RECORDS_MAX  65536 /* records that wait while the disk is full */
#define KELP_COORDINATOR_SYNC_RECORDS 256   /* records in the file that are not synced yet */
#define KELP_COORDINATOR_APPEND_MS    1000  /* before a full disk is tried again */
#define KELP_COORDINATOR_EVENTS_MAX   64 /* events that wait for the disk; more are only counted */
#define KELP_COORDINATOR_EVENTS_BYTES                                                              \
    (16u << 20)                         /* of events.jsonl, which then replaces events.jsonl.1 */
#define KELP_COORDINATOR_FILE_MAX  256  /* records that are given to the disk at a time */
#define KELP_COORDINATOR_FILING_MS 2000 /* how long a commit waits for a disk that hangs */
#define KELP_COORDINATOR_CUT_OFF_MS                                                                \
    8000 /* silence of all shards though their leases live; longer than a lease */
#define KELP_COORDINATOR_HANG_MS                                                                   \
    6000 /* silence of a shard though its lease lives, while no step is made; longer than a lease  \
          */
#define KELP_COORDINATOR_MOVE_MS                                                                   \
    50 /* between two changes that move partitions: lets steps pass                                \
        */
#define KELP_COORDINATOR_GATHER_MS 500 /* ... while some joiners have not caught up yet */
/* Partitions that have a joiner at the same time: of all primaries, and of each one. A primary
 * needs more memory for a partition that has a joiner. */
#define KELP_COORDINATOR_JOINERS_MAX  64
#define KELP_COORDINATOR_JOINERS_EACH 16
#define KELP_COORDINATOR_LEADS_MAX    8  /* partitions that get another primary at a time */
#define KELP_COORDINATOR_DRAINS_MAX   64 /* processes that `kelp drain` names at a time */
#define KELP_COORDINATOR_DRAIN_MS                                                                  \
    60000 /* absence after which a process that is to be drained is forgotten */
#define KELP_COORDINATOR_DOUBT_MS     500  /* how long a peer's report about a shard counts */
#define KELP_COORDINATOR_DROP_MS      50   /* until an unheard joiner is dropped: two reports */
#define KELP_COORDINATOR_DOUBTS_MAX   256  /* pairs of primary and follower that are remembered */
#define KELP_COORDINATOR_AVOID_MS     2000 /* before such a pair is tried again; doubled */
#define KELP_COORDINATOR_AVOID_MAX_MS 60000
#define KELP_COORDINATOR_TELL_MS      300 /* until workers get a map that a primary has not taken */
#define KELP_COORDINATOR_HELLO_MS     5000 /* until a worker's stream has sent its hello */

/* A worker with lanes that shows no work for this time and this many entries loses its seat
 * (membership_seats.c). */
#define KELP_COORDINATOR_IDLE_MS      3000
#define KELP_COORDINATOR_IDLE_ENTRIES 8
/* The same where each entry waits long for the worker. */
#define KELP_COORDINATOR_IDLE_LONG_MS      15000
#define KELP_COORDINATOR_IDLE_LONG_ENTRIES 2
#define KELP_COORDINATOR_PROBE_MS          10000 /* after a newcomer that never worked; doubled */
#define KELP_COORDINATOR_PROBE_MAX_MS      600000

/* Lanes are split by speed once this would have paid for this time and over this many reports. */
#define KELP_COORDINATOR_UNEVEN_MS      1000
#define KELP_COORDINATOR_UNEVEN_SAMPLES 2

/* Largest numbers in a worker's report about a window of its times: a week, and more steps and
 * lanes than any machine computes in a window. Products of the three fit into 64 bits. */
#define KELP_COORDINATOR_TIMES_US_MAX    UINT64_C(604800000000)
#define KELP_COORDINATOR_TIMES_STEPS_MAX (1u << 20)
#define KELP_COORDINATOR_TIMES_LANES_MAX (1u << 24)
/* Workers are compared every LOOK_MS. A worker is slow if it was slow in WINDOWS windows in a row;
 * its newest window counts for FRESH_MS or for LENGTHS times its length, whichever is longer. */
#define KELP_COORDINATOR_SLOW_LOOK_MS  1000
#define KELP_COORDINATOR_SLOW_WINDOWS  3
#define KELP_COORDINATOR_SLOW_FRESH_MS 10000
#define KELP_COORDINATOR_SLOW_LENGTHS  3

/* A worker reports every BEAT_MS. Many workers report more rarely, so that all of them send at most
 * BEATS_S reports per second, of about 20 us each. A worker that pauses just before a report seems
 * to pause for one interval longer, so an interval is at most BEAT_PERCENT of failure.detect. */
#define KELP_COORDINATOR_BEAT_MS      100
#define KELP_COORDINATOR_BEATS_S      2500
#define KELP_COORDINATOR_BEAT_PERCENT 40
/* With more workers than this, the others learn only at the next tick that a worker has joined,
 * because the lanes of all of them change each time. */
#define KELP_COORDINATOR_TOLD_AT_ONCE 64

#define KELP_COORDINATOR_TICK_MS       100 /* heartbeats to shards and every other timer */
#define KELP_COORDINATOR_LEASE_S       3   /* until a leader that no standby hears loses the lead */
#define KELP_COORDINATOR_ETCD_MS       2000 /* deadline of one blocking etcd call */
#define KELP_COORDINATOR_RETRY_MS      500  /* back-off after a failed write to etcd */
#define KELP_COORDINATOR_LOAD_RETRY_MS 1000 /* back-off after a shard could not load; doubled */
#define KELP_COORDINATOR_LOAD_TRIES    3    /* before an unreadable checkpoint is skipped */
#define KELP_COORDINATOR_BLOCK_TRIES                                                               \
    3 /* generations given up because workers differ or partitions are apart; then the job fails   \
       */
#define KELP_COORDINATOR_APART_BEATS                                                               \
    20 /* heartbeats, 2 s, that a partition is two steps behind: no worker's push was on its way   \
        */
#define KELP_COORDINATOR_FIRST_MS 1000 /* a new shard stream must answer within this */

/* A standby hears the leader at each of the leader's ticks. Five silent ticks are ten times the
 * delay of a loaded machine; with the election and reading the map, another coordinator leads
 * within a second. */
#define KELP_COORDINATOR_SILENT_TICKS     5
#define KELP_COORDINATOR_SILENT_TICKS_MAX 20    /* for a leader that was accused not long ago */
#define KELP_COORDINATOR_JUDGED_MS        30000 /* how long an accusation is remembered */
#define KELP_COORDINATOR_FOLLOWERS_MAX    16    /* streams of standbys */
#define KELP_COORDINATOR_HEAR_MS          300   /* until shards that are told to end have said so */

/* Checkpoints. */
#define KELP_COORDINATOR_LEAD_MS 100 /* from a report of progress to the arrival of an order */
#define KELP_COORDINATOR_MARGIN_MAX                                                                \
    65536                                  /* factor of the margin; doubled when an order was late \
                                            */
#define KELP_COORDINATOR_WINDOW          8 /* margins ahead at which a checkpoint is ordered */
#define KELP_COORDINATOR_EARLY_MS        10000  /* to the first checkpoint of a job, by time */
#define KELP_COORDINATOR_STILL_MS        1000   /* without a step: training stands still */
#define KELP_COORDINATOR_ANSWER_MS       10000  /* a shard takes an order within this */
#define KELP_COORDINATOR_WRITE_MS        600000 /* a snapshot is durable within this */
#define KELP_COORDINATOR_EVALUATIONS_MAX 64     /* newest evaluations that are remembered */
#define KELP_COORDINATOR_EVALUATION_MS   1000   /* how long a commit waits for its step's metric */
#define KELP_COORDINATOR_PAUSE_MS        1000   /* after a failure; doubled each time */
#define KELP_COORDINATOR_PAUSE_MAX_MS    30000
#define KELP_COORDINATOR_END_TRIES       3 /* to save the final state */

/* Bytes queued for workers: a large map for each. */
#define KELP_COORDINATOR_QUEUE_BYTES   (256u << 20)
#define KELP_COORDINATOR_MESSAGE_BYTES (4u << 20) /* largest message: plan, spec and map fit */
#define KELP_COORDINATOR_JOURNAL_BYTES (1u << 30) /* largest journal file that is read back */
#define KELP_COORDINATOR_LINE_MAX      4096       /* bytes of one journal line */

#endif
