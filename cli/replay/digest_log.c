#include "cli/replay/digest_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/run_dir.h"
#include "common/base/json.h"

#define TRAIL_NAME "digests.jsonl"

static kelp_status parse_line(const char *text, size_t text_bytes, struct kelp_trail_line *line,
                              struct kelp_error *reterr)
{
    cJSON *json = NULL;

    kelp_status status = kelp_json_parse(text, text_bytes, &json, reterr);
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "version", KELP_JSON_INTEGER_MAX, &line->version, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &line->step, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u32(json, "epoch", UINT32_MAX, &line->epoch, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "digest", line->digest, sizeof(line->digest), reterr);
    }
    cJSON_Delete(json);
    return status;
}

static kelp_status add_line(struct kelp_trail *trail, size_t *capacity,
                            const struct kelp_trail_line *line, struct kelp_error *reterr)
{
    if (trail->count == *capacity) {
        size_t wanted = *capacity == 0 ? 256 : 2 * *capacity;
        struct kelp_trail_line *lines = realloc(trail->lines, wanted * sizeof(*lines));
        if (!lines) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        trail->lines = lines;
        *capacity = wanted;
    }
    trail->lines[trail->count++] = *line;
    return KELP_OK;
}

static int by_version(const void *a, const void *b)
{
    uint64_t left = ((const struct kelp_trail_line *)a)->version;
    uint64_t right = ((const struct kelp_trail_line *)b)->version;

    return left < right ? -1 : left > right;
}

/* Two leaders may have written one version each: once is enough, if they agree. */
static kelp_status sort_and_unite(struct kelp_trail *trail, struct kelp_error *reterr)
{
    size_t kept = 0;

    if (trail->count == 0) {
        return KELP_OK;
    }
    qsort(trail->lines, trail->count, sizeof(*trail->lines), by_version);
    for (size_t i = 1; i < trail->count; i++) {
        const struct kelp_trail_line *line = &trail->lines[i];
        if (line->version != trail->lines[kept].version) {
            trail->lines[++kept] = *line;
        } else if (strcmp(line->digest, trail->lines[kept].digest) != 0 ||
                   line->step != trail->lines[kept].step) {
            return kelp_fail(reterr, KELP_ERR_CORRUPT,
                             "version %" PRIu64 " is there twice: step %" PRIu64
                             " with digest %s, step %" PRIu64 " with digest %s",
                             line->version, trail->lines[kept].step, trail->lines[kept].digest,
                             line->step, line->digest);
        }
    }
    trail->count = kept + 1;
    for (size_t i = 1; i < trail->count; i++) {
        if (trail->lines[i].step < trail->lines[i - 1].step) {
            return kelp_fail(reterr, KELP_ERR_CORRUPT,
                             "version %" PRIu64 " has a smaller step than version %" PRIu64,
                             trail->lines[i].version, trail->lines[i - 1].version);
        }
    }
    return KELP_OK;
}

static kelp_status read_lines(FILE *in, struct kelp_trail *trail, struct kelp_error *reterr)
{
    char text[1024];
    size_t capacity = 0;
    uint64_t number = 0;

    while (fgets(text, sizeof(text), in)) {
        struct kelp_trail_line line;
        size_t length = strlen(text);
        number++;
        if (length == 0 || text[length - 1] != '\n') {
            if (feof(in)) {
                break; /* not whole yet, or cut off: whoever goes on with the run writes it again */
            }
            return kelp_fail(reterr, KELP_ERR_CORRUPT, "line %" PRIu64 " is no record of a digest",
                             number);
        }
        kelp_status status = parse_line(text, length, &line, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "line %" PRIu64, number);
            return KELP_ERR_CORRUPT;
        }
        status = add_line(trail, &capacity, &line, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return ferror(in) ? kelp_fail(reterr, KELP_ERR_IO, "%s", strerror(errno)) : KELP_OK;
}

kelp_status kelp_trail_read(const char *run_path, struct kelp_trail *ret_trail,
                            struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    struct kelp_trail trail = {.count = 0};

    kelp_status status = kelp_run_dir_path(run_path, TRAIL_NAME, path, sizeof(path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    FILE *in = fopen(path, "re");
    if (!in) {
        return kelp_fail(reterr, errno == ENOENT ? KELP_ERR_NOT_FOUND : KELP_ERR_IO,
                         "cannot open '%s': %s", path, strerror(errno));
    }
    status = read_lines(in, &trail, reterr);
    (void)fclose(in);
    if (status == KELP_OK) {
        status = sort_and_unite(&trail, reterr);
    }
    if (status != KELP_OK) {
        kelp_trail_fini(&trail);
        kelp_error_prefix(reterr, "%s", path);
        return status;
    }
    *ret_trail = trail;
    return KELP_OK;
}

void kelp_trail_fini(struct kelp_trail *trail)
{
    free(trail->lines);
    memset(trail, 0, sizeof(*trail));
}

const struct kelp_trail_line *kelp_trail_find(const struct kelp_trail *trail, uint64_t step,
                                              uint64_t version)
{
    size_t low = 0;
    size_t high = trail->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (trail->lines[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == trail->count || trail->lines[low].step != step) {
        return NULL;
    }
    for (size_t i = low; i < trail->count && trail->lines[i].step == step; i++) {
        if (trail->lines[i].version == version) {
            return &trail->lines[i];
        }
    }
    return &trail->lines[low];
}

void kelp_trail_compare(const struct kelp_trail *a, const struct kelp_trail *b,
                        struct kelp_trail_comparison *ret_comparison)
{
    struct kelp_trail_comparison comparison = {.common = 0};

    for (size_t i = 0; i < a->count; i++) {
        const struct kelp_trail_line *line = &a->lines[i];
        const struct kelp_trail_line *other = kelp_trail_find(b, line->step, line->version);
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
