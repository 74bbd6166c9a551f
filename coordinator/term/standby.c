#include "coordinator/term/standby.h"

#include "common/base/state_table.h"

static const struct kelp_state states[] = {
    [KELP_STANDBY_IDLE] = {"idle", KELP_STATE_BIT(KELP_STANDBY_IDLE) |
                                       KELP_STATE_BIT(KELP_STANDBY_CALLING)},
    [KELP_STANDBY_CALLING] = {"calling", KELP_STATE_BIT(KELP_STANDBY_IDLE) |
                                             KELP_STATE_BIT(KELP_STANDBY_CALLING) |
                                             KELP_STATE_BIT(KELP_STANDBY_LISTENING) |
                                             KELP_STATE_BIT(KELP_STANDBY_ACCUSING)},
    [KELP_STANDBY_LISTENING] = {"listening", KELP_STATE_BIT(KELP_STANDBY_IDLE) |
                                                 KELP_STATE_BIT(KELP_STANDBY_CALLING) |
                                                 KELP_STATE_BIT(KELP_STANDBY_LISTENING) |
                                                 KELP_STATE_BIT(KELP_STANDBY_ACCUSING)},
    [KELP_STANDBY_ACCUSING] = {"accusing", KELP_STATE_BIT(KELP_STANDBY_IDLE) |
                                               KELP_STATE_BIT(KELP_STANDBY_CALLING) |
                                               KELP_STATE_BIT(KELP_STANDBY_LISTENING) |
                                               KELP_STATE_BIT(KELP_STANDBY_ACCUSING)},
};
static const struct kelp_state_table state_table = KELP_STATE_TABLE(states);

static void move_to(struct kelp_standby *standby, enum kelp_standby_state state)
{
    standby->state = kelp_state_move(&state_table, standby->state, state);
}

/* How many silent ticks count as death. */
static uint32_t patience(const struct kelp_standby *standby, uint64_t now_ms)
{
    bool lately =
        standby->judged_ms != 0 && now_ms - standby->judged_ms < KELP_COORDINATOR_JUDGED_MS;
    return lately ? standby->patience : KELP_COORDINATOR_SILENT_TICKS;
}

static enum kelp_standby_action follow(struct kelp_standby *standby)
{
    standby->following = true;
    standby->spoke = false;
    return KELP_STANDBY_FOLLOW;
}

static enum kelp_standby_action accuse(struct kelp_standby *standby, uint64_t now_ms)
{
    move_to(standby, KELP_STANDBY_ACCUSING);
    standby->asked_ms = now_ms;
    return KELP_STANDBY_DEPOSE;
}

static enum kelp_standby_action accuse_of_silence(struct kelp_standby *standby, uint64_t now_ms)
{
    uint32_t longer = 2 * patience(standby, now_ms);
    standby->patience =
        longer > KELP_COORDINATOR_SILENT_TICKS_MAX ? KELP_COORDINATOR_SILENT_TICKS_MAX : longer;
    standby->judged_ms = now_ms;
    return accuse(standby, now_ms);
}

enum kelp_standby_action kelp_standby_begin(struct kelp_standby *standby,
                                            const struct kelp_holder *holder, bool ours)
{
    move_to(standby, KELP_STANDBY_CALLING);
    standby->holder = *holder;
    standby->ours = ours;
    standby->silent = 0;
    return follow(standby);
}

void kelp_standby_end(struct kelp_standby *standby)
{
    move_to(standby, KELP_STANDBY_IDLE);
    standby->following = false;
}

bool kelp_standby_heard(struct kelp_standby *standby)
{
    bool first = standby->state != KELP_STANDBY_LISTENING;
    if (standby->state == KELP_STANDBY_IDLE) {
        return false;
    }
    move_to(standby, KELP_STANDBY_LISTENING);
    standby->spoke = true;
    standby->silent = 0;
    return first;
}

enum kelp_standby_action kelp_standby_lost(struct kelp_standby *standby, bool alive,
                                           uint64_t now_ms)
{
    bool spoke = standby->spoke;
    standby->following = false;
    if (alive) {
        standby->silent = 0;
        return KELP_STANDBY_NOTHING; /* tried again at the next tick */
    }
    switch (standby->state) {
    case KELP_STANDBY_LISTENING:
        return spoke ? follow(standby) : accuse(standby, now_ms);
    case KELP_STANDBY_CALLING:
        return standby->ours ? accuse(standby, now_ms) : KELP_STANDBY_NOTHING;
    case KELP_STANDBY_ACCUSING:
    case KELP_STANDBY_IDLE:
        break;
    }
    return KELP_STANDBY_NOTHING;
}

enum kelp_standby_action kelp_standby_tick(struct kelp_standby *standby, uint64_t now_ms)
{
    if (standby->state == KELP_STANDBY_LISTENING &&
        ++standby->silent >= patience(standby, now_ms)) {
        return accuse_of_silence(standby, now_ms);
    }
    if (standby->state == KELP_STANDBY_ACCUSING &&
        now_ms - standby->asked_ms >= KELP_COORDINATOR_RETRY_MS) {
        return accuse(standby, now_ms);
    }
    bool wanted = standby->state != KELP_STANDBY_IDLE && !standby->following;
    return wanted ? follow(standby) : KELP_STANDBY_NOTHING;
}
