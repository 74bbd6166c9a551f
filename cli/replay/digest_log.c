#include "cli/replay/digest_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/run_dir.h"
#include "common/base/json.h"

#define LOG_NAME "digests.jsonl"

/* It is printed where two differ, so it is looked at. */
static bool is_digest(const char *text)
{
    return strspn(text, "0123456789abcdef") == KELP_DIGEST_HEX_BYTES - 1;
}

static kelp_status parse_line(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_digest_log_line *line = into;
    kelp_status status =
        kelp_json_u64(json, "version", KELP_JSON_INTEGER_MAX, &line->version, reterr);

    if (status == KELP_OK) {
        status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &line->step, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u32(json, "epoch", UINT32_MAX, &line->epoch, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "digest", line->digest, sizeof(line->digest), reterr);
    }
    if (status == KELP_OK && !is_digest(line->digest)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "'digest' must be 32 hexadecimal digits");
    }
    return status;
}

static kelp_status add_line(struct kelp_digest_log *log, size_t *capacity,
                            const struct kelp_digest_log_line *line, struct kelp_error *reterr)
{
    if (log->count == *capacity) {
        size_t wanted = *capacity == 0 ? 256 : 2 * *capacity;
        struct kelp_digest_log_line *lines = realloc(log->lines, wanted * sizeof(*lines));
        if (!lines) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        log->lines = lines;
        *capacity = wanted;
    }
    log->lines[log->count++] = *line;
    return KELP_OK;
}

static int by_version(const void *a, const void *b)
{
    uint64_t left = ((const struct kelp_digest_log_line *)a)->version;
    uint64_t right = ((const struct kelp_digest_log_line *)b)->version;

    return left < right ? -1 : left > right;
}

/* Two leaders may have written one version each: once is enough, if they agree. */
static kelp_status sort_and_unite(struct kelp_digest_log *log, struct kelp_error *reterr)
{
    size_t kept = 0;

    if (log->count == 0) {
        return KELP_OK;
    }
    qsort(log->lines, log->count, sizeof(*log->lines), by_version);
    for (size_t i = 1; i < log->count; i++) {
        const struct kelp_digest_log_line *line = &log->lines[i];
        if (line->version != log->lines[kept].version) {
            log->lines[++kept] = *line;
        } else if (strcmp(line->digest, log->lines[kept].digest) != 0 ||
                   line->step != log->lines[kept].step) {
            return kelp_fail(reterr, KELP_ERR_CORRUPT,
                             "version %" PRIu64 " is there twice: step %" PRIu64
                             " with digest %s, step %" PRIu64 " with digest %s",
                             line->version, log->lines[kept].step, log->lines[kept].digest,
                             line->step, line->digest);
        }
    }
    log->count = kept + 1;
    for (size_t i = 1; i < log->count; i++) {
        if (log->lines[i].step < log->lines[i - 1].step) {
            return kelp_fail(reterr, KELP_ERR_CORRUPT,
                             "version %" PRIu64 " has a smaller step than version %" PRIu64,
                             log->lines[i].version, log->lines[i - 1].version);
        }
    }
    return KELP_OK;
}

static kelp_status read_lines(FILE *in, struct kelp_digest_log *log, struct kelp_error *reterr)
{
    char text[1024];
    size_t capacity = 0;
    uint64_t number = 0;

    while (fgets(text, sizeof(text), in)) {
        struct kelp_digest_log_line line;
        size_t length = strlen(text);
        number++;
        if (length == 0 || text[length - 1] != '\n') {
            if (feof(in)) {
                break; /* incomplete: a resumed run writes it again */
            }
            return kelp_fail(reterr, KELP_ERR_CORRUPT, "line %" PRIu64 " is not a digest record",
                             number);
        }
        kelp_status status = kelp_json_read(text, length, parse_line, &line, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "line %" PRIu64, number);
            return KELP_ERR_CORRUPT;
        }
        status = add_line(log, &capacity, &line, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return ferror(in) ? kelp_fail(reterr, KELP_ERR_IO, "%s", strerror(errno)) : KELP_OK;
}

kelp_status kelp_digest_log_read(const char *run_path, struct kelp_digest_log *ret_log,
                                 struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    struct kelp_digest_log log = {.count = 0};

    kelp_status status = kelp_run_dir_path(run_path, LOG_NAME, path, sizeof(path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    FILE *in = fopen(path, "re");
    if (!in) {
        return kelp_fail(reterr, errno == ENOENT ? KELP_ERR_NOT_FOUND : KELP_ERR_IO,
                         "cannot open '%s': %s", path, strerror(errno));
    }
    status = read_lines(in, &log, reterr);
    (void)fclose(in);
    if (status == KELP_OK) {
        status = sort_and_unite(&log, reterr);
    }
    if (status != KELP_OK) {
        kelp_digest_log_fini(&log);
        kelp_error_prefix(reterr, "%s", path);
        return status;
    }
    *ret_log = log;
    return KELP_OK;
}

void kelp_digest_log_fini(struct kelp_digest_log *log)
{
    free(log->lines);
    memset(log, 0, sizeof(*log));
}

const struct kelp_digest_log_line *kelp_digest_log_find(const struct kelp_digest_log *log,
                                                        uint64_t step, uint64_t version)
{
    size_t low = 0;
    size_t high = log->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (log->lines[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == log->count || log->lines[low].step != step) {
        return NULL;
    }
    for (size_t i = low; i < log->count && log->lines[i].step == step; i++) {
        if (log->lines[i].version == version) {
            return &log->lines[i];
        }
    }
    return &log->lines[low];
}

void kelp_digest_log_compare(const struct kelp_digest_log *a, const struct kelp_digest_log *b,
                             struct kelp_digest_log_comparison *ret_comparison)
{
    struct kelp_digest_log_comparison comparison = {.common = 0};

    for (size_t i = 0; i < a->count; i++) {
        const struct kelp_digest_log_line *line = &a->lines[i];
        const struct kelp_digest_log_line *other =
            kelp_digest_log_find(b, line->step, line->version);
        if (!other) {
            continue;
        }
        comparison.common++;
        if (strcmp(line->digest, other->digest) != 0) {
            comparison.a = line;
            comparison.b = other;
            break;
        }
        comparison.any_equal = true;
        comparison.equal_step = line->step;
    }
    *ret_comparison = comparison;
}
