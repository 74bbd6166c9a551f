/*
 * The journal's files as lines: locking them, and reading what they hold.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/json.h"
#include "coordinator/core/limits.h"
#include "coordinator/files/journal_internal.h"

/* ---- reading back ---- */

/* Index of the first entry whose version is not lower. */
size_t kelp__journal_known_index(const struct kelp_journal *journal, uint64_t version)
{
    size_t low = 0;
    size_t high = journal->known_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (journal->known[middle].version < version) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static const char *known_digest(const struct kelp_journal *journal, uint64_t version)
{
    size_t at = kelp__journal_known_index(journal, version);
    bool found = at < journal->known_count && journal->known[at].version == version;
    return found ? journal->known[at].digest : NULL;
}

/* The lock is held. */
static kelp_status remember(struct kelp_journal *journal, uint64_t version, const char *digest)
{
    if (journal->known_count == journal->known_capacity) {
        size_t capacity = journal->known_capacity == 0 ? 256 : 2 * journal->known_capacity;
        struct kelp__digest_entry *known = realloc(journal->known, capacity * sizeof(*known));
        if (!known) {
            return KELP_ERR_NO_MEMORY;
        }
        journal->known = known;
        journal->known_capacity = capacity;
    }
    size_t at = kelp__journal_known_index(journal, version);
    struct kelp__digest_entry *entry = &journal->known[at];
    memmove(entry + 1, entry, (journal->known_count - at) * sizeof(*entry));
    journal->known_count++;
    entry->version = version;
    (void)snprintf(entry->digest, sizeof(entry->digest), "%s", digest);
    return KELP_OK;
}

kelp_status kelp__journal_remember(struct kelp_journal *journal, uint64_t version,
                                   const char *digest)
{
    (void)pthread_mutex_lock(&journal->lock);
    kelp_status status = remember(journal, version, digest);
    (void)pthread_mutex_unlock(&journal->lock);
    return status;
}

kelp_status kelp__journal_check_digest(const struct kelp_journal *journal, uint64_t version,
                                       const char *digest, struct kelp_error *reterr)
{
    const char *known = known_digest(journal, version);
    if (known && strcmp(known, digest) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "digest of version %" PRIu64
                         " is %s, but %s says %s: the same step gave different bits; kelp verify "
                         "--replay tells which are the job's",
                         version, digest, journal->digests.path, known);
    }
    return KELP_OK;
}

static kelp_status read_digest(struct kelp_journal *journal, uint64_t version, const cJSON *json,
                               struct kelp_error *reterr)
{
    char digest[DIGEST_CHARS + 1] = "";
    kelp_status status = kelp_json_string(json, "digest", digest, sizeof(digest), reterr);
    if (status == KELP_OK) {
        status = kelp__journal_check_digest(journal, version, digest, reterr);
    }
    if (status == KELP_OK && !known_digest(journal, version)) {
        status = kelp__journal_remember(journal, version, digest);
    }
    return status;
}

/* The caller owns *ret_json, also on an error. */
kelp_status kelp__journal_parse_line(const char *text, size_t text_bytes, cJSON **ret_json,
                                     uint64_t *ret_version, uint64_t *ret_step,
                                     struct kelp_error *reterr)
{
    kelp_status status = kelp_json_parse(text, text_bytes, ret_json, reterr);
    if (status == KELP_OK) {
        status = kelp_json_u64(*ret_json, "version", KELP_JSON_INTEGER_MAX, ret_version, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(*ret_json, "step", KELP_JSON_INTEGER_MAX, ret_step, reterr);
    }
    return status;
}

/* Keep the metrics of a validation line, so that a new leader can rate its checkpoints. The lock
 * is held. */
static kelp_status read_evaluation(struct kelp_journal *journal, uint64_t step, const cJSON *json)
{
    struct kelp__evaluation evaluation = {.step = step};
    for (uint32_t i = 0; i < KELP_CHECKPOINT_METRICS; i++) {
        char own[KELP_JOB_SUM_NAME_MAX + 1], name[sizeof(own) + sizeof("val/")];
        kelp_metric_name_in(journal->job, kelp_metric_of_checkpoint(journal->job, i), own);
        (void)snprintf(name, sizeof(name), "val/%s", own);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
        if (i == KELP_CHECKPOINT_VAL_LOSS && !cJSON_IsNumber(value)) {
            return KELP_OK; /* of another split, or not finite */
        }
        evaluation.metric[i] = cJSON_IsNumber(value) ? value->valuedouble : (double)NAN;
    }
    if (journal->evaluation_count == journal->evaluation_capacity) {
        size_t capacity = journal->evaluation_capacity == 0 ? 64 : 2 * journal->evaluation_capacity;
        struct kelp__evaluation *evaluations =
            realloc(journal->evaluations, capacity * sizeof(*evaluations));
        if (!evaluations) {
            return KELP_ERR_NO_MEMORY;
        }
        journal->evaluations = evaluations;
        journal->evaluation_capacity = capacity;
    }
    journal->evaluations[journal->evaluation_count++] = evaluation;
    return KELP_OK;
}

/* Keep the newest line of each split, so that a new leader knows the job's latest results. A
 * value that is not finite is null in the file. The lock is held. */
static void keep_latest(struct kelp_journal *journal, uint64_t version, uint64_t step,
                        const cJSON *json)
{
    static const char *const parts[KELP_SPLIT_COUNT] = {"train", "val", "test"};
    static const enum kelp_step_kind kinds[KELP_SPLIT_COUNT] = {
        KELP_STEP_TRAIN, KELP_STEP_EVALUATE_VAL, KELP_STEP_EVALUATE_TEST};

    for (uint32_t part = 0; part < KELP_SPLIT_COUNT; part++) {
        struct kelp_record record = {.word = {.version = version, .kind = kinds[part]}};
        for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
            char own[KELP_JOB_SUM_NAME_MAX + 1], name[sizeof(own) + sizeof("train/")];
            kelp_metric_name_in(journal->job, i, own);
            (void)snprintf(name, sizeof(name), "%s/%s", parts[part], own);
            const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
            if (value) {
                kelp_metrics_set(&record.metrics, i,
                                 cJSON_IsNumber(value) ? value->valuedouble : (double)NAN);
            }
        }
        if (record.metrics.present != 0 &&
            (!journal->seen[part] || version >= journal->latest[part].word.version)) {
            record.word.step = part == KELP_SPLIT_TRAIN && step > 0 ? step - 1 : step;
            record.epoch_loss = record.metrics.of[KELP_METRIC_LOSS];
            journal->seen[part] = true;
            journal->latest[part] = record;
        }
    }
}

/* A line may repeat an earlier version: older coordinators wrote without locking. */
static kelp_status read_line(struct kelp_journal *journal, struct kelp__lines *lines,
                             const char *text, size_t text_bytes, struct kelp_error *reterr)
{
    uint64_t version = 0;
    uint64_t step = 0;
    cJSON *json = NULL;
    kelp_status status = kelp__journal_parse_line(text, text_bytes, &json, &version, &step, reterr);
    if (status == KELP_OK && lines == &journal->digests) {
        status = read_digest(journal, version, json, reterr);
    }
    if (status == KELP_OK && lines == &journal->metrics) {
        (void)pthread_mutex_lock(&journal->lock);
        status = read_evaluation(journal, step, json);
        keep_latest(journal, version, step, json);
        (void)pthread_mutex_unlock(&journal->lock);
    }
    cJSON_Delete(json);
    if (status == KELP_OK && (!lines->any || version > lines->newest)) {
        kelp__lines_stand(journal, lines, version, step);
    }
    return status;
}

static kelp_status read_lines(struct kelp_journal *journal, struct kelp__lines *lines, FILE *in,
                              struct kelp_error *reterr)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t got = 0;
    kelp_status status = KELP_OK;
    while (status == KELP_OK && (got = getline(&text, &capacity, in)) > 0) {
        /* Cut off by a crash, or a page left empty by a loss of power: removed below. */
        if (text[got - 1] != '\n' || memchr(text, '\0', (size_t)got)) {
            break;
        }
        status = read_line(journal, lines, text, (size_t)got - 1, reterr);
        if (status == KELP_OK) {
            lines->count++;
            lines->bytes += (uint64_t)got;
            continue;
        }
        kelp_error_prefix(reterr, "%s:%" PRIu64, lines->path, lines->count + 1);
        if (status != KELP_ERR_NO_MEMORY && status != KELP_ERR_MISMATCH) {
            status = KELP_ERR_CORRUPT;
        }
    }
    if (got < 0 && !feof(in)) {
        status =
            kelp_fail(reterr, KELP_ERR_IO, "%s: cannot read: %s", lines->path, strerror(errno));
    }
    free(text);
    return status;
}

/*
 * Read the lines after those that we know, and remove a torn end; since the lock is held, nobody is
 * writing it. Removed records will be reported again: they were not synced, so no committed
 * checkpoint depends on them.
 */
static kelp_status read_new_lines(struct kelp_journal *journal, struct kelp__lines *lines,
                                  struct kelp_error *reterr)
{
    struct stat info;
    if (fstat(lines->fd, &info) != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "%s: cannot read: %s", lines->path, strerror(errno));
    }
    uint64_t size = (uint64_t)info.st_size;
    if (size <= lines->bytes) {
        lines->bytes = size; /* smaller: the file was cut */
        return KELP_OK;
    }
    if (size - lines->bytes > KELP_COORDINATOR_JOURNAL_BYTES) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: larger than 1 GiB", lines->path);
    }
    int copy = dup(lines->fd);
    FILE *in = copy < 0 ? NULL : fdopen(copy, "r");
    if (!in || fseeko(in, (off_t)lines->bytes, SEEK_SET) != 0) {
        kelp_status status =
            kelp_fail(reterr, KELP_ERR_IO, "%s: cannot read: %s", lines->path, strerror(errno));
        if (in) {
            (void)fclose(in);
        } else if (copy >= 0) {
            (void)close(copy);
        }
        return status;
    }
    kelp_status status = read_lines(journal, lines, in, reterr);
    (void)fclose(in);
    /* Truncate last, so that new lines are not appended amid removed ones. */
    if (status == KELP_OK && lines->bytes < size &&
        (ftruncate(lines->fd, (off_t)lines->bytes) != 0 || fdatasync(lines->fd) != 0)) {
        status = kelp_fail(reterr, KELP_ERR_IO, "%s: cannot remove a torn end: %s", lines->path,
                           strerror(errno));
    }
    return status;
}

void kelp__lines_stand(struct kelp_journal *journal, struct kelp__lines *lines, uint64_t version,
                       uint64_t step)
{
    (void)pthread_mutex_lock(&journal->lock);
    lines->any = true;
    lines->newest = version;
    lines->step = step;
    (void)pthread_mutex_unlock(&journal->lock);
}

void kelp__lines_unlock(struct kelp__lines *lines)
{
    (void)flock(lines->fd, LOCK_UN); /* cannot fail: it is locked */
}

/* Lock the file briefly, as other coordinators do, and read what they appended. Not locked after
 * an error. */
kelp_status kelp__lines_lock(struct kelp_journal *journal, struct kelp__lines *lines,
                             struct kelp_error *reterr)
{
    int result = 0;
    do {
        result = flock(lines->fd, LOCK_EX);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "%s: cannot lock: %s", lines->path, strerror(errno));
    }
    kelp_status status = read_new_lines(journal, lines, reterr);
    if (status != KELP_OK) {
        kelp__lines_unlock(lines);
    }
    return status;
}

kelp_status kelp__lines_open(struct kelp_journal *journal, struct kelp__lines *lines,
                             const char *folder, const char *name, struct kelp_error *reterr)
{
    int length = snprintf(lines->path, sizeof(lines->path), "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof(lines->path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "run folder: the path is too long");
    }
    lines->fd = open(lines->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (lines->fd < 0) {
        return kelp_fail(reterr, errno == ENOENT ? KELP_ERR_NOT_FOUND : KELP_ERR_IO,
                         "%s: cannot open: %s", lines->path, strerror(errno));
    }
    kelp_status status = kelp__lines_lock(journal, lines, reterr);
    if (status == KELP_OK) {
        kelp__lines_unlock(lines);
    }
    return status;
}
