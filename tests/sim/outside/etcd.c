#include "tests/sim/outside/etcd_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/outside/network.h"

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
    sim__etcd_notify(sim, name);
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
        assert(etcd->key_count < SIM_ETCD_KEYS_MAX);
        memmove(key + 1, key, (etcd->key_count - at) * sizeof(*key));
        etcd->key_count++;
        *key = (struct sim_key){.create_revision = etcd->revision};
        memcpy(key->name, operation->key, sizeof(key->name));
    }
    key->mod_revision = etcd->revision;
    key->lease = operation->lease;
    key->value = sim_value_ref(operation->value);
    if (strcmp(operation->key, "map") == 0) {
        sim_invariants_opened(sim, operation->value->content);
    }
    if (strncmp(operation->key, "checkpoint/", strlen("checkpoint/")) == 0) {
        sim_invariants_committed(sim, operation->value->content);
    }
    sim__etcd_notify(sim, operation->key);
}

static struct sim__lease *find_lease(struct sim_etcd *etcd, uint64_t id)
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

struct sim_outcome sim__etcd_apply(struct sim *sim, const struct sim_transaction *transaction)
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
    struct sim__lease *lease = find_lease(sim->etcd, number);
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
        (struct sim__lease){.id = id, .ttl_us = ttl_us, .until_us = sim->now + ttl_us};
    sim_after(sim, ttl_us, &(struct sim_call){.run = expire, .number = id});
    return id;
}

bool sim_etcd_keep_alive(struct sim *sim, uint64_t id)
{
    struct sim__lease *lease = find_lease(sim->etcd, id);
    if (lease) {
        lease->until_us = sim->now + lease->ttl_us;
    }
    return lease != NULL;
}

void sim_etcd_revoke(struct sim *sim, uint64_t id)
{
    struct sim__lease *lease = find_lease(sim->etcd, id);
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
