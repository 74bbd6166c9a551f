/* The fake device in the place of libkelp-cuda.so: whole jobs with cluster.device: cuda. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda_entry.h"
#include "tests/lib/fake/fake_device.h"

#define SEED       "KELP_FAKE_SEED"
#define RECORDINGS "KELP_FAKE_RECORDINGS" /* 0: none are offered */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct kelp_error no_seed; /* what is wrong with the environment's */

static void read_environment(void)
{
    const char *recordings = getenv(RECORDINGS), *text = getenv(SEED);
    fake_device_offer_recordings(!recordings || strcmp(recordings, "0") != 0);
    char *end = NULL;
    if (!text) {
        return;
    }
    errno = 0;
    const unsigned long long seed = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9') {
        (void)kelp_fail(&no_seed, KELP_ERR_INVALID, SEED "=%s: a whole number is meant", text);
        return;
    }
    fake_device_seed(seed);
}

kelp_status kelp_cuda_entry(uint32_t index, struct kelp_device **ret, struct kelp_error *reterr)
{
    if (index != 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "GPU %u: this machine has 1, from 0 on",
                         index);
    }
    (void)pthread_once(&once, read_environment);
    return no_seed.status == KELP_OK ? fake_device_create(ret, reterr)
                                     : kelp_fail(reterr, no_seed.status, "%s", no_seed.text);
}
