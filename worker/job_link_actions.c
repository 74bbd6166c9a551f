/* Carries out the actions of the stepper (worker/core/stepper.h). */
#include <inttypes.h>

#include "common/log/log.h"
#include "worker/job_link_internal.h"

const struct kelp_stepper_action *kelp__job_link_action(const struct kelp_job_link *job_link,
                                                        enum kelp_stepper_action_kind kind)
{
    for (size_t i = 0; i < job_link->actions.count; i++) {
        if (job_link->actions.items[i].kind == kind) {
            return &job_link->actions.items[i];
        }
    }
    return NULL;
}

/* The pause after a busy shard is over: ask again. */
static void on_ask_timer(void *user)
{
    struct kelp_job_link *job_link = user;
    kelp__job_link_end_timer(&job_link->ask_timer);
    kelp__job_link_event(job_link, &(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
}

static void start_ask_timer(struct kelp_job_link *job_link, uint32_t after_ms)
{
    struct kelp_error error;
    if (kelp_rpc_timer_start(job_link->loop, after_ms, on_ask_timer, job_link,
                             &job_link->ask_timer) != KELP_OK) {
        (void)kelp_fail(&error, KELP_ERR_NO_MEMORY, "no memory for a timer");
        kelp__job_link_fail(job_link, &error);
    }
}

static void begin_version(struct kelp_job_link *job_link, const struct kelp_stepper_action *action)
{
    if (action->begin.swap) {
        job_link->current = 1 - job_link->current;
    }
    if (__atomic_load_n(&job_link->ahead, __ATOMIC_RELAXED) == KELP__JOB_LINK_AHEAD) {
        __atomic_store_n(&job_link->ahead, KELP__JOB_LINK_WHOLE, __ATOMIC_RELEASE);
    }
    kelp_times_begins(&job_link->times);
    job_link->step.begins = true;
    struct kelp_stepper_view view;
    kelp_stepper_view(job_link->stepper, &view);
    job_link->progress.generation = view.generation;
    job_link->progress.version = action->begin.word.version;
    kelp_coordinator_link_progress(job_link->coordinator, &job_link->progress);
    if (action->begin.word.kind == KELP_STEP_FINISH) {
        kelp_coordinator_link_report(job_link->coordinator);
    }
}

/* Copy the weights of the current answer before any action that relies on them. */
static void keep_weights(struct kelp_job_link *job_link)
{
    const struct kelp__job_link_incoming *incoming = &job_link->incoming;
    const struct kelp_slice_range range = kelp_plan_partition(job_link->plan, incoming->partition);

    kelp_wire_payload_copy(incoming->payload, (size_t)incoming->offset, (size_t)incoming->length,
                           job_link->weights[1 - job_link->current] + range.first);
    __atomic_store_n(&job_link->arrived[incoming->partition], incoming->step + 1, __ATOMIC_RELEASE);
}

static void send_message(struct kelp_job_link *job_link, const struct kelp_stepper_message *message)
{
    const uint64_t begin_ns = kelp_trace_begin(job_link->options.trace);
    struct kelp_error error;
    if (message->link < job_link->link_count && job_link->links[message->link] &&
        kelp_shard_link_send(job_link->links[message->link], message, &error) != KELP_OK) {
        kelp__job_link_fail(job_link, &error);
    }
    kelp__job_link_trace_sent(job_link, begin_ns, message);
}

static void carry_out(struct kelp_job_link *job_link, const struct kelp_stepper_action *action)
{
    struct kelp_error over;

    switch (action->kind) {
    case KELP_STEPPER_FAIL:
        kelp__job_link_fail(job_link, &action->fail);
        break;
    case KELP_STEPPER_LEAVE:
        (void)kelp_fail(&over, job_link->leave_by_ms > 0 ? KELP_ERR_TIMEOUT : KELP_ERR_CLOSED,
                        job_link->leave_by_ms > 0 ? "stopped" : "the job is over");
        kelp__job_link_fail(job_link, &over);
        break;
    case KELP_STEPPER_ADOPT:
        kelp_log_info("newer map generation=%" PRIu64 " serial=%" PRIu64 " changed=%u",
                      action->adopt.generation, action->adopt.serial, action->adopt.changed);
        break;
    case KELP_STEPPER_CLOSE:
        kelp__job_link_close_link(job_link, action->close);
        break;
    case KELP_STEPPER_CONNECT:
        kelp__job_link_connect_link(job_link, action);
        break;
    case KELP_STEPPER_SEND:
        send_message(job_link, &action->send);
        break;
    case KELP_STEPPER_RETRY_LATER:
        kelp_shard_link_retry_later(job_link->links[action->later.link], action->later.after_ms);
        break;
    case KELP_STEPPER_ASK_LATER:
        start_ask_timer(job_link, action->later.after_ms);
        break;
    case KELP_STEPPER_STALE:
        kelp_log_info("refused by an old map partition=%u status=%s", action->stale.partition,
                      kelp_status_name(action->stale.status));
        break;
    case KELP_STEPPER_BEGIN:
        begin_version(job_link, action);
        break;
    case KELP_STEPPER_RELEASE:
        kelp_gradient_unref(action->release);
        break;
    case KELP_STEPPER_KEEP:
        keep_weights(job_link);
        break;
    case KELP_STEPPER_GIVE_UP:
        kelp__job_link_give_up(job_link, action);
        break;
    case KELP_STEPPER_COMPUTE:
        break; /* handled by the caller of kelp__job_link_event() */
    }
}

void kelp__job_link_carry_out(struct kelp_job_link *job_link)
{
    for (size_t i = 0; i < job_link->actions.count; i++) {
        carry_out(job_link, &job_link->actions.items[i]);
    }
}

void kelp__job_link_event(struct kelp_job_link *job_link, const struct kelp_stepper_event *event)
{
    struct kelp_error error;
    kelp_status status = kelp_stepper_event(job_link->stepper, event, &job_link->actions);
    if (status != KELP_OK) {
        (void)kelp_fail(&error, status, "worker: no memory for what is to be sent");
        kelp__job_link_fail(job_link, &error);
        return;
    }
    kelp__job_link_carry_out(job_link);
}
