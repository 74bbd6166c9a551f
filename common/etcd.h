/*
 * An etcd v3 client over the JSON gateway with libcurl.
 *
 * One background thread per client runs all transfers. Blocking calls have a deadline; watches,
 * leases and elections run by themselves and report by callback on that thread (a callback must not
 * block or call a blocking function of the same client; post to your own loop). Nothing asks a
 * proxy. Several endpoints: the next one is tried when one cannot be reached.
 *
 * Errors: KELP_ERR_UNREACHABLE (no endpoint answered in time: the request was certainly not
 * applied, or is a read), KELP_ERR_TIMEOUT (it may have been applied), KELP_ERR_LIMIT (over 1 MiB),
 * KELP_ERR_FORMAT (an answer that is not etcd's).
 */
#ifndef KELP_COMMON_ETCD_H
#define KELP_COMMON_ETCD_H

#include <stdint.h>

#include "common/status.h"

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

/* endpoints: "http://127.0.0.1:2379", several separated by commas. curl_global_init() was called by
 * main(). */
kelp_status kelp_etcd_open(const char *endpoints, struct kelp_etcd **ret_etcd,
                           struct kelp_error *reterr) KELP_MUST_USE;
void kelp_etcd_close(struct kelp_etcd *etcd); /* ends watches, elections; leases are revoked as far
                                                 as etcd answers within 1 s */

/* Keys that begin with prefix (exact: the key itself alone). Missing is not an error: count is 0.
 */
kelp_status kelp_etcd_get(struct kelp_etcd *etcd, const char *key, uint32_t deadline_ms,
                          struct kelp_etcd_range *ret_range,
                          struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_etcd_get_prefix(struct kelp_etcd *etcd, const char *prefix, uint32_t deadline_ms,
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
/*
 * *ret_succeeded says whether it was applied. A lost answer is resolved inside: when an attempt may
 * have been applied, the keys are read again, and a value of ours that stands there counts as
 * success (values of a transaction must be unique to the writer, for example by a nonce, for that
 * to be sound; say so in `nonce_key`: a key that the transaction puts with a value no other writer
 * ever puts, or NULL to get KELP_ERR_TIMEOUT instead).
 */
kelp_status kelp_etcd_transaction(struct kelp_etcd *etcd, const struct kelp_etcd_compare *compares,
                                  size_t compare_count,
                                  const struct kelp_etcd_operation *operations,
                                  size_t operation_count, const char *nonce_key,
                                  uint32_t deadline_ms, bool *ret_succeeded, int64_t *ret_revision,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* A lease kept alive by the client's thread until closed. lost() is called once when etcd says that
 * it is gone, or when no keep-alive succeeded for its whole time to live. */
struct kelp_etcd_lease;
kelp_status kelp_etcd_lease_open(struct kelp_etcd *etcd, uint32_t ttl_s, uint32_t deadline_ms,
                                 void (*lost)(void *user), void *user,
                                 struct kelp_etcd_lease **ret_lease,
                                 struct kelp_error *reterr) KELP_MUST_USE;
int64_t kelp_etcd_lease_id(const struct kelp_etcd_lease *lease);
void kelp_etcd_lease_close(struct kelp_etcd_lease *lease, bool revoke);

/*
 * Watch a prefix. The callbacks describe the whole state: changed() for each key that is there or
 * changed, removed() for each that went, synced() once after the first listing and after each later
 * re-listing. Reconnects, silent streams (progress requests), and compaction are handled by listing
 * again and reporting the differences.
 */
struct kelp_etcd_watch;
struct kelp_etcd_watch_events {
    void (*changed)(const struct kelp_etcd_pair *pair, void *user);
    void (*removed)(const char *key, void *user);
    void (*synced)(int64_t revision, void *user);
    void (*trouble)(kelp_status status, const char *text,
                    void *user); /* each time the connection breaks; may be NULL */
};
kelp_status kelp_etcd_watch_open(struct kelp_etcd *etcd, const char *prefix,
                                 const struct kelp_etcd_watch_events *events, void *user,
                                 struct kelp_etcd_watch **ret_watch,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_etcd_watch_close(struct kelp_etcd_watch *watch); /* no callback runs after it returned */

/*
 * Stand for election on a key: created with a lease, value is ours. elected() with the key's create
 * revision (every write of a leader compares it); deposed() when the key or the lease is gone.
 * After deposed() the election stands again by itself.
 */
struct kelp_etcd_election;
struct kelp_etcd_election_events {
    void (*elected)(int64_t create_revision, void *user);
    void (*deposed)(const char *why, void *user);
};
kelp_status kelp_etcd_election_open(struct kelp_etcd *etcd, const char *key, const char *value,
                                    uint32_t ttl_s, const struct kelp_etcd_election_events *events,
                                    void *user, struct kelp_etcd_election **ret_election,
                                    struct kelp_error *reterr) KELP_MUST_USE;
void kelp_etcd_election_close(struct kelp_etcd_election *election); /* resigns */

#endif
