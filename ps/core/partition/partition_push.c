/* What is pushed to a partition: taken, dropped as a duplicate, or refused with a reason. */
#include <assert.h>
#include <string.h>

#include "ps/core/partition/partition_internal.h"

enum verdict { TAKE, DROP, REFUSE };

static enum verdict refuse(kelp_status status, const char *why, kelp_status *ret_status,
                           const char **ret_why)
{
    *ret_status = status;
    *ret_why = why;
    return REFUSE;
}

/* Samples before lane `lane` in a step of `samples`: floor(lane * samples / lanes), exactly. */
static uint64_t samples_before(uint64_t samples, uint32_t lane, uint32_t lanes)
{
    return samples / lanes * lane + samples % lanes * lane / lanes;
}

static bool digest_well_formed(const char *digest)
{
    return strlen(digest) == 32 && strspn(digest, "0123456789abcdef") == 32;
}

static enum verdict judge_entry(const struct kelp_partition *partition,
                                const struct kelp_push *push, kelp_status *ret_status,
                                const char **ret_why)
{
    const struct kelp_control_word *word = push->word;

    if (kelp__partition_holds_control(partition)) {
        if (word->version < partition->version) {
            return DROP;
        }
        if (word->version > partition->version) {
            return refuse(KELP_ERR_INVALID, "an entry that is not there yet", ret_status, ret_why);
        }
        if (!kelp_control_word_equal(word, &partition->word)) {
            return refuse(KELP_ERR_CONTROL_WORD, "another control word", ret_status, ret_why);
        }
        return TAKE;
    }
    if (word->kind != KELP_STEP_TRAIN) {
        return refuse(KELP_ERR_INVALID, "only partition 0 takes part in it", ret_status, ret_why);
    }
    if (word->step < partition->step) {
        return DROP;
    }
    if (word->step > partition->step) {
        return refuse(KELP_ERR_INVALID, "a step that is not there yet", ret_status, ret_why);
    }
    if (kelp__partition_judge_word(partition, word) != KELP_OK) {
        return refuse(KELP_ERR_CONTROL_WORD, "another control word", ret_status, ret_why);
    }
    return TAKE;
}

static enum verdict judge_content(const struct kelp_partition *partition,
                                  const struct kelp_push *push, kelp_status *ret_status,
                                  const char **ret_why)
{
    const struct kelp_control_word *word = push->word;

    if (!kelp_reduction_aligned(partition->reduction, push->lane_first, push->lane_count)) {
        return refuse(KELP_ERR_INVALID, "not an aligned range of lanes", ret_status, ret_why);
    }
    if (word->kind == KELP_STEP_DONE) {
        return refuse(KELP_ERR_INVALID, "the job is done", ret_status, ret_why);
    }
    bool has_gradient = push->handle != KELP_HANDLE_NONE;
    bool needs_gradient = false;
    uint32_t end = push->lane_first + push->lane_count;
    bool has_samples = samples_before(word->sample_count, push->lane_first, partition->lanes) !=
                       samples_before(word->sample_count, end, partition->lanes);
    if (word->kind == KELP_STEP_TRAIN) {
        needs_gradient = !partition->hollow && has_samples;
        if (word->sample_count == 0) {
            return refuse(KELP_ERR_INVALID, "a step without samples", ret_status, ret_why);
        }
    }
    if (has_gradient != needs_gradient) {
        return refuse(KELP_ERR_INVALID,
                      has_gradient ? "a gradient of no samples" : "samples without a gradient",
                      ret_status, ret_why);
    }
    if (kelp__partition_holds_control(partition) && has_samples &&
        push->sum_count <= KELP_METRIC_SUM_SAMPLES) {
        return refuse(KELP_ERR_INVALID, "no sums", ret_status, ret_why);
    }
    if (kelp__partition_holds_control(partition) && word->digest_due && push->lane_first == 0 &&
        (!push->digest || !digest_well_formed(push->digest))) {
        return refuse(KELP_ERR_INVALID, "no digest where one is due", ret_status, ret_why);
    }
    return TAKE;
}

static enum verdict judge_push(const struct kelp_partition *partition, const struct kelp_push *push,
                               kelp_status *ret_status, const char **ret_why)
{
    enum verdict verdict;

    *ret_status =
        kelp__partition_check_fences(partition, push->generation, push->map_epoch, ret_why);
    if (*ret_status != KELP_OK) {
        return REFUSE;
    }
    verdict = judge_entry(partition, push, ret_status, ret_why);
    if (verdict == TAKE) {
        verdict = judge_content(partition, push, ret_status, ret_why);
    }
    if (verdict == TAKE && partition->phase == KELP_PARTITION_SYNCING && !partition->is_applied) {
        return refuse(KELP_ERR_BUSY, "the followers have not been heard yet", ret_status, ret_why);
    }
    if (verdict == TAKE && partition->phase != KELP_PARTITION_COLLECTING) {
        verdict = DROP; /* all lanes of this entry have come */
    }
    return verdict;
}

kelp_status kelp_partition_push(struct kelp_partition *partition, const struct kelp_push *push,
                                struct kelp_actions *actions)
{
    kelp_status status = KELP_OK;
    const char *why = "";

    assert(push->word);
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    partition->pushes++;
    actions->taken_lanes = 0;
    enum verdict verdict = judge_push(partition, push, &status, &why);
    if (verdict == TAKE &&
        kelp_reduction_covered(partition->reduction, push->lane_first, push->lane_count)) {
        verdict = DROP;
    }
    switch (verdict) {
    case TAKE:
        actions->taken_lanes = push->lane_count;
        kelp__partition_learn_word(partition, push);
        kelp__partition_push_taken(partition, push, actions);
        (void)kelp_reduction_add(partition->reduction, push, actions); /* not covered: see above */
        kelp__partition_nodes_formed(partition);
        if (kelp__partition_holds_control(partition) && partition->word.digest_due &&
            push->lane_first == 0) {
            memcpy(partition->digest, push->digest, sizeof(partition->digest));
        }
        kelp_cover_begin(partition->cover, partition->now_us);
        kelp_cover_pushed(partition->cover, push->requester, push->lane_first, push->lane_count,
                          partition->now_us);
        kelp__partition_after_reduction(partition, actions);
        break;
    case DROP:
        partition->duplicates++;
        if (judge_content(partition, push, &status, &why) == TAKE) {
            kelp__partition_push_dropped(partition, push, actions);
        } else {
            kelp__actions_add_release(actions, push->handle);
        }
        break;
    case REFUSE:
        partition->refusals++;
        kelp__actions_add(actions, KELP_ACTION_REFUSE)->refuse =
            (struct kelp_refusal){.requester = push->requester,
                                  .status = status,
                                  .map_epoch = partition->map_epoch,
                                  .version = push->word->version,
                                  .why = why};
        kelp__actions_add_release(actions, push->handle);
        if (status == KELP_ERR_CONTROL_WORD) {
            kelp__partition_word_differs(partition, push, actions);
        }
        break;
    }
    kelp__partition_stop_if_needed(partition, actions);
    return KELP_OK;
}

static enum verdict judge_part(struct kelp_partition *partition, const struct kelp_share_push *push,
                               kelp_status *ret_status, const char **ret_why)
{
    *ret_status =
        kelp__partition_check_fences(partition, push->generation, push->map_epoch, ret_why);
    if (*ret_status != KELP_OK) {
        return REFUSE;
    }
    if (!partition->decision || push->word->kind != KELP_STEP_TRAIN ||
        push->partition == partition->index) {
        return refuse(KELP_ERR_INVALID, "no such share is needed here", ret_status, ret_why);
    }
    if (push->word->version != partition->version) {
        return push->word->version < partition->version
                   ? DROP
                   : refuse(KELP_ERR_INVALID, "an entry that is not there yet", ret_status,
                            ret_why);
    }
    if (!kelp_control_word_equal(push->word, &partition->word)) {
        return refuse(KELP_ERR_CONTROL_WORD, "another control word", ret_status, ret_why);
    }
    switch (kelp_decision_add(partition->decision, push->partition, &push->share)) {
    case KELP_OK:
        return TAKE;
    case KELP_ERR_MISMATCH:
        return refuse(KELP_ERR_MISMATCH, "another share than before", ret_status, ret_why);
    default:
        return refuse(KELP_ERR_INVALID, "not a share", ret_status, ret_why);
    }
}

kelp_status kelp_partition_share(struct kelp_partition *partition,
                                 const struct kelp_share_push *push, struct kelp_actions *actions)
{
    kelp_status status = KELP_OK;
    const char *why = "";

    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    switch (judge_part(partition, push, &status, &why)) {
    case TAKE:
        partition->share_authors[push->partition] = push->author;
        kelp__partition_decide_if_known(partition, actions);
        break;
    case DROP:
        break;
    case REFUSE:
        partition->refusals++;
        if (status == KELP_ERR_MISMATCH) {
            kelp__partition_share_differs(partition, push, actions);
            status = KELP_ERR_INVALID;
        }
        kelp__actions_add(actions, KELP_ACTION_REFUSE)->refuse =
            (struct kelp_refusal){.requester = push->requester,
                                  .status = status,
                                  .map_epoch = partition->map_epoch,
                                  .version = push->word->version,
                                  .why = why};
        break;
    }
    kelp__partition_stop_if_needed(partition, actions);
    return KELP_OK;
}
