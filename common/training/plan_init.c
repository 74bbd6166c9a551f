#include "common/training/plan_init.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/text.h"
#include "common/tensors/rename.h"
#include "common/training/plan.h"

/* ---- names ---- */

/* The model's name for a tensor of the file; false: it is outside the prefix. */
static bool model_name(const char *in_file, const char *prefix, const char *rules, char *name,
                       size_t name_bytes)
{
    if (strncasecmp(in_file, prefix, strlen(prefix)) != 0) {
        return false;
    }
    (void)kelp_rename(rules, in_file + strlen(prefix), name, name_bytes);
    return true;
}

/* What is searched for, and what was found. */
struct search {
    const struct kelp_safetensors *file;
    const char *rules;
    const char *name;
    const struct kelp_safetensors_tensor *exact, *also; /* exactly the same name */
    const struct kelp_safetensors_tensor *loose;        /* the same name in other letter case */
    size_t loose_count;
};

static void search_behind(struct search *search, const char *prefix)
{
    char name[2 * KELP_TENSOR_NAME_MAX];

    for (size_t i = 0; i < kelp_safetensors_count(search->file); i++) {
        const struct kelp_safetensors_tensor *tensor = kelp_safetensors_at(search->file, i);
        if (!model_name(tensor->name, prefix, search->rules, name, sizeof(name)) ||
            strcasecmp(name, search->name) != 0) {
            continue;
        }
        if (strcmp(name, search->name) == 0 && strncmp(tensor->name, prefix, strlen(prefix)) == 0) {
            search->also = search->exact;
            search->exact = tensor;
        }
        search->loose = tensor;
        search->loose_count++;
    }
}

/* ---- wrappers ---- */

static bool all_begin_with(const struct kelp_safetensors *file, const char *prefix)
{
    for (size_t i = 0; i < kelp_safetensors_count(file); i++) {
        if (strncmp(kelp_safetensors_at(file, i)->name, prefix, strlen(prefix)) != 0) {
            return false;
        }
    }
    return true;
}

/* The prefix that DataParallel, DistributedDataParallel or torch.compile added to every name;
 * "": none. */
static const char *wrapper_of(const struct kelp_safetensors *file)
{
    static const char *const wrappers[] = {"module._orig_mod.", "_orig_mod.module.", "module.",
                                           "_orig_mod."};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrappers); i++) {
        if (all_begin_with(file, wrappers[i])) {
            return wrappers[i];
        }
    }
    return "";
}

/* ---- finding ---- */

kelp_status kelp__init_find(const struct kelp_safetensors *file, const struct kelp_job *job,
                            const char *name, const struct kelp_safetensors_tensor **ret_found,
                            struct kelp_error *reterr)
{
    const char *prefix = job->model.init_prefix;
    struct search search = {.file = file, .rules = job->model.init_map, .name = name};

    search_behind(&search, prefix);
    if (search.loose_count == 0 && prefix[0] == '\0' && wrapper_of(file)[0] != '\0') {
        search_behind(&search, wrapper_of(file));
    }
    if (search.also) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s: tensors %s and %s are both %s by model.init_map",
                         kelp_safetensors_path(file), search.also->name, search.exact->name, name);
    }
    *ret_found = search.exact ? search.exact : search.loose_count == 1 ? search.loose : NULL;
    return KELP_OK;
}

/* Length of a prefix that would make the names match; 0: none. */
static size_t prefix_bytes(const char *in_file, const char *name)
{
    size_t bytes = strlen(in_file), own = strlen(name);

    return bytes > own + 1 && strchr("./", in_file[bytes - own - 1]) &&
                   strcasecmp(in_file + bytes - own, name) == 0
               ? bytes - own
               : 0;
}

kelp_status kelp__init_lacks(const struct kelp_safetensors *file, const struct kelp_job *job,
                             const char *name, struct kelp_error *reterr)
{
    char names[192];

    for (size_t i = 0; i < kelp_safetensors_count(file); i++) {
        const char *other = kelp_safetensors_at(file, i)->name;
        size_t bytes = prefix_bytes(other, name);
        if (bytes > 0) {
            return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                             "%s: no tensor %s%s; the file has %.128s: set model.init_prefix to "
                             "'%.*s'",
                             kelp_safetensors_path(file), job->model.init_prefix, name, other,
                             (int)(bytes < 64 ? bytes : 64), other);
        }
    }
    kelp_safetensors_names(file, names, sizeof(names));
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "%s: no tensor %s%s; the file has %s%s",
                     kelp_safetensors_path(file), job->model.init_prefix, name, names,
                     job->model.init_map[0] == '\0' ? " (model.init_map renames them)"
                                                    : ", as they are before model.init_map");
}

/* ---- rules ---- */

static bool renames(const struct kelp_safetensors *file, const struct kelp_job *job, size_t rule)
{
    const char *prefixes[] = {job->model.init_prefix, wrapper_of(file)};
    char name[2 * KELP_TENSOR_NAME_MAX];

    for (size_t i = 0; i < kelp_safetensors_count(file); i++) {
        const char *in_file = kelp_safetensors_at(file, i)->name;
        for (size_t p = 0; p < KELP_ARRAY_COUNT(prefixes); p++) {
            size_t bytes = strlen(prefixes[p]);
            if (strncasecmp(in_file, prefixes[p], bytes) == 0 &&
                kelp_rename(job->model.init_map, in_file + bytes, name, sizeof(name)) == rule) {
                return true;
            }
        }
    }
    return false;
}

kelp_status kelp__init_check_map(const struct kelp_safetensors *file, const struct kelp_job *job,
                                 struct kelp_error *reterr)
{
    const char *rule = NULL;
    size_t bytes = 0;

    for (size_t i = 0; (rule = kelp_rename_rule(job->model.init_map, i, &bytes)); i++) {
        if (!renames(file, job, i)) {
            char names[192];
            kelp_safetensors_names(file, names, sizeof(names));
            return kelp_fail(
                reterr, KELP_ERR_NOT_FOUND,
                "%s: no tensor that model.init_map's '%.*s' renames%s; the file has %s",
                kelp_safetensors_path(file), (int)(bytes < 64 ? bytes : 64), rule,
                i > 0 ? ", or an earlier rule takes it" : "", names);
        }
    }
    return KELP_OK;
}
