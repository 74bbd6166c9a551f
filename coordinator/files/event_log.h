/*
 * events.jsonl of the run's folder: what changed while this coordinator led, why, and how long it
 * took; `kelp events` shows it. One JSON object a line:
 *
 *     {"time":"2026-01-31T12:00:00.123Z","leader":"coordinator-0","event":"shard-lost",
 *      "who":"shard-0","why":"it is silent","generation":2,"serial":1,"step":400,
 *      "recomputed":20,"took_ms":412}
 *
 * Members that say nothing are left out. It is for people: an event that cannot be written is
 * counted and told in the log, and nothing waits for it.
 *
 * Threads: the loop's; the disk's thread writes.
 */
#ifndef KELP_COORDINATOR_FILES_EVENT_LOG_H
#define KELP_COORDINATOR_FILES_EVENT_LOG_H

#include "coordinator/etcd/task_thread.h"
#include "coordinator/term/outside/term_effects.h"

struct kelp_event_log {
    const char *run_folder;        /* borrowed */
    const char *leader;            /* borrowed; our id */
    struct kelp_task_thread *disk; /* borrowed */
    uint32_t waiting;              /* for the disk */
    uint64_t lost;                 /* events, since the line about that before */
};

void kelp_event_log_add(struct kelp_event_log *log, const struct kelp_event *event);

/* As it stands in the file: "shard-lost". */
const char *kelp_event_name(enum kelp_event_kind kind);

#endif
