#include "ps/service/shard_service.h"

#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "ps/service/shard_service_internal.h"

static void answer_status(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                          void *server_user)
{
    struct kelp_service *service = server_user;
    struct kelp_shard_view *view = malloc(sizeof(*view));
    Kelp__V1__ShardStatusReply reply = KELP__V1__SHARD_STATUS_REPLY__INIT;
    Kelp__V1__ControlWord word;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error = {.text = "no memory for the status"};

    (void)message; /* the request has no fields */
    if (!view) {
        kelp_rpc_request_fail(request, KELP_ERR_NO_MEMORY, error.text);
        return;
    }
    kelp_shard_view(service->shard, view);
    reply.hello = &service->hello;
    reply.generation = view->generation;
    reply.n_partitions = view->partition_count;
    reply.partitions = view->partitions;
    reply.step = view->step;
    if (view->has_word) {
        kelp_wire_put_word(&view->word, &word);
        reply.word = &word;
    }
    reply.pushes = view->pushes;
    reply.duplicates = view->duplicates;
    reply.refusals = view->refusals;
    reply.waiting_pulls = view->waiting;
    reply.bytes_in = atomic_load(&service->bytes_in);
    reply.offers = view->offers;
    reply.bytes_out = atomic_load(&service->bytes_out);
    kelp_status status = kelp_wire_encode(&reply.base, &answer, &error);
    free(view);
    if (status == KELP_OK) {
        kelp_rpc_request_answer(request, answer);
    } else {
        kelp_rpc_request_fail(request, status, error.text);
    }
}

#define EXCHANGE_PATH "/kelp.v1.ParameterServer/Exchange"

/* Readers may only pull (exchange.c). */
static const struct kelp_rpc_method methods[] = {
    {.path = EXCHANGE_PATH,
     .roles = KELP_ROLE_BIT(KELP_ROLE_WORKER) | KELP_ROLE_BIT(KELP_ROLE_OPERATOR) |
              KELP_ROLE_BIT(KELP_ROLE_READER),
     .accept = kelp__service_exchange_accept,
     .shared = true},
    {.path = "/kelp.v1.ParameterServer/Control",
     .roles = KELP_ROLE_BIT(KELP_ROLE_COORDINATOR),
     .accept = kelp__service_control_accept},
    {.path = "/kelp.v1.ParameterServer/Replicate",
     .roles = KELP_ROLE_BIT(KELP_ROLE_SHARD),
     .accept = kelp__service_follow_accept,
     .shared = true},
    {.path = "/kelp.v1.ParameterServer/Status",
     .roles = KELP_ROLE_BIT(KELP_ROLE_OPERATOR) | KELP_ROLE_BIT(KELP_ROLE_READER),
     .unary = answer_status},
};

static void count_refused(void *server_user)
{
    struct kelp_service *service = server_user;

    kelp_figures_add(service->options.figures, KELP_FIGURE_SHARD_STREAMS_REFUSED, 1);
}

void kelp__service_log_end(struct kelp_service *service, struct kelp_rpc_stream *stream,
                           const struct service_speaker *speaker, const char *what,
                           kelp_status status, const char *text)
{
    const char *peer = kelp_rpc_stream_peer(stream);
    const int said = 2 * (int)status + (speaker->id ? 1 : 0);
    const int kind = said + 1000 * (int)speaker->role; /* distinct for each role */
    unsigned held = 0;

    count_refused(service);
    if (kelp_log_gate_pass(&service->refusals, peer, kind, &held)) {
        kelp_log_warn("%s %s=%s peer=%s status=%s error=\"%s\" more_before=%u", what,
                      kelp_role_names[speaker->role], speaker->id ? speaker->id : "?", peer,
                      kelp_status_name(status), text, held);
    }
}

void kelp__service_refuse(struct kelp_rpc_stream *stream, const ProtobufCMessage *reply,
                          kelp_status status, const char *text)
{
    struct kelp_rpc_message *message = NULL;

    if (kelp_wire_encode(reply, &message, NULL) == KELP_OK &&
        kelp_rpc_stream_send(stream, message) != KELP_OK) {
        kelp_log_debug("refusal not sent"); /* the close tells it, too */
    }
    kelp_rpc_stream_close(stream, status, text);
}

size_t kelp__service_message_bytes_max(const struct kelp_job *job)
{
    /* A sender fills a message up to piece_bytes and never splits a slice. */
    return (size_t)job->transport.piece_bytes * 2 + KELP_PS_PARTITION_BYTES_MAX +
           KELP_PS_FIELDS_BYTES_MAX;
}

static kelp_status open_server(struct kelp_service *service,
                               const struct kelp_rpc_server_options *options,
                               struct kelp_error *reterr)
{
    struct kelp_error error;
    const kelp_status status =
        kelp_rpc_server_open(service->options.loop, options, &service->server, &error);

    return status == KELP_OK ? KELP_OK
           : status == KELP_ERR_UNSUPPORTED
               ? kelp_fail(reterr, KELP_ERR_INVALID, "transport.kind: shm: %s", error.text)
               : kelp_fail(reterr, status, "%s", error.text);
}

kelp_status kelp_service_open(const struct kelp_service_options *options,
                              struct kelp_service **ret_service, struct kelp_error *reterr)
{
    struct kelp_service *service = calloc(1, sizeof(*service));
    kelp_status status;

    if (!service) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the service");
    }
    service->options = *options;
    service->roster = kelp_roster_create();
    if (!service->roster) {
        free(service);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the service");
    }
    (void)pthread_mutex_init(&service->turns_lock, NULL);
    (void)pthread_mutex_init(&service->names_lock, NULL);
    (void)pthread_mutex_init(&service->told_lock, NULL);
    (void)pthread_mutex_init(&service->tick_lock, NULL);
    (void)pthread_mutex_init(&service->orders_lock, NULL);
    (void)pthread_mutex_init(&service->control_lock, NULL);
    service->refusals = (struct kelp_log_gate)KELP_LOG_GATE_INIT;
    service->waits = (struct kelp_log_gate)KELP_LOG_GATE_INIT;
    service->leader_lines = (struct kelp_log_gate)KELP_LOG_GATE_OF(KELP_PS_LEADER_LINES);
    kelp__service_load_init(service);
    service->self = (struct kelp_hello){.job = options->job->name,
                                        .spec_digest = options->spec_digest,
                                        .id = options->id,
                                        .incarnation = options->incarnation};
    kelp_hello_write(&service->self, &service->hello);
    struct kelp_rpc_server_options server = {
        .address = options->listen,
        .advertise = options->advertise,
        .message_bytes_max = kelp__service_message_bytes_max(options->job),
        .hello = true,
        .shared = options->job->transport.kind != KELP_TRANSPORT_GRPC,
        .must_share = options->job->transport.kind == KELP_TRANSPORT_SHM,
        .methods = methods,
        .method_count = KELP_ARRAY_COUNT(methods),
        .refused = count_refused,
        .user = service};
    status = kelp__service_control_open(service, reterr);
    if (status != KELP_OK) {
        goto err_close;
    }
    status = kelp__service_replicas_open(service, reterr);
    if (status != KELP_OK) {
        goto err_close;
    }
    status = kelp_shard_create(options->job, &kelp__service_shard_events, service, &service->shard,
                               reterr);
    if (status != KELP_OK) {
        goto err_close;
    }
    kelp_shard_trace(service->shard, options->trace);
    status = kelp__service_snapshots_open(service, reterr);
    if (status != KELP_OK) {
        goto err_close;
    }
    status = open_server(service, &server, reterr);
    if (status != KELP_OK) {
        goto err_close;
    }
    kelp_rpc_server_queue_max(service->server, KELP_PS_QUEUE_BYTES_MAX);
    *ret_service = service;
    return KELP_OK;

err_close:
    kelp_service_close(service);
    return status;
}

const char *kelp_service_address(const struct kelp_service *service)
{
    return kelp_rpc_server_address(service->server);
}

void kelp_service_close(struct kelp_service *service)
{
    if (!service) {
        return;
    }
    kelp__service_load_stop(service);
    if (service->server) {
        kelp_rpc_server_close(service->server);
    }
    kelp__service_replicas_stop(service);
    kelp__service_load_stop(service);      /* a map may have come with the last messages */
    kelp__service_snapshots_stop(service); /* its events may still come from the last messages */
    kelp__service_ticks_stop(service);
    kelp_shard_destroy(service->shard);
    kelp__service_snapshots_close(service);
    kelp__service_replicas_close(service);
    kelp__service_control_close(service);
    kelp__service_turns_free(service);
    kelp_roster_destroy(service->roster);
    (void)pthread_mutex_destroy(&service->turns_lock);
    (void)pthread_mutex_destroy(&service->names_lock);
    (void)pthread_mutex_destroy(&service->told_lock);
    (void)pthread_mutex_destroy(&service->tick_lock);
    (void)pthread_cond_destroy(&service->load_cancelled);
    (void)pthread_mutex_destroy(&service->orders_lock);
    (void)pthread_mutex_destroy(&service->control_lock);
    free(service);
}
