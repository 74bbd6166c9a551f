/*
 * Leadership under test, for a job with one shard, one worker and two partitions: its effects are
 * counted, and answered when the test wants.
 */
#ifndef KELP_TESTS_LIB_CORES_LEADERSHIP_BENCH_H
#define KELP_TESTS_LIB_CORES_LEADERSHIP_BENCH_H

#include "coordinator/term/leadership.h"

extern struct leadership_bench {
    struct kelp_job job;
    struct kelp_plan plan;
    struct kelp_leadership machine;
    struct kelp_term_effects effects;
    uint64_t now;
    bool unread; /* workers do not read */
    struct {
        int reads, maps, changes, states, opens, closes, stands, resigns, gives_up;
        char state[16];    /* written last */
        int session_sends; /* messages to workers */
        int session_closes;
        kelp_status refusal;          /* of the last worker that was refused for good */
        char waits[160];              /* why a worker is not a member yet */
        struct kelp_lane_range lanes; /* told to a worker last */
        uint32_t beat_ms;             /* told to a worker last */
        struct kelp_link *link;       /* the newest */
        int commits;
        uint64_t restored;       /* by the last written map */
        uint32_t gone;           /* manifests that this map removes */
        uint64_t serial_written; /* of the map */
        uint64_t map_to_shard;   /* serial of the last map sent */
        uint64_t map_to_worker;
        uint64_t serial;  /* of the order whose folder was described */
        int holds, files; /* requests */
        bool forced;      /* the last hold cuts lines */
        uint64_t filed_version;
        size_t filed_count;
        bool sync;
        int follows, unfollows, deposes;
        int64_t followed, deposed; /* revision of the last one */
    } done;
} leadership_bench;

/* The leader while this one does not lead. */
extern const struct kelp_holder leadership_other;

/* Fixtures of each test. */
void leadership_setup(void);
void leadership_teardown(void);

void leadership_tick(uint64_t ms);
/* Let etcd answer with the plan and a map of that generation, or with nothing. */
void leadership_answer_read(uint64_t generation);
/* Let etcd answer with a map of generation 1 whose two shards back each other up. */
void leadership_answer_replicated(void);
/* A worker sends a hello: worker-0; one of this id; worker-0, which also joins and whose plan is
 * written. */
struct kelp_session *leadership_greet(uint64_t incarnation);
struct kelp_session *leadership_greet_as(const char *id, uint64_t incarnation);
struct kelp_session *leadership_join(void);
/* A shard registers and answers, so that a generation can be opened. */
void leadership_connect_one(const char *id, uint64_t loaded_generation);
void leadership_connect_shard(void);
/* The shard reports the whole model at that step; with a serial, also that its snapshot is
 * durable. */
void leadership_report(struct kelp_link *link, uint64_t step, uint64_t serial);
/* The shard reports that map of generation 1. */
void leadership_report_map(struct kelp_link *link, uint64_t serial);

#endif
