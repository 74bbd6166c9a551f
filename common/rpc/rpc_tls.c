/*
 * Mutual TLS: what gRPC gets for a handshake, and who the peer is afterwards.
 *
 * The server loads its certificate for each handshake, and a channel reads the folder when it
 * connects for a stream or a call (rpc_client.c). gRPC checks chains, dates and the server's DNS
 * name; the names of jobs and roles are checked here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log/log.h"
#include "common/log/log_gate.h"
#include "common/rpc/rpc_internal.h"

/* ---- log lines that a stranger can cause ---- */

static struct kelp_log_gate refusals = KELP_LOG_GATE_INIT;
static struct kelp_log_gate handshakes = KELP_LOG_GATE_INIT;
static struct kelp_log_gate expiries = KELP_LOG_GATE_INIT;

void kelp__rpc_log_handshake(const char *why)
{
    unsigned held = 0;

    /* gRPC does not tell the peer. */
    if (kelp_log_gate_pass(&handshakes, "", 0, &held)) {
        kelp_log_warn("connection refused: the handshake failed reason=\"%s\" more_before=%u", why,
                      held);
    }
}

/* ---- the server ---- */

/* One for each server; owned by its loop, because gRPC may ask until the loop ends. */
struct kelp__rpc_fetch {
    struct kelp__rpc_fetch *next;
    struct kelp_credentials *credentials;
    uint64_t version; /* what gRPC has; 0: none. gRPC calls under its own lock */
};

static grpc_ssl_certificate_config_reload_status fetch(void *user,
                                                       grpc_ssl_server_certificate_config **config)
{
    struct kelp__rpc_fetch *state = user;
    struct kelp_credential_texts texts;
    struct kelp_error error = {.status = KELP_OK};

    uint64_t version = kelp_credentials_refresh(state->credentials, &error);
    if (error.status != KELP_OK) {
        kelp_log_warn("certificates not reloaded, the previous ones stay in use reason=\"%s\"",
                      error.text);
    }
    if (version == state->version) {
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    if (kelp_credentials_take(state->credentials, &texts, NULL) != KELP_OK) {
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
    grpc_ssl_pem_key_cert_pair pair = {.private_key = texts.key, .cert_chain = texts.certificate};
    *config = grpc_ssl_server_certificate_config_create(texts.ca, &pair, 1);
    kelp_log_info("serving with a certificate until_s=%lld%s", (long long)texts.until_s,
                  state->version > 0 ? " (read again)" : "");
    kelp_credential_texts_fini(&texts);
    state->version = version;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_server_credentials *kelp__rpc_server_credentials(struct kelp_rpc_loop *loop, bool secure)
{
    if (!secure) {
        return grpc_insecure_server_credentials_create();
    }
    struct kelp__rpc_fetch *state = calloc(1, sizeof(*state));
    if (!state) {
        return NULL;
    }
    state->credentials = loop->credentials;
    state->next = loop->fetches;
    loop->fetches = state;
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, fetch, state));
}

void kelp__rpc_fetches_free(struct kelp_rpc_loop *loop)
{
    while (loop->fetches) {
        struct kelp__rpc_fetch *state = loop->fetches;
        loop->fetches = state->next;
        free(state);
    }
}

/* ---- the channel ---- */

struct expected {
    enum kelp_role role;
    char job[KELP_SPIFFE_NAME_MAX + 1];
};

static int check_server(const char *target, const char *pem, void *user)
{
    const struct expected *expected = user;
    struct kelp_certificate certificate;
    struct kelp_error error;
    char name[KELP_SPIFFE_MAX + 1] = "nobody of Kelp";

    (void)target;
    if (kelp_certificate_read(pem, &certificate, &error) != KELP_OK) {
        kelp__rpc_log_handshake(error.text);
        return 1;
    }
    if (certificate.has_name && certificate.name.role == expected->role &&
        strcmp(certificate.name.job, expected->job) == 0) {
        return 0;
    }
    if (certificate.has_name) {
        kelp_spiffe_print(&certificate.name, name);
    }
    (void)kelp_fail(&error, KELP_ERR_DENIED, "the server is %s, not the %s of job %s", name,
                    kelp_role_names[expected->role], expected->job);
    kelp__rpc_log_handshake(error.text);
    return 1;
}

grpc_channel_credentials *kelp__rpc_channel_credentials(struct kelp_credentials *credentials,
                                                        enum kelp_role server)
{
    struct kelp_credential_texts texts;

    if (!credentials) {
        return grpc_insecure_credentials_create();
    }
    struct expected *expected = calloc(1, sizeof(*expected));
    if (!expected || kelp_credentials_take(credentials, &texts, NULL) != KELP_OK) {
        free(expected);
        return NULL;
    }
    expected->role = server;
    memcpy(expected->job, kelp_credentials_name(credentials)->job, sizeof(expected->job));
    grpc_ssl_pem_key_cert_pair pair = {.private_key = texts.key, .cert_chain = texts.certificate};
    grpc_ssl_verify_peer_options verify = {.verify_peer_callback = check_server,
                                           .verify_peer_callback_userdata = expected,
                                           .verify_peer_destruct = free};
    grpc_channel_credentials *made = grpc_ssl_credentials_create_ex(texts.ca, &pair, &verify, NULL);
    kelp_credential_texts_fini(&texts);
    return made;
}

/* ---- the caller ---- */

/* The first value of a property, borrowed from the context; NULL: none. */
static const grpc_auth_property *find_property(const grpc_auth_context *context, const char *name)
{
    grpc_auth_property_iterator all = grpc_auth_context_find_properties_by_name(context, name);

    return grpc_auth_property_iterator_next(&all);
}

void kelp__rpc_caller_read(grpc_call *call, struct kelp__rpc_caller *ret_caller)
{
    grpc_auth_context *context = grpc_call_auth_context(call);
    const grpc_auth_property *id = find_property(context, GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
    const grpc_auth_property *pem = find_property(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    struct kelp_certificate certificate;
    char *text = pem ? strndup(pem->value, pem->value_length) : NULL;

    *ret_caller = (struct kelp__rpc_caller){.has_name = false};
    ret_caller->has_name =
        id && kelp_spiffe_parse(id->value, id->value_length, &ret_caller->name, NULL) == KELP_OK;
    if (text && kelp_certificate_read(text, &certificate, NULL) == KELP_OK) {
        ret_caller->until_s = certificate.until_s;
    }
    free(text);
    grpc_auth_context_release(context);
}

static void list_roles(unsigned roles, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned i = 0; kelp_role_names[i]; i++) {
        if (roles & KELP_ROLE_BIT(i)) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? "|" : "",
                                     kelp_role_names[i]);
        }
    }
}

void kelp__rpc_log_expired(const char *address)
{
    unsigned held = 0;

    if (kelp_log_gate_pass(&expiries, address, 0, &held)) {
        kelp_log_warn("stream ended: the certificate of its caller has ended peer=%s "
                      "more_before=%u",
                      address, held);
    }
}

/* The role is right; check that the certificate has not expired. */
static kelp_status check_until(const struct kelp__rpc_caller *caller, const char *address,
                               struct kelp_error *reterr)
{
    if ((int64_t)time(NULL) < caller->until_s) {
        return KELP_OK;
    }
    kelp__rpc_log_expired(address);
    return kelp_fail(reterr, KELP_ERR_UNREACHABLE, "the certificate has ended");
}

kelp_status kelp__rpc_judge(const struct kelp_spiffe *own, const struct kelp__rpc_caller *caller,
                            const struct kelp_rpc_method *method, const char *address,
                            struct kelp_error *reterr)
{
    char name[KELP_SPIFFE_MAX + 1] = "none";
    char roles[128];
    const struct kelp_spiffe *peer = caller->has_name ? &caller->name : NULL;
    unsigned held = 0;

    if (peer && strcmp(peer->job, own->job) == 0 && (method->roles & KELP_ROLE_BIT(peer->role))) {
        return check_until(caller, address, reterr);
    }
    list_roles(method->roles, roles, sizeof(roles));
    if (peer) {
        kelp_spiffe_print(peer, name);
    }
    if (kelp_log_gate_pass(&refusals, address, 0, &held)) {
        kelp_log_warn("call refused method=%s peer=%s name=%s needs=%s of_job=%s more_before=%u",
                      method->path, address, name, roles, own->job, held);
    }
    return kelp_fail(reterr, KELP_ERR_DENIED, "%s is for the role %s of job %s, not for %s",
                     method->path, roles, own->job, name);
}

kelp_status kelp_rpc_stream_check_id(struct kelp_rpc_stream *stream, const char *id,
                                     struct kelp_error *reterr)
{
    const struct kelp_spiffe *peer = kelp_rpc_stream_name(stream);
    char name[KELP_SPIFFE_MAX + 1];

    if (!peer || kelp_spiffe_allows(peer, id)) {
        return KELP_OK;
    }
    kelp_spiffe_print(peer, name);
    return kelp_fail(reterr, KELP_ERR_DENIED, "the certificate of %s does not allow the id '%.64s'",
                     name, id);
}
