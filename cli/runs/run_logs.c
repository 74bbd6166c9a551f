#include "cli/runs/run_logs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/run/run_dir.h"
#include "common/base/files.h"
#include "common/base/text.h"
#include "common/program/options/options.h"

#define NAME_MAX_BYTES 63

/* One log; its next line lies in the buffer at [start, start + line_bytes). */
struct source {
    char name[NAME_MAX_BYTES + 1];
    int fd;
    char *buffer; /* owned; KELP_RUN_LOG_LINE_MAX bytes */
    size_t start, end;
    size_t line_bytes;                    /* with its line break; 0: none is there */
    char time[KELP_RUN_LOG_TIME_MAX + 1]; /* of the next line, or of one before it */
};

struct kelp_run_logs {
    char folder[KELP_RUN_PATH_MAX + 64];
    const char *const *names; /* borrowed */
    size_t name_count;
    struct source *sources; /* owned */
    size_t count, capacity;
};

/* Lines go here. */
struct sink {
    void (*take)(void *user, const char *line, size_t line_bytes);
    void *user;
};

/* ---- times --------------------------------------------------------------------------------- */

/* "2026-01-31T12:00:00.123" */
static bool is_time(const char *text, size_t bytes)
{
    static const char shape[] = "0000-00-00T00:00:00.000";

    for (size_t i = 0; i < sizeof(shape) - 1; i++) {
        bool digit = i < bytes && text[i] >= '0' && text[i] <= '9';
        if (i >= bytes || (shape[i] == '0' ? !digit : text[i] != shape[i])) {
            return false;
        }
    }
    return true;
}

bool kelp_run_log_time(const char *line, size_t line_bytes,
                       char ret_time[KELP_RUN_LOG_TIME_MAX + 1])
{
    static const char member[] = "\"ts\":\"";
    const char *at = line;

    if (line_bytes > 0 && line[0] == '{') {
        at = memmem(line, line_bytes, member, sizeof(member) - 1);
        if (!at) {
            return false;
        }
        at += sizeof(member) - 1;
    }
    if (!is_time(at, (size_t)(line + line_bytes - at))) {
        return false;
    }
    memcpy(ret_time, at, KELP_RUN_LOG_TIME_MAX);
    ret_time[KELP_RUN_LOG_TIME_MAX] = '\0';
    return true;
}

/* ---- sources ------------------------------------------------------------------------------- */

/* Is it "worker", "worker-0"? */
static bool fits(const char *name, const char *wanted)
{
    size_t length = strlen(wanted);

    return strncmp(name, wanted, length) == 0 && (name[length] == '\0' || name[length] == '-');
}

static bool is_wanted(const struct kelp_run_logs *logs, const char *name)
{
    if (logs->name_count == 0) {
        return strcmp(name, "etcd") != 0 && strcmp(name, "train") != 0;
    }
    for (size_t i = 0; i < logs->name_count; i++) {
        if (fits(name, logs->names[i])) {
            return true;
        }
    }
    return false;
}

static bool is_open(const struct kelp_run_logs *logs, const char *name)
{
    for (size_t i = 0; i < logs->count; i++) {
        if (strcmp(logs->sources[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static kelp_status make_room(struct kelp_run_logs *logs, struct kelp_error *reterr)
{
    if (logs->count < logs->capacity) {
        return KELP_OK;
    }
    if (logs->count == KELP_RUN_LOGS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d logs; name the processes",
                         KELP_RUN_LOGS_MAX);
    }
    size_t capacity = logs->capacity == 0 ? 16 : 2 * logs->capacity;
    struct source *sources = realloc(logs->sources, capacity * sizeof(*sources));
    if (!sources) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    logs->sources = sources;
    logs->capacity = capacity;
    return KELP_OK;
}

static kelp_status open_source(struct kelp_run_logs *logs, const char *name,
                               struct kelp_error *reterr)
{
    char path[sizeof(logs->folder) + NAME_MAX_BYTES + 8];
    struct source source = {.fd = -1};

    kelp_status status = make_room(logs, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(source.name, sizeof(source.name), "%s", name);
    (void)snprintf(path, sizeof(path), "%s/%s.log", logs->folder, name);
    source.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (source.fd < 0) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    source.buffer = malloc(KELP_RUN_LOG_LINE_MAX);
    if (!source.buffer) {
        (void)close(source.fd);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    logs->sources[logs->count++] = source;
    return KELP_OK;
}

/* "worker-0" of "worker-0.log"; false: another file. */
static bool process_of(const char *file, char ret_name[NAME_MAX_BYTES + 1])
{
    size_t length = strlen(file);

    if (length < 5 || length - 4 > NAME_MAX_BYTES || strcmp(file + length - 4, ".log") != 0) {
        return false;
    }
    memcpy(ret_name, file, length - 4);
    ret_name[length - 4] = '\0';
    return true;
}

/* Call see(name) for each process that has a log. */
static kelp_status each_process(const struct kelp_run_logs *logs,
                                kelp_status (*see)(void *user, const char *name,
                                                   struct kelp_error *reterr),
                                void *user, struct kelp_error *reterr)
{
    char name[NAME_MAX_BYTES + 1];
    DIR *stream = opendir(logs->folder);
    kelp_status status = KELP_OK;

    if (!stream) {
        return kelp_files_error(errno, "open folder", logs->folder, reterr);
    }
    for (struct dirent *entry = readdir(stream); entry && status == KELP_OK;
         entry = readdir(stream)) {
        if (process_of(entry->d_name, name)) {
            status = see(user, name, reterr);
        }
    }
    (void)closedir(stream);
    return status;
}

static kelp_status open_process(void *user, const char *name, struct kelp_error *reterr)
{
    struct kelp_run_logs *logs = user;

    return is_wanted(logs, name) && !is_open(logs, name) ? open_source(logs, name, reterr)
                                                         : KELP_OK;
}

struct known {
    char names[64][NAME_MAX_BYTES + 1];
    size_t count;
};

static kelp_status note_process(void *user, const char *name, struct kelp_error *reterr)
{
    struct known *known = user;

    (void)reterr;
    if (known->count < KELP_ARRAY_COUNT(known->names)) {
        (void)snprintf(known->names[known->count++], NAME_MAX_BYTES + 1, "%s", name);
    }
    return KELP_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* No process has that name: say which there are. */
static kelp_status unknown(const struct kelp_run_logs *logs, const char *wanted,
                           struct kelp_error *reterr)
{
    struct known known = {.count = 0};
    char text[256] = "";

    kelp_status status = each_process(logs, note_process, &known, reterr);
    if (status != KELP_OK) {
        return status;
    }
    qsort(known.names, known.count, sizeof(known.names[0]), by_name);
    for (size_t i = 0; i < known.count; i++) {
        kelp_text_list_add(text, sizeof(text), known.names[i]);
    }
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "%s has no log of '%.40s'; there are: %s",
                     logs->folder, wanted, text);
}

static kelp_status check_names(const struct kelp_run_logs *logs, struct kelp_error *reterr)
{
    for (size_t i = 0; i < logs->name_count; i++) {
        bool found = false;
        for (size_t s = 0; s < logs->count && !found; s++) {
            found = fits(logs->sources[s].name, logs->names[i]);
        }
        if (!found) {
            return unknown(logs, logs->names[i], reterr);
        }
    }
    return KELP_OK;
}

kelp_status kelp_run_logs_open(const char *run_path, const char *const *names, size_t name_count,
                               struct kelp_run_logs **ret_logs, struct kelp_error *reterr)
{
    struct kelp_run_logs *logs = calloc(1, sizeof(*logs));

    if (!logs) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    logs->names = names;
    logs->name_count = name_count;
    kelp_status status =
        kelp_run_dir_path(run_path, "logs", logs->folder, sizeof(logs->folder), reterr);
    if (status == KELP_OK) {
        status = each_process(logs, open_process, logs, reterr);
    }
    if (status == KELP_OK) {
        status = check_names(logs, reterr);
    }
    if (status != KELP_OK) {
        kelp_run_logs_close(logs);
        return status;
    }
    *ret_logs = logs;
    return KELP_OK;
}

void kelp_run_logs_close(struct kelp_run_logs *logs)
{
    if (!logs) {
        return;
    }
    for (size_t i = 0; i < logs->count; i++) {
        (void)close(logs->sources[i].fd);
        free(logs->sources[i].buffer);
    }
    free(logs->sources);
    free(logs);
}

/* ---- lines --------------------------------------------------------------------------------- */

/* More of the file into the buffer; false at its end. */
static bool fill(struct source *source)
{
    memmove(source->buffer, source->buffer + source->start, source->end - source->start);
    source->end -= source->start;
    source->start = 0;
    ssize_t got =
        read(source->fd, source->buffer + source->end, KELP_RUN_LOG_LINE_MAX - source->end);
    source->end += got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* Find the next line; false when there is none (yet). */
static bool next_line(struct source *source, bool last)
{
    for (;;) {
        char *start = source->buffer + source->start;
        size_t held = source->end - source->start;
        const char *end = memchr(start, '\n', held);
        if (end) {
            source->line_bytes = (size_t)(end - start) + 1;
            break;
        }
        if (held == KELP_RUN_LOG_LINE_MAX) {
            source->line_bytes = held;
            break;
        }
        if (!fill(source)) {
            source->line_bytes = last ? held : 0;
            break;
        }
    }
    if (source->line_bytes > 0) {
        (void)kelp_run_log_time(source->buffer + source->start, source->line_bytes, source->time);
    }
    return source->line_bytes > 0;
}

/* The source whose next line is the oldest, or NULL. */
static struct source *oldest(struct kelp_run_logs *logs, bool last)
{
    struct source *found = NULL;

    for (size_t i = 0; i < logs->count; i++) {
        struct source *source = &logs->sources[i];
        if (source->line_bytes == 0 && !next_line(source, last)) {
            continue;
        }
        int order = found ? strcmp(source->time, found->time) : -1;
        if (order < 0 || (order == 0 && strcmp(source->name, found->name) < 0)) {
            found = source;
        }
    }
    return found;
}

static kelp_status merge(struct kelp_run_logs *logs, bool last, const struct sink *sink,
                         struct kelp_error *reterr)
{
    kelp_status status = each_process(logs, open_process, logs, reterr);

    if (status != KELP_OK) {
        return status;
    }
    for (struct source *source = oldest(logs, last); source; source = oldest(logs, last)) {
        sink->take(sink->user, source->buffer + source->start, source->line_bytes);
        source->start += source->line_bytes;
        source->line_bytes = 0;
    }
    return KELP_OK;
}

static void print_line(void *user, const char *line, size_t line_bytes)
{
    FILE *out = user;

    (void)fwrite(line, 1, line_bytes, out);
    if (line[line_bytes - 1] != '\n') {
        (void)fputc('\n', out);
    }
}

static kelp_status flush(FILE *out, struct kelp_error *reterr)
{
    return fflush(out) == 0 && !ferror(out)
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "cannot write to standard output");
}

kelp_status kelp_run_logs_print(struct kelp_run_logs *logs, bool last, FILE *out,
                                struct kelp_error *reterr)
{
    struct sink sink = {.take = print_line, .user = out};
    kelp_status status = merge(logs, last, &sink, reterr);

    return status == KELP_OK ? flush(out, reterr) : status;
}

/* ---- the newest lines ---------------------------------------------------------------------- */

struct ring {
    char **lines; /* owned, each with a NUL */
    uint32_t capacity;
    uint64_t taken; /* the next one goes to taken % capacity */
    bool no_memory;
};

static void keep_line(void *user, const char *line, size_t line_bytes)
{
    struct ring *ring = user;
    char **place = &ring->lines[ring->taken++ % ring->capacity];

    free(*place);
    *place = strndup(line, line_bytes);
    ring->no_memory = ring->no_memory || !*place;
}

kelp_status kelp_run_logs_print_last(struct kelp_run_logs *logs, uint32_t count, bool last,
                                     FILE *out, struct kelp_error *reterr)
{
    struct ring ring = {.lines = calloc(count, sizeof(char *)), .capacity = count};
    struct sink sink = {.take = keep_line, .user = &ring};

    if (!ring.lines) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = merge(logs, last, &sink, reterr);
    if (status == KELP_OK && ring.no_memory) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < count; i++) {
        char *line = ring.lines[(ring.taken + i) % count]; /* the oldest first */
        if (status == KELP_OK && line && line[0]) {
            print_line(out, line, strlen(line));
        }
        free(line);
    }
    free(ring.lines);
    return status == KELP_OK ? flush(out, reterr) : status;
}
