#include "cli/cluster/slow_view.h"

#include <inttypes.h>
#include <string.h>

#include "cli/verb/meter.h"
#include "common/base/json.h"

#define TIME_BYTES 32

/* "0.42 ms", "3.4 ms", "38 ms", "1.2 s". */
static const char *time_text(uint64_t us, char text[TIME_BYTES])
{
    const double ms = (double)us / 1000;

    if (us < 1000) {
        (void)snprintf(text, TIME_BYTES, "%.2f ms", ms);
    } else if (us < 10000) {
        (void)snprintf(text, TIME_BYTES, "%.1f ms", ms);
    } else {
        kelp_meter_duration(ms / 1000, text, TIME_BYTES);
    }
    return text;
}

static void print_lanes(const Kelp__V1__Slow *slow, FILE *out)
{
    char takes[TIME_BYTES], usual[TIME_BYTES], part[TIME_BYTES];

    (void)fprintf(out, "%s: %s a lane where others take %s (median): %s %s", slow->worker,
                  time_text(slow->us, takes), time_text(slow->usual_us, usual), slow->part,
                  time_text(slow->part_us, part));
}

static void print_pushing(const Kelp__V1__Slow *slow, FILE *out)
{
    char takes[TIME_BYTES], usual[TIME_BYTES];

    (void)time_text(slow->us, takes);
    (void)time_text(slow->usual_us, usual);
    if (slow->late) {
        (void)fprintf(out,
                      "%s: pushing: its lanes come %s after the first of a step, those of others "
                      "%s (median), though its work is as short",
                      slow->worker, takes, usual);
    } else {
        (void)fprintf(out, "%s: pushing %s a step where others take %s (median)", slow->worker,
                      takes, usual);
    }
}

static void print_shard(const Kelp__V1__Slow *slow, FILE *out)
{
    char waits[TIME_BYTES], step[TIME_BYTES];
    const char *at = slow->address[0] ? " at " : "";

    (void)time_text(slow->us, waits);
    (void)time_text(slow->step_us, step);
    if (slow->worker[0]) {
        (void)fprintf(out, "%s: waiting for %s%s%s alone, %s of a step of %s", slow->worker,
                      slow->shard, at, slow->address, waits, step);
    } else {
        (void)fprintf(out, "%s%s%s: workers wait for it alone, %s of a step of %s (median)",
                      slow->shard, at, slow->address, waits, step);
    }
}

void kelp_slow_line(const Kelp__V1__Slow *slow, FILE *out)
{
    char waits[TIME_BYTES];
    const bool lanes =
        slow && (strcmp(slow->part, "reading") == 0 || strcmp(slow->part, "computing") == 0);

    if (lanes) {
        (void)fputs("slow       ", out);
        print_lanes(slow, out);
    } else if (slow && strcmp(slow->part, "pushing") == 0) {
        (void)fputs("slow       ", out);
        print_pushing(slow, out);
    } else if (slow && strcmp(slow->part, "shard") == 0) {
        (void)fputs("slow       ", out);
        print_shard(slow, out);
    } else {
        return;
    }
    if (slow->worker[0]) {
        (void)fprintf(out, "; others wait %s a step", time_text(slow->wait_us, waits));
    }
    (void)fputc('\n', out);
}

void kelp_slow_json(const Kelp__V1__Slow *slow, FILE *out)
{
    if (!slow) {
        (void)fputs(",\"slow\":null", out);
        return;
    }
    (void)fputs(",\"slow\":", out);
    kelp_json_print_member(out, "{", "worker", slow->worker);
    kelp_json_print_member(out, ",", "part", slow->part);
    kelp_json_print_member(out, ",", "shard", slow->shard);
    kelp_json_print_member(out, ",", "address", slow->address);
    (void)fprintf(out,
                  ",\"us\":%" PRIu64 ",\"usual_us\":%" PRIu64 ",\"part_us\":%" PRIu64
                  ",\"wait_us\":%" PRIu64 ",\"step_us\":%" PRIu64 ",\"late\":%s}",
                  slow->us, slow->usual_us, slow->part_us, slow->wait_us, slow->step_us,
                  slow->late ? "true" : "false");
}

static uint64_t mean(uint64_t sum, uint64_t count)
{
    return count > 0 ? sum / count : 0;
}

void kelp_slow_times_json(const Kelp__V1__WorkerStatus *worker, FILE *out)
{
    const Kelp__V1__WorkerTimes *times = worker->times;

    if (!times) {
        (void)fputs(",\"times\":null", out);
        return;
    }
    (void)fprintf(out,
                  ",\"times\":{\"steps\":%" PRIu64 ",\"step_us\":%" PRIu64 ",\"lane_us\":%" PRIu64
                  ",\"reading_us\":%" PRIu64 ",\"computing_us\":%" PRIu64 ",\"pushing_us\":%" PRIu64
                  ",\"waiting_us\":%" PRIu64,
                  times->steps, mean(times->length_us, times->steps),
                  mean(times->read_us + times->compute_us, times->lanes),
                  mean(times->read_us, times->steps), mean(times->compute_us, times->steps),
                  mean(times->push_us, times->steps), mean(times->wait_us, times->steps));
    kelp_json_print_member(out, ",", "shard", times->shard);
    (void)fprintf(out, ",\"shard_us\":%" PRIu64 ",\"behind_us\":%" PRIu64 "}",
                  mean(times->alone_us, times->steps), worker->behind_us);
}
