/* The streams to shards: how they are opened, closed and reopened, and what refusals and answers
 * on them cause. */
#include "worker/core/stepper_internal.h"

#define RETRY_MS    50u   /* delay before a stream is reopened */
#define BUSY_MS_MAX 160u  /* the longest delay of ASK_LATER */
#define TROUBLE_MS  3000u /* a shard that is unreachable for this long is reported as trouble */

void kelp__stepper_repeat(struct kelp_stepper *stepper, uint32_t partition)
{
    stepper->routes[partition].again = true;
    stepper->routes[partition].busy = false;
    kelp_sync_reask(stepper->sync, partition);
}

void kelp__stepper_connect(struct kelp_stepper *stepper, uint32_t number)
{
    struct kelp__stepper_link *link = &stepper->links[number];
    struct kelp_stepper_action *action = kelp__stepper_emit(stepper, KELP_STEPPER_CONNECT);

    action->connect.link = number;
    action->connect.generation = stepper->generation;
    action->connect.place = &link->place;
    action->connect.stream = link->stream;
    link->connected = true;
    link->helps = false;
    for (uint32_t i = link->first; i < link->end; i++) {
        kelp__stepper_repeat(stepper, stepper->order[i]);
    }
    kelp__stepper_send(stepper, &(struct kelp__stepper_sending){.link = number, .pulls = true});
}

static bool is_link(const struct kelp_stepper *stepper, uint32_t link)
{
    return link < stepper->link_count && stepper->links[link].used;
}

const struct kelp_place *kelp_stepper_place(const struct kelp_stepper *stepper, uint32_t link)
{
    return is_link(stepper, link) ? &stepper->links[link].place : NULL;
}

uint32_t kelp_stepper_first_link(const struct kelp_stepper *stepper, uint32_t link)
{
    const bool several = stepper->job->transport.streams > 1 && is_link(stepper, link);
    uint32_t i = several ? 0 : link;

    while (i < link &&
           !(is_link(stepper, i) &&
             kelp__stepper_same_place(&stepper->links[i].place, &stepper->links[link].place))) {
        i++;
    }
    return i;
}

void kelp__stepper_retry(struct kelp_stepper *stepper, uint32_t link)
{
    if (is_link(stepper, link)) {
        kelp__stepper_connect(stepper, link);
    }
}

void kelp__stepper_opened(struct kelp_stepper *stepper, uint32_t link)
{
    if (is_link(stepper, link)) {
        stepper->links[link].apart = false;
    }
}

void kelp__stepper_closed(struct kelp_stepper *stepper, uint32_t number, uint64_t now_ms)
{
    if (!is_link(stepper, number)) {
        return;
    }
    struct kelp__stepper_link *link = &stepper->links[number];
    struct kelp_stepper_action *action = kelp__stepper_emit(stepper, KELP_STEPPER_RETRY_LATER);
    if (!link->apart) {
        link->apart = true;
        link->apart_ms = now_ms;
    }
    link->connected = false;
    action->later.link = number;
    action->later.after_ms = RETRY_MS;
}

bool kelp__stepper_reaches_any(const struct kelp_stepper *stepper)
{
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        if (stepper->links[i].used && !stepper->links[i].apart) {
            return true;
        }
    }
    return false;
}

void kelp_stepper_trouble(const struct kelp_stepper *stepper, uint64_t now_ms,
                          struct kelp_stepper_trouble *ret_trouble)
{
    const struct kelp__stepper_link *worst = NULL;
    uint32_t number = 0;

    for (uint32_t i = 0; i < stepper->link_count; i++) {
        const struct kelp__stepper_link *link = &stepper->links[i];
        if (link->used && link->apart && (!worst || link->apart_ms < worst->apart_ms)) {
            worst = link;
            number = i;
        }
    }
    *ret_trouble = (struct kelp_stepper_trouble){.shard = worst ? &worst->place : NULL,
                                                 .link = number,
                                                 .apart_ms = worst ? now_ms - worst->apart_ms : 0};
    ret_trouble->lasts = ret_trouble->apart_ms >= TROUBLE_MS;
}

/* The shard does not have our map yet, is not ready, or has too many waiting pulls. The resent
 * messages may be large, so the delay grows with each attempt. */
static void ask_later(struct kelp_stepper *stepper, uint32_t partition)
{
    stepper->routes[partition].busy = true;
    if (!stepper->asking_later) {
        stepper->asking_later = true;
        kelp__stepper_emit(stepper, KELP_STEPPER_ASK_LATER)->later.after_ms = stepper->busy_ms;
        stepper->busy_ms = stepper->busy_ms < BUSY_MS_MAX ? 2 * stepper->busy_ms : BUSY_MS_MAX;
    }
}

void kelp__stepper_ask_again(struct kelp_stepper *stepper)
{
    stepper->asking_later = false;
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        const struct kelp__stepper_link *link = &stepper->links[i];
        bool any = false;
        for (uint32_t k = link->first; link->used && k < link->end; k++) {
            if (stepper->routes[stepper->order[k]].busy) {
                kelp__stepper_repeat(stepper, stepper->order[k]);
                any = true;
            }
        }
        if (any) {
            kelp__stepper_send(stepper, &(struct kelp__stepper_sending){.link = i, .pulls = true});
        }
    }
}

/* What a refusal tells about the partition. */
struct refusal {
    uint32_t partition;
    kelp_status status;
    uint64_t map_epoch;
    const struct kelp_place *primary;
};

/* True: the refusal is handled. False: its status has another reason. */
static bool hear_refusal(struct kelp_stepper *stepper, const struct refusal *refusal)
{
    if (kelp__stepper_hear_entry(stepper, refusal->partition, refusal->map_epoch,
                                 refusal->primary)) {
        kelp__stepper_moved(stepper);
        return true;
    }
    switch (refusal->status) {
    case KELP_ERR_BUSY:
    case KELP_ERR_NOT_PRIMARY: /* not yet, or no longer: then a newer map will come */
        ask_later(stepper, refusal->partition);
        return true;
    case KELP_ERR_OLD_MAP_EPOCH: /* resent when the newer entry came, or comes */
    case KELP_ERR_OLD_GENERATION: {
        struct kelp_stepper_action *action = kelp__stepper_emit(stepper, KELP_STEPPER_STALE);
        action->stale.partition = refusal->partition;
        action->stale.status = refusal->status;
        return true;
    }
    default:
        return false;
    }
}

/* Is the answer of our generation, and from the process that we take for the partition's
 * primary? Otherwise it answers a message from before a change, which was sent again. */
static bool is_current(const struct kelp_stepper *stepper, uint32_t link, uint64_t generation,
                       uint32_t partition)
{
    return generation == stepper->generation && partition < stepper->plan->partition_count &&
           stepper->routes[partition].link == link;
}

void kelp__stepper_refused(struct kelp_stepper *stepper, const struct kelp_stepper_event *event)
{
    if (is_current(stepper, event->refused.link, event->refused.generation,
                   event->refused.partition)) {
        (void)hear_refusal(stepper, &(struct refusal){.partition = event->refused.partition,
                                                      .status = event->refused.status,
                                                      .map_epoch = event->refused.map_epoch,
                                                      .primary = event->refused.primary});
    }
}

void kelp__stepper_answer(struct kelp_stepper *stepper, const struct kelp_stepper_event *event)
{
    struct kelp_sync_answer answer = event->answer.answer;
    bool bytes_came = answer.has_weights;

    if (!is_current(stepper, event->answer.link, event->answer.generation, answer.partition) ||
        (answer.status != KELP_OK &&
         hear_refusal(stepper, &(struct refusal){.partition = answer.partition,
                                                 .status = answer.status,
                                                 .map_epoch = event->answer.map_epoch,
                                                 .primary = event->answer.primary}))) {
        return;
    }
    /* The last partitions may be empty: they are answered without bytes. */
    answer.has_weights =
        bytes_came || kelp_plan_partition(stepper->plan, answer.partition).count == 0;
    answer.word = answer.partition == 0 ? answer.word : NULL;
    if (kelp_sync_take(stepper->sync, &answer) && bytes_came) {
        (void)kelp__stepper_emit(stepper, KELP_STEPPER_KEEP);
    }
}
