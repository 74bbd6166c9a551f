#include "coordinator/files/event_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/json.h"
#include "common/log/log.h"
#include "coordinator/common/term_now.h"

struct event_task {
    struct kelp_task task;
    struct kelp_event_log *log;
    const char *run_folder;
    size_t bytes;
    kelp_status status;
    struct kelp_error error;
    char line[KELP_COORDINATOR_LINE_MAX];
};

const char *kelp_event_name(enum kelp_event_kind kind)
{
    static const char *const names[KELP_EVENT_KIND_COUNT] = {
        [KELP_EVENT_LEADS] = "leader",
        [KELP_EVENT_LEADS_NO_MORE] = "leader-ended",
        [KELP_EVENT_WORKER_JOINED] = "worker-joined",
        [KELP_EVENT_WORKER_LEFT] = "worker-left",
        [KELP_EVENT_WORKER_LOST] = "worker-lost",
        [KELP_EVENT_SHARD_JOINED] = "shard-joined",
        [KELP_EVENT_SHARD_LOST] = "shard-lost",
        [KELP_EVENT_DRAINING] = "draining",
        [KELP_EVENT_DRAINED] = "drained",
        [KELP_EVENT_GENERATION] = "generation",
        [KELP_EVENT_PROMOTED] = "promoted",
        [KELP_EVENT_MOVED] = "moved",
        [KELP_EVENT_LOADED] = "loaded",
        [KELP_EVENT_CHECKPOINT] = "checkpoint",
        [KELP_EVENT_CHECKPOINT_FAILED] = "checkpoint-failed",
        [KELP_EVENT_STATE] = "state",
    };
    return names[kind];
}

/* ---- a line ---- */

static void print_time(FILE *out)
{
    uint64_t now_ms = kelp_unix_ms();
    time_t seconds = (time_t)(now_ms / 1000);
    struct tm utc;
    char text[32] = "";
    if (gmtime_r(&seconds, &utc)) {
        (void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
    }
    (void)fprintf(out, "{\"time\":\"%s.%03uZ\"", text, (unsigned)(now_ms % 1000));
}

static void print_text(FILE *out, const char *name, const char *text)
{
    char cut[KELP_COORDINATOR_REASON_MAX + 1]; /* may cut a longer text of a peer */
    if (text && text[0] != '\0') {
        (void)snprintf(cut, sizeof(cut), "%s", text);
        kelp_json_print_member(out, ",", name, cut);
    }
}

static void print_number(FILE *out, const char *name, bool known, uint64_t value)
{
    if (known) {
        (void)fprintf(out, ",\"%s\":%" PRIu64, name, value);
    }
}

static void print_line(FILE *out, const char *leader, const struct kelp_event *event)
{
    print_time(out);
    print_text(out, "leader", leader);
    print_text(out, "event", kelp_event_name(event->kind));
    print_text(out, "who", event->who);
    print_text(out, "why", event->why);
    print_number(out, "generation", event->generation > 0, event->generation);
    print_number(out, "serial", event->serial > 0, event->serial);
    print_number(out, "step", event->has_step, event->step);
    print_number(out, "recomputed", event->recomputed > 0, event->recomputed);
    print_number(out, "took_ms", event->timed, event->took_ms);
    (void)fprintf(out, "}\n");
}

/* ---- on the disk's thread ---- */

/* The file has reached its limit: rename it, unless another leader has done so already. */
static void make_room(int fd, const char *path)
{
    char older[4096 + 2];
    struct stat held, there;
    (void)snprintf(older, sizeof(older), "%s.1", path);
    if (flock(fd, LOCK_EX) == 0) {
        if (fstat(fd, &held) == 0 && stat(path, &there) == 0 && held.st_ino == there.st_ino) {
            (void)!rename(path, older); /* on failure it grows until the next line */
        }
        (void)flock(fd, LOCK_UN);
    }
}

static kelp_status append(const char *folder, const char *line, size_t bytes,
                          struct kelp_error *reterr)
{
    char path[4096];
    struct stat info;
    int length = snprintf(path, sizeof(path), "%s/events.jsonl", folder);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "run folder: the path is too long");
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    }
    kelp_status status = KELP_OK;
    if (!kelp_files_write_all(fd, line, bytes)) {
        status = kelp_fail(reterr, KELP_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    } else if (fstat(fd, &info) == 0 && info.st_size >= KELP_COORDINATOR_EVENTS_BYTES) {
        make_room(fd, path);
    }
    (void)close(fd);
    return status;
}

static void run(struct kelp_task *base)
{
    struct event_task *task = KELP_CONTAINER_OF(base, struct event_task, task);
    task->status = append(task->run_folder, task->line, task->bytes, &task->error);
}

/* ---- on the loop ---- */

static void done(struct kelp_task *base)
{
    struct event_task *task = KELP_CONTAINER_OF(base, struct event_task, task);
    struct kelp_event_log *log = task->log;
    log->waiting--;
    if (task->status != KELP_OK) {
        log->lost++;
    }
    if (log->waiting == 0 && log->lost > 0) {
        kelp_log_warn("events were not kept count=%" PRIu64 " error=\"%s\"", log->lost,
                      task->status == KELP_OK ? "too many waited for the disk" : task->error.text);
        log->lost = 0;
    }
    free(task);
}

static bool submit(struct kelp_event_log *log, const struct kelp_event *event)
{
    struct event_task *task = calloc(1, sizeof(*task));
    FILE *out = task ? fmemopen(task->line, sizeof(task->line), "w") : NULL;
    if (!out) {
        free(task);
        return false;
    }
    print_line(out, log->leader, event);
    long length = ftell(out);
    bool whole = fclose(out) == 0 && length > 0 && (size_t)length < sizeof(task->line);
    task->task.run = run;
    task->task.done = done;
    task->log = log;
    task->run_folder = log->run_folder;
    task->bytes = whole ? (size_t)length : 0;
    if (!whole || kelp_task_thread_submit(log->disk, &task->task) != KELP_OK) {
        free(task);
        return false;
    }
    log->waiting++;
    return true;
}

void kelp_event_log_add(struct kelp_event_log *log, const struct kelp_event *event)
{
    if (log->waiting >= KELP_COORDINATOR_EVENTS_MAX || !submit(log, event)) {
        log->lost++;
    }
}
