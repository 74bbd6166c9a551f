#include "coordinator/files/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/json.h"
#include "common/program/run_next.h"
#include "coordinator/core/limits.h"
#include "coordinator/files/journal_internal.h"

kelp_status kelp_journal_open(const char *folder, const struct kelp_job *job,
                              struct kelp_journal **ret_journal, struct kelp_error *reterr)
{
    struct kelp_journal *journal = calloc(1, sizeof(*journal));
    if (!journal) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the journal");
    }
    (void)pthread_mutex_init(&journal->lock, NULL);
    journal->job = job;
    journal->metrics.fd = -1;
    journal->digests.fd = -1;
    kelp_status status =
        kelp__lines_open(journal, &journal->metrics, folder, "metrics.jsonl", reterr);
    if (status == KELP_OK) {
        status = kelp__lines_open(journal, &journal->digests, folder, "digests.jsonl", reterr);
    }
    if (status != KELP_OK) {
        kelp_journal_close(journal);
        return status;
    }
    *ret_journal = journal;
    return KELP_OK;
}

void kelp_journal_close(struct kelp_journal *journal)
{
    if (!journal) {
        return;
    }
    if (journal->metrics.fd >= 0) {
        (void)close(journal->metrics.fd);
    }
    if (journal->digests.fd >= 0) {
        (void)close(journal->digests.fd);
    }
    free(journal->known);
    free(journal->evaluations);
    (void)pthread_mutex_destroy(&journal->lock);
    free(journal);
}

/* ---- appending ---- */

/* Append the whole line or nothing. The lock is held. */
static kelp_status put_line(struct kelp__lines *lines, const char *text, size_t text_bytes,
                            struct kelp_error *reterr)
{
    if (!kelp_files_write_all(lines->fd, text, text_bytes)) {
        int error = errno;
        (void)!ftruncate(lines->fd, (off_t)lines->bytes); /* otherwise removed as torn later */
        return kelp_fail(reterr,
                         error == ENOSPC || error == EDQUOT ? KELP_ERR_NO_SPACE : KELP_ERR_IO,
                         "%s: cannot write: %s", lines->path, strerror(error));
    }
    lines->bytes += text_bytes;
    lines->count++;
    return KELP_OK;
}

static void print_head(FILE *out, const struct kelp_control_word *word)
{
    bool train = word->kind == KELP_STEP_TRAIN;
    (void)fprintf(out, "{\"version\":%" PRIu64 ",\"step\":%" PRIu64 ",\"epoch\":%u", word->version,
                  word->step + (train ? 1 : 0), word->epoch + 1);
}

/* Print the line of an epoch, of metrics.every, or of both. */
static void print_training(FILE *out, const struct kelp_record *record)
{
    uint64_t skipped = record->word.steps_skipped + (record->skipped ? 1 : 0);
    if (record->epoch_end) {
        (void)fprintf(out, ",\"train/loss\":");
        kelp_json_print_double(out, record->epoch_loss);
    }
    if (record->window_end) {
        (void)fprintf(out, ",\"train/step_loss\":");
        kelp_json_print_double(out, record->window_loss);
    }
    (void)fprintf(out, ",\"lr\":");
    kelp_json_print_double(out, record->word.lr);
    if (skipped > 0) {
        (void)fprintf(out, ",\"steps_skipped\":%" PRIu64, skipped);
    }
}

static void print_metrics(FILE *out, const struct kelp_job *job, const struct kelp_record *record)
{
    char name[KELP_JOB_SUM_NAME_MAX + 1];
    const char *part = record->word.kind == KELP_STEP_EVALUATE_VAL ? "val" : "test";
    print_head(out, &record->word);
    if (record->word.kind == KELP_STEP_TRAIN) {
        print_training(out, record);
    } else {
        for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
            if (kelp_metrics_have(&record->metrics, i)) {
                kelp_metric_name_in(job, i, name);
                (void)fprintf(out, ",\"%s/%s\":", part, name);
                kelp_json_print_double(out, record->metrics.of[i]);
            }
        }
    }
    (void)fprintf(out, "}\n");
}

static void print_digest(FILE *out, const struct kelp_job *job, const struct kelp_record *record)
{
    (void)job;
    (void)fprintf(out,
                  "{\"version\":%" PRIu64 ",\"step\":%" PRIu64 ",\"epoch\":%u,\"digest\":\"%s\"}\n",
                  record->word.version, record->word.step, kelp_control_word_epochs(&record->word),
                  record->digest);
}

static kelp_status append_line(struct kelp_journal *journal, struct kelp__lines *lines,
                               const struct kelp_record *record,
                               void (*print)(FILE *out, const struct kelp_job *job,
                                             const struct kelp_record *record),
                               struct kelp_error *reterr)
{
    char text[KELP_COORDINATOR_LINE_MAX];
    FILE *out = fmemopen(text, sizeof(text), "w");
    if (!out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a line of %s", lines->path);
    }
    print(out, journal->job, record);
    long length = ftell(out);
    bool whole = fclose(out) == 0 && length > 0 && (size_t)length < sizeof(text);
    assert(whole); /* a few numbers always fit */
    kelp_status status = put_line(lines, text, (size_t)length, reterr);
    if (status == KELP_OK) {
        kelp__lines_stand(journal, lines, record->word.version, record->word.step);
    }
    return status;
}

static bool has_metrics(const struct kelp_record *record)
{
    enum kelp_step_kind kind = record->word.kind;
    return (kind == KELP_STEP_TRAIN && (record->epoch_end || record->window_end)) ||
           kind == KELP_STEP_EVALUATE_VAL || kind == KELP_STEP_EVALUATE_TEST;
}

/* Is the record newer than all lines? */
static bool is_news(const struct kelp__lines *lines, const struct kelp_record *record)
{
    return !lines->any || record->word.version > lines->newest;
}

/* The lock is held. */
static kelp_status append_digest(struct kelp_journal *journal, const struct kelp_record *record,
                                 struct kelp_error *reterr)
{
    kelp_status status =
        kelp__journal_check_digest(journal, record->word.version, record->digest, reterr);
    if (status != KELP_OK || !is_news(&journal->digests, record)) {
        return status;
    }
    status = kelp__journal_remember(journal, record->word.version, record->digest);
    if (status != KELP_OK) {
        return kelp_fail(reterr, status, "no memory for the digests on file");
    }
    status = append_line(journal, &journal->digests, record, print_digest, reterr);
    if (status != KELP_OK) {
        (void)pthread_mutex_lock(&journal->lock);
        journal->known_count--; /* removes the newest entry, just added */
        (void)pthread_mutex_unlock(&journal->lock);
    }
    return status;
}

kelp_status kelp_journal_append(struct kelp_journal *journal, const struct kelp_record *record,
                                struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    if (record->digest[0] != '\0') {
        status = kelp__lines_lock(journal, &journal->digests, reterr);
        if (status == KELP_OK) {
            status = append_digest(journal, record, reterr);
            kelp__lines_unlock(&journal->digests);
        }
    }
    if (status == KELP_OK && has_metrics(record)) {
        status = kelp__lines_lock(journal, &journal->metrics, reterr);
        if (status == KELP_OK) {
            if (is_news(&journal->metrics, record)) {
                status = append_line(journal, &journal->metrics, record, print_metrics, reterr);
            }
            kelp__lines_unlock(&journal->metrics);
        }
    }
    return status;
}

/* ---- forgetting ---- */

/* The part of the file before the first line of that version or a later one. */
static kelp_status find_line(const struct kelp__lines *lines, uint64_t version, FILE *in,
                             struct kelp__lines *ret_rest, struct kelp_error *reterr)
{
    struct kelp__lines rest = {.fd = lines->fd};
    char *text = NULL;
    size_t capacity = 0;
    ssize_t got = 0;
    kelp_status status = KELP_OK;
    while (status == KELP_OK && rest.bytes < lines->bytes &&
           (got = getline(&text, &capacity, in)) > 0) {
        uint64_t its = 0;
        uint64_t step = 0;
        cJSON *json = NULL;
        status = kelp__journal_parse_line(text, (size_t)got - 1, &json, &its, &step, reterr);
        cJSON_Delete(json);
        if (status != KELP_OK || its >= version) {
            break;
        }
        if (!rest.any || its > rest.newest) {
            rest.newest = its;
            rest.step = step;
        }
        rest.any = true;
        rest.count++;
        rest.bytes += (uint64_t)got;
    }
    free(text);
    *ret_rest = rest;
    return status;
}

/* The lock is held. */
static kelp_status cut_lines(struct kelp_journal *journal, struct kelp__lines *lines,
                             uint64_t version, const char *keep, struct kelp_error *reterr)
{
    struct kelp__lines rest;
    FILE *in = fopen(lines->path, "re");
    if (!in) {
        return kelp_fail(reterr, KELP_ERR_IO, "%s: cannot read: %s", lines->path, strerror(errno));
    }
    kelp_status status = find_line(lines, version, in, &rest, reterr);
    (void)fclose(in);
    if (status == KELP_OK && rest.bytes < lines->bytes && keep) {
        status = kelp_run_next_keep(lines->path, keep, reterr);
    }
    if (status == KELP_OK && rest.bytes < lines->bytes &&
        (ftruncate(lines->fd, (off_t)rest.bytes) != 0 || fdatasync(lines->fd) != 0)) {
        status = kelp_fail(reterr, KELP_ERR_IO, "%s: cannot remove lines: %s", lines->path,
                           strerror(errno));
    }
    if (status == KELP_OK) {
        (void)pthread_mutex_lock(&journal->lock);
        lines->bytes = rest.bytes;
        lines->count = rest.count;
        lines->any = rest.any;
        lines->newest = rest.newest;
        lines->step = rest.step;
        (void)pthread_mutex_unlock(&journal->lock);
    }
    return status;
}

kelp_status kelp_journal_truncate(struct kelp_journal *journal, uint64_t version, const char *keep,
                                  struct kelp_error *reterr)
{
    struct kelp__lines *const files[] = {&journal->metrics, &journal->digests};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(files); i++) {
        kelp_status status = kelp__lines_lock(journal, files[i], reterr);
        if (status != KELP_OK) {
            return status;
        }
        status = cut_lines(journal, files[i], version, keep, reterr);
        kelp__lines_unlock(files[i]);
        if (status != KELP_OK) {
            return status;
        }
    }
    (void)pthread_mutex_lock(&journal->lock);
    journal->known_count = kelp__journal_known_index(journal, version);
    (void)pthread_mutex_unlock(&journal->lock);
    return KELP_OK;
}

/* Is the newest line one that this job does not have at that place, because it continues? True
 * for evaluations made because training ended, and for FINISH, unless train.patience may have
 * ended it. */
static bool is_of_shorter(const struct kelp_journal *journal, const struct kelp__lines *lines,
                          const struct kelp_job *job, const struct kelp_plan *plan)
{
    uint64_t steps = kelp_control_steps_per_epoch(job, plan);
    if (!lines->any || lines->step == 0 || steps == 0 || lines->step % steps != 0 ||
        lines->step >= kelp_control_total_steps(job, plan)) {
        return false;
    }
    uint64_t next = kelp_control_version_after(job, plan, lines->step);
    if (kelp_control_evaluation_due(job, plan, lines->step)) {
        return lines->newest == next && job->train.patience == 0;
    }
    /* The evaluation at `next` has the digest that the next step records. */
    return lines->newest > next || (lines == &journal->metrics && lines->newest == next);
}

kelp_status kelp_journal_lengthen(struct kelp_journal *journal, const struct kelp_job *job,
                                  const struct kelp_plan *plan, const char *keep,
                                  struct kelp_error *reterr)
{
    const struct kelp__lines *const files[] = {&journal->metrics, &journal->digests};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(files); i++) {
        if (is_of_shorter(journal, files[i], job, plan)) {
            return kelp_journal_truncate(
                journal, kelp_control_version_after(job, plan, files[i]->step), keep, reterr);
        }
    }
    return KELP_OK;
}

bool kelp_journal_evaluated(struct kelp_journal *journal, uint64_t step,
                            double ret_metric[KELP_CHECKPOINT_METRICS])
{
    bool found = false;
    (void)pthread_mutex_lock(&journal->lock);
    for (size_t i = journal->evaluation_count; i-- > 0 && !found;) {
        found = journal->evaluations[i].step == step;
        if (found) {
            memcpy(ret_metric, journal->evaluations[i].metric,
                   sizeof(journal->evaluations[i].metric));
        }
    }
    (void)pthread_mutex_unlock(&journal->lock);
    return found;
}

bool kelp_journal_latest(struct kelp_journal *journal, enum kelp_split part,
                         struct kelp_record *ret_record)
{
    (void)pthread_mutex_lock(&journal->lock);
    bool seen = journal->seen[part];
    if (seen) {
        *ret_record = journal->latest[part];
    }
    (void)pthread_mutex_unlock(&journal->lock);
    return seen;
}

bool kelp_journal_digest(struct kelp_journal *journal, char ret_digest[33], uint64_t *ret_step)
{
    (void)pthread_mutex_lock(&journal->lock);
    bool any = journal->known_count > 0;
    if (any) {
        memcpy(ret_digest, journal->known[journal->known_count - 1].digest, DIGEST_CHARS + 1);
        *ret_step = journal->digests.step;
    }
    (void)pthread_mutex_unlock(&journal->lock);
    return any;
}

uint64_t kelp_journal_step(struct kelp_journal *journal)
{
    (void)pthread_mutex_lock(&journal->lock);
    uint64_t metrics = journal->metrics.any ? journal->metrics.step : 0;
    uint64_t digests = journal->digests.any ? journal->digests.step : 0;
    (void)pthread_mutex_unlock(&journal->lock);
    return metrics > digests ? metrics : digests;
}

kelp_status kelp_journal_sync(struct kelp_journal *journal, struct kelp_error *reterr)
{
    if (fdatasync(journal->metrics.fd) != 0 || fdatasync(journal->digests.fd) != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "%s: cannot sync: %s", journal->metrics.path,
                         strerror(errno));
    }
    return KELP_OK;
}
