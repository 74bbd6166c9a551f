/*
 * The CUDA device: loads libkelp-cuda.so, which is a library of its own so that the programs start
 * on machines without a GPU.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda_entry.h"

#define LIBRARY "libkelp-cuda.so"

typedef kelp_status entry_function(uint32_t index, struct kelp_device **ret,
                                   struct kelp_error *reterr);
typedef void leave_function(void);

static struct {
    pthread_mutex_t lock;
    entry_function *entry;
    leave_function *leave;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* lib/kelp beside the folder that the program lies in: of a build, or <prefix>. */
static bool find_beside(char path[PATH_MAX])
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (length <= 0) {
        return false;
    }
    program[length] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(program, '/');
        if (!slash) {
            return false;
        }
        *slash = '\0';
    }
    const int written = snprintf(path, PATH_MAX, "%s/lib/kelp/%s", program, LIBRARY);
    return written > 0 && written < PATH_MAX;
}

static kelp_status load(struct kelp_error *reterr)
{
    char path[PATH_MAX] = LIBRARY;
    if (library.entry) {
        return KELP_OK;
    }
    const bool beside = find_beside(path) && access(path, F_OK) == 0;
    void *handle = dlopen(beside ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle && !beside) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "this build has no CUDA device: %s is neither at %s nor on the library "
                         "path; it is built where nvcc is found",
                         LIBRARY, path);
    }
    if (!handle) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "cannot load the CUDA device: %s", dlerror());
    }
    void *entry = dlsym(handle, KELP_CUDA_ENTRY), *leave = dlsym(handle, KELP_CUDA_LEAVE);
    if (!entry || !leave) {
        (void)dlclose(handle);
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "cannot load the CUDA device: %s has no %s",
                         LIBRARY, entry ? KELP_CUDA_LEAVE : KELP_CUDA_ENTRY);
    }
    memcpy(&library.entry, &entry, sizeof(entry)); /* stays for the life of the process */
    memcpy(&library.leave, &leave, sizeof(leave));
    return KELP_OK;
}

kelp_status kelp_device_cuda_create(uint32_t index, struct kelp_device **ret,
                                    struct kelp_error *reterr)
{
    (void)pthread_mutex_lock(&library.lock);
    const kelp_status status = load(reterr);
    (void)pthread_mutex_unlock(&library.lock);
    return status == KELP_OK ? library.entry(index, ret, reterr) : status;
}

void kelp_device_cuda_leave(void)
{
    (void)pthread_mutex_lock(&library.lock);
    leave_function *leave = library.leave;
    (void)pthread_mutex_unlock(&library.lock);
    if (leave) {
        leave();
    }
}
