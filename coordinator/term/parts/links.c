#include "coordinator/term/parts/links.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

struct kelp_link *kelp_shard_links_find(const struct kelp_shard_links *links, const char *id)
{
    struct kelp_link *link = links->first;
    while (link && strcmp(link->shard.id, id) != 0) {
        link = link->next;
    }
    return link;
}

struct kelp_link *kelp_shard_links_of(const struct kelp_shard_links *links, uint64_t key)
{
    struct kelp_link *link = links->first;
    while (link && (!link->greeted || link->key != key)) {
        link = link->next;
    }
    return link;
}

struct kelp_link *kelp_shard_links_add(struct kelp_shard_links *links,
                                       const struct kelp_outside *outside,
                                       const struct kelp_map_shard *shard)
{
    struct kelp_link *link = calloc(1, sizeof(*link));
    if (link) {
        link->end = outside->effects->link_create(link, outside->user);
    }
    if (!link || !link->end) {
        kelp_outside_log(outside, KELP_LOG_ERROR, "no memory for a shard shard=%s", shard->id);
        free(link);
        return NULL;
    }
    link->shard = *shard;
    link->next = links->first;
    links->first = link;
    return link;
}

static void destroy(struct kelp_link *link, const struct kelp_outside *outside)
{
    kelp_link_close(link, outside, KELP_OK, "");
    outside->effects->link_destroy(link->end, outside->user);
    free(link);
}

void kelp_shard_links_fini(struct kelp_shard_links *links, const struct kelp_outside *outside)
{
    while (links->first) {
        struct kelp_link *link = links->first;
        links->first = link->next;
        destroy(link, outside);
    }
}

void kelp_shard_links_sweep(struct kelp_shard_links *links, const struct kelp_outside *outside,
                            const struct kelp_placement *placement)
{
    struct kelp_link **at = &links->first;
    while (*at) {
        struct kelp_link *link = *at;
        if (kelp_placement_find(placement, link->shard.id)) {
            at = &link->next;
            continue;
        }
        assert(!link->greeted); /* the placement keeps the greeted ones */
        kelp_outside_log(outside, KELP_LOG_INFO, "shard forgotten: it has left shard=%s",
                         link->shard.id);
        *at = link->next;
        destroy(link, outside);
    }
}

/* ---- sending ---- */

/* Must this process capture a partition for the order under way? */
static bool captures(const struct kelp_link *link, const struct kelp_checkpointer *checkpointer,
                     uint32_t *ret_index)
{
    const struct kelp_map *map = &checkpointer->map;
    int32_t index = kelp_map_find(map, link->shard.id);
    *ret_index = (uint32_t)index;
    return checkpointer->state == KELP_CHECKPOINTER_ORDERED && index >= 0 &&
           kelp_map_load(map, (uint32_t)index) > 0 &&
           map->shards[index].incarnation == link->shard.incarnation;
}

/* Add the order under way, or that the one before is given up, if the shard has the order's map
 * and has not been told yet. */
static bool add_order(struct kelp_link *link, const struct kelp_checkpointer *checkpointer,
                      struct kelp_link_news *news)
{
    const struct kelp_checkpointer_order *order = &checkpointer->order;
    bool asked = captures(link, checkpointer, &news->order_shard);
    bool over = link->order_sent != 0 && link->order_sent <= checkpointer->given_up;
    if (link->generation_sent != checkpointer->map.generation ||
        (asked ? link->order_sent == order->serial : !over)) {
        return false;
    }
    news->has_order = true;
    news->give_up = !asked;
    news->order = *order;
    news->order.serial = asked ? order->serial : link->order_sent;
    news->order.generation = checkpointer->map.generation;
    news->order_map = &checkpointer->map;
    link->order_sent = asked ? order->serial : 0;
    return true;
}

/* Tell the shard that it may end, once it has no parts of a snapshot left to write. */
static bool add_leave(struct kelp_link *link, const struct kelp_link_view *view,
                      struct kelp_link_news *news)
{
    const struct kelp_placement_shard *shard = kelp_placement_find(view->placement, link->shard.id);
    if (!shard || link->leave_sent) {
        return false;
    }
    switch (kelp_placement_leave(view->placement, shard)) {
    case KELP_LEAVE_NOT:
        return false;
    case KELP_LEAVE_EMPTY:
        if (kelp_checkpointer_needs(view->checkpointer, link->shard.id, link->shard.incarnation)) {
            return false;
        }
        news->leave = "all that it had is on other shards";
        break;
    case KELP_LEAVE_LAST:
        if (view->verdict[0] == '\0') {
            return false;
        }
        news->leave = view->verdict;
        break;
    case KELP_LEAVE_OVER:
        news->leave = "the job is over";
        break;
    }
    link->leave_sent = true;
    return true;
}

/* Add what the shard has not been told yet. False: nothing. */
static bool add_news(struct kelp_link *link, const struct kelp_link_view *view,
                     struct kelp_link_news *news)
{
    bool any = false;
    if (!link->plan_sent && view->plan) {
        news->plan = true;
        link->plan_sent = true;
        any = true;
    }
    bool opened = link->generation_sent != view->map->generation;
    if (view->map->generation > 0 && link->plan_sent &&
        (opened || link->serial_sent != view->map->serial)) {
        news->map = view->map;
        news->manifest = view->manifest;
        link->generation_sent = view->map->generation;
        link->serial_sent = view->map->serial;
        link->map_heartbeat = opened ? view->heartbeat + 1 : link->map_heartbeat;
        any = true;
    }
    any = add_order(link, view->checkpointer, news) || any;
    return add_leave(link, view, news) || any;
}

void kelp_link_update(struct kelp_link *link, const struct kelp_outside *outside,
                      const struct kelp_link_view *view, bool beat)
{
    struct kelp_link_news news = {.manifest = ""};
    if (!link->open || !link->greeted || outside->effects->link_full(link->end, outside->user)) {
        return;
    }
    if (add_news(link, view, &news) || beat) {
        news.heartbeat = beat ? view->heartbeat : 0;
        news.records_after = beat ? view->records_safe : 0;
        outside->effects->link_send(link->end, &news, outside->user);
    }
}

void kelp_shard_links_update(struct kelp_shard_links *links, const struct kelp_outside *outside,
                             const struct kelp_link_view *view, bool beat)
{
    for (struct kelp_link *link = links->first; link; link = link->next) {
        if (beat && !link->open) {
            kelp_link_open(link, outside, view);
        } else {
            kelp_link_update(link, outside, view, beat);
        }
    }
}

/* ---- one stream ---- */

void kelp_link_move(struct kelp_link *link, const struct kelp_map_shard *shard)
{
    assert(!link->open);
    link->shard = *shard;
    link->said = false;
    link->cause[0] = '\0';
}

void kelp_link_open(struct kelp_link *link, const struct kelp_outside *outside,
                    const struct kelp_link_view *view)
{
    struct kelp_error error = {.text = ""};
    struct kelp_link_news hello = {
        .hello = true, .plan = view->plan, .manifest = "", .records_after = view->records_after};
    kelp_status status =
        outside->effects->link_open(link->end, &link->shard, &hello, &error, outside->user);
    if (status == KELP_OK) {
        link->open = true;
        link->plan_sent = view->plan;
        link->generation_sent = 0;
        link->order_sent = 0;
        link->leave_sent = false;
    } else if (status != KELP_ERR_BUSY) {
        kelp_outside_log(outside, link->said ? KELP_LOG_DEBUG : KELP_LOG_WARN,
                         "cannot connect shard=%s address=%s error=\"%s\"", link->shard.id,
                         link->shard.address, error.text);
        link->said = true;
    }
}

void kelp_link_close(struct kelp_link *link, const struct kelp_outside *outside, kelp_status status,
                     const char *text)
{
    if (link->open) {
        link->open = false;
        outside->effects->link_close(link->end, status, text, outside->user);
    }
}

void kelp_link_greet(struct kelp_link *link, uint64_t key)
{
    link->greeted = true;
    link->said = false;
    link->cause[0] = '\0';
    link->key = key;
}

void kelp_link_refuse(struct kelp_link *link, const struct kelp_outside *outside,
                      kelp_status status, const char *text)
{
    kelp_outside_log(outside, link->said ? KELP_LOG_DEBUG : KELP_LOG_WARN,
                     "shard refused shard=%s reason=\"%s\"", link->shard.id, text);
    link->said = true;
    kelp_link_close(link, outside, status, text);
}

void kelp_link_leave(struct kelp_link *link)
{
    link->greeted = false;
}

void kelp_link_ended(struct kelp_link *link, const struct kelp_outside *outside, kelp_status status,
                     const char *text)
{
    kelp_outside_log(outside, link->said ? KELP_LOG_DEBUG : KELP_LOG_WARN,
                     "shard does not answer shard=%s address=%s status=%s reason=\"%s\"",
                     link->shard.id, link->shard.address, kelp_status_name(status), text);
    link->said = true;
    link->open = false;
    (void)snprintf(link->cause, sizeof(link->cause), "%s",
                   status == KELP_ERR_TIMEOUT ? "timed out: it does not answer" : text);
}

void kelp_link_failed(struct kelp_link *link, const struct kelp_outside *outside,
                      kelp_status status, const char *text)
{
    if (text[0] != '\0' && strncmp(link->failure, text, sizeof(link->failure) - 1) != 0) {
        kelp_outside_log_of(outside, link->shard.address, KELP_LOG_ERROR,
                            "shard reports a failure shard=%s status=%s text=\"%s\"",
                            link->shard.id, kelp_status_name(status), text);
    }
    (void)snprintf(link->failure, sizeof(link->failure), "%s", text);
}

bool kelp_link_current(const struct kelp_link *link, const struct kelp_placement *placement,
                       uint64_t heartbeat)
{
    if (link->generation_sent == 0) {
        return placement->map_read && placement->map.generation == 0;
    }
    return heartbeat >= link->map_heartbeat;
}
