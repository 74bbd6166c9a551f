/*
 * What `kelp predict` and `kelp evaluate` share: a job that computes with weights that are there
 * instead of training, run by a cluster on this machine like any other job, in a folder of its own.
 *
 * Scales and numbers of categories are those that the model carries (worker/data/model_card.h). A
 * safetensors file alone, or a checkpoint's folder alone, is enough: it has the job too.
 *
 * The job is a run's, a job file's, or the model's, with run.mode, with the weights as model.init,
 * and in blocks that suit it. What it computes does not depend on workers or their deaths: see
 * common/training/control.h.
 */
#ifndef KELP_CLI_INFER_INFERENCE_H
#define KELP_CLI_INFER_INFERENCE_H

#include <limits.h>

#include "cli/checkpoint/checkpoint_read.h"
#include "cli/launch/launcher.h"
#include "cli/run/plugin_consent.h"
#include "cli/run/worker_program.h"
#include "cli/verb/verb.h"
#include "common/process/process.h"
#include "worker/data/dataset.h"

/* The options of both commands; each has more of its own. */
#define KELP_INFERENCE_OPTIONS                                                                     \
    KELP_VERB_TEXT("weights", "FILE", NULL,                                                        \
                   "safetensors file with the weights, instead of the run's own"),                 \
        KELP_VERB_TEXT(                                                                            \
            "checkpoint", "NAME", NULL,                                                            \
            "take the weights from this checkpoint: a name of kelp checkpoint ls, newest, best, "  \
            "or a folder"),                                                                        \
        KELP_VERB_TEXT("data", "PATH", NULL,                                                       \
                       "use all of this data instead of the job's: a file, a pattern of files or " \
                       "a folder of images; the training data is not read"),                       \
        KELP_VERB_ALLOW_PLUGIN,                                                                    \
        KELP_VERB_NUMBER("workers", RANGE, 1, 1024, NULL, NULL,                                    \
                         "N or MIN:MAX workers (job key cluster.workers)"),                        \
        KELP_VERB_SHARDS(NULL, "parameter-server shards (job key cluster.shards)"),                \
        KELP_VERB_SET(NULL, "set a job key, such as data.test_path=new.csv"),                      \
        KELP_VERB_RUN(NULL, "folder for logs and result (default: runs/NAME-VERB-TIME)"),          \
        KELP_VERB_ETCD("Cluster", "use this etcd instead of a private one"),                       \
        KELP_VERB_JOB_CERTS("Cluster",                                                             \
                            "use mutual TLS to etcd and between the processes; the folder was "    \
                            "made by kelp certs for the job JOB-VERB, such as etth1-predict"),     \
        KELP_VERB_ETCD_PROGRAM("Cluster"),                                                         \
        KELP_VERB_LOG_LEVEL("Cluster", "lowest level that is written to the folder's logs/"),      \
        KELP_VERB_FAULT("make the first start of a process fail, such as worker-1:kill@version=3")

struct kelp_inference {
    const struct kelp_options *given; /* borrowed */
    enum kelp_run_mode mode;
    enum kelp_run_part split; /* predict */
    bool targets;             /* predict: what was to be predicted is wanted, too */
    struct kelp_job_file *file;
    struct kelp_worker_program program; /* computes instead of kelp-worker, and has the data */
    struct kelp_dataset *dataset;       /* NULL: a program has it */
    struct kelp_plan plan;              /* of a program: what its workers said, once it is over */
    uint64_t entries; /* of the schedule; 0: nobody knows before a program says so */
    struct kelp_run_dir run;
    struct kelp_display display;
    struct kelp_result result;
    uint64_t start_ms;
    /* What the weights are, for people: "step-1500.g2", "model.safetensors". */
    char weights[PATH_MAX];
    struct kelp_trials trials;
    struct kelp_gpus gpus; /* of which each worker gets one */
    char *spec;
    char *plan_text;
    char bin_folder[KELP_PROCESS_PATH_MAX];
    char certs[KELP_LAUNCH_CERTS_MAX + 1];              /* "": none */
    char operator_certs[KELP_CREDENTIALS_PATH_MAX + 1]; /* the folder in it */
};

/* Everything empty but these; owned. NULL: out of memory, which has been said. */
struct kelp_inference *kelp_inference_create(const struct kelp_options *given,
                                             enum kelp_run_mode mode);
void kelp_inference_destroy(struct kelp_inference *inference);

/*
 * Find job and weights, open the data, make the run's folder, run the cluster to its end. Returns
 * the exit status of the command; whatever is not 0 has been said. After 0 everything in *inference
 * is there, the run's folder locked.
 */
int kelp_inference_run(struct kelp_inference *inference);

#endif
