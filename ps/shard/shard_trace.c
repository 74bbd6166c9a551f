/* What a trace (common/log/trace.h) shows of a partition: the work on it, on the track of the
 * thread that does it, and on its own track how long its steps take and what lies between them. */
#include "ps/shard/shard_internal.h"

void kelp__shard_trace_did(const struct scene *scene, uint64_t begin_ns, const char *what)
{
    kelp_trace_end(scene->shard->trace, begin_ns,
                   &(struct kelp_trace_span){.name = what,
                                             .step = scene->turn->step,
                                             .arguments = {{"partition", scene->hosted->index}}});
}

static void end_own(const struct scene *scene, uint64_t begin_ns, uint64_t end_ns, const char *what)
{
    kelp_trace_end(scene->shard->trace, begin_ns,
                   &(struct kelp_trace_span){.name = what,
                                             .track = KELP_TRACE_PARTITION,
                                             .partition = scene->hosted->index,
                                             .step = scene->hosted->step.number,
                                             .arguments = {{"partition", scene->hosted->index}},
                                             .end_ns = end_ns});
}

void kelp__shard_trace_open(const struct scene *scene)
{
    struct hosted *hosted = scene->hosted;

    if (!scene->shard->trace) {
        return;
    }
    hosted->step.number = scene->turn->step;
    if (hosted->step.made_ns > 0 && hosted->step.since_us * 1000 > hosted->step.made_ns) {
        end_own(scene, hosted->step.made_ns, hosted->step.since_us * 1000, "wait for pushes");
    }
}

/* The trace may be opened between an action's begin and its end. */
void kelp__shard_trace_made(const struct scene *scene)
{
    struct hosted *hosted = scene->hosted;
    const uint64_t now_ns = kelp_trace_begin(scene->shard->trace);
    const uint64_t since_ns = hosted->step.since_us * 1000;

    if (now_ns > 0 && hosted->step.made_ns > 0) {
        end_own(scene, since_ns > hosted->step.made_ns ? since_ns : hosted->step.made_ns, now_ns,
                "step");
    }
    hosted->step.made_ns = now_ns;
}
