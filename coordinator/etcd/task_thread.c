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

struct kelp_helper {
    struct kelp_rpc_loop *loop;
    pthread_t thread;
    bool joined;            /* the loop's thread alone */
    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t wakeup;  /* a task is there, or stopping */
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
    if (task != NULL) {
        list->first = task->next;
        list->count--;
        if (list->first == NULL) {
            list->end = &list->first;
        }
    }
    return task;
}

/* In the loop: report what ended. */
static void collect(void *user)
{
    struct kelp_helper *helper = user;
    for (;;) {
        (void)pthread_mutex_lock(&helper->lock);
        struct kelp_task *task = list_pop(&helper->ended);
        (void)pthread_mutex_unlock(&helper->lock);
        if (task == NULL) {
            return;
        }
        task->done(task);
    }
}

static void *helper_main(void *user)
{
    struct kelp_helper *helper = user;
    (void)pthread_mutex_lock(&helper->lock);
    for (;;) {
        while (helper->todo.first == NULL && !helper->stopping) {
            (void)pthread_cond_wait(&helper->wakeup, &helper->lock);
        }
        if (helper->stopping) {
            break;
        }
        struct kelp_task *task = list_pop(&helper->todo);
        (void)pthread_mutex_unlock(&helper->lock);
        task->run(task);
        (void)pthread_mutex_lock(&helper->lock);
        list_push(&helper->ended, task);
        (void)pthread_mutex_unlock(&helper->lock);
        /* Out of memory: the next report, or kelp_helper_stop(), collects this one too. */
        kelp_status status = kelp_rpc_loop_post(helper->loop, collect, helper);
        (void)status;
        (void)pthread_mutex_lock(&helper->lock);
    }
    (void)pthread_mutex_unlock(&helper->lock);
    return NULL;
}

kelp_status kelp_helper_start(struct kelp_rpc_loop *loop, struct kelp_helper **ret_helper,
                              struct kelp_error *reterr)
{
    struct kelp_helper *helper = calloc(1, sizeof(*helper));
    if (helper == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the helper thread");
    }
    helper->loop = loop;
    list_init(&helper->todo);
    list_init(&helper->ended);
    (void)pthread_mutex_init(&helper->lock, NULL);
    (void)pthread_cond_init(&helper->wakeup, NULL);
    if (pthread_create(&helper->thread, NULL, helper_main, helper) != 0) {
        helper->joined = true;
        kelp_helper_destroy(helper);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot start the helper thread");
    }
    *ret_helper = helper;
    return KELP_OK;
}

kelp_status kelp_helper_submit(struct kelp_helper *helper, struct kelp_task *task)
{
    kelp_status status = KELP_OK;
    task->cancelled = false;
    (void)pthread_mutex_lock(&helper->lock);
    if (helper->stopping) {
        status = KELP_ERR_CLOSED;
    } else if (helper->todo.count >= KELP_COORDINATOR_TASKS_MAX) {
        status = KELP_ERR_LIMIT;
    } else {
        list_push(&helper->todo, task);
        (void)pthread_cond_signal(&helper->wakeup);
    }
    (void)pthread_mutex_unlock(&helper->lock);
    return status;
}

void kelp_helper_stop(struct kelp_helper *helper)
{
    if (helper->joined) {
        return;
    }
    (void)pthread_mutex_lock(&helper->lock);
    helper->stopping = true;
    (void)pthread_cond_signal(&helper->wakeup);
    (void)pthread_mutex_unlock(&helper->lock);
    (void)pthread_join(helper->thread, NULL);
    helper->joined = true;
    for (struct kelp_task *task = list_pop(&helper->todo); task != NULL;
         task = list_pop(&helper->todo)) {
        task->cancelled = true;
        list_push(&helper->ended, task);
    }
    collect(helper);
}

void kelp_helper_destroy(struct kelp_helper *helper)
{
    if (helper == NULL) {
        return;
    }
    assert(helper->joined);
    (void)pthread_mutex_destroy(&helper->lock);
    (void)pthread_cond_destroy(&helper->wakeup);
    free(helper);
}
