#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/job_find.h"
#include "cli/cluster/run_client.h"
#include "cli/cluster/run_home.h"
#include "cli/launch/launcher.h"
#include "cli/verbs.h"
#include "common/base/clock.h"

#define PERIOD_US   200000
#define DEADLINE_MS 1000
#define QUIET_MS    1000 /* an etcd that does not answer is no news before */

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("etcd", "URL", "the etcd that holds the job"),
    KELP_VERB_CERTS(NULL, "an operator's or reader's ca.pem, cert.pem and key.pem of the job"),
    KELP_VERB_OUTPUT("the summary for people, or one JSON object, as in result.json"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 86400000, "24h", NULL, "how long to wait"),
    KELP_VERB_NUMBER("submit-timeout", DURATION, 0, 86400000, "0ms", NULL,
                     "how long to wait for a job that etcd does not have yet"),
};

static const struct kelp_program program = {
    .name = "kelp wait",
    .summary = "waits until a job that kelp node runs is done, paused or failed",
    .positional = "JOB",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp wait fare --etcd https://10.0.0.5:2379 --certs reader\n"
                "  kelp wait mlp --etcd http://127.0.0.1:2379 --timeout 10m -o json\n"
                "  kelp wait mlp --etcd http://127.0.0.1:2379 --submit-timeout 5m\n",
    KELP_VERB_OPTIONS(options),
};

/* How far the job is, or why nobody knows. Errors: as kelp_job_client_status(). */
static kelp_status show(struct kelp_job_client *client, struct kelp_display *display)
{
    Kelp__V1__StatusReply *reply = NULL;
    struct kelp_error error;
    char text[KELP_METER_TEXT_MAX];

    kelp_status status = kelp_job_client_status(client, DEADLINE_MS, &reply, &error);
    if (status != KELP_OK) {
        kelp_display_wait(display, error.text, kelp_clock_ms());
        return status;
    }
    (void)snprintf(text, sizeof(text), "%.16s, step %" PRIu64 " of %" PRIu64 "%s%.300s",
                   reply->state, reply->word ? reply->word->step : 0, reply->total_steps,
                   reply->reason[0] ? ": " : "", reply->reason);
    kelp_display_wait(display, text, kelp_clock_ms());
    kelp_job_client_status_free(reply);
    return KELP_OK;
}

/* Asking again changes nothing of that. */
static bool is_final(kelp_status status)
{
    return status == KELP_OK || kelp_status_group(status) == KELP_GROUP_DATA ||
           status == KELP_ERR_INVALID || status == KELP_ERR_DENIED;
}

struct ending {
    char *text; /* owned; NULL: there is none yet */
    struct kelp_result result;
    struct kelp_run_home place;
};

/* Until etcd has the job. Then it is one that kelp node runs: only its result comes here. Errors:
 * KELP_ERR_NOT_FOUND (it has none), KELP_ERR_INVALID (another one), those of etcd. */
static kelp_status wait_for_job(struct kelp_job_client *client, uint64_t begin_ms,
                                const struct kelp_options *given, struct kelp_display *display,
                                struct kelp_run_home *home, struct kelp_error *reterr)
{
    const uint64_t timeout_ms = kelp_options_duration_ms(given, "timeout");
    const uint64_t submit_ms = kelp_options_duration_ms(given, "submit-timeout");
    const uint64_t patience_ms = submit_ms < timeout_ms ? submit_ms : timeout_ms;
    kelp_status status;

    for (;;) {
        status = kelp_job_find(client, timeout_ms, reterr);
        if (status != KELP_ERR_NOT_FOUND || kelp_clock_ms() - begin_ms >= patience_ms) {
            break;
        }
        kelp_display_wait(display, reterr->text, kelp_clock_ms());
        (void)usleep(PERIOD_US);
    }
    if (status == KELP_OK &&
        kelp_run_home_get(client, DEADLINE_MS, home, NULL) == KELP_ERR_NOT_FOUND) {
        status =
            kelp_fail(reterr, KELP_ERR_INVALID,
                      "kelp node does not run job '%s': its result will not be in etcd; a run of "
                      "kelp train is shown on its machine, by kelp status RUN --watch",
                      kelp_job_client_job(client));
    }
    return status;
}

/* The result first, then where its run is: an etcd that is slow then is asked again for that alone.
 * Errors: KELP_ERR_TIMEOUT, KELP_ERR_NOT_FOUND (somebody has removed the job), and what is final.
 */
static kelp_status wait_for_ending(struct kelp_job_client *client, uint64_t begin_ms,
                                   uint64_t end_ms, struct kelp_display *display,
                                   struct ending *ending, struct kelp_error *reterr)
{
    bool over = false;
    kelp_status status;

    do {
        status =
            over ? KELP_OK
                 : kelp_run_result_get(client, DEADLINE_MS, &ending->text, &ending->result, reterr);
        if (status == KELP_OK) {
            over = true;
            status = kelp_run_home_get(client, DEADLINE_MS, &ending->place, reterr);
        }
        if (is_final(status) || (over && status == KELP_ERR_NOT_FOUND)) {
            return status;
        }
        if (status == KELP_ERR_NOT_FOUND) {
            if (show(client, display) == KELP_ERR_NOT_FOUND &&
                kelp_job_find(client, DEADLINE_MS, reterr) == KELP_ERR_NOT_FOUND) {
                return KELP_ERR_NOT_FOUND;
            }
        } else if (kelp_clock_ms() - begin_ms >= QUIET_MS) {
            kelp_display_wait(display, reterr->text, kelp_clock_ms());
        }
        (void)usleep(PERIOD_US);
    } while (kelp_clock_ms() < end_ms);
    return status == KELP_ERR_NOT_FOUND && !over
               ? kelp_fail(reterr, KELP_ERR_TIMEOUT, "job '%s' is not over in time",
                           kelp_job_client_job(client))
               : status;
}

static int tell(const char *job, const struct kelp_run_home *place,
                const struct kelp_result *result)
{
    char where[KELP_RUN_HOME_TEXT_MAX + 1];

    if (strcmp(result->status, "done") == 0) {
        kelp_run_home_text(place, where);
        kelp_result_summary(result, where, stdout);
    } else {
        (void)printf("job        %s\nstate      %s at step %" PRIu64 "%s%s\n", job, result->status,
                     result->step, result->reason[0] ? ": " : "", result->reason);
    }
    return kelp_launch_result_exit_status(result);
}

static int wait_for_end(const struct kelp_options *given)
{
    const char *job = kelp_verb_typed(given);
    struct kelp_job_client *client = NULL;
    static struct ending ending; /* large */
    struct kelp_display display;
    struct kelp_error error;

    kelp_status status = kelp_job_client_open(kelp_options_text(given, "etcd"), job,
                                              kelp_options_text(given, "certs"), &client, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    const uint64_t begin_ms = kelp_clock_ms();
    const uint64_t end_ms = begin_ms + kelp_options_duration_ms(given, "timeout");
    kelp_display_init(&display, STDERR_FILENO);
    status = wait_for_job(client, begin_ms, given, &display, &ending.place, &error);
    if (status == KELP_OK) {
        status = wait_for_ending(client, begin_ms, end_ms, &display, &ending, &error);
    }
    kelp_display_clear(&display);
    kelp_job_client_close(client);
    if (status != KELP_OK) {
        const bool mistake = status == KELP_ERR_NOT_FOUND || status == KELP_ERR_INVALID;
        free(ending.text);
        return kelp_complain(mistake ? KELP_EXIT_USAGE : KELP_EXIT_UNREACHABLE, "%s", error.text);
    }
    if (kelp_verb_json(given)) {
        (void)fputs(ending.text, stdout);
    }
    free(ending.text);
    return kelp_verb_json(given) ? kelp_launch_result_exit_status(&ending.result)
                                 : tell(job, &ending.place, &ending.result);
}

const struct kelp_verb kelp_verb_wait = {"wait", "wait until a job that kelp node runs is over",
                                         &program, wait_for_end, NULL};
