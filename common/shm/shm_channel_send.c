/* The sending side of a channel. */
#include <assert.h>

#include "common/shm/shm_channel_internal.h"
#include "common/shm/shm_socket.h"

/* The peer's page. NULL: it has not sent its hello yet. */
static struct kelp_shm_page *other_page(struct kelp_shm_channel *channel)
{
    struct kelp_shm_page *theirs = atomic_load(&channel->line->theirs);

    channel->writer.taken = theirs ? &theirs->taken : NULL;
    return theirs;
}

/* ---- lent messages ---- */

void kelp_shm_channel_collect(struct kelp_shm_channel *channel)
{
    struct kelp_shm_page *theirs = atomic_load(&channel->line->theirs);

    for (uint32_t i = 0; channel->lent > 0 && i < KELP_SHM_SLOTS; i++) {
        struct kelp__shm_slot *slot = &channel->slots[i];
        if (slot->used && atomic_load(&theirs->released[i]) == slot->use) {
            slot->used = false;
            channel->lent--;
            if (slot->done) {
                slot->done(slot->user, true);
            }
        }
    }
}

void kelp__shm_channel_give_up(struct kelp_shm_channel *channel)
{
    kelp_shm_channel_collect(channel);
    for (uint32_t i = 0; channel->lent > 0 && i < KELP_SHM_SLOTS; i++) {
        struct kelp__shm_slot *slot = &channel->slots[i];
        if (slot->used) {
            slot->used = false;
            channel->lent--;
            if (slot->done) {
                slot->done(slot->user, false);
            }
        }
    }
}

size_t kelp_shm_channel_lent(const struct kelp_shm_channel *channel)
{
    return channel->lent;
}

/* KELP_SHM_NO_SLOT: all are in use. */
static uint32_t free_slot(struct kelp_shm_channel *channel)
{
    kelp_shm_channel_collect(channel);
    for (uint32_t i = 0; i < KELP_SHM_SLOTS; i++) {
        if (!channel->slots[i].used) {
            return i;
        }
    }
    return KELP_SHM_NO_SLOT;
}

/* ---- areas ---- */

void kelp_shm_channel_sweep(struct kelp_shm_channel *channel)
{
    struct kelp_shm_ring_writer *writer = &channel->writer;
    struct kelp_shm_page *theirs = other_page(channel);
    const uint32_t retired = kelp__shm_areas_retired();
    size_t room;
    uint32_t name = 0;

    if (retired == channel->swept) {
        return;
    }
    /* Until the peer has handled the areas dropped before, it may hold two full tables: drop no
     * more now. */
    if (!theirs || atomic_load(&theirs->taken) - channel->dropped_at > UINT64_MAX / 2) {
        return;
    }
    while ((name = kelp_shm_area_table_retired(&channel->passed)) != 0) {
        const struct kelp_shm_frame drop = {.slot = KELP_SHM_NO_SLOT, .use = name};
        if (kelp_shm_ring_room(writer, &room, NULL) != KELP_OK || room < sizeof(drop)) {
            break;
        }
        kelp_shm_ring_put(writer, &drop, sizeof(drop));
        kelp_shm_ring_publish(writer);
        channel->dropped_at = writer->at;
        (void)kelp_shm_area_table_remove(&channel->passed, name);
    }
    channel->swept = name == 0 ? retired : channel->swept;
}

/* Pass the area to the peer, once. */
static kelp_status pass(struct kelp_shm_channel *channel, struct kelp_shm_area *area,
                        struct kelp_error *reterr)
{
    const struct kelp_shm_note note = {.kind = KELP_SHM_NOTE_AREA,
                                       .value = kelp__shm_area_id(area),
                                       .length = kelp_shm_area_length(area)};

    if (kelp_shm_area_table_find(&channel->passed, note.value)) {
        return KELP_OK;
    }
    assert(kelp__shm_area_fd(area) >= 0);
    if (channel->passed.count == channel->passed.count_max) {
        kelp_shm_channel_sweep(channel);
    }
    if (channel->passed.count == channel->passed.count_max) {
        const bool soon = kelp_shm_area_table_retired(&channel->passed) != 0;
        return kelp_fail(reterr, soon ? KELP_ERR_BUSY : KELP_ERR_LIMIT,
                         "more than %u shared areas on one channel", channel->passed.count_max);
    }
    kelp_status status = kelp_shm_note_send(channel->line->socket, &note, kelp__shm_area_fd(area));
    if (status == KELP_OK) {
        status = kelp_shm_area_table_add(&channel->passed, note.value, area);
        assert(status == KELP_OK);
    }
    return status == KELP_OK ? KELP_OK
                             : kelp_fail(reterr, status, "a shared area cannot be passed: %s",
                                         kelp_status_text(status));
}

/* ---- frames ---- */

struct measure {
    size_t copied_bytes;
    size_t frame_bytes;
    bool shared; /* a part lies in an area */
};

static kelp_status measure(const struct kelp_shm_part *parts, size_t count,
                           struct measure *ret_measure, struct kelp_error *reterr)
{
    struct measure sum = {0};

    if (count == 0 || count > KELP_SHM_PARTS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "a message of %zu parts: it has 1 to %u", count,
                         KELP_SHM_PARTS_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].area) {
            sum.shared = true;
        } else if (parts[i].length > KELP_SHM_COPIED_MAX - sum.copied_bytes) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %u bytes of a message to be copied",
                             KELP_SHM_COPIED_MAX);
        } else {
            sum.copied_bytes += parts[i].length;
        }
    }
    sum.frame_bytes = sizeof(struct kelp_shm_frame) + count * sizeof(struct kelp_shm_frame_part) +
                      (sum.copied_bytes + 7) / 8 * 8;
    *ret_measure = sum;
    return KELP_OK;
}

static void put_part(struct kelp_shm_ring_writer *writer, const struct kelp_shm_part *part)
{
    struct kelp_shm_frame_part place = {.length = part->length};

    if (part->area) {
        const uintptr_t begin = (uintptr_t)kelp_shm_area_bytes(part->area);
        const uintptr_t at = (uintptr_t)part->bytes;
        assert(at >= begin && at - begin <= kelp_shm_area_length(part->area));
        assert(part->length <= kelp_shm_area_length(part->area) - (at - begin));
        place.area = kelp__shm_area_id(part->area);
        place.offset = at - begin;
    }
    kelp_shm_ring_put(writer, &place, sizeof(place));
}

/* Called when there is room. */
static void put_frame(struct kelp_shm_channel *channel, const struct kelp_shm_part *parts,
                      size_t count, const struct measure *sum, uint32_t slot)
{
    static const uint8_t zeros[8] = {0};
    struct kelp_shm_ring_writer *writer = &channel->writer;
    const struct kelp_shm_frame frame = {.part_count = (uint32_t)count,
                                         .copied_bytes = (uint32_t)sum->copied_bytes,
                                         .slot = slot,
                                         .use = sum->shared ? channel->slots[slot].use : 0};

    kelp_shm_ring_put(writer, &frame, sizeof(frame));
    for (size_t i = 0; i < count; i++) {
        put_part(writer, &parts[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (!parts[i].area) {
            kelp_shm_ring_put(writer, parts[i].bytes, parts[i].length);
        }
    }
    kelp_shm_ring_put(writer, zeros, (8 - sum->copied_bytes % 8) % 8);
    kelp_shm_ring_publish(writer);
}

static kelp_status prepare(struct kelp_shm_channel *channel, const struct kelp_shm_part *parts,
                           size_t count, const struct measure *sum, uint32_t *ret_slot,
                           struct kelp_error *reterr)
{
    size_t room = 0;
    uint32_t slot = KELP_SHM_NO_SLOT;

    if (!other_page(channel)) {
        return kelp_fail(reterr, KELP_ERR_BUSY, "the other process has not said hello yet");
    }
    kelp_status status = kelp_shm_ring_room(&channel->writer, &room, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (room < sum->frame_bytes) {
        return kelp_fail(reterr, KELP_ERR_BUSY, "the other process does not read its messages");
    }
    if (sum->shared) {
        slot = free_slot(channel);
        if (slot == KELP_SHM_NO_SLOT) {
            return kelp_fail(reterr, KELP_ERR_BUSY, "the other process keeps %u messages",
                             KELP_SHM_SLOTS);
        }
    }
    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        status = parts[i].area ? pass(channel, parts[i].area, reterr) : KELP_OK;
    }
    *ret_slot = slot;
    return status;
}

static kelp_status try_send(struct kelp_shm_channel *channel, const struct kelp_shm_part *parts,
                            size_t count, const struct measure *sum, kelp_shm_done done, void *user,
                            struct kelp_error *reterr)
{
    uint32_t slot = KELP_SHM_NO_SLOT;
    kelp_status status = prepare(channel, parts, count, sum, &slot, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (sum->shared) {
        channel->slots[slot] = (struct kelp__shm_slot){
            .used = true, .use = channel->slots[slot].use + 1, .done = done, .user = user};
        channel->lent++;
    }
    put_frame(channel, parts, count, sum, slot);
    kelp__shm_ring_nap(channel->line);
    return KELP_OK;
}

/* Ask to be told about room: anew, if we were told already. */
void kelp_shm_channel_want(struct kelp_shm_channel *channel)
{
    struct kelp_shm_page *page = channel->line->page;
    const uint32_t wants = atomic_load(&page->wants);

    atomic_store(&page->wants, (wants & 1) != 0 ? wants + 2 : wants + 1);
}

static void want_nothing(struct kelp_shm_page *page)
{
    const uint32_t wants = atomic_load(&page->wants);

    if ((wants & 1) != 0) {
        atomic_store(&page->wants, wants + 1);
    }
}

kelp_status kelp_shm_channel_send(struct kelp_shm_channel *channel,
                                  const struct kelp_shm_part *parts, size_t count,
                                  kelp_shm_done done, void *user, struct kelp_error *reterr)
{
    struct measure sum;
    kelp_status status = measure(parts, count, &sum, reterr);

    if (status != KELP_OK) {
        return status;
    }
    status = try_send(channel, parts, count, &sum, done, user, reterr);
    if (status == KELP_ERR_BUSY) {
        kelp_shm_channel_want(channel);
        /* The peer may have made room just before it could see the wish. */
        status = try_send(channel, parts, count, &sum, done, user, reterr);
    }
    if (status != KELP_ERR_BUSY) {
        want_nothing(channel->line->page);
    }
    return status;
}
