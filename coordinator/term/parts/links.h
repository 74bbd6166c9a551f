/*
 * The leader's links to the shards: what each knows, and what it is told next. A link whose stream
 * has ended is opened again at the next tick. Pure; a part of a leader's term.
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_LINKS_H
#define KELP_COORDINATOR_TERM_PARTS_LINKS_H

#include "coordinator/term/outside/term_effects.h"

struct kelp_link {
    struct kelp_link *next;
    void *end;                   /* the process's side */
    struct kelp_map_shard shard; /* as registered */
    bool open;                   /* it has a stream */
    bool said;                   /* its trouble is in the log */
    char cause[128];             /* why the last stream ended, until one is greeted; "": none has */
    bool greeted;                /* its hello was checked: it is a member */
    uint64_t key;                /* of the membership, when greeted */
    bool plan_sent;
    uint64_t generation_sent; /* of the map, with its serial */
    uint64_t serial_sent;
    uint64_t map_heartbeat; /* reports that repeat this one know of that generation */
    uint64_t order_sent;    /* serial; 0: none that it may still work on */
    char failure[160];      /* the latest error reported, so that it is logged once */
    uint64_t conflicts;     /* that it has told, of this start */
    bool leave_sent;        /* it may end */
};

struct kelp_shard_links {
    struct kelp_link *first; /* owned */
};

/* What shards are to know. */
struct kelp_link_view {
    const struct kelp_map *map; /* generation 0: none */
    const char *manifest;       /* of what it restores; "": none */
    bool plan;                  /* it is in etcd */
    const struct kelp_checkpointer *checkpointer;
    const struct kelp_placement *placement;
    const char *verdict; /* for shards that nobody takes over from; "": they wait */
    uint64_t records_after;
    uint64_t records_safe; /* records before this version need not be kept; 0: all */
    uint64_t heartbeat;    /* newest */
};

/* The link of that shard, or NULL. */
struct kelp_link *kelp_shard_links_find(const struct kelp_shard_links *links, const char *id);
/* The greeted link of that member, or NULL. */
struct kelp_link *kelp_shard_links_of(const struct kelp_shard_links *links, uint64_t key);
/* NULL: no memory. */
struct kelp_link *kelp_shard_links_add(struct kelp_shard_links *links,
                                       const struct kelp_outside *outside,
                                       const struct kelp_map_shard *shard);
/* Close everything and free it. */
void kelp_shard_links_fini(struct kelp_shard_links *links, const struct kelp_outside *outside);
/* Close and free the links of shards that the placement knows no more. */
void kelp_shard_links_sweep(struct kelp_shard_links *links, const struct kelp_outside *outside,
                            const struct kelp_placement *placement);
/* Plan, map or order have changed: to every shard that does not have it. beat: a heartbeat to each,
 * and links without a stream get one. */
void kelp_shard_links_update(struct kelp_shard_links *links, const struct kelp_outside *outside,
                             const struct kelp_link_view *view, bool beat);

/* The shard has registered as this: its stream has been closed. */
void kelp_link_move(struct kelp_link *link, const struct kelp_map_shard *shard);
/* Open a stream, unless the one before has not ended yet. */
void kelp_link_open(struct kelp_link *link, const struct kelp_outside *outside,
                    const struct kelp_link_view *view);
/* Send what the shard does not know yet, and with beat a heartbeat. One that does not read gets
 * none.
 */
void kelp_link_update(struct kelp_link *link, const struct kelp_outside *outside,
                      const struct kelp_link_view *view, bool beat);
/* Close its stream, if it has one. */
void kelp_link_close(struct kelp_link *link, const struct kelp_outside *outside, kelp_status status,
                     const char *text);
/* Its hello was good: it is the member of this key. */
void kelp_link_greet(struct kelp_link *link, uint64_t key);
/* Its hello was not: log it once. */
void kelp_link_refuse(struct kelp_link *link, const struct kelp_outside *outside,
                      kelp_status status, const char *text);
/* It is a member no more. */
void kelp_link_leave(struct kelp_link *link);
/* Its stream has ended by itself. */
void kelp_link_ended(struct kelp_link *link, const struct kelp_outside *outside, kelp_status status,
                     const char *text);
/* It reports this failure ("": none): log it once. */
void kelp_link_failed(struct kelp_link *link, const struct kelp_outside *outside,
                      kelp_status status, const char *text);
/* Does a report that repeats this heartbeat speak of the map that the shard was sent last? What it
 * says of a generation before must not be taken for the one that it is to load. */
bool kelp_link_current(const struct kelp_link *link, const struct kelp_placement *placement,
                       uint64_t heartbeat);

#endif
