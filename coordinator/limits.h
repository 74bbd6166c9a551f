/*
 * All limits of the coordinator, with unit and reason.
 */
#ifndef KELP_COORDINATOR_LIMITS_H
#define KELP_COORDINATOR_LIMITS_H

#define KELP_COORDINATOR_ID_MAX       63   /* bytes of a worker's or shard's id */
#define KELP_COORDINATOR_ADDRESS_MAX  255  /* bytes, host:port */
#define KELP_COORDINATOR_REASON_MAX   511  /* bytes of a text for people */
#define KELP_COORDINATOR_TROUBLE_MAX  255  /* bytes of a worker's trouble that are kept */
#define KELP_COORDINATOR_WORKERS_MAX  4096 /* lanes go to 1024; the rest are spares */
#define KELP_COORDINATOR_SHARDS_MAX   1024 /* a partition each, KELP_PARTITIONS_MAX */
#define KELP_COORDINATOR_SESSIONS_MAX 8192 /* worker streams, unidentified ones included */
#define KELP_COORDINATOR_TASKS_MAX    256  /* blocking calls that wait for the helper thread */
#define KELP_COORDINATOR_QUEUED_MAX   64 /* messages waiting in a stream: no heartbeats above it */

#define KELP_COORDINATOR_RECORDS_MAX 65536 /* records waiting for a disk that is full */
#define KELP_COORDINATOR_HELLO_MS    5000  /* a worker's stream says who it is within this */

#define KELP_COORDINATOR_TICK_MS       100        /* heartbeats and every other timer */
#define KELP_COORDINATOR_LEASE_S       3          /* a dead leader is replaced after this */
#define KELP_COORDINATOR_ETCD_MS       2000       /* deadline of one blocking etcd call */
#define KELP_COORDINATOR_RETRY_MS      500        /* back-off after a failed write to etcd */
#define KELP_COORDINATOR_LOAD_RETRY_MS 1000       /* back-off after a shard could not load */
#define KELP_COORDINATOR_FIRST_MS      1000       /* a new shard stream must answer within this */
#define KELP_COORDINATOR_MESSAGE_BYTES (4u << 20) /* largest message: plan, spec and map fit */
#define KELP_COORDINATOR_JOURNAL_BYTES (1u << 30) /* largest journal file that is read back */
#define KELP_COORDINATOR_LINE_MAX      4096       /* bytes of one journal line */

#endif
