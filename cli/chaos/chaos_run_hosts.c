#include "cli/chaos/chaos_run_hosts.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chaos/chaos_follow.h"
#include "cli/chaos/chaos_machines.h"
#include "cli/cluster/run_client.h"
#include "common/base/clock.h"
#include "common/program/run_certs.h"
#include "common/tls/authority.h"

#define PATH_BYTES      KELP_CHAOS_MACHINE_PATH_MAX
#define TICK_MS         200   /* without an event */
#define CALM_MS         100   /* between two looks whether all is well */
#define STATUS_FRESH_MS 1000  /* older answers of the coordinator say nothing about now */
#define ETCD_MS         60000 /* for all members to become healthy at the beginning */

_Static_assert(KELP_NETWORK_HOSTS_MAX <= KELP_AUTHORITY_HOSTS_MAX,
               "etcd's certificate names all hosts");

enum stage {
    STAGE_WELL,    /* or it is waited for, between two faults */
    STAGE_LASTS,   /* until the time is over */
    STAGE_LEAVING, /* LEAVE: `kelp node` ends by itself before the fault's time begins */
    STAGE_GOES_ON  /* the host is as before: until enough steps are made */
};

struct run {
    const struct kelp_chaos_options *options;
    struct kelp_network *network;
    struct kelp_chaos_report *report;
    struct kelp_chaos_follow follow;
    struct kelp_chaos_machines machines;
    enum stage stage;
    uint32_t next;     /* the current fault, or the next one */
    uint32_t settled;  /* faults that are over, with a healthy cluster afterwards */
    uint64_t until_ms; /* LASTS */
    uint64_t calm_ms;  /* when to check again whether the cluster is healthy */
    uint64_t well_ms;  /* since when the cluster has been healthy; 0: it is not */
    char run_path[PATH_BYTES];
    char submit_log[PATH_BYTES];
    char sockets[KELP_SOCKET_FOLDER_MAX + 1]; /* private folder of certificates; "": none yet */
    int sockets_held;                         /* kelp_socket_folder_make() */
    char certs[KELP_RUN_CERTS_MAX + 1];
};

static const struct kelp_chaos_fault *fault_now(const struct run *run)
{
    assert(run->next < run->options->fault_count);
    return &run->options->faults[run->next];
}

/* ---- is all well? -------------------------------------------------------------------------- */

/* Every shard serves at the address that its host has now. */
static bool serve_in_place(const struct run *run, const Kelp__V1__StatusReply *status)
{
    for (size_t i = 0; i < status->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = status->shards[i];
        for (uint32_t host = 0; host < kelp_network_count(run->network); host++) {
            const char *name = run->machines.list[host].name;
            const char *address = kelp_network_address(run->network, host);
            size_t bytes = strlen(address);
            if (strncmp(shard->shard, name, strlen(name)) == 0 &&
                shard->shard[strlen(name)] == '.' &&
                (strncmp(shard->address, address, bytes) != 0 || shard->address[bytes] != ':')) {
                return false;
            }
        }
    }
    return true;
}

/* All shards and workers are connected, and each partition has its backup. */
static bool job_is_well(const struct run *run, uint64_t now_ms)
{
    const Kelp__V1__StatusReply *status = run->follow.status;
    uint32_t shards = 0, backups = 0, workers = 0;

    if (!status || now_ms - run->follow.status_ms > STATUS_FRESH_MS || !status->map ||
        strcmp(status->state, "running") != 0) {
        return false;
    }
    for (size_t i = 0; i < status->n_shards; i++) {
        shards += status->shards[i]->connected && status->shards[i]->joining == 0;
        backups += status->shards[i]->backups;
    }
    for (size_t i = 0; i < status->n_workers; i++) {
        workers += status->workers[i]->lane_count > 0;
    }
    return shards == run->options->shards && status->n_shards == shards &&
           workers == run->options->workers &&
           backups == status->map->n_partitions * (run->options->replicas - 1) &&
           serve_in_place(run, status);
}

/* A link that was cut stays silent for a while after the network is whole again, since TCP waits
 * longer with each retry. So a backup may still be given up although everything looks healthy. */
static uint64_t aftermath_ms(const struct run *run)
{
    const enum kelp_chaos_kind kind =
        run->next > 0 ? run->options->faults[run->next - 1].kind : KELP_CHAOS_KILL;

    return kind == KELP_CHAOS_SPLIT || kind == KELP_CHAOS_ONE_WAY
               ? 2 * (uint64_t)run->options->detect_ms
               : 0;
}

static bool is_calm(struct run *run, uint64_t now_ms)
{
    if (now_ms < run->calm_ms) {
        return false;
    }
    run->calm_ms = now_ms + CALM_MS;
    if (!job_is_well(run, now_ms) || !kelp_chaos_machines_healthy(&run->machines)) {
        run->well_ms = 0;
        return false;
    }
    run->well_ms = run->well_ms == 0 ? now_ms : run->well_ms;
    return now_ms - run->well_ms >= aftermath_ms(run);
}

/* ---- faults -------------------------------------------------------------------------------- */

/* Wait until the fault's time is over. If the host has to leave first, its beginning is not known
 * yet. */
static void last(struct run *run, enum stage stage)
{
    run->stage = stage;
    run->until_ms = kelp_clock_ms() + fault_now(run)->for_ms;
    run->follow.alive_ms = run->until_ms;
}

static kelp_status begin(struct run *run, struct kelp_error *reterr)
{
    const struct kelp_chaos_fault *fault = fault_now(run);
    char target[KELP_CHAOS_TEXT_MAX];
    kelp_status status = KELP_OK;

    kelp_chaos_target_print(fault, target);
    /* Take away one host at a time, when the cluster is healthy: the other replica of each
     * partition lives. */
    kelp_chaos_report_fault(run->report, fault, target, run->options->replicas < 2,
                            kelp_clock_ms());
    switch (fault->kind) {
    case KELP_CHAOS_SPLIT:
        status = kelp_network_cut(run->network, fault->index, true, reterr);
        break;
    case KELP_CHAOS_ONE_WAY:
        status = kelp_network_lose(run->network, fault->index, fault->to, true, reterr);
        break;
    case KELP_CHAOS_LEAVE:
        kelp_process_signal(run->machines.list[fault->index].node.process, SIGTERM);
        last(run, STAGE_LEAVING);
        return KELP_OK;
    default:
        status = kelp_chaos_machines_kill(&run->machines, fault->index, reterr);
        break;
    }
    last(run, STAGE_LASTS);
    return status == KELP_OK ? kelp_network_check(run->network, reterr) : status;
}

/* The host is back as before, or under another address. */
static kelp_status end(struct run *run, struct kelp_error *reterr)
{
    const struct kelp_chaos_fault *fault = fault_now(run);
    kelp_status status = KELP_OK;

    if (fault->kind == KELP_CHAOS_SPLIT) {
        status = kelp_network_cut(run->network, fault->index, false, reterr);
    } else if (fault->kind == KELP_CHAOS_ONE_WAY) {
        status = kelp_network_lose(run->network, fault->index, fault->to, false, reterr);
    } else if (fault->kind == KELP_CHAOS_MOVE) {
        status = kelp_network_move(run->network, fault->index, reterr);
    }
    if (status == KELP_OK && !run->machines.list[fault->index].etcd) {
        status = kelp_chaos_machines_start_etcd(&run->machines, fault->index, reterr);
    }
    if (status == KELP_OK && !run->machines.list[fault->index].node.process) {
        status = kelp_chaos_machines_start_node(&run->machines, fault->index, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_network_check(run->network, reterr);
    }
    run->stage = STAGE_GOES_ON;
    run->well_ms = 0;
    run->follow.alive_ms = kelp_clock_ms();
    kelp_chaos_report_gone(run->report, run->report->event_count - 1, run->follow.alive_ms);
    return status;
}

/* The fault is over: wait until the cluster is healthy, or finish if it is. */
static kelp_status be_well(struct run *run, struct kelp_error *reterr)
{
    bool due = run->next < run->options->fault_count &&
               run->report->newest.step >= fault_now(run)->step &&
               kelp_chaos_follow_unfinished(&run->follow);

    if ((!due && run->settled == run->next) || !is_calm(run, kelp_clock_ms())) {
        return KELP_OK;
    }
    if (run->settled < run->next && run->next == run->options->fault_count) {
        kelp_display_say(run->options->display,
                         "all faults are over; the job continues to its end from step %" PRIu64
                         " of %" PRIu64,
                         run->report->newest.step, run->report->total_steps);
    }
    run->settled = run->next;
    return due ? begin(run, reterr) : KELP_OK;
}

static kelp_status tend(struct run *run, struct kelp_error *reterr)
{
    switch (run->stage) {
    case STAGE_WELL:
        return be_well(run, reterr);
    case STAGE_LASTS:
        return kelp_clock_ms() >= run->until_ms ? end(run, reterr) : KELP_OK;
    case STAGE_LEAVING:
        if (!run->machines.list[fault_now(run)->index].node.process) {
            last(run, STAGE_LASTS);
        }
        return KELP_OK;
    case STAGE_GOES_ON:
        if (run->report->events[run->report->event_count - 1].recovered) {
            run->stage = STAGE_WELL;
            run->next++;
        }
        return KELP_OK;
    }
    return KELP_OK;
}

/* ---- the run ------------------------------------------------------------------------------- */

static kelp_status make_certs(struct run *run, struct kelp_error *reterr)
{
    const char *addresses[KELP_NETWORK_HOSTS_MAX];

    for (uint32_t i = 0; i < kelp_network_count(run->network); i++) {
        addresses[i] = kelp_network_first_address(run->network, i);
    }
    kelp_status status = kelp_socket_folder_make(run->sockets, &run->sockets_held, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_run_certs_path(run->sockets, run->certs);
    return kelp_run_certs_make_for(run->sockets, run->options->job, addresses,
                                   kelp_network_count(run->network), reterr);
}

static kelp_status stopped(struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_CLOSED, "stopped by a signal");
}

static bool stopping(const struct run *run)
{
    return kelp_guard_stage(run->options->guard) == KELP_GUARD_STOP;
}

static kelp_status start_etcd(struct run *run, struct kelp_error *reterr)
{
    uint64_t end_ms = kelp_clock_ms() + ETCD_MS;
    kelp_status status = KELP_OK;
    bool ended = false;

    for (uint32_t i = 0; status == KELP_OK && i < kelp_network_count(run->network); i++) {
        status = kelp_chaos_machines_start_etcd(&run->machines, i, reterr);
    }
    while (status == KELP_OK && !kelp_chaos_machines_healthy(&run->machines)) {
        struct pollfd signal = {.fd = kelp_guard_fd(run->options->guard), .events = POLLIN};
        for (uint32_t i = 0; status == KELP_OK && i < kelp_network_count(run->network); i++) {
            status = kelp_chaos_machines_look(&run->machines, i, &ended, reterr);
        }
        if (status == KELP_OK && stopping(run)) {
            status = stopped(reterr);
        }
        if (status == KELP_OK && kelp_clock_ms() >= end_ms) {
            status = kelp_fail(reterr, KELP_ERR_UNREACHABLE,
                               "the members of etcd did not come up within %d s; see %s/host-*.etcd"
                               ".log",
                               ETCD_MS / 1000, run->options->folder);
        }
        (void)poll(&signal, 1, CALM_MS);
    }
    return status;
}

static kelp_status submit(struct run *run, struct kelp_error *reterr)
{
    char job_path[PATH_BYTES];
    struct kelp_chaos_child child = {
        .verb = "submit", .bin_folder = run->options->bin_folder, .log_path = run->submit_log};
    const char *args[] = {job_path,
                          "--run",
                          run->run_path,
                          "--etcd",
                          run->machines.urls,
                          "--certs",
                          run->machines.operator_certs,
                          NULL};

    (void)snprintf(job_path, sizeof(job_path), "%s/job.yaml", run->options->folder);
    return kelp_chaos_child_run(&child, args, run->options->guard, reterr);
}

static kelp_status start(struct run *run, struct kelp_error *reterr)
{
    const struct kelp_chaos_options *options = run->options;

    (void)snprintf(run->run_path, sizeof(run->run_path), "%s/chaos", options->folder);
    (void)snprintf(run->submit_log, sizeof(run->submit_log), "%s/submit.log", options->folder);
    kelp_status status = make_certs(run, reterr);
    if (status == KELP_OK) {
        run->machines = (struct kelp_chaos_machines){.network = run->network,
                                                     .folder = options->folder,
                                                     .bin_folder = options->bin_folder,
                                                     .job = options->job,
                                                     .certs = run->certs,
                                                     .etcd_program = options->etcd_program,
                                                     .log_level = options->log_level,
                                                     .shards = options->shards,
                                                     .workers = options->workers};
        status = kelp_chaos_machines_init(&run->machines, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_network_check(run->network, reterr);
    }
    if (status == KELP_OK) {
        status = start_etcd(run, reterr);
    }
    if (status == KELP_OK) {
        status = submit(run, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_chaos_follow_start(&run->follow, run->machines.urls, options->job,
                                         run->machines.operator_certs, reterr);
    }
    for (uint32_t i = 0; status == KELP_OK && i < kelp_network_count(run->network); i++) {
        status = kelp_chaos_machines_start_node(&run->machines, i, reterr);
    }
    return status;
}

/* Wait for the next event, or until the fault's time is over. */
static void wait_for_event(struct run *run)
{
    struct pollfd items[3 + KELP_NETWORK_HOSTS_MAX] = {
        {.fd = kelp_guard_fd(run->options->guard), .events = POLLIN},
        {.fd = kelp_chaos_watch_fd(run->follow.watch), .events = POLLIN},
        {.fd = kelp_monitor_fd(run->follow.monitor), .events = POLLIN},
    };
    uint64_t now = kelp_clock_ms();
    int wait_ms = TICK_MS;
    nfds_t count = 3;

    for (uint32_t i = 0; i < kelp_network_count(run->network); i++) {
        const struct kelp_process *node = run->machines.list[i].node.process;
        if (node) {
            items[count++] = (struct pollfd){.fd = kelp_process_fd(node), .events = POLLIN};
        }
    }
    if (run->stage == STAGE_LASTS && run->until_ms < now + TICK_MS) {
        wait_ms = run->until_ms > now ? (int)(run->until_ms - now) : 0;
    }
    (void)poll(items, count, wait_ms);
}

static kelp_status check_stall(struct run *run, struct kelp_error *reterr)
{
    pid_t nodes[KELP_NETWORK_HOSTS_MAX];
    struct kelp_chaos_stall stall = {
        .limit_ms = run->options->stall_ms, .run_path = run->run_path, .parents = nodes};

    for (uint32_t i = 0; i < kelp_network_count(run->network); i++) {
        if (run->machines.list[i].node.process) {
            nodes[stall.parent_count++] = kelp_process_pid(run->machines.list[i].node.process);
        }
    }
    return kelp_chaos_follow_stall(&run->follow, &stall, reterr);
}

/* Every `kelp node` has ended, and no host is away. */
static kelp_status look_at_hosts(struct run *run, bool *ret_over, struct kelp_error *reterr)
{
    bool away = run->stage == STAGE_LASTS || run->stage == STAGE_LEAVING;

    *ret_over = !away;
    for (uint32_t i = 0; i < kelp_network_count(run->network); i++) {
        bool ended = false;
        kelp_status status = kelp_chaos_machines_look(&run->machines, i, &ended, reterr);
        if (status != KELP_OK) {
            return status;
        }
        *ret_over = *ret_over && ended;
    }
    return KELP_OK;
}

static kelp_status follow(struct run *run, struct kelp_error *reterr)
{
    bool over = false;
    kelp_status status = KELP_OK;

    while (status == KELP_OK && !over) {
        kelp_chaos_follow_read(&run->follow);
        status = look_at_hosts(run, &over, reterr);
        if (status == KELP_OK && stopping(run)) {
            status = stopped(reterr);
        }
        if (status == KELP_OK && !over) {
            status = tend(run, reterr);
        }
        if (status == KELP_OK && !over) {
            status = check_stall(run, reterr);
        }
        if (status == KELP_OK && !over) {
            wait_for_event(run);
        }
    }
    return status;
}

/* Faults that never came to their turn. */
static void say_missed(const struct run *run)
{
    char text[KELP_CHAOS_TEXT_MAX];

    for (uint32_t i = run->report->event_count; i < run->options->fault_count; i++) {
        kelp_chaos_fault_print(&run->options->faults[i], text);
        (void)printf("   not done  step %-8" PRIu32 " %s\n", run->options->faults[i].step, text);
    }
}

/* Whether a host came back as planned shows once the cluster is healthy after the fault. */
static kelp_status check_settled(const struct run *run, struct kelp_error *reterr)
{
    return run->settled >= run->report->event_count
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "the run ended before the cluster had recovered from the last fault: "
                           "give more --epochs");
}

kelp_status kelp_chaos_run_hosts(const struct kelp_chaos_options *options,
                                 struct kelp_network *network, struct kelp_chaos_report *report,
                                 struct kelp_result *ret_result, struct kelp_error *reterr)
{
    struct run *run = calloc(1, sizeof(*run));

    if (!run) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    run->options = options;
    run->network = network;
    run->report = report;
    run->follow.report = report;
    run->follow.display = options->display;
    run->sockets_held = -1;
    kelp_status status = start(run, reterr);
    if (status == KELP_OK) {
        status = follow(run, reterr);
        report->wall_s = (double)(kelp_clock_ms() - report->start_ms) / 1000;
        kelp_chaos_follow_finish(&run->follow);
        say_missed(run);
    }
    if (status == KELP_OK) {
        status = check_settled(run, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_result_read(run->run_path, ret_result, reterr);
    }
    kelp_chaos_follow_stop(&run->follow);
    kelp_chaos_machines_fini(&run->machines);
    if (run->sockets_held >= 0) {
        (void)close(run->sockets_held);
    }
    kelp_socket_folder_remove(run->sockets);
    kelp_socket_folder_clear(); /* of hosts that were killed */
    free(run);
    return status;
}
