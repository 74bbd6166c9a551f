#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chaos/plan/chaos_plan.h"
#include "tests/lib/suite.h"

static struct kelp_error error;
static struct kelp_chaos_plan plan;
static struct kelp_chaos_fault faults[KELP_CHAOS_FAULTS_MAX];
static struct kelp_chaos_fault again[KELP_CHAOS_FAULTS_MAX];
static uint32_t count;

static const struct kelp_chaos_size size = {
    .workers = 3, .shards = 2, .coordinators = 2, .lanes = 8};

static kelp_status parse(const char *text)
{
    return kelp_chaos_plan_parse("plan.yaml", text, strlen(text), &plan, &error);
}

static void must_parse(const char *text)
{
    kelp_status status = parse(text);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static void must_draw(uint64_t seed)
{
    kelp_status status = kelp_chaos_plan_draw(&plan, &size, seed, faults, &count, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static const char drawn_plan[] = "draw:\n"
                                 "  count: 200\n"
                                 "  first: 10:20\n"
                                 "  every: 5:9\n"
                                 "  mix:\n"
                                 "    - {kind: kill, target: worker, weight: 3}\n"
                                 "    - {kind: pause, target: shard, for: 100ms:300ms}\n"
                                 "    - {kind: kill, target: coordinator}\n";

/* What a plan says is what is drawn from it; the lines come by ascending step. */
KELP_TEST(test_list)
{
    char text[KELP_CHAOS_TEXT_MAX];

    must_parse("faults:\n"
               "  - {kind: pause, target: shard-1, step: 300, for: 1500ms}\n"
               "  - {kind: kill, target: worker-2, step: 120}\n"
               "if_possible: true\n");
    must_draw(1);
    ck_assert(plan.if_possible);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(faults[0].step, 120);
    kelp_chaos_fault_print(&faults[0], text);
    ck_assert_str_eq(text, "kill worker-2");
    kelp_chaos_fault_print(&faults[1], text);
    ck_assert_str_eq(text, "pause shard-1 1500 ms");
}

/* The same seed gives the same faults, another one others. */
KELP_TEST(test_seed)
{
    uint32_t first_count;

    must_parse(drawn_plan);
    must_draw(7);
    first_count = count;
    memcpy(again, faults, sizeof(again));
    must_draw(7);
    ck_assert_uint_eq(first_count, count);
    ck_assert_mem_eq(again, faults, count * sizeof(*faults));
    must_draw(8);
    ck_assert_mem_ne(again, faults, count * sizeof(*faults));
}

/* Drawn values lie in their ranges, reach every process, and follow the weights. */
KELP_TEST(test_ranges)
{
    uint32_t kills = 0;
    uint32_t hit[3] = {0};
    uint32_t leaders = 0;
    uint32_t standbys = 0;

    must_parse(drawn_plan);
    must_draw(3);
    ck_assert_uint_eq(count, 200);
    ck_assert_uint_ge(faults[0].step, 10);
    ck_assert_uint_le(faults[0].step, 20);
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) {
            ck_assert_uint_ge(faults[i].step - faults[i - 1].step, 5);
            ck_assert_uint_le(faults[i].step - faults[i - 1].step, 9);
        }
        if (faults[i].role == KELP_CHAOS_WORKER) {
            ck_assert_uint_lt(faults[i].index, 3);
            hit[faults[i].index]++;
            kills++;
        } else if (faults[i].role == KELP_CHAOS_SHARD) {
            ck_assert_uint_lt(faults[i].index, 2);
            ck_assert_uint_ge(faults[i].for_ms, 100);
            ck_assert_uint_le(faults[i].for_ms, 300);
        } else {
            leaders += faults[i].role == KELP_CHAOS_LEADER;
            standbys += faults[i].role == KELP_CHAOS_STANDBY;
        }
    }
    ck_assert_uint_gt(kills, 90); /* three of five: 120 on the average, seven deviations away */
    ck_assert_uint_lt(kills, 150);
    ck_assert(hit[0] > 0 && hit[1] > 0 && hit[2] > 0);
    ck_assert(leaders > 0 && standbys > 0);
}

static const struct {
    const char *text;
    const char *says;
} mistakes[] = {
    {"", "plan.yaml: holds no plan"},
    {"faults: []\n", "plan.yaml:1: faults: not a list"},
    {"if_possible: true\n", "plan.yaml:1: no faults"},
    {"fault:\n  - {}\n", "plan.yaml:1: fault: unknown key; known are faults, draw, if_possible"},
    {"faults:\n  - {kind: kill, target: worker}\n", "plan.yaml:2: step: is missing"},
    {"faults:\n  - {kind: kil, target: worker, step: 1}\n", "plan.yaml:2: kind: "},
    {"faults:\n  - {kind: kill, target: workers, step: 1}\n", "plan.yaml:2: target: no target"},
    {"faults:\n  - {kind: kill, target: etcd-1, step: 1}\n", "plan.yaml:2: target: no target"},
    {"faults:\n  - {kind: kill, target: worker, step: 0}\n", "plan.yaml:2: step: '0'"},
    {"faults:\n  - {kind: kill, target: worker, step: 9:3}\n", "plan.yaml:2: step: '9:3'"},
    {"faults:\n  - {kind: kill, kind: kill, target: worker, step: 1}\n", "given twice"},
    {"faults:\n  - {kind: pause, target: worker, step: 1}\n", "pause: needs a duration"},
    {"faults:\n  - {kind: kill, target: shard, step: 1, for: 1s}\n", "for: is only for kind: kill"},
    {"faults:\n  - {kind: split, target: everything, step: 1, for: 1s}\n",
     "target everything: only"},
    {"faults:\n  - {kind: full, target: worker, step: 1, for: 1s}\n",
     "kinds slow and full go with"},
    {"faults:\n  - {kind: pause, target: worker, step: 1, for: 5}\n", "plan.yaml:2: for: '5'"},
    {"faults:\n  - {kind: pause, target: worker, step: 1, for: 2s:1s}\n", "for: '1s'"},
    {"draw: {count: 0, every: 1, mix: [{kind: kill, target: worker}]}\n", "count: '0'"},
    {"draw: {count: 5, every: 1}\n", "plan.yaml:1: mix: is missing"},
    {"draw: {count: 5, every: 1, mix: [{kind: kill, target: worker, step: 4}]}\n",
     "step: unknown key"},
    {"faults:\n  - {kind: drain, target: etcd, step: 1}\n",
     "a worker, shard, primary or backup can"},
    {"faults:\n  - {kind: drain, target: shard, step: 1, for: 1s}\n", "for: drain has no duration"},
    {"faults:\n  - {kind: scale, target: shard, step: 1}\n", "scale: needs a size"},
    {"faults:\n  - {kind: scale, target: shard-1, to: 2, step: 1}\n", "scale: needs a target"},
    {"faults:\n  - {kind: scale, target: leader, to: 2, step: 1}\n", "scale: needs a target"},
    {"faults:\n  - {kind: scale, target: shard, to: 0, step: 1}\n", "plan.yaml:2: to: '0'"},
    {"faults:\n  - {kind: kill, target: shard, to: 2, step: 1}\n", "to: is only for kind: scale"},
    {"faults:\n  - {kind: kill, target: host, step: 1}\n", "plan.yaml:2: kill: needs a duration"},
    {"faults:\n  - {kind: leave, target: host-1, step: 1}\n",
     "plan.yaml:2: leave: needs a duration"},
    {"faults:\n  - {kind: pause, target: host, step: 1, for: 1s}\n",
     "a host can have kill, split, one-way, leave and move; pause is for processes"},
    {"faults:\n  - {kind: move, target: shard, step: 1, for: 1s}\n", "move: needs target: host"},
    {"faults:\n  - {kind: one-way, target: host, to: 2, step: 1, for: 1s}\n",
     "to: is only for kind: scale"},
    {"faults: [[[[[[[[[[[[[[[[[[\n", "nested brackets"},
    {"a: b\n---\nc: d\n", "plan.yaml:1: a: unknown key"},
    {"faults: [{kind: kill, target: worker, step: 1}]\n---\nc: d\n", "a second document"},
};

/* A mistake is one line that says where it is and what would be right. */
KELP_LOOP_TEST(test_mistakes, 0, KELP_ARRAY_COUNT(mistakes))
{
    ck_assert_int_ne(parse(mistakes[_i].text), KELP_OK);
    ck_assert_msg(strstr(error.text, mistakes[_i].says) != NULL, "'%s' gives: %s",
                  mistakes[_i].text, error.text);
    ck_assert_ptr_null(strchr(error.text, '\n'));
}

/* Targets that the run does not have are refused with the line that names them. */
KELP_TEST(test_targets_there)
{
    struct kelp_chaos_size small = {.workers = 1, .shards = 1, .coordinators = 1};

    must_parse("faults:\n  - {kind: kill, target: shard-1, step: 5}\n");
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &small, 1, faults, &count, &error),
                     KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "plan.yaml:2: there is no shard-1, the run has 1");
    must_parse("faults:\n  - {kind: kill, target: standby, step: 5}\n");
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &small, 1, faults, &count, &error),
                     KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "there is no standby"));
    must_parse("faults:\n  - {kind: kill, target: both, step: 5}\n");
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &small, 1, faults, &count, &error),
                     KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "plan.yaml:2: there is no backup: cluster.replicas is 1");
    small.replicas = 2;
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &small, 1, faults, &count, &error), KELP_OK);
    ck_assert_int_eq(faults[0].role, KELP_CHAOS_BOTH);
    must_parse("faults:\n  - {kind: kill, target: coordinator, step: 5}\n");
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &small, 1, faults, &count, &error), KELP_OK);
    ck_assert_int_eq(faults[0].role, KELP_CHAOS_LEADER);
}

/* Somebody must be there to take over, and a size must be one that the cluster can have; what
 * cannot be is left out where the plan allows it. */
KELP_TEST(test_scale_and_drain)
{
    static const char *const impossible[] = {"{kind: drain, target: shard, step: 5}",
                                             "{kind: scale, target: shard, to: 1:2, step: 5}",
                                             "{kind: scale, target: worker, to: 4:9, step: 5}"};
    static const char *const says[] = {
        "plan.yaml:1: no shard can be spared: the run has 2",
        "plan.yaml:1: to: 1: too few shards: each partition has 2 replicas (cluster.replicas)",
        "plan.yaml:1: to: 9 workers are too many: the job has 8 lanes (cluster.lanes)"};
    struct kelp_chaos_size both = size;
    char text[KELP_CHAOS_TEXT_MAX + 128];

    both.replicas = 2;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(impossible); i++) {
        (void)snprintf(text, sizeof(text), "faults: [%s]\n", impossible[i]);
        must_parse(text);
        ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &both, 1, faults, &count, &error),
                         KELP_ERR_INVALID);
        ck_assert_str_eq(error.text, says[i]);
        plan.if_possible = true;
        ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &both, 1, faults, &count, &error),
                         KELP_ERR_UNSUPPORTED);
    }
    must_parse("faults:\n"
               "  - {kind: scale, target: worker, to: 1:4, step: 5}\n"
               "  - {kind: drain, target: shard-1, step: 6}\n");
    must_draw(1);
    ck_assert_uint_eq(count, 2);
    ck_assert(faults[0].to >= 1 && faults[0].to <= 4);
    (void)snprintf(text, sizeof(text), "scale workers to %u", faults[0].to);
    char printed[KELP_CHAOS_TEXT_MAX];
    kelp_chaos_fault_print(&faults[0], printed);
    ck_assert_str_eq(printed, text);
    kelp_chaos_fault_print(&faults[1], printed);
    ck_assert_str_eq(printed, "drain shard-1");
}

/* More faults than fit are refused, not cut off. */
KELP_TEST(test_limit)
{
    char text[256];

    (void)snprintf(text, sizeof(text),
                   "faults: [{kind: kill, target: worker, step: 1}]\n"
                   "draw: {count: %d, every: 1, mix: [{kind: kill, target: worker}]}\n",
                   KELP_CHAOS_FAULTS_MAX);
    must_parse(text);
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &size, 1, faults, &count, &error), KELP_ERR_LIMIT);
}

/* A cluster without backups does not have them. */
static bool is_replica(int role)
{
    return role == KELP_CHAOS_PRIMARY || role == KELP_CHAOS_BACKUP || role == KELP_CHAOS_BOTH;
}

static bool is_of_host(int kind)
{
    return kind == KELP_CHAOS_ONE_WAY || kind == KELP_CHAOS_LEAVE || kind == KELP_CHAOS_MOVE;
}

/* The plans that are built in: quick hits every kind of process, all has fifty faults of every
 * kind, everything three times. */
KELP_TEST(test_builtin)
{
    uint32_t everything = 0, roles[KELP_CHAOS_ROLE_COUNT] = {0}, kinds[KELP_CHAOS_KIND_COUNT] = {0};

    must_parse(kelp_chaos_plan_builtin("quick"));
    must_draw(1);
    ck_assert_uint_ge(count, 10);
    for (uint32_t i = 0; i < count; i++) {
        roles[faults[i].role]++;
    }
    for (int role = 0; role < KELP_CHAOS_ROLE_COUNT; role++) {
        ck_assert(role == KELP_CHAOS_COORDINATOR || role == KELP_CHAOS_DISK || is_replica(role) ||
                  role == KELP_CHAOS_HOST || roles[role] > 0);
    }
    must_parse(kelp_chaos_plan_builtin("all"));
    must_draw(1);
    ck_assert_uint_eq(count, 50);
    for (uint32_t i = 0; i < count; i++) {
        kinds[faults[i].kind]++;
        everything += faults[i].role == KELP_CHAOS_EVERYTHING && faults[i].kind == KELP_CHAOS_KILL;
    }
    for (int kind = 0; kind < KELP_CHAOS_KIND_COUNT; kind++) {
        ck_assert(is_of_host(kind) || kinds[kind] > 0);
    }
    ck_assert_uint_eq(everything, 3);
    ck_assert_ptr_null(kelp_chaos_plan_builtin("Quick"));
}

/* What a machine cannot do is left out, the rest stays in order. */
KELP_TEST(test_drop)
{
    const bool drop[KELP_CHAOS_KIND_COUNT] = {[KELP_CHAOS_SPLIT] = true};

    must_parse("faults:\n"
               "  - {kind: kill, target: worker, step: 1}\n"
               "  - {kind: split, target: worker, step: 2, for: 1s}\n"
               "  - {kind: kill, target: worker, step: 3}\n");
    must_draw(1);
    count = kelp_chaos_faults_drop(faults, count, drop);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(faults[1].step, 3);
}

static const struct kelp_chaos_size three_hosts = {
    .workers = 3, .shards = 3, .coordinators = 2, .replicas = 2, .lanes = 8, .hosts = 3};

static void must_draw_hosts(uint64_t seed)
{
    kelp_status status = kelp_chaos_plan_draw(&plan, &three_hosts, seed, faults, &count, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

/* The plan of hosts: each kind, each host, each way of a loss, never to itself; the same seed gives
 * the same ones, however many are drawn. */
KELP_TEST(test_hosts)
{
    bool kinds[KELP_CHAOS_KIND_COUNT] = {false}, ways[3][3] = {{false}};

    must_parse(kelp_chaos_plan_builtin("hosts"));
    must_draw_hosts(11);
    ck_assert_uint_eq(count, 10);
    memcpy(again, faults, 10 * sizeof(*again));
    ck_assert_int_eq(kelp_chaos_plan_set_count(&plan, 300, &error), KELP_OK);
    must_draw_hosts(11);
    ck_assert_uint_eq(count, 300);
    ck_assert_mem_eq(again, faults, 10 * sizeof(*again));
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(faults[i].role, KELP_CHAOS_HOST);
        ck_assert_uint_lt(faults[i].index, 3);
        ck_assert_uint_ge(faults[i].for_ms, 100);
        kinds[faults[i].kind] = true;
        if (faults[i].kind == KELP_CHAOS_ONE_WAY) {
            ck_assert_uint_lt(faults[i].to, 3);
            ways[faults[i].index][faults[i].to] = true;
        }
    }
    ck_assert(kinds[KELP_CHAOS_KILL] && kinds[KELP_CHAOS_SPLIT] && kinds[KELP_CHAOS_ONE_WAY] &&
              kinds[KELP_CHAOS_LEAVE] && kinds[KELP_CHAOS_MOVE]);
    for (uint32_t from = 0; from < 3; from++) {
        for (uint32_t to = 0; to < 3; to++) {
            ck_assert(ways[from][to] == (from != to));
        }
    }
    must_draw_hosts(12);
    ck_assert_mem_ne(again, faults, 10 * sizeof(*again));
}

/* How a fault of a host is told. */
KELP_TEST(test_hosts_told)
{
    char text[KELP_CHAOS_TEXT_MAX], wanted[KELP_CHAOS_TEXT_MAX];

    must_parse("faults:\n"
               "  - {kind: one-way, target: host-2, step: 5, for: 700ms}\n"
               "  - {kind: move, target: host-0, step: 6, for: 1s}\n");
    must_draw_hosts(1);
    (void)snprintf(wanted, sizeof(wanted), "one-way host-2 to host-%u 700 ms", faults[0].to);
    kelp_chaos_fault_print(&faults[0], text);
    ck_assert_str_eq(text, wanted);
    kelp_chaos_fault_print(&faults[1], text);
    ck_assert_str_eq(text, "move host-0 1000 ms");
}

static void must_not_draw(const char *text, const struct kelp_chaos_size *of, const char *says)
{
    must_parse(text);
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, of, 1, faults, &count, &error), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, says);
    plan.if_possible = true;
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, of, 1, faults, &count, &error),
                     KELP_ERR_UNSUPPORTED);
}

/* Hosts are hit where there are some, and nothing else is hit then. */
KELP_TEST(test_hosts_apart)
{
    must_not_draw("faults: [{kind: kill, target: host, step: 5, for: 1s}]\n", &size,
                  "plan.yaml:1: target: there are no hosts; use --hosts N");
    must_not_draw("faults: [{kind: kill, target: worker, step: 5}]\n", &three_hosts,
                  "plan.yaml:1: target: with --hosts it must be a host");
    must_parse("faults: [{kind: leave, target: host-3, step: 5, for: 1s}]\n");
    ck_assert_int_eq(kelp_chaos_plan_draw(&plan, &three_hosts, 1, faults, &count, &error),
                     KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "plan.yaml:1: there is no host-3, the run has 3");
    ck_assert_int_eq(kelp_chaos_plan_set_count(&plan, 7, &error), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "--faults: plan 'plan.yaml' has no draw section");
}
