/*
 * Messages between two processes of one machine through memory that both map.
 *
 * A message is a list of parts. Small ones are copied into a ring (layout.h). Large ones are in an
 * area of the sender, are passed by location, and read in place: the sender must not change them
 * until the receiver has released the message, or never again if the channel ended before that.
 *
 *     sender                                     receiver
 *     area ──────── descriptor, once ──────────► mapped to be read
 *     send ──────── frame in the ring ─────────► receive: copied, then checked
 *     done ◄─────── number in its page ───────── release
 *
 * The socket beside it wakes a sleeping peer, and its end is the end of the channel. So the death
 * of a process is noticed at once, at any moment.
 *
 * To wait: receive until KELP_ERR_BUSY, kelp_shm_channel_rest(), wait until the socket is readable,
 * kelp_shm_channel_wake(), receive again.
 *
 * Threads: one sender at a time (with collect and sweep), and one receiver at a time (with rest and
 * wake); they may differ. Any thread may release a message, also after the close. All input of the
 * peer is bounded and checked. After any error, except KELP_ERR_BUSY and a send's KELP_ERR_LIMIT,
 * the channel can only be closed.
 */
#ifndef KELP_COMMON_SHM_SHM_CHANNEL_H
#define KELP_COMMON_SHM_SHM_CHANNEL_H

#include "common/base/status.h"
#include "common/shm/shm_area.h"

struct kelp_shm_channel;

/* socket: of kelp_shm_accept() or kelp_shm_connect(), transferred even on an error. Messages of the
 * other side have at most message_bytes_max. Does not wait for it. Errors: those of
 * kelp_shm_area_create(), KELP_ERR_CLOSED. */
kelp_status kelp_shm_channel_open(int socket, size_t message_bytes_max,
                                  struct kelp_shm_channel **ret_channel,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Messages that were not released are done with read = false. NULL does nothing. */
void kelp_shm_channel_close(struct kelp_shm_channel *channel);
/* To wait for. Borrowed. */
int kelp_shm_channel_socket(const struct kelp_shm_channel *channel);

/* ---- sending ---- */

struct kelp_shm_part {
    const void *bytes;
    size_t length;
    struct kelp_shm_area *area; /* own, in which they lie; NULL: they are copied */
};

/* The parts in areas are done: read is true when the receiver has released them. Otherwise the
 * channel ended, and the other process may read them at any time: nothing may be written there any
 * more. Called once, inside send, collect or close; must not call back into the channel. */
typedef void (*kelp_shm_done)(void *user, bool read);

/* Send. done may be NULL, and is not called without parts in areas, nor after an error.
 * Errors: KELP_ERR_BUSY (no room now: try again when the socket has woken us), KELP_ERR_LIMIT
 * (KELP_SHM_PARTS_MAX, KELP_SHM_COPIED_MAX, KELP_SHM_AREAS_MAX), KELP_ERR_CLOSED,
 * KELP_ERR_CORRUPT. */
kelp_status kelp_shm_channel_send(struct kelp_shm_channel *channel,
                                  const struct kelp_shm_part *parts, size_t count,
                                  kelp_shm_done done, void *user,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* As after KELP_ERR_BUSY of a send: the next release wakes us. For who lends no more until then. */
void kelp_shm_channel_want(struct kelp_shm_channel *channel);
/* Find what was released: no bell rings for that. */
void kelp_shm_channel_collect(struct kelp_shm_channel *channel);
/* Messages with parts in areas that have not been released yet. */
size_t kelp_shm_channel_lent(const struct kelp_shm_channel *channel);
/* Forget areas that are retired, here and at the other side. Costs nothing where none is. */
void kelp_shm_channel_sweep(struct kelp_shm_channel *channel);

/* ---- receiving ---- */

struct kelp_shm_message;

struct kelp_shm_bytes {
    const uint8_t *bytes;
    size_t length;
};

/* The next message; owned. Errors: KELP_ERR_BUSY (there is none), KELP_ERR_CLOSED (the other side
 * has gone, and all that it sent has been received), KELP_ERR_UNSUPPORTED (another version),
 * KELP_ERR_FORMAT, KELP_ERR_CORRUPT, KELP_ERR_DENIED, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_shm_channel_receive(struct kelp_shm_channel *channel,
                                     struct kelp_shm_message **ret_message,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Is there one, or something wrong? Does not ask the socket, which tells of the end. */
bool kelp_shm_channel_has_message(const struct kelp_shm_channel *channel);
size_t kelp_shm_message_length(const struct kelp_shm_message *message);
size_t kelp_shm_message_part_count(const struct kelp_shm_message *message);
/* Copied parts are ours. Parts in an area are the sender's, which may change them at any time. */
struct kelp_shm_bytes kelp_shm_message_part(const struct kelp_shm_message *message, size_t index);
/* Does it lie in an area of the sender? */
bool kelp_shm_message_part_is_shared(const struct kelp_shm_message *message, size_t index);
/* NULL does nothing. */
void kelp_shm_message_release(struct kelp_shm_message *message);

/* True: ask the socket before the next look. False: something has come, perhaps room for what could
 * not be sent, and nobody rings. */
bool kelp_shm_channel_rest(struct kelp_shm_channel *channel);
void kelp_shm_channel_wake(struct kelp_shm_channel *channel);

#endif
