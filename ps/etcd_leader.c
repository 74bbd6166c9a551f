#include "ps/etcd_leader.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/job/job.h"
#include "common/log/log.h"
#include "common/tls/proof.h"

#define KEY_MAX (sizeof("/kelp//coordinator") + KELP_JOB_NAME_MAX)

struct kelp_leader_watch {
    struct kelp_leader_watch_options options;
    char key[KEY_MAX];
    struct kelp_etcd_watch *watch;
    bool closed; /* used on the loop only */

    pthread_mutex_t lock; /* guards what follows */
    char digest[KELP_PROOF_HEX + 1];
};

/* Runs on the loop. */
static void hand_on(void *user)
{
    struct kelp_leader_watch *watch = user;
    char digest[KELP_PROOF_HEX + 1];

    (void)pthread_mutex_lock(&watch->lock);
    memcpy(digest, watch->digest, sizeof(digest));
    (void)pthread_mutex_unlock(&watch->lock);
    if (!watch->closed) {
        watch->options.known(digest, watch->options.user);
    }
}

static kelp_status parse(const struct kelp_etcd_pair *pair, char digest[KELP_PROOF_HEX + 1],
                         struct kelp_error *reterr)
{
    cJSON *json = NULL;
    kelp_status status = kelp_json_parse(pair->value, pair->value_bytes, &json, reterr);

    if (status == KELP_OK) {
        status = kelp_json_string(json, "proof", digest, KELP_PROOF_HEX + 1, reterr);
        cJSON_Delete(json);
    }
    if (status == KELP_OK && strlen(digest) != KELP_PROOF_HEX) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "proof: is not %d digits", KELP_PROOF_HEX);
    }
    return status;
}

/* Runs on the client's thread. */
static void on_changed(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_leader_watch *watch = user;
    char digest[KELP_PROOF_HEX + 1];
    struct kelp_error error = {.text = ""};

    if (strcmp(pair->key, watch->key) != 0) {
        return; /* another key with the same prefix */
    }
    if (parse(pair, digest, &error) != KELP_OK) {
        kelp_log_warn("the leader's key is malformed key=%s error=\"%s\"", pair->key, error.text);
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    memcpy(watch->digest, digest, sizeof(digest));
    (void)pthread_mutex_unlock(&watch->lock);
    if (kelp_rpc_loop_post(watch->options.loop, hand_on, watch) != KELP_OK) {
        kelp_log_error("no memory to follow a new leader: its next stream is refused");
    }
}

/* Without a leader, the one before is obeyed until there is another. */
static void on_removed(const char *key, void *user)
{
    (void)key;
    (void)user;
}

static const struct kelp_etcd_watch_events watch_events = {.changed = on_changed,
                                                           .removed = on_removed};

kelp_status kelp_leader_watch_open(const struct kelp_leader_watch_options *options,
                                   struct kelp_leader_watch **ret_watch, struct kelp_error *reterr)
{
    struct kelp_leader_watch *watch = calloc(1, sizeof(*watch));

    if (!watch) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to watch the leader's key");
    }
    watch->options = *options;
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)snprintf(watch->key, sizeof(watch->key), "/kelp/%s/coordinator", options->job);
    kelp_status status = kelp_etcd_watch_open(options->etcd, watch->key, &watch_events, watch,
                                              &watch->watch, reterr);
    if (status != KELP_OK) {
        kelp_leader_watch_destroy(watch);
        return status;
    }
    *ret_watch = watch;
    return KELP_OK;
}

void kelp_leader_watch_doubt(struct kelp_leader_watch *watch)
{
    if (!watch->closed) {
        kelp_etcd_watch_doubt(watch->watch);
    }
}

void kelp_leader_watch_close(struct kelp_leader_watch *watch)
{
    if (watch) {
        kelp_etcd_watch_close(watch->watch);
        watch->watch = NULL;
        watch->closed = true;
    }
}

void kelp_leader_watch_destroy(struct kelp_leader_watch *watch)
{
    if (watch) {
        (void)pthread_mutex_destroy(&watch->lock);
        free(watch);
    }
}
