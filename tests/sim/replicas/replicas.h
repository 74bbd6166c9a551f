/*
 * One partition and its replicas, in a world of their own: processes, the links between them, and a
 * leader who changes the entry as fast as the rules allow. The partitions are the product's
 * (ps/core); everything around them is small, so that a hundred thousand runs take a minute and
 * rare coincidences come up. The whole clusters of tests/sim/run.h are the other half.
 */
#ifndef KELP_TESTS_SIM_REPLICAS_REPLICAS_H
#define KELP_TESTS_SIM_REPLICAS_REPLICAS_H

#include <setjmp.h>
#include <stdio.h>

#include "ps/core/partition/partition.h"

#define REPLICAS_PROCESSES 5
#define REPLICAS_EPOCHS    64
#define REPLICAS_QUEUE     64
#define REPLICAS_HANDLES   512
#define REPLICAS_EVENTS    16

/* What travels over a link, in order, until the link breaks. */
enum replicas_message_kind {
    REPLICAS_FORWARD,
    REPLICAS_ASK,
    REPLICAS_ACKNOWLEDGE,
    REPLICAS_PIECE, /* the first half of a copy: nothing of the state before is left */
    REPLICAS_COPY,  /* the rest of it */
};

struct replicas_message {
    enum replicas_message_kind kind;
    uint64_t map_epoch;
    struct kelp_forward forward; /* pointers are set when it arrives */
    uint64_t gradient;
    double sums[KELP_METRIC_SUM_SCALARS];
    char digest[33];
    struct kelp_acknowledgement said;
    struct kelp_replica_state state;
    uint64_t weights[2]; /* of the copy: current and older */
};

struct replicas_link {
    bool is_up;
    struct replicas_message *queue[REPLICAS_QUEUE];
    uint32_t count;
};

struct replicas_work {
    bool there;
    struct kelp_action action; /* MEASURE or APPLY */
    uint64_t gradient;
};

struct replicas_process {
    bool is_up;
    uint64_t known; /* epoch */
    struct kelp_partition *partition;
    struct kelp_actions actions;
    uint64_t weights[2]; /* current and older; 0: nothing */
    struct replicas_work work;
    uint64_t wants_copy;              /* process that waits for a permit; 0: none */
    struct replicas_message *copying; /* the rest of a copy that is being sent; owned */
    uint64_t copying_to;
    uint64_t told_step; /* a decision that it was told in this epoch: step + 1 */
    uint64_t filling;   /* state of the copy whose first half came */
    uint64_t recorded;  /* partition 0: versions before it are on record here */
};

struct replicas_entry {
    uint64_t primary; /* index + 1; 0: none */
    uint64_t backup;
    uint64_t joiner;
    bool in_sync; /* the primary has reported the joiner, in this epoch */
};

struct replicas {
    uint64_t random;
    uint64_t weights[REPLICAS_EVENTS]; /* how often each kind of event is drawn */
    bool trace;
    struct kelp_job job;
    struct kelp_plan plan;
    bool holds_control;
    bool decides;
    uint64_t steps;   /* of the job */
    uint64_t entries; /* of the job, as `held` counts */
    uint64_t other;   /* training steps that another partition has made */
    uint64_t shown;   /* `held` that somebody has shown */
    uint64_t epoch;   /* the newest */
    struct replicas_entry map[REPLICAS_EPOCHS];
    uint64_t slow; /* a process to which messages come late; 0: none */
    bool restored; /* no replica that has it all is left: a generation would be opened */
    unsigned kills;
    unsigned suspicions;
    unsigned joiners;
    unsigned breaks;
    struct replicas_process processes[REPLICAS_PROCESSES];
    struct replicas_link links[REPLICAS_PROCESSES][REPLICAS_PROCESSES]; /* from, to */
    uint64_t gradients[REPLICAS_HANDLES];                               /* by handle; 0: free */
    uint64_t promotions;
    jmp_buf *end;
    char *failure; /* 512 bytes */
};

struct replicas_counts {
    uint64_t events;
    uint64_t promotions;
    uint64_t restored;
};

/* True: it ended as it should. False: *ret_failure says which rule is broken; its memory is not
 * given back then. */
bool replicas_run(uint64_t seed, bool trace, struct replicas_counts *counts, char ret_failure[512]);

/* ---- between the files ---- */

_Noreturn void replicas_fail(struct replicas *world, const char *rule);
uint64_t replicas_draw(struct replicas *world, uint64_t below);
/* The weights of a step: what a quiet run has there. */
uint64_t replicas_weights(const struct replicas *world, uint64_t step);
uint64_t replicas_gradient(uint64_t step);
bool replicas_skips(const struct replicas *world, uint64_t step);
uint64_t replicas_new_gradient(struct replicas *world, uint64_t value);

/* shell.c: a process. */
void replicas_start(struct replicas *world, uint64_t process, enum kelp_replica_place place);
void replicas_kill(struct replicas *world, uint64_t process);
void replicas_learn(struct replicas *world, uint64_t process, uint64_t epoch);
void replicas_run_actions(struct replicas *world, uint64_t process);
void replicas_finish_work(struct replicas *world, uint64_t process);
struct kelp_partition_view replicas_view(const struct replicas *world, uint64_t process);

/* links.c */
void replicas_send(struct replicas *world, uint64_t from, uint64_t to,
                   const struct replicas_message *message);
void replicas_deliver(struct replicas *world, uint64_t from, uint64_t to);
/* The second half of a copy leaves. */
void replicas_send_rest(struct replicas *world, uint64_t process);
void replicas_stop_copy(struct replicas *world, uint64_t process);
void replicas_link(struct replicas *world, uint64_t from, uint64_t to, bool is_up);

/* What is still under way, at the end. */
void replicas_free_links(struct replicas *world);

/* leader.c: one change of the entry, if there is one to make. */
void replicas_lead(struct replicas *world);
bool replicas_is_named(const struct replicas *world, uint64_t process);

#endif
