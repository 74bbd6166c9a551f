#include "cli/runs/run_events.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/files.h"
#include "common/base/json.h"

/* ---- a line for people --------------------------------------------------------------------- */

/* Names and reasons come from other processes. */
static void print_plain(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        (void)fputc(byte < 0x20 || byte == 0x7f ? ' ' : byte, out);
    }
}

static const char *text_of(const cJSON *json, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static bool number_of(const cJSON *json, const char *name, uint64_t *ret_number)
{
    return cJSON_HasObjectItem(json, name) &&
           kelp_json_u64(json, name, KELP_JSON_INTEGER_MAX, ret_number, NULL) == KELP_OK;
}

/* What stands behind who it is about. */
static void print_facts(const cJSON *json, const char *event, FILE *out)
{
    bool of_map = strcmp(event, "generation") == 0 || strcmp(event, "loaded") == 0 ||
                  strcmp(event, "promoted") == 0 || strcmp(event, "moved") == 0;
    uint64_t number = 0;
    if (of_map && number_of(json, "generation", &number)) {
        (void)fprintf(out, " generation %" PRIu64, number);
        if (number_of(json, "serial", &number) && number > 1) {
            (void)fprintf(out, ".%" PRIu64, number);
        }
    }
    if (number_of(json, "step", &number)) {
        (void)fprintf(out, "%s step %" PRIu64, of_map ? " from" : "", number);
    }
    if (number_of(json, "recomputed", &number)) {
        (void)fprintf(out, ", %" PRIu64 " computed again", number);
    }
}

bool kelp_run_event_text(const char *line, size_t line_bytes, FILE *out)
{
    cJSON *json = NULL;
    uint64_t took_ms = 0;
    if (kelp_json_parse(line, line_bytes, &json, NULL) != KELP_OK) {
        return false;
    }
    const char *event = text_of(json, "event");
    bool of_leader = strncmp(event, "leader", strlen("leader")) == 0;
    const char *who = text_of(json, of_leader ? "leader" : "who");
    const char *why = text_of(json, "why");
    print_plain(out, text_of(json, "time"));
    (void)fputc(' ', out);
    print_plain(out, event);
    for (size_t used = strlen(event); used < KELP_RUN_EVENT_COLUMNS; used++) {
        (void)fputc(' ', out);
    }
    if (who[0] != '\0') {
        (void)fputc(' ', out);
        print_plain(out, who);
    }
    print_facts(json, event, out);
    if (why[0] != '\0') {
        (void)fputs(": ", out);
        print_plain(out, why);
    }
    if (number_of(json, "took_ms", &took_ms)) {
        (void)fprintf(out, " (%.3f s)", (double)took_ms / 1000);
    }
    (void)fputc('\n', out);
    cJSON_Delete(json);
    return true;
}

/* ---- the files ----------------------------------------------------------------------------- */

kelp_status kelp_run_events_open(struct kelp_run_events *events, const char *run_path, bool json,
                                 struct kelp_error *reterr)
{
    *events = (struct kelp_run_events){.json = json};
    kelp_status status =
        kelp_run_dir_path(run_path, "events.jsonl", events->path, sizeof(events->path), reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_path(run_path, "events.jsonl.1", events->older, sizeof(events->older),
                                   reterr);
    }
    return status;
}

static void print_line(const struct kelp_run_events *events, const char *line, size_t bytes,
                       FILE *out)
{
    if (events->json) {
        (void)fwrite(line, 1, bytes, out);
    } else {
        (void)kelp_run_event_text(line, bytes - 1, out);
    }
}

/* What is counted or printed on a way through a file. */
struct reading {
    const struct kelp_run_events *events;
    uint64_t lines; /* whole ones so far */
    uint64_t skip;  /* of them that are not printed */
    FILE *out;      /* NULL: they are counted */
};

/* Whole lines from *offset on, which comes to stand behind them. A file that is not there has none.
 */
static kelp_status read_file(struct reading *reading, const char *path, uint64_t *offset,
                             uint64_t *ret_inode, struct kelp_error *reterr)
{
    struct stat info;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t got = 0;
    FILE *in = fopen(path, "re");
    if (!in) {
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "open", path, reterr);
    }
    if (fstat(fileno(in), &info) != 0 || fseeko(in, (off_t)*offset, SEEK_SET) != 0) {
        kelp_status status = kelp_files_error(errno, "read", path, reterr);
        (void)fclose(in);
        return status;
    }
    while ((got = getline(&line, &capacity, in)) > 0 && line[got - 1] == '\n') {
        *offset += (uint64_t)got;
        if (got <= KELP_RUN_EVENT_MAX && reading->lines++ >= reading->skip && reading->out) {
            print_line(reading->events, line, (size_t)got, reading->out);
        }
    }
    *ret_inode = (uint64_t)info.st_ino;
    free(line);
    (void)fclose(in);
    return KELP_OK;
}

static kelp_status read_both(struct reading *reading, uint64_t *offset, uint64_t *ret_inode,
                             struct kelp_error *reterr)
{
    uint64_t before = 0;
    *offset = 0;
    kelp_status status = read_file(reading, reading->events->older, &before, ret_inode, reterr);
    return status == KELP_OK ? read_file(reading, reading->events->path, offset, ret_inode, reterr)
                             : status;
}

static kelp_status flush(FILE *out, struct kelp_error *reterr)
{
    if (fflush(out) != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot write: %s", strerror(errno));
    }
    return KELP_OK;
}

kelp_status kelp_run_events_print(struct kelp_run_events *events, uint32_t lines, FILE *out,
                                  struct kelp_error *reterr)
{
    struct reading counting = {.events = events};
    struct reading printing = {.events = events, .out = out};
    kelp_status status = KELP_OK;
    if (lines > 0) {
        status = read_both(&counting, &events->offset, &events->inode, reterr);
        printing.skip = counting.lines > lines ? counting.lines - lines : 0;
    }
    if (status == KELP_OK) {
        status = read_both(&printing, &events->offset, &events->inode, reterr);
    }
    return status == KELP_OK ? flush(out, reterr) : status;
}

/* A leader has moved the file away: the rest of it comes first. */
kelp_status kelp_run_events_more(struct kelp_run_events *events, FILE *out,
                                 struct kelp_error *reterr)
{
    struct reading reading = {.events = events, .out = out};
    struct stat info;
    uint64_t ignored = 0;
    kelp_status status = KELP_OK;
    if (events->inode != 0 && stat(events->path, &info) == 0 &&
        (uint64_t)info.st_ino != events->inode) {
        status = read_file(&reading, events->older, &events->offset, &ignored, reterr);
        events->offset = 0;
    }
    if (status == KELP_OK) {
        status = read_file(&reading, events->path, &events->offset, &events->inode, reterr);
    }
    return status == KELP_OK ? flush(out, reterr) : status;
}
