/*
 * The snapshot in progress on one shard, as a pure state machine: events in, actions out. It knows
 * which partitions have been captured and written. A snapshot is durable only after everything has
 * been synced, so that a committed checkpoint survives a power failure.
 *
 *            order             all taken               written: SYNC, synced
 *    NONE ----------> TAKING --------------> CAPTURED ------------------------> DURABLE
 *                      |   |                     |
 *                      |   | a partition has gone past the step
 *                      |   -----------------------------------> PAST
 *                      | the disk failed, given up, another generation opens
 *                      --------------------------+------------> FAILED
 *
 * An order names the partitions and the process that must capture them. While TAKING, this process
 * must lead all of them. Once CAPTURED it need not: the captured state is kept until it is written,
 * whichever process leads.
 *
 * A newer order replaces any other: what is not durable yet is discarded. In one generation serials
 * grow, also from one leader to the next, so a late order on an old stream is recognised. Each
 * accepted order gets a ticket, which counts up. Actions and events name their ticket; events of
 * another one are late and do nothing.
 *
 * Threads: one caller at a time. No I/O, no clock, never blocks, allocates nothing after create().
 */
#ifndef KELP_PS_CORE_SNAPSHOT_SNAPSHOT_H
#define KELP_PS_CORE_SNAPSHOT_SNAPSHOT_H

#include <stdint.h>

#include "common/training/control.h"
#include "ps/core/partition/partition.h"

struct kelp_snapshot;

enum kelp_snapshot_state {
    KELP_SNAPSHOT_NONE,
    KELP_SNAPSHOT_TAKING,
    KELP_SNAPSHOT_DURABLE,  /* everything is synced, directories too */
    KELP_SNAPSHOT_FAILED,   /* status and error say why */
    KELP_SNAPSHOT_PAST,     /* a partition has gone past the step */
    KELP_SNAPSHOT_CAPTURED, /* each partition was taken, and is being written */
    KELP_SNAPSHOT_STATE_COUNT
};

/* ---- actions: in this order, and those of one event after those of the one before ---- */

enum kelp_snapshot_action_kind {
    KELP_SNAPSHOT_DO_DISCARD, /* release what was captured and remove what was written of `ticket`
                               */
    KELP_SNAPSHOT_DO_ORDER,   /* pass `order` to its partitions: kelp_partition_snapshot() */
    KELP_SNAPSHOT_DO_WRITE,   /* write `partition`; then written() or failed() */
    KELP_SNAPSHOT_DO_SYNC,    /* make everything durable; then synced() or failed() */
    KELP_SNAPSHOT_DO_REPORT,  /* report the new state to the coordinator at once */
};

struct kelp_snapshot_action {
    enum kelp_snapshot_action_kind kind;
    uint64_t ticket;
    uint32_t partition;               /* WRITE: partitions come in ascending order, one at a time */
    struct kelp_snapshot_order order; /* ORDER: its serial is the ticket */
};

#define KELP_SNAPSHOT_ACTIONS_MAX 8

/* The caller's; events append to it. */
struct kelp_snapshot_actions {
    struct kelp_snapshot_action items[KELP_SNAPSHOT_ACTIONS_MAX];
    uint32_t count;
};

/* ---- events ---- */

kelp_status kelp_snapshot_create(struct kelp_snapshot **ret_snapshot,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* NULL does nothing. */
void kelp_snapshot_destroy(struct kelp_snapshot *snapshot);

/* A generation is served from now on, and these partitions are led here (ascending, may be none):
 * what was in progress in the one before is discarded. */
void kelp_snapshot_generation(struct kelp_snapshot *snapshot, uint64_t generation,
                              const uint32_t *partitions, uint32_t count,
                              struct kelp_snapshot_actions *actions);

/* From now on it leads these partitions (ascending, may be none) in the generation that it serves.
 * An order fails with KELP_ERR_BUSY if it still waits for a partition that is led elsewhere. */
void kelp_snapshot_lead(struct kelp_snapshot *snapshot, const uint32_t *partitions, uint32_t count,
                        struct kelp_snapshot_actions *actions);

/* What an order asks of a process. */
struct kelp_snapshot_share {
    const uint32_t *partitions; /* ascending, at most KELP_PARTITIONS_MAX */
    uint32_t count;
    bool elsewhere; /* it names another process */
};

/*
 * An order came. The same one again does nothing. One without partitions is durable at once, with
 * nothing on disk. Errors: KELP_ERR_OLD_GENERATION (of a leader that was deposed, or of a smaller
 * serial: ignored). FAILED with KELP_ERR_BUSY becomes an order of a generation that is not served
 * yet, of a partition that is not led here, and one for another process.
 */
kelp_status kelp_snapshot_order(struct kelp_snapshot *snapshot,
                                const struct kelp_snapshot_order *order,
                                const struct kelp_snapshot_share *share,
                                struct kelp_snapshot_actions *actions) KELP_MUST_USE;
/* The leader gives up its order `serial`. Ignored unless that is the one in progress: a leader that
 * was deposed must not end its successor's, in the same generation. */
void kelp_snapshot_give_up(struct kelp_snapshot *snapshot, uint64_t generation, uint64_t serial,
                           struct kelp_snapshot_actions *actions);

/* The partition stands at the step, and its state is kept until it is written or discarded. word:
 * of the saved version, from partition 0; NULL from others. False: nobody wants it any more. */
bool kelp_snapshot_taken(struct kelp_snapshot *snapshot, uint64_t ticket, uint32_t partition,
                         const struct kelp_control_word *word,
                         struct kelp_snapshot_actions *actions);
/* The partition is at `step` already. */
void kelp_snapshot_past(struct kelp_snapshot *snapshot, uint64_t ticket, uint64_t step,
                        struct kelp_snapshot_actions *actions);
/* A WRITE is done: the part is with the file system, not yet durable. */
void kelp_snapshot_written(struct kelp_snapshot *snapshot, uint64_t ticket, uint32_t partition,
                           const char *digest, uint64_t bytes,
                           struct kelp_snapshot_actions *actions);
/* The SYNC is done: all of it is durable. False: nobody wants it any more; remove it. */
bool kelp_snapshot_synced(struct kelp_snapshot *snapshot, uint64_t ticket,
                          struct kelp_snapshot_actions *actions);
/* Give up what is in progress, if anything is: another generation is about to be loaded. */
void kelp_snapshot_cancel(struct kelp_snapshot *snapshot, kelp_status status, const char *error,
                          struct kelp_snapshot_actions *actions);
/* It cannot be taken, written or synced. */
void kelp_snapshot_failed(struct kelp_snapshot *snapshot, uint64_t ticket, kelp_status status,
                          const char *error, struct kelp_snapshot_actions *actions);

/* ---- what the coordinator is told ---- */

struct kelp_snapshot_part {
    uint32_t partition;
    uint64_t bytes;
    char digest[33];
};

struct kelp_snapshot_view {
    enum kelp_snapshot_state state;
    struct kelp_snapshot_order order;
    kelp_status status; /* FAILED */
    const char *error;  /* "" unless FAILED; borrowed until the next event */
    uint64_t step;      /* PAST: where the furthest partition stands, as far as is known */
    /* DURABLE, else none: */
    const struct kelp_snapshot_part *parts; /* borrowed until the next event */
    uint32_t part_count;
    bool has_word; /* partition 0 is here */
    struct kelp_control_word word;
};
void kelp_snapshot_view(const struct kelp_snapshot *snapshot, struct kelp_snapshot_view *ret_view);
const char *kelp_snapshot_state_name(enum kelp_snapshot_state state);

#endif
