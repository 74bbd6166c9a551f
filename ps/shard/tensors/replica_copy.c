#include "ps/shard/tensors/replica_copy.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct kelp_replica_copy {
    atomic_uint refs;
    uint32_t partition;
    uint64_t generation;
    uint64_t map_epoch;
    struct kelp_replica_state state;
    double *decided;            /* owned; state points to it */
    struct kelp_forward *known; /* owned, as are their claims */
    struct kelp_capture capture;
    bool has_loan;
    struct kelp_extent_loan older; /* valid if has_loan */
    float *older_copy;             /* owned: used if no more could be lent */
    const float *older_values;     /* NULL: no older weights */
};

static kelp_status keep_older(struct kelp_replica_copy *copy, struct kelp_extent *extent)
{
    const size_t bytes = kelp_extent_bytes(extent);

    if (!copy->state.has_older || bytes == 0) {
        return KELP_OK;
    }
    copy->has_loan =
        kelp_extent_lend(extent, KELP_WEIGHTS_OLDER, &copy->older_values, &copy->older);
    if (copy->has_loan) {
        return KELP_OK;
    }
    copy->older_copy = malloc(bytes);
    if (!copy->older_copy) {
        return KELP_ERR_NO_MEMORY;
    }
    memcpy(copy->older_copy, copy->older_values, bytes);
    copy->older_values = copy->older_copy;
    return KELP_OK;
}

static kelp_status keep_decided(struct kelp_replica_copy *copy)
{
    const size_t bytes = copy->state.decided.count * sizeof(double);

    if (bytes == 0) {
        return KELP_OK;
    }
    copy->decided = malloc(bytes);
    if (!copy->decided) {
        return KELP_ERR_NO_MEMORY;
    }
    memcpy(copy->decided, copy->state.decided.values, bytes);
    copy->state.decided.values = copy->decided;
    return KELP_OK;
}

static kelp_status keep_entry(struct kelp_replica_copy *copy, const struct kelp_control_word *word,
                              const struct kelp_node_claim *claims, uint32_t count)
{
    struct kelp_forward *known = &copy->known[copy->state.known_count];
    struct kelp_node_claim *kept = malloc(count * sizeof(*kept));

    if (!kept) {
        return KELP_ERR_NO_MEMORY;
    }
    memcpy(kept, claims, count * sizeof(*kept));
    *known = (struct kelp_forward){.word = *word, .claims = kept, .claim_count = count};
    copy->state.known_count++;
    return KELP_OK;
}

static kelp_status keep_known(struct kelp_replica_copy *copy, const struct kelp_partition *core)
{
    struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX];
    kelp_status status = KELP_OK;

    copy->known = calloc(KELP_PS_EVIDENCE_ENTRIES, sizeof(*copy->known));
    if (!copy->known) {
        return KELP_ERR_NO_MEMORY;
    }
    copy->state.known = copy->known;
    for (uint32_t back = KELP_PS_EVIDENCE_ENTRIES; status == KELP_OK && back > 0; back--) {
        struct kelp_control_word word;
        const uint32_t count = kelp_partition_known(core, back - 1, &word, claims);
        if (count > 0) {
            status = keep_entry(copy, &word, claims, count);
        }
    }
    return status;
}

static kelp_status keep_arrays(struct kelp_replica_copy *copy,
                               const struct kelp_replica_copy_config *config)
{
    kelp_status status = kelp_capture_take(&copy->capture, config->pool, 0, config->extent, NULL);

    if (status == KELP_OK) {
        status = kelp_capture_detach(&copy->capture);
    }
    if (status == KELP_OK) {
        status = keep_older(copy, config->extent);
    }
    return status;
}

kelp_status kelp_replica_copy_create(const struct kelp_replica_copy_config *config,
                                     struct kelp_replica_copy **ret_copy)
{
    struct kelp_replica_copy *copy = calloc(1, sizeof(*copy));

    if (!copy) {
        return KELP_ERR_NO_MEMORY;
    }
    atomic_init(&copy->refs, 1);
    copy->partition = config->partition;
    copy->generation = config->generation;
    copy->map_epoch = config->map_epoch;
    copy->state = *config->state;
    copy->state.known_count = 0;
    kelp_status status = keep_decided(copy);
    if (status == KELP_OK) {
        status = keep_known(copy, config->core);
    }
    if (status == KELP_OK) {
        status = keep_arrays(copy, config);
    }
    if (status != KELP_OK) {
        kelp_replica_copy_unref(copy);
        return status;
    }
    *ret_copy = copy;
    return KELP_OK;
}

void kelp_replica_copy_ref(struct kelp_replica_copy *copy)
{
    atomic_fetch_add_explicit(&copy->refs, 1, memory_order_relaxed);
}

void kelp_replica_copy_unref(struct kelp_replica_copy *copy)
{
    if (!copy || atomic_fetch_sub_explicit(&copy->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    kelp_capture_release(&copy->capture);
    if (copy->has_loan) {
        kelp_extent_return(&copy->older);
    }
    free(copy->older_copy);
    for (uint32_t i = 0; i < copy->state.known_count; i++) {
        free((void *)(uintptr_t)copy->known[i].claims); /* ours */
    }
    free(copy->known);
    free(copy->decided);
    free(copy);
}

static void add_item(struct kelp_replica_copy_view *view, uint32_t kind, const void *values)
{
    view->items[view->item_count].kind = kind;
    view->items[view->item_count++].values = values;
}

void kelp_replica_copy_view(const struct kelp_replica_copy *copy,
                            struct kelp_replica_copy_view *ret_view)
{
    const struct kelp_capture *capture = &copy->capture;

    *ret_view = (struct kelp_replica_copy_view){.partition = copy->partition,
                                                .generation = copy->generation,
                                                .map_epoch = copy->map_epoch,
                                                .state = &copy->state,
                                                .item_bytes = capture->bytes};
    if (capture->bytes == 0) {
        return;
    }
    add_item(ret_view, KELP_REPLICA_WEIGHTS, capture->weights);
    if (copy->older_values) {
        add_item(ret_view, KELP_REPLICA_OLDER, copy->older_values);
    }
    for (uint32_t i = 0; i < capture->slot_count; i++) {
        add_item(ret_view, KELP_REPLICA_SLOT + i, capture->slots[i]);
    }
}
