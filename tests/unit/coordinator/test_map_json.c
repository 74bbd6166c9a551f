/* The coordinator's texts in etcd: what is written is read back, and nonsense is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/etcd/map_json.h"
#include "tests/lib/suite.h"

static const char good[] =
    "{\"generation\":3,\"serial\":5,\"restore_version\":0,\"nonce\":\"n-1\",\"shards\":["
    "{\"shard\":\"shard-0\",\"address\":\"h:1\",\"incarnation\":\"18446744073709551615\"},"
    "{\"shard\":\"shard-1\",\"address\":\"h:2\",\"zone\":\"rack-1\",\"incarnation\":\"7\"},"
    "{\"shard\":\"shard-2\",\"address\":\"h:3\",\"zone\":\"rack-2\",\"incarnation\":\"8\"}],"
    "\"partitions\":[{\"map_epoch\":2,\"primary\":0},"
    "{\"map_epoch\":1,\"primary\":1,\"backup\":0,\"joiner\":2}]}";

/* Reading and writing are inverse, and all 64 bits of an incarnation survive. */
KELP_TEST(map_round_trip)
{
    struct kelp_map map;
    struct kelp_error error;
    char *text = NULL;
    ck_assert_int_eq(kelp_map_parse(good, strlen(good), &map, &error), KELP_OK);
    ck_assert_uint_eq(map.generation, 3);
    ck_assert_uint_eq(map.shards[0].incarnation, UINT64_MAX);
    ck_assert_uint_eq(map.serial, 5);
    ck_assert_uint_eq(map.partitions[0].backup, KELP_MAP_NOBODY);
    ck_assert_uint_eq(map.partitions[0].joiner, KELP_MAP_NOBODY);
    ck_assert_uint_eq(map.partitions[1].primary, 1);
    ck_assert_uint_eq(map.partitions[1].backup, 0);
    ck_assert_uint_eq(map.partitions[1].joiner, 2);
    ck_assert_str_eq(map.shards[0].zone, "");
    ck_assert_str_eq(map.shards[1].zone, "rack-1");
    ck_assert_str_eq(map.nonce, "n-1");
    ck_assert_int_eq(kelp_map_print(&map, &text, &error), KELP_OK);
    ck_assert_str_eq(text, good);
    free(text);
    kelp_map_fini(&map);
}

/* Each one change to the good text makes it a map that must not be used. */
KELP_LOOP_TEST(map_refusals, 0, 28)
{
    static const char *const changes[][2] = {
        {"\"generation\":3", "\"generation\":0"},
        {"\"generation\":3", "\"generation\":-3"},
        {"\"generation\":3", "\"generation\":3.5"},
        {"\"generation\":3", "\"generation\":\"3\""},
        {"\"generation\":3,", ""},
        {"\"restore_version\":0,", ""},
        {"\"nonce\":\"n-1\",", ""},
        {"\"shard-1\"", "\"shard-0\""},
        {"\"shard-1\"", "\"\""},
        {"\"h:2\"", "\"\""},
        {"\"7\"", "7"},
        {"\"7\"", "\"0\""},
        {"\"7\"", "\"-7\""},
        {"\"7\"", "\"7a\""},
        {"\"7\"", "\"18446744073709551616\""},
        {"\"serial\":5", "\"serial\":0"},
        {"\"serial\":5", "\"serial\":\"5\""},
        {"\"rack-1\"", "\"\""},
        {"\"rack-1\"", "1"},
        {"\"backup\":0", "\"backup\":1"},
        {"\"backup\":0", "\"backup\":2"},
        {"\"joiner\":2", "\"joiner\":3"},
        {"\"primary\":1", "\"primary\":3"},
        {"\"map_epoch\":1", "\"map_epoch\":0"},
        {"\"partitions\":[", "\"partitions\":[1,"},
        {"\"shards\":[", "\"shards\":[null,"},
        {"]}", "]"},
        {"]}", "]}x"},
    };
    char text[sizeof(good) + 64];
    struct kelp_map map;
    struct kelp_error error = {.text = ""};
    const char *at = strstr(good, changes[_i][0]);
    ck_assert_ptr_nonnull(at);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, changes[_i][1],
                   at + strlen(changes[_i][0]));
    ck_assert_int_eq(kelp_map_parse(text, strlen(text), &map, &error), KELP_ERR_FORMAT);
    ck_assert_str_ne(error.text, "");
}

/* Maps of before there were changes within a generation. */
KELP_TEST(map_without_serial)
{
    char text[sizeof(good)];
    struct kelp_map map;
    const char *at = strstr(good, "\"serial\":5,");
    (void)snprintf(text, sizeof(text), "%.*s%s", (int)(at - good), good,
                   at + strlen("\"serial\":5,"));
    ck_assert_int_eq(kelp_map_parse(text, strlen(text), &map, NULL), KELP_OK);
    ck_assert_uint_eq(map.serial, 1);
    kelp_map_fini(&map);
}

/* Every truncation of a good text is refused. */
KELP_TEST(map_truncations)
{
    struct kelp_map map;
    for (size_t length = 0; length < strlen(good); length++) {
        ck_assert_int_eq(kelp_map_parse(good, length, &map, NULL), KELP_ERR_FORMAT);
    }
}

KELP_TEST(registrations)
{
    struct kelp_map_shard shard = {.id = "shard-0"};
    struct kelp_error error;
    const char *text = "{\"address\":\"127.0.0.1:99\",\"incarnation\":\"12\"}";
    ck_assert_int_eq(kelp_registration_parse(text, strlen(text), &shard, &error), KELP_OK);
    ck_assert_str_eq(shard.id, "shard-0");
    ck_assert_str_eq(shard.address, "127.0.0.1:99");
    ck_assert_uint_eq(shard.incarnation, 12);
    ck_assert_str_eq(shard.zone, "");
    text = "{\"address\":\"127.0.0.1:99\",\"incarnation\":\"12\",\"zone\":\"rack-1\"}";
    ck_assert_int_eq(kelp_registration_parse(text, strlen(text), &shard, &error), KELP_OK);
    ck_assert_str_eq(shard.zone, "rack-1");
    text = "{\"address\":\"127.0.0.1:99\",\"incarnation\":\"12\",\"zone\":\"a b\"}";
    ck_assert_int_eq(kelp_registration_parse(text, strlen(text), &shard, &error), KELP_ERR_FORMAT);
    ck_assert_str_eq(error.text, "zone: 'a b' is not a name of letters, digits, '-', '_', '.'");
    text = "{\"address\":\"127.0.0.1:99\"}";
    ck_assert_int_eq(kelp_registration_parse(text, strlen(text), &shard, &error), KELP_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(error.text, "incarnation"));
    ck_assert_int_eq(kelp_registration_parse("[]", 2, &shard, &error), KELP_ERR_FORMAT);
}

/* Nobody waits for a resolver: a shard or leader that is known by a name is not taken. */
KELP_TEST(names_are_not_dialled)
{
    struct kelp_map_shard shard = {.id = "shard-0"};
    struct kelp_holder holder;
    struct kelp_error error;
    const char *text = "{\"address\":\"ps.example.org:99\",\"incarnation\":\"12\"}";
    ck_assert_int_eq(kelp_registration_parse(text, strlen(text), &shard, &error), KELP_ERR_FORMAT);
    ck_assert_str_eq(error.text,
                     "address: 'ps.example.org:99' is not HOST:PORT in numbers, or unix:/PATH");
    ck_assert_str_eq(shard.address, "");
    text = "{\"id\":\"coordinator-0\",\"address\":\"0.0.0.0:99\",\"incarnation\":\"12\"}";
    ck_assert_int_eq(kelp_holder_parse(text, strlen(text), &holder, &error), KELP_ERR_FORMAT);
    ck_assert_str_eq(error.text,
                     "address: '0.0.0.0:99' is not HOST:PORT in numbers, or unix:/PATH");
    text = "{\"id\":\"coordinator-0\",\"address\":\"unix:/c\",\"incarnation\":\"12\"}";
    ck_assert_int_eq(kelp_holder_parse(text, strlen(text), &holder, &error), KELP_OK);
}

/* A reason may hold quotes and line breaks. */
KELP_TEST(states)
{
    struct kelp_job_state state = {
        .state = "failed", .reason = "shard-0: \"no\"\nroom", .version = 9};
    struct kelp_job_state back;
    char *text = NULL;
    ck_assert_int_eq(kelp_job_state_print(&state, &text, NULL), KELP_OK);
    ck_assert_int_eq(kelp_job_state_parse(text, strlen(text), &back, NULL), KELP_OK);
    ck_assert_str_eq(back.state, state.state);
    ck_assert_str_eq(back.reason, state.reason);
    ck_assert_uint_eq(back.version, 9);
    ck_assert_int_eq(kelp_job_state_parse(text, strlen(text) - 1, &back, NULL), KELP_ERR_FORMAT);
    free(text);
}

/* Another size, and the one that the job had then. */
KELP_TEST(scales)
{
    static const char *const wrong[] = {
        "{}",
        "{\"targets\":{\"workers_min\":1,\"workers_max\":2,\"shards\":1}}",
        "{\"targets\":[],\"of_job\":{}}",
        "{\"targets\":{\"workers_min\":1},\"of_job\":{\"workers_min\":1,\"workers_max\":2,"
        "\"shards\":1}}",
        "{\"targets\":{\"workers_min\":1,\"workers_max\":99999,\"shards\":1},"
        "\"of_job\":{\"workers_min\":1,\"workers_max\":2,\"shards\":1}}",
        "{\"targets\":{\"workers_min\":1,\"workers_max\":2,\"shards\":1,\"drains\":[{\"id\":\"a/"
        "b\","
        "\"incarnation\":\"1\"}]},\"of_job\":{\"workers_min\":1,\"workers_max\":2,\"shards\":1}}",
        "{\"targets\":{\"workers_min\":1,\"workers_max\":2,\"shards\":1,\"drains\":[{\"id\":\"a\"}]"
        "},"
        "\"of_job\":{\"workers_min\":1,\"workers_max\":2,\"shards\":1}}"};
    const struct kelp_scale scale = {
        .targets = {.workers_min = 2,
                    .workers_max = 6,
                    .shards = 3,
                    .drains = {{.id = "shard-1", .incarnation = 7},
                               {.id = "worker-0", .incarnation = UINT64_MAX}},
                    .drain_count = 2},
        .of_job = {.workers_min = 1, .workers_max = 4, .shards = 1}};
    struct kelp_scale back;
    char *text = NULL;
    ck_assert_int_eq(kelp_scale_print(&scale, &text, NULL), KELP_OK);
    ck_assert_int_eq(kelp_scale_parse(text, strlen(text), &back, NULL), KELP_OK);
    free(text);
    ck_assert(kelp_targets_equal(&back.targets, &scale.targets));
    ck_assert(kelp_targets_drain(&back.targets, "worker-0", UINT64_MAX));
    ck_assert(!kelp_targets_drain(&back.targets, "worker-0", 1));
    ck_assert(kelp_targets_equal(&back.of_job, &scale.of_job));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        ck_assert_int_eq(kelp_scale_parse(wrong[i], strlen(wrong[i]), &back, NULL),
                         KELP_ERR_FORMAT);
    }
}
