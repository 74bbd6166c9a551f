/* A folder with images and labels in MNIST's format. */
#ifndef KELP_CLI_INIT_IMAGE_FOLDER_H
#define KELP_CLI_INIT_IMAGE_FOLDER_H

#include <stdint.h>

#include "common/base/status.h"

struct kelp_image_facts {
    uint32_t count, height, width;
    uint32_t classes;
    double mean, std; /* of pixels / 255, of the first images */
};

/* Does the folder have training images? */
bool kelp_image_folder_is(const char *folder);

/* Errors: KELP_ERR_FORMAT (not IDX, or not of images and labels), KELP_ERR_NOT_FOUND (one of the
 * four files), those of worker/data/text/input_file.h. */
kelp_status kelp_image_folder_read(const char *folder, struct kelp_image_facts *ret_facts,
                                   struct kelp_error *reterr) KELP_MUST_USE;

#endif
