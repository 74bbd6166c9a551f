/* Replication: handles what other shards send, and what the partitions tell them. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "ps/shard/shard_internal.h"

/* ---- links ---- */

static void tell_link(const struct scene *scene, const struct kelp_shard_link *link, bool is_up)
{
    const struct hosted *hosted = scene->hosted;
    const bool leads = hosted->entry.place == KELP_REPLICA_PRIMARY;
    uint64_t process = link->process;

    if (leads != (link->kind == KELP_REPLICA_LINK_FOLLOWER)) {
        return;
    }
    if (!leads) {
        if (process != hosted->primary) {
            return;
        }
        process = 0;
    }
    kelp__shard_follow(scene,
                       kelp_partition_linked(hosted->core, process, is_up, &scene->turn->actions));
}

void kelp__shard_tell_links(const struct scene *scene)
{
    for (size_t i = 0; i < scene->shard->link_count; i++) {
        tell_link(scene, &scene->shard->links[i], true);
    }
}

/* False: out of memory. */
static bool add_link(struct kelp_shard *shard, const struct kelp_shard_link *link)
{
    struct kelp_shard_link *links = realloc(shard->links, (shard->link_count + 1) * sizeof(*links));

    if (!links) {
        return false;
    }
    shard->links = links;
    links[shard->link_count++] = *link;
    return true;
}

/* False: the message is from a stream that another one has replaced. */
static bool note_link(struct kelp_shard *shard, const struct kelp_shard_link *link, bool is_up)
{
    size_t at = 0;

    while (at < shard->link_count &&
           (shard->links[at].kind != link->kind || shard->links[at].process != link->process)) {
        at++;
    }
    const uint64_t known = at < shard->link_count ? shard->links[at].serial : 0;
    if (is_up ? link->serial < known : link->serial != known) {
        return false;
    }
    if (known != 0) {
        shard->links[at] = shard->links[--shard->link_count];
    }
    if (is_up && !add_link(shard, link)) {
        kelp_log_error("no memory for a link to another shard");
    }
    return true;
}

static void tell_all(const struct scene *told, const struct kelp_shard_link *link, bool is_up)
{
    struct scene scene = *told;
    uint32_t at = 0;

    while ((scene.hosted = kelp__hosting_next(scene.hosting, &at)) != NULL) {
        (void)pthread_mutex_lock(&scene.hosted->lock);
        tell_link(&scene, link, is_up);
        (void)pthread_mutex_unlock(&scene.hosted->lock);
    }
}

void kelp_shard_linked(struct kelp_shard *shard, const struct kelp_shard_link *link, bool is_up,
                       struct kelp_shard_turn *turn)
{
    (void)pthread_mutex_lock(&shard->change_lock);
    if (note_link(shard, link, is_up)) {
        (void)pthread_rwlock_rdlock(&shard->lock);
        tell_all(&(struct scene){.shard = shard, .hosting = shard->hosting, .turn = turn}, link,
                 is_up);
        (void)pthread_rwlock_unlock(&shard->lock);
    }
    (void)pthread_mutex_unlock(&shard->change_lock);
}

/* ---- the primary ---- */

void kelp_shard_acknowledged(struct kelp_shard *shard, uint32_t partition,
                             const struct kelp_acknowledgement *said, struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .turn = turn};

    if (kelp__shard_lock(&scene, partition)) {
        kelp_partition_clock(scene.hosted->core, turn->now_us);
        kelp__shard_follow(&scene,
                           kelp_partition_acknowledged(scene.hosted->core, said, &turn->actions));
        kelp__shard_unlock(&scene);
    }
}

void kelp_shard_copy(struct kelp_shard *shard, uint32_t partition, uint64_t process,
                     struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .turn = turn};

    if (kelp__shard_lock(&scene, partition)) {
        kelp__shard_follow(&scene,
                           kelp_partition_copy(scene.hosted->core, process, &turn->actions));
        kelp__shard_unlock(&scene);
    }
}

size_t kelp_shard_replicas(struct kelp_shard *shard, struct kelp_shard_replica *ret_replicas,
                           size_t max)
{
    struct hosted *hosted;
    size_t count = 0;
    uint32_t at = 0;

    (void)pthread_rwlock_rdlock(&shard->lock);
    while (count < max && (hosted = kelp__hosting_next(shard->hosting, &at)) != NULL) {
        struct kelp_partition_view view;
        (void)pthread_mutex_lock(&hosted->lock);
        kelp_partition_view(hosted->core, &view);
        (void)pthread_mutex_unlock(&hosted->lock);
        if (view.place == KELP_REPLICA_PRIMARY &&
            (view.replication.has_backup || view.replication.has_joiner)) {
            ret_replicas[count++] = (struct kelp_shard_replica){.partition = hosted->index,
                                                                .map_epoch = view.map_epoch,
                                                                .held = view.held,
                                                                .view = view.replication};
        }
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    return count;
}

/* ---- a follower ---- */

void kelp_shard_asked(struct kelp_shard *shard, uint32_t partition, uint64_t generation,
                      uint64_t map_epoch, struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .turn = turn};

    if (kelp__shard_lock(&scene, partition)) {
        kelp__shard_follow(&scene, kelp_partition_asked(scene.hosted->core, generation, map_epoch,
                                                        &turn->actions));
        kelp__shard_unlock(&scene);
    }
}

/* The partition is locked. *ret_handle is KELP_HANDLE_NONE without bytes. */
static kelp_status receive_root(const struct scene *scene,
                                const struct kelp_shard_forwarded *forwarded, uint64_t *ret_handle,
                                struct kelp_error *reterr)
{
    const uint64_t bytes =
        scene->hosted->range.count * kelp_precision_bytes(scene->shard->job->transport.precision);

    *ret_handle = KELP_HANDLE_NONE;
    if (forwarded->length == 0) {
        return KELP_OK;
    }
    if (forwarded->length != bytes) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "root of partition %u has %" PRIu64 " bytes; the partition has %" PRIu64,
                         forwarded->partition, forwarded->length, bytes);
    }
    *ret_handle = kelp_gradients_receive(scene->hosting->gradients, forwarded->payload,
                                         (size_t)forwarded->offset, scene->hosted->range.count);
    return *ret_handle == KELP_HANDLE_NONE
               ? kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a forwarded gradient")
               : KELP_OK;
}

/* Messages from any process but the primary are ignored. */
static bool comes_from_primary(const struct scene *scene, uint64_t process)
{
    return scene->hosted->entry.place != KELP_REPLICA_PRIMARY && scene->hosted->primary == process;
}

kelp_status kelp_shard_forwarded(struct kelp_shard *shard,
                                 const struct kelp_shard_forwarded *forwarded,
                                 struct kelp_shard_turn *turn, struct kelp_error *reterr)
{
    struct scene scene = {.shard = shard, .turn = turn};
    struct kelp_forward forward = forwarded->forward;
    kelp_status status = KELP_OK;

    if (!kelp__shard_lock(&scene, forwarded->partition)) {
        return KELP_OK; /* it has left; the map tells the sender so */
    }
    kelp_partition_clock(scene.hosted->core, turn->now_us);
    if (comes_from_primary(&scene, forwarded->process)) {
        status = receive_root(&scene, forwarded, &forward.handle, reterr);
        if (status == KELP_OK) {
            kelp__shard_follow(
                &scene, kelp_partition_forwarded(scene.hosted->core, &forward, &turn->actions));
        }
    }
    kelp__shard_unlock(&scene);
    return status;
}

/* ---- a copy, as it comes in ---- */

/* The destination of a piece of this kind, and the bytes that come before its kind; NULL: no such
 * kind. */
static char *array_of(const struct hosted *hosted, const struct kelp_shard_piece *piece)
{
    struct kelp_extent *extent = hosted->extent;

    if (piece->kind == KELP_REPLICA_WEIGHTS) {
        return (char *)kelp_extent_current(extent);
    }
    if (piece->kind == KELP_REPLICA_OLDER) {
        return (char *)kelp_extent_older(extent);
    }
    if (piece->kind >= KELP_REPLICA_SLOT &&
        piece->kind - KELP_REPLICA_SLOT < kelp_extent_slot_count(extent)) {
        return (char *)kelp_extent_slot(extent, piece->kind - KELP_REPLICA_SLOT);
    }
    return NULL;
}

/* The first piece of a copy. */
static bool begin_fill(const struct scene *scene)
{
    struct hosted *hosted = scene->hosted;

    kelp__shard_keep_for_snapshot(scene);
    hosted->filled = 0;
    hosted->fill_older = false;
    return kelp_extent_refill(hosted->extent);
}

/* How many bytes of the copy come before this piece. */
static uint64_t bytes_before(const struct hosted *hosted, const struct kelp_shard_piece *piece)
{
    const uint64_t bytes = kelp_extent_bytes(hosted->extent);
    uint64_t arrays = 0;

    if (piece->kind == KELP_REPLICA_OLDER) {
        arrays = 1;
    } else if (piece->kind >= KELP_REPLICA_SLOT) {
        arrays = 1 + (uint64_t)hosted->fill_older + piece->kind - KELP_REPLICA_SLOT;
    }
    return arrays * bytes + piece->position;
}

static kelp_status write_piece(const struct scene *scene, const struct kelp_shard_piece *piece,
                               struct kelp_error *reterr)
{
    struct hosted *hosted = scene->hosted;
    const uint64_t bytes = kelp_extent_bytes(hosted->extent);

    if (piece->core.is_first && !begin_fill(scene)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a copy of partition %u",
                         piece->partition);
    }
    if (piece->length == 0) {
        return KELP_OK;
    }
    hosted->fill_older = hosted->fill_older || piece->kind == KELP_REPLICA_OLDER;
    char *array = array_of(hosted, piece);
    if (!array || piece->position > bytes || piece->length > bytes - piece->position ||
        bytes_before(hosted, piece) != hosted->filled) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "copy of partition %u: piece of kind %u at %" PRIu64 " (+%" PRIu64
                         ") does not follow the one before",
                         piece->partition, piece->kind, piece->position, piece->length);
    }
    kelp_wire_payload_copy(piece->payload, (size_t)piece->offset, (size_t)piece->length,
                           array + piece->position);
    hosted->filled += piece->length;
    return KELP_OK;
}

static kelp_status end_fill(const struct scene *scene, const struct kelp_shard_piece *piece,
                            struct kelp_error *reterr)
{
    struct hosted *hosted = scene->hosted;
    const uint64_t arrays =
        1 + (uint64_t)piece->state->has_older + kelp_extent_slot_count(hosted->extent);
    const uint64_t expected = arrays * kelp_extent_bytes(hosted->extent);

    if (hosted->filled != expected ||
        (expected > 0 && hosted->fill_older != piece->state->has_older)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "copy of partition %u ends after %" PRIu64 " of %" PRIu64 " bytes",
                         piece->partition, hosted->filled, expected);
    }
    kelp_status status =
        kelp_partition_filled(hosted->core, &piece->core, piece->state, &scene->turn->actions);
    if (status == KELP_ERR_INVALID) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "copy of partition %u: its state is of no use",
                         piece->partition);
    }
    if (status == KELP_OK) {
        scene->shard->events->copied(piece->partition, piece->records, scene->shard->user);
    }
    kelp__shard_follow(scene, status);
    return KELP_OK;
}

static kelp_status fill_hosted(const struct scene *scene, const struct kelp_shard_piece *piece,
                               struct kelp_error *reterr)
{
    kelp_status status =
        kelp_partition_fill(scene->hosted->core, &piece->core, &scene->turn->actions);
    if (status == KELP_ERR_NO_MEMORY) {
        return kelp_fail(reterr, status, "no memory for a copy");
    }
    kelp__shard_run_actions(scene);
    if (status == KELP_ERR_FORMAT) {
        return kelp_fail(reterr, status, "copy of partition %u: its first piece has not come",
                         piece->partition);
    }
    if (status != KELP_OK) {
        return KELP_OK; /* it is not wanted any more */
    }
    status = write_piece(scene, piece, reterr);
    return status == KELP_OK && piece->state ? end_fill(scene, piece, reterr) : status;
}

/* A partition without elements has one piece, which is the last one too. */
static bool is_first(const struct scene *scene, const struct kelp_shard_piece *piece)
{
    return piece->kind == KELP_REPLICA_WEIGHTS && piece->position == 0 &&
           (piece->length > 0 || kelp_extent_bytes(scene->hosted->extent) == 0);
}

kelp_status kelp_shard_fill(struct kelp_shard *shard, const struct kelp_shard_piece *came,
                            struct kelp_shard_turn *turn, struct kelp_error *reterr)
{
    struct scene scene = {.shard = shard, .turn = turn};
    struct kelp_shard_piece piece = *came;
    kelp_status status = KELP_OK;

    if (!kelp__shard_lock(&scene, piece.partition)) {
        return KELP_OK;
    }
    piece.core.is_first = is_first(&scene, &piece);
    if (comes_from_primary(&scene, piece.process)) {
        status = fill_hosted(&scene, &piece, reterr);
    }
    kelp__shard_unlock(&scene);
    return status;
}

/* ---- actions ---- */

static kelp_status do_forward(const struct scene *scene, const struct kelp_action *action)
{
    struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX];
    struct kelp_forward forward = action->forward.forward;
    struct kelp_shard_root root = {
        .partition = scene->hosted->index, .process = action->forward.process, .forward = &forward};

    if (forward.handle != KELP_HANDLE_NONE) {
        if (kelp_gradients_lend(scene->hosting->gradients, forward.handle, &root.loan) != KELP_OK) {
            return KELP_ERR_NO_MEMORY;
        }
        root.lent = true;
    }
    forward.claims = claims;
    forward.claim_count = kelp_partition_claims(scene->hosted->core, &forward.word, claims);
    scene->shard->events->forward(&root, scene->turn->user, scene->shard->user);
    return KELP_OK;
}

static kelp_status do_copy(const struct scene *scene, const struct kelp_action *action)
{
    const struct kelp_replica_copy_config config = {.partition = scene->hosted->index,
                                                    .generation = scene->hosting->generation,
                                                    .map_epoch = action->copy.map_epoch,
                                                    .state = &action->copy.state,
                                                    .pool = scene->shard->pool,
                                                    .extent = scene->hosted->extent,
                                                    .core = scene->hosted->core};
    struct kelp_replica_copy *copy = NULL;

    if (kelp_replica_copy_create(&config, &copy) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    scene->shard->events->copy(copy, action->copy.process, scene->shard->user);
    return KELP_OK;
}

static void do_want_copy(const struct scene *scene, const struct kelp_action *action)
{
    const struct kelp_extent *extent = scene->hosted->extent;
    const size_t arrays = 1 + (size_t)action->copy.state.has_older + kelp_extent_slot_count(extent);

    scene->shard->events->want_copy(scene->hosted->index, action->copy.process,
                                    kelp_extent_bytes(extent) * arrays, scene->shard->user);
}

static void do_diverge(const struct scene *scene, const struct kelp_action *action)
{
    char text[160];

    (void)snprintf(text, sizeof(text),
                   "partition %u: what its primary forwarded after %" PRIu64
                   " does not fit what is here",
                   scene->hosted->index, action->diverges);
    kelp__shard_report_failure(scene, KELP_ERR_MISMATCH, text);
}

kelp_status kelp__shard_replicate(const struct scene *scene, const struct kelp_action *action)
{
    const struct kelp_shard_events *events = scene->shard->events;
    const uint32_t partition = scene->hosted->index;
    void *user = scene->shard->user;

    switch (action->kind) {
    case KELP_ACTION_FORWARD:
        return do_forward(scene, action);
    case KELP_ACTION_ASK:
        events->ask(&(struct kelp_shard_question){.partition = partition,
                                                  .process = action->ask.process,
                                                  .generation = scene->hosting->generation,
                                                  .map_epoch = action->ask.map_epoch},
                    scene->turn->user, user);
        return KELP_OK;
    case KELP_ACTION_ACKNOWLEDGE:
        events->acknowledge(partition, scene->hosted->primary, &action->acknowledge,
                            scene->turn->user, user);
        return KELP_OK;
    case KELP_ACTION_WANT_COPY:
        do_want_copy(scene, action);
        return KELP_OK;
    case KELP_ACTION_COPY:
        return do_copy(scene, action);
    case KELP_ACTION_IN_SYNC:
        events->in_sync(partition, user);
        return KELP_OK;
    case KELP_ACTION_DIFFERS:
        events->differs(partition, &action->differs, user);
        return KELP_OK;
    default:
        assert(action->kind == KELP_ACTION_DIVERGES);
        do_diverge(scene, action);
        return KELP_OK;
    }
}
