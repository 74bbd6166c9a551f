#include "worker/model/mirror.h"

void kelp__mirror_fini(struct kelp__mirror *mirror, struct kelp_device *device)
{
    if (mirror->count != 0) {
        device->table->free(device, mirror->weights);
        device->table->free(device, mirror->gradient);
    }
    *mirror = (struct kelp__mirror){0};
}

static kelp_status vector(struct kelp_device *device, uint64_t count, float **ret,
                          struct kelp_error *reterr)
{
    void *memory = NULL;
    const kelp_status status = device->table->alloc(device, count * sizeof(float), &memory, reterr);
    *ret = memory;
    return status;
}

kelp_status kelp__mirror_prepare(struct kelp__mirror *mirror, struct kelp_stream *stream,
                                 uint64_t count, bool with_gradient, struct kelp_error *reterr)
{
    struct kelp_device *device = stream->device;
    kelp_status status = KELP_OK;

    if (mirror->count != count) {
        device->table->free(device, mirror->weights);
        device->table->free(device, mirror->gradient);
        mirror->weights = NULL;
        mirror->gradient = NULL;
        mirror->count = count;
        mirror->has_weights = false;
        mirror->has_gradient = false;
    }
    if (!mirror->weights) {
        status = vector(device, count, &mirror->weights, reterr);
    }
    if (status == KELP_OK && with_gradient && !mirror->gradient) {
        status = vector(device, count, &mirror->gradient, reterr);
        if (status == KELP_OK) {
            device->table->fill(stream, mirror->gradient, 0.0f, count);
        }
    }
    return status;
}

void kelp__mirror_upload(struct kelp__mirror *mirror, struct kelp_stream *stream,
                         const float *weights, const float *gradient)
{
    const size_t bytes = (size_t)mirror->count * sizeof(float);

    if (!mirror->has_weights) {
        stream->table->copy_in(stream, mirror->weights, weights, bytes);
        mirror->has_weights = true;
    }
    if (gradient && !mirror->has_gradient) {
        stream->table->copy_in(stream, mirror->gradient, gradient, bytes);
    }
}

kelp_status kelp__mirror_download(struct kelp__mirror *mirror, struct kelp_stream *stream,
                                  float *gradient, struct kelp_error *reterr)
{
    stream->table->copy_out(stream, gradient, mirror->gradient,
                            (size_t)mirror->count * sizeof(float));
    mirror->has_gradient = true;
    return stream->table->wait(stream, reterr);
}
