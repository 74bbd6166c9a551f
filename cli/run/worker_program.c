#include "cli/run/worker_program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/environment.h"

/* The file that `said` names ("model.program"), with an absolute path. */
static kelp_status find_file(const char *said, const char *path, int access_mode,
                             char ret_file[KELP_PROCESS_PATH_MAX], struct kelp_error *reterr)
{
    struct stat about;
    char *real = realpath(path, NULL);

    if (!real || strlen(real) >= KELP_PROCESS_PATH_MAX) {
        const int why = real ? ENAMETOOLONG : errno;
        free(real);
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "%s '%.200s': %s", said, path, strerror(why));
    }
    (void)snprintf(ret_file, KELP_PROCESS_PATH_MAX, "%s", real);
    free(real);
    if (stat(ret_file, &about) != 0 || !S_ISREG(about.st_mode) ||
        access(ret_file, access_mode) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s '%.200s' cannot be %s", said, path,
                         access_mode == X_OK ? "executed" : "read");
    }
    return KELP_OK;
}

static kelp_status find_python(char ret_path[KELP_PROCESS_PATH_MAX], struct kelp_error *reterr)
{
    const char *python = kelp_environment_python();

    return kelp_process_find(python, ret_path, NULL) == KELP_OK && access(ret_path, X_OK) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                           "model.python needs '%.200s', which is not there; KELP_PYTHON names "
                           "another Python",
                           python);
}

/* The job's arguments behind what is there. */
static kelp_status add_arguments(const struct kelp_job *job, struct kelp_worker_program *program,
                                 size_t count, struct kelp_error *reterr)
{
    const size_t most = count + KELP_WORKER_ARGUMENTS_MAX;
    char *rest = program->arguments;

    (void)snprintf(program->arguments, sizeof(program->arguments), "%s", job->model.arguments);
    while (rest && rest[0] != '\0') {
        if (count == most) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "model.arguments has more than %d",
                             KELP_WORKER_ARGUMENTS_MAX);
        }
        program->argv[count++] = strsep(&rest, "\n");
    }
    program->argv[count] = NULL;
    return KELP_OK;
}

kelp_status kelp_worker_program_find(const struct kelp_job *job, const char *instead,
                                     struct kelp_worker_program *ret_program,
                                     struct kelp_error *reterr)
{
    const bool script = !instead && job->model.python[0] != '\0';
    size_t count = 0;

    *ret_program = (struct kelp_worker_program){.python = script};
    if (!instead && job->model.kind != KELP_MODEL_PROGRAM) {
        return KELP_OK;
    }
    kelp_status status =
        script    ? find_file("model.python", job->model.python, R_OK, ret_program->file, reterr)
        : instead ? find_file("--worker-program", instead, X_OK, ret_program->file, reterr)
                  : find_file("model.program", job->model.program, X_OK, ret_program->file, reterr);
    if (status == KELP_OK && script) {
        status = find_python(ret_program->interpreter, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (script) {
        ret_program->argv[count++] = ret_program->interpreter;
    }
    ret_program->argv[count++] = ret_program->file;
    return add_arguments(job, ret_program, count, reterr);
}

kelp_status kelp_worker_program_refuse(const struct kelp_job *job, const char *verb,
                                       struct kelp_error *reterr)
{
    return job->model.program[0] == '\0' && job->model.python[0] == '\0'
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                           "%s computes Kelp's own models only, but the job's model is in a "
                           "program: %.300s",
                           verb, job->model.python[0] ? job->model.python : job->model.program);
}
