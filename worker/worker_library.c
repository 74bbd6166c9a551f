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
#include "common/scrape/figures.h"
#include "common/scrape/limits.h"
#include "proto/hello.h"
#include "worker/links/wire_map.h"
#include "worker/worker_internal.h"

#define TOLD_MS        5000u
#define STAGGER_FLOATS 80u /* 320 bytes: see worker/compute/gradients.c */

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
    uint64_t incarnation;
    kelp_status status = kelp_random_id(&incarnation, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_etcd_open_certified(options->etcd, kelp_credentials_folder(options->credentials),
                                      &worker->etcd, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_daemon_read_job(
        worker->etcd,
        &(struct kelp_daemon_job){worker->job_name, options->spec_sha256, options->paths}, stop,
        &worker->file, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_rpc_loop_create(&worker->loop, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    kelp_spin_init(&worker->spin, KELP_SPIN_US, kelp_clock_us());
    kelp_rpc_loop_credentials(worker->loop, options->credentials);
    kelp_rpc_loop_shm_folder(worker->loop, options->shm_folder);
    worker->job = kelp_job_file_job(worker->file);
    kelp_hello_write(&(struct kelp_hello){.job = worker->job_name,
                                          .spec_digest = kelp_job_file_digest(worker->file),
                                          .id = worker->id,
                                          .incarnation = incarnation},
                     &worker->hello);
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

struct kelp_figures *kelp_worker_figures(const struct kelp_worker *worker)
{
    return worker->options.figures;
}

/* ---- the version in progress ----------------------------------------------------------------- */

/* Others name a file as the job does: say where it was read. */
static void name_place(const struct kelp_worker *worker, struct kelp_error *error)
{
    struct kelp_job_path path;

    for (size_t i = 0; kelp_job_file_path(worker->file, i, &path); i++) {
        if (strcmp(path.named, path.here) != 0 && strstr(error->text, path.named)) {
            kelp_error_prefix(error, "%s is '%.160s' here", path.key, path.here);
            return;
        }
    }
}

void kelp__worker_fail(struct kelp_worker *worker, const struct kelp_error *error)
{
    if (worker->failure.status == KELP_OK) {
        worker->failure = *error;
        name_place(worker, &worker->failure);
    }
}

/* Did the event lead to an action of this kind? */
const struct kelp_stepper_action *kelp__worker_action(const struct kelp_worker *worker,
                                                      enum kelp_stepper_action_kind kind)
{
    for (size_t i = 0; i < worker->actions.count; i++) {
        if (worker->actions.items[i].kind == kind) {
            return &worker->actions.items[i];
        }
    }
    return NULL;
}

/* A shard was busy: ask again after a pause. */
static void on_ask_timer(void *user)
{
    struct kelp_worker *worker = user;
    kelp__worker_end_timer(&worker->ask_timer);
    kelp__worker_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
}

static void start_ask_timer(struct kelp_worker *worker, uint32_t after_ms)
{
    struct kelp_error error;
    if (kelp_rpc_timer_start(worker->loop, after_ms, on_ask_timer, worker, &worker->ask_timer) !=
        KELP_OK) {
        (void)kelp_fail(&error, KELP_ERR_NO_MEMORY, "no memory for a timer");
        kelp__worker_fail(worker, &error);
    }
}

static void begin_version(struct kelp_worker *worker, const struct kelp_stepper_action *action)
{
    if (action->begin.swap) {
        worker->current = 1 - worker->current;
    }
    if (__atomic_load_n(&worker->ahead, __ATOMIC_RELAXED) == KELP__WORKER_AHEAD) {
        __atomic_store_n(&worker->ahead, KELP__WORKER_WHOLE, __ATOMIC_RELEASE);
    }
    kelp_times_begins(&worker->times);
    worker->step.begins = true;
    struct kelp_stepper_view view;
    kelp_stepper_view(worker->stepper, &view);
    const struct kelp_joining_progress progress = {.generation = view.generation,
                                                   .version = action->begin.word.version,
                                                   .lanes_computed = worker->lanes_computed,
                                                   .busy_us = worker->busy_us};
    kelp_coordinator_link_progress(worker->coordinator, &progress);
}

/* The weights of the answer under way, before anything that follows from having them. */
static void keep_weights(struct kelp_worker *worker)
{
    const struct kelp__worker_incoming *incoming = &worker->incoming;
    const struct kelp_slice_range range = kelp_plan_partition(worker->plan, incoming->partition);

    kelp_wire_payload_copy(incoming->payload, (size_t)incoming->offset, (size_t)incoming->length,
                           worker->weights[1 - worker->current] + range.first);
    __atomic_store_n(&worker->arrived[incoming->partition], incoming->step + 1, __ATOMIC_RELEASE);
}

static void send_message(struct kelp_worker *worker, const struct kelp_stepper_message *message)
{
    const uint64_t begin_ns = kelp_trace_begin(worker->options.trace);
    struct kelp_error error;
    if (message->link < worker->link_count && worker->links[message->link] &&
        kelp_shard_link_send(worker->links[message->link], message, &error) != KELP_OK) {
        kelp__worker_fail(worker, &error);
    }
    kelp__worker_trace_sent(worker, begin_ns, message);
}

static void carry_out(struct kelp_worker *worker, const struct kelp_stepper_action *action)
{
    struct kelp_error over;

    switch (action->kind) {
    case KELP_STEPPER_FAIL:
        kelp__worker_fail(worker, &action->fail);
        break;
    case KELP_STEPPER_LEAVE:
        (void)kelp_fail(&over, worker->leave_by_ms > 0 ? KELP_ERR_TIMEOUT : KELP_ERR_CLOSED,
                        worker->leave_by_ms > 0 ? "stopped" : "the job is over");
        kelp__worker_fail(worker, &over);
        break;
    case KELP_STEPPER_ADOPT:
        kelp_log_info("newer map generation=%" PRIu64 " serial=%" PRIu64 " changed=%u",
                      action->adopt.generation, action->adopt.serial, action->adopt.changed);
        break;
    case KELP_STEPPER_CLOSE:
        kelp__worker_close_link(worker, action->close);
        break;
    case KELP_STEPPER_CONNECT:
        kelp__worker_connect_link(worker, action);
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
        keep_weights(worker);
        break;
    case KELP_STEPPER_GIVE_UP:
        kelp__worker_give_up(worker, action);
        break;
    case KELP_STEPPER_COMPUTE:
        break; /* the caller of kelp__worker_event() looks for it */
    }
}

static void carry_out_all(struct kelp_worker *worker)
{
    for (size_t i = 0; i < worker->actions.count; i++) {
        carry_out(worker, &worker->actions.items[i]);
    }
}

void kelp__worker_event(struct kelp_worker *worker, const struct kelp_stepper_event *event)
{
    struct kelp_error error;
    kelp_status status = kelp_stepper_event(worker->stepper, event, &worker->actions);
    if (status != KELP_OK) {
        (void)kelp_fail(&error, status, "worker: no memory for what is to be sent");
        kelp__worker_fail(worker, &error);
        return;
    }
    carry_out_all(worker);
}

/* ---- news ------------------------------------------------------------------------------------ */

void kelp__worker_hear_news(struct kelp_worker *worker)
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
    if (news.drain && !__atomic_exchange_n(&worker->drained, true, __ATOMIC_ACQ_REL)) {
        kelp_log_info("drained: finishes and leaves");
        kelp_coordinator_link_leave(worker->coordinator);
    }
    kelp__worker_event(worker, &event);
    kelp_worker_map_free(news.map);
}

/* The keeper has handled an event: news too are taken while lanes are computed. */
static void on_kept(void *user)
{
    kelp__worker_hear_news(user);
    kelp__worker_tell_ready(user);
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
        kelp__worker_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_HALF});
        for (int i = 0; i < 100 && kelp_rpc_loop_run(worker->loop, 1); i++) {
        }
    }
}

void kelp_worker_wake(struct kelp_worker *worker)
{
    struct kelp_coordinator_link *coordinator =
        __atomic_load_n(&worker->coordinator, __ATOMIC_ACQUIRE);
    uint64_t never = 0;

    (void)__atomic_compare_exchange_n(&worker->asked_ms, &never, kelp_clock_ms(), false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    if (coordinator) {
        kelp_coordinator_link_leave(coordinator);
    }
    kelp_rpc_loop_wake(worker->loop);
}

/* ---- watching -------------------------------------------------------------------------------- */

static void on_look(void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_figures *figures = worker->options.figures;
    struct kelp_stepper_view view;

    kelp_stepper_view(worker->stepper, &view);
    kelp_figures_beat(figures);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_GENERATION, view.generation);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_VERSION, view.word.version);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_STEP, view.word.step);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_ASSIGNED, view.lane_count);
    if (!kelp_coordinator_link_joined(worker->coordinator)) {
        kelp_figures_ready(figures, "no coordinator has it as a member");
    } else {
        kelp_figures_ready(figures, view.generation > 0 ? NULL : "it has no map of partitions yet");
    }
}

static kelp_status watch(struct kelp_worker *worker, struct kelp_error *reterr)
{
    if (worker->options.figures && kelp_rpc_timer_start(worker->loop, KELP_SCRAPE_LOOK_MS, on_look,
                                                        worker, &worker->look_timer) != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--metrics: no memory for a timer");
    }
    return KELP_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

static kelp_status allocate(struct kelp_worker *worker, struct kelp_error *reterr)
{
    size_t flat_count = (size_t)worker->plan->flat_count;
    size_t bytes = (2 * flat_count + STAGGER_FLOATS) * sizeof(float);
    bytes = (bytes + KELP_TENSOR_ALIGN - 1) / KELP_TENSOR_ALIGN * KELP_TENSOR_ALIGN;

    worker->memory = aligned_alloc(KELP_TENSOR_ALIGN, bytes);
    worker->stepper = kelp_stepper_create(worker->job, worker->plan);
    worker->gradients =
        kelp_gradient_pool_create(worker->plan->flat_count, worker->job->transport.precision);
    worker->arrived = calloc(worker->plan->partition_count, sizeof(*worker->arrived));
    if (!worker->memory || !worker->stepper || !worker->gradients || !worker->arrived) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "worker: no memory for two copies of %zu weights", flat_count);
    }
    memset(worker->memory, 0, bytes);
    worker->weights[0] = worker->memory;
    worker->weights[1] = worker->memory + flat_count + STAGGER_FLOATS;
    return KELP_OK;
}

/* A program of somebody else's cannot begin again with the environment that it needs. */
static kelp_status check_compute(const struct kelp_job *job, const struct kelp_plan *plan,
                                 struct kelp_error *reterr)
{
    return job->cluster.compute != KELP_COMPUTE_PORTABLE || kelp_plan_is_portable(plan)
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "the job has cluster.compute: portable, and this worker's compute kind "
                           "is %s: it must derive its plan from the job",
                           plan->compute_kind);
}

kelp_status kelp_worker_join(struct kelp_worker *worker, const struct kelp_plan *plan,
                             struct kelp_error *reterr)
{
    kelp_status status = check_compute(worker->job, plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    worker->plan = plan;
    worker->overlaps = kelp_stepper_overlaps(plan);
    kelp__worker_forget_ready(worker);
    status = kelp_plan_print(plan, &worker->plan_text, reterr);
    if (status == KELP_OK) {
        status = allocate(worker, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__worker_trace_begin(worker, reterr);
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
        .hello = &worker->hello,
        .plan = worker->plan_text,
        .connect_timeout_ms = worker->job->transport.connect_timeout_ms,
        .changed = on_changed,
        .user = worker,
    };
    struct kelp_coordinator_link *coordinator = NULL;
    status = kelp_coordinator_link_open(&options, &coordinator, reterr);
    __atomic_store_n(&worker->coordinator, coordinator, __ATOMIC_RELEASE); /* kelp_worker_wake() */
    return status == KELP_OK ? watch(worker, reterr) : status;
}

/* ---- working --------------------------------------------------------------------------------- */

static void hand_out(struct kelp_worker *worker, const struct kelp_stepper_action *action,
                     struct kelp_work *ret_work)
{
    *ret_work = (struct kelp_work){
        .word = action->compute.word,
        .weights = worker->weights[action->compute.ahead ? 1 - worker->current : worker->current],
        .lane_first = action->compute.lane_first,
        .lane_count = action->compute.lane_count,
    };
    kelp__worker_handed_out(worker, action);
    kelp__worker_trace_work(worker, &action->compute.word);
    worker->handed_out_us = kelp_clock_us();
    worker->step.train = action->compute.word.kind == KELP_STEP_TRAIN;
    worker->step.lanes = action->compute.lane_count;
    if (action->compute.offered) {
        kelp_figures_add(worker->options.figures, KELP_FIGURE_WORKER_LATE_LANES,
                         action->compute.lane_count);
    }
    uint64_t now_ms = action->compute.offered ? worker->handed_out_us / 1000 : 0;
    if (now_ms - worker->told_ms >= TOLD_MS && now_ms > 0) {
        worker->told_ms = now_ms;
        kelp_log_info("computing lanes that are late version=%" PRIu64 " lanes=%u+%u",
                      ret_work->word.version, ret_work->lane_first, ret_work->lane_count);
    }
}

/* Asked to end: what was computed is sent, and seen through. False: there is no time left for it.
 */
static bool leave(struct kelp_worker *worker, int *ret_wait_ms)
{
    uint64_t now_ms = kelp_clock_ms();

    if (worker->leave_by_ms == 0) {
        uint64_t asked_ms = __atomic_load_n(&worker->asked_ms, __ATOMIC_ACQUIRE);
        worker->leave_by_ms = (asked_ms > 0 ? asked_ms : now_ms) + worker->options.grace_ms;
        kelp__worker_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_FINISH});
    }
    *ret_wait_ms = now_ms < worker->leave_by_ms ? (int)(worker->leave_by_ms - now_ms) : 0;
    return *ret_wait_ms > 0;
}

static kelp_status wait_for_work(struct kelp_worker *worker, struct kelp_stop *stop,
                                 struct kelp_work *ret_work, struct kelp_error *reterr)
{
    uint64_t waits_ns = 0; /* for a trace: since then */

    for (;;) {
        int wait_ms = -1;
        kelp__worker_hear_news(worker);
        if (worker->failure.status != KELP_OK) {
            return kelp_fail(reterr, worker->failure.status, "%s", worker->failure.text);
        }
        if (__atomic_load_n(&worker->drained, __ATOMIC_ACQUIRE)) {
            kelp_stop_raise(stop);
        }
        if (kelp_stop_raised(stop) && !leave(worker, &wait_ms)) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "stopped");
        }
        kelp__worker_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_TURN});
        const struct kelp_stepper_action *work = kelp__worker_action(worker, KELP_STEPPER_COMPUTE);
        if (work) {
            kelp__worker_trace_waited(worker, waits_ns);
            hand_out(worker, work, ret_work);
            return KELP_OK;
        }
        if (worker->failure.status == KELP_OK) {
            const uint64_t begin_us = kelp_clock_us();
            kelp_times_waits(&worker->times, begin_us);
            waits_ns = waits_ns > 0 ? waits_ns : kelp_trace_begin(worker->options.trace);
            (void)kelp_rpc_loop_run_spin(worker->loop, &worker->spin, wait_ms);
            worker->waited_us += kelp_clock_us() - begin_us;
        }
    }
}

static void tell_times(struct kelp_worker *worker, const struct kelp_times_window *window)
{
    struct kelp_joining_times times = {.window = *window, .shard = ""};
    const struct kelp_place *place = kelp_stepper_place(worker->stepper, window->link);

    if (window->alone_us > 0 && place) {
        (void)snprintf(times.shard, sizeof(times.shard), "%s", place->shard);
    }
    kelp_coordinator_link_times(worker->coordinator, &times);
}

static void observe(struct kelp_figures *figures, const struct kelp_times_step *step)
{
    kelp_figures_observe(figures, KELP_HISTOGRAM_WORKER_DATA, step->read_us);
    kelp_figures_observe(figures, KELP_HISTOGRAM_WORKER_COMPUTE, step->compute_us);
    kelp_figures_observe(figures, KELP_HISTOGRAM_WORKER_PUSH, step->push_us);
    kelp_figures_observe(figures, KELP_HISTOGRAM_WORKER_WAIT, step->wait_us);
}

/* The lanes that were handed out are done. What was neither reading nor handing over was computing.
 */
static void end_step(struct kelp_worker *worker, uint64_t now_us)
{
    struct kelp_figures *figures = worker->options.figures;
    struct kelp_times_step *step = &worker->step;
    struct kelp_times_window window;
    const uint64_t took_us = now_us - worker->handed_out_us;
    const uint64_t rest_us = step->read_us + worker->pushed_us + worker->awaited_us;

    worker->busy_us += took_us - worker->awaited_us;
    worker->handed_out_us = 0;
    step->compute_us = took_us > rest_us ? took_us - rest_us : 0;
    step->push_us += worker->pushed_us;
    step->wait_us += worker->awaited_us;
    if (__atomic_load_n(&worker->ahead, __ATOMIC_RELAXED) != KELP__WORKER_WHOLE) {
        step->lanes = 0; /* they were given up */
    }
    kelp_figures_add(figures, KELP_FIGURE_WORKER_DATA, step->read_us);
    kelp_figures_add(figures, KELP_FIGURE_WORKER_COMPUTE, step->compute_us);
    kelp_figures_add(figures, KELP_FIGURE_WORKER_PUSH, worker->pushed_us);
    kelp_figures_add(figures, KELP_FIGURE_WORKER_WAIT, worker->awaited_us);
    if (figures && step->train) {
        observe(figures, step);
    }
    if (kelp_times_add(&worker->times, step, now_us, &window)) {
        tell_times(worker, &window);
    }
    *step = (struct kelp_times_step){.train = false};
    worker->pushed_us = 0;
}

kelp_status kelp_worker_next(struct kelp_worker *worker, struct kelp_stop *stop,
                             struct kelp_work *ret_work, struct kelp_error *reterr)
{
    kelp_loop_keeper_return(worker->keeper);
    const uint64_t begin_us = kelp_clock_us();
    if (worker->handed_out_us > 0) {
        end_step(worker, begin_us);
    }
    worker->waited_us = 0;
    kelp_status status = wait_for_work(worker, stop, ret_work, reterr);
    /* What is not waiting is encoding and sending. */
    worker->step.wait_us = worker->waited_us;
    worker->step.push_us = kelp_clock_us() - begin_us - worker->waited_us;
    kelp_figures_add(worker->options.figures, KELP_FIGURE_WORKER_WAIT, worker->step.wait_us);
    kelp_figures_add(worker->options.figures, KELP_FIGURE_WORKER_PUSH, worker->step.push_us);
    if (status == KELP_OK) {
        kelp_loop_keeper_leave(worker->keeper,
                               worker->overlaps && ret_work->word.kind == KELP_STEP_TRAIN);
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
    if (!kelp__worker_await_all(worker)) {
        kelp_gradient_unref(node->gradient);
        return KELP_OK; /* nobody needs it */
    }
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
    const uint64_t begin_us = kelp_clock_us();
    if (node->gradient->present) {
        kelp_gradient_pack(node->gradient, 0, worker->ready.first);
    }
    kelp_loop_keeper_pause(worker->keeper);
    kelp__worker_forget_ready(worker);
    kelp_status status = kelp_stepper_event(worker->stepper, &event, &worker->actions);
    if (status == KELP_OK) {
        worker->lanes_computed += node->lane_count;
        kelp_figures_add(worker->options.figures, KELP_FIGURE_WORKER_LANES, node->lane_count);
        carry_out_all(worker);
    }
    kelp_loop_keeper_resume(worker->keeper);
    worker->pushed_us += kelp_clock_us() - begin_us;
    if (status != KELP_OK) {
        kelp_gradient_unref(node->gradient);
        return kelp_fail(reterr, KELP_ERR_INVALID, "push of lanes [%u, +%u) of %u",
                         node->lane_first, node->lane_count, worker->job->cluster.lanes);
    }
    return KELP_OK;
}

void kelp_worker_spent_reading(struct kelp_worker *worker, uint64_t us)
{
    worker->step.read_us += us;
}

/* ---- closing --------------------------------------------------------------------------------- */

void kelp_worker_close(struct kelp_worker *worker)
{
    if (!worker) {
        return;
    }
    kelp_loop_keeper_stop(worker->keeper);
    kelp__worker_end_timer(&worker->look_timer);
    kelp_coordinator_link_close(worker->coordinator);
    kelp__worker_close_links(worker);
    kelp__worker_end_timer(&worker->ask_timer);
    kelp__worker_end_timer(&worker->trouble_timer);
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
    free(worker->arrived);
    free(worker->flights);
    free(worker->plan_text);
    if (worker->etcd) {
        kelp_etcd_close(worker->etcd);
    }
    kelp_job_file_destroy(worker->file);
    free(worker);
}
