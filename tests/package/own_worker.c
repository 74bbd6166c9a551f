/* A program that uses the worker as a library, told to stop before there is a job. */
#include <stdio.h>

#include <kelp/worker.h>

int main(void)
{
    const struct kelp_worker_options options = {
        .etcd = "http://127.0.0.1:1", .job = "job", .id = "worker-0"};
    struct kelp_stop stop = KELP_STOP_INIT;
    struct kelp_worker *worker = NULL;
    struct kelp_error error;
    struct kelp_work work;

    kelp_stop_raise(&stop);
    kelp_status status = kelp_worker_open(&options, &stop, &worker, &error);
    if (status == KELP_OK) {
        status = kelp_worker_next(worker, &stop, &work, &error);
    }
    (void)printf("%s\n", status == KELP_ERR_TIMEOUT ? "no job yet" : error.text);
    kelp_worker_close(worker);
    return status == KELP_ERR_TIMEOUT ? 0 : 1;
}
