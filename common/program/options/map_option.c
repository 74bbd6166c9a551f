#include "common/program/options/map_option.h"

kelp_status kelp_map_option_read(const struct kelp_options *options, struct kelp_path_map *map,
                                 struct kelp_error *reterr)
{
    const size_t count = kelp_options_repeat_count(options, KELP_MAP_PATH);
    kelp_status status = KELP_OK;

    map->count = 0;
    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        status = kelp_path_map_add(map, kelp_options_repeat(options, KELP_MAP_PATH, i), reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "--" KELP_MAP_PATH);
    }
    return status;
}

bool kelp_map_option_begin(const struct kelp_program *program, const struct kelp_options *options,
                           struct kelp_path_map *map)
{
    struct kelp_error error;

    if (kelp_map_option_read(options, map, &error) != KELP_OK) {
        (void)fprintf(stderr, "%s: %s\n", program->name, error.text);
        return false;
    }
    return true;
}
