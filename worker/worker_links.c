/* The worker library's links to shards: what comes on them becomes an event of the stepper. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/scrape/figures.h"
#include "proto/convert.h"
#include "worker/links/wire_map.h"
#include "worker/worker_internal.h"

#define TROUBLE_LOOK_MS 500u

/* ---- trouble --------------------------------------------------------------------------------- */

static const char *cause_of(const struct kelp_worker *worker, uint32_t link)
{
    return link < worker->link_count && worker->links[link]
               ? kelp_shard_link_cause(worker->links[link])
               : "its stream could not be opened";
}

static void on_trouble_timer(void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_stepper_trouble trouble;
    char text[KELP_JOINING_TROUBLE_MAX + 1] = "";

    kelp_stepper_trouble(worker->stepper, kelp_clock_ms(), &trouble);
    if (trouble.lasts) {
        (void)snprintf(text, sizeof(text), "cannot reach %s at %.100s: %.70s", trouble.shard->shard,
                       trouble.shard->address, cause_of(worker, trouble.link));
    }
    kelp_coordinator_link_trouble(worker->coordinator, text);
    if (!trouble.shard) {
        kelp__worker_end_timer(&worker->trouble_timer);
    }
}

void kelp__worker_end_timer(struct kelp_rpc_timer **timer)
{
    kelp_rpc_timer_stop(*timer);
    *timer = NULL;
}

static void look_for_trouble(struct kelp_worker *worker)
{
    if (!worker->trouble_timer &&
        kelp_rpc_timer_start(worker->loop, TROUBLE_LOOK_MS, on_trouble_timer, worker,
                             &worker->trouble_timer) != KELP_OK) {
        kelp_log_error("no memory for a timer: the coordinator will not hear of a lost shard");
    }
}

/* ---- events of links ------------------------------------------------------------------------- */

static void on_closed(struct kelp_shard_link *link, void *user)
{
    kelp__worker_event(user,
                       &(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED,
                                                    .stream = {.link = kelp_shard_link_number(link),
                                                               .now_ms = kelp_clock_ms()}});
    look_for_trouble(user);
}

static void on_opened(struct kelp_shard_link *link, void *user)
{
    struct kelp_worker *worker = user;
    if (kelp_shard_link_is_shared(link)) {
        kelp_gradient_pool_share(worker->gradients);
    }
    kelp__worker_event(user,
                       &(struct kelp_stepper_event){.kind = KELP_STEPPER_OPENED,
                                                    .stream.link = kelp_shard_link_number(link)});
}

static void on_retry(struct kelp_shard_link *link, void *user)
{
    kelp__worker_event(user,
                       &(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY,
                                                    .stream.link = kelp_shard_link_number(link)});
}

static void on_answer(struct kelp_shard_link *link, const Kelp__V1__PullAnswer *answer,
                      const struct kelp_wire_payload *payload, void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_control_word word;
    struct kelp_place primary;
    struct kelp_error error;
    const uint64_t begin_ns = kelp_trace_begin(worker->options.trace);
    bool has_word = answer->partition == 0 && answer->word;

    if (has_word && !kelp_wire_get_word(answer->word, &word)) {
        (void)kelp_fail(&error, KELP_ERR_FORMAT, "control word of version %" PRIu64 " is malformed",
                        answer->word->version);
        kelp__worker_fail(worker, &error);
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
        kelp_times_answered(&worker->times, event.answer.link, kelp_clock_us());
    }
    worker->incoming = (struct kelp__worker_incoming){.partition = answer->partition,
                                                      .step = answer->step,
                                                      .payload = payload,
                                                      .offset = answer->offset,
                                                      .length = answer->length};
    kelp__worker_event(worker, &event);
    const bool is_kept = kelp__worker_action(worker, KELP_STEPPER_KEEP);
    kelp__worker_trace_answered(worker, begin_ns, &event.answer.answer, is_kept);
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
    kelp_figures_add(kelp_worker_figures(user), KELP_FIGURE_WORKER_REFUSALS, 1);
    event.refused.link = kelp_shard_link_number(link);
    event.refused.generation = kelp_shard_link_generation(link);
    event.refused.partition = refusal->partition;
    event.refused.map_epoch = refusal->map_epoch;
    event.refused.primary = kelp_worker_place_decode(refusal->primary, &primary) ? &primary : NULL;
    event.refused.status = (kelp_status)refusal->status;
    kelp__worker_event(user, &event);
}

static void on_offered(struct kelp_shard_link *link, const Kelp__V1__Offer *offer, void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_OFFER};

    event.offer.generation = kelp_shard_link_generation(link);
    event.offer.lane_first = offer->lane_first;
    event.offer.lane_count = offer->lane_count;
    if (kelp_wire_get_word(offer->word, &event.offer.word)) {
        kelp__worker_event(worker, &event); /* else nothing is lost: an offer is only advice */
    }
}

static void on_unfit(struct kelp_shard_link *link, const struct kelp_error *why, void *user)
{
    (void)link;
    kelp__worker_fail(user, why);
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

void kelp__worker_close_link(struct kelp_worker *worker, uint32_t number)
{
    if (number < worker->link_count) {
        kelp_shard_link_close(worker->links[number]);
        worker->links[number] = NULL;
    }
}

void kelp__worker_close_links(struct kelp_worker *worker)
{
    for (uint32_t i = 0; i < worker->link_count; i++) {
        kelp__worker_close_link(worker, i);
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
        .transport = worker->job->transport.kind,
        .precision = worker->job->transport.precision,
        .piece_bytes = worker->job->transport.piece_bytes,
        .connect_timeout_ms = worker->job->transport.connect_timeout_ms,
        .figures = worker->options.figures,
        .events = &link_events,
        .user = worker,
    };
    return kelp_shard_link_open(&options, &worker->links[action->connect.link], reterr);
}

void kelp__worker_connect_link(struct kelp_worker *worker, const struct kelp_stepper_action *action)
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
        kelp__worker_fail(worker, &error);
        return;
    }
    kelp_shard_link_connect(worker->links[number]);
}
