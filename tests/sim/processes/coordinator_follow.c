/* Who stands by listens to who leads: coordinator/streams/follower_streams.c and leader_streams.c.
 */
#include "tests/sim/processes/coordinator.h"

/* ---- those who listen to us ---- */

static uint64_t *follower_on(struct sim_coordinator *coordinator, uint64_t stream)
{
    for (size_t i = 0; i < SIM_FOLLOWERS_MAX; i++) {
        if (coordinator->followers[i] == stream) {
            return &coordinator->followers[i];
        }
    }
    return NULL;
}

static void on_follow(struct sim *sim, struct sim_process *process, uint64_t stream)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    uint64_t *place = follower_on(coordinator, 0);
    if (!coordinator->leadership.term || !place) {
        sim_stream_close(sim, stream, SIM_SERVER);
        return;
    }
    *place = stream;
    sim_coordinator_beat(coordinator);
}

static void no_message(struct sim *sim, struct sim_process *process, uint64_t stream,
                       struct sim_message *message, bool stray)
{
    (void)sim;
    (void)process;
    (void)stream;
    (void)message;
    (void)stray;
}

static void on_follower_closed(struct sim *sim, struct sim_process *process, uint64_t stream,
                               bool broken)
{
    uint64_t *place = follower_on(sim_coordinator_of(process), stream);
    (void)sim;
    (void)broken;
    if (place) {
        *place = 0;
    }
}

const struct sim_stream_events sim_follow_server = {
    .accept = on_follow, .message = no_message, .closed = on_follower_closed};

void sim_coordinator_beat(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; coordinator->leadership.term && i < SIM_FOLLOWERS_MAX; i++) {
        if (coordinator->followers[i] != 0) {
            sim_stream_send(coordinator->sim, coordinator->followers[i], SIM_SERVER,
                            sim_message_create(SIM_LEADER_BEAT, sizeof(struct sim_message)));
        }
    }
}

void sim_coordinator_leave_followers(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < SIM_FOLLOWERS_MAX; i++) {
        if (coordinator->followers[i] != 0 && !coordinator->dead) {
            sim_stream_close(coordinator->sim, coordinator->followers[i], SIM_SERVER);
        }
        coordinator->followers[i] = 0;
    }
}

/* ---- whom we listen to ---- */

static void on_beat(struct sim *sim, struct sim_process *process, uint64_t stream,
                    struct sim_message *message, bool stray)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)message;
    (void)stray;
    if (coordinator->following == stream) {
        kelp_leadership_leader_heard(sim_coordinator_touch(coordinator));
    }
}

static void on_leader_closed(struct sim *sim, struct sim_process *process, uint64_t stream,
                             bool broken)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)sim;
    (void)broken;
    if (coordinator->following == stream) {
        coordinator->following = 0;
        kelp_leadership_leader_lost(sim_coordinator_touch(coordinator), false);
    }
}

const struct sim_stream_events sim_follow_client = {.message = on_beat, .closed = on_leader_closed};

static void unfollow(void *user)
{
    struct sim_coordinator *coordinator = user;
    if (coordinator->following != 0) {
        sim_stream_close(coordinator->sim, coordinator->following, SIM_CLIENT);
        coordinator->following = 0;
    }
}

static bool follow(const struct kelp_holder *holder, void *user)
{
    struct sim_coordinator *coordinator = user;
    unfollow(user);
    coordinator->following = sim_stream_open(coordinator->sim, coordinator->process,
                                             sim_find_id(coordinator->sim, holder->id), SIM_FOLLOW,
                                             KELP_COORDINATOR_FIRST_MS);
    return true;
}

void sim_coordinator_follow_effects(struct kelp_leadership_effects *effects)
{
    effects->follow = follow;
    effects->unfollow = unfollow;
}
