/*
 * What a trace (common/log/trace.h) shows of a worker's exchange with its shards. The weights of
 * the next step confirm a push, since they include it: the protocol has no other answer to a push.
 */
#include <stdlib.h>

#include "worker/job_link_internal.h"

kelp_status kelp__job_link_trace_begin(struct kelp_job_link *job_link, struct kelp_error *reterr)
{
    if (!job_link->options.trace) {
        return KELP_OK;
    }
    job_link->flights = calloc(job_link->plan->partition_count, sizeof(*job_link->flights));
    return job_link->flights ? KELP_OK
                             : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--trace: out of memory");
}

struct kelp_trace *kelp_job_link_trace(const struct kelp_job_link *job_link)
{
    return job_link->options.trace;
}

void kelp__job_link_trace_work(struct kelp_job_link *job_link, const struct kelp_control_word *word)
{
    struct kelp_trace *trace = job_link->options.trace;

    if (!trace) {
        return;
    }
    kelp_trace_end(trace, job_link->traced.begin_ns,
                   &(struct kelp_trace_span){.name = job_link->traced.train ? "step" : "entry",
                                             .step = job_link->traced.step});
    job_link->traced.train = word->kind == KELP_STEP_TRAIN;
    job_link->traced.step = word->step;
    if (job_link->traced.train) {
        kelp_trace_step(trace, word->step);
    }
    job_link->traced.begin_ns = kelp_trace_begin(trace);
}

void kelp__job_link_trace_sent(struct kelp_job_link *job_link, uint64_t begin_ns,
                               const struct kelp_stepper_message *message)
{
    const bool train = message->has_word && message->word.kind == KELP_STEP_TRAIN;

    if (begin_ns == 0) {
        return;
    }
    for (size_t i = 0; train && i < message->push_count; i++) {
        struct kelp__job_link_flight *flight = &job_link->flights[message->pushes[i].partition];
        if (flight->pushed_ns == 0 || flight->step != message->word.step) {
            *flight = (struct kelp__job_link_flight){
                .pushed_ns = begin_ns, .step = message->word.step, .asked_ns = flight->asked_ns};
        }
        flight->pushes++;
        flight->bytes += message->pushes[i].bytes;
    }
    for (size_t i = 0; i < message->pull_count; i++) {
        const struct kelp_sync_pull *pull = &message->pulls[i].pull;
        struct kelp__job_link_flight *flight = &job_link->flights[pull->partition];
        if (flight->asked_ns == 0 && pull->mode != KELP_SYNC_PULL_SHARE) {
            flight->asked_ns = begin_ns;
        }
    }
    kelp_trace_end(job_link->options.trace, begin_ns,
                   &(struct kelp_trace_span){.name = "send",
                                             .step = job_link->traced.step,
                                             .arguments = {{"pushes", message->push_count},
                                                           {"pulls", message->pull_count},
                                                           {"bytes", message->push_bytes}}});
}

/* End the span of the push that these weights confirm. */
static void end_push(struct kelp_trace *trace, struct kelp__job_link_flight *flight,
                     const struct kelp_sync_answer *answer, uint64_t now_ns)
{
    if (flight->pushed_ns > 0 && answer->step > flight->step) {
        kelp_trace_end(trace, flight->pushed_ns,
                       &(struct kelp_trace_span){.name = "push",
                                                 .track = KELP_TRACE_PUSH,
                                                 .partition = answer->partition,
                                                 .step = flight->step,
                                                 .arguments = {{"partition", answer->partition},
                                                               {"pushes", flight->pushes},
                                                               {"bytes", flight->bytes}},
                                                 .end_ns = now_ns});
        flight->pushed_ns = 0;
        flight->pushes = 0;
        flight->bytes = 0;
    }
}

void kelp__job_link_trace_answered(struct kelp_job_link *job_link, uint64_t begin_ns,
                                   const struct kelp_sync_answer *answer, bool is_kept)
{
    struct kelp_trace *trace = job_link->options.trace;

    if (begin_ns == 0 || answer->status != KELP_OK || answer->is_share) {
        return;
    }
    struct kelp__job_link_flight *flight = &job_link->flights[answer->partition];
    if (is_kept) {
        kelp_trace_end(trace, begin_ns,
                       &(struct kelp_trace_span){.name = "copy",
                                                 .step = answer->step,
                                                 .arguments = {{"partition", answer->partition}}});
        end_push(trace, flight, answer, begin_ns);
        kelp_trace_end(trace, flight->asked_ns,
                       &(struct kelp_trace_span){.name = "pull",
                                                 .track = KELP_TRACE_PULL,
                                                 .partition = answer->partition,
                                                 .step = answer->step,
                                                 .arguments = {{"partition", answer->partition}}});
    }
    flight->asked_ns = 0;
}

void kelp__job_link_trace_awaited(struct kelp_job_link *job_link, uint64_t begin_ns,
                                  uint32_t partition)
{
    kelp_trace_end(job_link->options.trace, begin_ns,
                   &(struct kelp_trace_span){.name = "wait for weights",
                                             .step = job_link->work_step,
                                             .arguments = {{"partition", partition}}});
}

void kelp__job_link_trace_waited(struct kelp_job_link *job_link, uint64_t begin_ns)
{
    kelp_trace_end(job_link->options.trace, begin_ns,
                   &(struct kelp_trace_span){.name = "wait", .step = job_link->traced.step});
}
