/*
 * Log lines that a peer can cause: a peer has one line of a kind a second at each gate, and the
 * next one that it gets says how many were left out. Where lines of ordinary runs come in bursts, a
 * gate lets so many of them pass at once. A gate has KELP_LOG_GATE_PEERS places: more peers share
 * them and their lines, so that it writes no more than that many a second, whoever comes.
 *
 * Threads: any. Memory: none beyond the gate.
 */
#ifndef KELP_COMMON_LOG_LOG_GATE_H
#define KELP_COMMON_LOG_LOG_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define KELP_LOG_GATE_MS    1000u /* between two lines of a peer */
#define KELP_LOG_GATE_PEERS 64

struct kelp_log_gate {
    unsigned burst;       /* lines that a peer has at once after silence; 0: one */
    pthread_mutex_t lock; /* guards what follows */
    struct {
        uint64_t open_ms; /* all lines that were written are paid for then */
        unsigned held;    /* lines since the last that was written */
    } peers[KELP_LOG_GATE_PEERS];
};

#define KELP_LOG_GATE_INIT KELP_LOG_GATE_OF(1)
#define KELP_LOG_GATE_OF(lines)                                                                    \
    {                                                                                              \
        .burst = (lines), .lock = PTHREAD_MUTEX_INITIALIZER                                        \
    }

/* May a line of that kind about that peer be written now? peer: "ipv4:10.0.0.5:4711", whose port
 * does not count, or any other text; kind: such as a status. ret_held: lines of this peer and kind
 * that were not, which the one that is should say. */
bool kelp_log_gate_pass(struct kelp_log_gate *gate, const char *peer, int kind, unsigned *ret_held);

#endif
