#include "coordinator/core/arrangement/arrangement.h"

#include <assert.h>
#include <stdlib.h>

#include "coordinator/core/arrangement/arrangement_internal.h"

#define NOBODY KELP_MAP_NOBODY

struct plan {
    const struct kelp_arrangement_input *input;
    struct kelp__goal goal;
    struct kelp_arrangement_move *moves; /* borrowed */
    uint32_t count;
    uint32_t *sends;  /* by shard: partitions with a joiner that it leads after the moves */
    uint32_t joiners; /* sum of sends */
    uint32_t leads;   /* moves so far that change who leads */
    bool settled;     /* every partition lies where the goal puts it */
};

const char *kelp_arrangement_kind_text(enum kelp_arrangement_kind kind)
{
    static const char *const texts[KELP_ARRANGEMENT_KIND_COUNT] = {
        [KELP_ARRANGEMENT_DROP] = "drop",           [KELP_ARRANGEMENT_PROMOTE] = "promote",
        [KELP_ARRANGEMENT_HAND_OVER] = "hand over", [KELP_ARRANGEMENT_TAKE_OVER] = "take over",
        [KELP_ARRANGEMENT_EXCHANGE] = "exchange",   [KELP_ARRANGEMENT_DETACH] = "detach",
        [KELP_ARRANGEMENT_ATTACH] = "attach",
    };
    assert(kind < KELP_ARRANGEMENT_KIND_COUNT);
    return texts[kind];
}

static void move(struct plan *plan, uint32_t partition, enum kelp_arrangement_kind kind,
                 struct kelp_arrangement_entry entry)
{
    assert(plan->count < plan->goal.partition_count);
    assert(entry.primary != NOBODY && entry.primary != entry.backup);
    plan->leads += entry.primary == plan->goal.entries[partition].primary ? 0 : 1;
    plan->moves[plan->count++] =
        (struct kelp_arrangement_move){.kind = kind, .partition = partition, .entry = entry};
}

static bool may_change_lead(const struct plan *plan, uint32_t partition)
{
    return !plan->input->replicas[partition].captured && plan->leads < plan->input->leads_max;
}

/* The shard that the goal gives a replica to; first: the leader's. */
static uint32_t wanted(const struct plan *plan, uint32_t partition, bool first)
{
    uint32_t seat = plan->goal.at[partition][first ? 0 : 1];
    return seat == NOBODY ? NOBODY : plan->goal.shard[seat];
}

static bool stays(const struct plan *plan, uint32_t partition, uint32_t shard)
{
    return shard != NOBODY &&
           (wanted(plan, partition, true) == shard || wanted(plan, partition, false) == shard);
}

/* A member of the entry is gone: a failover comes first. */
static bool is_broken(const struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry *entry = &plan->goal.entries[partition];
    return entry->primary == NOBODY ||
           (entry->backup == NOBODY && plan->input->map->partitions[partition].backup != NOBODY);
}

/* Use a joiner that has caught up. False: it must wait. */
static bool use_joiner(struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry now = plan->goal.entries[partition];
    const uint32_t leader = wanted(plan, partition, true);
    if (stays(plan, partition, now.primary) ||
        (now.backup != NOBODY && !stays(plan, partition, now.backup) && leader != now.joiner)) {
        move(plan, partition, KELP_ARRANGEMENT_TAKE_OVER,
             (struct kelp_arrangement_entry){now.primary, now.joiner, NOBODY});
    } else if (!may_change_lead(plan, partition)) {
        return false;
    } else if (now.backup != NOBODY && leader == now.backup) {
        move(plan, partition, KELP_ARRANGEMENT_HAND_OVER,
             (struct kelp_arrangement_entry){now.backup, now.joiner, NOBODY});
    } else {
        uint32_t backup = now.backup == NOBODY ? now.primary : now.backup;
        move(plan, partition, KELP_ARRANGEMENT_PROMOTE,
             (struct kelp_arrangement_entry){now.joiner, backup, NOBODY});
    }
    return true;
}

/* Keep a joiner or drop it. One that stays keeps its primary busy. */
static void go_on_joining(struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry now = plan->goal.entries[partition];
    if (!stays(plan, partition, now.joiner)) {
        move(plan, partition, KELP_ARRANGEMENT_DROP,
             (struct kelp_arrangement_entry){now.primary, now.backup, NOBODY});
    } else if (!plan->input->replicas[partition].caught_up || !use_joiner(plan, partition)) {
        plan->sends[now.primary]++;
        plan->joiners++;
    }
}

/* A shard of the goal that the map does not name yet; NOBODY: it names all. */
static uint32_t newcomer(const struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry *now = &plan->goal.entries[partition];
    for (int first = 1; first >= 0; first--) {
        uint32_t shard = wanted(plan, partition, first == 1);
        if (shard != NOBODY && shard != now->primary && shard != now->backup) {
            return shard;
        }
    }
    return NOBODY;
}

/* ---- pairs that do not reach each other ---- */

static bool is_avoided(const struct plan *plan, uint32_t primary, uint32_t follower)
{
    const struct kelp_arrangement_input *input = plan->input;
    for (uint32_t i = 0; i < input->avoided_count; i++) {
        if (input->avoided[i].primary == input->shards[primary].at->incarnation &&
            input->avoided[i].follower == input->shards[follower].at->incarnation) {
            return true;
        }
    }
    return false;
}

/* The primary does not reach the shard that the map should name next. */
static bool must_detour(const struct plan *plan, uint32_t partition)
{
    const uint32_t joiner = newcomer(plan, partition);
    return joiner != NOBODY && is_avoided(plan, plan->goal.entries[partition].primary, joiner);
}

/* A shard that the primary reaches: preferably one of the goal, then one in another zone, then
 * any. The search starts at another shard for each partition. NOBODY: there is none. */
static uint32_t other_joiner(const struct plan *plan, uint32_t partition)
{
    const struct kelp__goal *goal = &plan->goal;
    const uint32_t primary = goal->entries[partition].primary;
    const uint32_t home = goal->has[partition][0];
    uint32_t best = NOBODY;
    uint32_t best_rank = 0;
    for (uint32_t i = 0; i < goal->seat_count; i++) {
        const uint32_t seat = (partition + i) % goal->seat_count;
        const uint32_t shard = goal->shard[seat];
        const bool apart = home == NOBODY || goal->zone[seat] != goal->zone[home];
        const uint32_t rank = stays(plan, partition, shard) ? 3 : apart ? 2 : 1;
        if (shard != primary && rank > best_rank && !is_avoided(plan, primary, shard)) {
            best = shard;
            best_rank = rank;
        }
    }
    return best;
}

/* Called when the map has no joiner. */
static void keep_detour(struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry now = plan->goal.entries[partition];
    if (now.backup != NOBODY && plan->input->shards[now.primary].draining &&
        !plan->input->shards[now.backup].draining && may_change_lead(plan, partition)) {
        move(plan, partition, KELP_ARRANGEMENT_EXCHANGE,
             (struct kelp_arrangement_entry){now.backup, now.primary, NOBODY});
    }
}

static void go_on_detour(struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry now = plan->goal.entries[partition];
    if (plan->input->map->partitions[partition].joiner == NOBODY) {
        keep_detour(plan, partition);
    } else if (now.backup != NOBODY || now.joiner == NOBODY ||
               plan->input->shards[now.joiner].draining) {
        go_on_joining(plan, partition);
    } else if (plan->input->replicas[partition].caught_up) {
        move(plan, partition, KELP_ARRANGEMENT_TAKE_OVER,
             (struct kelp_arrangement_entry){now.primary, now.joiner, NOBODY});
    } else {
        plan->sends[now.primary]++;
        plan->joiners++;
    }
}

/* All copies exist: drop one that is not wanted. */
static void let_go(struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry now = plan->goal.entries[partition];
    if (stays(plan, partition, now.primary) && now.backup != NOBODY &&
        !stays(plan, partition, now.backup)) {
        move(plan, partition, KELP_ARRANGEMENT_DETACH,
             (struct kelp_arrangement_entry){now.primary, NOBODY, NOBODY});
    } else if (!stays(plan, partition, now.primary)) {
        plan->settled = false;
        if (may_change_lead(plan, partition)) {
            move(plan, partition, KELP_ARRANGEMENT_EXCHANGE,
                 (struct kelp_arrangement_entry){now.backup, now.primary, NOBODY});
        }
    }
}

static void go_on(struct plan *plan, uint32_t partition)
{
    bool joins = plan->input->map->partitions[partition].joiner != NOBODY;
    if (is_broken(plan, partition)) {
        plan->settled = false;
    } else if (must_detour(plan, partition)) {
        plan->settled = false;
        go_on_detour(plan, partition);
    } else if (joins) {
        plan->settled = false;
        go_on_joining(plan, partition);
    } else if (newcomer(plan, partition) != NOBODY) {
        plan->settled = false;
    } else {
        let_go(plan, partition);
    }
}

/* ---- attaching ---- */

static bool is_urgent(const struct plan *plan, uint32_t partition)
{
    return plan->goal.replicas > 1 && plan->goal.entries[partition].backup == NOBODY;
}

static bool must_leave(const struct plan *plan, uint32_t partition)
{
    const uint32_t *has = plan->goal.has[partition];
    return has[0] == NOBODY || (has[1] == NOBODY && plan->goal.entries[partition].backup != NOBODY);
}

/* NOBODY: no joiner is needed, or it can wait. */
static uint32_t next_joiner(const struct plan *plan, uint32_t partition)
{
    if (is_broken(plan, partition)) {
        return NOBODY;
    }
    if (must_detour(plan, partition)) {
        return is_urgent(plan, partition) ? other_joiner(plan, partition) : NOBODY;
    }
    return newcomer(plan, partition);
}

static void attach(struct plan *plan, uint32_t partition)
{
    const struct kelp_arrangement_entry now = plan->goal.entries[partition];
    const uint32_t joiner = next_joiner(plan, partition);
    if (joiner == NOBODY || plan->sends[now.primary] >= plan->input->joiners_each ||
        plan->joiners >= plan->input->joiners_max ||
        plan->input->map->partitions[partition].joiner != NOBODY) {
        return;
    }
    plan->sends[now.primary]++;
    plan->joiners++;
    move(plan, partition, KELP_ARRANGEMENT_ATTACH,
         (struct kelp_arrangement_entry){now.primary, now.backup, joiner});
}

static void attach_all(struct plan *plan)
{
    for (int rank = 0; rank < 3; rank++) {
        for (uint32_t i = 0; i < plan->goal.partition_count; i++) {
            int own = is_urgent(plan, i) ? 0 : must_leave(plan, i) ? 1 : 2;
            if (own == rank) {
                attach(plan, i);
            }
        }
    }
}

/* ---- all partitions ---- */

/* When no replica moves any more: change leaders where that improves the balance. */
static kelp_status exchange_all(struct plan *plan)
{
    for (uint32_t i = 0; i < plan->goal.partition_count; i++) {
        if (plan->input->replicas[i].captured) {
            return KELP_OK;
        }
    }
    kelp__goal_lead(&plan->goal);
    kelp_status status = kelp__goal_balance(&plan->goal, plan->input->leads_max);
    for (uint32_t i = 0; status == KELP_OK && i < plan->goal.partition_count; i++) {
        const struct kelp_arrangement_entry now = plan->goal.entries[i];
        if (wanted(plan, i, true) != now.primary) {
            move(plan, i, KELP_ARRANGEMENT_EXCHANGE,
                 (struct kelp_arrangement_entry){now.backup, now.primary, NOBODY});
        }
    }
    return status;
}

static kelp_status plan_all(struct plan *plan)
{
    kelp_status status = kelp__goal_solve(&plan->goal);
    if (status == KELP_OK) {
        kelp__goal_lead(&plan->goal);
        status = kelp__goal_balance(&plan->goal, UINT32_MAX);
    }
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t i = 0; i < plan->goal.partition_count; i++) {
        go_on(plan, i);
    }
    if (!plan->input->still) {
        attach_all(plan);
        if (plan->count == 0 && plan->settled) {
            status = exchange_all(plan);
        }
    }
    return status;
}

kelp_status kelp_arrangement_next(const struct kelp_arrangement_input *input,
                                  struct kelp_arrangement_move *ret_moves, uint32_t *ret_count)
{
    assert(input->map->generation > 0);
    assert(input->shards_wanted > 0 && input->leads_max > 0);
    assert(input->joiners_max > 0 && input->joiners_each > 0);
    assert(input->replicas_wanted > 0 && input->replicas_wanted <= KELP_ARRANGEMENT_REPLICAS_MAX);
    struct plan plan = {.input = input, .moves = ret_moves, .settled = true};
    kelp_status status = kelp__goal_init(&plan.goal, input, input->map->partition_count);
    if (status == KELP_ERR_INVALID) {
        *ret_count = 0; /* no shard to use */
        return KELP_OK;
    }
    if (status != KELP_OK) {
        return status;
    }
    plan.sends = calloc((size_t)input->shard_count + 1, sizeof(*plan.sends));
    status = plan.sends ? plan_all(&plan) : KELP_ERR_NO_MEMORY;
    free(plan.sends);
    kelp__goal_fini(&plan.goal);
    if (status == KELP_OK) {
        *ret_count = plan.count;
    }
    return status;
}

kelp_status kelp_arrangement_open(const struct kelp_arrangement_input *input,
                                  uint32_t partition_count,
                                  struct kelp_arrangement_entry *ret_entries)
{
    struct kelp_arrangement_input fresh = *input;
    struct kelp__goal goal;
    fresh.map = NULL;
    if (fresh.shards_wanted > partition_count * fresh.replicas_wanted) {
        fresh.shards_wanted = partition_count * fresh.replicas_wanted;
    }
    kelp_status status = kelp__goal_init(&goal, &fresh, partition_count);
    if (status != KELP_OK) {
        return status;
    }
    uint32_t leaders = goal.seat_count < partition_count ? goal.seat_count : partition_count;
    for (uint32_t i = 0; i < partition_count; i++) {
        goal.has[i][0] = (uint32_t)((uint64_t)i * leaders / partition_count);
    }
    status = kelp__goal_solve(&goal);
    if (status == KELP_OK) {
        kelp__goal_lead(&goal);
        status = kelp__goal_balance(&goal, UINT32_MAX);
    }
    for (uint32_t i = 0; status == KELP_OK && i < partition_count; i++) {
        uint32_t backup = goal.at[i][1];
        ret_entries[i] = (struct kelp_arrangement_entry){
            goal.shard[goal.at[i][0]], backup == NOBODY ? NOBODY : goal.shard[backup], NOBODY};
    }
    kelp__goal_fini(&goal);
    return status;
}
