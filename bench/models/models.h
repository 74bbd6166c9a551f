/*
 * What the files of the benchmark models share.
 */
#ifndef KELP_BENCH_MODELS_MODELS_H
#define KELP_BENCH_MODELS_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODELS_ROUNDS_MAX  21
#define MODELS_TENSORS_MAX 5
#define MODELS_RANK_MAX    4

/* The command line. */
struct models_options {
    unsigned rounds;
    const char *only; /* names with commas; NULL: all */
    bool portable, gpu, kernels;
    const char *precision; /* train.precision */
    const char *scripts;   /* NULL: bench/ of the sources */
    const char *python;
};
extern struct models_options options;

/* One tensor of the samples: numbers, or with `classes` whole numbers below each of them. */
struct bench_tensor {
    const char *name;
    uint32_t rank;
    uint64_t dims[MODELS_RANK_MAX];
    uint32_t class_count;
    uint32_t classes[8]; /* by the last dimension */
};

struct bench_model {
    const char *name;
    uint32_t batch; /* of a worker */
    uint32_t samples;
    uint32_t epochs;
    uint32_t torch_steps;
    const char *job; /* sections but for data, batch size and cluster */
    const char *inputs;
    struct bench_tensor tensors[MODELS_TENSORS_MAX]; /* the last one with a name is y */
    uint32_t large_batch;                            /* on a GPU measured too; 0: none */
    bool gpu_alone;                                  /* too large for the CPU */
};

/* ---- samples.c ---- */

extern const struct bench_model bench_models[];
extern const size_t bench_model_count;

void models_write_samples(const struct bench_model *model, const char *path);
/* The job of a model; cluster: what stands in that section. */
void models_write_job(const struct bench_model *model, const char *data, uint32_t batch_size,
                      const char *cluster, char *job, size_t job_bytes);

/* ---- cluster.c: whole runs on the CPU ---- */

void models_print_cluster_head(void);
void models_print_cluster(const struct bench_model *model);
void models_print_portable_head(void);
void models_print_portable(const struct bench_model *model);

/* ---- gpu.c: a lane beside PyTorch ---- */

void models_print_gpu_head(void);
void models_print_gpu(const struct bench_model *model);
void models_print_gpu_foot(void);

/* ---- kernels.c: what a lane's time on a GPU goes into ---- */

void models_print_kernels_head(void);
void models_print_kernels(const struct bench_model *model);

/* ---- torch.c: beside PyTorch ---- */

/* Steps per second of Kelp and of PyTorch, round by round. */
struct models_pairs {
    double kelp[MODELS_ROUNDS_MAX], torch[MODELS_ROUNDS_MAX], ratios[MODELS_ROUNDS_MAX];
    unsigned count, torch_count;
};

/* torch: 0 where there is none. */
void models_add_pair(struct models_pairs *pairs, double kelp, double torch);
/* samples: of a step. */
void models_print_pairs(const char *name, uint32_t batch, struct models_pairs *pairs,
                        uint32_t samples);

/* That of torch_models.py. */
const char *models_script_path(char path[400]);

#endif
