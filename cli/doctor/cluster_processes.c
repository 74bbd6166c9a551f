/* Each process that is registered in etcd: is it reached from this host, and is it who it should
 * be? */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/doctor/cluster.h"
#include "cli/doctor/peer.h"
#include "cli/doctor/reach.h"
#include "cli/doctor/side_by_side.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "proto/wire.h"

#define CHECK           "processes"
#define SHARD_BYTES_MAX (1u << 20)
#define ROUND_TRIPS     3 /* of which the median counts: the first one connects as well */

static void say(struct kelp_doctor_process *process, enum kelp_finding_state state,
                const char *format, ...) KELP_PRINTF(3, 4);

static void say(struct kelp_doctor_process *process, enum kelp_finding_state state,
                const char *format, ...)
{
    va_list arguments;

    process->state = state;
    va_start(arguments, format);
    (void)vsnprintf(process->text, sizeof(process->text), format, arguments);
    va_end(arguments);
}

/* Who it is, where, for people. */
#define WHO_BYTES 420
static const char *who(const struct kelp_doctor_process *process, char text[WHO_BYTES])
{
    const bool zone = process->zone[0] != '\0';

    (void)snprintf(text, WHO_BYTES, "%s %s%s%s%s at %s", kelp_role_names[process->role],
                   process->id[0] ? process->id : "?", zone ? " (zone " : "", process->zone,
                   zone ? ")" : "", process->address[0] ? process->address : "?");
    return text;
}

static void say_unconnected(struct kelp_doctor_process *process, int error)
{
    const enum kelp_address_kind kind = kelp_address_kind(process->address);

    if (kind == KELP_ADDRESS_SOCKET && (error == ENOENT || error == ECONNREFUSED)) {
        say(process, KELP_FINDING_PROBLEM,
            "nothing listens on that socket: it is gone, or on another host, where this one cannot "
            "reach it");
    } else if (error == ECONNREFUSED && kind == KELP_ADDRESS_LOOPBACK) {
        say(process, KELP_FINDING_PROBLEM,
            "connection refused: nothing listens there; it is a loopback address, which only its "
            "own host can reach");
    } else if (error == ECONNREFUSED) {
        say(process, KELP_FINDING_PROBLEM,
            "connection refused: nothing listens there; a dead process stays registered for some "
            "seconds");
    } else if (error == ETIMEDOUT) {
        say(process, KELP_FINDING_PROBLEM, "timed out: a firewall drops it, or its host is down");
    } else {
        say(process, KELP_FINDING_PROBLEM, "%s", strerror(error));
    }
}

/* ---- the call ------------------------------------------------------------------------------ */

/* What is asked of a process of that role, and how large the answer may be. */
static const struct {
    const char *path;
    const ProtobufCMessageDescriptor *request, *reply;
    size_t bytes_max;
} asks[] = {
    [KELP_ROLE_COORDINATOR] = {"/kelp.v1.Coordinator/Status", &kelp__v1__status_request__descriptor,
                               &kelp__v1__status_reply__descriptor, KELP_JOB_CLIENT_ANSWER_MAX},
    [KELP_ROLE_SHARD] = {"/kelp.v1.ParameterServer/Status",
                         &kelp__v1__shard_status_request__descriptor,
                         &kelp__v1__shard_status_reply__descriptor, SHARD_BYTES_MAX},
};

/* Is it the one that has registered? */
static void judge(const struct kelp_doctor_cluster *cluster, struct kelp_doctor_process *process,
                  const Kelp__V1__Hello *hello)
{
    if (!hello) { /* of a coordinator of an earlier version */
        return;
    }
    kelp_doctor_version(hello->version, hello->commit, process->version);
    if (strcmp(hello->job, cluster->job) != 0 || strcmp(hello->id, process->id) != 0) {
        say(process, KELP_FINDING_PROBLEM, "%.63s of job %.63s answers there in its place",
            hello->id, hello->job);
    } else if (hello->incarnation != process->incarnation) {
        say(process, KELP_FINDING_PROBLEM,
            "another process of that name answers there: two have the name, or the entry in etcd "
            "is old");
    }
}

/* Owns the answer's fields. */
static void take(const struct kelp_doctor_cluster *cluster, struct kelp_doctor_process *process,
                 ProtobufCMessage *fields)
{
    kelp_wire_clean(fields);
    if (process->role == KELP_ROLE_COORDINATOR) {
        kelp_job_client_status_free(process->status);
        process->status = (Kelp__V1__StatusReply *)(void *)fields;
        judge(cluster, process, process->status->hello);
    } else {
        judge(cluster, process, ((Kelp__V1__ShardStatusReply *)(void *)fields)->hello);
        protobuf_c_message_free_unpacked(fields, NULL);
    }
}

static kelp_status ask(const struct kelp_doctor_cluster *cluster,
                       struct kelp_doctor_process *process, struct kelp_rpc_channel *channel,
                       uint32_t within_ms, struct kelp_error *reterr)
{
    ProtobufCMessage request = PROTOBUF_C_MESSAGE_INIT(asks[process->role].request); /* no fields */
    struct kelp_rpc_message *message = NULL, *answer = NULL;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    kelp_status status = kelp_wire_encode(&request, &message, reterr);
    if (status == KELP_OK) {
        status =
            kelp_rpc_call(channel, asks[process->role].path, message, within_ms, &answer, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_wire_decode(answer, asks[process->role].reply, asks[process->role].bytes_max,
                                  &fields, &payload, reterr);
        kelp_rpc_message_unref(answer);
    }
    if (status == KELP_OK) {
        take(cluster, process, fields);
    }
    return status;
}

static void say_silent(struct kelp_doctor_process *process)
{
    say(process, KELP_FINDING_PROBLEM,
        "connected, but it does not answer: it is stopped, or its host hangs");
}

/* The handshake has failed: who is there? False: that does not tell. */
static bool say_peer(const struct kelp_doctor_cluster *cluster, struct kelp_doctor_process *process)
{
    struct kelp_error error;
    struct kelp_peer peer;
    char text[sizeof(process->text)];

    if (!cluster->certs || kelp_address_kind(process->address) == KELP_ADDRESS_SOCKET ||
        kelp_peer_look(process->address, cluster->certs, kelp_doctor_left(cluster), &peer,
                       &error) != KELP_OK) {
        return false;
    }
    if (peer.silent) {
        say_silent(process);
        return true;
    }
    if (kelp_peer_judge(&peer, process->role, cluster->job, (int64_t)time(NULL), text,
                        sizeof(text))) {
        say(process, KELP_FINDING_PROBLEM, "%s", text);
        return true;
    }
    return false;
}

static void say_unanswered(const struct kelp_doctor_cluster *cluster,
                           struct kelp_doctor_process *process, const struct kelp_error *error)
{
    const char *address = strstr(error->text, process->address);
    const char *text = address ? address + strlen(process->address) : error->text;

    if (error->status == KELP_ERR_TIMEOUT || strstr(text, "nobody answers")) {
        say_silent(process);
    } else if (!say_peer(cluster, process)) { /* the address is said already */
        say(process, KELP_FINDING_PROBLEM, "%.280s", text + strspn(text, ": "));
    }
}

/* Ask some times, at most until then. Says how long it took, or what was said instead. */
static void call(const struct kelp_doctor_cluster *cluster, struct kelp_doctor_process *process,
                 struct kelp_rpc_channel *channel, uint64_t end_ms)
{
    struct kelp_error error = {.status = KELP_ERR_TIMEOUT};
    uint64_t us[ROUND_TRIPS];
    size_t count = 0;

    for (uint64_t now_ms = kelp_clock_ms(); count < ROUND_TRIPS && now_ms < end_ms;
         now_ms = kelp_clock_ms()) {
        const uint64_t begin_us = kelp_clock_us();
        const uint32_t left_ms = (uint32_t)(end_ms - now_ms);
        if (ask(cluster, process, channel, left_ms, &error) != KELP_OK) {
            break;
        }
        us[count++] = kelp_clock_us() - begin_us;
    }
    if (count > 0) {
        const uint64_t median_us = kelp_doctor_median(us, count);
        if (process->state == KELP_FINDING_OK) {
            say(process, KELP_FINDING_OK, "answers in %.1f ms", (double)median_us / 1000);
        }
    } else {
        say_unanswered(cluster, process, &error);
    }
}

/* ---- one process --------------------------------------------------------------------------- */

static void call_process(const struct kelp_doctor_cluster *cluster,
                         struct kelp_doctor_process *process, uint64_t end_ms)
{
    struct kelp_rpc_channel *channel = NULL;
    struct kelp_error error;

    if (kelp_rpc_channel_open(kelp_job_client_loop(cluster->client), process->address,
                              process->role, asks[process->role].bytes_max, &channel,
                              &error) != KELP_OK) {
        say(process, KELP_FINDING_PROBLEM, "%.280s", error.text);
        return;
    }
    call(cluster, process, channel, end_ms);
    kelp_rpc_channel_close(channel);
}

static void look_at(size_t index, void *user)
{
    const struct kelp_doctor_cluster *cluster = user;
    struct kelp_doctor_process *process = &cluster->processes[index];
    const uint32_t left_ms = kelp_doctor_left(cluster);
    const uint64_t end_ms = kelp_clock_ms() + left_ms;

    if (left_ms == 0) {
        say(process, KELP_FINDING_WARNING, "not asked: the time was up (--timeout)");
        return;
    }
    if (!kelp_address_is_target(process->address)) {
        say(process, KELP_FINDING_PROBLEM,
            "its entry in etcd is damaged, or of another version: it has no numeric address");
        return;
    }
    int error = kelp_reach(process->address, left_ms, &process->here);
    if (error != 0) {
        say_unconnected(process, error);
        return;
    }
    call_process(cluster, process, end_ms);
}

/* ---- all of them --------------------------------------------------------------------------- */

static void tell_count(struct kelp_doctor_cluster *cluster)
{
    size_t leaders = 0;

    for (size_t i = 0; i < cluster->process_count; i++) {
        leaders += cluster->processes[i].role == KELP_ROLE_COORDINATOR;
    }
    const bool paused = cluster->over && strcmp(cluster->result, "paused") == 0;
    if (cluster->process_count == 0 && cluster->over && !paused) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "none has registered, which is fine: the job is over");
    } else if (cluster->process_count == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING, "none has registered: %s",
                          paused ? "the job is paused; kelp node continues it"
                                 : "no host runs kelp node for this job now");
    } else if (leaders == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "no coordinator leads: none runs (kelp node --coordinator), or none "
                          "reaches etcd");
    } else if (leaders == cluster->process_count) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "no shard has registered: none runs (kelp node --shards N), or none "
                          "reaches etcd");
    }
}

void kelp_doctor_processes(struct kelp_doctor_cluster *cluster)
{
    const uint64_t end_ms = cluster->end_ms;
    char text[WHO_BYTES];

    cluster->end_ms -= cluster->share_ms; /* the folder is to be looked at too */
    kelp_side_by_side(cluster->process_count, look_at, cluster);
    cluster->end_ms = end_ms;
    for (size_t i = 0; i < cluster->process_count; i++) {
        const struct kelp_doctor_process *process = &cluster->processes[i];
        kelp_findings_add(cluster->findings, CHECK, process->state, "%s: %s", who(process, text),
                          process->text);
    }
    tell_count(cluster);
}
