#include "cli/chaos/chaos_progress.h"

#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/cluster/status_view.h"
#include "cli/run/log_tail.h"
#include "common/base/clock.h"

static void show_log(const struct kelp_chaos_progress *progress)
{
    char line[KELP_METER_TEXT_MAX];

    kelp_log_tail_printed(progress->log_path, 0, line, sizeof(line));
    kelp_display_wait(progress->display, line, kelp_clock_ms());
}

void kelp_chaos_progress_show(void *progress)
{
    struct kelp_chaos_progress *at = progress;
    struct kelp_meter meter;
    Kelp__V1__StatusReply *reply =
        kelp_run_client_ask(at->run_path, &at->client, KELP_CHAOS_PROGRESS_MS);
    const uint64_t now = kelp_clock_ms();

    if (!reply) {
        if (!at->answered) {
            show_log(at);
        }
        return;
    }
    at->answered = true;
    if (strcmp(reply->state, "done") != 0) {
        kelp_rate_add(&at->rate, reply->word ? reply->word->step : 0, now);
        kelp_status_meter(reply, at->batch_size, kelp_rate_recent(&at->rate), &meter);
        kelp_display_update(at->display, &meter, now);
    }
    kelp_job_client_status_free(reply);
}

void kelp_chaos_progress_close(struct kelp_chaos_progress *progress)
{
    kelp_display_clear(progress->display);
    kelp_job_client_close(progress->client);
    progress->client = NULL;
}
