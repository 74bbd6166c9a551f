/*
 * The option --map-path FROM=TO, of whatever reads files of a job (common/job/path_map.h).
 */
#ifndef KELP_COMMON_PROGRAM_OPTIONS_MAP_OPTION_H
#define KELP_COMMON_PROGRAM_OPTIONS_MAP_OPTION_H

#include "common/job/path_map.h"
#include "common/program/options/options.h"

#define KELP_MAP_PATH "map-path"

/* An entry for a table of options. */
#define KELP_MAP_PATH_OPTION(heading, more)                                                        \
    {                                                                                              \
        .name = KELP_MAP_PATH, .type = KELP_OPTION_TEXT, .placeholder = "FROM=TO",                 \
        .repeatable = true, .group = (heading),                                                    \
        .help = "files that the job names at FROM or below it are at TO on this host" more         \
                "; if several FROM match, the longest counts"                                      \
    }

/* What it says; map is replaced. Errors: those of kelp_path_map_add(), which begin with the
 * option's name. */
kelp_status kelp_map_option_read(const struct kelp_options *options, struct kelp_path_map *map,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* The same for a daemon. On a mistake: one line to standard error and false. */
bool kelp_map_option_begin(const struct kelp_program *program, const struct kelp_options *options,
                           struct kelp_path_map *map);

#endif
