#include "cli/cluster/job_ask.h"

#include <stdio.h>
#include <unistd.h>

#include "cli/cluster/job_find.h"
#include "cli/cluster/run_client.h"
#include "cli/verb/display.h"
#include "common/base/clock.h"

#define POLL_US  50000 /* between questions */
#define QUIET_MS 1000  /* a leader that does not answer is no news before */
#define LOOK_MS  10000 /* of one look: one that is not answered is news then */

/* Asking again gives the same answer. */
static bool is_refused(kelp_status status)
{
    return status == KELP_ERR_MISMATCH || status == KELP_ERR_UNSUPPORTED ||
           status == KELP_ERR_INVALID || status == KELP_ERR_LIMIT;
}

static void show(struct kelp_display *display, const struct kelp_job_look *look, uint64_t spent_ms,
                 uint64_t now_ms)
{
    if (look->error.status == KELP_OK) {
        kelp_display_wait(display, look->waits, now_ms);
    } else if (spent_ms >= QUIET_MS) {
        kelp_display_wait(display, look->error.text, now_ms);
    }
}

/* A look that the end of the time cut short, before silence was news, knows less than the one
 * before it. */
static bool was_cut_short(const struct kelp_job_look *look, uint64_t begin_ms, uint64_t end_ms)
{
    return look->error.status == KELP_ERR_UNREACHABLE && end_ms - begin_ms < QUIET_MS &&
           kelp_clock_ms() >= end_ms;
}

enum end { IT_IS_SO, REFUSED, LATE };

static uint32_t left(uint64_t now_ms, uint64_t end_ms)
{
    return end_ms - now_ms < LOOK_MS ? (uint32_t)(end_ms - now_ms) : LOOK_MS;
}

static enum end ask_until(struct kelp_job_client *client, uint64_t begin_ms, uint64_t end_ms,
                          const struct kelp_job_ask *ask, struct kelp_job_look *look)
{
    struct kelp_display display;
    enum end end = LATE;
    bool looked = false;

    kelp_display_init(&display, STDERR_FILENO);
    for (uint64_t now = kelp_clock_ms(); now < end_ms || !looked; now = kelp_clock_ms()) {
        struct kelp_job_look newer = {.exit_status = 0};
        bool is_so = ask->look(client, now < end_ms ? left(now, end_ms) : 1, ask->user, &newer);
        if (!looked || !was_cut_short(&newer, now, end_ms)) {
            *look = newer;
        }
        looked = true;
        if (is_so || is_refused(look->error.status)) {
            end = is_so ? IT_IS_SO : REFUSED;
            break;
        }
        if (!ask->quiet) {
            show(&display, look, now - begin_ms, now);
        }
        (void)usleep(POLL_US);
    }
    kelp_display_clear(&display);
    if (end == IT_IS_SO) {
        ask->tell(ask->user, (double)(kelp_clock_ms() - begin_ms) / 1000);
    }
    return end;
}

/* Why it is late. */
static const char *reason(const struct kelp_job_look *look)
{
    if (look->error.status != KELP_OK) {
        return look->error.text;
    }
    return look->waits[0] ? look->waits : "it is being written";
}

/* A run's own etcd may not have its job yet. */
static kelp_status reach(struct kelp_job_client *client, const struct kelp_options *given,
                         uint64_t timeout_ms, struct kelp_error *reterr)
{
    return kelp_options_given(given, "etcd") ? kelp_job_find(client, timeout_ms, reterr)
                                             : kelp_job_client_reach(client, timeout_ms, reterr);
}

int kelp_job_ask(const struct kelp_options *given, const char *typed,
                 const struct kelp_job_ask *ask)
{
    struct kelp_job_client *client = NULL;
    struct kelp_job_look look = {.exit_status = 0};
    int exit_status = KELP_EXIT_OK;

    if (kelp_run_client_choose(typed, kelp_options_text(given, "etcd"),
                               kelp_options_text(given, "certs"), &client,
                               &look.error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", look.error.text);
    }
    const uint64_t begin_ms = kelp_clock_ms();
    const uint64_t end_ms = begin_ms + kelp_options_duration_ms(given, "timeout");
    if (reach(client, given, end_ms - begin_ms, &look.error) != KELP_OK) {
        kelp_job_client_close(client);
        return kelp_complain(look.error.status == KELP_ERR_NOT_FOUND ? KELP_EXIT_USAGE
                                                                     : KELP_EXIT_UNREACHABLE,
                             "%s", look.error.text);
    }
    switch (ask_until(client, begin_ms, end_ms, ask, &look)) {
    case IT_IS_SO:
        break;
    case REFUSED:
        exit_status = kelp_complain(look.exit_status ? look.exit_status : KELP_EXIT_USAGE, "%s",
                                    look.error.text);
        break;
    case LATE:
        exit_status = ask->late(client, reason(&look), ask->user);
        break;
    }
    kelp_job_client_close(client);
    return exit_status;
}
