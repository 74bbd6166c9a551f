/*
 * Workers that waited for the same weights get the same message: it is encoded once, and its copied
 * bytes are copied once.
 */
#include <string.h>

#include "ps/service/exchange_internal.h"

static bool same_core(const struct kelp_answer *a, const struct kelp_answer *b)
{
    if (a->status != b->status || a->step != b->step || a->current_step != b->current_step ||
        a->has_word != b->has_word || a->is_share != b->is_share ||
        a->value_count != b->value_count) {
        return false;
    }
    return !a->has_word || kelp_control_word_equal(&a->word, &b->word);
}

static bool same_answer(const struct outgoing *a, const struct outgoing *b)
{
    if (a->partition != b->partition || a->map_epoch != b->map_epoch ||
        !same_core(&a->core, &b->core)) {
        return false;
    }
    if (a->copy || b->copy || a->loan.extent != b->loan.extent ||
        a->loan.buffer != b->loan.buffer) {
        return false;
    }
    return a->core.value_count == 0 ||
           memcmp(a->values, b->values, a->core.value_count * sizeof(*a->values)) == 0;
}

bool kelp__service_sent_fits(const struct sent_reply *sent, const struct kelp__service_peer *peer,
                             uint64_t generation)
{
    if (!sent->message || sent->generation != generation || sent->count != peer->outgoing_count ||
        peer->refused_count > 0 || peer->offered_count > 0) {
        return false;
    }
    for (size_t i = 0; i < sent->count; i++) {
        if (!same_answer(&sent->outgoing[i], &peer->outgoing[i])) {
            return false;
        }
    }
    return true;
}

void kelp__service_sent_keep(struct sent_reply *sent, struct kelp__service_peer *peer,
                             uint64_t generation, struct kelp_rpc_message *message)
{
    if (peer->outgoing_count == 0 || peer->refused_count > 0 || peer->offered_count > 0) {
        return;
    }
    kelp__service_sent_drop(sent);
    const struct sent_reply before = *sent;
    *sent = (struct sent_reply){.message = message,
                                .generation = generation,
                                .outgoing = peer->outgoing,
                                .count = peer->outgoing_count,
                                .capacity = peer->outgoing_capacity};
    kelp_rpc_message_ref(message);
    peer->outgoing = before.outgoing;
    peer->outgoing_count = 0;
    peer->outgoing_capacity = before.capacity;
}

void kelp__service_sent_drop(struct sent_reply *sent)
{
    for (size_t i = 0; i < sent->count; i++) {
        kelp__service_outgoing_discard(&sent->outgoing[i]);
    }
    sent->count = 0;
    kelp_rpc_message_unref(sent->message);
    sent->message = NULL;
}
