/*
 * What the parts of the etcd client share: the background thread and its transfers (etcd.c,
 * etcd_call.c), what is asked (etcd_request.c) and answered (etcd_json.c), leases, watches and
 * elections.
 *
 * Threads: everything below a struct kelp_etcd belongs to its background thread, but for the fields
 * under `lock` and the endpoints, which never change. Other threads hand work over with
 * kelp__etcd_run().
 */
#ifndef KELP_COMMON_ETCD_ETCD_INTERNAL_H
#define KELP_COMMON_ETCD_ETCD_INTERNAL_H

#include <curl/curl.h>
#include <pthread.h>
#include <sys/queue.h>

#include "common/etcd/etcd.h"
#include "common/etcd/etcd_endpoint.h"

/* Limits: unit, value, reason. */
enum {
    ETCD_REQUEST_MAX = 1 << 20,       /* bytes of keys and values; etcd refuses 1.5 MB */
    ETCD_ANSWER_MAX = 16 << 20,       /* bytes of JSON: a listing of several largest values */
    ETCD_ERROR_ANSWER_MAX = 64 << 10, /* bytes of an answer that reports an error */
    ETCD_KEY_MAX = 4096,              /* bytes of a key, with the NUL */
    ETCD_KEYS_MAX = 65536,            /* keys of one listing or one watch */
    ETCD_OPERATIONS_MAX = 128,        /* etcd's own limit for a transaction */
    ETCD_CONNECT_MS = 1000,           /* a host on the network that does not answer */
    ETCD_ATTEMPT_MS = 2000,           /* a member that is stopped: another one is asked then */
    ETCD_BACKOFF_MIN_MS = 50,         /* between attempts: quick enough for a restart ... */
    ETCD_BACKOFF_MAX_MS = 500,        /* ... and no load while etcd is away */
    ETCD_ELECT_MS = 300,              /* for a transaction of an election ... */
    ETCD_ELECT_TRIES = 8,             /* ... so often; then ever longer */
    ETCD_STAND_BACK_MS = 1000,        /* who was deposed lets those who did it go first */
    ETCD_LEASE_TTL_MAX_S = 3600,      /* a typing mistake beyond that */
    ETCD_REVOKE_MS = 1000,            /* giving a lease back, when closing */
    ETCD_LOGIN_MS = 5000,             /* etcd spends 0.1 s on a password, each after the other */
    ETCD_LOGINS_MAX = 3,              /* that one call waits for */
    ETCD_TOKEN_MAX = 1024,            /* bytes; a signed one of etcd's has some hundred */
    ETCD_WATCH_PROBE_MS = 2000,       /* a watch without news asks for a sign of life */
    ETCD_WATCH_FRESH_MS = 500,        /* a younger one is not doubted */
    ETCD_WATCH_SILENCE_MS = 6000,     /* without any: the connection is dead */
};

/* ---- buffers: growing bytes with a limit ---- */

struct etcd_buffer {
    char *bytes; /* NUL-terminated once something was put in; owned */
    size_t used;
    size_t capacity;
    size_t max; /* bytes, without the NUL */
};

/* Errors: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY; nothing is added then. */
kelp_status kelp__etcd_buffer_add(struct etcd_buffer *buffer, const void *bytes,
                                  size_t count) KELP_MUST_USE;
void kelp__etcd_buffer_drop(struct etcd_buffer *buffer, size_t count); /* from its beginning */
void kelp__etcd_buffer_fini(struct etcd_buffer *buffer);

/* ---- requests (etcd_request.c) and answers (etcd_json.c): pure ---- */

/* The key behind all that begin with prefix, as etcd's range_end (which may hold a zero byte). */
kelp_status kelp__etcd_prefix_end(const char *prefix, char ret_end[ETCD_KEY_MAX],
                                  size_t *ret_bytes) KELP_MUST_USE;

/* Requests: each fills an empty buffer. Errors: KELP_ERR_LIMIT, KELP_ERR_INVALID,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp__etcd_encode_range(const char *key, bool prefix, struct etcd_buffer *ret_body,
                                    struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_encode_next(const char *from, struct etcd_buffer *ret_body,
                                   struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_encode_put(const char *key, const char *value, int64_t lease,
                                  struct etcd_buffer *ret_body,
                                  struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_encode_transaction(const struct kelp_etcd_compare *compares,
                                          size_t compare_count,
                                          const struct kelp_etcd_operation *operations,
                                          size_t operation_count, struct etcd_buffer *ret_body,
                                          struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_encode_grant(uint32_t ttl_s, struct etcd_buffer *ret_body,
                                    struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_encode_lease_id(int64_t id, struct etcd_buffer *ret_body,
                                       struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_encode_watch(const char *key, bool prefix, int64_t start_revision,
                                    struct etcd_buffer *ret_body,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/* Answers. All are strict: a field of a wrong type, a number out of range, a bad base64 text or a
 * missing header is KELP_ERR_FORMAT; a field that is left out has its default value. */
kelp_status kelp__etcd_decode_range(const char *bytes, size_t count,
                                    struct kelp_etcd_range *ret_range,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* An answer of which only the header's revision matters: put, delete, revoke. */
kelp_status kelp__etcd_decode_header(const char *bytes, size_t count, int64_t *ret_revision,
                                     struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_decode_transaction(const char *bytes, size_t count, bool *ret_succeeded,
                                          int64_t *ret_revision,
                                          struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_decode_grant(const char *bytes, size_t count, int64_t *ret_id,
                                    int64_t *ret_ttl_s, struct kelp_error *reterr) KELP_MUST_USE;
/* *ret_ttl_s is 0 when the lease is gone. */
kelp_status kelp__etcd_decode_keep_alive(const char *bytes, size_t count, int64_t *ret_ttl_s,
                                         struct kelp_error *reterr) KELP_MUST_USE;

/* All but the date, which is the transfer's. */
kelp_status kelp__etcd_decode_health(const char *bytes, size_t count,
                                     struct kelp_etcd_health *ret_health,
                                     struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_decode_members(const char *bytes, size_t count,
                                      struct kelp_etcd_members *ret_members,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/* {"error", "message", "code"} of an answer that is not 200. KELP_ERR_FORMAT when it is not one. */
struct etcd_refusal {
    int code; /* gRPC's */
    char message[256];
};
kelp_status kelp__etcd_decode_refusal(const char *bytes, size_t count,
                                      struct etcd_refusal *ret_refusal) KELP_MUST_USE;

struct etcd_event {
    bool deleted;
    struct kelp_etcd_pair pair; /* of a deleted key only key and mod_revision count */
};

/* One line of a watch's stream. */
struct etcd_watch_answer {
    int64_t revision;
    bool created;
    bool canceled;
    int64_t compact_revision; /* 0: none */
    char reason[256];         /* of a cancellation or an error; may be empty */
    bool failed;              /* {"error": ...}: the stream is over */
    struct etcd_event *events;
    size_t event_count;
};
kelp_status kelp__etcd_decode_watch(const char *bytes, size_t count,
                                    struct etcd_watch_answer *ret_answer,
                                    struct kelp_error *reterr) KELP_MUST_USE;
void kelp__etcd_watch_answer_fini(struct etcd_watch_answer *answer);

/* ---- the thread ---- */

/* Fires once, on the thread, when at_ms (kelp__etcd_now_ms()) has come; at_ms is INT64_MAX while it
 * is off. */
struct etcd_timer {
    int64_t at_ms;
    void (*fire)(void *user);
    void *user;
    LIST_ENTRY(etcd_timer) link;
};

/* One HTTP transfer; ended() runs on the thread, never inside a curl callback. */
struct etcd_transfer {
    CURL *curl;                 /* NULL: none is running */
    struct curl_slist *headers; /* its own */
    bool streams;               /* set before: the body has no known end */
    void (*ended)(struct etcd_transfer *transfer, CURLcode code);
};

enum etcd_call_kind {
    ETCD_REPEATABLE, /* reads, keep-alives: sent again until the deadline */
    ETCD_ONCE,       /* writes: never sent again once an attempt may have been applied */
};

/* A request and its answer. */
struct etcd_call {
    struct kelp_etcd *etcd;
    const char *path; /* "/v3/kv/range"; static */
    enum etcd_call_kind kind;
    struct etcd_buffer body;
    int64_t deadline_ms;
    int64_t not_before_ms; /* the first attempt starts then; 0: at once */
    uint32_t attempt_ms;   /* limit of one attempt; 0: all that is left */
    /* On the thread; may free the call. */
    void (*done)(struct etcd_call *call, void *user);
    void *user;

    kelp_status status; /* KELP_OK: answer holds the body of a 200 */
    /* Between attempts, why the last one failed that the deadline did not cut short. */
    struct kelp_error error;
    struct etcd_buffer answer;

    int64_t date_s;   /* of the answer, by the clock of who answered; 0: it has none */
    bool answer_over; /* the answer was over its limit */
    bool is_login;
    bool is_secret;        /* the body is wiped */
    bool waits;            /* for the login: it is in the list of those */
    unsigned logins;       /* that it has waited for */
    uint64_t token_number; /* that the running attempt shows */
    LIST_ENTRY(etcd_call) wait_link;
    struct etcd_transfer transfer;
    char trouble[CURL_ERROR_SIZE]; /* of the running attempt, in curl's words */
    int64_t attempt_began_ms;
    bool cut_short; /* the attempt that ended had too little time left to say anything of etcd */
    struct etcd_timer retry;
    unsigned attempts;
    size_t endpoint; /* of the running attempt */
};

struct etcd_post {
    void (*run)(struct kelp_etcd *etcd, void *user);
    void *user;
    bool done;
    TAILQ_ENTRY(etcd_post) link;
};

struct kelp_etcd {
    char (*endpoints)[KELP_ETCD_ENDPOINT_MAX + 1]; /* "http://127.0.0.1:2379"; never changes */
    size_t endpoint_count;
    struct kelp_etcd_certificates *certificates; /* NULL: none */

    char *login_folder;             /* where a name and a password are; NULL: nowhere */
    struct etcd_call *login;        /* in progress, or NULL */
    LIST_HEAD(, etcd_call) waiting; /* for it */
    char *token;                    /* "Authorization: TOKEN" of the newest login; NULL: none */
    uint64_t token_number;          /* of that login */

    size_t endpoint; /* the one tried first */
    CURLM *multi;
    LIST_HEAD(, etcd_timer) timers;
    size_t call_count; /* running or waiting for another attempt */
    LIST_HEAD(, kelp_etcd_lease) leases;
    LIST_HEAD(, kelp_etcd_watch) watches;
    LIST_HEAD(, kelp_etcd_election) elections;
    bool closing; /* ends with the last call */

    pthread_t thread;
    pthread_mutex_t lock;   /* posts, their `done`, and that of blocking calls */
    pthread_cond_t changed; /* a post or a call is done */
    TAILQ_HEAD(, etcd_post) posts;
};

int64_t kelp__etcd_now_ms(void);

/* Run a function on the thread and wait until it returned. Not from a callback. */
void kelp__etcd_run(struct kelp_etcd *etcd, void (*run)(struct kelp_etcd *etcd, void *user),
                    void *user);

/* The following are for the thread alone. */
void kelp__etcd_timer_init(struct kelp_etcd *etcd, struct etcd_timer *timer,
                           void (*fire)(void *user), void *user);
void kelp__etcd_timer_fini(struct etcd_timer *timer);

/* Settings that every transfer has: no proxy, HTTP/1.1, no signals, POST, JSON. */
kelp_status kelp__etcd_transfer_prepare(struct kelp_etcd *etcd, struct etcd_transfer *transfer,
                                        const char *path, size_t endpoint) KELP_MUST_USE;
kelp_status kelp__etcd_transfer_start(struct kelp_etcd *etcd,
                                      struct etcd_transfer *transfer) KELP_MUST_USE;
void kelp__etcd_transfer_end(struct kelp_etcd *etcd, struct etcd_transfer *transfer);
/* An endpoint failed: try the next one first from now on, unless that was decided already. */
void kelp__etcd_endpoint_failed(struct kelp_etcd *etcd, size_t endpoint);

/* What etcd refused, as our status; KELP_ERR_UNREACHABLE when it may do it a little later. */
kelp_status kelp__etcd_refusal_status(const struct etcd_refusal *refusal);

/* ---- calls (etcd_call.c) ---- */

/* An empty call; its body is to be filled. Any thread. */
struct etcd_call *kelp__etcd_call_create(struct kelp_etcd *etcd, const char *path,
                                         enum etcd_call_kind kind, uint32_t deadline_ms);
void kelp__etcd_call_destroy(struct etcd_call *call);
/* Thread: start; done() follows, never from inside. */
void kelp__etcd_call_start(struct etcd_call *call);
/* Thread: stop; done() does not run. The call stays to be destroyed. */
void kelp__etcd_call_cancel(struct etcd_call *call);
/* Any other thread: start and wait; returns call->status and fills reterr. */
kelp_status kelp__etcd_call_run(struct etcd_call *call, struct kelp_error *reterr) KELP_MUST_USE;

/* Thread: it failed for good; done() runs inside. */
void kelp__etcd_call_fail(struct etcd_call *call, kelp_status status, const char *what);

/* ---- users (etcd_login.c) ---- */

/* Does etcd refuse because of who asks, or because nobody does? */
bool kelp__etcd_wants_login(const struct etcd_refusal *refusal);
/* Thread: try the call again once somebody is logged in; it may fail inside. */
void kelp__etcd_login_wait(struct etcd_call *call);
/* Thread: it waits no more. */
void kelp__etcd_login_leave(struct etcd_call *call);
/* Thread: wait for no login any more. */
void kelp__etcd_login_cancel(struct kelp_etcd *etcd);
void kelp__etcd_forget_token(struct kelp_etcd *etcd);

/* Members of an object; no text holds what JSON would have to escape. */
struct etcd_text {
    const char *name, *value;
};
kelp_status kelp__etcd_encode_texts(const struct etcd_text *texts, size_t count,
                                    struct etcd_buffer *ret_body,
                                    struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_encode_permission(const char *role,
                                         const struct kelp_etcd_permission *permission,
                                         struct etcd_buffer *ret_body,
                                         struct kelp_error *reterr) KELP_MUST_USE;
/* *ret_token is owned. */
kelp_status kelp__etcd_decode_token(const char *bytes, size_t count, char **ret_token,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/* Errors: KELP_ERR_INVALID, naming what is allowed. Any thread. */
kelp_status kelp__etcd_check_key(const char *key, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__etcd_check_ttl(uint32_t ttl_s, struct kelp_error *reterr) KELP_MUST_USE;

/* ---- leases, watches, elections: what they offer one another on the thread ---- */

struct kelp_etcd_lease *kelp__etcd_lease_start(struct kelp_etcd *etcd, int64_t id, uint32_t ttl_s,
                                               int64_t granted_ms, void (*lost)(void *user),
                                               void *user);
/* Stops the keep-alive, frees; the id of the lease, which lives on in etcd (0: it is lost). */
int64_t kelp__etcd_lease_end(struct kelp_etcd_lease *lease);
/* Revoke in the background, at most ETCD_REVOKE_MS; nobody waits but kelp_etcd_close(). 0: nothing.
 */
void kelp__etcd_revoke(struct kelp_etcd *etcd, int64_t id);
/* Revoke and wait; from another thread. */
void kelp__etcd_revoke_wait(struct kelp_etcd *etcd, int64_t id);

/* A watch of a prefix or of one key, with revisions in removed(). */
struct etcd_watch_hooks {
    void (*changed)(const struct kelp_etcd_pair *pair, void *user);
    void (*removed)(const char *key, int64_t revision, void *user);
    void (*synced)(int64_t revision, void *user);
    void (*trouble)(kelp_status status, const char *text, void *user);
};
struct kelp_etcd_watch *kelp__etcd_watch_start(struct kelp_etcd *etcd, const char *key, bool prefix,
                                               const struct etcd_watch_hooks *hooks, void *user);
void kelp__etcd_watch_end(struct kelp_etcd_watch *watch);
/* Called by the thread after each turn of curl: handle the lines that arrived. */
void kelp__etcd_watches_work(struct kelp_etcd *etcd);
/* Ends and frees an election; the id of its lease, to be revoked (0: none). */
int64_t kelp__etcd_election_end(struct kelp_etcd_election *election);

#endif
