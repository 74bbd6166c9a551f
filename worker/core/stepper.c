#include "worker/core/stepper.h"

#include <stdlib.h>
#include <string.h>

#include "worker/core/stepper_internal.h"

/* ---- actions --------------------------------------------------------------------------------- */

void *kelp__stepper_reserve(struct kelp_stepper *stepper, void *items, size_t count,
                            size_t *capacity, size_t bytes)
{
    if (count < *capacity) {
        return items;
    }
    size_t wanted = *capacity == 0 ? 16 : 2 * *capacity;
    void *grown = realloc(items, wanted * bytes);
    if (!grown) {
        stepper->status = KELP_ERR_NO_MEMORY;
        return NULL;
    }
    *capacity = wanted;
    return grown;
}

struct kelp_stepper_action *kelp__stepper_emit(struct kelp_stepper *stepper,
                                               enum kelp_stepper_action_kind kind)
{
    static struct kelp_stepper_action nowhere;
    struct kelp_stepper_actions *actions = stepper->actions;

    void *items = kelp__stepper_reserve(stepper, actions->items, actions->count, &actions->capacity,
                                        sizeof(*actions->items));
    if (!items) {
        return &nowhere;
    }
    actions->items = items;
    struct kelp_stepper_action *action = &actions->items[actions->count++];
    *action = (struct kelp_stepper_action){.kind = kind};
    return action;
}

void kelp_stepper_actions_fini(struct kelp_stepper_actions *actions)
{
    free(actions->items);
}

/* ---- the version in progress ----------------------------------------------------------------- */

static void drop_nodes(struct kelp_stepper *stepper)
{
    for (size_t i = 0; i < stepper->node_count; i++) {
        kelp__stepper_emit(stepper, KELP_STEPPER_RELEASE)->release = stepper->nodes[i].content;
    }
    stepper->node_count = 0;
    stepper->partly = false;
    kelp__stepper_sent_all(stepper);
    memset(stepper->computed, 0, sizeof(stepper->computed));
}

static void begin_version(struct kelp_stepper *stepper, const struct kelp_control_word *word,
                          bool swap)
{
    drop_nodes(stepper);
    stepper->word = *word;
    stepper->working = true;
    stepper->busy_ms = KELP__STEPPER_BUSY_MS;
    if (stepper->ahead) {
        stepper->ahead = false;
        memset(stepper->computed + stepper->next.first, 1, stepper->next.count);
    }
    if (stepper->fetching) {
        kelp_offers_fetched(&stepper->offers, word);
    }
    stepper->fetching = false;
    struct kelp_stepper_action *action = kelp__stepper_emit(stepper, KELP_STEPPER_BEGIN);
    action->begin.word = *word;
    action->begin.swap = swap;
}

/* Send each shard what it did not get yet, and everything that must be asked for. */
static void send_all(struct kelp_stepper *stepper)
{
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        kelp__stepper_send(
            stepper, &(struct kelp__stepper_sending){.link = i, .fresh = true, .pulls = true});
    }
    for (size_t i = 0; i < stepper->node_count; i++) {
        stepper->nodes[i].sent = true;
    }
    kelp__stepper_sent_all(stepper);
}

static void compute(struct kelp_stepper *stepper, uint32_t first, uint32_t count, bool offered)
{
    if (stepper->early) {
        send_all(stepper); /* also to shards that do not have the nodes so far */
    }
    struct kelp_stepper_action *action = kelp__stepper_emit(stepper, KELP_STEPPER_COMPUTE);
    action->compute.word = stepper->word;
    action->compute.lane_first = first;
    action->compute.lane_count = count;
    action->compute.offered = offered;
    memset(stepper->computed + first, 1, count);
    stepper->handed_out = true;
    stepper->handed_out_end = first + count;
}

/* The first run of assigned lanes that nobody computed here yet. */
static bool compute_assigned(struct kelp_stepper *stepper)
{
    if (!stepper->working || stepper->spare || !stepper->assigned ||
        stepper->word.kind == KELP_STEP_DONE) {
        return false;
    }
    uint32_t end = stepper->lane_first + stepper->lane_count;
    uint32_t first = stepper->lane_first;
    while (first < end && stepper->computed[first]) {
        first++;
    }
    uint32_t last = first;
    while (last < end && !stepper->computed[last]) {
        last++;
    }
    if (last > first) {
        compute(stepper, first, last - first, false);
    }
    return last > first;
}

static bool compute_offered(struct kelp_stepper *stepper)
{
    uint32_t first;
    uint32_t count;

    if (!stepper->working || stepper->rests || stepper->word.kind == KELP_STEP_DONE ||
        !kelp_offers_find(&stepper->offers, &stepper->word, stepper->computed, &first, &count)) {
        return false;
    }
    compute(stepper, first, count, true);
    return true;
}

/* ---- ahead ----------------------------------------------------------------------------------- */

/* Whether lanes of the previous version are still wanted from this worker. */
static bool is_wanted(const struct kelp_stepper *stepper)
{
    uint32_t first;
    uint32_t count;

    return kelp_offers_find(&stepper->offers, &stepper->word, stepper->computed, &first, &count);
}

/* The assigned lanes of the coming version whose first weights have arrived. A digest needs all
 * weights. */
static void compute_ahead(struct kelp_stepper *stepper)
{
    struct kelp_control_word word;

    if (!stepper->goes_ahead || !stepper->working || stepper->spare || stepper->rests ||
        !stepper->assigned || stepper->lane_count == 0 || !kelp_sync_begun(stepper->sync, &word) ||
        word.kind != KELP_STEP_TRAIN || word.digest_due) {
        return;
    }
    struct kelp_stepper_action *action = kelp__stepper_emit(stepper, KELP_STEPPER_COMPUTE);
    action->compute.word = word;
    action->compute.lane_first = stepper->lane_first;
    action->compute.lane_count = stepper->lane_count;
    action->compute.ahead = true;
    stepper->ahead = true;
    stepper->next.version = word.version;
    stepper->next.first = stepper->lane_first;
    stepper->next.count = stepper->lane_count;
    stepper->handed_out = true;
    stepper->handed_out_end = stepper->lane_first + stepper->lane_count;
}

/* After an event: take over what is computed ahead, keep it, or give it up. */
static void look_ahead(struct kelp_stepper *stepper)
{
    struct kelp_control_word word;
    const bool stays = stepper->working && kelp_sync_begun(stepper->sync, &word) &&
                       word.version == stepper->next.version;
    bool swap;

    if (stays && kelp_sync_complete(stepper->sync, &word, &swap)) {
        begin_version(stepper, &word, swap);
        return;
    }
    if (stays && !is_wanted(stepper)) {
        return;
    }
    kelp__stepper_emit(stepper, KELP_STEPPER_GIVE_UP)->give_up_swap = !stays;
    if (!stays) {
        stepper->working = false;
        drop_nodes(stepper);
    }
    stepper->ahead = false;
    stepper->overtaken = true;
}

/* A spare gets lanes again, or an offer: it finds out how far the job is. */
static void start_over(struct kelp_stepper *stepper)
{
    send_all(stepper); /* what was computed just now, while the offer came */
    stepper->spare = false;
    stepper->working = false;
    drop_nodes(stepper);
    kelp_sync_restart(stepper->sync);
}

/* Ask for the next entry, or stop following if this worker has no lanes. */
static void follow(struct kelp_stepper *stepper)
{
    bool holding = kelp_sync_state(stepper->sync) == KELP_SYNC_HOLDING;
    bool settled = holding || !stepper->working;
    /* If steps need decisions, a spare that helped with a step follows it to its end. Perhaps no
     * other worker is there to carry them. */
    bool carries = stepper->node_count > 0 && holding && stepper->decides;

    if (stepper->lane_count == 0 && settled && !stepper->fetching && !carries) {
        stepper->spare = true;
    } else if (stepper->spare && !carries) {
        start_over(stepper);
    } else if (holding && stepper->word.kind != KELP_STEP_DONE) {
        stepper->spare = false;
        kelp_sync_next(stepper->sync);
    }
    send_all(stepper);
}

/* Asked to end: send what was computed, and wait until all partitions have it, as long as any shard
 * can be reached. */
static void finish(struct kelp_stepper *stepper)
{
    struct kelp_control_word word;
    bool swap;

    if (stepper->node_count == 0 || kelp_sync_complete(stepper->sync, &word, &swap) ||
        !kelp__stepper_reaches_any(stepper)) {
        (void)kelp__stepper_emit(stepper, KELP_STEPPER_LEAVE);
        return;
    }
    if (kelp_sync_state(stepper->sync) == KELP_SYNC_HOLDING) {
        stepper->spare = false;
        kelp_sync_next(stepper->sync);
    }
    send_all(stepper);
}

/* The lanes that were handed out were given up in the middle of a node. */
static void drop_partly(struct kelp_stepper *stepper)
{
    if (stepper->partly) {
        stepper->partly = false;
        kelp__stepper_emit(stepper, KELP_STEPPER_RELEASE)->release =
            stepper->nodes[--stepper->node_count].content;
        kelp__stepper_sent_all(stepper); /* a partition may get one of the other nodes twice */
    }
}

static void turn(struct kelp_stepper *stepper)
{
    struct kelp_control_word word;
    bool swap;

    stepper->handed_out = false;
    stepper->overtaken = false;
    stepper->ahead = false;
    drop_partly(stepper);
    if (stepper->finishing) {
        finish(stepper);
        return;
    }
    if (stepper->generation == 0) {
        return;
    }
    if (kelp_sync_complete(stepper->sync, &word, &swap)) {
        if (stepper->early) {
            send_all(stepper); /* conflicts between workers show where all lanes arrive */
        }
        begin_version(stepper, &word, swap);
    }
    if (compute_assigned(stepper)) {
        return;
    }
    if (stepper->assigned) {
        follow(stepper);
    }
    if (!compute_offered(stepper)) { /* after what was sent just now */
        compute_ahead(stepper);
    }
}

/* Is it the node that is there in part? */
static bool is_partly(const struct kelp_stepper *stepper, const struct kelp_stepper_event *event)
{
    const struct kelp_stepper_node *last = stepper->nodes + stepper->node_count - 1;

    return stepper->partly && last->content == event->computed.content &&
           last->lane_first == event->computed.lane_first &&
           last->lane_count == event->computed.lane_count;
}

/* The node of a COMPUTED or PARTLY. */
static kelp_status add_node(struct kelp_stepper *stepper, const struct kelp_stepper_event *event)
{
    uint32_t lanes = stepper->job->cluster.lanes;
    uint32_t first = event->computed.lane_first;
    uint32_t count = event->computed.lane_count;
    bool aligned = count > 0 && (count & (count - 1)) == 0 && first % count == 0;
    bool known = is_partly(stepper, event);
    bool room = stepper->overtaken || known ||
                (stepper->working && !stepper->early && stepper->node_count < lanes);

    if (!aligned || first >= lanes || count > lanes - first || !room || stepper->ahead) {
        return KELP_ERR_INVALID;
    }
    if (stepper->overtaken || known) {
        kelp__stepper_emit(stepper, KELP_STEPPER_RELEASE)->release = event->computed.content;
        return stepper->status;
    }
    stepper->nodes[stepper->node_count++] = (struct kelp_stepper_node){
        .lane_first = first,
        .lane_count = count,
        .present = event->computed.present,
        .content = event->computed.content,
    };
    return KELP_OK;
}

static kelp_status add_computed(struct kelp_stepper *stepper,
                                const struct kelp_stepper_event *event)
{
    kelp_status status = add_node(stepper, event);

    if (status == KELP_OK) {
        stepper->partly = false;
    }
    return status;
}

/* All nodes of the lanes that were handed out are sent together, so the last lane triggers it. */
static kelp_status add_partly(struct kelp_stepper *stepper, const struct kelp_stepper_event *event)
{
    const uint32_t first = event->computed.partition_first;
    const uint32_t end = event->computed.lane_first + event->computed.lane_count;

    if (first == 0 || first >= stepper->plan->partition_count || !event->computed.present ||
        end != stepper->handed_out_end || stepper->word.kind != KELP_STEP_TRAIN) {
        return KELP_ERR_INVALID;
    }
    kelp_status status = add_node(stepper, event);
    if (status == KELP_OK && !stepper->overtaken) {
        stepper->partly = true;
        kelp__stepper_send_partly(stepper, first);
        status = stepper->status;
    }
    return status;
}

/* ---- offers ---------------------------------------------------------------------------------- */

/* An offer is only advice: an old or superfluous one is dropped. */
static void hear_offer(struct kelp_stepper *stepper, const struct kelp_stepper_event *event)
{
    const struct kelp_control_word *word = &event->offer.word;

    if (event->offer.generation != stepper->generation || stepper->rests ||
        !kelp_offers_add(&stepper->offers, word, event->offer.lane_first,
                         event->offer.lane_count)) {
        return;
    }
    bool held = stepper->working && stepper->word.version == word->version;
    if (stepper->spare && !held) {
        stepper->fetching = true;
    } else if (!stepper->working) {
        (void)kelp_sync_offered(stepper->sync, word->step);
    }
}

/* ---- news ------------------------------------------------------------------------------------ */

/* A new generation: nothing from the old one counts. */
static void forget_all(struct kelp_stepper *stepper)
{
    stepper->working = false;
    stepper->overtaken = stepper->handed_out;
    stepper->spare = false;
    stepper->fetching = false;
    drop_nodes(stepper);
    kelp_offers_clear(&stepper->offers);
    kelp_sync_restart(stepper->sync);
}

static void hear_map(struct kelp_stepper *stepper, const struct kelp_places *places)
{
    enum kelp__stepper_map heard = kelp__stepper_hear_map(stepper, places);

    if (heard == KELP__MAP_BEGINS) {
        forget_all(stepper);
    }
    if (heard != KELP__MAP_NOTHING) {
        stepper->busy_ms = KELP__STEPPER_BUSY_MS;
        kelp__stepper_moved(stepper);
    }
}

static void hear_news(struct kelp_stepper *stepper, const struct kelp_news *news,
                      const struct kelp_places *places)
{
    uint32_t lanes = stepper->job->cluster.lanes;

    if (news->leave) {
        (void)kelp__stepper_emit(stepper, KELP_STEPPER_LEAVE);
        return;
    }
    if (news->refused.status != KELP_OK) {
        *kelp__stepper_fail(stepper) = news->refused;
        return;
    }
    if (news->has_assignment) {
        if (news->lane_first > lanes || news->lane_count > lanes - news->lane_first) {
            (void)kelp_fail(kelp__stepper_fail(stepper), KELP_ERR_FORMAT,
                            "assigned lanes [%u, +%u) of %u", news->lane_first, news->lane_count,
                            lanes);
            return;
        }
        stepper->assigned = true;
        stepper->lane_first = news->lane_first;
        stepper->lane_count = news->lane_count;
        stepper->rests = news->rests;
    }
    if (places) {
        hear_map(stepper, places);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

bool kelp_stepper_overlaps(const struct kelp_plan *plan)
{
    return plan->partition_count > 1 &&
           plan->flat_count * sizeof(float) >= KELP_STEPPER_OVERLAP_BYTES_MIN;
}

struct kelp_stepper *kelp_stepper_create(const struct kelp_job *job, const struct kelp_plan *plan)
{
    struct kelp_stepper *stepper = calloc(1, sizeof(*stepper));
    if (!stepper) {
        return NULL;
    }
    stepper->job = job;
    stepper->plan = plan;
    stepper->decides = kelp_control_decides(job);
    stepper->busy_ms = KELP__STEPPER_BUSY_MS;
    stepper->routes = calloc(plan->partition_count, sizeof(*stepper->routes));
    stepper->order = calloc(plan->partition_count, sizeof(*stepper->order));
    stepper->nodes = calloc(job->cluster.lanes, sizeof(*stepper->nodes));
    stepper->sync = kelp_sync_create(plan->partition_count);
    if (!stepper->routes || !stepper->order || !stepper->nodes || !stepper->sync ||
        (stepper->decides &&
         kelp_sync_decide(stepper->sync, kelp_step_decision_count(job, plan)) != KELP_OK)) {
        kelp_stepper_destroy(stepper);
        return NULL;
    }
    return stepper;
}

void kelp_stepper_destroy(struct kelp_stepper *stepper)
{
    if (!stepper) {
        return;
    }
    kelp_sync_destroy(stepper->sync);
    free(stepper->items.pushes);
    free(stepper->items.pulls);
    free(stepper->items.shares);
    free(stepper->nodes);
    free(stepper->order);
    free(stepper->routes);
    free(stepper->links);
    free(stepper);
}

void kelp_stepper_go_ahead(struct kelp_stepper *stepper)
{
    stepper->goes_ahead = true;
}

static kelp_status dispatch(struct kelp_stepper *stepper, const struct kelp_stepper_event *event)
{
    switch (event->kind) {
    case KELP_STEPPER_NEWS:
        hear_news(stepper, event->news.news, event->news.places);
        break;
    case KELP_STEPPER_ANSWER:
        kelp__stepper_answer(stepper, event);
        break;
    case KELP_STEPPER_REFUSED:
        kelp__stepper_refused(stepper, event);
        break;
    case KELP_STEPPER_OFFER:
        hear_offer(stepper, event);
        break;
    case KELP_STEPPER_CLOSED:
        kelp__stepper_closed(stepper, event->stream.link, event->stream.now_ms);
        break;
    case KELP_STEPPER_RETRY:
        kelp__stepper_retry(stepper, event->stream.link);
        break;
    case KELP_STEPPER_OPENED:
        kelp__stepper_opened(stepper, event->stream.link);
        break;
    case KELP_STEPPER_FINISH:
        stepper->finishing = true;
        break;
    case KELP_STEPPER_ASK_AGAIN:
        kelp__stepper_ask_again(stepper);
        break;
    case KELP_STEPPER_PARTLY:
        return add_partly(stepper, event);
    case KELP_STEPPER_COMPUTED:
        return add_computed(stepper, event);
    case KELP_STEPPER_TURN:
        turn(stepper);
        break;
    case KELP_STEPPER_HALF:
        if (stepper->link_count > 0) {
            kelp__stepper_send(stepper, &(struct kelp__stepper_sending){.link = 0, .fresh = true});
        }
        break;
    }
    return stepper->status;
}

static void begin_event(struct kelp_stepper *stepper, struct kelp_stepper_actions *actions)
{
    actions->count = 0;
    stepper->actions = actions;
    stepper->items.push_count = 0;
    stepper->items.pull_count = 0;
    stepper->items.share_count = 0;
}

kelp_status kelp_stepper_event(struct kelp_stepper *stepper, const struct kelp_stepper_event *event,
                               struct kelp_stepper_actions *actions)
{
    begin_event(stepper, actions);
    kelp_status status = dispatch(stepper, event);
    if (stepper->ahead && event->kind != KELP_STEPPER_TURN) {
        look_ahead(stepper);
        status = status == KELP_OK ? stepper->status : status;
    }
    kelp__stepper_point(stepper);
    return status;
}

kelp_status kelp_stepper_drop(struct kelp_stepper *stepper, struct kelp_stepper_actions *actions)
{
    begin_event(stepper, actions);
    drop_nodes(stepper);
    return stepper->status;
}

void kelp_stepper_view(const struct kelp_stepper *stepper, struct kelp_stepper_view *ret_view)
{
    *ret_view = (struct kelp_stepper_view){
        .sync = kelp_sync_state(stepper->sync),
        .generation = stepper->generation,
        .working = stepper->working,
        .spare = stepper->spare,
        .word = stepper->word,
        .lane_first = stepper->lane_first,
        .lane_count = stepper->lane_count,
    };
}

void kelp_stepper_route(const struct kelp_stepper *stepper, uint32_t partition, uint32_t *ret_link,
                        uint64_t *ret_map_epoch)
{
    *ret_link = stepper->routes[partition].link;
    *ret_map_epoch = stepper->routes[partition].map_epoch;
}
