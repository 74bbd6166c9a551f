#include "ps/etcd_registration.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/job/job.h"
#include "common/log/log.h"

#define LEASE_S     5 /* streams notice a dead shard long before; this only clears the entry */
#define DEADLINE_MS 1000
#define RETRY_MS    500
#define LOOK_MS     2000 /* between two checks of the own address, which need no request */
#define BUILD_TRIES                                                                                \
    (2 * LEASE_S * 1000 / RETRY_MS) /* leases of dead shards run out; etcd is slow */
#define KEY_MAX   (sizeof("/kelp//ps/") + 2 * KELP_JOB_NAME_MAX)
#define VALUE_MAX 512

struct kelp_registration {
    struct kelp_registration_options options;
    char key[KEY_MAX];
    char value[VALUE_MAX];
    char build[KELP_BUILD_MAX + 1];
    uint32_t builds_differed;      /* attempts that met another build; the thread's */
    struct kelp_etcd_watch *watch; /* the thread's, then close()'s */
    struct kelp_etcd_lease *lease; /* likewise */
    pthread_t thread;

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t changed;
    bool stop;
    bool lost; /* the lease or the entry is lost: register again */
    bool registered;
    bool replaced;
    bool refused;
};

static void set_flag(struct kelp_registration *registration, bool *flag)
{
    (void)pthread_mutex_lock(&registration->lock);
    *flag = true;
    (void)pthread_cond_broadcast(&registration->changed);
    (void)pthread_mutex_unlock(&registration->lock);
}

static void on_lost(void *user)
{
    struct kelp_registration *registration = user;

    set_flag(registration, &registration->lost);
}

static void report_replaced(struct kelp_registration *registration, const char *value)
{
    (void)pthread_mutex_lock(&registration->lock);
    bool first = !registration->replaced && !registration->stop;
    registration->replaced = registration->replaced || first;
    (void)pthread_cond_broadcast(&registration->changed);
    (void)pthread_mutex_unlock(&registration->lock);
    if (first) {
        kelp_log_error("another process has registered as %s: this one ends entry=%s "
                       "incarnation=%" PRIu64,
                       registration->options.shard, value, registration->options.incarnation);
        registration->options.replaced(registration->options.user);
    }
}

/* An entry that cannot be read is not ours. */
static bool is_ours(const struct kelp_registration *registration, const char *value, size_t bytes)
{
    char incarnation[32];
    char ours[32];
    cJSON *json = NULL;

    if (kelp_json_parse(value, bytes, &json, NULL) != KELP_OK) {
        return false;
    }
    kelp_status status =
        kelp_json_string(json, "incarnation", incarnation, sizeof(incarnation), NULL);
    cJSON_Delete(json);
    (void)snprintf(ours, sizeof(ours), "%" PRIu64, registration->options.incarnation);
    return status == KELP_OK && strcmp(incarnation, ours) == 0;
}

static void on_changed(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_registration *registration = user;

    if (strcmp(pair->key, registration->key) == 0 && /* the watch covers a prefix */
        !is_ours(registration, pair->value, pair->value_bytes)) {
        report_replaced(registration, pair->value);
    }
}

/* The lease ran out, or the entry was deleted. */
static void on_removed(const char *key, void *user)
{
    struct kelp_registration *registration = user;

    if (strcmp(key, registration->key) == 0) {
        set_flag(registration, &registration->lost);
    }
}

static void on_synced(int64_t revision, void *user)
{
    (void)revision;
    (void)user;
}

static const struct kelp_etcd_watch_events watch_events = {
    .changed = on_changed, .removed = on_removed, .synced = on_synced};

/* After a lost lease another process may have registered; at the first registration, any other
 * process is older. */
static kelp_status check_entry(struct kelp_registration *registration, struct kelp_error *reterr)
{
    struct kelp_etcd_range range;
    kelp_status status =
        kelp_etcd_get(registration->options.etcd, registration->key, DEADLINE_MS, &range, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (range.count > 0 &&
        !is_ours(registration, range.pairs[0].value, range.pairs[0].value_bytes)) {
        report_replaced(registration, range.pairs[0].value);
    }
    kelp_etcd_range_fini(&range);
    return KELP_OK;
}

static bool must_end(struct kelp_registration *registration)
{
    (void)pthread_mutex_lock(&registration->lock);
    bool result = registration->stop || registration->replaced || registration->refused;
    (void)pthread_mutex_unlock(&registration->lock);
    return result;
}

/* earlier: as in kelp_build_check(). */
static kelp_status check_builds(const struct kelp_registration *registration, bool earlier,
                                struct kelp_error *reterr)
{
    const struct kelp_registration_options *options = &registration->options;
    const struct kelp_build build = {.job = options->job,
                                     .shard = options->shard,
                                     .text = registration->build,
                                     .mixed = options->mixed};
    return kelp_build_check(options->etcd, &build, earlier, DEADLINE_MS, reterr);
}

static void refuse(struct kelp_registration *registration, const struct kelp_error *why)
{
    set_flag(registration, &registration->refused);
    registration->options.refused(why, registration->options.user);
}

/* Does the address that is registered lead to this process? */
static kelp_status check_address(struct kelp_registration *registration, struct kelp_error *reterr)
{
    const struct kelp_serving *serving = registration->options.serving;
    char host[KELP_SERVING_HOST_MAX + 1];

    switch (kelp_serving_look(serving, serving->source, host, reterr)) {
    case KELP_SERVING_SAME:
        return KELP_OK;
    case KELP_SERVING_UNKNOWN:
        return KELP_ERR_UNREACHABLE;
    case KELP_SERVING_MOVED:
    case KELP_SERVING_GONE:
        break;
    }
    refuse(registration, reterr);
    return KELP_ERR_UNREACHABLE;
}

static kelp_status put_entry(struct kelp_registration *registration, bool again,
                             struct kelp_error *reterr)
{
    struct kelp_etcd *etcd = registration->options.etcd;
    kelp_status status = check_address(registration, reterr);

    if (status == KELP_OK) { /* a shard registered before may hold what the job needs: it stays */
        status =
            again ? check_entry(registration, reterr) : check_builds(registration, false, reterr);
    }
    if (status != KELP_OK || must_end(registration)) {
        return status;
    }
    (void)pthread_mutex_lock(&registration->lock);
    registration->lost = false;
    (void)pthread_mutex_unlock(&registration->lock);
    status = kelp_etcd_lease_open(
        etcd,
        &(struct kelp_etcd_lease_options){
            .ttl_s = LEASE_S, .deadline_ms = DEADLINE_MS, .lost = on_lost, .user = registration},
        &registration->lease, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_etcd_put(etcd, registration->key, registration->value,
                           kelp_etcd_lease_id(registration->lease), DEADLINE_MS, reterr);
    if (status == KELP_OK) { /* the address may have gone while waiting for etcd */
        status = check_address(registration, reterr);
    }
    if (status == KELP_OK && !again) {
        status = check_builds(registration, true, reterr);
    }
    if (status == KELP_OK && !registration->watch) {
        status = kelp_etcd_watch_open(etcd, registration->key, &watch_events, registration,
                                      &registration->watch, reterr);
    }
    if (status != KELP_OK) {
        kelp_etcd_lease_close(registration->lease, true);
        registration->lease = NULL;
    }
    return status;
}

/* Wait for the end, at most timeout_ms; with until_lost also for the loss of the lease. */
static void wait_for_change(struct kelp_registration *registration, uint32_t timeout_ms,
                            bool until_lost)
{
    const uint64_t until_ms = kelp_clock_ms() + timeout_ms;

    (void)pthread_mutex_lock(&registration->lock);
    bool timed_out = false;
    while (!registration->stop && !registration->replaced && !registration->refused && !timed_out &&
           !(until_lost && registration->lost)) {
        timed_out = !kelp_clock_wait(&registration->changed, &registration->lock, until_ms);
    }
    (void)pthread_mutex_unlock(&registration->lock);
}

/* Stay registered until the lease is lost or the end. The address may go while the lease lives. */
static void hold(struct kelp_registration *registration)
{
    bool lost = false;

    while (!lost && !must_end(registration)) {
        struct kelp_error error;
        wait_for_change(registration, LOOK_MS, true);
        (void)pthread_mutex_lock(&registration->lock);
        lost = registration->lost;
        (void)pthread_mutex_unlock(&registration->lock);
        if (!lost && !must_end(registration)) {
            (void)check_address(registration, &error); /* if unknown now, checked again later */
        }
    }
}

/* Refuse once another build has been seen for longer than entries of dead processes stay. */
static void count_builds(struct kelp_registration *registration, const struct kelp_error *error)
{
    if (error->status != KELP_ERR_MISMATCH || ++registration->builds_differed < BUILD_TRIES) {
        return;
    }
    refuse(registration, error);
}

static void set_registered(struct kelp_registration *registration, bool registered)
{
    (void)pthread_mutex_lock(&registration->lock);
    registration->registered = registered;
    (void)pthread_mutex_unlock(&registration->lock);
}

bool kelp_registration_holds(struct kelp_registration *registration)
{
    (void)pthread_mutex_lock(&registration->lock);
    bool registered = registration->registered;
    (void)pthread_mutex_unlock(&registration->lock);
    return registered;
}

static void *run(void *user)
{
    struct kelp_registration *registration = user;
    bool again = false;
    bool told = false;

    while (!must_end(registration)) {
        struct kelp_error error = {.text = ""};
        kelp_status status = put_entry(registration, again, &error);
        if (must_end(registration)) {
            break;
        }
        if (status != KELP_OK) {
            if (!told) {
                kelp_log_warn("not registered in etcd yet: trying again key=%s error=\"%s\"",
                              registration->key, error.text);
                told = true; /* once for each outage */
            }
            count_builds(registration, &error);
            wait_for_change(registration, RETRY_MS, false);
            continue;
        }
        kelp_log_info("registered in etcd key=%s value=%s", registration->key, registration->value);
        told = false;
        again = true;
        set_registered(registration, true);
        hold(registration);
        set_registered(registration, false);
        if (!must_end(registration)) {
            kelp_log_warn("entry in etcd lost: registering again key=%s", registration->key);
            kelp_etcd_lease_close(registration->lease, false); /* no entry uses it any more */
            registration->lease = NULL;
        }
    }
    return NULL;
}

kelp_status kelp_registration_open(const struct kelp_registration_options *options,
                                   struct kelp_registration **ret_registration,
                                   struct kelp_error *reterr)
{
    struct kelp_registration *registration = calloc(1, sizeof(*registration));

    if (!registration) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the registration");
    }
    registration->options = *options;
    kelp_build_print(registration->build);
    int key_bytes = snprintf(registration->key, sizeof(registration->key), "/kelp/%s/ps/%s",
                             options->job, options->shard);
    bool zone = options->zone[0] != '\0';
    int value_bytes =
        snprintf(registration->value, sizeof(registration->value),
                 "{\"address\":\"%s\",\"incarnation\":\"%" PRIu64 "\",\"build\":\"%s\"%s%s%s}",
                 options->address, options->incarnation, registration->build,
                 zone ? ",\"zone\":\"" : "", options->zone, zone ? "\"" : "");
    if (key_bytes < 0 || (size_t)key_bytes >= sizeof(registration->key) || value_bytes < 0 ||
        (size_t)value_bytes >= sizeof(registration->value)) {
        free(registration);
        return kelp_fail(reterr, KELP_ERR_LIMIT, "shard name or address is too long");
    }
    (void)pthread_mutex_init(&registration->lock, NULL);
    (void)pthread_cond_init(&registration->changed, NULL);
    if (pthread_create(&registration->thread, NULL, run, registration) != 0) {
        (void)pthread_cond_destroy(&registration->changed);
        (void)pthread_mutex_destroy(&registration->lock);
        free(registration);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no thread for the registration");
    }
    *ret_registration = registration;
    return KELP_OK;
}

void kelp_registration_close(struct kelp_registration *registration)
{
    if (!registration) {
        return;
    }
    set_flag(registration, &registration->stop);
    (void)pthread_join(registration->thread, NULL);
    kelp_etcd_watch_close(registration->watch);
    if (registration->lease) {
        /* The entry of a process that replaced us has its own lease. */
        kelp_etcd_lease_close(registration->lease, true);
    }
    (void)pthread_cond_destroy(&registration->changed);
    (void)pthread_mutex_destroy(&registration->lock);
    free(registration);
}
