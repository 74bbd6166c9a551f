#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/state_table.h"
#include "common/etcd/etcd_internal.h"

/*
 * An election: whoever creates the key, with a lease, leads until the key is gone.
 *
 *                    no lease             lease granted or not
 *          WAITING ------------> GRANTING ---------------------> WAITING
 *          |  ^  |  with a lease               another created the key, or nobody knows
 *          |  |  ------------> CAMPAIGNING ---------------------> WAITING
 *          |  |                     | our transaction created the key
 *          |  | deposed             v
 *          |  ------------------ LEADING
 *          ------------------------^   the watch shows our key: an answer was lost
 *
 *          WAITING ------------> DEPOSING ---------------------> WAITING
 *                   with a lease, when we are told to delete another's key
 *
 * It campaigns when the watch shows no key, and pauses after a failure. Our lease's number, which
 * nobody else has, tells whether the key is ours. The watch may lag behind our own transaction, so
 * while we lead it counts only from our key's revision on.
 */
enum state { STATE_WAITING, STATE_GRANTING, STATE_CAMPAIGNING, STATE_LEADING, STATE_DEPOSING };

static const struct kelp_state states[] = {
    /* It is kept when a lease is lost that was not used yet. */
    [STATE_WAITING] = {"waiting", KELP_STATE_BIT(STATE_WAITING) | KELP_STATE_BIT(STATE_GRANTING) |
                                      KELP_STATE_BIT(STATE_CAMPAIGNING) |
                                      KELP_STATE_BIT(STATE_LEADING) |
                                      KELP_STATE_BIT(STATE_DEPOSING)},
    [STATE_GRANTING] = {"granting", KELP_STATE_BIT(STATE_WAITING)},
    [STATE_CAMPAIGNING] = {"campaigning",
                           KELP_STATE_BIT(STATE_WAITING) | KELP_STATE_BIT(STATE_LEADING)},
    [STATE_LEADING] = {"leading", KELP_STATE_BIT(STATE_WAITING)},
    /* An earlier lease of ours may have created the key: the watch will show it. */
    [STATE_DEPOSING] = {"deposing", KELP_STATE_BIT(STATE_WAITING) | KELP_STATE_BIT(STATE_LEADING)},
};
static const struct kelp_state_table state_table = KELP_STATE_TABLE(states);

struct kelp_etcd_election {
    struct kelp_etcd *etcd;
    char *key;
    char *value;
    uint32_t ttl_s;
    struct kelp_etcd_election_events events;
    void *user;

    enum state state;
    struct kelp_etcd_watch *watch;
    bool synced;                   /* the watch has shown what there is */
    bool taken;                    /* the watch shows the key */
    int64_t taken_revision;        /* at which that key was created */
    int64_t depose_revision;       /* delete the key of that one; 0: none */
    int64_t stand_back_ms;         /* no campaign before it */
    int64_t create_revision;       /* of our key, while leading */
    struct kelp_etcd_lease *lease; /* NULL: none */
    int64_t lease_id;
    int64_t sent_ms;         /* when the lease was asked for */
    uint32_t tries;          /* transactions since the last one that was answered */
    struct etcd_call *call;  /* a grant or a campaign under way */
    struct etcd_timer timer; /* looks again */
    LIST_ENTRY(kelp_etcd_election) link;
};

static void look(struct kelp_etcd_election *election);

static void move_to(struct kelp_etcd_election *election, enum state state)
{
    election->state = kelp_state_move(&state_table, election->state, state);
}

static void look_fired(void *user)
{
    look(user);
}

static void look_later(struct kelp_etcd_election *election)
{
    election->timer.at_ms = kelp__etcd_now_ms() + ETCD_BACKOFF_MIN_MS;
}

/* ---- leading ---- */

static void lead(struct kelp_etcd_election *election, int64_t create_revision)
{
    assert(election->lease);
    move_to(election, STATE_LEADING);
    election->create_revision = create_revision;
    election->events.elected(create_revision, election->user);
}

static void depose(struct kelp_etcd_election *election, const char *why)
{
    move_to(election, STATE_WAITING);
    look_later(election);
    election->events.deposed(why, election->user);
}

/* Our lease is alive, so somebody deleted the key: let that process go first. */
static void lose_key(struct kelp_etcd_election *election)
{
    election->stand_back_ms = kelp__etcd_now_ms() + ETCD_STAND_BACK_MS;
    depose(election, "the key is gone");
    election->timer.at_ms = election->stand_back_ms;
}

static void drop_call(struct kelp_etcd_election *election)
{
    if (election->call) {
        kelp__etcd_call_cancel(election->call);
        kelp__etcd_call_destroy(election->call);
        election->call = NULL;
    }
}

static void lease_lost(void *user)
{
    struct kelp_etcd_election *election = user;

    (void)kelp__etcd_lease_end(election->lease);
    election->lease = NULL;
    /* Our time limit is stricter than etcd's: it may still have the lease, and so the key. */
    kelp__etcd_revoke(election->etcd, election->lease_id);
    drop_call(election); /* a campaign with a lease that is gone */
    if (election->state == STATE_LEADING) {
        depose(election, "the lease ran out: no keep-alive got through");
    } else {
        move_to(election, STATE_WAITING);
        look_later(election);
    }
}

/* ---- getting there ---- */

static void granted(struct etcd_call *call, void *user)
{
    struct kelp_etcd_election *election = user;
    int64_t id = 0;
    int64_t ttl_s = 0;
    kelp_status status = call->status;

    election->call = NULL;
    move_to(election, STATE_WAITING);
    if (status == KELP_OK) {
        status = kelp__etcd_decode_grant(call->answer.bytes, call->answer.used, &id, &ttl_s, NULL);
    }
    kelp__etcd_call_destroy(call);
    if (status == KELP_OK) {
        election->lease = kelp__etcd_lease_start(election->etcd, id, election->ttl_s,
                                                 election->sent_ms, lease_lost, election);
        election->lease_id = id;
    }
    if (election->lease) {
        look(election);
    } else {
        look_later(election);
    }
}

/* A member whose leader is gone drops a transaction, and says so after seconds: it is asked again
 * soon. An etcd that has not answered for long may be slow: then it gets ever more time. Whatever
 * comes late is seen by the watch, and harmless: it is bound to the key as it was. */
static struct etcd_call *create_transaction(struct kelp_etcd_election *election)
{
    const uint32_t most = election->ttl_s * 1000;
    uint32_t patience_ms = ETCD_ELECT_MS;

    for (uint32_t i = ETCD_ELECT_TRIES; i < election->tries && patience_ms < most; i++) {
        patience_ms *= 2;
    }
    election->tries++;
    return kelp__etcd_call_create(election->etcd, "/v3/kv/txn", ETCD_ONCE,
                                  patience_ms < most ? patience_ms : most);
}

/* The pending transaction was answered. True if it was applied, at *ret_revision; false if not, or
 * if that is unknown. */
static bool take_answer(struct kelp_etcd_election *election, struct etcd_call *call,
                        int64_t *ret_revision)
{
    bool succeeded = false;
    kelp_status status = call->status;

    election->call = NULL;
    move_to(election, STATE_WAITING);
    if (status == KELP_OK) {
        election->tries = 0;
        status = kelp__etcd_decode_transaction(call->answer.bytes, call->answer.used, &succeeded,
                                               ret_revision, NULL);
    }
    kelp__etcd_call_destroy(call);
    return status == KELP_OK && succeeded;
}

static void campaigned(struct etcd_call *call, void *user)
{
    struct kelp_etcd_election *election = user;
    int64_t revision = 0;

    if (take_answer(election, call, &revision)) {
        lead(election, revision);
        return;
    }
    /* The election was lost, or its outcome is unknown: the watch will tell, or the keep-alive of a
     * lease that is gone. If the watch has already shown that the key came and went, nothing more
     * may come: list again. */
    look_later(election);
}

static void begin(struct kelp_etcd_election *election, struct etcd_call *call, kelp_status encoded,
                  enum state state, void (*done)(struct etcd_call *call, void *user))
{
    if (!call || encoded != KELP_OK) {
        kelp__etcd_call_destroy(call);
        look_later(election);
        return;
    }
    call->done = done;
    call->user = election;
    election->call = call;
    move_to(election, state);
    kelp__etcd_call_start(call);
}

static void ask_for_lease(struct kelp_etcd_election *election)
{
    struct etcd_call *call = kelp__etcd_call_create(election->etcd, "/v3/lease/grant",
                                                    ETCD_REPEATABLE, election->ttl_s * 1000);

    election->sent_ms = kelp__etcd_now_ms();
    begin(election, call,
          call ? kelp__etcd_encode_grant(election->ttl_s, &call->body, NULL) : KELP_OK,
          STATE_GRANTING, granted);
}

static void campaign(struct kelp_etcd_election *election)
{
    struct kelp_etcd_compare absent = {
        .key = election->key, .what = KELP_ETCD_CREATE_REVISION, .revision = 0};
    struct kelp_etcd_operation put = {
        .key = election->key, .value = election->value, .lease = election->lease_id};
    struct etcd_call *call = create_transaction(election);

    begin(election, call,
          call ? kelp__etcd_encode_transaction(&absent, 1, &put, 1, &call->body, NULL) : KELP_OK,
          STATE_CAMPAIGNING, campaigned);
}

/* The value that the key should have by now. False: it cannot be told at the moment. */
static bool renew_value(struct kelp_etcd_election *election)
{
    if (!election->events.renew) {
        return true;
    }
    const char *text = election->events.renew(election->user);
    char *value = text && strlen(text) <= ETCD_REQUEST_MAX / 2 ? strdup(text) : NULL;

    if (value) {
        free(election->value);
        election->value = value;
    }
    return value != NULL;
}

static void key_deleted(struct etcd_call *call, void *user)
{
    struct kelp_etcd_election *election = user;
    int64_t revision = 0;

    if (take_answer(election, call, &revision) &&
        election->taken_revision == election->depose_revision) {
        election->taken = false; /* the watch will show it too */
    }
    election->depose_revision = 0;
    look(election);
}

/* Delete another process's key, identified by its creation revision. */
static void delete_key(struct kelp_etcd_election *election)
{
    struct kelp_etcd_compare same = {.key = election->key,
                                     .what = KELP_ETCD_CREATE_REVISION,
                                     .revision = election->depose_revision};
    struct kelp_etcd_operation gone = {.key = election->key};
    struct etcd_call *call = create_transaction(election);

    begin(election, call,
          call ? kelp__etcd_encode_transaction(&same, 1, &gone, 1, &call->body, NULL) : KELP_OK,
          STATE_DEPOSING, key_deleted);
}

/* Do the next action, if there is one. The lease comes first, so that the key is free as briefly as
 * possible. */
static void look(struct kelp_etcd_election *election)
{
    election->timer.at_ms = INT64_MAX;
    if (election->state != STATE_WAITING || !election->synced ||
        (election->taken && election->depose_revision == 0)) {
        return;
    }
    if (!election->taken && kelp__etcd_now_ms() < election->stand_back_ms) {
        election->timer.at_ms = election->stand_back_ms;
    } else if (!election->lease) {
        ask_for_lease(election);
    } else if (election->taken) {
        delete_key(election);
    } else if (renew_value(election)) {
        campaign(election);
    } else {
        look_later(election);
    }
}

/* ---- what the watch shows ---- */

static void key_changed(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_etcd_election *election = user;
    bool ours = election->lease && pair->lease == election->lease_id;

    election->taken = true;
    election->taken_revision = pair->create_revision;
    if (election->depose_revision != election->taken_revision) {
        election->depose_revision = 0; /* that one is gone */
    }
    if (election->state == STATE_LEADING) {
        if (!ours && pair->mod_revision > election->create_revision) {
            depose(election, "somebody else wrote the key");
        } else if (ours && pair->create_revision > election->create_revision) {
            /* The key was deleted, and a late earlier request created it again, while we saw
             * neither. */
            depose(election, "the key was deleted and created again");
            lead(election, pair->create_revision);
        }
    } else if (ours) {
        /* The key was created by a transaction whose answer was lost or is still on its way. */
        drop_call(election);
        lead(election, pair->create_revision);
    }
}

static void key_removed(const char *key, int64_t revision, void *user)
{
    struct kelp_etcd_election *election = user;

    (void)key;
    election->taken = false;
    if (election->state == STATE_LEADING) {
        if (revision > election->create_revision) {
            lose_key(election);
        }
    } else {
        look(election);
    }
}

static void key_synced(int64_t revision, void *user)
{
    struct kelp_etcd_election *election = user;

    election->synced = true;
    if (election->state == STATE_LEADING && !election->taken &&
        revision >= election->create_revision) {
        /* Our key came and went between two listings, so that the watch never showed it. */
        lose_key(election);
        return;
    }
    look(election);
}

/* ---- start and end ---- */

static void free_election(struct kelp_etcd_election *election)
{
    free(election->key);
    free(election->value);
    free(election);
}

struct election_request {
    struct kelp_etcd_election *election;
    bool started;
    int64_t lease_id;
};

static void start_election(struct kelp_etcd *etcd, void *user)
{
    static const struct etcd_watch_hooks hooks = {
        .changed = key_changed, .removed = key_removed, .synced = key_synced};
    struct election_request *request = user;
    struct kelp_etcd_election *election = request->election;

    election->watch = kelp__etcd_watch_start(etcd, election->key, false, &hooks, election);
    if (election->watch) {
        kelp__etcd_timer_init(etcd, &election->timer, look_fired, election);
        LIST_INSERT_HEAD(&etcd->elections, election, link);
        request->started = true;
    }
}

int64_t kelp__etcd_election_end(struct kelp_etcd_election *election)
{
    int64_t id = 0;

    drop_call(election);
    kelp__etcd_watch_end(election->watch);
    if (election->lease) {
        id = kelp__etcd_lease_end(election->lease);
    }
    kelp__etcd_timer_fini(&election->timer);
    LIST_REMOVE(election, link);
    free_election(election);
    return id;
}

/* ---- public ---- */

kelp_status kelp_etcd_election_open(struct kelp_etcd *etcd,
                                    const struct kelp_etcd_election_options *options,
                                    struct kelp_etcd_election **ret_election,
                                    struct kelp_error *reterr)
{
    kelp_status status = kelp__etcd_check_key(options->key, reterr);

    if (status == KELP_OK) {
        status = kelp__etcd_check_ttl(options->ttl_s, reterr);
    }
    if (status == KELP_OK && strlen(options->value) > ETCD_REQUEST_MAX / 2) {
        status = kelp_fail(reterr, KELP_ERR_LIMIT,
                           "etcd: the value of an election is over %d bytes", ETCD_REQUEST_MAX / 2);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_etcd_election *election = calloc(1, sizeof(*election));
    if (!election) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *election = (struct kelp_etcd_election){.etcd = etcd,
                                            .key = strdup(options->key),
                                            .value = strdup(options->value),
                                            .ttl_s = options->ttl_s,
                                            .events = *options->events,
                                            .user = options->user};
    struct election_request request = {.election = election};
    if (election->key && election->value) {
        kelp__etcd_run(etcd, start_election, &request);
    }
    if (!request.started) {
        free_election(election);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *ret_election = election;
    return KELP_OK;
}

static void end_election(struct kelp_etcd *etcd, void *user)
{
    struct election_request *request = user;

    (void)etcd;
    request->lease_id = kelp__etcd_election_end(request->election);
}

struct depose_request {
    struct kelp_etcd_election *election;
    int64_t create_revision;
};

static void depose_holder(struct kelp_etcd *etcd, void *user)
{
    const struct depose_request *request = user;
    struct kelp_etcd_election *election = request->election;

    (void)etcd;
    if (election->taken && election->taken_revision == request->create_revision &&
        election->state != STATE_LEADING) {
        election->depose_revision = request->create_revision;
        look(election);
    }
}

void kelp_etcd_election_depose(struct kelp_etcd_election *election, int64_t create_revision)
{
    struct depose_request request = {.election = election, .create_revision = create_revision};
    kelp__etcd_run(election->etcd, depose_holder, &request);
}

void kelp_etcd_election_close(struct kelp_etcd_election *election)
{
    struct election_request request = {.election = election};

    if (!election) {
        return;
    }
    struct kelp_etcd *etcd = election->etcd;
    kelp__etcd_run(etcd, end_election, &request);
    kelp__etcd_revoke_wait(etcd, request.lease_id);
}
