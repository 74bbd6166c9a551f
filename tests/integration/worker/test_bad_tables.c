/*
 * Tables as people have them, through `kelp train`: what is wrong with one is a single line that
 * names file and line, exit code 2, and no run was begun; what is only odd is trained on, to the
 * same bits as the plain file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

static struct kelp_test_folder folder;

static const char job[] = "name: table\n"
                          "model: {kind: mlp, hidden: [4]}\n"
                          "data:\n"
                          "  kind: table\n"
                          "  path: data.csv\n"
                          "  columns: [x]\n"
                          "  targets: [y]\n"
                          "  test_every: 4\n"
                          "  cache: cache\n"
                          "train: {epochs: 2, batch_size: 8}\n"
                          "cluster: {workers: 2, lanes: 2}\n";

static FILE *create(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    return file;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = create(name);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void set_up(void)
{
    kelp_test_folder_init(&folder);
    write_file("job.yaml", job);
}

static void tear_down(void)
{
    kelp_test_folder_fini(&folder);
}

/* 20,000 rows; what `line` says instead stands in line 10,000. */
static void write_long(const char *line)
{
    FILE *file = create("data.csv");
    ck_assert_int_ge(fputs("x,y\r\n", file), 0);
    for (int i = 2; i <= 20000; i++) {
        ck_assert_int_gt(i == 10000 ? fprintf(file, "%s\r\n", line)
                                    : fprintf(file, "%d.5,%d\r\n", i % 7, i % 5),
                         0);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static void check_refused(const char *const *args, const char *expected)
{
    char runs[256];
    kelp_test_command_says(folder.path, args, 2, expected);
    (void)snprintf(runs, sizeof(runs), "%s/runs", folder.path);
    ck_assert_msg(access(runs, F_OK) != 0, "a run was begun before: %s", expected);
}

KELP_CASE("bad_tables", .timeout_s = 180, .setup = set_up, .teardown = tear_down)

KELP_TEST(wrong_tables)
{
    static const char *const train[] = {"train", "job.yaml", NULL};
    static const struct {
        const char *line;
        const char *expected;
    } lines[] = {
        {"1", "data.csv:10000: column y: missing, the row has 1 of 2 fields"},
        {"1,2,3", "data.csv:10000: the row has more than the 2 fields"},
        {"1,\"2", "data.csv:10000: field 2: the quote is not closed"},
        {"1,two", "data.csv:10000: column y: 'two' is not a number"},
        {"1,", "data.csv:10000: column y: has no value"},
        {"", "data.csv:10000: the line is blank"},
    };
    check_refused(train, "data.csv");
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        write_long(lines[i].line);
        check_refused(train, lines[i].expected);
    }
    write_long("1,2");
    check_refused(
        (const char *[]){"train", "job.yaml", "--set", "train.loss=bce_with_logits", NULL},
        "data.csv: row 0 of the training split: column y: target 2; train.loss "
        "bce_with_logits takes targets from 0 to 1");
    write_file("data.csv", "");
    check_refused(train, "data.csv:1: the file is empty");
    write_file("data.csv", "x,y\n");
    check_refused(train, "no rows: ");
    write_file("data.csv", "x,z\n1,2\n");
    check_refused(train, "data.csv:1: column y: no such column; set data.targets to one of: x, z");
    check_refused((const char *[]){"train", "job.yaml", "--set", "data.filter=x >", NULL},
                  "data.filter: 'x >'");
    check_refused((const char *[]){"train", "job.yaml", "--set", "data.targets=[]", NULL},
                  "data.targets: is empty");
    check_refused((const char *[]){"train", "job.yaml", "--set", "data.kind=panel", NULL},
                  "data.test_every: does not apply");
}

/* Train on data.csv of a folder of the run's own; the digest of the result. */
static void train_digest(const char *text, char ret_digest[33])
{
    struct kelp_run run;
    char path_key[512];
    char cache_key[512];
    kelp_run_prepare(&run);
    (void)snprintf(path_key, sizeof(path_key), "data.path=%s",
                   kelp_test_write(run.folder, "data.csv", text));
    (void)snprintf(cache_key, sizeof(cache_key), "data.cache=%s/cache", run.folder);
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", job),
                   (const char *[]){"--set", path_key, "--set", cache_key, NULL}, 120);
    ck_assert_msg(run.exit_code == 0, "exit %d: %s", run.exit_code, run.output);
    (void)snprintf(ret_digest, 33, "%s", kelp_run_digest(&run));
    kelp_run_fini(&run);
}

#define TEXT_BYTES 8192

KELP_TEST(odd_tables)
{
    char plain[33];
    char odd[33];
    char text[TEXT_BYTES] = "x,y\n";
    size_t used = strlen(text);
    for (int i = 1; i <= 40; i++) {
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%d.5,%d\n", i % 7, i % 5);
    }
    train_digest(text, plain);
    used = (size_t)snprintf(text, TEXT_BYTES, "\xef\xbb\xbf\"other, one\",y,\"x\"\r\n");
    for (int i = 1; i <= 40; i++) {
        used += (size_t)snprintf(text + used, TEXT_BYTES - used,
                                 "\"a \"\"b\"\", c\",\"%d\", %d.50 \r\n", i % 5, i % 7);
    }
    (void)snprintf(text + used, TEXT_BYTES - used, "\r\n\r\n");
    train_digest(text, odd);
    ck_assert_str_eq(plain, odd);
}
