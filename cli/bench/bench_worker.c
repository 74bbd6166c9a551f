/* `kelp bench worker`: a worker that computes nothing, in its own process. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/bench_clock.h"
#include "cli/bench/bench_plan.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/bench_samples.h"
#include "cli/bench/bench_verbs.h"
#include "common/base/files.h"
#include "worker/compute/gradients.h"
#include "worker/core/schedule.h"
#include "worker/job_link.h"

#define WARM_OPERATIONS 2
#define MEASURED_LEAST  3

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("etcd", "URL", "the etcd that holds the job"),
    KELP_VERB_REQUIRED("job", "NAME", "the job to join"),
    KELP_VERB_REQUIRED("id", "NAME", "name of this worker, unique in the job"),
    KELP_BENCH_SIZE_OPTION("size", "SIZE", "64KiB", "size of the model's only tensor"),
    KELP_BENCH_TIME_OPTION("how long to measure"),
};

static const struct kelp_program program = {
    .name = "kelp bench worker",
    .summary = "joins a job as a worker that computes nothing; kelp bench pushpull starts it",
    .examples = "  kelp bench worker --etcd http://127.0.0.1:2379 --job bench --id worker-0\n",
    KELP_VERB_OPTIONS(options),
};

struct member {
    struct kelp_job_link *job_link;
    struct kelp_plan plan;
    struct kelp_stop stop;
    uint64_t bytes;
    double time_us;
    bool begun, told;
    uint64_t operations; /* so far, warm ones included */
    double begin_us, begin_cpu_s;
    struct kelp_bench_report report;
    struct kelp_bench_samples samples;
};

/* A gradient of zeros, which its buffer is made of: nothing is computed, not even that. */
static kelp_status push(struct member *member, const struct kelp_work *work, uint64_t *ret_nodes,
                        struct kelp_error *reterr)
{
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    const uint32_t count = kelp_schedule_split(work->lane_first, work->lane_count, nodes);

    for (uint32_t i = 0; i < count; i++) {
        struct kelp_node node = {.lane_first = nodes[i].first,
                                 .lane_count = nodes[i].count,
                                 .gradient = kelp_job_link_gradient(member->job_link)};
        if (!node.gradient) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a gradient");
        }
        node.gradient->present = true;
        node.gradient->sums[KELP_METRIC_SUM_LOSS] = nodes[i].count;
        node.gradient->sums[KELP_METRIC_SUM_SAMPLES] = nodes[i].count;
        kelp_status status = kelp_job_link_push(member->job_link, &node, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    *ret_nodes = count;
    return KELP_OK;
}

static kelp_status tell(const void *bytes, size_t count, struct kelp_error *reterr)
{
    return kelp_files_write_all(STDOUT_FILENO, bytes, count)
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "cannot write to standard output");
}

static kelp_status begin(struct member *member, double now_us, struct kelp_error *reterr)
{
    static const char begun = KELP_BENCH_BEGUN;

    member->begun = true;
    member->begin_us = now_us;
    member->begin_cpu_s = kelp_bench_own_cpu_s();
    return tell(&begun, 1, reterr);
}

static kelp_status finish(struct member *member, double now_us, struct kelp_error *reterr)
{
    struct kelp_bench_report *report = &member->report;

    report->wall_s = (now_us - member->begin_us) * 1e-6;
    report->cpu_s = kelp_bench_own_cpu_s() - member->begin_cpu_s;
    report->sample_count = member->samples.count;
    member->told = true;
    kelp_status status = tell(report, sizeof(*report), reterr);
    return status == KELP_OK
               ? tell(member->samples.us, report->sample_count * sizeof(float), reterr)
               : status;
}

/* An operation is over: pushed at pushed_us, the weights that came of it are here. */
static kelp_status count_operation(struct member *member, double pushed_us, uint64_t nodes,
                                   struct kelp_error *reterr)
{
    const double now_us = kelp_bench_now_us();

    member->operations++;
    if (!member->begun) {
        return member->operations >= WARM_OPERATIONS ? begin(member, now_us, reterr) : KELP_OK;
    }
    if (member->told) {
        return KELP_OK;
    }
    kelp_bench_samples_add(&member->samples, now_us - pushed_us);
    member->report.operations++;
    member->report.bytes += (nodes + 1) * member->bytes;
    return now_us - member->begin_us >= member->time_us &&
                   member->report.operations >= MEASURED_LEAST
               ? finish(member, now_us, reterr)
               : KELP_OK;
}

/* Goes on after it has told what it measured, for others measure still: whoever started it ends it.
 */
static kelp_status take_part(struct member *member, struct kelp_error *reterr)
{
    struct kelp_work work;
    double pushed_us = 0;
    uint64_t nodes = 0;
    kelp_status status;

    while ((status = kelp_job_link_next(member->job_link, &member->stop, &work, reterr)) ==
           KELP_OK) {
        if (pushed_us > 0) {
            status = count_operation(member, pushed_us, nodes, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        pushed_us = kelp_bench_now_us();
        status = push(member, &work, &nodes, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return status;
}

static kelp_status join(struct member *member, const struct kelp_options *given,
                        struct kelp_error *reterr)
{
    const struct kelp_job_link_options link_options = {.etcd = kelp_options_text(given, "etcd"),
                                                       .job = kelp_options_text(given, "job"),
                                                       .id = kelp_options_text(given, "id")};

    kelp_status status =
        kelp_job_link_open(&link_options, &member->stop, &member->job_link, reterr);
    if (status == KELP_OK) {
        const struct kelp_job *job = kelp_job_link_job(member->job_link);
        status =
            kelp_bench_plan_make(member->bytes, job->cluster.max_shards, &member->plan, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_link_join(member->job_link, &member->plan, reterr);
    }
    return status;
}

static int work(const struct kelp_options *given)
{
    struct member *member = calloc(1, sizeof(*member));
    struct kelp_error error;

    if (!member) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    member->stop = (struct kelp_stop)KELP_STOP_INIT;
    member->time_us = 1e3 * (double)kelp_options_duration_ms(given, "time");
    kelp_status status =
        kelp_bench_size(kelp_options_text(given, "size"), "size", &member->bytes, &error);
    const bool usage = status != KELP_OK;
    if (status == KELP_OK) {
        status = join(member, given, &error);
    }
    if (status == KELP_OK) {
        status = take_part(member, &error);
    }
    kelp_job_link_close(member->job_link);
    kelp_plan_fini(&member->plan);
    free(member);
    return status == KELP_ERR_CLOSED
               ? KELP_EXIT_OK
               : kelp_complain(usage ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s", error.text);
}

const struct kelp_verb kelp_bench_verb_worker = {
    "worker", "take part in a job without computing (started by the others)", &program, work, NULL};
