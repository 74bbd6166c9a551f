#include <stdio.h>
#include <sys/stat.h>

#include "cli/cluster/model_file.h"
#include "cli/cluster/run_client.h"
#include "cli/verbs.h"

static const struct kelp_program program = {
    .name = "kelp digest",
    .summary = "prints the digest of a run's model or of a safetensors file",
    .positional = "[RUN|FILE.safetensors]",
    .positional_max = 1,
    .examples = "  kelp digest\n"
                "  kelp digest model.safetensors\n",
};

static int print_digest(const char *path)
{
    struct kelp_error error;
    char digest[KELP_DIGEST_HEX_BYTES];

    kelp_status status = kelp_model_file_digest(path, digest, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    (void)printf("%s\n", digest);
    return KELP_EXIT_OK;
}

static int digest_of_run(const char *typed)
{
    struct kelp_error error;
    char run_path[KELP_RUN_PATH_MAX + 1];
    char path[KELP_RUN_PATH_MAX + 64];
    struct stat info;

    kelp_status status = kelp_run_choose(typed, run_path, &error);
    if (status == KELP_OK) {
        status = kelp_run_dir_path(run_path, "model.safetensors", path, sizeof(path), &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    if (stat(path, &info) < 0) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "run '%s' has no model.safetensors yet; %s/digests.jsonl has the "
                             "digests on the way",
                             run_path, run_path);
    }
    return print_digest(path);
}

static int digest(const struct kelp_options *given)
{
    const char *typed = kelp_verb_typed(given);
    struct stat info;
    bool file = typed && !(stat(typed, &info) == 0 && S_ISDIR(info.st_mode));

    return file ? print_digest(typed) : digest_of_run(typed);
}

const struct kelp_verb kelp_verb_digest = {
    "digest", "print the digest of a run's model or of a safetensors file", &program, digest, NULL};
