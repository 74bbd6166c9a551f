#include "tests/lib/cluster/checkpoint_make.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/replay/replay.h"
#include "common/base/files.h"
#include "ps/storage/snapshot_store.h"

#define INCARNATION UINT64_C(0xaaaaaaaaaaaaaaaa)

static void ok(kelp_status status, const struct kelp_error *error)
{
    ck_assert_msg(status == KELP_OK, "%s", error->text);
}

static void write_part(struct kelp_snapshot_writer *writer, const struct kelp_model_state *state,
                       uint32_t partition, struct kelp_manifest_part *part)
{
    struct kelp_slice_range range = kelp_plan_partition(state->plan, partition);
    size_t bytes = (size_t)range.count * sizeof(float);
    struct kelp_error error;
    unsigned char control[KELP_CONTROL_BYTES];
    char digest[KELP_DIGEST_HEX_BYTES];

    ok(kelp_snapshot_writer_part(writer, partition, &error), &error);
    if (partition == 0) {
        kelp_control_pack(&state->control, control);
        ok(kelp_snapshot_writer_item(writer, KELP_SNAPSHOT_CONTROL, control, sizeof(control),
                                     &error),
           &error);
    }
    ok(kelp_snapshot_writer_item(writer, KELP_SNAPSHOT_WEIGHTS, state->weights + range.first, bytes,
                                 &error),
       &error);
    for (uint32_t i = 0; i < state->slot_count; i++) {
        ok(kelp_snapshot_writer_item(writer, KELP_SNAPSHOT_SLOT + i, state->slots[i] + range.first,
                                     bytes, &error),
           &error);
    }
    kelp_snapshot_writer_digest(writer, part->digest, &part->bytes);
    /* The store's digest must equal the one computed in memory. */
    uint64_t expected = 0;
    kelp_model_state_part_digest(state, partition, digest, &expected);
    ck_assert_str_eq(digest, part->digest);
    ck_assert_uint_eq(expected, part->bytes);
}

static void write_storage(const struct kelp_test_checkpoint *what, const char *folder,
                          struct kelp_manifest *manifest, uint32_t storage)
{
    const struct kelp_snapshot_id id = {.generation = manifest->generation, .step = manifest->step};
    struct kelp_snapshot_writer *writer = NULL;
    struct kelp_error error;
    char path[1400];

    (void)snprintf(manifest->storages[storage], sizeof(manifest->storages[storage]),
                   "shard-%u.%016" PRIx64, storage, INCARNATION);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, manifest->storages[storage]);
    ok(kelp_snapshot_writer_open(path, &id, &writer, &error), &error);
    for (uint32_t i = storage; i < manifest->part_count; i += what->storages) {
        manifest->parts[i].storage = storage;
        write_part(writer, what->state, i, &manifest->parts[i]);
    }
    ok(kelp_snapshot_writer_finish(writer, &error), &error);
}

static void write_text(const char *folder, const char *name, char *text)
{
    struct kelp_error error;
    char path[1400];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    ok(kelp_files_write(path, text, strlen(text), &error), &error);
    free(text);
}

static void fill(struct kelp_manifest *manifest, const struct kelp_test_checkpoint *what)
{
    const struct kelp_control_state *control = &what->state->control;

    (void)snprintf(manifest->job, sizeof(manifest->job), "%s", what->state->job->name);
    (void)snprintf(manifest->nonce, sizeof(manifest->nonce), "test");
    (void)snprintf(manifest->folder, sizeof(manifest->folder), "step-%" PRIu64 ".g%" PRIu64,
                   control->step, what->generation);
    manifest->spec_digest = kelp_job_file_digest(what->file);
    manifest->version = control->version;
    manifest->step = control->step;
    manifest->epochs = control->epoch;
    manifest->generation = what->generation;
    manifest->unix_ms = UINT64_C(1769860800000);
}

void kelp_test_checkpoint_make(const struct kelp_test_checkpoint *what, char *ret_path,
                               size_t path_bytes)
{
    struct kelp_manifest manifest;
    struct kelp_error error = {.status = KELP_OK};
    char folder[1200];
    char *text = NULL;

    ok(kelp_manifest_init(&manifest, what->storages, what->state->plan->partition_count, &error),
       &error);
    fill(&manifest, what);
    (void)snprintf(folder, sizeof(folder), "%.1023s/" KELP_CHECKPOINTS_FOLDER "/%s", what->run_path,
                   manifest.folder);
    ok(kelp_files_make_folder(folder, &error), &error);
    for (uint32_t i = 0; i < what->storages; i++) {
        write_storage(what, folder, &manifest, i);
    }
    ok(kelp_job_file_print(what->file, false, &text, &error), &error);
    write_text(folder, "job.yaml", text);
    ok(kelp_plan_print(what->state->plan, &text, &error), &error);
    write_text(folder, "plan.json", text);
    ok(kelp_manifest_print(&manifest, &text, &error), &error);
    write_text(folder, "manifest.json", text);
    kelp_manifest_fini(&manifest);
    (void)snprintf(ret_path, path_bytes, "%s", folder);
}

void kelp_test_checkpoint_at(const char *run_path, uint64_t step, bool wrong, char *ret_path,
                             size_t path_bytes)
{
    struct kelp_test_checkpoint what = {.run_path = run_path, .generation = 1, .storages = 2};
    struct kelp_job_file *file = NULL;
    struct kelp_replay *replay = NULL;
    struct kelp_error error;

    ok(kelp_run_job_read(run_path, &file, &error), &error);
    ok(kelp_replay_create(kelp_job_file_job(file), &replay, &error), &error);
    ok(kelp_replay_to_step(replay, step, &error), &error);
    struct kelp_model_state *state = kelp_replay_state(replay);
    if (wrong) {
        state->weights[state->plan->tensors[2].offset] += 1.0f;
    }
    what.file = file;
    what.state = state;
    kelp_test_checkpoint_make(&what, ret_path, path_bytes);
    kelp_replay_destroy(replay);
    kelp_job_file_destroy(file);
}
