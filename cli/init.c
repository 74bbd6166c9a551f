#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/init/job_choice.h"
#include "cli/init/job_print.h"
#include "cli/init/table_read.h"
#include "cli/verb/out_file.h"
#include "cli/verbs.h"
#include "common/base/files.h"
#include "common/base/text.h"
#include "common/job/job.h"
#include "worker/data/table/table_reader.h"

#define PATH_BYTES 4096

static const struct kelp_option options[] = {
    KELP_VERB_TEXT("target", "COLUMN", NULL, "the column to predict (default: guessed)"),
    KELP_VERB_TEXT("out", "FILE", NULL,
                   "where to write; `-`: standard output (default: NAME.yaml)"),
    KELP_VERB_FLAG("force", NULL, "replace an existing file"),
};

static const struct kelp_program program = {
    .name = "kelp init",
    .summary = "writes a first job file for your data",
    .positional = "FILE.csv|FOLDER",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp init trips.csv\n"
                "  kelp init clicks.csv.gz --target clicked --out jobs/clicks.yaml\n",
    KELP_VERB_OPTIONS(options),
};

/* What a command is about. */
struct asked {
    const char *data;   /* as it was typed */
    const char *target; /* or NULL */
    const char *out;    /* "-": standard output */
    char path[PATH_BYTES];
    struct kelp_init_source source;
};

static bool ends_with(const char *text, const char *end)
{
    size_t bytes = strlen(text), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

/* ---- where the data are ---------------------------------------------------------------------- */

/* What the job's path is: seen from the job file, which lies in the current directory or names the
 * data from the root. */
static kelp_status place(struct asked *asked, const char *behind, struct kelp_error *reterr)
{
    char folder[PATH_BYTES] = "";
    const char *data = asked->data;
    bool near = strchr(asked->out, '/') == NULL && strcmp(asked->out, "-") != 0;
    if (!near && data[0] != '/' && !getcwd(folder, sizeof(folder))) {
        return kelp_files_error(errno, "find", "the current directory", reterr);
    }
    int bytes = snprintf(asked->path, sizeof(asked->path), "%s%s%s%s", folder,
                         folder[0] != '\0' ? "/" : "", data, behind);
    if (bytes < 0 || (size_t)bytes >= sizeof(asked->path) || bytes > KELP_JOB_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: is longer than a job's path may be, %d bytes",
                         data, KELP_JOB_PATH_MAX);
    }
    asked->source.path = asked->path;
    return KELP_OK;
}

/* Does a folder hold files whose names end so? */
static bool holds(const char *folder, const char *end)
{
    DIR *dir = opendir(folder);
    bool found = false;
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry && !found; entry = readdir(dir)) {
        found = ends_with(entry->d_name, end) && entry->d_name[0] != '.';
    }
    if (dir) {
        (void)closedir(dir);
    }
    return found;
}

/* The pattern that finds a folder's tables. */
static kelp_status find_tables(struct asked *asked, struct kelp_error *reterr)
{
    static const char *const endings[] = {".csv", ".csv.gz"};
    size_t bytes = strlen(asked->data);
    const char *slash = bytes > 0 && asked->data[bytes - 1] == '/' ? "" : "/";
    for (size_t i = 0; i < KELP_ARRAY_COUNT(endings); i++) {
        char behind[32];
        if (holds(asked->data, endings[i])) {
            (void)snprintf(behind, sizeof(behind), "%s*%s", slash, endings[i]);
            return place(asked, behind, reterr);
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "%s: has neither tables (*.csv, *.csv.gz) nor images "
                     "(train-images-idx3-ubyte)",
                     asked->data);
}

/* Files that are no tables, and how to train on them. */
static kelp_status refuse_arrays(const struct asked *asked, struct kelp_error *reterr)
{
    if (ends_with(asked->data, ".npy")) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "%s: kelp init does not read arrays; write a job with data.kind npy, "
                         "data.path and data.target_path (docs/DATA.md)",
                         asked->data);
    }
    if (ends_with(asked->data, ".safetensors")) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "%s: kelp init does not read arrays; write a job with data.kind "
                         "tensors, data.input_name and data.target_name (docs/DATA.md)",
                         asked->data);
    }
    if (ends_with(asked->data, ".bin")) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "%s: kelp init does not read plain numbers; write a job with "
                         "data.kind binary, data.dtype and data.input_shape (docs/DATA.md)",
                         asked->data);
    }
    if (ends_with(asked->data, ".parquet") || ends_with(asked->data, ".xlsx")) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "%s: is not CSV; save it as a CSV file with a header line", asked->data);
    }
    return KELP_OK;
}

/* ---- the job --------------------------------------------------------------------------------- */

static kelp_status write_table(struct asked *asked, FILE *out, struct kelp_error *reterr)
{
    struct kelp_table_files files = {0};
    struct kelp_table_facts facts = {0};
    struct kelp_init_choice choice = {0};
    kelp_status status = kelp_table_files_find("data", asked->path, &files, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    status = kelp_table_read(files.paths, files.count, &facts, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    status = kelp_init_choose(&facts, asked->target, &choice, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s", asked->data);
        goto release;
    }
    kelp_init_print_table(&asked->source, &facts, &choice, out);

release:
    kelp_init_choice_fini(&choice);
    kelp_table_facts_fini(&facts);
    kelp_table_files_fini(&files);
    return status;
}

static kelp_status write_images(struct asked *asked, FILE *out, struct kelp_error *reterr)
{
    struct kelp_image_facts facts;
    if (asked->target) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--target: is for tables; from images a job learns the labels");
    }
    kelp_status status = kelp_image_folder_read(asked->data, &facts, reterr);
    if (status == KELP_OK) {
        kelp_init_print_images(&asked->source, &facts, out);
    }
    return status;
}

static kelp_status write_job(struct asked *asked, FILE *out, struct kelp_error *reterr)
{
    struct stat about;
    bool folder = stat(asked->data, &about) == 0 && S_ISDIR(about.st_mode);
    bool images = folder && kelp_image_folder_is(asked->data);
    kelp_status status = refuse_arrays(asked, reterr);
    if (status == KELP_OK) {
        status = folder && !images ? find_tables(asked, reterr) : place(asked, "", reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    return images ? write_images(asked, out, reterr) : write_table(asked, out, reterr);
}

/* The job's text, to its file or to standard output. */
static int deliver(const struct asked *asked, const char *text, size_t bytes)
{
    struct kelp_error error;
    if (strcmp(asked->out, "-") == 0) {
        return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0
                   ? KELP_EXIT_OK
                   : kelp_complain(KELP_EXIT_FAILED, "cannot write standard output");
    }
    if (kelp_files_write(asked->out, text, bytes, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    (void)printf("%s: written; kelp train %s trains it\n", asked->out, asked->out);
    return KELP_EXIT_OK;
}

static int make(struct asked *asked)
{
    struct kelp_error error;
    struct kelp_text text;
    char *bytes = NULL;
    size_t count = 0;
    kelp_status status = kelp_text_open(&text, &error);
    if (status == KELP_OK) {
        status = write_job(asked, text.out, &error);
        if (status == KELP_OK) {
            status = kelp_text_close(&text, &bytes, &count, &error);
        } else {
            kelp_text_discard(&text);
        }
    }
    if (status != KELP_OK) {
        bool own = status == KELP_ERR_IO || status == KELP_ERR_NO_MEMORY;
        return kelp_complain(own ? KELP_EXIT_FAILED : KELP_EXIT_USAGE, "%s", error.text);
    }
    int exit_status = deliver(asked, bytes, count);
    free(bytes);
    return exit_status;
}

static int init(const struct kelp_options *given)
{
    char name[KELP_INIT_NAME_MAX + 1], file[KELP_INIT_NAME_MAX + sizeof(".yaml")];
    struct asked asked = {.data = kelp_options_positional(given, 0),
                          .target = kelp_options_text(given, "target"),
                          .out = kelp_options_text(given, "out")};
    bool named = asked.out && strcmp(asked.out, "-") != 0;
    kelp_init_job_name(named ? asked.out : asked.data, name);
    (void)snprintf(file, sizeof(file), "%s.yaml", name);
    asked.out = asked.out ? asked.out : file;
    asked.source = (struct kelp_init_source){
        .shown = asked.data, .name = name, .file = strcmp(asked.out, "-") == 0 ? file : asked.out};
    if (strcmp(asked.out, "-") != 0 && !kelp_options_flag(given, "force") &&
        access(asked.out, F_OK) == 0) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "%s: exists; --force replaces it, --out FILE writes another file",
                             asked.out);
    }
    struct kelp_error error;
    if (strcmp(asked.out, "-") != 0 && kelp_out_file_check("--out", asked.out, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    return make(&asked);
}

const struct kelp_verb kelp_verb_init = {"init", "write a first job for a CSV file or a folder",
                                         &program, init, NULL};
