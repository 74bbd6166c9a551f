#include "ps/service/replicas/peers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/job/job.h"
#include "ps/core/limits.h"

struct peer {
    char id[KELP_JOB_NAME_MAX + 1];
    uint64_t incarnation;
    uint64_t heard_us;
    bool linked; /* a link to it is kept */
    bool broken;
};

struct kelp__service_peers {
    pthread_mutex_t lock; /* guards the rest; nothing is locked under it */
    size_t count;
    struct peer items[KELP_PS_PEERS_MAX];
};

struct kelp__service_peers *kelp__service_peers_create(void)
{
    struct kelp__service_peers *peers = calloc(1, sizeof(*peers));

    if (peers) {
        (void)pthread_mutex_init(&peers->lock, NULL);
    }
    return peers;
}

void kelp__service_peers_destroy(struct kelp__service_peers *peers)
{
    if (peers) {
        (void)pthread_mutex_destroy(&peers->lock);
        free(peers);
    }
}

/* NULL: unknown. The lock is held. */
static struct peer *find(struct kelp__service_peers *peers, const char *id, uint64_t incarnation)
{
    for (size_t i = 0; i < peers->count; i++) {
        if (peers->items[i].incarnation == incarnation && strcmp(peers->items[i].id, id) == 0) {
            return &peers->items[i];
        }
    }
    return NULL;
}

/* Forget peers without a link that were silent for long: no map names them any more. The lock is
 * held. */
static void forget_old(struct kelp__service_peers *peers, uint64_t now_us)
{
    size_t kept = 0;

    for (size_t i = 0; i < peers->count; i++) {
        if (peers->items[i].linked ||
            now_us - peers->items[i].heard_us < KELP_PS_PEER_FORGET_MS * UINT64_C(1000)) {
            peers->items[kept++] = peers->items[i];
        }
    }
    peers->count = kept;
}

/* A new peer counts as heard now. NULL: too many peers. The lock is held. */
static struct peer *find_or_add(struct kelp__service_peers *peers, const char *id,
                                uint64_t incarnation, uint64_t now_us)
{
    struct peer *peer = find(peers, id, incarnation);

    if (!peer) {
        forget_old(peers, now_us);
    }
    if (!peer && peers->count < KELP_PS_PEERS_MAX) {
        peer = &peers->items[peers->count++];
        *peer = (struct peer){.incarnation = incarnation, .heard_us = now_us};
        (void)snprintf(peer->id, sizeof(peer->id), "%s", id);
    }
    return peer;
}

void kelp__service_peers_expect(struct kelp__service_peers *peers, const char *id,
                                uint64_t incarnation)
{
    (void)pthread_mutex_lock(&peers->lock);
    struct peer *peer = find_or_add(peers, id, incarnation, kelp_clock_us());
    if (peer) {
        peer->linked = true;
    }
    (void)pthread_mutex_unlock(&peers->lock);
}

void kelp__service_peers_release(struct kelp__service_peers *peers, const char *id,
                                 uint64_t incarnation)
{
    (void)pthread_mutex_lock(&peers->lock);
    struct peer *peer = find(peers, id, incarnation);
    if (peer) {
        *peer = peers->items[--peers->count];
    }
    (void)pthread_mutex_unlock(&peers->lock);
}

void kelp__service_peers_heard(struct kelp__service_peers *peers, const char *id,
                               uint64_t incarnation)
{
    const uint64_t now_us = kelp_clock_us();

    (void)pthread_mutex_lock(&peers->lock);
    struct peer *peer = find_or_add(peers, id, incarnation, now_us);
    if (peer) {
        peer->heard_us = now_us;
        peer->broken = false;
    }
    (void)pthread_mutex_unlock(&peers->lock);
}

void kelp__service_peers_ended(struct kelp__service_peers *peers, const char *id,
                               uint64_t incarnation, bool broken)
{
    (void)pthread_mutex_lock(&peers->lock);
    struct peer *peer = find(peers, id, incarnation);
    if (peer && broken) {
        peer->broken = true;
    } else if (peer && !peer->linked) {
        *peer = peers->items[--peers->count];
    }
    (void)pthread_mutex_unlock(&peers->lock);
}

static bool is_wrong(const struct peer *peer, uint64_t now_us)
{
    return peer->broken || now_us >= peer->heard_us + KELP_PS_PEER_SILENT_MS * UINT64_C(1000);
}

/* A report and the memory it points to, in one allocation. */
struct report {
    Kelp__V1__PeerReport item;
    char id[KELP_JOB_NAME_MAX + 1];
};

Kelp__V1__PeerReport **kelp__service_peers_report(struct kelp__service_peers *peers,
                                                  size_t *ret_count)
{
    const uint64_t now_us = kelp_clock_us();
    Kelp__V1__PeerReport **pointers = NULL;
    size_t count = 0;

    *ret_count = 0;
    (void)pthread_mutex_lock(&peers->lock);
    forget_old(peers, now_us);
    for (size_t i = 0; i < peers->count; i++) {
        count += is_wrong(&peers->items[i], now_us) ? 1 : 0;
    }
    if (count > 0) {
        pointers = malloc(count * (sizeof(*pointers) + sizeof(struct report)));
    }
    struct report *reports = pointers ? (struct report *)(void *)(pointers + count) : NULL;
    count = 0;
    for (size_t i = 0; reports && i < peers->count; i++) {
        const struct peer *peer = &peers->items[i];
        if (is_wrong(peer, now_us)) {
            struct report *report = &reports[count];
            kelp__v1__peer_report__init(&report->item);
            memcpy(report->id, peer->id, sizeof(report->id));
            report->item.shard = report->id;
            report->item.incarnation = peer->incarnation;
            report->item.silent_ms = (now_us - peer->heard_us) / 1000;
            report->item.broken = peer->broken;
            pointers[count++] = &report->item;
        }
    }
    (void)pthread_mutex_unlock(&peers->lock);
    *ret_count = count;
    return pointers;
}
