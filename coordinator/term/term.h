/*
 * The term of a leader: everything that a coordinator knows and decides while it leads. Created and
 * destroyed as a whole. Pure: events arrive as calls, with the time set before; effects go out
 * through one table (term_effects.h).
 *
 * A term consists of parts. Each owns its state; no other file writes it:
 *
 *     membership, placement, progress     state machines, driven by the term's files
 *     keeper      (checkpoint_keeper.h)   the checkpointer, and its effects
 *     end         (job_end.h)             the job's state in etcd, and an end found there
 *     steps       (step_count.h)          recomputed steps
 *     reading     (reading.h)             when etcd is read
 *     size        (size.h)                the wanted size, and which processes leave
 *     offer       (plan_offer.h)          the plan, until it is in etcd
 *     links       (links.h)               streams to shards
 *     sessions    (sessions.h)            streams of workers
 *     records     (term_records.c)        records, until they are on file
 *     hold        (term_records.c)        the run's folder, until it is this job's
 *
 * Its files call only downwards: term.c (life, time), term_etcd.c, term_workers.c, term_shards.c,
 * term_requests.c (events), term_records.c, term_decide.c (placement and checkpointer, which inform
 * each other), the parts.
 */
#ifndef KELP_COORDINATOR_TERM_TERM_H
#define KELP_COORDINATOR_TERM_TERM_H

#include "coordinator/core/membership/membership.h"
#include "coordinator/core/placement/placement.h"
#include "coordinator/core/progress.h"
#include "coordinator/term/outside/term_effects.h"
#include "coordinator/term/parts/checkpoint_keeper.h"
#include "coordinator/term/parts/departure.h"
#include "coordinator/term/parts/job_end.h"
#include "coordinator/term/parts/links.h"
#include "coordinator/term/parts/plan_offer.h"
#include "coordinator/term/parts/reading.h"
#include "coordinator/term/parts/sessions.h"
#include "coordinator/term/parts/size.h"
#include "coordinator/term/parts/step_count.h"

struct kelp_term_options {
    const struct kelp_job *job; /* borrowed */
    uint64_t writer;            /* unique to this term, for nonces */
    int64_t election;           /* revision of the key that was won */
    bool elected;               /* and we still hold it */
    bool no_checkpoints;        /* hosts share no folder: make none */
    bool force;                 /* accept checkpoints of a different job */
};

/* The job's last record. */
struct kelp_term_records {
    uint64_t finish_generation; /* newest with a FINISH record; 0: none */
    bool finish_on_file;        /* a FINISH record is on file; those of all generations are equal */
    size_t filing;              /* this many of the waiting ones are being written */
    uint64_t filing_generation; /* they are of this one */
    size_t unsynced;            /* written since the last sync */
    uint64_t safe_generation;   /* 0: nothing is known to be synced */
    uint64_t safe_version;      /* of that generation: the newest synced one */
    uint64_t file_at_ms;        /* next attempt */
    uint64_t moved_ms;          /* when one was last written, or none waited */
    char trouble[KELP_COORDINATOR_REASON_MAX + 1]; /* of the last attempt; "": none */
};

/* Has training passed the restored version, so that the run becomes this job's? */
struct kelp_term_hold {
    bool taken;
    bool asked;        /* being written */
    bool opened;       /* the generation is ours */
    bool forgets;      /* drop lines of recomputed steps: workers differed, so these may differ */
    uint64_t retry_ms; /* next attempt */
};

struct kelp_term {
    struct kelp_term_options options;
    struct kelp_outside outside;
    uint64_t now_ms;    /* of the event being handled */
    bool elected;       /* we may write to etcd; a leader may be without that while etcd is away */
    int64_t election;   /* revision of the newest one that we won */
    uint64_t heartbeat; /* newest */
    uint64_t shard_losses;
    uint64_t conflicts; /* between workers, as shards told it */
    char conflict[KELP_COORDINATOR_REASON_MAX + 1];
    uint64_t cause_ms;    /* when what the next map is for began: a loss, or the term */
    bool sent_away;       /* the job was done once, and its workers were told to leave */
    bool opened;          /* the map that the placement takes next was written by us just now */
    bool cut_off;         /* no shard is heard though all their leases live: resign */
    const char *replaced; /* why another leader has been there in between: start over; NULL: no */

    struct kelp_membership membership;
    struct kelp_placement placement;
    struct kelp_progress progress;
    struct kelp_keeper keeper;
    struct kelp_job_end end;
    struct kelp_step_count steps;
    struct kelp_reading reading;
    struct kelp_size size;
    struct kelp_departure departure;
    struct kelp_plan_offer offer;
    struct kelp_shard_links links;
    struct kelp_worker_sessions sessions;
    struct kelp_term_records records;
    struct kelp_term_hold hold;
};

/* effects and the job are borrowed. Reads etcd and watches the shards at once. Errors: those of the
 * machines, KELP_ERR_NO_MEMORY. */
kelp_status kelp_term_create(const struct kelp_term_options *options,
                             const struct kelp_outside *outside, uint64_t now_ms,
                             struct kelp_term **ret_term, struct kelp_error *reterr) KELP_MUST_USE;
/* Closes every stream. NULL does nothing. */
void kelp_term_destroy(struct kelp_term *term);
/* The time, before each of the calls below. */
void kelp_term_touch(struct kelp_term *term, uint64_t now_ms);
/* Every KELP_COORDINATOR_TICK_MS: heartbeats, silence, retries. */
void kelp_term_tick(struct kelp_term *term);

/* ---- etcd (term_etcd.c) ---- */

void kelp_term_elected(struct kelp_term *term, int64_t election);
void kelp_term_deposed(struct kelp_term *term);
/* Answers to the effects of these names; found may lose its texts. */
void kelp_term_read(struct kelp_term *term, kelp_status status, struct kelp_found *found,
                    const char *text);
void kelp_term_map_read(struct kelp_term *term, kelp_status status, struct kelp_found *found,
                        const char *text);
/* plan: what is in etcd now, with KELP_OK. */
void kelp_term_plan_written(struct kelp_term *term, kelp_status status, const char *plan,
                            const char *text);
void kelp_term_map_written(struct kelp_term *term, enum kelp_placement_written result,
                           const char *text);
void kelp_term_state_written(struct kelp_term *term, bool taken);
/* written: what is in etcd; NULL: it was not taken. */
void kelp_term_scale_written(struct kelp_term *term, const struct kelp_targets *written);
void kelp_term_committed(struct kelp_term *term, const struct kelp_commit_answer *answer);
void kelp_term_removed(struct kelp_term *term, enum kelp_checkpointer_result result,
                       const char *text);
void kelp_term_shard_registered(struct kelp_term *term, const struct kelp_map_shard *shard);
void kelp_term_shard_gone(struct kelp_term *term, const char *id);

/* ---- files ---- */

void kelp_term_filed(struct kelp_term *term, const struct kelp_filed *filed);
/* status: of a hold in that generation. */
void kelp_term_held(struct kelp_term *term, uint64_t generation, kelp_status status,
                    const char *text);
void kelp_term_described(struct kelp_term *term, uint64_t serial, kelp_status status,
                         const char *text);

/* ---- shards (term_shards.c) ---- */

/* The first message of a stream. */
struct kelp_link_hello {
    kelp_status status; /* of the check of its hello */
    const char *text;
    uint64_t loaded_generation;
};
/* Another shard, on the other end of a stream of the reporter's. */
struct kelp_link_peer {
    const char *id;
    uint64_t incarnation;
    uint64_t silent_ms;
    bool broken; /* its end broke the stream off */
};
/* All borrowed, and as it came from outside. */
struct kelp_link_report {
    uint64_t heartbeat; /* newest that it has seen */
    uint64_t loaded_generation;
    uint64_t map_generation; /* of the newest map that it has taken */
    uint64_t map_serial;
    const struct kelp_replica_report *replicas; /* that changed */
    size_t replica_count;
    const struct kelp_link_peer *peers; /* of which something is wrong */
    size_t peer_count;
    const struct kelp_apart_step *lowest;  /* in answer to a heartbeat: of the partitions that */
    const struct kelp_apart_step *highest; /* it leads; NULL, both: it does not say */
    bool leaving;                          /* it was told to end */
    kelp_status status;                    /* of what it failed at */
    const char *error;
    const char *waiting;                             /* what loading waits for; "": nothing */
    const struct kelp_checkpointer_report *snapshot; /* NULL: none */
    const struct kelp_control_word *word;            /* NULL: none; partition 0's host */
    const struct kelp_best *best;                    /* NULL: none; goes with the word */
    size_t record_count;
    /* The record of that index; false: it is not a good one. */
    bool (*record)(const void *records, size_t index, struct kelp_record *ret_record);
    const void *records;
    const struct kelp_record *latest_train; /* NULL: none */
    uint64_t conflicts;                     /* between workers, since the shard's start */
    const char *conflict;                   /* the newest */
};
/* True: it is a member now. */
bool kelp_term_shard_hello(struct kelp_term *term, struct kelp_link *link,
                           const struct kelp_link_hello *hello);
void kelp_term_shard_report(struct kelp_term *term, struct kelp_link *link,
                            const struct kelp_link_report *report);
/* A message that cannot be read. */
void kelp_term_shard_unreadable(struct kelp_term *term, struct kelp_link *link, kelp_status status,
                                const char *text);
/* broken: the shard's side ended the stream. */
void kelp_term_shard_closed(struct kelp_term *term, struct kelp_link *link, bool broken,
                            kelp_status status, const char *text);

/* ---- workers (term_workers.c) ---- */

/* NULL: no memory. */
struct kelp_session *kelp_term_worker_opened(struct kelp_term *term, void *end);
void kelp_term_worker_hello(struct kelp_term *term, struct kelp_session *session,
                            const struct kelp_session_hello *hello);
/* Its hello, or any message, is not good. */
void kelp_term_worker_refused(struct kelp_term *term, struct kelp_session *session,
                              kelp_status status, const char *text);
void kelp_term_worker_heard(struct kelp_term *term, struct kelp_session *session,
                            const struct kelp_member_heard *heard);
/* Partition 0 took lanes that a worker of this id pushed. */
void kelp_term_worker_worked(struct kelp_term *term, const char *id);
/* Likewise: steps that it pushed lanes of, and how far behind the first push of each. */
void kelp_term_worker_pushed(struct kelp_term *term, const char *id, uint64_t steps,
                             uint64_t behind_us);
/* Its stream has ended. */
void kelp_term_worker_closed(struct kelp_term *term, struct kelp_session *session, bool lost,
                             const char *text);

/* ---- people (term_requests.c, term_reason.c) ---- */

/* The job's state. Whoever is told that it is over may stop everything: an end is told only once
 * etcd has it. */
enum kelp_placement_state kelp_term_state(const struct kelp_term *term);
/* Why the job waits, "": it does not. With a shard that cannot be reached, and why; where no worker
 * computes anything, with what the first of them says. */
#define KELP_TERM_REASON_MAX (2 * KELP_COORDINATOR_REASON_MAX)
void kelp_term_reason(const struct kelp_term *term, char text[KELP_TERM_REASON_MAX + 1]);

/* Somebody wants a checkpoint; how it ends is seen in the keeper. Errors: KELP_ERR_BUSY,
 * KELP_ERR_INVALID: the job is over. */
kelp_status kelp_term_request(struct kelp_term *term, bool pause, uint64_t *ret_serial,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Somebody wants another size; it counts once it is in etcd. Errors: KELP_ERR_BUSY,
 * KELP_ERR_INVALID: no such size, or the job is over. */
kelp_status kelp_term_scale(struct kelp_term *term, const struct kelp_targets *request,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Somebody wants this process to go. Errors: KELP_ERR_BUSY, KELP_ERR_INVALID: there is no such one,
 * it cannot be spared, or the job is over; KELP_ERR_LIMIT. */
kelp_status kelp_term_drain(struct kelp_term *term, const char *id,
                            struct kelp_error *reterr) KELP_MUST_USE;

#endif
