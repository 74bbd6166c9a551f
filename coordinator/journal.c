#include "coordinator/journal.h"

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

#include "common/base/json.h"
#include "coordinator/core/limits.h"

#define DIGEST_CHARS 32

struct digest_entry {
    uint64_t version;
    char digest[DIGEST_CHARS + 1];
};

/* One file of lines that each carry a "version". Who looks at its end or changes it holds the lock:
 * two leaders may advise for a while, and both append what the shards report. */
struct lines {
    char path[4096];
    int fd;
    uint64_t bytes; /* whole lines taken; all of the file right after read_new_lines() */
    uint64_t count; /* lines taken */
    bool any;
    uint64_t newest; /* version, when any */
    uint64_t step;   /* of that line */
};

struct evaluation {
    uint64_t step;
    double metric[KELP_CHECKPOINT_METRICS]; /* by enum kelp_checkpoint_metric; NaN: none */
};

struct kelp_journal {
    struct lines metrics;
    bool seen[KELP_SPLIT_COUNT]; /* in metrics.jsonl */
    struct kelp_record latest[KELP_SPLIT_COUNT];
    struct lines digests;
    struct digest_entry *known; /* what digests.jsonl holds, by growing version */
    size_t known_count;
    size_t known_capacity;
    struct evaluation *evaluations; /* what metrics.jsonl holds of the validation split */
    size_t evaluation_count;
    size_t evaluation_capacity;
};

/* ---- reading back -----------------------------------------------------------------------------
 */

/* The first entry whose version is not below that one. */
static size_t known_index(const struct kelp_journal *journal, uint64_t version)
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
    size_t at = known_index(journal, version);
    bool found = at < journal->known_count && journal->known[at].version == version;
    return found ? journal->known[at].digest : NULL;
}

static kelp_status remember(struct kelp_journal *journal, uint64_t version, const char *digest)
{
    if (journal->known_count == journal->known_capacity) {
        size_t capacity = journal->known_capacity == 0 ? 256 : 2 * journal->known_capacity;
        struct digest_entry *known = realloc(journal->known, capacity * sizeof(*known));
        if (known == NULL) {
            return KELP_ERR_NO_MEMORY;
        }
        journal->known = known;
        journal->known_capacity = capacity;
    }
    size_t at = known_index(journal, version);
    struct digest_entry *entry = &journal->known[at];
    memmove(entry + 1, entry, (journal->known_count - at) * sizeof(*entry));
    journal->known_count++;
    entry->version = version;
    (void)snprintf(entry->digest, sizeof(entry->digest), "%s", digest);
    return KELP_OK;
}

static kelp_status check_digest(const struct kelp_journal *journal, uint64_t version,
                                const char *digest, struct kelp_error *reterr)
{
    const char *known = known_digest(journal, version);
    if (known != NULL && strcmp(known, digest) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "digest of version %" PRIu64 " is %s, but %s says %s: the same step gave "
                         "other bits",
                         version, digest, journal->digests.path, known);
    }
    return KELP_OK;
}

static kelp_status take_digest(struct kelp_journal *journal, uint64_t version, const cJSON *json,
                               struct kelp_error *reterr)
{
    char digest[DIGEST_CHARS + 1] = "";
    kelp_status status = kelp_json_string(json, "digest", digest, sizeof(digest), reterr);
    if (status == KELP_OK) {
        status = check_digest(journal, version, digest, reterr);
    }
    if (status == KELP_OK && known_digest(journal, version) == NULL) {
        status = remember(journal, version, digest);
    }
    return status;
}

/* *ret_json is the caller's, in every case. */
static kelp_status parse_line(const char *text, size_t text_bytes, cJSON **ret_json,
                              uint64_t *ret_version, uint64_t *ret_step, struct kelp_error *reterr)
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

/* A line of the validation split: kept, so that a new leader knows what its checkpoints are worth.
 */
static kelp_status take_evaluation(struct kelp_journal *journal, uint64_t step, const cJSON *json)
{
    struct evaluation evaluation = {.step = step};
    for (uint32_t i = 0; i < KELP_CHECKPOINT_METRICS; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "val/%s",
                       kelp_metric_name(kelp_metric_of_checkpoint(i)));
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
        if (i == KELP_CHECKPOINT_VAL_LOSS && !cJSON_IsNumber(value)) {
            return KELP_OK; /* of another part, or not finite */
        }
        evaluation.metric[i] = cJSON_IsNumber(value) ? value->valuedouble : (double)NAN;
    }
    if (journal->evaluation_count == journal->evaluation_capacity) {
        size_t capacity = journal->evaluation_capacity == 0 ? 64 : 2 * journal->evaluation_capacity;
        struct evaluation *evaluations =
            realloc(journal->evaluations, capacity * sizeof(*evaluations));
        if (evaluations == NULL) {
            return KELP_ERR_NO_MEMORY;
        }
        journal->evaluations = evaluations;
        journal->evaluation_capacity = capacity;
    }
    journal->evaluations[journal->evaluation_count++] = evaluation;
    return KELP_OK;
}

/* The newest line of each part, so that a new leader can tell what a job came to. A value that is
 * not finite is null on file. */
static void take_latest(struct kelp_journal *journal, uint64_t version, uint64_t step,
                        const cJSON *json)
{
    static const char *const parts[KELP_SPLIT_COUNT] = {"train", "val", "test"};
    static const enum kelp_step_kind kinds[KELP_SPLIT_COUNT] = {
        KELP_STEP_TRAIN, KELP_STEP_EVALUATE_VAL, KELP_STEP_EVALUATE_TEST};

    for (uint32_t part = 0; part < KELP_SPLIT_COUNT; part++) {
        struct kelp_record record = {.word = {.version = version, .kind = kinds[part]}};
        for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
            char name[32];
            (void)snprintf(name, sizeof(name), "%s/%s", parts[part], kelp_metric_name(i));
            const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
            if (value != NULL) {
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

/* A line may repeat an earlier version: coordinators that did not lock wrote such files. */
static kelp_status take_line(struct kelp_journal *journal, struct lines *lines, const char *text,
                             size_t text_bytes, struct kelp_error *reterr)
{
    uint64_t version = 0;
    uint64_t step = 0;
    cJSON *json = NULL;
    kelp_status status = parse_line(text, text_bytes, &json, &version, &step, reterr);
    if (status == KELP_OK && lines == &journal->digests) {
        status = take_digest(journal, version, json, reterr);
    }
    if (status == KELP_OK && lines == &journal->metrics) {
        status = take_evaluation(journal, step, json);
        take_latest(journal, version, step, json);
    }
    cJSON_Delete(json);
    if (status == KELP_OK && (!lines->any || version > lines->newest)) {
        lines->any = true;
        lines->newest = version;
        lines->step = step;
    }
    return status;
}

static kelp_status read_lines(struct kelp_journal *journal, struct lines *lines, FILE *in,
                              struct kelp_error *reterr)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t got = 0;
    kelp_status status = KELP_OK;
    while (status == KELP_OK && (got = getline(&text, &capacity, in)) > 0) {
        if (text[got - 1] != '\n') {
            break; /* cut off by a crash: removed below */
        }
        status = take_line(journal, lines, text, (size_t)got - 1, reterr);
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

/* Take what stands behind the lines that we know, and remove a torn end: nobody is writing it,
 * since the lock is held. */
static kelp_status read_new_lines(struct kelp_journal *journal, struct lines *lines,
                                  struct kelp_error *reterr)
{
    struct stat info;
    if (fstat(lines->fd, &info) != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "%s: cannot read: %s", lines->path, strerror(errno));
    }
    uint64_t size = (uint64_t)info.st_size;
    if (size <= lines->bytes) {
        lines->bytes = size; /* smaller: somebody cut the file */
        return KELP_OK;
    }
    if (size - lines->bytes > KELP_COORDINATOR_JOURNAL_BYTES) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: larger than 1 GiB", lines->path);
    }
    int copy = dup(lines->fd);
    FILE *in = copy < 0 ? NULL : fdopen(copy, "r");
    if (in == NULL || fseeko(in, (off_t)lines->bytes, SEEK_SET) != 0) {
        kelp_status status =
            kelp_fail(reterr, KELP_ERR_IO, "%s: cannot read: %s", lines->path, strerror(errno));
        if (in != NULL) {
            (void)fclose(in);
        } else if (copy >= 0) {
            (void)close(copy);
        }
        return status;
    }
    kelp_status status = read_lines(journal, lines, in, reterr);
    (void)fclose(in);
    if (status == KELP_OK && lines->bytes < size &&
        ftruncate(lines->fd, (off_t)lines->bytes) != 0) {
        status = kelp_fail(reterr, KELP_ERR_IO, "%s: cannot remove a torn last line: %s",
                           lines->path, strerror(errno));
    }
    return status;
}

static void lines_unlock(struct lines *lines)
{
    (void)flock(lines->fd, LOCK_UN); /* cannot fail: it is locked */
}

/* Lock the file for a moment, which others do as briefly, and learn what they appended. Not locked
 * after an error. */
static kelp_status lines_lock(struct kelp_journal *journal, struct lines *lines,
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
        lines_unlock(lines);
    }
    return status;
}

static kelp_status lines_open(struct kelp_journal *journal, struct lines *lines, const char *folder,
                              const char *name, struct kelp_error *reterr)
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
    kelp_status status = lines_lock(journal, lines, reterr);
    if (status == KELP_OK) {
        lines_unlock(lines);
    }
    return status;
}

kelp_status kelp_journal_open(const char *folder, struct kelp_journal **ret_journal,
                              struct kelp_error *reterr)
{
    struct kelp_journal *journal = calloc(1, sizeof(*journal));
    if (journal == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the journal");
    }
    journal->metrics.fd = -1;
    journal->digests.fd = -1;
    kelp_status status = lines_open(journal, &journal->metrics, folder, "metrics.jsonl", reterr);
    if (status == KELP_OK) {
        status = lines_open(journal, &journal->digests, folder, "digests.jsonl", reterr);
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
    if (journal == NULL) {
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
    free(journal);
}

/* ---- appending --------------------------------------------------------------------------------
 */

/* All of the line or nothing of it. The lock is held. */
static kelp_status put_line(struct lines *lines, const char *text, size_t text_bytes,
                            struct kelp_error *reterr)
{
    size_t done = 0;
    while (done < text_bytes) {
        ssize_t wrote = write(lines->fd, text + done, text_bytes - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote < 0) {
            int error = errno;
            (void)!ftruncate(lines->fd, (off_t)lines->bytes); /* else removed as torn next time */
            return kelp_fail(reterr,
                             error == ENOSPC || error == EDQUOT ? KELP_ERR_NO_SPACE : KELP_ERR_IO,
                             "%s: cannot write: %s", lines->path, strerror(error));
        }
        done += (size_t)wrote;
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

static void print_metrics(FILE *out, const struct kelp_record *record)
{
    const char *part = record->word.kind == KELP_STEP_EVALUATE_VAL ? "val" : "test";
    print_head(out, &record->word);
    if (record->word.kind == KELP_STEP_TRAIN) {
        (void)fprintf(out, ",\"train/loss\":");
        kelp_json_print_double(out, record->epoch_loss);
        (void)fprintf(out, ",\"lr\":");
        kelp_json_print_double(out, record->word.lr);
    } else {
        for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
            if (kelp_metrics_have(&record->metrics, i)) {
                (void)fprintf(out, ",\"%s/%s\":", part, kelp_metric_name(i));
                kelp_json_print_double(out, record->metrics.of[i]);
            }
        }
    }
    (void)fprintf(out, "}\n");
}

static void print_digest(FILE *out, const struct kelp_record *record)
{
    (void)fprintf(out,
                  "{\"version\":%" PRIu64 ",\"step\":%" PRIu64 ",\"epoch\":%u,\"digest\":\"%s\"}\n",
                  record->word.version, record->word.step, kelp_control_word_epochs(&record->word),
                  record->digest);
}

static kelp_status append_line(struct lines *lines, const struct kelp_record *record,
                               void (*print)(FILE *out, const struct kelp_record *record),
                               struct kelp_error *reterr)
{
    char text[KELP_COORDINATOR_LINE_MAX];
    FILE *out = fmemopen(text, sizeof(text), "w");
    if (out == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a line of %s", lines->path);
    }
    print(out, record);
    long length = ftell(out);
    bool whole = fclose(out) == 0 && length > 0 && (size_t)length < sizeof(text);
    assert(whole); /* a handful of numbers */
    kelp_status status = put_line(lines, text, (size_t)length, reterr);
    if (status == KELP_OK) {
        lines->any = true;
        lines->newest = record->word.version;
        lines->step = record->word.step;
    }
    return status;
}

static bool has_metrics(const struct kelp_record *record)
{
    enum kelp_step_kind kind = record->word.kind;
    return (kind == KELP_STEP_TRAIN && record->epoch_end) || kind == KELP_STEP_EVALUATE_VAL ||
           kind == KELP_STEP_EVALUATE_TEST;
}

/* Is the record newer than all lines? */
static bool is_news(const struct lines *lines, const struct kelp_record *record)
{
    return !lines->any || record->word.version > lines->newest;
}

/* The lock is held. */
static kelp_status append_digest(struct kelp_journal *journal, const struct kelp_record *record,
                                 struct kelp_error *reterr)
{
    kelp_status status = check_digest(journal, record->word.version, record->digest, reterr);
    if (status != KELP_OK || !is_news(&journal->digests, record)) {
        return status;
    }
    status = remember(journal, record->word.version, record->digest);
    if (status != KELP_OK) {
        return kelp_fail(reterr, status, "no memory for the digests on file");
    }
    status = append_line(&journal->digests, record, print_digest, reterr);
    if (status != KELP_OK) {
        journal->known_count--; /* it was the newest */
    }
    return status;
}

kelp_status kelp_journal_append(struct kelp_journal *journal, const struct kelp_record *record,
                                struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    if (record->digest[0] != '\0') {
        status = lines_lock(journal, &journal->digests, reterr);
        if (status == KELP_OK) {
            status = append_digest(journal, record, reterr);
            lines_unlock(&journal->digests);
        }
    }
    if (status == KELP_OK && has_metrics(record)) {
        status = lines_lock(journal, &journal->metrics, reterr);
        if (status == KELP_OK) {
            if (is_news(&journal->metrics, record)) {
                status = append_line(&journal->metrics, record, print_metrics, reterr);
            }
            lines_unlock(&journal->metrics);
        }
    }
    return status;
}

/* ---- forgetting -------------------------------------------------------------------------------
 */

/* What stands before the first line of that version or a later one. */
static kelp_status find_line(const struct lines *lines, uint64_t version, FILE *in,
                             struct lines *ret_rest, struct kelp_error *reterr)
{
    struct lines rest = {.fd = lines->fd};
    char *text = NULL;
    size_t capacity = 0;
    ssize_t got = 0;
    kelp_status status = KELP_OK;
    while (status == KELP_OK && rest.bytes < lines->bytes &&
           (got = getline(&text, &capacity, in)) > 0) {
        uint64_t its = 0;
        uint64_t step = 0;
        cJSON *json = NULL;
        status = parse_line(text, (size_t)got - 1, &json, &its, &step, reterr);
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
static kelp_status cut_lines(struct lines *lines, uint64_t version, struct kelp_error *reterr)
{
    struct lines rest;
    FILE *in = fopen(lines->path, "re");
    if (in == NULL) {
        return kelp_fail(reterr, KELP_ERR_IO, "%s: cannot read: %s", lines->path, strerror(errno));
    }
    kelp_status status = find_line(lines, version, in, &rest, reterr);
    (void)fclose(in);
    if (status == KELP_OK && rest.bytes < lines->bytes &&
        ftruncate(lines->fd, (off_t)rest.bytes) != 0) {
        status = kelp_fail(reterr, KELP_ERR_IO, "%s: cannot remove lines: %s", lines->path,
                           strerror(errno));
    }
    if (status == KELP_OK) {
        lines->bytes = rest.bytes;
        lines->count = rest.count;
        lines->any = rest.any;
        lines->newest = rest.newest;
        lines->step = rest.step;
    }
    return status;
}

kelp_status kelp_journal_truncate(struct kelp_journal *journal, uint64_t version,
                                  struct kelp_error *reterr)
{
    struct lines *const files[] = {&journal->metrics, &journal->digests};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(files); i++) {
        kelp_status status = lines_lock(journal, files[i], reterr);
        if (status != KELP_OK) {
            return status;
        }
        status = cut_lines(files[i], version, reterr);
        lines_unlock(files[i]);
        if (status != KELP_OK) {
            return status;
        }
    }
    journal->known_count = known_index(journal, version);
    return KELP_OK;
}

/* Is the newest line of an entry that this job does not have there, since it goes on? Evaluations
 * that were made because training ended, and FINISH; not when train.patience may have ended it. */
static bool is_of_shorter(const struct kelp_journal *journal, const struct lines *lines,
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
                                  const struct kelp_plan *plan, struct kelp_error *reterr)
{
    const struct lines *const files[] = {&journal->metrics, &journal->digests};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(files); i++) {
        if (is_of_shorter(journal, files[i], job, plan)) {
            return kelp_journal_truncate(
                journal, kelp_control_version_after(job, plan, files[i]->step), reterr);
        }
    }
    return KELP_OK;
}

bool kelp_journal_evaluated(const struct kelp_journal *journal, uint64_t step,
                            double ret_metric[KELP_CHECKPOINT_METRICS])
{
    for (size_t i = journal->evaluation_count; i-- > 0;) {
        if (journal->evaluations[i].step == step) {
            memcpy(ret_metric, journal->evaluations[i].metric,
                   sizeof(journal->evaluations[i].metric));
            return true;
        }
    }
    return false;
}

bool kelp_journal_latest(const struct kelp_journal *journal, enum kelp_split part,
                         struct kelp_record *ret_record)
{
    if (journal->seen[part]) {
        *ret_record = journal->latest[part];
    }
    return journal->seen[part];
}

bool kelp_journal_digest(const struct kelp_journal *journal, char ret_digest[33],
                         uint64_t *ret_step)
{
    if (journal->known_count == 0) {
        return false;
    }
    memcpy(ret_digest, journal->known[journal->known_count - 1].digest, DIGEST_CHARS + 1);
    *ret_step = journal->digests.step;
    return true;
}

uint64_t kelp_journal_step(const struct kelp_journal *journal)
{
    uint64_t metrics = journal->metrics.any ? journal->metrics.step : 0;
    uint64_t digests = journal->digests.any ? journal->digests.step : 0;
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
