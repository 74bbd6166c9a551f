/*
 * Leadership under test, of a job with one shard, one worker and two partitions: what it asks for
 * is counted, and answered when the test says so.
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
    bool unread; /* the workers do not read */
    struct {
        int reads, maps, changes, states, opens, closes, stands, resigns, gives_up;
        char state[16];    /* written last */
        int session_sends; /* to workers */
        int session_closes;
        kelp_status refusal;          /* of the worker that was sent away for good last */
        char waits[160];              /* why a worker is no member yet */
        struct kelp_lane_range lanes; /* as a worker heard last */
        uint32_t beat_ms;             /* likewise */
        struct kelp_link *link;       /* newest */
        int commits;
        uint64_t restored;       /* by the map written last */
        uint32_t gone;           /* manifests that it takes out */
        uint64_t serial_written; /* of the map */
        uint64_t map_to_shard;   /* serial, sent last */
        uint64_t map_to_worker;
        uint64_t serial;  /* of the order whose folder was described */
        int holds, files; /* asked for */
        bool forced;      /* the newest hold cuts lines */
        uint64_t filed_version;
        size_t filed_count;
        bool sync;
        int follows, unfollows, deposes;
        int64_t followed, deposed; /* revision of the newest */
    } done;
} leadership_bench;

/* Who leads while we do not. */
extern const struct kelp_holder leadership_other;

/* Around each test. */
void leadership_setup(void);
void leadership_teardown(void);

void leadership_tick(uint64_t ms);
/* etcd's answer: the plan and a map of that generation, or nothing. */
void leadership_answer_read(uint64_t generation);
/* etcd has a map of generation 1 whose two shards are each other's backup. */
void leadership_answer_replicated(void);
/* worker-0 or another one says hello; and one that joins, whose plan is written. */
struct kelp_session *leadership_greet(uint64_t incarnation);
struct kelp_session *leadership_greet_as(const char *id, uint64_t incarnation);
struct kelp_session *leadership_join(void);
/* A shard registers and answers: all is there to open a generation. */
void leadership_connect_one(const char *id, uint64_t loaded_generation);
void leadership_connect_shard(void);
/* The shard has the whole model at that step; with a serial, its snapshot of it is durable. */
void leadership_report(struct kelp_link *link, uint64_t step, uint64_t serial);
/* The shard has that map of generation 1. */
void leadership_report_map(struct kelp_link *link, uint64_t serial);

#endif
