#include "tests/sim/processes/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/processes/supervisor.h"
#include "worker/core/schedule.h"

#define GRACE_US (3 * SIM_SECOND)

static void take_event(struct sim_worker *worker, const struct kelp_stepper_event *event);

struct sim_worker *sim_worker_of(const struct sim_process *process)
{
    return process->state;
}

/* ---- links ----------------------------------------------------------------------------------- */

static struct sim_worker_link *link_of(struct sim_worker *worker, uint64_t stream)
{
    for (uint32_t i = 0; i < SIM_WORKER_LINKS_MAX; i++) {
        if (stream != 0 && worker->links[i].stream == stream) {
            return &worker->links[i];
        }
    }
    return NULL;
}

/* number: the life of the link * SIM_WORKER_LINKS_MAX + the link. */
static void retry(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    uint32_t link = (uint32_t)(number % SIM_WORKER_LINKS_MAX);
    (void)sim;
    (void)data;
    if (number / SIM_WORKER_LINKS_MAX == worker->links[link].life) {
        take_event(worker,
                   &(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = link});
        sim_worker_turn(worker);
    }
}

static void retry_later(struct sim_worker *worker, const struct kelp_stepper_action *action)
{
    uint64_t life = worker->links[action->later.link].life;
    sim_after(worker->sim, action->later.after_ms * SIM_MS,
              &(struct sim_call){.process = worker->process,
                                 .run = retry,
                                 .number = life * SIM_WORKER_LINKS_MAX + action->later.link});
}

static void ask_again(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)sim;
    (void)data;
    (void)number;
    take_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    sim_worker_turn(worker);
}

static void close_link(struct sim_worker *worker, uint32_t number)
{
    struct sim_worker_link *link = &worker->links[number];
    if (link->stream != 0) {
        sim_stream_close(worker->sim, link->stream, SIM_CLIENT);
    }
    *link = (struct sim_worker_link){.life = link->life + 1};
}

static void connect_link(struct sim_worker *worker, const struct kelp_stepper_action *action)
{
    struct sim_worker_link *link = &worker->links[action->connect.link];
    if (action->connect.link >= SIM_WORKER_LINKS_MAX) {
        abort();
    }
    link->shard = sim_find_id(worker->sim, action->connect.place->shard);
    link->generation = action->connect.generation;
    link->heard = false;
    link->stream = sim_stream_open(worker->sim, worker->process, link->shard, SIM_EXCHANGE,
                                   worker->sim->job.transport.connect_timeout_ms);
}

/* ---- actions --------------------------------------------------------------------------------- */

static void computed(struct sim *sim, struct sim_process *process, void *data, uint64_t number);
static void partly(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

/* One or more partitions of the last node are complete soon. Not drawn: what a seed draws besides
 * stays as it is. */
static void partly_later(struct sim_worker *worker)
{
    const struct sim *sim = worker->sim;
    const uint64_t lane_us = sim->profile.lane_us;
    sim_after(worker->sim, sim_mix(sim->seed ^ sim->now) % (lane_us + 1) + 1,
              &(struct sim_call){
                  .process = worker->process, .run = partly, .number = worker->work_count});
}

static void start_computing(struct sim_worker *worker, const struct kelp_stepper_action *action)
{
    uint64_t lane_us = worker->sim->profile.lane_us;
    uint32_t count = action->compute.lane_count;
    worker->work = *action;
    worker->work_count++;
    worker->computing = true;
    worker->ahead = action->compute.ahead;
    worker->given_up = worker->awaits = false;
    worker->partly_first = worker->sim->plan.partition_count;
    worker->handed_out_us = worker->sim->now;
    if (action->compute.offered) {
        worker->sim->counts[SIM_COUNT_COVERED] += count;
    }
    worker->sim->counts[SIM_COUNT_AHEAD] += action->compute.ahead;
    sim_say(worker->sim, worker->process, "computes lanes [%u, +%u) of version %" PRIu64 "%s%s",
            action->compute.lane_first, count, action->compute.word.version,
            action->compute.offered ? ", which it was offered" : "",
            action->compute.ahead ? ", of which weights are coming" : "");
    sim_after(worker->sim, count * sim_between(worker->sim, lane_us / 2, 3 * lane_us / 2) + 1,
              &(struct sim_call){.process = worker->process, .run = computed});
    if (worker->sim->profile.parts && action->compute.word.kind == KELP_STEP_TRAIN) {
        partly_later(worker);
    }
}

/* All of its weights are there, or are not to come: it goes on if it waits for that. */
static void go_on(struct sim_worker *worker, bool given_up)
{
    const bool awaits = worker->awaits;
    worker->given_up = given_up;
    worker->ahead = worker->awaits = false;
    if (awaits) {
        sim_after(worker->sim, 1, &(struct sim_call){.process = worker->process, .run = computed});
    }
}

static void keep_weights(struct sim_worker *worker)
{
    struct kelp_slice_range range = sim_slice(worker->sim, worker->answer->partition);
    memcpy(&worker->weights[1 - worker->current][range.first], worker->answer->weights,
           range.count * sizeof(float));
}

static void leave(struct sim_worker *worker)
{
    /* Else the job rests, or a pause may still fail, and then it is wanted again. */
    worker->process->over = sim_job_state(worker->sim, "done");
    sim_say(worker->sim, worker->process, "leaves");
    sim_supervisor_ended(worker->sim, worker->process);
}

static struct kelp_stepper_view view_of(const struct sim_worker *worker)
{
    struct kelp_stepper_view view;
    kelp_stepper_view(worker->stepper, &view);
    return view;
}

static void begin_version(struct sim_worker *worker, const struct kelp_stepper_action *action)
{
    const struct kelp_control_word *word = &action->begin.word;
    if (action->begin.swap) {
        worker->current = 1 - worker->current;
    }
    sim_invariants_held(worker->process, word, worker->weights[worker->current]);
    sim_worker_lie(worker, word);
    worker->progress.generation = view_of(worker).generation;
    worker->progress.version = word->version;
    kelp_joining_progress(&worker->joining, &worker->progress);
}

/* False: the process has ended. */
static bool carry_out(struct sim_worker *worker, const struct kelp_stepper_action *action)
{
    switch (action->kind) {
    case KELP_STEPPER_FAIL:
        sim_fail(worker->sim, "a worker does not fail", "%s: %s", worker->process->id,
                 action->fail.text);
        break;
    case KELP_STEPPER_LEAVE:
        leave(worker);
        return false;
    case KELP_STEPPER_ADOPT:
        sim_say(worker->sim, worker->process,
                "takes the map of generation %" PRIu64 ", serial %" PRIu64,
                action->adopt.generation, action->adopt.serial);
        break;
    case KELP_STEPPER_CLOSE:
        close_link(worker, action->close);
        break;
    case KELP_STEPPER_CONNECT:
        connect_link(worker, action);
        break;
    case KELP_STEPPER_SEND:
        sim_worker_send(worker, &action->send);
        break;
    case KELP_STEPPER_RETRY_LATER:
        retry_later(worker, action);
        break;
    case KELP_STEPPER_ASK_LATER:
        sim_after(worker->sim, action->later.after_ms * SIM_MS,
                  &(struct sim_call){.process = worker->process, .run = ask_again});
        break;
    case KELP_STEPPER_BEGIN:
        begin_version(worker, action);
        if (worker->ahead) {
            go_on(worker, false);
        }
        break;
    case KELP_STEPPER_GIVE_UP:
        sim_say(worker->sim, worker->process, "gives up version %" PRIu64,
                worker->work.compute.word.version);
        worker->current = action->give_up_swap ? 1 - worker->current : worker->current;
        worker->sim->counts[SIM_COUNT_GIVEN_UP]++;
        go_on(worker, true);
        break;
    case KELP_STEPPER_COMPUTE:
        start_computing(worker, action);
        break;
    case KELP_STEPPER_RELEASE: /* it is of no use any more: nobody is to send it again */
        memset(worker->refused, 0, sizeof(worker->refused));
        sim_node_unref(action->release);
        break;
    case KELP_STEPPER_KEEP:
        keep_weights(worker);
        break;
    case KELP_STEPPER_STALE:
        break;
    }
    return true;
}

static const struct kelp_stepper_action *find_action(const struct sim_worker *worker,
                                                     enum kelp_stepper_action_kind kind)
{
    for (size_t i = 0; i < worker->actions.count; i++) {
        if (worker->actions.items[i].kind == kind) {
            return &worker->actions.items[i];
        }
    }
    return NULL;
}

/* What a spare computes is sent before it starts over: nobody else may have computed it, and the
 * next time another offer may come in between again. */
static void check_sent(struct sim_worker *worker, const struct sim_node *node)
{
    uint32_t link;
    uint64_t map_epoch;
    kelp_stepper_route(worker->stepper, 0, &link, &map_epoch);
    if (!node->sent && worker->links[link].stream != 0) {
        sim_fail(worker->sim, "what a spare computes is sent", "by %s", worker->process->id);
    }
}

/* False: the process has ended. */
static bool try_event(struct sim_worker *worker, const struct kelp_stepper_event *event)
{
    if (kelp_stepper_event(worker->stepper, event, &worker->actions) != KELP_OK) {
        abort();
    }
    for (size_t i = 0; i < worker->actions.count; i++) {
        if (event->kind == KELP_STEPPER_TURN && !find_action(worker, KELP_STEPPER_BEGIN) &&
            worker->actions.items[i].kind == KELP_STEPPER_RELEASE) {
            check_sent(worker, worker->actions.items[i].release);
        }
        if (!carry_out(worker, &worker->actions.items[i])) {
            return false;
        }
    }
    return true;
}

static void take_event(struct sim_worker *worker, const struct kelp_stepper_event *event)
{
    (void)try_event(worker, event);
}

/* ---- replies --------------------------------------------------------------------------------- */

/* NULL: not told. */
static const struct kelp_place *told_place(const struct sim_told *told, struct kelp_place *place)
{
    *place = (struct kelp_place){.incarnation = told->incarnation};
    (void)snprintf(place->shard, sizeof(place->shard), "%s", told->shard);
    return told->shard[0] != '\0' ? place : NULL;
}

static void take_answer(struct sim_worker *worker, uint32_t link, const struct sim_reply *reply,
                        const struct sim_answer *answer)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};
    event.answer.link = link;
    struct kelp_place primary;
    event.answer.map_epoch = answer->map_epoch;
    event.answer.primary = told_place(&answer->told, &primary);
    event.answer.generation = reply->generation;
    event.answer.answer = (struct kelp_sync_answer){
        .partition = answer->partition,
        .status = answer->core.status,
        .step = answer->core.step,
        .current_step = answer->core.current_step,
        .has_weights = answer->has_weights,
        .word = answer->core.has_word ? &answer->core.word : NULL,
        .is_share = answer->core.is_share,
        .values = answer->values.values,
        .value_count = answer->values.count,
    };
    worker->answer = answer;
    take_event(worker, &event);
}

static void take_refusal(struct sim_worker *worker, uint32_t link, const struct sim_reply *reply,
                         const struct sim_refusal *refusal)
{
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_REFUSED};
    uint32_t route;
    uint64_t map_epoch;
    kelp_stepper_route(worker->stepper, refusal->partition, &route, &map_epoch);
    if (route == link) {
        sim_worker_refused(worker, reply, refusal);
    }
    event.refused.link = link;
    event.refused.generation = reply->generation;
    event.refused.partition = refusal->partition;
    struct kelp_place primary;
    event.refused.map_epoch = refusal->core.map_epoch;
    event.refused.primary = told_place(&refusal->told, &primary);
    event.refused.status = refusal->core.status;
    take_event(worker, &event);
}

/* What it leads to may end the link. */
static void take_reply(struct sim_worker *worker, uint64_t stream, const struct sim_reply *reply)
{
    struct sim_worker_link *link = link_of(worker, stream);
    if (!link->heard) {
        link->heard = true;
        take_event(worker,
                   &(struct kelp_stepper_event){.kind = KELP_STEPPER_OPENED,
                                                .stream.link = (uint32_t)(link - worker->links)});
    }
    for (size_t i = 0; i < reply->refusal_count && link_of(worker, stream); i++) {
        take_refusal(worker, (uint32_t)(link_of(worker, stream) - worker->links), reply,
                     &reply->refusals[i]);
    }
    for (size_t i = 0; i < reply->answer_count && link_of(worker, stream); i++) {
        take_answer(worker, (uint32_t)(link_of(worker, stream) - worker->links), reply,
                    &reply->answers[i]);
    }
    for (size_t i = 0; i < reply->offer_count && link_of(worker, stream); i++) {
        const struct kelp_offer *offer = &reply->offers[i].core;
        struct kelp_stepper_event event = {.kind = KELP_STEPPER_OFFER};
        event.offer.generation = reply->generation;
        event.offer.word = offer->word;
        event.offer.lane_first = offer->lane_first;
        event.offer.lane_count = offer->lane_count;
        take_event(worker, &event);
    }
}

static void take_closed(struct sim_worker *worker, uint64_t stream)
{
    struct sim_worker_link *link = link_of(worker, stream);
    if (link) {
        link->stream = 0;
        take_event(worker,
                   &(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED,
                                                .stream = {.link = (uint32_t)(link - worker->links),
                                                           .now_ms = worker->sim->now / SIM_MS}});
    }
}

/* Does it look at nothing until it has computed? */
static bool is_busy(const struct sim_worker *worker)
{
    return worker->computing && !worker->sim->profile.turning && !worker->ahead;
}

static void keep_for_later(struct sim_worker *worker, uint64_t stream, struct sim_message *message)
{
    worker->inbox = sim_grow(worker->inbox, worker->inbox_count, &worker->inbox_capacity,
                             sizeof(*worker->inbox));
    worker->inbox[worker->inbox_count++] = (struct sim_inbox){.stream = stream, .message = message};
    if (message) {
        sim_message_ref(message);
    }
}

static void on_message(struct sim *sim, struct sim_process *process, uint64_t stream,
                       struct sim_message *message, bool stray)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)sim;
    (void)stray; /* sync ignores what it did not ask for */
    if (is_busy(worker)) {
        keep_for_later(worker, stream, message);
    } else if (link_of(worker, stream)) {
        take_reply(worker, stream, (const struct sim_reply *)message);
        sim_worker_turn(worker);
    }
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)sim;
    (void)broken;
    if (is_busy(worker)) {
        keep_for_later(worker, stream, NULL);
    } else {
        take_closed(worker, stream);
        sim_worker_turn(worker);
    }
}

const struct sim_stream_events sim_exchange_client = {.message = on_message, .closed = on_closed};

/* ---- the loop -------------------------------------------------------------------------------- */

/* A map as the stepper takes it. */
struct known_places {
    struct kelp_places places;
    struct kelp_place shards[SIM_SHARDS_MAX];
    uint32_t primary[SIM_PARTITIONS_MAX];
    uint64_t map_epoch[SIM_PARTITIONS_MAX];
};

static void know_places(const struct kelp_map *map, struct known_places *known)
{
    for (uint32_t i = 0; i < map->shard_count; i++) {
        known->shards[i] = (struct kelp_place){.incarnation = map->shards[i].incarnation};
        (void)snprintf(known->shards[i].shard, sizeof(known->shards[i].shard), "%s",
                       map->shards[i].id);
    }
    for (uint32_t p = 0; p < map->partition_count; p++) {
        known->primary[p] = map->partitions[p].primary;
        known->map_epoch[p] = map->partitions[p].map_epoch;
    }
    known->places = (struct kelp_places){.generation = map->generation,
                                         .serial = map->serial,
                                         .shard_count = map->shard_count,
                                         .partition_count = map->partition_count,
                                         .shards = known->shards,
                                         .primary = known->primary,
                                         .map_epoch = known->map_epoch};
}

/* The coordinator wants it to end. */
static void drain(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)data;
    (void)number;
    sim_worker_ask_to_end(process);
}

/* False: the job is over, and this process has ended. */
static bool take_news(struct sim_worker *worker)
{
    struct kelp_news news;
    struct known_places known;
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_NEWS, .news = {.news = &news}};

    if (!kelp_joining_take_news(&worker->joining, &news)) {
        return true;
    }
    struct sim_map *map = news.map;
    if (map) {
        know_places(&map->map, &known);
        event.news.places = &known.places;
    }
    bool goes_on = try_event(worker, &event);
    sim_map_unref(map);
    if (goes_on && news.drain) {
        sim_after(worker->sim, 1, &(struct sim_call){.process = worker->process, .run = drain});
    }
    return goes_on;
}

static void give_node(struct sim_worker *worker, struct sim_node *node,
                      const struct kelp_stepper_event *what)
{
    struct kelp_stepper_event event = *what;
    event.computed.lane_first = node->lane_first;
    event.computed.lane_count = node->lane_count;
    event.computed.present = node->present;
    event.computed.content = node;
    take_event(worker, &event);
}

/* Compute the nodes of the work: all but the last one are given, the last one is kept. */
static void compute_nodes(struct sim_worker *worker)
{
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    const struct kelp_stepper_action *work = &worker->work;
    uint32_t count = kelp_schedule_split(work->compute.lane_first, work->compute.lane_count, nodes);
    for (uint32_t i = 0; i < count; i++) {
        struct sim_node *node =
            sim_model_node(worker->sim, &work->compute.word, worker->weights[worker->current],
                           nodes[i].first, nodes[i].count);
        if (i < count - 1) {
            give_node(worker, node, &(struct kelp_stepper_event){.kind = KELP_STEPPER_COMPUTED});
        } else {
            worker->last_node = node;
        }
    }
}

/* More of the last node of the work is complete. number: of the work. */
static void partly(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)data;
    if (!worker->computing || worker->given_up || worker->work_count != number ||
        worker->partly_first < 2) {
        return;
    }
    if (worker->ahead) {
        partly_later(worker);
        return;
    }
    if (!worker->last_node) {
        compute_nodes(worker);
    }
    if (!worker->last_node->present) {
        return;
    }
    const uint32_t more = (uint32_t)(sim_mix(sim->seed + sim->now) % 3) + 1;
    worker->partly_first = worker->partly_first > more ? worker->partly_first - more : 1;
    worker->last_node->refs++;
    give_node(worker, worker->last_node,
              &(struct kelp_stepper_event){.kind = KELP_STEPPER_PARTLY,
                                           .computed.partition_first = worker->partly_first});
    partly_later(worker);
}

static void push_computed(struct sim_worker *worker)
{
    if (!worker->last_node) {
        compute_nodes(worker);
    }
    give_node(worker, worker->last_node,
              &(struct kelp_stepper_event){.kind = KELP_STEPPER_COMPUTED});
    worker->last_node = NULL;
}

static void computed(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)data;
    (void)number;
    if (worker->ahead && !worker->asked) {
        worker->awaits = true; /* go_on() */
        return;
    }
    worker->computing = false;
    if (!worker->ahead && !worker->given_up) {
        worker->progress.lanes_computed += worker->work.compute.lane_count;
        worker->progress.busy_us += sim->now - worker->handed_out_us;
        push_computed(worker);
    }
    worker->ahead = false;
    /* Before anything that came meanwhile is looked at: the program goes round its loop once. */
    sim_worker_turn(worker);
}

static void take_inbox(struct sim_worker *worker)
{
    for (size_t i = 0; i < worker->inbox_count; i++) {
        struct sim_inbox *item = &worker->inbox[i];
        if (!item->message) {
            take_closed(worker, item->stream);
            continue;
        }
        if (link_of(worker, item->stream)) {
            take_reply(worker, item->stream, (const struct sim_reply *)item->message);
        }
        sim_message_unref(item->message);
    }
    worker->inbox_count = 0;
}

/* It has joined, answers, and does nothing else until the job is over, unless nobody else is left:
 * a job that was done may have to be computed again. */
static bool is_idler(const struct sim_worker *worker)
{
    const struct sim *sim = worker->sim;
    bool others = false;
    for (unsigned i = 0; i < sim->process_count; i++) {
        const struct sim_process *process = &sim->processes[i];
        others = others || (process->role == SIM_WORKER && process != worker->process &&
                            !process->over && !process->retired);
    }
    return sim->profile.idler && worker->process->index == sim->profile.workers - 1 && others;
}

void sim_worker_turn(struct sim_worker *worker)
{
    const struct kelp_stepper_event turn = {.kind = KELP_STEPPER_TURN};
    bool again = true;
    if (is_idler(worker)) {
        if (worker->joining.news.leave) {
            leave(worker);
        }
        return;
    }
    if (worker->computing && !is_busy(worker) && !take_news(worker)) {
        return;
    }
    while (again && !worker->computing) {
        again = worker->inbox_count > 0;
        if (!take_news(worker) || !try_event(worker, &turn)) {
            return;
        }
        if (!is_busy(worker)) {
            take_inbox(worker); /* what it waits for may have come already */
        }
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static void give_up(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)data;
    (void)number;
    leave(sim_worker_of(process));
}

void sim_worker_ask_to_end(struct sim_process *process)
{
    struct sim_worker *worker = sim_worker_of(process);
    if (worker->asked) {
        return;
    }
    sim_say(worker->sim, process, "is asked to end");
    worker->asked = true;
    kelp_joining_leave(&worker->joining);
    take_event(worker, &(struct kelp_stepper_event){.kind = KELP_STEPPER_FINISH});
    if (worker->awaits) {
        go_on(worker, true);
    }
    sim_after(worker->sim, GRACE_US, &(struct sim_call){.process = process, .run = give_up});
    sim_worker_turn(worker);
}

void sim_worker_start(struct sim *sim, struct sim_process *process)
{
    struct sim_worker *worker = sim_alloc(sizeof(*worker));
    worker->sim = sim;
    worker->process = process;
    worker->stepper = kelp_stepper_create(&sim->job, &sim->plan);
    if (!worker->stepper) {
        abort();
    }
    if (sim->profile.ahead) {
        kelp_stepper_go_ahead(worker->stepper);
    }
    process->state = worker;
    sim_worker_join_cluster(worker);
}

void sim_worker_forget(struct sim_process *process)
{
    struct sim_worker *worker = sim_worker_of(process);
    if (kelp_stepper_drop(worker->stepper, &worker->actions) != KELP_OK) {
        abort();
    }
    for (size_t i = 0; i < worker->actions.count; i++) {
        sim_node_unref(worker->actions.items[i].release);
    }
    for (size_t i = 0; i < worker->inbox_count; i++) {
        if (worker->inbox[i].message) {
            sim_message_unref(worker->inbox[i].message);
        }
    }
    free(worker->inbox);
    sim_map_unref(worker->joining.news.map);
    sim_node_unref(worker->last_node);
    kelp_stepper_actions_fini(&worker->actions);
    kelp_stepper_destroy(worker->stepper);
    free(worker);
    process->state = NULL;
}
