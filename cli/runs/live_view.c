#include "cli/runs/live_view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/cluster/status_view.h"
#include "common/base/clock.h"
#include "common/base/json.h"

kelp_status kelp_live_view_open(const char *run_path, bool json, struct kelp_live_view *ret_view,
                                struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;

    memset(ret_view, 0, sizeof(*ret_view));
    kelp_status status = kelp_run_job_read(run_path, &file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    ret_view->run_path = run_path;
    ret_view->json = json;
    ret_view->batch_size = kelp_job_file_job(file)->train.batch_size;
    kelp_display_init(&ret_view->display, STDOUT_FILENO);
    kelp_job_file_destroy(file);
    return KELP_OK;
}

/* ---- on a terminal ------------------------------------------------------------------------- */

static void print_pace(FILE *out, const struct kelp_meter *meter, double steps_per_s)
{
    char rate[32];
    char left[32] = "not known yet";

    kelp_meter_count(meter->samples_per_s, rate, sizeof(rate));
    if (meter->left_s >= 0) {
        kelp_meter_duration(meter->left_s, left, sizeof(left));
    }
    (void)fprintf(out, "rate       %.4g steps/s, %s samples/s\nleft       %s\n", steps_per_s, rate,
                  left);
}

/* Bytes of the line that take at most so many columns, a character each. */
static int fitting(const char *line, size_t length, unsigned columns)
{
    size_t at = 0;

    for (unsigned used = 0; at < length; at++) {
        bool begins = ((unsigned char)line[at] & 0xC0) != 0x80; /* UTF-8 */
        if (begins && used++ == columns) {
            break;
        }
    }
    return (int)at;
}

/* In one piece: whoever ends us meanwhile sees a whole table, or the one before. */
static void put(const char *text, size_t bytes)
{
    (void)fflush(stdout);
    while (bytes > 0) {
        ssize_t written = write(STDOUT_FILENO, text, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return; /* the terminal is gone, and the next look ends this */
        }
        text += written;
        bytes -= (size_t)written;
    }
}

/* The lines that fit the terminal: those that have scrolled away cannot be drawn over. Returns how
 * many. */
static unsigned print_fitting(const struct kelp_live_view *view, const char *text, FILE *out)
{
    unsigned columns;
    unsigned lines;
    unsigned count = 0;

    kelp_display_room(&view->display, &columns, &lines);
    while (*text && count < lines) {
        size_t length = strcspn(text, "\n");
        const char *next = text + length + (text[length] != '\0');
        if (++count == lines && *next) {
            (void)fprintf(out, "...\n");
        } else {
            (void)fprintf(out, "%.*s\n", fitting(text, length, columns), text);
        }
        text = next;
    }
    return count;
}

/* Over what stands there: up to its first line, and everything below is cleared. */
static void redraw(struct kelp_live_view *view, const char *text)
{
    char *drawn = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&drawn, &bytes);

    if (!out) {
        return; /* out of memory: the next look may have some */
    }
    if (view->lines > 0) {
        (void)fprintf(out, "\033[%uA", view->lines);
    }
    (void)fprintf(out, "\r\033[J");
    unsigned lines = print_fitting(view, text, out);
    if (fclose(out) == 0) {
        put(drawn, bytes);
        view->lines = lines;
    }
    free(drawn);
}

static void show_table(struct kelp_live_view *view, const Kelp__V1__StatusReply *reply,
                       const struct kelp_meter *meter)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (!out) {
        return; /* out of memory: the next look may have some */
    }
    if (reply) {
        kelp_status_table(reply, view->run_path, out);
        print_pace(out, meter, kelp_rate_recent(&view->rate));
    } else {
        (void)fprintf(out, "run        %s\nstate      %s\n", view->run_path, meter->reason);
    }
    if (fclose(out) == 0) {
        redraw(view, text);
    }
    free(text);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* The object of kelp status with two members more. */
static void show_json(const struct kelp_live_view *view, const Kelp__V1__StatusReply *reply,
                      const struct kelp_meter *meter)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (!out) {
        return;
    }
    kelp_status_json(reply, view->run_path, out);
    if (fclose(out) == 0 && bytes > 2) { /* behind it "}\n" */
        (void)fwrite(text, 1, bytes - 2, stdout);
        (void)printf(",\"steps_per_s\":");
        kelp_json_print_double(stdout, kelp_rate_recent(&view->rate));
        (void)printf(",\"left_s\":");
        if (meter->left_s >= 0) {
            kelp_json_print_double(stdout, meter->left_s);
        } else {
            (void)printf("null");
        }
        (void)printf("}\n");
    }
    free(text);
}

bool kelp_live_view_show(struct kelp_live_view *view, uint32_t timeout_ms)
{
    struct kelp_meter meter = {.reason = "the coordinator does not answer", .left_s = -1};
    Kelp__V1__StatusReply *reply = kelp_run_client_ask(view->run_path, &view->client, timeout_ms);
    uint64_t now = kelp_clock_ms();

    if (reply) {
        kelp_rate_add(&view->rate, reply->word ? reply->word->step : 0, now);
        kelp_status_meter(reply, view->batch_size, kelp_rate_recent(&view->rate), &meter);
    }
    if (view->json && reply) {
        show_json(view, reply, &meter);
    } else if (!view->json && view->display.terminal) {
        show_table(view, reply, &meter);
    } else if (!view->json) {
        kelp_display_update(&view->display, &meter, now);
    }
    kelp_job_client_status_free(reply);
    return fflush(stdout) == 0 && !ferror(stdout);
}

/* ---- the end ------------------------------------------------------------------------------- */

/* What the run came to takes the place of its table. */
void kelp_live_view_close(struct kelp_live_view *view)
{
    if (view->lines > 0) {
        redraw(view, "");
    }
    kelp_display_clear(&view->display);
    kelp_job_client_close(view->client);
    view->client = NULL;
}
