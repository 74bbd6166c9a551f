#include "tests/sim/etcd.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/network.h"

#define KEYS_MAX    64
#define DEADLINE_US (2 * SIM_SECOND)
#define RELIST_US   (500 * SIM_MS) /* a watch that was cut off lists again */

struct lease {
    uint64_t id;
    uint64_t ttl_us;
    uint64_t until_us;
};

struct seen {
    char name[SIM_ETCD_KEY_MAX + 1];
    int64_t mod_revision;
};

struct watch {
    bool open;
    bool due; /* an event will look */
    struct sim_process *process;
    uint64_t incarnation;
    char prefix[SIM_ETCD_KEY_MAX + 1];
    const struct sim_watch_events *events;
    struct seen seen[KEYS_MAX];
    size_t seen_count;
};

struct sim_etcd {
    bool away;
    uint64_t away_since;
    int64_t revision;
    struct sim_key keys[KEYS_MAX]; /* in order of names */
    size_t key_count;
    struct lease *leases;
    size_t lease_count;
    size_t lease_capacity;
    uint64_t lease_ids;
    struct watch **watches; /* watch n is watches[n - 1] */
    size_t watch_count;
    size_t watch_capacity;
};

/* ---- values ------------------------------------------------------------------------------------
 */

struct sim_value *sim_value_create(void)
{
    struct sim_value *value = sim_alloc(sizeof(*value));
    value->refs = 1;
    return value;
}

struct sim_value *sim_value_ref(struct sim_value *value)
{
    value->refs++;
    return value;
}

void sim_value_unref(struct sim_value *value)
{
    if (value && --value->refs == 0) {
        if (value->content) {
            value->unref(value->content);
        }
        free(value);
    }
}

void sim_transaction_fini(struct sim_transaction *transaction)
{
    for (size_t i = 0; i < transaction->operation_count; i++) {
        sim_value_unref(transaction->operations[i].value);
    }
    transaction->operation_count = 0;
}

/* ---- life --------------------------------------------------------------------------------------
 */

struct sim_etcd *sim_etcd_create(void)
{
    struct sim_etcd *etcd = sim_alloc(sizeof(*etcd));
    etcd->revision = 1;
    return etcd;
}

void sim_etcd_destroy(struct sim_etcd *etcd)
{
    if (!etcd) {
        return;
    }
    for (size_t i = 0; i < etcd->key_count; i++) {
        sim_value_unref(etcd->keys[i].value);
    }
    for (size_t i = 0; i < etcd->watch_count; i++) {
        free(etcd->watches[i]);
    }
    free(etcd->watches);
    free(etcd->leases);
    free(etcd);
}

bool sim_etcd_reachable(const struct sim *sim, const struct sim_process *process)
{
    return !sim->etcd->away && sim_network_reaches(sim, process->host, sim->profile.hosts);
}

/* ---- the store ---------------------------------------------------------------------------------
 */

/* Where the key is, or would be. */
static size_t place_of(const struct sim_etcd *etcd, const char *key, bool *ret_there)
{
    size_t at = 0;
    while (at < etcd->key_count && strcmp(etcd->keys[at].name, key) < 0) {
        at++;
    }
    *ret_there = at < etcd->key_count && strcmp(etcd->keys[at].name, key) == 0;
    return at;
}

const struct sim_key *sim_etcd_look(const struct sim *sim, const char *key)
{
    bool there;
    size_t at = place_of(sim->etcd, key, &there);
    return there ? &sim->etcd->keys[at] : NULL;
}

const struct sim_key *sim_etcd_list(const struct sim *sim, const char *prefix, size_t index)
{
    for (size_t i = 0; i < sim->etcd->key_count; i++) {
        if (strncmp(sim->etcd->keys[i].name, prefix, strlen(prefix)) == 0 && index-- == 0) {
            return &sim->etcd->keys[i];
        }
    }
    return NULL;
}

bool sim_job_state(const struct sim *sim, const char *state)
{
    const struct sim_key *key = sim_etcd_look(sim, "state");
    return key && strcmp(key->value->text, state) == 0;
}

int64_t sim_etcd_revision(const struct sim *sim)
{
    return sim->etcd->revision;
}

static void notify(struct sim *sim, const char *key);

static void delete_key(struct sim *sim, const char *key)
{
    struct sim_etcd *etcd = sim->etcd;
    bool there;
    size_t at = place_of(etcd, key, &there);
    if (!there) {
        return;
    }
    char name[SIM_ETCD_KEY_MAX + 1];
    memcpy(name, etcd->keys[at].name, sizeof(name));
    sim_value_unref(etcd->keys[at].value);
    etcd->key_count--;
    memmove(&etcd->keys[at], &etcd->keys[at + 1], (etcd->key_count - at) * sizeof(etcd->keys[0]));
    notify(sim, name);
}

static void put_key(struct sim *sim, const struct sim_operation *operation)
{
    struct sim_etcd *etcd = sim->etcd;
    bool there;
    size_t at = place_of(etcd, operation->key, &there);
    struct sim_key *key = &etcd->keys[at];
    if (there) {
        sim_value_unref(key->value);
    } else {
        assert(etcd->key_count < KEYS_MAX);
        memmove(key + 1, key, (etcd->key_count - at) * sizeof(*key));
        etcd->key_count++;
        *key = (struct sim_key){.create_revision = etcd->revision};
        memcpy(key->name, operation->key, sizeof(key->name));
    }
    key->mod_revision = etcd->revision;
    key->lease = operation->lease;
    key->value = sim_value_ref(operation->value);
    if (strncmp(operation->key, "checkpoint/", strlen("checkpoint/")) == 0) {
        sim_invariants_committed(sim, operation->value->content);
    }
    notify(sim, operation->key);
}

static struct lease *find_lease(struct sim_etcd *etcd, uint64_t id)
{
    for (size_t i = 0; i < etcd->lease_count; i++) {
        if (etcd->leases[i].id == id) {
            return &etcd->leases[i];
        }
    }
    return NULL;
}

static bool holds(const struct sim *sim, const struct sim_compare *compare)
{
    const struct sim_key *key = sim_etcd_look(sim, compare->key);
    int64_t revision = !key ? 0 : compare->create ? key->create_revision : key->mod_revision;
    return revision == compare->revision;
}

static struct sim_outcome apply(struct sim *sim, const struct sim_transaction *transaction)
{
    struct sim_etcd *etcd = sim->etcd;
    for (size_t i = 0; i < transaction->compare_count; i++) {
        if (!holds(sim, &transaction->compares[i])) {
            return (struct sim_outcome){.status = KELP_OK, .revision = etcd->revision};
        }
    }
    for (size_t i = 0; i < transaction->operation_count; i++) {
        uint64_t lease = transaction->operations[i].lease;
        if (lease != 0 && !find_lease(etcd, lease)) {
            return (struct sim_outcome){.status = KELP_ERR_NOT_FOUND};
        }
    }
    etcd->revision++;
    for (size_t i = 0; i < transaction->operation_count; i++) {
        const struct sim_operation *operation = &transaction->operations[i];
        if (operation->value) {
            put_key(sim, operation);
        } else {
            delete_key(sim, operation->key);
        }
    }
    return (struct sim_outcome){.status = KELP_OK, .succeeded = true, .revision = etcd->revision};
}

/* ---- requests ----------------------------------------------------------------------------------
 */

struct request {
    struct sim_transaction transaction;
    bool read;
    bool answer_lost;
    bool unknown; /* an attempt may have been applied, or will be: it is never "certainly not" */
    uint64_t deadline_us;
    struct sim_process *process;
    uint64_t incarnation;
    sim_etcd_done *done;
    void *data;
    struct sim_outcome outcome;
};

static void free_request(void *data)
{
    struct request *request = data;
    sim_transaction_fini(&request->transaction);
    free(request);
}

static void send_request(struct sim *sim, struct request *request);

/* The client's process hears of the outcome. */
static void finish(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct request *request = data;
    (void)number;
    if (request->unknown && request->outcome.status == KELP_ERR_UNREACHABLE) {
        request->outcome.status = KELP_ERR_TIMEOUT;
    }
    request->done(sim, process, request->data, &request->outcome);
    free_request(request);
}

static void answer(struct sim *sim, struct request *request, uint64_t delay_us)
{
    if (!sim_lives(request->process, request->incarnation)) {
        free_request(request);
        return;
    }
    sim_after(
        sim, delay_us,
        &(struct sim_call){
            .process = request->process, .run = finish, .data = request, .drop = free_request});
}

/* The answer was lost: is our nonce there? (common/etcd_kv.c) */
static void look_again(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct request *request = data;
    (void)number;
    (void)process;
    if (!sim_lives(request->process, request->incarnation)) {
        free_request(request);
        return;
    }
    if (sim->now >= request->deadline_us) {
        request->outcome = (struct sim_outcome){.status = KELP_ERR_TIMEOUT};
        answer(sim, request, 0);
        return;
    }
    if (!sim_etcd_reachable(sim, request->process)) {
        sim_after(sim, 100 * SIM_MS,
                  &(struct sim_call){.run = look_again, .data = request, .drop = free_request});
        return;
    }
    const struct sim_key *key = sim_etcd_look(sim, request->transaction.nonce_key);
    for (size_t i = 0; i < request->transaction.operation_count; i++) {
        const struct sim_operation *operation = &request->transaction.operations[i];
        if (key && operation->value && strcmp(operation->key, key->name) == 0 &&
            operation->value->nonce == key->value->nonce) {
            request->outcome = (struct sim_outcome){
                .status = KELP_OK, .succeeded = true, .revision = key->mod_revision};
            answer(sim, request, 1);
            return;
        }
    }
    send_request(sim, request);
}

/* The request reaches etcd. number: 1 when nobody waits for it any more. */
static void reach(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct request *request = data;
    (void)process;
    if (number == 1) {
        if (!sim->etcd->away) {
            struct sim_outcome late = apply(sim, &request->transaction);
            sim_say(sim, NULL, "etcd takes a request of %s that is late: %s", request->process->id,
                    late.succeeded ? "applied" : "refused");
        }
        free_request(request);
        return;
    }
    if (!sim_etcd_reachable(sim, request->process)) {
        request->outcome = (struct sim_outcome){.status = KELP_ERR_UNREACHABLE};
        answer(sim, request, sim_between(sim, SIM_MS, SIM_SECOND));
        return;
    }
    if (!request->read) {
        request->outcome = apply(sim, &request->transaction);
    }
    if (!request->answer_lost) {
        answer(sim, request, sim_between(sim, 100, 2 * SIM_MS));
    } else if (request->transaction.nonce_key[0] != '\0') {
        sim_after(sim, 100 * SIM_MS,
                  &(struct sim_call){.run = look_again, .data = request, .drop = free_request});
    } else {
        request->outcome =
            (struct sim_outcome){.status = request->read ? KELP_ERR_UNREACHABLE : KELP_ERR_TIMEOUT};
        answer(sim, request, DEADLINE_US);
    }
}

/* A copy that nobody waits for goes on its way: it will be applied when it likes. */
static void send_late_copy(struct sim *sim, const struct request *request)
{
    struct request *copy = sim_alloc(sizeof(*copy));
    *copy = *request;
    for (size_t i = 0; i < copy->transaction.operation_count; i++) {
        if (copy->transaction.operations[i].value) {
            (void)sim_value_ref(copy->transaction.operations[i].value);
        }
    }
    sim->counts[SIM_COUNT_ETCD_REQUEST_LATE]++;
    sim_after(sim, sim_between(sim, SIM_MS, 5 * SIM_SECOND),
              &(struct sim_call){.run = reach, .data = copy, .drop = free_request, .number = 1});
}

static void send_request(struct sim *sim, struct request *request)
{
    uint64_t delay = sim_between(sim, 100, 2 * SIM_MS);
    request->answer_lost = false;
    if (sim_chance(sim, sim->profile.etcd_rate, 1000)) {
        switch (sim_draw(sim, request->read ? 2 : 4)) {
        case 0:
            sim->counts[SIM_COUNT_ETCD_REQUEST_LOST]++;
            request->outcome = (struct sim_outcome){.status = KELP_ERR_UNREACHABLE};
            answer(sim, request, sim_between(sim, SIM_MS, SIM_SECOND));
            return;
        case 1:
            delay += sim_draw(sim, SIM_SECOND);
            break;
        case 2:
            sim->counts[SIM_COUNT_ETCD_ANSWER_LOST]++;
            request->answer_lost = true;
            request->unknown = true;
            break;
        case 3: /* the answer is lost, and the request comes through only later, or twice */
            send_late_copy(sim, request);
            request->unknown = true;
            request->answer_lost = sim_draw(sim, 2) == 0;
            break;
        }
    }
    sim_after(sim, delay, &(struct sim_call){.run = reach, .data = request, .drop = free_request});
}

static struct request *make_request(struct sim *sim, struct sim_process *process,
                                    sim_etcd_done *done, void *data)
{
    struct request *request = sim_alloc(sizeof(*request));
    request->process = process;
    request->incarnation = process->incarnation;
    request->done = done;
    request->data = data;
    request->deadline_us = sim->now + DEADLINE_US;
    return request;
}

void sim_etcd_read(struct sim *sim, struct sim_process *process, sim_etcd_done *done, void *data)
{
    struct request *request = make_request(sim, process, done, data);
    request->read = true;
    send_request(sim, request);
}

void sim_etcd_submit(struct sim *sim, struct sim_process *process,
                     const struct sim_transaction *transaction, sim_etcd_done *done, void *data)
{
    struct request *request = make_request(sim, process, done, data);
    request->transaction = *transaction;
    send_request(sim, request);
}

/* ---- leases ------------------------------------------------------------------------------------
 */

static void end_lease(struct sim *sim, size_t index)
{
    struct sim_etcd *etcd = sim->etcd;
    uint64_t id = etcd->leases[index].id;
    etcd->leases[index] = etcd->leases[--etcd->lease_count];
    etcd->revision++;
    for (size_t i = etcd->key_count; i > 0; i--) {
        if (etcd->keys[i - 1].lease == id) {
            sim_say(sim, NULL, "etcd removes %s: its lease has ended", etcd->keys[i - 1].name);
            delete_key(sim, etcd->keys[i - 1].name);
        }
    }
}

static void expire(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct lease *lease = find_lease(sim->etcd, number);
    (void)process;
    (void)data;
    if (!lease) {
        return;
    }
    if (sim->etcd->away || sim->now < lease->until_us) {
        uint64_t left = sim->etcd->away ? 100 * SIM_MS : lease->until_us - sim->now;
        sim_after(sim, left, &(struct sim_call){.run = expire, .number = number});
        return;
    }
    end_lease(sim, (size_t)(lease - sim->etcd->leases));
}

uint64_t sim_etcd_grant(struct sim *sim, uint64_t ttl_us)
{
    struct sim_etcd *etcd = sim->etcd;
    uint64_t id = ++etcd->lease_ids;
    etcd->leases =
        sim_grow(etcd->leases, etcd->lease_count, &etcd->lease_capacity, sizeof(*etcd->leases));
    etcd->leases[etcd->lease_count++] =
        (struct lease){.id = id, .ttl_us = ttl_us, .until_us = sim->now + ttl_us};
    sim_after(sim, ttl_us, &(struct sim_call){.run = expire, .number = id});
    return id;
}

bool sim_etcd_keep_alive(struct sim *sim, uint64_t id)
{
    struct lease *lease = find_lease(sim->etcd, id);
    if (lease) {
        lease->until_us = sim->now + lease->ttl_us;
    }
    return lease != NULL;
}

void sim_etcd_revoke(struct sim *sim, uint64_t id)
{
    struct lease *lease = find_lease(sim->etcd, id);
    if (lease) {
        end_lease(sim, (size_t)(lease - sim->etcd->leases));
    }
}

/* Leases get their whole time again from an etcd that comes back. */
void sim_etcd_away(struct sim *sim, bool away)
{
    struct sim_etcd *etcd = sim->etcd;
    etcd->away = away;
    for (size_t i = 0; !away && i < etcd->lease_count; i++) {
        etcd->leases[i].until_us = sim->now + etcd->leases[i].ttl_us;
    }
}

/* ---- watches -----------------------------------------------------------------------------------
 */

static bool begins(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static void report_removed(struct sim *sim, struct watch *watch)
{
    size_t kept = 0;
    for (size_t i = 0; i < watch->seen_count; i++) {
        if (sim_etcd_look(sim, watch->seen[i].name)) {
            watch->seen[kept++] = watch->seen[i];
            continue;
        }
        struct seen gone = watch->seen[i];
        watch->events->removed(sim, watch->process, gone.name);
        if (!watch->open) {
            return;
        }
    }
    watch->seen_count = kept;
}

/* True if the revision is new to the watch. */
static bool see(struct watch *watch, const struct sim_key *key)
{
    for (size_t i = 0; i < watch->seen_count; i++) {
        if (strcmp(watch->seen[i].name, key->name) == 0) {
            bool changed = watch->seen[i].mod_revision != key->mod_revision;
            watch->seen[i].mod_revision = key->mod_revision;
            return changed;
        }
    }
    assert(watch->seen_count < KEYS_MAX);
    struct seen *seen = &watch->seen[watch->seen_count++];
    memcpy(seen->name, key->name, sizeof(seen->name));
    seen->mod_revision = key->mod_revision;
    return true;
}

/* number: the watch. */
static void look_at(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct watch *watch = sim->etcd->watches[number - 1];
    (void)data;
    watch->due = false;
    if (!watch->open) {
        return;
    }
    if (!sim_etcd_reachable(sim, process)) {
        watch->due = true;
        sim_after(sim, RELIST_US,
                  &(struct sim_call){.process = process, .run = look_at, .number = number});
        return;
    }
    report_removed(sim, watch);
    for (size_t i = 0; watch->open && i < sim->etcd->key_count; i++) {
        const struct sim_key *key = &sim->etcd->keys[i];
        if (begins(key->name, watch->prefix) && see(watch, key)) {
            watch->events->changed(sim, process, key);
        }
    }
    if (watch->open && watch->events->synced) {
        watch->events->synced(sim, process);
    }
}

static void look_soon(struct sim *sim, uint64_t number)
{
    struct watch *watch = sim->etcd->watches[number - 1];
    if (watch->open && !watch->due && sim_lives(watch->process, watch->incarnation)) {
        watch->due = true;
        sim_after(sim, sim_between(sim, 100, 5 * SIM_MS),
                  &(struct sim_call){.process = watch->process, .run = look_at, .number = number});
    }
}

static void notify(struct sim *sim, const char *key)
{
    for (size_t i = 0; i < sim->etcd->watch_count; i++) {
        if (begins(key, sim->etcd->watches[i]->prefix)) {
            look_soon(sim, i + 1);
        }
    }
}

uint64_t sim_etcd_watch(struct sim *sim, struct sim_process *process, const char *prefix,
                        const struct sim_watch_events *events)
{
    struct sim_etcd *etcd = sim->etcd;
    struct watch *watch = sim_alloc(sizeof(*watch));
    watch->open = true;
    watch->process = process;
    watch->incarnation = process->incarnation;
    watch->events = events;
    (void)snprintf(watch->prefix, sizeof(watch->prefix), "%s", prefix);
    etcd->watches =
        sim_grow(etcd->watches, etcd->watch_count, &etcd->watch_capacity, sizeof(*etcd->watches));
    etcd->watches[etcd->watch_count++] = watch;
    look_soon(sim, etcd->watch_count);
    return etcd->watch_count;
}

void sim_etcd_unwatch(struct sim *sim, uint64_t number)
{
    if (number != 0) {
        sim->etcd->watches[number - 1]->open = false;
    }
}
