#include "ps/etcd_build.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/job/job.h"
#include "common/program/options/version.h"
#include "kernels/update_answer.h"

#define PREFIX_MAX (sizeof("/kelp//ps/") + KELP_JOB_NAME_MAX)

void kelp_build_print(char text[KELP_BUILD_MAX + 1])
{
    (void)snprintf(text, KELP_BUILD_MAX + 1, "%s+%016" PRIx64, kelp_version(),
                   kelp_update_answer());
}

static bool same(const struct kelp_build *build, const char *other)
{
    const size_t version = strcspn(build->text, "+");
    return build->mixed ? strcspn(other, "+") == version && memcmp(build->text, other, version) == 0
                        : strcmp(build->text, other) == 0;
}

/* False: the entry names no build. */
static bool read_build(const struct kelp_etcd_pair *pair, char text[KELP_BUILD_MAX + 1])
{
    cJSON *json = NULL;
    if (kelp_json_parse(pair->value, pair->value_bytes, &json, NULL) != KELP_OK) {
        return false; /* entries that cannot be read are ignored everywhere */
    }
    const bool named = cJSON_HasObjectItem(json, "build");
    if (named && kelp_json_string(json, "build", text, KELP_BUILD_MAX + 1, NULL) != KELP_OK) {
        (void)snprintf(text, KELP_BUILD_MAX + 1, "(unreadable)");
    }
    cJSON_Delete(json);
    return named;
}

/* The store's revision at which the shard registered; INT64_MAX: it is not registered. */
static int64_t registered_at(const struct kelp_etcd_range *range, const char *prefix,
                             const char *shard)
{
    for (size_t i = 0; i < range->count; i++) {
        if (strcmp(range->pairs[i].key + strlen(prefix), shard) == 0) {
            return range->pairs[i].mod_revision;
        }
    }
    return INT64_MAX;
}

static kelp_status compare(const struct kelp_etcd_range *range, const struct kelp_build *build,
                           const char *prefix, bool earlier, struct kelp_error *reterr)
{
    const int64_t before = earlier ? registered_at(range, prefix, build->shard) : INT64_MAX;
    for (size_t i = 0; i < range->count; i++) {
        char text[KELP_BUILD_MAX + 1];
        const char *other = range->pairs[i].key + strlen(prefix);
        if (strcmp(other, build->shard) == 0 || range->pairs[i].mod_revision >= before ||
            !read_build(&range->pairs[i], text) || same(build, text)) {
            continue;
        }
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s is of build %s, but %.63s of job %s is of build %s: start the same "
                         "kelp-ps for all shards of a job, or end them all first",
                         build->shard, build->text, other, build->job, text);
    }
    return KELP_OK;
}

kelp_status kelp_build_check(struct kelp_etcd *etcd, const struct kelp_build *build, bool earlier,
                             uint32_t deadline_ms, struct kelp_error *reterr)
{
    char prefix[PREFIX_MAX];
    struct kelp_etcd_range range;
    (void)snprintf(prefix, sizeof(prefix), "/kelp/%s/ps/", build->job);
    kelp_status status = kelp_etcd_get_prefix(etcd, prefix, deadline_ms, &range, reterr);
    if (status == KELP_OK) {
        status = compare(&range, build, prefix, earlier, reterr);
        kelp_etcd_range_fini(&range);
    }
    return status;
}
