#include "ps/shard/snapshot_thread.h"

#include <assert.h>
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/files.h"
#include "common/log/log.h"
#include "common/training/manifest.h"
#include "ps/core/limits.h"
#include "ps/core/snapshot/snapshot_work.h"

struct wish {
    bool stop;
    struct kelp_snapshot_work work;
    struct kelp_snapshot_id id; /* of work.ticket, like path */
    char path[PATH_MAX];
};

struct kelp_snapshot_thread {
    struct kelp_snapshot_thread_options options;
    pthread_t thread;
    pthread_mutex_t lock; /* guards wish; no other lock is taken under it */
    pthread_cond_t changed;
    struct wish wish;

    /* Used by the thread only: */
    uint64_t ticket; /* of the writer */
    struct kelp_snapshot_task task;
    struct kelp_snapshot_id id; /* of task.ticket, like path */
    char path[PATH_MAX];
    struct kelp_snapshot_writer *writer;
};

/* ---- wishes ---- */

void kelp_snapshot_thread_begin(struct kelp_snapshot_thread *thread, uint64_t ticket,
                                const char *path, const struct kelp_snapshot_id *id)
{
    assert(strlen(path) < sizeof(thread->wish.path));
    (void)pthread_mutex_lock(&thread->lock);
    kelp_snapshot_work_begin(&thread->wish.work, ticket);
    thread->wish.id = *id;
    (void)snprintf(thread->wish.path, sizeof(thread->wish.path), "%s", path);
    (void)pthread_cond_signal(&thread->changed);
    (void)pthread_mutex_unlock(&thread->lock);
}

static void want(struct kelp_snapshot_thread *thread, uint64_t ticket, enum kelp_snapshot_job job,
                 uint32_t partition)
{
    (void)pthread_mutex_lock(&thread->lock);
    kelp_snapshot_work_want(&thread->wish.work, ticket, job, partition);
    (void)pthread_cond_signal(&thread->changed);
    (void)pthread_mutex_unlock(&thread->lock);
}

void kelp_snapshot_thread_write(struct kelp_snapshot_thread *thread, uint64_t ticket,
                                uint32_t partition)
{
    want(thread, ticket, KELP_SNAPSHOT_JOB_WRITE, partition);
}

void kelp_snapshot_thread_sync(struct kelp_snapshot_thread *thread, uint64_t ticket)
{
    want(thread, ticket, KELP_SNAPSHOT_JOB_SYNC, 0);
}

void kelp_snapshot_thread_discard(struct kelp_snapshot_thread *thread, uint64_t ticket)
{
    (void)pthread_mutex_lock(&thread->lock);
    kelp_snapshot_work_discard(&thread->wish.work, ticket);
    (void)pthread_cond_signal(&thread->changed);
    (void)pthread_mutex_unlock(&thread->lock);
}

/* ---- the thread ---- */

static kelp_status write_items(struct kelp_snapshot_writer *writer,
                               const struct kelp_capture *capture, struct kelp_error *reterr)
{
    unsigned char control[KELP_CONTROL_BYTES];
    kelp_status status = KELP_OK;

    if (capture->has_control) {
        kelp_control_pack(&capture->control, control);
        status = kelp_snapshot_writer_item(writer, KELP_SNAPSHOT_CONTROL, control, sizeof(control),
                                           reterr);
    }
    if (status == KELP_OK) {
        status = kelp_snapshot_writer_item(writer, KELP_SNAPSHOT_WEIGHTS, capture->weights,
                                           capture->bytes, reterr);
    }
    for (uint32_t i = 0; status == KELP_OK && i < capture->slot_count; i++) {
        status = kelp_snapshot_writer_item(writer, KELP_SNAPSHOT_SLOT + i, capture->slots[i],
                                           capture->bytes, reterr);
    }
    return status;
}

static kelp_status write_part(struct kelp_snapshot_thread *thread, char *ret_digest,
                              uint64_t *ret_bytes, struct kelp_error *reterr)
{
    const struct kelp_snapshot_task *task = &thread->task;
    struct kelp_capture capture = {0};
    kelp_status status = KELP_OK;

    if (!thread->writer) {
        thread->ticket = task->ticket;
        status = kelp_snapshot_writer_open(thread->path, &thread->id, &thread->writer, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    status = kelp_shard_snapshot_part(thread->options.shard, task->ticket, task->partition,
                                      &capture, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_snapshot_writer_part(thread->writer, task->partition, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    status = write_items(thread->writer, &capture, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    kelp_snapshot_writer_digest(thread->writer, ret_digest, ret_bytes);

release:
    kelp_capture_release(&capture);
    return status;
}

static void report_failure(struct kelp_snapshot_thread *thread, kelp_status status,
                           const struct kelp_error *error)
{
    kelp_snapshot_writer_abandon(thread->writer);
    thread->writer = NULL;
    thread->options.events->failed(thread->task.ticket, status, error->text, thread->options.user);
}

static void do_write(struct kelp_snapshot_thread *thread)
{
    struct kelp_error error = {.text = ""};
    char digest[KELP_DIGEST_HEX_BYTES];
    uint64_t bytes = 0;
    kelp_status status = write_part(thread, digest, &bytes, &error);

    if (status == KELP_OK) {
        thread->options.events->written(thread->task.ticket, thread->task.partition, digest, bytes,
                                        thread->options.user);
    } else {
        report_failure(thread, status, &error);
    }
}

static void do_sync(struct kelp_snapshot_thread *thread)
{
    struct kelp_error error = {.text = ""};
    struct kelp_snapshot_writer *writer = thread->writer;

    assert(writer);
    thread->writer = NULL;
    kelp_status status = kelp_snapshot_writer_finish(writer, &error);
    if (status != KELP_OK) {
        report_failure(thread, status, &error);
    } else if (!thread->options.events->synced(thread->task.ticket, thread->options.user) &&
               kelp_files_remove(thread->path, &error) != KELP_OK) {
        kelp_log_warn("snapshot not removed error=\"%s\"", error.text);
    }
}

/* "<shard>.<incarnation>.writing": begun by a process that has ended. */
static bool is_leftover(const char *name, const char *shard_id)
{
    static const char suffix[] = ".writing";
    size_t id_bytes = strlen(shard_id);
    size_t bytes = strlen(name);

    return strncmp(name, shard_id, id_bytes) == 0 && name[id_bytes] == '.' &&
           bytes > id_bytes + sizeof(suffix) &&
           strcmp(name + bytes - (sizeof(suffix) - 1), suffix) == 0;
}

static void remove_leftovers_of(const char *folder, const char *shard_id)
{
    char path[PATH_MAX];
    struct kelp_error error;
    const struct dirent *entry;
    DIR *entries = opendir(folder);

    while (entries && (entry = readdir(entries))) {
        int length = snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (!is_leftover(entry->d_name, shard_id) || length >= (int)sizeof(path)) {
            continue;
        }
        if (kelp_files_remove(path, &error) == KELP_OK) {
            kelp_log_info("unfinished snapshot removed path=\"%s\"", path);
        } else {
            kelp_log_warn("unfinished snapshot not removed error=\"%s\"", error.text);
        }
    }
    if (entries) {
        (void)closedir(entries);
    }
}

static void remove_leftovers(const char *checkpoints, const char *shard_id)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    DIR *entries = opendir(checkpoints); /* absent before the first checkpoint */

    while (entries && (entry = readdir(entries))) {
        int length = snprintf(path, sizeof(path), "%s/%s", checkpoints, entry->d_name);
        if (kelp_folder_name_valid(entry->d_name) && length < (int)sizeof(path)) {
            remove_leftovers_of(path, shard_id);
        }
    }
    if (entries) {
        (void)closedir(entries);
    }
}

/* Training is more urgent than writing. */
static void lower_priority(void)
{
    struct sched_param parameter = {.sched_priority = 0};

    if (pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameter) != 0 ||
        setpriority(PRIO_PROCESS, 0, KELP_PS_SNAPSHOT_NICE) != 0) {
        kelp_log_debug("snapshots are written at normal priority");
    }
}

/* Wait for the next task. False: the thread ends. */
static bool next_task(struct kelp_snapshot_thread *thread)
{
    (void)pthread_mutex_lock(&thread->lock);
    while (!thread->wish.stop && !kelp_snapshot_work_next(&thread->wish.work, &thread->task)) {
        (void)pthread_cond_wait(&thread->changed, &thread->lock);
    }
    thread->id = thread->wish.id;
    memcpy(thread->path, thread->wish.path, sizeof(thread->path));
    bool more = !thread->wish.stop;
    (void)pthread_mutex_unlock(&thread->lock);
    return more;
}

static void discard(struct kelp_snapshot_thread *thread, uint64_t ticket)
{
    if (thread->ticket <= ticket) {
        kelp_snapshot_writer_abandon(thread->writer);
        thread->writer = NULL;
    }
    kelp_shard_snapshot_discard(thread->options.shard, ticket);
}

static void *run(void *user)
{
    struct kelp_snapshot_thread *thread = user;

    lower_priority();
    if (thread->options.checkpoints[0] != '\0') {
        remove_leftovers(thread->options.checkpoints, thread->options.shard_id);
    }
    while (next_task(thread)) {
        if (thread->task.discard != 0) {
            discard(thread, thread->task.discard);
        }
        switch (thread->task.job) {
        case KELP_SNAPSHOT_JOB_NONE:
            break;
        case KELP_SNAPSHOT_JOB_PREPARE:
            kelp_shard_snapshot_prepare(thread->options.shard);
            break;
        case KELP_SNAPSHOT_JOB_WRITE:
            do_write(thread);
            break;
        case KELP_SNAPSHOT_JOB_SYNC:
            do_sync(thread);
            break;
        }
    }
    kelp_snapshot_writer_abandon(thread->writer);
    return NULL;
}

/* ---- life ---- */

kelp_status kelp_snapshot_thread_start(const struct kelp_snapshot_thread_options *options,
                                       struct kelp_snapshot_thread **ret_thread,
                                       struct kelp_error *reterr)
{
    struct kelp_snapshot_thread *thread = calloc(1, sizeof(*thread));

    if (!thread) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the thread of snapshots");
    }
    thread->options = *options;
    (void)pthread_mutex_init(&thread->lock, NULL);
    (void)pthread_cond_init(&thread->changed, NULL);
    if (pthread_create(&thread->thread, NULL, run, thread) != 0) {
        (void)pthread_cond_destroy(&thread->changed);
        (void)pthread_mutex_destroy(&thread->lock);
        free(thread);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no thread for snapshots");
    }
    *ret_thread = thread;
    return KELP_OK;
}

void kelp_snapshot_thread_stop(struct kelp_snapshot_thread *thread)
{
    if (!thread) {
        return;
    }
    (void)pthread_mutex_lock(&thread->lock);
    thread->wish.stop = true;
    (void)pthread_cond_signal(&thread->changed);
    (void)pthread_mutex_unlock(&thread->lock);
    (void)pthread_join(thread->thread, NULL);
    (void)pthread_cond_destroy(&thread->changed);
    (void)pthread_mutex_destroy(&thread->lock);
    free(thread);
}
