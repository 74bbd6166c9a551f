/*
 * A thread for what blocks (etcd calls, syncing files), so that the loop never waits: tasks run in
 * order, one at a time, and report back inside the loop.
 */
#ifndef KELP_COORDINATOR_ETCD_TASK_THREAD_H
#define KELP_COORDINATOR_ETCD_TASK_THREAD_H

#include "common/base/status.h"
#include "common/rpc/rpc.h"

/* Embedded in the caller's own struct. */
struct kelp_task {
    void (*run)(struct kelp_task *task);  /* on the task thread */
    void (*done)(struct kelp_task *task); /* in the loop, exactly once; frees the task */
    bool cancelled;                       /* run() was not called: we are stopping */
    struct kelp_task *next;
};

struct kelp_task_thread;

/* loop is borrowed until kelp_task_thread_destroy(). */
kelp_status kelp_task_thread_start(struct kelp_rpc_loop *loop, struct kelp_task_thread **ret_tasks,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* The task is transferred on success only. Errors: KELP_ERR_LIMIT (KELP_COORDINATOR_TASKS_MAX
 * wait), KELP_ERR_CLOSED (stopped). Threads: the loop's. */
kelp_status kelp_task_thread_submit(struct kelp_task_thread *tasks,
                                    struct kelp_task *task) KELP_MUST_USE;
/* One that must be done: there is no limit. Errors: KELP_ERR_CLOSED. */
kelp_status kelp_task_thread_submit_last(struct kelp_task_thread *tasks,
                                         struct kelp_task *task) KELP_MUST_USE;
/* Wait for the running task, cancel the others, call every done() that is left. The loop's thread.
 * Twice is harmless. */
void kelp_task_thread_stop(struct kelp_task_thread *tasks);
/* After the loop was destroyed, since a report may be in progress in it. NULL does nothing. */
void kelp_task_thread_destroy(struct kelp_task_thread *tasks);

#endif
