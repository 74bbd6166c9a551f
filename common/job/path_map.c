#include "common/job/path_map.h"

#include <stdio.h>
#include <string.h>

/* What is wrong with a path of an entry, or NULL. Trailing slashes do not count. */
static const char *wrong_path(const char *path, size_t bytes)
{
    if (bytes > KELP_JOB_PATH_MAX) {
        return "a path of it is too long";
    }
    for (size_t at = 0; at < bytes;) {
        size_t length = 0;
        for (at++; at + length < bytes && path[at + length] != '/'; length++) {
        }
        if (length == 0 || (length <= 2 && strncmp(path + at, "..", length) == 0)) {
            return "a path of it has '.', '..' or nothing between two slashes";
        }
        at += length;
    }
    return NULL;
}

static size_t bytes_without_slashes(const char *path, size_t bytes)
{
    while (bytes > 0 && path[bytes - 1] == '/') {
        bytes--;
    }
    return bytes;
}

static bool is_from(const struct kelp_path_map_entry *entry, const char *from, size_t from_bytes)
{
    return entry->from_bytes == from_bytes && strncmp(entry->text, from, from_bytes) == 0;
}

/* text: for errors. */
static kelp_status add(struct kelp_path_map *map, const char *text, const char *from,
                       size_t from_bytes, const char *to, struct kelp_error *reterr)
{
    size_t to_bytes = bytes_without_slashes(to, strlen(to));

    from_bytes = bytes_without_slashes(from, from_bytes);
    const char *wrong = wrong_path(from, from_bytes);
    if (!wrong) {
        wrong = wrong_path(to, to_bytes);
    }
    if (wrong) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "'%.200s': %s", text, wrong);
    }
    for (size_t i = 0; i < map->count; i++) {
        if (is_from(&map->items[i], from, from_bytes)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "'%.160s': the same FROM was given in '%.160s'", text,
                             map->items[i].text);
        }
    }
    if (map->count == KELP_PATH_MAP_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "'%.200s': more than %d are given", text,
                         KELP_PATH_MAP_MAX);
    }
    struct kelp_path_map_entry *entry = &map->items[map->count++];
    entry->from_bytes = from_bytes;
    (void)snprintf(entry->text, sizeof(entry->text), "%.*s%s=%.*s%s", (int)from_bytes, from,
                   from_bytes == 0 ? "/" : "", (int)to_bytes, to, to_bytes == 0 ? "/" : "");
    return KELP_OK;
}

kelp_status kelp_path_map_add(struct kelp_path_map *map, const char *text,
                              struct kelp_error *reterr)
{
    const char *equals = text[0] == '/' ? strstr(text, "=/") : NULL;

    return equals ? add(map, text, text, (size_t)(equals - text), equals + 1, reterr)
                  : kelp_fail(reterr, KELP_ERR_INVALID,
                              "'%.200s': FROM=TO with two absolute paths is expected", text);
}

kelp_status kelp_path_map_join(struct kelp_path_map *map, const char *from, const char *to,
                               struct kelp_error *reterr)
{
    return from[0] == '/' && to[0] == '/' && !strstr(from, "=/")
               ? add(map, from, from, strlen(from), to, reterr)
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "'%.160s' cannot be read at '%.160s': both must be absolute, and FROM "
                           "must not contain \"=/\"",
                           from, to);
}

bool kelp_path_map_covers(const struct kelp_path_map_entry *entry, const char *path)
{
    const char after = path[strnlen(path, entry->from_bytes)];

    return path[0] == '/' && strncmp(entry->text, path, entry->from_bytes) == 0 &&
           (after == '/' || after == '\0');
}

const struct kelp_path_map_entry *kelp_path_map_find(const struct kelp_path_map *map,
                                                     const char *path)
{
    const struct kelp_path_map_entry *best = NULL;

    for (size_t i = 0; i < map->count; i++) {
        const struct kelp_path_map_entry *entry = &map->items[i];
        if (kelp_path_map_covers(entry, path) && (!best || entry->from_bytes > best->from_bytes)) {
            best = entry;
        }
    }
    return best;
}

kelp_status kelp_path_map_apply(const struct kelp_path_map *map, const char *path,
                                char ret_path[KELP_JOB_PATH_MAX + 1], struct kelp_error *reterr)
{
    const struct kelp_path_map_entry *entry = kelp_path_map_find(map, path);
    const char *equals = entry ? strstr(entry->text, "=/") : NULL;
    const char *to = equals ? equals + 1 : "";
    const char *rest = entry ? path + entry->from_bytes : path;
    const size_t to_bytes = bytes_without_slashes(to, strlen(to));

    const bool root = entry && to_bytes == 0 && rest[0] == '\0';
    int length = snprintf(ret_path, KELP_JOB_PATH_MAX + 1, "%.*s%s%s", (int)to_bytes, to,
                          root ? "/" : "", rest);
    return length >= 0 && length <= KELP_JOB_PATH_MAX
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT,
                           "'%.200s' is longer than %d bytes at the place of --map-path", path,
                           KELP_JOB_PATH_MAX);
}
