/*
 * When a term reads etcd: everything when it begins, everything again when it was elected again,
 * and the map when that may differ from what we know. Pure; a part of a leader's term.
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_READING_H
#define KELP_COORDINATOR_TERM_PARTS_READING_H

#include <stdbool.h>
#include <stdint.h>

struct kelp_reading {
    bool done;      /* what etcd held has been taken over */
    bool again;     /* and has to be compared with what we have, after etcd was away */
    bool under_way; /* an answer will come */
    uint64_t at_ms; /* next attempt */
    bool map_wanted;
    uint64_t map_at_ms;
};

/* We were elected once more. */
void kelp_reading_restart(struct kelp_reading *reading);
/* Is everything to be read now? Not without an election: a read goes by our election key. */
bool kelp_reading_due(const struct kelp_reading *reading, bool elected, uint64_t now_ms);
/* Does what we know go by what etcd holds? Not before the first read, nor after a new election:
 * another leader may have written since, and a write of ours must not go over that unseen. */
bool kelp_reading_settled(const struct kelp_reading *reading);
void kelp_reading_sent(struct kelp_reading *reading, bool taken, uint64_t now_ms);
/* The answer is here: taken over or compared (good), or to be asked for later. */
void kelp_reading_answered(struct kelp_reading *reading, bool good, uint64_t now_ms);

/* etcd may hold something else than we think. */
void kelp_reading_want_map(struct kelp_reading *reading, uint64_t now_ms);
bool kelp_reading_map_due(const struct kelp_reading *reading, uint64_t now_ms);
void kelp_reading_map_sent(struct kelp_reading *reading, bool taken);
/* The answer was no use. */
void kelp_reading_map_failed(struct kelp_reading *reading, uint64_t now_ms);

#endif
