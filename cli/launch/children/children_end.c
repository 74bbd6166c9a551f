/* What the end of a child means: its cause, what people hear of it, and what follows. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "cli/launch/children/children_internal.h"
#include "cli/run/log_tail.h"
#include "common/process/memory_kills.h"
#include "common/program/daemon.h"
#include "common/tensors/digest.h"

#define HOW_BYTES 160 /* of how a child ended */
#define LOG_LINES 6   /* of a child that ends for one reason again and again */

static uint32_t workers_running(const struct kelp_children *children)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < children->count; i++) {
        count += children->items[i].kind == KELP_CHILD_WORKER && children->items[i].process;
    }
    return count;
}

static kelp_status fail_of_input(const struct kelp_children *children,
                                 const struct kelp_child *child, const char *how,
                                 struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char reason[384];

    kelp__child_log(children, child, path, sizeof(path));
    kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
    if (child->supervise.idle > 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: the program ended without joining the job%s%s", child->id,
                         reason[0] ? "; its last line: " : "", reason);
    }
    return reason[0]
               ? kelp_fail(reterr, KELP_ERR_INVALID, "%s: %s", child->id, reason)
               : kelp_fail(reterr, KELP_ERR_INVALID, "%s: %s and logged nothing", child->id, how);
}

/* What a log says, without the numbers that differ from time to time. */
static uint64_t digest_of_words(const char *text)
{
    char words[512];
    size_t count = 0;

    for (; *text != '\0' && count < sizeof(words); text++) {
        if (*text < '0' || *text > '9') {
            words[count++] = *text;
        }
    }
    return kelp_digest_bytes(words, count);
}

/* Why it ended; 0 when that was no doing of its own. */
static uint64_t cause_of(const struct kelp_children *children, const struct kelp_child *child,
                         int wait_status)
{
    static const int own[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS};
    char path[KELP_RUN_PATH_MAX + 64];
    char reason[384];

    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) != 0) {
        kelp__child_log(children, child, path, sizeof(path));
        kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
        return digest_of_words(reason) + (uint64_t)WEXITSTATUS(wait_status);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(own) && WIFSIGNALED(wait_status); i++) {
        if (WTERMSIG(wait_status) == own[i]) {
            return (uint64_t)own[i];
        }
    }
    return 0;
}

static bool has_logged(const struct kelp_children *children, const struct kelp_child *child,
                       const char *words)
{
    char path[KELP_RUN_PATH_MAX + 64];

    kelp__child_log(children, child, path, sizeof(path));
    return kelp_log_has(path, child->log_from, words);
}

/* A program whose job is over is on its own: what comes of it is no matter of the run. */
static void note_after(struct kelp_children *children, const struct kelp_child *child,
                       int wait_status)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char how[64], reason[384];

    if (children->after_failed) {
        return;
    }
    kelp__child_log(children, child, path, sizeof(path));
    kelp_log_tail_printed(path, child->log_from, reason, sizeof(reason));
    kelp_process_describe(wait_status, how, sizeof(how));
    children->after_failed = true;
    (void)snprintf(children->after, sizeof(children->after),
                   "%s: %s; training is done, and this came after the loop", child->id,
                   reason[0] ? reason : how);
}

/* The end of its log for people, and the reason in one line. */
static kelp_status fail_of_same(const struct kelp_children *children,
                                const struct kelp_child *child, const char *how,
                                struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char text[4096];
    char reason[160];
    char *rest = text;

    kelp__child_log(children, child, path, sizeof(path));
    kelp_log_tail_lines(path, child->log_from, LOG_LINES, text, sizeof(text));
    if (text[0] != '\0') {
        kelp_display_say(children->options.display, "the end of %s:", path);
    }
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        if (line[0] != '\0') {
            kelp_display_say(children->options.display, "  %s", line);
        }
    }
    kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
    return kelp_fail(reterr, KELP_ERR_LIMIT, "%s %s, %d times in a row%s%s; see logs/%s.log",
                     child->id, how, KELP_SUPERVISE_SAME_MAX, reason[0] ? ": " : "", reason,
                     child->id);
}

static void say_stays_away(struct kelp_children *children, const struct kelp_child *child,
                           const char *how)
{
    char path[KELP_RUN_PATH_MAX + 64], reason[384] = "";

    if (child->supervise.lost) {
        kelp__child_log(children, child, path, sizeof(path));
        kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
    }
    kelp_display_say(children->options.display, "%s %s; it is not restarted%s%s", child->id, how,
                     reason[0] ? ": " : "", reason);
}

static void describe(const struct kelp_child *child, int wait_status, char how[HOW_BYTES])
{
    const uint64_t kills = kelp_memory_kills();
    const bool known = !child->fenced && kills > child->memory_kills;

    kelp_memory_kills_describe(wait_status, known ? kills - child->memory_kills : 0, how,
                               HOW_BYTES);
}

kelp_status kelp__child_ended(struct kelp_children *children, struct kelp_child *child,
                              int wait_status, uint64_t now, bool *ret_gave_up,
                              struct kelp_error *reterr)
{
    char how[HOW_BYTES];
    char limit[128];
    uint32_t delay_ms = 0;

    kelp_process_destroy(child->process);
    child->process = NULL;
    if (child->down || child->retired) {
        return KELP_OK;
    }
    describe(child, wait_status, how);
    const bool program = kelp__child_is_program(children, child);
    const bool joined = program && has_logged(children, child, KELP_WORKER_JOINED);
    struct kelp_supervise_end end = {
        .now_ms = now,
        .exited = WIFEXITED(wait_status),
        .exit_status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0,
        .lived_ms = now - child->start_ms,
        .enough_left = workers_running(children) >= children->options.workers_min,
        .goes_on = children->begun && workers_running(children) > 0,
        .program = program,
        .python = program && children->options.worker_program->python,
        .joined = joined,
        .over = program && has_logged(children, child, KELP_WORKER_ENDED),
        .early = !children->begun && !joined,
        .cause = cause_of(children, child, wait_status),
    };
    if (end.over && end.exited && end.exit_status != 0) {
        note_after(children, child, wait_status);
    }
    switch (kelp_supervise(&children->options.policy, &end, &child->supervise, &children->failures,
                           &delay_ms)) {
    case KELP_SUPERVISE_FAIL:
        return fail_of_input(children, child, how, reterr);
    case KELP_SUPERVISE_LEAVE:
        child->left = end.exited && (end.exit_status == 0 || end.over);
        if (!child->left) { /* in order: also how a run ends */
            say_stays_away(children, child, how);
        }
        return KELP_OK;
    case KELP_SUPERVISE_STUCK:
        *ret_gave_up = true;
        return fail_of_same(children, child, how, reterr);
    case KELP_SUPERVISE_GIVE_UP:
        kelp_supervise_limit_text(&children->options.policy, limit, sizeof(limit));
        *ret_gave_up = true;
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s %s, and %s; see %s/logs/%s.log", child->id,
                         how, limit, children->options.run_path, child->id);
    case KELP_SUPERVISE_RESTART:
        child->start_due = true;
        child->start_ms = now + delay_ms;
        if (end.exited && (end.exit_status == 0 || end.over) && child->supervise.worker) {
            return KELP_OK; /* mostly the end of the job, which is known in a moment */
        }
        if (end.exited && end.exit_status == 0 && child->supervise.shard) {
            kelp_display_say(children->options.display,
                             "%s has left as asked; another one takes its place", child->id);
        } else if (delay_ms == 0) {
            kelp_display_say(children->options.display, "%s %s; it is started again", child->id,
                             how);
        } else {
            kelp_display_say(children->options.display,
                             "%s %s; it is started again in %" PRIu32 " ms", child->id, how,
                             delay_ms);
        }
        return KELP_OK;
    }
    return KELP_OK;
}

void kelp__child_stopped(struct kelp_children *children, const struct kelp_child *child,
                         uint32_t grace_ms)
{
    int wait_status = 0;

    if (!kelp__child_is_program(children, child) ||
        kelp_process_wait(child->process, 0, &wait_status) != KELP_OK ||
        (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) ||
        !has_logged(children, child, KELP_WORKER_ENDED)) {
        return;
    }
    if (WIFEXITED(wait_status)) {
        note_after(children, child, wait_status);
    } else if (WTERMSIG(wait_status) == SIGKILL && children->after[0] == '\0') {
        (void)snprintf(children->after, sizeof(children->after),
                       "%s was ended in what its program does after the loop: that has %g s from "
                       "the end of the job on",
                       child->id, grace_ms / 1000.0);
    }
}
