/*
 * The link to the job (worker/job_link.h): the stepper (worker/core/stepper.h) decides; this file
 * holds weights, streams and timers, and job_link_actions.c carries out what was decided.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/random_id.h"
#include "common/etcd/etcd.h"
#include "common/log/log.h"
#include "common/program/daemon.h"
#include "common/scrape/figures.h"
#include "common/scrape/limits.h"
#include "proto/hello.h"
#include "worker/job_link_internal.h"
#include "worker/links/wire_map.h"

#define TOLD_MS        5000u
#define STAGGER_FLOATS 80u /* 320 bytes: see worker/compute/gradients.c */

/* ---- opening --------------------------------------------------------------------------------- */

/* A stream to a shard has all that the loop's thread can do; several share more threads. */
static kelp_status start_carriers(struct kelp_job_link *job_link, struct kelp_error *reterr)
{
    const uint32_t streams = job_link->job->transport.streams;
    kelp_status status = KELP_OK;

    if (streams == 1 || job_link->job->transport.kind == KELP_TRANSPORT_SHM) {
        return KELP_OK;
    }
    for (uint32_t i = 0; i < streams && status == KELP_OK; i++) {
        status = kelp_rpc_carrier_start(job_link->loop, &job_link->carriers[i], reterr);
    }
    return status;
}

kelp_status kelp_job_link_open(const struct kelp_job_link_options *options, struct kelp_stop *stop,
                               struct kelp_job_link **ret_link, struct kelp_error *reterr)
{
    struct kelp_job_link *job_link = calloc(1, sizeof(*job_link));
    if (!job_link) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "worker: out of memory");
    }
    (void)snprintf(job_link->id, sizeof(job_link->id), "%s", options->id);
    (void)snprintf(job_link->job_name, sizeof(job_link->job_name), "%s", options->job);
    job_link->options = *options;
    uint64_t incarnation;
    kelp_status status = kelp_random_id(&incarnation, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_etcd_open_certified(options->etcd, kelp_credentials_folder(options->credentials),
                                      &job_link->etcd, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_daemon_read_job(
        job_link->etcd,
        &(struct kelp_daemon_job){job_link->job_name, options->spec_sha256, options->paths}, stop,
        &job_link->file, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_rpc_loop_create(&job_link->loop, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    kelp_spin_init(&job_link->spin, KELP_SPIN_US, kelp_clock_us());
    kelp_rpc_loop_credentials(job_link->loop, options->credentials);
    kelp_rpc_loop_shm_folder(job_link->loop, options->shm_folder);
    job_link->job = kelp_job_file_job(job_link->file);
    status = start_carriers(job_link, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    kelp_hello_write(&(struct kelp_hello){.job = job_link->job_name,
                                          .spec_digest = kelp_job_file_digest(job_link->file),
                                          .id = job_link->id,
                                          .incarnation = incarnation},
                     &job_link->hello);
    *ret_link = job_link;
    return KELP_OK;

fail:
    kelp_job_link_close(job_link);
    return status;
}

const struct kelp_job_file *kelp_job_link_file(const struct kelp_job_link *job_link)
{
    return job_link->file;
}

const struct kelp_job *kelp_job_link_job(const struct kelp_job_link *job_link)
{
    return job_link->job;
}

struct kelp_figures *kelp_job_link_figures(const struct kelp_job_link *job_link)
{
    return job_link->options.figures;
}

/* ---- failing ----------------------------------------------------------------------------------
 */

/* Others name a file as the job does: say where it was read. */
static void name_place(const struct kelp_job_link *job_link, struct kelp_error *error)
{
    struct kelp_job_path path;

    for (size_t i = 0; kelp_job_file_path(job_link->file, i, &path); i++) {
        if (strcmp(path.named, path.here) != 0 && strstr(error->text, path.named)) {
            kelp_error_prefix(error, "%s is '%.160s' here", path.key, path.here);
            return;
        }
    }
}

void kelp__job_link_fail(struct kelp_job_link *job_link, const struct kelp_error *error)
{
    if (job_link->failure.status == KELP_OK) {
        job_link->failure = *error;
        name_place(job_link, &job_link->failure);
    }
}

/* ---- news ------------------------------------------------------------------------------------ */

void kelp__job_link_hear_news(struct kelp_job_link *job_link)
{
    struct kelp_news news;
    struct kelp_places places;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_NEWS, .news = {.news = &news}};

    if (!__atomic_exchange_n(&job_link->news, 0, __ATOMIC_ACQ_REL) ||
        !kelp_coordinator_link_take_news(job_link->coordinator, &news)) {
        return;
    }
    if (news.map) {
        kelp_worker_map_places(news.map, &places);
        event.news.places = &places;
    }
    if (news.drain && !__atomic_exchange_n(&job_link->drained, true, __ATOMIC_ACQ_REL)) {
        kelp_log_info("drained: finishes and leaves");
        kelp_coordinator_link_leave(job_link->coordinator);
    }
    kelp__job_link_event(job_link, &event);
    kelp_worker_map_free(news.map);
}

/* The keeper has handled an event: news too are taken while lanes are computed. */
static void on_kept(void *user)
{
    kelp__job_link_hear_news(user);
    kelp__job_link_tell_ready(user);
}

static void on_changed(void *user)
{
    struct kelp_job_link *job_link = user;
    __atomic_store_n(&job_link->news, 1, __ATOMIC_RELEASE);
    kelp_rpc_loop_wake(job_link->loop);
}

void kelp_job_link_send_half(struct kelp_job_link *job_link)
{
    kelp_loop_keeper_return(job_link->keeper);
    if (job_link->link_count > 0) {
        kelp__job_link_event(job_link, &(struct kelp_stepper_event){.kind = KELP_STEPPER_HALF});
        for (int i = 0; i < 100 && kelp_rpc_loop_run(job_link->loop, 1); i++) {
        }
    }
}

void kelp_job_link_wake(struct kelp_job_link *job_link)
{
    struct kelp_coordinator_link *coordinator =
        __atomic_load_n(&job_link->coordinator, __ATOMIC_ACQUIRE);
    uint64_t never = 0;

    (void)__atomic_compare_exchange_n(&job_link->asked_ms, &never, kelp_clock_ms(), false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    if (coordinator) {
        kelp_coordinator_link_leave(coordinator);
    }
    kelp_rpc_loop_wake(job_link->loop);
}

/* ---- watching -------------------------------------------------------------------------------- */

static void on_look(void *user)
{
    struct kelp_job_link *job_link = user;
    struct kelp_figures *figures = job_link->options.figures;
    struct kelp_stepper_view view;

    kelp_stepper_view(job_link->stepper, &view);
    kelp_figures_beat(figures);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_GENERATION, view.generation);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_VERSION, view.word.version);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_STEP, view.word.step);
    kelp_figures_set(figures, KELP_FIGURE_WORKER_ASSIGNED, view.lane_count);
    if (!kelp_coordinator_link_joined(job_link->coordinator)) {
        kelp_figures_ready(figures, "no coordinator has it as a member");
    } else {
        kelp_figures_ready(figures, view.generation > 0 ? NULL : "it has no map of partitions yet");
    }
}

static kelp_status watch(struct kelp_job_link *job_link, struct kelp_error *reterr)
{
    if (job_link->options.figures &&
        kelp_rpc_timer_start(job_link->loop, KELP_SCRAPE_LOOK_MS, on_look, job_link,
                             &job_link->look_timer) != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--metrics: no memory for a timer");
    }
    return KELP_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

static void *plain_alloc(void *user, size_t bytes)
{
    (void)user;
    return aligned_alloc(KELP_TENSOR_ALIGN, bytes);
}

static void plain_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

void kelp_job_link_memory(struct kelp_job_link *job_link, const struct kelp_job_link_memory *memory)
{
    assert(!job_link->memory);
    job_link->memory_of = *memory;
}

static kelp_status allocate(struct kelp_job_link *job_link, struct kelp_error *reterr)
{
    size_t flat_count = (size_t)job_link->plan->flat_count;
    size_t bytes = (2 * flat_count + STAGGER_FLOATS) * sizeof(float);
    bytes = (bytes + KELP_TENSOR_ALIGN - 1) / KELP_TENSOR_ALIGN * KELP_TENSOR_ALIGN;

    if (!job_link->memory_of.alloc) {
        job_link->memory_of =
            (struct kelp_job_link_memory){.alloc = plain_alloc, .free = plain_free};
    }
    job_link->memory = job_link->memory_of.alloc(job_link->memory_of.user, bytes);
    job_link->stepper = kelp_stepper_create(job_link->job, job_link->plan);
    job_link->gradients =
        kelp_gradient_pool_create(job_link->plan->flat_count, job_link->job->transport.precision);
    job_link->arrived = calloc(job_link->plan->partition_count, sizeof(*job_link->arrived));
    if (!job_link->memory || !job_link->stepper || !job_link->gradients || !job_link->arrived) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "worker: no memory for two copies of %zu weights", flat_count);
    }
    memset(job_link->memory, 0, bytes);
    job_link->weights[0] = job_link->memory;
    job_link->weights[1] = job_link->memory + flat_count + STAGGER_FLOATS;
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

kelp_status kelp_job_link_join(struct kelp_job_link *job_link, const struct kelp_plan *plan,
                               struct kelp_error *reterr)
{
    kelp_status status = check_compute(job_link->job, plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    job_link->plan = plan;
    job_link->overlaps = kelp_stepper_overlaps(plan);
    kelp__job_link_forget_ready(job_link);
    status = kelp_plan_print(plan, &job_link->plan_text, reterr);
    if (status == KELP_OK) {
        status = allocate(job_link, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__job_link_trace_begin(job_link, reterr);
    }
    if (status == KELP_OK) {
        status =
            kelp_loop_keeper_start(job_link->loop, on_kept, job_link, &job_link->keeper, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_coordinator_link_options options = {
        .etcd = job_link->etcd,
        .credentials = job_link->options.credentials,
        .hello = &job_link->hello,
        .plan = job_link->plan_text,
        .connect_timeout_ms = job_link->job->transport.connect_timeout_ms,
        .changed = on_changed,
        .user = job_link,
    };
    struct kelp_coordinator_link *coordinator = NULL;
    status = kelp_coordinator_link_open(&options, &coordinator, reterr);
    __atomic_store_n(&job_link->coordinator, coordinator,
                     __ATOMIC_RELEASE); /* kelp_job_link_wake() */
    return status == KELP_OK ? watch(job_link, reterr) : status;
}

/* ---- working --------------------------------------------------------------------------------- */

static void hand_out(struct kelp_job_link *job_link, const struct kelp_stepper_action *action,
                     struct kelp_work *ret_work)
{
    const unsigned which = action->compute.ahead ? 1 - job_link->current : job_link->current;

    *ret_work = (struct kelp_work){
        .word = action->compute.word,
        .weights = job_link->weights[which],
        .weights_index = which,
        .lane_first = action->compute.lane_first,
        .lane_count = action->compute.lane_count,
    };
    kelp__job_link_handed_out(job_link, action);
    kelp__job_link_trace_work(job_link, &action->compute.word);
    job_link->handed_out_us = kelp_clock_us();
    job_link->step.train = action->compute.word.kind == KELP_STEP_TRAIN;
    job_link->step.lanes = action->compute.lane_count;
    if (action->compute.offered) {
        kelp_figures_add(job_link->options.figures, KELP_FIGURE_WORKER_LATE_LANES,
                         action->compute.lane_count);
    }
    uint64_t now_ms = action->compute.offered ? job_link->handed_out_us / 1000 : 0;
    if (now_ms - job_link->told_ms >= TOLD_MS && now_ms > 0) {
        job_link->told_ms = now_ms;
        kelp_log_info("computing lanes that are late version=%" PRIu64 " lanes=%u+%u",
                      ret_work->word.version, ret_work->lane_first, ret_work->lane_count);
    }
}

/* Asked to end: what was computed is sent, and seen through. False: there is no time left for it.
 */
static bool leave(struct kelp_job_link *job_link, int *ret_wait_ms)
{
    uint64_t now_ms = kelp_clock_ms();

    if (job_link->leave_by_ms == 0) {
        uint64_t asked_ms = __atomic_load_n(&job_link->asked_ms, __ATOMIC_ACQUIRE);
        job_link->leave_by_ms = (asked_ms > 0 ? asked_ms : now_ms) + job_link->options.grace_ms;
        kelp__job_link_event(job_link, &(struct kelp_stepper_event){.kind = KELP_STEPPER_FINISH});
    }
    *ret_wait_ms = now_ms < job_link->leave_by_ms ? (int)(job_link->leave_by_ms - now_ms) : 0;
    return *ret_wait_ms > 0;
}

static kelp_status wait_for_work(struct kelp_job_link *job_link, struct kelp_stop *stop,
                                 struct kelp_work *ret_work, struct kelp_error *reterr)
{
    uint64_t waits_ns = 0; /* for a trace: since then */

    for (;;) {
        int wait_ms = -1;
        kelp__job_link_hear_news(job_link);
        if (job_link->failure.status != KELP_OK) {
            return kelp_fail(reterr, job_link->failure.status, "%s", job_link->failure.text);
        }
        if (__atomic_load_n(&job_link->drained, __ATOMIC_ACQUIRE)) {
            kelp_stop_raise(stop);
        }
        if (kelp_stop_raised(stop) && !leave(job_link, &wait_ms)) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "stopped");
        }
        kelp__job_link_event(job_link, &(struct kelp_stepper_event){.kind = KELP_STEPPER_TURN});
        const struct kelp_stepper_action *work =
            kelp__job_link_action(job_link, KELP_STEPPER_COMPUTE);
        if (work) {
            kelp__job_link_trace_waited(job_link, waits_ns);
            hand_out(job_link, work, ret_work);
            return KELP_OK;
        }
        if (job_link->failure.status == KELP_OK) {
            const uint64_t begin_us = kelp_clock_us();
            kelp_times_waits(&job_link->times, begin_us);
            waits_ns = waits_ns > 0 ? waits_ns : kelp_trace_begin(job_link->options.trace);
            (void)kelp_rpc_loop_run_spin(job_link->loop, &job_link->spin, wait_ms);
            job_link->waited_us += kelp_clock_us() - begin_us;
        }
    }
}

static void tell_times(struct kelp_job_link *job_link, const struct kelp_times_window *window)
{
    struct kelp_joining_times times = {.window = *window, .shard = ""};
    const struct kelp_place *place = kelp_stepper_place(job_link->stepper, window->link);

    if (window->alone_us > 0 && place) {
        (void)snprintf(times.shard, sizeof(times.shard), "%s", place->shard);
    }
    kelp_coordinator_link_times(job_link->coordinator, &times);
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
static void end_step(struct kelp_job_link *job_link, uint64_t now_us)
{
    struct kelp_figures *figures = job_link->options.figures;
    struct kelp_times_step *step = &job_link->step;
    struct kelp_times_window window;
    const uint64_t took_us = now_us - job_link->handed_out_us;
    const uint64_t rest_us = step->read_us + job_link->pushed_us + job_link->awaited_us;

    job_link->progress.busy_us += took_us - job_link->awaited_us;
    job_link->handed_out_us = 0;
    step->compute_us = took_us > rest_us ? took_us - rest_us : 0;
    step->push_us += job_link->pushed_us;
    step->wait_us += job_link->awaited_us;
    if (__atomic_load_n(&job_link->ahead, __ATOMIC_RELAXED) != KELP__JOB_LINK_WHOLE) {
        step->lanes = 0; /* they were given up */
    }
    kelp_figures_add(figures, KELP_FIGURE_WORKER_DATA, step->read_us);
    kelp_figures_add(figures, KELP_FIGURE_WORKER_COMPUTE, step->compute_us);
    kelp_figures_add(figures, KELP_FIGURE_WORKER_PUSH, job_link->pushed_us);
    kelp_figures_add(figures, KELP_FIGURE_WORKER_WAIT, job_link->awaited_us);
    if (figures && step->train) {
        observe(figures, step);
    }
    if (kelp_times_add(&job_link->times, step, now_us, &window)) {
        tell_times(job_link, &window);
    }
    *step = (struct kelp_times_step){.train = false};
    job_link->pushed_us = 0;
}

kelp_status kelp_job_link_next(struct kelp_job_link *job_link, struct kelp_stop *stop,
                               struct kelp_work *ret_work, struct kelp_error *reterr)
{
    kelp_loop_keeper_return(job_link->keeper);
    const uint64_t begin_us = kelp_clock_us();
    if (job_link->handed_out_us > 0) {
        end_step(job_link, begin_us);
    }
    job_link->waited_us = 0;
    kelp_status status = wait_for_work(job_link, stop, ret_work, reterr);
    /* What is not waiting is encoding and sending. */
    job_link->step.wait_us = job_link->waited_us;
    job_link->step.push_us = kelp_clock_us() - begin_us - job_link->waited_us;
    kelp_figures_add(job_link->options.figures, KELP_FIGURE_WORKER_WAIT, job_link->step.wait_us);
    kelp_figures_add(job_link->options.figures, KELP_FIGURE_WORKER_PUSH, job_link->step.push_us);
    if (status == KELP_OK) {
        kelp_loop_keeper_leave(job_link->keeper,
                               job_link->overlaps && ret_work->word.kind == KELP_STEP_TRAIN);
    }
    return status;
}

kelp_status kelp_job_link_poll(struct kelp_job_link *job_link, struct kelp_stop *stop,
                               struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    kelp_loop_keeper_pause(job_link->keeper);
    while (job_link->failure.status == KELP_OK && kelp_rpc_loop_run(job_link->loop, 0)) {
    }
    kelp__job_link_hear_news(job_link);
    if (job_link->failure.status != KELP_OK) {
        status = kelp_fail(reterr, job_link->failure.status, "%s", job_link->failure.text);
    }
    kelp_loop_keeper_resume(job_link->keeper);
    if (__atomic_load_n(&job_link->drained, __ATOMIC_ACQUIRE)) {
        kelp_stop_raise(stop);
    }
    return status;
}

const float *kelp_job_link_weights(const struct kelp_job_link *job_link, uint32_t which)
{
    assert(which < KELP_ARRAY_COUNT(job_link->weights));
    return job_link->weights[which];
}

struct kelp_gradient *kelp_job_link_gradient(struct kelp_job_link *job_link)
{
    return kelp_gradient_get(job_link->gradients);
}

kelp_status kelp_job_link_push(struct kelp_job_link *job_link, const struct kelp_node *node,
                               struct kelp_error *reterr)
{
    if (!kelp__job_link_await_all(job_link)) {
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
        kelp_gradient_pack(node->gradient, 0, job_link->ready.first);
    }
    kelp_loop_keeper_pause(job_link->keeper);
    kelp__job_link_forget_ready(job_link);
    kelp_status status = kelp_stepper_event(job_link->stepper, &event, &job_link->actions);
    if (status == KELP_OK) {
        job_link->progress.lanes_computed += node->lane_count;
        kelp_figures_add(job_link->options.figures, KELP_FIGURE_WORKER_LANES, node->lane_count);
        kelp__job_link_carry_out(job_link);
    }
    kelp_loop_keeper_resume(job_link->keeper);
    job_link->pushed_us += kelp_clock_us() - begin_us;
    if (status != KELP_OK) {
        kelp_gradient_unref(node->gradient);
        return kelp_fail(reterr, KELP_ERR_INVALID, "push of lanes [%u, +%u) of %u",
                         node->lane_first, node->lane_count, job_link->job->cluster.lanes);
    }
    return KELP_OK;
}

void kelp_job_link_spent_reading(struct kelp_job_link *job_link, uint64_t us)
{
    job_link->step.read_us += us;
}

/* ---- closing --------------------------------------------------------------------------------- */

void kelp_job_link_close(struct kelp_job_link *job_link)
{
    if (!job_link) {
        return;
    }
    kelp_loop_keeper_stop(job_link->keeper);
    kelp__job_link_end_timer(&job_link->look_timer);
    if (job_link->coordinator) {
        kelp_coordinator_link_progress(job_link->coordinator, &job_link->progress);
        kelp_coordinator_link_close(job_link->coordinator);
    }
    kelp__job_link_close_links(job_link);
    kelp__job_link_end_timer(&job_link->ask_timer);
    kelp__job_link_end_timer(&job_link->trouble_timer);
    while (job_link->links_alive > 0) {
        (void)kelp_rpc_loop_run(job_link->loop, -1); /* each ends within a second of being closed */
    }
    if (job_link->loop) {
        kelp_rpc_loop_destroy(job_link->loop);
    }
    if (job_link->stepper && kelp_stepper_drop(job_link->stepper, &job_link->actions) == KELP_OK) {
        kelp__job_link_carry_out(job_link);
    }
    kelp_stepper_actions_fini(&job_link->actions);
    kelp_stepper_destroy(job_link->stepper);
    kelp_gradient_pool_destroy(job_link->gradients);
    if (job_link->memory) {
        job_link->memory_of.free(job_link->memory_of.user, job_link->memory);
    }
    free(job_link->arrived);
    free(job_link->flights);
    free(job_link->plan_text);
    if (job_link->etcd) {
        kelp_etcd_close(job_link->etcd);
    }
    kelp_job_file_destroy(job_link->file);
    free(job_link);
}
