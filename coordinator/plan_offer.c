#include "coordinator/plan_offer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/shard_link.h"
#include "coordinator/worker_sessions.h"

void kelp_offer_forget(struct kelp_coordinator *coordinator)
{
    if (coordinator->plan_state != KELP_PLAN_NONE) {
        kelp_plan_fini(&coordinator->plan);
        free(coordinator->plan_text);
        coordinator->plan_text = NULL;
        coordinator->plan_state = KELP_PLAN_NONE;
    }
}

kelp_status kelp_offer_keep(struct kelp_coordinator *coordinator, const char *text,
                            enum kelp_plan_state state, struct kelp_error *reterr)
{
    struct kelp_plan plan;
    kelp_status status = kelp_plan_parse(text, strlen(text), &plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        kelp_plan_fini(&plan);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the plan");
    }
    kelp_offer_forget(coordinator);
    coordinator->plan = plan;
    coordinator->plan_text = copy;
    coordinator->plan_state = state;
    return KELP_OK;
}

void kelp_offer_tick(struct kelp_coordinator *coordinator)
{
    if (coordinator->plan_state != KELP_PLAN_OFFERED || coordinator->plan_in_flight ||
        coordinator->placement.state == KELP_PLACEMENT_FAILED ||
        coordinator->now_ms < coordinator->plan_at_ms) {
        return;
    }
    coordinator->plan_in_flight =
        kelp_leader_write_plan(coordinator->leader, coordinator->plan_text) == KELP_OK;
    coordinator->plan_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
}

kelp_status kelp_offer_plan(struct kelp_coordinator *coordinator, const char *text,
                            struct kelp_error *reterr)
{
    kelp_status status = kelp_offer_keep(coordinator, text, KELP_PLAN_OFFERED, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the worker's plan");
        return status;
    }
    kelp_log_info("plan offered partitions=%u tensors=%u elements=%" PRIu64,
                  coordinator->plan.partition_count, coordinator->plan.tensor_count,
                  coordinator->plan.flat_count);
    kelp_offer_tick(coordinator);
    return KELP_OK;
}

void kelp_offer_settled(struct kelp_coordinator *coordinator)
{
    struct kelp_error error;
    kelp_log_info("plan taken partitions=%u", coordinator->plan.partition_count);
    if (kelp_journal_lengthen(coordinator->journal, coordinator->job, &coordinator->plan, &error) !=
        KELP_OK) {
        kelp_log_error("the end of a shorter job stays on file error=\"%s\"", error.text);
    }
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_PLAN,
                                            .partition_count = coordinator->plan.partition_count});
    kelp_link_update(coordinator);
}

void kelp_offer_written(kelp_status status, const char *plan, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    struct kelp_error error;
    kelp_coordinator_touch(coordinator);
    coordinator->plan_in_flight = false;
    if (kelp_status_group(status) == KELP_GROUP_CALLER) { /* too large for etcd, say */
        kelp_log_error("plan refused by etcd error=\"%s\"", text);
        kelp_coordinator_fail_job(coordinator, text);
        return;
    }
    if (status != KELP_OK) {
        kelp_log_warn("plan not written yet error=\"%s\"", text);
        coordinator->plan_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        return;
    }
    if (coordinator->plan_text != NULL && strcmp(plan, coordinator->plan_text) == 0) {
        coordinator->plan_state = KELP_PLAN_WRITTEN;
    } else if (kelp_offer_keep(coordinator, plan, KELP_PLAN_WRITTEN, &error) != KELP_OK) {
        kelp_error_prefix(&error, "/kelp/%s/plan", coordinator->options.job);
        kelp_coordinator_give_up(coordinator, error.text);
        return;
    }
    kelp_offer_settled(coordinator);
    kelp_service_review(coordinator);
}
