/*
 * kelp-worker: computes gradients of one job. Thin: everything is in the worker library
 * (include/kelp/worker.h) and the trainer.
 */
#include <curl/curl.h>
#include <unistd.h>

#include "common/log.h"
#include "common/options.h"
#include "common/rpc.h"
#include "common/signals.h"
#include "kelp/worker.h"
#include "worker/trainer.h"

static const char *const log_levels[] = {"error", "warn", "info", "debug", "trace", NULL};

static const struct kelp_option options[] = {
    {.name = "etcd",
     .type = KELP_OPTION_TEXT,
     .placeholder = "URL[,URL...]",
     .required = true,
     .help = "etcd's client addresses"},
    {.name = "job",
     .type = KELP_OPTION_TEXT,
     .placeholder = "NAME",
     .required = true,
     .help = "name of the job to work for"},
    {.name = "id",
     .type = KELP_OPTION_TEXT,
     .placeholder = "NAME",
     .required = true,
     .help = "this worker's name, unique in the job"},
    {.name = "log-level",
     .type = KELP_OPTION_CHOICE,
     .default_text = "info",
     .choices = log_levels,
     .help = "least important lines that are logged"},
    {.name = "fault",
     .type = KELP_OPTION_TEXT,
     .placeholder = "KIND@step=N",
     .group = "Testing",
     .help = "die by kill -9 at a training step: kill@step=N before its push, kill-pushing@step=N "
             "in its "
             "middle"},
};

static const struct kelp_program program = {
    .name = "kelp-worker",
    .summary = "Computes gradients of a job: pulls weights, computes its lanes, pushes",
    .examples = "  kelp-worker --etcd http://127.0.0.1:2379 --job etth1 --id worker-0\n"
                "  KELP_ETCD=http://127.0.0.1:2379 kelp-worker --job etth1 --id worker-1 "
                "--log-level debug\n",
    .options = options,
    .option_count = KELP_ARRAY_COUNT(options),
};

static int exit_code_of(kelp_status status)
{
    switch (kelp_status_group(status)) {
    case KELP_GROUP_OK:
        return KELP_EXIT_OK;
    case KELP_GROUP_CALLER: /* the job file, or data that differ from the others' */
    case KELP_GROUP_DATA:
        return KELP_EXIT_USAGE;
    case KELP_GROUP_RETRY:
    case KELP_GROUP_PEER:
    case KELP_GROUP_FENCED:
    case KELP_GROUP_RESOURCE:
        return KELP_EXIT_FAILED;
    }
    return KELP_EXIT_FAILED;
}

struct stop_context {
    struct kelp_worker *worker; /* atomic */
    volatile bool stop;
};

/* On the signals' thread. */
static void on_signal(int signal_number, void *user)
{
    struct stop_context *context = user;
    kelp_log_info("stopping signal=%d", signal_number);
    context->stop = true;
    struct kelp_worker *worker = __atomic_load_n(&context->worker, __ATOMIC_ACQUIRE);
    if (worker) {
        kelp_worker_wake(worker);
    }
}

static kelp_status work(struct kelp_worker *worker, const struct kelp_options *values,
                        const volatile bool *stop, struct kelp_trainer **ret_trainer,
                        struct kelp_error *reterr)
{
    struct kelp_worker_fault fault = {.kind = KELP_FAULT_NONE};
    kelp_status status = KELP_OK;

    if (kelp_options_text(values, "fault")) {
        status = kelp_worker_fault_parse(kelp_options_text(values, "fault"), &fault, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_trainer_create(worker, ret_trainer, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_trainer_run(*ret_trainer, &fault, stop, reterr);
    }
    return status;
}

static kelp_status run(const struct kelp_options *values, struct kelp_error *reterr)
{
    struct stop_context context = {.worker = NULL};
    struct kelp_signals *signals = NULL;
    struct kelp_worker *worker = NULL;
    struct kelp_trainer *trainer = NULL;
    const struct kelp_worker_options worker_options = {
        .etcd = kelp_options_text(values, "etcd"),
        .job = kelp_options_text(values, "job"),
        .id = kelp_options_text(values, "id"),
    };
    kelp_rpc_global_several_loops(); /* membership has its own; before any thread */
    kelp_status status = kelp_signals_start(on_signal, &context, &signals, reterr);
    if (status == KELP_OK) {
        (void)curl_global_init(CURL_GLOBAL_DEFAULT);
        kelp_rpc_global_init();
        status = kelp_worker_open(&worker_options, &context.stop, &worker, reterr);
    }
    if (status == KELP_OK) {
        __atomic_store_n(&context.worker, worker, __ATOMIC_RELEASE);
        status = work(worker, values, &context.stop, &trainer, reterr);
    }
    kelp_signals_stop(signals); /* before what its callback uses goes */
    kelp_worker_close(worker);
    kelp_trainer_destroy(trainer);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    return status == KELP_ERR_TIMEOUT && context.stop ? KELP_OK : status;
}

int main(int argc, char **argv)
{
    struct kelp_options *values = NULL;
    struct kelp_error error = {.text = ""};
    int exit_code;

    if (!kelp_options_read(&program, argc, argv, &values, &exit_code)) {
        return exit_code;
    }
    kelp_log_init("worker", kelp_options_text(values, "id"),
                  (enum kelp_log_level)kelp_options_choice(values, "log-level"), STDERR_FILENO);
    kelp_status status = run(values, &error);
    if (status != KELP_OK) {
        kelp_log_error("%s", error.text);
    }
    kelp_options_destroy(values);
    return exit_code_of(status);
}
