#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd_internal.h"

/* The blocking calls on keys. */

static kelp_status no_memory(struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

/* Put the endpoint in front of a decoder's text. */
static kelp_status decoded(const struct etcd_call *call, kelp_status status,
                           struct kelp_error *reterr)
{
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s%s", call->etcd->endpoints[call->endpoint], call->path);
    }
    return status;
}

/* Sends a question whose body stands, when status says so, and frees the call. */
static kelp_status run_range(struct etcd_call *call, kelp_status status,
                             struct kelp_etcd_range *ret_range, struct kelp_error *reterr)
{
    if (status == KELP_OK) {
        status = kelp__etcd_call_run(call, reterr);
    }
    if (status == KELP_OK) {
        status = decoded(
            call, kelp__etcd_decode_range(call->answer.bytes, call->answer.used, ret_range, reterr),
            reterr);
    }
    kelp__etcd_call_destroy(call);
    return status;
}

static kelp_status get_keys(struct kelp_etcd *etcd, const char *key, bool prefix,
                            uint32_t deadline_ms, struct kelp_etcd_range *ret_range,
                            struct kelp_error *reterr)
{
    struct etcd_call *call =
        kelp__etcd_call_create(etcd, "/v3/kv/range", ETCD_REPEATABLE, deadline_ms);

    return call ? run_range(call, kelp__etcd_encode_range(key, prefix, &call->body, reterr),
                            ret_range, reterr)
                : no_memory(reterr);
}

kelp_status kelp_etcd_get(struct kelp_etcd *etcd, const char *key, uint32_t deadline_ms,
                          struct kelp_etcd_range *ret_range, struct kelp_error *reterr)
{
    return get_keys(etcd, key, false, deadline_ms, ret_range, reterr);
}

kelp_status kelp_etcd_get_prefix(struct kelp_etcd *etcd, const char *prefix, uint32_t deadline_ms,
                                 struct kelp_etcd_range *ret_range, struct kelp_error *reterr)
{
    return get_keys(etcd, prefix, true, deadline_ms, ret_range, reterr);
}

kelp_status kelp_etcd_get_next(struct kelp_etcd *etcd, const char *from, uint32_t deadline_ms,
                               struct kelp_etcd_range *ret_range, struct kelp_error *reterr)
{
    struct etcd_call *call =
        kelp__etcd_call_create(etcd, "/v3/kv/range", ETCD_REPEATABLE, deadline_ms);

    return call ? run_range(call, kelp__etcd_encode_next(from, &call->body, reterr), ret_range,
                            reterr)
                : no_memory(reterr);
}

/* Run a write whose body is complete, if status is OK, and free the call. */
static kelp_status run_write(struct etcd_call *call, kelp_status status, struct kelp_error *reterr)
{
    int64_t revision;

    if (status == KELP_OK) {
        status = kelp__etcd_call_run(call, reterr);
    }
    if (status == KELP_OK) {
        status = decoded(
            call,
            kelp__etcd_decode_header(call->answer.bytes, call->answer.used, &revision, reterr),
            reterr);
    }
    kelp__etcd_call_destroy(call);
    return status;
}

kelp_status kelp_etcd_put(struct kelp_etcd *etcd, const char *key, const char *value, int64_t lease,
                          uint32_t deadline_ms, struct kelp_error *reterr)
{
    struct etcd_call *call = kelp__etcd_call_create(etcd, "/v3/kv/put", ETCD_ONCE, deadline_ms);

    if (!call) {
        return no_memory(reterr);
    }
    return run_write(call, kelp__etcd_encode_put(key, value, lease, &call->body, reterr), reterr);
}

kelp_status kelp_etcd_delete_prefix(struct kelp_etcd *etcd, const char *prefix,
                                    uint32_t deadline_ms, struct kelp_error *reterr)
{
    struct etcd_call *call =
        kelp__etcd_call_create(etcd, "/v3/kv/deleterange", ETCD_ONCE, deadline_ms);

    if (!call) {
        return no_memory(reterr);
    }
    return run_write(call, kelp__etcd_encode_range(prefix, true, &call->body, reterr), reterr);
}

/* ---- transactions ---- */

/* The state of a transaction over its attempts. */
struct attempts {
    struct kelp_etcd *etcd;
    const struct kelp_etcd_transaction *of;
    const struct kelp_etcd_operation *nonce; /* the operation that identifies it; NULL: none */
    int64_t end_ms;
};

static uint32_t left_ms(const struct attempts *attempts)
{
    int64_t left = attempts->end_ms - kelp__etcd_now_ms();

    return left < 0 ? 0 : left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
}

/* lost: the number of earlier attempts without an answer. */
static kelp_status try_transaction(const struct attempts *attempts, unsigned lost,
                                   bool *ret_succeeded, int64_t *ret_revision,
                                   struct kelp_error *reterr)
{
    uint32_t left = left_ms(attempts);
    struct etcd_call *call = kelp__etcd_call_create(attempts->etcd, "/v3/kv/txn", ETCD_ONCE, left);

    if (!call) {
        return no_memory(reterr);
    }
    /* Half of the time, so that some is left to find out whether it was applied. */
    call->attempt_ms = attempts->nonce ? left / 2 + 1 : 0;
    if (attempts->nonce && attempts->etcd->endpoint_count > 1 &&
        call->attempt_ms > ETCD_ATTEMPT_MS) {
        call->attempt_ms = ETCD_ATTEMPT_MS;
    }
    if (lost > 0) {
        call->not_before_ms = kelp__etcd_now_ms() + ETCD_BACKOFF_MIN_MS;
    }
    kelp_status status = kelp__etcd_encode_transaction(
        attempts->of->compares, attempts->of->compare_count, attempts->of->operations,
        attempts->of->operation_count, &call->body, reterr);
    if (status == KELP_OK) {
        status = kelp__etcd_call_run(call, reterr);
    }
    if (status == KELP_OK) {
        status = decoded(call,
                         kelp__etcd_decode_transaction(call->answer.bytes, call->answer.used,
                                                       ret_succeeded, ret_revision, reterr),
                         reterr);
    }
    kelp__etcd_call_destroy(call);
    return status;
}

/* Does etcd hold the value that only our transaction puts? */
static kelp_status look_for_nonce(const struct attempts *attempts, bool *ret_ours,
                                  int64_t *ret_revision, struct kelp_error *reterr)
{
    struct kelp_etcd_range range;
    kelp_status status =
        kelp_etcd_get(attempts->etcd, attempts->nonce->key, left_ms(attempts), &range, reterr);

    if (status != KELP_OK) {
        return status;
    }
    *ret_ours = range.count == 1 && range.pairs[0].value_bytes == strlen(attempts->nonce->value) &&
                strcmp(range.pairs[0].value, attempts->nonce->value) == 0;
    if (*ret_ours) {
        *ret_revision = range.pairs[0].mod_revision;
    }
    kelp_etcd_range_fini(&range);
    return KELP_OK;
}

/*
 * Send the transaction. If the answer is lost, look whether it was applied, and send it again if
 * not. The first one may still be under way then: whichever comes second finds its comparisons
 * false and does nothing. So "not succeeded" after a lost answer is checked the same way.
 */
static kelp_status run_transaction(const struct attempts *attempts, bool *ret_succeeded,
                                   int64_t *ret_revision, struct kelp_error *reterr)
{
    unsigned uncertain = 0; /* attempts that may have been applied */

    for (;;) {
        bool succeeded = false;
        int64_t revision = 0;
        kelp_status status = try_transaction(attempts, uncertain, &succeeded, &revision, reterr);
        bool lost = status == KELP_ERR_TIMEOUT && attempts->nonce;

        uncertain += lost;
        if (uncertain > 0 && (lost || (status == KELP_OK && !succeeded))) {
            bool ours = false;
            if (look_for_nonce(attempts, &ours, &revision, reterr) != KELP_OK) {
                return kelp_fail(reterr, KELP_ERR_TIMEOUT,
                                 "etcd: a transaction on '%s' may have been applied, but no member "
                                 "answers whether it was",
                                 attempts->nonce->key);
            }
            succeeded = ours;
            if (lost && !ours && left_ms(attempts) > 0) {
                continue;
            }
            status = lost && !ours ? KELP_ERR_TIMEOUT : KELP_OK;
        } else if (uncertain > 0 && status == KELP_ERR_UNREACHABLE) {
            status = KELP_ERR_TIMEOUT; /* not applied now, but perhaps by an earlier attempt */
        }
        if (status == KELP_OK) {
            *ret_succeeded = succeeded;
            if (ret_revision) {
                *ret_revision = revision;
            }
        }
        return status;
    }
}

kelp_status kelp_etcd_transaction(struct kelp_etcd *etcd,
                                  const struct kelp_etcd_transaction *transaction,
                                  bool *ret_succeeded, int64_t *ret_revision,
                                  struct kelp_error *reterr)
{
    const char *nonce_key = transaction->nonce_key;
    struct attempts attempts = {
        .etcd = etcd, .of = transaction, .end_ms = kelp__etcd_now_ms() + transaction->deadline_ms};

    for (size_t i = 0; nonce_key && i < transaction->operation_count; i++) {
        const struct kelp_etcd_operation *operation = &transaction->operations[i];
        if (operation->value && strcmp(operation->key, nonce_key) == 0) {
            attempts.nonce = operation;
        }
    }
    if (nonce_key && !attempts.nonce) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "etcd: the transaction puts nothing into its nonce key '%s'", nonce_key);
    }
    return run_transaction(&attempts, ret_succeeded, ret_revision, reterr);
}
