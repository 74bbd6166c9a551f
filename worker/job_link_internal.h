/* The parts of the link to the job that its files share. */
#ifndef KELP_WORKER_JOB_LINK_INTERNAL_H
#define KELP_WORKER_JOB_LINK_INTERNAL_H

#include "common/log/trace.h"
#include "common/rpc/rpc.h"
#include "worker/core/stepper.h"
#include "worker/core/times.h"
#include "worker/job_link.h"
#include "worker/links/coordinator_link.h"
#include "worker/links/exchange_link.h"
#include "worker/links/loop_keeper.h"

/* What of a partition is in progress, for a trace. */
struct kelp__job_link_flight {
    uint64_t pushed_ns; /* its first push left; 0: none is in progress */
    uint64_t step;      /* of it */
    uint64_t pushes;
    uint64_t bytes;
    uint64_t asked_ns; /* for what follows; 0: it is not asked */
};

/* How far the node in work is complete. Its owner computes; whoever runs the loop tells the
 * stepper. */
struct kelp__job_link_ready {
    struct kelp_node node; /* set before `partition` is */
    uint64_t first;        /* the owner's: elements from here on are packed */
    uint32_t partition;    /* atomic: from here on; KELP__JOB_LINK_NOTHING: none is */
    uint32_t told;         /* the loop's: what the stepper knows of that */
};
#define KELP__JOB_LINK_NOTHING UINT32_MAX

/* What the weights of the work that was handed out are. */
enum kelp__job_link_ahead {
    KELP__JOB_LINK_WHOLE,    /* all are there */
    KELP__JOB_LINK_AHEAD,    /* they are coming, into the next vector */
    KELP__JOB_LINK_GIVEN_UP, /* they are not to come */
};

/* An answer whose weights the stepper may keep. */
struct kelp__job_link_incoming {
    uint32_t partition;
    uint64_t step;
    const struct kelp_wire_payload *payload; /* NULL: it has none */
    uint64_t offset;
    uint64_t length;
};

struct kelp_job_link {
    struct kelp_job_link_options options;
    char id[KELP_JOB_NAME_MAX + 1];
    char job_name[KELP_JOB_NAME_MAX + 1];
    struct kelp_etcd *etcd;
    struct kelp_job_file *file;
    const struct kelp_job *job;
    const struct kelp_plan *plan;
    char *plan_text;
    Kelp__V1__Hello hello;

    struct kelp_rpc_loop *loop;
    struct kelp_spin spin;           /* of the thread that waits for work */
    struct kelp_loop_keeper *keeper; /* runs the loop while lanes are computed */
    struct kelp_coordinator_link *coordinator;
    int news; /* atomic: the link has something to take */
    struct kelp_rpc_carrier *carriers[KELP_JOB_STREAMS_MAX]; /* of streams to a shard, where there
                                                                are several: the loop's */
    struct kelp_shard_link **links;                          /* by their numbers; NULL: none */
    uint32_t link_count;
    uint32_t links_alive; /* closed ones that have not ended yet included */

    struct kelp_stepper *stepper;
    struct kelp_stepper_actions actions;
    float *memory;
    struct kelp_job_link_memory memory_of;
    float *weights[2];
    unsigned current;
    struct kelp_gradient_pool *gradients;
    bool overlaps; /* kelp_job_link_overlaps() */
    struct kelp__job_link_ready ready;
    int ahead;           /* atomic: enum kelp__job_link_ahead */
    uint64_t *arrived;   /* atomic, of each partition: the step of its newest weights, and one */
    uint64_t work_step;  /* of the work that was handed out */
    uint64_t awaited_us; /* in kelp_job_link_await() since then */
    struct kelp__job_link_incoming incoming; /* in the event in progress */
    struct kelp_joining_progress progress;
    uint64_t waited_us; /* in the kelp_job_link_next() in progress */
    struct kelp_times times;
    uint64_t pushed_us;          /* with pushes since lanes were handed out */
    struct kelp_times_step step; /* of the lanes that are handed out, as far as it is known */
    uint64_t handed_out_us;      /* when lanes were handed out that are not done; 0: none are */
    uint64_t told_ms;            /* when the log was told last that late lanes are computed */
    struct kelp_rpc_timer *ask_timer;     /* only after a shard answered "busy" */
    struct kelp_rpc_timer *look_timer;    /* only while somebody watches */
    struct kelp_rpc_timer *trouble_timer; /* only while a shard cannot be reached */
    uint64_t asked_ms;                    /* atomic: when the worker was asked to end; 0: not yet */
    uint64_t leave_by_ms;                 /* 0: not leaving */
    bool drained;                         /* atomic: the coordinator wants it to end */
    struct kelp_error failure;            /* kelp_job_link_next() reports it */
    struct kelp__job_link_flight *flights; /* of each partition; NULL: there is no trace */
    struct {
        uint64_t begin_ns; /* of the work that was handed out; 0: it is not traced */
        uint64_t step;
        bool train;
    } traced;
};

/* job_link_actions.c. Give the event to the stepper, and carry out what it decides. */
void kelp__job_link_event(struct kelp_job_link *job_link, const struct kelp_stepper_event *event);
/* Carry out job_link->actions, which the stepper has written. */
void kelp__job_link_carry_out(struct kelp_job_link *job_link);
/* Did the event lead to an action of this kind? NULL: no. */
const struct kelp_stepper_action *kelp__job_link_action(const struct kelp_job_link *job_link,
                                                        enum kelp_stepper_action_kind kind);

/* The first failure is what kelp_job_link_next() reports. */
void kelp__job_link_fail(struct kelp_job_link *job_link, const struct kelp_error *error);
void kelp__job_link_end_timer(struct kelp_rpc_timer **timer);

void kelp__job_link_connect_link(struct kelp_job_link *job_link,
                                 const struct kelp_stepper_action *action);
void kelp__job_link_close_link(struct kelp_job_link *job_link, uint32_t number);
void kelp__job_link_close_links(struct kelp_job_link *job_link);

/* Take what the coordinator sent, if it did. */
void kelp__job_link_hear_news(struct kelp_job_link *job_link);

/* job_link_overlap.c. Lanes are handed out, perhaps ahead of their weights. The loop is the
 * owner's. */
void kelp__job_link_handed_out(struct kelp_job_link *job_link,
                               const struct kelp_stepper_action *action);
/* Nothing of the node in work is complete. The loop is the owner's. */
void kelp__job_link_forget_ready(struct kelp_job_link *job_link);
/* Tell the stepper how far the node in work is complete. */
void kelp__job_link_tell_ready(struct kelp_job_link *job_link);
/* Until all weights of the work are there, and the stepper has begun it. False: they are not to
 * come. */
bool kelp__job_link_await_all(struct kelp_job_link *job_link);
void kelp__job_link_give_up(struct kelp_job_link *job_link,
                            const struct kelp_stepper_action *action);

/* job_link_trace.c. Memory for a trace, if there is one; the plan is known. */
kelp_status kelp__job_link_trace_begin(struct kelp_job_link *job_link,
                                       struct kelp_error *reterr) KELP_MUST_USE;
/* Work is handed out: what was before it is over. */
void kelp__job_link_trace_work(struct kelp_job_link *job_link,
                               const struct kelp_control_word *word);
/* The message left; its sending began then. */
void kelp__job_link_trace_sent(struct kelp_job_link *job_link, uint64_t begin_ns,
                               const struct kelp_stepper_message *message);
/* A shard answered then; its weights, if they were wanted, are in place. */
void kelp__job_link_trace_answered(struct kelp_job_link *job_link, uint64_t begin_ns,
                                   const struct kelp_sync_answer *answer, bool is_kept);
/* The worker waited since then. */
void kelp__job_link_trace_waited(struct kelp_job_link *job_link, uint64_t begin_ns);
/* ... for this partition, in the middle of a lane. */
void kelp__job_link_trace_awaited(struct kelp_job_link *job_link, uint64_t begin_ns,
                                  uint32_t partition);

#endif
