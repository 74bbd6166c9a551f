#include "worker/data/arrays/survey_facts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/tensors/digest.h"
#include "worker/data/limits.h"

#define MAGIC "KELPSURV"

struct header {
    char magic[8];
    uint64_t digest;
    uint64_t fingerprint;
    uint64_t class_largest;
    uint64_t columns;
};
_Static_assert(sizeof(struct header) == 40, "the header has no padding");
#define DIGEST_FROM 16u /* behind magic and digest */

static size_t file_bytes(uint64_t columns)
{
    return sizeof(struct header) + (size_t)columns * 2 * sizeof(double);
}

bool kelp_survey_facts_take(const void *bytes, size_t count, struct kelp_survey_facts *facts)
{
    const uint8_t *from = bytes;
    const size_t half = (size_t)facts->columns * sizeof(double);
    struct header header;
    if (count != file_bytes(facts->columns)) {
        return false;
    }
    memcpy(&header, from, sizeof(header));
    if (memcmp(header.magic, MAGIC, sizeof(header.magic)) != 0 ||
        header.columns != facts->columns || header.class_largest > UINT32_MAX ||
        header.digest != kelp_digest_bytes(from + DIGEST_FROM, count - DIGEST_FROM)) {
        return false;
    }
    facts->fingerprint = header.fingerprint;
    facts->class_largest = (uint32_t)header.class_largest;
    if (half > 0) {
        memcpy(facts->shift, from + sizeof(header), half);
        memcpy(facts->factor, from + sizeof(header) + half, half);
    }
    return true;
}

bool kelp_survey_facts_load(const char *path, struct kelp_survey_facts *facts)
{
    char *bytes = NULL;
    size_t count = 0;
    if (kelp_files_read(path, KELP_SURVEY_BYTES_MAX, &bytes, &count, NULL) != KELP_OK) {
        return false;
    }
    bool good = kelp_survey_facts_take(bytes, count, facts);
    free(bytes);
    return good;
}

void kelp_survey_facts_save(const char *path, const struct kelp_survey_facts *facts)
{
    struct header header = {.fingerprint = facts->fingerprint,
                            .class_largest = facts->class_largest,
                            .columns = facts->columns};
    size_t count = file_bytes(facts->columns), half = (size_t)facts->columns * sizeof(double);
    char *bytes = count <= KELP_SURVEY_BYTES_MAX ? malloc(count) : NULL;
    if (!bytes) {
        return;
    }
    memcpy(header.magic, MAGIC, sizeof(header.magic));
    memcpy(bytes, &header, sizeof(header));
    if (half > 0) {
        memcpy(bytes + sizeof(header), facts->shift, half);
        memcpy(bytes + sizeof(header) + half, facts->factor, half);
    }
    header.digest = kelp_digest_bytes(bytes + DIGEST_FROM, count - DIGEST_FROM);
    memcpy(bytes, &header, sizeof(header));
    if (kelp_files_write(path, bytes, count, NULL) != KELP_OK) {
        (void)unlink(path); /* an incomplete file is useless; losing it costs only a new survey */
    }
    free(bytes);
}
