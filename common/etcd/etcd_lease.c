#include <assert.h>
#include <stdlib.h>

#include "common/etcd/etcd_internal.h"

/*
 * A lease, kept alive every third of its time to live. Its end is counted from the moment at which
 * the last successful keep-alive was *sent*, so it never ends later here than in etcd.
 *
 *     alive -> lost      etcd reports that it is gone, or no keep-alive succeeded for its whole
 * time
 */

struct kelp_etcd_lease {
    struct kelp_etcd *etcd;
    int64_t id;
    uint32_t ttl_s;
    void (*lost)(void *user);
    void *user;
    int64_t end_ms;         /* when etcd may have dropped it */
    int64_t sent_ms;        /* of the keep-alive under way */
    struct etcd_call *call; /* NULL: none under way */
    struct etcd_timer timer;
    bool is_lost;
    LIST_ENTRY(kelp_etcd_lease) link;
};

static void keep_alive(void *user);

static void lease_lost(struct kelp_etcd_lease *lease)
{
    assert(!lease->is_lost && !lease->call);
    lease->is_lost = true;
    lease->timer.at_ms = INT64_MAX;
    lease->lost(lease->user);
}

static uint32_t third_ms(const struct kelp_etcd_lease *lease)
{
    return lease->ttl_s * 1000 / 3;
}

static void keep_alive_done(struct etcd_call *call, void *user)
{
    struct kelp_etcd_lease *lease = user;
    int64_t now_ms = kelp__etcd_now_ms();
    int64_t ttl_s = 0;
    kelp_status status = call->status;

    lease->call = NULL;
    if (status == KELP_OK) {
        status = kelp__etcd_decode_keep_alive(call->answer.bytes, call->answer.used, &ttl_s, NULL);
    }
    kelp__etcd_call_destroy(call);
    if (status == KELP_ERR_NOT_FOUND || (status == KELP_OK && ttl_s == 0)) {
        lease_lost(lease);
        return;
    }
    if (status == KELP_OK) {
        lease->end_ms = lease->sent_ms + (int64_t)lease->ttl_s * 1000;
        lease->timer.at_ms = lease->sent_ms + third_ms(lease);
    } else if (now_ms >= lease->end_ms) {
        lease_lost(lease);
        return;
    } else {
        lease->timer.at_ms = now_ms + ETCD_BACKOFF_MAX_MS;
    }
    if (lease->timer.at_ms > lease->end_ms) {
        lease->timer.at_ms = lease->end_ms;
    }
}

/* Try again while the lease lives; otherwise it is lost. */
static void keep_alive_failed(struct kelp_etcd_lease *lease, int64_t now_ms)
{
    if (now_ms >= lease->end_ms) {
        lease_lost(lease);
    } else {
        lease->timer.at_ms = now_ms + ETCD_BACKOFF_MIN_MS;
    }
}

static void keep_alive(void *user)
{
    struct kelp_etcd_lease *lease = user;
    int64_t now_ms = kelp__etcd_now_ms();
    struct etcd_call *call = NULL;

    assert(!lease->call && !lease->is_lost);
    if (now_ms < lease->end_ms) {
        call = kelp__etcd_call_create(lease->etcd, "/v3/lease/keepalive", ETCD_REPEATABLE,
                                      (uint32_t)(lease->end_ms - now_ms));
    }
    if (!call || kelp__etcd_encode_lease_id(lease->id, &call->body, NULL) != KELP_OK) {
        kelp__etcd_call_destroy(call);
        keep_alive_failed(lease, now_ms);
        return;
    }
    /* A silent host must not use up all the time left. */
    call->attempt_ms = third_ms(lease);
    call->done = keep_alive_done;
    call->user = lease;
    lease->call = call;
    lease->sent_ms = now_ms;
    kelp__etcd_call_start(call);
}

struct kelp_etcd_lease *kelp__etcd_lease_start(struct kelp_etcd *etcd, int64_t id, uint32_t ttl_s,
                                               int64_t granted_ms, void (*lost)(void *user),
                                               void *user)
{
    struct kelp_etcd_lease *lease = calloc(1, sizeof(*lease));

    if (!lease) {
        return NULL;
    }
    lease->etcd = etcd;
    lease->id = id;
    lease->ttl_s = ttl_s;
    lease->lost = lost;
    lease->user = user;
    lease->end_ms = granted_ms + (int64_t)ttl_s * 1000;
    kelp__etcd_timer_init(etcd, &lease->timer, keep_alive, lease);
    lease->timer.at_ms = granted_ms + third_ms(lease);
    LIST_INSERT_HEAD(&etcd->leases, lease, link);
    return lease;
}

int64_t kelp__etcd_lease_end(struct kelp_etcd_lease *lease)
{
    int64_t id = lease->is_lost ? 0 : lease->id;

    if (lease->call) {
        kelp__etcd_call_cancel(lease->call);
        kelp__etcd_call_destroy(lease->call);
    }
    kelp__etcd_timer_fini(&lease->timer);
    LIST_REMOVE(lease, link);
    free(lease);
    return id;
}

/* ---- revoking ---- */

/* NULL: out of memory; the lease then expires by itself. */
static struct etcd_call *revocation(struct kelp_etcd *etcd, int64_t id)
{
    struct etcd_call *call =
        kelp__etcd_call_create(etcd, "/v3/lease/revoke", ETCD_REPEATABLE, ETCD_REVOKE_MS);

    if (call && kelp__etcd_encode_lease_id(id, &call->body, NULL) != KELP_OK) {
        kelp__etcd_call_destroy(call);
        return NULL;
    }
    return call;
}

static void revoke_done(struct etcd_call *call, void *user)
{
    (void)user; /* whatever the result, the lease expires by itself */
    kelp__etcd_call_destroy(call);
}

void kelp__etcd_revoke(struct kelp_etcd *etcd, int64_t id)
{
    struct etcd_call *call = id != 0 ? revocation(etcd, id) : NULL;

    if (call) {
        call->done = revoke_done;
        kelp__etcd_call_start(call);
    }
}

void kelp__etcd_revoke_wait(struct kelp_etcd *etcd, int64_t id)
{
    struct etcd_call *call = id != 0 ? revocation(etcd, id) : NULL;

    if (call) {
        kelp_status status = kelp__etcd_call_run(call, NULL);
        (void)status; /* as above */
        kelp__etcd_call_destroy(call);
    }
}

/* ---- public ---- */

struct lease_request {
    int64_t id;
    uint32_t ttl_s;
    int64_t granted_ms;
    void (*lost)(void *user);
    void *user;
    struct kelp_etcd_lease *lease;
};

static void start_lease(struct kelp_etcd *etcd, void *user)
{
    struct lease_request *request = user;

    request->lease = kelp__etcd_lease_start(etcd, request->id, request->ttl_s, request->granted_ms,
                                            request->lost, request->user);
}

static kelp_status grant(struct kelp_etcd *etcd, uint32_t deadline_ms,
                         struct lease_request *request, struct kelp_error *reterr)
{
    /* Repeatable: if a lease is granted twice, nobody keeps the first one alive, and it expires. */
    struct etcd_call *call =
        kelp__etcd_call_create(etcd, "/v3/lease/grant", ETCD_REPEATABLE, deadline_ms);
    int64_t ttl_s = 0;

    if (!call) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = kelp__etcd_encode_grant(request->ttl_s, &call->body, reterr);
    if (status == KELP_OK) {
        status = kelp__etcd_call_run(call, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__etcd_decode_grant(call->answer.bytes, call->answer.used, &request->id,
                                         &ttl_s, reterr);
    }
    if (status == KELP_OK && ttl_s <= ETCD_LEASE_TTL_MAX_S) {
        request->ttl_s = (uint32_t)ttl_s; /* etcd may grant more than was requested */
    }
    kelp__etcd_call_destroy(call);
    return status;
}

kelp_status kelp__etcd_check_ttl(uint32_t ttl_s, struct kelp_error *reterr)
{
    if (ttl_s == 0 || ttl_s > ETCD_LEASE_TTL_MAX_S) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "etcd: a lease of %u s; 1 to %d are allowed",
                         ttl_s, ETCD_LEASE_TTL_MAX_S);
    }
    return KELP_OK;
}

kelp_status kelp_etcd_lease_open(struct kelp_etcd *etcd,
                                 const struct kelp_etcd_lease_options *options,
                                 struct kelp_etcd_lease **ret_lease, struct kelp_error *reterr)
{
    struct lease_request request = {
        .ttl_s = options->ttl_s, .lost = options->lost, .user = options->user};
    kelp_status status = kelp__etcd_check_ttl(options->ttl_s, reterr);

    if (status == KELP_OK) {
        /* Taken before the request: etcd cannot have started counting earlier. */
        request.granted_ms = kelp__etcd_now_ms();
        status = grant(etcd, options->deadline_ms, &request, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    kelp__etcd_run(etcd, start_lease, &request);
    if (!request.lease) {
        kelp__etcd_revoke_wait(etcd, request.id);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *ret_lease = request.lease;
    return KELP_OK;
}

int64_t kelp_etcd_lease_id(const struct kelp_etcd_lease *lease)
{
    return lease->id;
}

struct lease_end {
    struct kelp_etcd_lease *lease;
    int64_t id;
};

static void end_lease(struct kelp_etcd *etcd, void *user)
{
    struct lease_end *end = user;

    (void)etcd;
    end->id = kelp__etcd_lease_end(end->lease);
}

void kelp_etcd_lease_close(struct kelp_etcd_lease *lease, bool revoke)
{
    struct lease_end end = {.lease = lease};

    if (!lease) {
        return;
    }
    struct kelp_etcd *etcd = lease->etcd;
    kelp__etcd_run(etcd, end_lease, &end);
    if (revoke) {
        kelp__etcd_revoke_wait(etcd, end.id);
    }
}
