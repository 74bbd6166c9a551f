/* Two workers that differ: what is compared, and what a partition does when it finds it. */
#include <string.h>

#include "ps/core/partition_internal.h"

/* Entries of partition 0 are versions, those of the others training steps. */
static uint64_t key_of(const struct kelp_partition *partition, const struct kelp_control_word *word)
{
    return kelp__partition_holds_control(partition) ? word->version : word->step;
}

bool kelp__partition_must_stop(const struct kelp_partition *partition)
{
    return partition->job->failure.on_conflict == KELP_CONFLICT_STOP &&
           (partition->has_conflict ||
            (partition->evidence && kelp_evidence_found(partition->evidence)));
}

void kelp__partition_push_taken(struct kelp_partition *partition, const struct kelp_push *push,
                                struct kelp_actions *actions)
{
    const uint64_t key = key_of(partition, push->word);
    struct kelp_reduction_node node;

    if (!partition->evidence) {
        return;
    }
    kelp_evidence_taken(partition->evidence, key, push, actions);
    while (kelp_reduction_pop(partition->reduction, push->lane_first, push->lane_count, &node)) {
        kelp_evidence_replaced(partition->evidence, key, &node, actions);
    }
}

void kelp__partition_push_dropped(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions)
{
    if (!partition->evidence ||
        !kelp_evidence_dropped(partition->evidence, key_of(partition, push->word), push, actions)) {
        kelp__actions_add_release(actions, push->handle);
    }
}

void kelp__partition_complete_evidence(struct kelp_partition *partition,
                                       const struct kelp_control_word *word, bool skipped,
                                       struct kelp_actions *actions)
{
    if (partition->evidence) {
        kelp_evidence_complete(partition->evidence, key_of(partition, word), !skipped, actions);
    }
}

static void tell(struct kelp_partition *partition, const struct kelp_conflict *conflict,
                 struct kelp_actions *actions)
{
    kelp__actions_add(actions, KELP_ACTION_CONFLICT)->conflict = *conflict;
    /* The leader opens another generation because of a word, in which the partition starts anew. */
    partition->has_conflict |= conflict->kind != KELP_CONFLICT_OPEN_WORD;
}

/* Partition 0 knows its word by itself, and whoever has another one is wrong. */
void kelp__partition_word_differs(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions)
{
    if (kelp__partition_holds_control(partition) || !partition->has_word ||
        partition->word_disputed) {
        return;
    }
    partition->word_disputed = true;
    tell(partition,
         &(struct kelp_conflict){.kind = KELP_CONFLICT_OPEN_WORD,
                                 .version = partition->word.version,
                                 .step = partition->word.step,
                                 .first = partition->word_author,
                                 .second = push->author},
         actions);
}

void kelp__partition_share_differs(struct kelp_partition *partition,
                                   const struct kelp_share_push *push, struct kelp_actions *actions)
{
    if (partition->has_conflict) {
        return;
    }
    tell(partition,
         &(struct kelp_conflict){.kind = KELP_CONFLICT_SHARE,
                                 .version = partition->word.version,
                                 .step = partition->word.step,
                                 .share = push->partition,
                                 .first = partition->share_authors[push->partition],
                                 .second = push->author},
         actions);
}

/* The word that told what was decided about the step before is known from one worker alone. */
void kelp__partition_compare_decision(struct kelp_partition *partition,
                                      const struct kelp_pull *pull, struct kelp_actions *actions)
{
    const struct kelp_control_word *heard = &partition->heard;
    const struct kelp_step_decision *other = &pull->decision;

    if (heard->version == 0 || heard->version != pull->word->version) {
        return;
    }
    const bool both_known = other->count > 0 && other->count == partition->decided_count;
    if (kelp_control_word_equal(heard, pull->word) &&
        !(both_known && memcmp(partition->decided, other->values,
                               other->count * sizeof(other->values[0])) != 0)) {
        return;
    }
    tell(partition,
         &(struct kelp_conflict){.kind = KELP_CONFLICT_DECISION,
                                 .version = heard->version,
                                 .step = heard->step,
                                 .first = partition->heard_author,
                                 .second = pull->author},
         actions);
    partition->heard.version = 0; /* one is enough */
}
