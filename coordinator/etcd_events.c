#include "coordinator/etcd_events.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log/log.h"
#include "common/program/daemon.h"
#include "coordinator/common/term_now.h"
#include "coordinator/parts.h"

static struct kelp_term *term_of(struct kelp_coordinator *coordinator)
{
    return kelp_term_now(&coordinator->leadership);
}

static struct kelp_leadership *leadership_of(struct kelp_coordinator *coordinator)
{
    (void)kelp_term_now(&coordinator->leadership);
    return &coordinator->leadership;
}

/* ---- the job and the election ---- */

static void on_spec(const char *text, size_t text_bytes, void *user)
{
    struct kelp_coordinator *coordinator = user;
    struct kelp_identity *identity = &coordinator->identity;
    struct kelp_leadership *leadership = leadership_of(coordinator);
    struct kelp_error error;
    if (identity->job) {
        if (strlen(identity->spec) != text_bytes || memcmp(identity->spec, text, text_bytes) != 0) {
            kelp_log_error("the job's specification in etcd has changed; the first one counts");
        }
        return;
    }
    kelp_status status = kelp_daemon_check_spec(identity->job_name, text, text_bytes,
                                                coordinator->options.spec_sha256, &error);
    if (status == KELP_OK) {
        status = kelp_identity_set_spec(identity, text, text_bytes, &error);
    }
    if (status == KELP_OK) {
        kelp_log_info("job read digest=%016" PRIx64 ", standing for election",
                      identity->spec_digest);
        status = kelp_leadership_stand(leadership, identity->job, &error);
    }
    if (status != KELP_OK) {
        const struct kelp_outside *outside = &leadership->options.outside;
        outside->effects->give_up(error.text, outside->user);
    }
}

static void on_elected(int64_t revision, void *user)
{
    kelp_leadership_elected(leadership_of(user), revision);
}

static void on_deposed(const char *why, void *user)
{
    kelp_leadership_deposed(leadership_of(user), why);
}

static void on_superseded(const struct kelp_holder *holder, void *user)
{
    kelp_leadership_superseded(leadership_of(user), holder);
}

static void on_vacant(void *user)
{
    kelp_leadership_vacant(leadership_of(user));
}

/* ---- answers, only of the current term ---- */

static void on_read(kelp_status status, struct kelp_found *found, const char *text, void *user)
{
    kelp_leadership_read(leadership_of(user), status, found, text);
}

static void on_plan_written(kelp_status status, const char *plan, const char *text, void *user)
{
    kelp_term_plan_written(term_of(user), status, plan, text);
}

static void on_map_written(enum kelp_placement_written result, const char *text, void *user)
{
    kelp_term_map_written(term_of(user), result, text);
}

static void on_map_read(kelp_status status, struct kelp_found *found, const char *text, void *user)
{
    kelp_term_map_read(term_of(user), status, found, text);
}

static void on_committed(const struct kelp_commit_answer *answer, void *user)
{
    kelp_term_committed(term_of(user), answer);
}

static void on_removed(enum kelp_checkpointer_result result, const char *text, void *user)
{
    kelp_term_removed(term_of(user), result, text);
}

static void on_state_written(bool taken, void *user)
{
    kelp_term_state_written(term_of(user), taken);
}

static void on_scale_written(const struct kelp_targets *written, void *user)
{
    kelp_term_scale_written(term_of(user), written);
}

/* ---- shards ---- */

static void on_shard_registered(const struct kelp_map_shard *shard, void *user)
{
    struct kelp_term *term = term_of(user);
    if (term) {
        kelp_term_shard_registered(term, shard);
    }
}

static void on_shard_gone(const char *id, void *user)
{
    struct kelp_term *term = term_of(user);
    if (term) {
        kelp_term_shard_gone(term, id);
    }
}

static void on_trouble(const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_figures_add(coordinator->options.figures, KELP_FIGURE_ETCD_TROUBLES, 1);
    if (strcmp(text, coordinator->trouble) != 0) {
        kelp_log_warn("trouble with etcd error=\"%s\"", text);
        (void)snprintf(coordinator->trouble, sizeof(coordinator->trouble), "%s", text);
    }
}

/* The process ends; its supervisor restarts it, and it finds its new address. */
static void on_stranded(const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    if (!coordinator->stopping) {
        kelp_log_error("%s", text);
        coordinator->exit_code = KELP_EXIT_FAILED;
        coordinator->stopping = true;
    }
}

const struct kelp_leader_events kelp_coordinator_etcd_events = {
    .spec = on_spec,
    .elected = on_elected,
    .deposed = on_deposed,
    .superseded = on_superseded,
    .vacant = on_vacant,
    .read = on_read,
    .plan_written = on_plan_written,
    .map_written = on_map_written,
    .map_read = on_map_read,
    .committed = on_committed,
    .removed = on_removed,
    .state_written = on_state_written,
    .scale_written = on_scale_written,
    .shard_registered = on_shard_registered,
    .shard_gone = on_shard_gone,
    .trouble = on_trouble,
    .stranded = on_stranded,
};
