/*
 * kelp-describe FOLDER: writes man pages to FOLDER/man1 and FOLDER/man5, and the tables of
 * completions to FOLDER/tables.sh and FOLDER/tables.fish. Run by the build; not installed.
 */
#include <stdio.h>

#include "cli/describe/completion_tables.h"
#include "cli/describe/job_page.h"
#include "cli/describe/man_page.h"
#include "common/base/files.h"

#define PATH_BYTES 4096

static FILE *create(const char *folder, const char *name, const char *ending)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof(path), "%s/%s%s", folder, name, ending);
    FILE *out = length < PATH_BYTES ? fopen(path, "we") : NULL;

    if (!out) {
        (void)fprintf(stderr, "kelp-describe: cannot write %s%s in '%s'\n", name, ending, folder);
    }
    return out;
}

/* Also what was still in the buffer must have been written. */
static bool finish(FILE *out)
{
    bool good = ferror(out) == 0;

    good = fclose(out) == 0 && good;
    if (!good) {
        (void)fprintf(stderr, "kelp-describe: a file cannot be written\n");
    }
    return good;
}

static bool write_tables(const struct kelp_page_list *list, const char *folder, const char *ending,
                         enum kelp_shell shell)
{
    FILE *out = create(folder, "tables", ending);

    if (!out) {
        return false;
    }
    kelp_completion_tables_print(list, shell, out);
    return finish(out);
}

static bool write_page(const struct kelp_page_list *list, size_t index, const char *folder)
{
    char name[16 + KELP_PAGE_NAME_MAX] = "man1/";

    kelp_page_name(list->pages[index].program, name + 5);
    FILE *out = create(folder, name, ".1");
    if (!out) {
        return false;
    }
    kelp_man_page_print(list, index, out);
    return finish(out);
}

static bool write_job_page(const char *folder)
{
    FILE *out = create(folder, "man5/" KELP_JOB_PAGE, ".5");

    if (!out) {
        return false;
    }
    kelp_status status = kelp_job_page_print(out);
    return finish(out) && status == KELP_OK;
}

static bool make_folders(const char *folder)
{
    static const char *const below[] = {"", "/man1", "/man5"};
    char path[PATH_BYTES];
    struct kelp_error error;
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(below) && status == KELP_OK; i++) {
        (void)snprintf(path, sizeof(path), "%s%s", folder, below[i]);
        status = kelp_files_make_folder(path, &error);
    }
    if (status != KELP_OK) {
        (void)fprintf(stderr, "kelp-describe: %s\n", error.text);
    }
    return status == KELP_OK;
}

int main(int argc, char **argv)
{
    static struct kelp_page_list list;

    if (argc != 2) {
        (void)fprintf(stderr, "usage: kelp-describe FOLDER\n");
        return KELP_EXIT_USAGE;
    }
    kelp_page_list_fill(&list);
    bool good = make_folders(argv[1]) && write_tables(&list, argv[1], ".sh", KELP_SHELL_POSIX) &&
                write_tables(&list, argv[1], ".fish", KELP_SHELL_FISH) && write_job_page(argv[1]);
    for (size_t i = 0; good && i < list.count; i++) {
        good = write_page(&list, i, argv[1]);
    }
    return good ? KELP_EXIT_OK : KELP_EXIT_FAILED;
}
