/*
 * All limits of the coordinator, with unit and reason.
 */
#ifndef KELP_COORDINATOR_CORE_LIMITS_H
#define KELP_COORDINATOR_CORE_LIMITS_H

#define KELP_COORDINATOR_ID_MAX       63   /* bytes of a worker's or shard's id */
#define KELP_COORDINATOR_ADDRESS_MAX  255  /* bytes, host:port */
#define KELP_COORDINATOR_PROGRAM_MAX  63   /* bytes of a program's name, in such a text */
#define KELP_COORDINATOR_REASON_MAX   511  /* bytes of a text for people */
#define KELP_COORDINATOR_WAITING_MAX  191  /* bytes of what a shard says it waits for */
#define KELP_COORDINATOR_TROUBLE_MAX  255  /* bytes of a worker's trouble that are kept */
#define KELP_COORDINATOR_WORKERS_MAX  4096 /* lanes go to 1024; the rest are spares */
#define KELP_COORDINATOR_GONE_MAX     256  /* workers that have left, whose lanes are told of */
#define KELP_COORDINATOR_SHARDS_MAX   1024 /* a partition each, KELP_PARTITIONS_MAX */
#define KELP_COORDINATOR_SESSIONS_MAX 8192 /* worker streams, unidentified ones included */
/* Lines that the log takes at once of what peers at one host cause (common/log/log_gate.h): a
 * thousand workers that join and leave; requests for checkpoints. Then it is one a second. */
#define KELP_COORDINATOR_PEER_LINES    2048
#define KELP_COORDINATOR_REQUEST_LINES 20
#define KELP_COORDINATOR_TASKS_MAX     256 /* blocking calls that wait for the helper thread */
#define KELP_COORDINATOR_QUEUED_MAX    64 /* messages waiting in a stream: it is not read above it */

#define KELP_COORDINATOR_CHECKPOINTS_MAX                                                           \
    4096 /* committed at a time; retention keeps far fewer, KELP_CHECKPOINT_KEEP_MAX */
#define KELP_COORDINATOR_AGAIN_MAX   64   /* newest ones whose manifest.json a new leader writes */
#define KELP_COORDINATOR_DIGESTS_MAX 1024 /* of checkpoints, remembered to be compared */

#define KELP_COORDINATOR_RECORDS_MAX  65536 /* records waiting for a disk that is full */
#define KELP_COORDINATOR_SYNC_RECORDS 256   /* on file, until they are synced at the latest */
#define KELP_COORDINATOR_APPEND_MS    1000  /* before a full disk is tried again */
#define KELP_COORDINATOR_EVENTS_MAX   64    /* events that wait for the disk; more are counted */
#define KELP_COORDINATOR_EVENTS_BYTES                                                              \
    (16u << 20) /* of events.jsonl; then it is moved to events.jsonl.1, over the one there */
#define KELP_COORDINATOR_FILE_MAX  256  /* records that are handed to the disk at a time */
#define KELP_COORDINATOR_FILING_MS 2000 /* that a commit waits for a disk that stands */
#define KELP_COORDINATOR_CUT_OFF_MS                                                                \
    8000 /* no shard heard though all leases live: longer than those */
#define KELP_COORDINATOR_HANG_MS                                                                   \
    6000 /* a shard is not heard and training stands, though its lease lives: longer than that */
#define KELP_COORDINATOR_MOVE_MS   50  /* between two changes that move partitions: steps go on */
#define KELP_COORDINATOR_GATHER_MS 500 /* ... while some joiners have not caught up yet */
/* Partitions that have a joiner at a time, of all primaries and of each one: it takes memory for
 * them from then on. */
#define KELP_COORDINATOR_JOINERS_MAX  64
#define KELP_COORDINATOR_JOINERS_EACH 16
#define KELP_COORDINATOR_LEADS_MAX    8  /* partitions that get another primary at a time */
#define KELP_COORDINATOR_DRAINS_MAX   64 /* processes that `kelp drain` names at a time */
#define KELP_COORDINATOR_DRAIN_MS                                                                  \
    60000 /* a process that is to be drained is not there: then its name is forgotten */
#define KELP_COORDINATOR_DOUBT_MS     500  /* what a peer says of a shard counts for so long */
#define KELP_COORDINATOR_DROP_MS      50   /* a primary does not hear its joiner: in two reports */
#define KELP_COORDINATOR_DOUBTS_MAX   256  /* pairs of primary and follower that are remembered */
#define KELP_COORDINATOR_AVOID_MS     2000 /* before such a pair is tried again; doubled */
#define KELP_COORDINATOR_AVOID_MAX_MS 60000
#define KELP_COORDINATOR_TELL_MS      300 /* then workers get a change that a primary has not taken */
#define KELP_COORDINATOR_HELLO_MS     5000 /* a worker's stream says who it is within this */

/* A worker with lanes shows work within both; then it is tried (membership_seats.c). */
#define KELP_COORDINATOR_IDLE_MS      3000
#define KELP_COORDINATOR_IDLE_ENTRIES 8
/* ... or both of these, where each entry waits long for it. */
#define KELP_COORDINATOR_IDLE_LONG_MS      15000
#define KELP_COORDINATOR_IDLE_LONG_ENTRIES 2
#define KELP_COORDINATOR_PROBE_MS          10000 /* after a newcomer that never worked; doubled */
#define KELP_COORDINATOR_PROBE_MAX_MS      600000

/* Lanes are split by speed once that would have paid for so long and over so many reports. */
#define KELP_COORDINATOR_UNEVEN_MS      1000
#define KELP_COORDINATOR_UNEVEN_SAMPLES 2

/* What a worker may say of a window of its times: a week, and steps and lanes of a second at a rate
 * that no machine has. Products of the three fit into 64 bits. */
#define KELP_COORDINATOR_TIMES_US_MAX    UINT64_C(604800000000)
#define KELP_COORDINATOR_TIMES_STEPS_MAX (1u << 20)
#define KELP_COORDINATOR_TIMES_LANES_MAX (1u << 24)
/* Workers are compared so often; slow is who is so in several of its windows in a row, and the
 * newest of these counts for so long, or for a few times its length. */
#define KELP_COORDINATOR_SLOW_LOOK_MS  1000
#define KELP_COORDINATOR_SLOW_WINDOWS  3
#define KELP_COORDINATOR_SLOW_FRESH_MS 10000
#define KELP_COORDINATOR_SLOW_LENGTHS  3

/* A worker reports this often; with many workers more rarely, so that all together send this many
 * reports a second, each of which takes some 20 us. A pause that begins just before a report counts
 * as longer by an interval, which therefore is this part of failure.detect at most, in percent. */
#define KELP_COORDINATOR_BEAT_MS      100
#define KELP_COORDINATOR_BEATS_S      2500
#define KELP_COORDINATOR_BEAT_PERCENT 40
/* With more workers than this the others hear of one who joins at the next tick: the lanes of all
 * of them shift with each. */
#define KELP_COORDINATOR_TOLD_AT_ONCE 64

#define KELP_COORDINATOR_TICK_MS       100  /* heartbeats to shards and every other timer */
#define KELP_COORDINATOR_LEASE_S       3    /* a leader that no standby has heard goes after this */
#define KELP_COORDINATOR_ETCD_MS       2000 /* deadline of one blocking etcd call */
#define KELP_COORDINATOR_RETRY_MS      500  /* back-off after a failed write to etcd */
#define KELP_COORDINATOR_LOAD_RETRY_MS 1000 /* back-off after a shard could not load; doubled */
#define KELP_COORDINATOR_LOAD_TRIES    3    /* then a checkpoint that cannot be read is left */
#define KELP_COORDINATOR_BLOCK_TRIES                                                               \
    3 /* generations given up since workers differ or partitions are apart; then the job fails */
#define KELP_COORDINATOR_APART_BEATS                                                               \
    20 /* heartbeats over which a partition stays two steps behind: 2 s, no worker was on its way  \
        */
#define KELP_COORDINATOR_FIRST_MS 1000 /* a new shard stream must answer within this */

/* Who stands by hears the leader at each of its ticks. Five silent ticks are ten times the delay of
 * a loaded machine; with election and reading the map, another leads within a second. */
#define KELP_COORDINATOR_SILENT_TICKS     5
#define KELP_COORDINATOR_SILENT_TICKS_MAX 20    /* patience with one that was accused lately */
#define KELP_COORDINATOR_JUDGED_MS        30000 /* how long that is remembered */
#define KELP_COORDINATOR_FOLLOWERS_MAX    16    /* streams of those who stand by */
#define KELP_COORDINATOR_HEAR_MS          300   /* until shards that are told to end have said so */

/* Checkpoints. */
#define KELP_COORDINATOR_LEAD_MS 100 /* from a report of progress to an order's arrival */
#define KELP_COORDINATOR_MARGIN_MAX                                                                \
    65536                                  /* factor on the margin, doubled each time it was late  \
                                            */
#define KELP_COORDINATOR_WINDOW          8 /* margins ahead at which a scheduled one is ordered */
#define KELP_COORDINATOR_EARLY_MS        10000  /* to the first checkpoint of a job, by time */
#define KELP_COORDINATOR_STILL_MS        1000   /* no step for this long: training stands still */
#define KELP_COORDINATOR_ANSWER_MS       10000  /* a shard takes an order within this */
#define KELP_COORDINATOR_WRITE_MS        600000 /* a snapshot is durable within this */
#define KELP_COORDINATOR_EVALUATIONS_MAX 64     /* newest ones that are remembered */
#define KELP_COORDINATOR_EVALUATION_MS   1000   /* a commit waits so long for its step's metric */
#define KELP_COORDINATOR_PAUSE_MS        1000   /* after a failure; doubled each time */
#define KELP_COORDINATOR_PAUSE_MAX_MS    30000
#define KELP_COORDINATOR_END_TRIES       3 /* of the final state, before it is given up */

/* Bytes that wait for workers: a large map for each. */
#define KELP_COORDINATOR_QUEUE_BYTES   (256u << 20)
#define KELP_COORDINATOR_MESSAGE_BYTES (4u << 20) /* largest message: plan, spec and map fit */
#define KELP_COORDINATOR_JOURNAL_BYTES (1u << 30) /* largest journal file that is read back */
#define KELP_COORDINATOR_LINE_MAX      4096       /* bytes of one journal line */

#endif
