#include "coordinator/term/parts/sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/state_table.h"

static const struct kelp_state states[KELP_SESSION_STATE_COUNT] = {
    [KELP_SESSION_NEW] = {"new",
                          KELP_STATE_BIT(KELP_SESSION_HELD) | KELP_STATE_BIT(KELP_SESSION_GONE)},
    [KELP_SESSION_HELD] = {"held",
                           KELP_STATE_BIT(KELP_SESSION_MEMBER) | KELP_STATE_BIT(KELP_SESSION_GONE)},
    [KELP_SESSION_MEMBER] = {"member", KELP_STATE_BIT(KELP_SESSION_GONE)},
    [KELP_SESSION_GONE] = {"gone", 0},
};
static const struct kelp_state_table table = KELP_STATE_TABLE(states);

static void move_to(struct kelp_session *session, enum kelp_session_state state)
{
    session->state = kelp_state_move(&table, session->state, state);
}

/* ---- the table ---- */

struct kelp_session *kelp_worker_sessions_add(struct kelp_worker_sessions *sessions, void *end,
                                              uint64_t now_ms)
{
    struct kelp_session *session = calloc(1, sizeof(*session));
    if (session) {
        session->end = end;
        session->opened_ms = now_ms;
        session->heard_ms = now_ms;
        session->next = sessions->first;
        sessions->first = session;
    }
    return session;
}

struct kelp_session *kelp_worker_sessions_of(const struct kelp_worker_sessions *sessions,
                                             uint64_t key)
{
    struct kelp_session *session = sessions->first;
    while (session && (session->state != KELP_SESSION_MEMBER || session->key != key)) {
        session = session->next;
    }
    return session;
}

const struct kelp_session *kelp_worker_sessions_find(const struct kelp_worker_sessions *sessions,
                                                     const char *id)
{
    const struct kelp_session *found = NULL;
    for (const struct kelp_session *session = sessions->first; session; session = session->next) {
        bool member = session->state == KELP_SESSION_MEMBER;
        if ((member || session->state == KELP_SESSION_HELD) && (member || !found) &&
            strcmp(session->id, id) == 0) {
            found = session;
        }
    }
    return found;
}

static void destroy(struct kelp_session *session)
{
    free(session->plan);
    free(session);
}

void kelp_worker_sessions_fini(struct kelp_worker_sessions *sessions,
                               const struct kelp_outside *outside)
{
    while (sessions->first) {
        struct kelp_session *session = sessions->first;
        sessions->first = session->next;
        if (session->state != KELP_SESSION_GONE) {
            kelp_session_close(session, outside, KELP_ERR_NOT_LEADER,
                               "this coordinator does not lead any more");
        }
        destroy(session);
    }
}

/* If the sweeps paused, this process was stopped, and no worker is silent for that. */
static bool is_overslept(const struct kelp_worker_sessions *sessions, uint64_t now_ms)
{
    return sessions->swept_ms == 0 || now_ms > sessions->swept_ms + 5u * KELP_COORDINATOR_TICK_MS;
}

static void close_silent(struct kelp_session *session, const struct kelp_outside *outside,
                         uint64_t now_ms, uint32_t detect_ms)
{
    if (session->state == KELP_SESSION_NEW &&
        now_ms > session->opened_ms + KELP_COORDINATOR_HELLO_MS) {
        kelp_session_close(session, outside, KELP_ERR_TIMEOUT, "no hello");
    } else if (session->state == KELP_SESSION_HELD && now_ms > session->heard_ms + detect_ms) {
        kelp_session_close(session, outside, KELP_ERR_TIMEOUT, "silent for too long");
    }
}

void kelp_worker_sessions_sweep(struct kelp_worker_sessions *sessions,
                                const struct kelp_outside *outside, uint64_t now_ms,
                                uint32_t detect_ms)
{
    const bool overslept = is_overslept(sessions, now_ms);
    struct kelp_session **at = &sessions->first;
    sessions->swept_ms = now_ms;
    while (*at) {
        struct kelp_session *session = *at;
        if (overslept) {
            session->heard_ms = now_ms;
        }
        close_silent(session, outside, now_ms, detect_ms);
        if (session->state == KELP_SESSION_GONE) {
            *at = session->next;
            destroy(session);
        } else {
            at = &session->next;
        }
    }
}

/* Among equal ones the oldest goes first; it comes last in the list. */
static bool goes_first(const struct kelp_session *session, const struct kelp_session *best)
{
    return !best || session->named > best->named ||
           (session->named == best->named && session->opened_ms <= best->opened_ms);
}

struct kelp_session *kelp_worker_sessions_next(const struct kelp_worker_sessions *sessions,
                                               const struct kelp_membership *membership)
{
    struct kelp_session *best = NULL;
    for (struct kelp_session *session = sessions->first; session; session = session->next) {
        if (session->state != KELP_SESSION_HELD || session->waits[0] == '\0') {
            continue;
        }
        struct kelp_member_joined joined = kelp_session_joined(session);
        if (goes_first(session, best) &&
            kelp_membership_may_join(membership, &joined, NULL) == KELP_OK) {
            best = session;
        }
    }
    return best;
}

/* ---- sending ---- */

static void add_lanes(const struct kelp_session *session, const struct kelp_session_view *view,
                      struct kelp_session_told *told, struct kelp_session_news *news)
{
    struct kelp_lane_range lanes = kelp_membership_lanes(view->membership, session->key);
    bool rests = kelp_membership_rests(view->membership);
    if (told->has_lanes && lanes.first == told->lanes.first && lanes.count == told->lanes.count &&
        rests == told->rests) {
        return;
    }
    news->has_lanes = true;
    news->rests = rests;
    news->assignment_epoch = view->membership->assignment.epoch;
    news->lanes = lanes;
    told->rests = rests;
    told->lanes = lanes;
    told->has_lanes = true;
}

static void add_map(const struct kelp_session_view *view, struct kelp_session_told *told,
                    struct kelp_session_news *news)
{
    if (view->map &&
        (told->generation != view->map->generation || told->serial != view->map->serial)) {
        news->map = view->map;
        told->generation = view->map->generation;
        told->serial = view->map->serial;
    }
}

/* What the worker has not been told yet, and what it has been told once this is sent. */
static void add_news(const struct kelp_session *session, const struct kelp_session_view *view,
                     struct kelp_session_told *told, struct kelp_session_news *news)
{
    const uint32_t beat_ms = kelp_membership_beat_ms(view->membership);
    news->hello = !told->hello;
    told->hello = true;
    if (session->state == KELP_SESSION_MEMBER) {
        add_map(view, told, news);
        add_lanes(session, view, told, news);
    } else if (session->waits[0] != '\0' && !told->waits) {
        news->waits = session->waits;
        told->waits = true;
    }
    if (view->leave && !told->leave) {
        news->leave = true;
        told->leave = true;
    }
    if (!told->drain && kelp_targets_drain(view->targets, session->id, session->incarnation)) {
        news->drain = true;
        told->drain = true;
    }
    if (told->beat_ms != beat_ms) {
        news->beat_ms = beat_ms;
        told->beat_ms = beat_ms;
    }
}

static bool is_any(const struct kelp_session_news *news)
{
    return news->hello || news->map || news->has_lanes || news->waits || news->leave ||
           news->drain || news->beat_ms > 0;
}

/* A worker that does not read counts as silent (kelp_term_worker_heard()). */
void kelp_session_update(struct kelp_session *session, const struct kelp_outside *outside,
                         const struct kelp_session_view *view)
{
    struct kelp_session_news news = {.hello = false};
    struct kelp_session_told told = session->told;
    if (session->state != KELP_SESSION_HELD && session->state != KELP_SESSION_MEMBER) {
        return;
    }
    add_news(session, view, &told, &news);
    if (is_any(&news) && !outside->effects->session_full(session->end, outside->user)) {
        session->told = told;
        outside->effects->session_send(session->end, &news, outside->user);
    }
}

void kelp_worker_sessions_update(struct kelp_worker_sessions *sessions,
                                 const struct kelp_outside *outside,
                                 const struct kelp_session_view *view)
{
    for (struct kelp_session *session = sessions->first; session; session = session->next) {
        kelp_session_update(session, outside, view);
    }
}

void kelp_worker_sessions_map_changed(struct kelp_worker_sessions *sessions)
{
    for (struct kelp_session *session = sessions->first; session; session = session->next) {
        session->told.generation = 0;
    }
}

/* ---- one session ---- */

kelp_status kelp_session_identify(struct kelp_session *session,
                                  const struct kelp_session_hello *hello)
{
    (void)snprintf(session->id, sizeof(session->id), "%s", hello->id);
    session->incarnation = hello->incarnation;
    session->named = hello->named;
    session->peer = hello->peer;
    session->plan = strdup(hello->plan);
    if (!session->plan) {
        return KELP_ERR_NO_MEMORY;
    }
    move_to(session, KELP_SESSION_HELD);
    return KELP_OK;
}

struct kelp_member_joined kelp_session_joined(const struct kelp_session *session)
{
    return (struct kelp_member_joined){.kind = KELP_MEMBER_WORKER,
                                       .id = session->id,
                                       .incarnation = session->incarnation,
                                       .named = session->named};
}

bool kelp_session_wait(struct kelp_session *session, const char *text)
{
    if (strncmp(session->waits, text, sizeof(session->waits) - 1) == 0) {
        return false;
    }
    (void)snprintf(session->waits, sizeof(session->waits), "%s", text); /* may be cut */
    session->told.waits = false;
    return true;
}

void kelp_session_admit(struct kelp_session *session, uint64_t key)
{
    move_to(session, KELP_SESSION_MEMBER);
    session->key = key;
}

void kelp_session_drop_plan(struct kelp_session *session)
{
    free(session->plan);
    session->plan = NULL;
}

void kelp_session_refuse(struct kelp_session *session, const struct kelp_outside *outside,
                         kelp_status status, const char *text)
{
    move_to(session, KELP_SESSION_GONE);
    outside->effects->session_refuse(session->end, !session->told.hello, status, text,
                                     outside->user);
}

void kelp_session_close(struct kelp_session *session, const struct kelp_outside *outside,
                        kelp_status status, const char *text)
{
    move_to(session, KELP_SESSION_GONE);
    outside->effects->session_close(session->end, status, text, outside->user);
}

void kelp_session_ended(struct kelp_session *session)
{
    move_to(session, KELP_SESSION_GONE);
}
