/*
 * Answers of etcd's gateway, damaged: each decoder refuses an input, or gives what keeps its
 * promises: counts not negative, keys without a zero byte and in order, texts that end.
 */
#include <stdlib.h>
#include <string.h>

#include "common/etcd/base64.h"
#include "common/etcd/etcd_internal.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 40000

#define HEADER                                                                                     \
    "\"header\":{\"cluster_id\":\"3249\",\"member_id\":\"33\",\"revision\":\"7\",\"raft_term\":"   \
    "\"2\"}"

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT("{" HEADER ",\"kvs\":[{\"key\":\"L2tlbHAvYQ==\",\"create_revision\":\"2\","
                   "\"mod_revision\":\"3\",\"version\":\"2\",\"value\":\"Yg==\"},{\"key\":"
                   "\"L2tlbHAvYg==\",\"create_revision\":\"4\",\"mod_revision\":\"4\",\"version\":"
                   "\"1\",\"value\":\"eA==\",\"lease\":\"2324035520081334795\"}],\"count\":\"2\"}"),
    KELP_FUZZ_TEXT("{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{\"header\":{"
                   "\"revision\":\"4\"}}}]}"),
    KELP_FUZZ_TEXT("{" HEADER ",\"ID\":\"2324035520081334795\",\"TTL\":\"5\"}"),
    KELP_FUZZ_TEXT("{\"result\":{" HEADER ",\"ID\":\"77\",\"TTL\":\"5\"}}\n"),
    KELP_FUZZ_TEXT("{\"error\":\"etcdserver: requested lease not found\",\"message\":"
                   "\"etcdserver: requested lease not found\",\"code\":5}"),
    KELP_FUZZ_TEXT("{\"result\":{" HEADER ",\"created\":true}}\n"),
    KELP_FUZZ_TEXT("{\"result\":{" HEADER ",\"canceled\":true,\"compact_revision\":\"4\","
                   "\"cancel_reason\":\"mvcc: required revision has been compacted\"}}\n"),
    KELP_FUZZ_TEXT("{\"result\":{" HEADER
                   ",\"events\":[{\"kv\":{\"key\":\"Yg==\",\"create_revision\":\"4\","
                   "\"mod_revision\":\"4\",\"version\":\"1\",\"value\":\"Yg==\"}},{\"type\":"
                   "\"DELETE\",\"kv\":{\"key\":\"Yg==\",\"mod_revision\":\"5\"}}]}}\n"),
    KELP_FUZZ_TEXT("{" HEADER
                   ",\"version\":\"3.4.23\",\"leader\":\"33\",\"errors\":[\"alarm:NOSPACE\"]}"),
    KELP_FUZZ_TEXT("{" HEADER ",\"members\":[{\"ID\":\"33\",\"name\":\"m0\",\"clientURLs\":["
                   "\"http://127.0.0.1:2379\"]},{\"ID\":\"34\"}]}"),
    KELP_FUZZ_TEXT("{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"gone\"}}\n"),
};
static const char *const words[] = {
    HEADER,
    "\"kvs\":[",
    "\"key\":",
    "\"value\":",
    "\"mod_revision\":",
    "\"events\":[",
    "\"type\":\"DELETE\"",
    "\"lease\":",
    "\"result\":{",
    "\"error\":{",
    "\"code\":",
    "\"ID\":",
    "\"member_id\":",
    "\"clientURLs\":[",
    "\"errors\":[",
    "\"9223372036854775807\"",
    "\"-9223372036854775808\"",
    "\"9223372036854775808\"",
    "\"-1\"",
    "\"\"",
    "\"=\"",
    "\"====\"",
    "\"AA==\"",
    "\"AAAA\"",
    "\\u0000",
    "\\ud800",
    "\\n",
    "null",
    "true",
    "false",
    "1e400",
    "-1",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\n",
    "[[[[[[[[[[[[[[[[",
};

static const char *check_pair(const struct kelp_etcd_pair *pair)
{
    if (!pair->key || pair->key[0] == '\0') {
        return "a pair without a key";
    }
    if (!pair->value || pair->value[pair->value_bytes] != '\0') {
        return "a value without an end";
    }
    if (pair->create_revision < 0 || pair->mod_revision < 0 || pair->version < 0) {
        return "a negative count";
    }
    return NULL;
}

static const char *check_range(const char *bytes, size_t count)
{
    struct kelp_etcd_range range;
    const char *wrong = NULL;

    if (kelp__etcd_decode_range(bytes, count, &range, NULL) != KELP_OK) {
        return NULL;
    }
    for (size_t i = 0; i < range.count && !wrong; i++) {
        wrong = check_pair(&range.pairs[i]);
        if (i > 0 && !wrong && strcmp(range.pairs[i - 1].key, range.pairs[i].key) >= 0) {
            wrong = "keys out of order";
        }
    }
    kelp_etcd_range_fini(&range);
    return wrong;
}

static const char *check_watch(const char *bytes, size_t count)
{
    struct etcd_watch_answer answer;
    const char *wrong = NULL;

    if (kelp__etcd_decode_watch(bytes, count, &answer, NULL) != KELP_OK) {
        return NULL;
    }
    for (size_t i = 0; i < answer.event_count && !wrong; i++) {
        wrong = check_pair(&answer.events[i].pair);
        if (!wrong && answer.events[i].pair.mod_revision == 0) {
            wrong = "an event without a revision";
        }
    }
    if (answer.compact_revision < 0 || answer.revision < 0) {
        wrong = "a negative revision";
    }
    kelp__etcd_watch_answer_fini(&answer);
    return wrong;
}

static const char *check_numbers(const char *bytes, size_t count)
{
    int64_t revision = 0;
    int64_t id = 1;
    int64_t ttl_s = 1;
    bool succeeded;
    struct etcd_refusal refusal;
    char *token = NULL;

    if (kelp__etcd_decode_header(bytes, count, &revision, NULL) == KELP_OK && revision < 0) {
        return "a negative revision";
    }
    if (kelp__etcd_decode_transaction(bytes, count, &succeeded, &revision, NULL) == KELP_OK &&
        revision < 0) {
        return "a negative revision of a transaction";
    }
    if (kelp__etcd_decode_grant(bytes, count, &id, &ttl_s, NULL) == KELP_OK &&
        (id == 0 || ttl_s <= 0)) {
        return "a lease without a number or a time";
    }
    if (kelp__etcd_decode_keep_alive(bytes, count, &ttl_s, NULL) == KELP_OK && ttl_s < 0) {
        return "a negative time to live";
    }
    if (kelp__etcd_decode_token(bytes, count, &token, NULL) == KELP_OK) {
        bool ends = strpbrk(token, "\r\n") != NULL;
        free(token);
        if (ends) {
            return "a token that ends its line";
        }
    }
    if (kelp__etcd_decode_refusal(bytes, count, &refusal) == KELP_OK &&
        (refusal.code < 0 || !memchr(refusal.message, '\0', sizeof(refusal.message)))) {
        return "a refusal without an end";
    }
    return NULL;
}

static const char *check_members(const char *bytes, size_t count)
{
    struct kelp_etcd_health health;
    struct kelp_etcd_members members;

    if (kelp__etcd_decode_health(bytes, count, &health, NULL) == KELP_OK &&
        (health.member == 0 || !memchr(health.version, '\0', sizeof(health.version)) ||
         !memchr(health.errors, '\0', sizeof(health.errors)))) {
        return "a member without an id, or a text without an end";
    }
    if (kelp__etcd_decode_members(bytes, count, &members, NULL) != KELP_OK) {
        return NULL;
    }
    for (size_t i = 0; i < members.count; i++) {
        const struct kelp_etcd_member *member = &members.list[i];
        if (member->id == 0 || !memchr(member->name, '\0', sizeof(member->name)) ||
            !memchr(member->url, '\0', sizeof(member->url))) {
            return "one of the members without an id, or a text without an end";
        }
    }
    return members.count <= KELP_ETCD_MEMBERS_MAX ? NULL : "too many members";
}

/* The input as base64: what decodes must be the text of what it decodes to. */
static const char *check_base64(const char *bytes, size_t count)
{
    char *decoded = malloc(kelp_base64_decoded_bytes_max(count) + 1);
    char *again = malloc(count + 4);
    size_t got = 0;
    const char *wrong = NULL;

    if (!decoded || !again) {
        wrong = "out of memory";
    } else if (kelp_base64_decode(bytes, count, decoded, &got) == KELP_OK) {
        if (kelp_base64_encode(decoded, got, again) != count || memcmp(again, bytes, count) != 0) {
            wrong = "a base64 text with two spellings";
        }
    }
    free(decoded);
    free(again);
    return wrong;
}

static const char *target(const uint8_t *bytes, size_t count)
{
    const char *text = (const char *)bytes;
    const char *wrong = check_range(text, count);

    wrong = wrong ? wrong : check_watch(text, count);
    wrong = wrong ? wrong : check_numbers(text, count);
    wrong = wrong ? wrong : check_members(text, count);
    return wrong ? wrong : check_base64(text, count);
}

KELP_CASE("fuzz etcd json", .timeout_s = 120)

KELP_FUZZ_TEST(test_damaged, INPUTS, seeds, words, target)

/* The seeds themselves are accepted, each by one decoder at least: else nothing would be tested. */
KELP_LOOP_TEST(test_seeds, 0, KELP_ARRAY_COUNT(seeds))
{
    const char *text = seeds[_i].bytes;
    size_t count = seeds[_i].count;
    struct kelp_etcd_range range = {0};
    struct etcd_watch_answer answer = {0};
    struct etcd_refusal refusal;
    struct kelp_etcd_health health;
    struct kelp_etcd_members members;

    bool accepted = kelp__etcd_decode_range(text, count, &range, NULL) == KELP_OK;
    accepted |= kelp__etcd_decode_watch(text, count, &answer, NULL) == KELP_OK;
    accepted |= kelp__etcd_decode_refusal(text, count, &refusal) == KELP_OK;
    accepted |= kelp__etcd_decode_health(text, count, &health, NULL) == KELP_OK;
    accepted |= kelp__etcd_decode_members(text, count, &members, NULL) == KELP_OK;
    ck_assert(accepted);
    kelp_etcd_range_fini(&range);
    kelp__etcd_watch_answer_fini(&answer);
}
