/*
 * What the CUDA device says where cuBLASLt is not there, or is another one. The device's objects are
 * linked in, and find this program's dlopen() before the C library's; no GPU is needed.
 *
 * Exit status: 0; 1: a line says what is wrong.
 */
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "kernels/cuda/cuda.cuh"

static bool with_another; /* a library without cuBLASLt's functions */

extern "C" void *dlopen(const char *name, int mode) noexcept
{
    using function = void *(const char *, int);
    function *real = reinterpret_cast<function *>(dlsym(RTLD_NEXT, "dlopen"));
    if (name && strstr(name, "libcublasLt.so.")) {
        return with_another ? real("libm.so.6", mode) : nullptr;
    }
    return real(name, mode);
}

int main(int argc, char **argv)
{
    struct kelp_error error = {KELP_OK, ""};
    with_another = argc == 2 && strcmp(argv[1], "another") == 0;
    const kelp_status status = kelp__cuda_products_load(&error);
    const char *end = with_another
                          ? " has no cublasLtCreate: cuBLASLt of CUDA 13 is needed"
                          : " is neither on the library path nor in /usr/local/cuda/lib64";
    const char *begin = "libcublasLt.so.13";
    if (status != KELP_ERR_NOT_FOUND || strncmp(error.text, begin, strlen(begin)) != 0 ||
        strcmp(error.text + strlen(begin), end) != 0) {
        printf("FAILED: status %d: %s\n", status, error.text);
        return 1;
    }
    puts(error.text);
    return 0;
}
