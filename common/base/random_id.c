#include "common/base/random_id.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

kelp_status kelp_random_id(uint64_t *ret_id, struct kelp_error *reterr)
{
    uint64_t id = 0;
    while (id == 0) {
        if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id)) {
            return kelp_fail(reterr, KELP_ERR_IO, "getrandom: %s", strerror(errno));
        }
    }
    *ret_id = id;
    return KELP_OK;
}
