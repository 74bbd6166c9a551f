/* The receiving side of a channel. Data of the other process is copied first and then checked. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/shm/shm_channel_internal.h"
#include "common/shm/shm_socket.h"

/* ---- messages ---- */

struct piece {
    struct kelp_shm_bytes bytes;
    struct kelp_shm_area *area; /* a reference; NULL: the bytes were copied */
};

struct kelp_shm_message {
    struct kelp__shm_line *line;
    uint32_t slot; /* KELP_SHM_NO_SLOT: nothing to release */
    uint32_t use;
    size_t length;
    size_t count;
    struct piece pieces[]; /* `count` pieces, then the copied bytes */
};

static uint8_t *copied_of(struct kelp_shm_message *message)
{
    return (uint8_t *)&message->pieces[message->count];
}

/* A message without its parts. NULL: out of memory. */
static struct kelp_shm_message *message_new(struct kelp__shm_line *line,
                                            const struct kelp_shm_frame *frame)
{
    const size_t bytes = sizeof(struct kelp_shm_message) +
                         frame->part_count * sizeof(struct piece) + frame->copied_bytes;
    struct kelp_shm_message *message = calloc(1, bytes);

    if (message) {
        kelp__shm_line_ref(line);
        message->line = line;
        message->slot = frame->slot;
        message->use = frame->use;
        message->count = frame->part_count;
    }
    return message;
}

static void message_free(struct kelp_shm_message *message)
{
    for (size_t i = 0; i < message->count; i++) {
        kelp_shm_area_unref(message->pieces[i].area);
    }
    kelp__shm_line_unref(message->line);
    free(message);
}

void kelp_shm_message_release(struct kelp_shm_message *message)
{
    if (!message) {
        return;
    }
    if (message->slot != KELP_SHM_NO_SLOT) {
        atomic_store(&message->line->page->released[message->slot], message->use);
        kelp__shm_ring_want(message->line);
    }
    message_free(message);
}

size_t kelp_shm_message_length(const struct kelp_shm_message *message)
{
    return message->length;
}

size_t kelp_shm_message_part_count(const struct kelp_shm_message *message)
{
    return message->count;
}

struct kelp_shm_bytes kelp_shm_message_part(const struct kelp_shm_message *message, size_t index)
{
    return message->pieces[index].bytes;
}

bool kelp_shm_message_part_is_shared(const struct kelp_shm_message *message, size_t index)
{
    return message->pieces[index].area != NULL;
}

/* ---- notes ---- */

static kelp_status take_hello(struct kelp_shm_channel *channel, const struct kelp_shm_note *note,
                              int fd, struct kelp_error *reterr)
{
    struct kelp__shm_line *line = channel->line;

    if (atomic_load(&line->theirs)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a second hello came through a socket");
    }
    if (note->value != KELP_SHM_VERSION) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "the other process speaks version %u of shared memory, this one %u",
                         note->value, KELP_SHM_VERSION);
    }
    if (note->length != KELP_SHM_PAGE_BYTES) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a ring of %" PRIu64 " bytes came: it has %u",
                         note->length, KELP_SHM_PAGE_BYTES);
    }
    kelp_status status = kelp_shm_area_map(fd, note->length, &line->theirs_area, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_shm_page *theirs = kelp_shm_area_bytes(line->theirs_area);
    channel->reader = (struct kelp_shm_ring_reader){.bytes = (uint8_t *)theirs + KELP_SHM_RING_AT,
                                                    .capacity = KELP_SHM_RING_BYTES,
                                                    .sent = &theirs->sent,
                                                    .taken = &line->page->taken};
    atomic_store(&line->theirs, theirs);
    return KELP_OK;
}

static kelp_status take_area(struct kelp_shm_channel *channel, const struct kelp_shm_note *note,
                             int fd, struct kelp_error *reterr)
{
    struct kelp_shm_area *area = NULL;
    kelp_status status = kelp_shm_area_map(fd, note->length, &area, reterr);

    if (status != KELP_OK) {
        return status;
    }
    status = kelp_shm_area_table_add(&channel->came, note->value, area);
    kelp_shm_area_unref(area); /* the table holds a reference */
    return status == KELP_OK
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_FORMAT, "shared area %u came twice, or is one too many",
                           note->value);
}

static kelp_status judge_note(struct kelp_shm_channel *channel, const struct kelp_shm_note *note,
                              int fd, struct kelp_error *reterr)
{
    const bool brings = note->kind == KELP_SHM_NOTE_HELLO || note->kind == KELP_SHM_NOTE_AREA;

    if (brings != (fd >= 0)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a note of kind %u came %s a descriptor",
                         note->kind, fd >= 0 ? "with" : "without");
    }
    if (note->kind == KELP_SHM_NOTE_HELLO) {
        return take_hello(channel, note, fd, reterr);
    }
    if (!atomic_load(&channel->line->theirs) ||
        (note->kind != KELP_SHM_NOTE_AREA && note->kind != KELP_SHM_NOTE_BELL)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a note of kind %u came, unknown or before hello",
                         note->kind);
    }
    return note->kind == KELP_SHM_NOTE_AREA ? take_area(channel, note, fd, reterr) : KELP_OK;
}

/* KELP_ERR_BUSY: there is none. */
static kelp_status take_note(struct kelp_shm_channel *channel, struct kelp_error *reterr)
{
    struct kelp_shm_note note;
    int fd = -1;
    kelp_status status = kelp_shm_note_take(channel->line->socket, &note, &fd, reterr);

    if (status == KELP_ERR_CLOSED) {
        channel->ended = true;
    }
    if (status != KELP_OK) {
        return status;
    }
    status = judge_note(channel, &note, fd, reterr);
    if (fd >= 0) {
        (void)close(fd);
    }
    if (status == KELP_OK) {
        channel->news = true;
        kelp__shm_ring_want(channel->line);
    }
    return status;
}

/* ---- frames ---- */

bool kelp_shm_channel_has_message(const struct kelp_shm_channel *channel)
{
    size_t ready = 0;

    return channel->reader.sent &&
           (kelp_shm_ring_ready(&channel->reader, &ready, NULL) != KELP_OK || ready > 0);
}

/* The area of a part; its note was sent before the frame. NULL: unknown. */
static struct kelp_shm_area *find_area(struct kelp_shm_channel *channel, uint32_t name,
                                       struct kelp_error *reterr)
{
    struct kelp_shm_area *area = kelp_shm_area_table_find(&channel->came, name);

    while (!area && take_note(channel, reterr) == KELP_OK) {
        area = kelp_shm_area_table_find(&channel->came, name);
    }
    return area;
}

static kelp_status take_shared(struct kelp_shm_channel *channel,
                               const struct kelp_shm_frame_part *part, struct piece *piece,
                               struct kelp_error *reterr)
{
    struct kelp_error error = {.text = ""};
    struct kelp_shm_area *area = find_area(channel, part->area, &error);

    if (!area) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "a message lies in shared area %u, which did not come: %s", part->area,
                         error.text);
    }
    const size_t length = kelp_shm_area_length(area);
    if (part->offset > length || part->length > length - part->offset) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "a part of %" PRIu64 " bytes at %" PRIu64 " of a shared area of %zu",
                         part->length, part->offset, length);
    }
    kelp_shm_area_ref(area);
    piece->area = area;
    piece->bytes.bytes = (const uint8_t *)kelp_shm_area_bytes(area) + part->offset;
    return KELP_OK;
}

/* Read the next part; *copied: bytes of the frame that belong to no part yet. */
static kelp_status take_part(struct kelp_shm_channel *channel, struct kelp_shm_message *message,
                             size_t index, size_t *copied, struct kelp_error *reterr)
{
    struct kelp_shm_frame_part part;
    struct piece *piece = &message->pieces[index];

    kelp_shm_ring_get(&channel->reader, &part, sizeof(part));
    if (part.zero != 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "a part of %" PRIu64 " bytes is written in a way that is not known",
                         part.length);
    }
    if (part.length > channel->message_bytes_max - message->length) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "a message of more than %zu bytes",
                         channel->message_bytes_max);
    }
    piece->bytes.length = (size_t)part.length;
    message->length += (size_t)part.length;
    if (part.area != 0) {
        return message->slot == KELP_SHM_NO_SLOT
                   ? kelp_fail(reterr, KELP_ERR_FORMAT, "a shared part of a message without a slot")
                   : take_shared(channel, &part, piece, reterr);
    }
    if (part.offset != 0 || part.length > *copied) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "a part of %" PRIu64 " bytes at %" PRIu64 " of %zu copied ones",
                         part.length, part.offset, *copied);
    }
    *copied -= (size_t)part.length;
    return KELP_OK;
}

/* Read the copied bytes and set where those of each part are. */
static void take_copied(struct kelp_shm_channel *channel, struct kelp_shm_message *message,
                        size_t bytes)
{
    uint8_t pad[8];
    uint8_t *at = copied_of(message);

    kelp_shm_ring_get(&channel->reader, at, bytes);
    kelp_shm_ring_get(&channel->reader, pad, (8 - bytes % 8) % 8);
    for (size_t i = 0; i < message->count; i++) {
        if (!message->pieces[i].area) {
            message->pieces[i].bytes.bytes = at;
            at += message->pieces[i].bytes.length;
        }
    }
}

static kelp_status fill(struct kelp_shm_channel *channel, struct kelp_shm_message *message,
                        size_t copied_bytes, struct kelp_error *reterr)
{
    size_t copied = copied_bytes;
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < message->count && status == KELP_OK; i++) {
        status = take_part(channel, message, i, &copied, reterr);
    }
    if (status == KELP_OK && copied != 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%zu bytes of a message belong to no part",
                         copied);
    }
    if (status == KELP_OK) {
        take_copied(channel, message, copied_bytes);
    }
    return status;
}

/* A frame is published as a whole, so it must be complete. */
static kelp_status check_frame(const struct kelp_shm_frame *frame, size_t ready,
                               struct kelp_error *reterr)
{
    if (frame->part_count > KELP_SHM_PARTS_MAX || frame->copied_bytes > KELP_SHM_COPIED_MAX ||
        (frame->slot != KELP_SHM_NO_SLOT && frame->slot >= KELP_SHM_SLOTS)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a message of %u parts, %u bytes, in slot %u",
                         frame->part_count, frame->copied_bytes, frame->slot);
    }
    const size_t bytes = sizeof(*frame) + frame->part_count * sizeof(struct kelp_shm_frame_part) +
                         (frame->copied_bytes + 7) / 8 * 8;
    if (bytes > ready) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a message of %zu bytes, of which %zu came",
                         bytes, ready);
    }
    return KELP_OK;
}

/* Read the next frame, after handling those that only report dropped areas. */
static kelp_status next_frame(struct kelp_shm_channel *channel, struct kelp_shm_frame *ret_frame,
                              struct kelp_error *reterr)
{
    struct kelp_shm_ring_reader *reader = &channel->reader;

    for (;;) {
        size_t ready = 0;
        kelp_status status = reader->sent ? kelp_shm_ring_ready(reader, &ready, reterr) : KELP_OK;
        if (status != KELP_OK || ready == 0) {
            return status != KELP_OK ? status : KELP_ERR_BUSY;
        }
        if (ready < sizeof(*ret_frame)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "a message of which %zu bytes came", ready);
        }
        kelp_shm_ring_get(reader, ret_frame, sizeof(*ret_frame));
        status = check_frame(ret_frame, ready, reterr);
        if (status != KELP_OK || ret_frame->part_count > 0) {
            return status;
        }
        if (!kelp_shm_area_table_remove(&channel->came, ret_frame->use)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "shared area %u was dropped, but never came",
                             ret_frame->use);
        }
        kelp_shm_ring_taken(reader);
    }
}

static kelp_status take_message(struct kelp_shm_channel *channel,
                                struct kelp_shm_message **ret_message, struct kelp_error *reterr)
{
    struct kelp_shm_frame frame;
    kelp_status status = next_frame(channel, &frame, reterr);

    if (status != KELP_OK) {
        return status;
    }
    struct kelp_shm_message *message = message_new(channel->line, &frame);
    if (!message) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a message of %u bytes",
                         frame.copied_bytes);
    }
    status = fill(channel, message, frame.copied_bytes, reterr);
    if (status != KELP_OK) {
        message_free(message);
        return status;
    }
    kelp_shm_ring_taken(&channel->reader);
    kelp__shm_ring_want(channel->line);
    *ret_message = message;
    return KELP_OK;
}

kelp_status kelp_shm_channel_receive(struct kelp_shm_channel *channel,
                                     struct kelp_shm_message **ret_message,
                                     struct kelp_error *reterr)
{
    kelp_status status = take_message(channel, ret_message, reterr);

    if (status == KELP_ERR_BUSY && channel->look && !channel->ended) {
        channel->look = false;
        status = take_note(channel, reterr);
        if (status == KELP_OK || status == KELP_ERR_CLOSED) { /* sent before the end? */
            status = take_message(channel, ret_message, reterr);
        }
    }
    if (status == KELP_ERR_BUSY && channel->ended) {
        return kelp_fail(reterr, KELP_ERR_CLOSED, "the other process has gone");
    }
    return status;
}
