#include "tests/lib/cluster/shard_look.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "proto/wire.h"

#define STATUS_PATH "/kelp.v1.ParameterServer/Status"
#define ANSWER_MAX  (1u << 20)
#define ANSWER_MS   200
#define ETCD_MS     1000

void kelp_shard_look_init(struct kelp_shard_look *look, const char *certs)
{
    struct kelp_error error = {.text = ""};

    memset(look, 0, sizeof(*look));
    ck_assert_int_eq(kelp_rpc_loop_create(&look->loop, NULL), KELP_OK);
    if (certs[0] != '\0') {
        ck_assert_msg(kelp_credentials_open(certs, &look->credentials, &error) == KELP_OK, "%s",
                      error.text);
        kelp_rpc_loop_credentials(look->loop, look->credentials);
    }
}

void kelp_shard_look_fini(struct kelp_shard_look *look)
{
    kelp_rpc_channel_close(look->channel);
    kelp_rpc_loop_destroy(look->loop);
    kelp_credentials_close(look->credentials);
    memset(look, 0, sizeof(*look));
}

void kelp_shard_look_find(struct kelp_shard_look *look, struct kelp_job_client *client,
                          const char *id)
{
    char *text = NULL;
    cJSON *json = NULL;
    char found[sizeof(look->address)];
    char key[64];

    (void)snprintf(key, sizeof(key), "ps/%s", id);
    if (kelp_job_client_get(client, key, ETCD_MS, &text, NULL) != KELP_OK) {
        return;
    }
    if (kelp_json_parse(text, strlen(text), &json, NULL) == KELP_OK &&
        kelp_json_string(json, "address", found, sizeof(found), NULL) == KELP_OK &&
        (look->channel == NULL || strcmp(found, look->address) != 0)) {
        kelp_rpc_channel_close(look->channel);
        look->channel = NULL;
        memcpy(look->address, found, sizeof(found));
        ck_assert_int_eq(kelp_rpc_channel_open(look->loop, look->address, KELP_ROLE_SHARD,
                                               ANSWER_MAX, &look->channel, NULL),
                         KELP_OK);
    }
    cJSON_Delete(json);
    free(text);
}

bool kelp_shard_look(struct kelp_shard_look *look, struct kelp_shard_look_at *ret_at)
{
    Kelp__V1__ShardStatusRequest request = KELP__V1__SHARD_STATUS_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;

    if (look->channel == NULL) {
        return false;
    }
    ck_assert_int_eq(kelp_wire_encode(&request.base, &message, NULL), KELP_OK);
    if (kelp_rpc_call(look->channel, STATUS_PATH, message, ANSWER_MS, &answer, NULL) != KELP_OK) {
        return false;
    }
    kelp_status status = kelp_wire_decode(answer, &kelp__v1__shard_status_reply__descriptor,
                                          ANSWER_MAX, &fields, &payload, NULL);
    kelp_rpc_message_unref(answer);
    ck_assert_int_eq(status, KELP_OK);
    const Kelp__V1__ShardStatusReply *reply = (Kelp__V1__ShardStatusReply *)(void *)fields;
    *ret_at = (struct kelp_shard_look_at){.generation = reply->generation, .step = reply->step};
    protobuf_c_message_free_unpacked(fields, NULL);
    return true;
}
