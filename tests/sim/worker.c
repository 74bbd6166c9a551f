#include "tests/sim/worker.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/supervisor.h"
#include "worker/core/schedule.h"

#define RETRY_US (50 * SIM_MS) /* worker/exchange_link.c */
#define BUSY_US  (20 * SIM_MS) /* worker/worker_library.c */

struct sim_worker *sim_worker_of(const struct sim_process *process)
{
    return process->state;
}

/* ---- the version in progress -------------------------------------------------------------------
 */

static void drop_pushed(struct sim_worker *worker)
{
    for (size_t i = 0; i < worker->pushed_count; i++) {
        sim_node_unref(worker->pushed[i]);
    }
    worker->pushed_count = 0;
    memset(worker->computed, 0, sizeof(worker->computed));
}

static void begin_version(struct sim_worker *worker, const struct kelp_control_word *word,
                          bool swap)
{
    drop_pushed(worker);
    if (swap) {
        worker->current = 1 - worker->current;
    }
    worker->word = *word;
    worker->working = true;
    if (worker->fetching) {
        kelp_offers_fetched(&worker->offers, word);
    }
    worker->fetching = false;
    sim_invariants_held(worker->process, word, worker->weights[worker->current]);
}

/* ---- links -------------------------------------------------------------------------------------
 */

static struct sim_worker_link *link_of(struct sim_worker *worker, uint64_t stream)
{
    for (uint32_t i = 0; i < worker->link_count; i++) {
        if (worker->links[i].stream == stream) {
            return &worker->links[i];
        }
    }
    return NULL;
}

static void reask(struct sim_worker *worker, const struct sim_worker_link *link)
{
    const struct kelp_map *map = &worker->map->map;
    for (uint32_t p = 0; p < map->partition_count; p++) {
        if (strcmp(map->shards[map->partitions[p].primary].id, link->shard->id) == 0) {
            kelp_sync_reask(worker->sync, p);
        }
    }
}

static void connect_now(struct sim_worker *worker, struct sim_worker_link *link)
{
    link->stream = sim_stream_open(worker->sim, worker->process, link->shard, SIM_EXCHANGE,
                                   worker->sim->job.transport.connect_timeout_ms);
    link->helps = false;
    reask(worker, link);
    sim_worker_send(worker, link, true);
}

/* number: the life of the links * 16 + the link. */
static void retry(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)sim;
    (void)data;
    if (number / 16 == worker->links_life) {
        worker->links[number % 16].waiting = false;
        connect_now(worker, &worker->links[number % 16]);
        sim_worker_turn(worker);
    }
}

static void close_links(struct sim_worker *worker)
{
    for (uint32_t i = 0; i < worker->link_count; i++) {
        if (worker->links[i].stream != 0) {
            sim_stream_close(worker->sim, worker->links[i].stream, SIM_CLIENT);
        }
    }
    worker->link_count = 0;
    worker->links_life++;
}

static void open_links(struct sim_worker *worker)
{
    const struct kelp_map *map = &worker->map->map;
    for (uint32_t i = 0; i < map->shard_count; i++) {
        worker->links[i] =
            (struct sim_worker_link){.shard = sim_find_id(worker->sim, map->shards[i].id)};
        worker->link_count = i + 1;
        connect_now(worker, &worker->links[i]);
    }
}

static void ask_again(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)sim;
    (void)data;
    (void)number;
    worker->asking_again = false;
    for (uint32_t p = 0; p < sim->plan.partition_count; p++) {
        kelp_sync_reask(worker->sync, p);
    }
    sim_worker_turn(worker);
}

static void take_answer(struct sim_worker *worker, const struct sim_answer *answer)
{
    kelp_status status = answer->core.status;
    struct kelp_slice_range range = sim_slice(worker->sim, answer->partition);
    if (status == KELP_ERR_BUSY) {
        if (!worker->asking_again) {
            worker->asking_again = true;
            sim_after(worker->sim, BUSY_US,
                      &(struct sim_call){.process = worker->process, .run = ask_again});
        }
        return;
    }
    if (status == KELP_ERR_OLD_MAP_EPOCH || status == KELP_ERR_OLD_GENERATION ||
        status == KELP_ERR_NOT_PRIMARY) {
        return; /* a newer map is on its way */
    }
    struct kelp_sync_answer taken = {
        .partition = answer->partition,
        .status = status,
        .step = answer->core.step,
        .current_step = answer->core.current_step,
        .has_weights = answer->has_weights || range.count == 0,
        .word = answer->partition == 0 && answer->core.has_word ? &answer->core.word : NULL,
        .is_part = answer->core.is_part,
        .values = answer->values.values,
        .value_count = answer->values.count,
    };
    if (kelp_sync_take(worker->sync, &taken) && answer->has_weights) {
        memcpy(&worker->weights[1 - worker->current][range.first], answer->weights,
               range.count * sizeof(float));
    }
}

static void take_offer(struct sim_worker *worker, const struct kelp_offer *offer)
{
    if (!kelp_offers_add(&worker->offers, &offer->word, offer->lane_first, offer->lane_count)) {
        return;
    }
    bool held = worker->working && worker->word.version == offer->word.version;
    if (worker->spare && !held) {
        worker->fetching = true;
    } else if (!worker->working) {
        (void)kelp_sync_offered(worker->sync, offer->word.step);
    }
}

static void take_reply(struct sim_worker *worker, const struct sim_reply *reply)
{
    if (!worker->map || reply->generation != worker->map->map.generation) {
        return;
    }
    for (size_t i = 0; i < reply->answer_count; i++) {
        take_answer(worker, &reply->answers[i]);
    }
    for (size_t i = 0; i < reply->offer_count; i++) {
        take_offer(worker, &reply->offers[i].core);
    }
}

static void take_closed(struct sim_worker *worker, uint64_t stream)
{
    struct sim_worker_link *link = link_of(worker, stream);
    if (link) {
        link->stream = 0;
        link->waiting = true;
        sim_after(worker->sim, RETRY_US,
                  &(struct sim_call){.process = worker->process,
                                     .run = retry,
                                     .number = worker->links_life * 16 +
                                               (uint64_t)(link - worker->links)});
    }
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
    if (worker->computing && !worker->sim->profile.turning) {
        keep_for_later(worker, stream, message);
    } else if (link_of(worker, stream)) {
        take_reply(worker, (const struct sim_reply *)message);
        sim_worker_turn(worker);
    }
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)sim;
    (void)broken;
    if (worker->computing && !worker->sim->profile.turning) {
        keep_for_later(worker, stream, NULL);
    } else {
        take_closed(worker, stream);
        sim_worker_turn(worker);
    }
}

const struct sim_stream_events sim_exchange_client = {.message = on_message, .closed = on_closed};

/* ---- news --------------------------------------------------------------------------------------
 */

/* The reference is transferred. */
static void take_map(struct sim_worker *worker, struct sim_map *map)
{
    if (worker->map && map->map.generation <= worker->map->map.generation) {
        sim_map_unref(map);
        return;
    }
    sim_say(worker->sim, worker->process, "takes the map of generation %llu",
            (unsigned long long)map->map.generation);
    close_links(worker);
    drop_pushed(worker);
    worker->working = false;
    worker->spare = false;
    worker->fetching = false;
    kelp_offers_clear(&worker->offers);
    kelp_sync_restart(worker->sync);
    sim_map_unref(worker->map);
    worker->map = map;
    open_links(worker);
}

/* False: the job is over, and this process has ended. */
static bool take_news(struct sim_worker *worker)
{
    struct sim_worker_news news = worker->news;
    if (!news.any) {
        return true;
    }
    worker->news.any = false;
    worker->news.map = NULL;
    if (news.leave) {
        sim_map_unref(news.map);
        /* Else the job rests, or a pause may still fail, and then it is wanted again. */
        worker->process->over = sim_job_state(worker->sim, "done");
        sim_say(worker->sim, worker->process, "leaves");
        sim_supervisor_ended(worker->sim, worker->process);
        return false;
    }
    if (news.has_assignment) {
        worker->assigned = true;
        worker->lane_first = news.lane_first;
        worker->lane_count = news.lane_count;
    }
    if (news.map) {
        take_map(worker, news.map);
    }
    return true;
}

/* ---- working -----------------------------------------------------------------------------------
 */

static bool find_assigned(struct sim_worker *worker)
{
    if (!worker->working || worker->spare || !worker->assigned ||
        worker->word.kind == KELP_STEP_DONE) {
        return false;
    }
    uint32_t end = worker->lane_first + worker->lane_count;
    uint32_t first = worker->lane_first;
    while (first < end && worker->computed[first]) {
        first++;
    }
    uint32_t last = first;
    while (last < end && !worker->computed[last]) {
        last++;
    }
    worker->work_first = first;
    worker->work_count = last - first;
    worker->covering = false;
    return last > first;
}

static bool find_offered(struct sim_worker *worker)
{
    if (!worker->working || worker->word.kind == KELP_STEP_DONE ||
        !kelp_offers_find(&worker->offers, &worker->word, worker->computed, &worker->work_first,
                          &worker->work_count)) {
        return false;
    }
    worker->sim->counts[SIM_COUNT_COVERED] += worker->work_count;
    worker->covering = true;
    return true;
}

/* Nobody else may have computed it, and the next time another offer may come in between again. */
static void check_sent(struct sim_worker *worker)
{
    for (size_t i = 0; i < worker->pushed_count; i++) {
        if (!worker->pushed[i]->sent) {
            sim_fail(worker->sim, "what a spare computes is sent", "by %s, of version %llu",
                     worker->process->id, (unsigned long long)worker->word.version);
        }
    }
}

static void follow(struct sim_worker *worker)
{
    bool holding = kelp_sync_state(worker->sync) == KELP_SYNC_HOLDING;
    bool settled = holding || !worker->working;
    /* A spare that has helped with a step sees it through where steps need decisions. */
    bool carries = worker->pushed_count > 0 && holding && kelp_control_decides(&worker->sim->job);

    if (worker->lane_count == 0 && settled && !worker->fetching && !carries) {
        worker->spare = true;
    } else if (worker->spare && !carries) {
        sim_worker_send_all(worker);
        check_sent(worker);
        worker->spare = false;
        worker->working = false;
        drop_pushed(worker);
        kelp_sync_restart(worker->sync);
    } else if (holding && worker->word.kind != KELP_STEP_DONE) {
        worker->spare = false;
        kelp_sync_next(worker->sync);
    }
    sim_worker_send_all(worker);
}

static void push_computed(struct sim_worker *worker)
{
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    uint32_t count = kelp_schedule_split(worker->work_first, worker->work_count, nodes);
    for (uint32_t i = 0; i < count; i++) {
        worker->pushed[worker->pushed_count++] =
            sim_model_node(worker->sim, &worker->word, worker->weights[worker->current],
                           nodes[i].first, nodes[i].count);
    }
}

static void computed(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    (void)sim;
    (void)data;
    (void)number;
    worker->computing = false;
    push_computed(worker);
    /* Before anything that came meanwhile is looked at: the program goes round its loop once. */
    sim_worker_turn(worker);
}

static void start_computing(struct sim_worker *worker)
{
    memset(&worker->computed[worker->work_first], 1, worker->work_count);
    worker->computing = true;
    sim_say(worker->sim, worker->process, "computes lanes [%u, +%u) of version %llu%s",
            worker->work_first, worker->work_count, (unsigned long long)worker->word.version,
            worker->covering ? ", which it was offered" : "");
    uint64_t lane_us = worker->sim->profile.lane_us;
    sim_after(worker->sim,
              worker->work_count * sim_between(worker->sim, lane_us / 2, 3 * lane_us / 2) + 1,
              &(struct sim_call){.process = worker->process, .run = computed});
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
            take_reply(worker, (const struct sim_reply *)item->message);
        }
        sim_message_unref(item->message);
    }
    worker->inbox_count = 0;
}

void sim_worker_turn(struct sim_worker *worker)
{
    struct kelp_control_word word;
    bool swap;
    bool again = true;
    while (again && !worker->computing) {
        again = worker->inbox_count > 0;
        if (!take_news(worker)) {
            return;
        }
        if (worker->map && kelp_sync_complete(worker->sync, &word, &swap)) {
            begin_version(worker, &word, swap);
        }
        if (find_assigned(worker)) {
            start_computing(worker);
            return;
        }
        if (worker->map && worker->assigned) {
            follow(worker);
        }
        if (find_offered(worker)) { /* behind what was sent just now */
            start_computing(worker);
            return;
        }
        take_inbox(worker);
    }
}

/* ---- life --------------------------------------------------------------------------------------
 */

void sim_worker_start(struct sim *sim, struct sim_process *process)
{
    struct sim_worker *worker = sim_alloc(sizeof(*worker));
    worker->sim = sim;
    worker->process = process;
    worker->leader = -1;
    worker->connected_to = -1;
    worker->sync = kelp_sync_create(sim->plan.partition_count);
    if (!worker->sync) {
        abort();
    }
    if (kelp_control_decides(&sim->job) &&
        kelp_sync_decide(worker->sync, kelp_step_decision_count(&sim->job, &sim->plan)) !=
            KELP_OK) {
        abort();
    }
    process->state = worker;
    sim_worker_join_cluster(worker);
}

void sim_worker_forget(struct sim_process *process)
{
    struct sim_worker *worker = sim_worker_of(process);
    drop_pushed(worker);
    for (size_t i = 0; i < worker->inbox_count; i++) {
        if (worker->inbox[i].message) {
            sim_message_unref(worker->inbox[i].message);
        }
    }
    free(worker->inbox);
    sim_map_unref(worker->map);
    sim_map_unref(worker->news.map);
    kelp_sync_destroy(worker->sync);
    free(worker);
    process->state = NULL;
}
