#include "ps/core/evidence/roster.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"

/* A slot's first author number is its index + 1; each later worker of the slot gets
 * KELP_PS_AUTHORS_MAX more. */
struct slot {
    char id[KELP_JOB_NAME_MAX + 1];
    uint64_t host;                /* hash of the host from which the worker first connected */
    uint32_t streams;             /* open now */
    uint64_t left;                /* `leaves` at the end of the last one: the lowest is reused */
    atomic_uint author;           /* 0: the slot is free */
    atomic_uint_fast64_t work;    /* lanes pushed and not yet read out */
    atomic_uint_fast64_t version; /* newest step of which it pushed lanes, plus 1; 0: none */
    atomic_uint_fast64_t steps;   /* steps not yet read out; behind_us likewise */
    atomic_uint_fast64_t behind_us;
};

struct kelp_roster {
    uint32_t count; /* slots that were ever used: the first ones */
    uint64_t leaves;
    struct slot slots[KELP_PS_AUTHORS_MAX];
};

struct kelp_roster *kelp_roster_create(void)
{
    return calloc(1, sizeof(struct kelp_roster));
}

void kelp_roster_destroy(struct kelp_roster *roster)
{
    free(roster);
}

/* FNV-1a of the host. */
static uint64_t hash_host(const char *peer)
{
    const char *colon = strncmp(peer, "ipv", 3) == 0 ? strrchr(peer, ':') : NULL;
    const size_t length = colon ? (size_t)(colon - peer) : strlen(peer);
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (uint8_t)peer[i]) * 1099511628211u;
    }
    return hash;
}

static struct slot *slot_of(struct kelp_roster *roster, uint32_t author)
{
    struct slot *slot = &roster->slots[(author - 1) % KELP_PS_AUTHORS_MAX];

    return author > 0 && atomic_load_explicit(&slot->author, memory_order_relaxed) == author ? slot
                                                                                             : NULL;
}

static struct slot *find(struct kelp_roster *roster, const char *id)
{
    for (uint32_t i = 0; i < roster->count; i++) {
        if (strncmp(roster->slots[i].id, id, KELP_JOB_NAME_MAX) == 0) {
            return &roster->slots[i];
        }
    }
    return NULL;
}

/* The worker without streams that left first, only of *host unless host is NULL. NULL: there is
 * none. */
static struct slot *find_oldest(struct kelp_roster *roster, const uint64_t *host)
{
    struct slot *oldest = NULL;

    for (uint32_t i = 0; i < roster->count; i++) {
        struct slot *slot = &roster->slots[i];
        if (slot->streams == 0 && (!host || slot->host == *host) &&
            (!oldest || slot->left < oldest->left)) {
            oldest = slot;
        }
    }
    return oldest;
}

static struct slot *make_room(struct kelp_roster *roster, uint64_t host)
{
    uint32_t of_host = 0;

    for (uint32_t i = 0; i < roster->count; i++) {
        of_host += roster->slots[i].host == host ? 1 : 0;
    }
    if (of_host >= KELP_PS_AUTHORS_OF_HOST) {
        return find_oldest(roster, &host);
    }
    return roster->count < KELP_PS_AUTHORS_MAX ? &roster->slots[roster->count++]
                                               : find_oldest(roster, NULL);
}

/* Give the slot to the worker. Returns its author number; 0: the slot's numbers are used up. */
static uint32_t give(struct kelp_roster *roster, struct slot *slot, const char *id, uint64_t host)
{
    const uint32_t before = atomic_load(&slot->author);

    if (before > UINT32_MAX - KELP_PS_AUTHORS_MAX) {
        return 0;
    }
    atomic_store(&slot->author,
                 before > 0 ? before + KELP_PS_AUTHORS_MAX : (uint32_t)(slot - roster->slots) + 1);
    atomic_store(&slot->work, 0);
    atomic_store(&slot->version, 0);
    atomic_store(&slot->steps, 0);
    atomic_store(&slot->behind_us, 0);
    (void)snprintf(slot->id, sizeof(slot->id), "%s", id);
    slot->host = host;
    slot->streams = 1;
    return atomic_load(&slot->author);
}

uint32_t kelp_roster_enter(struct kelp_roster *roster, const char *id, const char *peer)
{
    const uint64_t host = hash_host(peer);
    struct slot *slot = find(roster, id);

    if (slot) {
        slot->streams++;
        return atomic_load(&slot->author);
    }
    slot = make_room(roster, host);
    return slot ? give(roster, slot, id, host) : 0;
}

void kelp_roster_leave(struct kelp_roster *roster, uint32_t author)
{
    struct slot *slot = slot_of(roster, author);

    if (slot) {
        assert(slot->streams > 0);
        slot->streams--;
        slot->left = ++roster->leaves;
    }
}

const char *kelp_roster_name(const struct kelp_roster *roster, uint32_t author)
{
    const struct slot *slot = &roster->slots[(author - 1) % KELP_PS_AUTHORS_MAX];

    return author > 0 && atomic_load(&slot->author) == author ? slot->id : NULL;
}

void kelp_roster_worked(struct kelp_roster *roster, uint32_t author, uint32_t lanes)
{
    struct slot *slot = slot_of(roster, author);

    if (slot) {
        (void)atomic_fetch_add_explicit(&slot->work, lanes, memory_order_relaxed);
    }
}

void kelp_roster_pushed(struct kelp_roster *roster, uint32_t author, uint64_t version,
                        uint64_t behind_us)
{
    struct slot *slot = slot_of(roster, author);

    if (slot && atomic_exchange_explicit(&slot->version, version + 1, memory_order_relaxed) !=
                    version + 1) {
        (void)atomic_fetch_add_explicit(&slot->steps, 1, memory_order_relaxed);
        (void)atomic_fetch_add_explicit(&slot->behind_us, behind_us, memory_order_relaxed);
    }
}

size_t kelp_roster_take_work(struct kelp_roster *roster, struct kelp_roster_work *ret_work,
                             size_t max)
{
    size_t count = 0;

    for (uint32_t i = 0; i < roster->count && count < max; i++) {
        struct slot *slot = &roster->slots[i];
        struct kelp_roster_work *work = &ret_work[count];
        work->lanes = atomic_exchange_explicit(&slot->work, 0, memory_order_relaxed);
        work->steps = atomic_exchange_explicit(&slot->steps, 0, memory_order_relaxed);
        work->behind_us = atomic_exchange_explicit(&slot->behind_us, 0, memory_order_relaxed);
        if (work->lanes > 0 || work->steps > 0) {
            memcpy(work->id, slot->id, sizeof(work->id));
            count++;
        }
    }
    return count;
}
