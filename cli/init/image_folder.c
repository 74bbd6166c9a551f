#include "cli/init/image_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "worker/data/text/input_file.h"

#define PATH_BYTES 4096

/* Bytes of pixels that mean and deviation are taken of: 10,000 images of MNIST. */
#define PIXELS_MAX 7840000u

#define CHUNK_BYTES 65536

/* One of the four files under any of its usual names; false when there is none. */
static bool find_file(const char *folder, const char *stem, uint32_t rank, char path[PATH_BYTES])
{
    static const char separators[] = {'-', '.'};
    static const char *const endings[] = {"", ".gz"};
    for (size_t s = 0; s < KELP_ARRAY_COUNT(separators); s++) {
        for (size_t e = 0; e < KELP_ARRAY_COUNT(endings); e++) {
            int bytes = snprintf(path, PATH_BYTES, "%s/%s%cidx%u-ubyte%s", folder, stem,
                                 separators[s], rank, endings[e]);
            if (bytes > 0 && bytes < PATH_BYTES && access(path, F_OK) == 0) {
                return true;
            }
        }
    }
    return false;
}

bool kelp_image_folder_is(const char *folder)
{
    char path[PATH_BYTES];
    return find_file(folder, "train-images", 3, path);
}

/* The file behind its header: magic number, then `rank` sizes, all with the highest byte first. */
static kelp_status open_idx(const char *folder, const char *stem, uint32_t rank,
                            struct kelp_input_file **ret_file, uint32_t *ret_sizes,
                            struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    uint8_t header[16];
    size_t wanted = 4 + 4 * (size_t)rank, count = 0;
    if (!find_file(folder, stem, rank, path)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "%s: has no %s-idx%u-ubyte, compressed with gzip or not", folder, stem,
                         rank);
    }
    kelp_status status = kelp_input_file_open(path, ret_file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_input_file_read(*ret_file, header, wanted, &count, reterr);
    if (status == KELP_OK && (count < wanted || header[0] != 0 || header[1] != 0 ||
                              header[2] != 8 || header[3] != rank)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT,
                           "%s: is not an IDX file of bytes with %u dimensions", path, rank);
    }
    for (uint32_t i = 0; i < rank && status == KELP_OK; i++) {
        const uint8_t *size = header + 4 + 4 * (size_t)i;
        ret_sizes[i] = (uint32_t)size[0] << 24 | (uint32_t)size[1] << 16 | (uint32_t)size[2] << 8 |
                       (uint32_t)size[3];
    }
    if (status != KELP_OK) {
        kelp_input_file_close(*ret_file);
        *ret_file = NULL;
    }
    return status;
}

struct sums {
    uint64_t count, max;
    double sum, squares;
};

static kelp_status add_bytes(struct kelp_input_file *file, uint64_t limit, struct sums *sums,
                             struct kelp_error *reterr)
{
    uint8_t bytes[CHUNK_BYTES];
    size_t count = sizeof(bytes);
    while (count == sizeof(bytes) && sums->count < limit) {
        kelp_status status = kelp_input_file_read(file, bytes, sizeof(bytes), &count, reterr);
        if (status != KELP_OK) {
            return status;
        }
        for (size_t i = 0; i < count; i++) {
            sums->max = bytes[i] > sums->max ? bytes[i] : sums->max;
            sums->sum += bytes[i];
            sums->squares += (double)bytes[i] * bytes[i];
        }
        sums->count += count;
    }
    return KELP_OK;
}

static kelp_status read_images(const char *folder, struct kelp_image_facts *facts,
                               struct kelp_error *reterr)
{
    struct kelp_input_file *file = NULL;
    struct sums sums = {0};
    uint32_t sizes[3] = {0};
    kelp_status status = open_idx(folder, "train-images", 3, &file, sizes, reterr);
    if (status == KELP_OK) {
        status = add_bytes(file, PIXELS_MAX, &sums, reterr);
    }
    kelp_input_file_close(file);
    if (status == KELP_OK && sums.count == 0) {
        status =
            kelp_fail(reterr, KELP_ERR_FORMAT, "%s: its training images have no pixels", folder);
    }
    if (status != KELP_OK) {
        return status;
    }
    double mean = sums.sum / (double)sums.count;
    double variance = sums.squares / (double)sums.count - mean * mean;
    facts->count = sizes[0];
    facts->height = sizes[1];
    facts->width = sizes[2];
    facts->mean = mean / 255.0;
    facts->std = variance > 0.0 ? sqrt(variance) / 255.0 : 1.0;
    return KELP_OK;
}

kelp_status kelp_image_folder_read(const char *folder, struct kelp_image_facts *ret_facts,
                                   struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    struct kelp_image_facts facts = {0};
    struct kelp_input_file *file = NULL;
    struct sums labels = {0};
    uint32_t count = 0;
    kelp_status status = read_images(folder, &facts, reterr);
    if (status == KELP_OK) {
        status = open_idx(folder, "train-labels", 1, &file, &count, reterr);
    }
    if (status == KELP_OK) {
        status = add_bytes(file, UINT64_MAX, &labels, reterr);
        kelp_input_file_close(file);
    }
    if (status == KELP_OK && (!find_file(folder, "t10k-images", 3, path) ||
                              !find_file(folder, "t10k-labels", 1, path))) {
        status = kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                           "%s: has training images, but not t10k-images-idx3-ubyte and "
                           "t10k-labels-idx1-ubyte for testing",
                           folder);
    }
    if (status == KELP_OK && labels.count != facts.count) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "%s: has %u training images, but %u labels",
                           folder, facts.count, (unsigned)labels.count);
    }
    if (status == KELP_OK) {
        facts.classes = labels.max > 0 ? (uint32_t)labels.max + 1 : 2;
        *ret_facts = facts;
    }
    return status;
}
