#include "common/log/log_gate.h"

#include <string.h>

#include "common/base/clock.h"

/* Each connection has another port, so only the host identifies a peer. */
static size_t host_length(const char *peer)
{
    const char *colon = strncmp(peer, "ipv", 3) == 0 ? strrchr(peer, ':') : NULL;

    return colon ? (size_t)(colon - peer) : strlen(peer);
}

/* FNV-1a, mixed once more. */
static size_t place(const char *peer, int kind)
{
    uint64_t hash = 14695981039346656037u ^ (uint64_t)(int64_t)kind;

    for (size_t i = 0, length = host_length(peer); i < length; i++) {
        hash = (hash ^ (uint8_t)peer[i]) * 1099511628211u;
    }
    return (size_t)((hash ^ (hash >> 29)) * 11400714819323198485u >> 40) % KELP_LOG_GATE_PEERS;
}

bool kelp_log_gate_pass(struct kelp_log_gate *gate, const char *peer, int kind, unsigned *ret_held)
{
    const uint64_t now_ms = kelp_clock_ms();
    const uint64_t ahead_ms = (uint64_t)KELP_LOG_GATE_MS * (gate->burst > 0 ? gate->burst - 1 : 0);
    const size_t at = place(peer, kind);

    (void)pthread_mutex_lock(&gate->lock);
    const uint64_t open_ms = gate->peers[at].open_ms;
    bool passes = now_ms + ahead_ms >= open_ms;
    *ret_held = gate->peers[at].held;
    gate->peers[at].held = passes ? 0 : gate->peers[at].held + 1;
    if (passes) {
        gate->peers[at].open_ms = (now_ms > open_ms ? now_ms : open_ms) + KELP_LOG_GATE_MS;
    }
    (void)pthread_mutex_unlock(&gate->lock);
    return passes;
}
