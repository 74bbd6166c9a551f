/*
 * The invariants, in the words of a failure:
 *
 *   one primary            at most one process shows a partition under one map epoch
 *   what was shown         is kept: who leads next in the generation has it, and so has everybody
 *                          whom the map may make the next leader
 *   w_v is readable        on whoever shows w_{v+1}, while some partition has not shown that
 *   no generation          is opened while each partition has a replica that lives
 *   moves                  end: nobody joins a partition for long in a world where all is well
 *   one step apart         no two partitions of one generation differ by more than one training
 *                          step
 *   one by one             versions go back only with a new generation, and forward one by one
 *   each lane once         a step is applied from each lane that has samples, once
 *   tree order             what is added is left + right of the fixed tree
 *   state                  weights and slots of step v, on shards and workers, are the quiet run's
 *   one order              all shards hear the same of an order of one serial; it names one process
 *                          for each partition, which captures it, and is not demoted by plan before
 *   checkpoints            what a manifest names is whole, durable and the quiet run's when it is
 *                          committed, and is not removed while the manifest stands
 *   the newest good one    a generation starts from the newest checkpoint that is not damaged
 *   records                what completing an entry tells is what the quiet run tells; each is
 *                          on file when the job is done, however slow the disk, if no generation
 *                          was opened again and no power was lost
 *   the end                the digest on file when the job is done is the quiet run's, and so is
 *                          the one that a leader tells with "done", whoever led before
 */
#include "tests/sim/invariants_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- shards ------------------------------------------------------------------------------------
 */

/* Only who the entry names shows anything in that epoch. */
static void check_primary(const struct sim_process *process, const struct sim_hosting *hosting,
                          const struct sim_hosted *hosted, uint64_t map_epoch)
{
    struct sim_invariants *all = process->sim->invariants;
    (void)hosting;
    for (size_t i = 0; i < all->primary_count; i++) {
        const struct primary *primary = &all->primaries[i];
        if (primary->partition == hosted->index && primary->map_epoch == map_epoch) {
            if (primary->incarnation != process->incarnation) {
                sim_fail(process->sim, "one primary",
                         "%s serves partition %u under map epoch %llu, which another process has",
                         process->id, hosted->index, (unsigned long long)map_epoch);
            }
            return;
        }
    }
    all->primaries = sim_grow(all->primaries, all->primary_count, &all->primary_capacity,
                              sizeof(*all->primaries));
    all->primaries[all->primary_count++] = (struct primary){
        .partition = hosted->index, .map_epoch = map_epoch, .incarnation = process->incarnation};
}

static void check_state(const struct sim_process *process, const struct sim_hosted *hosted)
{
    const struct sim_reference *reference = process->sim->reference;
    if (process->sim->lie.told) {
        return;
    }
    const float *weights = &reference->weights[hosted->step][hosted->range.first];
    const float *momentum = &reference->momentum[hosted->step][hosted->range.first];
    size_t bytes = hosted->range.count * sizeof(float);
    if (memcmp(hosted->weights[hosted->current], weights, bytes) != 0 ||
        memcmp(hosted->momentum, momentum, bytes) != 0) {
        sim_fail(process->sim, "state", "partition %u of %s at step %llu is not the quiet run's",
                 hosted->index, process->id, (unsigned long long)hosted->step);
    }
}

static bool same_control(const struct kelp_control_state *a, const struct kelp_control_state *b)
{
    unsigned char bytes[2][KELP_CONTROL_BYTES];
    kelp_control_pack(a, bytes[0]);
    kelp_control_pack(b, bytes[1]);
    return memcmp(bytes[0], bytes[1], sizeof(bytes[0])) == 0;
}

static bool shows(const struct kelp_partition_view *view)
{
    return view->place == KELP_REPLICA_PRIMARY &&
           (view->phase == KELP_PARTITION_COLLECTING || view->phase == KELP_PARTITION_MEASURING ||
            view->phase == KELP_PARTITION_DECIDING || view->phase == KELP_PARTITION_APPLYING);
}

/* Some partition lacks this one's step: those who make it there need the weights before it. */
static void check_older(const struct sim_process *process, const struct generation *generation,
                        const struct sim_hosted *hosted, const struct kelp_partition_view *view)
{
    const struct sim *sim = process->sim;
    for (uint32_t p = 0; p < sim->plan.partition_count; p++) {
        const struct line *line = &generation->lines[p];
        if (line->there && line->shown_step < view->step && !view->has_older) {
            sim_fail(process->sim, "w_v is readable while a partition lacks w_{v+1}",
                     "partition %u of %s is at step %llu and has not the one before; partition %u "
                     "shows %llu",
                     hosted->index, process->id, (unsigned long long)view->step, p,
                     (unsigned long long)line->shown_step);
        }
    }
}

/*
 * Who leads in the newest epoch has every version that was shown in the generation: nobody shows
 * less than was shown before, under a newer epoch.
 */
void sim_invariants_seen(const struct sim_process *process, const struct sim_hosting *hosting,
                         const struct sim_hosted *hosted)
{
    struct generation *generation = sim__invariants_generation(process->sim, hosting->generation);
    struct line *line = &generation->lines[hosted->index];
    struct kelp_partition_view view;
    kelp_partition_view(hosted->core, &view);
    if (!shows(&view)) {
        return;
    }
    check_primary(process, hosting, hosted, view.map_epoch);
    if (view.map_epoch > line->epoch && view.held < line->shown) {
        sim_fail(process->sim, "what was shown is kept",
                 "partition %u of %s has %llu in map epoch %llu; %llu was shown", hosted->index,
                 process->id, (unsigned long long)view.held, (unsigned long long)view.map_epoch,
                 (unsigned long long)line->shown);
    }
    line->epoch = view.map_epoch > line->epoch ? view.map_epoch : line->epoch;
    line->shown = view.held > line->shown ? view.held : line->shown;
    line->shown_step = view.step > line->shown_step ? view.step : line->shown_step;
    check_older(process, generation, hosted, &view);
}

void sim_invariants_loaded(const struct sim_process *process, const struct sim_hosting *hosting)
{
    struct generation *generation = sim__invariants_generation(process->sim, hosting->generation);
    for (uint32_t p = 0; p < hosting->partition_count; p++) {
        const struct sim_hosted *hosted = hosting->by_index[p];
        struct line *line = &generation->lines[p];
        struct kelp_partition_view view;
        if (!hosted) {
            continue;
        }
        kelp_partition_view(hosted->core, &view);
        if (view.phase == KELP_PARTITION_FILLING) {
            continue;
        }
        check_state(process, hosted);
        if (!line->there) {
            *line = (struct line){.there = true, .step = hosted->step, .shown_step = hosted->step};
        }
        sim_invariants_seen(process, hosting, hosted);
    }
}

void sim_invariants_filled(const struct sim_process *process, const struct sim_hosted *hosted,
                           const struct kelp_control_state *control)
{
    const struct sim *sim = process->sim;
    check_state(process, hosted);
    if (hosted->index == 0 && !sim->lie.told &&
        !same_control(control, &sim->reference->controls[control->version])) {
        sim_fail(process->sim, "state", "%s got another control state for version %llu",
                 process->id, (unsigned long long)control->version);
    }
}

static void check_spread(const struct sim_process *process, const struct generation *generation,
                         const struct sim_hosted *hosted)
{
    if (process->sim->lie.rushes && process->sim->lie.told) {
        return;
    }
    for (uint32_t p = 0; p < process->sim->plan.partition_count; p++) {
        const struct line *line = &generation->lines[p];
        if (line->there && line->step + 1 < hosted->step) {
            sim_fail(process->sim, "one step apart",
                     "partition %u of %s is at step %llu while partition %u is at %llu",
                     hosted->index, process->id, (unsigned long long)hosted->step, p,
                     (unsigned long long)line->step);
        }
    }
}

void sim_invariants_applied(const struct sim_process *process, const struct sim_hosting *hosting,
                            const struct sim_hosted *hosted)
{
    struct sim *sim = process->sim;
    struct generation *generation = sim__invariants_generation(sim, hosting->generation);
    struct line *line = &generation->lines[hosted->index];
    /* Other weights, and with them evaluations, may also stop the job sooner or later. */
    const uint64_t last =
        sim->lie.told ? kelp_control_total_steps(&sim->job, &sim->plan) : sim->reference->steps;
    if (hosted->step > last || hosted->step > line->step + 1) {
        sim_fail(sim, "one by one", "partition %u of %s goes to step %llu; %llu was the furthest",
                 hosted->index, process->id, (unsigned long long)hosted->step,
                 (unsigned long long)line->step);
    }
    const bool first = hosted->step > line->step;
    line->step = first ? hosted->step : line->step;
    check_spread(process, generation, hosted);
    check_state(process, hosted);
    if (hosted->index == 0 && first) {
        sim_say(sim, process, "completes training step %llu of generation %llu",
                (unsigned long long)hosted->step, (unsigned long long)hosting->generation);
        sim->counts[SIM_COUNT_STEP]++;
        if (hosted->step <= sim->invariants->furthest_step) {
            sim->counts[SIM_COUNT_STEP_AGAIN]++;
        } else {
            sim->invariants->furthest_step = hosted->step;
        }
    }
}

static void check_record(struct sim *sim, const char *id, const struct kelp_record *record)
{
    const struct kelp_record *wanted = &sim->reference->records[record->word.version];
    if (sim->lie.told) {
        return;
    }
    if (record->word.version >= sim->reference->versions ||
        !kelp_control_word_equal(&record->word, &wanted->word)) {
        sim_fail(sim, "records", "%s completes version %llu as another entry", id,
                 (unsigned long long)record->word.version);
    }
    if (memcmp(record->metrics.of, wanted->metrics.of, sizeof(record->metrics.of)) != 0 ||
        record->metrics.present != wanted->metrics.present || record->best != wanted->best ||
        record->epoch_end != wanted->epoch_end || record->skipped != wanted->skipped ||
        record->word.steps_skipped != wanted->word.steps_skipped ||
        record->window_end != wanted->window_end ||
        memcmp(&record->window_loss, &wanted->window_loss, sizeof(double)) != 0 ||
        memcmp(&record->epoch_loss, &wanted->epoch_loss, sizeof(double)) != 0) {
        sim_fail(sim, "records", "%s: sums of version %llu are not the quiet run's", id,
                 (unsigned long long)record->word.version);
    }
    if (strcmp(record->digest, wanted->digest) != 0) {
        sim_fail(sim, "records", "%s: digest of version %llu is %s, not %s", id,
                 (unsigned long long)record->word.version, record->digest, wanted->digest);
    }
}

void sim_invariants_record(const struct sim_process *process, const struct kelp_record *record)
{
    check_record(process->sim, process->id, record);
    process->sim->progressed_us = process->sim->now;
    if (record->word.kind != KELP_STEP_TRAIN) {
        sim_say(process->sim, process, "completes version %llu, %s",
                (unsigned long long)record->word.version,
                record->word.kind == KELP_STEP_FINISH ? "the finish" : "an evaluation");
    }
}

void sim_invariants_merged(const struct sim_process *process, uint32_t partition, uint32_t left,
                           uint32_t right)
{
    uint32_t lowest_right = right & (~right + 1);
    if ((left & right) != 0) {
        sim_fail(process->sim, "each lane once", "partition %u of %s adds lanes %x to %x",
                 partition, process->id, right, left);
    }
    if (left >= lowest_right) {
        sim_fail(process->sim, "tree order", "partition %u of %s adds lanes %x + %x", partition,
                 process->id, left, right);
    }
}

void sim_invariants_root(const struct sim_process *process, uint32_t partition,
                         const struct kelp_control_word *word, uint32_t lanes, uint32_t wanted)
{
    if (lanes != wanted) {
        sim_fail(process->sim, "each lane once",
                 "partition %u of %s applies step %llu from lanes %x, not %x", partition,
                 process->id, (unsigned long long)word->step, lanes, wanted);
    }
}

void sim_invariants_captured(const struct sim_process *process, const struct sim_hosted *hosted,
                             uint64_t step)
{
    struct sim *sim = process->sim;
    const struct sim_part *part = &hosted->capture;
    if (hosted->step != step) {
        sim_fail(sim, "a snapshot is of its step", "partition %u of %s is at step %llu, not %llu",
                 hosted->index, process->id, (unsigned long long)hosted->step,
                 (unsigned long long)step);
    }
    check_state(process, hosted);
    if (sim->lie.told) {
        return;
    }
    if (part->has_control != (hosted->index == 0) ||
        (part->has_control &&
         (part->control.step != step ||
          !same_control(&part->control, &sim->reference->controls[part->control.version])))) {
        sim_fail(sim, "state", "the control state in a snapshot of %s is not the quiet run's",
                 process->id);
    }
}

/* ---- checkpoints -------------------------------------------------------------------------------
 */

/* The storage that holds the part, whole and durable? NULL: it does; else what is wrong. */
static const char *part_wrong(struct sim *sim, const struct sim_manifest *manifest,
                              uint32_t partition)
{
    const struct sim_manifest_part *wanted = &manifest->parts[partition];
    const struct sim_storage *storage =
        wanted->storage < manifest->storage_count
            ? sim_storage_look(sim, manifest->folder, manifest->storages[wanted->storage])
            : NULL;
    if (!storage) {
        return "is in no storage";
    }
    if (storage->state != SIM_STORAGE_DURABLE) {
        return "is not durable";
    }
    struct sim_part part = storage->parts[partition];
    struct kelp_slice_range range = sim_slice(sim, partition);
    part.garbled = false; /* a fault of ours: restoring finds it */
    sim_part_digest(&part);
    if (!part.there || strcmp(part.digest, wanted->digest) != 0) {
        return "is not what was reported";
    }
    if (memcmp(part.weights, &sim->reference->weights[manifest->step][range.first],
               range.count * sizeof(float)) != 0 ||
        memcmp(part.momentum, &sim->reference->momentum[manifest->step][range.first],
               range.count * sizeof(float)) != 0) {
        return "is not the quiet run's";
    }
    if (partition == 0 && (!part.has_control || part.control.version != manifest->version ||
                           part.control.step != manifest->step)) {
        return "has another control state";
    }
    return NULL;
}

static void check_whole(struct sim *sim, const struct sim_manifest *manifest)
{
    for (uint32_t p = 0; p < sim->plan.partition_count; p++) {
        const char *wrong = part_wrong(sim, manifest, p);
        if (wrong) {
            sim_fail(sim, "a committed checkpoint is whole and durable",
                     "version %llu: partition %u %s", (unsigned long long)manifest->version, p,
                     wrong);
        }
    }
}

void sim_invariants_committed(struct sim *sim, struct sim_manifest *manifest)
{
    manifest->committed_us = sim->now;
    sim_say(sim, NULL, "etcd has the checkpoint of version %llu, step %llu, in %s",
            (unsigned long long)manifest->version, (unsigned long long)manifest->step,
            manifest->folder);
    check_whole(sim, manifest);
}

void sim_invariants_power_lost(struct sim *sim)
{
    const struct sim_key *key;
    for (size_t i = 0; (key = sim_etcd_list(sim, "checkpoint/", i)) != NULL; i++) {
        check_whole(sim, key->value->content);
    }
}

void sim_invariants_removing(struct sim *sim, const struct sim_storage *storage)
{
    const struct sim_key *key;
    for (size_t i = 0; (key = sim_etcd_list(sim, "checkpoint/", i)) != NULL; i++) {
        const struct sim_manifest *manifest = key->value->content;
        for (uint32_t s = 0; s < manifest->storage_count; s++) {
            if (strcmp(manifest->folder, storage->folder) == 0 &&
                strcmp(manifest->storages[s], storage->name) == 0 &&
                storage->state == SIM_STORAGE_DURABLE) {
                sim_fail(sim, "a committed checkpoint is not removed",
                         "%s/%s goes while the manifest of version %llu names it", storage->folder,
                         storage->name, (unsigned long long)manifest->version);
            }
        }
    }
}

/* ---- workers -----------------------------------------------------------------------------------
 */

void sim_invariants_held(const struct sim_process *process, const struct kelp_control_word *word,
                         const float flat[SIM_FLAT_MAX])
{
    struct sim *sim = process->sim;
    struct kelp_control_word wanted;
    if (sim->lie.told) {
        return;
    }
    if (word->version > sim->reference->versions) {
        sim_fail(sim, "state", "%s works on version %llu; the job has %llu", process->id,
                 (unsigned long long)word->version, (unsigned long long)sim->reference->versions);
    }
    kelp_control_word(&sim->reference->controls[word->version], &sim->job, &sim->plan, &wanted);
    if (!kelp_control_word_equal(word, &wanted)) {
        sim_fail(sim, "state", "%s has another control word for version %llu", process->id,
                 (unsigned long long)word->version);
    }
    if (memcmp(flat, sim->reference->weights[word->step], sim->plan.flat_count * sizeof(float)) !=
        0) {
        sim_fail(sim, "state", "%s holds weights for version %llu that are not those of step %llu",
                 process->id, (unsigned long long)word->version, (unsigned long long)word->step);
    }
}

/* ---- the job -----------------------------------------------------------------------------------
 */

/* A worker that has the weights of the next step drops what a partition refused, as when its shard
 * had not heard of the newest map yet. */
bool sim_invariants_may_miss_lie(const struct sim *sim)
{
    const struct sim_lie *lie = &sim->lie;
    const uint32_t unseen = lie->told && !lie->rushes ? sim_lie_unseen(lie) : 0;

    return lie->lost || (unseen != 0 && (unseen & ~lie->refused) == 0);
}

void sim_invariants_filed(struct sim *sim, const struct kelp_record *record)
{
    check_record(sim, "journal", record);
    if (record->word.kind == KELP_STEP_FINISH) {
        sim->invariants->finish_filed = true;
        const bool counts = sim->lie.found && sim->job.failure.on_conflict == KELP_CONFLICT_FIRST;
        if (strcmp(record->digest, sim->reference->digest) != 0 && !counts &&
            !sim_invariants_may_miss_lie(sim)) {
            sim_fail(sim, "the end", "the digest on file is not the quiet run's");
        }
    }
}

void sim_invariants_told(const struct sim_process *process, const struct kelp_term *term)
{
    struct sim *sim = process->sim;
    if (kelp_term_state(term) == KELP_PLACEMENT_DONE && !sim->lie.told &&
        strcmp(term->progress.digest, sim->reference->digest) != 0) {
        sim_fail(sim, "the end", "%s says that the job is done, with digest \"%s\" of step %llu",
                 process->id, term->progress.digest,
                 (unsigned long long)term->progress.digest_step);
    }
}

/* Lines of plain training steps would be as many as steps. */
static bool is_for_the_files(const struct kelp_record *record)
{
    return record->epoch_end || record->window_end || record->digest[0] != 0 ||
           record->word.kind == KELP_STEP_EVALUATE_VAL ||
           record->word.kind == KELP_STEP_EVALUATE_TEST;
}

static void check_all_filed(struct sim *sim)
{
    for (uint64_t v = 0; v < sim->reference->versions; v++) {
        if (is_for_the_files(&sim->reference->records[v]) && !sim_journal_has(sim, v)) {
            sim_fail(sim, "records", "that of version %llu is not on file", (unsigned long long)v);
        }
    }
}

void sim_invariants_done(struct sim *sim)
{
    if (!sim->invariants->finish_filed) {
        sim_fail(sim, "the end", "the job is done and its last record is not on file");
    }
    /* When the job is done shards leave as they are: then it is restored from its final state. */
    if (sim->profile.gentle && sim->counts[SIM_COUNT_STEP_AGAIN] > 0) {
        sim_fail(sim, "who is drained costs no step", "%llu steps were made again",
                 (unsigned long long)sim->counts[SIM_COUNT_STEP_AGAIN]);
    }
    if (sim->invariants->opened == 1 && sim->counts[SIM_COUNT_POWER_ALL] == 0 && !sim->lie.told) {
        check_all_filed(sim);
    }
}
