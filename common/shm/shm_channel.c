#include "common/shm/shm_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/shm/shm_channel_internal.h"
#include "common/shm/shm_socket.h"

/* ---- line ---- */

void kelp__shm_line_ref(struct kelp__shm_line *line)
{
    atomic_fetch_add_explicit(&line->refs, 1, memory_order_relaxed);
}

void kelp__shm_line_unref(struct kelp__shm_line *line)
{
    if (atomic_fetch_sub_explicit(&line->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    kelp_shm_area_unref(line->own);
    kelp_shm_area_unref(line->theirs_area);
    (void)close(line->socket);
    free(line);
}

/* Wake the peer if its counter is odd, which means that it waits; ring once for each wait. We
 * write our data before we read its counter, and it writes the counter before it looks for data,
 * so one of the two sees the other. */
static void ring(struct kelp__shm_line *line, uint32_t waits, atomic_uint *told)
{
    const struct kelp_shm_note bell = {.kind = KELP_SHM_NOTE_BELL};

    if ((waits & 1) != 0 && atomic_exchange(told, waits) != waits) {
        /* Full: unread notes are there, so the peer does not sleep. Closed: receiving reports
         * it. */
        kelp_status status = kelp_shm_note_send(line->socket, &bell, -1);
        (void)status;
    }
}

void kelp__shm_ring_nap(struct kelp__shm_line *line)
{
    ring(line, atomic_load(&atomic_load(&line->theirs)->naps), &line->nap_told);
}

void kelp__shm_ring_want(struct kelp__shm_line *line)
{
    ring(line, atomic_load(&atomic_load(&line->theirs)->wants), &line->want_told);
}

/* ---- life ---- */

static struct kelp__shm_line *line_open(int socket, struct kelp_error *reterr)
{
    struct kelp__shm_line *line = calloc(1, sizeof(*line));

    if (!line) {
        (void)kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a channel");
        return NULL;
    }
    if (kelp_shm_area_create(KELP_SHM_PAGE_BYTES, &line->own, reterr) != KELP_OK) {
        free(line);
        return NULL;
    }
    atomic_init(&line->refs, 1);
    line->socket = socket;
    line->page = kelp_shm_area_bytes(line->own);
    return line;
}

kelp_status kelp_shm_channel_open(int socket, size_t message_bytes_max,
                                  struct kelp_shm_channel **ret_channel, struct kelp_error *reterr)
{
    const struct kelp_shm_note hello = {
        .kind = KELP_SHM_NOTE_HELLO, .value = KELP_SHM_VERSION, .length = KELP_SHM_PAGE_BYTES};
    struct kelp_error error = {.status = KELP_ERR_NO_MEMORY, .text = "no memory for a channel"};
    struct kelp_shm_channel *channel = calloc(1, sizeof(*channel));
    struct kelp__shm_line *line = channel ? line_open(socket, &error) : NULL;

    if (!line) {
        free(channel);
        (void)close(socket);
        return kelp_fail(reterr, error.status, "%s", error.text);
    }
    channel->line = line;
    channel->message_bytes_max = message_bytes_max;
    channel->writer =
        (struct kelp_shm_ring_writer){.bytes = (uint8_t *)line->page + KELP_SHM_RING_AT,
                                      .capacity = KELP_SHM_RING_BYTES,
                                      .sent = &line->page->sent};
    channel->passed.count_max = KELP_SHM_AREAS_MAX;
    channel->came.count_max = 2 * KELP_SHM_AREAS_MAX;
    channel->look = true;
    if (kelp_shm_note_send(socket, &hello, kelp__shm_area_fd(line->own)) != KELP_OK) {
        kelp_shm_channel_close(channel);
        return kelp_fail(reterr, KELP_ERR_CLOSED, "the other process has gone");
    }
    kelp_shm_area_settle(line->own);
    *ret_channel = channel;
    return KELP_OK;
}

void kelp_shm_channel_close(struct kelp_shm_channel *channel)
{
    if (!channel) {
        return;
    }
    (void)shutdown(channel->line->socket, SHUT_RDWR); /* messages may keep the descriptor open */
    kelp__shm_channel_give_up(channel);
    kelp_shm_area_table_clear(&channel->passed);
    kelp_shm_area_table_clear(&channel->came);
    kelp__shm_line_unref(channel->line);
    free(channel);
}

int kelp_shm_channel_socket(const struct kelp_shm_channel *channel)
{
    return channel->line->socket;
}

/* ---- waiting ---- */

bool kelp_shm_channel_rest(struct kelp_shm_channel *channel)
{
    struct kelp_shm_page *page = channel->line->page;
    const uint32_t naps = atomic_load(&page->naps);
    /* A note may have announced room for a send that failed. */
    const bool room = channel->news && (atomic_load(&page->wants) & 1) != 0;

    channel->news = false;
    atomic_store(&page->naps, naps | 1);
    if (room || kelp_shm_channel_has_message(channel)) {
        kelp_shm_channel_wake(channel);
        return false;
    }
    return true;
}

void kelp_shm_channel_wake(struct kelp_shm_channel *channel)
{
    struct kelp_shm_page *page = channel->line->page;
    const uint32_t naps = atomic_load(&page->naps);

    if ((naps & 1) != 0) {
        atomic_store(&page->naps, naps + 1);
    }
    channel->look = true;
}
