#include "coordinator/term/leadership.h"

#include <inttypes.h>
#include <string.h>

void kelp_leadership_init(struct kelp_leadership *leadership,
                          const struct kelp_leadership_options *options)
{
    *leadership = (struct kelp_leadership){.options = *options};
}

void kelp_leadership_touch(struct kelp_leadership *leadership, uint64_t now_ms)
{
    leadership->now_ms = now_ms;
    if (leadership->term) {
        kelp_term_touch(leadership->term, now_ms);
    }
}

static void give_up(struct kelp_leadership *leadership, const char *text)
{
    const struct kelp_outside *outside = &leadership->options.outside;
    outside->effects->give_up(text, outside->user);
}

/* ---- terms ---- */

static void begin(struct kelp_leadership *leadership)
{
    const struct kelp_leadership_options *options = &leadership->options;
    const struct kelp_term_options term = {.job = leadership->job,
                                           .writer = options->incarnation + ++leadership->terms,
                                           .election = leadership->election,
                                           .elected = leadership->elected,
                                           .no_checkpoints = options->no_checkpoints,
                                           .force = options->force};
    struct kelp_error error;
    const struct kelp_event leads = {.kind = KELP_EVENT_LEADS,
                                     .why = leadership->vacant,
                                     .timed = leadership->vacant_ms != 0,
                                     .took_ms = leadership->now_ms - leadership->vacant_ms};
    kelp_status status = options->effects->open(&error, options->outside.user);
    if (status != KELP_OK) {
        give_up(leadership, error.text);
        return;
    }
    status =
        kelp_term_create(&term, &options->outside, leadership->now_ms, &leadership->term, &error);
    if (status != KELP_OK) {
        options->effects->step_down(options->outside.user);
        options->effects->close(options->outside.user);
        give_up(leadership, error.text);
        return;
    }
    kelp_outside_tell(&options->outside, &leads);
    leadership->vacant_ms = 0;
    leadership->vacant = NULL;
}

void kelp_leadership_end(struct kelp_leadership *leadership, const char *why)
{
    const struct kelp_leadership_options *options = &leadership->options;
    struct kelp_term *term = leadership->term;
    if (!term) {
        return;
    }
    kelp_outside_log(&options->outside, KELP_LOG_INFO, "not leading any more reason=\"%s\"", why);
    kelp_outside_tell(&options->outside,
                      &(struct kelp_event){.kind = KELP_EVENT_LEADS_NO_MORE, .why = why});
    leadership->term = NULL;
    options->effects->step_down(options->outside.user);
    kelp_term_destroy(term);
    options->effects->close(options->outside.user);
}

/* ---- standing by ---- */

static void note_vacancy(struct kelp_leadership *leadership, const char *why)
{
    if (leadership->vacant_ms == 0) {
        leadership->vacant_ms = leadership->now_ms;
        leadership->vacant = why;
    }
}

static void carry_out(struct kelp_leadership *leadership, enum kelp_standby_action action)
{
    const struct kelp_leadership_options *options = &leadership->options;
    const struct kelp_holder *holder = &leadership->standby.holder;
    switch (action) {
    case KELP_STANDBY_NOTHING:
        break;
    case KELP_STANDBY_FOLLOW:
        if (!options->effects->follow(holder, options->outside.user)) {
            (void)kelp_standby_lost(&leadership->standby, true, leadership->now_ms);
        }
        break;
    case KELP_STANDBY_DEPOSE:
        kelp_outside_log(&options->outside, KELP_LOG_WARN,
                         "the leader does not answer: its key is to go leader=%s address=%s",
                         holder->id, holder->address);
        note_vacancy(leadership, "the leader before did not answer");
        options->effects->depose(holder->revision, options->outside.user);
        break;
    }
}

static void stop_following(struct kelp_leadership *leadership)
{
    const struct kelp_leadership_options *options = &leadership->options;
    if (leadership->standby.following) {
        options->effects->unfollow(options->outside.user);
    }
    kelp_standby_end(&leadership->standby);
}

void kelp_leadership_vacant(struct kelp_leadership *leadership)
{
    stop_following(leadership);
    note_vacancy(leadership, "the leader before has resigned, or its lease ran out");
}

void kelp_leadership_leader_heard(struct kelp_leadership *leadership)
{
    if (kelp_standby_heard(&leadership->standby)) {
        kelp_outside_log(&leadership->options.outside, KELP_LOG_INFO,
                         "the leader is heard leader=%s", leadership->standby.holder.id);
    }
}

void kelp_leadership_leader_lost(struct kelp_leadership *leadership, bool alive)
{
    carry_out(leadership, kelp_standby_lost(&leadership->standby, alive, leadership->now_ms));
}

/* ---- resigning ---- */

static void give_up_election(struct kelp_leadership *leadership, uint64_t again_ms)
{
    const struct kelp_leadership_options *options = &leadership->options;
    stop_following(leadership);
    options->effects->resign(options->outside.user);
    leadership->elected = false;
    leadership->stand_at_ms = leadership->now_ms + again_ms;
}

static void resign(struct kelp_leadership *leadership)
{
    const struct kelp_leadership_options *options = &leadership->options;
    kelp_outside_log(&options->outside, KELP_LOG_ERROR,
                     "no shard is heard though all their leases live: this coordinator is cut off "
                     "and resigns");
    kelp_leadership_end(leadership, "cut off from all shards");
    give_up_election(leadership, KELP_COORDINATOR_CUT_OFF_MS);
}

void kelp_leadership_starved(struct kelp_leadership *leadership)
{
    const struct kelp_leadership_options *options = &leadership->options;
    kelp_outside_log(&options->outside, KELP_LOG_ERROR,
                     "out of memory: an event of etcd was lost, and this coordinator resigns");
    if (!leadership->job) {
        return; /* it has not stood for election yet */
    }
    kelp_leadership_end(leadership, "out of memory");
    give_up_election(leadership, KELP_COORDINATOR_RETRY_MS);
}

/* ---- elections ---- */

kelp_status kelp_leadership_stand(struct kelp_leadership *leadership, const struct kelp_job *job,
                                  struct kelp_error *reterr)
{
    const struct kelp_leadership_options *options = &leadership->options;
    leadership->job = job;
    return options->effects->stand(reterr, options->outside.user);
}

void kelp_leadership_elected(struct kelp_leadership *leadership, int64_t revision)
{
    stop_following(leadership);
    leadership->election = revision;
    leadership->elected = true;
    if (!leadership->term) {
        begin(leadership);
        return;
    }
    leadership->vacant_ms = 0;
    kelp_outside_log(&leadership->options.outside, KELP_LOG_INFO, "elected again revision=%" PRId64,
                     revision);
    kelp_term_elected(leadership->term, revision);
}

void kelp_leadership_deposed(struct kelp_leadership *leadership, const char *why)
{
    kelp_outside_log(&leadership->options.outside, KELP_LOG_WARN,
                     "election lost, advising on until another coordinator leads reason=\"%s\"",
                     why);
    leadership->elected = false;
    if (leadership->term) {
        kelp_term_deposed(leadership->term);
    }
}

void kelp_leadership_superseded(struct kelp_leadership *leadership,
                                const struct kelp_holder *holder)
{
    bool ours = strcmp(holder->id, leadership->options.id) == 0;
    kelp_leadership_end(leadership, "another coordinator leads");
    kelp_outside_log(&leadership->options.outside, KELP_LOG_INFO,
                     "standing by leader=%s address=%s", holder->id, holder->address);
    stop_following(leadership);
    leadership->vacant_ms = 0;
    carry_out(leadership, kelp_standby_begin(&leadership->standby, holder, ours));
}

/* Stand again if there is no other leader by then: any leader is better than none. */
static void stand_again(struct kelp_leadership *leadership)
{
    const struct kelp_leadership_options *options = &leadership->options;
    struct kelp_error error;
    if (leadership->stand_at_ms == 0 || leadership->now_ms < leadership->stand_at_ms) {
        return;
    }
    leadership->stand_at_ms = 0;
    kelp_outside_log(&options->outside, KELP_LOG_INFO, "standing for election again");
    if (options->effects->stand(&error, options->outside.user) != KELP_OK) {
        give_up(leadership, error.text);
    }
}

void kelp_leadership_read(struct kelp_leadership *leadership, kelp_status status,
                          struct kelp_found *found, const char *text)
{
    struct kelp_term *term = leadership->term;
    if (!term) {
        return;
    }
    kelp_term_read(term, status, found, text);
    if (term->replaced) {
        kelp_leadership_end(leadership, term->replaced);
        begin(leadership);
    }
}

void kelp_leadership_tick(struct kelp_leadership *leadership)
{
    stand_again(leadership);
    carry_out(leadership, kelp_standby_tick(&leadership->standby, leadership->now_ms));
    if (!leadership->term) {
        return;
    }
    if (leadership->term->cut_off) {
        resign(leadership);
    } else {
        kelp_term_tick(leadership->term);
    }
}
