/*
 * A term's sessions with workers, and what workers report.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "coordinator/term/term_internal.h"

static void count_workers(struct kelp_term *term)
{
    kelp__term_place(term, (struct kelp_placement_event){
                               .kind = KELP_PLACEMENT_WORKERS,
                               .worker_count = term->membership.counts[KELP_MEMBER_WORKER]});
}

/* Compare the worker's plan with the job's. The first plan becomes the job's and is written at
 * once. */
static kelp_status check_plan(struct kelp_term *term, const char *text, struct kelp_error *reterr)
{
    kelp_status status =
        kelp_plan_offer_check(&term->offer, &term->outside, term->options.job, text, reterr);
    if (status == KELP_OK && term->placement.state != KELP_PLACEMENT_FAILED) {
        kelp_plan_offer_tick(&term->offer, &term->outside, term->now_ms);
    }
    return status;
}

static void replace(struct kelp_term *term, struct kelp_session *older, uint64_t by_incarnation)
{
    kelp_session_close(older, &term->outside, KELP_ERR_CLOSED,
                       older->incarnation == by_incarnation ? "the worker has opened another stream"
                                                            : "another process has this id now");
}

/* The worker is a member from now on. older: the session it replaces, or NULL. */
static void welcome(struct kelp_term *term, struct kelp_session *session, uint64_t key,
                    struct kelp_session *older)
{
    if (older) {
        replace(term, older, session->incarnation);
    }
    kelp_session_admit(session, key);
    kelp__term_tell(term,
                    (struct kelp_event){.kind = KELP_EVENT_WORKER_JOINED, .who = session->id});
    kelp_outside_log_of(&term->outside, session->peer, KELP_LOG_INFO,
                        "worker joined worker=%s incarnation=%" PRIu64 " peer=%s workers=%u",
                        session->id, session->incarnation, session->peer,
                        term->membership.counts[KELP_MEMBER_WORKER]);
    count_workers(term);
    if (!older && term->membership.counts[KELP_MEMBER_WORKER] > KELP_COORDINATOR_TOLD_AT_ONCE) {
        kelp__term_update_worker(term, session); /* others keep its lanes until the tick */
    } else {
        kelp__term_update_workers(term);
    }
}

/* The worker is not at fault: it stays, and joins when a member has left. */
static void let_wait(struct kelp_term *term, struct kelp_session *session, const char *text)
{
    if (kelp_session_wait(session, text)) {
        kelp_outside_log_of(&term->outside, session->peer, KELP_LOG_WARN,
                            "worker waits worker=%s peer=%s reason=\"%s\"", session->id,
                            session->peer, text);
        kelp__term_update_workers(term);
    }
}

static void admit(struct kelp_term *term, struct kelp_session *session)
{
    const struct kelp_member_joined joined = kelp_session_joined(session);
    struct kelp_error error;
    uint64_t key = 0;
    uint64_t replaced = 0;
    kelp_status status = check_plan(term, session->plan, &error);
    if (status == KELP_OK) {
        status =
            kelp_membership_join(&term->membership, &joined, term->now_ms, &key, &replaced, &error);
        if (status == KELP_ERR_EXISTS || status == KELP_ERR_LIMIT) {
            let_wait(term, session, error.text);
            return;
        }
    }
    if (status != KELP_OK) {
        kelp_session_refuse(session, &term->outside, status, error.text);
        return;
    }
    welcome(term, session, key,
            replaced == 0 ? NULL : kelp_worker_sessions_of(&term->sessions, replaced));
}

static void admit_waiting(struct kelp_term *term)
{
    struct kelp_session *next;
    while ((next = kelp_worker_sessions_next(&term->sessions, &term->membership)) != NULL) {
        admit(term, next); /* it does not wait any more, admitted or not */
    }
}

/* counted: the departure counts as a loss. */
static void member_gone(struct kelp_term *term, uint64_t key, bool counted)
{
    kelp_membership_remove(&term->membership, key, counted);
    count_workers(term);
    kelp__term_update_workers(term);
    admit_waiting(term);
}

/* Check a member whose plan was compared before etcd's was known. */
static void review_member(struct kelp_term *term, struct kelp_session *session)
{
    struct kelp_error error;
    kelp_status status = check_plan(term, session->plan, &error);
    if (status != KELP_OK) {
        kelp_session_refuse(session, &term->outside, status, error.text);
        member_gone(term, session->key, false);
    } else if (term->offer.state == KELP_PLAN_WRITTEN) {
        kelp_session_drop_plan(session);
    }
}

void kelp__term_review_workers(struct kelp_term *term)
{
    for (struct kelp_session *session = term->sessions.first; session; session = session->next) {
        if (session->state == KELP_SESSION_HELD) {
            admit(term, session);
        } else if (session->state == KELP_SESSION_MEMBER && session->plan) {
            review_member(term, session);
        }
    }
    kelp__term_update_workers(term);
}

void kelp__term_lose_worker(struct kelp_term *term, uint64_t key)
{
    struct kelp_session *session = kelp_worker_sessions_of(&term->sessions, key);
    assert(session); /* every member has a session */
    kelp_outside_log_of(&term->outside, session->peer, KELP_LOG_WARN,
                        "worker lost worker=%s reason=\"silent for %u ms\"", session->id,
                        term->options.job->failure.detect_ms);
    kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_WORKER_LOST,
                                              .who = session->id,
                                              .why = "silent for too long"});
    kelp_session_close(session, &term->outside, KELP_ERR_TIMEOUT, "silent for too long");
    member_gone(term, key, true);
}

void kelp__term_judge_workers(struct kelp_term *term)
{
    const uint64_t epoch = term->membership.assignment.epoch;
    uint64_t key =
        kelp_membership_judge(&term->membership, term->progress.word.version, term->now_ms);
    const struct kelp_member *member = kelp_membership_find(&term->membership, key);
    if (member) {
        kelp_outside_log(&term->outside, KELP_LOG_WARN,
                         "worker loses its lanes worker=%s reason=\"none of them came in time for "
                         "%u s, while others work: it is tried with one\"",
                         member->id, KELP_COORDINATOR_IDLE_MS / 1000);
    }
    kelp_membership_compare(&term->membership, term->now_ms);
    admit_waiting(term); /* one may wait for the id of an idle member */
    if (term->membership.assignment.epoch != epoch) {
        kelp__term_update_workers(term);
    }
}

/* ---- events ---- */

void kelp_term_worker_worked(struct kelp_term *term, const char *id)
{
    if (kelp_membership_worked(&term->membership, id, term->now_ms)) {
        kelp_outside_log(&term->outside, KELP_LOG_INFO, "worker has lanes again worker=%s", id);
        kelp__term_update_workers(term);
    }
}

void kelp_term_worker_pushed(struct kelp_term *term, const char *id, uint64_t steps,
                             uint64_t behind_us)
{
    kelp_membership_pushed(&term->membership, id, steps, behind_us);
}

struct kelp_session *kelp_term_worker_opened(struct kelp_term *term, void *end)
{
    return kelp_worker_sessions_add(&term->sessions, end, term->now_ms);
}

void kelp_term_worker_hello(struct kelp_term *term, struct kelp_session *session,
                            const struct kelp_session_hello *hello)
{
    session->heard_ms = term->now_ms;
    kelp_status status = kelp_session_identify(session, hello);
    if (status != KELP_OK) {
        kelp_session_close(session, &term->outside, status, kelp_status_text(status));
    } else if (term->reading.done) {
        admit(term, session);
    }
}

void kelp_term_worker_refused(struct kelp_term *term, struct kelp_session *session,
                              kelp_status status, const char *text)
{
    bool member = session->state == KELP_SESSION_MEMBER;
    if (member) {
        kelp__term_tell(term, (struct kelp_event){
                                  .kind = KELP_EVENT_WORKER_LOST, .who = session->id, .why = text});
    }
    kelp_session_refuse(session, &term->outside, status, text);
    if (member) {
        member_gone(term, session->key, true);
    }
}

static void tell_trouble(struct kelp_term *term, const struct kelp_session *session,
                         const struct kelp_member_heard *heard)
{
    const struct kelp_member *member = kelp_membership_find(&term->membership, session->key);
    const bool was_in_trouble = member && member->trouble[0] != '\0';
    const bool is_in_trouble = heard->trouble && heard->trouble[0] != '\0';
    if (member && is_in_trouble && !was_in_trouble) {
        kelp_outside_log_of(&term->outside, session->peer, KELP_LOG_WARN,
                            "worker in trouble worker=%s trouble=\"%s\"", session->id,
                            heard->trouble);
    } else if (was_in_trouble && !is_in_trouble) {
        kelp_outside_log_of(&term->outside, session->peer, KELP_LOG_INFO,
                            "worker works again worker=%s", session->id);
    }
}

void kelp_term_worker_heard(struct kelp_term *term, struct kelp_session *session,
                            const struct kelp_member_heard *heard)
{
    const uint64_t epoch = term->membership.assignment.epoch;
    if (term->outside.effects->session_full(session->end, term->outside.user)) {
        return; /* it does not read, which counts as silence */
    }
    session->heard_ms = term->now_ms;
    if (session->state != KELP_SESSION_MEMBER) {
        return;
    }
    if (heard) {
        tell_trouble(term, session, heard);
    }
    kelp_membership_heard(&term->membership, session->key, heard, term->now_ms);
    if (term->membership.assignment.epoch != epoch) {
        kelp__term_update_workers(term);
    }
}

void kelp_term_worker_closed(struct kelp_term *term, struct kelp_session *session, bool lost,
                             const char *text)
{
    bool member = session->state == KELP_SESSION_MEMBER;
    kelp_session_ended(session);
    if (member) {
        kelp_outside_log_of(&term->outside, session->peer, lost ? KELP_LOG_WARN : KELP_LOG_INFO,
                            "worker %s worker=%s reason=\"%s\"", lost ? "lost" : "left",
                            session->id, text);
        kelp__term_tell(term, (struct kelp_event){.kind = lost ? KELP_EVENT_WORKER_LOST
                                                               : KELP_EVENT_WORKER_LEFT,
                                                  .who = session->id,
                                                  .why = text});
        member_gone(term, session->key, lost);
    }
}
