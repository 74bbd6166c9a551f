/*
 * The trace of a run (kelp train --trace): the first worker and the first shard write a part each
 * into the run's folder, and when they have ended these become one file for people. One machine
 * has one clock, so that their times fit together.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/launch/launcher_internal.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/program/options/version.h"

#define HEADER_MAX 512
#define PARTS      2

static const char *const part_ids[PARTS] = {"worker-0", "shard-0"};

struct part {
    const char *id;
    char path[KELP_CHILDREN_TRACE_PATH_MAX];
    FILE *in;      /* behind its header; NULL: there is none */
    char why[128]; /* there is none, for people */
    char clock[64];
    uint64_t first;
    uint64_t steps;
    uint64_t dropped;
};

struct trace {
    struct part parts[PARTS];
};

/* ---- parts ----------------------------------------------------------------------------------- */

static kelp_status read_header(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct part *part = into;
    kelp_status status = kelp_json_string(json, "clock", part->clock, sizeof(part->clock), reterr);

    if (status == KELP_OK) {
        status = kelp_json_u64(json, "first", KELP_JSON_INTEGER_MAX, &part->first, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "steps", KELP_TRACE_STEPS_MAX, &part->steps, reterr);
    }
    return status == KELP_OK
               ? kelp_json_u64(json, "dropped", KELP_JSON_INTEGER_MAX, &part->dropped, reterr)
               : status;
}

static void give_up_part(struct part *part, const char *why)
{
    (void)snprintf(part->why, sizeof(part->why), "%s", why);
    if (part->in) {
        (void)fclose(part->in);
        part->in = NULL;
    }
}

static void open_part(struct part *part)
{
    char line[HEADER_MAX];

    part->in = fopen(part->path, "re");
    if (!part->in) {
        give_up_part(part,
                     errno == ENOENT ? "it ended before it had written its part" : strerror(errno));
    } else if (!fgets(line, sizeof(line), part->in) ||
               kelp_json_read(line, strlen(line), read_header, part, NULL) != KELP_OK) {
        give_up_part(part, "its part is damaged");
    }
}

static void open_parts(const char *run, struct trace *trace)
{
    for (size_t i = 0; i < PARTS; i++) {
        trace->parts[i] = (struct part){.id = part_ids[i]};
        kelp_children_trace_path(run, part_ids[i], trace->parts[i].path);
        open_part(&trace->parts[i]);
    }
    if (trace->parts[0].in && trace->parts[1].in &&
        strcmp(trace->parts[0].clock, trace->parts[1].clock) != 0) {
        give_up_part(&trace->parts[1], "its times are of another clock");
    }
}

static void remove_parts(const char *run)
{
    char path[KELP_CHILDREN_TRACE_PATH_MAX];

    kelp_children_trace_path(run, "", path);
    (void)kelp_files_remove(path, NULL); /* the next trace begins with that */
}

static void close_parts(struct trace *trace)
{
    for (size_t i = 0; i < PARTS; i++) {
        if (trace->parts[i].in) {
            (void)fclose(trace->parts[i].in);
        }
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Each event of a part has a comma before it. */
static void pour(FILE *in, bool is_first, FILE *out)
{
    char bytes[8192];
    size_t count = fread(bytes, 1, sizeof(bytes), in);
    size_t skip = is_first && count > 0 && bytes[0] == ',' ? 1 : 0;

    while (count > 0) {
        (void)fwrite(bytes + skip, 1, count - skip, out);
        skip = 0;
        count = fread(bytes, 1, sizeof(bytes), in);
    }
}

static void describe_part(const struct part *part, char *text, size_t bytes)
{
    if (!part->in) {
        (void)snprintf(text, bytes, "missing: %s", part->why);
    } else if (part->steps == 0) {
        (void)snprintf(text, bytes, "empty: it ended before the first step of the trace");
    } else {
        (void)snprintf(text, bytes, "steps %" PRIu64 " to %" PRIu64, part->first,
                       part->first + part->steps - 1);
    }
}

static void print_trace(const void *what, FILE *out)
{
    const struct trace *trace = what;
    bool is_first = true;
    char text[192];

    kelp_json_print_member(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{", "kelp",
                           kelp_version());
    kelp_json_print_member(out, ",", "clock", "CLOCK_MONOTONIC");
    for (size_t i = 0; i < PARTS; i++) {
        describe_part(&trace->parts[i], text, sizeof(text));
        kelp_json_print_member(out, ",", trace->parts[i].id, text);
    }
    (void)fprintf(out, "},\"traceEvents\":[");
    for (size_t i = 0; i < PARTS; i++) {
        if (trace->parts[i].in) {
            pour(trace->parts[i].in, is_first, out);
            is_first = false;
        }
    }
    (void)fprintf(out, "\n]}\n");
}

static void tell(const struct kelp_launcher *launcher, const struct trace *trace)
{
    char texts[PARTS][192];

    for (size_t i = 0; i < PARTS; i++) {
        const struct part *part = &trace->parts[i];
        describe_part(part, texts[i], sizeof(texts[i]));
        if (part->dropped > 0) {
            kelp_display_say(launcher->display,
                             "the trace lacks %" PRIu64 " spans of %s, for which there was no room",
                             part->dropped, part->id);
        }
    }
    kelp_display_say(launcher->display, "trace %s: %s %s; %s %s", launcher->launch->trace,
                     trace->parts[0].id, texts[0], trace->parts[1].id, texts[1]);
}

void kelp__launch_write_trace(struct kelp_launcher *launcher)
{
    const struct kelp_launch *launch = launcher->launch;
    struct kelp_error error;
    struct trace trace;

    if (!launch->trace) {
        return;
    }
    open_parts(launch->run->path, &trace);
    if (kelp_files_print(launch->trace, print_trace, &trace, &error) == KELP_OK) {
        tell(launcher, &trace);
    } else {
        kelp_display_say(launcher->display, "no trace: %s", error.text);
    }
    close_parts(&trace);
    remove_parts(launch->run->path);
}

kelp_status kelp__launch_begin_trace(const struct kelp_launcher *launcher,
                                     struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    char path[KELP_CHILDREN_TRACE_PATH_MAX];

    if (!launch->trace) {
        return KELP_OK;
    }
    kelp_children_trace_path(launch->run->path, "", path);
    kelp_status status = kelp_files_remove(path, reterr);
    return status == KELP_OK ? kelp_files_make_folder(path, reterr) : status;
}
