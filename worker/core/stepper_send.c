/*
 * What a worker sends to a shard.
 *
 * The last partitions go first, because their gradients are complete first. The rest of a node of
 * which a part was sent early goes in the opposite order. A message holds pushes of up to
 * transport.piece_bytes, and a slice is never split. Messages are cut at the same places whether
 * they are sent all at once or, as soon as they are full, while a node is being computed.
 */
#include <assert.h>

#include "worker/core/stepper_internal.h"

/* For a word that needs no decision. */
static const struct kelp_step_decision undecided = {.count = 0};

/* The message that is being collected: items from the *_first indices on. */
struct outbox {
    struct kelp_stepper *stepper;
    const struct kelp__stepper_link *link;
    uint32_t number; /* the link's index */
    bool fresh;      /* include nodes that were not sent yet */
    size_t push_first;
    size_t pull_first;
    size_t share_first;
    uint64_t push_bytes;
};

static void begin_message(struct outbox *box)
{
    const struct kelp__stepper_items *items = &box->stepper->items;
    box->push_first = items->push_count;
    box->pull_first = items->pull_count;
    box->share_first = items->share_count;
    box->push_bytes = 0;
}

static size_t pushes_collected(const struct outbox *box)
{
    return box->stepper->items.push_count - box->push_first;
}

static bool collected_any(const struct outbox *box)
{
    const struct kelp__stepper_items *items = &box->stepper->items;
    return items->push_count > box->push_first || items->share_count > box->share_first ||
           items->pull_count > box->pull_first;
}

/* Emit one message with what was collected. kelp__stepper_point() sets its pointers later. */
static void finish_message(struct outbox *box, const struct kelp_control_word *word,
                           const struct kelp_step_decision *decision)
{
    struct kelp_stepper *stepper = box->stepper;
    struct kelp_stepper_message *message = &kelp__stepper_emit(stepper, KELP_STEPPER_SEND)->send;
    *message = (struct kelp_stepper_message){
        .link = box->number,
        .generation = stepper->generation,
        .helps = stepper->spare,
        .has_word = word,
        .push_count = stepper->items.push_count - box->push_first,
        .push_bytes = box->push_bytes,
        .pull_count = stepper->items.pull_count - box->pull_first,
        .share_count = stepper->items.share_count - box->share_first,
    };
    if (word) {
        message->word = *word;
        message->decision = *decision;
    }
    begin_message(box);
}

/* Bytes of a pushed gradient slice. */
static uint64_t slice_bytes(const struct kelp_stepper *stepper, uint32_t partition)
{
    return kelp_plan_partition(stepper->plan, partition).count *
           kelp_precision_bytes(stepper->job->transport.precision);
}

static void collect_push(struct outbox *box, const struct kelp_stepper_node *node,
                         uint32_t partition)
{
    struct kelp_stepper *stepper = box->stepper;
    struct kelp__stepper_items *items = &stepper->items;
    bool carries = stepper->word.kind == KELP_STEP_TRAIN && node->present;
    uint64_t bytes = slice_bytes(stepper, partition);

    void *room = kelp__stepper_reserve(stepper, items->pushes, items->push_count,
                                       &items->push_capacity, sizeof(*items->pushes));
    if (!room) {
        return;
    }
    items->pushes = room;
    items->pushes[items->push_count++] = (struct kelp_stepper_push){
        .partition = partition,
        .map_epoch = stepper->routes[partition].map_epoch,
        .bytes = carries ? bytes : 0,
        .node = node,
    };
    box->push_bytes += carries ? bytes : 0;
}

/* Position of the first of the link's partitions that end before `end` and fit into one message. */
static uint32_t run_before(const struct outbox *box, uint32_t end)
{
    const uint32_t *order = box->stepper->order;
    uint32_t first = end - 1;
    uint64_t bytes = slice_bytes(box->stepper, order[first]);
    while (first > box->link->first) {
        bytes += slice_bytes(box->stepper, order[first - 1]);
        if (bytes > box->stepper->job->transport.piece_bytes) {
            break;
        }
        first--;
    }
    return first;
}

/* Must the node be sent: because it is new, or because it was sent and is wanted again? */
static bool is_due(const struct outbox *box, const struct kelp_stepper_node *node,
                   uint32_t partition)
{
    const struct kelp__stepper_route *route = &box->stepper->routes[partition];

    return node->sent || route->early ? route->again : box->fresh;
}

/* Collect the nodes for the link's partitions at positions [first, end). */
static void collect_run(struct outbox *box, uint32_t first, uint32_t end)
{
    struct kelp_stepper *stepper = box->stepper;
    uint64_t piece_bytes = stepper->job->transport.piece_bytes;

    for (size_t n = 0; n < stepper->node_count; n++) {
        const struct kelp_stepper_node *node = &stepper->nodes[n];
        for (uint32_t i = first; i < end; i++) {
            uint32_t p = stepper->order[i];
            size_t count = pushes_collected(box);
            if (!is_due(box, node, p)) {
                continue;
            }
            bool full = box->push_bytes + slice_bytes(stepper, p) > piece_bytes;
            if (count == KELP_STEPPER_ITEMS_MAX || (count > 0 && full)) {
                finish_message(box, &stepper->word, &undecided);
            }
            collect_push(box, node, p);
        }
    }
    for (uint32_t i = first; box->fresh && stepper->early && i < end; i++) {
        stepper->routes[stepper->order[i]].early = true;
    }
}

/* Entries other than training steps concern partition 0 only. */
static void collect_pushes(struct outbox *box)
{
    bool train = box->stepper->word.kind == KELP_STEP_TRAIN;
    uint32_t begin = box->link->first;
    uint32_t end = train ? box->link->end : begin + (box->stepper->order[begin] == 0 ? 1 : 0);
    while (end > begin) {
        uint32_t first = run_before(box, end);
        collect_run(box, first, end);
        end = first;
    }
}

/* Collect the shares of all other partitions for the host of partition 0, once all have come. */
static void collect_shares(struct outbox *box)
{
    struct kelp_stepper *stepper = box->stepper;
    struct kelp__stepper_items *items = &stepper->items;

    if (stepper->routes[0].link != box->number || !kelp_sync_shares_due(stepper->sync)) {
        return;
    }
    for (uint32_t p = 1; p < stepper->plan->partition_count; p++) {
        void *room = kelp__stepper_reserve(stepper, items->shares, items->share_count,
                                           &items->share_capacity, sizeof(*items->shares));
        if (!room) {
            return;
        }
        items->shares = room;
        items->shares[items->share_count++] =
            (struct kelp_stepper_share){.partition = p,
                                        .map_epoch = stepper->routes[0].map_epoch,
                                        .share = kelp_sync_share(stepper->sync, p)};
    }
}

static void collect_pulls(struct outbox *box)
{
    struct kelp_stepper *stepper = box->stepper;
    struct kelp__stepper_items *items = &stepper->items;
    struct kelp_sync_pull pull;

    for (uint32_t i = box->link->first; i < box->link->end; i++) {
        uint32_t p = stepper->order[i];
        while (kelp_sync_pull(stepper->sync, p, &pull)) {
            assert(items->pull_count - box->pull_first < KELP_STEPPER_ITEMS_MAX);
            void *room = kelp__stepper_reserve(stepper, items->pulls, items->pull_count,
                                               &items->pull_capacity, sizeof(*items->pulls));
            if (!room) {
                return;
            }
            items->pulls = room;
            items->pulls[items->pull_count++] =
                (struct kelp_stepper_pull){.map_epoch = stepper->routes[p].map_epoch, .pull = pull};
        }
    }
}

/* Send the rest of nodes of which a part went early. Partition 0 with the pulls goes first,
 * because the next step begins with it. The messages are cut as in the other order. */
static void send_rest(struct outbox *box)
{
    uint32_t ends[KELP_PARTITIONS_MAX];
    uint32_t count = 0;

    for (uint32_t end = box->link->end; end > box->link->first; end = run_before(box, end)) {
        ends[count++] = end;
    }
    for (uint32_t first = box->link->first; count > 0; first = ends[count]) {
        collect_run(box, first, ends[--count]);
        if (first == box->link->first) {
            collect_pulls(box);
        }
        if (collected_any(box)) {
            finish_message(box, &box->stepper->word, &undecided);
        }
    }
}

/* Not for jobs with decisions, whose words and order differ. */
static bool is_rest(const struct outbox *box, const struct kelp__stepper_sending *sending)
{
    const struct kelp_stepper *stepper = box->stepper;

    return stepper->early && sending->fresh && sending->pulls && !stepper->spare &&
           stepper->working && !stepper->decides && stepper->order[box->link->first] == 0;
}

void kelp__stepper_send(struct kelp_stepper *stepper, const struct kelp__stepper_sending *sending)
{
    struct kelp__stepper_link *link = &stepper->links[sending->link];
    const struct kelp_control_word *working = stepper->working ? &stepper->word : NULL;
    struct kelp_sync *sync = sending->pulls && !stepper->spare ? stepper->sync : NULL;
    struct outbox box = {
        .stepper = stepper, .link = link, .number = sending->link, .fresh = sending->fresh};
    struct kelp_step_decision decision = undecided;

    if (!link->used || !link->connected) {
        return;
    }
    bool news = link->helps != stepper->spare;
    link->helps = stepper->spare;
    begin_message(&box);
    if (is_rest(&box, sending)) {
        send_rest(&box);
    } else if (working) {
        collect_pushes(&box);
    }
    for (uint32_t i = link->first; i < link->end; i++) {
        stepper->routes[stepper->order[i]].again = false;
    }
    if (working && sync) {
        collect_shares(&box);
    }
    const struct kelp_control_word *word = sync ? kelp_sync_news(sync, &decision) : NULL;
    if (word && collected_any(&box)) {
        finish_message(&box, working, &undecided); /* pulls have another word */
    }
    if (sync) {
        collect_pulls(&box);
    }
    if (collected_any(&box) || news) {
        finish_message(&box, word ? word : working, &decision);
    }
}

void kelp__stepper_sent_all(struct kelp_stepper *stepper)
{
    for (uint32_t p = 0; stepper->early && p < stepper->plan->partition_count; p++) {
        stepper->routes[p].early = false;
    }
    stepper->early = false;
}

/* Send the link's full messages, of partitions from partition_first on; the last message stays. */
static void send_full(struct kelp_stepper *stepper, uint32_t number, uint32_t partition_first)
{
    struct kelp__stepper_link *link = &stepper->links[number];
    struct outbox box = {.stepper = stepper, .link = link, .number = number, .fresh = true};
    uint32_t end = link->end;

    begin_message(&box);
    while (end > link->first) {
        const uint32_t first = run_before(&box, end);
        if (first == link->first || stepper->order[first] < partition_first) {
            break;
        }
        collect_run(&box, first, end);
        end = first;
    }
    if (collected_any(&box)) {
        link->helps = stepper->spare;
        finish_message(&box, &stepper->word, &undecided);
    }
}

void kelp__stepper_send_partly(struct kelp_stepper *stepper, uint32_t partition_first)
{
    const bool follows = !stepper->spare && stepper->lane_count > 0;

    stepper->early = true;
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        const struct kelp__stepper_link *link = &stepper->links[i];
        if (!link->used || !link->connected) {
            continue;
        }
        if (!follows || stepper->order[link->first] < partition_first) {
            send_full(stepper, i, partition_first);
            continue;
        }
        if (kelp_sync_state(stepper->sync) == KELP_SYNC_HOLDING) {
            kelp_sync_next(stepper->sync);
        }
        kelp__stepper_send(
            stepper, &(struct kelp__stepper_sending){.link = i, .fresh = true, .pulls = true});
    }
}

void kelp__stepper_point(struct kelp_stepper *stepper)
{
    struct kelp_stepper_push *push = stepper->items.pushes;
    struct kelp_stepper_pull *pull = stepper->items.pulls;
    struct kelp_stepper_share *share = stepper->items.shares;

    for (size_t i = 0; i < stepper->actions->count; i++) {
        struct kelp_stepper_message *message = &stepper->actions->items[i].send;
        if (stepper->actions->items[i].kind != KELP_STEPPER_SEND) {
            continue;
        }
        message->pushes = push;
        message->pulls = pull;
        message->shares = share;
        push += message->push_count;
        pull += message->pull_count;
        share += message->share_count;
    }
}
