/* Linked around the example's kelp_worker_submit(): the first worker to have computed 300 lanes
 * dies, once. */
#include <fcntl.h>
#include <kelp/worker.h>
#include <signal.h>

int __real_kelp_worker_submit(struct kelp_worker *worker);
int __wrap_kelp_worker_submit(struct kelp_worker *worker);

int __wrap_kelp_worker_submit(struct kelp_worker *worker)
{
    static int lanes;

    if (++lanes == 300 && open("died", O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0) {
        (void)raise(SIGKILL);
    }
    return __real_kelp_worker_submit(worker);
}
