#include <string.h>

#include "common/etcd/etcd_internal.h"

/* Send the call and wait. The call is transferred. */
static kelp_status run(struct etcd_call *call, kelp_status encoded, struct kelp_error *reterr)
{
    if (!call) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = encoded == KELP_OK ? kelp__etcd_call_run(call, reterr) : encoded;
    kelp__etcd_call_destroy(call);
    return status;
}

static kelp_status send_texts(struct kelp_etcd *etcd, const char *path,
                              const struct etcd_text *texts, size_t count, uint32_t deadline_ms,
                              struct kelp_error *reterr)
{
    struct etcd_call *call = kelp__etcd_call_create(etcd, path, ETCD_REPEATABLE, deadline_ms);

    if (call) {
        call->is_secret = true;
    }
    return run(call, call ? kelp__etcd_encode_texts(texts, count, &call->body, reterr) : KELP_OK,
               reterr);
}

kelp_status kelp_etcd_set_role(struct kelp_etcd *etcd, const char *role,
                               const struct kelp_etcd_permission *permissions, size_t count,
                               uint32_t deadline_ms, struct kelp_error *reterr)
{
    const struct etcd_text name = {"name", role};

    kelp_status status = send_texts(etcd, "/v3/auth/role/add", &name, 1, deadline_ms, reterr);
    status = status == KELP_ERR_EXISTS ? KELP_OK : status;
    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        struct etcd_call *call =
            kelp__etcd_call_create(etcd, "/v3/auth/role/grant", ETCD_REPEATABLE, deadline_ms);
        status = run(call,
                     call ? kelp__etcd_encode_permission(role, &permissions[i], &call->body, reterr)
                          : KELP_OK,
                     reterr);
    }
    return status;
}

/* An existing user gets the password, which invalidates its tokens. */
kelp_status kelp_etcd_set_user(struct kelp_etcd *etcd, const char *user, const char *password,
                               const char *role, uint32_t deadline_ms, struct kelp_error *reterr)
{
    const struct etcd_text login[] = {{"name", user}, {"password", password}};
    const struct etcd_text grant[] = {{"user", user}, {"role", role}};

    kelp_status status = send_texts(etcd, "/v3/auth/user/add", login, 2, deadline_ms, reterr);
    if (status == KELP_ERR_EXISTS) {
        status = send_texts(etcd, "/v3/auth/user/changepw", login, 2, deadline_ms, reterr);
    }
    if (status == KELP_OK) {
        status = send_texts(etcd, "/v3/auth/user/grant", grant, 2, deadline_ms, reterr);
    }
    return status == KELP_ERR_EXISTS ? KELP_OK : status;
}

kelp_status kelp_etcd_enable_users(struct kelp_etcd *etcd, uint32_t deadline_ms,
                                   struct kelp_error *reterr)
{
    return send_texts(etcd, "/v3/auth/enable", NULL, 0, deadline_ms, reterr);
}
