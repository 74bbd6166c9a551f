/*
 * Finding cuDNN. The library is loaded when a job may use it, so that one build serves machines
 * with and without it.
 */
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

#include "kernels/cuda/conv2d/cudnn.cuh"

#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(number) #number
#define LIBRARY_NAME     "libcudnn.so." TEXT_OF(KELP_CUDNN_MAJOR)

static void *open_library(void)
{
    char of_toolkit[64];
    (void)snprintf(of_toolkit, sizeof(of_toolkit), "/usr/local/cuda-%d/lib64/" LIBRARY_NAME,
                   CUDART_VERSION / 1000);
    const char *const places[] = {
        LIBRARY_NAME, /* LD_LIBRARY_PATH, the linker's own configuration */
        "/usr/local/cuda/lib64/" LIBRARY_NAME,
        of_toolkit,
    };
    for (const char *place : places) {
        void *handle = dlopen(place, RTLD_NOW | RTLD_LOCAL);
        if (handle) {
            return handle;
        }
    }
    return NULL;
}

struct library {
    bool found;
    char missing[64]; /* the function that it lacks */
    struct kelp__cudnn_functions functions;
};

static struct library load_library(void)
{
    struct library library;
    memset(&library, 0, sizeof(library));
    void *handle = open_library(); /* stays for the life of the process */
    if (!handle) {
        return library;
    }
    library.found = true;
#define LIBRARY_FIND(result, name, arguments)                                                      \
    library.functions.name =                                                                       \
        reinterpret_cast<decltype(library.functions.name)>(dlsym(handle, "cudnn" #name));          \
    if (!library.functions.name && library.missing[0] == '\0') {                                   \
        (void)snprintf(library.missing, sizeof(library.missing), "cudnn%s", #name);                \
    }
    KELP_CUDNN_FUNCTIONS(LIBRARY_FIND)
#undef LIBRARY_FIND
    return library;
}

kelp_status kelp__cuda_cudnn_load(const struct kelp__cudnn_functions **ret,
                                  struct kelp_error *reterr)
{
    static const struct library library = load_library(); /* once; C++ sees to threads */
    if (!library.found) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "%s is neither on the library path nor in /usr/local/cuda/lib64",
                         LIBRARY_NAME);
    }
    if (library.missing[0] != '\0') {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "%s has no %s: cuDNN %d is needed",
                         LIBRARY_NAME, library.missing, KELP_CUDNN_MAJOR);
    }
    *ret = &library.functions;
    return KELP_OK;
}
