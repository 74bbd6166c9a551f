/* Manifests, damaged: refused, or read back exactly as they are printed. */
#include <stdlib.h>
#include <string.h>

#include "common/training/manifest.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 20000

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT(
        "{\"job\":\"etth1\",\"spec_digest\":\"ffeeddccbbaa9988\",\"version\":1520,\"step\":1500,"
        "\"epochs\":12,\"generation\":2,\"unix_ms\":1763737000123,\"metric\":[0.125,0.5,null,null,"
        "0.75],"
        "\"nonce\":\"n-1\",\"folder\":\"step-1500.g2\",\"storages\":[\"shard-0.1f3c\",\"shard-1.7\""
        "],\"parts\":[{\"storage\":0,\"bytes\":12345,\"digest\":\"0123456789abcdef0123456789abcdef"
        "\"},{\"storage\":1,\"bytes\":0,\"digest\":\"fedcba9876543210fedcba9876543210\"}]}"),
    KELP_FUZZ_TEXT("{\"job\":\"j\",\"spec_digest\":\"0000000000000000\",\"version\":1,\"step\":1,"
                   "\"epochs\":0,\"generation\":1,\"unix_ms\":1,\"metric\":null,\"nonce\":\"\","
                   "\"folder\":\"f\",\"storages\":[\"s\"],\"parts\":[{\"storage\":0,\"bytes\":1,"
                   "\"digest\":\"fedcba9876543210fedcba9876543210\"}]}"),
};
static const char *const words[] = {"\"parts\":[",
                                    "\"storages\":[",
                                    "\"metric\":",
                                    "\"folder\":\"",
                                    "{}",
                                    "null",
                                    "1e99",
                                    "-1",
                                    "\"\"",
                                    "\\u0000",
                                    "../",
                                    "9007199254740993",
                                    "[[[[",
                                    "]}",
                                    "0.1",
                                    "\"storage\":1",
                                    "\"digest\":\"ab\""};

static const char *names_valid(const struct kelp_manifest *manifest)
{
    if (!kelp_folder_name_valid(manifest->folder)) {
        return "a folder that is none was taken";
    }
    for (uint32_t i = 0; i < manifest->storage_count; i++) {
        if (!kelp_folder_name_valid(manifest->storages[i])) {
            return "a storage that is no folder was taken";
        }
    }
    for (uint32_t i = 0; i < manifest->part_count; i++) {
        if (manifest->parts[i].storage >= manifest->storage_count) {
            return "a part in no storage was taken";
        }
    }
    return NULL;
}

static const char *check_again(const char *text)
{
    struct kelp_manifest manifest;
    char *again = NULL;
    if (kelp_manifest_parse(text, strlen(text), &manifest, NULL) != KELP_OK) {
        return "a manifest that was printed cannot be read";
    }
    kelp_status status = kelp_manifest_print(&manifest, &again, NULL);
    kelp_manifest_fini(&manifest);
    bool same = status == KELP_OK && strcmp(text, again) == 0;
    free(again);
    return same ? NULL : "a manifest changes by being printed and read";
}

static const char *target(const uint8_t *bytes, size_t count)
{
    struct kelp_manifest manifest;
    char *printed = NULL;
    if (kelp_manifest_parse((const char *)bytes, count, &manifest, NULL) != KELP_OK) {
        return NULL;
    }
    const char *wrong = names_valid(&manifest);
    if (wrong == NULL && kelp_manifest_print(&manifest, &printed, NULL) == KELP_OK) {
        wrong = check_again(printed);
    }
    free(printed);
    kelp_manifest_fini(&manifest);
    return wrong;
}

KELP_CASE("texts", .timeout_s = 120)

KELP_FUZZ_TEST(damaged_texts, INPUTS, seeds, words, target)
