/*
 * Communication beside computation, for large models: what of a node can be sent while the rest of
 * it is computed, and lanes that begin while their weights are still coming. The stepper decides
 * both; here the thread that computes and the one that runs the loop tell each other how far they
 * are, by numbers alone (`ready`, `ahead`, `arrived`).
 */
#include "common/base/clock.h"
#include "worker/worker_internal.h"

bool kelp_worker_overlaps(const struct kelp_worker *worker)
{
    return worker->overlaps;
}

void kelp__worker_handed_out(struct kelp_worker *worker, const struct kelp_stepper_action *action)
{
    worker->work_step = action->compute.word.step;
    worker->awaited_us = 0;
    __atomic_store_n(&worker->ahead,
                     action->compute.ahead ? KELP__WORKER_AHEAD : KELP__WORKER_WHOLE,
                     __ATOMIC_RELAXED);
    kelp__worker_forget_ready(worker); /* what was given up in the middle of a node */
}

/* ---- pushes ---------------------------------------------------------------------------------- */

void kelp__worker_forget_ready(struct kelp_worker *worker)
{
    worker->ready.first = worker->plan->flat_count;
    worker->ready.partition = KELP__WORKER_NOTHING;
    worker->ready.told = KELP__WORKER_NOTHING;
}

void kelp_worker_ready(struct kelp_worker *worker, const struct kelp_node *node, uint64_t first)
{
    const uint64_t slice = kelp_plan_partition(worker->plan, 0).count;
    const uint64_t partition = (first + slice - 1) / slice;

    /* With partition 0 go the sums, which come last. */
    if (!worker->overlaps || partition == 0 || partition >= worker->plan->partition_count ||
        partition >= worker->ready.partition) {
        return;
    }
    if (worker->ready.partition == KELP__WORKER_NOTHING) {
        worker->ready.node = *node;
    }
    kelp_gradient_pack(node->gradient, partition * slice, worker->ready.first - partition * slice);
    worker->ready.first = partition * slice;
    __atomic_store_n(&worker->ready.partition, (uint32_t)partition, __ATOMIC_RELEASE);
    kelp_rpc_loop_wake(worker->loop);
}

/* What of the node in work can be sent. */
void kelp__worker_tell_ready(struct kelp_worker *worker)
{
    const uint32_t partition = __atomic_load_n(&worker->ready.partition, __ATOMIC_ACQUIRE);
    const struct kelp_node *node = &worker->ready.node;

    if (partition >= worker->ready.told ||
        __atomic_load_n(&worker->ahead, __ATOMIC_RELAXED) != KELP__WORKER_WHOLE) {
        return;
    }
    worker->ready.told = partition;
    kelp_gradient_ref(node->gradient);
    kelp__worker_event(worker, &(struct kelp_stepper_event){
                                   .kind = KELP_STEPPER_PARTLY,
                                   .computed = {.lane_first = node->lane_first,
                                                .lane_count = node->lane_count,
                                                .present = true,
                                                .content = node->gradient,
                                                .partition_first = partition},
                               });
}

/* ---- weights --------------------------------------------------------------------------------- */

void kelp_worker_go_ahead(struct kelp_worker *worker)
{
    if (worker->overlaps) {
        kelp_stepper_go_ahead(worker->stepper);
    }
}

static bool is_ahead(const struct kelp_worker *worker)
{
    return __atomic_load_n(&worker->ahead, __ATOMIC_ACQUIRE) == KELP__WORKER_AHEAD;
}

static bool has_arrived(const struct kelp_worker *worker, uint32_t partition)
{
    return __atomic_load_n(&worker->arrived[partition], __ATOMIC_ACQUIRE) == worker->work_step + 1;
}

/* The owner is to end, or cannot go on. */
static bool is_interrupted(const struct kelp_worker *worker)
{
    return worker->failure.status != KELP_OK ||
           __atomic_load_n(&worker->drained, __ATOMIC_ACQUIRE) ||
           __atomic_load_n(&worker->asked_ms, __ATOMIC_ACQUIRE) > 0;
}

/* Until the partition, or with whole all of them, is there; or that is over. */
static void run_until(struct kelp_worker *worker, uint32_t partition, bool whole)
{
    const uint64_t begin_us = kelp_clock_us();
    const uint64_t begin_ns = kelp_trace_begin(worker->options.trace);

    kelp_loop_keeper_pause(worker->keeper);
    kelp__worker_hear_news(worker);
    while (is_ahead(worker) && (whole || !has_arrived(worker, partition))) {
        if (is_interrupted(worker)) {
            __atomic_store_n(&worker->ahead, KELP__WORKER_GIVEN_UP, __ATOMIC_RELAXED);
            break;
        }
        kelp_times_waits(&worker->times, begin_us);
        (void)kelp_rpc_loop_run(worker->loop, -1);
        kelp__worker_hear_news(worker);
    }
    kelp_loop_keeper_resume(worker->keeper);
    kelp__worker_trace_awaited(worker, begin_ns, partition);
    worker->awaited_us += kelp_clock_us() - begin_us;
}

bool kelp_worker_await(struct kelp_worker *worker, uint64_t first, uint64_t count)
{
    const uint64_t slice = kelp_plan_partition(worker->plan, 0).count;

    for (uint64_t p = first / slice; count > 0 && p * slice < first + count; p++) {
        if (is_ahead(worker) && !has_arrived(worker, (uint32_t)p)) {
            run_until(worker, (uint32_t)p, false);
        }
    }
    return __atomic_load_n(&worker->ahead, __ATOMIC_ACQUIRE) != KELP__WORKER_GIVEN_UP;
}

/* All of the version's weights, and the stepper knows. */
bool kelp__worker_await_all(struct kelp_worker *worker)
{
    if (is_ahead(worker)) {
        run_until(worker, worker->plan->partition_count - 1, true);
    }
    return __atomic_load_n(&worker->ahead, __ATOMIC_ACQUIRE) == KELP__WORKER_WHOLE;
}

/* Whoever computes ahead finds out in kelp_worker_await(). What comes goes where it does not read.
 */
void kelp__worker_give_up(struct kelp_worker *worker, const struct kelp_stepper_action *action)
{
    if (action->give_up_swap) {
        worker->current = 1 - worker->current;
    }
    __atomic_store_n(&worker->ahead, KELP__WORKER_GIVEN_UP, __ATOMIC_RELEASE);
}
