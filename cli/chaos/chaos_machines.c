#include "cli/chaos/chaos_machines.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/run/log_tail.h"
#include "common/etcd/etcd.h"
#include "common/program/etcd_server.h"
#include "common/tls/spiffe.h"

#define ETCD_ARGS_MAX   24
#define ETCD_ARG_BYTES  (KELP_CHAOS_MACHINE_PATH_MAX + 64)
#define CLIENT_PORT     "2379"
#define PEER_PORT       "2380"
#define URL_BYTES       64
#define NODE_COUNT_TEXT 12

/* ---- what is known beforehand -------------------------------------------------------------- */

/* "https://10.77.0.1:2379" */
static void print_url(const struct kelp_chaos_machines *machines, uint32_t host, const char *scheme,
                      const char *port, char url[URL_BYTES])
{
    (void)snprintf(url, URL_BYTES, "%s://%s:%s", scheme,
                   kelp_network_first_address(machines->network, host), port);
}

static kelp_status name_machine(struct kelp_chaos_machines *machines, uint32_t host,
                                struct kelp_error *reterr)
{
    struct kelp_chaos_machine *machine = &machines->list[host];
    uint32_t count = kelp_network_count(machines->network);
    char url[URL_BYTES];

    if (strlen(machines->folder) > KELP_RUN_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the run folder's path is too long");
    }
    (void)snprintf(machine->name, sizeof(machine->name), "host-%" PRIu32, host);
    (void)snprintf(machine->etcd_folder, sizeof(machine->etcd_folder), "%s/host-%" PRIu32 ".etcd",
                   machines->folder, host);
    (void)snprintf(machine->etcd_log, sizeof(machine->etcd_log), "%s/host-%" PRIu32 ".etcd.log",
                   machines->folder, host);
    (void)snprintf(machine->node_log, sizeof(machine->node_log), "%s/host-%" PRIu32 ".log",
                   machines->folder, host);
    machine->shards = machines->shards / count + (host < machines->shards % count);
    machine->workers = machines->workers / count + (host < machines->workers % count);
    machine->node = (struct kelp_chaos_child){
        .verb = "node", .bin_folder = machines->bin_folder, .log_path = machine->node_log};
    print_url(machines, host, "https", CLIENT_PORT, url);
    (void)snprintf(machines->urls + strlen(machines->urls),
                   sizeof(machines->urls) - strlen(machines->urls), "%s%s", host > 0 ? "," : "",
                   url);
    return kelp_etcd_open_certified(url, machines->operator_certs, &machine->health, reterr);
}

kelp_status kelp_chaos_machines_init(struct kelp_chaos_machines *machines,
                                     struct kelp_error *reterr)
{
    kelp_status status = kelp_etcd_server_find(machines->etcd_program, machines->etcd, reterr);

    (void)snprintf(machines->operator_certs, sizeof(machines->operator_certs), "%s/%s",
                   machines->certs, kelp_role_names[KELP_ROLE_OPERATOR]);
    for (uint32_t i = 0; status == KELP_OK && i < kelp_network_count(machines->network); i++) {
        status = name_machine(machines, i, reterr);
    }
    return status;
}

void kelp_chaos_machines_fini(struct kelp_chaos_machines *machines)
{
    for (uint32_t i = 0; i < KELP_NETWORK_HOSTS_MAX; i++) {
        struct kelp_chaos_machine *machine = &machines->list[i];
        kelp_chaos_child_kill(&machine->node);
        kelp_process_destroy(machine->etcd);
        machine->etcd = NULL;
        kelp_etcd_close(machine->health);
        machine->health = NULL;
    }
}

/* ---- a member of etcd ---------------------------------------------------------------------- */

struct etcd_args {
    char texts[ETCD_ARGS_MAX][ETCD_ARG_BYTES];
    const char *argv[ETCD_ARGS_MAX + 1];
    size_t count;
};

/* "--name=value" */
static void add(struct etcd_args *args, const char *name, const char *value)
{
    char *text = args->texts[args->count];

    assert(args->count < ETCD_ARGS_MAX);
    (void)snprintf(text, ETCD_ARG_BYTES, "--%s=%s", name, value);
    args->argv[args->count++] = text;
}

static void add_cert(const struct kelp_chaos_machines *machines, struct etcd_args *args,
                     const char *name, const char *file)
{
    char path[KELP_CHAOS_MACHINE_PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/%s/%s", machines->certs, kelp_role_names[KELP_ROLE_ETCD],
                   file);
    add(args, name, path);
}

static void add_members(const struct kelp_chaos_machines *machines, struct etcd_args *args)
{
    char members[KELP_CHAOS_URLS_MAX] = "";
    char url[URL_BYTES];

    for (uint32_t i = 0; i < kelp_network_count(machines->network); i++) {
        print_url(machines, i, "http", PEER_PORT, url);
        (void)snprintf(members + strlen(members), sizeof(members) - strlen(members), "%s%s=%s",
                       i > 0 ? "," : "", machines->list[i].name, url);
    }
    add(args, "initial-cluster", members);
}

/* Members talk to one another without certificates: nobody else is on their network. */
static void fill_etcd_args(const struct kelp_chaos_machines *machines, uint32_t host,
                           struct etcd_args *args)
{
    const struct kelp_chaos_machine *machine = &machines->list[host];
    char client[URL_BYTES], peer[URL_BYTES];

    print_url(machines, host, "https", CLIENT_PORT, client);
    print_url(machines, host, "http", PEER_PORT, peer);
    args->argv[args->count++] = machines->etcd;
    add(args, "name", machine->name);
    add(args, "data-dir", machine->etcd_folder);
    add(args, "listen-client-urls", client);
    add(args, "advertise-client-urls", client);
    add(args, "listen-peer-urls", peer);
    add(args, "initial-advertise-peer-urls", peer);
    add_members(machines, args);
    add(args, "heartbeat-interval", "50");
    add(args, "election-timeout", "500");
    add_cert(machines, args, "cert-file", "cert.pem");
    add_cert(machines, args, "key-file", "key.pem");
    add_cert(machines, args, "trusted-ca-file", "ca.pem");
    add(args, "client-cert-auth", "true");
    add(args, "logger", "zap");
    add(args, "log-outputs", "stderr");
    add(args, "log-level", "error"); /* 3.4 warns of each request with such certificates */
}

/* This thread was on a host, where that came of it. */
static kelp_status come_back(const struct kelp_chaos_machines *machines, kelp_status status,
                             struct kelp_error *reterr)
{
    kelp_status back = kelp_network_return(machines->network, status == KELP_OK ? reterr : NULL);
    return status == KELP_OK ? back : status;
}

kelp_status kelp_chaos_machines_start_etcd(struct kelp_chaos_machines *machines, uint32_t host,
                                           struct kelp_error *reterr)
{
    static const char *const unset[] = {"ETCD_*", NULL};
    struct kelp_chaos_machine *machine = &machines->list[host];
    struct etcd_args *args = calloc(1, sizeof(*args));
    long from = 0;
    int fd = -1;

    if (!args) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    fill_etcd_args(machines, host, args);
    kelp_status status = kelp_log_open(machine->etcd_log, &fd, &from, reterr);
    if (status == KELP_OK) {
        status = kelp_network_enter(machines->network, host, reterr);
    }
    if (status == KELP_OK) {
        const struct kelp_process_options options = {
            .argv = args->argv, .unset_environment = unset, .stdout_fd = fd, .stderr_fd = fd};
        status = kelp_process_start(&options, &machine->etcd, reterr);
        status = come_back(machines, status, reterr);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    free(args);
    return status;
}

/* ---- kelp node ----------------------------------------------------------------------------- */

kelp_status kelp_chaos_machines_start_node(struct kelp_chaos_machines *machines, uint32_t host,
                                           struct kelp_error *reterr)
{
    struct kelp_chaos_machine *machine = &machines->list[host];
    char shards[NODE_COUNT_TEXT], workers[NODE_COUNT_TEXT];
    const char *args[KELP_CHAOS_CHILD_ARGS_MAX] = {
        "--etcd",        machines->urls,
        "--job",         machines->job,
        "--host",        machine->name,
        "--listen",      kelp_network_address(machines->network, host),
        "--certs",       machines->certs,
        "--log-level",   machines->log_level,
        "--coordinator", "--shards",
        shards,          "--workers",
        workers,         NULL};

    (void)snprintf(shards, sizeof(shards), "%" PRIu32, machine->shards);
    (void)snprintf(workers, sizeof(workers), "%" PRIu32, machine->workers);
    kelp_status status = kelp_network_enter(machines->network, host, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_chaos_child_start(&machine->node, args, reterr);
    return come_back(machines, status, reterr);
}

/* ---- both ---------------------------------------------------------------------------------- */

kelp_status kelp_chaos_machines_kill(struct kelp_chaos_machines *machines, uint32_t host,
                                     struct kelp_error *reterr)
{
    struct kelp_chaos_machine *machine = &machines->list[host];
    uint32_t count = 0;
    kelp_status status = kelp_network_kill(machines->network, host, &count, reterr);

    kelp_chaos_child_kill(&machine->node);
    kelp_process_destroy(machine->etcd);
    machine->etcd = NULL;
    return status != KELP_OK || count >= 2
               ? status
               : kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "%s should have been killed, but had %" PRIu32 " processes",
                           machine->name, count);
}

kelp_status kelp_chaos_machines_look(struct kelp_chaos_machines *machines, uint32_t host,
                                     bool *ret_ended, struct kelp_error *reterr)
{
    struct kelp_chaos_machine *machine = &machines->list[host];
    char words[256], how[64];
    int wait_status = 0;

    if (machine->etcd && kelp_process_wait(machine->etcd, 0, &wait_status) == KELP_OK) {
        kelp_process_describe(wait_status, how, sizeof(how));
        kelp_log_tail_read(machine->etcd_log, 0, words, sizeof(words));
        return kelp_fail(reterr, KELP_ERR_CLOSED, "etcd on %s %s: %s", machine->name, how, words);
    }
    *ret_ended = !machine->node.process;
    if (*ret_ended || kelp_process_wait(machine->node.process, 0, &wait_status) != KELP_OK) {
        return KELP_OK;
    }
    *ret_ended = true;
    kelp_status status = kelp_chaos_child_end(&machine->node, wait_status, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s", machine->name);
    }
    return status;
}

bool kelp_chaos_machines_healthy(struct kelp_chaos_machines *machines)
{
    struct kelp_etcd_health health;

    for (uint32_t i = 0; i < kelp_network_count(machines->network); i++) {
        if (kelp_etcd_health(machines->list[i].health, KELP_CHAOS_HEALTH_MS, &health, NULL) !=
                KELP_OK ||
            health.leader == 0 || health.errors[0] != '\0') {
            return false;
        }
    }
    return true;
}
