#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/text.h"
#include "common/base/value.h"
#include "common/job/job_options.h"
#include "common/tensors/digest.h"

#define ORIGIN_COLUMN 36

/* ---- values ---- */

static uint32_t u32_at(const char *field)
{
    uint32_t value;

    memcpy(&value, field, sizeof(value));
    return value;
}

static void print_quoted(FILE *out, const char *text, size_t bytes)
{
    (void)fputc('"', out);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"' || text[i] == '\\') {
            (void)fputc('\\', out);
        }
        (void)fputc(text[i], out);
    }
    (void)fputc('"', out);
}

/* Plain if every reader takes it for the same text, otherwise in double quotes. Except for these
 * two characters, text that needs escapes was refused when it was read. */
static void print_text(FILE *out, const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    bool letter = (text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z');

    if (letter && strspn(text, safe) == strlen(text) && strcasecmp(text, "null") != 0) {
        (void)fputs(text, out);
        return;
    }
    print_quoted(out, text, strlen(text));
}

static void print_texts(FILE *out, const char *texts)
{
    (void)fputc('[', out);
    while (*texts != '\0') {
        size_t bytes = strcspn(texts, "\n");
        print_quoted(out, texts, bytes);
        texts += bytes;
        if (*texts == '\n') {
            (void)fputs(", ", out);
            texts++;
        }
    }
    (void)fputc(']', out);
}

static void print_widths(FILE *out, const struct kelp_job_key *key, const struct kelp_job *job)
{
    const char *field = (const char *)job + key->offset;
    uint32_t count = u32_at((const char *)job + key->count_offset);

    (void)fputc('[', out);
    for (uint32_t i = 0; i < count; i++) {
        (void)fprintf(out, "%s%" PRIu32, i > 0 ? ", " : "", u32_at(field + i * sizeof(uint32_t)));
    }
    (void)fputc(']', out);
}

static void print_scaled(FILE *out, const struct kelp_job_key *key, uint32_t value)
{
    char text[KELP_VALUE_TEXT_MAX];

    if (key->type == KELP_JOB_SIZE) {
        kelp_value_print_size(value, text);
    } else {
        kelp_value_print_duration(value, text);
    }
    (void)fputs(text, out);
}

static void print_number(FILE *out, double value)
{
    char text[KELP_VALUE_TEXT_MAX];

    kelp_value_print_double(value, text);
    (void)fputs(text, out);
}

static void print_numbers(FILE *out, const struct kelp_job_key *key, const struct kelp_job *job)
{
    const double *field = (const double *)(const void *)((const char *)job + key->offset);
    uint32_t count = u32_at((const char *)job + key->count_offset);

    (void)fputc('[', out);
    for (uint32_t i = 0; i < count; i++) {
        (void)fputs(i > 0 ? ", " : "", out);
        print_number(out, field[i]);
    }
    (void)fputc(']', out);
}

static void print_choice(FILE *out, const struct kelp_job_key *key, const struct kelp_job *job)
{
    const char *word = key->choices[u32_at((const char *)job + key->offset)];

    if (word) {
        (void)fputs(word, out);
    } else { /* one of model.sums */
        (void)fprintf(out, "val/%s", (const char *)job + key->sum_offset);
    }
}

void kelp__job_key_print(FILE *out, const struct kelp_job_key *key, const struct kelp_job *job)
{
    const void *field = (const char *)job + key->offset;

    switch (key->type) {
    case KELP_JOB_BOOL:
        (void)fputs(*(const bool *)field ? "true" : "false", out);
        return;
    case KELP_JOB_U32:
        (void)fprintf(out, "%" PRIu32, u32_at(field));
        return;
    case KELP_JOB_SIZE:
    case KELP_JOB_DURATION:
        print_scaled(out, key, u32_at(field));
        return;
    case KELP_JOB_U64:
        (void)fprintf(out, "%" PRIu64, *(const uint64_t *)field);
        return;
    case KELP_JOB_I32:
        (void)fprintf(out, "%" PRId32, *(const int32_t *)field);
        return;
    case KELP_JOB_DOUBLE:
        print_number(out, *(const double *)field);
        return;
    case KELP_JOB_NAME:
    case KELP_JOB_TEXT:
    case KELP_JOB_PATH:
        print_text(out, field);
        return;
    case KELP_JOB_RANGE: {
        const struct kelp_range *range = field;
        (void)fprintf(out, "%" PRIu32 ":%" PRIu32, range->min, range->max);
        return;
    }
    case KELP_JOB_CHOICE:
        print_choice(out, key, job);
        return;
    case KELP_JOB_WIDTHS:
        print_widths(out, key, job);
        return;
    case KELP_JOB_NUMBERS:
        print_numbers(out, key, job);
        return;
    case KELP_JOB_TEXTS:
        print_texts(out, field);
        return;
    case KELP_JOB_SPLIT: {
        const uint64_t *split = field;
        (void)fprintf(out, "[%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", split[0], split[1], split[2]);
        return;
    }
    }
    assert(false && "job key type");
}

/* ---- job files ---- */

static void print_origin(FILE *out, const struct kelp_job_file *file, size_t key)
{
    const struct kelp_origin *origin = &file->origins[key];

    switch (origin->kind) {
    case KELP_ORIGIN_DEFAULT:
        (void)fputs("default", out);
        return;
    case KELP_ORIGIN_FILE:
        (void)fprintf(out, "%s:%" PRIu32, file->name, origin->line);
        return;
    case KELP_ORIGIN_ENVIRONMENT:
        (void)fputs("environment", out);
        return;
    case KELP_ORIGIN_FLAG:
        (void)fputs("command line", out);
        return;
    }
    assert(false && "origin kind");
}

/* Print "lr: 0.005" of one key, without the section's name and a line break. */
static void print_key(FILE *out, const struct kelp_job_key *key, const struct kelp_job *job)
{
    const char *dot = strchr(key->name, '.');

    (void)fprintf(out, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : key->name);
    kelp__job_key_print(out, key, job);
}

static void print_key_with_origin(FILE *out, const struct kelp_job_file *file, size_t index)
{
    long start = ftell(out);

    print_key(out, &kelp__job_keys[index], &file->job);
    long used = ftell(out) - start;
    (void)fprintf(out, "%*s# ", used + 2 < ORIGIN_COLUMN ? ORIGIN_COLUMN - (int)used : 2, "");
    print_origin(out, file, index);
}

/* Print the section's line if the key's section differs from that of the line before. */
static void print_section(FILE *out, const struct kelp_job_key *key, char section[static 32])
{
    size_t length = strcspn(key->name, ".");

    if (key->name[length] == '\0' ||
        (strlen(section) == length && strncmp(section, key->name, length) == 0)) {
        return;
    }
    (void)snprintf(section, 32, "%.*s", (int)length, key->name);
    (void)fprintf(out, "%s:\n", section);
}

/* Set the paths of a job that lies in folder. */
static void move_into(struct kelp_job *job, const char *folder)
{
    size_t length = strlen(folder);

    job->run.dir[0] = '\0';
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        char *path = (char *)job + kelp__job_keys[i].offset;
        if (kelp__job_keys[i].type == KELP_JOB_PATH && strncmp(path, folder, length) == 0 &&
            path[length] == '/' && path[length + 1] != '\0') {
            memmove(path, path + length + 1, strlen(path + length + 1) + 1);
        }
    }
}

/* Reduce paths to what does not depend on their folders. */
static void leave_places_out(struct kelp_job *job)
{
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        char *path = (char *)job + kelp__job_keys[i].offset;
        if (kelp__job_keys[i].type == KELP_JOB_PATH) {
            const char *name = kelp__job_path_name(path);
            memmove(path, name, strlen(name) + 1);
        }
    }
}

enum print_form { PRINT_CANONICAL, PRINT_WITH_ORIGIN, PRINT_WITHOUT_RUN_DIR, PRINT_MODEL };

static bool begins_with(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* Does the key affect samples or the model, apart from where files lie? */
static bool shapes_model(const char *name)
{
    static const char *const sections[] = {"run.", "transport.", "failure.", "checkpoint."};
    static const char *const places[] = {
        "data.path",        "data.val_path",        "data.test_path",
        "data.target_path", "data.val_target_path", "data.test_target_path",
        "data.cache",       "model.init",           "model.init_prefix",
        "data.test_rows",   "model.init_map"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(sections); i++) {
        if (begins_with(name, sections[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(places); i++) {
        if (strcmp(name, places[i]) == 0) {
            return false;
        }
    }
    return !begins_with(name, "cluster.") || strcmp(name, "cluster.lanes") == 0;
}

/* scratch: memory for another job. */
static bool is_default(const struct kelp_job_key *key, const struct kelp_job *job,
                       struct kelp_job *scratch)
{
    *scratch = *job;
    return kelp__job_key_read(key, key->default_text, scratch, NULL) == KELP_OK &&
           memcmp(scratch, job, sizeof(*scratch)) == 0;
}

static bool is_printed(const struct kelp_job_key *key, const struct kelp_job *job,
                       enum print_form form, struct kelp_job *scratch)
{
    if (form == PRINT_WITHOUT_RUN_DIR) {
        return strcmp(key->name, "run.dir") != 0 && !(key->later && is_default(key, job, scratch));
    }
    return form != PRINT_MODEL || shapes_model(key->name);
}

/* scratch: for PRINT_WITHOUT_RUN_DIR; otherwise NULL. */
static void print_file(FILE *out, const struct kelp_job_file *file, enum print_form form,
                       struct kelp_job *scratch)
{
    char section[32] = "";

    for (size_t i = 0; i < kelp__job_key_count; i++) {
        if (!kelp__job_key_applies(&kelp__job_keys[i], &file->job) ||
            !is_printed(&kelp__job_keys[i], &file->job, form, scratch)) {
            continue;
        }
        print_section(out, &kelp__job_keys[i], section);
        if (form == PRINT_WITH_ORIGIN) {
            print_key_with_origin(out, file, i);
        } else {
            print_key(out, &kelp__job_keys[i], &file->job);
        }
        (void)fputc('\n', out);
    }
}

static kelp_status print_to_memory(const struct kelp_job_file *file, enum print_form form,
                                   char **ret_text, size_t *ret_bytes, struct kelp_error *reterr)
{
    struct kelp_text text;
    struct kelp_job *scratch = NULL;

    if (form == PRINT_WITHOUT_RUN_DIR && !(scratch = malloc(sizeof(*scratch)))) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = kelp_text_open(&text, reterr);
    if (status == KELP_OK) {
        print_file(text.out, file, form, scratch);
        status = kelp_text_close(&text, ret_text, ret_bytes, reterr);
    }
    free(scratch);
    return status;
}

kelp_status kelp_job_file_print(const struct kelp_job_file *file, bool with_origin, char **ret_text,
                                struct kelp_error *reterr)
{
    size_t text_bytes;

    return print_to_memory(file, with_origin ? PRINT_WITH_ORIGIN : PRINT_CANONICAL, ret_text,
                           &text_bytes, reterr);
}

kelp_status kelp_job_file_print_model(const struct kelp_job_file *file, char **ret_text,
                                      struct kelp_error *reterr)
{
    size_t text_bytes;

    return print_to_memory(file, PRINT_MODEL, ret_text, &text_bytes, reterr);
}

/* A copy whose job may be changed before printing; owned (free()). Its texts are borrowed. */
static struct kelp_job_file *copy_file(const struct kelp_job_file *file)
{
    struct kelp_job_file *copy = malloc(sizeof(*copy));

    if (copy) {
        *copy = *file;
    }
    return copy;
}

kelp_status kelp_job_file_print_in(const struct kelp_job_file *file, const char *folder,
                                   char **ret_text, struct kelp_error *reterr)
{
    struct kelp_job_file *moved = copy_file(file);
    size_t text_bytes;

    if (!moved) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    move_into(&moved->job, folder);
    kelp_status status = print_to_memory(moved, PRINT_CANONICAL, ret_text, &text_bytes, reterr);
    free(moved);
    return status;
}

uint64_t kelp_job_file_digest(const struct kelp_job_file *file)
{
    struct kelp_job_file *placeless = copy_file(file);
    char *text = NULL;
    size_t text_bytes = 0;

    if (!placeless) {
        return 0;
    }
    leave_places_out(&placeless->job);
    kelp_status status =
        print_to_memory(placeless, PRINT_WITHOUT_RUN_DIR, &text, &text_bytes, NULL);
    free(placeless);
    if (status != KELP_OK) {
        return 0;
    }
    uint64_t digest = kelp_digest_bytes(text, text_bytes);
    free(text);
    return digest;
}
