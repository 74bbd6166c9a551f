/* What is asked of etcd's gateway, to the letter, and what is made of its answers. */
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd_internal.h"
#include "tests/lib/suite.h"

#define HEADER "\"header\":{\"cluster_id\":\"1\",\"revision\":\"7\",\"raft_term\":\"2\"}"

static struct kelp_error error;

#define ck_body(call, wanted)                                                                      \
    do {                                                                                           \
        struct etcd_buffer body = {0};                                                             \
        ck_assert_int_eq((call), KELP_OK);                                                         \
        ck_assert_str_eq(body.bytes, (wanted));                                                    \
        kelp__etcd_buffer_fini(&body);                                                             \
    } while (0)

KELP_CASE("requests")

/* ---- requests ---------------------------------------------------------------------------------
 */

KELP_TEST(requests)
{
    struct kelp_etcd_compare compares[] = {
        {.key = "a", .what = KELP_ETCD_CREATE_REVISION, .revision = 0},
        {.key = "b", .what = KELP_ETCD_MOD_REVISION, .revision = INT64_MAX}};
    struct kelp_etcd_operation operations[] = {{.key = "a", .value = "x", .lease = -3},
                                               {.key = "b"}};

    ck_body(kelp__etcd_encode_range("a", false, &body, &error), "{\"key\":\"YQ==\"}");
    ck_body(kelp__etcd_encode_range("a/", true, &body, &error),
            "{\"key\":\"YS8=\",\"range_end\":\"YTA=\"}");
    ck_body(kelp__etcd_encode_next("a/", &body, &error),
            "{\"key\":\"YS8=\",\"range_end\":\"AA==\",\"limit\":\"1\",\"keys_only\":true}");
    ck_body(kelp__etcd_encode_put("a", "", 0, &body, &error), "{\"key\":\"YQ==\",\"value\":\"\"}");
    ck_body(kelp__etcd_encode_put("a", "x", 5, &body, &error),
            "{\"key\":\"YQ==\",\"value\":\"eA==\",\"lease\":\"5\"}");
    ck_body(kelp__etcd_encode_transaction(compares, 2, operations, 2, &body, &error),
            "{\"compare\":[{\"target\":\"CREATE\",\"result\":\"EQUAL\",\"key\":\"YQ==\","
            "\"create_revision\":\"0\"},{\"target\":\"MOD\",\"result\":\"EQUAL\",\"key\":\"Yg==\","
            "\"mod_revision\":\"9223372036854775807\"}],\"success\":[{\"request_put\":{\"key\":"
            "\"YQ==\",\"value\":\"eA==\",\"lease\":\"-3\"}},{\"request_delete_range\":{\"key\":"
            "\"Yg==\"}}]}");
    ck_body(kelp__etcd_encode_grant(5, &body, &error), "{\"TTL\":\"5\"}");
    ck_body(kelp__etcd_encode_lease_id(77, &body, &error), "{\"ID\":\"77\"}");
    ck_body(kelp__etcd_encode_watch("a", false, 8, &body, &error),
            "{\"create_request\":{\"key\":\"YQ==\",\"start_revision\":\"8\"}}\n");
}

/* The end of a prefix is the first key behind all that begin with it. */
KELP_TEST(prefix_ends)
{
    char end[ETCD_KEY_MAX];
    size_t bytes;

    ck_assert_int_eq(kelp__etcd_prefix_end("a", end, &bytes), KELP_OK);
    ck_assert(bytes == 1 && end[0] == 'b');
    ck_assert_int_eq(kelp__etcd_prefix_end("a\xff\xff", end, &bytes), KELP_OK);
    ck_assert(bytes == 1 && end[0] == 'b');
    ck_assert_int_eq(kelp__etcd_prefix_end("a\xfe", end, &bytes), KELP_OK);
    ck_assert(bytes == 2 && end[0] == 'a' && (unsigned char)end[1] == 0xff);
    ck_assert_int_eq(kelp__etcd_prefix_end("\xff\xff", end, &bytes), KELP_OK);
    ck_assert(bytes == 1 && end[0] == '\0');
    ck_assert_int_eq(kelp__etcd_prefix_end("", end, &bytes), KELP_ERR_INVALID);
}

/* What is too large or empty is refused before it is sent. */
KELP_TEST(request_limits)
{
    struct etcd_buffer body = {0};
    char *large = malloc(ETCD_REQUEST_MAX + 1);
    static struct kelp_etcd_operation many[ETCD_OPERATIONS_MAX + 1];

    ck_assert_ptr_nonnull(large);
    memset(large, 'x', ETCD_REQUEST_MAX);
    large[ETCD_REQUEST_MAX] = '\0';
    ck_assert_int_eq(kelp__etcd_encode_put("a", large, 0, &body, &error), KELP_ERR_LIMIT);
    kelp__etcd_buffer_fini(&body);
    ck_assert_int_eq(kelp__etcd_encode_put("a", large + 1, 0, &body, &error), KELP_OK);
    kelp__etcd_buffer_fini(&body);
    ck_assert_int_eq(
        kelp__etcd_encode_put(large + ETCD_REQUEST_MAX - ETCD_KEY_MAX, "x", 0, &body, &error),
        KELP_ERR_LIMIT);
    kelp__etcd_buffer_fini(&body);
    ck_assert_int_eq(kelp__etcd_encode_range("", true, &body, &error), KELP_ERR_INVALID);
    kelp__etcd_buffer_fini(&body);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(many); i++) {
        many[i] = (struct kelp_etcd_operation){.key = "a", .value = "x"};
    }
    ck_assert_int_eq(
        kelp__etcd_encode_transaction(NULL, 0, many, ETCD_OPERATIONS_MAX + 1, &body, &error),
        KELP_ERR_LIMIT);
    ck_assert_int_eq(
        kelp__etcd_encode_transaction(NULL, 0, many, ETCD_OPERATIONS_MAX, &body, &error), KELP_OK);
    kelp__etcd_buffer_fini(&body);
    free(large);
}

/* A buffer takes what fits and nothing more, and gives its beginning away. */
KELP_TEST(buffers)
{
    struct etcd_buffer buffer = {.max = 5};

    ck_assert_int_eq(kelp__etcd_buffer_add(&buffer, "abc", 3), KELP_OK);
    ck_assert_int_eq(kelp__etcd_buffer_add(&buffer, "def", 3), KELP_ERR_LIMIT);
    ck_assert_str_eq(buffer.bytes, "abc");
    ck_assert_int_eq(kelp__etcd_buffer_add(&buffer, "de", 2), KELP_OK);
    kelp__etcd_buffer_drop(&buffer, 4);
    ck_assert_str_eq(buffer.bytes, "e");
    kelp__etcd_buffer_drop(&buffer, 1);
    ck_assert_str_eq(buffer.bytes, "");
    kelp__etcd_buffer_fini(&buffer);
}

/* ---- answers ----------------------------------------------------------------------------------
 */

KELP_CASE("answers")

/* Left-out fields have their default values; white space around and unknown fields do not matter.
 */
KELP_TEST(listings)
{
    static const char text[] =
        " {" HEADER ",\"kvs\":[{\"key\":\"YQ==\",\"create_revision\":\"2\",\"mod_revision\":\"3\","
        "\"version\":\"2\"},{\"key\":\"Yg==\",\"mod_revision\":\"4\",\"value\":\"eAB5\",\"lease\":"
        "\"-9223372036854775808\",\"new_field\":[1]}],\"count\":\"2\"}\n ";
    static const char empty[] = "{" HEADER "}";
    struct kelp_etcd_range range;

    ck_assert_int_eq(kelp__etcd_decode_range(text, strlen(text), &range, &error), KELP_OK);
    ck_assert_int_eq(range.revision, 7);
    ck_assert_uint_eq(range.count, 2);
    ck_assert_str_eq(range.pairs[0].key, "a");
    ck_assert_str_eq(range.pairs[0].value, "");
    ck_assert_uint_eq(range.pairs[0].value_bytes, 0);
    ck_assert_int_eq(range.pairs[0].create_revision, 2);
    ck_assert_int_eq(range.pairs[0].mod_revision, 3);
    ck_assert_int_eq(range.pairs[0].version, 2);
    ck_assert_int_eq(range.pairs[0].lease, 0);
    ck_assert_uint_eq(range.pairs[1].value_bytes, 3);
    ck_assert_int_eq(memcmp(range.pairs[1].value, "x\0y", 4), 0);
    ck_assert_int_eq(range.pairs[1].lease, INT64_MIN);
    kelp_etcd_range_fini(&range);
    ck_assert_int_eq(kelp__etcd_decode_range(empty, strlen(empty), &range, &error), KELP_OK);
    ck_assert_uint_eq(range.count, 0);
    kelp_etcd_range_fini(&range);
}

#define LISTING(pair) "{" HEADER ",\"kvs\":[" pair "]}"
static const char *const bad_listings[] = {
    "",
    " ",
    "x",
    "{" HEADER,
    "{" HEADER "}}",
    "{" HEADER "} x",
    "[{" HEADER "}]",
    "\"text\"",
    "{}",
    "{\"header\":null}",
    "{\"header\":[]}",
    "{\"header\":{\"revision\":7}}",
    "{\"header\":{\"revision\":\"\"}}",
    "{\"header\":{\"revision\":\"-\"}}",
    "{\"header\":{\"revision\":\"-1\"}}",
    "{\"header\":{\"revision\":\"+1\"}}",
    "{\"header\":{\"revision\":\" 1\"}}",
    "{\"header\":{\"revision\":\"1 \"}}",
    "{\"header\":{\"revision\":\"0x1\"}}",
    "{\"header\":{\"revision\":\"1.0\"}}",
    "{\"header\":{\"revision\":\"9223372036854775808\"}}",
    "{" HEADER ",\"kvs\":\"\"}",
    LISTING("1"),
    LISTING("{}"),
    LISTING("{\"key\":\"\"}"),
    LISTING("{\"key\":1}"),
    LISTING("{\"key\":\"YQ=\"}"),
    LISTING("{\"key\":\"YQB6\"}"), /* a zero byte inside */
    LISTING("{\"key\":\"YQ==\",\"value\":1}"),
    LISTING("{\"key\":\"YQ==\",\"value\":\"x\"}"),
    LISTING("{\"key\":\"YQ==\",\"version\":1}"),
    LISTING("{\"key\":\"YQ==\",\"mod_revision\":\"-1\"}"),
    LISTING("{\"key\":\"YQ==\",\"create_revision\":{}}"),
    LISTING("{\"key\":\"YQ==\",\"lease\":true}"),
    LISTING("{\"key\":\"Yg==\"},{\"key\":\"YQ==\"}"), /* out of order */
    LISTING("{\"key\":\"YQ==\"},{\"key\":\"YQ==\"}"), /* twice */
    LISTING("{\"key\":\"YQ==\"},null"),
};

KELP_LOOP_TEST(bad_listing, 0, KELP_ARRAY_COUNT(bad_listings))
{
    struct kelp_etcd_range range;
    const char *text = bad_listings[_i];

    ck_assert_msg(kelp__etcd_decode_range(text, strlen(text), &range, &error) == KELP_ERR_FORMAT,
                  "%s", text);
    ck_assert_ptr_nonnull(strstr(error.text, "not an answer of etcd"));
}

KELP_TEST(transactions)
{
    static const char won[] = "{" HEADER ",\"succeeded\":true,\"responses\":[{}]}";
    static const char lost[] = "{" HEADER "}";
    static const char bad[] = "{" HEADER ",\"succeeded\":\"true\"}";
    bool succeeded = false;
    int64_t revision = 0;

    ck_assert_int_eq(kelp__etcd_decode_transaction(won, strlen(won), &succeeded, &revision, &error),
                     KELP_OK);
    ck_assert(succeeded && revision == 7);
    ck_assert_int_eq(
        kelp__etcd_decode_transaction(lost, strlen(lost), &succeeded, &revision, &error), KELP_OK);
    ck_assert(!succeeded);
    ck_assert_int_eq(kelp__etcd_decode_transaction(bad, strlen(bad), &succeeded, &revision, &error),
                     KELP_ERR_FORMAT);
}

KELP_TEST(leases)
{
    static const char granted[] = "{" HEADER ",\"ID\":\"77\",\"TTL\":\"5\"}";
    static const char no_id[] = "{" HEADER ",\"TTL\":\"5\"}";
    static const char alive[] = "{\"result\":{" HEADER ",\"ID\":\"77\",\"TTL\":\"5\"}}\n";
    static const char gone[] = "{\"result\":{" HEADER ",\"ID\":\"77\"}}\n";
    static const char refused[] = "{\"error\":{\"message\":\"no\"}}";
    int64_t id = 0;
    int64_t ttl_s = -1;

    ck_assert_int_eq(kelp__etcd_decode_grant(granted, strlen(granted), &id, &ttl_s, &error),
                     KELP_OK);
    ck_assert(id == 77 && ttl_s == 5);
    ck_assert_int_eq(kelp__etcd_decode_grant(no_id, strlen(no_id), &id, &ttl_s, &error),
                     KELP_ERR_FORMAT);
    ck_assert_int_eq(kelp__etcd_decode_keep_alive(alive, strlen(alive), &ttl_s, &error), KELP_OK);
    ck_assert_int_eq(ttl_s, 5);
    ck_assert_int_eq(kelp__etcd_decode_keep_alive(gone, strlen(gone), &ttl_s, &error), KELP_OK);
    ck_assert_int_eq(ttl_s, 0);
    ck_assert_int_eq(kelp__etcd_decode_keep_alive(refused, strlen(refused), &ttl_s, &error),
                     KELP_ERR_FORMAT);
}

/* A refusal's text is cut and cleaned; what is none is told apart. */
KELP_TEST(refusals)
{
    static const char text[] =
        "{\"error\":\"a\",\"message\":\"etcdserver: requested lease\\nnot found\",\"code\":5}";
    static const char *const bad[] = {"Not Found\n",      "{}",
                                      "{\"code\":\"5\"}", "{\"code\":-1}",
                                      "{\"code\":1e99}",  "{\"code\":5,\"message\":5}"};
    struct etcd_refusal refusal;

    ck_assert_int_eq(kelp__etcd_decode_refusal(text, strlen(text), &refusal), KELP_OK);
    ck_assert_int_eq(refusal.code, 5);
    ck_assert_str_eq(refusal.message, "etcdserver: requested lease not found");
    ck_assert_int_eq(kelp__etcd_refusal_status(&refusal), KELP_ERR_NOT_FOUND);
    /* Who asks: in, again in, or not allowed. */
    refusal = (struct etcd_refusal){.code = 16, .message = "etcdserver: invalid auth token"};
    ck_assert(kelp__etcd_wants_login(&refusal));
    refusal = (struct etcd_refusal){.code = 3, .message = "etcdserver: user name is empty"};
    ck_assert(kelp__etcd_wants_login(&refusal));
    refusal = (struct etcd_refusal){.code = 7, .message = "etcdserver: permission denied"};
    ck_assert(!kelp__etcd_wants_login(&refusal));
    ck_assert_int_eq(kelp__etcd_refusal_status(&refusal), KELP_ERR_DENIED);
    /* A member that lost the lead while it had our request: passing trouble, not a refusal. */
    refusal = (struct etcd_refusal){.code = 2, .message = "raft proposal dropped"};
    ck_assert_int_eq(kelp__etcd_refusal_status(&refusal), KELP_ERR_UNREACHABLE);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        ck_assert_int_eq(kelp__etcd_decode_refusal(bad[i], strlen(bad[i]), &refusal),
                         KELP_ERR_FORMAT);
    }
}

KELP_TEST(tokens)
{
    static const char good[] = "{\"header\":{},\"token\":\"abc.7\"}";
    static const char *const bad[] = {"{}", "{\"token\":\"\"}", "{\"token\":7}",
                                      "{\"token\":\"a\\r\\nX: b\"}", "{\"token\":\"a b\"}"};
    char *token = NULL;

    ck_assert_int_eq(kelp__etcd_decode_token(good, strlen(good), &token, &error), KELP_OK);
    ck_assert_str_eq(token, "abc.7");
    free(token);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        ck_assert_int_eq(kelp__etcd_decode_token(bad[i], strlen(bad[i]), &token, &error),
                         KELP_ERR_FORMAT);
    }
}

/* The largest id, a member without a leader, what it says is wrong; and what is no member's answer.
 */
KELP_TEST(members)
{
    static const char good[] =
        "{\"header\":{\"member_id\":\"18446744073709551615\"},\"version\":\"3.4.23\","
        "\"leader\":\"7\",\"errors\":[\"alarm:NOSPACE \",\"b\"]}";
    static const char alone[] = "{\"header\":{\"member_id\":\"7\"},\"version\":\"3.4.23\"}";
    static const char *const bad[] = {
        "{}",
        "{\"header\":{\"member_id\":\"0\"},\"version\":\"3\"}",
        "{\"header\":{\"member_id\":7},\"version\":\"3\"}",
        "{\"header\":{\"member_id\":\"18446744073709551616\"},\"version\":\"3\"}",
        "{\"header\":{\"member_id\":\"-7\"},\"version\":\"3\"}",
        "{\"header\":{\"member_id\":\"7\"},\"version\":\"3\",\"errors\":[7]}",
        "{\"header\":{\"member_id\":\"7\"},\"version\":\"3\",\"errors\":\"x\"}",
        "{\"header\":{\"member_id\":\"7\"}}"};
    static const char list[] = "{\"members\":[{\"ID\":\"7\",\"name\":\"m0\",\"clientURLs\":[\"http:"
                               "//a:1\",\"http://b:1\"]},"
                               "{\"ID\":\"8\"}]}";
    static const char *const bad_lists[] = {"{}",
                                            "{\"members\":7}",
                                            "{\"members\":[7]}",
                                            "{\"members\":[{\"name\":\"m0\"}]}",
                                            "{\"members\":[{\"ID\":\"7\",\"name\":7}]}",
                                            "{\"members\":[{\"ID\":\"7\",\"clientURLs\":\"x\"}]}",
                                            "{\"members\":[{\"ID\":\"7\",\"clientURLs\":[7]}]}"};
    struct kelp_etcd_health health;
    struct kelp_etcd_members members;

    ck_assert_int_eq(kelp__etcd_decode_health(good, strlen(good), &health, &error), KELP_OK);
    ck_assert_uint_eq(health.member, UINT64_MAX);
    ck_assert_uint_eq(health.leader, 7);
    ck_assert_str_eq(health.version, "3.4.23");
    ck_assert_str_eq(health.errors, "alarm:NOSPACE , b");
    ck_assert_int_eq(kelp__etcd_decode_health(alone, strlen(alone), &health, &error), KELP_OK);
    ck_assert_uint_eq(health.leader, 0);
    ck_assert_str_eq(health.errors, "");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        ck_assert_int_eq(kelp__etcd_decode_health(bad[i], strlen(bad[i]), &health, &error),
                         KELP_ERR_FORMAT);
    }
    ck_assert_int_eq(kelp__etcd_decode_members(list, strlen(list), &members, &error), KELP_OK);
    ck_assert_uint_eq(members.count, 2);
    ck_assert_str_eq(members.list[0].name, "m0");
    ck_assert_str_eq(members.list[0].url, "http://a:1");
    ck_assert_uint_eq(members.list[1].id, 8);
    ck_assert_str_eq(members.list[1].url, "");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad_lists); i++) {
        ck_assert_int_eq(
            kelp__etcd_decode_members(bad_lists[i], strlen(bad_lists[i]), &members, &error),
            KELP_ERR_FORMAT);
    }
}

KELP_TEST(watches)
{
    static const char created[] = "{\"result\":{" HEADER ",\"created\":true}}\n";
    static const char progress[] = "{\"result\":{" HEADER ",\"watch_id\":\"-1\"}}\n";
    static const char compacted[] =
        "{\"result\":{\"header\":{\"raft_term\":\"2\"},\"canceled\":true,"
        "\"compact_revision\":\"4\"}}\n";
    static const char failed[] = "{\"error\":{\"grpc_code\":14,\"message\":\"gone\"}}\n";
    static const char news[] =
        "{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"Yg==\",\"mod_revision\":\"4\","
        "\"value\":\"eA==\"}},{\"type\":\"DELETE\",\"kv\":{\"key\":\"Yg==\",\"mod_revision\":"
        "\"5\"}}]}}\n";
    struct etcd_watch_answer answer;

    ck_assert_int_eq(kelp__etcd_decode_watch(created, strlen(created), &answer, &error), KELP_OK);
    ck_assert(answer.created && !answer.canceled && answer.revision == 7);
    ck_assert_int_eq(kelp__etcd_decode_watch(progress, strlen(progress), &answer, &error), KELP_OK);
    ck_assert(!answer.created && answer.event_count == 0);
    ck_assert_int_eq(kelp__etcd_decode_watch(compacted, strlen(compacted), &answer, &error),
                     KELP_OK);
    ck_assert(answer.canceled && answer.compact_revision == 4);
    ck_assert_int_eq(kelp__etcd_decode_watch(failed, strlen(failed), &answer, &error), KELP_OK);
    ck_assert(answer.failed);
    ck_assert_str_eq(answer.reason, "gone");
    ck_assert_int_eq(kelp__etcd_decode_watch(news, strlen(news), &answer, &error), KELP_OK);
    ck_assert_uint_eq(answer.event_count, 2);
    ck_assert(!answer.events[0].deleted && answer.events[1].deleted);
    ck_assert_str_eq(answer.events[0].pair.value, "x");
    ck_assert_int_eq(answer.events[1].pair.mod_revision, 5);
    kelp__etcd_watch_answer_fini(&answer);
}

static const char *const bad_news[] = {
    "\n",
    "{}",
    "{\"result\":{}}",
    "{\"result\":[]}",
    "{\"result\":{" HEADER "},\"error\":{}}",
    "{\"error\":\"text\"}",
    "{\"result\":{" HEADER ",\"events\":{}}}",
    "{\"result\":{" HEADER ",\"events\":[{}]}}",
    "{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"YQ==\"}}]}}", /* no revision */
    "{\"result\":{" HEADER
    ",\"events\":[{\"type\":\"MOVE\",\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"4\"}}]}}",
    "{\"result\":{" HEADER ",\"canceled\":1}}",
    "{\"result\":{" HEADER ",\"compact_revision\":\"-4\"}}",
};

KELP_LOOP_TEST(bad_news_of_watches, 0, KELP_ARRAY_COUNT(bad_news))
{
    struct etcd_watch_answer answer;
    const char *text = bad_news[_i];

    ck_assert_msg(kelp__etcd_decode_watch(text, strlen(text), &answer, &error) == KELP_ERR_FORMAT,
                  "%s", text);
}
