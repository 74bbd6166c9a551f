#include "cli/cluster/job_client.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/address.h"
#include "common/base/json.h"
#include "proto/wire.h"

#define STATUS_PATH     "/kelp.v1.Coordinator/Status"
#define CHECKPOINT_PATH "/kelp.v1.Coordinator/Checkpoint"
#define SCALE_PATH      "/kelp.v1.Coordinator/Scale"

struct kelp_job_client {
    char *job;
    char *urls;
    struct kelp_credentials *credentials; /* NULL: no TLS */
    struct kelp_etcd *etcd;
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_channel *channel; /* to `address`; NULL: not known, ask etcd */
    char address[KELP_JOB_CLIENT_ADDRESS_MAX + 1];
};

static kelp_status open_credentials(struct kelp_job_client *client, const char *certs,
                                    struct kelp_error *reterr)
{
    kelp_status status = kelp_credentials_open(certs, &client->credentials, reterr);
    const struct kelp_spiffe *name =
        status == KELP_OK ? kelp_credentials_name(client->credentials) : NULL;

    if (name && (strcmp(name->job, client->job) != 0 ||
                 (name->role != KELP_ROLE_OPERATOR && name->role != KELP_ROLE_READER))) {
        char text[KELP_SPIFFE_MAX + 1];
        kelp_spiffe_print(name, text);
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "the certificate in '%.200s' is %s, not an operator or reader of job %s",
                           certs, text, client->job);
    }
    return status;
}

kelp_status kelp_job_client_open(const char *etcd_urls, const char *job, const char *certs,
                                 struct kelp_job_client **ret_client, struct kelp_error *reterr)
{
    struct kelp_job_client *client = calloc(1, sizeof(*client));

    if (!client) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    client->job = strdup(job);
    client->urls = strdup(etcd_urls);
    kelp_status status = client->job && client->urls
                             ? KELP_OK
                             : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    if (status == KELP_OK && certs) {
        status = open_credentials(client, certs, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_loop_create(&client->loop, reterr);
    }
    if (status == KELP_OK) {
        kelp_rpc_loop_credentials(client->loop, client->credentials);
        status = kelp_etcd_open_certified(etcd_urls, certs, &client->etcd, reterr);
    }
    if (status != KELP_OK) {
        kelp_job_client_close(client);
        return status;
    }
    *ret_client = client;
    return KELP_OK;
}

static void forget_coordinator(struct kelp_job_client *client)
{
    if (client->channel) {
        kelp_rpc_channel_close(client->channel);
        client->channel = NULL;
    }
}

void kelp_job_client_close(struct kelp_job_client *client)
{
    if (!client) {
        return;
    }
    forget_coordinator(client);
    if (client->loop) {
        kelp_rpc_loop_destroy(client->loop);
    }
    if (client->etcd) {
        kelp_etcd_close(client->etcd);
    }
    kelp_credentials_close(client->credentials);
    free(client->job);
    free(client->urls);
    free(client);
}

struct kelp_etcd *kelp_job_client_etcd(struct kelp_job_client *client)
{
    return client->etcd;
}

struct kelp_rpc_loop *kelp_job_client_loop(struct kelp_job_client *client)
{
    return client->loop;
}

const char *kelp_job_client_job(const struct kelp_job_client *client)
{
    return client->job;
}

const char *kelp_job_client_urls(const struct kelp_job_client *client)
{
    return client->urls;
}

void kelp_job_client_key(const struct kelp_job_client *client, const char *name,
                         char ret_key[KELP_JOB_CLIENT_KEY_MAX + 1])
{
    (void)snprintf(ret_key, KELP_JOB_CLIENT_KEY_MAX + 1, "/kelp/%s/%s", client->job, name);
}

kelp_status kelp_job_client_get(struct kelp_job_client *client, const char *name,
                                uint32_t deadline_ms, char **ret_value, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    struct kelp_etcd_range range = {0};

    kelp_job_client_key(client, name, key);
    kelp_status status = kelp_etcd_get(client->etcd, key, deadline_ms, &range, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (range.count == 0) {
        status = kelp_fail(reterr, KELP_ERR_NOT_FOUND, "etcd holds no %s", key);
    } else {
        char *value = strndup(range.pairs[0].value, range.pairs[0].value_bytes);
        if (value) {
            *ret_value = value;
        } else {
            status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
    }
    kelp_etcd_range_fini(&range);
    return status;
}

kelp_status kelp_job_client_forget(struct kelp_job_client *client, const char *name,
                                   uint32_t deadline_ms, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];

    kelp_job_client_key(client, name, key);
    return kelp_etcd_delete_prefix(client->etcd, key, deadline_ms, reterr);
}

kelp_status kelp_job_client_reach(struct kelp_job_client *client, uint64_t timeout_ms,
                                  struct kelp_error *reterr)
{
    const uint32_t deadline_ms =
        timeout_ms < KELP_JOB_CLIENT_REACH_MS ? (uint32_t)timeout_ms : KELP_JOB_CLIENT_REACH_MS;
    char *value = NULL;

    kelp_status status = kelp_job_client_get(client, "coordinator", deadline_ms, &value, reterr);
    free(value);
    if (status == KELP_OK || status == KELP_ERR_NOT_FOUND) {
        return KELP_OK;
    }
    kelp_error_prefix(reterr, "job '%s' cannot be reached", client->job);
    return status;
}

static kelp_status parse_address(const char *value, char *address, size_t address_bytes,
                                 struct kelp_error *reterr)
{
    cJSON *json = NULL;

    kelp_status status = kelp_json_parse(value, strlen(value), &json, reterr);
    if (status == KELP_OK) {
        status = kelp_json_string(json, "address", address, address_bytes, reterr);
    }
    if (status == KELP_OK && !kelp_address_is_target(address)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT,
                           "address '%s' is not HOST:PORT in numbers, or unix:/PATH", address);
    }
    cJSON_Delete(json);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the coordinator's key in etcd");
    }
    return status;
}

/* Connect client->channel to the coordinator that etcd names now. */
static kelp_status find_coordinator(struct kelp_job_client *client, uint32_t deadline_ms,
                                    struct kelp_error *reterr)
{
    char *value = NULL;
    char address[KELP_JOB_CLIENT_ADDRESS_MAX + 1];

    kelp_status status = kelp_job_client_get(client, "coordinator", deadline_ms, &value, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "no coordinator leads job '%s'", client->job);
    }
    if (status != KELP_OK) {
        return status;
    }
    assert(value);
    status = parse_address(value, address, sizeof(address), reterr);
    free(value);
    if (status != KELP_OK) {
        return status;
    }
    if (client->channel && strcmp(address, client->address) == 0) {
        return KELP_OK;
    }
    forget_coordinator(client);
    memcpy(client->address, address, sizeof(address));
    return kelp_rpc_channel_open(client->loop, address, KELP_ROLE_COORDINATOR,
                                 KELP_JOB_CLIENT_ANSWER_MAX, &client->channel, reterr);
}

/* One call of the coordinator that etcd names. */
static kelp_status ask(struct kelp_job_client *client, const char *path,
                       const ProtobufCMessage *request, uint32_t deadline_ms,
                       struct kelp_rpc_message **ret_answer, struct kelp_error *reterr)
{
    struct kelp_rpc_message *message = NULL;

    kelp_status status = client->channel ? KELP_OK : find_coordinator(client, deadline_ms, reterr);
    if (status == KELP_OK) {
        status = kelp_wire_encode(request, &message, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_call(client->channel, path, message, deadline_ms, ret_answer, reterr);
    }
    return status;
}

static kelp_status decode(struct kelp_job_client *client, struct kelp_rpc_message *answer,
                          Kelp__V1__StatusReply **ret_reply, struct kelp_error *reterr)
{
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    kelp_status status = kelp_wire_decode(answer, &kelp__v1__status_reply__descriptor,
                                          KELP_JOB_CLIENT_ANSWER_MAX, &fields, &payload, reterr);
    if (status != KELP_OK) {
        return status;
    }
    Kelp__V1__StatusReply *reply = (Kelp__V1__StatusReply *)(void *)fields;
    if (strcmp(reply->job, client->job) != 0) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "the coordinator at %s leads job '%.60s', not '%s'", client->address,
                           reply->job, client->job);
        kelp_job_client_status_free(reply);
        return status;
    }
    kelp_wire_clean(fields);
    *ret_reply = reply;
    return KELP_OK;
}

kelp_status kelp_job_client_status(struct kelp_job_client *client, uint32_t deadline_ms,
                                   Kelp__V1__StatusReply **ret_reply, struct kelp_error *reterr)
{
    Kelp__V1__StatusRequest request = KELP__V1__STATUS_REQUEST__INIT;
    struct kelp_rpc_message *answer = NULL;

    kelp_status status = ask(client, STATUS_PATH, &request.base, deadline_ms, &answer, reterr);
    if (status == KELP_OK) {
        status = decode(client, answer, ret_reply, reterr);
        kelp_rpc_message_unref(answer);
    }
    if (status != KELP_OK) {
        forget_coordinator(client); /* another coordinator may lead by now: ask etcd next time */
    }
    return status;
}

static kelp_status decode_serial(struct kelp_rpc_message *answer, uint64_t *ret_serial,
                                 struct kelp_error *reterr)
{
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    kelp_status status = kelp_wire_decode(answer, &kelp__v1__checkpoint_reply__descriptor,
                                          KELP_JOB_CLIENT_ANSWER_MAX, &fields, &payload, reterr);
    if (status != KELP_OK) {
        return status;
    }
    Kelp__V1__CheckpointReply *reply = (Kelp__V1__CheckpointReply *)(void *)fields;
    if (reply->status != KELP_OK && kelp_status_known(reply->status)) {
        status = kelp_fail(reterr, (kelp_status)reply->status, "%.300s", reply->error);
    } else if (reply->status != KELP_OK || reply->serial == 0) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "the coordinator's answer makes no sense");
    } else {
        *ret_serial = reply->serial;
    }
    kelp__v1__checkpoint_reply__free_unpacked(reply, NULL);
    return status;
}

kelp_status kelp_job_client_checkpoint(struct kelp_job_client *client, bool pause,
                                       uint32_t deadline_ms, uint64_t *ret_serial,
                                       struct kelp_error *reterr)
{
    Kelp__V1__CheckpointRequest request = KELP__V1__CHECKPOINT_REQUEST__INIT;
    struct kelp_rpc_message *answer = NULL;

    request.pause = pause;
    kelp_status status = ask(client, CHECKPOINT_PATH, &request.base, deadline_ms, &answer, reterr);
    if (status == KELP_OK) {
        status = decode_serial(answer, ret_serial, reterr);
        kelp_rpc_message_unref(answer);
    }
    if (status != KELP_OK) {
        forget_coordinator(client);
    }
    return status;
}

static kelp_status decode_scale(struct kelp_rpc_message *answer, struct kelp_error *reterr)
{
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    kelp_status status = kelp_wire_decode(answer, &kelp__v1__scale_reply__descriptor,
                                          KELP_JOB_CLIENT_ANSWER_MAX, &fields, &payload, reterr);
    if (status != KELP_OK) {
        return status;
    }
    Kelp__V1__ScaleReply *reply = (Kelp__V1__ScaleReply *)(void *)fields;
    if (reply->status != KELP_OK && kelp_status_known(reply->status)) {
        status = kelp_fail(reterr, (kelp_status)reply->status, "%.300s", reply->error);
    } else if (reply->status != KELP_OK) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "the coordinator's answer makes no sense");
    }
    kelp__v1__scale_reply__free_unpacked(reply, NULL);
    return status;
}

static kelp_status request_scale(struct kelp_job_client *client,
                                 const Kelp__V1__ScaleRequest *request, uint32_t deadline_ms,
                                 struct kelp_error *reterr)
{
    struct kelp_rpc_message *answer = NULL;

    kelp_status status = ask(client, SCALE_PATH, &request->base, deadline_ms, &answer, reterr);
    if (status == KELP_OK) {
        status = decode_scale(answer, reterr);
        kelp_rpc_message_unref(answer);
    }
    if (status != KELP_OK && status != KELP_ERR_INVALID) {
        forget_coordinator(client);
    }
    return status;
}

kelp_status kelp_job_client_scale(struct kelp_job_client *client, const Kelp__V1__Targets *targets,
                                  uint32_t deadline_ms, struct kelp_error *reterr)
{
    Kelp__V1__ScaleRequest request = KELP__V1__SCALE_REQUEST__INIT;
    Kelp__V1__Targets wanted = *targets;

    request.targets = &wanted;
    return request_scale(client, &request, deadline_ms, reterr);
}

kelp_status kelp_job_client_drain(struct kelp_job_client *client, const char *id,
                                  uint32_t deadline_ms, struct kelp_error *reterr)
{
    Kelp__V1__ScaleRequest request = KELP__V1__SCALE_REQUEST__INIT;

    request.drain = (char *)(uintptr_t)id; /* only read by the encoder */
    return request_scale(client, &request, deadline_ms, reterr);
}

void kelp_job_client_status_free(Kelp__V1__StatusReply *reply)
{
    if (reply) {
        kelp__v1__status_reply__free_unpacked(reply, NULL);
    }
}
