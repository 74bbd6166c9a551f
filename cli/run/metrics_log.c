#include "cli/run/metrics_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run/run_dir.h"
#include "common/base/files.h"
#include "common/base/json.h"

#define FILE_NAME "metrics.jsonl"

/* The items with room for one more, or NULL; they stay as they are then. */
static void *with_room(void *items, size_t *capacity, size_t count, size_t item_bytes)
{
    if (count < *capacity) {
        return items;
    }
    size_t wanted = *capacity == 0 ? 256 : 2 * *capacity;
    void *grown = realloc(items, wanted * item_bytes);
    if (grown) {
        *capacity = wanted;
    }
    return grown;
}

static kelp_status no_memory(struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static kelp_status name_index(struct kelp_metrics_log *log, const char *name, uint32_t *ret_index,
                              struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < log->name_count; i++) {
        if (strcmp(log->names[i], name) == 0) {
            *ret_index = i;
            return KELP_OK;
        }
    }
    size_t length = strlen(name);
    if (log->name_count == KELP_METRICS_LOG_NAMES_MAX || length > KELP_METRICS_LOG_NAME_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "'%.40s': at most %d metrics with names of at most %d bytes are read",
                         name, KELP_METRICS_LOG_NAMES_MAX, KELP_METRICS_LOG_NAME_MAX);
    }
    memcpy(log->names[log->name_count], name, length + 1);
    *ret_index = log->name_count++;
    return KELP_OK;
}

static kelp_status add_cell(struct kelp_metrics_log *log, const cJSON *item,
                            struct kelp_metrics_row *row, struct kelp_error *reterr)
{
    struct kelp_metrics_cell cell = {.value =
                                         cJSON_IsNumber(item) ? item->valuedouble : (double)NAN};

    kelp_status status = name_index(log, item->string, &cell.name, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_metrics_cell *cells =
        with_room(log->cells, &log->cell_capacity, log->cell_count, sizeof(*cells));
    if (!cells) {
        return no_memory(reterr);
    }
    log->cells = cells;
    log->cells[log->cell_count++] = cell;
    row->cell_count++;
    return KELP_OK;
}

/* Version and epoch are there in what a coordinator writes; the step must be. */
static kelp_status read_place(const cJSON *json, struct kelp_metrics_row *row,
                              struct kelp_error *reterr)
{
    kelp_status status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &row->step, reterr);

    if (status == KELP_OK && cJSON_HasObjectItem(json, "version")) {
        status = kelp_json_u64(json, "version", KELP_JSON_INTEGER_MAX, &row->version, reterr);
    }
    if (status == KELP_OK && cJSON_HasObjectItem(json, "epoch")) {
        status = kelp_json_u32(json, "epoch", UINT32_MAX, &row->epoch, reterr);
    }
    return status;
}

static bool is_place(const char *name)
{
    return strcmp(name, "version") == 0 || strcmp(name, "step") == 0 || strcmp(name, "epoch") == 0;
}

static kelp_status add_row(struct kelp_metrics_log *log, const struct kelp_metrics_row *row,
                           struct kelp_error *reterr)
{
    struct kelp_metrics_row *rows =
        with_room(log->rows, &log->row_capacity, log->row_count, sizeof(*rows));

    if (!rows) {
        return no_memory(reterr);
    }
    log->rows = rows;
    log->rows[log->row_count++] = *row;
    return KELP_OK;
}

static kelp_status add_line(struct kelp_metrics_log *log, const char *text, size_t bytes,
                            struct kelp_error *reterr)
{
    struct kelp_metrics_row row = {.cell_first = log->cell_count};
    cJSON *json = NULL;

    kelp_status status = kelp_json_parse(text, bytes, &json, reterr);
    if (status == KELP_OK) {
        status = read_place(json, &row, reterr);
    }
    for (const cJSON *item = json ? json->child : NULL; status == KELP_OK && item;
         item = item->next) {
        if ((cJSON_IsNumber(item) || cJSON_IsNull(item)) && !is_place(item->string)) {
            status = add_cell(log, item, &row, reterr);
        }
    }
    cJSON_Delete(json);
    if (status == KELP_OK) {
        status = add_row(log, &row, reterr);
    }
    if (status != KELP_OK) {
        log->cell_count = row.cell_first;
    }
    return status;
}

static bool damaged(kelp_status status)
{
    return status != KELP_OK && status != KELP_ERR_NO_MEMORY && status != KELP_ERR_LIMIT;
}

/* path: for errors; NULL: lines that cannot be read are left out. */
static kelp_status read_lines(struct kelp_metrics_log *log, const char *path, const char *text,
                              size_t bytes, struct kelp_error *reterr)
{
    const char *past = text + bytes;
    unsigned number = 1;

    for (const char *end; text < past && (end = memchr(text, '\n', (size_t)(past - text))) != NULL;
         text = end + 1, number++) {
        kelp_status status = add_line(log, text, (size_t)(end - text), reterr);
        if (status == KELP_OK || (!path && damaged(status))) {
            continue;
        }
        kelp_error_prefix(reterr, "%s:%u", path ? path : FILE_NAME, number);
        return damaged(status) ? KELP_ERR_CORRUPT : status;
    }
    return KELP_OK;
}

/* The file's end, in which the first line may be cut off. *ret_text is owned (free()). */
static kelp_status read_end(const char *path, char **ret_text, size_t *ret_bytes,
                            struct kelp_error *reterr)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
        int error = fd < 0 ? errno : EIO;
        if (fd >= 0) {
            (void)close(fd);
        }
        return kelp_files_error(error, "read", path, reterr);
    }
    off_t from =
        info.st_size > KELP_METRICS_LOG_END_BYTES ? info.st_size - KELP_METRICS_LOG_END_BYTES : 0;
    char *text = malloc(KELP_METRICS_LOG_END_BYTES);
    ssize_t got = text ? pread(fd, text, KELP_METRICS_LOG_END_BYTES, from) : -1;
    int error = text ? errno : ENOMEM;
    (void)close(fd);
    if (got < 0) {
        free(text);
        return kelp_files_error(error, "read", path, reterr);
    }
    *ret_text = text;
    *ret_bytes = (size_t)got;
    return KELP_OK;
}

static kelp_status read_all(const char *path, char **ret_text, size_t *ret_bytes,
                            struct kelp_error *reterr)
{
    return kelp_files_read(path, KELP_METRICS_LOG_FILE_MAX, ret_text, ret_bytes, reterr);
}

/* strict: a line that cannot be read is an error, and not left out. */
static kelp_status read_log(const char *run_path,
                            kelp_status (*read)(const char *path, char **ret_text,
                                                size_t *ret_bytes, struct kelp_error *reterr),
                            bool strict, struct kelp_metrics_log *ret_log,
                            struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char *text = NULL;
    size_t bytes = 0;

    memset(ret_log, 0, sizeof(*ret_log));
    kelp_status status = kelp_run_dir_path(run_path, FILE_NAME, path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = read(path, &text, &bytes, reterr);
    }
    if (status == KELP_OK) {
        status = read_lines(ret_log, strict ? path : NULL, text, bytes, reterr);
    }
    free(text);
    if (status != KELP_OK) {
        kelp_metrics_log_fini(ret_log);
    }
    return status;
}

kelp_status kelp_metrics_log_read(const char *run_path, struct kelp_metrics_log *ret_log,
                                  struct kelp_error *reterr)
{
    return read_log(run_path, read_all, true, ret_log, reterr);
}

kelp_status kelp_metrics_log_read_end(const char *run_path, struct kelp_metrics_log *ret_log,
                                      struct kelp_error *reterr)
{
    return read_log(run_path, read_end, false, ret_log, reterr);
}

void kelp_metrics_log_fini(struct kelp_metrics_log *log)
{
    free(log->rows);
    free(log->cells);
    memset(log, 0, sizeof(*log));
}

const struct kelp_metrics_cell *kelp_metrics_log_cell(const struct kelp_metrics_log *log,
                                                      const struct kelp_metrics_row *row,
                                                      const char *name)
{
    for (uint32_t i = 0; i < row->cell_count; i++) {
        const struct kelp_metrics_cell *cell = &log->cells[row->cell_first + i];
        if (strcmp(log->names[cell->name], name) == 0) {
            return cell;
        }
    }
    return NULL;
}
