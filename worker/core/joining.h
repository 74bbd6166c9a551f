/*
 * A worker's stream to the leading coordinator, as a pure state machine: events in, actions out.
 *
 *     APART --leader known: CONNECT, hello--> JOINED --CLOSED--> APART, tries again after 100 ms
 *
 * It follows the leader's key, reports at the interval that the coordinator sets, and collects its
 * commands until the worker's loop takes them. While nobody leads, the worker continues unchanged.
 *
 * Threads: one caller at a time. No I/O, no clock, never blocks, allocates nothing.
 */
#ifndef KELP_WORKER_CORE_JOINING_H
#define KELP_WORKER_CORE_JOINING_H

#include "worker/core/news.h"
#include "worker/core/times.h"

enum kelp_joining_event_kind {
    KELP_JOINING_LEADER,  /* the leader's key says who leads */
    KELP_JOINING_CLOSED,  /* the stream ended, or could not be opened */
    KELP_JOINING_RETRY,   /* the delay of RETRY_LATER is over */
    KELP_JOINING_COMMAND, /* the coordinator sent a message */
    KELP_JOINING_BEAT,    /* the interval of BEAT_EVERY has passed */
    KELP_JOINING_STOP,    /* the worker leaves */
};

struct kelp_joining_event {
    enum kelp_joining_event_kind kind;
    union {
        const char *leader; /* address, at most KELP_WORKER_ADDRESS_MAX bytes */
        struct {
            void *map; /* transferred; or NULL */
            uint64_t map_generation;
            uint64_t map_serial;
            bool has_assignment;
            uint64_t assignment_epoch;
            uint32_t lane_first;
            uint32_t lane_count;
            bool rests;
            bool leave;
            bool drain;
            kelp_status status; /* other than KELP_OK: refused */
            const char *error;
            uint32_t beat_ms; /* interval between reports, within the limits below; 0: as before */
        } command;
    };
};

enum kelp_joining_action_kind {
    KELP_JOINING_CONNECT,     /* open a stream to this->leader */
    KELP_JOINING_CLOSE,       /* end the stream; CLOSED follows */
    KELP_JOINING_REPORT,      /* send a report; without a stream it is dropped */
    KELP_JOINING_RETRY_LATER, /* RETRY after a delay */
    KELP_JOINING_BEAT_EVERY,  /* BEAT in this interval, and in no other any more; 0: never */
    KELP_JOINING_TELL,        /* wake the worker's loop: there is news */
    KELP_JOINING_DROP_MAP,    /* free a map: a newer one is there that was not taken yet */
};

/* Milliseconds between two reports: less than two fifths of the shortest failure.detect, and more
 * than any number of workers asks for. */
#define KELP_JOINING_BEAT_MIN_MS 25
#define KELP_JOINING_BEAT_MAX_MS 60000

#define KELP_JOINING_TROUBLE_MAX 255
/* How far the worker is. */
struct kelp_joining_progress {
    uint64_t generation;
    uint64_t version;
    uint64_t lanes_computed; /* since the process started */
    uint64_t busy_us;        /* with them */
};

/* Where its time went lately. */
struct kelp_joining_times {
    struct kelp_times_window window;
    char shard[KELP_PLACE_SHARD_MAX + 1]; /* that window.link leads to */
};

struct kelp_joining_report {
    bool hello;
    bool same; /* as the one before on this stream: a sign of life, and nothing else is set */
    uint64_t assignment_epoch;
    struct kelp_joining_progress progress;
    struct kelp_joining_times times; /* serial 0: nothing new */
    char trouble[KELP_JOINING_TROUBLE_MAX + 1];
};

struct kelp_joining_action {
    enum kelp_joining_action_kind kind;
    union {
        struct kelp_joining_report report;
        uint32_t after_ms; /* of RETRY_LATER and BEAT_EVERY */
        void *map;
    };
};

#define KELP_JOINING_ACTIONS_MAX 4
struct kelp_joining_actions {
    struct kelp_joining_action items[KELP_JOINING_ACTIONS_MAX];
    size_t count;
};

/* In the caller's memory; all zero at first. */
struct kelp_joining {
    char leader[KELP_WORKER_ADDRESS_MAX + 1];       /* "": not known */
    char connected_to[KELP_WORKER_ADDRESS_MAX + 1]; /* of the newest CONNECT */
    bool joined;
    bool retrying;
    bool over;                       /* stopped, told to leave, or refused: no new stream */
    uint32_t beat_ms;                /* interval between two reports; 0: not told on this stream */
    bool reported;                   /* something, on this stream */
    struct kelp_joining_report said; /* by then, with the newest times */
    struct kelp_news news;
    struct kelp_joining_progress progress;
    struct kelp_joining_times times;
    bool leaving; /* it was asked to end */
    char trouble[KELP_JOINING_TROUBLE_MAX + 1];
};

void kelp_joining_event(struct kelp_joining *joining, const struct kelp_joining_event *event,
                        struct kelp_joining_actions *ret_actions);

/* What the next report tells. */
void kelp_joining_progress(struct kelp_joining *joining,
                           const struct kelp_joining_progress *progress);
void kelp_joining_times(struct kelp_joining *joining, const struct kelp_joining_times *times);

/* Why the worker should get no lanes now, for people; "": nothing is wrong. */
void kelp_joining_trouble(struct kelp_joining *joining, const char *text);
/* The worker was asked to end: it takes no more lanes than it has begun. */
void kelp_joining_leave(struct kelp_joining *joining);

/* Take what is new. False: nothing. */
bool kelp_joining_take_news(struct kelp_joining *joining, struct kelp_news *ret_news);

#endif
