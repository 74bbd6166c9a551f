/* Files of a job that lie elsewhere on one host: --map-path FROM=TO. */
#include <stdio.h>
#include <string.h>

#include "common/job/path_map.h"
#include "tests/lib/suite.h"

static struct kelp_path_map map;
static struct kelp_error error;

static void begin(const char *const *texts)
{
    map.count = 0;
    for (size_t i = 0; texts[i]; i++) {
        ck_assert_msg(kelp_path_map_add(&map, texts[i], &error) == KELP_OK, "%s", error.text);
    }
}

static void lies(const char *path, const char *here)
{
    char found[KELP_JOB_PATH_MAX + 1];

    ck_assert_msg(kelp_path_map_apply(&map, path, found, &error) == KELP_OK, "%s", error.text);
    ck_assert_str_eq(found, here);
}

static void refused(const char *text, const char *words)
{
    const size_t before = map.count;

    ck_assert_int_eq(kelp_path_map_add(&map, text, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);
    ck_assert_msg(strstr(error.text, text) != NULL, "%s", error.text);
    ck_assert_uint_eq(map.count, before);
}

/* What is FROM or lies below it is at TO; all else stays where it is. */
KELP_TEST(moves)
{
    begin((const char *[]){"/data=/mnt/a", NULL});
    lies("/data/x.csv", "/mnt/a/x.csv");
    lies("/data/deep/er/x-*.csv", "/mnt/a/deep/er/x-*.csv");
    lies("/data", "/mnt/a");
    lies("/data/", "/mnt/a/");
    lies("/database/x.csv", "/database/x.csv"); /* whole components */
    lies("/dat", "/dat");
    lies("/other/data/x.csv", "/other/data/x.csv");
    lies("data/x.csv", "data/x.csv"); /* not absolute */
    lies("", "");
    ck_assert_ptr_null(kelp_path_map_find(&map, "/database"));
    ck_assert_ptr_eq(kelp_path_map_find(&map, "/data/x"), &map.items[0]);
}

/* The longest FROM counts, in whatever order they come; what was moved is not moved again. */
KELP_TEST(longest)
{
    begin((const char *[]){"/a=/b", "/a/x/y=/deep", "/a/x=/c", "/b=/z", NULL});
    lies("/a/1", "/b/1");
    lies("/a/x/1", "/c/1");
    lies("/a/x/y/1", "/deep/1");
    lies("/a/xy", "/b/xy");
    lies("/b/1", "/z/1");
}

/* The root, and slashes at an end. */
KELP_TEST(roots)
{
    begin((const char *[]){"/=/mnt", NULL});
    lies("/data/x", "/mnt/data/x");
    lies("/", "/mnt/");
    begin((const char *[]){"/mnt/=/", NULL});
    lies("/mnt/data/x", "/data/x");
    lies("/mnt", "/");
    begin((const char *[]){"/a//=/b/", NULL});
    lies("/a/x", "/b/x");
    ck_assert_str_eq(map.items[0].text, "/a=/b");
}

/* Its text says the same again, whatever stands in its paths: daemons get it so. */
KELP_TEST(texts)
{
    struct kelp_path_map again = {.count = 0};

    begin((const char *[]){"/day=1/x=/mnt/day=1", "/=/y", NULL});
    lies("/day=1/x/f", "/mnt/day=1/f");
    for (size_t i = 0; i < map.count; i++) {
        ck_assert_int_eq(kelp_path_map_add(&again, map.items[i].text, &error), KELP_OK);
        ck_assert_uint_eq(again.items[i].from_bytes, map.items[i].from_bytes);
        ck_assert_str_eq(again.items[i].text, map.items[i].text);
    }
}

/* Two texts make an entry as one does, as far as that can be read back. */
KELP_TEST(joins)
{
    map.count = 0;
    ck_assert_int_eq(kelp_path_map_join(&map, "/runs/a", "/mnt/b", &error), KELP_OK);
    lies("/runs/a/plugin/x.so", "/mnt/b/plugin/x.so");
    ck_assert_int_eq(kelp_path_map_join(&map, "/runs/x=/y", "/mnt/b", &error), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_path_map_join(&map, "runs", "/mnt/b", &error), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_path_map_join(&map, "/runs/a", "/mnt/c", &error), KELP_ERR_INVALID);
    ck_assert_uint_eq(map.count, 1);
}

/* Each mistake is refused by name, and nothing is added. */
KELP_TEST(mistakes)
{
    begin((const char *[]){"/data=/mnt/a", NULL});
    refused("", "two absolute paths");
    refused("/data", "two absolute paths");
    refused("/data=mnt", "two absolute paths");
    refused("data=/mnt", "two absolute paths");
    refused("=/mnt", "two absolute paths");
    refused("/a/../b=/c", "'..'");
    refused("/a/./b=/c", "'.'");
    refused("/a/..=/c", "'..'");
    refused("/a=/c/..", "'..'");
    refused("/a=/c//d", "nothing between two slashes");
    refused("/data/=/mnt/b", "the same FROM was given in '/data=/mnt/a'");
    lies("/data/x", "/mnt/a/x");
    begin((const char *[]){"/a/...=/c", "/a/..b=/d", NULL}); /* names like others */
}

/* No more than there is room for, and no path that a job could not have. */
KELP_TEST(limits)
{
    char text[2 * KELP_JOB_PATH_MAX + 16], path[KELP_JOB_PATH_MAX + 1];
    char found[KELP_JOB_PATH_MAX + 1];

    map.count = 0;
    for (int i = 0; i < KELP_PATH_MAP_MAX; i++) {
        (void)snprintf(text, sizeof(text), "/%d=/x", i);
        ck_assert_int_eq(kelp_path_map_add(&map, text, &error), KELP_OK);
    }
    ck_assert_int_eq(kelp_path_map_add(&map, "/more=/x", &error), KELP_ERR_LIMIT);

    map.count = 0;
    memset(text, 'x', sizeof(text));
    text[0] = '/';
    memcpy(text + KELP_JOB_PATH_MAX + 1, "=/x", sizeof("=/x"));
    ck_assert_int_eq(kelp_path_map_add(&map, text, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "too long"));
    memcpy(text + KELP_JOB_PATH_MAX, "=/x", sizeof("=/x"));
    ck_assert_int_eq(kelp_path_map_add(&map, text, &error), KELP_OK);

    begin((const char *[]){"/a=/longer", NULL});
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    memcpy(path, "/a/", 3);
    ck_assert_int_eq(kelp_path_map_apply(&map, path, found, &error), KELP_ERR_LIMIT);
    path[KELP_JOB_PATH_MAX - strlen("/longer") + strlen("/a")] = '\0';
    ck_assert_int_eq(kelp_path_map_apply(&map, path, found, &error), KELP_OK);
    ck_assert_uint_eq(strlen(found), KELP_JOB_PATH_MAX);
}
