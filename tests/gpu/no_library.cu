/*
 * What the CUDA device says where cuBLASLt or cuDNN is not there, or is another one. The device's
 * objects are linked in, and find this program's dlopen() before the C library's; no GPU is needed.
 *
 * usage: no_library cublasLt|cudnn none|another
 * Exit status: 0; 1: a line says what is wrong; 2: usage.
 */
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "kernels/cuda/conv2d/cudnn.cuh"
#include "kernels/cuda/cuda.cuh"

static bool with_another; /* a library without the functions that are looked for */

extern "C" void *dlopen(const char *name, int mode) noexcept
{
    using function = void *(const char *, int);
    function *real = reinterpret_cast<function *>(dlsym(RTLD_NEXT, "dlopen"));
    if (name && (strstr(name, "libcublasLt.so.") || strstr(name, "libcudnn.so."))) {
        return with_another ? real("libm.so.6", mode) : nullptr;
    }
    return real(name, mode);
}

static kelp_status load_cudnn(struct kelp_error *reterr)
{
    const struct kelp__cudnn_functions *functions = NULL;
    return kelp__cuda_cudnn_load(&functions, reterr);
}

struct library {
    const char *name, *file, *another;
    kelp_status (*load)(struct kelp_error *reterr);
    kelp_status status; /* of another one */
};
static const struct library libraries[] = {
    {"cublasLt", "libcublasLt.so.13", " has no cublasLtCreate: cuBLASLt of CUDA 13 is needed",
     kelp__cuda_products_load, KELP_ERR_NOT_FOUND},
    {"cudnn", "libcudnn.so.9", " has no cudnnGetVersion: cuDNN 9 is needed", load_cudnn,
     KELP_ERR_UNSUPPORTED}, /* a job that can do without would have another kind */
};

int main(int argc, char **argv)
{
    struct kelp_error error = {KELP_OK, ""};
    char expected[256];
    for (const struct library &library : libraries) {
        if (argc != 3 || strcmp(argv[1], library.name) != 0) {
            continue;
        }
        with_another = strcmp(argv[2], "another") == 0;
        (void)snprintf(expected, sizeof(expected), "%s%s", library.file,
                       with_another
                           ? library.another
                           : " is neither on the library path nor in /usr/local/cuda/lib64");
        const kelp_status status = library.load(&error);
        if (status != (with_another ? library.status : KELP_ERR_NOT_FOUND) ||
            strcmp(error.text, expected) != 0) {
            printf("FAILED: status %d: %s\n", status, error.text);
            return 1;
        }
        puts(error.text);
        return 0;
    }
    fprintf(stderr, "usage: no_library cublasLt|cudnn none|another\n");
    return 2;
}
