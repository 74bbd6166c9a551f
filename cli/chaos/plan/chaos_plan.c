#include "cli/chaos/plan/chaos_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"

static const char *const kind_names[] = {"kill", "pause", "restart", "slow",    "full",  "split",
                                         "loss", "drain", "scale",   "one-way", "leave", "move"};
static const char *const role_names[] = {"worker",  "shard",   "coordinator", "leader",
                                         "standby", "primary", "backup",      "both",
                                         "etcd",    "disk",    "everything",  "host"};
_Static_assert(KELP_ARRAY_COUNT(kind_names) == KELP_CHAOS_KIND_COUNT, "a kind has no name");
_Static_assert(KELP_ARRAY_COUNT(role_names) == KELP_CHAOS_ROLE_COUNT, "a role has no name");

/* Every kind of process once or more, about 1400 steps. */
static const char quick_text[] = "faults:\n"
                                 "  - {kind: kill, target: worker-0, step: 60:120}\n"
                                 "  - {kind: kill, target: shard-0, step: 200:260}\n"
                                 "  - {kind: pause, target: worker, step: 330:380, for: 300ms}\n"
                                 "  - {kind: kill, target: standby, step: 420:480}\n"
                                 "  - {kind: kill, target: leader, step: 520:560}\n"
                                 "  - {kind: kill, target: etcd, step: 600:660, for: 500ms}\n"
                                 "  - {kind: restart, target: shard-1, step: 720:780}\n"
                                 "  - {kind: pause, target: leader, step: 840:880, for: 500ms}\n"
                                 "  - {kind: pause, target: shard, step: 940:980, for: 300ms}\n"
                                 "  - {kind: restart, target: worker, step: 1040:1080}\n"
                                 "  - {kind: pause, target: etcd, step: 1120:1160, for: 500ms}\n"
                                 "  - {kind: kill, target: everything, step: 1220:1300}\n";

/* Each kind on each target, everything three times, and as many more as make fifty. */
static const char all_text[] =
    "faults:\n"
    "  - {kind: kill, target: worker, step: 60:160}\n"
    "  - {kind: kill, target: shard, step: 200:300}\n"
    "  - {kind: kill, target: leader, step: 340:440}\n"
    "  - {kind: kill, target: standby, step: 480:560}\n"
    "  - {kind: kill, target: etcd, step: 600:680, for: 1s:2s}\n"
    "  - {kind: restart, target: worker, step: 720:800}\n"
    "  - {kind: restart, target: shard, step: 840:920}\n"
    "  - {kind: restart, target: leader, step: 960:1040}\n"
    "  - {kind: restart, target: standby, step: 1080:1160}\n"
    "  - {kind: restart, target: etcd, step: 1200:1280}\n"
    "  - {kind: pause, target: worker, step: 1320:1400, for: 200ms:3s}\n"
    "  - {kind: pause, target: shard, step: 1440:1520, for: 200ms:3s}\n"
    "  - {kind: pause, target: leader, step: 1560:1640, for: 200ms:5s}\n"
    "  - {kind: pause, target: standby, step: 1680:1760, for: 200ms:3s}\n"
    "  - {kind: pause, target: etcd, step: 1800:1880, for: 200ms:4s}\n"
    "  - {kind: slow, target: disk, step: 1920:2000, for: 2s}\n"
    "  - {kind: full, target: disk, step: 2040:2120, for: 2s}\n"
    "  - {kind: split, target: worker, step: 2160:2240, for: 500ms:3s}\n"
    "  - {kind: split, target: shard, step: 2280:2360, for: 500ms:3s}\n"
    "  - {kind: split, target: leader, step: 2400:2480, for: 500ms:5s}\n"
    "  - {kind: split, target: etcd, step: 2520:2600, for: 500ms:3s}\n"
    "  - {kind: loss, target: worker, step: 2640:2720, for: 2s}\n"
    "  - {kind: loss, target: shard, step: 2760:2840, for: 2s}\n"
    "  - {kind: kill, target: everything, step: 2900:3000}\n"
    "  - {kind: restart, target: everything, step: 3150:3300}\n"
    "  - {kind: kill, target: everything, step: 3400:3700}\n"
    "  - {kind: drain, target: shard, step: 3750:3800}\n"
    "  - {kind: scale, target: shard, to: 1:3, step: 3850:3900}\n"
    "  - {kind: drain, target: worker, step: 3950:4000}\n"
    "  - {kind: scale, target: worker, to: 1:4, step: 4050:4100}\n"
    "  - {kind: kill, target: everything, step: 4200:4500}\n"
    "draw:\n"
    "  count: 19\n"
    "  first: 3050:3100\n"
    "  every: 20:120\n"
    "  mix:\n"
    "    - {kind: kill, target: worker, weight: 3}\n"
    "    - {kind: kill, target: shard, weight: 3}\n"
    "    - {kind: kill, target: coordinator, weight: 2}\n"
    "    - {kind: kill, target: etcd, for: 200ms:2s}\n"
    "    - {kind: restart, target: worker}\n"
    "    - {kind: restart, target: shard}\n"
    "    - {kind: pause, target: worker, for: 200ms:3s}\n"
    "    - {kind: pause, target: shard, for: 200ms:3s}\n"
    "    - {kind: pause, target: coordinator, for: 200ms:3s}\n"
    "    - {kind: pause, target: etcd, for: 200ms:3s}\n"
    "    - {kind: full, target: disk, for: 1s}\n"
    "    - {kind: split, target: shard, for: 500ms:2s}\n"
    "    - {kind: split, target: worker, for: 500ms:2s}\n"
    "    - {kind: drain, target: shard}\n"
    "    - {kind: drain, target: worker}\n"
    "    - {kind: scale, target: shard, to: 1:3}\n"
    "    - {kind: scale, target: worker, to: 1:4}\n"
    "if_possible: true\n";

/* A job may not notice a short absence; 3 s are longer than that takes. */
static const char hosts_text[] = "draw:\n"
                                 "  count: 10\n"
                                 "  first: 100:200\n"
                                 "  every: 50:250\n"
                                 "  mix:\n"
                                 "    - {kind: kill, target: host, for: 100ms:3s}\n"
                                 "    - {kind: split, target: host, for: 100ms:3s}\n"
                                 "    - {kind: one-way, target: host, for: 100ms:3s}\n"
                                 "    - {kind: leave, target: host, for: 100ms:1s}\n"
                                 "    - {kind: move, target: host, for: 100ms:3s}\n";

const char *kelp_chaos_plan_builtin(const char *name)
{
    static const struct {
        const char *name, *text;
    } plans[] = {{"quick", quick_text}, {"all", all_text}, {"hosts", hosts_text}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(plans); i++) {
        if (strcmp(name, plans[i].name) == 0) {
            return plans[i].text;
        }
    }
    return NULL;
}

const char *kelp_chaos_kind_name(enum kelp_chaos_kind kind)
{
    assert(kind < KELP_CHAOS_KIND_COUNT);
    return kind_names[kind];
}

const char *kelp_chaos_role_name(enum kelp_chaos_role role)
{
    assert(role < KELP_CHAOS_ROLE_COUNT);
    return role_names[role];
}

static bool has_index(enum kelp_chaos_role role)
{
    return role == KELP_CHAOS_WORKER || role == KELP_CHAOS_SHARD ||
           role == KELP_CHAOS_COORDINATOR || role == KELP_CHAOS_HOST;
}

void kelp_chaos_target_print(const struct kelp_chaos_fault *fault, char text[KELP_CHAOS_TEXT_MAX])
{
    const char *role = kelp_chaos_role_name(fault->role);

    if (fault->kind == KELP_CHAOS_SCALE) {
        (void)snprintf(text, KELP_CHAOS_TEXT_MAX, "%ss to %" PRIu32, role, fault->to);
    } else if (fault->kind == KELP_CHAOS_ONE_WAY) {
        (void)snprintf(text, KELP_CHAOS_TEXT_MAX, "%s-%" PRIu32 " to %s-%" PRIu32, role,
                       fault->index, role, fault->to);
    } else if (has_index(fault->role)) {
        (void)snprintf(text, KELP_CHAOS_TEXT_MAX, "%s-%" PRIu32, role, fault->index);
    } else {
        (void)snprintf(text, KELP_CHAOS_TEXT_MAX, "%s", role);
    }
}

void kelp_chaos_fault_print(const struct kelp_chaos_fault *fault, char text[KELP_CHAOS_TEXT_MAX])
{
    char target[KELP_CHAOS_TEXT_MAX];

    kelp_chaos_target_print(fault, target);
    if (fault->for_ms > 0) {
        (void)snprintf(text, KELP_CHAOS_TEXT_MAX, "%s %.24s %" PRIu32 " ms",
                       kind_names[fault->kind], target, fault->for_ms);
    } else {
        (void)snprintf(text, KELP_CHAOS_TEXT_MAX, "%s %.24s", kind_names[fault->kind], target);
    }
}

/* Somebody asks the leader for it. */
static bool is_asked(enum kelp_chaos_kind kind)
{
    return kind == KELP_CHAOS_DRAIN || kind == KELP_CHAOS_SCALE;
}

static bool lasts(const struct kelp_chaos_entry *entry)
{
    return entry->kind != KELP_CHAOS_KILL && entry->kind != KELP_CHAOS_RESTART &&
           !is_asked(entry->kind);
}

static bool is_of_host(enum kelp_chaos_kind kind)
{
    return kind == KELP_CHAOS_ONE_WAY || kind == KELP_CHAOS_LEAVE || kind == KELP_CHAOS_MOVE;
}

/* How long it stays away is said for each. */
static kelp_status check_host(const struct kelp_chaos_entry *entry, struct kelp_error *reterr)
{
    const char *kind = kind_names[entry->kind];

    if (entry->role != KELP_CHAOS_HOST) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s: needs target: host", kind);
    }
    if (!is_of_host(entry->kind) && entry->kind != KELP_CHAOS_KILL &&
        entry->kind != KELP_CHAOS_SPLIT) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "a host can have kill, split, one-way, leave and move; %s is for processes", kind);
    }
    return entry->for_ms.max > 0 ? KELP_OK
                                 : kelp_fail(reterr, KELP_ERR_INVALID,
                                             "%s: needs a duration, for example for: 2s", kind);
}

static kelp_status check_asked(const struct kelp_chaos_entry *entry, struct kelp_error *reterr)
{
    bool worker_or_shard = entry->role == KELP_CHAOS_WORKER || entry->role == KELP_CHAOS_SHARD;
    bool replica = entry->role == KELP_CHAOS_PRIMARY || entry->role == KELP_CHAOS_BACKUP;

    if (entry->kind == KELP_CHAOS_DRAIN && !worker_or_shard && !replica) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "only a worker, shard, primary or backup can be drained");
    }
    if (entry->kind == KELP_CHAOS_SCALE && (!worker_or_shard || entry->numbered)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "scale: needs a target: worker or shard, without a number");
    }
    if (entry->kind == KELP_CHAOS_SCALE && entry->to.max == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "scale: needs a size, for example to: 1:4");
    }
    if (entry->for_ms.max > 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "for: %s has no duration",
                         kind_names[entry->kind]);
    }
    return KELP_OK;
}

kelp_status kelp__chaos_entry_check(const struct kelp_chaos_entry *entry, struct kelp_error *reterr)
{
    const char *kind = kind_names[entry->kind];
    bool of_disk = entry->kind == KELP_CHAOS_SLOW || entry->kind == KELP_CHAOS_FULL;

    if (entry->role == KELP_CHAOS_EVERYTHING && entry->kind != KELP_CHAOS_KILL &&
        entry->kind != KELP_CHAOS_RESTART) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "target everything: only kill and restart are possible");
    }
    if (entry->role == KELP_CHAOS_BOTH && entry->kind != KELP_CHAOS_KILL &&
        entry->kind != KELP_CHAOS_PAUSE) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "target both: only kill and pause are possible");
    }
    if (of_disk != (entry->role == KELP_CHAOS_DISK)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "kinds slow and full go with target: disk, and only with it");
    }
    if (entry->to.max > 0 && entry->kind != KELP_CHAOS_SCALE) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "to: is only for kind: scale");
    }
    if (is_of_host(entry->kind) || entry->role == KELP_CHAOS_HOST) {
        return check_host(entry, reterr);
    }
    if (is_asked(entry->kind)) {
        return check_asked(entry, reterr);
    }
    if (lasts(entry) && entry->for_ms.max == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s: needs a duration, for example for: 2s",
                         kind);
    }
    if (!lasts(entry) && entry->for_ms.max > 0 &&
        !(entry->kind == KELP_CHAOS_KILL && entry->role == KELP_CHAOS_ETCD)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "for: is only for kind: kill with target: etcd; other processes are "
                         "restarted at once");
    }
    return KELP_OK;
}

/* ---- drawing ------------------------------------------------------------------------------- */

/* The purpose of a drawn number; two purposes never share a number. */
enum draw_use { DRAW_STEP, DRAW_FOR, DRAW_INDEX, DRAW_MIX, DRAW_EVERY, DRAW_USES };

struct draw {
    uint64_t seed;
    uint64_t item; /* entry of `faults`, then drawn fault */
};

static uint32_t below(const struct draw *draw, enum draw_use use, uint32_t bound)
{
    uint32_t words[4];

    kelp_philox(draw->seed, KELP_PHILOX_CHAOS, 0, draw->item * DRAW_USES + use, words);
    return (uint32_t)kelp_philox_below(words[0], words[1], bound);
}

/* A host other than that one, from the words that its own number leaves. */
static uint32_t other_host(const struct draw *draw, uint32_t host, uint32_t hosts)
{
    uint32_t words[4];

    assert(hosts > 1);
    kelp_philox(draw->seed, KELP_PHILOX_CHAOS, 0, draw->item * DRAW_USES + DRAW_INDEX, words);
    return (host + 1 + (uint32_t)kelp_philox_below(words[2], words[3], hosts - 1)) % hosts;
}

static uint32_t within(const struct draw *draw, enum draw_use use, struct kelp_range range)
{
    assert(range.min <= range.max && range.max < UINT32_MAX);
    return range.min + below(draw, use, range.max - range.min + 1);
}

/* The process's number: the given one, or a drawn one. */
static kelp_status draw_target(const struct kelp_chaos_plan *plan,
                               const struct kelp_chaos_entry *entry,
                               const struct kelp_chaos_size *size, const struct draw *draw,
                               struct kelp_chaos_fault *fault, struct kelp_error *reterr)
{
    uint32_t count = entry->role == KELP_CHAOS_WORKER  ? size->workers
                     : entry->role == KELP_CHAOS_SHARD ? size->shards
                     : entry->role == KELP_CHAOS_HOST  ? size->hosts
                                                       : size->coordinators;

    fault->role = entry->role;
    if (entry->role == KELP_CHAOS_COORDINATOR && !entry->numbered) {
        bool leads = size->coordinators < 2 || below(draw, DRAW_INDEX, 2) == 0;
        fault->role = leads ? KELP_CHAOS_LEADER : KELP_CHAOS_STANDBY;
        return KELP_OK;
    }
    if (entry->role == KELP_CHAOS_STANDBY && size->coordinators < 2) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s:%" PRIu32 ": there is no standby: --coordinators is 1", plan->name,
                         entry->line);
    }
    if ((entry->role == KELP_CHAOS_BACKUP || entry->role == KELP_CHAOS_BOTH) &&
        size->replicas < 2) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s:%" PRIu32 ": there is no backup: cluster.replicas is 1", plan->name,
                         entry->line);
    }
    if (!has_index(entry->role)) {
        return KELP_OK;
    }
    if (entry->numbered && entry->index >= count) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s:%" PRIu32 ": there is no %s-%" PRIu32 ", the run has %" PRIu32,
                         plan->name, entry->line, role_names[entry->role], entry->index, count);
    }
    fault->drawn = !entry->numbered;
    fault->index = entry->numbered ? entry->index : below(draw, DRAW_INDEX, count);
    if (entry->kind == KELP_CHAOS_ONE_WAY) {
        fault->to = other_host(draw, fault->index, count);
    }
    return KELP_OK;
}

/* Could the leader refuse it at any time? */
static kelp_status check_possible(const struct kelp_chaos_plan *plan,
                                  const struct kelp_chaos_entry *entry,
                                  const struct kelp_chaos_size *size, struct kelp_error *reterr)
{
    bool worker = entry->role == KELP_CHAOS_WORKER;
    uint32_t count = worker ? size->workers : size->shards;
    uint32_t rest = worker || size->replicas == 0 ? 1 : size->replicas;

    if ((entry->role == KELP_CHAOS_HOST) != (size->hosts > 0)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s:%" PRIu32 ": target: %s", plan->name,
                         entry->line,
                         size->hosts > 0 ? "with --hosts it must be a host"
                                         : "there are no hosts; use --hosts N");
    }
    if (entry->kind == KELP_CHAOS_DRAIN && count <= rest) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s:%" PRIu32 ": no %s can be spared: the run has %" PRIu32, plan->name,
                         entry->line, worker ? "worker" : "shard", count);
    }
    if (entry->kind == KELP_CHAOS_SCALE && worker && entry->to.max > size->lanes) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s:%" PRIu32 ": to: %" PRIu32
                         " workers are too many: the job has %" PRIu32 " lanes (cluster.lanes)",
                         plan->name, entry->line, entry->to.max, size->lanes);
    }
    if (entry->kind == KELP_CHAOS_SCALE && !worker && entry->to.min < rest) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s:%" PRIu32 ": to: %" PRIu32
                         ": too few shards: each partition has %" PRIu32
                         " replicas (cluster.replicas)",
                         plan->name, entry->line, entry->to.min, rest);
    }
    return KELP_OK;
}

static kelp_status draw_fault(const struct kelp_chaos_plan *plan,
                              const struct kelp_chaos_entry *entry,
                              const struct kelp_chaos_size *size, const struct draw *draw,
                              struct kelp_chaos_fault *ret_fault, struct kelp_error *reterr)
{
    struct kelp_chaos_fault fault = {.kind = entry->kind,
                                     .for_ms = within(draw, DRAW_FOR, entry->for_ms)};

    kelp_status status = check_possible(plan, entry, size, reterr);
    if (status != KELP_OK) {
        return plan->if_possible ? KELP_ERR_UNSUPPORTED : status;
    }
    if (entry->kind == KELP_CHAOS_SCALE) {
        fault.role = entry->role;
        fault.to = within(draw, DRAW_INDEX, entry->to);
    } else {
        status = draw_target(plan, entry, size, draw, &fault, reterr);
    }
    if (status == KELP_OK) {
        *ret_fault = fault;
    }
    return status;
}

static const struct kelp_chaos_entry *draw_mix(const struct kelp_chaos_plan *plan,
                                               const struct draw *draw)
{
    uint32_t total = 0;

    for (uint32_t i = 0; i < plan->mix_count; i++) {
        total += plan->mix[i].weight;
    }
    uint32_t at = below(draw, DRAW_MIX, total);
    uint32_t i = 0;
    while (at >= plan->mix[i].weight) {
        at -= plan->mix[i].weight;
        i++;
    }
    return &plan->mix[i];
}

static kelp_status draw_mixed(const struct kelp_chaos_plan *plan,
                              const struct kelp_chaos_size *size, uint64_t seed,
                              struct kelp_chaos_fault *faults, uint32_t *count,
                              struct kelp_error *reterr)
{
    uint64_t step = 0;

    for (uint32_t i = 0; i < plan->draw_count; i++) {
        struct draw draw = {.seed = seed, .item = KELP_CHAOS_ENTRIES_MAX + i};
        step += within(&draw, DRAW_EVERY, i == 0 ? plan->first : plan->every);
        if (*count == KELP_CHAOS_FAULTS_MAX || step > KELP_CHAOS_STEP_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: more than %d faults or %u steps",
                             plan->name, KELP_CHAOS_FAULTS_MAX, KELP_CHAOS_STEP_MAX);
        }
        kelp_status status =
            draw_fault(plan, draw_mix(plan, &draw), size, &draw, &faults[*count], reterr);
        if (status == KELP_OK) {
            faults[(*count)++].step = (uint32_t)step;
        } else if (status != KELP_ERR_UNSUPPORTED) {
            return status;
        }
    }
    return KELP_OK;
}

static void sort_by_step(struct kelp_chaos_fault *faults, uint32_t count)
{
    /* Stable, so that faults of one step stay in the plan's order. */
    for (uint32_t i = 1; i < count; i++) {
        struct kelp_chaos_fault moved = faults[i];
        uint32_t at = i;
        while (at > 0 && faults[at - 1].step > moved.step) {
            faults[at] = faults[at - 1];
            at--;
        }
        faults[at] = moved;
    }
}

kelp_status kelp_chaos_plan_draw(const struct kelp_chaos_plan *plan,
                                 const struct kelp_chaos_size *size, uint64_t seed,
                                 struct kelp_chaos_fault *ret_faults, uint32_t *ret_count,
                                 struct kelp_error *reterr)
{
    uint32_t count = 0;

    assert(size->workers > 0 && size->shards > 0 && size->coordinators > 0);
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        struct draw draw = {.seed = seed, .item = i};
        kelp_status status =
            draw_fault(plan, &plan->faults[i], size, &draw, &ret_faults[count], reterr);
        if (status == KELP_OK) {
            ret_faults[count++].step = within(&draw, DRAW_STEP, plan->faults[i].step);
        } else if (status != KELP_ERR_UNSUPPORTED) {
            return status;
        }
    }
    kelp_status status = draw_mixed(plan, size, seed, ret_faults, &count, reterr);
    if (status == KELP_OK && count == 0) {
        status = kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                           "%s: none of its faults is possible in this cluster", plan->name);
    }
    if (status == KELP_OK) {
        sort_by_step(ret_faults, count);
        *ret_count = count;
    }
    return status;
}

kelp_status kelp_chaos_plan_set_count(struct kelp_chaos_plan *plan, uint32_t count,
                                      struct kelp_error *reterr)
{
    assert(count > 0 && count <= KELP_CHAOS_FAULTS_MAX);
    if (plan->draw_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--faults: plan '%s' has no draw section",
                         plan->name);
    }
    plan->draw_count = count;
    return KELP_OK;
}

uint32_t kelp_chaos_faults_drop(struct kelp_chaos_fault *faults, uint32_t count,
                                const bool drop[KELP_CHAOS_KIND_COUNT])
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (!drop[faults[i].kind]) {
            faults[left++] = faults[i];
        }
    }
    return left;
}
