/*
 * What the files of a term share; each calls those below it alone: see term.h.
 */
#ifndef KELP_COORDINATOR_TERM_TERM_INTERNAL_H
#define KELP_COORDINATOR_TERM_TERM_INTERNAL_H

#include "coordinator/term/term.h"

/* ---- term_decide.c ---- */

/* Hand an event to the placement or to the checkpointer, and do what follows. now_ms is filled in.
 */
void kelp__term_place(struct kelp_term *term, struct kelp_placement_event event);
void kelp__term_checkpoint(struct kelp_term *term, struct kelp_checkpointer_event event);
/* Tell the checkpoints if that process of a shard has neither its lease nor its stream: what it
 * captured and has not written is lost. */
void kelp__term_check_gone(struct kelp_term *term, const char *id, uint64_t incarnation);
/* A call to the keeper: begin() gives what is handed to it, end() does what it asks for. */
struct kelp__keeper_visit {
    struct kelp_keeper_call call;
    struct kelp_keeper_requests requests;
    bool held; /* workers were not needed before */
};
void kelp__term_keeper_begin(struct kelp_term *term, struct kelp__keeper_visit *visit);
void kelp__term_keeper_end(struct kelp_term *term, const struct kelp__keeper_visit *visit);

/* Keep it for people; generation and serial are filled in. */
void kelp__term_tell(const struct kelp_term *term, struct kelp_event event);
/* The job cannot go on. */
void kelp__term_fail_job(struct kelp_term *term, const char *reason);
/* Put the placement's state and reason into the log and into etcd. */
void kelp__term_report_state(struct kelp_term *term);
/* Is the end that we found in etcd final? */
void kelp__term_judge_end(struct kelp_term *term);
/* Write the state, or the size, if that is due. */
void kelp__term_try_state(struct kelp_term *term);
void kelp__term_try_scale(struct kelp_term *term);
/* The cluster is to have another size now. */
void kelp__term_resize(struct kelp_term *term);
/* Are all shards to end? Then a checkpoint is made first. */
void kelp__term_depart(struct kelp_term *term);
/* What shards and workers are to know now. */
void kelp__term_update_shards(struct kelp_term *term, bool beat);
void kelp__term_update_workers(struct kelp_term *term);
/* The same for one of them. */
void kelp__term_update_worker(const struct kelp_term *term, struct kelp_session *session);
struct kelp_link_view kelp__term_shard_view(const struct kelp_term *term);

/* ---- term_records.c ---- */

/* A shard's report: completed entries, and where partition 0 stands; generation: it has loaded. */
void kelp__term_apply_records(struct kelp_term *term, const struct kelp_link_report *report,
                              uint64_t generation);
/* Put what waits on file, as far as the disk takes it. */
void kelp__term_file_records(struct kelp_term *term);
/* The last record of the current generation has come, and is on file. */
bool kelp__term_finished(const struct kelp_term *term);
/* Records of entries before this version are on file; or the disk has stood for a while, and nobody
 * waits for it any more. */
uint64_t kelp__term_filed_version(const struct kelp_term *term);
/* The newest record of the generation that outlives everything. 0: none, or other coordinators
 * would not find it, since hosts share no folder. */
uint64_t kelp__term_safe_version(const struct kelp_term *term);

/* ---- term_shards.c, term_workers.c ---- */

/* A member that was silent for too long. */
void kelp__term_lose_shard(struct kelp_term *term, uint64_t key);
void kelp__term_lose_worker(struct kelp_term *term, uint64_t key);
/* Take lanes from workers that show no work, and let newcomers have them. */
void kelp__term_judge_workers(struct kelp_term *term);
/* etcd has been read, or the plan in it is another than the one compared before: look at each
 * session again. */
void kelp__term_review_workers(struct kelp_term *term);

/* ---- term_requests.c ---- */

/* Names of processes that are to go and have gone need not be kept. */
void kelp__term_forget_drains(struct kelp_term *term);

/* ---- term_etcd.c ---- */

/* Try again what etcd did not answer. */
void kelp__term_ask_etcd(struct kelp_term *term);

#endif
