/*
 * The thread that writes a shard's snapshots, so that training never waits for the disk. It does
 * what ps/core/snapshot/snapshot.h asks for: one thing at a time, for the newest ticket; whatever
 * it still holds of an older one it removes first.
 *
 * Threads: calls from any, which never wait for the disk; the events run on the writing thread.
 */
#ifndef KELP_PS_SHARD_SNAPSHOT_THREAD_H
#define KELP_PS_SHARD_SNAPSHOT_THREAD_H

#include "ps/shard/shard.h"
#include "ps/storage/snapshot_store.h"

struct kelp_snapshot_thread;

struct kelp_snapshot_thread_events {
    void (*written)(uint64_t ticket, uint32_t partition, const char *digest, uint64_t bytes,
                    void *user);
    /* Durable under the path of begin(). False: nobody wants it any more, and it is removed. */
    bool (*synced)(uint64_t ticket, void *user);
    void (*failed)(uint64_t ticket, kelp_status status, const char *text, void *user);
};

/* Everything is borrowed until stop. */
struct kelp_snapshot_thread_options {
    struct kelp_shard *shard;
    const char *checkpoints; /* folder of all checkpoints; "": none, and nothing to clean up */
    const char *shard_id;    /* what former starts of this shard left unfinished is removed */
    const struct kelp_snapshot_thread_events *events;
    void *user;
};

kelp_status kelp_snapshot_thread_start(const struct kelp_snapshot_thread_options *options,
                                       struct kelp_snapshot_thread **ret_thread,
                                       struct kelp_error *reterr) KELP_MUST_USE;
/* Ends what the disk is doing just now, removes what is unfinished, joins. NULL does nothing. */
void kelp_snapshot_thread_stop(struct kelp_snapshot_thread *thread);

/* A new ticket, larger than any before it; path is copied. */
void kelp_snapshot_thread_begin(struct kelp_snapshot_thread *thread, uint64_t ticket,
                                const char *path, const struct kelp_snapshot_id *id);
/* Of the newest ticket; those of others are ignored. One at a time: the next one after the event.
 */
void kelp_snapshot_thread_write(struct kelp_snapshot_thread *thread, uint64_t ticket,
                                uint32_t partition);
void kelp_snapshot_thread_sync(struct kelp_snapshot_thread *thread, uint64_t ticket);
void kelp_snapshot_thread_discard(struct kelp_snapshot_thread *thread, uint64_t ticket);

#endif
