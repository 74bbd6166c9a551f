#include "cli/infer/sources.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cluster/model_file.h"
#include "cli/cluster/run_client.h"
#include "cli/verb/job_load.h"
#include "cli/verb/verb.h"
#include "common/base/files.h"
#include "worker/data/dataset.h"
#include "worker/data/model_card.h"

/* ---- which --------------------------------------------------------------------------------- */

static kelp_status use_file(struct kelp_sources *sources, const char *path,
                            struct kelp_error *reterr)
{
    if (!realpath(path, sources->weights_path)) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    return KELP_OK;
}

/* A safetensors file begins with a number of 8 bytes, of which the last ones are 0; no text does.
 */
static bool is_model(const char *path)
{
    char head[8];
    FILE *file = fopen(path, "re");

    if (!file) {
        return false;
    }
    bool whole = fread(head, 1, sizeof(head), file) == sizeof(head);
    (void)fclose(file); /* only read */
    return whole && memchr(head, '\0', sizeof(head));
}

/* The folder of a checkpoint, given by its path and nothing else: it has a job. */
static bool is_checkpoint_alone(const struct kelp_options *given)
{
    const char *checkpoint = kelp_options_text(given, "checkpoint");

    return !kelp_verb_typed(given) && checkpoint && strchr(checkpoint, '/');
}

/* A model's file, a run's folder, or a job file. */
kelp_status kelp_sources_find_job(struct kelp_sources *sources, const struct kelp_options *given,
                                  struct kelp_error *reterr)
{
    const char *typed = kelp_verb_typed(given);
    struct stat about;

    if (typed && stat(typed, &about) == 0 && S_ISREG(about.st_mode) && is_model(typed)) {
        sources->alone = true;
        return kelp_options_text(given, "weights") || kelp_options_text(given, "checkpoint")
                   ? kelp_fail(reterr, KELP_ERR_INVALID,
                               "%s has weights: omit --weights and --checkpoint", typed)
                   : use_file(sources, typed, reterr);
    }
    if (is_checkpoint_alone(given)) {
        return kelp_run_dir_path(kelp_options_text(given, "checkpoint"), "job.yaml",
                                 sources->job_path, sizeof(sources->job_path), reterr);
    }
    if (typed && stat(typed, &about) == 0 && S_ISREG(about.st_mode)) {
        sources->own_job = true;
        int length = snprintf(sources->job_path, sizeof(sources->job_path), "%s", typed);
        return length > 0 && (size_t)length < sizeof(sources->job_path)
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_LIMIT, "the job file's path is too long");
    }
    kelp_status status = kelp_run_choose(typed, sources->run_path, reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_path(sources->run_path, "job.yaml", sources->job_path,
                                   sizeof(sources->job_path), reterr);
    }
    return status;
}

/* The named checkpoint, or the newest of a run without a final model. */
static kelp_status use_checkpoint(struct kelp_sources *sources, const char *name,
                                  struct kelp_error *reterr)
{
    struct kelp_checkpoint_source *from = &sources->checkpoints;
    kelp_status status = KELP_OK;

    if (name && strchr(name, '/')) {
        status = kelp_checkpoint_open(name, &from->elsewhere, reterr);
        sources->checkpoint = &from->elsewhere;
        return status;
    }
    if (!sources->run_path[0]) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--checkpoint %s: names a checkpoint of a run, but a job file was given; "
                         "give the run's folder, or the checkpoint's",
                         name);
    }
    status = kelp_checkpoints_list(sources->run_path, &from->list, reterr);
    if (status != KELP_OK) {
        return status;
    }
    from->listed = true;
    if (name && strcmp(name, "newest") != 0) {
        return kelp_checkpoints_find(&from->list, name, &sources->checkpoint, reterr);
    }
    sources->checkpoint = kelp_checkpoints_before(&from->list, UINT64_MAX);
    return sources->checkpoint
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NOT_FOUND, "run '%s' has %s (kelp checkpoint ls)",
                           sources->run_path,
                           name ? "no complete checkpoint"
                                : "neither a model.safetensors nor a checkpoint "
                                  "yet");
}

kelp_status kelp_sources_find_weights(struct kelp_sources *sources,
                                      const struct kelp_options *given, const struct kelp_job *job,
                                      struct kelp_error *reterr)
{
    const char *file = kelp_options_text(given, "weights");
    const char *checkpoint = kelp_options_text(given, "checkpoint");
    const char *init = job->model.init;
    char final[KELP_RUN_PATH_MAX + 64];

    if (file && checkpoint) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--weights and --checkpoint: give one of them");
    }
    if (file || checkpoint) {
        return file ? use_file(sources, file, reterr) : use_checkpoint(sources, checkpoint, reterr);
    }
    if (sources->run_path[0]) {
        kelp_status status =
            kelp_run_dir_path(sources->run_path, "model.safetensors", final, sizeof(final), reterr);
        if (status != KELP_OK) {
            return status;
        }
        return access(final, F_OK) == 0 ? use_file(sources, final, reterr)
                                        : use_checkpoint(sources, NULL, reterr);
    }
    return init[0] ? use_file(sources, init, reterr)
                   : kelp_fail(reterr, KELP_ERR_INVALID,
                               "no weights: name a run's folder instead of the job file, or a file "
                               "with --weights");
}

/* ---- the job ------------------------------------------------------------------------------- */

/* The job that the model was trained as, out of the model's file. */
static kelp_status load_job_of_model(const struct kelp_sources *sources,
                                     const struct kelp_options *given,
                                     struct kelp_job_file **ret_file, struct kelp_error *reterr)
{
    const char *path = kelp_verb_typed(given);
    struct kelp_model_card card = {.job = NULL};
    char *text = NULL;

    kelp_status status = kelp_model_card_text_of(sources->weights_path, &text, reterr);
    if (status != KELP_OK) {
        return status; /* which names the file */
    }
    if (!text) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "%s: has only weights, neither a job nor scales (" KELP_MODEL_CARD_KEY
            " in its metadata); give the run's folder or a job file, and this file with --weights",
            path);
    }
    status = kelp_model_card_parse(text, strlen(text), &card, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    status = kelp_job_load_text(path, card.job ? card.job : "", ret_file, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    status = kelp_job_file_environment(*ret_file, reterr);

release:
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s: " KELP_MODEL_CARD_KEY, path);
    }
    kelp_model_card_fini(&card);
    free(text);
    return status;
}

kelp_status kelp_sources_load_job(const struct kelp_sources *sources,
                                  const struct kelp_options *given, struct kelp_job_file **ret_file,
                                  struct kelp_error *reterr)
{
    const struct kelp_job_source source = {
        .path = sources->job_path, .environment = true, .unfinished = true};

    return sources->alone ? load_job_of_model(sources, given, ret_file, reterr)
                          : kelp_job_load(&source, ret_file, reterr);
}

/* ---- the weights --------------------------------------------------------------------------- */

/* Weights without a card, from elsewhere, for a run's model: with the card of that run. */
static kelp_status add_card(const struct kelp_sources *sources, const char *exported,
                            bool *ret_copied, struct kelp_error *reterr)
{
    char *own = NULL;
    char *card = NULL;

    kelp_status status = kelp_model_card_text_of(sources->weights_path, &own, reterr);
    if (status == KELP_OK && !own && sources->run_path[0]) {
        status = kelp_model_card_read(sources->run_path, &card, reterr);
    }
    if (status == KELP_OK && card) {
        status = kelp_model_copy_file(sources->weights_path, exported, card, reterr);
        *ret_copied = true;
    }
    free(own);
    free(card);
    return status;
}

kelp_status kelp_sources_place(const struct kelp_sources *sources, const char *folder,
                               char ret_path[PATH_MAX], bool *ret_carries,
                               struct kelp_error *reterr)
{
    char exported[PATH_MAX];
    char digest[KELP_DIGEST_HEX_BYTES];
    char *card = NULL;
    bool copied = sources->checkpoint;

    kelp_status status =
        kelp_run_dir_path(folder, KELP_SOURCES_WEIGHTS, exported, sizeof(exported), reterr);
    if (status == KELP_OK) {
        status = copied
                     ? kelp_checkpoint_export(sources->checkpoint, exported, false, digest, reterr)
                     : add_card(sources, exported, &copied, reterr);
    }
    if (status == KELP_OK) {
        memcpy(ret_path, copied ? exported : sources->weights_path, PATH_MAX);
        status = kelp_model_card_text_of(ret_path, &card, reterr);
        *ret_carries = card;
    }
    free(card);
    return status;
}
