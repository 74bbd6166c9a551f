#include "ps/core/snapshot/snapshot.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/state_table.h"

struct progress {
    bool taken;
    bool written;
};

struct kelp_snapshot {
    uint64_t generation; /* the generation that is served; 0: none */
    uint32_t count;      /* partitions of the order */
    uint64_t ticket;     /* of the order; grows */
    uint32_t part_count; /* parts of the order that are written */
    uint32_t taken;      /* partitions of the order that are captured */
    uint32_t next;       /* the first partition not handed out for writing */
    bool writing;        /* a WRITE or the SYNC is under way */
    uint64_t past_step;  /* PAST */
    enum kelp_snapshot_state state;
    struct kelp_snapshot_order order;
    kelp_status status;
    char error[256];
    bool has_word;
    struct kelp_control_word word;
    uint32_t partitions[KELP_PARTITIONS_MAX]; /* of the order, ascending */
    uint32_t led_count;
    uint32_t led[KELP_PARTITIONS_MAX]; /* ascending */
    struct progress progress[KELP_PARTITIONS_MAX];
    struct kelp_snapshot_part parts[KELP_PARTITIONS_MAX];
};

/* States that an order can lead to from every state. */
#define ORDERED (KELP_STATE_BIT(KELP_SNAPSHOT_TAKING) | KELP_STATE_BIT(KELP_SNAPSHOT_FAILED))

static const struct kelp_state states[KELP_SNAPSHOT_STATE_COUNT] = {
    [KELP_SNAPSHOT_NONE] = {"none", ORDERED},
    [KELP_SNAPSHOT_TAKING] = {"taking", ORDERED | KELP_STATE_BIT(KELP_SNAPSHOT_CAPTURED) |
                                            KELP_STATE_BIT(KELP_SNAPSHOT_DURABLE) |
                                            KELP_STATE_BIT(KELP_SNAPSHOT_PAST)},
    [KELP_SNAPSHOT_CAPTURED] = {"captured", ORDERED | KELP_STATE_BIT(KELP_SNAPSHOT_DURABLE)},
    [KELP_SNAPSHOT_DURABLE] = {"durable", ORDERED},
    [KELP_SNAPSHOT_FAILED] = {"failed", ORDERED},
    [KELP_SNAPSHOT_PAST] = {"past", ORDERED},
};

static const struct kelp_state_table state_table = KELP_STATE_TABLE(states);

const char *kelp_snapshot_state_name(enum kelp_snapshot_state state)
{
    return kelp_state_name(&state_table, state);
}

static struct kelp_snapshot_action *add(struct kelp_snapshot_actions *actions,
                                        const struct kelp_snapshot *snapshot,
                                        enum kelp_snapshot_action_kind kind)
{
    assert(actions->count < KELP_SNAPSHOT_ACTIONS_MAX);
    struct kelp_snapshot_action *action = &actions->items[actions->count++];
    *action = (struct kelp_snapshot_action){
        .kind = kind, .ticket = snapshot->ticket, .order = snapshot->order};
    action->order.serial = snapshot->ticket;
    return action;
}

static void move_to(struct kelp_snapshot *snapshot, enum kelp_snapshot_state state,
                    struct kelp_snapshot_actions *actions)
{
    snapshot->state =
        (enum kelp_snapshot_state)kelp_state_move(&state_table, snapshot->state, state);
    (void)add(actions, snapshot, KELP_SNAPSHOT_DO_REPORT);
}

kelp_status kelp_snapshot_create(struct kelp_snapshot **ret_snapshot, struct kelp_error *reterr)
{
    struct kelp_snapshot *snapshot = calloc(1, sizeof(*snapshot));

    if (!snapshot) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for snapshots");
    }
    *ret_snapshot = snapshot;
    return KELP_OK;
}

void kelp_snapshot_destroy(struct kelp_snapshot *snapshot)
{
    free(snapshot);
}

/* ---- ends ---- */

static bool is_open(const struct kelp_snapshot *snapshot)
{
    return snapshot->state == KELP_SNAPSHOT_TAKING || snapshot->state == KELP_SNAPSHOT_CAPTURED;
}

static void fail(struct kelp_snapshot *snapshot, kelp_status status, const char *error,
                 struct kelp_snapshot_actions *actions)
{
    assert(status != KELP_OK);
    if (is_open(snapshot)) {
        (void)add(actions, snapshot, KELP_SNAPSHOT_DO_DISCARD);
    }
    snapshot->status = status;
    (void)snprintf(snapshot->error, sizeof(snapshot->error), "%s", error); /* may be cut */
    move_to(snapshot, KELP_SNAPSHOT_FAILED, actions);
}

static bool under_way(const struct kelp_snapshot *snapshot, uint64_t ticket)
{
    return is_open(snapshot) && snapshot->ticket == ticket;
}

void kelp_snapshot_failed(struct kelp_snapshot *snapshot, uint64_t ticket, kelp_status status,
                          const char *error, struct kelp_snapshot_actions *actions)
{
    if (under_way(snapshot, ticket)) {
        fail(snapshot, status, error, actions);
    }
}

void kelp_snapshot_cancel(struct kelp_snapshot *snapshot, kelp_status status, const char *error,
                          struct kelp_snapshot_actions *actions)
{
    if (is_open(snapshot)) {
        fail(snapshot, status, error, actions);
    }
}

void kelp_snapshot_past(struct kelp_snapshot *snapshot, uint64_t ticket, uint64_t step,
                        struct kelp_snapshot_actions *actions)
{
    if (snapshot->state == KELP_SNAPSHOT_TAKING && snapshot->ticket == ticket) {
        (void)add(actions, snapshot, KELP_SNAPSHOT_DO_DISCARD);
        snapshot->past_step = step;
        move_to(snapshot, KELP_SNAPSHOT_PAST, actions);
    } else if (snapshot->state == KELP_SNAPSHOT_PAST && snapshot->ticket == ticket &&
               step > snapshot->past_step) {
        snapshot->past_step = step;
    }
}

/* Returns how many were copied. */
static uint32_t copy_ascending(const uint32_t *partitions, uint32_t count,
                               uint32_t ret_partitions[KELP_PARTITIONS_MAX])
{
    assert(count <= KELP_PARTITIONS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        assert(i == 0 || partitions[i] > partitions[i - 1]);
        ret_partitions[i] = partitions[i];
    }
    return count;
}

static void set_led(struct kelp_snapshot *snapshot, const uint32_t *partitions, uint32_t count)
{
    snapshot->led_count = copy_ascending(partitions, count, snapshot->led);
}

void kelp_snapshot_generation(struct kelp_snapshot *snapshot, uint64_t generation,
                              const uint32_t *partitions, uint32_t count,
                              struct kelp_snapshot_actions *actions)
{
    assert(generation > snapshot->generation);
    kelp_snapshot_cancel(snapshot, KELP_ERR_OLD_GENERATION, "another generation opened", actions);
    snapshot->generation = generation;
    set_led(snapshot, partitions, count);
}

static bool leads(const struct kelp_snapshot *snapshot, uint32_t partition)
{
    for (uint32_t i = 0; i < snapshot->led_count; i++) {
        if (snapshot->led[i] == partition) {
            return true;
        }
    }
    return false;
}

/* Does the snapshot wait for a partition that this shard does not lead? */
static bool waits_in_vain(const struct kelp_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->count; i++) {
        if (!snapshot->progress[i].taken && !leads(snapshot, snapshot->partitions[i])) {
            return true;
        }
    }
    return false;
}

void kelp_snapshot_lead(struct kelp_snapshot *snapshot, const uint32_t *partitions, uint32_t count,
                        struct kelp_snapshot_actions *actions)
{
    set_led(snapshot, partitions, count);
    if (waits_in_vain(snapshot)) {
        kelp_snapshot_cancel(snapshot, KELP_ERR_BUSY, "a partition is led elsewhere by now",
                             actions);
    }
}

/* ---- progress ---- */

/* Start the next disk operation, one at a time: partitions in ascending order, then the sync. */
static void go_on(struct kelp_snapshot *snapshot, struct kelp_snapshot_actions *actions)
{
    if (snapshot->writing) {
        return;
    }
    if (snapshot->next < snapshot->count) {
        if (snapshot->progress[snapshot->next].taken) {
            snapshot->writing = true;
            add(actions, snapshot, KELP_SNAPSHOT_DO_WRITE)->partition =
                snapshot->partitions[snapshot->next];
        }
        return;
    }
    if (snapshot->count == 0) {
        move_to(snapshot, KELP_SNAPSHOT_DURABLE, actions); /* nothing to write */
        return;
    }
    snapshot->writing = true;
    (void)add(actions, snapshot, KELP_SNAPSHOT_DO_SYNC);
}

/* Did the order arrive late, from an earlier stream? Serials of leaders grow. */
static bool is_late(const struct kelp_snapshot *snapshot, const struct kelp_snapshot_order *order)
{
    return snapshot->state != KELP_SNAPSHOT_NONE && order->serial < snapshot->order.serial &&
           order->generation == snapshot->order.generation;
}

static bool is_known(const struct kelp_snapshot *snapshot, const struct kelp_snapshot_order *order)
{
    return snapshot->state != KELP_SNAPSHOT_NONE && order->serial == snapshot->order.serial &&
           order->generation == snapshot->order.generation && order->step == snapshot->order.step;
}

static void begin(struct kelp_snapshot *snapshot, const struct kelp_snapshot_order *order,
                  const struct kelp_snapshot_share *share, struct kelp_snapshot_actions *actions)
{
    if (is_open(snapshot)) {
        (void)add(actions, snapshot, KELP_SNAPSHOT_DO_DISCARD);
    }
    snapshot->ticket++;
    snapshot->order = *order;
    snapshot->status = KELP_OK;
    snapshot->error[0] = '\0';
    snapshot->taken = 0;
    snapshot->next = 0;
    snapshot->part_count = 0;
    snapshot->writing = false;
    snapshot->has_word = false;
    memset(snapshot->progress, 0, sizeof(snapshot->progress));
    snapshot->count = copy_ascending(share->partitions, share->count, snapshot->partitions);
    move_to(snapshot, KELP_SNAPSHOT_TAKING, actions);
}

kelp_status kelp_snapshot_order(struct kelp_snapshot *snapshot,
                                const struct kelp_snapshot_order *order,
                                const struct kelp_snapshot_share *share,
                                struct kelp_snapshot_actions *actions)
{
    kelp_status fence = kelp_fence_generation(snapshot->generation, order->generation);

    if (fence == KELP_ERR_OLD_GENERATION || is_late(snapshot, order)) {
        return KELP_ERR_OLD_GENERATION;
    }
    if (is_known(snapshot, order)) {
        return KELP_OK; /* repeated */
    }
    begin(snapshot, order, share, actions);
    if (fence != KELP_OK) {
        fail(snapshot, fence, "the generation of the order is not loaded here yet", actions);
    } else if (share->elsewhere) {
        fail(snapshot, KELP_ERR_BUSY, "the order names another process", actions);
    } else if (waits_in_vain(snapshot)) {
        fail(snapshot, KELP_ERR_BUSY, "a partition of the order is led elsewhere", actions);
    } else {
        (void)add(actions, snapshot, KELP_SNAPSHOT_DO_ORDER);
        if (snapshot->count == 0) {
            go_on(snapshot, actions);
        }
    }
    return KELP_OK;
}

void kelp_snapshot_give_up(struct kelp_snapshot *snapshot, uint64_t generation, uint64_t serial,
                           struct kelp_snapshot_actions *actions)
{
    if (snapshot->order.generation == generation && snapshot->order.serial == serial) {
        kelp_snapshot_cancel(
            snapshot, KELP_ERR_CLOSED,
            "given up by the coordinator, which orders the next one when it is due", actions);
    }
}

/* Index of the partition in the order; `count`: it is not part of the order. */
static uint32_t place_of(const struct kelp_snapshot *snapshot, uint32_t partition)
{
    uint32_t place = 0;

    while (place < snapshot->count && snapshot->partitions[place] != partition) {
        place++;
    }
    return place;
}

bool kelp_snapshot_taken(struct kelp_snapshot *snapshot, uint64_t ticket, uint32_t partition,
                         const struct kelp_control_word *word,
                         struct kelp_snapshot_actions *actions)
{
    uint32_t place = place_of(snapshot, partition);

    if (!under_way(snapshot, ticket) || place == snapshot->count ||
        snapshot->progress[place].taken) {
        return false;
    }
    snapshot->progress[place].taken = true;
    snapshot->taken++;
    if (word) {
        snapshot->has_word = true;
        snapshot->word = *word;
    }
    if (snapshot->taken == snapshot->count) {
        move_to(snapshot, KELP_SNAPSHOT_CAPTURED, actions);
    }
    go_on(snapshot, actions);
    return true;
}

void kelp_snapshot_written(struct kelp_snapshot *snapshot, uint64_t ticket, uint32_t partition,
                           const char *digest, uint64_t bytes,
                           struct kelp_snapshot_actions *actions)
{
    uint32_t place = snapshot->next;

    if (!under_way(snapshot, ticket)) {
        return;
    }
    assert(snapshot->writing);
    assert(place < snapshot->count);
    assert(snapshot->partitions[place] == partition);
    assert(snapshot->progress[place].taken);
    struct kelp_snapshot_part *part = &snapshot->parts[place];
    *part = (struct kelp_snapshot_part){.partition = partition, .bytes = bytes};
    memcpy(part->digest, digest, strnlen(digest, sizeof(part->digest) - 1));
    snapshot->progress[place].written = true;
    snapshot->writing = false;
    snapshot->next++;
    snapshot->part_count++;
    go_on(snapshot, actions);
}

bool kelp_snapshot_synced(struct kelp_snapshot *snapshot, uint64_t ticket,
                          struct kelp_snapshot_actions *actions)
{
    if (!under_way(snapshot, ticket)) {
        return false;
    }
    assert(snapshot->writing);
    for (uint32_t i = 0; i < snapshot->count; i++) {
        assert(snapshot->progress[i].written);
    }
    snapshot->writing = false;
    move_to(snapshot, KELP_SNAPSHOT_DURABLE, actions);
    return true;
}

/* ---- the report ---- */

void kelp_snapshot_view(const struct kelp_snapshot *snapshot, struct kelp_snapshot_view *ret_view)
{
    bool durable = snapshot->state == KELP_SNAPSHOT_DURABLE;

    *ret_view = (struct kelp_snapshot_view){
        .state = snapshot->state,
        .order = snapshot->order,
        .status = snapshot->status,
        .error = snapshot->error,
        .step = snapshot->state == KELP_SNAPSHOT_PAST ? snapshot->past_step : 0,
        .parts = snapshot->parts,
        .part_count = durable ? snapshot->part_count : 0,
        .has_word = durable && snapshot->has_word,
        .word = snapshot->word};
}
