/* A partition's pulls: answered at once, or kept until the requested version or step is
 * available. */
#include <assert.h>
#include <stdlib.h>

#include "ps/core/limits.h"
#include "ps/core/partition/partition_internal.h"

static void add_answer(const struct kelp_partition *partition, const struct waiting_pull *pull,
                       kelp_status status, enum kelp_weights_label label,
                       struct kelp_actions *actions)
{
    struct kelp_answer *answer = &kelp__actions_add(actions, KELP_ACTION_ANSWER)->answer;

    *answer = (struct kelp_answer){
        .requester = pull->requester, .status = status, .current_step = partition->step};
    if (pull->mode == KELP_PULL_SHARE) {
        answer->step = pull->target;
        answer->is_share = true;
        if (status == KELP_OK && partition->has_share && partition->share_step == pull->target) {
            answer->values = partition->share.values;
            answer->value_count = partition->share.count;
        }
        return;
    }
    if (status != KELP_OK) {
        answer->step = pull->mode == KELP_PULL_STEP ? pull->target : partition->step;
        return;
    }
    assert(label != KELP_WEIGHTS_NONE);
    assert(label == KELP_WEIGHTS_CURRENT || partition->has_older);
    answer->step = label == KELP_WEIGHTS_CURRENT ? partition->step : partition->step - 1;
    answer->send = pull->holds && pull->held_step == answer->step ? KELP_WEIGHTS_NONE : label;
    if (kelp__partition_holds_control(partition)) {
        answer->has_word = true;
        answer->word = label == KELP_WEIGHTS_CURRENT ? partition->word : partition->older_word;
        assert(answer->word.step == answer->step);
        if (label == KELP_WEIGHTS_CURRENT && partition->phase == KELP_PARTITION_COLLECTING) {
            answer->values = partition->decided;
            answer->value_count = partition->decided_count;
        }
    }
}

/* True: it can be answered now, with *ret_status and *ret_label. False: it must wait. */
static bool answerable(const struct kelp_partition *partition, const struct waiting_pull *pull,
                       kelp_status *ret_status, enum kelp_weights_label *ret_label)
{
    *ret_status = KELP_OK;
    *ret_label = KELP_WEIGHTS_CURRENT;
    if (partition->phase == KELP_PARTITION_SYNCING && pull->mode != KELP_PULL_SHARE) {
        return false; /* the weights may not be seen yet */
    }
    switch (pull->mode) {
    case KELP_PULL_CURRENT:
        return true;
    case KELP_PULL_VERSION:
        assert(kelp__partition_holds_control(partition));
        return pull->target <= partition->version;
    case KELP_PULL_STEP:
        if (pull->target >= partition->step) {
            return pull->target == partition->step;
        }
        if (pull->target + 1 == partition->step && partition->has_older) {
            *ret_label = KELP_WEIGHTS_OLDER;
            return true;
        }
        *ret_status = KELP_ERR_NOT_FOUND;
        *ret_label = KELP_WEIGHTS_NONE;
        return true;
    case KELP_PULL_SHARE: /* of an earlier step: without a share, as nobody needs it any more */
        *ret_label = KELP_WEIGHTS_NONE;
        return pull->target < partition->step ||
               (partition->has_share && partition->share_step == pull->target);
    }
    assert(false); /* modes are checked on arrival */
    return false;
}

void kelp__partition_answer_waiting(struct kelp_partition *partition, struct kelp_actions *actions)
{
    size_t kept = 0;

    for (size_t i = 0; i < partition->waiting_count; i++) {
        const struct waiting_pull *pull = &partition->waiting[i];
        kelp_status status;
        enum kelp_weights_label label;
        if (answerable(partition, pull, &status, &label)) {
            add_answer(partition, pull, status, label, actions);
        } else {
            partition->waiting[kept++] = *pull;
        }
    }
    partition->waiting_count = kept;
}

/* Answer all waiting pulls with this status. */
void kelp__partition_end_waiting(struct kelp_partition *partition, kelp_status status,
                                 struct kelp_actions *actions)
{
    for (size_t i = 0; i < partition->waiting_count; i++) {
        add_answer(partition, &partition->waiting[i], status, KELP_WEIGHTS_NONE, actions);
    }
    partition->waiting_count = 0;
}

static kelp_status judge_pull(struct kelp_partition *partition, const struct kelp_pull *pull)
{
    const char *why;
    kelp_status status =
        kelp__partition_check_fences(partition, pull->generation, pull->map_epoch, &why);

    if (status != KELP_OK) {
        return status;
    }
    if ((unsigned)pull->mode > KELP_PULL_SHARE ||
        (pull->mode == KELP_PULL_SHARE && !kelp_control_decides(partition->job)) ||
        (pull->mode == KELP_PULL_VERSION && !kelp__partition_holds_control(partition)) ||
        (pull->decision.count > 0 && pull->decision.count != partition->decision_count)) {
        return KELP_ERR_INVALID;
    }
    if (!pull->word) {
        return KELP_OK;
    }
    if (kelp__partition_holds_control(partition)) {
        bool same = pull->word->version != partition->version ||
                    kelp_control_word_equal(pull->word, &partition->word);
        return same ? KELP_OK : KELP_ERR_CONTROL_WORD;
    }
    return pull->word->step == partition->step ? kelp__partition_judge_word(partition, pull->word)
                                               : KELP_OK;
}

/* Forget the waiting pull of the same requester and mode, if there is one. */
static void replace_waiting(struct kelp_partition *partition, const struct kelp_pull *pull)
{
    size_t kept = 0;

    for (size_t i = 0; i < partition->waiting_count; i++) {
        const struct waiting_pull *other = &partition->waiting[i];
        if (other->requester != pull->requester || other->mode != pull->mode) {
            partition->waiting[kept++] = *other;
        }
    }
    partition->waiting_count = kept;
}

static kelp_status place_waiting(struct kelp_partition *partition, const struct waiting_pull *pull)
{
    if (partition->waiting_count == KELP_PS_WAITING_MAX) {
        return KELP_ERR_BUSY;
    }
    if (partition->waiting_count == partition->waiting_capacity) {
        size_t capacity = partition->waiting_capacity ? 2 * partition->waiting_capacity : 8;
        struct waiting_pull *waiting =
            realloc(partition->waiting, capacity * sizeof(*partition->waiting));
        if (!waiting) {
            return KELP_ERR_NO_MEMORY;
        }
        partition->waiting = waiting;
        partition->waiting_capacity = capacity;
    }
    partition->waiting[partition->waiting_count++] = *pull;
    return KELP_OK;
}

kelp_status kelp_partition_pull(struct kelp_partition *partition, const struct kelp_pull *pull,
                                struct kelp_actions *actions)
{
    struct waiting_pull waiting = {.requester = pull->requester,
                                   .target =
                                       pull->mode == KELP_PULL_VERSION ? pull->version : pull->step,
                                   .held_step = pull->held_step,
                                   .rank = pull->rank,
                                   .mode = pull->mode,
                                   .holds = pull->holds};
    enum kelp_weights_label label = KELP_WEIGHTS_NONE;

    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    replace_waiting(partition, pull);
    kelp_status status = judge_pull(partition, pull);
    if (status == KELP_OK) {
        kelp_cover_begin(partition->cover, partition->now_us);
        if (pull->word) {
            kelp__partition_compare_decision(partition, pull, actions);
            kelp__partition_hear_decision(partition, pull, actions);
        }
    }
    kelp__partition_stop_if_needed(partition, actions);
    if (status == KELP_OK && !answerable(partition, &waiting, &status, &label)) {
        status = place_waiting(partition, &waiting);
        if (status == KELP_OK || status == KELP_ERR_NO_MEMORY) {
            return status;
        }
    }
    add_answer(partition, &waiting, status, label, actions);
    return KELP_OK;
}

void kelp_partition_drop(struct kelp_partition *partition, uint64_t requester)
{
    size_t kept = 0;

    for (size_t i = 0; i < partition->waiting_count; i++) {
        if (partition->waiting[i].requester != requester) {
            partition->waiting[kept++] = partition->waiting[i];
        }
    }
    partition->waiting_count = kept;
    kelp_cover_gone(partition->cover, requester);
}
