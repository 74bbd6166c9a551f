/*
 * The coordinator's side of etcd: the spec, the election, what a leader reads and writes, and the
 * shards that register.
 *
 * Everything is reported by callbacks inside the loop. Blocking calls run on the task thread;
 * events of the etcd client's thread are posted to the loop.
 *
 * Every write compares the create revision of our election key, so that a leader that lost it can
 * change nothing. While etcd is away the election is lost without anybody else having won: the
 * owner goes on leading, and writes wait until elected() comes again. superseded() says that
 * another process holds the key.
 *
 * Threads: the loop's.
 */
#ifndef KELP_COORDINATOR_ETCD_LEADER_H
#define KELP_COORDINATOR_ETCD_LEADER_H

#include "common/etcd/etcd.h"
#include "common/program/serving.h"
#include "common/rpc/rpc.h"
#include "coordinator/etcd/checkpoint_files.h"
#include "coordinator/etcd/map_json.h"
#include "coordinator/etcd/task_thread.h"
#include "coordinator/term/outside/term_effects.h"
#include "coordinator/term/standby.h"

struct kelp_leader;

/* Arguments are borrowed until the callback returns, unless it says otherwise. */
struct kelp_leader_events {
    void (*spec)(const char *text, size_t text_bytes, void *user);
    void (*elected)(int64_t revision, void *user);
    void (*deposed)(const char *why, void *user);
    void (*superseded)(const struct kelp_holder *holder, void *user);
    void (*vacant)(void *user); /* nobody holds the key */
    /* Answer to kelp_leader_read(). The callback may take plan, map and the checkpoints' texts out
     * of found. */
    void (*read)(kelp_status status, struct kelp_found *found, const char *text, void *user);
    /* Answer to kelp_leader_write_plan(): plan is what is in etcd now, on KELP_OK. */
    void (*plan_written)(kelp_status status, const char *plan, const char *text, void *user);
    void (*map_written)(enum kelp_placement_written result, const char *text, void *user);
    /* Answer to kelp_leader_read_map(): map and checkpoints alone. */
    void (*map_read)(kelp_status status, struct kelp_found *found, const char *text, void *user);
    /* Answers to kelp_leader_commit(), kelp_leader_remove(). */
    void (*committed)(const struct kelp_commit_answer *answer, void *user);
    void (*removed)(enum kelp_checkpointer_result result, const char *text, void *user);
    void (*state_written)(bool taken, void *user);
    void (*scale_written)(const struct kelp_targets *written, void *user); /* NULL: not taken */
    void (*shard_registered)(const struct kelp_map_shard *shard, void *user);
    void (*shard_gone)(const char *id, void *user);
    void (*trouble)(const char *text, void *user); /* etcd does not answer; for the log */
    /* Nobody finds this process where it listens any more: it must end, to be started again. */
    void (*stranded)(const char *text, void *user);
};

struct kelp_leader_options {
    struct kelp_rpc_loop *loop;
    struct kelp_task_thread *tasks;
    const char *endpoints; /* of etcd */
    const char *certs;     /* folder with certificates for it; NULL: none */
    const char *job;
    const char *id;
    const char *run_folder;
    bool force; /* checkpoints of another job are taken */
    uint64_t incarnation;
    const char *proof_digest;           /* borrowed; goes into our key (common/tls/proof.h) */
    const struct kelp_serving *serving; /* borrowed; looked at before the key is put; NULL: never */
};

/* Opens the client and waits for the spec. */
kelp_status kelp_leader_open(const struct kelp_leader_options *options,
                             const struct kelp_leader_events *events, void *user,
                             struct kelp_leader **ret_leader,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* No callback runs after it. The task thread has been stopped, so that no task is left. */
void kelp_leader_close(struct kelp_leader *leader);
/* After the loop was destroyed, since posts may be in progress in it. NULL does nothing. */
void kelp_leader_destroy(struct kelp_leader *leader);

/* Watch the specification, again if it is watched. */
kelp_status kelp_leader_watch_spec(struct kelp_leader *leader,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Was an event of etcd lost, since there was no memory for it? True once: whatever is watched is to
 * be watched again then, which resigning does. */
bool kelp_leader_lost_event(struct kelp_leader *leader);

/* Stand for election; address is where workers reach us. Each time that the key is put it has the
 * host that others find us by then (kelp_serving_look()). job_file and spec, its text as it was in
 * etcd, are borrowed. */
kelp_status kelp_leader_stand(struct kelp_leader *leader, const char *address,
                              const struct kelp_job_file *job_file, const char *spec,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Every KELP_COORDINATOR_TICK_MS: put the specification back, if it is gone while we lead. Who
 * emptied etcd has not ended the job, and processes that start wait for it. */
void kelp_leader_tick(struct kelp_leader *leader);
/* Report registrations from now on, beginning with those that are there. */
kelp_status kelp_leader_watch_shards(struct kelp_leader *leader,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Give the election up, and stand again only when told to. Waits for etcd, at most 1 s. */
void kelp_leader_resign(struct kelp_leader *leader);
/* Delete another's key, if it was created at that revision, and be elected if we can. */
void kelp_leader_depose(struct kelp_leader *leader, int64_t revision);
/* Leadership ends: results that are in progress are not reported any more. */
void kelp_leader_step_down(struct kelp_leader *leader);

/* Each answers once by its callback; an answer with an error may be tried again. Errors of the
 * calls themselves: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY; there is no answer then. */
kelp_status kelp_leader_read(struct kelp_leader *leader) KELP_MUST_USE;
kelp_status kelp_leader_read_map(struct kelp_leader *leader) KELP_MUST_USE;
kelp_status kelp_leader_write_plan(struct kelp_leader *leader, const char *plan) KELP_MUST_USE;
/* Open a generation, in one transaction: our election key, the map as we know it, and the restored
 * manifest stand there; then the map is put, the manifests above it go, and the fence is renewed,
 * so that no commit of a generation before can succeed any more. */
kelp_status kelp_leader_write_map(struct kelp_leader *leader,
                                  const struct kelp_opening *opening) KELP_MUST_USE;
/* Change the map within its generation, in one transaction: our election key and the map as we know
 * it stand there; then the map is put. Answered as kelp_leader_write_map(). */
kelp_status kelp_leader_change_map(struct kelp_leader *leader,
                                   const struct kelp_map *map) KELP_MUST_USE;
/* Put a manifest, if election key, map and fence stand as we know them and there is none of that
 * version; one that is there with this very text is success. */
kelp_status kelp_leader_commit(struct kelp_leader *leader,
                               const struct kelp_commit *commit) KELP_MUST_USE;
/* Take a manifest out, and renew the fence. One that is not there is success. */
kelp_status kelp_leader_remove(struct kelp_leader *leader, uint64_t version) KELP_MUST_USE;
/* Put the job's state. */
kelp_status kelp_leader_write_state(struct kelp_leader *leader,
                                    const struct kelp_job_state *state) KELP_MUST_USE;
/* Put the size that the cluster is to have. */
kelp_status kelp_leader_write_scale(struct kelp_leader *leader,
                                    const struct kelp_scale *scale) KELP_MUST_USE;
/* What a manifest says of its checkpoint; revision and text are left out. */
void kelp_committed_of(const struct kelp_manifest *manifest, struct kelp_committed *ret_committed);

#endif
