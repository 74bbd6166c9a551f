#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd_internal.h"
#include "common/tls/login.h"

/*
 * An etcd with users requires a token from its clients. The client logs in only when a call needs
 * one:
 *
 *   refused    a call without a token, or with an expired one: it waits, and the first such call
 *              makes the client log in.
 *   logged in  all waiting calls are tried again with the new token.
 *   failed     all waiting calls fail with the reason; if etcd cannot be reached, they are tried
 *              again.
 *
 * The file with name and password is read for each login, so it may be replaced.
 */

enum {
    GRPC_INVALID_ARGUMENT = 3,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_UNAUTHENTICATED = 16,
};

bool kelp__etcd_wants_login(const struct etcd_refusal *refusal)
{
    return refusal->code == GRPC_UNAUTHENTICATED ||
           (refusal->code == GRPC_INVALID_ARGUMENT &&
            (strstr(refusal->message, "user name is empty") ||
             strstr(refusal->message, "auth store is old")));
}

void kelp__etcd_forget_token(struct kelp_etcd *etcd)
{
    if (etcd->token) {
        explicit_bzero(etcd->token, strlen(etcd->token));
        free(etcd->token);
        etcd->token = NULL;
    }
}

void kelp__etcd_login_leave(struct etcd_call *call)
{
    if (call->waits) {
        LIST_REMOVE(call, wait_link);
        call->waits = false;
    }
}

/* ---- results of a login -------------------------------------------------------------------- */

static void retry_waiting(struct kelp_etcd *etcd, int64_t delay_ms)
{
    struct etcd_call *call;

    while ((call = LIST_FIRST(&etcd->waiting))) {
        kelp__etcd_login_leave(call);
        call->logins = delay_ms > 0 ? 0 : call->logins;
        int64_t at_ms = kelp__etcd_now_ms() + delay_ms;
        call->retry.at_ms = at_ms < call->deadline_ms ? at_ms : call->deadline_ms;
    }
}

/* A failing call may end others, so look up each one anew. */
static void fail_waiting(struct kelp_etcd *etcd, const char *what)
{
    struct etcd_call *call;

    while ((call = LIST_FIRST(&etcd->waiting))) {
        kelp__etcd_call_fail(call, KELP_ERR_DENIED, what);
    }
}

static kelp_status take_token(struct kelp_etcd *etcd, const struct etcd_call *login,
                              struct kelp_error *reterr)
{
    static const char name[] = "Authorization: ";
    char *token = NULL;

    kelp_status status =
        kelp__etcd_decode_token(login->answer.bytes, login->answer.used, &token, reterr);
    if (status != KELP_OK) {
        return status;
    }
    char *line = malloc(sizeof(name) + strlen(token));
    if (line) {
        (void)snprintf(line, sizeof(name) + strlen(token), "%s%s", name, token);
        kelp__etcd_forget_token(etcd);
        etcd->token = line;
        etcd->token_number++;
    }
    explicit_bzero(token, strlen(token));
    free(token);
    return line ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static void login_done(struct etcd_call *login, void *user)
{
    struct kelp_etcd *etcd = user;
    struct kelp_error error = login->error;
    kelp_status status = login->status;

    etcd->login = NULL;
    if (status == KELP_OK) {
        status = take_token(etcd, login, &error);
    } else if (status == KELP_ERR_EXISTS) { /* etcd has no users any more */
        kelp__etcd_forget_token(etcd);
        status = KELP_OK;
    }
    kelp__etcd_call_destroy(login);
    if (status == KELP_OK) {
        retry_waiting(etcd, 0);
    } else if (status == KELP_ERR_UNREACHABLE || status == KELP_ERR_TIMEOUT) {
        retry_waiting(etcd, ETCD_BACKOFF_MAX_MS);
    } else {
        kelp_error_prefix(&error, "no login with %s/" KELP_LOGIN_FILE, etcd->login_folder);
        fail_waiting(etcd, error.text);
    }
}

static void look_for_token(struct kelp_etcd *etcd, void *user)
{
    bool *has_token = user;

    *has_token = etcd->token != NULL;
}

bool kelp_etcd_has_login(struct kelp_etcd *etcd)
{
    bool has_token = false;

    kelp__etcd_run(etcd, look_for_token, &has_token);
    return has_token;
}

/* ---- logging in ---------------------------------------------------------------------------- */

static kelp_status start_login(struct kelp_etcd *etcd, struct kelp_error *reterr)
{
    struct kelp_login login = {.user = ""};
    struct etcd_call *call = NULL;

    if (!etcd->login_folder) {
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "it has users: give certificates, --certs FOLDER, with a file "
                         "" KELP_LOGIN_FILE);
    }
    kelp_status status = kelp_login_read(etcd->login_folder, &login, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "it has users, and there is no '%s/" KELP_LOGIN_FILE
                         "'; kelp certs users makes it",
                         etcd->login_folder);
    }
    if (status == KELP_OK) {
        call = kelp__etcd_call_create(etcd, "/v3/auth/authenticate", ETCD_REPEATABLE,
                                      etcd->closing ? ETCD_REVOKE_MS : ETCD_LOGIN_MS);
        status =
            call ? kelp__etcd_encode_texts((const struct etcd_text[]){{"name", login.user},
                                                                      {"password", login.password}},
                                           2, &call->body, reterr)
                 : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_login_wipe(&login);
    if (status != KELP_OK) {
        kelp__etcd_call_destroy(call);
        return status;
    }
    kelp__etcd_forget_token(etcd); /* etcd checks the token even of a login */
    call->is_login = true;
    call->is_secret = true;
    call->done = login_done;
    call->user = etcd;
    etcd->login = call;
    kelp__etcd_call_start(call);
    return KELP_OK;
}

void kelp__etcd_login_wait(struct etcd_call *call)
{
    struct kelp_etcd *etcd = call->etcd;
    struct kelp_error error;

    if (call->token_number != etcd->token_number) { /* another login has succeeded meanwhile */
        call->retry.at_ms = kelp__etcd_now_ms();
        return;
    }
    if (call->logins++ == ETCD_LOGINS_MAX) {
        kelp__etcd_call_fail(call, KELP_ERR_DENIED, "it does not accept its own token");
        return;
    }
    call->waits = true;
    call->retry.at_ms = call->deadline_ms;
    LIST_INSERT_HEAD(&etcd->waiting, call, wait_link);
    if (!etcd->login && start_login(etcd, &error) != KELP_OK) {
        fail_waiting(etcd, error.text);
    }
}

void kelp__etcd_login_cancel(struct kelp_etcd *etcd)
{
    if (etcd->login) {
        kelp__etcd_call_cancel(etcd->login);
        kelp__etcd_call_destroy(etcd->login);
        etcd->login = NULL;
    }
    retry_waiting(etcd, 0);
}
