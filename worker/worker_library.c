/*
 * The worker library (include/kelp/worker.h): the stepper (worker/core/stepper.h) decides; this
 * file holds weights, streams and timers, and carries its actions out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "common/etcd/etcd.h"
#include "common/program/daemon.h"
#include "kelp/worker.h"
#include "proto/convert.h"
#include "worker/coordinator_link.h"
#include "worker/core/stepper.h"
#include "worker/exchange_link.h"
#include "worker/loop_keeper.h"
#include "worker/wire_map.h"

#define SPIN_US        40u /* waking a blocked thread costs more than a small step (bench/steps) */
#define TOLD_MS        5000u
#define STAGGER_FLOATS 80u /* 320 bytes: see worker/gradients.c */

struct kelp_worker {
    struct kelp_worker_options options;
    char id[KELP_JOB_NAME_MAX + 1];
    char job_name[KELP_JOB_NAME_MAX + 1];
    uint64_t incarnation;
    struct kelp_etcd *etcd;
    struct kelp_job_file *file;
    const struct kelp_job *job;
    const struct kelp_plan *plan;
    char *plan_text;
    Kelp__V1__Hello hello;

    struct kelp_rpc_loop *loop;
    struct kelp_loop_keeper *keeper; /* runs the loop while lanes are computed */
    struct kelp_coordinator_link *coordinator;
    int news;                       /* atomic: the link has something to take */
    struct kelp_shard_link **links; /* by their numbers; NULL: none */
    uint32_t link_count;
    uint32_t links_alive; /* closed ones that have not ended yet included */

    struct kelp_stepper *stepper;
    struct kelp_stepper_actions actions;
    float *memory;
    float *weights[2];
    unsigned current;
    struct kelp_gradient_pool *gradients;
    uint64_t lanes_computed;
    uint64_t told_ms;                 /* when the log was told last that late lanes are computed */
    struct kelp_rpc_timer *ask_timer; /* only after a shard answered "busy" */
    struct kelp_error failure;        /* kelp_worker_next() reports it */
};

/* ---- opening --------------------------------------------------------------------------------- */

kelp_status kelp_worker_open(const struct kelp_worker_options *options, struct kelp_stop *stop,
                             struct kelp_worker **ret_worker, struct kelp_error *reterr)
{
    struct kelp_worker *worker = calloc(1, sizeof(*worker));
    if (!worker) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "worker: out of memory");
    }
    (void)snprintf(worker->id, sizeof(worker->id), "%s", options->id);
    (void)snprintf(worker->job_name, sizeof(worker->job_name), "%s", options->job);
    worker->options = *options;
    kelp_status status = kelp_random_id(&worker->incarnation, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_etcd_open_certified(options->etcd, kelp_credentials_folder(options->credentials),
                                      &worker->etcd, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_daemon_read_job(worker->etcd, worker->job_name, options->spec_sha256, stop,
                                  &worker->file, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_rpc_loop_create(&worker->loop, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    kelp_rpc_loop_credentials(worker->loop, options->credentials);
    worker->job = kelp_job_file_job(worker->file);
    kelp__v1__hello__init(&worker->hello);
    worker->hello.job = worker->job_name;
    worker->hello.spec_digest = kelp_job_file_digest(worker->file);
    worker->hello.id = worker->id;
    worker->hello.incarnation = worker->incarnation;
    worker->hello.protocol = 1;
    *ret_worker = worker;
    return KELP_OK;

fail:
    kelp_worker_close(worker);
    return status;
}

const struct kelp_job *kelp_worker_job(const struct kelp_worker *worker)
{
    return worker->job;
}

/* ---- the version in progress ----------------------------------------------------------------- */

static void keep_failure(struct kelp_worker *worker, const struct kelp_error *error)
{
    if (worker->failure.status == KELP_OK) {
        worker->failure = *error;
    }
}

static void handle_event(struct kelp_worker *worker, const struct kelp_stepper_event *event);

/* ---- events of links ------------------------------------------------------------------------- */

static void on_closed(struct kelp_shard_link *link, void *user)
{
    handle_event(user, &(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED,
                                                    .link = kelp_shard_link_number(link)});
}

static void on_retry(struct kelp_shard_link *link, void *user)
{
    handle_event(user, &(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY,
                                                    .link = kelp_shard_link_number(link)});
}

/* Did the event lead to an action of this kind? */
static const struct kelp_stepper_action *find_action(const struct kelp_worker *worker,
                                                     enum kelp_stepper_action_kind kind)
{
    for (size_t i = 0; i < worker->actions.count; i++) {
        if (worker->actions.items[i].kind == kind) {
            return &worker->actions.items[i];
        }
    }
    return NULL;
}

static void on_answer(struct kelp_shard_link *link, const Kelp__V1__PullAnswer *answer,
                      const struct kelp_wire_payload *payload, void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_control_word word;
    struct kelp_place primary;
    struct kelp_error error;
    bool has_word = answer->partition == 0 && answer->word;

    if (has_word && !kelp_wire_get_word(answer->word, &word)) {
        (void)kelp_fail(&error, KELP_ERR_FORMAT, "control word of version %" PRIu64 " is malformed",
                        answer->word->version);
        keep_failure(worker, &error);
        return;
    }
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    event.answer.link = kelp_shard_link_number(link);
    event.answer.generation = kelp_shard_link_generation(link);
    event.answer.map_epoch = answer->map_epoch;
    event.answer.primary = kelp_worker_place_decode(answer->primary, &primary) ? &primary : NULL;
    event.answer.answer = (struct kelp_sync_answer){
        .partition = answer->partition,
        .status = (kelp_status)answer->status,
        .step = answer->step,
        .current_step = answer->current_step,
        .has_weights = payload,
        .word = has_word ? &word : NULL,
        .is_share = answer->is_part,
        .values = answer->is_part ? answer->part : answer->decision,
        .value_count = (uint32_t)(answer->is_part ? answer->n_part : answer->n_decision),
    };
    handle_event(worker, &event);
    if (find_action(worker, KELP_STEPPER_KEEP)) {
        struct kelp_slice_range range = kelp_plan_partition(worker->plan, answer->partition);
        kelp_wire_payload_copy(payload, (size_t)answer->offset, (size_t)answer->length,
                               worker->weights[1 - worker->current] + range.first);
    }
}

static void on_refused(struct kelp_shard_link *link, const Kelp__V1__Refusal *refusal, void *user)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_REFUSED};
    struct kelp_place primary;

    /* It is sent again for all of these reasons. */
    bool passes = kelp_status_group((kelp_status)refusal->status) <= KELP_GROUP_FENCED;

    kelp_log(passes ? KELP_LOG_DEBUG : KELP_LOG_WARN,
             "push refused partition=%u version=%" PRIu64 " status=%s", refusal->partition,
             refusal->version, kelp_status_name((kelp_status)refusal->status));
    event.refused.link = kelp_shard_link_number(link);
    event.refused.generation = kelp_shard_link_generation(link);
    event.refused.partition = refusal->partition;
    event.refused.map_epoch = refusal->map_epoch;
    event.refused.primary = kelp_worker_place_decode(refusal->primary, &primary) ? &primary : NULL;
    event.refused.status = (kelp_status)refusal->status;
    handle_event(user, &event);
}

static void on_offered(struct kelp_shard_link *link, const Kelp__V1__Offer *offer, void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_OFFER};

    event.offer.generation = kelp_shard_link_generation(link);
    event.offer.lane_first = offer->lane_first;
    event.offer.lane_count = offer->lane_count;
    if (kelp_wire_get_word(offer->word, &event.offer.word)) {
        handle_event(worker, &event); /* else nothing is lost: an offer is only advice */
    }
}

static const struct kelp_shard_link_events link_events = {
    .closed = on_closed,
    .retry = on_retry,
    .answer = on_answer,
    .refused = on_refused,
    .offered = on_offered,
};

/* ---- actions --------------------------------------------------------------------------------- */

static void close_link(struct kelp_worker *worker, uint32_t number)
{
    if (number < worker->link_count) {
        kelp_shard_link_close(worker->links[number]);
        worker->links[number] = NULL;
    }
}

static void close_links(struct kelp_worker *worker)
{
    for (uint32_t i = 0; i < worker->link_count; i++) {
        close_link(worker, i);
    }
    free(worker->links);
    worker->links = NULL;
    worker->link_count = 0;
}

static bool make_room(struct kelp_worker *worker, uint32_t number)
{
    if (number < worker->link_count) {
        return true;
    }
    struct kelp_shard_link **links =
        realloc(worker->links, ((size_t)number + 1) * sizeof(*worker->links));
    if (!links) {
        return false;
    }
    worker->links = links;
    while (worker->link_count <= number) {
        worker->links[worker->link_count++] = NULL;
    }
    return true;
}

static kelp_status open_link(struct kelp_worker *worker, const struct kelp_stepper_action *action,
                             struct kelp_error *reterr)
{
    const struct kelp_shard_link_options options = {
        .loop = worker->loop,
        .hello = &worker->hello,
        .generation = action->connect.generation,
        .place = action->connect.place,
        .plan = worker->plan,
        .lanes = worker->job->cluster.lanes,
        .number = action->connect.link,
        .alive = &worker->links_alive,
        .piece_bytes = worker->job->transport.piece_bytes,
        .connect_timeout_ms = worker->job->transport.connect_timeout_ms,
        .events = &link_events,
        .user = worker,
    };
    return kelp_shard_link_open(&options, &worker->links[action->connect.link], reterr);
}

static void connect_link(struct kelp_worker *worker, const struct kelp_stepper_action *action)
{
    uint32_t number = action->connect.link;
    struct kelp_error error;
    kelp_status status = KELP_OK;

    if (!make_room(worker, number)) {
        status = kelp_fail(&error, KELP_ERR_NO_MEMORY, "map: out of memory");
    } else if (!worker->links[number]) {
        status = open_link(worker, action, &error);
    }
    if (status != KELP_OK) {
        keep_failure(worker, &error);
        return;
    }
    kelp_shard_link_connect(worker->links[number]);
}

/* A shard was busy: ask again after a pause. */
static void on_ask_timer(void *user)
{
    struct kelp_worker *worker = user;
    kelp_rpc_timer_stop(worker->ask_timer);
    worker->ask_timer = NULL;
    handle_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
}

static void start_ask_timer(struct kelp_worker *worker, uint32_t after_ms)
{
    struct kelp_error error;
    if (kelp_rpc_timer_start(worker->loop, after_ms, on_ask_timer, worker, &worker->ask_timer) !=
        KELP_OK) {
        (void)kelp_fail(&error, KELP_ERR_NO_MEMORY, "no memory for a timer");
        keep_failure(worker, &error);
    }
}

static void begin_version(struct kelp_worker *worker, const struct kelp_stepper_action *action)
{
    if (action->begin.swap) {
        worker->current = 1 - worker->current;
    }
    struct kelp_stepper_view view;
    kelp_stepper_view(worker->stepper, &view);
    kelp_coordinator_link_progress(worker->coordinator, view.generation, action->begin.word.version,
                                   worker->lanes_computed);
}

static void send_message(struct kelp_worker *worker, const struct kelp_stepper_message *message)
{
    struct kelp_error error;
    if (message->link < worker->link_count && worker->links[message->link] &&
        kelp_shard_link_send(worker->links[message->link], message, &error) != KELP_OK) {
        keep_failure(worker, &error);
    }
}

static void carry_out(struct kelp_worker *worker, const struct kelp_stepper_action *action)
{
    struct kelp_error over;

    switch (action->kind) {
    case KELP_STEPPER_FAIL:
        keep_failure(worker, &action->fail);
        break;
    case KELP_STEPPER_LEAVE:
        (void)kelp_fail(&over, KELP_ERR_CLOSED, "the job is over");
        keep_failure(worker, &over);
        break;
    case KELP_STEPPER_ADOPT:
        kelp_log_info("newer map generation=%" PRIu64 " serial=%" PRIu64 " changed=%u",
                      action->adopt.generation, action->adopt.serial, action->adopt.changed);
        break;
    case KELP_STEPPER_CLOSE:
        close_link(worker, action->close);
        break;
    case KELP_STEPPER_CONNECT:
        connect_link(worker, action);
        break;
    case KELP_STEPPER_SEND:
        send_message(worker, &action->send);
        break;
    case KELP_STEPPER_RETRY_LATER:
        kelp_shard_link_retry_later(worker->links[action->later.link], action->later.after_ms);
        break;
    case KELP_STEPPER_ASK_LATER:
        start_ask_timer(worker, action->later.after_ms);
        break;
    case KELP_STEPPER_STALE:
        kelp_log_info("refused by an old map partition=%u status=%s", action->stale.partition,
                      kelp_status_name(action->stale.status));
        break;
    case KELP_STEPPER_BEGIN:
        begin_version(worker, action);
        break;
    case KELP_STEPPER_RELEASE:
        kelp_gradient_unref(action->release);
        break;
    case KELP_STEPPER_KEEP:
    case KELP_STEPPER_COMPUTE:
        break; /* the caller of handle_event() looks for them */
    }
}

static void carry_out_all(struct kelp_worker *worker)
{
    for (size_t i = 0; i < worker->actions.count; i++) {
        carry_out(worker, &worker->actions.items[i]);
    }
}

static void handle_event(struct kelp_worker *worker, const struct kelp_stepper_event *event)
{
    struct kelp_error error;
    kelp_status status = kelp_stepper_event(worker->stepper, event, &worker->actions);
    if (status != KELP_OK) {
        (void)kelp_fail(&error, status, "worker: no memory for what is to be sent");
        keep_failure(worker, &error);
        return;
    }
    carry_out_all(worker);
}

/* ---- news ------------------------------------------------------------------------------------ */

static void hear_news(struct kelp_worker *worker)
{
    struct kelp_news news;
    struct kelp_places places;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_NEWS, .news = {.news = &news}};

    if (!__atomic_exchange_n(&worker->news, 0, __ATOMIC_ACQ_REL) ||
        !kelp_coordinator_link_take_news(worker->coordinator, &news)) {
        return;
    }
    if (news.map) {
        kelp_worker_map_places(news.map, &places);
        event.news.places = &places;
    }
    handle_event(worker, &event);
    kelp_worker_map_free(news.map);
}

/* The keeper has handled an event: news too are taken while lanes are computed. */
static void on_kept(void *user)
{
    hear_news(user);
}

static void on_changed(void *user)
{
    struct kelp_worker *worker = user;
    __atomic_store_n(&worker->news, 1, __ATOMIC_RELEASE);
    kelp_rpc_loop_wake(worker->loop);
}

void kelp_worker_send_half(struct kelp_worker *worker)
{
    kelp_loop_keeper_return(worker->keeper);
    if (worker->link_count > 0) {
        handle_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_HALF});
        for (int i = 0; i < 100 && kelp_rpc_loop_run(worker->loop, 1); i++) {
        }
    }
}

void kelp_worker_wake(struct kelp_worker *worker)
{
    kelp_rpc_loop_wake(worker->loop);
}

/* ---- joining --------------------------------------------------------------------------------- */

static kelp_status allocate(struct kelp_worker *worker, struct kelp_error *reterr)
{
    size_t flat_count = (size_t)worker->plan->flat_count;
    size_t bytes = (2 * flat_count + STAGGER_FLOATS) * sizeof(float);
    bytes = (bytes + KELP_TENSOR_ALIGN - 1) / KELP_TENSOR_ALIGN * KELP_TENSOR_ALIGN;

    worker->memory = aligned_alloc(KELP_TENSOR_ALIGN, bytes);
    worker->stepper = kelp_stepper_create(worker->job, worker->plan);
    worker->gradients = kelp_gradient_pool_create(worker->plan->flat_count);
    if (!worker->memory || !worker->stepper || !worker->gradients) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "worker: no memory for two copies of %zu weights", flat_count);
    }
    memset(worker->memory, 0, bytes);
    worker->weights[0] = worker->memory;
    worker->weights[1] = worker->memory + flat_count + STAGGER_FLOATS;
    return KELP_OK;
}

kelp_status kelp_worker_join(struct kelp_worker *worker, const struct kelp_plan *plan,
                             struct kelp_error *reterr)
{
    worker->plan = plan;
    kelp_status status = kelp_plan_print(plan, &worker->plan_text, reterr);
    if (status == KELP_OK) {
        status = allocate(worker, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_loop_keeper_start(worker->loop, on_kept, worker, &worker->keeper, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_coordinator_link_options options = {
        .etcd = worker->etcd,
        .credentials = worker->options.credentials,
        .job = worker->job_name,
        .spec_digest = worker->hello.spec_digest,
        .id = worker->id,
        .incarnation = worker->incarnation,
        .plan = worker->plan_text,
        .connect_timeout_ms = worker->job->transport.connect_timeout_ms,
        .changed = on_changed,
        .user = worker,
    };
    return kelp_coordinator_link_open(&options, &worker->coordinator, reterr);
}

/* ---- working --------------------------------------------------------------------------------- */

static void hand_out(struct kelp_worker *worker, const struct kelp_stepper_action *action,
                     struct kelp_work *ret_work)
{
    *ret_work = (struct kelp_work){
        .word = action->compute.word,
        .weights = worker->weights[worker->current],
        .lane_first = action->compute.lane_first,
        .lane_count = action->compute.lane_count,
    };
    uint64_t now_ms = action->compute.offered ? kelp_clock_ms() : 0;
    if (now_ms - worker->told_ms >= TOLD_MS && now_ms > 0) {
        worker->told_ms = now_ms;
        kelp_log_info("computing lanes that are late version=%" PRIu64 " lanes=%u+%u",
                      ret_work->word.version, ret_work->lane_first, ret_work->lane_count);
    }
}

static kelp_status wait_for_work(struct kelp_worker *worker, struct kelp_stop *stop,
                                 struct kelp_work *ret_work, struct kelp_error *reterr)
{
    for (;;) {
        hear_news(worker);
        if (worker->failure.status != KELP_OK) {
            return kelp_fail(reterr, worker->failure.status, "%s", worker->failure.text);
        }
        if (kelp_stop_raised(stop)) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "stopped");
        }
        handle_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_TURN});
        const struct kelp_stepper_action *work = find_action(worker, KELP_STEPPER_COMPUTE);
        if (work) {
            hand_out(worker, work, ret_work);
            return KELP_OK;
        }
        if (worker->failure.status == KELP_OK) {
            (void)kelp_rpc_loop_run_spin(worker->loop, SPIN_US, -1);
        }
    }
}

kelp_status kelp_worker_next(struct kelp_worker *worker, struct kelp_stop *stop,
                             struct kelp_work *ret_work, struct kelp_error *reterr)
{
    kelp_loop_keeper_return(worker->keeper);
    kelp_status status = wait_for_work(worker, stop, ret_work, reterr);
    if (status == KELP_OK) {
        kelp_loop_keeper_leave(worker->keeper);
    }
    return status;
}

struct kelp_gradient *kelp_worker_gradient(struct kelp_worker *worker)
{
    return kelp_gradient_get(worker->gradients);
}

kelp_status kelp_worker_push(struct kelp_worker *worker, const struct kelp_node *node,
                             struct kelp_error *reterr)
{
    const struct kelp_stepper_event event = {
        .kind = KELP_STEPPER_COMPUTED,
        .computed = {.lane_first = node->lane_first,
                     .lane_count = node->lane_count,
                     .present = node->gradient->present,
                     .content = node->gradient},
    };
    if (node->digest) {
        (void)snprintf(node->gradient->digest, sizeof(node->gradient->digest), "%s", node->digest);
    }
    kelp_loop_keeper_pause(worker->keeper);
    kelp_status status = kelp_stepper_event(worker->stepper, &event, &worker->actions);
    if (status == KELP_OK) {
        worker->lanes_computed += node->lane_count;
        carry_out_all(worker);
    }
    kelp_loop_keeper_resume(worker->keeper);
    if (status != KELP_OK) {
        kelp_gradient_unref(node->gradient);
        return kelp_fail(reterr, KELP_ERR_INVALID, "push of lanes [%u, +%u) of %u",
                         node->lane_first, node->lane_count, worker->job->cluster.lanes);
    }
    return KELP_OK;
}

/* ---- closing --------------------------------------------------------------------------------- */

void kelp_worker_close(struct kelp_worker *worker)
{
    if (!worker) {
        return;
    }
    kelp_loop_keeper_stop(worker->keeper);
    kelp_coordinator_link_close(worker->coordinator);
    close_links(worker);
    if (worker->ask_timer) {
        kelp_rpc_timer_stop(worker->ask_timer);
    }
    while (worker->links_alive > 0) {
        (void)kelp_rpc_loop_run(worker->loop, -1); /* each ends within a second of being closed */
    }
    if (worker->loop) {
        kelp_rpc_loop_destroy(worker->loop);
    }
    if (worker->stepper && kelp_stepper_drop(worker->stepper, &worker->actions) == KELP_OK) {
        carry_out_all(worker);
    }
    kelp_stepper_actions_fini(&worker->actions);
    kelp_stepper_destroy(worker->stepper);
    kelp_gradient_pool_destroy(worker->gradients);
    free(worker->memory);
    free(worker->plan_text);
    if (worker->etcd) {
        kelp_etcd_close(worker->etcd);
    }
    kelp_job_file_destroy(worker->file);
    free(worker);
}
