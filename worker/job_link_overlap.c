/*
 * Overlap of communication and computation, for large models: parts of a node are sent while the
 * rest is computed, and lanes begin while their weights are still arriving. The stepper decides
 * both. The computing thread and the loop's thread tell each other their progress only by numbers
 * (`ready`, `ahead`, `arrived`).
 */
#include "common/base/clock.h"
#include "worker/job_link_internal.h"

bool kelp_job_link_overlaps(const struct kelp_job_link *job_link)
{
    return job_link->overlaps;
}

void kelp__job_link_handed_out(struct kelp_job_link *job_link,
                               const struct kelp_stepper_action *action)
{
    job_link->work_step = action->compute.word.step;
    job_link->awaited_us = 0;
    __atomic_store_n(&job_link->ahead,
                     action->compute.ahead ? KELP__JOB_LINK_AHEAD : KELP__JOB_LINK_WHOLE,
                     __ATOMIC_RELAXED);
    kelp__job_link_forget_ready(job_link); /* of a node that was given up half-way */
}

/* ---- pushes ---------------------------------------------------------------------------------- */

void kelp__job_link_forget_ready(struct kelp_job_link *job_link)
{
    job_link->ready.first = job_link->plan->flat_count;
    job_link->ready.partition = KELP__JOB_LINK_NOTHING;
    job_link->ready.told = KELP__JOB_LINK_NOTHING;
}

void kelp_job_link_ready(struct kelp_job_link *job_link, const struct kelp_node *node,
                         uint64_t first)
{
    const uint64_t slice = kelp_plan_partition(job_link->plan, 0).count;
    const uint64_t partition = (first + slice - 1) / slice;

    /* Partition 0 carries the sums, which come last. */
    if (!job_link->overlaps || partition == 0 || partition >= job_link->plan->partition_count ||
        partition >= job_link->ready.partition) {
        return;
    }
    if (job_link->ready.partition == KELP__JOB_LINK_NOTHING) {
        job_link->ready.node = *node;
    }
    kelp_gradient_pack(node->gradient, partition * slice,
                       job_link->ready.first - partition * slice);
    job_link->ready.first = partition * slice;
    __atomic_store_n(&job_link->ready.partition, (uint32_t)partition, __ATOMIC_RELEASE);
    kelp_rpc_loop_wake(job_link->loop);
}

/* Tell the stepper which partitions of the current node can be sent. */
void kelp__job_link_tell_ready(struct kelp_job_link *job_link)
{
    const uint32_t partition = __atomic_load_n(&job_link->ready.partition, __ATOMIC_ACQUIRE);
    const struct kelp_node *node = &job_link->ready.node;

    if (partition >= job_link->ready.told ||
        __atomic_load_n(&job_link->ahead, __ATOMIC_RELAXED) != KELP__JOB_LINK_WHOLE) {
        return;
    }
    job_link->ready.told = partition;
    kelp_gradient_ref(node->gradient);
    kelp__job_link_event(job_link, &(struct kelp_stepper_event){
                                       .kind = KELP_STEPPER_PARTLY,
                                       .computed = {.lane_first = node->lane_first,
                                                    .lane_count = node->lane_count,
                                                    .present = true,
                                                    .content = node->gradient,
                                                    .partition_first = partition},
                                   });
}

/* ---- weights --------------------------------------------------------------------------------- */

void kelp_job_link_go_ahead(struct kelp_job_link *job_link)
{
    if (job_link->overlaps) {
        kelp_stepper_go_ahead(job_link->stepper);
    }
}

static bool is_ahead(const struct kelp_job_link *job_link)
{
    return __atomic_load_n(&job_link->ahead, __ATOMIC_ACQUIRE) == KELP__JOB_LINK_AHEAD;
}

static bool has_arrived(const struct kelp_job_link *job_link, uint32_t partition)
{
    return __atomic_load_n(&job_link->arrived[partition], __ATOMIC_ACQUIRE) ==
           job_link->work_step + 1;
}

/* Must the owner end, or has the link failed? */
static bool is_interrupted(const struct kelp_job_link *job_link)
{
    return job_link->failure.status != KELP_OK ||
           __atomic_load_n(&job_link->drained, __ATOMIC_ACQUIRE) ||
           __atomic_load_n(&job_link->asked_ms, __ATOMIC_ACQUIRE) > 0;
}

/* Run the loop until the partition's weights have come, or with `whole` all of them, or until
 * the wait is over. */
static void run_until(struct kelp_job_link *job_link, uint32_t partition, bool whole)
{
    const uint64_t begin_us = kelp_clock_us();
    const uint64_t begin_ns = kelp_trace_begin(job_link->options.trace);

    kelp_loop_keeper_pause(job_link->keeper);
    kelp__job_link_hear_news(job_link);
    while (is_ahead(job_link) && (whole || !has_arrived(job_link, partition))) {
        if (is_interrupted(job_link)) {
            __atomic_store_n(&job_link->ahead, KELP__JOB_LINK_GIVEN_UP, __ATOMIC_RELAXED);
            break;
        }
        kelp_times_waits(&job_link->times, begin_us);
        (void)kelp_rpc_loop_run(job_link->loop, -1);
        kelp__job_link_hear_news(job_link);
    }
    kelp_loop_keeper_resume(job_link->keeper);
    kelp__job_link_trace_awaited(job_link, begin_ns, partition);
    job_link->awaited_us += kelp_clock_us() - begin_us;
}

bool kelp_job_link_await(struct kelp_job_link *job_link, uint64_t first, uint64_t count)
{
    const uint64_t slice = kelp_plan_partition(job_link->plan, 0).count;

    for (uint64_t p = first / slice; count > 0 && p * slice < first + count; p++) {
        if (is_ahead(job_link) && !has_arrived(job_link, (uint32_t)p)) {
            run_until(job_link, (uint32_t)p, false);
        }
    }
    return __atomic_load_n(&job_link->ahead, __ATOMIC_ACQUIRE) != KELP__JOB_LINK_GIVEN_UP;
}

/* Wait for all weights of the version. True: they have come, and the stepper knows. */
bool kelp__job_link_await_all(struct kelp_job_link *job_link)
{
    if (is_ahead(job_link)) {
        run_until(job_link, job_link->plan->partition_count - 1, true);
    }
    return __atomic_load_n(&job_link->ahead, __ATOMIC_ACQUIRE) == KELP__JOB_LINK_WHOLE;
}

/* The thread that computes ahead notices in kelp_job_link_await(). Weights that arrive go to
 * memory that it does not read. */
void kelp__job_link_give_up(struct kelp_job_link *job_link,
                            const struct kelp_stepper_action *action)
{
    if (action->give_up_swap) {
        job_link->current = 1 - job_link->current;
    }
    __atomic_store_n(&job_link->ahead, KELP__JOB_LINK_GIVEN_UP, __ATOMIC_RELEASE);
}
