/* Finding cuDNN. */
#include <cstring>

#include <cuda_runtime.h>

#include "kernels/cuda/conv2d/cudnn.cuh"
#include "kernels/cuda/library.cuh"

#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(number) #number
#define LIBRARY_NAME     "libcudnn.so." TEXT_OF(KELP_CUDNN_MAJOR)

struct library {
    bool found;
    char missing[64]; /* the function that it lacks */
    struct kelp__cudnn_functions functions;
};

static struct library load_library(void)
{
    struct library library;
    memset(&library, 0, sizeof(library));
    void *handle = kelp__cuda_library_open(LIBRARY_NAME, CUDART_VERSION / 1000);
    if (!handle) {
        return library;
    }
    library.found = true;
#define LIBRARY_FIND(result, name, arguments)                                                      \
    kelp__cuda_library_find(handle, "cudnn" #name, &library.functions.name, library.missing);
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
