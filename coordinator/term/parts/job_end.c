#include "coordinator/term/parts/job_end.h"

#include <string.h>

static bool is_end(const struct kelp_job_state *state)
{
    return strcmp(state->state, "done") == 0 || strcmp(state->state, "failed") == 0 ||
           strcmp(state->state, "paused") == 0;
}

void kelp_job_end_read(struct kelp_job_end *end, const struct kelp_job_state *state,
                       uint64_t generation)
{
    if (generation > 0 && is_end(state)) {
        end->found = true;
        end->found_state = *state;
        end->found_generation = generation;
    }
}

enum kelp_verdict kelp_job_end_judge(struct kelp_job_end *end,
                                     const struct kelp_placement *placement, bool finished,
                                     struct kelp_job_state *ret_state)
{
    bool complete = finished || strcmp(end->found_state.state, "done") != 0;
    enum kelp_verdict verdict = KELP_VERDICT_NONE;
    if (end->found && placement->map.generation > end->found_generation) {
        verdict = KELP_VERDICT_AGAIN;
    } else if (end->found && complete && placement->state == KELP_PLACEMENT_RUNNING) {
        verdict = KELP_VERDICT_FINAL;
        end->ended = true;
    }
    if (verdict != KELP_VERDICT_NONE) {
        end->found = false;
        *ret_state = end->found_state;
    }
    return verdict;
}

void kelp_job_end_report(struct kelp_job_end *end, const struct kelp_job_state *state, bool settled)
{
    if (end->ended || (end->found && !settled)) {
        return; /* the recorded state stays */
    }
    end->state = *state;
    end->dirty = true;
}

const struct kelp_job_state *kelp_job_end_due(const struct kelp_job_end *end, uint64_t now_ms)
{
    return end->dirty && !end->in_flight && now_ms >= end->retry_ms ? &end->state : NULL;
}

void kelp_job_end_sent(struct kelp_job_end *end)
{
    end->writing = end->state;
    end->dirty = false;
    end->in_flight = true;
}

bool kelp_job_end_written(struct kelp_job_end *end, bool taken, uint64_t now_ms)
{
    end->in_flight = false;
    if (!taken) {
        end->dirty = true;
        end->retry_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
        return false;
    }
    if (end->ended || !is_end(&end->writing)) {
        return false;
    }
    end->ended = true;
    end->dirty = false; /* drops a state that came meanwhile: the recorded one stays */
    return true;
}
