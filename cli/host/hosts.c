#include "cli/host/hosts.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/random_id.h"

#define KEY_MAX       255
#define JOIN_MS       5000 /* each question to etcd, at the start */
#define AGAIN_MS      300  /* and later, while processes are to be looked after */
#define AGAIN_WAIT_MS 1000

struct kelp_hosts {
    struct kelp_etcd *etcd; /* borrowed */
    char job[64];
    struct kelp_hosts_entry own;
    struct kelp_etcd_lease *lease; /* NULL: there is none now */
    atomic_bool lost;              /* the lease is gone */
    uint64_t again_ms;             /* not before */
    struct kelp_etcd_watch *watch;
    pthread_mutex_t lock; /* of what follows */
    struct kelp_hosts_list list;
};

static void print_key(const char *job, const char *host, char key[KEY_MAX + 1])
{
    (void)snprintf(key, KEY_MAX + 1, "/kelp/%s/hosts/%s", job, host);
}

/* ---- the list ------------------------------------------------------------------------------ */

/* Where a host of that name is, or would be. */
static size_t find_place(const struct kelp_hosts_list *list, const char *host)
{
    size_t i = 0;

    while (i < list->count && strcmp(list->hosts[i].host, host) < 0) {
        i++;
    }
    return i;
}

static bool is_at(const struct kelp_hosts_list *list, size_t place, const char *host)
{
    return place < list->count && strcmp(list->hosts[place].host, host) == 0;
}

static kelp_status put_host(struct kelp_hosts_list *list, const struct kelp_hosts_entry *host,
                            struct kelp_error *reterr)
{
    size_t place = find_place(list, host->host);

    if (!is_at(list, place, host->host)) {
        if (list->count == KELP_HOSTS_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "a job has at most %d hosts", KELP_HOSTS_MAX);
        }
        struct kelp_hosts_entry *hosts =
            realloc(list->hosts, (list->count + 1) * sizeof(list->hosts[0]));
        if (!hosts) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        list->hosts = hosts;
        memmove(hosts + place + 1, hosts + place, (list->count - place) * sizeof(hosts[0]));
        list->count++;
    }
    list->hosts[place] = *host;
    return KELP_OK;
}

kelp_status kelp_hosts_list(struct kelp_etcd *etcd, const char *job, uint32_t deadline_ms,
                            struct kelp_hosts_list *ret_list, struct kelp_error *reterr)
{
    char prefix[KEY_MAX + 1];
    struct kelp_etcd_range range = {0};
    struct kelp_hosts_entry host;

    *ret_list = (struct kelp_hosts_list){.count = 0};
    print_key(job, "", prefix);
    kelp_status status = kelp_etcd_get_prefix(etcd, prefix, deadline_ms, &range, reterr);
    for (size_t i = 0; status == KELP_OK && i < range.count; i++) {
        status = kelp_hosts_parse(range.pairs[i].key, range.pairs[i].value, &host, reterr);
        if (status == KELP_OK) {
            status = put_host(ret_list, &host, reterr);
        }
    }
    kelp_etcd_range_fini(&range);
    if (status != KELP_OK) {
        free(ret_list->hosts);
        *ret_list = (struct kelp_hosts_list){.count = 0};
    }
    return status;
}

/* ---- etcd's thread ------------------------------------------------------------------------- */

/* An entry that cannot be read is none: the host it stands for runs what it was told to, and gets
 * nothing of what is shared out. */
static void host_changed(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_hosts *hosts = user;
    struct kelp_hosts_entry host;

    if (kelp_hosts_parse(pair->key, pair->value, &host, NULL) == KELP_OK) {
        (void)pthread_mutex_lock(&hosts->lock);
        (void)put_host(&hosts->list, &host, NULL);
        (void)pthread_mutex_unlock(&hosts->lock);
    }
}

static void host_removed(const char *key, void *user)
{
    struct kelp_hosts *hosts = user;
    struct kelp_hosts_list *list = &hosts->list;
    const char *host = strrchr(key, '/') + 1; /* of the prefix at least */

    (void)pthread_mutex_lock(&hosts->lock);
    size_t place = find_place(list, host);
    if (is_at(list, place, host)) {
        list->count--;
        memmove(list->hosts + place, list->hosts + place + 1,
                (list->count - place) * sizeof(list->hosts[0]));
    }
    (void)pthread_mutex_unlock(&hosts->lock);
}

static void lease_lost(void *user)
{
    struct kelp_hosts *hosts = user;

    atomic_store(&hosts->lost, true);
}

/* ---- our entry ----------------------------------------------------------------------------- */

static void find_kernel(char kernel[64])
{
    char boot[40] = "", pids[24] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file) {
        if (fgets(boot, sizeof(boot), file)) {
            boot[strcspn(boot, "\n")] = '\0';
        }
        (void)fclose(file);
    }
    if (readlink("/proc/self/ns/pid", pids, sizeof(pids) - 1) < 0) {
        pids[0] = '\0';
    }
    (void)snprintf(kernel, 64, "%.36s %.20s", boot, pids);
}

/* What we know for sure: a process of this kernel that is no more. */
static bool is_dead(const struct kelp_hosts *hosts, const struct kelp_hosts_entry *other)
{
    return strcmp(other->kernel, hosts->own.kernel) == 0 && other->pid > 0 &&
           (other->pid == hosts->own.pid || (kill((pid_t)other->pid, 0) != 0 && errno == ESRCH));
}

static kelp_status refuse_taken(const struct kelp_hosts *hosts,
                                const struct kelp_hosts_entry *other, struct kelp_error *reterr)
{
    bool here = strcmp(other->kernel, hosts->own.kernel) == 0;

    return kelp_fail(reterr, here ? KELP_ERR_EXISTS : KELP_ERR_BUSY,
                     "host '%s' runs job '%s' already (kelp node, process %u %s): a host runs one, "
                     "and each host needs its own name (--host)",
                     other->host, hosts->job, other->pid,
                     here ? "of this machine" : "of another machine or container");
}

/* Whose entry stands there; *ret_revision is 0 when there is none. */
static kelp_status look(struct kelp_hosts *hosts, const char *key, uint32_t deadline_ms,
                        int64_t *ret_revision, struct kelp_error *reterr)
{
    struct kelp_etcd_range range = {0};
    struct kelp_hosts_entry other;

    *ret_revision = 0;
    kelp_status status = kelp_etcd_get(hosts->etcd, key, deadline_ms, &range, reterr);
    if (status == KELP_OK && range.count > 0) {
        status = kelp_hosts_parse(key, range.pairs[0].value, &other, reterr);
        if (status == KELP_OK && !is_dead(hosts, &other)) {
            status = refuse_taken(hosts, &other, reterr);
        }
        *ret_revision = range.pairs[0].mod_revision;
    }
    kelp_etcd_range_fini(&range);
    return status;
}

/* Put our entry where there is none, or one of somebody dead. */
static kelp_status claim(struct kelp_hosts *hosts, uint32_t deadline_ms, struct kelp_error *reterr)
{
    char key[KEY_MAX + 1];
    char *text = NULL;
    int64_t revision = 0;
    bool done = false;

    print_key(hosts->job, hosts->own.host, key);
    kelp_status status = kelp_random_id(&hosts->own.nonce, reterr);
    if (status == KELP_OK) {
        status = kelp_hosts_print(&hosts->own, &text, reterr);
    }
    if (status == KELP_OK) {
        status = look(hosts, key, deadline_ms, &revision, reterr);
    }
    if (status == KELP_OK) {
        const struct kelp_etcd_compare compare = {.key = key,
                                                  .what = revision > 0 ? KELP_ETCD_MOD_REVISION
                                                                       : KELP_ETCD_CREATE_REVISION,
                                                  .revision = revision};
        const struct kelp_etcd_operation operation = {
            .key = key, .value = text, .lease = kelp_etcd_lease_id(hosts->lease)};
        status = kelp_etcd_transaction(hosts->etcd,
                                       &(struct kelp_etcd_transaction){.compares = &compare,
                                                                       .compare_count = 1,
                                                                       .operations = &operation,
                                                                       .operation_count = 1,
                                                                       .nonce_key = key,
                                                                       .deadline_ms = deadline_ms},
                                       &done, NULL, reterr);
    }
    free(text);
    return status == KELP_OK && !done
               ? kelp_fail(reterr, KELP_ERR_EXISTS,
                           "host '%s' of job '%s' was taken by another kelp node just now",
                           hosts->own.host, hosts->job)
               : status;
}

static kelp_status stand(struct kelp_hosts *hosts, uint32_t deadline_ms, struct kelp_error *reterr)
{
    atomic_store(&hosts->lost, false);
    kelp_status status =
        kelp_etcd_lease_open(hosts->etcd,
                             &(struct kelp_etcd_lease_options){.ttl_s = KELP_HOSTS_TTL_S,
                                                               .deadline_ms = deadline_ms,
                                                               .lost = lease_lost,
                                                               .user = hosts},
                             &hosts->lease, reterr);
    if (status == KELP_OK) {
        status = claim(hosts, deadline_ms, reterr);
    }
    if (status != KELP_OK && hosts->lease) {
        kelp_etcd_lease_close(hosts->lease, true);
        hosts->lease = NULL;
    }
    return status;
}

kelp_status kelp_hosts_join(struct kelp_etcd *etcd, const char *job,
                            const struct kelp_hosts_entry *host, struct kelp_hosts **ret_hosts,
                            struct kelp_error *reterr)
{
    static const struct kelp_etcd_watch_events events = {.changed = host_changed,
                                                         .removed = host_removed};
    struct kelp_hosts *hosts = calloc(1, sizeof(*hosts));
    char prefix[KEY_MAX + 1];

    if (!hosts) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    hosts->etcd = etcd;
    (void)snprintf(hosts->job, sizeof(hosts->job), "%s", job);
    hosts->own = *host;
    hosts->own.pid = (uint32_t)getpid();
    find_kernel(hosts->own.kernel);
    (void)pthread_mutex_init(&hosts->lock, NULL);
    print_key(job, "", prefix);
    kelp_status status = stand(hosts, JOIN_MS, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_watch_open(etcd, prefix, &events, hosts, &hosts->watch, reterr);
    }
    if (status != KELP_OK) {
        kelp_hosts_leave(hosts);
        return status;
    }
    *ret_hosts = hosts;
    return KELP_OK;
}

kelp_status kelp_hosts_tend(struct kelp_hosts *hosts, uint64_t now, struct kelp_error *reterr)
{
    if ((hosts->lease && !atomic_load(&hosts->lost)) || now < hosts->again_ms) {
        return KELP_OK;
    }
    hosts->again_ms = now + AGAIN_WAIT_MS;
    kelp_etcd_lease_close(hosts->lease, false);
    hosts->lease = NULL;
    kelp_status status = stand(hosts, AGAIN_MS, reterr);
    return status == KELP_ERR_EXISTS || status == KELP_ERR_BUSY ? status : KELP_OK;
}

uint32_t kelp_hosts_share(struct kelp_hosts *hosts, enum kelp_hosts_kind kind, uint32_t wanted)
{
    static struct kelp_room rooms[KELP_HOSTS_MAX]; /* large; by the launcher's thread alone */
    static uint32_t shares[KELP_HOSTS_MAX];
    const struct kelp_hosts_list *list = &hosts->list;
    const struct kelp_hosts_entry *own = &hosts->own;
    uint32_t share = kind == KELP_HOSTS_SHARDS ? own->shards.least : own->workers.least;

    (void)pthread_mutex_lock(&hosts->lock);
    for (size_t i = 0; i < list->count; i++) {
        rooms[i] = kind == KELP_HOSTS_SHARDS ? list->hosts[i].shards : list->hosts[i].workers;
    }
    size_t place = find_place(list, own->host);
    if (is_at(list, place, own->host)) {
        (void)kelp_share_out(rooms, list->count, wanted, shares);
        share = shares[place];
    }
    (void)pthread_mutex_unlock(&hosts->lock);
    return share;
}

void kelp_hosts_leave(struct kelp_hosts *hosts)
{
    if (!hosts) {
        return;
    }
    if (hosts->watch) {
        kelp_etcd_watch_close(hosts->watch);
    }
    if (hosts->lease) {
        kelp_etcd_lease_close(hosts->lease, true);
    }
    (void)pthread_mutex_destroy(&hosts->lock);
    free(hosts->list.hosts);
    free(hosts);
}
