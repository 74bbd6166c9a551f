/*
 * An etcd v3 client over the JSON gateway with libcurl.
 *
 * One background thread per client runs all transfers. Blocking calls have a deadline; watches,
 * leases and elections run by themselves and report by callback on that thread. A callback must not
 * block, nor call a function of the same client, except kelp_etcd_lease_id(): they wait for the
 * thread, and assert this. Post to your own loop instead. No proxy is used. With several endpoints,
 * the next one is tried if one cannot be reached.
 *
 * Errors of every call: KELP_ERR_UNREACHABLE (no endpoint answered in time: the request was
 * certainly not applied, or is a read), KELP_ERR_TIMEOUT (a write that may have been applied: its
 * answer was lost), KELP_ERR_LIMIT (a request over 1 MiB, an answer over 16), KELP_ERR_FORMAT (an
 * answer that is not etcd's), KELP_ERR_NO_MEMORY; and etcd's own refusals: KELP_ERR_NOT_FOUND (no
 * such lease), KELP_ERR_DENIED (no permission, or no login), KELP_ERR_NO_SPACE (its store is full),
 * KELP_ERR_BUSY, KELP_ERR_INVALID. The text names the endpoint.
 *
 * Keys are texts of 1 to 4095 bytes, values texts; both without a zero byte when they are ours.
 */
#ifndef KELP_COMMON_ETCD_ETCD_H
#define KELP_COMMON_ETCD_ETCD_H

#include <stdint.h>

#include "common/base/status.h"

struct kelp_etcd;

struct kelp_etcd_pair {
    char *key; /* NUL-terminated */
    char *value;
    size_t value_bytes;
    int64_t create_revision;
    int64_t mod_revision;
    int64_t version;
    int64_t lease; /* 0: none */
};

struct kelp_etcd_range {
    struct kelp_etcd_pair *pairs; /* key order */
    size_t count;
    int64_t revision; /* of the store when it was read */
};
void kelp_etcd_range_fini(struct kelp_etcd_range *range);

/* endpoints: "http://127.0.0.1:2379" or "unix:/PATH" (etcd_endpoint.h), several separated by
 * commas. curl_global_init() was called by main(). */
kelp_status kelp_etcd_open(const char *endpoints, struct kelp_etcd **ret_etcd,
                           struct kelp_error *reterr) KELP_MUST_USE;
/* The same for endpoints with mutual TLS: folder has ca.pem, cert.pem and key.pem, which are read
 * for each new connection. When etcd has users, the client logs in with the name and password of
 * the file etcd-login there (common/tls/login.h). Endpoints are https:// or unix: then:
 * KELP_ERR_INVALID otherwise. NULL as the folder: kelp_etcd_open(). */
kelp_status kelp_etcd_open_certified(const char *endpoints, const char *folder,
                                     struct kelp_etcd **ret_etcd,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Ends and frees its watches, elections and leases; leases are revoked as far as etcd answers
 * within 1 s. No call may be running. No callback runs after it returned. NULL is fine. */
void kelp_etcd_close(struct kelp_etcd *etcd);

/* One key, or all keys that begin with a prefix (not empty). Missing is not an error: count is 0.
 * *ret_range is the caller's: kelp_etcd_range_fini(). */
kelp_status kelp_etcd_get(struct kelp_etcd *etcd, const char *key, uint32_t deadline_ms,
                          struct kelp_etcd_range *ret_range,
                          struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_etcd_get_prefix(struct kelp_etcd *etcd, const char *prefix, uint32_t deadline_ms,
                                 struct kelp_etcd_range *ret_range,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* The first key that is not before `from`, without its value; count is 0 if there is none. A user
 * of an etcd that has users may not ask that: KELP_ERR_DENIED. */
kelp_status kelp_etcd_get_next(struct kelp_etcd *etcd, const char *from, uint32_t deadline_ms,
                               struct kelp_etcd_range *ret_range,
                               struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_etcd_put(struct kelp_etcd *etcd, const char *key, const char *value, int64_t lease,
                          uint32_t deadline_ms, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_etcd_delete_prefix(struct kelp_etcd *etcd, const char *prefix,
                                    uint32_t deadline_ms, struct kelp_error *reterr) KELP_MUST_USE;

/* Compare-and-swap: all compares hold, then all operations are applied, in one transaction. */
struct kelp_etcd_compare {
    const char *key;
    enum { KELP_ETCD_CREATE_REVISION, KELP_ETCD_MOD_REVISION } what;
    int64_t revision; /* 0: the key must not exist */
};
struct kelp_etcd_operation {
    const char *key;
    const char *value; /* NULL: delete */
    int64_t lease;
};
struct kelp_etcd_transaction {
    const struct kelp_etcd_compare *compares;
    size_t compare_count;
    const struct kelp_etcd_operation *operations;
    size_t operation_count;
    const char *nonce_key; /* may be NULL */
    uint32_t deadline_ms;
};
/*
 * *ret_succeeded says whether it was applied; *ret_revision (may be NULL) is the store's revision
 * then.
 *
 * nonce_key   makes a lost answer harmless: a key that the transaction puts, with a value that is
 *             put only once, by this caller (for example with a nonce in it). After a lost answer
 *             the key is read: our value there means success; otherwise the transaction is sent
 *             again. NULL: a lost answer is KELP_ERR_TIMEOUT.
 *
 * With a nonce_key the compares must fail once the transaction was applied (create revision 0, or
 * the mod revision of a key that it puts), else it might be applied twice. If somebody overwrites
 * our value between the lost answer and the read, it counts as not applied.
 */
kelp_status kelp_etcd_transaction(struct kelp_etcd *etcd,
                                  const struct kelp_etcd_transaction *transaction,
                                  bool *ret_succeeded, int64_t *ret_revision,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/*
 * A lease, kept alive by the client's thread every third of its time to live until closed. lost()
 * is called once: when etcd says that it is gone, or when no keep-alive got through for its whole
 * time to live. ttl_s: 1 to 3600, whole seconds; etcd grants at least 2 with its default settings.
 */
struct kelp_etcd_lease;
struct kelp_etcd_lease_options {
    uint32_t ttl_s;
    uint32_t deadline_ms; /* of the grant */
    void (*lost)(void *user);
    void *user;
};
kelp_status kelp_etcd_lease_open(struct kelp_etcd *etcd,
                                 const struct kelp_etcd_lease_options *options,
                                 struct kelp_etcd_lease **ret_lease,
                                 struct kelp_error *reterr) KELP_MUST_USE;
int64_t kelp_etcd_lease_id(const struct kelp_etcd_lease *lease);
/* revoke: remove its keys at once (waits for etcd, at most 1 s); otherwise they go when it expires.
 */
void kelp_etcd_lease_close(struct kelp_etcd_lease *lease, bool revoke);

/*
 * Watch a prefix. The callbacks describe the whole state: changed() for each key that exists or
 * changed, removed() for each removed key, synced() after the first listing and after each later
 * one. After a broken or silent connection (a heartbeat is requested every 2 s; 6 s without one end
 * it) or a compaction, it lists again and reports the differences: a key that changed twice
 * meanwhile is reported once, one that came and went is not reported. Retries until closed.
 *
 * trouble() reports, for a log, each time that the connection broke or failed; may be NULL. Pairs,
 * keys and texts are borrowed until the callback returns.
 */
struct kelp_etcd_watch;
struct kelp_etcd_watch_events {
    void (*changed)(const struct kelp_etcd_pair *pair, void *user);
    void (*removed)(const char *key, void *user);
    void (*synced)(int64_t revision, void *user); /* may be NULL */
    void (*trouble)(kelp_status status, const char *text, void *user);
};
kelp_status kelp_etcd_watch_open(struct kelp_etcd *etcd, const char *prefix,
                                 const struct kelp_etcd_watch_events *events, void *user,
                                 struct kelp_etcd_watch **ret_watch,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_etcd_watch_close(struct kelp_etcd_watch *watch); /* no callback runs after it returned */
/* The watch may be stale, because its connection is dead. Lists again, at another endpoint, unless
 * a listing began within the last half second. */
void kelp_etcd_watch_doubt(struct kelp_etcd_watch *watch);

/*
 * Stand for election on a key: created with a lease, value is ours. elected() with the key's create
 * revision (every write of a leader compares it); deposed() when the key or the lease is gone, or
 * when no keep-alive got through for ttl_s. After deposed() the election runs again by itself; if
 * somebody deleted the key, it first waits a second for others.
 */
struct kelp_etcd_election;
struct kelp_etcd_election_events {
    void (*elected)(int64_t create_revision, void *user);
    void (*deposed)(const char *why, void *user);
    /* Called before each attempt to create the key, for its value; may be NULL: options->value. The
     * text is copied. Returning NULL postpones the attempt. */
    const char *(*renew)(void *user);
};
struct kelp_etcd_election_options {
    const char *key, *value; /* copied */
    uint32_t ttl_s;
    const struct kelp_etcd_election_events *events; /* copied */
    void *user;
};
kelp_status kelp_etcd_election_open(struct kelp_etcd *etcd,
                                    const struct kelp_etcd_election_options *options,
                                    struct kelp_etcd_election **ret_election,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Delete the key, if it was created at that revision, and stand for election at once. Does nothing
 * if the key has another revision, is gone, or is ours. If etcd does not answer, the caller may
 * retry. */
void kelp_etcd_election_depose(struct kelp_etcd_election *election, int64_t create_revision);
/* Resign: the next candidate is elected at once (waits for etcd, at most 1 s). deposed() is not
 * called.
 */
void kelp_etcd_election_close(struct kelp_etcd_election *election);

/*
 * Users of an etcd and their roles. Both are created, or changed if they exist. Names and passwords
 * are as in common/tls/login.h.
 */
struct kelp_etcd_permission {
    const char *key;
    bool prefix; /* all keys that begin so */
    bool write;  /* as well as read */
};
kelp_status kelp_etcd_set_role(struct kelp_etcd *etcd, const char *role,
                               const struct kelp_etcd_permission *permissions, size_t count,
                               uint32_t deadline_ms, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_etcd_set_user(struct kelp_etcd *etcd, const char *user, const char *password,
                               const char *role, uint32_t deadline_ms,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* From now on everybody must log in. Requires a user root with the role root. Errors: also
 * KELP_ERR_INVALID (there is none). */
kelp_status kelp_etcd_enable_users(struct kelp_etcd *etcd, uint32_t deadline_ms,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* Has the client had to log in for a call so far? */
bool kelp_etcd_has_login(struct kelp_etcd *etcd);

/*
 * A member's status. With several endpoints any may answer: use a client per endpoint. An etcd
 * without a quorum answers too.
 */
struct kelp_etcd_health {
    uint64_t member; /* its id */
    uint64_t leader; /* of the one that leads; 0: it knows of none, and nothing can be written */
    char version[32];
    char errors[256]; /* its reported errors, such as a full store; "": none */
    int64_t date_s;   /* its host's clock when it answered, seconds since 1970; 0: unknown */
};
kelp_status kelp_etcd_health(struct kelp_etcd *etcd, uint32_t deadline_ms,
                             struct kelp_etcd_health *ret_health,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* The members that one knows of, itself included. */
#define KELP_ETCD_MEMBERS_MAX 64 /* a cluster has 3 to 7 */
struct kelp_etcd_member {
    uint64_t id;
    char name[64]; /* "": it has not started yet */
    char url[256]; /* the first at which it serves clients, as it says; "": none */
};
struct kelp_etcd_members {
    struct kelp_etcd_member list[KELP_ETCD_MEMBERS_MAX];
    size_t count;
};
kelp_status kelp_etcd_members(struct kelp_etcd *etcd, uint32_t deadline_ms,
                              struct kelp_etcd_members *ret_members,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif
