/* The streams to shards: messages on them become events of the stepper. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/scrape/figures.h"
#include "proto/convert.h"
#include "worker/job_link_internal.h"
#include "worker/links/wire_map.h"

#define TROUBLE_LOOK_MS 500u

/* ---- trouble --------------------------------------------------------------------------------- */

static const char *cause_of(const struct kelp_job_link *job_link, uint32_t link)
{
    return link < job_link->link_count && job_link->links[link]
               ? kelp_shard_link_cause(job_link->links[link])
               : "its stream could not be opened";
}

static void on_trouble_timer(void *user)
{
    struct kelp_job_link *job_link = user;
    struct kelp_stepper_trouble trouble;
    char text[KELP_JOINING_TROUBLE_MAX + 1] = "";

    kelp_stepper_trouble(job_link->stepper, kelp_clock_ms(), &trouble);
    if (trouble.lasts) {
        (void)snprintf(text, sizeof(text), "cannot reach %s at %.100s: %.70s", trouble.shard->shard,
                       trouble.shard->address, cause_of(job_link, trouble.link));
    }
    kelp_coordinator_link_trouble(job_link->coordinator, text);
    if (!trouble.shard) {
        kelp__job_link_end_timer(&job_link->trouble_timer);
    }
}

void kelp__job_link_end_timer(struct kelp_rpc_timer **timer)
{
    kelp_rpc_timer_stop(*timer);
    *timer = NULL;
}

static void look_for_trouble(struct kelp_job_link *job_link)
{
    if (!job_link->trouble_timer &&
        kelp_rpc_timer_start(job_link->loop, TROUBLE_LOOK_MS, on_trouble_timer, job_link,
                             &job_link->trouble_timer) != KELP_OK) {
        kelp_log_error("no memory for a timer: the coordinator will not hear of a lost shard");
    }
}

/* ---- events of links ------------------------------------------------------------------------- */

static void on_closed(struct kelp_shard_link *link, void *user)
{
    kelp__job_link_event(
        user, &(struct kelp_stepper_event){
                  .kind = KELP_STEPPER_CLOSED,
                  .stream = {.link = kelp_shard_link_number(link), .now_ms = kelp_clock_ms()}});
    look_for_trouble(user);
}

static void on_opened(struct kelp_shard_link *link, void *user)
{
    struct kelp_job_link *job_link = user;
    if (kelp_shard_link_is_shared(link)) {
        kelp_gradient_pool_share(job_link->gradients);
    }
    kelp__job_link_event(user,
                         &(struct kelp_stepper_event){.kind = KELP_STEPPER_OPENED,
                                                      .stream.link = kelp_shard_link_number(link)});
}

static void on_retry(struct kelp_shard_link *link, void *user)
{
    kelp__job_link_event(user,
                         &(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY,
                                                      .stream.link = kelp_shard_link_number(link)});
}

static void on_answer(struct kelp_shard_link *link, const Kelp__V1__PullAnswer *answer,
                      const struct kelp_wire_payload *payload, void *user)
{
    struct kelp_job_link *job_link = user;
    struct kelp_control_word word;
    struct kelp_place primary;
    struct kelp_error error;
    const uint64_t begin_ns = kelp_trace_begin(job_link->options.trace);
    bool has_word = answer->partition == 0 && answer->word;

    if (has_word && !kelp_wire_get_word(answer->word, &word)) {
        (void)kelp_fail(&error, KELP_ERR_FORMAT, "control word of version %" PRIu64 " is malformed",
                        answer->word->version);
        kelp__job_link_fail(job_link, &error);
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
    if (event.answer.answer.status == KELP_OK && !answer->is_part) {
        kelp_times_answered(&job_link->times,
                            kelp_stepper_first_link(job_link->stepper, event.answer.link),
                            kelp_clock_us());
    }
    job_link->incoming = (struct kelp__job_link_incoming){.partition = answer->partition,
                                                          .step = answer->step,
                                                          .payload = payload,
                                                          .offset = answer->offset,
                                                          .length = answer->length};
    kelp__job_link_event(job_link, &event);
    const bool is_kept = kelp__job_link_action(job_link, KELP_STEPPER_KEEP);
    kelp__job_link_trace_answered(job_link, begin_ns, &event.answer.answer, is_kept);
}

static void on_refused(struct kelp_shard_link *link, const Kelp__V1__Refusal *refusal, void *user)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_REFUSED};
    struct kelp_place primary;

    /* A push refused for any of these reasons is sent again. */
    bool passes = kelp_status_group((kelp_status)refusal->status) <= KELP_GROUP_FENCED;

    kelp_log(passes ? KELP_LOG_DEBUG : KELP_LOG_WARN,
             "push refused partition=%u version=%" PRIu64 " status=%s", refusal->partition,
             refusal->version, kelp_status_name((kelp_status)refusal->status));
    kelp_figures_add(kelp_job_link_figures(user), KELP_FIGURE_WORKER_REFUSALS, 1);
    event.refused.link = kelp_shard_link_number(link);
    event.refused.generation = kelp_shard_link_generation(link);
    event.refused.partition = refusal->partition;
    event.refused.map_epoch = refusal->map_epoch;
    event.refused.primary = kelp_worker_place_decode(refusal->primary, &primary) ? &primary : NULL;
    event.refused.status = (kelp_status)refusal->status;
    kelp__job_link_event(user, &event);
}

static void on_offered(struct kelp_shard_link *link, const Kelp__V1__Offer *offer, void *user)
{
    struct kelp_job_link *job_link = user;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_OFFER};

    event.offer.generation = kelp_shard_link_generation(link);
    event.offer.lane_first = offer->lane_first;
    event.offer.lane_count = offer->lane_count;
    if (kelp_wire_get_word(offer->word, &event.offer.word)) {
        kelp__job_link_event(job_link, &event); /* may fail: an offer is only advice */
    }
}

static void on_unfit(struct kelp_shard_link *link, const struct kelp_error *why, void *user)
{
    (void)link;
    kelp__job_link_fail(user, why);
}

static const struct kelp_shard_link_events link_events = {
    .closed = on_closed,
    .opened = on_opened,
    .unfit = on_unfit,
    .retry = on_retry,
    .answer = on_answer,
    .refused = on_refused,
    .offered = on_offered,
};

/* ---- links ----------------------------------------------------------------------------------- */

void kelp__job_link_close_link(struct kelp_job_link *job_link, uint32_t number)
{
    if (number < job_link->link_count) {
        kelp_shard_link_close(job_link->links[number]);
        job_link->links[number] = NULL;
    }
}

void kelp__job_link_close_links(struct kelp_job_link *job_link)
{
    for (uint32_t i = 0; i < job_link->link_count; i++) {
        kelp__job_link_close_link(job_link, i);
    }
    free(job_link->links);
    job_link->links = NULL;
    job_link->link_count = 0;
}

static bool make_room(struct kelp_job_link *job_link, uint32_t number)
{
    if (number < job_link->link_count) {
        return true;
    }
    struct kelp_shard_link **links =
        realloc(job_link->links, ((size_t)number + 1) * sizeof(*job_link->links));
    if (!links) {
        return false;
    }
    job_link->links = links;
    while (job_link->link_count <= number) {
        job_link->links[job_link->link_count++] = NULL;
    }
    return true;
}

static kelp_status open_link(struct kelp_job_link *job_link,
                             const struct kelp_stepper_action *action, struct kelp_error *reterr)
{
    const struct kelp_shard_link_options options = {
        .loop = job_link->loop,
        .carrier = job_link->carriers[action->connect.stream],
        .hello = &job_link->hello,
        .generation = action->connect.generation,
        .place = action->connect.place,
        .plan = job_link->plan,
        .lanes = job_link->job->cluster.lanes,
        .number = action->connect.link,
        .stream = action->connect.stream,
        .alive = &job_link->links_alive,
        .transport = job_link->job->transport.kind,
        .precision = job_link->job->transport.precision,
        .piece_bytes = job_link->job->transport.piece_bytes,
        .connect_timeout_ms = job_link->job->transport.connect_timeout_ms,
        .figures = job_link->options.figures,
        .events = &link_events,
        .user = job_link,
    };
    return kelp_shard_link_open(&options, &job_link->links[action->connect.link], reterr);
}

void kelp__job_link_connect_link(struct kelp_job_link *job_link,
                                 const struct kelp_stepper_action *action)
{
    uint32_t number = action->connect.link;
    struct kelp_error error;
    kelp_status status = KELP_OK;

    if (!make_room(job_link, number)) {
        status = kelp_fail(&error, KELP_ERR_NO_MEMORY, "map: out of memory");
    } else if (!job_link->links[number]) {
        status = open_link(job_link, action, &error);
    }
    if (status != KELP_OK) {
        kelp__job_link_fail(job_link, &error);
        return;
    }
    kelp_shard_link_connect(job_link->links[number]);
}
