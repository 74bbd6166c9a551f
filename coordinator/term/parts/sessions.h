/*
 * The leader's sessions with the workers: what each knows, and what it is told next. A session is
 * first unidentified; after its hello it is held until etcd has been read; then its plan is
 * compared, and it becomes a member with lanes. While another process has its id, or there is no
 * room, it stays held and is told why. Pure; a part of a leader's term.
 *
 *     NEW ---> HELD ---> MEMBER        and from each of them to GONE
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_SESSIONS_H
#define KELP_COORDINATOR_TERM_PARTS_SESSIONS_H

#include "coordinator/core/membership/membership.h"
#include "coordinator/term/outside/term_effects.h"

enum kelp_session_state {
    KELP_SESSION_NEW,    /* no hello yet */
    KELP_SESSION_HELD,   /* waits until etcd has been read, or for its id */
    KELP_SESSION_MEMBER, /* has a key in the membership */
    KELP_SESSION_GONE,   /* closed or ended; freed at the next sweep */
    KELP_SESSION_STATE_COUNT
};

/* What a worker was told. */
struct kelp_session_told {
    uint64_t generation; /* of the map; 0: none */
    uint64_t serial;
    struct kelp_lane_range lanes;
    uint32_t beat_ms; /* how often it is to report; 0: not told */
    bool hello;
    bool waits;
    bool has_lanes; /* these, and whether it rests */
    bool rests;
    bool leave;
    bool drain;
};

/* What every tick looks at comes first: there may be thousands. */
struct kelp_session {
    struct kelp_session *next;
    void *end; /* the process's side */
    enum kelp_session_state state;
    bool named; /* its certificate is for this id alone */
    uint64_t opened_ms;
    uint64_t heard_ms;
    uint64_t key; /* of the membership */
    uint64_t incarnation;
    struct kelp_session_told told;
    const char *peer; /* borrowed from the process while it is not GONE */
    char *plan;       /* owned; until it is settled */
    char id[KELP_COORDINATOR_ID_MAX + 1];
    char waits[160]; /* HELD: what for, since etcd has been read; "": for that */
};

struct kelp_worker_sessions {
    struct kelp_session *first; /* owned */
    uint64_t swept_ms;          /* 0: never */
};

/* What workers are to know. */
struct kelp_session_view {
    const struct kelp_map *map; /* loaded everywhere; NULL: none */
    const struct kelp_membership *membership;
    const struct kelp_targets *targets; /* who is to go */
    bool leave;
};

struct kelp_session_hello {
    const char *id; /* valid */
    uint64_t incarnation;
    bool named; /* its certificate is for this id alone */
    const char *plan;
    const char *peer; /* borrowed for the session */
};

/* NULL: no memory. */
struct kelp_session *kelp_worker_sessions_add(struct kelp_worker_sessions *sessions, void *end,
                                              uint64_t now_ms);
/* One that has said that it is of this name, or NULL; a member before others. */
const struct kelp_session *kelp_worker_sessions_find(const struct kelp_worker_sessions *sessions,
                                                     const char *id);
/* The member of that key, or NULL. */
struct kelp_session *kelp_worker_sessions_of(const struct kelp_worker_sessions *sessions,
                                             uint64_t key);
/* Close everything and free it. */
void kelp_worker_sessions_fini(struct kelp_worker_sessions *sessions,
                               const struct kelp_outside *outside);
/* Close those that never said who they are, and those that are held and silent for detect_ms; free
 * what is gone. Not while somebody walks the list. */
void kelp_worker_sessions_sweep(struct kelp_worker_sessions *sessions,
                                const struct kelp_outside *outside, uint64_t now_ms,
                                uint32_t detect_ms);
/* Who of those that wait may join now? One with a certificate for its id first, then who has waited
 * longest. NULL: nobody. */
struct kelp_session *kelp_worker_sessions_next(const struct kelp_worker_sessions *sessions,
                                               const struct kelp_membership *membership);
/* Bring every worker up to date: map, lanes, leave, how often it reports. */
void kelp_worker_sessions_update(struct kelp_worker_sessions *sessions,
                                 const struct kelp_outside *outside,
                                 const struct kelp_session_view *view);
/* The same for one of them. */
void kelp_session_update(struct kelp_session *session, const struct kelp_outside *outside,
                         const struct kelp_session_view *view);
/* The map changed: workers get it (again) as soon as it is loaded. */
void kelp_worker_sessions_map_changed(struct kelp_worker_sessions *sessions);

/* NEW to HELD. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_session_identify(struct kelp_session *session,
                                  const struct kelp_session_hello *hello) KELP_MUST_USE;
/* What the membership is to know of it. */
struct kelp_member_joined kelp_session_joined(const struct kelp_session *session);
/* It stays HELD for this reason. True: for another one than before. */
bool kelp_session_wait(struct kelp_session *session, const char *text);
/* HELD to MEMBER. */
void kelp_session_admit(struct kelp_session *session, uint64_t key);
/* Its plan is the one in etcd: its own copy is not needed any more. */
void kelp_session_drop_plan(struct kelp_session *session);
/* To GONE; with a word to the worker (refuse, close), or since its stream has ended (ended). */
void kelp_session_refuse(struct kelp_session *session, const struct kelp_outside *outside,
                         kelp_status status, const char *text);
void kelp_session_close(struct kelp_session *session, const struct kelp_outside *outside,
                        kelp_status status, const char *text);
void kelp_session_ended(struct kelp_session *session);

#endif
