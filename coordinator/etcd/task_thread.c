#include "coordinator/etcd/task_thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "coordinator/core/limits.h"

struct task_list {
    struct kelp_task *first;
    struct kelp_task **end;
    size_t count;
};

struct kelp_task_thread {
    struct kelp_rpc_loop *loop;
    pthread_t thread;
    bool joined;            /* used on the loop's thread only */
    pthread_mutex_t lock;   /* guards the rest */
    pthread_cond_t wakeup;  /* there is a task, or stopping */
    struct task_list todo;  /* FIFO */
    struct task_list ended; /* done() not called yet */
    bool stopping;
};

static void list_init(struct task_list *list)
{
    *list = (struct task_list){0};
    list->end = &list->first;
}

static void list_push(struct task_list *list, struct kelp_task *task)
{
    task->next = NULL;
    *list->end = task;
    list->end = &task->next;
    list->count++;
}

static struct kelp_task *list_pop(struct task_list *list)
{
    struct kelp_task *task = list->first;
    if (task) {
        list->first = task->next;
        list->count--;
        if (!list->first) {
            list->end = &list->first;
        }
    }
    return task;
}

/* Runs on the loop: report the tasks that ended. */
static void collect(void *user)
{
    struct kelp_task_thread *tasks = user;
    for (;;) {
        (void)pthread_mutex_lock(&tasks->lock);
        struct kelp_task *task = list_pop(&tasks->ended);
        (void)pthread_mutex_unlock(&tasks->lock);
        if (!task) {
            return;
        }
        task->done(task);
    }
}

static void *task_thread_main(void *user)
{
    struct kelp_task_thread *tasks = user;
    (void)pthread_mutex_lock(&tasks->lock);
    for (;;) {
        while (!tasks->todo.first && !tasks->stopping) {
            (void)pthread_cond_wait(&tasks->wakeup, &tasks->lock);
        }
        if (tasks->stopping) {
            break;
        }
        struct kelp_task *task = list_pop(&tasks->todo);
        (void)pthread_mutex_unlock(&tasks->lock);
        task->run(task);
        (void)pthread_mutex_lock(&tasks->lock);
        list_push(&tasks->ended, task);
        (void)pthread_mutex_unlock(&tasks->lock);
        /* Out of memory: the next report, or kelp_task_thread_stop(), collects this one too. */
        kelp_status status = kelp_rpc_loop_post(tasks->loop, collect, tasks);
        (void)status;
        (void)pthread_mutex_lock(&tasks->lock);
    }
    (void)pthread_mutex_unlock(&tasks->lock);
    return NULL;
}

kelp_status kelp_task_thread_start(struct kelp_rpc_loop *loop, struct kelp_task_thread **ret_tasks,
                                   struct kelp_error *reterr)
{
    struct kelp_task_thread *tasks = calloc(1, sizeof(*tasks));
    if (!tasks) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the helper thread");
    }
    tasks->loop = loop;
    list_init(&tasks->todo);
    list_init(&tasks->ended);
    (void)pthread_mutex_init(&tasks->lock, NULL);
    (void)pthread_cond_init(&tasks->wakeup, NULL);
    if (pthread_create(&tasks->thread, NULL, task_thread_main, tasks) != 0) {
        tasks->joined = true;
        kelp_task_thread_destroy(tasks);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot start the helper thread");
    }
    *ret_tasks = tasks;
    return KELP_OK;
}

static kelp_status submit(struct kelp_task_thread *tasks, struct kelp_task *task, size_t limit)
{
    kelp_status status = KELP_OK;
    task->cancelled = false;
    (void)pthread_mutex_lock(&tasks->lock);
    if (tasks->stopping) {
        status = KELP_ERR_CLOSED;
    } else if (tasks->todo.count >= limit) {
        status = KELP_ERR_LIMIT;
    } else {
        list_push(&tasks->todo, task);
        (void)pthread_cond_signal(&tasks->wakeup);
    }
    (void)pthread_mutex_unlock(&tasks->lock);
    return status;
}

kelp_status kelp_task_thread_submit(struct kelp_task_thread *tasks, struct kelp_task *task)
{
    return submit(tasks, task, KELP_COORDINATOR_TASKS_MAX);
}

kelp_status kelp_task_thread_submit_last(struct kelp_task_thread *tasks, struct kelp_task *task)
{
    return submit(tasks, task, SIZE_MAX);
}

void kelp_task_thread_stop(struct kelp_task_thread *tasks)
{
    if (tasks->joined) {
        return;
    }
    (void)pthread_mutex_lock(&tasks->lock);
    tasks->stopping = true;
    (void)pthread_cond_signal(&tasks->wakeup);
    (void)pthread_mutex_unlock(&tasks->lock);
    (void)pthread_join(tasks->thread, NULL);
    tasks->joined = true;
    for (struct kelp_task *task = list_pop(&tasks->todo); task; task = list_pop(&tasks->todo)) {
        task->cancelled = true;
        list_push(&tasks->ended, task);
    }
    collect(tasks);
}

void kelp_task_thread_destroy(struct kelp_task_thread *tasks)
{
    if (!tasks) {
        return;
    }
    assert(tasks->joined);
    (void)pthread_mutex_destroy(&tasks->lock);
    (void)pthread_cond_destroy(&tasks->wakeup);
    free(tasks);
}
