#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd_internal.h"

/*
 * One request and its answer. An attempt ends in one of four ways:
 *
 *   answered      with a 200: done.
 *   refused       by etcd: done, unless the cluster has temporary trouble.
 *   not sent      no byte was sent: tried again with the next endpoint, until the deadline.
 *   lost          sent without an answer. A repeatable call is tried again; any other call ends
 *                 with KELP_ERR_TIMEOUT, because it may have been applied: only the caller knows
 *                 whether a second attempt would do harm.
 */

enum {
    GRPC_INVALID_ARGUMENT = 3,
    GRPC_DEADLINE_EXCEEDED = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_PERMISSION_DENIED = 7,
    GRPC_RESOURCE_EXHAUSTED = 8,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_UNIMPLEMENTED = 12,
    GRPC_UNAVAILABLE = 14,
    GRPC_UNAUTHENTICATED = 16,
};

static void attempt(struct etcd_call *call);
static void attempt_ended(struct etcd_transfer *transfer, CURLcode code);

static void retry_fired(void *user)
{
    attempt(user);
}

struct etcd_call *kelp__etcd_call_create(struct kelp_etcd *etcd, const char *path,
                                         enum etcd_call_kind kind, uint32_t deadline_ms)
{
    struct etcd_call *call = calloc(1, sizeof(*call));

    if (!call) {
        return NULL;
    }
    call->etcd = etcd;
    call->path = path;
    call->kind = kind;
    call->deadline_ms = kelp__etcd_now_ms() + deadline_ms;
    if (kind == ETCD_REPEATABLE && etcd->endpoint_count > 1) {
        call->attempt_ms = ETCD_ATTEMPT_MS;
    }
    call->transfer.ended = attempt_ended;
    return call;
}

void kelp__etcd_call_destroy(struct etcd_call *call)
{
    if (!call) {
        return;
    }
    assert(!call->transfer.curl);
    if (call->is_secret && call->body.bytes) {
        explicit_bzero(call->body.bytes, call->body.used);
    }
    kelp__etcd_buffer_fini(&call->body);
    kelp__etcd_buffer_fini(&call->answer);
    free(call);
}

static void finish(struct etcd_call *call)
{
    kelp__etcd_login_leave(call);
    kelp__etcd_timer_fini(&call->retry);
    assert(call->etcd->call_count > 0);
    call->etcd->call_count--;
    call->done(call, call->user); /* may free the call */
}

static void fail(struct etcd_call *call, kelp_status status, const char *what)
{
    call->status = kelp_fail(&call->error, status, "etcd at %s: %s",
                             call->etcd->endpoints[call->endpoint], what);
}

void kelp__etcd_call_fail(struct etcd_call *call, kelp_status status, const char *what)
{
    fail(call, status, what);
    finish(call);
}

/* Try the call again if time is left; otherwise it fails. */
static void retry(struct etcd_call *call, const char *what)
{
    struct kelp_etcd *etcd = call->etcd;
    int64_t backoff_ms = ETCD_BACKOFF_MIN_MS;

    kelp__etcd_endpoint_failed(etcd, call->endpoint);
    if (!call->cut_short || call->error.text[0] == '\0') {
        fail(call, KELP_ERR_UNREACHABLE, what);
    }
    if (call->attempts < etcd->endpoint_count) {
        backoff_ms = 1; /* another endpoint: no backoff needed */
    } else {
        size_t rounds = call->attempts - etcd->endpoint_count;
        for (size_t i = 0; i < rounds && backoff_ms < ETCD_BACKOFF_MAX_MS; i++) {
            backoff_ms *= 2;
        }
        backoff_ms = backoff_ms > ETCD_BACKOFF_MAX_MS ? ETCD_BACKOFF_MAX_MS : backoff_ms;
    }
    if (kelp__etcd_now_ms() + backoff_ms >= call->deadline_ms) {
        finish(call);
        return;
    }
    call->retry.at_ms = kelp__etcd_now_ms() + backoff_ms;
}

static void lost(struct etcd_call *call, const char *what)
{
    char text[256];

    if (call->kind == ETCD_REPEATABLE) {
        retry(call, what);
        return;
    }
    (void)snprintf(text, sizeof(text), "no answer to a write, which may have been applied (%.150s)",
                   what);
    kelp__etcd_endpoint_failed(call->etcd, call->endpoint);
    fail(call, KELP_ERR_TIMEOUT, text);
    finish(call);
}

kelp_status kelp__etcd_refusal_status(const struct etcd_refusal *refusal)
{
    switch (refusal->code) {
    case GRPC_INVALID_ARGUMENT:
        return strstr(refusal->message, "too large") ? KELP_ERR_LIMIT : KELP_ERR_INVALID;
    case GRPC_NOT_FOUND:
        return KELP_ERR_NOT_FOUND;
    case GRPC_PERMISSION_DENIED:
    case GRPC_UNAUTHENTICATED:
        return KELP_ERR_DENIED;
    case GRPC_RESOURCE_EXHAUSTED:
        return strstr(refusal->message, "space") ? KELP_ERR_NO_SPACE : KELP_ERR_BUSY;
    case GRPC_FAILED_PRECONDITION:
        return KELP_ERR_EXISTS;
    case GRPC_UNIMPLEMENTED:
        return KELP_ERR_UNSUPPORTED;
    case GRPC_UNAVAILABLE:
    case GRPC_DEADLINE_EXCEEDED:
        return KELP_ERR_UNREACHABLE;
    default:
        /* A member that has just lost leadership reports it without a code of its own. */
        return strstr(refusal->message, "proposal dropped") ? KELP_ERR_UNREACHABLE : KELP_ERR_IO;
    }
}

/* The answer was not a 200. */
static void refused(struct etcd_call *call, long http_status)
{
    struct etcd_refusal refusal;
    char text[96];

    if (kelp__etcd_decode_refusal(call->answer.bytes, call->answer.used, &refusal) != KELP_OK) {
        (void)snprintf(text, sizeof(text),
                       "HTTP status %ld without etcd's reason: is it an etcd (v3.4 or later)?",
                       http_status);
        fail(call, KELP_ERR_FORMAT, text);
        finish(call);
        return;
    }
    if (!call->is_login && kelp__etcd_wants_login(&refusal)) {
        kelp__etcd_login_wait(call); /* the call was not applied */
        return;
    }
    kelp_status status = kelp__etcd_refusal_status(&refusal);
    if (status == KELP_ERR_UNREACHABLE) {
        lost(call, refusal.message); /* no leader, or timed out: it may still commit */
        return;
    }
    fail(call, status, refusal.message);
    finish(call);
}

/* When the server answered, by its clock; 0: the answer does not say. */
static int64_t answered_at(CURL *curl)
{
    struct curl_header *header = NULL;

    if (curl_easy_header(curl, "Date", 0, CURLH_HEADER, -1, &header) != CURLHE_OK) {
        return 0;
    }
    time_t date_s = curl_getdate(header->value, NULL);
    return date_s > 0 ? (int64_t)date_s : 0;
}

/* Why an attempt failed. About certificates curl knows more than its code says. */
static const char *reason(const struct etcd_call *call, CURLcode code)
{
    if (call->etcd->certificates && strstr(call->trouble, "alert") &&
        (strstr(call->trouble, "certificate") || strstr(call->trouble, "unknown ca"))) {
        return "it refuses our certificate: it is over, or of another authority";
    }
    return code == CURLE_PEER_FAILED_VERIFICATION && call->trouble[0] ? call->trouble
                                                                      : curl_easy_strerror(code);
}

static void attempt_ended(struct etcd_transfer *transfer, CURLcode code)
{
    struct etcd_call *call = KELP_CONTAINER_OF(transfer, struct etcd_call, transfer);
    long http_status = 0;
    long sent_bytes = 0;

    (void)curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &http_status);
    (void)curl_easy_getinfo(transfer->curl, CURLINFO_REQUEST_SIZE, &sent_bytes);
    call->date_s = answered_at(transfer->curl);
    call->cut_short = code == CURLE_OPERATION_TIMEDOUT &&
                      kelp__etcd_now_ms() - call->attempt_began_ms < ETCD_CONNECT_MS;
    kelp__etcd_transfer_end(call->etcd, transfer);
    if (call->answer_over) {
        fail(call, KELP_ERR_LIMIT, "the answer is over 16 MiB, or memory is full");
        finish(call);
    } else if (code == CURLE_OUT_OF_MEMORY) {
        fail(call, KELP_ERR_NO_MEMORY, "out of memory");
        finish(call);
    } else if (code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WEIRD_SERVER_REPLY) {
        fail(call, KELP_ERR_FORMAT, "the answer is not HTTP");
        finish(call);
    } else if (code != CURLE_OK && sent_bytes == 0) {
        retry(call, reason(call, code));
    } else if (code != CURLE_OK) {
        lost(call, reason(call, code));
    } else if (http_status != 200) {
        refused(call, http_status);
    } else {
        call->status = KELP_OK;
        finish(call);
    }
}

static size_t receive_answer(char *bytes, size_t size, size_t count, void *user)
{
    struct etcd_call *call = user;

    if (kelp__etcd_buffer_add(&call->answer, bytes, size * count) != KELP_OK) {
        call->answer_over = true;
        return 0; /* ends the transfer */
    }
    return size * count;
}

static kelp_status attempt_start(struct etcd_call *call, int64_t left_ms)
{
    struct etcd_transfer *transfer = &call->transfer;
    kelp_status status =
        kelp__etcd_transfer_prepare(call->etcd, transfer, call->path, call->endpoint);

    if (status != KELP_OK) {
        return status;
    }
    if (call->attempt_ms != 0 && left_ms > (int64_t)call->attempt_ms) {
        left_ms = call->attempt_ms;
    }
    call->attempt_began_ms = kelp__etcd_now_ms();
    call->trouble[0] = '\0';
    (void)curl_easy_setopt(transfer->curl, CURLOPT_ERRORBUFFER, call->trouble);
    (void)curl_easy_setopt(transfer->curl, CURLOPT_TIMEOUT_MS, (long)left_ms);
    (void)curl_easy_setopt(transfer->curl, CURLOPT_POSTFIELDS, call->body.bytes);
    (void)curl_easy_setopt(transfer->curl, CURLOPT_POSTFIELDSIZE_LARGE,
                           (curl_off_t)call->body.used);
    (void)curl_easy_setopt(transfer->curl, CURLOPT_WRITEFUNCTION, receive_answer);
    (void)curl_easy_setopt(transfer->curl, CURLOPT_WRITEDATA, call);
    if (call->kind == ETCD_ONCE) {
        /* If a reused connection turns out to be closed, curl resends the request on a new one,
         * although the first may have been applied. So do not reuse connections. */
        (void)curl_easy_setopt(transfer->curl, CURLOPT_FRESH_CONNECT, 1L);
    }
    return kelp__etcd_transfer_start(call->etcd, transfer);
}

static void attempt(struct etcd_call *call)
{
    int64_t left_ms = call->deadline_ms - kelp__etcd_now_ms();

    kelp__etcd_login_leave(call);
    call->endpoint = call->etcd->endpoint;
    call->token_number = call->etcd->token_number;
    call->attempts++;
    kelp__etcd_buffer_fini(&call->answer);
    call->answer.max = ETCD_ANSWER_MAX;
    if (left_ms <= 0) {
        if (call->error.text[0] == '\0') {
            fail(call, KELP_ERR_UNREACHABLE, "the deadline has passed");
        }
        finish(call);
        return;
    }
    kelp_status status = attempt_start(call, left_ms);
    if (status != KELP_OK) {
        kelp__etcd_transfer_end(call->etcd, &call->transfer);
        fail(call, status, "a transfer could not be started");
        finish(call);
    }
}

void kelp__etcd_call_start(struct etcd_call *call)
{
    assert(call->done && call->body.bytes);
    kelp__etcd_timer_init(call->etcd, &call->retry, retry_fired, call);
    call->etcd->call_count++;
    call->retry.at_ms = call->not_before_ms; /* the first attempt runs from the loop too, so that
                                                done() never runs inside our caller */
}

void kelp__etcd_call_cancel(struct etcd_call *call)
{
    kelp__etcd_login_leave(call);
    kelp__etcd_transfer_end(call->etcd, &call->transfer);
    kelp__etcd_timer_fini(&call->retry);
    assert(call->etcd->call_count > 0);
    call->etcd->call_count--;
}

/* ---- blocking ---- */

struct blocking {
    struct etcd_call *call;
    bool done;
};

static void blocking_done(struct etcd_call *call, void *user)
{
    struct blocking *blocking = user;

    (void)pthread_mutex_lock(&call->etcd->lock);
    blocking->done = true;
    (void)pthread_cond_broadcast(&call->etcd->changed);
    (void)pthread_mutex_unlock(&call->etcd->lock);
}

static void blocking_start(struct kelp_etcd *etcd, void *user)
{
    struct blocking *blocking = user;

    (void)etcd;
    kelp__etcd_call_start(blocking->call);
}

kelp_status kelp__etcd_call_run(struct etcd_call *call, struct kelp_error *reterr)
{
    struct blocking blocking = {.call = call};
    struct kelp_etcd *etcd = call->etcd;

    call->done = blocking_done;
    call->user = &blocking;
    kelp__etcd_run(etcd, blocking_start, &blocking);
    (void)pthread_mutex_lock(&etcd->lock);
    while (!blocking.done) { /* the thread ends every call at its deadline */
        (void)pthread_cond_wait(&etcd->changed, &etcd->lock);
    }
    (void)pthread_mutex_unlock(&etcd->lock);
    if (call->status != KELP_OK && reterr) {
        *reterr = call->error;
    }
    return call->status;
}
