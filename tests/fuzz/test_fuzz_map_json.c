/* The coordinator's texts in etcd, damaged: refused, or read back exactly as they are printed. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/etcd/map_json.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 20000

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT("{\"generation\":3,\"restore_version\":0,\"nonce\":\"n-1\",\"shards\":[{"
                   "\"shard\":\"shard-0\",\"address\":\"h:1\",\"incarnation\":\"12\"},{\"shard\":"
                   "\"shard-1\",\"address\":\"h:2\",\"incarnation\":\"7\"}],\"partitions\":[{"
                   "\"map_epoch\":2,\"primary\":0},{\"map_epoch\":1,\"primary\":1}]}"),
    KELP_FUZZ_TEXT("{\"address\":\"127.0.0.1:99\",\"incarnation\":\"12\"}"),
    KELP_FUZZ_TEXT("{\"state\":\"failed\",\"reason\":\"a \\\"b\\\"\\n\",\"version\":9}"),
};
static const char *const words[] = {"\"generation\":",
                                    "\"shards\":[",
                                    "\"partitions\":[",
                                    "{}",
                                    "null",
                                    "1e99",
                                    "-1",
                                    "\"\"",
                                    "\\u0000",
                                    "9007199254740993",
                                    "[[[[",
                                    "]}"};

static const char *check_again(const char *text)
{
    struct kelp_map map;
    char *again = NULL;
    if (kelp_map_parse(text, strlen(text), &map, NULL) != KELP_OK) {
        return "a map that was printed cannot be read";
    }
    kelp_status status = kelp_map_print(&map, &again, NULL);
    kelp_map_fini(&map);
    bool same = status == KELP_OK && strcmp(text, again) == 0;
    free(again);
    return same ? NULL : "a map changes by being printed and read";
}

static const char *target(const uint8_t *bytes, size_t count)
{
    const char *text = (const char *)bytes;
    struct kelp_map_shard shard = {.incarnation = 0};
    struct kelp_job_state state;
    struct kelp_map map;
    char *printed = NULL;
    if (kelp_registration_parse(text, count, &shard, NULL) == KELP_OK &&
        (shard.incarnation == 0 || shard.address[0] == '\0')) {
        return "a registration without incarnation or address was taken";
    }
    kelp_status status = kelp_job_state_parse(text, count, &state, NULL);
    if (status == KELP_OK && strlen(state.reason) >= sizeof(state.reason)) {
        return "a reason has no end";
    }
    if (kelp_map_parse(text, count, &map, NULL) != KELP_OK) {
        return NULL;
    }
    const char *wrong = kelp_map_check(&map, NULL) == KELP_OK ? NULL : "a wrong map was taken";
    if (wrong == NULL && kelp_map_print(&map, &printed, NULL) == KELP_OK) {
        wrong = check_again(printed);
    }
    free(printed);
    kelp_map_fini(&map);
    return wrong;
}

KELP_CASE("texts", .timeout_s = 120)

KELP_FUZZ_TEST(damaged_texts, INPUTS, seeds, words, target)
