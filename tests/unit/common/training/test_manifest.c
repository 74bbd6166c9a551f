/* Manifests: what is written is read back, nonsense is refused, the digest is of the state alone.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd_internal.h"
#include "common/training/manifest.h"
#include "tests/lib/suite.h"

#define DIGEST_A "0123456789abcdef0123456789abcdef"
#define DIGEST_B "fedcba9876543210fedcba9876543210"

static const char good[] =
    "{\"job\":\"etth1\",\"spec_digest\":\"ffeeddccbbaa9988\",\"version\":1520,\"step\":1500,"
    "\"epochs\":12,\"generation\":2,\"unix_ms\":1763737000123,\"metric\":[0.125,0.5,null,null,0.75]"
    ","
    "\"nonce\":\"n-1\",\"folder\":\"step-1500.g2\",\"storages\":[\"shard-0.1f3c\",\"shard-1.77\"],"
    "\"parts\":[{\"storage\":0,\"bytes\":12345,\"digest\":\"" DIGEST_A "\"},"
    "{\"storage\":1,\"bytes\":0,\"digest\":\"" DIGEST_B "\"}]}";

static void parse_good(struct kelp_manifest *manifest)
{
    struct kelp_error error = {.text = ""};
    ck_assert_msg(kelp_manifest_parse(good, strlen(good), manifest, &error) == KELP_OK, "%s",
                  error.text);
}

/* Reading and writing are inverse; a metric that was not finite stays a number that is none. */
KELP_TEST(round_trip)
{
    struct kelp_manifest manifest;
    struct kelp_error error;
    char *text = NULL;
    parse_good(&manifest);
    ck_assert_str_eq(manifest.job, "etth1");
    ck_assert_uint_eq(manifest.spec_digest, UINT64_C(0xffeeddccbbaa9988));
    ck_assert_uint_eq(manifest.version, 1520);
    ck_assert_uint_eq(manifest.step, 1500);
    ck_assert_uint_eq(manifest.epochs, 12);
    ck_assert_uint_eq(manifest.generation, 2);
    ck_assert(manifest.has_metric);
    ck_assert_double_eq(manifest.metric[0], 0.125);
    ck_assert(isnan(manifest.metric[2]));
    ck_assert_str_eq(manifest.storages[1], "shard-1.77");
    ck_assert_uint_eq(manifest.parts[0].bytes, 12345);
    ck_assert_uint_eq(manifest.parts[1].storage, 1);
    ck_assert_str_eq(manifest.parts[1].digest, DIGEST_B);
    ck_assert_int_eq(kelp_manifest_print(&manifest, &text, &error), KELP_OK);
    ck_assert_str_eq(text, good);
    free(text);
    kelp_manifest_fini(&manifest);
}

static const char *const changes[][2] = {
    {"\"job\":\"etth1\"", "\"job\":\"\""},
    {"\"job\":\"etth1\"", "\"job\":7"},
    {"\"ffeeddccbbaa9988\"", "\"ffeeddccbbaa998\""},
    {"\"version\":1520", "\"version\":1499"},
    {"\"version\":1520", "\"version\":-1"},
    {"\"version\":1520", "\"version\":9007199254740994"},
    {"\"step\":1500,", ""},
    {"\"epochs\":12", "\"epochs\":4294967296"},
    {"\"generation\":2", "\"generation\":0"},
    {"\"unix_ms\":1763737000123,", ""},
    {"[0.125,0.5,null,null,0.75]", "[0.125,0.5]"},
    {"[0.125,0.5,null,null,0.75]", "[0.125,0.5,\"1\"]"},
    {"[0.125,0.5,null,null,0.75]", "[0.125,0.5,1e999]"},
    {"\"metric\":[0.125,0.5,null,null,0.75],", ""},
    {"\"nonce\":\"n-1\",", ""},
    {"step-1500.g2", ".."},
    {"step-1500.g2", "a/b"},
    {"step-1500.g2", ""},
    {"step-1500.g2", ".hidden"},
    {"\"shard-1.77\"", "\"../shard-1\""},
    {"\"shard-1.77\"", "\"shard-0.1f3c\""},
    {"\"shard-1.77\"", "7"},
    {"\"storage\":1", "\"storage\":2"},
    {"\"storage\":1", "\"storage\":-1"},
    {"\"bytes\":0", "\"bytes\":0.5"},
    {DIGEST_B, "fedcba9876543210fedcba987654321"},
    {DIGEST_B, "fedcba9876543210fedcba987654321x"},
    {DIGEST_B, "fedcba9876543210fedcba98765432100"},
    {"\"parts\":[", "\"parts\":[null,"},
    {"]}", "]"},
    {"]}", "]}x"},
};

/* Each one change to the good text makes it a manifest that must not be used. */
KELP_LOOP_TEST(refusals, 0, KELP_ARRAY_COUNT(changes))
{
    char text[sizeof(good) + 64];
    struct kelp_manifest manifest;
    struct kelp_error error = {.text = ""};
    const char *at = strstr(good, changes[_i][0]);
    ck_assert_ptr_nonnull(at);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, changes[_i][1],
                   at + strlen(changes[_i][0]));
    ck_assert_int_eq(kelp_manifest_parse(text, strlen(text), &manifest, &error), KELP_ERR_FORMAT);
    ck_assert_str_ne(error.text, "");
}

/* Every truncation of a good text is refused: a file that was half written is no manifest. */
KELP_TEST(truncations)
{
    struct kelp_manifest manifest;
    for (size_t length = 0; length < strlen(good); length++) {
        ck_assert_int_eq(kelp_manifest_parse(good, length, &manifest, NULL), KELP_ERR_FORMAT);
    }
}

/* No model has no partitions; more than the limits are refused before memory is taken. */
KELP_TEST(limits)
{
    struct kelp_manifest manifest;
    static const char none[] =
        "{\"job\":\"j\",\"spec_digest\":\"0000000000000000\",\"version\":1,\"step\":1,"
        "\"epochs\":0,\"generation\":1,\"unix_ms\":1,\"metric\":null,\"nonce\":\"\","
        "\"folder\":\"f\",\"storages\":[\"s\"],\"parts\":[]}";
    ck_assert_int_eq(kelp_manifest_parse(none, strlen(none), &manifest, NULL), KELP_ERR_FORMAT);
    ck_assert_int_eq(kelp_manifest_init(&manifest, 1, 1025, NULL), KELP_ERR_LIMIT);
    ck_assert_int_eq(kelp_manifest_init(&manifest, 1025, 1, NULL), KELP_ERR_LIMIT);
    char *large = malloc(KELP_MANIFEST_BYTES_MAX + 2u);
    ck_assert_ptr_nonnull(large);
    memset(large, ' ', KELP_MANIFEST_BYTES_MAX + 2u);
    memcpy(large, good, strlen(good));
    ck_assert_int_eq(kelp_manifest_parse(large, KELP_MANIFEST_BYTES_MAX + 1u, &manifest, NULL),
                     KELP_ERR_LIMIT);
    free(large);
}

/* As many storages and partitions as there can be. */
static void print_large(size_t name_bytes, struct kelp_manifest *ret_manifest, char **ret_text)
{
    struct kelp_manifest manifest;
    ck_assert_int_eq(kelp_manifest_init(&manifest, 1024, 1024, NULL), KELP_OK);
    (void)snprintf(manifest.job, sizeof(manifest.job), "j");
    (void)snprintf(manifest.folder, sizeof(manifest.folder), "f");
    manifest.generation = 1;
    for (uint32_t i = 0; i < 1024; i++) {
        memset(manifest.storages[i], 'x', name_bytes);
        (void)snprintf(manifest.storages[i] + name_bytes - 4, 5, "%04u", i);
        manifest.parts[i] =
            (struct kelp_manifest_part){.storage = 1023 - i, .bytes = UINT64_C(1) << 53};
        memcpy(manifest.parts[i].digest, DIGEST_A, sizeof(DIGEST_A));
    }
    ck_assert_int_eq(kelp_manifest_print(&manifest, ret_text, NULL), KELP_OK);
    *ret_manifest = manifest;
}

/* The largest manifest that there can be is read back. */
KELP_TEST(largest)
{
    struct kelp_manifest manifest;
    struct kelp_manifest back;
    char *text = NULL;
    print_large(KELP_FOLDER_NAME_MAX, &manifest, &text);
    ck_assert_uint_le(strlen(text), KELP_MANIFEST_BYTES_MAX);
    ck_assert_int_eq(kelp_manifest_parse(text, strlen(text), &back, NULL), KELP_OK);
    ck_assert_str_eq(back.storages[7], manifest.storages[7]);
    ck_assert_uint_eq(back.parts[1000].storage, 23);
    free(text);
    kelp_manifest_fini(&manifest);
    kelp_manifest_fini(&back);
}

/* All that retention can keep, one that is being made and one that is being removed: a leader gets
 * them in one answer of etcd's, in base64 with a few numbers each. */
KELP_TEST(all_that_are_kept)
{
    struct kelp_manifest manifest;
    char *text = NULL;
    const size_t shard_bytes = 63;          /* longest id */
    const size_t pair_bytes = 4 * 64 + 256; /* key, revisions and names */
    print_large(shard_bytes + 1 + 16, &manifest, &text);
    size_t bytes = (strlen(text) + 2) / 3 * 4 + pair_bytes;
    size_t count = 2 * (size_t)KELP_CHECKPOINT_KEEP_MAX + 2;
    ck_assert_uint_le(count * bytes, ETCD_ANSWER_MAX);
    free(text);
    kelp_manifest_fini(&manifest);
}

/* The digest follows the version and the parts, not where they lie or who made them when. */
KELP_TEST(state_digest)
{
    struct kelp_manifest manifest;
    char first[KELP_DIGEST_HEX_BYTES];
    char other[KELP_DIGEST_HEX_BYTES];
    parse_good(&manifest);
    kelp_manifest_state_digest(&manifest, first);
    manifest.generation = 9;
    manifest.unix_ms = 1;
    manifest.parts[0].storage = 1;
    kelp_manifest_state_digest(&manifest, other);
    ck_assert_str_eq(first, other);
    manifest.version++;
    kelp_manifest_state_digest(&manifest, other);
    ck_assert_str_ne(first, other);
    manifest.version--;
    manifest.parts[1].digest[31] = '1';
    kelp_manifest_state_digest(&manifest, other);
    ck_assert_str_ne(first, other);
    kelp_manifest_fini(&manifest);
}

KELP_TEST(folder_names)
{
    char longest[KELP_FOLDER_NAME_MAX + 2];
    memset(longest, 'a', sizeof(longest));
    longest[KELP_FOLDER_NAME_MAX + 1] = '\0';
    ck_assert(!kelp_folder_name_valid(longest));
    ck_assert(kelp_folder_name_valid(longest + 1));
    ck_assert(kelp_folder_name_valid("shard-0.1f3c_A"));
    ck_assert(kelp_folder_name_valid("a..b"));
    static const char *const bad[] = {"", ".", "..", ".a", "a/b", "a b", "a\n", "\xc3\xa4", "a:b"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        ck_assert_msg(!kelp_folder_name_valid(bad[i]), "\"%s\" was taken", bad[i]);
    }
}
