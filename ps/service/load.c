/*
 * Loads generations. A generation is prepared on its own thread, because initialising or reading a
 * large model takes seconds, while heartbeats go on. It is installed on the loop. The thread also
 * waits for missing storage. ps/core/control/shard_control.h decides what is loaded, and how long
 * to wait for storage.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "ps/service/map_internal.h"

/* A generation that is being loaded: what the map asks of this shard, and the result. */
struct kelp__service_load {
    struct kelp_service *service;
    const struct kelp_plan *plan;
    pthread_t thread;
    bool restores;
    struct kelp_manifest manifest; /* of the checkpoint to restore */
    bool cancelled;                /* guarded by control_lock */
    uint64_t generation;
    uint32_t count;
    struct kelp_hosting *hosting;
    kelp_status status;
    struct kelp_error error;
    struct kelp_hosting_place places[]; /* ascending */
};

/* ---- generations ---- */

static void loaded(void *user);

static void free_load(struct kelp__service_load *load)
{
    if (load) {
        kelp_manifest_fini(&load->manifest);
        free(load);
    }
}

void kelp__service_load_cancel(struct kelp_service *service)
{
    service->loading->cancelled = true;
    (void)pthread_cond_broadcast(&service->load_cancelled);
}

/* Runs on the load's thread: waits until it is time to look again. */
static bool wait_for_storage(const char *text, void *user)
{
    struct kelp__service_load *load = user;
    struct kelp_service *service = load->service;
    const uint64_t now_ms = kelp_clock_ms();
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_STORAGE_MISSING,
                                     .missing = {text, now_ms}};

    (void)pthread_mutex_lock(&service->control_lock);
    bool again = kelp__service_control_apply(service, &event) == KELP_OK;
    while (again && !load->cancelled &&
           kelp_clock_wait(&service->load_cancelled, &service->control_lock,
                           now_ms + KELP_PS_STORAGE_LOOK_MS)) {
    }
    again = again && !load->cancelled;
    (void)pthread_mutex_unlock(&service->control_lock);
    return again;
}

static void *prepare(void *user)
{
    struct kelp__service_load *load = user;
    struct kelp_hosting_restore restore = {.manifest = &load->manifest,
                                           .run = load->service->options.run,
                                           .wait = wait_for_storage,
                                           .user = load};
    struct kelp_hosting_config config = {.job = load->service->options.job,
                                         .plan = load->plan,
                                         .generation = load->generation,
                                         .shares = kelp_rpc_server_shares(load->service->server),
                                         .places = load->places,
                                         .place_count = load->count,
                                         .restore = load->restores ? &restore : NULL};

    load->status = kelp_hosting_prepare(&config, &load->hosting, &load->error);
    while (kelp_rpc_loop_post(load->service->options.loop, loaded, load) != KELP_OK) {
        struct timespec pause = {.tv_nsec = 10 * 1000 * 1000}; /* out of memory: try again */
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

void kelp__service_load_start(struct kelp_service *service, uint64_t generation)
{
    struct kelp__service_load *load = service->wanted;

    assert(!service->loading);
    assert(load && load->generation == generation);
    service->wanted = NULL;
    service->loading = load;
    if (pthread_create(&load->thread, NULL, prepare, load) != 0) {
        struct kelp_shard_event event = {
            .kind = KELP_SHARD_ON_LOADED,
            .loaded = {.status = KELP_ERR_NO_MEMORY, .text = "no thread to load a generation"}};
        service->loading = NULL;
        free_load(load);
        (void)kelp__service_control_apply(service, &event); /* cannot fail */
    }
}

/* Runs on the loop: the generation is ready, or cannot be loaded. */
static void loaded(void *user)
{
    struct kelp__service_load *load = user;
    struct kelp_service *service = load->service;
    struct kelp__service_turn *turn = kelp__service_turn_take(service);
    struct kelp_shard_view *view = malloc(sizeof(*view));
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_LOADED};

    (void)pthread_join(load->thread, NULL);
    if (load->status == KELP_OK && (!turn || !view)) {
        kelp_hosting_destroy(load->hosting);
        load->status = kelp_fail(&load->error, KELP_ERR_NO_MEMORY, "no memory for a generation");
    }
    event.loaded.status = load->status;
    event.loaded.text = load->error.text;
    if (load->status == KELP_OK) {
        kelp_shard_install(service->shard, load->hosting, kelp__service_turn_shard(turn));
        kelp_shard_view(service->shard, view);
        event.loaded.led = kelp__service_led(view);
        kelp_log_info("generation loaded generation=%" PRIu64 " partitions=%u", view->generation,
                      view->partition_count);
    }
    (void)pthread_mutex_lock(&service->control_lock);
    if (load->status == KELP_OK) {
        atomic_store(&service->generation, load->generation);
    }
    service->loading = NULL;
    service->map_due = service->map_due || load->status == KELP_OK;
    (void)kelp__service_control_apply(service, &event); /* cannot fail */
    (void)pthread_mutex_unlock(&service->control_lock);
    if (turn) {
        kelp__service_turn_finish(service, turn);
    }
    kelp__service_map_carry_out(service); /* the map may have changed during the load */
    free(view);
    free_load(load);
}

/* ---- preparing a load ---- */

/* Parse the manifest that came with the map, which must be that of the checkpoint to restore. A
 * shard that reads nothing of the checkpoint needs none, and gets none if it joins after the
 * checkpoint was removed. */
static kelp_status parse_manifest(struct kelp__service_load *load, const struct service_map *map,
                                  const char *text, struct kelp_error *reterr)
{
    const uint64_t version = map->restore_version;
    if (version == 0 || !kelp__service_map_reads(map)) {
        return KELP_OK;
    }
    kelp_status status = kelp_manifest_parse(text, strlen(text), &load->manifest, reterr);
    if (status != KELP_OK) {
        load->manifest = (struct kelp_manifest){0};
        kelp_error_prefix(reterr, "map restores version %" PRIu64 ": manifest", version);
        return status == KELP_ERR_NO_MEMORY ? status : KELP_ERR_FORMAT;
    }
    load->restores = true;
    if (load->manifest.version != version) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "map restores version %" PRIu64 ", its manifest is of version %" PRIu64,
                         version, load->manifest.version);
    }
    return KELP_OK;
}

kelp_status kelp__service_load_want(struct kelp_service *service, const struct service_map *map,
                                    const char *manifest, struct kelp_error *reterr)
{
    struct kelp__service_load *load =
        calloc(1, sizeof(*load) + map->partition_count * sizeof(struct kelp_hosting_place));

    if (!load) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    load->service = service;
    load->plan = service->plan;
    load->generation = map->generation;
    load->count = kelp__service_map_places(map, load->places);
    kelp_status status = parse_manifest(load, map, manifest, reterr);
    if (status != KELP_OK) {
        free_load(load);
        return status;
    }
    free_load(service->wanted);
    service->wanted = load;
    return KELP_OK;
}

kelp_status kelp__service_load_plan(struct kelp_service *service, const char *text,
                                    struct kelp_error *reterr)
{
    if (service->plan) {
        return strcmp(text, service->plan_text) == 0
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_MISMATCH,
                               "another plan than the one before: a job has one");
    }
    struct kelp_plan *plan = calloc(1, sizeof(*plan));
    char *copy = strdup(text);
    kelp_status status = plan && copy
                             ? kelp_plan_parse(text, strlen(text), plan, reterr)
                             : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the plan");
    if (status != KELP_OK) {
        free(plan);
        free(copy);
        kelp_error_prefix(reterr, "plan");
        return status;
    }
    service->plan = plan;
    kelp_rpc_server_queue_max(service->server, KELP_PS_QUEUE_BYTES_MAX +
                                                   2 * (size_t)plan->flat_count * sizeof(float));
    service->plan_text = copy;
    kelp_log_info("plan taken tensors=%u elements=%" PRIu64 " partitions=%u", plan->tensor_count,
                  plan->flat_count, plan->partition_count);
    return KELP_OK;
}

/* ---- life ---- */

void kelp__service_load_init(struct kelp_service *service)
{
    (void)pthread_cond_init(&service->load_cancelled, NULL);
}

void kelp__service_load_stop(struct kelp_service *service)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_STOP};

    while (service->control) { /* NULL: the service was never opened */
        (void)pthread_mutex_lock(&service->control_lock);
        free_load(service->wanted);
        service->wanted = NULL;
        (void)kelp__service_control_apply(service, &event); /* cannot fail */
        bool loading = service->loading != NULL;
        (void)pthread_mutex_unlock(&service->control_lock);
        if (!loading) {
            break;
        }
        (void)kelp_rpc_loop_run(service->options.loop, 1000);
    }
}
