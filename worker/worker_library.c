/*
 * The worker library (include/kelp/worker.h): membership, shard links and sync put together.
 *
 * The version in progress has a word, whole weights in weights[current], and the nodes pushed so
 * far, which are kept until w_{v+1} is whole (a shard that lost them gets them again). What follows
 * gathers in weights[1 - current].
 *
 * A worker without lanes is a spare: it has streams, asks for nothing, and says that it helps. An
 * offer makes it fetch the weights, compute what was offered, and be a spare again. Others have w_v
 * when they get an offer of v, because they wait for w_{v+1}.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "common/etcd/etcd.h"
#include "common/program/daemon.h"
#include "kelp/worker.h"
#include "proto/convert.h"
#include "worker/coordinator_link.h"
#include "worker/core/offers.h"
#include "worker/core/sync.h"
#include "worker/exchange_link.h"

#define SPIN_US        40u /* waking a blocked thread costs more than a small step (bench/steps) */
#define BUSY_MS        20u
#define TURN_MS        100u /* the loop is turned so often while lanes are computed */
#define TOLD_MS        5000u
#define STAGGER_FLOATS 80u /* 320 bytes: see worker/gradients.c */

struct kelp_worker {
    struct kelp_worker_options options;
    char id[KELP_JOB_NAME_MAX + 1];
    char job_name[KELP_JOB_NAME_MAX + 1];
    uint64_t incarnation;
    struct kelp_etcd *etcd;
    struct kelp_job_file *file;
    const struct kelp_job *job;
    const struct kelp_plan *plan;
    char *plan_text;
    Kelp__V1__Hello hello;

    struct kelp_rpc_loop *loop;
    struct kelp_membership *membership;
    int news; /* atomic: the membership has something to take */
    struct kelp_worker_map *map;
    struct kelp_shard_link **links; /* map->shard_count */
    uint32_t link_count;
    uint32_t links_alive; /* closed ones that have not ended yet included */

    bool assigned;
    uint32_t lane_first;
    uint32_t lane_count;
    bool spare;    /* no lanes: does not follow the versions */
    bool fetching; /* no lanes, but an offer: gets the weights of now */
    struct kelp_offers offers;

    struct kelp_sync *sync;
    float *memory;
    float *weights[2];
    unsigned current;
    bool working; /* word is in progress, its weights are in weights[current] */
    struct kelp_control_word word;
    uint8_t computed[KELP_JOB_LANES_MAX]; /* lanes of word handed out or pushed */
    struct kelp_pushed *pushed;           /* at most one for each lane */
    size_t pushed_count;
    struct kelp_gradient_pool *gradients;
    uint64_t lanes_computed;
    uint64_t turned_ms;                /* when the loop was run last */
    uint64_t told_ms;                  /* when the log was told last that late lanes are computed */
    struct kelp_rpc_timer *busy_timer; /* only after a shard answered "busy" */
    struct kelp_error failure;         /* found inside a callback; reported by kelp_worker_next() */
};

/* ---- opening
 * --------------------------------------------------------------------------------------- */

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
    kelp_status status = kelp_random_id(&worker->incarnation, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_open(options->etcd, &worker->etcd, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_daemon_read_job(worker->etcd, worker->job_name, stop, &worker->file, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_loop_create(&worker->loop, reterr);
    }
    if (status != KELP_OK) {
        kelp_worker_close(worker);
        return status;
    }
    worker->job = kelp_job_file_job(worker->file);
    kelp__v1__hello__init(&worker->hello);
    worker->hello.job = worker->job_name;
    worker->hello.spec_digest = kelp_job_file_digest(worker->file);
    worker->hello.id = worker->id;
    worker->hello.incarnation = worker->incarnation;
    worker->hello.protocol = 1;
    *ret_worker = worker;
    return KELP_OK;
}

const struct kelp_job *kelp_worker_job(const struct kelp_worker *worker)
{
    return worker->job;
}

/* ---- the version in progress
 * ------------------------------------------------------------------------- */

static void drop_pushed(struct kelp_worker *worker)
{
    for (size_t i = 0; i < worker->pushed_count; i++) {
        kelp_gradient_unref(worker->pushed[i].gradient);
    }
    worker->pushed_count = 0;
    memset(worker->computed, 0, sizeof(worker->computed));
}

static void begin_version(struct kelp_worker *worker, const struct kelp_control_word *word,
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
    kelp_membership_progress(worker->membership, worker->map->generation, word->version,
                             worker->lanes_computed);
}

static void send_to(struct kelp_worker *worker, struct kelp_shard_link *link, bool resend,
                    bool pulls)
{
    struct kelp_error error;
    struct kelp_shard_link_batch batch = {
        .word = worker->working ? &worker->word : NULL,
        .pushed = worker->pushed,
        .pushed_count = worker->pushed_count,
        .resend = resend,
        .helps = worker->spare,
        .sync = pulls && !worker->spare ? worker->sync : NULL,
    };
    kelp_status status = kelp_shard_link_send(link, &batch, &error);
    if (status != KELP_OK && worker->failure.status == KELP_OK) {
        worker->failure = error;
    }
}

/* Everything that was pushed since the last time, and every pull that is wanted. */
static void send_all(struct kelp_worker *worker)
{
    for (uint32_t i = 0; i < worker->link_count; i++) {
        send_to(worker, worker->links[i], false, true);
    }
    for (size_t i = 0; i < worker->pushed_count; i++) {
        worker->pushed[i].sent = true;
    }
}

void kelp_worker_send_half(struct kelp_worker *worker)
{
    if (worker->link_count > 0) {
        send_to(worker, worker->links[0], false, false);
        for (int i = 0; i < 100 && kelp_rpc_loop_run(worker->loop, 1); i++) {
        }
    }
}

/* ---- link events
 * --------------------------------------------------------------------------------------- */

static void on_opened(struct kelp_shard_link *link, void *user)
{
    struct kelp_worker *worker = user;
    uint32_t shard = kelp_shard_link_shard(link);
    for (uint32_t p = 0; p < worker->map->partition_count; p++) {
        if (worker->map->primary[p] == shard) {
            kelp_sync_reask(worker->sync, p);
        }
    }
    send_to(worker, link, true, true);
}

/* The shard has not got the map that we have, or has too many waiting pulls: what is missing is
 * asked for again after a pause. The next turn of kelp_worker_next() sends it. */
static void ask_again(void *user)
{
    struct kelp_worker *worker = user;
    kelp_rpc_timer_stop(worker->busy_timer);
    worker->busy_timer = NULL;
    for (uint32_t p = 0; p < worker->plan->partition_count; p++) {
        kelp_sync_reask(worker->sync, p);
    }
}

static void ask_again_later(struct kelp_worker *worker)
{
    if (!worker->busy_timer && kelp_rpc_timer_start(worker->loop, BUSY_MS, ask_again, worker,
                                                    &worker->busy_timer) != KELP_OK) {
        (void)kelp_fail(&worker->failure, KELP_ERR_NO_MEMORY, "no memory for a timer");
    }
}

static void on_answer(struct kelp_shard_link *link, const Kelp__V1__PullAnswer *answer,
                      const struct kelp_wire_payload *payload, void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_control_word word;
    bool has_word = answer->partition == 0 && answer->word;
    (void)link;

    if (has_word && !kelp_wire_take_word(answer->word, &word)) {
        (void)kelp_fail(&worker->failure, KELP_ERR_FORMAT,
                        "control word of version %llu is malformed",
                        (unsigned long long)answer->word->version);
        return;
    }
    if (answer->status == KELP_ERR_BUSY) {
        ask_again_later(worker);
        return;
    }
    if (answer->status == KELP_ERR_OLD_MAP_EPOCH || answer->status == KELP_ERR_OLD_GENERATION ||
        answer->status == KELP_ERR_NOT_PRIMARY) {
        kelp_log_info("pull refused partition=%u status=%s", answer->partition,
                      kelp_status_name(answer->status));
        return; /* a newer map is on its way from the coordinator */
    }
    struct kelp_sync_answer taken = {
        .partition = answer->partition,
        .status = (kelp_status)answer->status,
        .step = answer->step,
        .current_step = answer->current_step,
        /* The last partitions may be empty: then there is nothing to send, and nothing missing. */
        .has_weights =
            payload != NULL || kelp_plan_partition(worker->plan, answer->partition).count == 0,
        .word = has_word ? &word : NULL,
        .is_part = answer->is_part,
        .values = answer->is_part ? answer->part : answer->decision,
        .value_count = (uint32_t)(answer->is_part ? answer->n_part : answer->n_decision),
    };
    if (kelp_sync_take(worker->sync, &taken) && payload) {
        struct kelp_slice_range range = kelp_plan_partition(worker->plan, answer->partition);
        kelp_wire_payload_copy(payload, (size_t)answer->offset, (size_t)answer->length,
                               worker->weights[1 - worker->current] + range.first);
    }
}

static void on_offered(struct kelp_shard_link *link, const Kelp__V1__Offer *offer, void *user)
{
    struct kelp_worker *worker = user;
    struct kelp_control_word word;
    (void)link;

    if (!kelp_wire_take_word(offer->word, &word) ||
        !kelp_offers_add(&worker->offers, &word, offer->lane_first, offer->lane_count)) {
        return; /* it is only advice */
    }
    bool held = worker->working && worker->word.version == word.version;
    if (worker->spare && !held) {
        worker->fetching = true;
    } else if (!worker->working) {
        (void)kelp_sync_offered(worker->sync, word.step);
    }
}

static const struct kelp_shard_link_events link_events = {
    .opened = on_opened, .answer = on_answer, .offered = on_offered};

/* ---- maps
 * ------------------------------------------------------------------------------------------------
 */

static void close_links(struct kelp_worker *worker)
{
    for (uint32_t i = 0; i < worker->link_count; i++) {
        kelp_shard_link_close(worker->links[i]);
    }
    free(worker->links);
    worker->links = NULL;
    worker->link_count = 0;
}

static kelp_status open_links(struct kelp_worker *worker, struct kelp_error *reterr)
{
    worker->links = calloc(worker->map->shard_count, sizeof(*worker->links));
    if (!worker->links) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "map: out of memory");
    }
    for (uint32_t i = 0; i < worker->map->shard_count; i++) {
        struct kelp_shard_link_options options = {
            .loop = worker->loop,
            .hello = &worker->hello,
            .map = worker->map,
            .plan = worker->plan,
            .lanes = worker->job->cluster.lanes,
            .shard = i,
            .alive = &worker->links_alive,
            .piece_bytes = worker->job->transport.piece_bytes,
            .connect_timeout_ms = worker->job->transport.connect_timeout_ms,
            .events = &link_events,
            .user = worker,
        };
        kelp_status status = kelp_shard_link_open(&options, &worker->links[i], reterr);
        if (status != KELP_OK) {
            return status;
        }
        worker->link_count = i + 1;
    }
    return KELP_OK;
}

/* A generation that is new to us: nothing that is held counts any more. */
static kelp_status take_map(struct kelp_worker *worker, struct kelp_worker_map *map,
                            struct kelp_error *reterr)
{
    if (worker->map && map->generation <= worker->map->generation) {
        kelp_worker_map_free(map); /* a new leader sends the map that we have */
        return KELP_OK;
    }
    if (map->partition_count != worker->plan->partition_count) {
        kelp_status status =
            kelp_fail(reterr, KELP_ERR_FORMAT, "map has %u partitions, the plan %u",
                      map->partition_count, worker->plan->partition_count);
        kelp_worker_map_free(map);
        return status;
    }
    kelp_log_info("map taken generation=%llu shards=%u partitions=%u",
                  (unsigned long long)map->generation, map->shard_count, map->partition_count);
    close_links(worker);
    drop_pushed(worker);
    worker->working = false;
    worker->spare = false;
    worker->fetching = false;
    kelp_offers_clear(&worker->offers);
    kelp_sync_restart(worker->sync);
    kelp_worker_map_free(worker->map);
    worker->map = map;
    return open_links(worker, reterr);
}

static kelp_status take_news(struct kelp_worker *worker, struct kelp_error *reterr)
{
    struct kelp_membership_news news;

    if (!__atomic_exchange_n(&worker->news, 0, __ATOMIC_ACQ_REL)) {
        return KELP_OK;
    }
    kelp_membership_take(worker->membership, &news);
    if (news.refused.status != KELP_OK || news.leave) {
        kelp_worker_map_free(news.map);
        if (news.leave) {
            return kelp_fail(reterr, KELP_ERR_CLOSED, "the job is over");
        }
        return kelp_fail(reterr, news.refused.status, "%s", news.refused.text);
    }
    if (news.has_assignment) {
        worker->assigned = true;
        worker->lane_first = news.lane_first;
        worker->lane_count = news.lane_count;
        if (news.lane_first > worker->job->cluster.lanes ||
            news.lane_count > worker->job->cluster.lanes - news.lane_first) {
            kelp_worker_map_free(news.map);
            return kelp_fail(reterr, KELP_ERR_FORMAT, "assigned lanes [%u, +%u) of %u",
                             news.lane_first, news.lane_count, worker->job->cluster.lanes);
        }
    }
    return news.map ? take_map(worker, news.map, reterr) : KELP_OK;
}

static void on_changed(void *user)
{
    struct kelp_worker *worker = user;
    __atomic_store_n(&worker->news, 1, __ATOMIC_RELEASE);
    kelp_rpc_loop_wake(worker->loop);
}

void kelp_worker_wake(struct kelp_worker *worker)
{
    kelp_rpc_loop_wake(worker->loop);
}

/* ---- joining
 * --------------------------------------------------------------------------------------------- */

static kelp_status allocate(struct kelp_worker *worker, struct kelp_error *reterr)
{
    size_t flat_count = (size_t)worker->plan->flat_count;
    size_t bytes = (2 * flat_count + STAGGER_FLOATS) * sizeof(float);
    bytes = (bytes + KELP_TENSOR_ALIGN - 1) / KELP_TENSOR_ALIGN * KELP_TENSOR_ALIGN;

    worker->memory = aligned_alloc(KELP_TENSOR_ALIGN, bytes);
    worker->sync = kelp_sync_create(worker->plan->partition_count);
    worker->gradients = kelp_gradient_pool_create(worker->plan->flat_count);
    worker->pushed = calloc(worker->job->cluster.lanes, sizeof(*worker->pushed));
    if (!worker->memory || !worker->sync || !worker->gradients || !worker->pushed) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "worker: no memory for two copies of %zu weights", flat_count);
    }
    memset(worker->memory, 0, bytes);
    if (kelp_control_decides(worker->job) &&
        kelp_sync_decide(worker->sync, kelp_step_decision_count(worker->job, worker->plan)) !=
            KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "worker: no memory for decisions");
    }
    worker->weights[0] = worker->memory;
    worker->weights[1] = worker->memory + flat_count + STAGGER_FLOATS;
    return KELP_OK;
}

kelp_status kelp_worker_join(struct kelp_worker *worker, const struct kelp_plan *plan,
                             struct kelp_error *reterr)
{
    worker->plan = plan;
    kelp_status status = kelp_plan_print(plan, &worker->plan_text, reterr);
    if (status == KELP_OK) {
        status = allocate(worker, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_membership_options options = {
        .etcd = worker->etcd,
        .job = worker->job_name,
        .spec_digest = worker->hello.spec_digest,
        .id = worker->id,
        .incarnation = worker->incarnation,
        .plan = worker->plan_text,
        .connect_timeout_ms = worker->job->transport.connect_timeout_ms,
        .changed = on_changed,
        .user = worker,
    };
    return kelp_membership_open(&options, &worker->membership, reterr);
}

/* ---- working
 * --------------------------------------------------------------------------------------------- */

static void hand_out(struct kelp_worker *worker, uint32_t first, uint32_t count,
                     struct kelp_work *ret_work)
{
    *ret_work = (struct kelp_work){
        .word = worker->word,
        .weights = worker->weights[worker->current],
        .lane_first = first,
        .lane_count = count,
    };
    memset(worker->computed + first, 1, count);
    worker->turned_ms = kelp_clock_ms();
}

/* The first run of assigned lanes that nobody computed here yet. */
static bool find_assigned(struct kelp_worker *worker, struct kelp_work *ret_work)
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
    if (first == last) {
        return false;
    }
    hand_out(worker, first, last - first, ret_work);
    return true;
}

static bool find_offered(struct kelp_worker *worker, struct kelp_work *ret_work)
{
    uint32_t first;
    uint32_t count;

    if (!worker->working || worker->word.kind == KELP_STEP_DONE ||
        !kelp_offers_find(&worker->offers, &worker->word, worker->computed, &first, &count)) {
        return false;
    }
    hand_out(worker, first, count, ret_work);
    if (worker->turned_ms - worker->told_ms >= TOLD_MS) {
        worker->told_ms = worker->turned_ms;
        kelp_log_info("computing lanes that are late version=%llu lanes=%u+%u",
                      (unsigned long long)worker->word.version, first, count);
    }
    return true;
}

/* Ask for what comes next, or stop following when there are no lanes for us. */
static void follow(struct kelp_worker *worker)
{
    bool holding = kelp_sync_state(worker->sync) == KELP_SYNC_HOLDING;
    bool settled = holding || !worker->working;
    /* A spare that has helped with a step sees it through where steps need decisions: perhaps
     * nobody else is there to carry them. */
    bool carries = worker->pushed_count > 0 && holding && kelp_control_decides(worker->job);

    if (worker->lane_count == 0 && settled && !worker->fetching && !carries) {
        worker->spare = true;
    } else if (worker->spare && !carries) {
        send_all(worker);      /* what was computed just now, while the offer came */
        worker->spare = false; /* lanes again, or an offer: find out where the job stands */
        worker->working = false;
        drop_pushed(worker);
        kelp_sync_restart(worker->sync);
    } else if (holding && worker->word.kind != KELP_STEP_DONE) {
        worker->spare = false;
        kelp_sync_next(worker->sync);
    }
    send_all(worker);
}

kelp_status kelp_worker_next(struct kelp_worker *worker, struct kelp_stop *stop,
                             struct kelp_work *ret_work, struct kelp_error *reterr)
{
    struct kelp_control_word word;
    bool swap;

    for (;;) {
        kelp_status status = take_news(worker, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (worker->failure.status != KELP_OK) {
            return kelp_fail(reterr, worker->failure.status, "%s", worker->failure.text);
        }
        if (kelp_stop_raised(stop)) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "stopped");
        }
        if (worker->map && kelp_sync_complete(worker->sync, &word, &swap)) {
            begin_version(worker, &word, swap);
        }
        if (find_assigned(worker, ret_work)) {
            return KELP_OK;
        }
        if (worker->map && worker->assigned) {
            follow(worker);
        }
        if (find_offered(worker, ret_work)) { /* behind what was sent just now */
            return KELP_OK;
        }
        (void)kelp_rpc_loop_run_spin(worker->loop, SPIN_US, -1);
    }
}

/* Connections live only while the loop is run: turn it between lanes that take long. */
static void turn(struct kelp_worker *worker)
{
    uint64_t now = kelp_clock_ms();

    if (now - worker->turned_ms >= TURN_MS) {
        worker->turned_ms = now;
        while (kelp_rpc_loop_run(worker->loop, 0)) {
        }
    }
}

struct kelp_gradient *kelp_worker_gradient(struct kelp_worker *worker)
{
    turn(worker);
    return kelp_gradient_get(worker->gradients);
}

kelp_status kelp_worker_push(struct kelp_worker *worker, const struct kelp_node *node,
                             struct kelp_error *reterr)
{
    uint32_t lanes = worker->job->cluster.lanes;
    bool aligned = node->lane_count > 0 && (node->lane_count & (node->lane_count - 1)) == 0 &&
                   node->lane_first % node->lane_count == 0;

    if (!worker->working || !aligned || node->lane_first >= lanes ||
        node->lane_count > lanes - node->lane_first || worker->pushed_count == lanes) {
        kelp_gradient_unref(node->gradient);
        return kelp_fail(reterr, KELP_ERR_INVALID, "push of lanes [%u, +%u) of %u",
                         node->lane_first, node->lane_count, lanes);
    }
    struct kelp_pushed *pushed = &worker->pushed[worker->pushed_count++];
    *pushed = (struct kelp_pushed){
        .lane_first = node->lane_first,
        .lane_count = node->lane_count,
        .gradient = node->gradient,
    };
    if (node->digest) {
        (void)snprintf(pushed->digest, sizeof(pushed->digest), "%s", node->digest);
    }
    worker->lanes_computed += node->lane_count;
    return KELP_OK;
}

/* ---- closing
 * --------------------------------------------------------------------------------------------- */

void kelp_worker_close(struct kelp_worker *worker)
{
    if (!worker) {
        return;
    }
    kelp_membership_close(worker->membership);
    close_links(worker);
    if (worker->busy_timer) {
        kelp_rpc_timer_stop(worker->busy_timer);
    }
    while (worker->links_alive > 0) {
        (void)kelp_rpc_loop_run(worker->loop, -1); /* each ends within a second of being closed */
    }
    if (worker->loop) {
        kelp_rpc_loop_destroy(worker->loop);
    }
    if (worker->gradients) {
        drop_pushed(worker);
    }
    kelp_gradient_pool_destroy(worker->gradients);
    kelp_worker_map_free(worker->map);
    kelp_sync_destroy(worker->sync);
    free(worker->pushed);
    free(worker->memory);
    free(worker->plan_text);
    if (worker->etcd) {
        kelp_etcd_close(worker->etcd);
    }
    kelp_job_file_destroy(worker->file);
    free(worker);
}
